//! Flush: what a clean stop copies to a tier that outlives the yard.

use crate::yard::{KINDS, Yard, cat, config, each_of, text, three};
use blockyard_core::{Error, Key, Plan, Tier};

const DEVICE: Tier = Tier::DEVICE;
const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;

fn unwritten(yard: &Yard, to: Tier) -> Vec<Key> {
    yard.cache
        .lock()
        .unwritten(to)
        .expect("there is such a tier")
}

fn keys(yard: &Yard, texts: &[&[u32]]) -> Vec<Key> {
    let chains = texts.iter().map(|text| yard.chain(text));
    chains.flat_map(|chain| chain.keys().to_vec()).collect()
}

/// Plans as much as there is room for.
fn write(yard: &Yard, to: Tier) -> Vec<Plan> {
    let mut locked = yard.cache.lock();
    let keys = locked.unwritten(to).expect("there is such a tier");
    let (instead, newer) = locked.outranked(to).expect("likewise");
    let (first, rest) = keys.split_at(newer);
    let (mut plans, gone) = locked.write_down(to, first, &instead).expect("likewise");
    assert!(gone <= instead.len());
    plans.extend(locked.write_down(to, rest, &[]).expect("likewise").0);
    plans
}

/// The same, and lands it; returns from where.
fn flush(yard: &Yard, to: Tier) -> Vec<Tier> {
    let plans = write(yard, to);
    yard.sound();
    yard.land(&plans);
    plans.iter().map(|plan| plan.from).collect()
}

/// Law: INV-39, INV-40
#[test]
fn the_last_to_be_evicted_is_first_and_each_block_is_behind_its_beginning() {
    for yard in each_of(KINDS, three(16, 8, 16)) {
        let (older, newer) = (text(1, 3), text(2, 3));
        yard.publish(&older);
        yard.publish(&newer);
        assert_eq!(unwritten(&yard, DISK), keys(&yard, &[&newer, &older]));
        assert_eq!(flush(&yard, DISK), [DEVICE]);
        assert_eq!(unwritten(&yard, DISK), []);
        assert_eq!(
            yard.cache.lock().written(DISK, &keys(&yard, &[&newer])),
            Ok(3)
        );
        assert_eq!(yard.host().idle, 0, "the host is passed by");
    }
}

/// Law: INV-40
#[test]
fn a_path_over_several_tiers_goes_down_whole_from_the_nearest() {
    let yard = Yard::of(three(8, 8, 16));
    let path = text(1, 4);
    yard.publish(&text(1, 2));
    yard.copy_down(2);
    yard.publish(&path);
    assert_eq!(unwritten(&yard, DISK), keys(&yard, &[&path]));
    assert_eq!(flush(&yard, DISK), [HOST, DEVICE]);
    yard.squeeze(yard.device().idle as u32);
    yard.squeeze_host(yard.host().idle as u32);
    assert_eq!(yard.hits(&path), [0, 0, 4, 0]);
}

/// Law: INV-39
#[test]
fn what_no_request_finds_is_left_out() {
    let yard = Yard::of(three(8, 8, 16));
    let path = text(1, 4);
    yard.scatter(&path, &[HOST, HOST, HOST, HOST]);
    let root = keys(&yard, &[&path])[0];
    let slot = {
        let mut locked = yard.cache.lock();
        let plan = locked.write_down(DISK, &[root], &[]).unwrap().0.remove(0);
        plan.sources[0]
    };
    let plans = yard.cache.lock().dispatch();
    yard.land(&plans);
    // The root lies on the disk alone, and then nowhere.
    yard.cache.lock().withdraw(HOST, &[slot]).unwrap();
    assert_eq!(unwritten(&yard, DISK), keys(&yard, &[&path])[1..]);
    let gone = yard.cache.lock().eviction_order(DISK).unwrap();
    yard.cache.lock().withdraw(DISK, &gone).unwrap();
    assert_eq!(unwritten(&yard, DISK), []);
    let ends = keys(&yard, &[&path])[1..].to_vec();
    let (plans, _) = yard.cache.lock().write_down(DISK, &ends, &[]).unwrap();
    assert!(
        plans.is_empty(),
        "INV-39: no copy whose beginning is nowhere"
    );
    yard.sound();
}

/// Law: INV-39, INV-40
#[test]
fn a_full_tier_gets_beginnings_and_loses_only_what_nobody_above_has() {
    let yard = Yard::of(three(16, 8, 5));
    let (gone, older, newer) = (text(1, 2), text(2, 3), text(3, 4));
    yard.publish(&gone);
    flush(&yard, DISK);
    yard.squeeze(yard.device().idle as u32);
    assert_eq!(yard.hits(&gone), [0, 0, 2, 0]);
    yard.publish(&older);
    yard.publish(&newer);
    flush(&yard, DISK);
    assert_eq!(yard.hits(&gone), [0, 0, 0, 0]);
    let left = unwritten(&yard, DISK);
    assert_eq!(
        left,
        keys(&yard, &[&older])[1..],
        "one of its blocks had room"
    );
    assert!(write(&yard, DISK).is_empty());
    yard.squeeze(yard.device().idle as u32);
    assert_eq!(
        (yard.hits(&newer), yard.hits(&older)),
        ([0, 0, 4, 0], [0, 0, 1, 0])
    );
}

#[test]
fn what_fails_is_listed_again_and_what_is_in_the_air_is_not_planned_twice() {
    let yard = Yard::of(three(8, 0, 8));
    let path = text(1, 3);
    yard.publish(&path);
    let all = unwritten(&yard, DISK);
    let plans = write(&yard, DISK);
    assert_eq!(unwritten(&yard, DISK), all, "it is not whole yet");
    assert!(write(&yard, DISK).is_empty());
    yard.fail(&plans[0], 1);
    assert_eq!(unwritten(&yard, DISK), all[1..]);
    flush(&yard, DISK);
    assert_eq!(unwritten(&yard, DISK), []);
}

#[test]
fn what_is_held_goes_down_and_what_was_cleared_does_not() {
    let yard = Yard::new(8, 8);
    yard.publish(&text(1, 2));
    yard.cache.lock().clear();
    let (shared, own) = (text(2, 2), cat(&text(2, 2), &text(3, 1)));
    yard.publish(&shared);
    let held = yard.run(&own);
    assert_eq!(unwritten(&yard, HOST), keys(&yard, &[&own]));
    flush(&yard, HOST);
    yard.finish(held);
    yard.squeeze(yard.device().idle as u32);
    assert_eq!(yard.hits(&own), [0, 3, 0, 0]);
}

#[test]
fn a_tier_remembers_when_blocks_were_used_and_not_when_they_were_copied() {
    let yard = Yard::of(three(16, 0, 16));
    let (first, second, third) = (text(1, 1), text(2, 1), text(3, 1));
    for text in [&first, &second, &third] {
        yard.publish(text);
    }
    flush(&yard, DISK);
    yard.publish(&first);
    // The third was copied first.
    let made = yard.cache.lock().eviction_order(DISK).unwrap();
    let used = yard.cache.lock().order_alone(DISK).unwrap();
    assert_eq!(used, [made[1], made[0], made[2]]);
}

#[test]
fn there_must_be_such_a_tier() {
    let yard = Yard::of(config(8, 0));
    let mut locked = yard.cache.lock();
    for to in [DEVICE, HOST, DISK] {
        let told = [
            locked.unwritten(to).map(drop),
            locked.outranked(to).map(drop),
            locked.write_down(to, &[], &[]).map(drop),
            locked.written(to, &[]).map(drop),
        ];
        for one in told {
            assert!(matches!(one, Err(Error::Argument { .. })), "{one:?}");
        }
    }
    assert!(locked.order_alone(DISK).is_err());
}

/// Law: INV-39
#[test]
fn what_was_copied_ahead_goes_for_what_is_newer_and_never_the_other_way() {
    for yard in each_of(KINDS, three(16, 0, 4)) {
        let (older, newer) = (text(1, 4), text(2, 3));
        yard.publish(&older);
        flush(&yard, DISK);
        assert_eq!(unwritten(&yard, DISK), []);
        yard.publish(&newer);
        flush(&yard, DISK);
        assert_eq!(unwritten(&yard, DISK), keys(&yard, &[&older])[1..]);
        assert!(write(&yard, DISK).is_empty(), "it is what is newest");
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(
            (yard.hits(&newer), yard.hits(&older)),
            ([0, 0, 3, 0], [0, 0, 1, 0])
        );
    }
}

/// Law: INV-22
#[test]
fn promises_that_end_hold_nothing_back() {
    let yard = Yard::of(three(16, 8, 8));
    yard.publish(&text(1, 3));
    let running = yard.run(&text(2, 1));
    let parked = yard.run(&text(3, 4));
    let parked = yard.park(parked, 16);
    let all = unwritten(&yard, DISK);
    let tickets = [DEVICE, DISK].map(|tier| {
        let mut locked = yard.cache.lock();
        let room = locked.room(tier).expect("likewise").available;
        locked
            .promise(room.unsigned_abs(), tier)
            .expect("there is room")
    });
    assert!(write(&yard, DISK).is_empty(), "they are kept");
    yard.cache.lock().end_promises();
    yard.sound();
    flush(&yard, DISK);
    assert_eq!(unwritten(&yard, DISK), []);
    assert_eq!(
        yard.cache.lock().written(DISK, &all),
        Ok(all.len() as u32),
        "what was parked, too"
    );
    for ticket in tickets {
        yard.cache
            .lock()
            .release_ticket(ticket)
            .expect("it is there");
    }
    yard.finish(running);
    yard.abandon(parked);
}
