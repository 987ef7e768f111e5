//! Lists by class, each in order of last use, holding all idle slots. Because everything is
//! released deepest first, a child always stands before its parent, and the front is a leaf.
//!
//! Blocked slots keep their place. A cursor per list remembers that everything before it is
//! blocked, so that a long chain in flight is passed once and not at every call.
//!
//! What a copy ahead has seen is the beginning of each list, so that it goes on where it stopped.

use super::{Evict, Evictability, Opens, Place};
use crate::error::Result;
use crate::id::{Class, Ix, SlotIx};
use crate::list::Lists;
use crate::memory;

/// What the marks are, where there is no memory for them.
const MARKS: &str = "the marks of the eviction order";
const OPEN: u8 = 0;
const BLOCKED: u8 = 1;
/// Blocked, and passed by the cursor of this class, which is added; or before a clear.
const PASSED: u8 = 2;

#[derive(Hash, Debug)]
pub(crate) struct Recency {
    lists: Lists,
    marks: Vec<u8>,
    /// The last slot of each class that was passed; `None`: look from the front.
    cursors: [Option<SlotIx>; Class::COUNT],
    /// The last slot of each class that was seen, and how many were.
    ends: [Option<SlotIx>; Class::COUNT],
    counts: [usize; Class::COUNT],
    /// Of a slot that was seen: one more than its class.
    seen: Vec<u8>,
}

impl Recency {
    /// Of a slot: two links and two marks.
    pub(super) const BYTES: usize = 2 * size_of::<u32>() + 2;

    pub(super) fn new(slots: usize) -> Result<Self> {
        Ok(Self {
            lists: Lists::new(Class::COUNT, slots)?,
            marks: memory::filled(slots, OPEN, MARKS)?,
            cursors: [None; Class::COUNT],
            ends: [None; Class::COUNT],
            counts: [0; Class::COUNT],
            seen: memory::filled(slots, 0, MARKS)?,
        })
    }

    /// The first slot of a class that was not seen.
    fn first_unseen(&self, class: usize) -> Option<SlotIx> {
        match self.ends[class] {
            Some(end) => self.lists.after(end),
            None => self.lists.front(class),
        }
    }

    fn class_seen(&self, slot: SlotIx) -> Option<usize> {
        self.seen[slot.at()].checked_sub(1).map(usize::from)
    }

    /// A slot leaves. Where the cursor of its class stands, that goes back to the one before, which
    /// it has passed too.
    fn step_back(&mut self, slot: SlotIx) {
        if let Some(class) = self.marks[slot.at()].checked_sub(PASSED)
            && self.cursors[class as usize] == Some(slot)
        {
            self.cursors[class as usize] = self.lists.before(slot);
        }
    }

    fn open_from(&mut self, class: usize) -> Option<SlotIx> {
        let mut at = self.cursors[class].or_else(|| self.lists.front(class));
        while let Some(slot) = at {
            if self.marks[slot.at()] == OPEN {
                return Some(slot);
            }
            self.marks[slot.at()] = PASSED + class as u8;
            self.cursors[class] = Some(slot);
            at = self.lists.after(slot);
        }
        None
    }
}

impl Evict for Recency {
    fn insert(&mut self, slot: SlotIx, class: Class, place: Place, evictability: Evictability) {
        match place {
            Place::Back => self.lists.push_back(class as usize, slot),
            Place::Before(other) => {
                self.unsee(other);
                self.lists.insert_before(other, slot);
                self.cursors[class as usize] = None;
            }
        }
        self.marks[slot.at()] = if evictability == Evictability::Blocked {
            BLOCKED
        } else {
            OPEN
        };
    }

    fn remove(&mut self, slot: SlotIx) {
        self.step_back(slot);
        if let Some(class) = self.class_seen(slot) {
            self.seen[slot.at()] = 0;
            self.counts[class] -= 1;
            if self.ends[class] == Some(slot) {
                self.ends[class] = self.lists.before(slot);
            }
        }
        self.lists.remove(slot);
    }

    fn refresh(&mut self, slot: SlotIx, evictability: Evictability) {
        let mark = &mut self.marks[slot.at()];
        if evictability == Evictability::Blocked {
            if *mark == OPEN {
                *mark = BLOCKED;
            }
        } else {
            if let Some(class) = mark.checked_sub(PASSED) {
                // It may stand before the cursor: look from the front again. What was passed before
                // a clear has the class of then, and needs no more: the cursor of the cleared
                // marks all that it passes as its own, so it has not passed this slot.
                self.cursors[class as usize] = None;
            }
            *mark = OPEN;
        }
    }

    fn victim(&mut self) -> Option<SlotIx> {
        (0..Class::COUNT).find_map(|class| self.open_from(class))
    }

    fn take(&mut self, count: usize, out: &mut Vec<SlotIx>) {
        let all = out.len() + count;
        for class in 0..Class::COUNT {
            while out.len() < all
                && let Some(slot) = self.open_from(class)
            {
                self.remove(slot);
                out.push(slot);
            }
        }
    }

    fn ahead(&self, limit: usize, _opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        let all = (0..Class::COUNT).flat_map(|class| {
            std::iter::successors(self.lists.front(class), |&slot| self.lists.after(slot))
        });
        out.extend(all.take(limit));
    }

    fn unseen(&self, limit: usize, _opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        let mut left = limit;
        for class in 0..Class::COUNT {
            left = left.saturating_sub(self.counts[class]);
            let (first, before) = (self.first_unseen(class).filter(|_| left > 0), out.len());
            let rest = std::iter::successors(first, |&slot| self.lists.after(slot));
            out.extend(rest.take(left));
            left -= out.len() - before;
        }
    }

    fn see(&mut self, slot: SlotIx) -> bool {
        let class = (0..Class::COUNT).find(|&class| self.first_unseen(class) == Some(slot));
        let Some(class) = class else { return false };
        self.ends[class] = Some(slot);
        self.counts[class] += 1;
        self.seen[slot.at()] = class as u8 + 1;
        true
    }

    fn settle(&mut self, _limit: usize) {}

    fn unsee(&mut self, slot: SlotIx) {
        let Some(class) = self.class_seen(slot) else {
            return;
        };
        while let Some(end) = self.ends[class] {
            self.seen[end.at()] = 0;
            self.counts[class] -= 1;
            self.ends[class] = self.lists.before(end);
            if end == slot {
                return;
            }
        }
    }

    fn precedes(&self, slot: SlotIx, _other: SlotIx) -> bool {
        self.seen(slot)
    }

    fn seen(&self, slot: SlotIx) -> bool {
        self.seen[slot.at()] > 0
    }

    fn clear(&mut self) {
        for class in 1..Class::COUNT {
            self.lists.append(Class::Cleared as usize, class);
        }
        self.cursors = [None; Class::COUNT];
        self.ends = [None; Class::COUNT];
        self.counts = [0; Class::COUNT];
        self.seen.fill(0);
    }

    fn reserve(&mut self, slots: usize) -> Result<()> {
        self.lists.reserve(slots)?;
        memory::reserve(&mut self.marks, slots, MARKS)?;
        memory::reserve(&mut self.seen, slots, MARKS)
    }

    fn grow(&mut self, slots: usize) {
        self.lists.grow(slots);
        self.marks.resize(slots, OPEN);
        self.seen.resize(slots, 0);
    }

    fn holds(&self, slot: SlotIx) -> bool {
        self.lists.holds(slot)
    }

    fn agrees(&self, slot: SlotIx, evictability: Evictability) -> bool {
        (self.marks[slot.at()] == OPEN) == (evictability != Evictability::Blocked)
    }

    fn ranks(&self, slots: usize) -> Option<Vec<u32>> {
        let mut order = Vec::new();
        self.ahead(usize::MAX, &mut |_| None, &mut order);
        let mut ranks = vec![u32::MAX; slots];
        for (rank, slot) in order.into_iter().enumerate() {
            ranks[slot.at()] = rank as u32;
        }
        Some(ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u32) -> SlotIx {
        SlotIx::new(number)
    }

    fn drain(policy: &mut Recency) -> Vec<SlotIx> {
        let mut order = Vec::new();
        while let Some(slot) = policy.victim() {
            policy.remove(slot);
            order.push(slot);
        }
        order
    }

    #[test]
    fn classes_go_in_order_and_each_by_recency() {
        let mut policy = Recency::new(8).unwrap();
        for (number, class) in [
            (0, Class::Retained),
            (1, Class::Ordinary),
            (2, Class::Ended),
        ] {
            policy.insert(slot(number), class, Place::Back, Evictability::Leaf);
        }
        policy.insert(slot(3), Class::Ordinary, Place::Back, Evictability::Leaf);
        policy.insert(
            slot(4),
            Class::Ordinary,
            Place::Before(slot(3)),
            Evictability::Leaf,
        );
        assert_eq!(drain(&mut policy), [2, 1, 4, 3, 0]);
    }

    #[test]
    fn a_blocked_slot_keeps_its_place_and_is_found_again() {
        let mut policy = Recency::new(8).unwrap();
        for number in 0..5 {
            policy.insert(
                slot(number),
                Class::Ordinary,
                Place::Back,
                Evictability::Leaf,
            );
        }
        policy.refresh(slot(0), Evictability::Blocked);
        policy.refresh(slot(1), Evictability::Blocked);
        assert_eq!(policy.victim(), Some(slot(2)));
        policy.remove(slot(2));
        assert_eq!(policy.victim(), Some(slot(3)));
        policy.refresh(slot(1), Evictability::Leaf);
        assert_eq!(policy.victim(), Some(slot(1)), "back at its place");
        policy.refresh(slot(0), Evictability::Leaf);
        assert_eq!(drain(&mut policy), [0, 1, 3, 4]);
    }

    #[test]
    fn what_was_passed_before_a_clear_is_found_in_its_place_when_it_opens() {
        for passed_again in [false, true] {
            let mut policy = Recency::new(8).unwrap();
            for number in 0..3 {
                policy.insert(
                    slot(number),
                    Class::Ordinary,
                    Place::Back,
                    Evictability::Blocked,
                );
            }
            policy.insert(slot(3), Class::Ordinary, Place::Back, Evictability::Leaf);
            assert_eq!(policy.victim(), Some(slot(3)));
            policy.clear();
            policy.insert(slot(4), Class::Ordinary, Place::Back, Evictability::Blocked);
            policy.insert(slot(5), Class::Ordinary, Place::Back, Evictability::Leaf);
            if passed_again {
                assert_eq!(policy.victim(), Some(slot(3)));
            }
            policy.refresh(slot(1), Evictability::Leaf);
            assert_eq!(policy.victim(), Some(slot(1)));
            policy.refresh(slot(0), Evictability::Leaf);
            assert_eq!(drain(&mut policy), [0, 1, 3, 5]);
            policy.refresh(slot(2), Evictability::Leaf);
            policy.refresh(slot(4), Evictability::Leaf);
            assert_eq!(drain(&mut policy), [2, 4]);
        }
    }

    #[test]
    fn what_stands_where_the_cursor_was_can_leave() {
        let mut policy = Recency::new(8).unwrap();
        for number in 0..3 {
            policy.insert(
                slot(number),
                Class::Ordinary,
                Place::Back,
                Evictability::Blocked,
            );
        }
        assert_eq!(policy.victim(), None);
        policy.remove(slot(2));
        policy.insert(slot(3), Class::Ordinary, Place::Back, Evictability::Leaf);
        assert_eq!(policy.victim(), Some(slot(3)));
    }

    #[test]
    fn what_was_seen_is_passed_over_wherever_something_new_stands() {
        let mut policy = Recency::new(8).unwrap();
        for number in 0..4 {
            policy.insert(
                slot(number),
                Class::Ordinary,
                Place::Back,
                Evictability::Leaf,
            );
        }
        let unseen = |policy: &Recency, limit| {
            let mut out = Vec::new();
            policy.unseen(limit, &mut |_| None, &mut out);
            out
        };
        assert_eq!(unseen(&policy, 3), [0, 1, 2]);
        assert!((0..3).all(|number| policy.see(slot(number))));
        assert_eq!(
            (unseen(&policy, 3), unseen(&policy, 4)),
            (vec![], vec![slot(3)])
        );
        policy.insert(slot(4), Class::Ended, Place::Back, Evictability::Leaf);
        assert_eq!(unseen(&policy, 3), [4], "the first three are 4, 0 and 1");
        assert!(policy.see(slot(4)));
        policy.remove(slot(2));
        assert_eq!(
            (unseen(&policy, 3), unseen(&policy, 4)),
            (vec![], vec![slot(3)])
        );
        assert!(policy.precedes(slot(1), slot(3)) && !policy.precedes(slot(3), slot(3)));
        policy.unsee(slot(1));
        assert_eq!(unseen(&policy, 9), [1, 3]);
        policy.remove(slot(0));
        policy.remove(slot(4));
        assert_eq!(unseen(&policy, 1), [1], "nothing before it is left");
        assert!(!policy.see(slot(3)) && policy.see(slot(1)));
        policy.clear();
        assert_eq!(unseen(&policy, 9), [1, 3]);
    }

    #[test]
    fn cleared_goes_before_everything_new() {
        let mut policy = Recency::new(8).unwrap();
        policy.insert(slot(0), Class::Retained, Place::Back, Evictability::Leaf);
        policy.insert(slot(1), Class::Ended, Place::Back, Evictability::Leaf);
        policy.clear();
        policy.insert(slot(2), Class::Ended, Place::Back, Evictability::Leaf);
        assert_eq!(drain(&mut policy), [1, 0, 2]);
    }
}
