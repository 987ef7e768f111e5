//! What is parked keeps its blocks (INV-23), and what table 2.3 says of kept and anonymous blocks.

use crate::verbs::Verbs as _;
use crate::yard::{Yard, and_one, cat, config, one, text, tokens};
use blockyard_core::{Config, Error, Parked, Tier};

fn parked(yard: &Yard, text: &[u32]) -> Parked {
    yard.park(yard.run(text), text.len() as u64)
}

/// Law: INV-23
#[test]
fn a_keep_protects_the_lowest_ready_copy_and_lets_the_higher_one_go() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 2);
    let parked = parked(&yard, &prompt);
    assert_eq!((yard.device().pinned, yard.host().promised), (2, 2));
    let plan = yard.demote_parked(&parked, 2).unwrap();
    assert_eq!(
        (yard.device().pinned, yard.host().promised),
        (2, 0),
        "not yet"
    );
    yard.land(&[plan]);
    assert_eq!((yard.device().pinned, yard.device().idle), (0, 2));
    assert_eq!((yard.host().pinned, yard.host().idle), (2, 0));
    yard.squeeze(2);
    // The host is asked for all it has: the kept ones stay.
    yard.publish(&text(2, 8));
    let plan = yard.demote(8).unwrap();
    assert_eq!(plan.len(), 6);
    yard.land(&[plan]);
    let (lease, begun) = yard.resume(parked);
    assert_eq!((begun.cached, begun.hits), (8, [0, 2, 0, 0]));
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: INV-23
#[test]
fn parking_needs_its_host_slots_promised_a_shared_block_once() {
    let yard = Yard::new(16, 4);
    let stem = text(1, 2);
    let (left, right) = (cat(&stem, &text(2, 1)), cat(&stem, &text(3, 1)));
    let (one, two) = (parked(&yard, &left), parked(&yard, &right));
    assert_eq!(yard.host().promised, 4);
    let lease = yard.run(&text(4, 1));
    let (lease, error) = yard.cache.park(lease, 4).unwrap_err();
    assert!(matches!(
        error,
        Error::NoRoom {
            tier: Tier::HOST,
            need: 1,
            ..
        }
    ));
    assert_eq!(yard.view(&lease).blocks, 1, "it still has what it had");
    yard.abandon(one);
    assert_eq!(yard.host().promised, 3, "the stem is kept by the other");
    let three = yard.park(lease, 4);
    for parked in [two, three] {
        yard.land(&[yard.demote_parked(&parked, 8).unwrap()]);
        yard.abandon(parked);
    }
}

/// Law: INV-23
#[test]
fn parking_pins_idle_host_copies_instead_of_asking_for_more() {
    let yard = Yard::new(8, 2);
    let lease = yard.run(&text(1, 2));
    yard.land(&[yard.demote_lease(&lease, 2)]);
    let parked = yard.park(lease, 8);
    assert_eq!((yard.host().pinned, yard.host().promised), (2, 0));
    assert_eq!((yard.device().pinned, yard.device().idle), (0, 2));
    yard.abandon(parked);
}

/// Law: INV-23
#[test]
fn parking_evicts_idle_host_blocks_when_the_copies_come() {
    let yard = Yard::new(16, 2);
    yard.publish_below(&text(1, 2));
    let parked = parked(&yard, &text(2, 2));
    assert_eq!((yard.host().idle, yard.host().promised), (2, 2));
    yard.land(&[yard.demote_parked(&parked, 2).unwrap()]);
    assert_eq!((yard.host().idle, yard.host().pinned), (0, 2));
    assert_eq!(yard.hits(&text(1, 2)), [0, 0, 0, 0]);
    yard.abandon(parked);
}

/// Law: INV-23
#[test]
fn quarantine_that_takes_the_backing_away_breaks_keeps_whole_youngest_first() {
    let yard = Yard::new(16, 4);
    let (old, young) = (parked(&yard, &text(1, 2)), parked(&yard, &text(2, 2)));
    let plan = yard.demote_parked(&old, 1).unwrap();
    assert!(!yard.broken(&young));
    yard.overdue(&plan);
    assert_eq!((yard.broken(&old), yard.broken(&young)), (false, true));
    assert_eq!((yard.host().quarantined, yard.host().promised), (1, 2));
    assert_eq!(yard.stats().counters.broken, 1);
    // The broken sequence computes again what is found no more; here all of it is.
    let (lease, begun) = yard.resume(young);
    assert_eq!((begun.cached, begun.hits), (7, [2, 0, 0, 0]));
    yard.land(&begun.plans);
    yard.finish(lease);
    yard.fail(&plan, 0);
    yard.abandon(old);
}

/// Law: INV-23, 2.7-1
#[test]
fn a_resize_breaks_keeps_youngest_first_where_the_engine_can_recompute() {
    let yard = Yard::new(16, 6);
    let handles = [1, 2, 3].map(|name| parked(&yard, &text(name, 2)));
    yard.cache.lock().resize(Tier::HOST, 4).unwrap();
    yard.sound();
    let broken = handles.each_ref().map(|handle| yard.broken(handle));
    assert_eq!(broken, [false, false, true]);
    assert_eq!((yard.host().capacity, yard.host().promised), (4, 4));
    for handle in handles {
        yard.abandon(handle);
    }
}

/// Law: INV-23, 2.7-1
#[test]
fn a_resize_that_would_break_keeps_is_refused_where_the_engine_cannot_recompute() {
    let yard = Yard::of(Config {
        recompute: false,
        ..config(16, 6)
    });
    let handles = [1, 2, 3].map(|name| parked(&yard, &text(name, 2)));
    let before = yard.stats();
    let refused = yard.cache.lock().resize(Tier::HOST, 5);
    assert!(matches!(
        refused,
        Err(Error::InUse {
            want: 5,
            used: 6,
            ..
        })
    ));
    assert_eq!(yard.stats(), before);
    assert!(handles.iter().all(|handle| !yard.broken(handle)));
    for handle in handles {
        yard.abandon(handle);
    }
}

// A ticket of the host never loses its backing: keeps are broken for it.

/// Law: INV-23
#[test]
fn quarantine_breaks_even_the_last_keep_before_a_ticket_loses_its_backing() {
    let yard = Yard::new(16, 4);
    let handle = parked(&yard, &text(1, 2));
    let ticket = yard.cache.promise(2, Tier::HOST).unwrap();
    let plan = yard.demote_parked(&handle, 1).unwrap();
    yard.overdue(&plan);
    assert!(yard.broken(&handle));
    let host = yard.host();
    assert_eq!((host.quarantined, host.free, host.promised), (1, 3, 2));
    yard.fail(&plan, 0);
    yard.abandon(handle);
    yard.cache.release(ticket).unwrap();
}

/// Law: INV-22
#[test]
fn a_copy_ahead_that_never_ends_takes_nothing_of_a_ticket() {
    let yard = Yard::new(16, 4);
    yard.publish(&text(1, 4));
    let ticket = yard.cache.promise(2, Tier::HOST).unwrap();
    let plan = yard.demote(4).unwrap();
    yard.overdue(&plan);
    let host = yard.host();
    assert_eq!((host.quarantined, host.free, host.promised), (2, 2, 2));
    yard.fail(&plan, 0);
    yard.cache.release(ticket).unwrap();
}

/// Law: INV-23
#[test]
fn a_failed_copy_whose_slot_retires_breaks_its_keep_before_a_ticket_loses_its_backing() {
    let yard = Yard::new(16, 4);
    yard.publish_below(&text(1, 2));
    let handle = parked(&yard, &text(2, 2));
    let plan = yard.demote_parked(&handle, 2).unwrap();
    assert_eq!(plan.destinations, [2, 3]);
    let ticket = yard.cache.promise(1, Tier::HOST).unwrap();
    // The root is read: the leaf alone backs the ticket, and one slot retires with the failure.
    let (lease, begun) = yard.begin(&and_one(&text(1, 2)));
    assert_eq!((one(&begun).len(), yard.host().takeable), (1, 1));
    yard.cache.lock().resize(Tier::HOST, 3).unwrap();
    yard.sound();
    yard.fail(&plan, 0);
    assert!(yard.broken(&handle));
    let host = yard.host();
    assert_eq!((host.capacity, host.free, host.takeable), (3, 1, 1));
    assert_eq!(host.promised, 1);
    yard.land(&begun.plans);
    yard.finish(lease);
    yard.abandon(handle);
    yard.cache.release(ticket).unwrap();
}

/// Law: INV-22
#[test]
fn a_corrupt_copy_costs_its_keep_and_no_ticket() {
    let yard = Yard::new(16, 3);
    let handle = parked(&yard, &text(1, 2));
    yard.land(&[yard.demote_parked(&handle, 2).unwrap()]);
    yard.squeeze(2);
    let ticket = yard.cache.promise(1, Tier::HOST).unwrap();
    let (lease, begun) = yard.resume(handle);
    yard.corrupt(one(&begun), 0);
    let host = yard.host();
    assert_eq!((host.free, host.idle, host.promised), (2, 1, 1));
    let again = yard.park_again(lease);
    assert!(yard.broken(&again));
    yard.abandon(again);
    yard.cache.release(ticket).unwrap();
}

/// Law: INV-23, 2.7-1
#[test]
fn a_resize_breaks_keeps_for_a_ticket_and_is_refused_where_only_tickets_are_in_the_way() {
    for recompute in [true, false] {
        let yard = Yard::of(Config {
            recompute,
            ..config(16, 6)
        });
        let handle = parked(&yard, &text(1, 2));
        let ticket = yard.cache.promise(3, Tier::HOST).unwrap();
        let resize = |slots| yard.cache.lock().resize(Tier::HOST, slots);
        let before = yard.stats();
        let refused = Err(Error::InUse {
            tier: Tier::HOST,
            want: 2,
            used: 5,
        });
        assert_eq!((resize(2), yard.stats()), (refused, before));
        assert_eq!(resize(4).is_ok(), recompute);
        yard.sound();
        assert_eq!(yard.broken(&handle), recompute);
        assert_eq!(yard.host().promised, if recompute { 3 } else { 5 });
        yard.abandon(handle);
        yard.cache.release(ticket).unwrap();
    }
}

/// Law: INV-23
#[test]
fn a_sequence_whose_keeps_were_broken_begins_again() {
    let yard = Yard::new(4, 4);
    let prompt = cat(&text(1, 2), &tokens(2, 2));
    let handle = parked(&yard, &prompt);
    yard.cache.lock().resize(Tier::HOST, 1).unwrap();
    assert!(yard.broken(&handle));
    assert_eq!(
        (yard.device().idle, yard.device().free),
        (2, 2),
        "its tail is gone"
    );
    yard.squeeze(1);
    let (lease, begun) = yard.resume(handle);
    assert_eq!((begun.cached, begun.hits), (4, [1, 0, 0, 0]));
    assert_eq!(yard.view(&lease).tokens, 10);
    yard.finish(lease);
}

// The anonymous tail.

/// Law: 2.3-tail
#[test]
fn a_partial_block_is_kept_and_found_only_through_its_parked_handle() {
    let yard = Yard::new(8, 8);
    let prompt = cat(&text(1, 1), &tokens(2, 2));
    let handle = parked(&yard, &prompt);
    assert_eq!((yard.device().pinned, yard.host().promised), (2, 2));
    let plan = yard.demote_parked(&handle, 1).unwrap();
    yard.land(&[plan]);
    assert_eq!((yard.host().pinned, yard.device().idle), (1, 1));
    yard.squeeze(1);
    // The same tokens again find the full block only.
    let (other, begun) = yard.begin(&prompt);
    assert_eq!((begun.cached, begun.hits), (4, [1, 0, 0, 0]));
    let (lease, begun) = yard.resume(handle);
    assert_eq!((begun.cached, begun.hits), (6, [1, 1, 0, 0]));
    yard.land(&begun.plans);
    yard.finish(other);
    yard.finish(lease);
}

/// Law: 2.3-tail-air
#[test]
fn resuming_takes_the_tails_slot_back_and_abandons_its_copy_in_flight() {
    let yard = Yard::new(8, 2);
    let prompt = cat(&text(1, 1), &tokens(2, 2));
    let lease = yard.run(&prompt);
    let table = yard.table(&lease);
    let handle = yard.park(lease, 6);
    let plan = yard.demote_parked(&handle, 1).unwrap();
    assert_eq!(plan.sources, table[1..]);
    let (lease, begun) = yard.resume(handle);
    assert_eq!((begun.cached, begun.plans.len()), (6, 0), "at once");
    assert_eq!(yard.table(&lease), table);
    assert_eq!(
        (yard.host().pinned, yard.host().free),
        (1, 1),
        "until the fence"
    );
    // The engine writes the tail; what the copy read is worth nothing.
    yard.seal(&lease, 6);
    yard.land(&[plan]);
    assert_eq!(
        (yard.host().pinned, yard.host().free, yard.host().idle),
        (0, 2, 0)
    );
    yard.finish(lease);
}

/// Law: 2.3-tail-air
#[test]
fn resuming_abandons_a_copy_in_flight_that_never_ends_too() {
    let yard = Yard::new(8, 2);
    let handle = parked(&yard, &cat(&text(1, 1), &tokens(2, 2)));
    let plan = yard.demote_parked(&handle, 1).unwrap();
    let (lease, _) = yard.resume(handle);
    yard.overdue(&plan);
    assert_eq!((yard.host().quarantined, yard.host().free), (1, 1));
    yard.finish(lease);
    assert_eq!(yard.device().quarantined, 0, "what it reads is of no use");
    yard.fail(&plan, 1);
    yard.at_rest();
    assert_eq!((yard.host().free, yard.device().idle), (2, 1));
}

/// Law: 2.3-resumed
#[test]
fn after_a_resume_the_tails_copies_below_are_free_and_the_published_ones_idle() {
    let yard = Yard::new(8, 8);
    let handle = parked(&yard, &cat(&text(1, 2), &tokens(2, 2)));
    yard.land(&[yard.demote_parked(&handle, 3).unwrap()]);
    yard.squeeze(3);
    assert_eq!(yard.host().pinned, 3);
    let (lease, begun) = yard.resume(handle);
    assert_eq!((begun.cached, one(&begun).len()), (10, 3));
    assert_eq!(yard.host().pinned, 3, "until they have landed");
    yard.land(&begun.plans);
    let host = yard.host();
    assert_eq!((host.pinned, host.idle, host.free), (0, 2, 6));
    yard.seal(&lease, 10);
    yard.finish(lease);
    assert_eq!(yard.hits(&text(1, 2)), [2, 0, 0, 0]);
}

/// Law: 2.3-tail
#[test]
fn abandoning_a_parked_sequence_frees_its_tail_and_leaves_its_blocks_idle() {
    let yard = Yard::new(8, 8);
    let handle = parked(&yard, &cat(&text(1, 2), &tokens(2, 2)));
    yard.land(&[yard.demote_parked(&handle, 1).unwrap()]);
    yard.abandon(handle);
    assert_eq!((yard.device().idle, yard.host().free), (2, 8));
}

/// Law: 2.3-tail
#[test]
fn computed_blocks_behind_a_seal_that_had_to_stop_become_anonymous_like_the_tail() {
    let yard = Yard::new(12, 8);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    let (loading, begun) = yard.begin(&and_one(&prompt));
    let (other, _) = yard.stop(&prompt, 0);
    let handle = yard.park(other, 8);
    let view = yard.cache.lock().view_parked(handle.id()).unwrap();
    assert_eq!((view.blocks, view.computed), (2, 8));
    yard.land(&begun.plans);
    yard.finish(loading);
    let (lease, begun) = yard.resume(handle);
    assert_eq!((begun.cached, begun.plans.len()), (8, 0));
    yard.finish(lease);
}

/// Law: 2.3-resumed
#[test]
fn a_resume_without_room_leaves_it_parked_and_whole() {
    let yard = Yard::new(4, 4);
    let handle = parked(&yard, &text(1, 2));
    yard.land(&[yard.demote_parked(&handle, 2).unwrap()]);
    let (other, _) = yard.begin(&text(2, 3));
    let Err((handle, Some(Error::NoRoom { .. }))) = yard.cache.resume(handle, 0) else {
        panic!("there is no room");
    };
    yard.sound();
    yard.finish(other);
    let (lease, begun) = yard.resume(handle);
    assert_eq!(begun.cached, 8);
    yard.land(&begun.plans);
    yard.finish(lease);
}
