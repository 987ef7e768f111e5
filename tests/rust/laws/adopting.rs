//! Names of the tier `remote`: what somebody else has put into a store is found by its key. (INV-35c)

use crate::listener::Listener;
use crate::stores::{HOST, REMOTE, four, keys, yards};
use crate::yard::{KINDS, Yard, and_one, cat, config, text};
use blockyard_core::{Clears, Config, Error, Fetch, Key, MAX_TIERS, Salts, Tier, Wanted};

/// Law: INV-35c
#[test]
fn adopted_blocks_are_found_and_loaded_with_their_keys_and_again_changes_nothing() {
    for yard in yards(16, 4, 4, 8) {
        let (prompt, all) = (and_one(&text(1, 5)), keys(&yard, &text(1, 5)));
        assert_eq!(yard.adopt_keys(&all[..3]), 3);
        assert_eq!(yard.hits(&prompt), [0, 0, 0, 3]);
        assert_eq!(yard.adopt_keys(&all), 5);
        let digest = yard.cache.lock().digest();
        assert_eq!((yard.adopt_keys(&all), yard.adopt_keys(&all[..2])), (5, 2));
        assert_eq!(yard.cache.lock().digest(), digest, "it was known");
        let (lease, begun) = yard.begin(&prompt);
        let [plan] = &begun.plans[..] else {
            panic!("one run")
        };
        assert_eq!((plan.from, &plan.keys), (REMOTE, &all));
        yard.land(&begun.plans);
        yard.finish(lease);
        assert_eq!(yard.hits(&prompt), [5, 0, 0, 0]);
        assert_eq!((yard.adopt_keys(&all), yard.names()), (5, 5));
        yard.at_rest();
    }
}

/// Law: INV-35c
#[test]
fn what_is_on_any_tier_is_counted_and_nothing_above_the_names_moves() {
    for yard in yards(16, 8, 8, 8) {
        // Two on the disk, then two that are running, and one that is kept.
        let (a, b, c) = (text(1, 2), text(2, 2), text(3, 3));
        yard.publish_below(&a);
        yard.land(yard.demote_from(HOST, 4).as_slice());
        let running = yard.run(&b);
        let parked = yard.park(yard.run(&c), 12);
        let (state, table) = (yard.stats(), yard.table(&running));
        let view = yard.view(&running);
        let order = |tier| yard.cache.lock().eviction_order(tier).expect("it is there");
        let orders = [Tier::DEVICE, HOST, Tier::DISK].map(order);
        let longer = |text: &[u32]| keys(&yard, &[text, &crate::yard::text(9, 2)].concat());
        for known in [&a, &b, &c] {
            assert_eq!(yard.adopt_keys(&longer(known)), known.len() as u32 / 4 + 2);
        }
        let after = yard.stats();
        assert_eq!(after.tiers[..3], state.tiers[..3]);
        assert_eq!(after.counters, state.counters);
        assert_eq!(yard.names(), 6, "the ends alone");
        assert_eq!((yard.table(&running), yard.view(&running)), (table, view));
        assert_eq!([Tier::DEVICE, HOST, Tier::DISK].map(order), orders);
        assert!(!yard.broken(&parked));
        yard.finish(running);
        yard.abandon(parked);
        yard.at_rest();
    }
}

/// Law: INV-35a
#[test]
fn a_key_that_stands_behind_another_ends_what_is_adopted() {
    for yard in yards(16, 8, 0, 8) {
        let (one, other) = (keys(&yard, &text(1, 3)), keys(&yard, &text(2, 3)));
        yard.publish(&text(1, 3));
        assert_eq!(yard.adopt_keys(&[other[0], one[1], other[2]]), 1);
        assert_eq!(
            yard.adopt_keys(&[one[1], one[2]]),
            0,
            "it is no first block"
        );
        assert_eq!(yard.adopt_keys(&[one[0], one[1], one[0]]), 2);
        assert_eq!(
            yard.adopt_keys(&[other[0], other[1], other[1], other[2]]),
            2,
            "twice"
        );
        assert_eq!(yard.adopt_keys(&[other[0], Key::UNKNOWN]), 1);
        assert_eq!(
            (yard.names(), yard.hits(&and_one(&text(1, 3)))),
            (2, [3, 0, 0, 0])
        );
        yard.at_rest();
    }
}

/// Law: INV-35c
#[test]
fn where_no_slot_is_free_the_next_victims_go_and_never_the_path_itself() {
    for yard in yards(16, 0, 0, 6) {
        yard.adopt(&text(1, 3));
        yard.adopt(&text(2, 2));
        assert_eq!(yard.adopt(&text(3, 3)), 3);
        let left = |name| yard.hits(&and_one(&text(name, 3)))[REMOTE.0];
        assert_eq!([left(1), left(2), left(3)].iter().sum::<u32>(), 6);
        assert_eq!(left(3), 3);
        assert!(left(1) < 3, "the oldest go first");
        // A path of seven has room for six, its own among them.
        assert_eq!(yard.adopt(&cat(&text(3, 3), &text(4, 4))), 6);
        assert_eq!(
            yard.hits(&and_one(&cat(&text(3, 3), &text(4, 4)))),
            [0, 0, 0, 6]
        );
        assert_eq!((left(1), left(2), yard.adopt(&text(5, 7))), (0, 0, 6));
        yard.at_rest();
    }
}

/// Law: INV-35c
#[test]
fn what_loads_fills_or_is_kept_gives_its_name_to_nobody() {
    for yard in yards(8, 0, 0, 6) {
        // Two load, two are on their way, and two are kept.
        let (loading, begun) = yard.begin_adopted(&and_one(&text(1, 2)));
        let lease = yard.run(&text(2, 2));
        let put = yard.demote_lease(&lease, 2);
        let parked = yard.park(yard.run(&text(3, 1)), 4);
        yard.land(yard.demote_parked(&parked, 4).as_slice());
        assert_eq!(yard.adopt(&text(4, 2)), 1);
        assert_eq!(yard.adopt(&text(5, 3)), 1, "the one name that is idle goes");
        assert_eq!(yard.hits(&and_one(&text(4, 2))), [0; 4]);
        yard.land(&begun.plans);
        yard.land(&[put]);
        yard.finish(loading);
        yard.finish(lease);
        yard.abandon(parked);
        assert_eq!(yard.adopt(&text(6, 6)), 6);
        yard.at_rest();
    }
}

#[test]
fn only_keyed_names_are_adopted() {
    let refused = |config: Config, tier: Tier| {
        let yard = Yard::of(config);
        let digest = yard.cache.lock().digest();
        let own = keys(&yard, &text(1, 2));
        let mut state = yard.cache.lock();
        for answer in [
            state.adopt(&own, None, tier),
            state.forget_names(&own, tier),
        ] {
            let Err(Error::Argument { name, value, .. }) = answer else {
                panic!("{answer:?}");
            };
            assert_eq!((name, value), ("tier", tier.name().to_owned()));
        }
        assert_eq!(state.digest(), digest);
    };
    let mut keyed = four(8, 4, 4, 4);
    keyed.keyed = [false, true, true, true];
    refused(keyed.clone(), Tier::DEVICE);
    refused(keyed.clone(), HOST);
    refused(keyed, Tier::DISK);
    let keyed = [false; MAX_TIERS];
    refused(
        Config {
            keyed,
            ..four(8, 4, 4, 4)
        },
        REMOTE,
    );
    refused(config(8, 4), REMOTE);
}

/// Law: INV-33
#[test]
fn names_are_dropped_alone_and_the_last_of_a_path_first() {
    for yard in yards(16, 4, 0, 12) {
        let all = keys(&yard, &text(1, 5));
        yard.adopt_keys(&all);
        yard.adopt(&cat(&text(1, 3), &text(9, 1)));
        // A child that is not named, and one that is.
        assert_eq!(yard.drop_names(&all[1..4]), 0, "the fifth stands on them");
        assert_eq!(yard.drop_names(&all[3..]), 2);
        assert_eq!(yard.drop_names(&all[..3]), 0, "another stands on them");
        assert_eq!(
            yard.drop_names(&keys(&yard, &cat(&text(1, 3), &text(9, 1)))),
            4
        );
        assert_eq!((yard.names(), yard.stats().blocks), (0, 0));
        // In any order, and with keys that are nowhere.
        yard.adopt_keys(&all);
        let mixed = [all[4], all[0], Key([9; 32]), all[2], all[1], all[3], all[3]];
        assert_eq!(yard.drop_names(&mixed), 5);
        // What loads, and what is above, stays.
        yard.adopt_keys(&all);
        let (lease, begun) = yard.begin(&and_one(&text(1, 5)));
        assert_eq!(yard.drop_names(&all), 0);
        yard.land(&begun.plans);
        assert_eq!(yard.drop_names(&all), 5);
        assert_eq!(yard.hits(&and_one(&text(1, 5))), [5, 0, 0, 0]);
        assert_eq!(yard.stats().counters.evicted, [0; MAX_TIERS]);
        yard.finish(lease);
        yard.at_rest();
    }
}

/// Law: INV-33, 2.7-3
#[test]
fn a_name_is_dropped_too_where_what_stood_on_it_leaves_with_the_size() {
    for yard in yards(16, 4, 0, 4) {
        let (all, other) = (keys(&yard, &text(1, 3)), keys(&yard, &text(2, 1)));
        yard.adopt_keys(&other);
        yard.adopt_keys(&all[..2]);
        yard.drop_names(&other);
        yard.adopt_keys(&all);
        yard.resize(REMOTE, 2);
        assert_eq!(yard.names(), 3, "the second waits for the third");
        let last_first = [all[2], all[1], all[0]];
        assert_eq!(yard.drop_names(&last_first), 2, "the second goes by itself");
        assert_eq!(yard.names(), 0);
        yard.at_rest();
    }
}

/// Law: INV-24, INV-35c
#[test]
fn a_clear_forgets_the_names_and_a_loss_keeps_them_where_they_are_keyed() {
    for yard in yards(12, 4, 0, 4) {
        let all = keys(&yard, &text(1, 3));
        yard.adopt_keys(&all);
        yard.cache.lock().lose_unkeyed().expect("they are keyed");
        yard.sound();
        assert_eq!(yard.hits(&and_one(&text(1, 3))), [0, 0, 0, 3]);
        yard.cache.lock().clear();
        yard.sound();
        assert_eq!(yard.hits(&and_one(&text(1, 3))), [0; 4]);
        assert_eq!(yard.adopt_keys(&all), 3, "in the place of the old names");
        yard.cache.lock().lose_but(&[]);
        yard.sound();
        assert_eq!(
            (yard.hits(&and_one(&text(1, 3))), yard.names()),
            ([0; 4], 0)
        );
        assert!(
            yard.cache.lock().dispatch().is_empty(),
            "no store is touched"
        );
        yard.at_rest();
    }
}

#[test]
fn what_a_store_has_is_neither_restored_nor_flushed_to() {
    for yard in yards(12, 4, 0, 4) {
        let own = keys(&yard, &text(1, 1));
        let mut state = yard.cache.lock();
        let restored = state.restore(REMOTE, &[0], &own, &[Key::NO_PARENT]);
        assert!(matches!(
            restored,
            Err(Error::Argument { name: "tier", .. })
        ));
        drop(state);
        yard.publish(&text(1, 2));
        let state = yard.cache.lock();
        let to = |answer: Option<Error>| matches!(answer, Some(Error::Argument { name: "to", .. }));
        assert!(to(state.unwritten(REMOTE).err()));
        assert!(to(state.outranked(REMOTE).err()));
    }
}

/// Names go where the tier shrinks, and come where it grows.
/// Law: INV-35c
#[test]
fn names_follow_the_size_of_their_tier() {
    for yard in yards(12, 0, 0, 4) {
        yard.adopt(&text(1, 4));
        yard.resize(REMOTE, 1);
        assert_eq!(yard.hits(&and_one(&text(1, 4)))[REMOTE.0], yard.names());
        assert!(yard.names() <= 1);
        yard.resize(REMOTE, 100);
        assert_eq!(yard.adopt(&text(2, 80)), 80);
        let (lease, begun) = yard.begin(&and_one(&text(2, 10)));
        assert_eq!(yard.hits_counted(), 0);
        yard.land(&begun.plans);
        assert_eq!(yard.hits_counted(), 10);
        yard.finish(lease);
        yard.at_rest();
    }
}

/// A set has no order: what cannot be adopted of it ends nothing.
/// Law: G4, INV-35c
#[test]
fn of_a_set_each_block_is_adopted_by_itself() {
    for policy in KINDS {
        let yard = Yard::of(Config {
            policy,
            engine: true,
            linked: false,
            slots: vec![16, 4, 0, 4],
            ..four(16, 4, 0, 4)
        });
        let all = keys(&yard, &text(1, 6));
        let plan = yard.cache.lock().offload(&all[1..2], &[3], 0);
        yard.land(plan.expect("the engine's").as_slice());
        assert_eq!(
            yard.adopt_keys(&[all[4], all[1], all[2], all[4]]),
            4,
            "as they are named"
        );
        assert_eq!(yard.names(), 2);
        let forgotten = yard.forget_all(&all[..1], false);
        assert_eq!(yard.adopt_keys(&all[..3]), 2, "the first is being deleted");
        yard.land(&forgotten.plans);
        // Two are there, two find room, and what is there of them gives none.
        assert_eq!(
            yard.adopt_keys(&[all[0], all[2], all[3], all[4], all[5]]),
            4
        );
        assert_eq!((yard.names(), yard.drop_names(&all[2..4])), (4, 2));
        let fetched = yard.cache.lock().fetch(Wanted::Keys(&all[4..5]), &[7], 0);
        let Ok(Fetch::Plans(plans)) = fetched else {
            panic!("{fetched:?}");
        };
        assert_eq!((plans[0].from, yard.hits_counted()), (REMOTE, 0));
        yard.land(&plans);
        assert_eq!(yard.hits_counted(), 1);
    }
}

/// A router knows it as what is somewhere else: a word of ours would count as GPU memory in some.
/// Law: O1
#[test]
fn a_router_hears_of_a_name_as_of_what_is_external() {
    for yard in yards(12, 4, 0, 8) {
        let heard = yard.cache.listen(1 << 10, Salts::Hide, Clears::All);
        heard.expect("nobody else listens");
        let chain = yard.chain(&and_one(&text(1, 3)));
        assert_eq!(yard.adopt_keys(chain.keys()), 3);
        yard.cache.emit_found(&chain, 3);
        let drained = yard.cache.drain(0.0, None).expect("it listens");
        let payload = drained.payload.expect("three blocks");
        let says = |word: &[u8]| payload.windows(word.len()).any(|own| own == word);
        assert!(says(b"EXTERNAL") && !says(b"GPU") && !says(b"CPU"));
        let mut listener = Listener::default();
        listener.hear(Some(&payload));
        let mut here = yard.cache.lock().ready_blocks();
        here.sort_unstable();
        let here: Vec<(u64, usize)> = here.into_iter().map(|(key, tier)| (key, tier.0)).collect();
        assert_eq!(here.len(), 3);
        listener.compare(&here, false);
        yard.drop_names(chain.keys());
        let drained = yard.cache.drain(0.0, None).expect("it listens");
        listener.hear(drained.payload.as_deref());
        listener.compare(&[], false);
    }
}

/// Its cost is that of its keys: a path that is known, and one that is new.
#[test]
fn an_adopt_walks_no_path_twice() {
    for yard in yards(8, 1000, 0, 2000) {
        let whole = text(1, 900);
        let climbed = |act: &dyn Fn()| {
            let before = yard.cache.lock().climbed();
            act();
            yard.cache.lock().climbed() - before
        };
        let first = climbed(&|| assert_eq!(yard.adopt(&text(1, 300)), 300));
        let second = climbed(&|| assert_eq!(yard.adopt(&whole), 900));
        assert!(first.max(second) <= 4 * 900, "{first} and {second} blocks");
        assert_eq!(climbed(&|| assert_eq!(yard.adopt(&whole), 900)), 0);
    }
}
