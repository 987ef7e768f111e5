//! Deletes: each store has answered, and no put brings back what was deleted.

use crate::support::{AT_ONCE, Blocks, SHAPE, down, key, lane, only, options, owner, take};
use blockyard_store::{Job, Kind, Lane, Options, Short, Way};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn two() -> Lane {
    Lane::new(
        SHAPE,
        &Options {
            stores: 2,
            ..options()
        },
    )
}

fn store_of(job: &Job) -> usize {
    let Kind::Delete(store, keys) = job.kind() else {
        panic!("{:?}", job.kind());
    };
    assert_eq!(*keys, [key(1), key(2)]);
    store
}

/// Law: INV-42
#[test]
fn inv_42_a_delete_is_done_when_every_store_has_answered_and_is_tried_until_then() {
    let lane = two();
    lane.poll(0.0);
    lane.delete(&[key(1), key(2)]);
    let (one, other) = (
        take(&lane, Way::Down).unwrap(),
        take(&lane, Way::Down).unwrap(),
    );
    assert_eq!((store_of(&one), store_of(&other)), (0, 1));
    assert!(one.room.is_none());
    assert!(one.ask(0) && other.ask(1));
    one.answered(AT_ONCE);
    one.done();
    other.refused("it is down", AT_ONCE);
    other.fail();
    assert!(lane.poll(0.1).is_empty());
    assert_eq!(lane.state().undeleted, [0, 2]);
    assert!(take(&lane, Way::Down).is_none(), "not at once");
    assert!(lane.poll(0.6).is_empty());
    let again = take(&lane, Way::Down).unwrap();
    assert_eq!(store_of(&again), 1);
    assert!(again.ask(1));
    again.answered(AT_ONCE);
    again.done();
    assert_eq!(only(&lane.poll(0.6)), (2, None));
    assert_eq!(
        (lane.counts().deleted, lane.state().undeleted),
        (2, vec![0, 0])
    );
}

/// Law: INV-42
#[test]
fn inv_42_a_delete_waits_for_puts_that_may_still_write_also_for_those_given_up() {
    let lane = lane();
    let number = lane.submit(down(&[7, 1]), Blocks::filled(&[7, 1]));
    let first = take(&lane, Way::Down).unwrap();
    let second = take(&lane, Way::Down).unwrap();
    lane.delete(&[key(1), key(2)]);
    lane.delete(&[key(3)]);
    let free = take(&lane, Way::Down).unwrap();
    assert_eq!(
        free.kind(),
        Kind::Delete(0, Arc::new([key(3)])),
        "of this no put writes"
    );
    first.done();
    lane.give_up(number, true);
    assert!(take(&lane, Way::Down).is_none(), "the second put hangs");
    second.done();
    assert_eq!(store_of(&take(&lane, Way::Down).unwrap()), 0);
}

#[test]
fn a_put_that_never_begins_holds_up_no_delete() {
    let lane = lane();
    let number = lane.submit(down(&[7, 1, 2]), Blocks::filled(&[7, 1, 2]));
    let first = take(&lane, Way::Down).unwrap();
    lane.delete(&[key(1), key(2)]);
    lane.give_up(number, false);
    assert_eq!(store_of(&take(&lane, Way::Down).unwrap()), 0);
    first.done();
    // The same where the first block fails.
    lane.submit(down(&[7, 1, 2]), Blocks::filled(&[7, 1, 2]));
    take(&lane, Way::Down).unwrap().fail();
    lane.poll(10.0);
    lane.delete(&[key(1), key(2)]);
    assert!(take(&lane, Way::Down).is_some());
}

#[test]
fn many_keys_are_deleted_in_parts() {
    let lane = lane();
    let keys: Vec<_> = (0..1000_u32)
        .map(|number| {
            let mut key = [7; 32];
            key[..4].copy_from_slice(&number.to_le_bytes());
            key
        })
        .collect();
    lane.delete(&keys);
    let mut seen = BTreeSet::new();
    while let Some(job) = take(&lane, Way::Down) {
        assert!(lane.poll(0.0).is_empty());
        let Kind::Delete(_, some) = job.kind() else {
            panic!("{:?}", job.kind());
        };
        assert!(some.len() <= 256);
        seen.extend(some.iter().copied());
        job.done();
    }
    assert_eq!(seen.len(), 1000);
    assert_eq!(only(&lane.poll(0.0)), (1000, None));
    lane.delete(&[]);
    assert_eq!(only(&lane.poll(0.0)), (0, None));
}

#[test]
fn a_delete_may_be_given_up() {
    let lane = lane();
    let number = lane.delete(&[key(1), key(2)]);
    let job = take(&lane, Way::Down).unwrap();
    assert!(!lane.wait(number, AT_ONCE));
    lane.give_up(number, false);
    assert!(lane.wait(number, AT_ONCE));
    assert_eq!(only(&lane.poll(0.0)), (0, Some(Short::GivenUp)));
    job.done();
    assert!(lane.poll(0.0).is_empty());
    assert_eq!(lane.state().undeleted, [0]);
}

/// Law: INV-42
#[test]
fn a_close_tries_deletes_once_more_and_waits_for_them() {
    let lane = Arc::new(lane());
    lane.delete(&[key(1), key(2)]);
    take(&lane, Way::Down).unwrap().fail();
    assert!(take(&lane, Way::Down).is_none(), "later");
    let works = thread::spawn({
        let lane = Arc::clone(&lane);
        move || {
            let job = lane.take(Way::Down, Duration::from_secs(20), 0.0).unwrap();
            job.done();
            lane.take(Way::Down, Duration::from_secs(20), 0.0).is_none()
        }
    });
    assert_eq!(lane.close(Duration::from_secs(20)), [0]);
    assert!(works.join().unwrap(), "its thread ends");
    assert_eq!(only(&lane.poll(0.0)), (2, None));
}

#[test]
fn a_close_waits_for_no_delete_that_fails_or_cannot_begin() {
    let lane = lane();
    lane.submit(down(&[1]), Blocks::filled(&[1]));
    let hangs = take(&lane, Way::Down).unwrap();
    lane.delete(&[key(1), key(2)]);
    assert_eq!(lane.close(Duration::from_secs(20)), [2]);
    assert_eq!(lane.poll(0.0).len(), 2);
    hangs.done();
    assert!(take(&lane, Way::Down).is_none());
}

/// Law: INV-42
#[test]
fn inv_42_a_put_of_a_key_that_is_being_deleted_fails_and_holds_up_no_delete() {
    let lane = lane();
    lane.delete(&[key(1), key(2)]);
    lane.submit(down(&[7, 2, 8]), Blocks::filled(&[7, 2, 8]));
    lane.submit(down(&[1]), Blocks::filled(&[1]));
    assert_eq!(only(&lane.poll(0.0)), (0, Some(Short::Failed)));
    let delete = take(&lane, Way::Down).unwrap();
    assert_eq!(store_of(&delete), 0);
    let put = take(&lane, Way::Down).unwrap();
    assert_eq!(put.kind(), Kind::Put(owner(7)));
    put.done();
    assert!(take(&lane, Way::Down).is_none());
    assert_eq!(only(&lane.poll(0.0)), (1, Some(Short::Failed)));
    delete.done();
    assert_eq!(only(&lane.poll(0.0)), (2, None));
    lane.submit(down(&[1, 2]), Blocks::filled(&[1, 2]));
    assert!(take(&lane, Way::Down).is_some());
    // Twice at once, of which one is given up.
    let lane = self::lane();
    let one = lane.delete(&[key(1), key(2)]);
    lane.delete(&[key(2), key(1)]);
    lane.give_up(one, false);
    lane.submit(down(&[1]), Blocks::filled(&[1]));
    assert_eq!(lane.poll(0.0).len(), 2);
}
