//! Room: evicting exactly the deficit, from the front of the order, leaf first; and what a tier that
//! has shrunk gives back.

use super::State;
use crate::evict::{Evict, Stand};
use crate::pool::Hold;

/// Victims for which it does not pay to look ahead.
const FEW: u32 = 4;

impl State {
    /// Evicts one block that the order gave as a victim, or that is a leaf; and of those above it
    /// what retires by that.
    pub(super) fn drop_copy(&mut self, tier: usize, slot: u32) {
        let mut next = Some(slot);
        while let Some(slot) = next {
            let parent = self.drop_one(tier, slot);
            next = parent.filter(|&parent| self.retires(tier, parent));
        }
    }

    /// A slot is idle now, or read no more, or its last child has left: as a leaf beyond the tier's
    /// size it goes at once (table 2.7), and what becomes one by that.
    pub(super) fn retire(&mut self, tier: usize, slot: u32) {
        if self.retires(tier, slot) {
            self.drop_copy(tier, slot);
        }
    }

    /// Whether the slot lies beyond the size, and nobody holds or reads what is in it, or has
    /// anything below.
    pub(super) fn retires(&self, tier: usize, slot: u32) -> bool {
        slot >= self.tiers[tier].pool.limit()
            && matches!(self.hold(tier, slot), Hold::Idle { .. })
            && self.stand_of(tier, slot) == Stand::Leaf
    }

    /// The slot that its parent has.
    fn drop_one(&mut self, tier: usize, slot: u32) -> Option<u32> {
        self.counters.evicted[tier] += 1;
        let node = self.tiers[tier].evict(slot)?.at();
        // Not hot, or it would be blocked.
        let parent = self.leave_tier(node, tier);
        if !self.bury_if_gone(node) {
            self.touch_below(node, tier);
        }
        parent
    }

    /// Whether no tier has the block any more, so that it is none.
    pub(super) fn bury_if_gone(&mut self, node: u32) -> bool {
        if !self.trie.is_gone(node) {
            return false;
        }
        let block = &self.trie[node];
        if let Some(ghosts) = self.ghosts.as_mut().filter(|_| !block.is_anonymous()) {
            ghosts.remember(&block.key);
        }
        self.trie.bury(node);
        true
    }

    /// Evicts exactly as many blocks as `need` slots lack. The caller has checked that free and
    /// takeable slots suffice; `false`, with nothing broken, if it was wrong.
    pub(super) fn make_room(&mut self, tier: usize, need: u32) -> bool {
        self.warm_room(tier, need);
        while self.tiers[tier].ledger.free() < need {
            let Some(slot) = self.tiers[tier].order.victim() else {
                debug_assert!(false, "promised room for {need} is not there");
                return false;
            };
            self.drop_copy(tier, slot);
        }
        true
    }

    /// Reads ahead what making this room will read, now or in the calls that follow.
    pub(super) fn warm_room(&mut self, tier: usize, need: u32) {
        let deficit = need.saturating_sub(self.tiers[tier].ledger.free());
        if deficit > FEW {
            self.warm_victims(tier, deficit as usize);
        }
    }

    fn warm_victims(&mut self, tier: usize, deficit: usize) {
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.clear();
        self.tiers[tier]
            .order
            .ahead(deficit, &mut |_| None, &mut ahead);
        for slot in &mut ahead {
            *slot = self.node_in(tier, *slot).unwrap_or(0);
        }
        let keys = ahead.iter().map(|&node| &self.trie[node].key);
        self.trie.warm(keys, &mut self.tags);
        self.ahead = ahead;
    }
}
