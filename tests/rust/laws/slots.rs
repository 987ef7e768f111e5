//! Slots: none is lost, freed twice or given out too early. (INV-1, 2, 3, 6, 14)

use crate::verbs::Verbs as _;
use crate::yard::{SIZE, Yard, and_one, config, one, text, tokens};
use blockyard_core::{Cells, Config, Error, FlightId, Loading, Outcome, Retention, Tier};

/// Law: INV-1
#[test]
fn every_slot_is_in_one_set_and_the_sets_add_up_to_the_capacity() {
    let yard = Yard::new(16, 8);
    yard.publish_below(&text(1, 2));
    let (loading, begun) = yard.begin(&and_one(&text(1, 2)));
    yard.overdue(one(&begun));
    let running = yard.run(&text(2, 2));
    let (claiming, _) = yard.begin(&text(3, 4));
    yard.publish(&text(4, 3));
    let device = yard.device();
    // The overdue load has cut the first lease's table: it holds nothing now.
    let sets = [
        device.free,
        device.claimed,
        device.pinned,
        device.idle,
        device.quarantined,
    ];
    assert_eq!(sets, [5, 4, 2, 3, 2]);
    assert_eq!(sets.iter().sum::<u64>(), device.capacity);
    assert_eq!(device.capacity, 16, "the null slot is outside");
    yard.fail(one(&begun), 0);
    for lease in [loading, running, claiming] {
        yard.finish(lease);
    }
    yard.at_rest();
    assert_eq!(yard.device().capacity, 16);
}

/// Law: INV-1
#[test]
fn a_block_pinned_on_the_device_and_backed_up_is_one_pinned_and_one_idle_slot() {
    let yard = Yard::new(8, 8);
    let lease = yard.run(&text(1, 2));
    yard.land(&[yard.demote_lease(&lease, 2)]);
    assert_eq!((yard.device().pinned, yard.device().idle), (2, 0));
    assert_eq!((yard.host().pinned, yard.host().idle), (0, 2));
    yard.finish(lease);
}

/// Law: INV-1
#[test]
fn a_reader_mark_stands_on_top_of_a_set() {
    let yard = Yard::new(8, 8);
    yard.publish(&text(1, 3));
    let plan = yard.demote(2).unwrap();
    let device = yard.device();
    assert_eq!((device.idle, device.takeable), (3, 0), "read, or above it");
    assert_eq!(yard.host().pinned, 2, "the destinations");
    yard.land(&[plan]);
    let device = yard.device();
    assert_eq!((device.idle, device.takeable), (3, 3));
}

/// Law: INV-2, 4.1-7
#[test]
fn giving_back_what_one_does_not_hold_is_rejected_counted_and_changes_nothing_else() {
    let yard = Yard::new(8, 0);
    let (first, second) = (yard.run(&text(1, 2)), yard.run(&text(2, 2)));
    let (one, two) = (first.id(), second.id());
    yard.finish(first);
    let mut expected = yard.stats();
    let finish = |ids: &[_]| yard.cache.lock().finish(ids, Retention::Ordinary, None);
    assert!(matches!(finish(&[one]), Err(Error::Spent { .. })));
    assert!(matches!(finish(&[one, one]), Err(Error::Spent { .. })));
    expected.counters.rejected += 3;
    assert_eq!(yard.stats(), expected, "and nothing was freed");
    // The good row of a batch is served once; its second naming is rejected.
    assert!(matches!(finish(&[one, two, two]), Err(Error::Spent { .. })));
    second.spend();
    assert_eq!(yard.stats().counters.rejected, 5);
    assert_eq!((yard.device().free, yard.device().idle), (4, 4));
}

/// Law: INV-2
#[test]
fn a_parked_handle_is_given_back_once() {
    let yard = Yard::new(8, 8);
    let parked = yard.park(yard.run(&text(1, 2)), 8);
    let id = parked.id();
    yard.abandon(parked);
    let before = yard.stats();
    let again = yard.cache.lock().abandon(id);
    assert!(matches!(again, Err(Error::Spent { .. })));
    assert_eq!(yard.stats(), before);
}

/// Law: INV-3
#[test]
fn what_has_left_a_tier_is_found_there_no_more() {
    let yard = Yard::new(4, 4);
    let prompt = text(1, 3);
    yard.publish(&prompt);
    yard.copy_down(2);
    yard.squeeze(2);
    assert_eq!(yard.hits(&prompt), [1, 2, 0, 0], "what was copied is below");
    yard.squeeze(1);
    assert_eq!(yard.hits(&prompt), [0, 0, 0, 0], "the root was not copied");
    assert_eq!((yard.device().idle, yard.host().idle), (0, 2));
}

/// Law: INV-3
#[test]
fn what_a_trim_gave_back_is_written_again_where_only_changes_are() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin(&text(1, 3));
    let mut row = [0; 3];
    yard.write_changed(&lease, &mut row);
    let before = row;
    let trimmed = yard.cache.lock().trim(&[lease.id()], &[SIZE]);
    assert_eq!(trimmed, Ok(()));
    let (other, _) = yard.begin(&text(2, 2));
    let mut taken = yard.table(&other);
    taken.sort_unstable();
    let mut given = before[1..].to_vec();
    given.sort_unstable();
    assert_eq!(taken, given, "another has its slots now");
    assert!(yard.grow(&lease, 2 * SIZE));
    yard.write_changed(&lease, &mut row);
    assert_eq!(row[..], yard.table(&lease));
    yard.finish(lease);
    yard.finish(other);
}

/// Law: INV-3
#[test]
fn a_stale_handle_is_an_error_value_even_when_its_place_is_taken_again() {
    let yard = Yard::new(8, 8);
    let lease = yard.run(&text(1, 2));
    let old = lease.id();
    yard.finish(lease);
    let lease = yard.run(&text(2, 2));
    assert_ne!(old, lease.id());
    let mut state = yard.cache.lock();
    assert!(matches!(state.view(old), Err(Error::Spent { .. })));
    assert!(matches!(state.fork(old, 8, 0), Err(Error::Spent { .. })));
    assert!(matches!(
        state.demote_lease(old, 1),
        Err(Error::Spent { .. })
    ));
    let table = state.block_tables(&[old], 8, Cells::All, Loading::Refuse, |_| {});
    assert!(matches!(table, Err(Error::Spent { .. })));
    drop(state);
    let parked = yard.park(lease, 8);
    let id = parked.id();
    let (lease, _) = yard.resume(parked);
    let again = yard.cache.lock().resume(id, &[], 8, 0);
    assert!(matches!(again, Err(Error::Spent { .. })));
    yard.finish(lease);
}

/// Law: INV-6
#[test]
fn a_timeout_is_not_an_end_the_slots_are_not_given_before_the_fence() {
    let yard = Yard::new(6, 4);
    let prompt = text(1, 3);
    yard.publish_below(&prompt);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    let plan = one(&begun);
    let destinations = plan.destinations.clone();
    yard.overdue(plan);
    yard.finish(lease);
    assert_eq!((yard.device().free, yard.device().quarantined), (3, 3));
    let (other, _) = yard.begin(&text(2, 3));
    assert!(
        yard.table(&other)
            .iter()
            .all(|slot| !destinations.contains(slot))
    );
    assert!(yard.begin_reserving(&text(3, 1), 0).is_err(), "not for any");
    yard.fail(plan, 0);
    assert_eq!((yard.device().free, yard.device().quarantined), (3, 0));
    yard.finish(other);
}

/// Law: INV-6
#[test]
fn a_source_that_becomes_free_before_the_fence_is_quarantined_until_it() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin(&tokens(1, 6));
    let partial = yard.table(&lease)[1];
    let (forked, begun) = yard.cache.fork(&lease, 6, 0).unwrap();
    assert_eq!(one(&begun).sources, [partial]);
    yard.finish(lease);
    assert_eq!(yard.device().quarantined, 1, "the fork still reads it");
    let (other, _) = yard.begin(&text(2, 5));
    assert!(!yard.table(&other).contains(&partial));
    yard.land(&begun.plans);
    assert_eq!(yard.device().quarantined, 0);
    yard.finish(forked);
    yard.finish(other);
}

/// Law: INV-6
#[test]
fn an_idle_source_with_an_unknown_end_may_be_matched_and_taken_and_its_copy_is_never_believed() {
    let yard = Yard::new(4, 4);
    let (prompt, other) = (text(1, 2), text(2, 4));
    yard.publish(&prompt);
    let plan = yard.demote(2).unwrap();
    assert_eq!((yard.device().idle, yard.device().takeable), (2, 0));
    yard.overdue(&plan);
    assert_eq!((yard.device().idle, yard.device().takeable), (2, 2));
    let (lease, begun) = yard.begin(&and_one(&prompt));
    assert_eq!(begun.cached, 8);
    yard.finish(lease);
    // Another's KV is where it reads.
    let lease = yard.run(&other);
    let read = |slot: &u32| plan.sources.contains(slot);
    assert_eq!(
        yard.table(&lease).iter().filter(|slot| read(slot)).count(),
        2
    );
    yard.fail(&plan, 2);
    assert_eq!((yard.hits(&prompt), yard.host().free), ([0; 4], 4));
    yard.finish(lease);
    assert_eq!(yard.hits(&other), [4, 0, 0, 0]);
}

/// What goes there late is durable, under the key that was asked for.
/// Law: INV-6
#[test]
fn towards_a_keyed_tier_a_source_is_held_until_the_outcome() {
    let yard = Yard::of(Config {
        keyed: [false, true, false, false],
        ..config(4, 4)
    });
    let prompt = text(1, 2);
    yard.publish(&prompt);
    let plan = yard.demote(2).unwrap();
    yard.overdue(&plan);
    assert_eq!((yard.device().idle, yard.device().takeable), (2, 0));
    assert_eq!(yard.hits(&prompt), [2, 0, 0, 0]);
    assert!(yard.begin_reserving(&text(2, 3), 0).is_err());
    yard.fail(&plan, 2);
    assert_eq!((yard.device().takeable, yard.host().free), (2, 4));
}

/// Law: INV-6
#[test]
fn a_source_below_that_a_late_load_reads_may_be_taken_and_its_destination_not_before_the_end() {
    let yard = Yard::new(6, 2);
    let (prompt, other) = (text(1, 2), text(2, 2));
    yard.publish_below(&prompt);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    let load = one(&begun);
    yard.overdue(load);
    assert_eq!((yard.host().takeable, yard.device().quarantined), (2, 2));
    yard.finish(lease);
    // Its host slots get another block, which the late outcome says nothing of.
    yard.publish(&other);
    let plan = yard.demote(2).expect("there is room below");
    assert!(
        plan.destinations
            .iter()
            .all(|slot| load.sources.contains(slot))
    );
    yard.land(&[plan]);
    yard.corrupt(load, 0);
    assert_eq!((yard.hits(&prompt), yard.host().idle), ([0; 4], 2));
    assert_eq!(
        (yard.device().quarantined, yard.stats().counters.corrupt),
        (0, 0)
    );
    yard.squeeze(2);
    assert_eq!(yard.hits(&other), [0, 2, 0, 0]);
}

/// Law: INV-6
#[test]
fn at_its_deadline_a_copy_lets_go_what_others_hold_or_nobody_does_any_more() {
    let yard = Yard::new(8, 4);
    // A running request's: they stay its own. What has left its request since is free.
    let lease = yard.run(&text(1, 2));
    let plan = yard.demote_lease(&lease, 2);
    let (partial, _) = yard.begin(&tokens(2, 2));
    let slot = yard.table(&partial)[0];
    let (forked, begun) = yard.cache.fork(&partial, 2, 0).unwrap();
    yard.finish(partial);
    assert_eq!(yard.device().quarantined, 1);
    yard.overdue(one(&begun));
    let target = one(&begun).destinations[0];
    assert_eq!(yard.device().quarantined, 1, "what it writes");
    yard.overdue(&plan);
    assert_eq!((yard.device().pinned, yard.device().takeable), (2, 0));
    let (others, _) = yard.begin(&tokens(3, 16));
    let taken = yard.table(&others);
    assert!(taken.contains(&slot) && !taken.contains(&target));
    assert!(!taken.iter().any(|slot| plan.sources.contains(slot)));
    for plan in [one(&begun), &plan] {
        yard.fail(plan, plan.len() as u32);
    }
    for lease in [others, forked, lease] {
        yard.finish(lease);
    }
}

/// Law: INV-6
#[test]
fn a_source_beyond_a_tiers_size_retires_at_the_deadline() {
    let yard = Yard::new(8, 4);
    yard.publish_below(&text(1, 2));
    let (lease, begun) = yard.begin(&and_one(&text(1, 2)));
    yard.resize(Tier::HOST, 0);
    assert_eq!(yard.host().capacity, 2, "they are read");
    yard.overdue(one(&begun));
    assert_eq!(yard.host().capacity, 0);
    yard.finish(lease);
    yard.fail(one(&begun), 2);
}

/// Law: 2.3-again
#[test]
fn a_flight_that_was_never_issued_is_refused_and_changes_nothing() {
    let yard = Yard::new(4, 4);
    let before = yard.stats();
    let never = FlightId::from_number((1 << 32) + 77).unwrap();
    let mut state = yard.cache.lock();
    let landed = state.commit(&[Outcome::failed(never, 0)], None);
    assert!(matches!(landed, Err(Error::UnknownFlight { .. })));
    assert!(matches!(
        state.mark_unknown(never),
        Err(Error::UnknownFlight { .. })
    ));
    drop(state);
    assert_eq!(yard.stats(), before);
}

/// Requests of three times the budget are parked: the surplus is refused, and the engine computes
/// it again.
/// Law: INV-14
#[test]
fn host_slots_never_exceed_the_budget_and_are_promised_before_the_copy() {
    let yard = Yard::new(32, 6);
    let mut parked = vec![];
    let mut refused = 0;
    for name in 0..9 {
        let lease = yard.run(&text(name, 2));
        match yard.cache.park(lease, 8) {
            Ok(handle) => parked.push(handle),
            Err((lease, error)) => {
                assert!(matches!(error, Error::NoRoom { need: 2, .. }), "{error}");
                refused += 1;
                yard.finish(lease);
            }
        }
        let host = yard.host();
        assert!(host.pinned + host.promised <= 6, "{host:?}");
        yard.sound();
    }
    assert_eq!((parked.len(), refused), (3, 6));
    assert_eq!(yard.host().promised, 6);
    for handle in &parked {
        let plan = yard.demote_parked(handle, 8).unwrap();
        let host = yard.host();
        assert_eq!(host.pinned + host.promised, 6, "promise by promise");
        assert!(plan.destinations.iter().all(|&slot| slot < 6));
        yard.land(&[plan]);
    }
    assert_eq!(yard.demote(8).map(|plan| plan.len()), None, "it is full");
    assert_eq!((yard.host().pinned, yard.host().capacity), (6, 6));
    for handle in parked {
        yard.abandon(handle);
    }
}

/// Law: INV-14
#[test]
fn a_yard_without_a_host_parks_nothing() {
    let yard = Yard::of(Config {
        slots: vec![8],
        ..config(8, 0)
    });
    for _ in 0..2 {
        let (lease, error) = yard.cache.park(yard.run(&text(1, 2)), 8).unwrap_err();
        assert!(matches!(error, Error::TooLarge { capacity: 0, .. }));
        yard.finish(lease);
    }
    assert_eq!(yard.demote(2), None);
}
