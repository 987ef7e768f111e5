//! What was forgotten is found by nobody, goes when nobody uses it, and comes back with no restart. (INV-42)

use crate::listener::Listener;
use crate::verbs::Verbs as _;
use crate::yard::{KINDS, SIZE, Yard, and_one, cat, config, text, three};
use blockyard_core::{
    Answer, Begun, Chain, Clears, Condemned, Config, Error, Extras, Filling, Forgotten, Key, Lease,
    MAX_TIERS, Outcome, Plan, Request, Salts, Tier,
};

const DISK: Tier = Tier::DISK;

/// The disk is keyed, and outlives the process.
fn yard() -> Yard {
    yard_with(8)
}

fn yard_with(host: u32) -> Yard {
    let mut keyed = [false; MAX_TIERS];
    keyed[DISK.0] = true;
    Yard::of(Config {
        keyed,
        ..three(16, host, 16)
    })
}

fn keys(yard: &Yard, text: &[u32]) -> Vec<Key> {
    yard.chain(text).keys().to_vec()
}

/// By the cache, which looks in slices.
fn forget(yard: &Yard, keys: &[Key], force: bool) -> Forgotten {
    let forgotten = yard.cache.forget(Condemned::Keys(keys), force);
    yard.sound();
    forgotten.expect("there is memory")
}

fn salted(yard: &Yard, salt: &str, text: &[u32]) -> Chain {
    let salt = Some(salt.as_bytes().to_vec());
    let chain = yard.cache.chain(Extras {
        salt,
        ..Extras::default()
    });
    let mut chain = chain.expect("no media");
    chain.extend(text).expect("it makes its own keys");
    chain
}

/// Begins a tenant's text, loads what is below, and computes nothing yet.
fn begin_salted(yard: &Yard, salt: &str, text: &[u32]) -> (Lease, Begun) {
    let chain = salted(yard, salt, text);
    let request = Request {
        keys: chain.keys(),
        tokens: chain.tokens(),
        reserve: 0,
        load: u32::MAX,
        filling: Filling::Stop,
    };
    let mut state = yard.cache.lock();
    let Ok(Answer::Begun(begun)) = state.begin(&request) else {
        panic!("there is room");
    };
    state.name_root(begun.lease, chain.root());
    drop(state);
    (yard.cache.handle(begun.lease, chain), begun)
}

fn publish_salted(yard: &Yard, salt: &str, text: &[u32]) {
    let (lease, begun) = begin_salted(yard, salt, text);
    yard.land(&begun.plans);
    yard.seal(&lease, text.len() as u64);
    yard.finish(lease);
}

fn found_salted(yard: &Yard, salt: &str, text: &[u32]) -> u32 {
    let chain = salted(yard, salt, text);
    let probe = yard.cache.lock().probe(chain.keys());
    probe.hits.iter().sum()
}

fn root(yard: &Yard, salt: &str) -> Key {
    yard.cache.seed().root_of(None, Some(salt.as_bytes()))
}

fn forget_salt(yard: &Yard, salt: &str) -> Forgotten {
    let forgotten = yard.cache.forget(Condemned::Root(root(yard, salt)), false);
    yard.sound();
    forgotten.expect("there is memory")
}

/// Law: INV-42
#[test]
fn what_is_idle_goes_from_all_tiers_with_all_that_stands_on_it_and_nothing_else() {
    for policy in KINDS {
        for name_all in [false, true] {
            let yard = Yard::of(Config {
                policy,
                ..three(16, 8, 16)
            });
            let (stem, other) = (text(1, 2), text(9, 2));
            yard.publish_below(&cat(&stem, &text(2, 2)));
            yard.publish(&cat(&stem, &text(3, 2)));
            yard.publish(&other);
            let all = keys(&yard, &cat(&stem, &text(2, 2)));
            let named = if name_all { &all[1..] } else { &all[1..2] };
            let before = yard.stats();
            let forgotten = forget(&yard, named, false);
            // The second of the stem, two behind it on the host, and two on the device.
            assert_eq!((forgotten.blocks, forgotten.kept), (5, vec![]));
            assert_eq!(yard.hits(&cat(&stem, &text(2, 2))).iter().sum::<u32>(), 1);
            assert_eq!(yard.hits(&cat(&stem, &text(3, 2))).iter().sum::<u32>(), 1);
            assert_eq!(yard.on_device(&other), 2);
            let after = yard.stats();
            assert_eq!(after.blocks, before.blocks - 5);
            assert_eq!(after.counters.forgotten, 5);
            assert_eq!(after.counters.evicted, before.counters.evicted);
        }
    }
}

/// Law: INV-42
#[test]
fn what_is_in_use_is_found_by_nobody_and_goes_with_its_last_user() {
    let yard = Yard::new(16, 8);
    let prompt = text(1, 3);
    let one = yard.run(&prompt);
    let (two, begun) = yard.begin(&and_one(&prompt));
    assert_eq!(begun.hits[0], 3);
    let table = yard.table(&two);
    assert_eq!(forget(&yard, &keys(&yard, &prompt)[..1], false).blocks, 3);
    assert_eq!(yard.on_device(&prompt), 0);
    assert!(yard.view(&one).detached && yard.view(&two).detached);
    assert!(!yard.cache.lock().draining(), "it was no clear");
    assert_eq!((yard.table(&two), yard.device().pinned), (table, 3));
    // They publish nothing any more; a new one computes it again, and that is found.
    assert!(yard.grow(&two, SIZE));
    two.append(&text(5, 1)).expect("it makes its keys");
    assert_eq!(yard.seal(&two, 4 * SIZE), 0);
    yard.publish(&prompt);
    assert_eq!((yard.on_device(&prompt), yard.device().idle), (3, 3));
    yard.finish(one);
    assert_eq!(yard.device().pinned + yard.device().claimed, 5);
    yard.finish(two);
    assert_eq!((yard.device().free, yard.device().idle), (13, 3));
    assert_eq!(yard.stats().blocks, 3);
}

/// Law: INV-42
#[test]
fn what_is_under_way_lands_nowhere() {
    for good in [0, 3] {
        let yard = Yard::new(16, 8);
        let prompt = text(1, 3);
        yard.publish(&prompt);
        let down = yard.demote(3).expect("there is room");
        assert_eq!(forget(&yard, &keys(&yard, &prompt), false).blocks, 3);
        assert_eq!((yard.device().idle, yard.host().pinned), (3, 3));
        yard.fail(&down, good);
        assert_eq!((yard.device().free, yard.host().free), (16, 8));
        // Up: the lease has what it loads for itself.
        yard.publish_below(&prompt);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        forget(&yard, &keys(&yard, &prompt), false);
        let free = yard.device().free;
        yard.fail(&begun.plans[0], good);
        assert_eq!((yard.on_device(&prompt), yard.device().free), (0, free));
        assert_eq!(yard.host().free, 8);
        yard.finish(lease);
        assert_eq!((yard.device().free, yard.stats().blocks), (16, 0));
    }
}

/// Law: INV-42, INV-23
#[test]
fn what_is_kept_is_named_and_goes_only_by_force() {
    for recompute in [true, false] {
        let yard = Yard::of(Config {
            recompute,
            ..config(16, 8)
        });
        let prompt = text(1, 3);
        let parked = yard.park(yard.run(&prompt), 3 * SIZE);
        yard.publish(&cat(&prompt, &text(2, 1)));
        let first = &keys(&yard, &prompt)[..1];
        let forgotten = forget(&yard, first, false);
        assert_eq!(
            (forgotten.blocks, &*forgotten.kept),
            (1, &[parked.id()][..])
        );
        assert!(!yard.broken(&parked));
        assert_eq!(
            yard.on_device(&cat(&prompt, &text(2, 1))),
            3,
            "it is kept, and found"
        );
        let forgotten = forget(&yard, first, true);
        assert_eq!((forgotten.blocks, forgotten.kept), (3, vec![parked.id()]));
        assert!(yard.broken(&parked));
        assert_eq!((yard.device().free, yard.stats().blocks), (16, 0));
        // It is computed again, and loses no token.
        let (lease, begun) = yard.resume(parked);
        assert_eq!((begun.cached, lease.tokens()), (0, 3 * SIZE));
        yard.finish(lease);
    }
}

/// Law: INV-42
#[test]
fn a_salt_goes_with_its_sequences_wherever_they_are() {
    let yard = yard();
    yard.ends_busy();
    let prompt = text(1, 2);
    for salt in ["one", "two"] {
        publish_salted(&yard, salt, &prompt);
    }
    yard.publish(&prompt);
    // A sequence whose first block is not full yet: nothing of it is published later.
    let (early, _) = begin_salted(&yard, "one", &text(7, 2));
    assert_eq!(forget_salt(&yard, "nobody").blocks, 0);
    let forgotten = forget_salt(&yard, "one");
    assert_eq!((forgotten.blocks, forgotten.plans.len()), (2, 1));
    let found = ["one", "two"].map(|salt| found_salted(&yard, salt, &prompt));
    assert_eq!((found, yard.on_device(&prompt)), ([0, 2], 2));
    assert_eq!(yard.seal(&early, 2 * SIZE), 0);
    yard.finish(early);
    assert_eq!(found_salted(&yard, "one", &text(7, 2)), 0);
    publish_salted(&yard, "one", &prompt);
    assert_eq!(found_salted(&yard, "one", &prompt), 2, "it may begin again");
}

/// Law: INV-42
#[test]
fn a_restart_brings_roots_back_by_which_a_salt_is_found() {
    let before = yard_with(0);
    let prompt = text(1, 2);
    publish_salted(&before, "one", &prompt);
    before.publish(&prompt);
    let plan = before.demote(4).expect("to the disk");
    before.ends_busy();
    let firsts: Vec<&Key> = plan
        .parents
        .iter()
        .filter(|parent| parent.is_root())
        .collect();
    assert_eq!(
        firsts.len(),
        1,
        "of that one which was told: {:?}",
        plan.parents
    );
    let after = yard();
    after.ends_busy();
    let mut state = after.cache.lock();
    let restored = state.restore(DISK, &plan.destinations, &plan.keys, &plan.parents);
    drop(state);
    assert_eq!(restored, Ok(()));
    assert_eq!(found_salted(&after, "one", &prompt), 2);
    assert_eq!(forget_salt(&after, "one").blocks, 2);
    assert_eq!(found_salted(&after, "one", &prompt), 0);
    assert_eq!(after.hits(&prompt), [0, 0, 2, 0]);
}

fn voids(plan: &Plan) -> (Vec<Key>, Vec<Key>) {
    assert_eq!((plan.from, plan.to), (DISK, DISK));
    let stays = plan
        .parents
        .iter()
        .filter(|parent| **parent == Key::UNKNOWN);
    let (named, spared) = plan.keys.split_at(plan.len() - stays.count());
    (named.to_vec(), spared.to_vec())
}

/// Law: INV-42
#[test]
fn a_keyed_tier_is_given_what_was_named_and_what_stands_there_on_nothing() {
    let yard = yard();
    yard.ends_busy();
    let prompt = text(1, 3);
    // The second lies on the host alone, so that what is behind it stands on nothing on the disk.
    let all = keys(&yard, &prompt);
    yard.scatter(&prompt, &[DISK, Tier::HOST, DISK]);
    // Another's, whose second block stands on nothing there, too.
    yard.scatter(&text(5, 2), &[Tier::HOST, DISK]);
    let parked = yard.park(yard.run(&text(4, 1)), SIZE);
    let named = [all[0], keys(&yard, &text(4, 1))[0]];
    let forgotten = forget(&yard, &named, false);
    let [plan] = &forgotten.plans[..] else {
        panic!("one tier is keyed: {forgotten:?}");
    };
    let (gone, spared) = voids(plan);
    assert_eq!(gone, [named[0], named[1], all[2]]);
    let other = keys(&yard, &text(5, 2))[1];
    assert_eq!(
        spared,
        [named[1], other],
        "what is kept, or stands elsewhere, stays"
    );
    assert_eq!(Plan::from_bytes(&plan.to_bytes()).as_ref(), Ok(plan));
    let given = yard.cache.lock().dispatch();
    assert!(given.contains(plan), "the cranes get it");
    yard.abandon(parked);
}

/// Law: INV-42
#[test]
fn records_that_were_not_voided_are_to_be_voided_again() {
    let yard = yard();
    yard.publish(&text(1, 2));
    let plan = forget(&yard, &keys(&yard, &text(1, 2)), false)
        .plans
        .remove(0);
    assert_eq!(yard.stats().voiding, 1);
    let mut state = yard.cache.lock();
    assert_eq!(state.dispatch(), std::slice::from_ref(&plan));
    let beyond = Outcome::failed(plan.flight, plan.len() as u32 + 1);
    assert!(matches!(
        state.commit(&[beyond], None),
        Err(Error::Argument { .. })
    ));
    // A rank has failed; the next time its deadline passes.
    assert_eq!(
        state.commit(&[Outcome::failed(plan.flight, 0)], None),
        Ok(1)
    );
    let again = state.dispatch();
    let of = |plan: &Plan| (plan.keys.clone(), plan.parents.clone());
    assert_eq!((again.len(), of(&again[0])), (1, of(&plan)));
    assert_eq!(state.mark_unknown(again[0].flight), Ok(true));
    assert_eq!(
        state.commit(&[Outcome::failed(again[0].flight, 0)], None),
        Ok(1)
    );
    let last = state.dispatch();
    assert_eq!((last.len(), state.stats().voiding), (1, 1));
    assert_eq!(state.check_plan(&last[0]), Ok(()));
    assert_eq!(state.commit(&[last[0].whole()], None), Ok(1));
    assert_eq!((state.stats().voiding, state.dispatch()), (0, vec![]));
    drop(state);
}

/// Law: INV-42, O1
#[test]
fn a_listener_hears_of_it_at_once() {
    let yard = Yard::new(16, 8);
    yard.cache
        .listen(1 << 10, Salts::Hide, Clears::All)
        .expect("nobody else listens");
    let mut listener = Listener::default();
    let mut known = || {
        let drained = yard.cache.drain(0.0, None).expect("it listens");
        listener.hear(drained.payload.as_deref());
        listener.ready.len()
    };
    let lease = yard.run(&text(1, 3));
    yard.land(&[yard.demote_lease(&lease, 2)]);
    assert_eq!(known(), 5);
    forget(&yard, &keys(&yard, &text(1, 3))[1..2], false);
    assert_eq!(known(), 2, "while it is in use");
    yard.finish(lease);
    assert_eq!(known(), 2, "and it is told once");
}

/// Law: INV-42
#[test]
fn what_stands_on_what_is_gone_goes_too_and_is_not_counted_as_named() {
    let yard = Yard::of(three(16, 8, 16));
    yard.scatter(&text(1, 3), &[Tier::HOST, DISK, Tier::HOST]);
    // The middle one is lost: what is behind it stands on nothing.
    let slots: Vec<u32> = (0..16).collect();
    yard.cache
        .lock()
        .withdraw(DISK, &slots)
        .expect("no tickets");
    assert_eq!(yard.hits(&text(1, 3)), [0, 1, 0, 0]);
    assert_eq!(yard.stats().blocks, 2);
    assert_eq!(forget(&yard, &keys(&yard, &text(8, 1)), false).blocks, 0);
    assert_eq!(
        (yard.stats().blocks, yard.stats().counters.forgotten),
        (1, 1)
    );
}

/// Law: INV-42
#[test]
fn where_the_engine_makes_the_keys_a_salt_is_refused_by_name() {
    let yard = Yard::new(8, 0);
    let chain = Chain::ready(SIZE as u32, vec![Key([7; 32])], SIZE).expect("one key");
    let root = chain.root();
    assert_eq!(root, None);
    let begun = yard.cache.begin(chain, 0, u32::MAX).expect("there is room");
    let (lease, _) = begun.expect("nothing is in flight");
    yard.cache.lock().name_root(lease.id(), root);
    let refused = yard.cache.forget(Condemned::Root(Key([1; 32])), true);
    let Err(Error::State { what, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(what.contains("salt"), "{what}");
    yard.finish(lease);
}
