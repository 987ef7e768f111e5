//! Names of the tier `remote`: what somebody else has put into a store is found by its key, and nothing is
//! believed of it. (INV-35a to INV-35c)

use crate::listener::Listener;
use crate::verbs::Verbs as _;
use crate::yard::{KINDS, SIZE, Yard, and_one, cat, config, each_of, text};
use blockyard_core::{
    Answer, Clears, Condemned, Config, Error, Fetch, Filling, Forgotten, Key, MAX_TIERS, Plan,
    Salts, Stop, Tier, Wanted,
};

const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;
const REMOTE: Tier = Tier::REMOTE;

/// So many slots to use of each tier, and names; these are keyed.
fn four(device: u32, host: u32, disk: u32, names: u32) -> Config {
    let mut keyed = [false; MAX_TIERS];
    keyed[REMOTE.0] = true;
    Config {
        slots: vec![device + 1, host, disk, names],
        keyed,
        ..config(device, host)
    }
}

fn yards(device: u32, host: u32, disk: u32, names: u32) -> impl Iterator<Item = Yard> {
    each_of(KINDS, four(device, host, disk, names))
}

fn keys(yard: &Yard, text: &[u32]) -> Vec<Key> {
    yard.chain(text).keys().to_vec()
}

impl Yard {
    fn try_adopt(&self, keys: &[Key]) -> Result<u32, Error> {
        let adopted = self.cache.lock().adopt(keys, Some(Key::NO_PARENT), REMOTE);
        self.sound();
        adopted
    }

    fn adopt_keys(&self, keys: &[Key]) -> u32 {
        self.try_adopt(keys).expect("it is keyed")
    }

    fn adopt(&self, text: &[u32]) -> u32 {
        self.adopt_keys(&keys(self, text))
    }

    fn drop_names(&self, keys: &[Key]) -> u32 {
        let dropped = self.cache.lock().forget_names(keys, REMOTE);
        self.sound();
        dropped.expect("it is keyed")
    }

    fn forget_all(&self, keys: &[Key], force: bool) -> Forgotten {
        let forgotten = self.cache.forget(Condemned::Keys(keys), force);
        self.sound();
        forgotten.expect("there is memory")
    }

    fn names(&self) -> u32 {
        let names = &self.stats().tiers[REMOTE.0];
        (names.capacity - names.free) as u32
    }

    fn hits_counted(&self) -> u64 {
        self.stats().counters.hits[REMOTE.0]
    }
}

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
        let orders = [Tier::DEVICE, HOST, DISK].map(order);
        let longer = |text: &[u32]| keys(&yard, &[text, &crate::yard::text(9, 2)].concat());
        for known in [&a, &b, &c] {
            assert_eq!(yard.adopt_keys(&longer(known)), known.len() as u32 / 4 + 2);
        }
        let after = yard.stats();
        assert_eq!(after.tiers[..3], state.tiers[..3]);
        assert_eq!(after.counters, state.counters);
        assert_eq!(yard.names(), 6, "the ends alone");
        assert_eq!((yard.table(&running), yard.view(&running)), (table, view));
        assert_eq!([Tier::DEVICE, HOST, DISK].map(order), orders);
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
        yard.adopt(&text(1, 2));
        let (loading, begun) = yard.begin(&and_one(&text(1, 2)));
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
    refused(keyed, DISK);
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

/// A store that has lost a block, or has another under its key, costs that block alone.
/// Law: INV-35a
#[test]
fn a_load_that_fails_drops_that_name_alone_and_is_a_miss() {
    for corrupt in [false, true] {
        for yard in yards(16, 4, 0, 8) {
            let prompt = and_one(&text(1, 4));
            yard.adopt(&prompt);
            let (lease, begun) = yard.begin(&prompt);
            if corrupt {
                yard.corrupt(&begun.plans[0], 2);
            } else {
                yard.fail(&begun.plans[0], 2);
            }
            assert_eq!(yard.view(&lease).cached, 8, "the good ones before it");
            let probe = yard.probe(&prompt);
            assert_eq!((probe.hits, probe.stop), ([2, 0, 0, 0], Stop::Missing));
            assert_eq!(yard.names(), 3, "nothing is known of the others");
            assert_eq!(yard.stats().counters.corrupt, u64::from(corrupt));
            yard.seal(&lease, 17);
            yard.finish(lease);
            assert_eq!(yard.hits(&prompt), [4, 0, 0, 0], "computed again");
            yard.at_rest();
        }
    }
}

/// Law: INV-35a
#[test]
fn an_adopted_block_is_a_hit_from_its_first_good_load_on() {
    for yard in yards(12, 0, 0, 8) {
        let prompt = and_one(&text(1, 4));
        yard.adopt(&prompt);
        let (lease, begun) = yard.begin(&prompt);
        let counted = |yard: &Yard| {
            let counters = yard.stats().counters;
            (counters.hits[REMOTE.0], counters.cached, counters.unproven)
        };
        assert_eq!(
            (begun.cached, begun.hits[REMOTE.0]),
            (16, 4),
            "they are loaded"
        );
        assert_eq!(counted(&yard), (0, 0, 0), "and count for nothing");
        yard.fail(&begun.plans[0], 3);
        assert_eq!(counted(&yard), (3, 12, 1));
        yard.finish(lease);
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(yard.hits(&prompt), [0, 0, 0, 3]);
        // They have proven true.
        let (lease, begun) = yard.begin(&prompt);
        assert_eq!(counted(&yard), (6, 24, 1));
        yard.land(&begun.plans);
        yard.finish(lease);
        // The last block of a full hit has the KV of all tokens but one.
        let whole = text(2, 3);
        yard.adopt(&whole);
        let (lease, begun) = yard.begin(&whole);
        assert_eq!((begun.cached, begun.hits[REMOTE.0]), (11, 3));
        yard.land(&begun.plans);
        assert_eq!(counted(&yard), (9, 35, 1));
        yard.finish(lease);
        // What has no end is proven by nothing.
        let late = and_one(&text(3, 2));
        yard.adopt(&late);
        let (lease, begun) = yard.begin(&late);
        yard.overdue(&begun.plans[0]);
        assert_eq!(counted(&yard), (9, 35, 3));
        yard.land(&begun.plans);
        assert_eq!(counted(&yard), (9, 35, 3));
        yard.finish(lease);
        // What was put there by this yard is proven, whatever the slot had before.
        let own = yard.run(&text(4, 2));
        yard.land(&[yard.demote_lease(&own, 2)]);
        yard.finish(own);
        yard.squeeze(yard.device().idle as u32);
        let (lease, begun) = yard.begin(&and_one(&text(4, 2)));
        assert_eq!(counted(&yard).0, 11);
        yard.land(&begun.plans);
        yard.finish(lease);
        yard.at_rest();
    }
}

/// A store that never answers holds its own loads and puts, and nothing else.
/// Law: INV-35b
#[test]
fn no_verb_waits_for_a_store_that_never_answers() {
    for yard in yards(10, 4, 0, 8) {
        let asked = and_one(&text(1, 3));
        yard.adopt(&asked);
        let (loading, begun) = yard.begin(&asked);
        yard.publish_below(&text(2, 2));
        let put = yard.demote_from(HOST, 2).expect("two");
        assert_eq!((put.from, put.to), (HOST, REMOTE));
        assert_eq!(yard.adopt(&text(3, 3)), 3);
        let other = yard.run(&text(4, 1));
        yard.finish(other);
        yard.cache.lock().clear();
        yard.sound();
        yard.overdue(&begun.plans[0]);
        yard.overdue(&put);
        assert_eq!(yard.view(&loading).cached, 0);
        yard.finish(loading);
        assert_eq!(yard.device().pinned, 0);
        yard.fail(&begun.plans[0], 0);
        yard.fail(&put, 0);
        yard.at_rest();
    }
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

/// Law: INV-42
#[test]
fn a_store_deletes_the_keys_that_were_named_or_found_and_none_of_them_is_adopted_meanwhile() {
    for yard in yards(16, 4, 0, 12) {
        let (all, other) = (keys(&yard, &text(1, 4)), keys(&yard, &text(2, 2)));
        let branch = keys(&yard, &cat(&text(1, 2), &text(7, 1)));
        // One is on the device alone, and one is not known.
        yard.adopt_keys(&all[..3]);
        yard.publish(&cat(&text(1, 2), &text(7, 1)));
        yard.adopt_keys(&other);
        let unknown = Key([5; 32]);
        let forgotten = yard.forget_all(&[all[1], unknown], false);
        let [plan] = &forgotten.plans[..] else {
            panic!("one tier is keyed")
        };
        assert_eq!((plan.from, plan.to), (REMOTE, REMOTE));
        let mut told = plan.keys.clone();
        told.sort_unstable();
        let mut asked = vec![all[1], unknown, all[2], branch[2]];
        asked.sort_unstable();
        assert_eq!((told, &plan.parents), (asked, &Vec::new()));
        assert_eq!(yard.adopt_keys(&all), 1);
        assert_eq!(yard.adopt_keys(&[unknown]), 0);
        // A store that was down is asked again.
        yard.fail(plan, 0);
        assert_eq!((yard.adopt_keys(&all), yard.stats().voiding), (1, 1));
        let again = yard.cache.lock().dispatch();
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].keys, plan.keys);
        yard.land(&again);
        assert_eq!((yard.adopt_keys(&all), yard.stats().voiding), (4, 0));
        // Of two that delete one key the last ends it.
        let plans: Vec<Plan> = [0, 1]
            .map(|_| yard.forget_all(&other[..1], false).plans.remove(0))
            .into();
        yard.land(&plans[..1]);
        assert_eq!(yard.adopt_keys(&other), 0);
        yard.land(&plans[1..]);
        assert_eq!(yard.adopt_keys(&other), 2);
        yard.at_rest();
    }
}

/// Law: INV-42
#[test]
fn what_is_kept_is_not_deleted_in_a_store() {
    for yard in yards(16, 8, 0, 12) {
        let all = keys(&yard, &text(1, 3));
        let parked = yard.park(yard.run(&text(1, 2)), 8);
        yard.adopt(&text(1, 3));
        let forgotten = yard.forget_all(&all, false);
        assert_eq!(forgotten.kept, [parked.id()]);
        let keys: Vec<&Vec<Key>> = forgotten.plans.iter().map(|plan| &plan.keys).collect();
        assert_eq!(keys, [&vec![all[2]]]);
        yard.land(&forgotten.plans);
        assert!(
            yard.forget_all(&all[..2], false).plans.is_empty(),
            "all is kept"
        );
        let forced = yard.forget_all(&all, true);
        assert_eq!(forced.plans[0].keys, all);
        yard.land(&forced.plans);
        assert!(yard.broken(&parked));
        yard.abandon(parked);
        yard.at_rest();
    }
}

/// Law: INV-34, INV-35a
#[test]
fn a_store_is_the_last_home_and_its_keep_is_one_when_the_put_was_acknowledged() {
    for yard in yards(12, 2, 0, 8) {
        let (first, second) = (text(1, 2), text(2, 3));
        let above = yard.park(yard.run(&first), 8);
        let weak = yard.park(yard.run(&second), 12);
        assert_eq!(
            (yard.host().promised, yard.stats().tiers[3].promised),
            (2, 3)
        );
        let put = yard.demote_parked(&weak, 8).expect("three");
        assert_eq!((put.from, put.to, put.len()), (Tier::DEVICE, REMOTE, 3));
        assert_eq!(yard.device().pinned, 5, "until the store has it");
        yard.fail(&put, 1);
        assert_eq!(yard.device().pinned, 4, "the last one is there");
        yard.land(yard.demote_parked(&weak, 8).as_slice());
        yard.land(yard.demote_parked(&above, 8).as_slice());
        assert_eq!((yard.device().pinned, yard.stats().tiers[3].pinned), (0, 3));
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(yard.adopt(&text(3, 9)), 5, "its keep is no room");
        let (lease, begun) = yard.resume(weak);
        assert_eq!((begun.cached, begun.hits), (12, [0, 0, 0, 3]));
        yard.land(&begun.plans);
        yard.finish(lease);
        yard.abandon(above);
        yard.at_rest();
    }
}

/// What the store has lost is computed again from the last good block on, and no request fails.
/// Law: INV-35a
#[test]
fn a_miss_at_resume_is_a_recomputation_from_the_last_good_block() {
    for corrupt in [false, true] {
        for yard in yards(8, 0, 0, 8) {
            let parked = yard.park(yard.run(&text(1, 4)), 16);
            yard.land(yard.demote_parked(&parked, 8).as_slice());
            yard.squeeze(yard.device().idle as u32);
            let (lease, begun) = yard.resume(parked);
            let plan = &begun.plans[0];
            if corrupt {
                yard.corrupt(plan, 1);
            } else {
                yard.fail(plan, 1);
            }
            let view = yard.view(&lease);
            assert!(view.incomplete && view.cached == 4, "{view:?}");
            assert_eq!(yard.stats().counters.broken, 1);
            // The engine goes on with it: it computes what is missing.
            assert_eq!(yard.seal(&lease, 16), 3);
            assert!(!yard.view(&lease).incomplete);
            yard.finish(lease);
            yard.at_rest();
        }
    }
}

/// Law: INV-34, INV-35a
#[test]
fn a_keep_that_must_not_be_lost_is_in_no_store() {
    for kind in KINDS {
        let yard = Yard::of(Config {
            policy: kind,
            recompute: false,
            ..four(12, 2, 0, 8)
        });
        let lease = yard.run(&text(1, 3));
        let Err((lease, Error::TooLarge { tier, capacity, .. })) = yard.cache.park(lease, 12)
        else {
            panic!("the host has two");
        };
        assert_eq!((tier, capacity), (HOST, 2));
        yard.finish(lease);
        let parked = yard.park(yard.run(&text(2, 2)), 8);
        let ticket = yard.cache.promise(1, REMOTE);
        assert!(
            matches!(ticket, Err(Error::Argument { name: "tier", .. })),
            "{ticket:?}"
        );
        let moved = yard
            .cache
            .lock()
            .demote_parked(parked.id(), 4, Some(REMOTE));
        assert!(
            matches!(moved, Err(Error::Argument { name: "to", .. })),
            "{moved:?}"
        );
        yard.land(yard.demote_parked(&parked, 4).as_slice());
        // The lowest copy that it has is none to rely on.
        assert_eq!(yard.stats().tiers[3].pinned, 0);
        yard.abandon(parked);
        yard.at_rest();
    }
}

/// Law: INV-34, INV-35a
#[test]
fn a_copy_above_is_the_home_and_a_name_by_hearsay_is_none() {
    for yard in yards(12, 6, 0, 8) {
        // It is on the host, and in the store: the host is where it is kept.
        yard.publish_below(&text(1, 2));
        yard.land(yard.demote_from(HOST, 2).as_slice());
        let parked = yard.park(yard.run(&text(1, 2)), 8);
        assert_eq!((yard.host().pinned, yard.stats().tiers[3].pinned), (2, 0));
        // Now it moves there, at once.
        assert_eq!(yard.move_parked(&parked, 8, REMOTE), None);
        assert_eq!((yard.host().pinned, yard.stats().tiers[3].pinned), (0, 2));
        yard.abandon(parked);
        // What the store is only said to have is copied to the host.
        yard.adopt(&text(2, 2));
        let (lease, begun) = yard.stop(&text(2, 2), 0);
        assert_eq!((begun.cached, begun.stop), (0, Stop::Slow));
        yard.seal(&lease, 8);
        let parked = yard.park(lease, 8);
        assert_eq!((yard.host().promised, yard.stats().tiers[3].pinned), (2, 0));
        assert_eq!(yard.move_parked(&parked, 8, REMOTE), None, "nor by asking");
        let plan = yard.demote_parked(&parked, 8).expect("two");
        assert_eq!((plan.to, plan.len()), (HOST, 2));
        yard.land(&[plan]);
        yard.abandon(parked);
        yard.at_rest();
    }
    for yard in yards(12, 0, 0, 8) {
        yard.adopt(&text(2, 2));
        let (lease, _) = yard.stop(&text(2, 2), 0);
        yard.seal(&lease, 8);
        let Err((lease, Error::NoRoom { tier, .. })) = yard.cache.park(lease, 8) else {
            panic!("no copy was acknowledged");
        };
        assert_eq!(tier, REMOTE);
        yard.finish(lease);
        yard.at_rest();
    }
}

/// What a slot had before says nothing of the copy that is on its way there.
/// Law: INV-34, INV-35a
#[test]
fn a_keep_waits_for_a_put_into_a_slot_that_had_a_name_by_hearsay() {
    for yard in yards(12, 0, 0, 4) {
        yard.adopt(&text(1, 4));
        assert_eq!(yard.drop_names(&keys(&yard, &text(1, 4))), 4);
        let lease = yard.run(&text(2, 2));
        let put = yard.demote_lease(&lease, 2);
        let parked = yard.park(lease, 8);
        assert_eq!(yard.device().pinned, 2, "not acknowledged yet");
        yard.land(&[put]);
        assert_eq!((yard.device().pinned, yard.stats().tiers[3].pinned), (0, 2));
        yard.abandon(parked);
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
        let mut state = yard.cache.lock();
        let to = |answer: Option<Error>| matches!(answer, Some(Error::Argument { name: "to", .. }));
        assert!(to(state.unwritten(REMOTE).err()));
        assert!(to(state.outranked(REMOTE).err()));
        assert!(to(state.write_down(REMOTE, &own, &[]).err()));
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

/// Law: INV-39
#[test]
fn a_block_whose_prefix_was_lost_is_found_again_behind_an_adopted_one() {
    for yard in yards(16, 8, 0, 8) {
        // The store has lost the second; the third is on the host, and an orphan.
        let whole = text(1, 3);
        let lease = yard.run(&whole);
        yard.land(&[yard.demote_lease(&lease, 3)]);
        yard.finish(lease);
        yard.squeeze(yard.device().idle as u32);
        let (lease, begun) = yard.begin(&and_one(&whole));
        yard.corrupt(&begun.plans[0], 1);
        yard.finish(lease);
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(yard.hits(&and_one(&whole)), [0, 1, 0, 0]);
        yard.cache.lock().dispatch();
        assert_eq!(yard.adopt(&whole), 3);
        assert_eq!(
            (yard.hits(&and_one(&whole)), yard.names()),
            ([0, 2, 0, 1], 1)
        );
        yard.cache.lock().dispatch();
        let (lease, begun) = yard.begin(&and_one(&whole));
        assert_eq!(begun.plans.len(), 3);
        yard.land(&begun.plans);
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

/// Law: E4, INV-35a
#[test]
fn a_saved_request_that_the_store_has_lost_is_cut_to_what_is_left() {
    for policy in KINDS {
        let yard = Yard::of(Config {
            policy,
            engine: true,
            slots: vec![16, 0, 0, 8],
            ..four(16, 0, 0, 8)
        });
        let own = keys(&yard, &text(1, 3));
        let saved = yard.cache.lock().save_request(&own, &[1, 2, 3], 12);
        let (kept, plan) = saved.expect("there is room");
        yard.land(plan.as_slice());
        let fetched = yard.cache.lock().fetch(Wanted::Kept(kept), &[4, 5, 6], 0);
        let Ok(Fetch::Plans(plans)) = fetched else {
            panic!("{fetched:?}");
        };
        yard.fail(&plans[0], 1);
        let view = yard.cache.lock().view_parked(kept).expect("kept");
        assert_eq!((view.computed, view.blocks), (4, 1));
        yard.cache.lock().abandon(kept).expect("kept");
        yard.sound();
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

/// A begin that waits for a name is told what to wait for.
/// Law: E2, INV-20f
#[test]
fn what_is_on_its_way_to_a_store_is_counted_and_waited_for() {
    for policy in KINDS {
        let yard = Yard::of(Config {
            policy,
            engine: true,
            slots: vec![16, 0, 0, 8],
            ..four(16, 0, 0, 8)
        });
        let own = keys(&yard, &text(1, 3));
        let put = yard.cache.lock().offload(&own[..2], &[1, 2], 0);
        let put = put.expect("the engine's").expect("two");
        assert_eq!(
            (put.to, yard.adopt_keys(&own), yard.names()),
            (REMOTE, 3, 3)
        );
        let probe = yard.cache.lock().find(&own, 0).expect("the engine's");
        assert_eq!(
            (probe.hits, probe.stop),
            ([0; 4], Stop::Filling(put.flight))
        );
        yard.land(&[put]);
        assert_eq!(yard.cache.lock().find(&own, 0).expect("it is").hits[3], 3);
    }
    let yard = Yard::of(four(8, 0, 0, 8));
    yard.adopt(&text(1, 2));
    let (lease, begun) = yard.begin(&and_one(&text(1, 2)));
    let asked = yard.ask(&and_one(&text(1, 2)), 0, 9, Filling::Soon);
    assert!(matches!(asked, Ok(Answer::Soon(flight)) if flight == begun.plans[0].flight));
    yard.land(&begun.plans);
    yard.finish(lease);
    assert_eq!(SIZE, 4);
}
