//! A prefix on several tiers: one plan for each run, published in the order of the path. (INV-33)

use crate::verbs::Verbs as _;
use crate::yard::{SIZE, Yard, and_one, in_flight, room, text, three};
use blockyard_core::{Begun, BlockCosts, Config, Lease, MAX_RUNS, Outcome, Plan, Stop, Tier};

const DEVICE: Tier = Tier::DEVICE;
const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;

fn ways(plans: &[Plan]) -> Vec<(Tier, u32)> {
    let way = |plan: &Plan| (plan.from, plan.len() as u32);
    plans.iter().map(way).collect()
}

/// A prompt with a run of two on the host, one on the third tier and one on the host again, begun.
fn loading() -> (Yard, Vec<u32>, Lease, Begun) {
    let yard = Yard::of(three(8, 4, 4));
    let prompt = text(1, 4);
    yard.scatter(&prompt, &[HOST, HOST, DISK, HOST]);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    assert_eq!(ways(&begun.plans), [(HOST, 2), (DISK, 1), (HOST, 1)]);
    (yard, prompt, lease, begun)
}

fn again(yard: &Yard, plan: &Plan) {
    let late = yard.stats().counters.late;
    let outcome = Outcome::failed(plan.flight, 0);
    assert_eq!(yard.cache.lock().commit(&[outcome], None), Ok(0));
    assert_eq!(yard.stats().counters.late, late + 1);
    assert_eq!(yard.cache.lock().mark_unknown(plan.flight), Ok(false));
    yard.sound();
}

/// Law: INV-33
#[test]
fn a_begin_shares_the_device_and_loads_a_run_from_each_tier() {
    let yard = Yard::of(three(8, 4, 4));
    let prompt = text(1, 3);
    yard.scatter(&prompt, &[HOST, HOST, DISK]);
    yard.land(&yard.promote_to(&prompt, 1, DEVICE));
    assert_eq!(yard.hits(&prompt), [1, 1, 1, 0]);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    assert_eq!(
        (begun.cached, begun.hits[..3].to_vec()),
        (12, vec![1, 1, 1])
    );
    assert_eq!(ways(&begun.plans), [(HOST, 1), (DISK, 1)]);
    let table = yard.table(&lease);
    assert_eq!(table[1..2], begun.plans[0].destinations);
    assert_eq!(table[2..3], begun.plans[1].destinations);
    yard.land(&begun.plans);
    let view = yard.view(&lease);
    assert_eq!((view.cached, view.sealed, view.loading), (12, 3, 0));
    yard.finish(lease);
}

/// Law: 2.2-6
#[test]
fn the_last_block_of_a_full_hit_is_copied_from_where_it_lies() {
    let yard = Yard::of(three(8, 4, 4));
    let prompt = text(1, 3);
    yard.scatter(&prompt, &[HOST, HOST, DISK]);
    let (lease, begun) = yard.begin(&prompt);
    assert_eq!((begun.cached, begun.stop), (11, Stop::Whole));
    assert_eq!(ways(&begun.plans), [(HOST, 2), (DISK, 1)]);
    assert_eq!(begun.hits[..3], [0, 2, 1]);
    yard.land(&begun.plans);
    assert_eq!(yard.hits(&prompt), [2, 0, 1, 0], "the copy is private");
    yard.finish(lease);
}

/// Law: 2.2-7
#[test]
fn a_copy_that_fills_is_passed_over_where_a_lower_one_is_ready() {
    let yard = Yard::of(three(8, 4, 4));
    let prompt = text(1, 2);
    yard.scatter(&prompt, &[DISK, DISK]);
    let plans = yard.promote_to(&prompt, 2, HOST);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    assert_eq!(ways(&begun.plans), [(DISK, 2)]);
    yard.finish(lease);
    yard.land(&begun.plans);
    yard.land(&plans);
    yard.squeeze(2);
    assert_eq!(yard.hits(&prompt), [0, 2, 0, 0]);
    let up = yard.promote_to(&prompt, 2, DEVICE);
    assert!(in_flight(&yard.probe(&prompt)), "on its way to the device");
    yard.land(&up);
}

/// Law: 2.2-9
#[test]
fn a_prefix_of_nine_runs_ends_behind_the_eighth() {
    let prompt = text(1, 9);
    let tiers: Vec<Tier> = [HOST, DISK].into_iter().cycle().take(9).collect();
    let yard = Yard::of(three(12, 9, 9));
    yard.abandon(yard.park_on(&prompt, &tiers));
    let probe = yard.probe(&prompt);
    assert_eq!(
        (probe.hits[..3].to_vec(), probe.stop),
        (vec![0, 4, 4], Stop::Scattered)
    );
    let (lease, begun) = yard.begin(&and_one(&prompt));
    assert_eq!((begun.cached, begun.stop), (32, Stop::Scattered));
    assert_eq!(begun.plans.len(), MAX_RUNS);
    yard.finish(lease);
    yard.land(&begun.plans);
    yard.squeeze(8);
    let plans = yard.promote_to(&prompt, 9, DEVICE);
    assert_eq!(plans.len(), MAX_RUNS);
    yard.land(&plans);
    let plans = yard.promote_to(&prompt, 9, DEVICE);
    assert_eq!(ways(&plans), [(HOST, 1)]);
    yard.land(&plans);
    assert_eq!(yard.on_device(&prompt), 9);
}

/// Law: 2.3-up-ok
#[test]
fn a_promote_brings_so_many_blocks_by_a_plan_for_each_run() {
    let yard = Yard::of(three(8, 8, 8));
    let prompt = text(1, 5);
    yard.scatter(&prompt, &[DISK, HOST, HOST, DISK, DISK]);
    let plans = yard.promote_to(&prompt, 2, DEVICE);
    assert_eq!(ways(&plans), [(DISK, 1), (HOST, 1)]);
    yard.land(&plans);
    let plans = yard.promote_to(&prompt, 9, DEVICE);
    assert_eq!(ways(&plans), [(HOST, 1), (DISK, 2)]);
    yard.fail(&plans[1], 1);
    yard.land(&plans[..1]);
    assert_eq!(yard.hits(&prompt), [4, 0, 1, 0]);
}

// Landing.

#[test]
fn what_a_promote_finds_on_the_device_is_no_room_for_what_it_loads() {
    let (prompt, one) = (text(1, 4), text(2, 1));
    let yard = Yard::of(three(5, 8, 8));
    yard.scatter(&prompt, &[HOST; 4]);
    yard.land(&yard.promote_to(&prompt, 2, DEVICE));
    // Two idle hits, two free slots and a block of a lease, which is promised another one.
    let (lease, _) = yard.begin_reserving(&one, SIZE).expect("there is room");
    let chain = yard.chain(&prompt);
    let refused = yard.cache.lock().promote(chain.keys(), 2, DEVICE);
    assert_eq!(room(refused.unwrap_err()).0, 2);
    yard.sound();
    yard.land(&yard.promote_to(&prompt, 1, DEVICE));
    assert_eq!(yard.on_device(&prompt), 3);
    assert!(yard.grow(&lease, SIZE), "it was promised");
    yard.finish(lease);
}

/// Law: INV-33, 2.3-again
#[test]
fn runs_that_end_out_of_order_are_published_in_order() {
    let (yard, prompt, lease, begun) = loading();
    let [first, second, third] = &begun.plans[..] else {
        panic!()
    };
    let flights = || (yard.stats().flights, yard.view(&lease).loading);
    yard.land(std::slice::from_ref(third));
    assert_eq!(flights(), (3, 3), "it waits for the others");
    assert_eq!(
        yard.cache.lock().blocks_in_flight(),
        (0, 3),
        "but has ended"
    );
    again(&yard, third);
    yard.land(std::slice::from_ref(second));
    assert_eq!((flights(), yard.hits(&prompt)), ((3, 3), [0; 4]));
    yard.land(std::slice::from_ref(first));
    assert_eq!((flights(), yard.hits(&prompt)), ((0, 0), [4, 0, 0, 0]));
    assert_eq!(yard.view(&lease).cached, 16);
    yard.finish(lease);
}

/// Law: INV-33
#[test]
fn a_run_is_published_as_soon_as_those_before_it_are() {
    let (yard, prompt, lease, begun) = loading();
    for (plan, published) in begun.plans.iter().zip([2, 3, 4]) {
        yard.land(std::slice::from_ref(plan));
        assert_eq!(yard.on_device(&prompt), published);
    }
    yard.finish(lease);
}

/// Law: INV-33, 2.3-up-failed
#[test]
fn behind_a_short_run_the_later_ones_stay_private() {
    for landed_before in [true, false] {
        let (yard, prompt, lease, begun) = loading();
        let table = yard.table(&lease);
        if landed_before {
            yard.land(&begun.plans[1..]);
        }
        yard.fail(&begun.plans[0], 1);
        assert_eq!(
            yard.hits(&prompt),
            [1, 2, 1, 0],
            "nothing of the later ones"
        );
        if !landed_before {
            yard.land(&begun.plans[1..]);
        }
        let view = yard.view(&lease);
        assert_eq!((view.cached, view.sealed, view.loading), (4, 1, 0));
        assert_eq!(yard.table(&lease), table, "recomputed in place");
        let device = yard.device();
        assert_eq!(
            (device.pinned, device.claimed),
            (3, 2),
            "with what is in them"
        );
        assert_eq!(yard.seal(&lease, 16), 3);
        assert_eq!(yard.on_device(&prompt), 4);
        yard.finish(lease);
    }
}

/// Law: INV-33
#[test]
fn a_short_run_in_the_middle_cuts_off_what_is_behind_it_alone() {
    let (yard, prompt, lease, begun) = loading();
    yard.fail(&begun.plans[1], 0);
    assert_eq!(yard.hits(&prompt), [0; 4], "it waits for the first");
    yard.land(&[begun.plans[2].clone(), begun.plans[0].clone()]);
    assert_eq!((yard.view(&lease).cached, yard.on_device(&prompt)), (8, 2));
    yard.finish(lease);
}

/// Law: INV-6, 2.3-up-unknown
#[test]
fn an_unknown_end_of_a_run_gives_the_later_ones_up() {
    for landed_before in [true, false] {
        let (yard, prompt, lease, begun) = loading();
        if landed_before {
            yard.land(&begun.plans[1..]);
        }
        yard.overdue(&begun.plans[0]);
        let view = yard.view(&lease);
        assert_eq!((view.cached, view.blocks, view.loading), (0, 0, 0));
        assert_eq!(yard.device().quarantined, 2, "of the first alone");
        assert_eq!(yard.device().pinned, if landed_before { 0 } else { 2 });
        assert_eq!(yard.hits(&prompt), [0, 3, 1, 0]);
        if !landed_before {
            yard.land(&begun.plans[1..]);
        }
        assert!(yard.grow(&lease, 0));
        yard.fail(&begun.plans[0], 2);
        assert_eq!((yard.device().quarantined, yard.device().claimed), (0, 5));
        yard.seal(&lease, 16);
        assert_eq!(yard.on_device(&prompt), 4);
        yard.finish(lease);
    }
}

/// Law: INV-33
#[test]
fn a_run_whose_end_is_unknown_holds_up_no_earlier_one() {
    let (yard, prompt, lease, begun) = loading();
    yard.overdue(&begun.plans[2]);
    yard.land(&begun.plans[..2]);
    assert_eq!((yard.view(&lease).cached, yard.on_device(&prompt)), (12, 3));
    yard.fail(&begun.plans[2], 0);
    yard.finish(lease);
}

/// Law: 2.3-up-failed
#[test]
fn a_corrupt_copy_of_a_later_run_is_dropped_and_no_other() {
    let (yard, prompt, lease, begun) = loading();
    yard.corrupt(&begun.plans[1], 0);
    assert_eq!(yard.disk().idle, 1, "not before its turn");
    yard.land(&begun.plans[..1]);
    assert_eq!((yard.disk().idle, yard.host().idle), (0, 3));
    yard.land(&begun.plans[2..]);
    assert_eq!(yard.hits(&prompt), [2, 0, 0, 0]);
    yard.finish(lease);
}

/// Law: INV-24
#[test]
fn runs_of_a_lease_that_is_gone_or_detached_land_in_any_order() {
    for clear in [true, false] {
        let (yard, _, lease, begun) = loading();
        let lease = if clear {
            yard.cache.lock().clear();
            yard.sound();
            Some(lease)
        } else {
            yard.finish(lease);
            None
        };
        for plan in begun.plans.iter().rev() {
            yard.land(std::slice::from_ref(plan));
        }
        let found = yard.on_device(&text(1, 4));
        assert_eq!(found, if clear { 0 } else { 4 });
        if let Some(lease) = lease {
            yard.finish(lease);
        }
    }
}

// Whether it pays.

fn timed(host: u64, disk: u64) -> Yard {
    let mut block_costs = BlockCosts {
        compute: 100,
        ..BlockCosts::default()
    };
    (block_costs.load[1], block_costs.load[2]) = (host, disk);
    Yard::of(Config {
        block_costs: Some(block_costs),
        ..three(16, 8, 8)
    })
}

fn begun(yard: &Yard, tiers: &[Tier]) -> (Lease, Begun) {
    let prompt = text(1, tiers.len() as u64);
    yard.scatter(&prompt, tiers);
    yard.begin(&and_one(&prompt))
}

/// Law: 2.2-9
#[test]
fn tiers_load_beside_each_other_and_the_slowest_counts() {
    // Four blocks take 400 to compute; 2 * 90 and 2 * 150 pass side by side.
    let tiers = [HOST, HOST, DISK, DISK];
    for (disk, loaded, stop) in [(150, 4, Stop::Missing), (195, 2, Stop::Slow)] {
        let yard = timed(90, disk);
        let (lease, begun) = begun(&yard, &tiers);
        let plans: u32 = begun.plans.iter().map(|plan| plan.len() as u32).sum();
        assert_eq!(plans, loaded, "{disk}");
        let slow = begun.stop == Stop::Slow;
        assert_eq!(slow, stop == Stop::Slow, "{:?}", begun.stop);
        assert_eq!(yard.stats().counters.slow, u64::from(4 - loaded));
        yard.land(&begun.plans);
        yard.finish(lease);
    }
}

/// Law: 2.2-9
#[test]
fn what_is_on_its_way_from_a_tier_is_queued_before_its_loads_alone() {
    let yard = timed(50, 60);
    let worth = |tier, blocks| yard.cache.lock().worth_loading(tier, blocks, 0);
    assert!(worth(HOST, 1) && worth(DISK, 1));
    yard.scatter(&text(2, 3), &[DISK; 3]);
    let queue = yard.promote_to(&text(2, 3), 3, DEVICE);
    assert!(worth(HOST, 1) && worth(HOST, 3));
    assert!(!worth(DISK, 4), "7 * 60");
    assert!(worth(DISK, 5), "8 * 60");
    let (lease, begun) = begun(&yard, &[HOST, DISK]);
    assert_eq!(
        (ways(&begun.plans), begun.stop),
        (vec![(HOST, 1)], Stop::Slow)
    );
    yard.land(&queue);
    assert!(worth(DISK, 1));
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: 2.2-9
#[test]
fn a_load_is_cut_to_what_was_asked_for_across_runs() {
    let yard = Yard::of(three(12, 8, 8));
    let prompt = text(1, 4);
    yard.scatter(&prompt, &[HOST, HOST, DISK, HOST]);
    let (lease, begun) = yard.stop(&and_one(&prompt), 3);
    assert_eq!(ways(&begun.plans), [(HOST, 2), (DISK, 1)]);
    assert_eq!((begun.cached, begun.stop), (3 * SIZE, Stop::Slow));
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: INV-22
#[test]
fn a_source_whose_reading_would_take_a_promises_backing_ends_the_prefix() {
    let yard = Yard::of(three(8, 4, 4));
    let prompt = text(1, 4);
    yard.scatter(&prompt, &[HOST, DISK, DISK, DISK]);
    let ticket = yard.cache.promise(2, DISK).unwrap();
    let (lease, begun) = yard.begin(&and_one(&prompt));
    assert_eq!(
        (ways(&begun.plans), begun.stop),
        (vec![(HOST, 1), (DISK, 2)], Stop::Promised)
    );
    yard.land(&begun.plans);
    yard.finish(lease);
    yard.cache.release(ticket).unwrap();
}
