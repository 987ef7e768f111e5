//! How many slots a tier has.

use super::{Evictability, TierState, evictability};
use crate::base::{Class, Link, NodeIx, Result, SlotIx};
use crate::evict::{Lives, Place};
use crate::state::Config;
use crate::tiers::{Hold, Trie};

impl TierState {
    /// Makes room to grow to that many slots.
    pub(crate) fn reserve(&mut self, config: &Config, slots: usize) -> Result<()> {
        self.pool.reserve(slots as u32)?;
        self.order.reserve(slots)?;
        self.descent.reserve(config, self.tier, slots)
    }

    /// More slots, for which there is room.
    pub(crate) fn grow(&mut self, slots: u32) {
        self.ledger.enter(slots - self.pool.len());
        self.pool.grow(slots, 0);
        self.order.grow(slots as usize);
    }

    /// Moves the limit: free slots beyond it retire, and retired ones below it are free again.
    pub(crate) fn set_limit(&mut self, slots: u32, trie: &Trie) {
        self.ledger.retire(self.pool.set_limit(slots));
        self.ledger.enter(self.pool.revive());
        self.recount(trie);
    }

    /// Takes these slots out of the tier, as they come free.
    pub(crate) fn withdraw(&mut self, slots: &[SlotIx], trie: &Trie) {
        self.ledger.retire(self.pool.withdraw(slots));
        self.recount(trie);
    }

    fn recount(&mut self, trie: &Trie) {
        let takeable = self.count_takeable(trie);
        self.ledger.set_takeable(takeable);
    }

    /// The takeable slots, counted: idle blocks that may be evicted, in slots that may be given out again.
    pub(crate) fn count_takeable(&self, trie: &Trie) -> u32 {
        let takeable = self.pool.cells().filter(|&(slot, cell)| {
            let node = cell.node.filter(|_| matches!(cell.hold, Hold::Idle { .. }));
            node.is_some_and(|node| {
                let residency = *trie.residency(node.at(), self.tier);
                self.backs(slot, evictability(residency, cell))
            })
        });
        takeable.count() as u32
    }

    /// Puts the free slots into an order that the pool gave before.
    pub(crate) fn restore_free(&mut self, free: &[SlotIx]) {
        self.pool.restore_free(free);
    }

    /// The tier holds so many blocks from now on, together with those above it.
    pub(crate) fn resize_order(&mut self, room: usize) {
        self.order.resize(room);
    }

    /// Whether blocks leave from now on as soon as nothing uses them.
    pub(crate) fn set_leaving(&mut self, leaving: bool) {
        self.pool.set_leaving(leaving);
    }

    /// Free slots have blocks from before, each with so many children here: the first to be evicted first.
    pub(crate) fn restore(
        &mut self,
        blocks: impl Iterator<Item = (SlotIx, NodeIx, u32)>,
        lives: &Lives,
    ) {
        let mut free: Vec<SlotIx> = self.pool.free_slots().collect();
        let mut restored = 0;
        for (slot, node, children) in blocks {
            let class = Class::Ordinary;
            let cell = self.pool.cell_mut(slot);
            (cell.node, cell.hold) = (Some(Link::to(node)), Hold::Idle { class });
            let evictability = match children {
                0 => Evictability::Leaf,
                _ => Evictability::Branch,
            };
            let past = lives.of(node);
            self.order
                .insert(slot, class, past, Place::Back, evictability);
            restored += 1;
        }
        free.retain(|&slot| matches!(self.pool.cell(slot).hold, Hold::Free { .. }));
        self.pool.restore_free(&free);
        self.ledger.restore(restored);
    }
}
