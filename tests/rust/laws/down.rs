//! Table 2.3: copies down, and outcomes that come twice or late.

use crate::verbs::Verbs as _;
use crate::yard::{SIZE, Yard, and_one, config, text};
use blockyard_core::{Config, Error, Lease, Outcome, Parked, Plan, Tier, WritePolicy};

/// What may be copied down: idle victims, a running sequence's blocks, kept blocks.
enum Source {
    Idle,
    Running(Lease),
    Kept(Parked),
}

impl Source {
    fn end(self, yard: &Yard) {
        match self {
            Self::Idle => {}
            Self::Running(lease) => yard.finish(lease),
            Self::Kept(parked) => yard.abandon(parked),
        }
        yard.at_rest();
    }
}

/// Two blocks of the text on their way down, in each of the three ways.
fn each(test: impl Fn(&Yard, &[u32], Plan, Source)) {
    let prompt = text(1, 2);
    let yard = Yard::new(6, 4);
    yard.publish(&prompt);
    let plan = yard.demote(2).expect("two are idle");
    test(&yard, &prompt, plan, Source::Idle);

    let yard = Yard::new(6, 4);
    let lease = yard.run(&prompt);
    let plan = yard.demote_lease(&lease, 2);
    test(&yard, &prompt, plan, Source::Running(lease));

    let yard = Yard::new(6, 4);
    let parked = yard.park(yard.run(&prompt), 8);
    let plan = yard.demote_parked(&parked, 2).expect("two are kept");
    test(&yard, &prompt, plan, Source::Kept(parked));
}

/// Law: 2.3-down-ok
#[test]
fn a_copy_down_that_is_ok_makes_the_lower_copy_ready_and_the_upper_one_droppable() {
    each(|yard, prompt, plan, source| {
        assert_eq!((plan.from.0, plan.to.0, plan.len()), (0, 1, 2));
        assert_eq!(yard.device().takeable, 0, "read");
        yard.land(&[plan]);
        assert_eq!(yard.hits(prompt), [2, 0, 0, 0]);
        if let Source::Running(lease) = source {
            yard.finish(lease);
            yard.squeeze(2);
            assert_eq!(yard.hits(prompt), [0, 2, 0, 0]);
            return yard.at_rest();
        }
        yard.squeeze(2);
        assert_eq!(yard.hits(prompt), [0, 2, 0, 0], "nothing was lost");
        source.end(yard);
    });
}

/// Law: 2.3-down-failed
#[test]
fn a_copy_down_that_fails_frees_its_destination_and_leaves_the_source_as_it_was() {
    each(|yard, prompt, plan, source| {
        yard.fail(&plan, 0);
        assert_eq!(yard.hits(prompt), [2, 0, 0, 0]);
        let host = yard.host();
        assert_eq!((host.free, host.pinned, host.idle), (4, 0, 0));
        let device = yard.device();
        match &source {
            Source::Idle => assert_eq!((device.idle, device.takeable), (2, 2)),
            Source::Running(_) => assert_eq!((device.pinned, host.promised), (2, 0)),
            Source::Kept(parked) => {
                assert_eq!((device.pinned, host.promised), (2, 2), "as before");
                assert!(!yard.broken(parked));
            }
        }
        assert_eq!(yard.stats().counters.failed, 2);
        source.end(yard);
    });
}

/// Law: 2.3-down-failed
#[test]
fn of_a_copy_down_that_half_fails_the_leading_good_blocks_are_ready() {
    each(|yard, prompt, plan, source| {
        yard.fail(&plan, 1);
        let host = yard.host();
        assert_eq!((host.free, host.pinned + host.idle), (3, 1));
        assert_eq!(yard.stats().counters.failed, 1);
        assert_eq!(yard.hits(prompt), [2, 0, 0, 0]);
        source.end(yard);
    });
}

/// Law: 2.3-down-unknown
#[test]
fn a_copy_down_of_unknown_end_quarantines_its_destination_and_leaves_its_source_as_it_was() {
    each(|yard, prompt, plan, source| {
        yard.overdue(&plan);
        assert_eq!(yard.hits(prompt), [2, 0, 0, 0]);
        let (device, host) = (yard.device(), yard.host());
        assert_eq!((host.quarantined, host.free), (2, 2));
        let idle = if let Source::Idle = source { 2 } else { 0 };
        assert_eq!((device.takeable, device.quarantined), (idle, 0));
        if let Source::Kept(parked) = &source {
            assert_eq!((device.pinned, host.promised), (2, 2), "its keep holds");
            assert!(!yard.broken(parked));
        }
        let (lease, begun) = yard.begin(&and_one(prompt));
        assert_eq!(begun.cached, 8, "and matchable");
        yard.finish(lease);
        // The fence: nothing is believed of what was written, however it ended.
        yard.fail(&plan, 2);
        let host = yard.host();
        assert_eq!((host.quarantined, host.free, host.idle), (0, 4, 0));
        source.end(yard);
    });
}

/// Law: 2.3-down-failed
#[test]
fn a_kept_block_is_tried_again_and_then_its_keep_is_broken() {
    let yard = Yard::of(Config {
        copy_retries: 2,
        ..config(6, 4)
    });
    let prompt = text(1, 2);
    let parked = yard.park(yard.run(&prompt), 8);
    for _ in 0..2 {
        yard.fail(&yard.demote_parked(&parked, 2).unwrap(), 0);
        assert!(!yard.broken(&parked));
    }
    yard.fail(&yard.demote_parked(&parked, 2).unwrap(), 0);
    assert!(yard.broken(&parked));
    assert_eq!((yard.host().promised, yard.device().idle), (0, 2));
    let (lease, begun) = yard.resume(parked);
    assert_eq!(begun.hits, [2, 0, 0, 0], "computed again from what is left");
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: 2.3-down-failed
#[test]
fn a_retry_that_succeeds_keeps_the_sequence() {
    let yard = Yard::of(Config {
        copy_retries: 1,
        ..config(6, 4)
    });
    let parked = yard.park(yard.run(&text(1, 2)), 8);
    yard.fail(&yard.demote_parked(&parked, 2).unwrap(), 0);
    yard.land(&[yard.demote_parked(&parked, 2).unwrap()]);
    yard.squeeze(2);
    assert!(!yard.broken(&parked));
    let (lease, begun) = yard.resume(parked);
    assert_eq!(begun.cached, 8);
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: 2.3-again
#[test]
fn a_second_outcome_of_a_flight_is_ignored_and_counted() {
    each(|yard, prompt, plan, source| {
        yard.land(std::slice::from_ref(&plan));
        let mut expected = yard.stats();
        let outcomes = [
            Outcome::failed(plan.flight, 0),
            Outcome::corrupt(plan.flight, 2),
        ];
        assert_eq!(yard.cache.lock().commit(&outcomes, None), Ok(0));
        assert_eq!(yard.cache.lock().mark_unknown(plan.flight), Ok(false));
        expected.counters.late += 3;
        assert_eq!(yard.stats(), expected);
        assert_eq!(yard.hits(prompt), [2, 0, 0, 0]);
        source.end(yard);
    });
}

/// Law: 2.3-again
#[test]
fn a_deadline_that_passes_twice_is_counted_and_changes_nothing() {
    each(|yard, _, plan, source| {
        yard.overdue(&plan);
        let mut expected = yard.stats();
        assert_eq!(yard.cache.lock().mark_unknown(plan.flight), Ok(false));
        expected.counters.late += 1;
        assert_eq!(yard.stats(), expected);
        yard.fail(&plan, 0);
        source.end(yard);
    });
}

/// Law: 2.3-again
#[test]
fn a_batch_of_outcomes_is_checked_before_the_first_is_applied() {
    each(|yard, _, plan, source| {
        let before = yard.stats();
        let too_many = [
            Outcome::failed(plan.flight, 2),
            Outcome::failed(plan.flight, 3),
        ];
        let mut too_few = [Outcome::failed(plan.flight, 2), plan.whole()];
        too_few[1].good -= 1;
        for outcomes in [too_many, too_few] {
            let refused = yard.cache.lock().commit(&outcomes, None);
            assert!(matches!(refused, Err(Error::Argument { name: "good", .. })));
            assert_eq!(yard.stats(), before);
        }
        yard.land(&[plan]);
        source.end(yard);
    });
}

/// Law: 2.3-again
#[test]
fn an_outcome_that_comes_after_its_block_was_evicted_is_dropped() {
    let yard = Yard::new(4, 4);
    let prompt = text(1, 2);
    yard.publish(&prompt);
    let plan = yard.demote(2).unwrap();
    yard.fail(&plan, 0);
    yard.squeeze(2);
    yard.publish(&text(2, 4));
    let mut expected = yard.stats();
    assert_eq!(
        yard.cache
            .lock()
            .commit(&[Outcome::failed(plan.flight, 2)], None),
        Ok(0)
    );
    expected.counters.late += 1;
    assert_eq!(yard.stats(), expected);
    assert_eq!(yard.hits(&prompt), [0, 0, 0, 0], "it is not resident again");
    assert_eq!(yard.on_device(&text(2, 4)), 4);
}

/// Copies that went down root first land: no more than a few blocks are passed for each, where
/// putting those above it in order for each would pass as many as stand there.
#[cfg(debug_assertions)]
fn lands_in_few_steps(yard: &Yard, leases: Vec<Lease>, plan: &Plan) {
    let blocks = plan.len() as u64;
    let before = yard.cache.lock().climbed();
    let outcome = plan.whole();
    yard.cache.lock().commit(&[outcome], None).expect("known");
    let steps = yard.cache.lock().climbed() - before;
    assert!(
        (blocks / 2..=3 * blocks).contains(&steps),
        "{steps} steps for {blocks} blocks"
    );
    for lease in leases {
        yard.finish(lease);
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_path_that_went_down_root_first_lands_in_steps_that_grow_with_its_length_alone() {
    for blocks in [100, 1000] {
        let yard = Yard::new(blocks + 4, blocks + 4);
        let lease = yard.run(&text(1, blocks.into()));
        let plan = yard.demote_lease(&lease, blocks);
        assert_eq!(plan.len() as u32, blocks);
        lands_in_few_steps(&yard, vec![lease], &plan);
    }
}

#[test]
#[cfg(debug_assertions)]
fn so_do_paths_that_went_down_side_by_side() {
    for blocks in [100, 1000] {
        let yard = Yard::of(Config {
            write: WritePolicy::Through,
            ..config(blocks + 8, blocks + 8)
        });
        let leases = [1, 2].map(|name| yard.begin(&text(name, u64::from(blocks) / 2)).0);
        for block in 1..=u64::from(blocks) / 2 {
            let rows = leases.each_ref().map(|lease| (lease, block * SIZE));
            yard.cache.seal(&rows).expect("computed");
        }
        let plan = yard.cache.lock().demote(Tier::DEVICE, blocks).expect("all");
        assert_eq!(plan.len() as u32, blocks);
        lands_in_few_steps(&yard, leases.into(), &plan);
    }
}
