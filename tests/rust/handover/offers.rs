//! Offers and leases, by a clock from outside.

use crate::support::{ID, Pin, held};
use blockyard_handover::{End, Gone, Held, Offers, Refused};
use std::sync::Arc;
use std::time::Duration;

const OTHER: [u8; 16] = [8; 16];

fn offers() -> Offers {
    let mut made = Offers::new(Duration::from_secs(10), Duration::from_secs(60));
    made.sweep(100.0);
    made
}

/// Offers with one of four blocks.
fn offered() -> (Offers, Arc<Pin>) {
    let (mut made, (held, pin)) = (offers(), held(0..4));
    made.offer(ID, held, 100.0).unwrap();
    (made, pin)
}

fn ended(offers: &Offers, why: End) -> u64 {
    offers.tally().ended[why as usize]
}

#[test]
fn an_offer_tells_its_blocks_and_holds_them_until_its_reader_is_done() {
    let (mut offers, pin) = offered();
    let taken = offers.take(&ID, 1, 1, 101.0).unwrap();
    assert_eq!((taken.first, taken.held.slots.len()), (1, 4));
    assert_eq!(taken.lease, Duration::from_secs(10));
    assert_eq!((offers.tally().held, offers.tally().blocks), (1, 4));
    assert!(offers.read(&ID, 1, 102.0).is_ok());
    offers.done(&ID, 1, 103.0);
    assert_eq!(pin.releases(), 1);
    assert_eq!((ended(&offers, End::Done), offers.tally().held), (1, 0));
    assert_eq!(offers.read(&ID, 1, 103.0).unwrap_err(), Gone::Ended);
    assert_eq!(offers.take(&ID, 2, 0, 103.0).unwrap_err(), Gone::Ended);
    offers.done(&ID, 1, 104.0);
    offers.refuse(&ID, 1, 104.0);
    offers.renew(&ID, 1, 104.0);
    assert_eq!((pin.releases(), offers.tally().blocks), (1, 0));
}

/// Law: INV-36d
#[test]
fn inv_36d_a_lease_that_is_not_renewed_ends_the_offer_and_one_that_is_does_not() {
    let (mut offers, pin) = offered();
    offers.take(&ID, 1, 0, 101.0).unwrap();
    offers.renew(&ID, 1, 110.0);
    assert!(offers.is_quiet(119.9) && !offers.is_quiet(120.0));
    assert_eq!(offers.sweep(119.9), 0);
    assert!(offers.is_open(&ID));
    assert_eq!(offers.sweep(120.0), 1);
    assert_eq!((pin.releases(), ended(&offers, End::Lease)), (1, 1));
    offers.renew(&ID, 1, 120.0);
    assert!(offers.take(&ID, 1, 0, 120.0).is_err());
}

/// Law: INV-36d
#[test]
fn inv_36d_an_offer_that_nobody_reads_ends_by_itself() {
    let (mut offers, pin) = offered();
    assert_eq!(offers.sweep(159.9), 0);
    assert_eq!(offers.sweep(160.0), 1);
    assert_eq!((pin.releases(), ended(&offers, End::Unread)), (1, 1));
}

/// In vllm#58222 and vllm#50789 those behind a long lease were held for ever.
/// Law: INV-36d
#[test]
fn inv_36d_each_offer_ends_at_its_own_time_whichever_came_first() {
    let (mut offers, early) = offered();
    let (held, late) = held(4..6);
    offers.offer(OTHER, held, 101.0).unwrap();
    // The one that came first has the longer lease.
    offers.take(&OTHER, 2, 0, 102.0).unwrap();
    offers.take(&ID, 1, 0, 108.0).unwrap();
    assert_eq!(offers.sweep(112.0), 1);
    assert_eq!((early.releases(), late.releases()), (0, 1));
    assert_eq!(offers.sweep(118.0), 1);
    assert_eq!(early.releases(), 1);
}

#[test]
fn one_of_two_readers_ends_its_own_lease_alone() {
    let (mut offers, pin) = offered();
    offers.take(&ID, 1, 0, 101.0).unwrap();
    offers.take(&ID, 2, 0, 101.0).unwrap();
    offers.done(&ID, 1, 102.0);
    offers.done(&ID, 1, 102.0);
    assert_eq!(pin.releases(), 0);
    assert!(offers.read(&ID, 2, 102.0).is_ok());
    assert!(offers.read(&ID, 1, 102.0).is_err(), "its lease has ended");
    assert!(offers.take(&ID, 1, 0, 102.0).is_err(), "for good");
    offers.refuse(&ID, 2, 103.0);
    assert_eq!((pin.releases(), ended(&offers, End::Done)), (1, 1));
}

#[test]
fn a_lease_that_has_run_out_stays_so_where_another_reader_keeps_the_offer() {
    let (mut offers, pin) = offered();
    offers.take(&ID, 1, 0, 101.0).unwrap();
    offers.take(&ID, 2, 0, 105.0).unwrap();
    offers.renew(&ID, 1, 112.0);
    assert!(offers.read(&ID, 1, 112.0).is_err());
    assert!(offers.take(&ID, 1, 0, 112.0).is_err());
    assert_eq!(offers.holding()[0].readers, 1);
    assert_eq!(offers.sweep(115.0), 1);
    assert_eq!((pin.releases(), ended(&offers, End::Lease)), (1, 1));
}

#[test]
fn who_refuses_without_having_come_counts_as_come() {
    let (mut offers, pin) = offered();
    offers.done(&ID, 9, 101.0);
    assert_eq!(pin.releases(), 0, "nobody has read it");
    offers.refuse(&ID, 9, 101.0);
    assert_eq!((pin.releases(), ended(&offers, End::Done)), (1, 1));
}

#[test]
fn a_hold_that_the_yard_has_ended_ends_the_offer_and_its_readers_learn_why() {
    let (mut offers, pin) = offered();
    offers.take(&ID, 1, 0, 101.0).unwrap();
    pin.end();
    assert_eq!(offers.read(&ID, 1, 101.0).unwrap_err(), Gone::Cleared);
    assert_eq!(ended(&offers, End::Cleared), 1);
    assert_eq!(offers.take(&ID, 2, 0, 101.0).unwrap_err(), Gone::Cleared);
    assert_eq!(offers.why(&[1; 16]), Gone::Ended);
}

#[test]
fn the_oldest_offer_makes_room_and_all_end_where_this_side_closes() {
    let (mut offers, first) = offered();
    let (held, second) = held(4..6);
    offers.offer(OTHER, held, 101.0).unwrap();
    assert_eq!(offers.end_oldest(), Some(ID));
    assert_eq!((first.releases(), second.releases()), (1, 0));
    assert_eq!(offers.why(&ID), Gone::NoRoom);
    assert!(!offers.end(&ID, End::Aborted), "it has ended");
    assert_eq!(offers.end_all(End::Closed), 1);
    assert_eq!(second.releases(), 1);
    assert_eq!(offers.end_oldest(), None);
    assert_eq!(offers.tally().ended, [0, 0, 0, 0, 1, 1, 0]);
    assert_eq!(offers.tally().made, 2);
}

#[test]
fn what_is_held_says_how_long_and_by_whom() {
    let (mut offers, _pin) = offered();
    let (held, _other) = held(4..6);
    offers.offer(OTHER, held, 103.0).unwrap();
    offers.take(&OTHER, 2, 0, 105.0).unwrap();
    offers.sweep(106.0);
    let holding = offers.holding();
    let one = |at: usize| (holding[at].id, holding[at].blocks, holding[at].readers);
    assert_eq!((one(0), one(1)), ((ID, 4, 0), (OTHER, 2, 1)));
    let seconds = |at: usize| (holding[at].age.as_secs(), holding[at].left.as_secs());
    assert_eq!((seconds(0), seconds(1)), ((6, 54), (3, 9)));
}

#[test]
fn an_offer_that_is_none_is_refused_and_its_hold_is_its_makers_still() {
    let mut offers = offers();
    let (good, pin) = held(0..2);
    let none: Held = Held {
        keys: Arc::new([]),
        parents: Arc::new([]),
        slots: Arc::new([]),
        generations: Arc::new([]),
        hold: pin.clone(),
    };
    let all = 65_537;
    let many = Held {
        keys: (0..all).map(|at: u32| [at as u8; 32]).collect(),
        parents: vec![[0; 32]; all as usize].into(),
        slots: (0..all).collect(),
        generations: vec![1; all as usize].into(),
        hold: pin.clone(),
    };
    let twice = Held {
        keys: Arc::new([[1; 32], [1; 32]]),
        ..good.clone()
    };
    let uneven = Held {
        slots: Arc::new([1]),
        ..good.clone()
    };
    for (held, why) in [
        (none, Refused::Blocks(0)),
        (many, Refused::Blocks(65_537)),
        (twice, Refused::Twice(1)),
        (
            uneven,
            Refused::Rows {
                keys: 2,
                parents: 2,
                slots: 1,
                generations: 2,
            },
        ),
    ] {
        assert_eq!(offers.offer(ID, held, 100.0).unwrap_err(), why);
        assert!(why.to_string().len() > 20);
    }
    offers.offer(ID, good.clone(), 100.0).unwrap();
    assert_eq!(offers.offer(ID, good, 100.0).unwrap_err(), Refused::Open);
    assert_eq!((pin.releases(), offers.tally().made), (0, 1));
}

#[test]
fn false_ids_and_firsts_beyond_the_end_do_nothing() {
    let (mut offers, pin) = offered();
    let wrong = [1; 16];
    assert_eq!(offers.take(&wrong, 1, 0, 101.0).unwrap_err(), Gone::Ended);
    offers.renew(&wrong, 1, 101.0);
    offers.done(&wrong, 1, 101.0);
    offers.refuse(&wrong, 1, 101.0);
    assert!(offers.read(&ID, 1, 101.0).is_err(), "it has not taken it");
    assert_eq!(offers.take(&ID, 1, usize::MAX, 101.0).unwrap().first, 4);
    assert_eq!(pin.releases(), 0);
}

#[test]
fn readers_without_end_are_refused() {
    let (mut offers, pin) = offered();
    let come = (0..1000).filter(|&reader| offers.take(&ID, reader, 0, 101.0).is_ok());
    assert_eq!(come.count(), 256);
    assert_eq!(offers.take(&ID, 1001, 0, 101.0).unwrap_err(), Gone::NoRoom);
    offers.refuse(&ID, 1002, 101.0);
    assert_eq!(offers.holding()[0].readers, 256);
    assert_eq!(pin.releases(), 0);
}

/// In vllm#47021 the clocks of two machines are compared, by an offset; here none of another side's is.
#[test]
fn a_clock_that_is_set_back_ends_nothing_early_and_all_in_time() {
    let (mut offers, pin) = offered();
    offers.take(&ID, 1, 0, 101.0).unwrap();
    assert_eq!(offers.sweep(-1000.0), 0);
    assert_eq!(offers.sweep(f64::NAN), 0);
    assert_eq!(offers.sweep(-990.1), 0);
    assert_eq!(offers.sweep(-989.9), 1);
    assert_eq!(pin.releases(), 1);
}
