//! Three tiers: what goes down from one to the next, what comes up to the host, and what is counted
//! on each. (INV-14, 20, 22, 33)

use crate::verbs::Verbs as _;
use crate::yard::{
    KINDS, OBEYING, Yard, and_one, by_age_of, cat, config, each_of, room, text, three,
};
use blockyard_core::{Cache, Config, Error, KeyHash, Namespace, Plan, Tier, WritePolicy};

const DEVICE: Tier = Tier::DEVICE;
const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;

fn yards(device: u32, host: u32, disk: u32) -> impl Iterator<Item = Yard> {
    each_of(KINDS, three(device, host, disk))
}

fn by_age(device: u32, host: u32, disk: u32) -> impl Iterator<Item = Yard> {
    by_age_of(three(device, host, disk))
}

fn way(plan: &Plan) -> (Tier, Tier, u32) {
    (plan.from, plan.to, plan.len() as u32)
}

/// Leaves copies of a text's blocks on the third tier, under the device's.
fn back_up(yard: &Yard, text: &[u32]) {
    let host = yard.host().capacity as u32;
    yard.resize(HOST, 0);
    yard.publish(text);
    let plan = yard.demote(u32::MAX).expect("something to copy");
    assert_eq!(way(&plan), (DEVICE, DISK, text.len() as u32 / 4));
    yard.land(&[plan]);
    yard.resize(HOST, host);
}

// What there may be.

#[test]
fn a_tier_more_than_the_most_is_refused() {
    let slots = vec![4; blockyard_core::MAX_TIERS + 1];
    let many = Config {
        slots,
        ..config(8, 8)
    };
    let refused = Cache::new(many, KeyHash::default(), &Namespace::default());
    let refused = refused.expect_err("four are the most").to_string();
    assert!(refused.starts_with("tiers = 5: "), "{refused}");
}

/// Law: 2.3-down-ok
#[test]
fn a_host_without_slots_is_passed_over_by_every_verb() {
    for yard in yards(8, 0, 8) {
        yard.ends_busy();
        let prompt = text(1, 3);
        yard.publish(&prompt);
        assert_eq!(way(&yard.demote(2).unwrap()), (DEVICE, DISK, 2));
        let lease = yard.run(&text(2, 2));
        assert_eq!(way(&yard.demote_lease(&lease, 2)), (DEVICE, DISK, 2));
        yard.finish(lease);
        let parked = yard.park(yard.run(&text(3, 2)), 8);
        assert_eq!((yard.host().promised, yard.disk().promised), (0, 2));
        let plan = yard.demote_parked(&parked, 2).unwrap();
        assert_eq!(way(&plan), (DEVICE, DISK, 2));
        yard.land(&[plan]);
        yard.squeeze(2);
        let (lease, begun) = yard.resume(parked);
        assert_eq!((way(&begun.plans[0]), begun.cached), ((DISK, DEVICE, 2), 8));
        yard.land(&begun.plans);
        yard.finish(lease);
    }
}

#[test]
fn the_lowest_tier_has_nowhere_to_copy_to() {
    for yard in yards(8, 4, 4) {
        back_up(&yard, &text(1, 3));
        yard.squeeze(3);
        assert_eq!(yard.hits(&text(1, 3)), [0, 0, 3, 0]);
        assert_eq!(yard.demote_from(DISK, 4), None);
        yard.resize(DISK, 0);
        yard.publish_below(&text(2, 2));
        assert_eq!(yard.demote_from(HOST, 4), None, "nor has the host now");
    }
}

// What goes down.

/// Law: 2.3-down-ok
#[test]
fn the_next_victims_of_the_host_go_to_the_third_tier_and_are_evicted_without_loss() {
    for yard in yards(12, 4, 8) {
        let prompt = text(1, 4);
        yard.publish_below(&prompt);
        let plan = yard.demote_from(HOST, 2).unwrap();
        assert_eq!(way(&plan), (HOST, DISK, 2));
        assert_eq!(
            yard.demote_from(HOST, 2),
            None,
            "the next two are on their way"
        );
        yard.land(&[plan]);
        assert_eq!(
            yard.hits(&prompt),
            [0, 4, 0, 0],
            "each counts on its highest tier"
        );
        yard.squeeze_host(2);
        assert_eq!(yard.hits(&prompt), [0, 2, 2, 0], "the leaves went first");
    }
}

/// Law: 2.3-down-ok
#[test]
fn what_has_a_copy_on_any_lower_tier_is_not_copied_again() {
    for yard in yards(8, 4, 8) {
        let prompt = text(1, 3);
        let lease = yard.run(&cat(&prompt, &text(2, 1)));
        yard.resize(HOST, 0);
        let below = yard.demote_lease(&lease, 2);
        yard.resize(HOST, 4);
        for _ in 0..2 {
            // In flight or landed: it goes to the host no more.
            let plan = yard.cache.lock().demote_lease(lease.id(), 1).unwrap();
            let plan = plan.unwrap();
            assert_eq!(plan.sources, [yard.table(&lease)[2]]);
            yard.fail(&plan, 0);
            yard.cache.landed(std::slice::from_ref(&below)).unwrap();
        }
        yard.finish(lease);
        let plan = yard.demote(4).unwrap();
        assert_eq!(way(&plan), (DEVICE, HOST, 2), "the other two");
        yard.land(&[plan]);
        assert_eq!(yard.demote(4), None);
        assert_eq!((yard.host().idle, yard.disk().idle), (2, 2));
    }
}

/// Law: 4.2-15
#[test]
fn what_the_device_has_too_and_what_is_of_an_ended_epoch_is_passed_over() {
    for yard in yards(8, 8, 8) {
        yard.publish(&text(1, 3));
        yard.copy_down(3);
        assert_eq!(yard.demote_from(HOST, 3), None, "shadows");
        yard.squeeze(1);
        let plan = yard.demote_from(HOST, 3).unwrap();
        assert_eq!(way(&plan), (HOST, DISK, 1));
        yard.fail(&plan, 0);
        yard.cache.lock().clear();
        yard.sound();
        assert_eq!(yard.demote_from(HOST, 3), None);
    }
}

/// Law: 4.2-15
#[test]
fn a_copy_down_costs_no_nearer_victim_its_own() {
    for yard in yards(12, 6, 2) {
        yard.publish_below(&text(1, 3));
        yard.land(yard.demote_from(HOST, 2).as_slice());
        // The third slot would be that of a block that leaves the host before this one.
        assert_eq!(yard.demote_from(HOST, 3), None);
        yard.squeeze_host(1 + 2);
        assert_eq!(yard.hits(&text(1, 3)), [0, 0, 0, 0], "the root had no copy");
        assert_eq!(yard.disk().idle, 2);
    }
}

/// Law: INV-14
#[test]
fn no_copy_down_takes_the_backing_of_a_promise_of_the_third_tier() {
    for yard in yards(12, 8, 4) {
        yard.publish_below(&text(1, 4));
        let ticket = yard.cache.promise(3, DISK).unwrap();
        let plan = yard.demote_from(HOST, 4).unwrap();
        assert_eq!(way(&plan), (HOST, DISK, 1));
        yard.overdue(&plan);
        assert_eq!((yard.disk().quarantined, yard.disk().promised), (1, 3));
        yard.fail(&plan, 0);
        yard.cache.release(ticket).unwrap();
    }
}

/// Law: 4.2-15
#[test]
fn each_tier_has_a_write_policy_of_its_own() {
    for yard in each_of(
        KINDS,
        Config {
            write: WritePolicy::OnEvict,
            writes_below: vec![WritePolicy::SecondTouch],
            ..three(12, 12, 12)
        },
    ) {
        let (once, twice) = (text(1, 2), text(2, 2));
        yard.publish_below(&once);
        yard.publish_below(&twice);
        assert_eq!(yard.demote_from(HOST, 4), None, "each was used once");
        let (lease, begun) = yard.begin(&and_one(&twice));
        yard.land(&begun.plans);
        yard.finish(lease);
        yard.squeeze(2);
        let plan = yard.demote_from(HOST, 4).unwrap();
        assert_eq!(way(&plan), (HOST, DISK, 2));
        yard.land(&[plan]);
        yard.resize(HOST, 0);
        let hits = [yard.hits(&once), yard.hits(&twice)];
        assert_eq!(hits, [[0; 4], [0, 0, 2, 0]]);
    }
}

/// Law: 4.2-15
#[test]
fn through_copies_on_what_has_landed_on_the_host_in_that_order() {
    for yard in each_of(
        KINDS,
        Config {
            writes_below: vec![WritePolicy::Through],
            ..three(12, 12, 12)
        },
    ) {
        let leases = [1, 2].map(|name| yard.run(&text(name, 2)));
        let landed = [&leases[1], &leases[0], &leases[1]].map(|lease| {
            let plan = yard.demote_lease(lease, 1);
            let slot = plan.destinations[0];
            yard.land(&[plan]);
            slot
        });
        let plan = yard.demote_from(HOST, 2).unwrap();
        assert_eq!(plan.sources, landed[..2], "though the device has them too");
        yard.fail(&plan, 1);
        let plan = yard.demote_from(HOST, 9).unwrap();
        assert_eq!(
            plan.sources,
            [landed[2], landed[1]],
            "what failed goes last"
        );
        yard.land(&[plan]);
        assert_eq!(yard.demote_from(HOST, 9), None);
        for lease in leases {
            yard.finish(lease);
        }
    }
}

/// Law: 2.3-down-failed
#[test]
fn failures_are_counted_for_the_tier_that_they_came_from() {
    for yard in each_of(
        KINDS,
        Config {
            copy_retries: 0,
            ..three(12, 8, 8)
        },
    ) {
        yard.ends_busy();
        let prompt = text(1, 1);
        let lease = yard.run(&prompt);
        let named = yard.demote_lease(&lease, 1);
        yard.fail(&named, 0);
        yard.land(&[yard.demote_lease(&lease, 1)]);
        yard.finish(lease);
        yard.squeeze(1);
        let plan = yard.demote_from(HOST, 1).expect("the host's first try");
        yard.fail(&plan, 0);
        assert_eq!(yard.demote_from(HOST, 1), None, "and its last");
        yard.publish(&prompt);
        yard.resize(HOST, 0);
        assert!(yard.demote(1).is_some(), "the device's was good since");
    }
}

// What comes up to the host alone.

/// Law: 2.3-up-ok
#[test]
fn a_prefix_comes_up_to_the_host_and_its_copies_below_stay() {
    for yard in yards(8, 8, 8) {
        let prompt = text(1, 3);
        yard.scatter(&prompt, &[DISK; 3]);
        let plans = yard.promote_to(&prompt, 2, HOST);
        assert_eq!(plans.iter().map(way).collect::<Vec<_>>(), [(DISK, HOST, 2)]);
        assert_eq!(yard.cache.lock().in_flight(DISK, HOST), Ok(2));
        assert_eq!(yard.cache.lock().blocks_in_flight(), (0, 2));
        let last = yard.promote_to(&prompt, 2, HOST);
        assert_eq!(last[0].sources.len(), 1, "two are on their way");
        yard.fail(&last[0], 0);
        assert_eq!(yard.hits(&prompt), [0, 0, 3, 0], "not before it has landed");
        yard.land(&plans);
        assert_eq!((yard.hits(&prompt), yard.disk().idle), ([0, 2, 1, 0], 3));
    }
}

/// Law: 2.3-up-ok
#[test]
fn no_block_of_a_prefix_makes_room_for_another_that_comes_up_to_the_host() {
    for yard in yards(12, 3, 8) {
        let prompt = text(1, 3);
        yard.scatter(&prompt, &[DISK, HOST, HOST]);
        yard.publish_below(&text(2, 1));
        assert_eq!(yard.host().free, 0);
        assert_eq!(
            yard.promote_to(&prompt, 9, HOST),
            [],
            "its own is the oldest"
        );
        assert_eq!(yard.hits(&prompt), [0, 2, 1, 0]);
        yard.squeeze_host(1);
        assert_eq!(yard.hits(&prompt), [0, 1, 1, 0]);
    }
}

/// Law: 2.3-up-ok
#[test]
fn what_has_come_up_to_the_host_is_evicted_last() {
    for yard in yards(12, 4, 8) {
        let (old, prompt) = (text(2, 2), text(1, 2));
        yard.scatter(&prompt, &[DISK; 2]);
        yard.publish_below(&old);
        yard.land(&yard.promote_to(&prompt, 9, HOST));
        yard.squeeze_host(2);
        assert_eq!(
            [yard.hits(&prompt), yard.hits(&old)],
            [[0, 2, 0, 0], [0; 4]]
        );
    }
}

#[test]
fn a_copy_up_to_the_host_makes_room_with_what_is_older() {
    for yard in yards(12, 2, 8) {
        let (old, prompt) = (text(2, 2), text(1, 2));
        yard.scatter(&prompt, &[DISK; 2]);
        yard.publish_below(&old);
        let plans = yard.promote_to(&prompt, 9, HOST);
        yard.land(&plans);
        assert_eq!(
            (yard.hits(&prompt), yard.hits(&old)),
            ([0, 2, 0, 0], [0, 0, 0, 0])
        );
        let ticket = yard.cache.promise(2, HOST).unwrap();
        yard.publish(&text(3, 1));
        assert_eq!(yard.demote(1), None, "promised");
        yard.cache.release(ticket).unwrap();
    }
}

/// Law: 2.3-up-failed, 2.3-up-unknown
#[test]
fn a_copy_up_to_the_host_may_fail_be_corrupt_or_never_end() {
    for yard in yards(8, 4, 4) {
        let prompt = text(1, 3);
        yard.scatter(&prompt, &[DISK; 3]);
        let up = || yard.promote_to(&prompt, 3, HOST).pop().unwrap();
        let plan = up();
        yard.overdue(&plan);
        assert_eq!(
            (yard.host().quarantined, yard.hits(&prompt)),
            (3, [0, 0, 3, 0])
        );
        yard.fail(&plan, 3);
        yard.fail(&up(), 1);
        assert_eq!(yard.hits(&prompt), [0, 1, 2, 0]);
        yard.corrupt(&up(), 1);
        assert_eq!(yard.hits(&prompt), [0, 2, 0, 0], "the third is nowhere");
        assert_eq!((yard.stats().counters.corrupt, yard.disk().idle), (1, 2));
    }
}

#[test]
fn a_promote_to_a_tier_without_slots_names_its_argument() {
    let yard = Yard::of(three(8, 0, 4));
    let chain = yard.chain(&text(1, 2));
    for (tier, name) in [(HOST, "host"), (Tier(9), "tier")] {
        let refused = yard.cache.lock().promote(chain.keys(), 2, tier);
        let Err(Error::Argument {
            name: "to", value, ..
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(value, name);
    }
    let parked = yard.park(yard.run(&text(1, 2)), 8);
    for tier in [DEVICE, HOST] {
        let refused = yard.cache.lock().demote_parked(parked.id(), 2, Some(tier));
        let Err(Error::Argument { name: "to", .. }) = refused else {
            panic!("{refused:?}");
        };
    }
    yard.abandon(parked);
}

// Which goes first.

/// Law: INV-33
#[test]
fn from_the_root_down_the_device_comes_before_all_others_and_they_may_alternate() {
    for yard in yards(8, 8, 8) {
        let prompt = text(1, 5);
        yard.scatter(&prompt, &[HOST, DISK, HOST, DISK, HOST]);
        let plans = yard.promote_to(&prompt, 2, DEVICE);
        assert_eq!(plans.len(), 2);
        yard.land(&plans);
        assert_eq!(yard.hits(&prompt), [2, 2, 1, 0]);
        yard.squeeze(1);
        assert_eq!(yard.hits(&prompt), [1, 2, 2, 0]);
        yard.squeeze(1);
        assert_eq!(yard.hits(&prompt), [0, 3, 2, 0]);
    }
}

/// Law: INV-20g, INV-33
#[test]
fn a_block_is_evicted_from_a_tier_only_when_it_has_no_child_there() {
    for yard in by_age(12, 4, 8) {
        let prompt = text(1, 4);
        // The root has a child on the third tier alone, and may go; the last two go leaf first.
        yard.scatter(&prompt, &[HOST, DISK, HOST, HOST]);
        let root = text(1, 1);
        let evict = |left: [u32; 2]| {
            yard.squeeze_host(1);
            let on_host = yard.host().idle as u32;
            assert_eq!(on_host, 4, "what took its place");
            assert_eq!([yard.hits(&root)[1], yard.hits(&prompt)[1]], left);
        };
        evict([1, 2]);
        evict([1, 1]);
        evict([0, 0]);
        assert_eq!(yard.disk().idle, 1, "found again when its parent is");
        yard.publish(&root);
        assert_eq!(yard.hits(&prompt), [1, 0, 1, 0]);
    }
}

/// Law: INV-20d
#[test]
fn dropping_a_device_copy_touches_the_copies_on_every_tier_below() {
    for yard in each_of(OBEYING, three(8, 4, 2)) {
        let [early, late] = [1, 2].map(|name| text(name, 1));
        for prompt in [&early, &late] {
            yard.publish_below(prompt);
            yard.land(yard.demote_from(HOST, 4).as_slice());
            let (lease, begun) = yard.begin(&and_one(prompt));
            yard.land(&begun.plans);
            yard.finish(lease);
        }
        // Used again: it leaves the device after the other, and then each tier below.
        yard.publish(&and_one(&early));
        yard.squeeze(2);
        yard.squeeze_host(1);
        assert_eq!(
            [yard.hits(&early), yard.hits(&late)],
            [[0, 1, 0, 0], [0, 0, 1, 0]]
        );
        yard.squeeze(yard.device().idle as u32);
        yard.land(&[yard.demote_from(HOST, 2).unwrap()]);
        yard.resize(HOST, 0);
        assert_eq!(
            [yard.hits(&early), yard.hits(&late)],
            [[0, 0, 1, 0], [0; 4]]
        );
    }
}

// What is counted.

/// Law: INV-16, INV-22, 2.7-2
#[test]
fn room_limits_and_tickets_are_there_for_every_tier() {
    let yard = Yard::of(three(8, 4, 6));
    let state = || yard.cache.lock();
    assert_eq!(
        [DEVICE, HOST, DISK].map(|tier| state().limit(tier).unwrap()),
        [8, 4, 6]
    );
    let ticket = yard.cache.promise(5, DISK).unwrap();
    let disk = state().room(DISK).unwrap();
    assert_eq!((disk.free, disk.promised, disk.available), (6, 5, 1));
    assert_eq!(state().room(HOST).unwrap().promised, 0);
    assert_eq!(room(yard.cache.promise(2, DISK).unwrap_err()), (2, 6, 0, 5));
    let large = yard.cache.promise(7, DISK).unwrap_err();
    assert!(matches!(
        large,
        Error::TooLarge {
            tier: DISK,
            need: 7,
            capacity: 6
        }
    ));
    let holders = state().holders();
    assert_eq!(holders[0].promised[..3], [0, 0, 5]);
    state().clear();
    let refused = state().resize(DISK, 4);
    assert_eq!(
        refused,
        Err(Error::InUse {
            tier: DISK,
            want: 4,
            used: 5
        })
    );
    yard.resize(DISK, 5);
    yard.cache.release(ticket).unwrap();
    assert!(state().room(Tier(3)).is_err() && state().in_flight(HOST, Tier(3)).is_err());
}

/// Law: INV-22
#[test]
fn a_ticket_of_a_tier_keeps_its_slots_where_it_has_none_now() {
    let yard = Yard::of(three(8, 0, 4));
    let never = yard.cache.promise(1, HOST).unwrap_err();
    assert!(matches!(
        never,
        Error::TooLarge {
            tier: HOST,
            need: 1,
            capacity: 0
        }
    ));
    yard.resize(HOST, 2);
    yard.cache
        .release(yard.cache.promise(1, HOST).unwrap())
        .unwrap();
}

/// Law: INV-6
#[test]
fn blocks_in_flight_are_told_by_the_tiers_that_they_go_between() {
    let yard = Yard::of(three(12, 8, 8));
    yard.scatter(&text(1, 4), &[HOST, HOST, DISK, DISK]);
    yard.publish(&text(2, 1));
    let down = [yard.demote(1).unwrap(), yard.demote_from(HOST, 2).unwrap()];
    let up = yard.promote_to(&text(1, 4), 9, DEVICE);
    let state = || yard.cache.lock();
    let between = |from, to| state().in_flight(from, to).unwrap();
    assert_eq!(
        [
            between(DEVICE, HOST),
            between(HOST, DISK),
            between(DEVICE, DISK)
        ],
        [1, 2, 0]
    );
    assert_eq!(
        [
            between(HOST, DEVICE),
            between(DISK, DEVICE),
            between(DISK, HOST)
        ],
        [2, 2, 0]
    );
    assert_eq!(state().blocks_in_flight(), (3, 4));
    assert_eq!(
        [DEVICE, HOST, DISK].map(|tier| state().in_flight_of(tier).unwrap()),
        [(1, 4), (2, 2), (0, 0)]
    );
    yard.overdue(&down[1]);
    assert_eq!(between(HOST, DISK), 0, "no more");
    yard.fail(&down[1], 0);
    yard.land(&down[..1]);
    yard.land(&up);
}

/// Law: INV-16
#[test]
fn what_was_evicted_and_found_is_counted_by_tier() {
    let yard = Yard::of(three(8, 4, 4));
    yard.scatter(&text(1, 3), &[HOST, DISK, DISK]);
    let (lease, begun) = yard.begin(&and_one(&text(1, 3)));
    yard.land(&begun.plans);
    yard.finish(lease);
    assert_eq!(yard.stats().counters.hits[..3], [0, 1, 2]);
    let before = yard.stats().counters.evicted;
    yard.resize(DISK, 0);
    let after = yard.stats().counters.evicted;
    assert_eq!([after[1] - before[1], after[2] - before[2]], [0, 2]);
}

// What a clear and a resize do.

/// Law: INV-24
#[test]
fn a_clear_reaches_every_tier_and_breaks_what_is_kept_there() {
    for yard in yards(8, 4, 6) {
        yard.scatter(&text(1, 3), &[HOST, DISK, DISK]);
        let parked = yard.park_on(&text(2, 2), &[HOST, DISK]);
        let plans = yard.promote_to(&text(1, 3), 9, HOST);
        yard.cache.lock().clear();
        yard.sound();
        assert!(yard.broken(&parked));
        assert_eq!(
            [yard.hits(&text(1, 3)), yard.hits(&text(2, 2))],
            [[0; 4]; 2]
        );
        yard.land(&plans);
        assert_eq!((yard.host().pinned, yard.disk().pinned), (0, 0));
        assert_eq!(yard.host().idle, 2, "what was in flight landed as free");
        yard.abandon(parked);
    }
}

/// Law: 2.7-3
#[test]
fn the_third_tier_grows_and_shrinks_like_any_other() {
    for yard in yards(8, 0, 2) {
        yard.publish_below(&text(1, 2));
        yard.resize(DISK, 4);
        yard.publish_below(&text(2, 2));
        assert_eq!((yard.disk().capacity, yard.disk().idle), (4, 4));
        let plans = yard.promote_to(&text(2, 2), 9, DEVICE);
        yard.resize(DISK, 2);
        assert_eq!(
            yard.disk().capacity,
            4,
            "those that are read retire when they are not"
        );
        yard.land(&plans);
        assert_eq!((yard.disk().capacity, yard.disk().idle), (2, 2));
        assert_eq!(
            [yard.hits(&text(1, 2)), yard.hits(&text(2, 2))],
            [[0, 0, 2, 0], [2, 0, 0, 0]]
        );
    }
}
