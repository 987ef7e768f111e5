//! Idle: where a block without a holder stands in the order of its tier, and in which class. A child
//! stands before its parent.

use super::State;
use super::transitions::climb;
use crate::base::{Class, NodeIx, SlotIx, Tier};
use crate::evict::InsertAt;
use crate::tiers::Hold;

/// When copies on the host of what the device has too are evicted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HostCopies {
    /// First, once the device has used the block again; leaf first, as everything.
    First,
    /// Last: where a copy costs a write that is to be kept.
    Last,
}

impl State {
    /// A ready slot without a holder enters the order of its tier, behind its children and before
    /// its parent. Below the device it can meet a parent that stands there already.
    pub(super) fn make_idle(&mut self, tier: Tier, slot: SlotIx) {
        let Some(node) = self.node_in(tier, slot) else {
            return self.tiers[tier].free(slot);
        };
        let class = self.class_on(node, tier);
        let residency = *self.trie.residency(node, tier);
        let above = if tier > Tier::DEVICE && self.tiers[tier].keeps_order() {
            self.idle_above(node, tier, class)
        } else {
            None
        };
        let place = match above {
            Some((_, above, own)) if residency.children == 0 && own == class => {
                InsertAt::Before(above)
            }
            _ => InsertAt::Back,
        };
        let view = self.usages.of(node);
        self.tiers[tier].make_idle(slot, class, view, place, residency);
        if let Some((parent, ..)) = above.filter(|_| place == InsertAt::Back) {
            // It closes a gap in a path: its ancestors follow it.
            self.move_to_back(parent, tier);
        }
    }

    /// The parent that stands idle on the tier, with its slot and class, where a child of this class
    /// would stand behind it. What becomes a shadow has a parent that is one, or becomes one next.
    fn idle_above(
        &self,
        node: NodeIx,
        tier: Tier,
        class: Class,
    ) -> Option<(NodeIx, SlotIx, Class)> {
        let parent = self.trie.parent(node)?;
        let slot = self.trie.slot(parent, tier)?;
        let Hold::Idle { class: own } = self.hold(tier, slot) else {
            return None;
        };
        let behind = own == class || (own < class && class != Class::Shadow);
        behind.then_some((parent, slot, own))
    }

    #[expect(
        clippy::inline_always,
        reason = "a call for each block that lands is 4 % of it"
    )]
    #[inline(always)]
    pub(super) fn class_on(&self, node: NodeIx, tier: Tier) -> Class {
        let current = self.trie[node].epoch == self.trie.epoch();
        if current && tier > Tier::DEVICE && self.ready(node, Tier::DEVICE).is_some() {
            if self.copies_first {
                self.copy_class(node, tier)
            } else {
                Class::Shadow
            }
        } else {
            self.trie.class(node)
        }
    }

    /// The class of a copy of what the device has too. Where such copies go first, one that was made just
    /// now goes last all the same: it was made since its block may leave the device soon.
    #[cold]
    fn copy_class(&self, node: NodeIx, tier: Tier) -> Class {
        let hold = self.trie.slot(node, tier).map(|slot| self.hold(tier, slot));
        match hold {
            Some(Hold::Idle { class }) if class != Class::Shadow && tier == Tier::HOST => {
                Class::Copied
            }
            _ => Class::Shadow,
        }
    }

    /// The class in which a block stands that an engine uses, which has it on its own device then.
    #[cold]
    pub(super) fn used_class(&self, node: NodeIx, tier: Tier) -> Class {
        match self.class_on(node, tier) {
            Class::Cleared => Class::Cleared,
            _ if self.copies_first && tier == Tier::HOST => Class::Copied,
            class => class,
        }
    }

    /// An engine says that its device may lose a block soon: its copy on the host stays from now on.
    #[cold]
    pub(super) fn keep_copy(&mut self, node: NodeIx) {
        let class = self.class_on(node, Tier::HOST);
        self.turn_copy(node, Class::Copied, class);
    }

    /// The device has used a block: its copy on the host may go first from now on, where such copies do.
    pub(super) fn leave_copy(&mut self, node: NodeIx) {
        self.turn_copy(node, Class::Shadow, Class::Copied);
    }

    /// A block is among the next victims of the device: its copy on the host stays.
    pub(super) fn spare_copy(&mut self, node: NodeIx) {
        self.turn_copy(node, Class::Copied, Class::Shadow);
    }

    /// The block's idle copy on the host leaves one class for another.
    pub(super) fn turn_copy(&mut self, node: NodeIx, from: Class, to: Class) {
        if let Some(slot) = self.trie.slot(node, Tier::HOST)
            && self.hold(Tier::HOST, slot) == (Hold::Idle { class: from })
        {
            self.enter(node, Tier::HOST, slot, to);
        }
    }

    /// Moves an idle block and its idle ancestors on the tier to the back of their class, so that
    /// they stand behind what was linked or inserted below them.
    pub(super) fn move_to_back(&mut self, node: NodeIx, tier: Tier) {
        let mut at = Some(node).filter(|_| self.tiers[tier].keeps_order());
        while let Some(node) = at {
            climb(&mut self.climbed);
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
        if tier > Tier::DEVICE {
            self.note_orphan(node);
        }
        self.enter(node, tier, slot, self.class_on(node, tier));
    }

    /// The same, at the back of this class.
    pub(super) fn enter(&mut self, node: NodeIx, tier: Tier, slot: SlotIx, class: Class) {
        let evictability = self.evictability_of(tier, slot);
        let view = self.usages.of(node);
        self.tiers[tier].reclass(slot, class, view, evictability);
    }

    /// A block has a ready copy on the device now, or none any more. Its copies below become shadows
    /// of it, or enter the order in their own right, at the back (INV-20d).
    pub(super) fn reclass_below(&mut self, node: NodeIx) {
        if self.trie[node].epoch != self.trie.epoch() {
            // All of its epoch were handed over in their order: nothing is moved any more.
            return;
        }
        for below in self.tiers.below(Tier::DEVICE) {
            if let Some(slot) = self.trie.slot(node, below)
                && let Hold::Idle { class } = self.hold(below, slot)
                && class != self.class_on(node, below)
            {
                let evictability = self.evictability_of(below, slot);
                self.tiers[below].leave_order(slot, evictability);
                self.make_idle(below, slot);
            }
        }
    }
}
