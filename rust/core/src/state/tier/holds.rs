//! What holds each slot of a tier, and who reads it.

use super::{Evictability, TierState, evictability};
use crate::base::{Class, FlightIx, Link, NodeIx, Set, SlotIx, Tier};
use crate::evict::UsageTable;
use crate::tiers::{Hold, Residency, Trie};

/// What a slot was before it was pinned.
#[derive(PartialEq, Eq)]
enum Was {
    /// Whether it could not be taken.
    Idle {
        blocked: bool,
    },
    Pinned,
    Unready,
}

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
        match self.gain_pin(slot, &residency) {
            Was::Idle { blocked } => {
                if !blocked && self.pool.stays(slot) {
                    self.ledger.lose_takeable();
                }
                self.ledger.shift(Some(Set::Idle), Some(Set::Pinned));
                self.order.remove(slot);
            }
            was => debug_assert!(
                was == Was::Pinned,
                "pinning slot {slot}, which is not ready"
            ),
        }
    }

    /// Pins what of a path is ready on the device, and adds its slots to a table; all of them may stay.
    pub(crate) fn pin_path(&mut self, path: &[NodeIx], trie: &Trie, table: &mut Vec<SlotIx>) {
        // Slots of the table from here on were idle, and leave the order together.
        let (mut first, mut backed) = (table.len(), 0);
        for &node in path {
            let residency = trie.residency(node, Tier::DEVICE);
            let Some(slot) = residency.slot.map(Link::at) else {
                continue;
            };
            debug_assert!(self.pool.stays(slot), "slot {slot} is to leave");
            match self.gain_pin(slot, residency) {
                Was::Idle { blocked } => backed += u32::from(!blocked),
                Was::Pinned => {
                    self.leave_order_together(&table[first..], backed);
                    (first, backed) = (table.len() + 1, 0);
                }
                Was::Unready => continue,
            }
            table.push(slot);
        }
        self.leave_order_together(&table[first..], backed);
    }

    /// Adds a holder to a slot that is ready. Returns what it was.
    #[inline]
    fn gain_pin(&mut self, slot: SlotIx, residency: &Residency) -> Was {
        let cell = self.pool.cell_mut(slot);
        match &mut cell.hold {
            Hold::Pinned { pins } => {
                *pins += 1;
                Was::Pinned
            }
            Hold::Idle { .. } => {
                let blocked = evictability(*residency, cell) == Evictability::Blocked;
                cell.hold = Hold::Pinned { pins: 1 };
                Was::Idle { blocked }
            }
            _ => Was::Unready,
        }
    }

    /// Slots of a path are pinned now that were idle; so many of them have backed promises.
    fn leave_order_together(&mut self, path: &[SlotIx], backed: u32) {
        if !path.is_empty() {
            self.ledger.take(backed);
            self.ledger
                .shift_all(Set::Idle, Set::Pinned, path.len() as u32);
            self.order.remove_path(path);
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

    /// Whether [`Self::unpin_end`] takes a holder off the block in this slot.
    #[inline]
    pub(crate) fn unpins_end(&self, slot: SlotIx) -> bool {
        let cell = self.pool.cell(slot);
        let pinned = matches!(cell.hold, Hold::Pinned { .. }) && cell.node.is_some();
        pinned && self.pool.is_plain(slot)
    }

    /// Takes a holder off the blocks of a device table, the deepest first, up to one that is not pinned or may
    /// not stay. Another takes its place at the first `kept`. Raises the class of each to `least`, and
    /// `least` to the class. Returns the blocks that are left.
    pub(crate) fn unpin_end<'a>(
        &mut self,
        table: &'a [SlotIx],
        kept: usize,
        trie: &mut Trie,
        usages: &UsageTable,
        least: &mut Class,
    ) -> &'a [SlotIx] {
        let mut left = table.len();
        // Blocks that are idle now, up to `end`: they enter the order together, as they stand alike.
        let (mut stand, mut end) = (None, left);
        for (at, &slot) in table.iter().enumerate().rev() {
            let plain = self.pool.is_plain(slot);
            let cell = self.pool.cell_mut(slot);
            let (Hold::Pinned { pins }, Some(node), true) = (&mut cell.hold, cell.node, plain)
            else {
                break;
            };
            let node = node.at();
            *least = trie.raise_class(node, *least);
            let next = match *pins {
                _ if at < kept => None,
                1 => {
                    let class = trie.class(node);
                    cell.hold = Hold::Idle { class };
                    Some((
                        class,
                        evictability(*trie.residency(node, Tier::DEVICE), cell),
                    ))
                }
                _ => {
                    *pins -= 1;
                    None
                }
            };
            if next != stand {
                self.enter_order(&table[left..end], stand, usages);
                (stand, end) = (next, at + 1);
            }
            left = at;
        }
        self.enter_order(&table[left..end], stand, usages);
        &table[..left]
    }

    /// Puts blocks of a path that were pinned into the order, the last first, unless they are pinned
    /// still.
    fn enter_order(
        &mut self,
        path: &[SlotIx],
        stand: Option<(Class, Evictability)>,
        usages: &UsageTable,
    ) {
        let Some((class, evictability)) = stand else {
            return;
        };
        let count = path.len() as u32;
        self.ledger.shift_all(Set::Pinned, Set::Idle, count);
        if evictability != Evictability::Blocked {
            self.ledger.gain_takeable(count);
        }
        let pool = &self.pool;
        let views = |slot| usages.of(pool.cell(slot).node.map(Link::at).unwrap_or_default());
        self.order.insert_path(path, class, &views, evictability);
    }

    /// Blocks of a path that were being filled have come, and nothing holds them: they stand alike, and
    /// enter the order, the last first.
    pub(crate) fn fill_path(
        &mut self,
        path: &[SlotIx],
        stand: Option<(Class, Evictability)>,
        usages: &UsageTable,
    ) {
        if let Some((class, _)) = stand {
            for &slot in path {
                self.pool.cell_mut(slot).hold = Hold::Idle { class };
            }
            self.enter_order(path, stand, usages);
        }
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
