//! The moves of slots between sets, and the order and the marks that go with them. Everything
//! that changes a slot's hold, a block's copies or a reader mark passes through here.
//!
//! A block is *hot* on a tier while its slot there is read or (below the device) filling, or while
//! a child there is hot. An idle hot block is not takeable: something below it must stay. Leases
//! and keeps need no such count: their pins are closed towards the root.

use super::State;
use super::keep::HOST;
use crate::evict::{Evict, Place, Stand};
use crate::id::{Class, Link};
use crate::pool::Hold;
use crate::trie::Touched;

impl State {
    pub(super) fn hold(&self, tier: usize, slot: u32) -> Hold {
        self.tiers[tier].pool.cell(slot).hold
    }

    /// The block whose copy the slot is.
    pub(super) fn node_in(&self, tier: usize, slot: u32) -> Option<u32> {
        let cell = self.tiers[tier].pool.cell(slot);
        let own = cell
            .node
            .filter(|_| !matches!(cell.hold, Hold::Twin { .. }));
        own.map(Link::at)
    }

    /// Sets what holds a slot; not for free or idle ones, which stand in lists too.
    #[inline]
    pub(super) fn put(&mut self, tier: usize, slot: u32, hold: Hold) {
        let storey = &mut self.tiers[tier];
        let cell = storey.pool.cell_mut(slot);
        storey.ledger.shift(cell.hold.set(), hold.set());
        cell.hold = hold;
    }

    /// The slot of the parent of the block in this one.
    pub(super) fn parent_slot(&self, tier: usize, slot: u32) -> Option<u32> {
        let parent = self.trie.parent(self.node_in(tier, slot)?)?;
        self.trie[parent].slot(tier)
    }

    /// Whether the slot holds a block that may be read: neither absent nor filling.
    pub(super) fn ready(&self, node: u32, tier: usize) -> Option<u32> {
        let slot = self.trie[node].slot(tier)?;
        self.hold(tier, slot).is_ready().then_some(slot)
    }

    pub(super) fn filling(&self, node: u32, tier: usize) -> Option<u32> {
        let slot = self.trie[node].slot(tier)?;
        match self.hold(tier, slot) {
            Hold::Filling { flight } => Some(flight),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn is_hot(&self, node: u32, tier: usize) -> bool {
        let copy = &self.trie[node].copies[tier];
        let Some(slot) = copy.slot else { return false };
        let cell = self.tiers[tier].pool.cell(slot.at());
        copy.busy > 0 || cell.readers > 0 || (tier > 0 && matches!(cell.hold, Hold::Filling { .. }))
    }

    pub(super) fn stand_of(&self, tier: usize, slot: u32) -> Stand {
        let cell = self.tiers[tier].pool.cell(slot);
        let Some(node) = cell.node else {
            return Stand::Blocked;
        };
        let copy = &self.trie[node.at()].copies[tier];
        if copy.busy > 0 || cell.readers > 0 {
            Stand::Blocked
        } else if copy.children > 0 {
            Stand::Branch
        } else {
            Stand::Leaf
        }
    }

    /// Whether an idle slot that stands so backs promises: taking it gives a slot that may be
    /// given out again.
    pub(super) fn backs_as(&self, tier: usize, slot: u32, stand: Stand) -> bool {
        stand != Stand::Blocked && slot < self.tiers[tier].pool.limit()
    }

    pub(super) fn backs(&self, tier: usize, slot: u32) -> bool {
        self.backs_as(tier, slot, self.stand_of(tier, slot))
    }

    pub(super) fn takeable(&self, tier: usize, slot: u32) -> bool {
        matches!(self.hold(tier, slot), Hold::Idle { .. }) && self.backs(tier, slot)
    }

    /// Something about an idle slot has changed; `before`: whether it was takeable.
    fn restand(&mut self, tier: usize, slot: u32, before: bool) {
        if matches!(self.hold(tier, slot), Hold::Idle { .. }) {
            let stand = self.stand_of(tier, slot);
            let after = self.backs_as(tier, slot, stand);
            let storey = &mut self.tiers[tier];
            storey.ledger.takeable_from(before, after);
            storey.order.stand(slot, stand);
        }
    }

    /// `node` has become hot: so have its ancestors on the tier, up to the first that was.
    fn heat(&mut self, mut node: u32, tier: usize) {
        while let Some(parent) = self.trie.parent(node) {
            let was = self.is_hot(parent, tier);
            let slot = self.trie[parent].slot(tier);
            let before = slot.is_some_and(|slot| self.takeable(tier, slot));
            self.trie[parent].copies[tier].busy += 1;
            let Some(slot) = slot else { return };
            self.restand(tier, slot, before);
            if was {
                return;
            }
            node = parent;
        }
    }

    /// `node` is hot no more.
    fn cool(&mut self, mut node: u32, tier: usize) {
        while let Some(parent) = self.trie.parent(node) {
            self.trie[parent].copies[tier].busy -= 1;
            let Some(slot) = self.trie[parent].slot(tier) else {
                return;
            };
            if self.is_hot(parent, tier) {
                return;
            }
            self.restand(tier, slot, false);
            node = parent;
        }
    }

    /// A flight reads the slot.
    pub(super) fn mark(&mut self, tier: usize, slot: u32) {
        let before = self.takeable(tier, slot);
        let node = self.node_in(tier, slot);
        let was = node.is_some_and(|node| self.is_hot(node, tier));
        self.tiers[tier].pool.cell_mut(slot).readers += 1;
        self.restand(tier, slot, before);
        if let Some(node) = node.filter(|_| !was) {
            self.heat(node, tier);
        }
    }

    /// A flight has stopped reading the slot. It kept its place all along.
    pub(super) fn unmark(&mut self, tier: usize, slot: u32) {
        let cell = self.tiers[tier].pool.cell_mut(slot);
        cell.readers -= 1;
        if cell.readers > 0 {
            return;
        }
        if cell.hold == Hold::Quarantined {
            return self.free(tier, slot);
        }
        self.restand(tier, slot, false);
        if let Some(node) = self.node_in(tier, slot)
            && !self.is_hot(node, tier)
        {
            self.cool(node, tier);
        }
    }

    /// Takes a free slot; the caller has made room, and says what holds it now.
    pub(super) fn take_free(&mut self, tier: usize, hold: Hold) -> Option<u32> {
        let storey = &mut self.tiers[tier];
        let slot = storey.pool.pop_free()?;
        storey.ledger.shift(Some(crate::id::Set::Free), hold.set());
        storey.pool.cell_mut(slot).hold = hold;
        Some(slot)
    }

    /// Gives a slot back that holds no block: to the free ones, to retirement, or, while a flight
    /// still reads it, to quarantine.
    pub(super) fn free(&mut self, tier: usize, slot: u32) {
        debug_assert!(
            self.node_in(tier, slot).is_none(),
            "slot {slot} still holds a block"
        );
        if self.tiers[tier].pool.cell(slot).readers > 0 {
            return self.put(tier, slot, Hold::Quarantined);
        }
        if slot >= self.tiers[tier].pool.limit() {
            return self.put(tier, slot, Hold::Retired);
        }
        let storey = &mut self.tiers[tier];
        storey.ledger.shift(
            storey.pool.cell(slot).hold.set(),
            Some(crate::id::Set::Free),
        );
        storey.pool.push_free(slot);
    }

    /// The block gets a slot on the tier; the slot's hold is set to `hold`.
    pub(super) fn attach(&mut self, node: u32, tier: usize, slot: u32, hold: Hold) {
        self.tiers[tier].pool.cell_mut(slot).node = Some(Link::to(node));
        self.trie[node].copies[tier].slot = Some(Link::to(slot));
        self.put(tier, slot, hold);
        self.count_child(node, tier);
    }

    /// The block leaves the tier; its slot is the caller's to put somewhere.
    pub(super) fn detach(&mut self, node: u32, tier: usize) -> Option<u32> {
        let slot = self.trie[node].slot(tier)?;
        if self.is_hot(node, tier) {
            self.cool(node, tier);
        }
        let parent = self.parent_slot(tier, slot);
        self.depart(node, tier, slot);
        if let Some(parent) = parent {
            self.retire(tier, parent);
        }
        Some(slot)
    }

    pub(super) fn depart(&mut self, node: u32, tier: usize, slot: u32) {
        self.trie[node].copies[tier].slot = None;
        self.tiers[tier].pool.cell_mut(slot).node = None;
        if tier == HOST {
            self.look_again(node);
        }
        if let Some(parent) = self.trie.parent(node) {
            self.trie[parent].copies[tier].children -= 1;
            self.stand_again(parent, tier);
        }
    }

    /// A destination has its bytes, and is pinned by `pins` holders: what the filling slot
    /// blocked above it is let go.
    pub(super) fn fill(&mut self, node: u32, tier: usize, slot: u32, pins: u32) {
        let was = self.is_hot(node, tier);
        self.put(tier, slot, Hold::Pinned { pins });
        if was && !self.is_hot(node, tier) {
            self.cool(node, tier);
        }
    }

    #[inline]
    fn count_child(&mut self, node: u32, tier: usize) {
        if let Some(parent) = self.trie.parent(node) {
            self.trie[parent].copies[tier].children += 1;
            self.stand_again(parent, tier);
        }
        if self.is_hot(node, tier) {
            self.heat(node, tier);
        }
    }

    /// A block may want a copy below now that wanted none before.
    fn look_again(&mut self, node: u32) {
        if let Some(slot) = self.trie[node].slot(0) {
            self.tiers[0].order.unsee(slot);
        }
    }

    /// A sequence has begun over a block or published it, and it was not the first.
    pub(super) fn touch(&mut self, node: u32) {
        if self.trie[node].touched != Touched::Again {
            self.trie[node].touched = Touched::Again;
            self.look_again(node);
        }
    }

    /// A block's children on the tier have changed: leaf or branch, or how many must go before it
    /// does. What is takeable has not.
    fn stand_again(&mut self, node: u32, tier: usize) {
        let copy = &self.trie[node].copies[tier];
        if let Some(slot) = copy.slot
            && matches!(self.hold(tier, slot.at()), Hold::Idle { .. })
        {
            let stand = self.stand_of(tier, slot.at());
            self.tiers[tier].order.stand(slot.at(), stand);
        }
    }

    /// A walk from the root found `node` behind `parent`: links it again if its parent was
    /// dropped. `false`: it has another living parent, so that its key contradicts itself.
    pub(super) fn link(&mut self, node: u32, parent: Option<u32>) -> bool {
        match (self.trie[node].parent, parent) {
            (None, None) => true,
            (Some(id), Some(parent)) => {
                if let Some(alive) = self.trie.live(id) {
                    return alive == parent;
                }
                self.trie[node].parent = Some(self.trie.id(parent));
                for tier in 0..self.tiers.len() {
                    if self.trie[node].slot(tier).is_some() {
                        self.count_child(node, tier);
                    }
                }
                let (class, mut at) = (self.trie[node].class, Some(parent));
                while let Some(above) = at.filter(|&above| self.trie[above].class < class) {
                    self.trie[above].class = class;
                    at = self.trie.parent(above);
                }
                for tier in 1..self.tiers.len() {
                    if self.trie[node].slot(tier).is_some() {
                        self.lift(parent, tier);
                    }
                }
                true
            }
            _ => false,
        }
    }

    /// Whether something of the block, or of what is below it, is in the air. An orphan is linked
    /// again only when nothing is: what is above would be blocked, and promises lose its backing.
    pub(super) fn is_read(&self, node: u32) -> bool {
        (0..self.tiers.len()).any(|tier| self.is_hot(node, tier))
    }

    /// One more holder of a ready slot.
    pub(super) fn pin(&mut self, tier: usize, slot: u32) {
        match self.hold(tier, slot) {
            Hold::Idle { .. } => {
                let takeable = self.backs(tier, slot);
                let storey = &mut self.tiers[tier];
                storey.ledger.takeable_from(takeable, false);
                storey.order.remove(slot);
                self.put(tier, slot, Hold::Pinned { pins: 1 });
            }
            Hold::Pinned { pins } => self.put(tier, slot, Hold::Pinned { pins: pins + 1 }),
            hold => debug_assert!(false, "pinning slot {slot}, which is {hold:?}"),
        }
    }

    /// One holder less; the last one leaves it idle.
    pub(super) fn unpin(&mut self, tier: usize, slot: u32) {
        match self.hold(tier, slot) {
            Hold::Pinned { pins: 1 } => {
                self.rest(tier, slot);
                self.retire(tier, slot);
            }
            Hold::Pinned { pins } => self.put(tier, slot, Hold::Pinned { pins: pins - 1 }),
            hold => debug_assert!(false, "unpinning slot {slot}, which is {hold:?}"),
        }
    }

    /// A ready slot that nobody holds enters the order of its tier, behind its children and before
    /// its parent. Only a shadow can meet a parent that stands there already.
    pub(super) fn rest(&mut self, tier: usize, slot: u32) {
        let Some(node) = self.node_in(tier, slot) else {
            return self.free(tier, slot);
        };
        let class = self.class_on(node, tier);
        let parent = self
            .trie
            .parent(node)
            .filter(|_| class == Class::Shadow)
            .and_then(|parent| {
                let above = self.trie[parent].slot(tier)?;
                let stands = self.hold(tier, above) == Hold::Idle { class };
                stands.then_some((parent, above))
            });
        let childless = self.trie[node].copies[tier].children == 0;
        let place = match parent {
            Some((_, above)) if childless => Place::Before(above),
            _ => Place::Back,
        };
        self.put(tier, slot, Hold::Idle { class });
        let stand = self.stand_of(tier, slot);
        let takeable = self.backs_as(tier, slot, stand);
        let storey = &mut self.tiers[tier];
        storey.order.insert(slot, class, place, stand);
        storey.ledger.takeable_from(false, takeable);
        if let Some((parent, _)) = parent.filter(|_| !childless) {
            // It closes a gap in a path: its ancestors follow it.
            self.lift(parent, tier);
        }
    }

    fn class_on(&self, node: u32, tier: usize) -> Class {
        if self.trie[node].epoch != self.trie.epoch() {
            Class::Cleared
        } else if (0..tier).any(|above| self.ready(node, above).is_some()) {
            Class::Shadow
        } else {
            self.trie[node].class
        }
    }

    /// Moves an idle block and its idle ancestors on the tier to the back of their class, so that
    /// they stand behind what was linked or inserted below them.
    fn lift(&mut self, node: u32, tier: usize) {
        let mut at = Some(node);
        while let Some(node) = at {
            let Some(slot) = self.trie[node].slot(tier) else {
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
    fn reorder(&mut self, node: u32, tier: usize, slot: u32) {
        let (class, stand) = (self.class_on(node, tier), self.stand_of(tier, slot));
        let storey = &mut self.tiers[tier];
        storey.order.remove(slot);
        storey.pool.cell_mut(slot).hold = Hold::Idle { class };
        storey.order.insert(slot, class, Place::Back, stand);
    }

    /// A block has a ready copy on `tier` now, or none any more: its nearest copy below becomes a
    /// shadow of it, or enters the order in its own right, at the back (INV-20 d).
    pub(super) fn touch_below(&mut self, node: u32, tier: usize) {
        if self.trie[node].epoch != self.trie.epoch() {
            // All of its epoch were handed over in their order: nothing is touched any more.
            return;
        }
        for below in tier + 1..self.tiers.len() {
            if let Some(slot) = self.trie[node].slot(below)
                && let Hold::Idle { class } = self.hold(below, slot)
                && class != self.class_on(node, below)
            {
                let takeable = self.takeable(below, slot);
                let storey = &mut self.tiers[below];
                storey.ledger.takeable_from(takeable, false);
                storey.order.remove(slot);
                self.rest(below, slot);
            }
        }
    }
}
