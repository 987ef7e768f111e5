//! The slots of one tier: what holds each, and the list of free ones.

use crate::base::{Class, FlightIx, Ix, Link, NodeIx, Result, Set, SlotIx, memory};

/// What holds a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Hold {
    Free {
        next: Option<Link<SlotIx>>,
    },
    /// Private to this many leases (more than one after a fork), and without content: a seal or a park
    /// gives it a block.
    Claimed {
        leases: u32,
    },
    /// Private to this many leases, with content: shared by forks and not sealed.
    Owned {
        leases: u32,
    },
    /// A duplicate, private to this many leases. It pins the published block, once for them all, and
    /// lets it go with the last of them.
    Duplicate {
        leases: u32,
    },
    /// Destination of a flight: no copy and no sequence may read it.
    Filling {
        flight: FlightIx,
    },
    /// Published or parked, and held by this many leases and keeps.
    Pinned {
        pins: u32,
    },
    /// Published, and held by no lease and no keep: it stands in this class of the eviction order.
    Idle {
        class: Class,
    },
    /// A copy with an unknown end may still write or read it: its outcome frees it.
    Quarantined,
    /// Beyond the tier's size after a shrink; outside of the capacity.
    Retired,
    /// Padding for block tables; outside of the capacity, never given out.
    Null,
}

impl Hold {
    /// Its set, or `None` for what is outside of the capacity.
    pub(crate) fn set(self) -> Option<Set> {
        Some(match self {
            Self::Free { .. } => Set::Free,
            Self::Claimed { .. } => Set::Claimed,
            Self::Owned { .. }
            | Self::Duplicate { .. }
            | Self::Filling { .. }
            | Self::Pinned { .. } => Set::Pinned,
            Self::Idle { .. } => Set::Idle,
            Self::Quarantined => Set::Quarantined,
            Self::Retired | Self::Null => return None,
        })
    }

    /// Whether its bytes are a block's, complete and readable.
    pub(crate) fn is_ready(self) -> bool {
        matches!(self, Self::Pinned { .. } | Self::Idle { .. })
    }
}

#[derive(Clone, Copy, Hash, Debug)]
pub(crate) struct Cell {
    /// The block in it, if the trie or a parked sequence knows one; for a duplicate, the published
    /// block that it pins.
    pub(crate) node: Option<Link<NodeIx>>,
    pub(crate) hold: Hold,
    /// Flights that read it: the reader mark on top of its set.
    pub(crate) readers: u32,
}

#[derive(Hash, Debug)]
pub(crate) struct Pool {
    cells: Vec<Cell>,
    free: Option<Link<SlotIx>>,
    /// Slots below this number may be given out; the others retire as they come free.
    limit: u32,
    /// Slots that were withdrawn, which are not given out either: a bit for each, 64 a word. Empty
    /// where none was.
    withdrawn: Vec<u64>,
    /// How many slots may be given out.
    room: u32,
    /// The limit where no slot was withdrawn or is left soon, else 0: what asks about a slot looks here
    /// first.
    whole: u32,
    /// Whether blocks in it leave as soon as nothing uses them.
    leaving: bool,
}

impl Pool {
    /// `slots` slots of which the first `null` are padding.
    pub(crate) fn new(slots: u32, null: u32) -> Result<Self> {
        let mut pool = Self {
            cells: Vec::new(),
            free: None,
            limit: 0,
            withdrawn: Vec::new(),
            room: 0,
            whole: 0,
            leaving: false,
        };
        pool.reserve(slots)?;
        pool.grow(slots, null);
        Ok(pool)
    }

    /// Makes room to grow to that many slots.
    pub(crate) fn reserve(&mut self, slots: u32) -> Result<()> {
        memory::reserve(&mut self.cells, slots as usize, "the slots' cells")
    }

    /// More slots, for which there is room; the first `null` of the new ones are padding.
    pub(crate) fn grow(&mut self, slots: u32, null: u32) {
        let first = self.cells.len() as u32;
        for _ in first..slots {
            self.cells.push(Cell {
                node: None,
                hold: Hold::Retired,
                readers: 0,
            });
        }
        for slot in first..first + null {
            self.cells[slot as usize].hold = Hold::Null;
        }
        self.bound(slots);
        // Backwards, so that the lowest is given out first.
        for slot in (first + null..slots).rev() {
            self.push_free(SlotIx::new(slot));
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.cells.len() as u32
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// How many slots may be given out, null slots included.
    pub(crate) fn room(&self) -> u32 {
        self.room
    }

    /// How many it were with this limit.
    pub(crate) fn room_below(&self, limit: u32) -> u32 {
        if self.withdrawn.is_empty() {
            return limit;
        }
        let slots = (0..limit).map(SlotIx::new);
        limit - slots.filter(|&slot| self.is_withdrawn(slot)).count() as u32
    }

    #[inline]
    pub(crate) fn is_withdrawn(&self, slot: SlotIx) -> bool {
        let word = self.withdrawn.get(slot.at() / 64);
        word.is_some_and(|word| word >> (slot.at() % 64) & 1 == 1)
    }

    /// All slots, also those beyond the limit.
    pub(crate) fn slots(&self) -> impl DoubleEndedIterator<Item = SlotIx> + use<> {
        (0..self.len()).map(SlotIx::new)
    }

    /// Whether a slot may be given out again when it comes free.
    #[inline]
    pub(crate) fn stays(&self, slot: SlotIx) -> bool {
        slot.get() < self.whole || self.is_left(slot)
    }

    /// Whether nothing at all is to be asked about a slot that comes free, or idle.
    #[inline]
    pub(crate) fn is_plain(&self, slot: SlotIx) -> bool {
        slot.get() < self.whole
    }

    /// Says whether blocks in it leave as soon as nothing uses them.
    pub(crate) fn set_leaving(&mut self, leaving: bool) {
        self.leaving = leaving;
        self.bound(self.limit);
    }

    #[cold]
    fn is_left(&self, slot: SlotIx) -> bool {
        slot.get() < self.limit && !self.is_withdrawn(slot)
    }

    /// Whether there are slots that retire as they come free, or blocks that leave when they are idle.
    pub(crate) fn is_shrunk(&self) -> bool {
        self.whole < self.len()
    }

    pub(crate) fn cell(&self, slot: SlotIx) -> &Cell {
        &self.cells[slot.at()]
    }

    pub(crate) fn cell_mut(&mut self, slot: SlotIx) -> &mut Cell {
        &mut self.cells[slot.at()]
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = (SlotIx, &Cell)> {
        self.cells
            .iter()
            .enumerate()
            .map(|(slot, cell)| (SlotIx::new(slot as u32), cell))
    }

    /// Takes the next free slot off the list; its hold is the caller's to set.
    pub(crate) fn pop_free(&mut self) -> Option<SlotIx> {
        let slot = self.free?.at();
        if let Hold::Free { next } = self.cells[slot.at()].hold {
            self.free = next;
        }
        Some(slot)
    }

    pub(crate) fn push_free(&mut self, slot: SlotIx) {
        let cell = &mut self.cells[slot.at()];
        debug_assert!(
            cell.node.is_none() && cell.readers == 0,
            "slot {slot} is not free"
        );
        cell.hold = Hold::Free { next: self.free };
        self.free = Some(Link::to(slot));
    }

    /// Sets the size; free slots beyond it are retired. Returns how many were.
    pub(crate) fn set_limit(&mut self, limit: u32) -> u32 {
        self.bound(limit);
        self.retire_free()
    }

    /// Withdraws these slots, all of which the pool has; those that are free are retired. Returns how
    /// many were.
    pub(crate) fn withdraw(&mut self, slots: &[SlotIx]) -> u32 {
        if slots.is_empty() {
            return 0;
        }
        self.withdrawn.resize(self.cells.len().div_ceil(64), 0);
        for slot in slots {
            self.withdrawn[slot.at() / 64] |= 1 << (slot.at() % 64);
        }
        self.bound(self.limit);
        self.retire_free()
    }

    /// Sets the limit, and what follows from it.
    fn bound(&mut self, limit: u32) {
        self.limit = limit;
        self.room = self.room_below(limit);
        self.whole = if self.withdrawn.is_empty() && !self.leaving {
            limit
        } else {
            0
        };
    }

    /// Retires the free slots that do not stay. Returns how many there were.
    fn retire_free(&mut self) -> u32 {
        let free: Vec<SlotIx> = std::iter::from_fn(|| self.pop_free()).collect();
        let mut retired = 0;
        for slot in free.into_iter().rev() {
            if self.stays(slot) {
                self.push_free(slot);
            } else {
                self.cells[slot.at()].hold = Hold::Retired;
                retired += 1;
            }
        }
        retired
    }

    /// Slots that had retired and may be given out again. Returns how many there were.
    pub(crate) fn revive(&mut self) -> u32 {
        let mut revived = 0;
        for slot in (0..self.limit.min(self.len())).rev().map(SlotIx::new) {
            if self.cells[slot.at()].hold == Hold::Retired && self.stays(slot) {
                self.push_free(slot);
                revived += 1;
            }
        }
        revived
    }

    /// Puts the free slots into the order that [`Self::free_slots`] gave before.
    pub(crate) fn restore_free(&mut self, order: &[SlotIx]) {
        self.free = None;
        for &slot in order.iter().rev() {
            self.push_free(slot);
        }
    }

    /// The free slots, the next to be given out first.
    pub(crate) fn free_slots(&self) -> impl Iterator<Item = SlotIx> {
        std::iter::successors(self.free.map(Link::at), |&slot| {
            match self.cell(slot).hold {
                Hold::Free { next } => next.map(Link::at),
                _ => None,
            }
        })
        .take(self.cells.len() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_slot_goes_first_and_null_slots_never() {
        let mut pool = Pool::new(4, 1).unwrap();
        assert_eq!(
            std::iter::from_fn(|| pool.pop_free().map(SlotIx::get)).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert_eq!(pool.cell(SlotIx::new(0)).hold, Hold::Null);
        pool.push_free(SlotIx::new(2));
        assert_eq!(pool.pop_free(), Some(SlotIx::new(2)));
        assert_eq!(pool.pop_free(), None);
    }

    #[test]
    fn a_cell_is_sixteen_bytes() {
        assert_eq!(size_of::<Cell>(), 16);
    }
}
