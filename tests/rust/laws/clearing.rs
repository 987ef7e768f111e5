//! A clear never waits. (INV-24)

use crate::verbs::Verbs as _;
use crate::yard::{KINDS, Yard, and_one, config, each_of, one, sealing, text};
use blockyard_core::Error;

/// Law: INV-24
#[test]
fn nothing_published_before_a_clear_is_found_after_it() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 3);
    yard.publish(&prompt);
    yard.copy_down(2);
    yard.cache.lock().clear();
    yard.sound();
    assert_eq!((yard.hits(&prompt), yard.stats().epoch), ([0, 0, 0, 0], 1));
    yard.publish(&prompt);
    assert_eq!(
        yard.on_device(&prompt),
        3,
        "published again, beside the old"
    );
    yard.squeeze(3);
    assert_eq!(yard.on_device(&prompt), 3, "the old ones go first");
}

/// Law: INV-24
#[test]
fn all_that_was_idle_is_evicted_before_anything_new_deepest_first() {
    for yard in each_of(KINDS, config(12, 0)) {
        let retained = yard.run(&text(1, 3));
        yard.finish_as(retained, blockyard_core::Retention::Retain);
        yard.publish(&text(2, 2));
        yard.cache.lock().clear();
        yard.sound();
        let ended = yard.run(&text(3, 2));
        yard.finish_as(ended, blockyard_core::Retention::SessionEnded);
        for _ in 0..5 {
            yard.squeeze(1);
            assert_eq!(yard.on_device(&text(3, 2)), 2);
        }
        yard.squeeze(1);
        assert_eq!(yard.on_device(&text(3, 2)), 1);
    }
}

/// Law: INV-24
#[test]
fn a_clear_breaks_keeps_and_their_sequences_begin_again() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 2);
    let parked = yard.park(yard.run(&prompt), 8);
    yard.cache.lock().clear();
    yard.sound();
    assert!(yard.broken(&parked));
    assert_eq!((yard.host().promised, yard.device().pinned), (0, 0));
    let (lease, begun) = yard.resume(parked);
    assert_eq!((begun.cached, begun.hits), (0, [0, 0, 0, 0]));
    yard.finish(lease);
}

/// Law: INV-24
#[test]
fn a_running_lease_is_detached_its_blocks_stay_its_own_and_are_never_published() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 3);
    let (lease, _) = yard.begin(&prompt);
    yard.seal(&lease, 4);
    let table = yard.table(&lease);
    yard.cache.lock().clear();
    yard.sound();
    assert!(yard.view(&lease).detached);
    assert_eq!(yard.table(&lease), table);
    assert_eq!(yard.seal(&lease, 12), 0);
    assert_eq!(yard.on_device(&prompt), 0);
    assert!(yard.grow(&lease, 4), "it runs on");
    let refused = yard.cache.park(lease, 12);
    let Err((lease, Error::State { .. })) = refused else {
        panic!("parking a detached lease is a misuse: {refused:?}");
    };
    yard.finish(lease);
    assert_eq!(yard.on_device(&prompt), 0);
}

/// Law: INV-24
#[test]
fn a_fork_of_a_detached_lease_is_detached_too() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 2);
    let lease = yard.run(&prompt);
    yard.cache.lock().clear();
    let (forked, _) = yard.cache.fork(&lease, 8, 0).unwrap();
    assert!(yard.view(&forked).detached);
    assert_eq!(yard.seal(&forked, 8), 0);
    yard.finish(lease);
    yard.finish(forked);
    assert_eq!(yard.on_device(&prompt), 0);
}

/// Law: INV-24
#[test]
fn a_detached_leases_load_lands_as_its_private_blocks() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    yard.cache.lock().clear();
    yard.sound();
    assert!(yard.cache.lock().draining());
    yard.land(&begun.plans);
    assert_eq!((yard.view(&lease).cached, yard.on_device(&prompt)), (8, 0));
    assert_eq!(yard.seal(&lease, 8), 0);
    // The same text is published by another sequence meanwhile, untouched by the old lease's end.
    yard.publish(&prompt);
    yard.finish(lease);
    assert_eq!(yard.on_device(&prompt), 2);
    assert_eq!((yard.device().idle, yard.device().free), (2, 6), "private");
    assert!(!yard.cache.lock().draining());
}

/// Law: INV-24
#[test]
fn copies_down_in_flight_land_into_free_slots() {
    let yard = Yard::new(8, 8);
    yard.publish(&text(1, 2));
    let plan = yard.demote(2).unwrap();
    yard.cache.lock().clear();
    yard.sound();
    yard.land(&[plan]);
    assert_eq!((yard.host().free, yard.host().idle), (8, 0));
}

/// Law: INV-24
#[test]
fn copies_with_an_unknown_end_land_into_quarantine() {
    let yard = Yard::new(8, 8);
    yard.publish_below(&text(2, 2));
    yard.publish(&text(1, 2));
    let down = yard.demote(2).unwrap();
    let (lease, begun) = yard.begin(&and_one(&text(2, 2)));
    yard.cache.lock().clear();
    yard.sound();
    yard.overdue(&down);
    yard.overdue(one(&begun));
    assert_eq!((yard.host().quarantined, yard.device().quarantined), (2, 2));
    yard.finish(lease);
    yard.fail(&down, 2);
    yard.fail(one(&begun), 2);
    assert_eq!(yard.host().quarantined + yard.device().quarantined, 0);
}

/// Law: INV-5
#[test]
fn draining_is_a_question_that_ends_when_the_old_epoch_holds_nothing() {
    let yard = Yard::new(8, 0);
    let draining = || yard.cache.lock().draining();
    assert!(!draining());
    let lease = yard.run(&text(1, 2));
    yard.cache.lock().clear();
    assert!(draining());
    let before = yard.stats();
    assert!(draining());
    assert_eq!(yard.stats(), before);
    yard.finish(lease);
    assert!(!draining());
}

/// Law: INV-24
#[test]
fn a_row_gathered_before_a_clear_publishes_nothing_after_it() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 2);
    let (lease, _) = yard.begin(&prompt);
    let mut seals = sealing(&lease, 8).unwrap();
    yard.cache.lock().clear();
    assert_eq!(seals.apply(&mut yard.cache.lock()), Ok(0));
    assert_eq!(yard.on_device(&prompt), 0);
    yard.finish(lease);
}
