//! What is parked over several tiers: each kept block has one home below the device, and leaves it
//! only for a copy that is there. (INV-23, 34)

use crate::tickets::park_in;
use crate::verbs::Verbs as _;
use crate::yard::{Yard, cat, room, text, three, tokens};
use blockyard_core::{Config, Error, Parked, Plan, Tier, WritePolicy};

const DEVICE: Tier = Tier::DEVICE;
const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;

fn parked(yard: &Yard, text: &[u32]) -> Parked {
    yard.park(yard.run(text), text.len() as u64)
}

/// Parked, and on the host alone.
fn on_host(yard: &Yard, text: &[u32]) -> Parked {
    let handle = parked(yard, text);
    yard.land(yard.demote_parked(&handle, u32::MAX).as_slice());
    yard.squeeze(yard.device().idle as u32);
    handle
}

/// Slots of host and third tier that are pinned, or being filled.
fn pinned(yard: &Yard) -> [u64; 2] {
    [yard.host().pinned, yard.disk().pinned]
}

fn promised(yard: &Yard) -> [u64; 2] {
    [yard.host().promised, yard.disk().promised]
}

fn kept(yard: &Yard, parked: &Parked) -> [u32; 2] {
    let view = yard.cache.lock().view_parked(parked.id());
    let view = view.expect("it is parked");
    [view.kept[1], view.kept[2]]
}

fn resumed(yard: &Yard, parked: Parked, tiers: &[(Tier, usize)]) {
    let (lease, begun) = yard.resume(parked);
    let ways: Vec<_> = begun
        .plans
        .iter()
        .map(|plan| (plan.from, plan.len()))
        .collect();
    assert_eq!(ways, tiers);
    yard.land(&begun.plans);
    assert_eq!(yard.view(&lease).cached, begun.cached);
    yard.finish(lease);
}

// Where to.

/// Law: INV-34
#[test]
fn a_sequence_is_parked_to_the_nearest_lower_tier_with_room() {
    let yard = Yard::of(three(16, 2, 4));
    let first = parked(&yard, &text(1, 3));
    assert_eq!(promised(&yard), [0, 3], "the host is too small");
    let second = parked(&yard, &text(2, 2));
    assert_eq!(promised(&yard), [2, 3]);
    let third = parked(&yard, &text(3, 1));
    assert_eq!(promised(&yard), [2, 4], "and now it is full");
    let lease = yard.run(&text(4, 1));
    let (lease, refused) = yard.cache.park(lease, 4).unwrap_err();
    assert!(
        matches!(refused, Error::NoRoom { tier: HOST, .. }),
        "{refused}"
    );
    assert_eq!(room(refused), (1, 2, 0, 2));
    yard.finish(lease);
    for handle in [first, second, third] {
        yard.land(&[yard.demote_parked(&handle, 9).unwrap()]);
        yard.abandon(handle);
    }
}

#[test]
fn what_no_lower_tier_could_hold_is_too_large_to_park() {
    let yard = Yard::of(three(16, 2, 4));
    let lease = yard.run(&text(1, 5));
    let (lease, refused) = yard.cache.park(lease, 20).unwrap_err();
    let Error::TooLarge {
        tier,
        need,
        capacity,
    } = refused
    else {
        panic!("{refused}");
    };
    assert_eq!((tier, need, capacity), (HOST, 5, 4));
    yard.finish(lease);
    yard.resize(HOST, 0);
    let lease = yard.run(&text(1, 5));
    let (lease, refused) = yard.cache.park(lease, 20).unwrap_err();
    assert!(matches!(
        refused,
        Error::TooLarge {
            tier: DISK,
            need: 5,
            capacity: 4
        }
    ));
    yard.finish(lease);
}

/// Law: INV-34
#[test]
fn a_block_that_lies_below_already_is_kept_on_its_lowest_tier() {
    let yard = Yard::of(three(8, 4, 4));
    let prompt = text(1, 3);
    yard.scatter(&prompt, &[DISK, DISK, HOST]);
    yard.land(&yard.promote_to(&prompt, 1, HOST));
    let handle = parked(&yard, &prompt);
    assert_eq!((pinned(&yard), promised(&yard)), ([1, 2], [0, 0]));
    assert_eq!(yard.host().idle, 1, "the other copy is like any");
    assert_eq!(yard.demote_parked(&handle, 3), None);
    yard.abandon(handle);
}

/// Law: INV-14
#[test]
fn a_ticket_of_any_lower_tier_gives_its_room_to_a_park() {
    let yard = Yard::of(three(8, 0, 3));
    let ticket = yard.cache.promise(3, DISK).unwrap();
    let lease = yard.run(&text(1, 3));
    let (lease, refused) = yard.cache.park(lease, 12).unwrap_err();
    assert_eq!(room(refused), (3, 3, 0, 3));
    let handle = park_in(&yard, &ticket, &lease, 12).unwrap();
    assert_eq!(promised(&yard), [0, 3]);
    yard.abandon(handle);
}

// Moving down.

/// Law: INV-34
#[test]
fn a_parked_sequence_moves_down_and_keeps_its_old_copies_until_the_new_ones_have_landed() {
    let yard = Yard::of(three(8, 4, 4));
    let handle = on_host(&yard, &text(1, 3));
    let plan = yard.move_parked(&handle, 2, DISK).unwrap();
    assert_eq!((plan.from, plan.to, plan.len()), (HOST, DISK, 2));
    assert_eq!((pinned(&yard), kept(&yard, &handle)), ([3, 2], [3, 0]));
    let other = yard.move_parked(&handle, 2, DISK).unwrap();
    assert_eq!(other.len(), 1, "two are on their way");
    yard.land(&[plan]);
    assert_eq!((pinned(&yard), kept(&yard, &handle)), ([1, 3], [1, 2]));
    assert_eq!(yard.host().idle, 2, "the old ones are like any");
    yard.land(&[other]);
    assert_eq!((pinned(&yard), promised(&yard)), ([0, 3], [0, 0]));
    assert_eq!(yard.move_parked(&handle, 2, DISK), None);
    yard.resize(HOST, 0);
    resumed(&yard, handle, &[(DISK, 3)]);
}

/// Law: INV-34
#[test]
fn what_is_owed_a_slot_goes_from_the_device_straight_to_a_lower_tier() {
    let yard = Yard::of(three(8, 4, 4));
    let handle = parked(&yard, &cat(&text(1, 2), &tokens(2, 2)));
    let plan = yard.move_parked(&handle, 9, DISK).unwrap();
    assert_eq!((plan.from, plan.to, plan.len()), (DEVICE, DISK, 3));
    assert_eq!(promised(&yard), [3, 0], "until it is there");
    let home = yard.demote_parked(&handle, 1).unwrap();
    assert_eq!((home.to, promised(&yard)), (HOST, [2, 0]));
    yard.land(&[plan]);
    assert_eq!((yard.disk().pinned, promised(&yard)), (3, [0, 0]));
    assert_eq!(yard.device().pinned, 0);
    yard.land(&[home]);
    assert_eq!(
        (pinned(&yard), yard.host().free),
        ([0, 3], 3),
        "a copy like any"
    );
    yard.abandon(handle);
}

/// Law: INV-34
#[test]
fn a_move_down_that_fails_leaves_the_keep_where_it_was() {
    let yard = Yard::of(Config {
        copy_retries: 0,
        ..three(8, 4, 4)
    });
    let handle = on_host(&yard, &text(1, 3));
    for _ in 0..3 {
        let plan = yard.move_parked(&handle, 3, DISK).unwrap();
        yard.fail(&plan, 0);
        assert_eq!((kept(&yard, &handle), promised(&yard)), ([3, 0], [0, 0]));
    }
    let plan = yard.move_parked(&handle, 3, DISK).unwrap();
    yard.fail(&plan, 1);
    assert_eq!(
        (kept(&yard, &handle), yard.broken(&handle)),
        ([2, 1], false)
    );
    resumed(&yard, handle, &[(HOST, 3)]);
}

/// Law: INV-34
#[test]
fn a_move_down_whose_end_is_unknown_leaves_the_keep_where_it_was() {
    let yard = Yard::of(three(8, 4, 6));
    let handle = on_host(&yard, &text(1, 3));
    let plan = yard.move_parked(&handle, 3, DISK).unwrap();
    yard.overdue(&plan);
    assert_eq!((kept(&yard, &handle), yard.disk().quarantined), ([3, 0], 3));
    let again = yard.move_parked(&handle, 3, DISK).unwrap();
    yard.land(&[again]);
    yard.fail(&plan, 3);
    assert_eq!((kept(&yard, &handle), yard.disk().pinned), ([0, 3], 3));
    yard.abandon(handle);
}

/// Law: INV-34
#[test]
fn a_move_down_that_finds_its_source_corrupt_breaks_the_keep() {
    let yard = Yard::of(three(8, 4, 4));
    let (handle, other) = (on_host(&yard, &text(1, 3)), on_host(&yard, &text(2, 1)));
    let plan = yard.move_parked(&handle, 3, DISK).unwrap();
    yard.corrupt(&plan, 1);
    assert_eq!([yard.broken(&handle), yard.broken(&other)], [true, false]);
    // The last block landed, and the one before it is lost.
    assert_eq!(yard.hits(&text(1, 3)), [0, 1, 0, 0]);
    assert_eq!((yard.stats().counters.corrupt, yard.disk().idle), (1, 1));
    yard.abandon(handle);
    yard.abandon(other);
}

/// Law: INV-34
#[test]
fn a_sequence_that_resumes_as_it_moves_loses_nothing() {
    let yard = Yard::of(three(8, 4, 4));
    let handle = on_host(&yard, &text(1, 2));
    let plan = yard.move_parked(&handle, 2, DISK).unwrap();
    let (lease, begun) = yard.resume(handle);
    assert_eq!(begun.plans[0].from, HOST);
    yard.land(&[plan]);
    yard.land(&begun.plans);
    assert_eq!((pinned(&yard), yard.view(&lease).cached), ([0, 0], 8));
    yard.finish(lease);
}

/// A copy on the third tier of the first so many blocks, which is in flight as the text is parked.
fn parked_over_a_copy(yard: &Yard, text: &[u32], blocks: u32) -> (Parked, Plan) {
    let host = yard.host().capacity as u32;
    let lease = yard.run(text);
    yard.resize(HOST, 0);
    let plan = yard.demote_lease(&lease, blocks);
    yard.resize(HOST, host);
    assert_eq!(plan.to, DISK);
    (yard.park(lease, text.len() as u64), plan)
}

/// Law: INV-34
#[test]
fn a_copy_made_for_another_reason_moves_no_keep_until_it_is_asked_to() {
    let yard = Yard::of(three(8, 4, 4));
    let (handle, plan) = parked_over_a_copy(&yard, &text(1, 2), 2);
    yard.land(&[plan]);
    assert_eq!(
        (promised(&yard), yard.disk().idle),
        ([2, 0], 2),
        "it is owed still"
    );
    assert_eq!(yard.move_parked(&handle, 2, DISK), None, "nothing to copy");
    assert_eq!((promised(&yard), pinned(&yard)), ([0, 0], [0, 2]));
    assert_eq!(yard.device().pinned, 0);
    resumed(&yard, handle, &[]);
}

/// Law: INV-22
#[test]
fn a_keep_moves_at_once_only_where_no_promise_loses_its_backing() {
    let yard = Yard::of(three(8, 4, 4));
    let (handle, plan) = parked_over_a_copy(&yard, &text(1, 2), 2);
    yard.land(&[plan]);
    let ticket = yard.cache.promise(3, DISK).unwrap();
    assert_eq!(yard.move_parked(&handle, 2, DISK), None);
    // The leaf would take itself and its parent, which must stay above it.
    assert_eq!((promised(&yard), pinned(&yard)), ([1, 3], [0, 1]));
    yard.cache.release(ticket).unwrap();
    yard.abandon(handle);
}

/// Law: INV-34
#[test]
fn a_pinned_block_holds_the_idle_ones_above_it_on_its_tier() {
    let yard = Yard::of(three(8, 4, 2));
    let prompt = text(1, 2);
    let (handle, plan) = parked_over_a_copy(&yard, &prompt, 1);
    let leaf = yard.move_parked(&handle, 1, DISK).unwrap();
    yard.land(&[leaf, plan]);
    let disk = yard.disk();
    assert_eq!((disk.pinned, disk.idle, disk.takeable), (1, 1, 0));
    assert!(yard.cache.promise(1, DISK).is_err());
    yard.land(&[yard.demote_parked(&handle, 2).unwrap()]);
    yard.abandon(handle);
    assert_eq!(yard.disk().takeable, 2);
}

/// Law: INV-23
#[test]
fn what_a_tier_owes_is_there_though_a_copy_rests_above_that_is_kept_elsewhere() {
    let mut config = three(8, 1, 4);
    config.writes_below = vec![WritePolicy::Through];
    let yard = Yard::of(config);
    let prompt = text(1, 2);
    yard.publish_below(&prompt[..4]);
    yard.land(&[yard.demote_from(HOST, 1).unwrap()]);
    let handle = parked(&yard, &prompt);
    assert_eq!((promised(&yard), kept(&yard, &handle)), ([1, 0], [0, 1]));
    assert_eq!(
        (yard.host().free, yard.host().takeable),
        (0, 1),
        "it rests there"
    );
    yard.land(&[yard.demote_parked(&handle, 2).unwrap()]);
    assert_eq!((promised(&yard), kept(&yard, &handle)), ([0, 0], [1, 1]));
    yard.abandon(handle);
}

/// Law: INV-34
#[test]
fn a_block_that_several_keep_has_one_home() {
    let yard = Yard::of(three(16, 3, 8));
    let stem = text(1, 2);
    let [left, right] = [2, 3].map(|name| cat(&stem, &text(name, 1)));
    let (one, two) = (parked(&yard, &left), parked(&yard, &right));
    assert_eq!(promised(&yard), [3, 1], "the stem once");
    for handle in [&one, &two] {
        yard.land(yard.demote_parked(handle, 9).as_slice());
    }
    assert_eq!((pinned(&yard), kept(&yard, &two)), ([3, 1], [2, 1]));
    yard.squeeze(4);
    yard.land(&[yard.move_parked(&one, 9, DISK).unwrap()]);
    assert_eq!((pinned(&yard), kept(&yard, &two)), ([0, 4], [0, 3]));
    assert_eq!(yard.host().idle, 3);
    yard.abandon(one);
    assert_eq!(pinned(&yard), [0, 3], "the other keeps the stem");
    yard.resize(HOST, 0);
    resumed(&yard, two, &[(DISK, 3)]);
}

/// Law: INV-14
#[test]
fn a_move_down_takes_no_backing_from_a_promise() {
    let yard = Yard::of(three(8, 4, 4));
    let handle = on_host(&yard, &text(1, 3));
    let ticket = yard.cache.promise(3, DISK).unwrap();
    let plan = yard.move_parked(&handle, 9, DISK).unwrap();
    assert_eq!(plan.len(), 1);
    yard.land(&[plan]);
    assert_eq!(yard.move_parked(&handle, 9, DISK), None);
    assert_eq!((kept(&yard, &handle), promised(&yard)), ([2, 1], [0, 3]));
    yard.cache.release(ticket).unwrap();
    yard.abandon(handle);
}

// Coming back.

/// Law: INV-23
#[test]
fn a_parked_sequence_comes_back_from_wherever_it_lies() {
    let yard = Yard::of(three(16, 10, 10));
    let tiers: Vec<Tier> = [HOST, DISK].into_iter().cycle().take(10).collect();
    let handle = yard.park_on(&text(1, 10), &tiers);
    let (lease, begun) = yard.resume(handle);
    assert_eq!(
        (begun.cached, begun.plans.len()),
        (40, 10),
        "more than a begin loads"
    );
    for plan in begun.plans.iter().rev() {
        assert!(yard.on_device(&text(1, 10)) == 0 && pinned(&yard) == [5, 5]);
        yard.land(std::slice::from_ref(plan));
    }
    assert_eq!((yard.view(&lease).cached, pinned(&yard)), (40, [0, 0]));
    yard.finish(lease);
}

/// Law: INV-23
#[test]
fn a_resume_whose_later_run_comes_short_may_be_parked_again() {
    let yard = Yard::of(three(8, 4, 4));
    let mut handle = yard.park_on(&text(1, 3), &[HOST, DISK, HOST]);
    for run in [0, 1, 2] {
        for unknown in [true, false] {
            let (lease, begun) = yard.resume(handle);
            for (at, plan) in begun.plans.iter().enumerate().rev() {
                match (at == run, unknown) {
                    (false, _) => yard.cache.landed(std::slice::from_ref(plan)).unwrap(),
                    (true, true) => yard.overdue(plan),
                    (true, false) => yard.fail(plan, 0),
                }
                yard.sound();
            }
            assert!(yard.view(&lease).incomplete);
            handle = yard.park(lease, 12);
            assert_eq!((yard.broken(&handle), pinned(&yard)), (false, [2, 1]));
            if unknown {
                yard.fail(&begun.plans[run], 0);
            }
            yard.squeeze(yard.device().idle as u32);
        }
    }
    resumed(&yard, handle, &[(HOST, 1), (DISK, 1), (HOST, 1)]);
}

/// Law: INV-23
#[test]
fn a_corrupt_copy_elsewhere_costs_no_keep() {
    let yard = Yard::of(three(8, 4, 4));
    let handle = on_host(&yard, &text(1, 2));
    yard.land(&[yard.move_parked(&handle, 2, DISK).unwrap()]);
    assert_eq!((pinned(&yard), yard.host().idle), ([0, 2], 2));
    let (lease, begun) = yard.resume(handle);
    assert_eq!(begun.plans[0].from, HOST, "the nearer copy");
    yard.corrupt(&begun.plans[0], 1);
    assert_eq!((yard.host().idle, yard.stats().counters.corrupt), (1, 1));
    let again = yard.park_again(lease);
    assert_eq!((yard.broken(&again), kept(&yard, &again)), (false, [0, 2]));
    yard.squeeze(yard.device().idle as u32);
    let (lease, begun) = yard.resume(again);
    let tiers: Vec<Tier> = begun.plans.iter().map(|plan| plan.from).collect();
    assert_eq!(tiers, [HOST, DISK]);
    yard.corrupt(&begun.plans[1], 0);
    assert_eq!(yard.host().idle, 1, "its own is lost, and no other");
    yard.land(&begun.plans[..1]);
    let again = yard.park_again(lease);
    assert!(yard.broken(&again), "this was the last copy of it");
    yard.abandon(again);
}

/// Law: INV-22
#[test]
fn a_resume_reads_a_nearer_copy_only_where_no_promise_needs_it() {
    let yard = Yard::of(three(8, 2, 4));
    let handle = on_host(&yard, &text(1, 2));
    yard.land(&[yard.move_parked(&handle, 2, DISK).unwrap()]);
    let ticket = yard.cache.promise(2, HOST).unwrap();
    resumed(&yard, handle, &[(DISK, 2)]);
    yard.cache.release(ticket).unwrap();
}

// Room, and its loss.

/// Law: INV-16
#[test]
fn holders_and_views_say_what_is_kept_where() {
    let yard = Yard::of(three(16, 4, 8));
    let first = yard.park_on(&text(1, 3), &[HOST, DISK, DISK]);
    let second = parked(&yard, &text(2, 4));
    let holders = yard.cache.lock().holders();
    let rows: Vec<_> = holders.iter().map(|one| (one.held, one.promised)).collect();
    let three = |rows: &[u32; blockyard_core::MAX_TIERS]| [rows[0], rows[1], rows[2]];
    let rows: Vec<_> = rows
        .iter()
        .map(|(held, owed)| (three(held), three(owed)))
        .collect();
    assert_eq!(rows, [([4, 0, 0], [0, 0, 4]), ([0, 1, 2], [0, 0, 0])]);
    assert_eq!(
        (kept(&yard, &first), kept(&yard, &second)),
        ([1, 2], [0, 0])
    );
    yard.abandon(first);
    yard.abandon(second);
}

/// Law: INV-23, 2.7-1
#[test]
fn a_smaller_third_tier_breaks_the_youngest_of_what_is_kept_there_alone() {
    for recompute in [true, false] {
        let yard = Yard::of(Config {
            recompute,
            ..three(16, 2, 8)
        });
        yard.ends_busy();
        let old = yard.park_on(&text(1, 2), &[DISK, DISK]);
        let young = yard.park_on(&text(2, 2), &[DISK, DISK]);
        let elsewhere = on_host(&yard, &text(3, 2));
        assert_eq!(pinned(&yard), [2, 4]);
        let broken = || [&old, &young, &elsewhere].map(|handle| yard.broken(handle));
        let resized = yard.cache.lock().resize(DISK, 3);
        yard.sound();
        assert_eq!(resized.is_ok(), recompute, "{resized:?}");
        assert_eq!(broken(), [false, recompute, false]);
        for handle in [old, young, elsewhere] {
            yard.abandon(handle);
        }
    }
}

/// Law: INV-23
#[test]
fn quarantine_on_a_tier_breaks_the_youngest_that_is_owed_a_slot_there() {
    let yard = Yard::of(three(16, 2, 4));
    let [old, young] = [1, 2].map(|name| {
        let lease = yard.run(&text(name, 2));
        yard.resize(HOST, 0);
        let handle = yard.park(lease, 8);
        yard.resize(HOST, 2);
        handle
    });
    let elsewhere = parked(&yard, &text(3, 2));
    assert_eq!(promised(&yard), [2, 4]);
    let plan = yard.demote_parked(&old, 1).unwrap();
    yard.overdue(&plan);
    let broken = [&old, &young, &elsewhere].map(|handle| yard.broken(handle));
    assert_eq!(broken, [false, true, false]);
    yard.fail(&plan, 0);
    for handle in [old, young, elsewhere] {
        yard.abandon(handle);
    }
}

/// Law: INV-23
#[test]
fn a_failed_copy_home_is_tried_again_so_many_times_on_any_tier() {
    let yard = Yard::of(Config {
        copy_retries: 1,
        ..three(8, 0, 4)
    });
    let handle = parked(&yard, &text(1, 2));
    for last in [false, true] {
        let plan = yard.demote_parked(&handle, 9).unwrap();
        assert_eq!(plan.to, DISK);
        yard.fail(&plan, 0);
        assert_eq!(
            (yard.broken(&handle), promised(&yard)[1]),
            (last, if last { 0 } else { 2 })
        );
    }
    yard.abandon(handle);
}

/// Law: INV-22
#[test]
fn a_resize_counts_no_slot_as_room_that_a_copy_of_a_tail_kept_elsewhere_reads() {
    let yard = Yard::of(three(12, 4, 4));
    // A tail that is kept on the third tier, and is read from its other copy on the host.
    let tail = parked(&yard, &tokens(1, 3));
    yard.land(yard.demote_parked(&tail, 9).as_slice());
    yard.land(yard.move_parked(&tail, 9, DISK).as_slice());
    assert_eq!(kept(&yard, &tail), [0, 1]);
    yard.squeeze(yard.device().idle as u32);
    let (lease, begun) = yard.resume(tail);
    assert_eq!(begun.plans[0].from, HOST);
    let other = on_host(&yard, &text(2, 1));
    let ticket = yard.cache.promise(2, HOST).unwrap();
    assert_eq!((yard.host().idle, pinned(&yard)), (1, [1, 1]));
    // The ticket needs two slots, and one of the two left cannot be taken while it is read.
    let resized = yard.cache.lock().resize(HOST, 2);
    assert!(
        matches!(resized, Err(Error::InUse { tier: HOST, .. })),
        "{resized:?}"
    );
    yard.sound();
    assert_eq!(kept(&yard, &other), [1, 0], "and it is kept still");
    yard.land(&begun.plans);
    yard.resize(HOST, 2);
    assert!(yard.broken(&other));
    drop(ticket);
    yard.finish(lease);
    yard.abandon(other);
}
