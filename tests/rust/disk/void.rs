//! Records that are voided, of keys and roots and of all that stands on them: durable when it is reported,
//! and nothing else goes. (INV-42)

use crate::lane::{Noted, Numbers, SOON, landed, stamped, whole};
use crate::support::{Chance, SLOTS, crashing_disk, key, over, payload};
use blockyard_disk::{
    Blocks, CrashingDisk, Family, Key, Landed, Lane, Options, Owner, Record, Short,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn root(number: u8) -> Key {
    let mut root = [0; 32];
    (root[16], root[31]) = (1, number);
    root
}

fn write(blocks: &Blocks, slot: u32, owner: Owner, stamp: u64) -> Record {
    let number = u64::from_le_bytes(owner.key()[..8].try_into().unwrap());
    blocks.write(slot, owner, stamp, &payload(number)).unwrap()
}

fn after(number: u64, above: u64) -> Owner {
    Owner::After {
        key: key(number),
        parent: key(above),
    }
}

fn first(number: u64, of: u8) -> Owner {
    Owner::Rooted {
        key: key(number),
        root: root(of),
    }
}

fn family(keys: &[Key], before: u64) -> Family {
    Family {
        keys: keys.to_vec(),
        spared: Vec::new(),
        before,
    }
}

/// The numbers of what a restart finds.
fn found(blocks: &Blocks) -> BTreeSet<u64> {
    let records = blocks.restore().unwrap();
    let number = |one: &Record| u64::from_le_bytes(one.owner.key()[..8].try_into().unwrap());
    records.iter().map(number).collect()
}

/// Two sequences of one root, that of another, and one without.
fn forest() -> (Blocks, CrashingDisk, CrashingDisk) {
    let (payloads, table) = crashing_disk();
    let blocks = over(payloads.clone(), table.clone());
    let owners = [
        first(10, 1),
        after(11, 10),
        after(12, 11),
        first(20, 1),
        first(30, 2),
        after(31, 30),
        Owner::First(key(40)),
        // Its parent is on another tier, or was one of them: who asks says which.
        after(51, 50),
    ];
    let records: Vec<Record> = (0..)
        .zip(owners)
        .map(|(slot, owner)| write(&blocks, slot, owner, u64::from(slot)))
        .collect();
    blocks.commit(&records).unwrap();
    (blocks, payloads, table)
}

/// Law: INV-42
#[test]
fn what_stands_on_a_key_or_a_root_goes_and_nothing_else() {
    let all = BTreeSet::from([10, 11, 12, 20, 30, 31, 40, 51]);
    for (named, spared, before, gone) in [
        (vec![key(11)], vec![key(51)], 99, vec![11, 12]),
        (vec![root(1)], vec![key(51)], 99, vec![10, 11, 12, 20]),
        // The block itself is nowhere, and what stands on it is here.
        (vec![key(50)], vec![], 99, vec![51]),
        (vec![key(99)], vec![], 99, vec![51]),
        // What stays is passed, and what stands on it goes.
        (vec![key(10)], vec![key(10), key(11), key(51)], 99, vec![12]),
        (vec![root(1)], vec![], 2, vec![10, 11]),
        (vec![key(99), root(9)], vec![key(51)], 99, vec![]),
        (vec![key(31), root(2)], vec![key(30), key(51)], 99, vec![31]),
    ] {
        let (blocks, _, _) = forest();
        let family = Family {
            keys: named,
            spared,
            before,
        };
        let voided = blocks.void_family(&family).unwrap();
        let gone = BTreeSet::from_iter(gone);
        assert_eq!(voided, gone.len() as u64, "{family:?}");
        assert_eq!(found(&blocks), &all - &gone, "{family:?}");
    }
}

/// Law: INV-42
#[test]
fn no_power_cut_undoes_it_also_where_a_slot_was_void_before() {
    for seed in 0..60 {
        let (blocks, payloads, table) = forest();
        let mut chance = Chance(seed);
        // Another block is on its way into a slot of the family: its record is void, and not durable.
        let slot = u32::try_from(chance.below(4)).unwrap();
        write(&blocks, slot, Owner::First(key(60)), 70);
        let spared = vec![key(51)];
        let family = family(&[root(1)], 70);
        blocks.void_family(&Family { spared, ..family }).unwrap();
        let cut = [&payloads, &table]
            .map(|one| CrashingDisk::holding(one.cut(|most| chance.below(most))));
        let [payloads, table] = cut;
        let left = found(&over(payloads, table));
        assert_eq!(left, BTreeSet::from([30, 31, 40, 51]), "seed {seed}");
    }
}

/// Law: INV-42
#[test]
fn a_lane_reports_it_when_it_is_durable_and_tries_again_what_fails() {
    let (payloads, table) = crashing_disk();
    let blocks = over(payloads.clone(), table.clone());
    let options = Options {
        rest: Duration::from_millis(5),
        ..Options::default()
    };
    let lane = Lane::new(blocks, Arc::new(Noted::new()), options);
    lane.submit(stamped(1, &[(0, 1), (1, 2)]), Numbers::of(&[1, 2]));
    assert_eq!(landed(&lane, 1), [whole(0, 2)]);
    table.fail_after(0);
    let number = lane.void(family(&[key(1)], 3));
    let until = Instant::now() + SOON;
    while lane.counts().failed == 0 && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(lane.counts().failed, 1, "it is tried again");
    // What comes later is no worse for it.
    let later = lane.submit(stamped(3, &[(2, 1)]), Numbers::of(&[1]));
    let mut ends = landed(&lane, 2);
    ends.sort_by_key(|one| one.number);
    assert_eq!((ends[0], ends[1].number), (whole(number, 1), later));
    let records = over(payloads, table).restore().unwrap();
    let mut slots: Vec<u32> = records.iter().map(|one| one.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [1, 2]);
}

/// Law: INV-42
#[test]
fn a_close_does_what_was_asked_for_as_its_last_act() {
    let (payloads, table) = crashing_disk();
    let blocks = over(payloads.clone(), table.clone());
    let lane = Lane::new(blocks, Arc::new(Noted::new()), Options::default());
    let slots: Vec<(u32, u64)> = (0..SLOTS).map(|slot| (slot, slot.into())).collect();
    let numbers: Vec<u64> = (0..u64::from(SLOTS)).collect();
    lane.submit(stamped(1, &slots), Numbers::of(&numbers));
    landed(&lane, 1);
    let given_up = lane.void(family(&[key(1)], 99));
    lane.give_up(given_up);
    lane.void(family(&[key(2), key(3)], 99));
    assert!(lane.close(Duration::from_secs(5)));
    let left = found(&over(payloads, table));
    assert!(!left.contains(&2) && !left.contains(&3), "{left:?}");
    // It may have been done before it was given up.
    let is_over = |one: &Landed| one.short == Some(Short::GivenUp) || one.good == 1;
    assert!(lane.poll().iter().all(is_over));
    let refused = lane.void(family(&[key(5)], 99));
    let refused = Landed {
        number: refused,
        good: 0,
        short: Some(Short::GivenUp),
    };
    assert_eq!(lane.poll(), [refused]);
}
