//! No wait under the lock, pure questions, only computed KV, isolation. (INV-4, 5, 7, 17, 19)

use crate::verbs::Verbs as _;
use crate::yard::{KINDS, SIZE, Yard, and_one, cat, config, sealing, text, tokens};
use blockyard_core::{
    Answer, Cache, Config, Error, Extras, Filling, Key, KeyHash, Namespace, Request, Retention,
    Stop, Tier,
};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Runs something that must not wait.
fn at_once(act: impl FnOnce() + Send + 'static) {
    let (done, waiting) = channel();
    let thread = std::thread::spawn(move || {
        act();
        done.send(()).expect("the caller waits");
    });
    if waiting.recv_timeout(Duration::from_secs(20)).is_ok() {
        return thread.join().expect("it has ended");
    }
    assert!(!thread.is_finished(), "it failed: see above");
    panic!("it waited for the yard's lock");
}

/// Law: INV-4
#[test]
fn hashing_gathering_and_dropping_go_on_while_the_yard_is_locked() {
    let yard = Yard::new(64, 64);
    let cache = yard.cache.clone();
    at_once(move || {
        let whole = |name| {
            let mut chain = cache.chain(Extras::default()).unwrap();
            chain.extend(&text(name, 3)).unwrap();
            let begun = cache.begin(chain, 0, u32::MAX);
            begun.unwrap().unwrap().0
        };
        let (running, dropped) = (whole(1), whole(2));
        let parked = cache.park(whole(3), 12).unwrap();
        let locked = cache.lock();
        // With the lock held: each of these would stand still if it took it.
        let mut chain = cache.chain(Extras::default()).unwrap();
        chain.extend(&text(4, 10_000)).unwrap();
        running.append(&text(5, 10_000)).unwrap();
        assert_eq!(running.tokens(), 10_003 * SIZE);
        assert_eq!(sealing(&running, 12).unwrap().blocks(), 3);
        let chain = parked.chain();
        assert_eq!((chain.keys().len(), chain.tokens()), (3, 12));
        assert!(cache.try_lock().is_none(), "and it was held all along");
        drop((dropped, parked));
        assert_eq!(locked.stats().leases, 2, "taken back by the next verb");
        drop(locked);
        assert_eq!(cache.lock().stats().leases, 1);
        assert_eq!(cache.lock().stats().counters.leaked, 2);
    });
}

/// A long append beside short verbs: none of them finds the yard locked by it.
/// Law: INV-4
#[test]
fn a_verb_proceeds_while_another_thread_hashes_a_long_prompt() {
    let yard = Yard::new(64, 0);
    let lease = yard.run(&text(1, 3));
    let done = std::sync::atomic::AtomicUsize::new(0);
    let mut verbs = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..20 {
                lease.append(&text(round, 5_000)).unwrap();
                done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        while done.load(std::sync::atomic::Ordering::Relaxed) < 20 || verbs == 0 {
            let mut locked = yard.cache.try_lock().expect("no other verb is running");
            locked.grow(&[lease.id()], |_| 0, &mut vec![]).unwrap();
            verbs += 1;
        }
    });
    yard.finish(lease);
}

/// Law: R2-8
#[test]
fn a_panic_in_a_callers_array_leaves_the_yard_whole() {
    let yard = Yard::new(16, 0);
    let (first, second) = (yard.run(&text(1, 2)), yard.run(&text(2, 2)));
    let ids = [first.id(), second.id()];
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let more = |row| if row == 0 { SIZE } else { panic!("on purpose") };
        yard.cache.lock().grow(&ids, more, &mut vec![])
    }));
    assert!(caught.is_err());
    yard.sound();
    assert_eq!(
        (yard.view(&first).blocks, yard.view(&second).blocks),
        (3, 2)
    );
    // A thread that holds the lock may keep using it; the cache's own verbs do not.
    let ended = yard.cache.lock().finish(&ids, Retention::Ordinary, None);
    assert_eq!(ended, Ok(()));
}

/// What a verb was changing when it panicked is not used again; no other yard is touched. (R2-8)
/// Law: R2-8
#[test]
fn a_panic_in_a_verb_breaks_that_yard_alone() {
    let (yard, other) = (Yard::new(16, 8), Yard::new(16, 8));
    yard.ends_busy();
    let (first, second) = (yard.run(&text(1, 2)), yard.run(&text(2, 2)));
    let parked = yard.park(yard.run(&text(3, 2)), 2 * SIZE);
    let (ticket, kept) = (yard.cache.promise(2, Tier::DEVICE), other.run(&text(1, 2)));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut state = yard.cache.enter().expect("it is sound");
        state.grow(&[first.id()], |_| panic!("on purpose"), &mut vec![])
    }));
    assert!(caught.is_err());
    let broken = |error| matches!(error, Error::Broken { .. });
    assert!(yard.cache.enter().is_err_and(broken));
    assert!(yard.cache.try_enter().is_err_and(broken));
    let begun = yard.cache.begin(yard.chain(&text(4, 1)), 0, u32::MAX);
    assert!(begun.is_err_and(broken));
    assert!(yard.cache.seal(&[(&first, 1)]).is_err_and(broken));
    assert!(yard.cache.fork(&first, 2 * SIZE, 0).is_err_and(broken));
    assert!(yard.cache.promise(1, Tier::HOST).is_err_and(broken));
    assert!(
        yard.cache
            .finish(second, Retention::Ordinary)
            .is_err_and(broken)
    );
    let (_, resumed) = yard.cache.resume(parked, 0).expect_err("it is broken");
    assert!(resumed.is_some_and(broken));
    // Its error repeats what was said when the panic was caught, the first time.
    let said = [1, 2].map(|number| yard.cache.break_down(format!("panic {number}")).to_string());
    assert!(
        said.iter().all(|said| said.contains("(panic 1)")),
        "{said:?}"
    );
    drop((first, ticket));
    other.finish(kept);
    other.at_rest();
}

/// The order in which blocks go, by asking for room one block at a time.
fn victims(yard: &Yard, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    (0..yard.device().idle)
        .map(|_| {
            yard.squeeze(1);
            prompts
                .iter()
                .map(|prompt| yard.on_device(prompt))
                .collect()
        })
        .collect()
}

/// Law: INV-5
#[test]
fn a_probe_changes_neither_stats_nor_recency_nor_what_may_be_taken() {
    for policy in KINDS {
        let prompts: Vec<_> = (1..5).map(|name| text(name, 3)).collect();
        let prepared = || {
            let yard = Yard::of(Config {
                policy,
                ..config(16, 8)
            });
            for prompt in &prompts {
                yard.publish(prompt);
            }
            yard
        };
        let (asked, unasked) = (prepared(), prepared());
        let before = asked.stats();
        for prompt in [&prompts[0], &text(9, 3), &prompts[2], &prompts[0]] {
            for _ in 0..3 {
                asked.probe(prompt);
            }
        }
        assert_eq!(asked.stats(), before);
        assert_eq!(victims(&asked, &prompts), victims(&unasked, &prompts));
    }
}

/// Law: INV-5
#[test]
fn a_begin_that_is_refused_or_told_to_wait_changes_nothing_either() {
    let yard = Yard::new(6, 6);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    let before = yard.stats();
    let soon = yard.ask(&and_one(&prompt), 0, u32::MAX, Filling::Soon);
    assert_eq!(soon, Ok(Answer::Soon(begun.plans[0].flight)));
    assert_eq!(yard.stats(), before);
    assert!(yard.begin_reserving(&text(2, 4), 0).is_err());
    let mut after = yard.stats();
    after.counters.no_room -= 1;
    assert_eq!(after, before);
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: INV-7
#[test]
fn only_blocks_below_the_acknowledged_count_are_published() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 4);
    let (lease, _) = yard.begin(&prompt);
    for (computed, blocks) in [(0, 0), (3, 0), (4, 1), (7, 1), (11, 2), (12, 3), (15, 3)] {
        yard.seal(&lease, computed);
        assert_eq!(yard.on_device(&prompt), blocks, "{computed} computed");
        assert_eq!(u64::from(yard.view(&lease).sealed), computed / SIZE);
    }
    yard.finish(lease);
    assert_eq!(yard.on_device(&prompt), 3, "nor does finish publish more");
}

/// Law: INV-7
#[test]
fn draft_tokens_are_never_published() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin(&tokens(1, 6));
    assert!(yard.grow(&lease, 6), "six drafts");
    // Appended and acknowledged are 6: more can neither be said nor be published.
    let refused = sealing(&lease, 12).unwrap_err();
    assert!(matches!(
        refused,
        Error::Argument {
            name: "computed",
            ..
        }
    ));
    yard.seal(&lease, 6);
    // Two drafts are accepted.
    lease.append(&tokens(1, 8)[6..]).unwrap();
    yard.seal(&lease, 7);
    assert_eq!(yard.on_device(&text(1, 3)), 1);
    yard.seal(&lease, 8);
    assert_eq!(yard.on_device(&text(1, 3)), 2);
    yard.cache.lock().trim(&[lease.id()], &[8]).unwrap();
    yard.finish(lease);
    assert_eq!(yard.on_device(&text(1, 3)), 2);
}

/// Law: INV-7
#[test]
fn a_seal_beyond_the_slots_is_refused_and_changes_nothing() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin(&text(1, 1));
    lease.append(&text(2, 2)).unwrap();
    let before = yard.stats();
    let refused = yard.cache.seal(&[(&lease, 12)]);
    assert!(matches!(
        refused,
        Err(Error::Argument {
            name: "computed",
            ..
        })
    ));
    assert_eq!(yard.stats(), before);
    yard.finish(lease);
}

/// Eight tokens of which seven have their KV: one block is published, the tail is anonymous.
/// Law: INV-7, INV-8
#[test]
fn the_last_sampled_token_has_no_kv_so_that_its_block_leaves_as_an_anonymous_one() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 2);
    let (lease, _) = yard.begin(&prompt);
    let parked = yard.park(lease, 7);
    assert_eq!(yard.on_device(&prompt), 1);
    let view = yard.cache.lock().view_parked(parked.id()).unwrap();
    assert_eq!((view.computed, view.blocks), (7, 2));
    let (lease, begun) = yard.resume(parked);
    assert_eq!(begun.cached, 7, "and it goes on at exactly this token");
    yard.finish(lease);
}

fn salted(cache: &Cache, salt: Option<&[u8]>, text: &[u32]) -> Vec<Key> {
    let salt = salt.map(<[u8]>::to_vec);
    let extras = Extras {
        salt,
        ..Extras::default()
    };
    let mut chain = cache.chain(extras).expect("no media");
    chain.extend(text).expect("it makes its own keys");
    chain.keys().to_vec()
}

/// Law: INV-19
#[test]
fn a_tenants_salt_is_part_of_the_key() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 2);
    let begin = |salt| {
        let extras = Extras {
            salt,
            ..Extras::default()
        };
        let mut chain = yard.cache.chain(extras).unwrap();
        chain.extend(&prompt).unwrap();
        yard.cache.begin(chain, 0, u32::MAX).unwrap().unwrap()
    };
    let (lease, _) = begin(Some(b"a".to_vec()));
    yard.seal(&lease, 8);
    yard.finish(lease);
    for (salt, found) in [
        (Some(&b"a"[..]), 2),
        (Some(b"b"), 0),
        (Some(b""), 0),
        (None, 0),
    ] {
        let keys = salted(&yard.cache, salt, &prompt);
        assert_eq!(yard.cache.lock().probe(&keys).hits[0], found, "{salt:?}");
    }
    let (lease, other) = begin(Some(b"b".to_vec()));
    assert_eq!((other.cached, other.stop), (0, Stop::Missing));
    yard.finish(lease);
}

/// Law: INV-19
#[test]
fn another_namespace_has_other_keys() {
    let cache = |model: &str| {
        let namespace = Namespace {
            model: model.to_owned(),
            ..Namespace::default()
        };
        Cache::new(config(4, 0), KeyHash::default(), &namespace).unwrap()
    };
    let (one, same, other) = (cache("one"), cache("one"), cache("other"));
    let keys = |cache| salted(cache, None, &text(1, 3));
    assert_eq!(keys(&one), keys(&same));
    assert!(keys(&one).iter().all(|key| !keys(&other).contains(key)));
}

/// Law: INV-19
#[test]
fn keys_that_contradict_each_other_end_the_prefix() {
    let yard = Yard::new(16, 0);
    yard.publish(&text(1, 2));
    yard.publish(&text(2, 2));
    let crossed = [
        yard.chain(&text(1, 2)).keys()[0],
        yard.chain(&text(2, 2)).keys()[1],
    ];
    let answer = yard.cache.lock().begin(&Request {
        keys: &crossed,
        tokens: 9,
        reserve: 0,
        load: 0,
        filling: Filling::Stop,
    });
    let Ok(Answer::Begun(begun)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((begun.cached, begun.stop), (4, Stop::Contradiction));
    yard.sound();
    let chain = yard.chain(&cat(&text(1, 2), &[7]));
    yard.finish(yard.cache.handle(begun.lease, chain));
}
