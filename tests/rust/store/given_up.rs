//! Copies that were given up, and buffers that clients hold.

use crate::support::{
    AT_ONCE, Blocks, Chance, SHAPE, down, lane, only, options, payload, take, up, value,
};
use blockyard_store::{Job, Kind, Lane, Options, Short, Way};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// Law: INV-32
#[test]
fn inv_32_a_put_that_was_given_up_is_never_sent() {
    let lane = lane();
    let memory = Blocks::filled(&[1]);
    let number = lane.submit(down(&[1]), memory.clone());
    lane.give_up(number, false);
    memory.left.store(true, Ordering::SeqCst);
    assert!(take(&lane, Way::Down).is_none());
    assert_eq!(only(&lane.poll(0.0)), (0, Some(Short::GivenUp)));
    assert_eq!(memory.touches(), 0);
}

/// Law: INV-32
#[test]
fn a_get_that_comes_late_lands_nowhere_and_holds_its_buffer_until_then() {
    let lane = lane();
    let memory = Blocks::new(1);
    let number = lane.submit(up(&[5]), memory.clone());
    let job = take(&lane, Way::Up).unwrap();
    assert!(job.ask(0));
    lane.give_up(number, true);
    memory.left.store(true, Ordering::SeqCst);
    assert_eq!(only(&lane.poll(0.0)), (0, Some(Short::GivenUp)));
    let state = lane.state();
    assert_eq!((state.flying, state.hung, state.held), (0, 1, 1));
    job.answered(AT_ONCE);
    assert!(job.landed(&value(5)), "it is what was asked for");
    assert_eq!(memory.touches(), 0);
    assert_eq!(
        (lane.state().hung, lane.state().held),
        (0, 1),
        "a client may have it"
    );
    drop(job);
    assert_eq!(lane.state().held, 0);
    assert!(lane.poll(0.0).is_empty(), "it is told once");
    assert_eq!((lane.counts().got, lane.counts().given_up), (0, 1));
}

#[test]
fn a_put_that_is_under_way_goes_on_with_its_buffer_alone() {
    let lane = lane();
    let memory = Blocks::filled(&[1]);
    let number = lane.submit(down(&[1]), memory.clone());
    let job = take(&lane, Way::Down).unwrap();
    lane.give_up(number, false);
    memory.left.store(true, Ordering::SeqCst);
    memory.bytes.lock().unwrap()[0].fill(0);
    let room = job.room.as_ref().unwrap();
    assert_eq!(
        &room[blockyard_disk::RECORD..SHAPE.value_bytes()],
        payload(1)
    );
    job.done();
    assert_eq!(only(&lane.poll(0.0)), (0, Some(Short::GivenUp)));
    assert_eq!(lane.counts().put, 0);
}

/// Law: INV-32
#[test]
fn where_all_buffers_are_held_copies_wait_and_the_other_way_goes_on() {
    let lane = lane();
    let mut hanging = Vec::new();
    for number in 1..3 {
        let copy = lane.submit(down(&[number]), Blocks::filled(&[number]));
        hanging.push(take(&lane, Way::Down).unwrap());
        lane.give_up(copy, true);
    }
    let waits = lane.submit(down(&[3]), Blocks::filled(&[3]));
    assert!(take(&lane, Way::Down).is_none(), "no buffer is free");
    assert_eq!(lane.state().held, 2);
    lane.submit(up(&[5]), Blocks::new(1));
    assert!(take(&lane, Way::Up).unwrap().landed(&value(5)));
    lane.give_up(waits, true);
    let ends = lane.poll(0.0);
    assert_eq!(ends.len(), 4);
    drop(hanging);
    assert_eq!(lane.state().held, 0);
    lane.submit(down(&[3]), Blocks::filled(&[3]));
    assert!(take(&lane, Way::Down).is_some());
}

#[test]
fn who_waits_for_a_buffer_is_woken_when_it_comes_back() {
    let lane = Arc::new(Lane::new(
        SHAPE,
        &Options {
            buffers: 2,
            ..options()
        },
    ));
    lane.submit(down(&[1, 2]), Blocks::filled(&[1, 2]));
    let mut first = take(&lane, Way::Down).unwrap();
    let room = first.room.take();
    first.done();
    drop(first);
    assert!(take(&lane, Way::Down).is_none(), "the client has it still");
    let waiting = thread::spawn({
        let lane = Arc::clone(&lane);
        move || lane.take(Way::Down, SOON, 0.0).map(|job| job.kind())
    });
    drop(room);
    assert!(matches!(waiting.join().unwrap(), Some(Kind::Put(_))));
}

#[test]
fn a_wait_ends_with_the_copy() {
    let lane = Arc::new(lane());
    let number = lane.submit(down(&[1]), Blocks::filled(&[1]));
    assert!(!lane.wait(number, AT_ONCE));
    let ends = thread::spawn({
        let lane = Arc::clone(&lane);
        move || take(&lane, Way::Down).unwrap().done()
    });
    assert!(lane.wait(number, SOON));
    ends.join().unwrap();
    assert!(lane.wait(99, AT_ONCE), "one that never was");
}

/// Law: INV-32
#[test]
fn a_close_ends_all_copies_and_threads_find_nothing_more() {
    let lane = lane();
    lane.submit(down(&[1, 2]), Blocks::filled(&[1, 2]));
    lane.submit(up(&[1]), Blocks::new(1));
    let hangs = take(&lane, Way::Down).unwrap();
    assert_eq!(lane.close(AT_ONCE), [0]);
    let ends = lane.poll(0.0);
    assert!(ends.iter().all(|one| one.short == Some(Short::GivenUp)));
    assert_eq!(ends.len(), 2);
    assert!(lane.is_closed());
    assert!(lane.take(Way::Down, SOON, 0.0).is_none());
    assert!(lane.take(Way::Up, SOON, 0.0).is_none());
    lane.submit(down(&[1]), Blocks::filled(&[1]));
    assert_eq!(only(&lane.poll(0.0)), (0, Some(Short::GivenUp)));
    hangs.done();
    assert!(lane.poll(0.0).is_empty());
}

/// What a thread does with a job, by chance.
fn work(job: &Job, chance: usize) {
    assert!(job.ask(0));
    job.answered(AT_ONCE);
    match (job.kind(), chance) {
        (_, 0) => job.fail(),
        (Kind::Get(key), 1) => {
            assert!(!job.landed(&value(key[0] % 4 + 1)));
            job.missing();
        }
        (Kind::Get(key), _) => assert!(job.landed(&value(key[0]))),
        _ => job.done(),
    }
}

/// Law: INV-32
#[test]
fn nothing_is_touched_after_a_give_up_whatever_threads_do_meanwhile() {
    let lane = Arc::new(Lane::new(
        SHAPE,
        &Options {
            buffers: 8,
            ..options()
        },
    ));
    let over = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let (lane, over) = (Arc::clone(&lane), Arc::clone(&over));
            thread::spawn(move || {
                let way = [Way::Down, Way::Up][worker % 2];
                let mut chance = Chance(worker as u64);
                while !over.load(Ordering::SeqCst) {
                    if let Some(job) = lane.take(way, Duration::from_millis(1), 0.0) {
                        work(&job, chance.below(8));
                    }
                }
            })
        })
        .collect();
    let mut chance = Chance(99);
    let mut landed = 0;
    for round in 0..2000 {
        let numbers: Vec<u8> = (0..4).map(|_| 1 + chance.below(4) as u8).collect();
        let is_up = round % 2 == 0;
        let (memory, copy) = if is_up {
            (Blocks::new(4), up(&numbers))
        } else {
            (Blocks::filled(&numbers), down(&numbers))
        };
        let number = lane.submit(copy, memory.clone());
        for _ in 0..chance.below(200) {
            std::hint::spin_loop();
        }
        if chance.below(4) == 0 {
            lane.wait(number, SOON);
        }
        lane.give_up(number, false);
        memory.left.store(true, Ordering::SeqCst);
        for (at, &number) in numbers.iter().enumerate() {
            let block = memory.block(at);
            let none = is_up && block.iter().all(|&byte| byte == 0);
            assert!(none || block == payload(number));
        }
        landed += lane.poll(0.0).len();
    }
    assert_eq!(landed, 2000, "each is told once");
    over.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.join().unwrap();
    }
    let state = lane.state();
    assert_eq!((state.flying, state.busy, state.held), (0, 0, 0));
}
