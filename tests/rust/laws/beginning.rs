//! Table 2.2: begin.

use crate::tickets::request;
use crate::verbs::Verbs as _;
use crate::yard::{KINDS, Yard, and_one, cat, config, each_of, one, room, text, tokens};
use blockyard_core::{
    Answer, BlockCosts, Config, Counters, Error, Filling, MAX_TIERS, Stop, WritePolicy,
};

/// Law: 2.2-1
#[test]
fn a_begin_never_evicts_its_own_prefix() {
    for yard in each_of(KINDS, config(4, 0)) {
        let (own, other) = (text(1, 2), text(2, 2));
        yard.publish(&own);
        yard.publish(&other);
        // Its own prefix is the oldest there is.
        let (lease, begun) = yard.begin(&and_one(&own));
        assert_eq!(begun.hits, [2, 0, 0, 0]);
        assert_eq!((yard.on_device(&own), yard.on_device(&other)), (2, 1));
        yard.finish(lease);
    }
}

/// Law: 2.2-1
#[test]
fn a_begin_whose_prefix_fills_the_device_has_no_room_and_keeps_it() {
    let yard = Yard::new(4, 0);
    let prompt = text(1, 3);
    yard.publish(&prompt);
    let held = yard.run(&text(2, 1));
    let refused = yard.begin_reserving(&cat(&prompt, &text(3, 1)), 0);
    // One new block; of the idle ones its own three are not to be had.
    assert_eq!(room(refused.unwrap_err()), (1, 0, 0, 0));
    assert_eq!(yard.on_device(&prompt), 3);
    let never = yard.begin_reserving(&cat(&prompt, &text(3, 2)), 0);
    let never = never.map(|_| ()).unwrap_err();
    assert!(matches!(
        never,
        Error::TooLarge {
            need: 5,
            capacity: 4,
            ..
        }
    ));
    yard.finish(held);
}

/// Law: 2.2-2, R2-7
#[test]
fn a_begin_evicts_exactly_the_deficit() {
    let yard = Yard::new(16, 0);
    yard.publish(&text(1, 12));
    assert_eq!(yard.device().free, 4);
    let (lease, _) = yard.begin(&text(2, 6));
    assert_eq!(yard.stats().counters.evicted[0], 2);
    assert_eq!((yard.device().free, yard.on_device(&text(1, 12))), (0, 10));
    yard.finish(lease);
    let (lease, _) = yard.begin(&text(3, 6));
    assert_eq!(yard.stats().counters.evicted[0], 2, "nothing was short");
    yard.finish(lease);
}

/// Law: 2.2-4
#[test]
fn a_peel_that_falls_short_puts_everything_back_in_order() {
    for yard in each_of(KINDS, config(8, 0)) {
        let (older, newer) = (text(1, 2), text(2, 2));
        yard.publish(&older);
        yard.publish(&newer);
        let (held, _) = yard.begin(&text(3, 2));
        let before = yard.stats();
        let refused = yard.begin_reserving(&text(4, 4), 12).unwrap_err();
        assert_eq!(room(refused), (7, 2, 4, 0), "the numbers it found");
        let mut after = yard.stats();
        after.counters.no_room -= 1;
        assert_eq!(after, before);
        for left in [(1, 2), (0, 2), (0, 1), (0, 0)] {
            yard.squeeze(1);
            assert_eq!((yard.on_device(&older), yard.on_device(&newer)), left);
        }
        yard.finish(held);
    }
}

/// Law: 2.2-5
#[test]
fn an_idle_block_that_was_not_copied_down_in_time_is_dropped_and_never_waited_for() {
    let yard = Yard::new(4, 8);
    let (prompt, read) = (text(1, 2), text(2, 2));
    yard.publish(&read);
    yard.publish(&prompt);
    let plan = yard.demote(2).unwrap();
    let (lease, begun) = yard.begin(&text(3, 2));
    assert!(begun.plans.is_empty(), "it may run at once");
    yard.land(&[plan]);
    let left = (yard.hits(&read), yard.hits(&prompt));
    assert_eq!(left, ([2, 0, 0, 0], [0, 0, 0, 0]), "what was read stayed");
    yard.finish(lease);
}

/// Law: INV-20g, 2.2-3
#[test]
fn a_block_whose_child_must_stay_is_set_aside_and_is_next_once_the_child_leaves() {
    for yard in each_of(KINDS, config(6, 4)) {
        let (aside, newer) = (text(1, 2), text(2, 2));
        yard.publish(&aside);
        yard.publish(&newer);
        // The leaf of the older path is read: its root must stay above it.
        let plan = yard.demote(1).unwrap();
        yard.squeeze(2);
        assert_eq!((yard.on_device(&aside), yard.on_device(&newer)), (2, 0));
        yard.publish(&newer);
        yard.land(&[plan]);
        yard.squeeze(2);
        assert_eq!((yard.on_device(&aside), yard.on_device(&newer)), (0, 2));
    }
}

/// Law: 2.2-6, 4.3-20
#[test]
fn a_full_hit_recomputes_its_last_token_in_a_private_copy_of_the_last_block() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 2);
    yard.publish(&prompt);
    let (lease, begun) = yard.begin(&prompt);
    assert_eq!((begun.cached, begun.hits), (7, [2, 0, 0, 0]));
    let plan = one(&begun);
    assert_eq!((plan.from.0, plan.to.0, plan.len()), (0, 0, 1));
    let table = yard.table(&lease);
    assert_eq!(plan.destinations, table[1..]);
    assert_ne!(plan.sources, plan.destinations);
    yard.land(&begun.plans);
    assert_eq!(yard.device().idle, 1, "the published last block");
    yard.seal(&lease, 8);
    assert_eq!(yard.table(&lease), table, "it stays private");
    yard.finish(lease);
    assert_eq!((yard.device().free, yard.on_device(&prompt)), (6, 2));
}

/// The prompt is as large as the device: there is no slot for the copy beside its source.
/// Law: INV-25, 2.2-6
#[test]
fn a_full_hit_without_room_for_a_copy_computes_its_last_block_again() {
    // An engine that cannot recompute does so, too: it never has room for both.
    for recompute in [true, false] {
        no_room_for_a_copy(&Yard::of(Config {
            recompute,
            ..config(4, 0)
        }));
    }
}

fn no_room_for_a_copy(yard: &Yard) {
    let prompt = text(1, 4);
    yard.publish(&prompt);
    let chain = yard.chain(&prompt);
    let need = yard
        .cache
        .lock()
        .dry_run(&request(&chain, 0))
        .expect("tokens");
    let (lease, begun) = yard.begin(&prompt);
    assert_eq!((begun.cached, begun.hits), (12, [3, 0, 0, 0]));
    assert_eq!((begun.stop, begun.plans.len()), (Stop::Promised, 0));
    assert_eq!(
        (need.fits, need.device, need.stop),
        (true, 3, Stop::Promised)
    );
    yard.seal(&lease, 16);
    yard.finish(lease);
    assert_eq!(yard.on_device(&prompt), 4);
}

/// There could be, as soon as another has ended.
/// Law: 2.2-6
#[test]
fn an_engine_that_cannot_recompute_waits_for_the_room_of_both_where_there_can_be() {
    let yard = Yard::of(Config {
        recompute: false,
        ..config(6, 0)
    });
    let prompt = text(1, 4);
    yard.publish(&prompt);
    let (other, _) = yard.begin(&text(2, 2));
    let refused = yard.begin_reserving(&prompt, 0).unwrap_err();
    assert_eq!(room(refused), (1, 0, 0, 0));
    yard.finish(other);
    let (lease, begun) = yard.begin(&prompt);
    assert_eq!((begun.cached, begun.stop), (15, Stop::Whole));
    yard.land(&begun.plans);
    yard.finish(lease);
    yard.sound();
}

/// Law: 2.2-6
#[test]
fn a_full_hit_whose_last_block_is_below_is_copied_up_into_a_private_block() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 2);
    yard.publish(&prompt);
    yard.copy_down(1);
    yard.squeeze(1);
    let (lease, begun) = yard.begin(&prompt);
    assert_eq!((begun.cached, begun.hits), (7, [1, 1, 0, 0]));
    assert_eq!((one(&begun).from.0, one(&begun).to.0), (1, 0));
    yard.land(&begun.plans);
    assert_eq!(yard.hits(&prompt), [1, 1, 0, 0], "private");
    yard.finish(lease);
}

/// Law: 2.2-7
#[test]
fn a_begin_never_joins_anothers_flight() {
    let yard = Yard::new(12, 8);
    let prompt = text(1, 3);
    yard.publish_below(&prompt);
    let (loading, begun) = yard.begin(&and_one(&prompt));
    let (other, stopped) = yard.stop(&and_one(&prompt), u32::MAX);
    assert_eq!((stopped.cached, stopped.plans.len()), (0, 0));
    assert_eq!(stopped.stop, Stop::Filling(one(&begun).flight));
    let (ours, theirs) = (yard.table(&other), yard.table(&loading));
    assert!(ours.iter().all(|slot| !theirs.contains(slot)));
    let soon = yard.ask(&and_one(&prompt), 0, u32::MAX, Filling::Soon);
    assert_eq!(soon, Ok(Answer::Soon(one(&begun).flight)));
    yard.land(&begun.plans);
    yard.finish(loading);
    yard.finish(other);
}

/// Law: 2.2-8
#[test]
fn where_the_engine_cannot_recompute_a_begin_always_waits_for_what_is_in_flight() {
    let yard = Yard::of(Config {
        recompute: false,
        ..config(12, 8)
    });
    let prompt = text(1, 3);
    yard.publish_below(&prompt);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    let soon = yard.ask(&and_one(&prompt), 0, u32::MAX, Filling::Stop);
    assert_eq!(soon, Ok(Answer::Soon(one(&begun).flight)));
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: 2.2-8
#[test]
fn a_parked_sequence_always_waits_for_what_is_in_flight() {
    let yard = Yard::new(12, 8);
    let prompt = text(1, 2);
    let lease = yard.run(&cat(&prompt, &tokens(2, 2)));
    let parked = yard.park(lease, 10);
    yard.land(&[yard.demote_parked(&parked, 3).unwrap()]);
    yard.squeeze(2);
    let (loading, begun) = yard.begin(&and_one(&prompt));
    assert_eq!(begun.plans.len(), 1, "another sequence loads its blocks");
    let before = yard.stats();
    let Err((parked, None)) = yard.cache.resume(parked, 0) else {
        panic!("it should wait");
    };
    assert_eq!(yard.stats(), before, "and holds what it held");
    yard.land(&begun.plans);
    let (lease, begun) = yard.resume(parked);
    assert_eq!((begun.cached, begun.hits), (10, [2, 1, 0, 0]));
    yard.land(&begun.plans);
    yard.finish(lease);
    yard.finish(loading);
}

/// Law: 2.2-9
#[test]
fn a_load_is_taken_only_as_far_as_it_pays_and_what_was_left_is_said() {
    let yard = Yard::new(12, 8);
    let prompt = text(1, 4);
    yard.publish(&prompt);
    yard.copy_down(3);
    yard.squeeze(3);
    assert_eq!(yard.hits(&prompt), [1, 3, 0, 0]);
    for (bound, loaded, stop) in [(0, 0, Stop::Slow), (2, 2, Stop::Slow), (3, 3, Stop::Whole)] {
        let (lease, begun) = yard.stop(&and_one(&prompt), bound);
        assert_eq!((begun.hits, begun.stop), ([1, loaded, 0, 0], stop));
        assert_eq!(begun.cached, u64::from(1 + loaded) * 4);
        for plan in &begun.plans {
            yard.fail(plan, 0);
        }
        yard.finish(lease);
        yard.squeeze(yard.device().idle as u32 - 1);
        assert_eq!(yard.hits(&prompt), [1, 3, 0, 0]);
    }
}

/// Law: 2.2-2
#[test]
fn a_begin_is_all_or_nothing_with_its_growth() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin_reserving(&text(1, 2), 16).unwrap();
    let device = yard.device();
    assert_eq!((device.claimed, device.promised, device.free), (2, 4, 6));
    let refused = yard.begin_reserving(&text(2, 2), 4).unwrap_err();
    assert_eq!(room(refused), (3, 6, 0, 4));
    assert_eq!(yard.device(), device);
    let (other, _) = yard.begin_reserving(&text(2, 2), 0).unwrap();
    yard.finish(other);
    yard.finish(lease);
}

/// A block of its own takes 100 to compute, one more 110, and so on.
fn gated(load: u64, recompute: bool) -> Yard {
    let (compute, attend) = (100, 10);
    let block_costs = Some(BlockCosts {
        load: [load; MAX_TIERS],
        compute,
        attend,
    });
    Yard::of(Config {
        block_costs,
        recompute,
        ..config(16, 16)
    })
}

/// A prompt of which one block is on the device and three are below.
fn spread(yard: &Yard, name: u32) -> Vec<u32> {
    let prompt = text(name, 4);
    yard.publish(&prompt);
    yard.copy_down(3);
    yard.squeeze(3);
    assert_eq!(yard.hits(&prompt), [1, 3, 0, 0]);
    prompt
}

/// Law: 2.2-9
#[test]
fn a_load_is_taken_where_it_beats_computing_and_left_where_it_takes_as_long() {
    // 110 + 120 + 130 for the three blocks behind the first.
    for (load, loaded, stop) in [(119, 3, Stop::Whole), (120, 0, Stop::Slow)] {
        let yard = gated(load, true);
        let prompt = spread(&yard, 1);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        assert_eq!((begun.hits, begun.stop), ([1, loaded, 0, 0], stop));
        assert_eq!(yard.stats().counters.slow, u64::from(3 - loaded));
        yard.land(&begun.plans);
        yard.finish(lease);
    }
}

/// Law: 2.2-9
#[test]
fn the_bound_of_a_begin_comes_before_what_pays() {
    // Of two blocks behind the first: 110 + 120.
    for (load, loaded) in [(114, 2), (115, 0)] {
        let yard = gated(load, true);
        let prompt = spread(&yard, 1);
        let (lease, begun) = yard.stop(&and_one(&prompt), 2);
        assert_eq!((begun.hits, begun.stop), ([1, loaded, 0, 0], Stop::Slow));
        assert_eq!(yard.stats().counters.slow, u64::from(3 - loaded));
        yard.land(&begun.plans);
        yard.finish(lease);
    }
}

/// Law: 2.2-9
#[test]
fn a_load_waits_behind_those_that_are_on_their_way_up() {
    // (1 + 3) * 89 < 360 <= (1 + 3) * 90, with one block of another in flight.
    for (load, loaded) in [(89, 3), (90, 0)] {
        let yard = gated(load, true);
        yard.publish_below(&text(2, 1));
        let prompt = spread(&yard, 1);
        let other = yard.promote(&text(2, 1), 1).expect("it is below");
        let (lease, begun) = yard.stop(&and_one(&prompt), u32::MAX);
        assert_eq!(begun.hits, [1, loaded, 0, 0]);
        yard.land(&[other]);
        yard.land(&begun.plans);
        yard.finish(lease);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        assert_eq!(begun.stop, Stop::Whole, "nothing is in the way");
        yard.land(&begun.plans);
        yard.finish(lease);
    }
}

/// Law: 2.2-9
#[test]
fn a_full_hit_whose_last_block_does_not_pay_computes_it() {
    for (load, stop) in [(99, Stop::Whole), (100, Stop::Slow)] {
        let yard = gated(load, true);
        yard.publish_below(&text(1, 1));
        let (lease, begun) = yard.begin(&text(1, 1));
        let cached = if stop == Stop::Whole { 3 } else { 0 };
        assert_eq!((begun.cached, begun.stop), (cached, stop));
        yard.land(&begun.plans);
        yard.finish(lease);
    }
}

/// Law: 2.2-9
#[test]
fn a_load_is_never_left_where_it_cannot_be_computed_nor_by_a_parked_sequence() {
    let yard = gated(1_000_000, false);
    let prompt = spread(&yard, 1);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    assert_eq!((begun.hits, begun.stop), ([1, 3, 0, 0], Stop::Whole));
    yard.land(&begun.plans);
    yard.finish(lease);

    let yard = gated(1_000_000, true);
    let parked = yard.park(yard.run(&text(1, 2)), 8);
    yard.land(&[yard.demote_parked(&parked, 2).unwrap()]);
    yard.squeeze(2);
    let (lease, begun) = yard.resume(parked);
    assert_eq!((begun.hits, begun.stop), ([0, 2, 0, 0], Stop::Whole));
    yard.land(&begun.plans);
    yard.finish(lease);
    assert_eq!(yard.stats().counters.slow, 0);
}

/// Full blocks that begins found, did not load as that is slow, and missed by each reason.
fn looked_for(yard: &Yard) -> [u64; 7] {
    let Counters {
        hits,
        slow,
        unseen,
        gone,
        filling,
        withheld,
        astray,
        ..
    } = yard.stats().counters;
    let found = hits.iter().sum();
    [found, slow, unseen, gone, filling, withheld, astray]
}

/// Law: O6
#[test]
fn each_full_block_of_a_begin_is_a_hit_or_a_miss_with_its_reason() {
    // What is copied down at its second use is remembered when it is evicted.
    let yard = Yard::of(Config {
        write: WritePolicy::SecondTouch,
        ..config(8, 8)
    });
    let prompt = and_one(&text(1, 3));
    yard.publish(&prompt);
    assert_eq!(looked_for(&yard), [0, 0, 3, 0, 0, 0, 0], "nobody knew it");
    yard.publish(&prompt);
    assert_eq!(looked_for(&yard), [3, 0, 3, 0, 0, 0, 0]);
    yard.squeeze(3);
    let before = looked_for(&yard);
    yard.publish(&prompt);
    let after = looked_for(&yard);
    assert_eq!((before[2], before[3]), (after[2], 0));
    assert_eq!(after[3], 3, "it was evicted");

    let yard = Yard::new(8, 8);
    let prompt = text(1, 3);
    yard.publish_below(&prompt);
    let before = looked_for(&yard);
    let (loading, begun) = yard.begin(&and_one(&prompt));
    let (beside, _) = yard.stop(&and_one(&prompt), u32::MAX);
    let mut after = looked_for(&yard);
    after[2] -= before[2];
    assert_eq!(after, [3, 0, 0, 0, 3, 0, 0], "a hit that is in flight");
    yard.land(&begun.plans);
    yard.finish(loading);
    yard.finish(beside);

    // All of it is there, and there is no room for a copy of the last block.
    let yard = Yard::new(3, 0);
    yard.publish(&text(1, 3));
    yard.publish(&text(1, 3));
    assert_eq!(looked_for(&yard), [2, 0, 3, 0, 0, 1, 0]);
}

/// Law: O6
#[test]
fn a_begin_that_is_refused_or_told_to_wait_has_missed_nothing() {
    let yard = Yard::new(4, 8);
    yard.publish_below(&text(1, 2));
    let before = looked_for(&yard);
    let refused = yard.begin_reserving(&text(2, 4), 4);
    assert!(refused.is_err());
    assert_eq!(looked_for(&yard), before);
}
