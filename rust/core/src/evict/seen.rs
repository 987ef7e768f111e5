//! What copies ahead have looked at: the beginning of each list, so that the next look goes on where the
//! last one stopped.

use super::HEADS;
use crate::base::{Ix, Result, SlotIx, memory};
use crate::collections::Lists;

/// What it is, where there is no memory for it.
const SEEN: &str = "the marks of the eviction order";

#[derive(Hash, Debug)]
pub(super) struct Seen {
    /// The last slot of each list that was seen, and how many were.
    ends: [Option<SlotIx>; HEADS],
    counts: [u32; HEADS],
    /// Of a slot that was seen: one more than its list.
    slots: Vec<u8>,
}

impl Seen {
    pub(super) fn new() -> Self {
        Self {
            ends: [None; HEADS],
            counts: [0; HEADS],
            slots: Vec::new(),
        }
    }

    pub(super) fn reserve(&mut self, slots: usize) -> Result<()> {
        memory::reserve(&mut self.slots, slots, SEEN)
    }

    pub(super) fn grow(&mut self, slots: usize) {
        self.slots.resize(slots, 0);
    }

    #[inline]
    pub(super) fn holds(&self, slot: SlotIx) -> bool {
        self.slots[slot.at()] > 0
    }

    /// Whether any was.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.ends.iter().any(Option::is_some)
    }

    /// How many of a list were seen.
    pub(super) fn count(&self, head: usize) -> usize {
        self.counts[head % HEADS] as usize
    }

    /// The first slot of a list that was not.
    #[inline]
    pub(super) fn first_unseen(&self, lists: &Lists, head: usize) -> Option<SlotIx> {
        match self.ends[head % HEADS] {
            Some(end) => lists.after(end),
            None => lists.front(head),
        }
    }

    /// The first unseen slot of a list is seen now.
    #[inline]
    pub(super) fn see(&mut self, slot: SlotIx, head: usize) {
        self.ends[head % HEADS] = Some(slot);
        self.counts[head % HEADS] += 1;
        self.slots[slot.at()] = head as u8 + 1;
    }

    /// A slot is about to leave its list.
    #[inline]
    pub(super) fn leave(&mut self, lists: &Lists, slot: SlotIx) {
        if let Some(head) = self.head(slot) {
            self.slots[slot.at()] = 0;
            self.counts[head % HEADS] -= 1;
            if self.ends[head % HEADS] == Some(slot) {
                self.ends[head % HEADS] = lists.before(slot);
            }
        }
    }

    /// A slot must be looked at again, and so must what is behind it.
    pub(super) fn unsee(&mut self, lists: &Lists, slot: SlotIx) {
        let Some(head) = self.head(slot) else {
            return;
        };
        while let Some(end) = self.ends[head % HEADS] {
            self.slots[end.at()] = 0;
            self.counts[head % HEADS] -= 1;
            self.ends[head % HEADS] = lists.before(end);
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

    #[inline]
    fn head(&self, slot: SlotIx) -> Option<usize> {
        self.slots[slot.at()].checked_sub(1).map(usize::from)
    }
}
