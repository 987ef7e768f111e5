//! Eviction in one batch, and when a parent's turn comes. (R2)

use crate::yard::{KINDS, OBEYING, Yard, and_one, cat, config, text};
use blockyard_core::{Config, Error, EvictionPolicy, Lease, Retention};

fn yard_of(policy: EvictionPolicy, device: u32, host: u32) -> Yard {
    Yard::of(Config {
        policy,
        ..config(device, host)
    })
}

/// The eviction takes the slot out of the block in the same step, so that no other way of freeing
/// can give the slot back a second time. (R2-1)
/// Law: R2-1
#[test]
fn an_evicted_blocks_slot_comes_back_once_whatever_else_is_freed_then() {
    let yard = Yard::new(6, 6);
    let prompt = text(1, 2);
    let parked = yard.park(yard.run(&prompt), 8);
    yard.land(&[yard.demote_parked(&parked, 2).unwrap()]);
    let (lease, _) = yard.begin(&text(2, 5));
    assert_eq!(yard.stats().counters.evicted[0], 1);
    assert_eq!(yard.hits(&prompt), [1, 1, 0, 0]);
    // Every other path that may reach the block now: its keep, the clear, a resize, the lease.
    yard.abandon(parked);
    yard.cache.lock().clear();
    yard.sound();
    yard.cache
        .lock()
        .resize(blockyard_core::Tier::HOST, 2)
        .unwrap();
    yard.sound();
    assert_eq!((yard.device().free, yard.device().idle), (0, 1));
    yard.finish(lease);
    assert_eq!((yard.device().free, yard.device().idle), (5, 1));
}

/// A late answer to a swap must not bring an evicted block back. (R2-2)
/// Law: R2-2
#[test]
fn a_late_outcome_for_an_evicted_block_is_dropped_and_counted() {
    let yard = Yard::new(6, 6);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    yard.land(&begun.plans);
    yard.finish(lease);
    yard.squeeze(2);
    yard.publish(&text(2, 6));
    let mut expected = yard.stats();
    yard.land(&begun.plans);
    expected.counters.late += 1;
    assert_eq!(yard.stats(), expected);
    assert_eq!(yard.hits(&prompt), [0, 2, 0, 0]);
    assert_eq!(yard.on_device(&text(2, 6)), 6);
}

/// Eviction may take exactly the blocks that are alive and on the device, that no sequence holds,
/// and that have no child there; `replay.rs` and the model check this on random histories. (R2-3)
/// Law: R2-3
#[test]
fn what_may_be_taken_is_not_held_and_nothing_held_stands_below() {
    for policy in KINDS {
        let yard = yard_of(policy, 12, 0);
        let stem = text(1, 2);
        let (left, right) = (cat(&stem, &text(2, 2)), cat(&stem, &text(3, 2)));
        yard.publish(&left);
        yard.publish(&right);
        assert_eq!(yard.device().takeable, 6);
        let held = yard.begin(&and_one(&left)).0;
        assert_eq!(yard.device().takeable, 2, "the right branch");
        yard.squeeze(2);
        assert_eq!((yard.on_device(&right), yard.device().takeable), (2, 0));
        assert!(yard.begin_reserving(&text(4, 8), 0).is_err());
        yard.finish(held);
        assert_eq!(yard.device().takeable, 4);
        for left_over in (0..4).rev() {
            yard.squeeze(1);
            assert_eq!(yard.on_device(&left), left_over);
        }
    }
}

/// A parent's turn comes when its last child on the tier leaves, not before and not later. (R2-4)
/// Law: R2-4
#[test]
fn a_parent_is_next_when_its_last_child_has_left() {
    for policy in KINDS {
        let yard = yard_of(policy, 8, 0);
        let stem = text(1, 1);
        let leaves: Vec<_> = (2..5).map(|name| cat(&stem, &text(name, 1))).collect();
        for leaf in &leaves {
            yard.publish(leaf);
        }
        for gone in 1..4 {
            yard.squeeze(1);
            let left: u32 = leaves.iter().map(|leaf| yard.on_device(leaf) - 1).sum();
            assert_eq!((yard.on_device(&stem), left), (1, 3 - gone));
        }
        yard.squeeze(1);
        assert_eq!(yard.on_device(&stem), 0);
    }
}

/// There is no counter of duplicates in a list which would have to stay 0. The audit is stricter:
/// the order of a tier has each idle slot once, and no other. (R2-5)
/// Law: R2-5
#[test]
fn a_block_stands_in_the_order_once_however_often_it_was_used() {
    for policy in KINDS {
        let yard = yard_of(policy, 8, 0);
        let prompt = text(1, 3);
        yard.publish(&prompt);
        for _ in 0..50 {
            let (one, two) = (
                yard.begin(&and_one(&prompt)).0,
                yard.begin(&and_one(&prompt)).0,
            );
            yard.finish(one);
            yard.finish(two);
        }
        assert_eq!((yard.device().idle, yard.device().takeable), (3, 3));
        yard.squeeze(3);
        assert_eq!(yard.device().free, 8);
        let refused = yard.begin_reserving(&text(2, 9), 0);
        assert!(refused.is_err(), "nothing is there twice");
    }
}

/// The duplicate alone is rejected. (R2-6)
/// Law: R2-6
#[test]
fn of_a_batch_of_a_hundred_with_one_duplicate_99_are_freed_and_one_is_rejected() {
    let yard = Yard::new(200, 0);
    let leases: Vec<_> = (1..100).map(|name| yard.run(&text(name, 2))).collect();
    let mut ids: Vec<_> = leases.iter().map(Lease::id).collect();
    ids.insert(50, ids[7]);
    let finished = yard.cache.lock().finish(&ids, Retention::Ordinary, None);
    assert!(matches!(finished, Err(Error::Spent { .. })), "{finished:?}");
    leases.iter().for_each(Lease::spend);
    let stats = yard.stats();
    assert_eq!((stats.counters.finished, stats.counters.rejected), (99, 1));
    assert_eq!((yard.device().idle, yard.device().free), (198, 2));
}

/// Eviction takes what is missing, and no more. (R2-7)
/// Law: R2-7
#[test]
fn with_nine_free_and_ten_needed_exactly_one_of_a_hundred_is_evicted() {
    for policy in KINDS {
        let yard = yard_of(policy, 109, 0);
        for name in 0..20 {
            yard.publish(&text(name, 5));
        }
        assert_eq!((yard.device().free, yard.device().idle), (9, 100));
        let (lease, _) = yard.begin(&text(99, 10));
        assert_eq!(yard.stats().counters.evicted[0], 1);
        assert_eq!((yard.device().free, yard.device().idle), (0, 99));
        yard.finish(lease);
    }
}

/// A call that cannot have all evicts nothing; a panic in the middle is in `keys.rs`. (R2-8)
/// Law: R2-8
#[test]
fn a_call_that_cannot_have_all_it_needs_evicts_nothing() {
    for policy in KINDS {
        let yard = yard_of(policy, 10, 4);
        yard.publish(&text(1, 4));
        let (held, _) = yard.begin(&text(2, 4));
        let before = yard.device();
        assert!(yard.begin_reserving(&text(3, 6), 4).is_err());
        assert!(!yard.grow(&held, 7 * 4));
        assert_eq!(yard.device(), before);
        assert_eq!(yard.stats().counters.evicted, [0; 4]);
        assert_eq!(yard.on_device(&text(1, 4)), 4);
        yard.finish(held);
    }
}

/// One call evicts them all; its cost per block is in `docs/measurements.md`. (R2-9)
/// Law: R2-9
#[test]
fn a_thousand_of_five_thousand_go_in_one_call_oldest_first() {
    for policy in KINDS {
        let yard = yard_of(policy, 5_000, 0);
        for name in 0..50 {
            yard.publish(&text(name, 100));
        }
        let (lease, _) = yard.begin(&text(99, 1_000));
        assert_eq!(yard.stats().counters.evicted[0], 1_000);
        let left: Vec<_> = (0..50)
            .map(|name| yard.on_device(&text(name, 100)))
            .collect();
        assert!(left[..10].iter().all(|&blocks| blocks == 0));
        assert!(left[10..].iter().all(|&blocks| blocks == 100));
        yard.finish(lease);
    }
}

/// Law: 4.2-11
#[test]
fn a_session_that_has_ended_goes_first_but_not_what_others_share() {
    for policy in OBEYING {
        let yard = yard_of(policy, 12, 0);
        let stem = text(1, 2);
        let (ended, ordinary) = (cat(&stem, &text(2, 2)), cat(&stem, &text(3, 2)));
        yard.publish(&ordinary);
        let lease = yard.run(&ended);
        yard.finish_as(lease, Retention::SessionEnded);
        yard.squeeze(2);
        assert_eq!((yard.on_device(&ended), yard.on_device(&ordinary)), (2, 4));
        yard.squeeze(1);
        assert_eq!((yard.on_device(&stem), yard.on_device(&ordinary)), (2, 3));
    }
}

/// Law: 4.2-11
#[test]
fn what_asked_to_be_retained_goes_last() {
    for policy in OBEYING {
        let yard = yard_of(policy, 6, 0);
        let lease = yard.run(&text(1, 2));
        yard.finish_as(lease, Retention::Retain);
        yard.publish(&text(2, 2));
        yard.publish(&text(3, 2));
        yard.squeeze(4);
        assert_eq!(yard.on_device(&text(1, 2)), 2);
        yard.squeeze(2);
        assert_eq!(yard.device().idle, 0);
    }
}
