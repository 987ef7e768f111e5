//! Stores that fail, hang or are slow, by a clock that the test turns.

use crate::support::{AT_ONCE, Blocks, SHAPE, down, lane, only, options, refuse, take, up, value};
use blockyard_store::{Condition, Lane, Options, Short, Way};
use std::time::Duration;

fn fails(lane: &Lane, times: usize) {
    for _ in 0..times {
        lane.submit(down(&[1]), Blocks::filled(&[1]));
        refuse(&take(lane, Way::Down).unwrap());
    }
}

/// Law: INV-35b
#[test]
fn a_store_that_fails_three_times_rests_and_then_one_call_tries_it() {
    let lane = lane();
    lane.poll(100.0);
    fails(&lane, 2);
    lane.submit(down(&[1]), Blocks::filled(&[1]));
    let last = take(&lane, Way::Down).unwrap();
    lane.submit(down(&[2]), Blocks::filled(&[2]));
    refuse(&last);
    drop(last);
    assert_eq!(lane.poll(100.0).len(), 4, "what waited has failed, too");
    assert_eq!(lane.state().stores, [[Condition::Resting, Condition::Well]]);
    assert_eq!(lane.why(), ["it is down"]);

    let memory = Blocks::filled(&[1]);
    lane.submit(down(&[1]), memory.clone());
    assert_eq!(only(&lane.poll(100.4)), (0, Some(Short::Failed)), "at once");
    assert_eq!(memory.touches(), 0);
    lane.submit(up(&[5]), Blocks::new(1));
    assert!(
        take(&lane, Way::Up).unwrap().landed(&value(5)),
        "gets go on"
    );
    assert_eq!(lane.poll(100.6).len(), 1);

    assert_eq!(lane.state().stores[0][0], Condition::Trying);
    lane.submit(down(&[1, 2]), Blocks::filled(&[1, 2]));
    let tries = take(&lane, Way::Down).unwrap();
    assert!(tries.ask(0));
    assert!(take(&lane, Way::Down).is_none(), "the others wait for it");
    tries.answered(AT_ONCE);
    tries.done();
    assert_eq!(lane.state().stores[0][0], Condition::Well);
    let next = take(&lane, Way::Down).unwrap();
    assert!(next.ask(0));
    next.answered(AT_ONCE);
    next.done();
    assert_eq!(only(&lane.poll(100.6)), (2, None));
    assert_eq!(lane.counts().rests, 1);
}

#[test]
fn rests_double_up_to_a_minute() {
    let lane = lane();
    let mut now = 0.0;
    lane.poll(now);
    fails(&lane, 3);
    for rest in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
        lane.poll(now + rest * 0.99);
        lane.submit(down(&[1]), Blocks::filled(&[1]));
        assert!(take(&lane, Way::Down).is_none(), "{rest}");
        now += rest * 1.01;
        lane.poll(now);
        fails(&lane, 1);
    }
}

/// Law: INV-35b
#[test]
fn slow_calls_let_a_store_rest_as_failures_do() {
    let lane = lane();
    lane.poll(0.0);
    for slow in 1..=2 {
        lane.submit(up(&[5]), Blocks::new(1));
        let job = take(&lane, Way::Up).unwrap();
        assert!(job.ask(0));
        job.answered(Duration::from_secs(3));
        assert!(job.landed(&value(5)), "it is good even so");
        let rests = lane.state().stores[0][1] == Condition::Resting;
        assert_eq!(rests, slow == 2);
    }
    assert_eq!(lane.why(), ["its calls take too long"]);
}

/// Law: INV-35b
#[test]
fn a_store_that_does_not_answer_rests_and_is_not_asked_while_threads_hang_in_it() {
    let lane = Lane::new(
        SHAPE,
        &Options {
            buffers: 8,
            ..options()
        },
    );
    lane.poll(0.0);
    let mut hanging = Vec::new();
    for _ in 0..3 {
        let number = lane.submit(down(&[1]), Blocks::filled(&[1]));
        let job = take(&lane, Way::Down).unwrap();
        assert!(job.ask(0));
        hanging.push(job);
        lane.give_up(number, true);
    }
    assert_eq!(lane.state().stores[0][0], Condition::Resting);
    assert_eq!(lane.why(), ["it does not answer in time"]);
    // No thread is left: what comes then is given up late, and blames the same store.
    lane.poll(0.6);
    let waits = lane.submit(down(&[1]), Blocks::filled(&[1]));
    lane.give_up(waits, true);
    assert_eq!(lane.state().stores[0][0], Condition::Resting);
    // What comes back at last says nothing about now.
    for job in &hanging {
        job.answered(AT_ONCE);
        job.done();
    }
    assert_eq!(lane.state().stores[0][0], Condition::Resting);
}

#[test]
fn one_of_two_stores_that_rests_lets_the_other_be_asked() {
    let lane = Lane::new(
        SHAPE,
        &Options {
            stores: 2,
            ..options()
        },
    );
    lane.poll(0.0);
    fails(&lane, 3);
    assert_eq!(lane.poll(0.0).len(), 3);
    lane.submit(down(&[1]), Blocks::filled(&[1]));
    let job = take(&lane, Way::Down).unwrap();
    assert!(!job.ask(0), "it rests");
    assert!(job.ask(1));
    job.answered(AT_ONCE);
    job.done();
    assert_eq!(only(&lane.poll(0.0)), (1, None));
}

#[test]
fn a_call_of_which_nothing_is_said_has_failed() {
    let lane = lane();
    for _ in 0..3 {
        lane.submit(down(&[1]), Blocks::filled(&[1]));
        let job = take(&lane, Way::Down).unwrap();
        assert!(job.ask(0));
    }
    assert_eq!(lane.state().stores[0][0], Condition::Resting);
    assert_eq!(lane.counts().failed, 3);
}

#[test]
fn a_clock_that_is_set_back_or_says_nonsense_neither_ends_nor_prolongs_a_rest() {
    let lane = lane();
    lane.poll(1e6);
    fails(&lane, 3);
    for now in [f64::NAN, f64::INFINITY, -f64::INFINITY, 5.0, 5.2] {
        lane.poll(now);
        assert_eq!(lane.state().stores[0][0], Condition::Resting, "{now}");
    }
    lane.poll(5.6);
    assert_eq!(lane.state().stores[0][0], Condition::Trying);
    // Of two threads one may say an earlier time.
    lane.poll(5.5);
    lane.poll(5.6);
    lane.poll(f64::MAX);
    fails(&lane, 1);
    assert_eq!(lane.state().stores[0][0], Condition::Resting);
}
