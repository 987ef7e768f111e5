//! What copies ahead have looked at: the beginning of each list, so that the next look goes on where the
//! last one stopped.

use crate::error::Result;
use crate::id::{Ix, SlotIx};
use crate::list::Lists;
use crate::memory;

/// What it is, where there is no memory for it.
const SEEN: &str = "the marks of the eviction order";

#[derive(Hash, Debug)]
pub(super) struct Seen {
    /// The last slot of each list that was seen, and how many were.
    ends: Vec<Option<SlotIx>>,
    counts: Vec<usize>,
    /// Of a slot that was seen: one more than its list.
    slots: Vec<u8>,
}

impl Seen {
    pub(super) fn new(heads: usize) -> Self {
        Self {
            ends: vec![None; heads],
            counts: vec![0; heads],
            slots: Vec::new(),
        }
    }

    pub(super) fn reserve(&mut self, slots: usize) -> Result<()> {
        memory::reserve(&mut self.slots, slots, SEEN)
    }

    pub(super) fn grow(&mut self, slots: usize) {
        self.slots.resize(slots, 0);
    }

    pub(super) fn holds(&self, slot: SlotIx) -> bool {
        self.slots[slot.at()] > 0
    }

    /// How many of a list were seen.
    pub(super) fn count(&self, head: usize) -> usize {
        self.counts[head]
    }

    /// The first slot of a list that was not.
    pub(super) fn first_unseen(&self, lists: &Lists, head: usize) -> Option<SlotIx> {
        match self.ends[head] {
            Some(end) => lists.after(end),
            None => lists.front(head),
        }
    }

    /// The first unseen slot of a list is seen now.
    pub(super) fn see(&mut self, slot: SlotIx, head: usize) {
        self.ends[head] = Some(slot);
        self.counts[head] += 1;
        self.slots[slot.at()] = head as u8 + 1;
    }

    /// A slot that was seen stands before all of its list.
    pub(super) fn see_front(&mut self, slot: SlotIx, head: usize) {
        let end = self.ends[head];
        self.see(slot, head);
        self.ends[head] = end.or(Some(slot));
    }

    /// A slot is about to leave its list.
    pub(super) fn leave(&mut self, lists: &Lists, slot: SlotIx) {
        if let Some(head) = self.head(slot) {
            self.slots[slot.at()] = 0;
            self.counts[head] -= 1;
            if self.ends[head] == Some(slot) {
                self.ends[head] = lists.before(slot);
            }
        }
    }

    /// A slot must be looked at again, and so must what is behind it.
    pub(super) fn unsee(&mut self, lists: &Lists, slot: SlotIx) {
        let Some(head) = self.head(slot) else {
            return;
        };
        while let Some(end) = self.ends[head] {
            self.slots[end.at()] = 0;
            self.counts[head] -= 1;
            self.ends[head] = lists.before(end);
            if end == slot {
                return;
            }
        }
    }

    /// None was seen.
    pub(super) fn clear(&mut self) {
        self.ends.fill(None);
        self.counts.fill(0);
        self.slots.fill(0);
    }

    fn head(&self, slot: SlotIx) -> Option<usize> {
        self.slots[slot.at()].checked_sub(1).map(usize::from)
    }
}
