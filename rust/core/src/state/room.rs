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
            let parent = self.parent_slot(tier, slot);
            self.drop_one(tier, slot);
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

    fn drop_one(&mut self, tier: usize, slot: u32) {
        let takeable = self.backs_as(tier, slot, Stand::Leaf);
        let storey = &mut self.tiers[tier];
        storey.ledger.takeable_from(takeable, false);
        storey.order.remove(slot);
        if let Some(node) = self.node_in(tier, slot) {
            // Not hot, or it would be blocked.
            self.depart(node, tier, slot);
            self.touch_below(node, tier);
            self.bury_if_gone(node);
        }
        self.free(tier, slot);
        self.counters.evicted[tier] += 1;
    }

    pub(super) fn bury_if_gone(&mut self, node: u32) {
        if self.trie[node]
            .copies
            .iter()
            .all(|copy| copy.slot.is_none())
        {
            let dropped = &self.trie[node];
            if let Some(ghosts) = self.ghosts.as_mut().filter(|_| !dropped.is_anonymous()) {
                ghosts.remember(&dropped.key);
            }
            self.trie.bury(node);
        }
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
        let nodes = ahead.iter().filter_map(|&slot| self.node_in(tier, slot));
        self.trie.warm(nodes.map(|node| &self.trie[node].key));
        self.ahead = ahead;
    }
}
