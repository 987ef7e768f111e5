//! What is said where a request ends: the heap takes priorities and times to live by the word; an order
//! that learns what hints are worth obeys none.

use crate::yard::{Yard, config, text, three, tokens};
use blockyard_core::{Config, EvictionPolicy, Hints, NextUse, Priority, Retention, Tier};

fn yard(policy: EvictionPolicy, device: u32) -> Yard {
    Yard::of(Config {
        policy,
        ..config(device, 0)
    })
}

fn publish(yard: &Yard, name: u32, hints: Hints) {
    let lease = yard.run(&text(name, 2));
    let ended = yard.cache.lock().finish(&[lease.id()], hints, None);
    ended.expect("it runs");
    lease.spend();
    yard.sound();
}

fn left<const N: usize>(yard: &Yard, names: [u32; N]) -> [u32; N] {
    names.map(|name| yard.on_device(&text(name, 2)))
}

fn priority(priority: u64) -> Hints {
    Hints {
        priority: Some(Priority::new(priority).expect("at most 100")),
        ..Hints::default()
    }
}

fn ttl(ttl: u32) -> Hints {
    Hints {
        ttl: Some(ttl),
        ..Hints::default()
    }
}

/// Law: INV-20k
#[test]
fn the_heap_lets_go_of_the_lowest_priority_first() {
    let yard = yard(EvictionPolicy::Heap, 8);
    publish(&yard, 1, priority(90));
    publish(&yard, 2, Hints::default());
    publish(&yard, 3, priority(10));
    publish(&yard, 4, priority(35));
    for gone in [[2, 2, 0, 2], [2, 0, 0, 2], [2, 0, 0, 0], [0; 4]] {
        yard.squeeze(2);
        assert_eq!(left(&yard, [1, 2, 3, 4]), gone);
    }
}

/// Law: INV-20k
#[test]
fn what_has_outlived_its_time_goes_first_and_what_is_published_again_has_no_time() {
    let yard = yard(EvictionPolicy::Heap, 8);
    publish(&yard, 1, Hints::default());
    publish(&yard, 2, ttl(4));
    let brief = Hints {
        retention: Retention::Retain,
        ..ttl(3)
    };
    publish(&yard, 3, brief);
    yard.squeeze(2);
    assert_eq!(left(&yard, [1, 2, 3]), [0, 2, 2], "nothing is over yet");
    // Three blocks more are used, and of the third text but one has outlived its time by that.
    publish(&yard, 4, Hints::default());
    publish(&yard, 5, Hints::default());
    yard.squeeze(4);
    assert_eq!(left(&yard, [2, 3, 4, 5]), [0, 0, 2, 2]);
    publish(&yard, 2, Hints::default());
    publish(&yard, 6, Hints::default());
    yard.squeeze(2);
    assert_eq!(left(&yard, [4, 5, 2, 6]), [0, 2, 2, 2]);
}

/// Law: INV-20k
#[test]
fn a_copy_that_has_outlived_its_time_hides_no_victim_from_copies_ahead() {
    let yard = Yard::of(Config {
        policy: EvictionPolicy::Heap,
        ..three(12, 8, 8)
    });
    // On the host a copy that has outlived its time goes before what has no other copy.
    yard.publish_below(&text(2, 2));
    publish(&yard, 1, ttl(1));
    yard.copy_down(2);
    publish(&yard, 3, Hints::default());
    let plan = yard.cache.lock().demote(Tier::HOST, 8);
    let plan = plan.expect("the second text has no copy below");
    yard.land(std::slice::from_ref(&plan));
    assert_eq!(plan.len(), 2);
    assert_eq!(yard.hits(&text(2, 2))[1], 2);
}

/// Law: INV-20k
#[test]
fn the_copy_of_what_has_outlived_its_time_stays_as_that_goes_first() {
    let yard = Yard::of(Config {
        policy: EvictionPolicy::Heap,
        ..config(12, 2)
    });
    let brief = Hints {
        retention: Retention::Retain,
        ..ttl(1)
    };
    publish(&yard, 1, brief);
    yard.copy_down(2);
    for name in 2..4 {
        publish(&yard, name, Hints::default());
    }
    assert_eq!(yard.demote(6), None, "the host is full of what goes before");
    yard.squeeze(2);
    assert_eq!(yard.hits(&text(1, 2)), [0, 2, 0, 0], "and nothing is lost");
}

/// Law: INV-20k
#[test]
fn a_copy_has_no_time_to_live_while_its_block_has() {
    let yard = Yard::of(Config {
        policy: EvictionPolicy::Heap,
        ..config(12, 4)
    });
    for name in 1..3 {
        yard.publish_below(&text(name, 1));
    }
    publish(&yard, 3, ttl(1));
    yard.copy_down(2);
    publish(&yard, 4, Hints::default());
    // Of the host go those that stand alone, and not the copies of the next victims.
    let plan = yard.demote(4).expect("the fourth text has no copy");
    assert_eq!(plan.len(), 2);
    yard.land(&[plan]);
    assert_eq!(yard.hits(&text(3, 2)), [2, 0, 0, 0]);
    yard.squeeze(4);
    for name in 3..5 {
        assert_eq!(yard.hits(&text(name, 2)), [0, 2, 0, 0]);
    }
}

/// Law: INV-20i
#[test]
fn an_order_that_learns_obeys_no_hint() {
    let yard = yard(EvictionPolicy::Learned, 6);
    publish(&yard, 1, Retention::Retain.into());
    publish(&yard, 2, priority(100));
    let soon = Hints {
        next_use: Some(NextUse::in_millis(1)),
        ..Retention::SessionEnded.into()
    };
    publish(&yard, 3, soon);
    for gone in [[0, 2, 2], [0, 0, 2], [0; 3]] {
        yard.squeeze(2);
        assert_eq!(left(&yard, [1, 2, 3]), gone);
    }
}

/// Law: INV-20k
#[test]
fn a_partial_block_is_worth_nothing_of_what_had_its_place() {
    let yard = Yard::of(Config {
        policy: EvictionPolicy::Heap,
        ..config(6, 4)
    });
    publish(&yard, 1, priority(0));
    publish(&yard, 2, Hints::default());
    yard.squeeze(2);
    assert_eq!(left(&yard, [1, 2]), [0, 2], "places of the first are free");
    let lease = yard.run(&tokens(3, 6));
    let parked = yard.park(lease, 6);
    yard.land(&[yard.demote_parked(&parked, 2).expect("it is owed")]);
    assert_eq!(yard.device().idle, 4);
    yard.squeeze(1);
    assert_eq!(left(&yard, [2]), [1], "it was there before");
    yard.abandon(parked);
}
