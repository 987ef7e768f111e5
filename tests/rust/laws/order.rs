//! Every tier's order has a child before its parent, and the device comes first. (INV-20, 33)

use crate::yard::{KINDS, Yard, and_one, by_age_of, cat, config, each_of, in_flight, one, text};
use blockyard_core::{Config, Filling, HostCopies, Retention, Stop};

fn yards(device: u32, host: u32) -> impl Iterator<Item = Yard> {
    each_of(KINDS, config(device, host))
}

fn by_age(device: u32, host: u32) -> impl Iterator<Item = Yard> {
    by_age_of(config(device, host))
}

/// Makes the host evict one block, by a copy down of one that no sequence holds.
fn squeeze_host(yard: &Yard, name: u32) {
    assert_eq!(yard.host().free, 0, "the host is full");
    let evicted = yard.stats().counters.evicted[1];
    let lease = yard.run(&text(name, 1));
    yard.land(&[yard.demote_lease(&lease, 1)]);
    yard.finish(lease);
    assert_eq!(yard.stats().counters.evicted[1], evicted + 1);
}

// (a) pins and keeps are closed towards the root.

/// Law: INV-20a
#[test]
fn a_lease_pins_its_whole_path_so_that_nothing_above_it_can_go() {
    for yard in yards(8, 0) {
        let prompt = text(1, 3);
        yard.publish(&prompt);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        assert_eq!(begun.hits[0], 3);
        assert_eq!((yard.device().pinned, yard.device().idle), (3, 0));
        assert!(yard.begin_reserving(&text(2, 5), 0).is_err());
        yard.finish(lease);
        assert_eq!(yard.device().takeable, 3);
    }
}

/// Law: INV-20a
#[test]
fn a_keep_pins_all_that_stands_above_the_block_it_protects() {
    for yard in yards(8, 8) {
        let prompt = text(1, 4);
        let lease = yard.run(&prompt);
        yard.land(&[yard.demote_lease(&lease, 2)]);
        let parked = yard.park(lease, 16);
        // The upper two have copies below, and stay: the lower two have none.
        assert_eq!((yard.device().pinned, yard.host().pinned), (4, 2));
        assert!(yard.begin_reserving(&text(2, 5), 0).is_err());
        let plan = yard.demote_parked(&parked, 1).unwrap();
        yard.land(&[plan]);
        assert_eq!((yard.device().pinned, yard.device().idle), (3, 1));
        let plan = yard.demote_parked(&parked, 8).unwrap();
        yard.land(&[plan]);
        assert_eq!((yard.device().pinned, yard.device().idle), (0, 4));
        for left in (0..4).rev() {
            yard.squeeze(1);
            assert_eq!(yard.hits(&prompt), [left, 4 - left, 0, 0]);
        }
        yard.abandon(parked);
    }
}

// (b) the source of a downward flight keeps its place in its list.

/// Law: INV-20b
#[test]
fn the_source_of_a_copy_down_keeps_its_place_whatever_becomes_of_the_copy() {
    let ends: [fn(&Yard, &blockyard_core::Plan); 3] = [
        |yard, plan| yard.land(std::slice::from_ref(plan)),
        |yard, plan| yard.fail(plan, 0),
        |yard, plan| {
            yard.overdue(plan);
            yard.fail(plan, 0);
        },
    ];
    for end in ends {
        for yard in yards(8, 8) {
            let (older, newer) = (text(1, 2), text(2, 2));
            yard.publish(&older);
            yard.publish(&newer);
            let plan = yard.demote(2).unwrap();
            let read = [yard.on_device(&older), yard.on_device(&newer)];
            assert_eq!(read, [2, 2], "still matchable");
            yard.squeeze(1);
            assert_eq!(yard.on_device(&newer), 1, "the older ones are read");
            end(&yard, &plan);
            yard.squeeze(1);
            assert_eq!(yard.on_device(&older), 1, "their turn, as before");
            yard.squeeze(1);
            assert_eq!([yard.on_device(&older), yard.on_device(&newer)], [0, 1]);
        }
    }
}

/// The copy of a child lands before that of its parent, which was passed over since another child is
/// still on its way: it is found all the same.
/// Law: INV-20b
#[test]
fn what_lands_before_a_parent_that_was_passed_over_is_the_next_to_go() {
    for yard in yards(12, 4) {
        let stem = text(1, 1);
        let [left, right] = [2, 3].map(|name| yard.run(&cat(&stem, &text(name, 1))));
        yard.land(&[yard.demote_lease(&left, 1)]);
        let [other, next, last] = [4, 5, 6].map(|name| yard.run(&text(name, 1)));
        yard.land(&[yard.demote_lease(&other, 1)]);
        let lower = [&left, &right].map(|lease| yard.demote_lease(lease, 1));
        let evicted = || yard.stats().counters.evicted[1];
        assert_eq!((yard.host().free, yard.host().takeable), (0, 1));
        let passing = yard.demote_lease(&next, 1);
        assert_eq!(evicted(), 1, "not the stem: a child of it is filling");
        let [lower_left, lower_right] = lower;
        yard.land(&[lower_right]);
        let taking = yard.demote_lease(&last, 1);
        assert_eq!(evicted(), 2);
        yard.land(&[lower_left, passing, taking]);
        for lease in [left, right, other, next, last] {
            yard.finish(lease);
        }
    }
}

// (c) what one transition releases is released deepest first, a flight's sources before any lease.

/// Law: INV-20c
#[test]
fn a_finished_path_is_evicted_from_its_end_to_its_root() {
    for yard in yards(8, 0) {
        let prompt = text(1, 6);
        yard.publish(&prompt);
        for left in (0..6).rev() {
            yard.squeeze(1);
            assert_eq!(yard.on_device(&prompt), left);
        }
    }
}

/// Law: INV-20c
#[test]
fn a_batch_that_finishes_at_once_leaves_each_child_before_its_parent() {
    for yard in yards(12, 0) {
        let stem = text(1, 2);
        let (left, right) = (cat(&stem, &text(2, 2)), cat(&stem, &text(3, 2)));
        let leases = [yard.run(&left), yard.run(&right)];
        let ids = leases.each_ref().map(blockyard_core::Lease::id);
        let finished = yard.cache.lock().finish(&ids, Retention::Ordinary, Some(1));
        finished.unwrap();
        leases.iter().for_each(blockyard_core::Lease::spend);
        yard.sound();
        assert_eq!(yard.device().idle, 0, "held back for step 1");
        yard.cache.lock().commit(&[], Some(1)).unwrap();
        yard.sound();
        let mut seen = vec![];
        while yard.device().idle > 0 {
            yard.squeeze(1);
            seen.push((yard.on_device(&left), yard.on_device(&right)));
        }
        assert_eq!(seen[3..], [(2, 2), (1, 1), (0, 0)], "the stem goes last");
    }
}

/// Law: INV-20c
#[test]
fn keeps_are_released_deepest_first_on_the_host_too() {
    for yard in by_age(8, 4) {
        let prompt = text(1, 4);
        let parked = yard.park(yard.run(&prompt), 16);
        yard.land(&[yard.demote_parked(&parked, 4).unwrap()]);
        yard.squeeze(4);
        yard.abandon(parked);
        for left in (0..4).rev() {
            squeeze_host(&yard, 10 + left);
            assert_eq!(yard.hits(&prompt), [0, left, 0, 0]);
        }
    }
}

/// Released root first, each block would put all that stand above it in order again.
#[test]
#[cfg(debug_assertions)]
fn a_keep_ends_in_steps_that_grow_with_its_length_alone() {
    for yard in yards(40, 40) {
        let prompt = text(1, 40);
        let parked = yard.park(yard.run(&prompt), 160);
        yard.land(&[yard.demote_parked(&parked, 40).unwrap()]);
        yard.squeeze(40);
        let before = yard.cache.lock().climbed();
        yard.abandon(parked);
        let steps = yard.cache.lock().climbed() - before;
        assert!(steps <= 120, "{steps} steps for 40 blocks");
    }
}

/// Law: INV-20c
#[test]
fn a_load_that_lands_for_no_lease_releases_its_sources_before_its_path() {
    for yard in by_age(8, 4) {
        let prompt = text(1, 4);
        yard.publish_below(&prompt);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        yard.finish(lease);
        yard.land(&begun.plans);
        assert_eq!((yard.device().idle, yard.host().idle), (4, 4));
        for left in (0..4).rev() {
            yard.squeeze(1);
            assert_eq!(yard.hits(&prompt), [left, 4 - left, 0, 0]);
        }
        for left in (0..4).rev() {
            squeeze_host(&yard, 10 + left);
            assert_eq!(yard.hits(&prompt), [0, left, 0, 0]);
        }
    }
}

// (d) dropping a device copy touches the copy below.

/// Law: INV-20d
#[test]
fn a_copy_below_is_as_recent_as_the_drop_of_the_copy_above() {
    for yard in yards(8, 2) {
        let (early, late) = (text(1, 1), text(2, 1));
        yard.publish(&early);
        yard.publish(&late);
        yard.copy_down(2);
        // Used again: it leaves the device after the other.
        yard.publish(&and_one(&early));
        yard.squeeze(1);
        assert_eq!(
            [yard.hits(&early), yard.hits(&late)],
            [[1, 0, 0, 0], [0, 1, 0, 0]]
        );
        yard.squeeze(1);
        squeeze_host(&yard, 10);
        assert_eq!(
            [yard.hits(&early), yard.hits(&late)],
            [[0, 1, 0, 0], [0, 0, 0, 0]]
        );
    }
}

/// Law: INV-20d
#[test]
fn copies_below_are_as_recent_as_the_drop_of_a_whole_path_above() {
    for yard in yards(16, 12) {
        let (early, late) = (text(1, 6), text(2, 6));
        yard.publish(&early);
        yard.publish(&late);
        yard.copy_down(12);
        // Used again: it leaves the device after the other.
        yard.publish(&and_one(&early));
        for left in [6, 0] {
            yard.squeeze(6);
            assert_eq!(yard.hits(&early), [left, 6 - left, 0, 0]);
            assert_eq!(yard.hits(&late), [0, 6, 0, 0]);
        }
        squeeze_host(&yard, 10);
        assert_eq!(yard.hits(&early), [0, 6, 0, 0]);
        assert_eq!(yard.hits(&late), [0, 5, 0, 0]);
    }
}

/// Law: INV-20d
#[test]
fn copies_made_root_first_are_evicted_leaf_first_once_they_stand_alone() {
    for yard in by_age(8, 3) {
        let prompt = text(1, 3);
        let lease = yard.run(&prompt);
        for blocks in 1..4 {
            yard.land(&[yard.demote_lease(&lease, 1)]);
            assert_eq!(yard.host().idle, blocks);
        }
        yard.finish(lease);
        yard.squeeze(3);
        for left in (0..3).rev() {
            squeeze_host(&yard, 10 + left);
            assert_eq!(yard.hits(&prompt), [0, left, 0, 0]);
        }
    }
}

// (e) every promotion pins its path until it lands, even when its requester is gone.

/// Law: INV-20e
#[test]
fn a_load_pins_its_path_until_it_lands_even_when_its_requester_is_gone() {
    for yard in yards(8, 8) {
        let prompt = text(1, 4);
        yard.publish(&prompt);
        yard.copy_down(2);
        yard.squeeze(2);
        assert_eq!(yard.hits(&prompt), [2, 2, 0, 0]);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        yard.finish(lease);
        assert_eq!(yard.device().pinned, 4, "the path, and what is loading");
        let refused = yard.begin_reserving(&text(2, 5), 0);
        assert!(refused.is_err(), "nothing above a filling block goes");
        yard.land(&begun.plans);
        assert_eq!((yard.device().pinned, yard.device().idle), (0, 4));
        assert_eq!(yard.on_device(&prompt), 4);
    }
}

/// Law: INV-20e
#[test]
fn a_prefetch_pins_its_path_until_it_lands() {
    for yard in yards(6, 8) {
        let prompt = text(1, 4);
        yard.publish(&prompt);
        yard.copy_down(2);
        yard.squeeze(2);
        let plan = yard.promote(&prompt, 8).unwrap();
        yard.sound();
        assert_eq!((plan.len(), yard.device().pinned), (2, 4));
        assert!(yard.begin_reserving(&text(2, 3), 0).is_err());
        yard.land(&[plan]);
        assert_eq!(yard.on_device(&prompt), 4);
        for left in (0..4).rev() {
            yard.squeeze(1);
            assert_eq!(yard.on_device(&prompt), left);
        }
    }
}

// (f) match and seal stop at a block that is still filling.

/// Law: INV-20f
#[test]
fn a_match_stops_at_a_block_that_is_still_filling() {
    for yard in yards(12, 8) {
        let prompt = text(1, 3);
        yard.publish(&prompt);
        yard.copy_down(2);
        yard.squeeze(2);
        let (loading, begun) = yard.begin(&and_one(&prompt));
        assert!(in_flight(&yard.probe(&prompt)));
        let (other, stopped) = yard.stop(&and_one(&prompt), u32::MAX);
        assert_eq!((stopped.cached, stopped.plans.len()), (4, 0));
        assert_eq!(stopped.stop, Stop::Filling(begun.plans[0].flight));
        yard.land(&begun.plans);
        yard.finish(loading);
        yard.finish(other);
    }
}

/// Law: INV-20f, 2.1-5
#[test]
fn a_seal_stops_at_a_block_that_is_still_filling_and_goes_on_next_step() {
    for yard in yards(16, 8) {
        let prompt = text(1, 3);
        let longer = cat(&prompt, &text(2, 1));
        yard.publish_below(&prompt);
        let (loading, begun) = yard.begin(&and_one(&prompt));
        let (other, _) = yard.stop(&longer, u32::MAX);
        assert_eq!(
            yard.seal(&other, 16),
            0,
            "not even a block that is not published yet"
        );
        assert_eq!(yard.view(&other).sealed, 0);
        assert_eq!(yard.probe(&longer).hits, [0, 0, 0, 0]);
        yard.land(&begun.plans);
        assert_eq!(yard.seal(&other, 16), 4);
        assert_eq!(yard.on_device(&longer), 4);
        yard.finish(loading);
        yard.finish(other);
    }
}

// The device comes first. (INV-33)

/// Law: INV-33
#[test]
fn from_the_root_down_device_comes_before_host() {
    for yard in yards(8, 8) {
        let prompt = text(1, 4);
        yard.publish(&prompt);
        yard.copy_down(4);
        for left in (0..4).rev() {
            yard.squeeze(1);
            assert_eq!(yard.hits(&prompt), [left, 4 - left, 0, 0]);
        }
    }
}

/// Law: INV-33
#[test]
fn a_parent_is_evicted_only_when_it_has_no_child_on_the_tier() {
    for yard in yards(8, 0) {
        let stem = text(1, 1);
        let (left, right) = (cat(&stem, &text(2, 1)), cat(&stem, &text(3, 1)));
        yard.publish(&left);
        yard.publish(&right);
        let held = yard.begin(&and_one(&right)).0;
        yard.squeeze(1);
        assert_eq!((yard.on_device(&left), yard.on_device(&right)), (1, 2));
        assert!(yard.begin_reserving(&text(4, 6), 0).is_err());
        yard.finish(held);
        yard.squeeze(1);
        assert_eq!((yard.on_device(&stem), yard.on_device(&right)), (1, 1));
        yard.squeeze(1);
        assert_eq!(yard.on_device(&stem), 0);
    }
}

/// Leaves the second block of a text on the host, and its first nowhere.
fn orphan(yard: &Yard, prompt: &[u32]) {
    yard.publish(prompt);
    yard.copy_down(1);
    yard.squeeze(2);
    assert_eq!(yard.hits(prompt), [0, 0, 0, 0]);
    assert_eq!(yard.host().idle, 1, "a descendant is left");
}

/// Law: INV-33
#[test]
fn what_a_dropped_copy_leaves_below_is_linked_again_by_the_next_seal() {
    for yard in yards(8, 8) {
        let prompt = text(1, 2);
        orphan(&yard, &prompt);
        let lease = yard.run(&prompt);
        assert_eq!(yard.on_device(&prompt), 2);
        assert_eq!(yard.stats().blocks, 2, "not a third one");
        yard.finish(lease);
        yard.squeeze(1);
        assert_eq!(yard.hits(&prompt), [1, 1, 0, 0], "its old copy serves it");
    }
}

/// Law: INV-33
#[test]
fn what_a_dropped_copy_leaves_below_is_linked_again_by_the_next_begin() {
    for yard in yards(8, 8) {
        let prompt = text(1, 2);
        orphan(&yard, &prompt);
        yard.publish(&prompt[..4]);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        assert_eq!(begun.hits, [1, 1, 0, 0]);
        yard.land(&begun.plans);
        yard.finish(lease);
        for left in (0..2).rev() {
            yard.squeeze(1);
            assert_eq!(yard.on_device(&prompt), left, "and stands in order");
        }
    }
}

/// Law: INV-33
#[test]
fn the_last_block_of_a_full_hit_is_linked_again_too() {
    for yard in yards(8, 8) {
        let prompt = text(1, 2);
        orphan(&yard, &prompt);
        yard.publish(&prompt[..4]);
        let (lease, begun) = yard.begin(&prompt);
        assert_eq!((begun.cached, begun.hits), (7, [1, 1, 0, 0]));
        let probe = yard.probe(&and_one(&prompt));
        assert_eq!(probe.hits, [1, 1, 0, 0], "others find it while it is read");
        yard.land(&begun.plans);
        yard.finish(lease);
    }
}

/// Law: INV-33
#[test]
fn what_is_linked_again_raises_the_class_of_all_above_it() {
    for yard in yards(8, 8) {
        let prompt = text(1, 3);
        yard.finish_as(yard.run(&prompt), Retention::Retain);
        yard.copy_down(1);
        yard.squeeze(3);
        // Its first two blocks again, of no special class; the load of the third fails.
        yard.publish(&prompt[..8]);
        let plan = yard.promote(&prompt, 1);
        yard.fail(&plan.expect("the third is below"), 0);
        let idle = yard.device().idle as u32;
        let plan = yard.demote(idle).expect("all that is idle");
        yard.land(&[plan]);
        yard.squeeze(idle);
        assert_eq!(yard.hits(&prompt), [0, 3, 0, 0], "each behind its child");
    }
}

/// Copies on the host that go first stand in no order of their path, and in their classes all the same.
/// Law: INV-20, INV-33
#[test]
fn what_is_linked_again_raises_the_class_of_copies_above_it_too() {
    let host_copies = Some(HostCopies::First);
    let config = Config {
        host_copies,
        ..config(8, 8)
    };
    for yard in each_of(KINDS, config) {
        let prompt = text(1, 4);
        yard.finish_as(yard.run(&prompt), Retention::Retain);
        yard.copy_down(2);
        yard.squeeze(4);
        // Its first two blocks again, of no special class, on the host alone.
        yard.publish_below(&prompt[..8]);
        assert_eq!(yard.hits(&prompt), [0, 4, 0, 0]);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        yard.land(&begun.plans);
        yard.finish(lease);
        assert_eq!(yard.hits(&prompt), [4, 0, 0, 0]);
    }
}

/// Law: INV-33
#[test]
fn what_a_dropped_copy_leaves_below_is_aged_out() {
    for yard in yards(8, 1) {
        orphan(&yard, &text(1, 2));
        squeeze_host(&yard, 2);
        yard.squeeze(1);
        assert_eq!(
            (yard.stats().blocks, yard.hits(&text(2, 1))),
            (1, [0, 1, 0, 0])
        );
    }
}

/// Law: 2.2-7
#[test]
fn a_waiting_answer_names_the_flight_and_holds_nothing() {
    for yard in yards(8, 8) {
        let prompt = text(1, 2);
        yard.publish_below(&prompt);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        let before = yard.stats();
        let soon = yard.ask(&and_one(&prompt), 4, u32::MAX, Filling::Soon);
        assert_eq!(soon, Ok(blockyard_core::Answer::Soon(one(&begun).flight)));
        assert_eq!(yard.stats(), before);
        yard.land(&begun.plans);
        yard.finish(lease);
    }
}
