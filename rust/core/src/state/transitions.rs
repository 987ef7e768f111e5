//! The moves of slots between sets, and the marks that go with them. Everything that changes a slot's
//! hold, a block's residency or a reader mark passes through here; `idle.rs` has the order.
//!
//! A block is *busy* on a tier while its slot there is read or (below the device) filling or pinned,
//! or while a child there is busy. An idle busy block is not takeable: something below it must stay.
//! Pins on the device need no such count: they are closed towards the root. Those of a kept path are
//! each on the home of a block, which may lie on several tiers.

use super::State;
use super::tier::{evictability, is_busy};
use crate::base::{FlightIx, Link, NodeIx, SlotIx, Tier};
use crate::evict::Evictability;
use crate::tiers::{Hold, Uses};

impl State {
    #[inline]
    pub(super) fn hold(&self, tier: Tier, slot: SlotIx) -> Hold {
        self.tiers[tier].pool().cell(slot).hold
    }

    /// The block whose copy the slot is.
    pub(super) fn node_in(&self, tier: Tier, slot: SlotIx) -> Option<NodeIx> {
        let cell = self.tiers[tier].pool().cell(slot);
        let own = cell
            .node
            .filter(|_| !matches!(cell.hold, Hold::Duplicate { .. }));
        own.map(Link::at)
    }

    /// The slot of the parent of the block in this one.
    pub(super) fn parent_slot(&self, tier: Tier, slot: SlotIx) -> Option<SlotIx> {
        let parent = self.trie.parent(self.node_in(tier, slot)?)?;
        self.trie.slot(parent, tier)
    }

    /// Whether the slot holds a block that may be read: neither absent nor filling.
    #[inline]
    pub(super) fn ready(&self, node: NodeIx, tier: Tier) -> Option<SlotIx> {
        let slot = self.trie.slot(node, tier)?;
        self.hold(tier, slot).is_ready().then_some(slot)
    }

    pub(super) fn filling(&self, node: NodeIx, tier: Tier) -> Option<FlightIx> {
        let slot = self.trie.slot(node, tier)?;
        match self.hold(tier, slot) {
            Hold::Filling { flight } => Some(flight),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn is_busy(&self, node: NodeIx, tier: Tier) -> bool {
        let slot = self.trie.slot(node, tier);
        slot.is_some_and(|slot| self.is_busy_in(node, tier, slot))
    }

    /// The same of a block in this slot.
    #[inline]
    fn is_busy_in(&self, node: NodeIx, tier: Tier, slot: SlotIx) -> bool {
        let residency = self.trie.residency(node, tier);
        residency.busy > 0 || is_busy(tier, self.tiers[tier].pool().cell(slot))
    }

    #[expect(
        clippy::inline_always,
        reason = "a call for each block that lands is 12 % of it"
    )]
    #[inline(always)]
    pub(super) fn evictability_of(&self, tier: Tier, slot: SlotIx) -> Evictability {
        let cell = self.tiers[tier].pool().cell(slot);
        let Some(node) = cell.node else {
            return Evictability::Blocked;
        };
        evictability(*self.trie.residency(node.at(), tier), cell)
    }

    pub(super) fn backs(&self, tier: Tier, slot: SlotIx) -> bool {
        self.tiers[tier].backs(slot, self.evictability_of(tier, slot))
    }

    pub(super) fn takeable(&self, tier: Tier, slot: SlotIx) -> bool {
        matches!(self.hold(tier, slot), Hold::Idle { .. }) && self.backs(tier, slot)
    }

    /// `node` has become busy, and so become its ancestors on the tier, up to the first that was.
    #[inline]
    pub(super) fn block_ancestors(&mut self, node: NodeIx, tier: Tier) {
        if let Some(parent) = self.trie.parent(node) {
            self.gain_busy(parent, tier);
        }
    }

    /// A child of `node` has become busy, and so becomes the block, and those above it.
    #[inline(never)]
    fn gain_busy(&mut self, node: NodeIx, tier: Tier) {
        climb(&mut self.climbed);
        let residency = self.trie.residency_mut(node, tier);
        residency.busy += 1;
        let first = residency.busy == 1;
        if let Some(slot) = residency.slot.filter(|_| first).map(Link::at)
            && !is_busy(tier, self.tiers[tier].pool().cell(slot))
        {
            self.block_path(node, tier, slot);
        }
    }

    /// A block below which nothing was busy becomes busy, and so do its ancestors, unless it was before.
    #[inline(never)]
    fn block_path(&mut self, mut node: NodeIx, tier: Tier, mut slot: SlotIx) {
        let own = &mut self.tiers[tier];
        while !own.block(slot)
            && let Some(parent) = self.trie.parent(node)
        {
            climb(&mut self.climbed);
            let residency = self.trie.residency_mut(parent, tier);
            residency.busy += 1;
            let first = residency.busy == 1;
            let Some(above) = residency.slot.filter(|_| first) else {
                return;
            };
            (node, slot) = (parent, above.at());
        }
    }

    /// `node` is no longer busy, and may have been the last below its ancestors that was.
    fn unblock_ancestors(&mut self, mut node: NodeIx, tier: Tier) {
        let own = &mut self.tiers[tier];
        while let Some(parent) = self.trie.parent(node) {
            climb(&mut self.climbed);
            let residency = self.trie.residency_mut(parent, tier);
            residency.busy -= 1;
            if !own.unblock(*residency) {
                return;
            }
            node = parent;
        }
    }

    /// A flight reads the slot.
    pub(super) fn mark(&mut self, tier: Tier, slot: SlotIx) {
        match self.node_in(tier, slot) {
            Some(node) => self.mark_block(node, tier, slot),
            None => self.tiers[tier].read(slot),
        }
    }

    /// The same of the slot of this block. Of a path that is read from either end, each block but one
    /// has what is above it blocked already.
    #[inline]
    pub(super) fn mark_block(&mut self, node: NodeIx, tier: Tier, slot: SlotIx) {
        if self.trie.residency(node, tier).busy == 0 {
            self.block_path(node, tier, slot);
        }
        self.tiers[tier].read(slot);
    }

    /// A flight has stopped reading the slot. It kept its place all along.
    #[inline]
    pub(super) fn unmark(&mut self, tier: Tier, slot: SlotIx) {
        if !self.tiers[tier].end_read(slot) {
            return;
        }
        if self.hold(tier, slot) == Hold::Quarantined {
            return self.tiers[tier].free(slot);
        }
        if let Some(node) = self.node_in(tier, slot) {
            let residency = *self.trie.residency(node, tier);
            if self.tiers[tier].unblock(residency) {
                self.unblock_ancestors(node, tier);
            }
        }
    }

    /// Pins what of a path is ready on the device, and adds it to a table.
    pub(super) fn pin_path(&mut self, path: &[NodeIx], table: &mut Vec<SlotIx>) {
        if !self.tiers[Tier::DEVICE].pool().is_shrunk() {
            return self.tiers[Tier::DEVICE].pin_path(path, &self.trie, table);
        }
        for &node in path {
            if let Some(slot) = self.ready(node, Tier::DEVICE) {
                self.pin(Tier::DEVICE, slot);
                table.push(slot);
            }
        }
    }

    /// The block gets a free slot on the tier, which a copy will fill; the caller has made room.
    pub(super) fn attach(&mut self, node: NodeIx, tier: Tier, flight: FlightIx) -> Option<SlotIx> {
        let (slot, busy) = self.fill(node, tier, flight)?;
        self.count_child(node, tier, busy);
        Some(slot)
    }

    /// The same on the device for one whose parent is filled there by the same flight.
    #[inline]
    pub(super) fn attach_next(
        &mut self,
        node: NodeIx,
        above: NodeIx,
        flight: FlightIx,
    ) -> Option<SlotIx> {
        let (slot, busy) = self.fill(node, Tier::DEVICE, flight)?;
        debug_assert_eq!(self.trie.parent(node), Some(above), "a path");
        self.trie.residency_mut(above, Tier::DEVICE).children += 1;
        if busy {
            self.gain_busy(above, Tier::DEVICE);
        }
        Some(slot)
    }

    /// The slot of a block that a flight fills, and whether the block is busy there.
    #[expect(
        clippy::inline_always,
        reason = "a call for each block is 3 % of a copy down, and 2 % of a load"
    )]
    #[inline(always)]
    fn fill(&mut self, node: NodeIx, tier: Tier, flight: FlightIx) -> Option<(SlotIx, bool)> {
        let own = &mut self.tiers[tier];
        let slot = own.fill(Link::to(node), flight)?;
        let residency = self.trie.residency_mut(node, tier);
        residency.slot = Some(Link::to(slot));
        if residency.children > 0 {
            // It closes a gap in a path.
            own.look_at_ends();
        }
        Some((slot, tier > Tier::DEVICE || residency.busy > 0))
    }

    /// The block leaves the tier; its slot is the caller's to put somewhere.
    pub(super) fn detach(&mut self, node: NodeIx, tier: Tier) -> Option<SlotIx> {
        let slot = self.trie.slot(node, tier)?;
        if let Some(parent) = self.let_go(node, tier, slot) {
            self.retire(tier, parent);
        }
        Some(slot)
    }

    /// The same, of the slot that it has; returns that of its parent, which may be beyond the size.
    pub(super) fn let_go(&mut self, node: NodeIx, tier: Tier, slot: SlotIx) -> Option<SlotIx> {
        if self.hold(tier, slot).is_ready() {
            self.emit_gone(node, tier);
        } else {
            // What was to come up wants a copy below again.
            self.look_again_below(node, tier);
        }
        if self.is_busy(node, tier) {
            self.unblock_ancestors(node, tier);
        }
        self.tiers[tier].unlink(slot);
        self.end_residency(node, tier)
    }

    /// A slot has a block no more: nor has the block the slot. Returns the slot that its parent has.
    #[inline]
    pub(super) fn end_residency(&mut self, node: NodeIx, tier: Tier) -> Option<SlotIx> {
        self.trie.residency_mut(node, tier).slot = None;
        self.look_again(node, tier);
        self.leave_parent(node, tier)
    }

    /// The parent has a child less on the tier; returns the slot that it has.
    #[inline]
    pub(super) fn leave_parent(&mut self, node: NodeIx, tier: Tier) -> Option<SlotIx> {
        let parent = self.trie.lose_child(node, tier)?;
        self.tiers[tier].refresh(parent);
        parent.slot.map(Link::at)
    }

    /// A block has a copy on the tier that its parent did not know, and is busy there or not.
    #[inline]
    pub(super) fn count_child(&mut self, node: NodeIx, tier: Tier, busy: bool) {
        let Some(parent) = self.trie.parent(node) else {
            return;
        };
        let residency = self.trie.residency_mut(parent, tier);
        residency.children += 1;
        if busy {
            // Blocked, it is no leaf and no branch.
            return self.gain_busy(parent, tier);
        }
        let residency = *residency;
        self.tiers[tier].refresh(residency);
    }

    /// A block may want a copy below now that wanted none before: its copies above `tier` must be
    /// looked at again.
    pub(super) fn look_again(&mut self, node: NodeIx, tier: Tier) {
        for above in (0..tier.at()).map(Tier) {
            if let Some(slot) = self.trie.slot(node, above) {
                self.tiers[above].copies_ahead().unsee(slot);
            }
        }
    }

    pub(super) fn look_again_below(&mut self, node: NodeIx, tier: Tier) {
        for below in self.tiers.below(tier) {
            if let Some(slot) = self.trie.slot(node, below) {
                self.tiers[below].copies_ahead().unsee(slot);
            }
        }
    }

    /// A sequence has begun over a block or published it, and it was not the first.
    pub(super) fn note_use(&mut self, node: NodeIx) {
        if self.trie[node].uses != Uses::Repeated {
            self.trie[node].uses = Uses::Repeated;
            if self.config.counts_uses() {
                self.look_again(node, self.tiers.last());
            }
        }
    }

    /// Links the orphans of a path, as far as it is used, that the last walk found.
    #[inline]
    pub(super) fn link_path(&mut self, path: &[NodeIx]) {
        if std::mem::take(&mut self.scratch.loose) {
            self.link_loose(path);
        }
    }

    #[cold]
    #[inline(never)]
    fn link_loose(&mut self, path: &[NodeIx]) {
        for pair in path.windows(2) {
            self.link(pair[1], Some(pair[0]));
        }
        self.reach(path);
    }

    /// A walk from the root found `node` behind `parent`: links it again if its parent was
    /// dropped. `false`: it has another living parent, so that its key contradicts itself.
    pub(super) fn link(&mut self, node: NodeIx, parent: Option<NodeIx>) -> bool {
        let known = self.trie[node].parent;
        if known == parent.map(|parent| self.trie.id(parent)) {
            return true;
        }
        match (known, parent) {
            (Some(id), Some(parent)) => {
                if let Some(alive) = self.trie.live(id) {
                    return alive == parent;
                }
                self.trie[node].parent = Some(self.trie.id(parent));
                // What stands on it is an orphan no more.
                self.orphans.torn |= self.orphans.known;
                for tier in self.tiers.all() {
                    if self.trie.slot(node, tier).is_some() {
                        self.count_child(node, tier, self.is_busy(node, tier));
                    }
                }
                let (class, mut at) = (self.trie[node].class, Some(parent));
                while let Some(above) = at.filter(|&above| self.trie[above].class < class) {
                    let before = std::mem::replace(&mut self.trie[above].class, class);
                    if self.copies_first {
                        // No order carries its copy on the host to the list of its class.
                        self.turn_copy(above, before, class);
                    }
                    at = self.trie.parent(above);
                }
                for tier in self.tiers.below(Tier::DEVICE) {
                    if self.trie.slot(node, tier).is_some() {
                        self.tiers[tier].look_at_ends();
                        self.move_to_back(parent, tier);
                    }
                }
                self.emit_linked(node);
                true
            }
            _ => false,
        }
    }

    /// Whether something of the block, or of what is below it, is in flight. An orphan is linked
    /// again only when nothing is: what is above would be blocked, and promises lose its backing.
    pub(super) fn is_read(&self, node: NodeIx) -> bool {
        self.tiers.all().any(|tier| self.is_busy(node, tier))
    }

    /// Adds a holder to a ready slot.
    pub(super) fn pin(&mut self, tier: Tier, slot: SlotIx) {
        if let Some(node) = self.tiers[tier].pool().cell(slot).node.map(Link::at) {
            let residency = *self.trie.residency(node, tier);
            let was = tier == Tier::DEVICE || self.is_busy(node, tier);
            self.tiers[tier].pin(slot, residency);
            if !was {
                self.block_ancestors(node, tier);
            }
        }
    }

    /// Takes a holder off a pinned slot, which is idle after the last one.
    pub(super) fn unpin(&mut self, tier: Tier, slot: SlotIx) {
        if self.tiers[tier].unpin(slot) {
            self.rest(tier, slot);
        }
    }

    /// Nothing holds a ready slot any more.
    pub(super) fn rest(&mut self, tier: Tier, slot: SlotIx) {
        let node = self.node_in(tier, slot);
        let plain = self.tiers[tier].pool().is_plain(slot);
        self.make_idle(tier, slot);
        if tier > Tier::DEVICE
            && let Some(node) = node.filter(|&node| !self.is_busy(node, tier))
        {
            self.unblock_ancestors(node, tier);
        }
        if !plain {
            self.retire(tier, slot);
        }
    }
}

/// A walk towards the root passes a block: the work of a verb that a test can bound without a clock. A
/// release counts nothing.
#[inline]
pub(super) fn climb(climbed: &mut u64) {
    if cfg!(debug_assertions) {
        *climbed += 1;
    }
}
