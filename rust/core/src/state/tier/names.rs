//! Names: slots of a tier whose blocks are found by their keys alone, as somebody else may have put them
//! there. Nothing is copied for a name; it is unproven until a copy of it is good.

use super::TierState;
use crate::base::{Ix as _, Link, NodeIx, Set, SlotIx};
use crate::tiers::Hold;

impl TierState {
    /// Takes a free slot for a block that is said to be there; the caller has made room, and puts the slot into
    /// the order by [`Self::fill_path`] before anything else is asked.
    pub(crate) fn take_name(&mut self, node: Link<NodeIx>) -> Option<SlotIx> {
        let slot = self.pool.pop_free()?;
        self.ledger.shift(Some(Set::Free), Some(Set::Pinned));
        let cell = self.pool.cell_mut(slot);
        (cell.node, cell.hold) = (Some(node), Hold::Pinned { pins: 1 });
        let words = self.pool.len().div_ceil(64) as usize;
        self.unproven.resize(words, 0);
        self.unproven[slot.at() / 64] |= 1 << (slot.at() % 64);
        Some(slot)
    }

    /// Whether what is in this slot is there by hearsay.
    #[inline]
    pub(crate) fn is_unproven(&self, slot: SlotIx) -> bool {
        let word = self.unproven.get(slot.at() / 64);
        word.is_some_and(|word| word >> (slot.at() % 64) & 1 == 1)
    }

    /// A copy to the slot, or from it, was good.
    #[inline]
    pub(crate) fn prove(&mut self, slot: SlotIx) {
        if let Some(word) = self.unproven.get_mut(slot.at() / 64) {
            *word &= !(1 << (slot.at() % 64));
        }
    }
}
