//! An indexed binary heap over the leaves: each slot knows its place in it, so that a slot leaves
//! in O(log n), and nothing stale is ever in it. The score is class, then priority, then last use; what
//! has outlived its time is of the class that goes first of those that are not cleared.

use super::usage::{Asks, Usage, UsageView, Worth};
use super::{
    Children, CopyAhead, Evict, EvictAudit, Evictability, InsertAt, Opens, Passed, Stamps,
};
use crate::base::{Class, Ix, Result, SlotIx, memory};
use std::collections::{BTreeMap, BTreeSet};

/// What it is, where there is no memory for it.
const HEAP: &str = "the heap of the eviction order";
const OUT: u32 = u32::MAX;
const CLASS_SHIFT: u32 = 56;
const PRIORITY_SHIFT: u32 = 48;

#[derive(Hash, Debug)]
pub(crate) struct Heap {
    /// The heap itself.
    leaves: Vec<SlotIx>,
    /// Where a slot is in the heap, or [`OUT`].
    places: Vec<u32>,
    /// Class above, then priority, and the stamp of last use below; 0 for a slot that is not idle.
    scores: Vec<u64>,
    stamp: u64,
    /// When the idle slots that have a time to live have outlived it, by tick and by slot.
    due: BTreeSet<(u64, SlotIx)>,
    untils: BTreeMap<SlotIx, u64>,
    now: u64,
    /// Of this many of the next victims none was new, and nothing has changed since.
    settled: usize,
}

impl Heap {
    pub(super) const ASKS: Asks = Asks::Worth;
    /// Of a slot: its score, its place, and its place's slot.
    pub(super) const BYTES: usize = size_of::<u64>() + 2 * size_of::<u32>();

    pub(super) fn new(slots: usize, _room: usize, _children: Children) -> Result<Self> {
        let mut heap = Self {
            leaves: Vec::new(),
            places: Vec::new(),
            scores: Vec::new(),
            stamp: 0,
            due: BTreeSet::new(),
            untils: BTreeMap::new(),
            now: 0,
            settled: 0,
        };
        heap.reserve(slots)?;
        heap.grow(slots);
        Ok(heap)
    }

    fn score(&self, at: usize) -> u64 {
        self.scores[self.leaves[at].at()]
    }

    fn set(&mut self, at: usize, slot: SlotIx) {
        self.leaves[at] = slot;
        self.places[slot.at()] = at as u32;
    }

    fn rise(&mut self, mut at: usize) {
        let slot = self.leaves[at];
        while at > 0 {
            let above = (at - 1) / 2;
            if self.score(above) <= self.scores[slot.at()] {
                break;
            }
            self.set(at, self.leaves[above]);
            at = above;
        }
        self.set(at, slot);
    }

    fn sink(&mut self, mut at: usize) {
        let slot = self.leaves[at];
        loop {
            let mut below = 2 * at + 1;
            if below >= self.leaves.len() {
                break;
            }
            if below + 1 < self.leaves.len() && self.score(below + 1) < self.score(below) {
                below += 1;
            }
            if self.scores[slot.at()] <= self.score(below) {
                break;
            }
            self.set(at, self.leaves[below]);
            at = below;
        }
        self.set(at, slot);
    }

    fn enter(&mut self, slot: SlotIx) {
        self.leaves.push(slot);
        self.rise(self.leaves.len() - 1);
    }

    fn leave(&mut self, slot: SlotIx) {
        let at = self.places[slot.at()] as usize;
        self.places[slot.at()] = OUT;
        let last = self.leaves.len() - 1;
        let moved = self.leaves[last];
        self.leaves.truncate(last);
        if at < last {
            self.set(at, moved);
            self.rise(at);
            self.sink(self.places[moved.at()] as usize);
        }
    }
}

/// The score of what has this class and priority, and was used last at this stamp.
fn score(class: Class, priority: u8, stamp: u64) -> u64 {
    (class as u64 + 1) << CLASS_SHIFT | u64::from(priority) << PRIORITY_SHIFT | stamp
}

impl Heap {
    /// What has a time to live is found when it has outlived it. Returns the class in which it stands.
    fn live(&mut self, slot: SlotIx, class: Class, worth: Worth) -> Class {
        // A copy of what a higher tier has goes by that one's time, when it stands alone.
        let alone = !matches!(class, Class::Cleared | Class::Copied | Class::Shadow);
        if worth.until == u64::MAX || !alone {
            return class;
        }
        if worth.until <= self.now {
            return class.min(Class::Ended);
        }
        self.due.insert((worth.until, slot));
        self.untils.insert(slot, worth.until);
        class
    }

    /// Lets all that has outlived its time go first.
    fn expire(&mut self) {
        while let Some(&(until, slot)) = self.due.first()
            && until <= self.now
        {
            self.due.pop_first();
            self.untils.remove(&slot);
            self.settled = 0;
            let stamp = self.scores[slot.at()] & ((1 << PRIORITY_SHIFT) - 1);
            let expired = score(Class::Ended, 0, stamp);
            self.scores[slot.at()] = expired.min(self.scores[slot.at()]);
            if self.places[slot.at()] != OUT {
                self.rise(self.places[slot.at()] as usize);
            }
        }
    }
}

impl Evict for Heap {
    fn insert(
        &mut self,
        slot: SlotIx,
        class: Class,
        view: UsageView<'_>,
        _place: InsertAt,
        evictability: Evictability,
    ) {
        self.stamp += 1;
        let worth = view.worth();
        let class = self.live(slot, class, worth);
        self.scores[slot.at()] = score(class, worth.priority, self.stamp);
        self.refresh(slot, evictability);
    }

    fn used(&mut self, _path: &[(u64, Usage)], now: u64) {
        self.now = now;
        self.expire();
    }

    fn remove(&mut self, slot: SlotIx) {
        self.settled = 0;
        self.scores[slot.at()] = 0;
        if !self.untils.is_empty()
            && let Some(until) = self.untils.remove(&slot)
        {
            self.due.remove(&(until, slot));
        }
        if self.places[slot.at()] != OUT {
            self.leave(slot);
        }
    }

    fn refresh(&mut self, slot: SlotIx, evictability: Evictability) {
        self.settled = 0;
        match (
            evictability == Evictability::Leaf,
            self.places[slot.at()] == OUT,
        ) {
            (true, true) => self.enter(slot),
            (false, false) => self.leave(slot),
            _ => {}
        }
    }

    fn victim(&mut self, _stamps: Stamps<'_>) -> Option<SlotIx> {
        self.leaves.first().copied()
    }

    fn ahead(&self, limit: usize, _stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        // The smallest of a heap, in order, through a frontier of slots: O(k log k).
        let mut frontier = std::collections::BinaryHeap::new();
        let next = |slot: SlotIx| std::cmp::Reverse((self.scores[slot.at()], slot));
        frontier.extend(self.leaves.first().map(|&slot| next(slot)));
        for _ in 0..limit {
            let Some(std::cmp::Reverse((_, slot))) = frontier.pop() else {
                break;
            };
            out.push(slot);
            frontier.extend(opens(slot).map(next));
            let at = self.places[slot.at()];
            if at != OUT {
                let below = self.leaves.iter().skip(2 * at as usize + 1).take(2);
                frontier.extend(below.map(|&slot| next(slot)));
            }
        }
    }

    fn clear(&mut self) {
        self.settled = 0;
        // Cleared ranks first; by class and last use as before among themselves. Classes are
        // folded into fresh stamps, so that the order stays while the class sinks.
        let mut idle: Vec<SlotIx> = (0..self.scores.len() as u32)
            .map(SlotIx::new)
            .filter(|&slot| self.scores[slot.at()] > 0)
            .collect();
        idle.sort_unstable_by_key(|&slot| self.scores[slot.at()]);
        for slot in idle {
            self.stamp += 1;
            self.scores[slot.at()] = score(Class::Cleared, 0, self.stamp);
        }
        (self.due, self.untils) = Default::default();
        for at in (0..self.leaves.len() / 2).rev() {
            self.sink(at);
        }
    }

    fn reserve(&mut self, slots: usize) -> Result<()> {
        memory::reserve(&mut self.leaves, slots, HEAP)?;
        memory::reserve(&mut self.places, slots, HEAP)?;
        memory::reserve(&mut self.scores, slots, HEAP)
    }

    fn grow(&mut self, slots: usize) {
        self.places.resize(slots, OUT);
        self.scores.resize(slots, 0);
    }

    fn warms(&self) -> bool {
        // It does not know what comes behind a leaf.
        false
    }

    fn children(&self) -> Children {
        Children::InOrder
    }
}

impl CopyAhead for Heap {
    fn unseen(&self, limit: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        if limit > self.settled {
            self.ahead(limit, stamps, opens, out);
        }
    }

    fn see(&mut self, _slot: SlotIx, _class: Class) -> bool {
        true
    }

    fn settle(&mut self, limit: usize) {
        self.settled = limit;
    }

    fn unsee(&mut self, _slot: SlotIx) {
        self.settled = 0;
    }

    fn unsee_all(&mut self) {
        self.settled = 0;
    }

    fn precedes(&self, slot: (SlotIx, Class), other: (SlotIx, Class), passed: Passed<'_>) -> bool {
        // A score says nothing of a block that waits for a child, and all of one that is read.
        passed(slot.0) || self.scores[slot.0.at()] < self.scores[other.0.at()]
    }
}

impl EvictAudit for Heap {
    fn holds(&self, slot: SlotIx) -> bool {
        self.scores[slot.at()] > 0
    }

    fn agrees(&self, slot: SlotIx, evictability: Evictability) -> bool {
        (self.places[slot.at()] != OUT) == (evictability == Evictability::Leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::put;

    fn slot(number: u32) -> SlotIx {
        SlotIx::new(number)
    }

    #[test]
    fn leaves_go_by_class_then_last_use() {
        let mut heap = Heap::new(8, 8, Children::InOrder).unwrap();
        put(&mut heap, 0, Class::Retained, Evictability::Leaf);
        put(&mut heap, 1, Class::Ordinary, Evictability::Leaf);
        put(&mut heap, 2, Class::Ended, Evictability::Branch);
        put(&mut heap, 3, Class::Ordinary, Evictability::Leaf);
        assert_eq!(heap.victim(&|_| 0), Some(slot(1)));
        heap.refresh(slot(2), Evictability::Leaf);
        let mut ahead = Vec::new();
        heap.ahead(3, &|_| 0, &mut |_| None, &mut ahead);
        assert_eq!(ahead, [2, 1, 3]);
        put(&mut heap, 5, Class::Ordinary, Evictability::Branch);
        ahead.clear();
        heap.ahead(
            9,
            &|_| 0,
            &mut |at| (at == 1).then_some(slot(5)),
            &mut ahead,
        );
        assert_eq!(ahead, [2, 1, 3, 5, 0], "what it opens has its own score");
        heap.remove(slot(5));
        heap.clear();
        put(&mut heap, 4, Class::Ended, Evictability::Leaf);
        let order: Vec<SlotIx> = std::iter::from_fn(|| {
            let slot = heap.victim(&|_| 0)?;
            heap.remove(slot);
            Some(slot)
        })
        .collect();
        assert_eq!(order, [2, 1, 3, 0, 4]);
    }

    #[test]
    fn any_slot_can_leave_from_the_middle() {
        let mut heap = Heap::new(100, 100, Children::InOrder).unwrap();
        for n in 0..100_u32 {
            put(&mut heap, n * 37 % 100, Class::Ordinary, Evictability::Leaf);
        }
        for number in (0..100).filter(|number| number % 3 == 0) {
            heap.remove(slot(number));
        }
        let mut last = 0;
        while let Some(slot) = heap.victim(&|_| 0) {
            assert!(slot.get() % 3 != 0 && heap.scores[slot.at()] > last);
            last = heap.scores[slot.at()];
            heap.remove(slot);
        }
    }
}
