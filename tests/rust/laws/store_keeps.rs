//! Parked and saved blocks whose lowest copy is in a shared store. (INV-34, INV-35a)

use crate::stores::{HOST, REMOTE, engines, four, keys, yards};
use crate::verbs::Verbs as _;
use crate::yard::{KINDS, Yard, text};
use blockyard_core::{Config, Error, Fetch, Key, Stop, Tier, Wanted};

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
        assert_eq!((yard.host().promised, yard.remote().promised), (2, 3));
        let put = yard.demote_parked(&weak, 8).expect("three");
        assert_eq!((put.from, put.to, put.len()), (Tier::DEVICE, REMOTE, 3));
        assert_eq!(yard.device().pinned, 5, "until the store has it");
        yard.fail(&put, 1);
        assert_eq!(yard.device().pinned, 4, "the last one is there");
        yard.land(yard.demote_parked(&weak, 8).as_slice());
        yard.land(yard.demote_parked(&above, 8).as_slice());
        assert_eq!((yard.device().pinned, yard.remote().pinned), (0, 3));
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
            yard.spoil(&begun.plans[0], 1, corrupt);
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
        assert_eq!(yard.remote().pinned, 0);
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
        assert_eq!((yard.host().pinned, yard.remote().pinned), (2, 0));
        // Now it moves there, at once.
        assert_eq!(yard.move_parked(&parked, 8, REMOTE), None);
        assert_eq!((yard.host().pinned, yard.remote().pinned), (0, 2));
        yard.abandon(parked);
        // What the store is only said to have is copied to the host.
        yard.adopt(&text(2, 2));
        let (lease, begun) = yard.stop(&text(2, 2), 0);
        assert_eq!((begun.cached, begun.stop), (0, Stop::Slow));
        yard.seal(&lease, 8);
        let parked = yard.park(lease, 8);
        assert_eq!((yard.host().promised, yard.remote().pinned), (2, 0));
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
        assert_eq!((yard.device().pinned, yard.remote().pinned), (0, 2));
        yard.abandon(parked);
        yard.at_rest();
    }
}

/// Law: E4, INV-35a
#[test]
fn a_saved_request_that_the_store_has_lost_is_cut_to_what_is_left() {
    for yard in engines(16, 8) {
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
