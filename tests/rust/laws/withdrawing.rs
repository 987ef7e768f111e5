//! Table 2.7: withdraw. The memory of some slots is gone, as where one of several disks has died.

use crate::verbs::Verbs as _;
use crate::yard::{Yard, config, text, three};
use blockyard_core::{Config, Error, Key, Stop, Tier};

const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;

fn withdraw(yard: &Yard, tier: Tier, slots: &[u32]) -> Result<u64, Error> {
    let withdrawn = yard.cache.lock().withdraw(tier, slots);
    yard.sound();
    withdrawn
}

/// Leaves a text's blocks on the host alone; returns their slots.
fn below(yard: &Yard, text: &[u32], blocks: u32) -> Vec<u32> {
    let lease = yard.run(text);
    let plan = yard.demote_lease(&lease, blocks);
    let slots = plan.destinations.clone();
    yard.land(&[plan]);
    yard.finish(lease);
    yard.squeeze(yard.device().idle as u32);
    slots
}

/// Law: 2.7-5
#[test]
fn what_was_in_the_slots_is_dropped_and_all_else_stays() {
    let yard = Yard::new(8, 8);
    let slots = below(&yard, &text(1, 4), 4);
    assert_eq!(withdraw(&yard, HOST, &[slots[1]]), Ok(1));
    assert_eq!(yard.hits(&text(1, 4)), [0, 1, 0, 0], "up to the hole");
    let host = yard.host();
    assert_eq!((host.capacity, host.idle, host.free), (7, 3, 4));
    assert_eq!(yard.stats().counters.evicted[1], 0);
    // When the block is there again, what follows it is found again.
    let again = below(&yard, &text(1, 4), 1);
    assert!(!slots.contains(&again[0]), "it lies elsewhere now");
    assert_eq!(yard.hits(&text(1, 4)), [0, 4, 0, 0]);
}

/// Law: 2.7-5
#[test]
fn withdrawn_slots_are_given_out_no_more() {
    let yard = Yard::new(8, 6);
    assert_eq!(withdraw(&yard, HOST, &[1, 3, 5]), Ok(0));
    assert_eq!(yard.cache.lock().limit(HOST), Ok(3));
    for name in 1..5 {
        let slots = below(&yard, &text(name, 3), 3);
        assert!(slots.iter().all(|slot| slot % 2 == 0), "{slots:?}");
    }
    assert_eq!(yard.host().capacity, 3);
    // Nothing that needs more than is left is waited for.
    let lease = yard.run(&text(9, 4));
    assert!(matches!(
        yard.cache.park(lease, 16),
        Err((_, Error::TooLarge { capacity: 3, .. }))
    ));
}

/// Law: 2.7-5
#[test]
fn a_slot_in_flight_leaves_when_its_copy_has_ended() {
    for good in [true, false] {
        let yard = Yard::new(8, 4);
        let lease = yard.run(&text(1, 2));
        let plan = yard.demote_lease(&lease, 2);
        assert_eq!(withdraw(&yard, HOST, &plan.destinations), Ok(0));
        assert_eq!((yard.host().capacity, yard.host().pinned), (4, 2));
        if good {
            yard.land(&[plan]);
        } else {
            yard.fail(&plan, 0);
        }
        assert_eq!((yard.host().capacity, yard.host().free), (2, 2));
        yard.finish(lease);
    }
}

/// What is below it in its sequence lands elsewhere, and keeps nothing of it.
/// Law: 2.7-5
#[test]
fn what_a_copy_brings_to_a_withdrawn_slot_is_found_by_nobody() {
    for lost in 0..3 {
        let yard = Yard::new(8, 6);
        let lease = yard.run(&text(1, 3));
        let plan = yard.demote_lease(&lease, 3);
        let slot = plan.destinations[lost];
        assert_eq!(withdraw(&yard, HOST, &[slot]), Ok(0));
        yard.land(&[plan]);
        assert_eq!((yard.host().capacity, yard.host().idle), (5, 2));
        // It is copied again, to another slot.
        let again = yard.demote_lease(&lease, 3);
        assert_eq!(again.len(), 1);
        assert_ne!(again.destinations, [slot]);
        yard.finish(lease);
        yard.land(&[again]);
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(yard.hits(&text(1, 3)), [0, 3, 0, 0]);
    }
}

/// Nobody waits for it either: its block counts as missing at once.
/// Law: 2.7-5
#[test]
fn what_comes_up_to_a_withdrawn_slot_is_read_where_it_was() {
    let yard = Yard::of(three(8, 4, 4));
    let keys = yard.chain(&text(1, 2)).keys().to_vec();
    let parents = [Key([0; 32]), keys[0]];
    let told = yard.cache.lock().restore(DISK, &[0, 1], &keys, &parents);
    told.unwrap();
    let plans = yard.cache.lock().promote(&keys, 2, HOST).unwrap();
    assert_eq!(withdraw(&yard, HOST, &plans[0].destinations), Ok(0));
    yard.land(&plans);
    assert_eq!((yard.host().capacity, yard.host().free), (2, 2));
    assert_eq!(yard.hits(&text(1, 2)), [0, 0, 2, 0]);
}

/// It goes down once more, to another slot, and nothing of it is computed again.
/// Law: 2.7-5
#[test]
fn a_kept_block_on_its_way_to_a_withdrawn_slot_stays_kept() {
    for resumes in [true, false] {
        let yard = Yard::new(12, 12);
        let parked = yard.park(yard.run(&text(1, 3)), 12);
        let plan = yard.demote_parked(&parked, 9).unwrap();
        let slot = plan.destinations[0];
        assert_eq!(withdraw(&yard, HOST, &[slot]), Ok(0));
        yard.land(&[plan]);
        assert!(!yard.broken(&parked));
        let again = yard.demote_parked(&parked, 9).unwrap();
        assert_eq!(again.len(), 1);
        assert_ne!(again.destinations, [slot]);
        yard.land(&[again]);
        if resumes {
            let (lease, begun) = yard.resume(parked);
            yard.land(&begun.plans);
            assert_eq!(yard.view(&lease).cached, 12);
            yard.finish(lease);
        } else {
            yard.abandon(parked);
        }
        assert_eq!(yard.host().capacity, 11);
    }
}

/// Law: 2.7-5
#[test]
fn a_slot_that_is_read_leaves_when_the_copy_has_ended() {
    let yard = Yard::new(8, 4);
    let slots = below(&yard, &text(1, 2), 2);
    let plan = yard.promote(&text(1, 2), 2).unwrap();
    assert_eq!(withdraw(&yard, HOST, &slots), Ok(2));
    assert_eq!((yard.host().capacity, yard.host().quarantined), (4, 2));
    yard.land(&[plan]);
    assert_eq!((yard.host().capacity, yard.host().free), (2, 2));
    assert_eq!(yard.hits(&text(1, 2)), [2, 0, 0, 0], "what came is good");
}

/// Law: 2.7-5
#[test]
fn parked_sequences_that_kept_a_block_there_are_computed_again_and_no_others() {
    for recompute in [true, false] {
        let yard = Yard::of(Config {
            recompute,
            ..config(12, 12)
        });
        let park = |name| {
            let parked = yard.park(yard.run(&text(name, 3)), 12);
            let plan = yard.demote_parked(&parked, 9).unwrap();
            let slots = plan.destinations.clone();
            yard.land(&[plan]);
            (parked, slots)
        };
        let ((old, there), (other, _)) = (park(1), park(2));
        assert_eq!(withdraw(&yard, HOST, &there[1..2]), Ok(1));
        assert_eq!([&old, &other].map(|one| yard.broken(one)), [true, false]);
        let (lease, begun) = yard.resume(other);
        yard.land(&begun.plans);
        assert_eq!(yard.view(&lease).cached, 12);
        yard.finish(lease);
        yard.abandon(old);
    }
}

/// Where what is left does not back all promises, the youngest keeps go first; where tickets alone
/// are in the way it is refused.
/// Law: 2.7-5
#[test]
fn what_tickets_were_promised_stays_backed_or_nothing_is_changed() {
    let yard = Yard::new(12, 6);
    let parked = yard.park(yard.run(&text(1, 2)), 8);
    let ticket = yard.cache.promise(3, HOST).unwrap();
    assert_eq!(withdraw(&yard, HOST, &[0]), Ok(0));
    assert!(!yard.broken(&parked));
    assert_eq!(withdraw(&yard, HOST, &[1]), Ok(0));
    assert!(yard.broken(&parked), "three slots of four are promised");
    assert_eq!(withdraw(&yard, HOST, &[2]), Ok(0));
    let before = (yard.stats(), yard.cache.lock().digest());
    let refused = Error::InUse {
        tier: HOST,
        want: 2,
        used: 3,
    };
    assert_eq!(withdraw(&yard, HOST, &[2, 5]), Err(refused));
    assert_eq!(before, (yard.stats(), yard.cache.lock().digest()));
    drop(ticket);
    assert_eq!(withdraw(&yard, HOST, &[2, 5]), Ok(0));
    yard.abandon(parked);
}

/// A copy in flight to a block below one that is dropped does not block what is above it.
/// Law: 2.7-5
#[test]
fn what_is_left_above_a_dropped_block_backs_promises() {
    let yard = Yard::new(12, 4);
    let lease = yard.run(&text(1, 3));
    let plan = yard.demote_lease(&lease, 2);
    let slots = plan.destinations.clone();
    yard.land(&[plan]);
    let last = yard.demote_lease(&lease, 1);
    let free = (0..4).find(|slot| !slots.contains(slot) && *slot != last.destinations[0]);
    let ticket = yard.cache.promise(1, HOST).unwrap();
    assert!(yard.cache.promise(1, HOST).is_err(), "the copy blocks both");
    // No slot is free then, and the first block can be evicted.
    let gone = [slots[1], free.unwrap()];
    assert_eq!(withdraw(&yard, HOST, &gone), Ok(1));
    assert_eq!((yard.host().free, yard.host().takeable), (0, 1));
    yard.land(&[last]);
    drop(ticket);
    yard.finish(lease);
}

/// An orphan of which nothing but a copy in flight is left is waited for as any other block.
/// Law: 2.7-5
#[test]
fn an_orphan_whose_source_is_gone_is_in_flight() {
    let yard = Yard::of(three(8, 4, 4));
    let keys = yard.chain(&text(1, 3)).keys().to_vec();
    let told = yard
        .cache
        .lock()
        .restore(HOST, &[3], &keys[2..], &keys[1..2]);
    told.unwrap();
    yard.finish(yard.run(&text(1, 2)));
    let plan = yard.demote_from(HOST, 1).unwrap();
    assert_eq!(yard.probe(&text(1, 3)).stop, Stop::Promised, "it is read");
    assert_eq!(withdraw(&yard, HOST, &[3]), Ok(1));
    assert_eq!(yard.probe(&text(1, 3)).stop, Stop::Filling(plan.flight));
    yard.land(&[plan]);
    assert_eq!(yard.hits(&text(1, 3)), [2, 0, 1, 0]);
}

/// Law: 2.7-5
#[test]
fn a_tier_that_has_lost_all_of_its_slots_is_passed_over() {
    let yard = Yard::of(three(8, 2, 4));
    yard.ends_busy();
    assert_eq!(withdraw(&yard, HOST, &[0, 1]), Ok(0));
    assert_eq!(yard.cache.lock().limit(HOST), Ok(0));
    let parked = yard.park(yard.run(&text(1, 2)), 8);
    assert_eq!(yard.demote_parked(&parked, 9).unwrap().to, DISK);
    yard.publish(&text(2, 1));
    assert_eq!(yard.demote(1).unwrap().to, DISK);
}

/// Law: 2.7-5
#[test]
fn a_resize_brings_no_withdrawn_slot_back() {
    let yard = Yard::new(8, 8);
    assert_eq!(withdraw(&yard, HOST, &[2, 6]), Ok(0));
    for (slots, left) in [(4, 3), (8, 6), (10, 8)] {
        yard.resize(HOST, slots);
        let limit = yard.cache.lock().limit(HOST);
        assert_eq!((yard.host().capacity, limit), (left, Ok(left as u32)));
    }
    let all = below(&yard, &text(1, 8), 8);
    assert!(!all.contains(&2) && !all.contains(&6), "{all:?}");
}

/// Law: 2.7-5
#[test]
fn bad_input_is_named_and_changes_nothing() {
    let yard = Yard::new(8, 4);
    assert_eq!(withdraw(&yard, HOST, &[1]), Ok(0));
    let digest = || yard.cache.lock().digest();
    let before = digest();
    for (tier, slots, name) in [
        (Tier::DEVICE, 2, "tier"),
        (DISK, 2, "tier"),
        (HOST, 4, "slots"),
    ] {
        match withdraw(&yard, tier, &[slots]) {
            Err(Error::Argument { name: found, .. }) => assert_eq!(found, name),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(withdraw(&yard, HOST, &[1, 1]), Ok(0), "it was before");
    assert_eq!(digest(), before);
    let key = Key([7; 32]);
    let restored = yard
        .cache
        .lock()
        .restore(HOST, &[1], &[key], &[Key([0; 32])]);
    assert!(matches!(restored, Err(Error::Argument { .. })));
    assert_eq!(digest(), before);
    assert_eq!(withdraw(&yard, HOST, &[2]), Ok(0));
    assert_ne!(digest(), before);
}
