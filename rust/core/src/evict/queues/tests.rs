//! The structure under the orders, with recency over it.

mod usages;

use super::super::bonus::Bonus;
use super::super::newest::Newest;
use super::super::recency::Recency;
use super::*;
use crate::base::NodeIx;
use crate::evict::put;
use crate::evict::usage::{Usage, UsageTable};

fn slot(number: u32) -> SlotIx {
    SlotIx::new(number)
}

fn recency() -> Queues<Recency> {
    Queues::new(8, 8, Children::InOrder).unwrap()
}

fn drain(policy: &mut Queues<Recency>) -> Vec<SlotIx> {
    let mut order = Vec::new();
    while let Some(slot) = policy.victim(&|_| 0) {
        policy.remove(slot);
        order.push(slot);
    }
    order
}

#[test]
fn classes_go_in_order_and_each_by_recency() {
    let mut policy = recency();
    for (number, class) in [
        (0, Class::Retained),
        (1, Class::Ordinary),
        (2, Class::Ended),
    ] {
        put(&mut policy, number, class, Evictability::Leaf);
    }
    put(&mut policy, 3, Class::Ordinary, Evictability::Leaf);
    policy.insert(
        slot(4),
        Class::Ordinary,
        UsageView::none(),
        InsertAt::Before(slot(3)),
        Evictability::Leaf,
    );
    assert_eq!(drain(&mut policy), [2, 1, 4, 3, 0]);
}

#[test]
fn a_path_enters_as_its_blocks_do_one_by_one_the_last_first() {
    let path = [slot(1), slot(0), slot(2)];
    for evictability in [
        Evictability::Leaf,
        Evictability::Branch,
        Evictability::Blocked,
    ] {
        let (mut one_by_one, mut together) = (recency(), recency());
        for policy in [&mut one_by_one, &mut together] {
            put(policy, 5, Class::Ordinary, Evictability::Leaf);
        }
        for slot in path.iter().rev() {
            put(&mut one_by_one, slot.get(), Class::Ordinary, evictability);
        }
        let views = |_| UsageView::none();
        together.insert_path(&path, Class::Ordinary, &views, evictability);
        for policy in [&mut one_by_one, &mut together] {
            put(policy, 3, Class::Ordinary, Evictability::Leaf);
        }
        assert_eq!(format!("{one_by_one:?}"), format!("{together:?}"));
        assert_eq!(drain(&mut one_by_one), drain(&mut together));
    }
}

#[test]
fn a_path_leaves_as_its_blocks_do_one_by_one() {
    // The path is 5, 4, 2 and 1 from its root; what was seen, and what the cursor has passed, ends in it.
    let path = [slot(5), slot(4), slot(2), slot(1)];
    let made = || {
        let mut policy = recency();
        for number in 0..7 {
            put(&mut policy, number, Class::Ordinary, Evictability::Leaf);
        }
        for number in [0, 1, 2] {
            policy.refresh(slot(number), Evictability::Blocked);
        }
        assert_eq!(policy.victim(&|_| 0), Some(slot(3)));
        for number in 0..5 {
            assert!(policy.see(slot(number), Class::Ordinary));
        }
        policy
    };
    let (mut one_by_one, mut together) = (made(), made());
    for &slot in &path {
        one_by_one.remove(slot);
    }
    together.remove_path(&path);
    assert_eq!(format!("{one_by_one:?}"), format!("{together:?}"));
    for policy in [&mut one_by_one, &mut together] {
        let mut unseen = Vec::new();
        policy.unseen(8, &|_| 0, &mut |_| None, &mut unseen);
        assert_eq!(unseen, [6]);
        policy.refresh(slot(0), Evictability::Leaf);
        assert_eq!(drain(policy), [0, 3, 6]);
    }
}

#[test]
fn victims_leave_together_and_what_is_blocked_between_them_stays() {
    let mut policy = recency();
    for (number, class) in [
        (0, Class::Ended),
        (1, Class::Ordinary),
        (2, Class::Ordinary),
        (3, Class::Ordinary),
        (4, Class::Ordinary),
    ] {
        put(&mut policy, number, class, Evictability::Leaf);
    }
    policy.refresh(slot(2), Evictability::Blocked);
    let mut out = Vec::new();
    policy.take(3, &|_| 0, &mut |_| None, &mut out);
    assert_eq!(out, [0, 1, 3]);
    assert!(out.iter().all(|&slot| !policy.holds(slot)));
    policy.refresh(slot(2), Evictability::Leaf);
    assert_eq!(drain(&mut policy), [2, 4]);
}

#[test]
fn a_blocked_slot_keeps_its_place_and_is_found_again() {
    let mut policy = recency();
    for number in 0..5 {
        put(&mut policy, number, Class::Ordinary, Evictability::Leaf);
    }
    policy.refresh(slot(0), Evictability::Blocked);
    policy.refresh(slot(1), Evictability::Blocked);
    assert_eq!(policy.victim(&|_| 0), Some(slot(2)));
    policy.remove(slot(2));
    assert_eq!(policy.victim(&|_| 0), Some(slot(3)));
    policy.refresh(slot(1), Evictability::Leaf);
    assert_eq!(policy.victim(&|_| 0), Some(slot(1)), "back at its place");
    policy.refresh(slot(0), Evictability::Leaf);
    assert_eq!(drain(&mut policy), [0, 1, 3, 4]);
}

#[test]
fn what_was_passed_before_a_clear_is_found_in_its_place_when_it_opens() {
    for passed_again in [false, true] {
        let mut policy = recency();
        for number in 0..3 {
            put(&mut policy, number, Class::Ordinary, Evictability::Blocked);
        }
        put(&mut policy, 3, Class::Ordinary, Evictability::Leaf);
        assert_eq!(policy.victim(&|_| 0), Some(slot(3)));
        policy.clear();
        put(&mut policy, 4, Class::Ordinary, Evictability::Blocked);
        put(&mut policy, 5, Class::Ordinary, Evictability::Leaf);
        if passed_again {
            assert_eq!(policy.victim(&|_| 0), Some(slot(3)));
        }
        policy.refresh(slot(1), Evictability::Leaf);
        assert_eq!(policy.victim(&|_| 0), Some(slot(1)));
        policy.refresh(slot(0), Evictability::Leaf);
        assert_eq!(drain(&mut policy), [0, 1, 3, 5]);
        policy.refresh(slot(2), Evictability::Leaf);
        policy.refresh(slot(4), Evictability::Leaf);
        assert_eq!(drain(&mut policy), [2, 4]);
    }
}

#[test]
fn what_stands_where_the_cursor_was_can_leave() {
    let mut policy = recency();
    for number in 0..3 {
        put(&mut policy, number, Class::Ordinary, Evictability::Blocked);
    }
    assert_eq!(policy.victim(&|_| 0), None);
    policy.remove(slot(2));
    put(&mut policy, 3, Class::Ordinary, Evictability::Leaf);
    assert_eq!(policy.victim(&|_| 0), Some(slot(3)));
}

#[test]
fn what_was_seen_is_passed_over_wherever_something_new_stands() {
    let mut policy = recency();
    for number in 0..4 {
        put(&mut policy, number, Class::Ordinary, Evictability::Leaf);
    }
    let unseen = |policy: &Queues<Recency>, limit| {
        let mut out = Vec::new();
        policy.unseen(limit, &|_| 0, &mut |_| None, &mut out);
        out
    };
    assert_eq!(unseen(&policy, 3), [0, 1, 2]);
    assert!((0..3).all(|number| policy.see(slot(number), Class::Ordinary)));
    assert_eq!(
        (unseen(&policy, 3), unseen(&policy, 4)),
        (vec![], vec![slot(3)])
    );
    put(&mut policy, 4, Class::Ended, Evictability::Leaf);
    assert_eq!(unseen(&policy, 3), [4], "the first three are 4, 0 and 1");
    assert!(policy.see(slot(4), Class::Ended));
    policy.remove(slot(2));
    assert_eq!(
        (unseen(&policy, 3), unseen(&policy, 4)),
        (vec![], vec![slot(3)])
    );
    let [first, third] = [1, 3].map(|number| (slot(number), Class::Ordinary));
    assert!(
        policy.precedes(first, third, &|_| false) && !policy.precedes(third, third, &|_| false)
    );
    assert!(
        policy.precedes((slot(3), Class::Ended), first, &|_| false),
        "its class goes first"
    );
    policy.unsee(slot(1));
    assert_eq!(unseen(&policy, 9), [1, 3]);
    policy.remove(slot(0));
    policy.remove(slot(4));
    assert_eq!(unseen(&policy, 1), [1], "nothing before it is left");
    assert!(!policy.see(slot(3), Class::Ordinary) && policy.see(slot(1), Class::Ordinary));
    policy.clear();
    assert_eq!(unseen(&policy, 9), [1, 3]);
}

#[test]
fn cleared_goes_before_everything_new() {
    let mut policy = recency();
    put(&mut policy, 0, Class::Retained, Evictability::Leaf);
    put(&mut policy, 1, Class::Ended, Evictability::Leaf);
    policy.clear();
    put(&mut policy, 2, Class::Ended, Evictability::Leaf);
    assert_eq!(drain(&mut policy), [1, 0, 2]);
}

#[test]
fn what_waits_and_is_blocked_when_all_is_cleared_is_blocked_still() {
    let mut policy: Queues<Newest> = Queues::new(8, 8, Children::InOrder).unwrap();
    let class = Class::Ordinary;
    for (number, may) in [(0, Evictability::Branch), (1, Evictability::Leaf)] {
        policy.insert(slot(number), class, UsageView::none(), InsertAt::Back, may);
    }
    assert_eq!(policy.victim(&|_| 0), Some(slot(1)), "0 is set aside");
    policy.refresh(slot(0), Evictability::Blocked);
    policy.clear();
    assert!(policy.agrees(slot(0), Evictability::Blocked));
    assert_eq!(policy.victim(&|_| 0), Some(slot(1)));
    policy.remove(slot(1));
    assert_eq!(policy.victim(&|_| 0), None);
    policy.refresh(slot(0), Evictability::Leaf);
    assert_eq!(policy.victim(&|_| 0), Some(slot(0)));
}

/// Law: INV-20l
#[test]
fn what_a_resize_makes_the_next_victim_is_looked_at() {
    let mut policy: Queues<Bonus> = Queues::new(8, 8, Children::InOrder).unwrap();
    let mut usages = UsageTable::new(8, Asks::Uses).unwrap();
    // The first was used again, and the other five ticks later.
    for (number, before) in [(0, 3), (1, 0)] {
        usages.born(NodeIx::new(number), before);
        let view = usages.of(NodeIx::new(number));
        let leaf = Evictability::Leaf;
        policy.insert(slot(number), Class::Ordinary, view, InsertAt::Back, leaf);
    }
    policy.used(&[(0, Usage::default())], 10);
    let stamps = |at: SlotIx| 5 * at.get();
    let next = |policy: &Queues<Bonus>| {
        let mut out = Vec::new();
        policy.unseen(1, &stamps, &mut |_| None, &mut out);
        out
    };
    assert_eq!(next(&policy), [1], "a turnover is eight ticks");
    policy.see(slot(1), Class::Ordinary);
    policy.settle(1);
    assert!(next(&policy).is_empty());
    policy.resize(2);
    assert_eq!(next(&policy), [0]);
}
