//! What is copied down ahead of need: the write policies, and what is remembered for them.

use crate::verbs::Verbs as _;
use crate::yard::{KINDS, OBEYING, Yard, and_one, cat, config, each_of, room, text};
use blockyard_core::{Config, Lease, Plan, WritePolicy};

fn yard(write: WritePolicy, device: u32, host: u32) -> Yard {
    Yard::of(Config {
        write,
        ..config(device, host)
    })
}

/// What the plan reads, as positions in the tables of these leases, one after the other.
fn order(yard: &Yard, leases: &[&Lease], plan: &Plan) -> Vec<usize> {
    let all: Vec<u32> = leases.iter().flat_map(|lease| yard.table(lease)).collect();
    let place = |slot: &u32| {
        all.iter()
            .position(|other| other == slot)
            .expect("it is theirs")
    };
    plan.sources.iter().map(place).collect()
}

/// Law: 4.2-15
#[test]
fn through_copies_what_was_published_in_that_order_and_then_the_next_victims() {
    for yard in each_of(
        KINDS,
        Config {
            write: WritePolicy::Through,
            ..config(16, 16)
        },
    ) {
        yard.publish(&text(9, 3));
        yard.land(&[yard.demote(1).unwrap()]);
        let (first, _) = yard.begin(&text(1, 2));
        let (second, _) = yard.begin(&text(2, 2));
        yard.seal(&first, 4);
        yard.seal(&second, 8);
        yard.seal(&first, 8);
        let plan = yard.demote(2).unwrap();
        assert_eq!(plan.len(), 2, "older ones come first");
        assert_eq!(yard.hits(&text(9, 3)), [3, 0, 0, 0]);
        yard.land(&[plan]);
        let plan = yard.demote(3).unwrap();
        assert_eq!(order(&yard, &[&first, &second], &plan), [0, 2, 3]);
        yard.land(&[plan]);
        let plan = yard.demote(3).unwrap();
        assert_eq!(
            order(&yard, &[&first], &plan),
            [1],
            "and the victims have theirs"
        );
        yard.land(&[plan]);
        yard.finish(first);
        yard.finish(second);
        assert_eq!(yard.demote(16), None, "each was copied once");
        yard.squeeze(7);
        assert_eq!(yard.hits(&text(9, 3)), [0, 3, 0, 0]);
    }
}

/// Law: 4.2-15
#[test]
fn what_found_no_room_below_stays_first_in_the_queue() {
    let yard = yard(WritePolicy::Through, 16, 2);
    let keeper = yard.park(yard.run(&text(1, 1)), 4);
    let (first, second) = (yard.run(&text(2, 1)), yard.run(&text(3, 1)));
    let last = yard.run(&text(4, 1));
    let plan = yard.demote(3).unwrap();
    assert_eq!(plan.len(), 2, "the host has two slots");
    assert_eq!(yard.demote(3), None);
    yard.land(&[plan]);
    yard.abandon(keeper);
    assert_eq!(yard.demote(3), None, "no device copy is lost");
    yard.squeeze(1);
    let plan = yard.demote(3).unwrap();
    assert_eq!(order(&yard, &[&second, &last], &plan), [0]);
    yard.land(&[plan]);
    yard.finish(last);
    yard.finish(first);
    yard.finish(second);
}

/// Law: 4.2-15
#[test]
fn through_forgets_what_has_left_and_the_oldest_where_nothing_is_copied() {
    let yard = yard(WritePolicy::Through, 3, 8);
    yard.ends_busy();
    yard.publish(&text(1, 2));
    yard.squeeze(2);
    let lease = yard.run(&text(2, 2));
    yard.cache.lock().clear();
    assert_eq!(
        yard.demote(9),
        None,
        "all of it is gone or of another epoch"
    );
    yard.finish(lease);
    // Five are published and a device of four slots, one of them null, remembers four.
    yard.publish(&text(3, 2));
    let last = yard.run(&text(4, 3));
    let plan = yard.demote(9).unwrap();
    assert_eq!(order(&yard, &[&last], &plan), [0, 1, 2]);
    yard.finish(last);
}

/// Law: 4.2-15
#[test]
fn second_touch_passes_over_what_was_used_once() {
    for yard in each_of(
        KINDS,
        Config {
            write: WritePolicy::SecondTouch,
            ..config(12, 12)
        },
    ) {
        let (once, twice) = (text(1, 3), text(2, 3));
        yard.publish(&once);
        yard.publish(&twice);
        assert_eq!(yard.demote(12), None);
        assert_eq!(yard.on_device(&and_one(&twice)), 3, "asking is no use");
        assert_eq!(yard.demote(12), None);
        let (lease, _) = yard.begin(&and_one(&twice[..8]));
        yard.finish(lease);
        assert_eq!(yard.demote(3), None, "of the next three victims");
        let plan = yard.demote(12).unwrap();
        assert_eq!(plan.len(), 2);
        yard.land(&[plan]);
        yard.squeeze(6);
        assert_eq!(
            (yard.hits(&once), yard.hits(&twice)),
            ([0; 4], [0, 2, 0, 0])
        );
    }
}

/// Law: 4.2-15
#[test]
fn a_block_that_another_sequence_publishes_again_is_touched_again() {
    let yard = yard(WritePolicy::SecondTouch, 12, 8);
    let prompt = text(1, 2);
    let (one, _) = yard.begin(&prompt);
    let (other, _) = yard.begin(&prompt);
    yard.seal(&one, 8);
    yard.finish(one);
    assert_eq!(yard.demote(12), None);
    yard.seal(&other, 8);
    yard.finish(other);
    yard.copy_down(2);
}

/// Law: INV-5
#[test]
fn neither_asking_nor_a_begin_that_is_refused_touches_a_block() {
    let yard = yard(WritePolicy::SecondTouch, 5, 8);
    let prompt = text(1, 2);
    yard.publish(&prompt);
    let (other, _) = yard.begin(&text(2, 2));
    assert_eq!(yard.on_device(&and_one(&prompt)), 2);
    let refused = yard.begin_reserving(&and_one(&prompt), 8).unwrap_err();
    assert_eq!(room(refused), (3, 1, 0, 0));
    assert_eq!(yard.demote(5), None);
    yard.finish(other);
}

/// Law: 4.2-15
#[test]
fn a_fork_that_seals_the_slot_it_shares_touches_nothing() {
    let yard = yard(WritePolicy::SecondTouch, 12, 8);
    let (lease, _) = yard.begin(&text(1, 2));
    let (fork, begun) = yard.cache.fork(&lease, 8, 0).unwrap();
    assert!(begun.plans.is_empty());
    yard.seal(&lease, 8);
    yard.seal(&fork, 8);
    yard.finish(fork);
    yard.finish(lease);
    assert_eq!(yard.demote(12), None, "computed once, for one begin");
}

/// Law: 4.2-15
#[test]
fn a_block_that_is_computed_again_after_it_was_dropped_counts_as_touched_twice() {
    let yard = yard(WritePolicy::SecondTouch, 6, 8);
    let prompt = text(1, 2);
    yard.publish(&prompt);
    let before = yard.probe(&text(2, 1));
    assert_eq!(before.evicted, Some(false), "it never was here");
    yard.squeeze(2);
    assert_eq!(yard.probe(&prompt).evicted, Some(true));
    yard.publish(&prompt);
    let probe = yard.probe(&cat(&prompt, &text(2, 1)));
    assert_eq!((probe.hits, probe.evicted), ([2, 0, 0, 0], Some(false)));
    assert_eq!(yard.probe(&prompt).evicted, None, "nothing is missing");
    yard.copy_down(2);
    yard.squeeze(2);
    assert_eq!(yard.hits(&prompt), [0, 2, 0, 0]);
}

/// Law: 4.2-15
#[test]
fn nothing_is_remembered_where_no_ghosts_are_kept() {
    for (write, ghosts) in [
        (WritePolicy::OnEvict, None),
        (WritePolicy::SecondTouch, Some(0)),
    ] {
        let yard = Yard::of(Config {
            write,
            ghosts,
            ..config(6, 8)
        });
        yard.ends_busy();
        yard.publish(&text(1, 2));
        yard.squeeze(2);
        assert_eq!(yard.probe(&text(1, 2)).evicted, None);
        yard.publish(&text(1, 2));
        let copied = yard.demote(2).map_or(0, |plan| plan.len());
        assert_eq!(copied, if write == WritePolicy::OnEvict { 2 } else { 0 });
    }
}

/// Law: 4.2-15
#[test]
fn what_is_named_is_copied_whatever_the_policy() {
    for write in [
        WritePolicy::OnEvict,
        WritePolicy::Through,
        WritePolicy::SecondTouch,
    ] {
        let yard = yard(write, 12, 8);
        let lease = yard.run(&text(1, 2));
        yard.land(&[yard.demote_lease(&lease, 2)]);
        let parked = yard.park(yard.run(&text(2, 2)), 8);
        yard.land(&[yard.demote_parked(&parked, 2).unwrap()]);
        yard.abandon(parked);
        yard.finish(lease);
        assert_eq!(yard.demote(8), None);
    }
}

/// Law: 4.2-15
#[test]
fn a_host_smaller_than_the_look_ahead_is_filled_once() {
    for (write, policy) in [
        WritePolicy::OnEvict,
        WritePolicy::Through,
        WritePolicy::SecondTouch,
    ]
    .into_iter()
    .flat_map(|write| KINDS.map(|policy| (write, policy)))
    {
        let yard = Yard::of(Config {
            write,
            policy,
            ..config(40, 8)
        });
        let step = || {
            let plan = yard.demote(16);
            yard.land(plan.as_slice());
            plan.map_or(0, |plan| plan.len())
        };
        for name in 0..12 {
            yard.publish(&and_one(&text(name % 5, 7)));
            step();
        }
        let idle: Vec<usize> = (0..8).map(|_| step()).collect();
        assert_eq!(idle[4..], [0; 4], "{write:?} {policy:?}: {idle:?}");
        let before = yard.hits(&text(0, 7))[0];
        yard.squeeze(8);
        let kept: u32 = (0..5).map(|name| yard.hits(&text(name, 7))[1]).sum();
        assert_eq!(kept, 8, "the next to go have the copies, {before}");
    }
}

/// Law: 4.2-15
#[test]
fn what_was_looked_at_is_looked_at_again_when_its_copy_is_gone() {
    for yard in each_of(OBEYING, config(16, 12)) {
        yard.ends_busy();
        yard.publish(&text(1, 4));
        let plan = yard.demote(4).unwrap();
        assert_eq!(yard.demote(4), None, "all four are in flight");
        yard.fail(&plan, 1);
        let plan = yard.demote(4).unwrap();
        assert_eq!(plan.len(), 3);
        yard.overdue(&plan);
        yard.fail(&plan, 0);
        assert_eq!(yard.demote(4).map(|plan| plan.len()), Some(3));
        let lease = yard.run(&text(2, 3));
        yard.finish_as(lease, blockyard_core::Retention::SessionEnded);
        assert_eq!(
            yard.demote(3).map(|plan| plan.len()),
            Some(3),
            "they are first now"
        );
    }
}

/// Law: 4.2-15
#[test]
fn a_failed_copy_ahead_is_tried_again_so_many_times() {
    for (write, policy) in [WritePolicy::OnEvict, WritePolicy::Through]
        .into_iter()
        .flat_map(|write| KINDS.map(|policy| (write, policy)))
    {
        let yard = Yard::of(Config {
            write,
            policy,
            copy_retries: 2,
            ..config(16, 16)
        });
        yard.publish(&text(1, 3));
        yard.fail(&yard.demote(9).unwrap(), 2);
        let plan = yard.demote(9).unwrap();
        assert_eq!(plan.len(), 1);
        yard.overdue(&plan);
        yard.fail(&plan, 1);
        yard.fail(&yard.demote(9).unwrap(), 0);
        assert_eq!(yard.demote(9), None, "that was the second time again");
        let (lease, _) = yard.begin(&and_one(&text(1, 3)));
        yard.land(&[yard.demote_lease(&lease, 9)]);
        yard.finish(lease);
    }
}

/// Law: 4.2-15
#[test]
fn a_good_copy_clears_the_failures_before_it() {
    for yard in each_of(
        KINDS,
        Config {
            copy_retries: 1,
            ..config(8, 1)
        },
    ) {
        let prompt = text(1, 1);
        yard.publish(&prompt);
        yard.fail(&yard.demote(1).unwrap(), 0);
        yard.copy_down(1);
        // Another takes the one slot below, and its copy may go for a nearer victim.
        let lease = yard.run(&text(2, 1));
        yard.land(&[yard.demote_lease(&lease, 1)]);
        yard.finish(lease);
        assert_eq!(yard.host().idle, 1);
        yard.fail(&yard.demote(1).unwrap(), 0);
        yard.copy_down(1);
        yard.squeeze(1);
        assert_eq!(
            yard.hits(&prompt),
            [0, 1, 0, 0],
            "tried again, as after the first"
        );
    }
}

/// Law: 4.2-15
#[test]
fn through_puts_a_block_back_in_the_queue_whose_copy_has_failed() {
    let yard = yard(WritePolicy::Through, 16, 16);
    let lease = yard.run(&text(1, 3));
    yard.fail(&yard.demote(9).unwrap(), 2);
    let plan = yard.demote(9).unwrap();
    assert_eq!(order(&yard, &[&lease], &plan), [2]);
    yard.land(&[plan]);
    yard.finish(lease);
}
