//! Blocks: power cuts, flipped bits, and what is of another.

use crate::support::*;
use blockyard_disk::{Asked, Blocks, Doubt, Geometry, Medium, Owner, Record};
use std::io;
use std::sync::Arc;

/// Rounds of 100 power cuts in each mode; `make soak-disk` asks for more.
fn rounds() -> u64 {
    let asked = std::env::var("BLOCKYARD_CUTS").ok();
    asked.and_then(|cuts| cuts.parse().ok()).unwrap_or(1000) / 100
}

/// Writes blocks in groups, and cuts the power after any call.
fn cuts(seed: u64, cuts: usize, ordered: bool) -> (usize, usize) {
    let mut chance = Chance(seed);
    let (payloads, table) = crashing_disk();
    let blocks = if ordered {
        over(payloads.clone(), table.clone())
    } else {
        over(ByHand(payloads.clone()), ByHand(table.clone()))
    };
    let mut written = Written::default();
    let mut group: Vec<(Record, u64)> = Vec::new();
    let (mut served, mut torn) = (0, 0);
    for number in 0..cuts as u64 {
        let slot = u32::try_from(chance.below(SLOTS as usize)).unwrap();
        if group.iter().all(|(record, _)| record.slot != slot) {
            written.safe.remove(&slot);
            written.of.entry(slot).or_default().push(number);
            let owner = Owner::First(key(number));
            let record = blocks.write(slot, owner, number, &payload(number)).unwrap();
            group.push((record, number));
        }
        if group.len() > chance.below(6) {
            let records: Vec<Record> = group.iter().map(|(record, _)| record.clone()).collect();
            blocks.commit(&records).unwrap();
            if !ordered {
                // Records and payloads were written in no order: a cut here may leave any of them.
                (served, torn) = cut(&mut chance, &payloads, &table, &written, (served, torn));
                payloads.sync().unwrap();
                table.sync().unwrap();
            }
            written.safe.extend(
                group
                    .drain(..)
                    .map(|(record, number)| (record.slot, number)),
            );
        }
        (served, torn) = cut(&mut chance, &payloads, &table, &written, (served, torn));
    }
    (served, torn)
}

/// Law: INV-27
#[test]
fn inv_27_no_power_cut_loses_what_was_acknowledged_or_serves_what_was_torn() {
    for seed in 0..rounds() {
        let (served, _) = cuts(seed, 100, true);
        assert!(served > 200, "{served} served");
    }
}

/// Law: INV-26
#[test]
fn inv_26_where_nothing_is_ordered_what_is_torn_is_found_out() {
    let mut all = 0;
    for seed in 0..rounds() {
        let (served, torn) = cuts(1_000_000 + seed, 100, false);
        assert!(served > 200, "{served} served");
        all += torn;
    }
    assert!(all > 50, "{all} torn blocks were found out");
}

/// Law: INV-26
#[test]
fn inv_26_each_flipped_bit_is_one_miss() {
    let mut chance = Chance(5);
    let (payloads, table) = crashing_disk();
    let blocks = over(payloads.clone(), table.clone());
    let mut written = Written::default();
    for slot in 0..SLOTS {
        let owner = Owner::First(key(slot.into()));
        let record = blocks.write(slot, owner, 1, &payload(slot.into())).unwrap();
        blocks.commit(&[record]).unwrap();
        written.of.insert(slot, vec![slot.into()]);
    }
    assert_eq!(written.check(&blocks, "whole"), (SLOTS as usize, 0));
    for _ in 0..600 {
        let slot = chance.below(SLOTS as usize);
        let (crashing_disk, start, bytes) = if chance.below(2) == 0 {
            (&table, slot * 128, 128)
        } else {
            (&payloads, slot * geometry().stride(), BYTES as usize)
        };
        let bit = start * 8 + chance.below(bytes * 8);
        crashing_disk.flip(bit);
        let (served, _) = written.check(&blocks, "after a flip");
        assert_eq!(served, SLOTS as usize - 1, "bit {bit}");
        crashing_disk.flip(bit);
        assert_eq!(written.check(&blocks, "undone").0, SLOTS as usize);
    }
}

/// Law: INV-26
#[test]
fn inv_26_what_is_of_another_is_not_served() {
    let (payloads, table) = crashing_disk();
    let one = over(payloads.clone(), table.clone());
    let record = one.write(3, Owner::First(key(1)), 9, &payload(1)).unwrap();
    one.commit(std::slice::from_ref(&record)).unwrap();
    let mut staged = vec![0; geometry().stride()];
    let mut ask =
        |blocks: &Blocks, slot, key| blocks.read(&Asked { slot, key }, &mut staged).unwrap();
    assert_eq!(ask(&one, 3, key(1)), Ok(record));
    assert_eq!(ask(&one, 3, key(2)), Err(Doubt::Another));
    assert_eq!(ask(&one, 4, key(1)), Err(Doubt::NoRecord));
    for (identity, rank, bytes) in [
        (IDENTITY + 1, 0, BYTES),
        (IDENTITY, 1, BYTES),
        (IDENTITY, 0, BYTES - 1),
    ] {
        let geometry = Geometry::new(SLOTS, bytes).unwrap();
        let media = (Arc::new(payloads.clone()), Arc::new(table.clone()));
        let other = Blocks::new(media.0, media.1, geometry, identity, rank);
        assert_eq!(ask(&other, 3, key(1)), Err(Doubt::Another));
        assert_eq!(other.restore().unwrap(), []);
    }
    // A record that has come to another slot, whole as it is.
    let mut bytes = [0; 128];
    table.read(3 * 128, &mut bytes).unwrap();
    table.write(5 * 128, &bytes).unwrap();
    assert_eq!(ask(&one, 5, key(1)), Err(Doubt::Another));
    assert_eq!(one.restore().unwrap().len(), 1);
}

/// Law: INV-30
#[test]
fn inv_30_a_slot_has_no_record_while_another_block_comes() {
    let (payloads, table) = crashing_disk();
    let blocks = over(payloads.clone(), table.clone());
    let record = blocks
        .write(2, Owner::First(key(1)), 1, &payload(1))
        .unwrap();
    blocks.commit(&[record]).unwrap();
    // The payload's write fails: its record must be gone by then, though nothing was written.
    payloads.fail_after(0);
    blocks
        .write(2, Owner::First(key(2)), 2, &payload(2))
        .unwrap_err();
    let mut staged = vec![0; geometry().stride()];
    let asked = Asked {
        slot: 2,
        key: key(1),
    };
    assert_eq!(
        blocks.read(&asked, &mut staged).unwrap(),
        Err(Doubt::NoRecord)
    );
}

/// Law: INV-28
#[test]
fn inv_28_what_is_nobodys_is_read_and_never_restored() {
    let (payloads, table) = crashing_disk();
    let blocks = over(payloads, table);
    let record = blocks
        .write(1, Owner::Nobody(key(4)), 1, &payload(8))
        .unwrap();
    blocks.commit(&[record]).unwrap();
    let mut staged = vec![0; geometry().stride()];
    let asked = Asked {
        slot: 1,
        key: key(4),
    };
    assert!(blocks.read(&asked, &mut staged).unwrap().is_ok());
    assert_eq!(blocks.restore().unwrap(), []);
}

#[test]
fn what_is_not_there_is_an_error_and_no_panic() {
    let (payloads, table) = crashing_disk();
    let blocks = over(payloads, table);
    let says = |error: io::Error| error.to_string();
    let staged = payload(1);
    let wrong = blocks.write(SLOTS, Owner::Nobody(key(1)), 1, &staged);
    assert_eq!(says(wrong.unwrap_err()), "slot 8: there are slots 0 to 7");
    let wrong = blocks.write(0, Owner::Nobody(key(1)), 1, &staged[1..]);
    assert_eq!(
        says(wrong.unwrap_err()),
        "4095 bytes are staged, and a slot has 4096"
    );
    assert_eq!(
        Geometry::new(0, 1).unwrap_err().to_string(),
        "slots = 0: must be 1 or more"
    );
    let error = Geometry::new(1, (1 << 31) + 1).unwrap_err().to_string();
    assert_eq!(error, "bytes = 2147483649: must be 1 to 2^31");
}
