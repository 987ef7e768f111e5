//! An indexed binary heap over the leaves: each slot knows its place in it, so that a slot leaves
//! in O(log n), and nothing stale is ever in it. The score here is class, then last use; another
//! score is another line in [`Heap::insert`].

use super::{Evict, Evictability, Opens, Place};
use crate::error::Result;
use crate::id::Class;
use crate::memory;

/// What it is, where there is no memory for it.
const HEAP: &str = "the heap of the eviction order";
const OUT: u32 = u32::MAX;
const CLASS_SHIFT: u32 = 56;

#[derive(Hash, Debug)]
pub(crate) struct Heap {
    /// The heap itself.
    leaves: Vec<u32>,
    /// Where a slot is in the heap, or [`OUT`].
    places: Vec<u32>,
    /// Class above, stamp of last use below; 0 for a slot that is not idle.
    scores: Vec<u64>,
    stamp: u64,
    /// Of so many of the next victims none was new, and nothing has changed since.
    settled: usize,
}

impl Heap {
    /// Of a slot: its score, its place, and its place's slot.
    pub(super) const BYTES: usize = size_of::<u64>() + 2 * size_of::<u32>();

    pub(super) fn new(slots: usize) -> Result<Self> {
        let mut heap = Self {
            leaves: Vec::new(),
            places: Vec::new(),
            scores: Vec::new(),
            stamp: 0,
            settled: 0,
        };
        heap.reserve(slots)?;
        heap.grow(slots);
        Ok(heap)
    }

    fn score(&self, at: usize) -> u64 {
        self.scores[self.leaves[at] as usize]
    }

    fn set(&mut self, at: usize, slot: u32) {
        self.leaves[at] = slot;
        self.places[slot as usize] = at as u32;
    }

    fn rise(&mut self, mut at: usize) {
        let slot = self.leaves[at];
        while at > 0 {
            let above = (at - 1) / 2;
            if self.score(above) <= self.scores[slot as usize] {
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
            if self.scores[slot as usize] <= self.score(below) {
                break;
            }
            self.set(at, self.leaves[below]);
            at = below;
        }
        self.set(at, slot);
    }

    fn enter(&mut self, slot: u32) {
        self.leaves.push(slot);
        self.rise(self.leaves.len() - 1);
    }

    fn leave(&mut self, slot: u32) {
        let at = self.places[slot as usize] as usize;
        self.places[slot as usize] = OUT;
        let last = self.leaves.len() - 1;
        let moved = self.leaves[last];
        self.leaves.truncate(last);
        if at < last {
            self.set(at, moved);
            self.rise(at);
            self.sink(self.places[moved as usize] as usize);
        }
    }
}

impl Evict for Heap {
    fn insert(&mut self, slot: u32, class: Class, _place: Place, evictability: Evictability) {
        self.stamp += 1;
        self.scores[slot as usize] = (class as u64 + 1) << CLASS_SHIFT | self.stamp;
        self.refresh(slot, evictability);
    }

    fn remove(&mut self, slot: u32) {
        self.settled = 0;
        self.scores[slot as usize] = 0;
        if self.places[slot as usize] != OUT {
            self.leave(slot);
        }
    }

    fn refresh(&mut self, slot: u32, evictability: Evictability) {
        self.settled = 0;
        match (
            evictability == Evictability::Leaf,
            self.places[slot as usize] == OUT,
        ) {
            (true, true) => self.enter(slot),
            (false, false) => self.leave(slot),
            _ => {}
        }
    }

    fn victim(&mut self) -> Option<u32> {
        self.leaves.first().copied()
    }

    fn take(&mut self, _count: usize, _out: &mut Vec<u32>) {}

    fn ahead(&self, limit: usize, opens: Opens<'_>, out: &mut Vec<u32>) {
        // The smallest of a heap, in order, through a frontier of slots: O(k log k).
        let mut frontier = std::collections::BinaryHeap::new();
        let next = |slot: u32| std::cmp::Reverse((self.scores[slot as usize], slot));
        frontier.extend(self.leaves.first().map(|&slot| next(slot)));
        for _ in 0..limit {
            let Some(std::cmp::Reverse((_, slot))) = frontier.pop() else {
                break;
            };
            out.push(slot);
            frontier.extend(opens(slot).map(next));
            let at = self.places[slot as usize];
            if at != OUT {
                let below = self.leaves.iter().skip(2 * at as usize + 1).take(2);
                frontier.extend(below.map(|&slot| next(slot)));
            }
        }
    }

    fn unseen(&self, limit: usize, opens: Opens<'_>, out: &mut Vec<u32>) {
        if limit > self.settled {
            self.ahead(limit, opens, out);
        }
    }

    fn see(&mut self, _slot: u32) -> bool {
        true
    }

    fn settle(&mut self, limit: usize) {
        self.settled = limit;
    }

    fn unsee(&mut self, _slot: u32) {
        self.settled = 0;
    }

    fn precedes(&self, slot: u32, other: u32) -> bool {
        self.scores[slot as usize] < self.scores[other as usize]
    }

    fn seen(&self, _slot: u32) -> bool {
        false
    }

    fn clear(&mut self) {
        self.settled = 0;
        // Cleared ranks first; by class and last use as before among themselves. Classes are
        // folded into fresh stamps, so that the order stays while the class sinks.
        let mut idle: Vec<u32> = (0..self.scores.len() as u32)
            .filter(|&slot| self.scores[slot as usize] > 0)
            .collect();
        idle.sort_unstable_by_key(|&slot| self.scores[slot as usize]);
        for slot in idle {
            self.stamp += 1;
            self.scores[slot as usize] = (Class::Cleared as u64 + 1) << CLASS_SHIFT | self.stamp;
        }
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

    fn holds(&self, slot: u32) -> bool {
        self.scores[slot as usize] > 0
    }

    fn agrees(&self, slot: u32, evictability: Evictability) -> bool {
        (self.places[slot as usize] != OUT) == (evictability == Evictability::Leaf)
    }

    fn ranks(&self, _slots: usize) -> Option<Vec<u32>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_go_by_class_then_last_use() {
        let mut heap = Heap::new(8).unwrap();
        heap.insert(0, Class::Retained, Place::Back, Evictability::Leaf);
        heap.insert(1, Class::Ordinary, Place::Back, Evictability::Leaf);
        heap.insert(2, Class::Ended, Place::Back, Evictability::Branch);
        heap.insert(3, Class::Ordinary, Place::Back, Evictability::Leaf);
        assert_eq!(heap.victim(), Some(1));
        heap.refresh(2, Evictability::Leaf);
        let mut ahead = Vec::new();
        heap.ahead(3, &mut |_| None, &mut ahead);
        assert_eq!(ahead, [2, 1, 3]);
        heap.insert(5, Class::Ordinary, Place::Back, Evictability::Branch);
        ahead.clear();
        heap.ahead(9, &mut |slot| (slot == 1).then_some(5), &mut ahead);
        assert_eq!(ahead, [2, 1, 3, 5, 0], "what it opens has its own score");
        heap.remove(5);
        heap.clear();
        heap.insert(4, Class::Ended, Place::Back, Evictability::Leaf);
        let order: Vec<u32> = std::iter::from_fn(|| {
            let slot = heap.victim()?;
            heap.remove(slot);
            Some(slot)
        })
        .collect();
        assert_eq!(order, [2, 1, 3, 0, 4]);
    }

    #[test]
    fn any_slot_can_leave_from_the_middle() {
        let mut heap = Heap::new(100).unwrap();
        for n in 0..100_u32 {
            heap.insert(
                n * 37 % 100,
                Class::Ordinary,
                Place::Back,
                Evictability::Leaf,
            );
        }
        for slot in (0..100).filter(|slot| slot % 3 == 0) {
            heap.remove(slot);
        }
        let mut last = 0;
        while let Some(slot) = heap.victim() {
            assert!(slot % 3 != 0 && heap.scores[slot as usize] > last);
            last = heap.scores[slot as usize];
            heap.remove(slot);
        }
    }
}
