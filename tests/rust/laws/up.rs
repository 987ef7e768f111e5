//! Table 2.3: copies up, and across the device.

use crate::verbs::Verbs as _;
use crate::yard::{SIZE, Yard, and_one, cat, config, one, text, tokens};
use blockyard_core::{Begun, Cells, Config, Error, Lease, Loading, Outcome, Plan};

/// How a copy ends.
type End = fn(&Yard, &Plan);

/// A prompt of four blocks, one on the device and three below, begun with its load in flight.
fn loading(device: u32) -> (Yard, Vec<u32>, Lease, Begun) {
    let yard = Yard::new(device, 4);
    let prompt = text(1, 4);
    yard.publish(&prompt);
    yard.copy_down(3);
    yard.squeeze(3);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    assert_eq!((begun.cached, begun.hits), (16, [1, 3, 0, 0]));
    (yard, prompt, lease, begun)
}

/// Law: 2.3-up-ok
#[test]
fn a_load_that_is_ok_is_published_and_its_pins_pass_to_the_lease() {
    let (yard, prompt, lease, begun) = loading(8);
    assert_eq!((one(&begun).from.0, one(&begun).to.0), (1, 0));
    assert_eq!(yard.table(&lease)[1..4], one(&begun).destinations);
    assert_eq!(yard.view(&lease).loading, 1);
    assert_eq!(
        yard.probe(&prompt).hits,
        [1, 0, 0, 0],
        "not before it landed"
    );
    yard.land(&begun.plans);
    let view = yard.view(&lease);
    assert_eq!((view.cached, view.sealed, view.loading), (16, 4, 0));
    assert_eq!((yard.on_device(&prompt), yard.device().pinned), (4, 4));
    assert_eq!(yard.host().idle, 3, "the copies below stay");
    yard.finish(lease);
}

#[test]
fn the_slots_of_a_lease_that_loads_are_told_only_to_who_waits_for_the_copies() {
    let (yard, _, lease, begun) = loading(12);
    let other = yard.run(&text(2, 2));
    let ids = [other.id(), lease.id()];
    let ask = |how| {
        let (mut state, mut rows, mut places) = (yard.cache.lock(), 0, 0);
        let all = state.block_tables(&ids, 8, Cells::All, how, |_| rows += 1);
        let new = state.block_tables(&ids, 8, Cells::Changed, how, |_| rows += 1);
        let mapped = state.slot_mapping(&ids, &[0, 16], |_| 1, how, |_, _| places += 1);
        let refused = [all, new, mapped].map(|answer| answer.is_err());
        (refused, rows, places)
    };
    assert_eq!(ask(Loading::Refuse), ([true; 3], 0, 0), "nor the other's");
    assert_eq!(ask(Loading::Joined), ([false; 3], 4, 2));
    yard.land(&begun.plans);
    assert_eq!(ask(Loading::Refuse), ([false; 3], 4, 2));
    yard.finish(other);
    yard.finish(lease);
}

/// Law: 2.3-up-failed
#[test]
fn of_a_load_that_half_fails_only_the_contiguous_good_prefix_is_committed() {
    let (yard, prompt, lease, begun) = loading(8);
    let table = yard.table(&lease);
    yard.fail(one(&begun), 1);
    let view = yard.view(&lease);
    assert_eq!((view.cached, view.sealed, view.blocks), (8, 2, 5));
    assert_eq!(yard.hits(&prompt), [2, 2, 0, 0], "the others stay below");
    assert_eq!(yard.table(&lease), table, "recomputed in place");
    assert_eq!((yard.device().pinned, yard.device().claimed), (2, 3));
    assert_eq!(yard.seal(&lease, 16), 2);
    assert_eq!(yard.on_device(&prompt), 4);
    yard.finish(lease);
}

/// Law: 2.3-up-failed
#[test]
fn a_load_that_fails_whole_leaves_its_destinations_to_the_lease_unpublished() {
    let (yard, prompt, lease, begun) = loading(8);
    yard.fail(one(&begun), 0);
    assert_eq!(
        (yard.view(&lease).cached, yard.hits(&prompt)),
        (4, [1, 3, 0, 0])
    );
    assert_eq!(yard.device().claimed, 4);
    yard.finish(lease);
    assert_eq!(yard.device().idle, 1);
}

/// Law: 2.3-up-failed
#[test]
fn a_lower_copy_that_failed_its_checksum_is_dropped_and_others_stay() {
    let (yard, prompt, lease, begun) = loading(8);
    yard.corrupt(one(&begun), 1);
    assert_eq!(yard.stats().counters.corrupt, 1);
    assert_eq!(yard.hits(&prompt), [2, 0, 0, 0], "the bad one is nowhere");
    assert_eq!(yard.host().idle, 2, "the good one, and the one behind");
    yard.seal(&lease, 16);
    assert_eq!(yard.on_device(&prompt), 4);
    yard.finish(lease);
}

/// Law: 2.3-up-unknown
#[test]
fn a_load_of_unknown_end_quarantines_its_destinations_and_the_lease_falls_back() {
    let (yard, prompt, lease, begun) = loading(10);
    let destinations = &one(&begun).destinations;
    yard.overdue(one(&begun));
    let view = yard.view(&lease);
    assert_eq!((view.cached, view.blocks, view.loading), (4, 1, 0));
    assert_eq!(yard.device().quarantined, 3);
    assert_eq!(
        yard.hits(&prompt),
        [1, 3, 0, 0],
        "still below, still readable"
    );
    // It goes on from the good prefix, in new slots.
    assert!(yard.grow(&lease, 0));
    let table = yard.table(&lease);
    assert_eq!(table.len(), 5);
    assert!(table.iter().all(|slot| !destinations.contains(slot)));
    assert_eq!(yard.seal(&lease, 17), 3);
    yard.fail(one(&begun), 3);
    assert_eq!(yard.device().quarantined, 0);
    assert_eq!(yard.on_device(&prompt), 4);
    yard.finish(lease);
}

/// Law: 2.3-up-unknown
#[test]
fn what_a_load_of_unknown_end_has_left_is_written_again_where_only_changes_are() {
    let yard = Yard::new(8, 4);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    let mut row = [0; 3];
    yard.write_changed(&lease, &mut row);
    let before = row;
    yard.overdue(one(&begun));
    assert!(yard.grow(&lease, 0), "room for what it computes itself");
    yard.write_changed(&lease, &mut row);
    assert_eq!(row[..], yard.table(&lease));
    assert!(row.iter().all(|slot| !before[..2].contains(slot)));
    yard.fail(one(&begun), 2);
    yard.finish(lease);
}

/// Law: 2.3-up-ok
#[test]
fn a_prefetch_that_is_ok_leaves_its_path_idle() {
    let yard = Yard::new(8, 4);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    let plan = yard.promote(&prompt, 9).unwrap();
    yard.land(&[plan]);
    assert_eq!((yard.hits(&prompt), yard.device().idle), ([2, 0, 0, 0], 2));
    assert_eq!(yard.promote(&prompt, 9), None, "nothing is left to load");
}

/// Law: 2.3-up-failed
#[test]
fn a_prefetch_that_fails_frees_its_destinations_from_the_first_bad_block_on() {
    let yard = Yard::new(8, 4);
    let prompt = text(1, 3);
    yard.publish_below(&prompt);
    let plan = yard.promote(&prompt, 9).unwrap();
    yard.fail(&plan, 1);
    assert_eq!((yard.hits(&prompt), yard.device().free), ([1, 2, 0, 0], 7));
}

/// Law: 2.3-up-unknown
#[test]
fn a_prefetch_of_unknown_end_quarantines_its_destinations() {
    let yard = Yard::new(8, 4);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    let plan = yard.promote(&prompt, 9).unwrap();
    yard.overdue(&plan);
    assert_eq!(
        (yard.hits(&prompt), yard.device().quarantined),
        ([0, 2, 0, 0], 2)
    );
    yard.fail(&plan, 2);
    yard.at_rest();
    assert_eq!(
        yard.hits(&prompt),
        [0, 2, 0, 0],
        "what came late is not believed"
    );
}

/// Law: 2.3-again
#[test]
fn a_duplicate_outcome_of_a_load_is_ignored_and_counted() {
    let (yard, _, lease, begun) = loading(8);
    yard.fail(one(&begun), 1);
    let mut expected = yard.stats();
    let again = [Outcome::failed(one(&begun).flight, 3)];
    assert_eq!(yard.cache.lock().commit(&again, None), Ok(0));
    expected.counters.late += 1;
    assert_eq!((yard.stats(), yard.view(&lease).cached), (expected, 8));
    yard.finish(lease);
}

/// Law: 2.3-up-failed
#[test]
fn a_resume_that_comes_back_short_may_be_parked_again_with_its_keeps_whole() {
    for recompute in [true, false] {
        let yard = Yard::of(Config {
            recompute,
            ..config(8, 4)
        });
        let prompt = cat(&text(1, 2), &tokens(2, 2));
        let mut parked = yard.park(yard.run(&prompt), 10);
        yard.land(&[yard.demote_parked(&parked, 3).unwrap()]);
        yard.squeeze(3);
        let ends: [End; 3] = [
            Yard::overdue,
            |yard, plan| yard.fail(plan, 1),
            |yard, plan| yard.fail(plan, 0),
        ];
        for end in ends {
            let (lease, begun) = yard.resume(parked);
            end(&yard, one(&begun));
            assert!(yard.view(&lease).incomplete);
            if !recompute {
                let grown = yard.cache.lock().grow(&[lease.id()], |_| 4, &mut vec![]);
                assert!(matches!(grown, Err(Error::State { .. })), "it must park");
            }
            parked = yard.park(lease, 10);
            assert_eq!((yard.broken(&parked), yard.host().pinned), (false, 3));
            // The fence of the one that was overdue; a late outcome for the others.
            let fence = [Outcome::failed(one(&begun).flight, 0)];
            yard.cache.lock().commit(&fence, None).unwrap();
            yard.squeeze(yard.device().idle as u32);
        }
        let (lease, begun) = yard.resume(parked);
        yard.land(&begun.plans);
        assert_eq!(yard.view(&lease).cached, 10, "nothing was lost");
        yard.finish(lease);
    }
}

/// Law: 2.3-up-failed
#[test]
fn a_resume_that_comes_back_short_may_go_on_from_its_good_prefix() {
    let yard = Yard::new(8, 4);
    let prompt = cat(&text(1, 2), &tokens(2, 2));
    let parked = yard.park(yard.run(&prompt), 10);
    yard.land(&[yard.demote_parked(&parked, 3).unwrap()]);
    yard.squeeze(3);
    let (lease, begun) = yard.resume(parked);
    yard.fail(one(&begun), 1);
    assert_eq!((yard.view(&lease).cached, yard.host().pinned), (4, 3));
    yard.seal(&lease, 10);
    assert_eq!((yard.view(&lease).sealed, yard.host().pinned), (2, 0));
    yard.finish(lease);
}

/// Law: 2.3-up-failed
#[test]
fn a_kept_copy_that_fails_its_checksum_costs_a_recompute() {
    let yard = Yard::new(8, 4);
    let prompt = text(1, 3);
    let parked = yard.park(yard.run(&prompt), 12);
    yard.land(&[yard.demote_parked(&parked, 3).unwrap()]);
    yard.squeeze(3);
    let (lease, begun) = yard.resume(parked);
    yard.corrupt(one(&begun), 1);
    assert_eq!(yard.view(&lease).cached, 4);
    assert_eq!(yard.stats().counters.corrupt, 1);
    let parked = yard.park_again(lease);
    assert!(yard.broken(&parked));
    let (lease, begun) = yard.resume(parked);
    assert_eq!(begun.cached, 4, "from the last good block");
    yard.seal(&lease, 12);
    yard.finish(lease);
}

/// A sequence of six tokens and its fork, the copy of the partial block in flight.
fn forked(yard: &Yard) -> (Lease, Lease, Plan) {
    let lease = yard.run(&tokens(1, 6));
    let (forked, begun) = yard.cache.fork(&lease, 6, 0).expect("there is room");
    yard.sound();
    let plan = one(&begun).clone();
    assert_eq!((plan.from.0, plan.to.0, begun.cached), (0, 0, 6));
    assert_eq!(yard.table(&forked)[0], yard.table(&lease)[0], "shared");
    assert_eq!(yard.table(&forked)[1], plan.destinations[0]);
    (lease, forked, plan)
}

/// Law: 2.3-across-ok
#[test]
fn a_copy_across_that_is_ok_makes_the_private_block_ready() {
    let yard = Yard::new(8, 0);
    let (lease, forked, plan) = forked(&yard);
    yard.land(&[plan]);
    assert_eq!(yard.view(&forked).cached, 6);
    assert_eq!((yard.device().pinned, yard.device().claimed), (2, 1));
    yard.finish(lease);
    yard.finish(forked);
}

/// Law: 2.3-across-failed
#[test]
fn a_copy_across_that_fails_is_recomputed_in_place() {
    let yard = Yard::new(8, 0);
    let (lease, forked, plan) = forked(&yard);
    let table = yard.table(&forked);
    yard.fail(&plan, 0);
    assert_eq!(yard.view(&forked).cached, SIZE);
    assert_eq!(yard.table(&forked), table);
    yard.finish(lease);
    yard.finish(forked);
}

/// Law: 2.3-across-unknown
#[test]
fn a_copy_across_of_unknown_end_is_recomputed_in_a_new_slot() {
    let yard = Yard::new(8, 0);
    let (lease, forked, plan) = forked(&yard);
    yard.overdue(&plan);
    assert_eq!(
        (yard.view(&forked).cached, yard.device().quarantined),
        (SIZE, 1)
    );
    assert!(yard.grow(&forked, 0));
    let table = yard.table(&forked);
    assert_eq!(table.len(), 2);
    assert_ne!(table[1], plan.destinations[0]);
    yard.fail(&plan, 1);
    assert_eq!(yard.device().quarantined, 0);
    yard.finish(lease);
    yard.finish(forked);
}

/// Law: 2.3-across-failed, 2.3-across-unknown
#[test]
fn where_the_engine_cannot_recompute_a_fork_whose_copy_fails_is_undone() {
    let ends: [End; 2] = [|yard, plan| yard.fail(plan, 0), Yard::overdue];
    for end in ends {
        let yard = Yard::of(Config {
            recompute: false,
            ..config(8, 0)
        });
        let (lease, forked, plan) = forked(&yard);
        end(&yard, &plan);
        let view = yard.cache.lock().view(forked.id());
        assert!(matches!(view, Err(Error::Spent { .. })), "{view:?}");
        assert_eq!((yard.stats().leases, yard.device().claimed), (1, 1));
        yard.cache
            .lock()
            .commit(&[Outcome::failed(plan.flight, 0)], None)
            .unwrap();
        assert_eq!(yard.view(&lease).cached, 0, "its parent runs on");
        assert!(yard.grow(&lease, 4));
        yard.finish(lease);
        yard.at_rest();
        forked.spend();
    }
}

/// Law: 2.3-across-failed, 2.3-across-ok, 2.3-across-unknown
#[test]
fn the_private_copy_of_a_full_hit_may_fail_or_never_end() {
    let ends: [(End, u64); 3] = [
        (|yard, plan| yard.land(std::slice::from_ref(plan)), 7),
        (|yard, plan| yard.fail(plan, 0), 4),
        (Yard::overdue, 4),
    ];
    for (end, cached) in ends {
        let yard = Yard::new(8, 0);
        let prompt = text(1, 2);
        yard.publish(&prompt);
        let (lease, begun) = yard.begin(&prompt);
        end(&yard, one(&begun));
        assert_eq!(yard.view(&lease).cached, cached);
        assert!(yard.grow(&lease, 0));
        assert_eq!(yard.table(&lease).len(), 2);
        yard.seal(&lease, 8);
        yard.cache
            .lock()
            .commit(&[Outcome::failed(one(&begun).flight, 0)], None)
            .unwrap();
        yard.finish(lease);
        assert_eq!(yard.on_device(&prompt), 2);
    }
}

/// Law: 2.3-up-unknown
#[test]
fn a_private_copy_behind_a_load_that_never_ends_lands_for_no_lease() {
    let ends: [End; 3] = [
        |yard, plan| yard.land(std::slice::from_ref(plan)),
        |yard, plan| yard.fail(plan, 0),
        Yard::overdue,
    ];
    for end in ends {
        let yard = Yard::new(8, 4);
        let prompt = text(1, 3);
        yard.publish(&prompt);
        yard.copy_down(2);
        yard.squeeze(2);
        let (lease, begun) = yard.begin(&prompt);
        let [load, private] = &begun.plans[..] else {
            panic!("{begun:?}");
        };
        yard.overdue(load);
        assert_eq!(
            (yard.view(&lease).cached, yard.view(&lease).loading),
            (4, 0)
        );
        end(&yard, private);
        for fence in [private, load] {
            let landed = [Outcome::failed(fence.flight, 0)];
            yard.cache.lock().commit(&landed, None).unwrap();
        }
        assert_eq!((yard.device().free, yard.device().quarantined), (7, 0));
        yard.finish(lease);
    }
}
