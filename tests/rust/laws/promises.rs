//! Promises are numbers, and they are kept. (INV-22)

use crate::yard::{SIZE, Yard, and_one, cat, room, text};
use blockyard_core::{Lease, Stop};

/// Law: INV-22
#[test]
fn a_promise_moves_no_slot() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin_reserving(&text(1, 1), 5 * SIZE).unwrap();
    let device = yard.device();
    assert_eq!((device.free, device.claimed, device.promised), (7, 1, 5));
    yard.finish(lease);
    assert_eq!(yard.device().promised, 0);
}

/// Law: INV-22
#[test]
fn promises_never_exceed_what_is_free_and_takeable() {
    let yard = Yard::new(8, 0);
    yard.publish(&text(1, 4));
    let (first, _) = yard.begin_reserving(&text(2, 1), 6 * SIZE).unwrap();
    let refused = yard.begin_reserving(&text(3, 1), SIZE).unwrap_err();
    assert_eq!(room(refused), (2, 3, 4, 6));
    let (second, _) = yard.begin(&text(3, 1));
    assert!(yard.begin_reserving(&text(4, 1), 0).is_err());
    assert!(yard.grow(&first, 6 * SIZE), "what was promised is there");
    assert_eq!(yard.device().free + yard.device().idle, 0);
    yard.finish(first);
    yard.finish(second);
}

/// Law: INV-22
#[test]
fn a_grow_inside_its_promise_never_fails_and_beyond_it_may() {
    let yard = Yard::new(4, 0);
    let (lease, _) = yard.begin_reserving(&text(1, 1), 2 * SIZE).unwrap();
    let (other, _) = yard.begin(&text(2, 1));
    assert!(!yard.grow(&other, 1), "the rest is promised");
    for _ in 0..2 * SIZE {
        assert!(yard.grow(&lease, 1));
    }
    assert_eq!(yard.device().promised, 0);
    assert!(!yard.grow(&lease, 1));
    assert_eq!(yard.view(&lease).tokens, 3 * SIZE, "and asked for no slot");
    yard.finish(other);
    assert!(yard.grow(&lease, 1));
    yard.finish(lease);
}

/// Law: INV-22
#[test]
fn beyond_the_promise_rows_are_served_in_order_each_whole_or_not_at_all() {
    let yard = Yard::new(8, 0);
    let leases: Vec<_> = (1..5).map(|name| yard.begin(&text(name, 1)).0).collect();
    let ids: Vec<_> = leases.iter().map(Lease::id).collect();
    let more = [2 * SIZE, 3 * SIZE, SIZE, 2 * SIZE];
    let mut unserved = vec![];
    let grown = yard.cache.lock().grow(&ids, |row| more[row], &mut unserved);
    grown.unwrap();
    yard.sound();
    assert_eq!(unserved, [1, 3], "the answer names them");
    let blocks: Vec<_> = leases.iter().map(|lease| yard.view(lease).blocks).collect();
    assert_eq!(blocks, [3, 1, 2, 1]);
    assert_eq!(yard.stats().counters.unserved, 2);
    for lease in leases {
        yard.finish(lease);
    }
}

/// Law: INV-22
#[test]
fn pinning_an_idle_block_spends_backing() {
    let yard = Yard::new(6, 0);
    let prompt = text(1, 2);
    yard.publish(&prompt);
    let (lease, _) = yard.begin_reserving(&text(2, 1), 4 * SIZE).unwrap();
    assert_eq!((yard.device().free, yard.device().promised), (3, 4));
    // One block is to be had, but the two of its prefix back the promise.
    let refused = yard.begin_reserving(&and_one(&prompt), 0).unwrap_err();
    assert_eq!(room(refused), (1, 3, 0, 4));
    assert_eq!(yard.on_device(&prompt), 2);
    assert!(yard.grow(&lease, 4 * SIZE));
    yard.finish(lease);
}

/// Law: INV-22
#[test]
fn a_copy_ahead_takes_no_backing_from_a_promise() {
    let yard = Yard::new(6, 8);
    yard.publish(&text(1, 2));
    let (lease, _) = yard.begin_reserving(&text(2, 1), 4 * SIZE).unwrap();
    // A reader mark on the leaf holds the root too: one of the two may be spared, not both.
    assert_eq!(yard.demote(2), None);
    assert_eq!((yard.device().takeable, yard.host().free), (2, 8));
    assert!(yard.grow(&lease, 4 * SIZE));
    yard.finish(lease);
}

/// Law: INV-22
#[test]
fn a_load_takes_no_backing_from_the_hosts_promises() {
    let yard = Yard::new(12, 3);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    let parked = yard.park(yard.run(&text(2, 3)), 12);
    assert_eq!((yard.host().idle, yard.host().promised), (2, 3));
    let (lease, begun) = yard.begin(&and_one(&prompt));
    assert_eq!((begun.cached, begun.stop), (0, Stop::Promised));
    yard.finish(lease);
    let plan = yard.demote_parked(&parked, 3).unwrap();
    assert_eq!(plan.len(), 3, "the keep was promised all of them");
    yard.land(&[plan]);
    yard.abandon(parked);
}

/// Law: INV-22
#[test]
fn a_copy_ahead_leaves_the_hosts_promises_alone() {
    let yard = Yard::new(12, 3);
    let parked = yard.park(yard.run(&text(2, 2)), 8);
    yard.publish(&text(1, 3));
    let plan = yard.demote(3).unwrap();
    assert_eq!((plan.len(), yard.host().promised), (1, 2));
    yard.land(&[plan]);
    yard.land(&[yard.demote_parked(&parked, 2).unwrap()]);
    yard.abandon(parked);
}

/// Law: INV-22
#[test]
fn a_trim_gives_back_into_the_rows_own_promise() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin_reserving(&text(1, 1), 3 * SIZE).unwrap();
    assert!(yard.grow(&lease, 3 * SIZE), "drafts");
    assert_eq!((yard.device().free, yard.device().promised), (4, 0));
    yard.cache.lock().trim(&[lease.id()], &[SIZE + 1]).unwrap();
    yard.sound();
    assert_eq!((yard.device().free, yard.device().promised), (6, 2));
    let (other, _) = yard.begin(&text(2, 4));
    assert!(yard.begin_reserving(&text(3, 1), 0).is_err());
    assert!(yard.grow(&lease, 2 * SIZE), "it was not given away");
    yard.finish(lease);
    yard.finish(other);
}

/// Law: INV-22
#[test]
fn a_begin_that_ends_in_a_shared_prefix_promises_only_what_is_its_own() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 4);
    let first = yard.run(&prompt);
    let longer = cat(&prompt, &text(2, 1));
    let (second, begun) = yard.begin_reserving(&longer, 3 * SIZE).unwrap();
    assert_eq!((begun.hits[0], yard.device().promised), (4, 3));
    assert_eq!(yard.device().free, 3);
    assert!(yard.grow(&second, 3 * SIZE));
    yard.finish(first);
    yard.finish(second);
}
