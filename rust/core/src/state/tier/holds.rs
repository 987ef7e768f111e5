//! What holds each slot of a tier, and who reads it.

use super::{Evictability, TierState, evictability};
use crate::base::{FlightIx, Link, NodeIx, Set, SlotIx};
use crate::tiers::{Hold, Residency};

impl TierState {
    /// Sets what holds a slot; not for free or idle ones, which stand in lists too.
    #[inline]
    pub(crate) fn put(&mut self, slot: SlotIx, hold: Hold) {
        let cell = self.pool.cell_mut(slot);
        self.ledger.shift(cell.hold.set(), hold.set());
        cell.hold = hold;
    }

    /// A private slot gets a block of the trie: the leases that had the slot pin the block. Returns
    /// whether it is read; `None`: it is not private.
    #[inline]
    pub(crate) fn adopt(&mut self, slot: SlotIx, node: Link<NodeIx>) -> Option<bool> {
        let cell = self.pool.cell_mut(slot);
        let pins = match cell.hold {
            Hold::Claimed { leases } => {
                self.ledger.shift(Some(Set::Claimed), Some(Set::Pinned));
                leases
            }
            Hold::Owned { leases } => leases,
            _ => return None,
        };
        (cell.node, cell.hold) = (Some(node), Hold::Pinned { pins });
        Some(cell.readers > 0)
    }

    /// Adds a holder to a ready slot, whose block has this residency.
    #[inline]
    pub(crate) fn pin(&mut self, slot: SlotIx, residency: Residency) {
        let stays = self.pool.stays(slot);
        let cell = self.pool.cell_mut(slot);
        match &mut cell.hold {
            Hold::Pinned { pins } => *pins += 1,
            Hold::Idle { .. } => {
                let backs = evictability(residency, cell) != Evictability::Blocked && stays;
                cell.hold = Hold::Pinned { pins: 1 };
                if backs {
                    self.ledger.lose_takeable();
                }
                self.ledger.shift(Some(Set::Idle), Some(Set::Pinned));
                self.order.remove(slot);
            }
            hold => debug_assert!(false, "pinning slot {slot}, which is {hold:?}"),
        }
    }

    /// Takes a holder off a pinned slot, but for the last one. Whether it is the last.
    #[inline]
    pub(crate) fn unpin(&mut self, slot: SlotIx) -> bool {
        match &mut self.pool.cell_mut(slot).hold {
            Hold::Pinned { pins } if *pins > 1 => *pins -= 1,
            Hold::Pinned { .. } => return true,
            hold => debug_assert!(false, "unpinning slot {slot}, which is {hold:?}"),
        }
        false
    }

    /// Takes a lease off a private slot, which is free after the last one. Returns the block that it stood
    /// beside.
    pub(crate) fn unshare(&mut self, slot: SlotIx) -> Option<Link<NodeIx>> {
        let cell = self.pool.cell_mut(slot);
        match &mut cell.hold {
            Hold::Claimed { leases } | Hold::Owned { leases } | Hold::Duplicate { leases }
                if *leases > 1 =>
            {
                *leases -= 1;
                None
            }
            Hold::Claimed { .. } | Hold::Owned { .. } | Hold::Duplicate { .. } => {
                let beside = cell.node.take();
                self.free(slot);
                beside
            }
            hold => {
                debug_assert!(false, "slot {slot} of a table is {hold:?}");
                None
            }
        }
    }

    /// A private slot turns out to be a duplicate of this block.
    pub(crate) fn stand_beside(&mut self, slot: SlotIx, node: Link<NodeIx>) {
        let cell = self.pool.cell(slot);
        if let Hold::Claimed { leases } | Hold::Owned { leases } = cell.hold {
            self.put(slot, Hold::Duplicate { leases });
            self.pool.cell_mut(slot).node = Some(node);
        }
    }

    /// A slot has its block no more.
    #[inline]
    pub(crate) fn unlink(&mut self, slot: SlotIx) {
        self.pool.cell_mut(slot).node = None;
    }

    /// A flight reads the slot.
    #[inline]
    pub(crate) fn read(&mut self, slot: SlotIx) {
        self.pool.cell_mut(slot).readers += 1;
    }

    /// A flight reads it no more. Whether none does.
    #[inline]
    pub(crate) fn end_read(&mut self, slot: SlotIx) -> bool {
        let cell = self.pool.cell_mut(slot);
        cell.readers -= 1;
        cell.readers == 0
    }

    /// Takes a free slot; the caller has made room, and says what holds it now.
    pub(crate) fn take_free(&mut self, hold: Hold) -> Option<SlotIx> {
        let slot = self.pool.pop_free()?;
        self.ledger.shift(Some(Set::Free), hold.set());
        self.pool.cell_mut(slot).hold = hold;
        Some(slot)
    }

    /// Takes a free slot, likewise, that this flight will fill for a block.
    #[inline]
    pub(crate) fn fill(&mut self, node: Link<NodeIx>, flight: FlightIx) -> Option<SlotIx> {
        let slot = self.pool.pop_free()?;
        self.ledger.shift(Some(Set::Free), Some(Set::Pinned));
        let cell = self.pool.cell_mut(slot);
        (cell.node, cell.hold) = (Some(node), Hold::Filling { flight });
        Some(slot)
    }

    /// Claims free slots until a table has `total`; the caller has made room.
    pub(crate) fn claim(&mut self, total: u32, table: &mut Vec<SlotIx>) {
        let before = table.len();
        while (table.len() as u32) < total
            && let Some(slot) = self.pool.pop_free()
        {
            self.pool.cell_mut(slot).hold = Hold::Claimed { leases: 1 };
            table.push(slot);
        }
        let claimed = (table.len() - before) as u32;
        self.ledger.shift_all(Set::Free, Set::Claimed, claimed);
    }

    /// Gives a slot back that holds no block: to the free ones, to retirement, or, while a flight
    /// still reads it, to quarantine.
    pub(crate) fn free(&mut self, slot: SlotIx) {
        let cell = self.pool.cell(slot);
        debug_assert!(cell.node.is_none(), "slot {slot} still holds a block");
        if cell.readers > 0 {
            self.put(slot, Hold::Quarantined);
        } else if !self.pool.stays(slot) {
            self.put(slot, Hold::Retired);
        } else {
            self.ledger.shift(cell.hold.set(), Some(Set::Free));
            self.pool.push_free(slot);
        }
    }
}
