//! A number tells whether replicas of the yard that got the same calls are the same. (INV-17)

use crate::verbs::Verbs as _;
use crate::yard::{KINDS, SIZE, Yard, and_one, config, sealing, text};
use blockyard_core::{
    Config, Error, EvictionPolicy, Hints, NextUse, Priority, Retention, Tier, WritePolicy,
};
use std::collections::{BTreeMap, BTreeSet};

type Verb = (&'static str, fn(&Yard));

/// A life with every verb in it: each leaves what the next ones need.
const LIFE: &[Verb] = &[
    ("publish", |yard| yard.publish(&text(1, 4))),
    ("publish another", |yard| yard.publish(&text(2, 2))),
    ("publish it again", |yard| yard.publish(&text(1, 4))),
    ("demote and land", |yard| {
        yard.land(&[yard.demote(4).expect("there is something")]);
    }),
    ("demote, and not land", |yard| {
        yard.demote(6).expect("there is something more");
    }),
    ("dispatch", |yard| drop(yard.cache.lock().dispatch())),
    ("hold back", |yard| {
        let lease = yard.run(&text(3, 1));
        let done = yard
            .cache
            .lock()
            .finish(&[lease.id()], Retention::Ordinary, Some(4));
        done.expect("it runs");
        lease.spend();
    }),
    ("the step is done", |yard| {
        drop(yard.cache.lock().commit(&[], Some(4)));
    }),
    ("end a session", |yard| {
        yard.finish_as(yard.run(&text(4, 2)), Retention::SessionEnded);
    }),
    ("park and abandon", |yard| {
        yard.abandon(yard.park(yard.run(&text(5, 2)), 8));
    }),
    ("forget a lease", |yard| drop(yard.begin(&text(6, 1)))),
    ("promise and release", |yard| {
        let ticket = yard.cache.promise(2, Tier::DEVICE).expect("there is room");
        yard.cache.release(ticket).expect("it is ours");
    }),
    ("promise below and park", |yard| {
        let lease = yard.run(&text(7, 2));
        let ticket = yard.cache.promise(2, Tier::HOST).expect("there is room");
        let seals = sealing(&lease, 8).expect("it runs");
        let row = seals.row(&lease, 8);
        let parked = yard.cache.lock().redeem_parking(ticket.id(), &row, None);
        ticket.spend();
        yard.abandon(lease.into_parked(parked.expect("it has a ticket")));
    }),
    ("resize the host", |yard| {
        yard.cache.lock().resize(Tier::HOST, 12).expect("it grows");
    }),
    ("withdraw of the host", |yard| {
        yard.cache.lock().withdraw(Tier::HOST, &[11]).expect("fits");
    }),
    ("resize the device", |yard| {
        yard.cache
            .lock()
            .resize(Tier::DEVICE, 40)
            .expect("it grows");
    }),
    ("clear", |yard| yard.cache.lock().clear()),
];

fn digest(yard: &Yard) -> u64 {
    yard.cache.lock().digest()
}

/// Law: INV-17, INV-20h
#[test]
fn two_yards_with_one_life_have_one_digest_after_every_verb_and_a_new_one_each_time() {
    for policy in KINDS {
        for write in [
            WritePolicy::OnEvict,
            WritePolicy::Through,
            WritePolicy::SecondTouch,
        ] {
            let made = || {
                Yard::of(Config {
                    policy,
                    write,
                    ..config(30, 8)
                })
            };
            let (one, other) = (made(), made());
            one.ends_busy();
            other.ends_busy();
            let mut seen = BTreeMap::from([(digest(&one), "nothing")]);
            for (name, verb) in LIFE {
                verb(&one);
                assert_ne!(digest(&one), digest(&other), "{name}");
                verb(&other);
                assert_eq!(digest(&one), digest(&other), "{name}");
                assert_eq!(seen.insert(digest(&one), name), None, "{name}");
            }
        }
    }
}

/// Law: INV-17
#[test]
fn the_order_of_two_calls_is_in_it() {
    let after = |names: [u32; 2]| {
        let yard = Yard::new(12, 8);
        for name in [1, 2] {
            yard.publish(&text(name, 2));
        }
        // Only the order of last use differs.
        for name in names {
            yard.publish(&and_one(&text(name, 2)));
        }
        digest(&yard)
    };
    assert_ne!(after([1, 2]), after([2, 1]));
}

/// Law: INV-5
#[test]
fn a_yard_that_was_asked_or_has_refused_has_the_digest_that_it_had() {
    let yard = Yard::new(12, 8);
    yard.publish(&text(1, 3));
    yard.copy_down(2);
    let (lease, _) = yard.begin_reserving(&text(2, 2), 2 * SIZE).unwrap();
    let ticket = yard.cache.promise(2, Tier::DEVICE).unwrap();
    let seals = sealing(&lease, 8).unwrap();
    let before = digest(&yard);
    let mut state = yard.cache.lock();
    state.holders();
    state.stats();
    state.blocks_in_flight();
    assert!(state.room(Tier::DEVICE).is_ok() && state.view(lease.id()).is_ok());
    for (blocks, tier) in [(20, Tier::DEVICE), (7, Tier::DEVICE), (9, Tier::HOST)] {
        assert!(state.promise(blocks, tier).is_err());
    }
    let parking = state.redeem_parking(ticket.id(), &seals.row(&lease, 8), None);
    assert!(matches!(parking, Err(Error::State { .. })));
    for slots in [3, 6] {
        assert!(state.resize(Tier::DEVICE, slots).is_err());
    }
    drop(state);
    assert!(yard.probe(&and_one(&text(1, 3))).hits[0] > 0);
    assert!(yard.begin_reserving(&text(3, 4), 3 * SIZE).is_err());
    assert!(!yard.grow(&lease, 10 * SIZE));
    assert_eq!(digest(&yard), before);
    yard.cache.release(ticket).unwrap();
    yard.finish(lease);
}

/// Law: INV-20h, INV-20i
#[test]
fn what_was_said_is_in_it_where_the_order_asks_for_it() {
    let after = |policy: EvictionPolicy, hints: Hints| {
        let yard = Yard::of(Config {
            policy,
            ..config(8, 4)
        });
        let lease = yard.run(&text(1, 2));
        let ended = yard.cache.lock().finish(&[lease.id()], hints, None);
        ended.expect("it runs");
        lease.spend();
        digest(&yard)
    };
    let none = Hints::default();
    let soon = Hints {
        next_use: Some(NextUse::in_millis(1)),
        ..none
    };
    let later = Hints {
        next_use: Some(NextUse::in_millis(100_000)),
        ..none
    };
    let precious = Hints {
        priority: Some(Priority::new(90).expect("at most 100")),
        ..none
    };
    let brief = Hints {
        ttl: Some(7),
        ..none
    };
    let learned = |hints| after(EvictionPolicy::Learned, hints);
    let all = [none, Retention::SessionEnded.into(), soon, later];
    assert_eq!(BTreeSet::from(all.map(learned)).len(), 4);
    assert_eq!(learned(precious), learned(none));
    let all = [none, Retention::SessionEnded.into(), precious, brief];
    let all = BTreeSet::from(all.map(|hints| after(EvictionPolicy::Heap, hints)));
    assert_eq!(all.len(), 4);
    assert_eq!(
        after(EvictionPolicy::Heap, soon),
        after(EvictionPolicy::Heap, none)
    );
}
