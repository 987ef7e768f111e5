//! Idle: where a block without a holder stands in the order of its tier, and in which class. A child
//! stands before its parent.

use super::State;
use crate::evict::{Evict, Place};
use crate::id::{Class, NodeIx, SlotIx, Tier};
use crate::pool::Hold;

impl State {
    /// A ready slot without a holder enters the order of its tier, behind its children and before
    /// its parent. Only a shadow can meet a parent that stands there already.
    pub(super) fn make_idle(&mut self, tier: Tier, slot: SlotIx) {
        let Some(node) = self.node_in(tier, slot) else {
            return self.free(tier, slot);
        };
        let class = self.class_on(node, tier);
        let residency = *self.trie.residency(node, tier);
        let above = if class == Class::Shadow {
            self.shadow_above(node, tier)
        } else {
            None
        };
        let childless = residency.children == 0;
        let place = match above {
            Some((_, above)) if childless => Place::Before(above),
            _ => Place::Back,
        };
        self.tiers[tier].make_idle(slot, class, place, residency);
        if let Some((parent, _)) = above.filter(|_| !childless) {
            // It closes a gap in a path: its ancestors follow it.
            self.move_to_back(parent, tier);
        }
    }

    /// The parent that stands on the tier as a shadow, and its slot.
    fn shadow_above(&self, node: NodeIx, tier: Tier) -> Option<(NodeIx, SlotIx)> {
        let parent = self.trie.parent(node)?;
        let slot = self.trie.slot(parent, tier)?;
        let class = Class::Shadow;
        (self.hold(tier, slot) == Hold::Idle { class }).then_some((parent, slot))
    }

    pub(super) fn class_on(&self, node: NodeIx, tier: Tier) -> Class {
        if self.trie[node].epoch != self.trie.epoch() {
            Class::Cleared
        } else if tier.above().any(|above| self.ready(node, above).is_some()) {
            Class::Shadow
        } else {
            self.trie[node].class
        }
    }

    /// Moves an idle block and its idle ancestors on the tier to the back of their class, so that
    /// they stand behind what was linked or inserted below them.
    pub(super) fn move_to_back(&mut self, node: NodeIx, tier: Tier) {
        let mut at = Some(node);
        while let Some(node) = at {
            self.climb();
            let Some(slot) = self.trie.slot(node, tier) else {
                return;
            };
            if !matches!(self.hold(tier, slot), Hold::Idle { .. }) {
                return;
            }
            self.reorder(node, tier, slot);
            at = self.trie.parent(node);
        }
    }

    /// Takes an idle slot out of the order and in again at the back of its class.
    pub(super) fn reorder(&mut self, node: NodeIx, tier: Tier, slot: SlotIx) {
        let (class, evictability) = (self.class_on(node, tier), self.evictability_of(tier, slot));
        let tier_state = &mut self.tiers[tier];
        tier_state.order.remove(slot);
        tier_state.pool.cell_mut(slot).hold = Hold::Idle { class };
        tier_state
            .order
            .insert(slot, class, Place::Back, evictability);
    }

    /// A block has a ready copy on `tier` now, or none any more. Its nearest copy below becomes a
    /// shadow of it, or enters the order in its own right, at the back (INV-20d).
    pub(super) fn reclass_below(&mut self, node: NodeIx, tier: Tier) {
        if self.trie[node].epoch != self.trie.epoch() {
            // All of its epoch were handed over in their order: nothing is moved any more.
            return;
        }
        for below in self.tiers.below(tier) {
            if let Some(slot) = self.trie.slot(node, below)
                && let Hold::Idle { class } = self.hold(below, slot)
                && class != self.class_on(node, below)
            {
                let takeable = self.takeable(below, slot);
                let tier_state = &mut self.tiers[below];
                if takeable {
                    tier_state.ledger.lose_takeable();
                }
                tier_state.order.remove(slot);
                self.make_idle(below, slot);
            }
        }
    }
}
