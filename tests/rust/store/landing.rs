//! What is put, and what of it is taken back.

use crate::support::{
    AT_ONCE, BYTES, Blocks, SHAPE, down, key, lane, only, options, owner, payload, take, up, value,
    value_of,
};
use blockyard_disk::{Found, Owner, RECORD, Record, sum_of};
use blockyard_store::{Copy, Kind, Lane, Options, Shape, Short, Way, valued};

#[test]
fn what_is_put_has_the_record_of_a_disk_and_is_taken_back() {
    let lane = lane();
    let memory = Blocks::filled(&[5, 6]);
    lane.submit(down(&[5, 6]), memory.clone());
    let mut values = Vec::new();
    for number in [5, 6] {
        let job = take(&lane, Way::Down).unwrap();
        assert_eq!(job.kind(), Kind::Put(owner(number)));
        values.push(job.room.as_ref().unwrap()[..SHAPE.value_bytes()].to_vec());
        assert!(lane.poll(0.0).is_empty(), "nothing is acknowledged yet");
        job.done();
    }
    assert_eq!(only(&lane.poll(0.0)), (2, None));
    let record = Record::decode(values[0].first_chunk().unwrap());
    let Found::Record(record) = record else {
        panic!("{record:?}");
    };
    assert_eq!(record.owner, owner(5));
    assert_eq!(record.sum, sum_of(&payload(5)));
    assert_eq!((record.slot, record.length), (u32::MAX, SHAPE.bytes));
    assert_eq!((record.identity, record.rank, record.group), (77, 1, 2));

    let target = Blocks::new(2);
    lane.submit(up(&[5, 6]), target.clone());
    for value in &values {
        let job = take(&lane, Way::Up).unwrap();
        assert!(job.landed(value));
        assert!(!job.landed(value), "it has ended");
    }
    assert_eq!(only(&lane.poll(0.0)), (2, None));
    assert_eq!((target.block(0), target.block(1)), (payload(5), payload(6)));
    assert_eq!((lane.counts().put, lane.counts().got), (2, 2));
}

/// Law: INV-35a INV-26
#[test]
fn a_value_of_anything_else_is_never_taken() {
    let good = value(5);
    assert_eq!(valued(&SHAPE, &key(5), &good), Some(&payload(5)[..]));
    assert_eq!(valued(&SHAPE, &key(6), &good), None, "another key");
    let others = [
        Shape {
            identity: 78,
            ..SHAPE
        },
        Shape { rank: 0, ..SHAPE },
        Shape { group: 0, ..SHAPE },
        Shape {
            bytes: 301,
            ..SHAPE
        },
    ];
    for other in others {
        let theirs = value_of(other, owner(5), 5);
        assert_eq!(
            valued(&other, &key(5), &theirs).map(<[u8]>::len),
            Some(other.bytes as usize)
        );
        assert_eq!(valued(&SHAPE, &key(5), &theirs), None, "{other:?}");
    }
    let anonymous = value_of(SHAPE, Owner::Nobody(key(5)), 5);
    assert!(valued(&SHAPE, &key(5), &anonymous).is_some());
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        assert_eq!(valued(&SHAPE, &key(5), &flipped), None, "byte {at}");
    }
    for length in [0, 1, RECORD - 1, RECORD, RECORD + BYTES - 1] {
        assert_eq!(valued(&SHAPE, &key(5), &good[..length]), None, "{length}");
    }
    let longer = [&good[..], &[0]].concat();
    assert_eq!(valued(&SHAPE, &key(5), &longer), None);
    assert_eq!(valued(&SHAPE, &key(5), &vec![0; good.len()]), None);
}

/// A whole record with another slot is one of a disk's files.
#[test]
fn a_record_of_a_disk_is_no_value() {
    let good = value(5);
    let Found::Record(record) = Record::decode(good.first_chunk().unwrap()) else {
        panic!("it has none");
    };
    let of_disk = Record { slot: 3, ..record };
    let theirs = [&of_disk.encode()[..], &payload(5)].concat();
    assert_eq!(valued(&SHAPE, &key(5), &theirs), None);
}

/// Law: INV-35a
#[test]
fn what_is_wrong_ends_a_copy_before_it_and_leaves_memory_alone() {
    let lane = lane();
    let memory = Blocks::filled(&[1, 2, 3]);
    let before: Vec<_> = (0..3).map(|at| memory.block(at)).collect();
    lane.submit(up(&[5, 6, 7]), memory.clone());
    let first = take(&lane, Way::Up).unwrap();
    assert!(first.landed(&value(5)));
    let second = take(&lane, Way::Up).unwrap();
    assert!(!second.landed(&value(7)), "another block's");
    assert!(!second.landed(&value(6)[..200]));
    second.missing();
    assert_eq!(only(&lane.poll(0.0)), (1, Some(Short::Corrupt)));
    assert_eq!(memory.block(0), payload(5));
    assert_eq!(
        (memory.block(1), memory.block(2)),
        (before[1].clone(), before[2].clone())
    );
    assert_eq!(lane.counts().corrupt, 2);
    assert!(take(&lane, Way::Up).is_none(), "the third is of no use");
}

#[test]
fn another_store_may_have_what_one_has_not() {
    let two = Options {
        stores: 2,
        ..options()
    };
    let lane = Lane::new(SHAPE, &two);
    let memory = Blocks::new(1);
    lane.submit(up(&[5]), memory.clone());
    let job = take(&lane, Way::Up).unwrap();
    assert!(job.ask(0));
    job.answered(AT_ONCE);
    assert!(!job.landed(&value(6)));
    assert!(job.ask(1));
    job.answered(AT_ONCE);
    assert!(job.landed(&value(5)));
    assert_eq!(only(&lane.poll(0.0)), (1, None));
    assert_eq!(memory.block(0), payload(5));
    assert!(!job.ask(2), "there is no third");
}

#[test]
fn nowhere_is_missing_and_nobody_is_failed() {
    let lane = lane();
    for (end, short) in [(true, Short::Missing), (false, Short::Failed)] {
        lane.submit(up(&[5]), Blocks::new(1));
        let job = take(&lane, Way::Up).unwrap();
        if end {
            job.missing();
        } else {
            job.fail();
        }
        assert_eq!(only(&lane.poll(0.0)), (0, Some(short)));
    }
    assert_eq!(lane.counts().missing, 1);
    lane.submit(down(&[5]), Blocks::filled(&[5]));
    drop(take(&lane, Way::Down).unwrap());
    assert_eq!(
        only(&lane.poll(0.0)),
        (0, Some(Short::Failed)),
        "a thread that says nothing has failed"
    );
}

#[test]
fn blocks_may_end_in_any_order_and_the_leading_ones_count() {
    let lane = lane();
    lane.submit(down(&[1, 2, 3]), Blocks::filled(&[1, 2, 3]));
    let jobs: Vec<_> = (0..2).map(|_| take(&lane, Way::Down).unwrap()).collect();
    jobs[1].fail();
    assert!(lane.poll(0.0).is_empty(), "the first is under way");
    jobs[0].done();
    assert_eq!(only(&lane.poll(0.0)), (1, Some(Short::Failed)));
}

#[test]
fn of_nothing_nothing_is_asked() {
    let lane = lane();
    lane.submit(Copy::Up(Vec::new()), Blocks::new(0));
    assert_eq!(only(&lane.poll(0.0)), (0, None));
    assert!(take(&lane, Way::Up).is_none());
}

/// Law: INV-35c
#[test]
fn a_lane_that_was_stopped_fails_all_that_comes() {
    let lane = lane();
    lane.stop();
    for copy in [down(&[1]), up(&[1])] {
        lane.submit(copy, Blocks::filled(&[1]));
        assert_eq!(only(&lane.poll(0.0)), (0, Some(Short::Failed)));
    }
}
