//! Evict: drops the deficit, and never more than `spare` ahead of need, from the front of the order, leaf
//! first; and retires slots of a tier that has shrunk.

use super::{State, WritePolicy};
use crate::base::{Link, NodeIx, SlotIx, Tier};
use crate::collections::Tag;
use crate::evict::Evictability;
use crate::tiers::{FORGOTTEN, Hold};

/// Victims for which it does not pay to look ahead.
const FEW: u32 = 4;

/// Most blocks that are evicted ahead of need in one call, so that nobody waits long for the yard.
const AT_ONCE: u32 = 1024;

impl State {
    /// Evicts one block that the order gave as a victim, or that is a leaf; then those above it that
    /// retire by that.
    pub(super) fn evict_with_parents(&mut self, tier: Tier, slot: SlotIx) {
        if let Some(parent) = self.evict_one(tier, slot) {
            self.retire(tier, parent);
        }
    }

    /// A slot is idle now, or no longer read, or its last child has left. If it is a leaf beyond the
    /// tier's size, or was forgotten, it is evicted at once, and so are those above it that become one
    /// (table 2.7, INV-42).
    pub(super) fn retire(&mut self, tier: Tier, slot: SlotIx) {
        if self.retires(tier, slot) {
            self.retire_path(tier, slot);
        }
    }

    #[cold]
    fn retire_path(&mut self, tier: Tier, slot: SlotIx) {
        let mut next = Some(slot);
        while let Some(slot) = next {
            let forgotten = |node: NodeIx| self.trie[node].epoch == FORGOTTEN;
            let forgotten = self.node_in(tier, slot).is_some_and(forgotten);
            next = self.evict_one(tier, slot);
            // What was forgotten is no eviction.
            self.counters.evicted[tier.at()] -= u64::from(forgotten);
            next = next.filter(|&parent| self.retires(tier, parent));
        }
    }

    /// Whether the slot lies beyond the size, or its block was forgotten, and that is idle, read by no
    /// copy, and without a child on the tier.
    pub(super) fn retires(&self, tier: Tier, slot: SlotIx) -> bool {
        !self.tiers[tier].pool().is_plain(slot) && self.leaves(tier, slot)
    }

    #[cold]
    fn leaves(&self, tier: Tier, slot: SlotIx) -> bool {
        let forgotten = |node: NodeIx| self.trie[node].epoch == FORGOTTEN;
        let may_stay =
            self.tiers[tier].pool().stays(slot) && !self.node_in(tier, slot).is_some_and(forgotten);
        !may_stay && self.is_idle_leaf(tier, slot)
    }

    pub(super) fn is_idle_leaf(&self, tier: Tier, slot: SlotIx) -> bool {
        matches!(self.hold(tier, slot), Hold::Idle { .. })
            && self.evictability_of(tier, slot) == Evictability::Leaf
    }

    /// Evicts one block; returns the slot that its parent has.
    fn evict_one(&mut self, tier: Tier, slot: SlotIx) -> Option<SlotIx> {
        self.counters.evicted[tier.at()] += 1;
        let node = self.tiers[tier].evict(slot)?.at();
        self.emit_gone(node, tier);
        // Not busy, or it would be blocked.
        let parent = self.end_residency(node, tier);
        self.count_unwritten(node, tier);
        let epoch = self.trie[node].epoch;
        if self.remove_tagged(node, Tag::of(&self.trie[node].key)) {
            let lost = epoch == self.trie.epoch() && self.tiers.next_below(tier).is_some();
            self.counters.dropped[tier.at()] += u64::from(lost);
        } else if tier == Tier::DEVICE {
            self.reclass_below(node);
        }
        parent
    }

    /// Counts a block that leaves a tier where all of it should be written, and was not.
    #[inline]
    fn count_unwritten(&mut self, node: NodeIx, tier: Tier) {
        if self.config.write_of(tier) == WritePolicy::Through {
            let bare = self.trie[node].epoch == self.trie.epoch()
                && self.tiers.next_below(tier).is_some()
                && !self.is_below(node, tier);
            self.counters.unwritten[tier.at()] += u64::from(bare);
        }
    }

    /// Removes a block from the trie that no tier has any more; whether it did.
    pub(super) fn remove_if_gone(&mut self, node: NodeIx) -> bool {
        let tag = Tag::of(&self.trie[node].key);
        self.remove_tagged(node, tag)
    }

    /// The same, and the tag of its key is known.
    #[expect(
        clippy::inline_always,
        reason = "a call for each block that is evicted is 3 % of a begin"
    )]
    #[inline(always)]
    fn remove_tagged(&mut self, node: NodeIx, tag: Tag) -> bool {
        let Some(prefix) = self.trie.gone(node) else {
            return false;
        };
        let block = &self.trie[node];
        if prefix {
            self.orphans.torn |= block.epoch == self.trie.epoch();
        }
        // What was forgotten is remembered nowhere. INV-42
        let remembered = || !block.is_anonymous() && block.epoch != FORGOTTEN;
        if let Some(ghosts) = self.ghosts.as_mut().filter(|_| remembered()) {
            let uses = self.usages.of(node).usage().uses();
            ghosts.remember(&block.key, uses);
        }
        self.trie.remove_tagged(node, tag);
        self.emit_dropped(node);
        true
    }

    /// Evicts exactly as many blocks as `need` slots lack. The caller has checked that free and
    /// takeable slots suffice; `false`, with nothing broken, if it was wrong.
    pub(super) fn make_room(&mut self, tier: Tier, need: u32) -> bool {
        let deficit = need.saturating_sub(self.tiers[tier].ledger().free());
        if deficit > FEW && !self.tiers[tier].pool().is_shrunk() {
            self.evict_batch(tier, deficit as usize);
        }
        self.warm_room(tier, need);
        while self.tiers[tier].ledger().free() < need {
            let Some(slot) = self.tiers[tier].victim(&self.usages) else {
                debug_assert!(false, "promised room for {need} is not there");
                return false;
            };
            self.evict_with_parents(tier, slot);
        }
        true
    }

    /// Evicts the device's next victims ahead of need, 1,024 at most, until `spare` slots are free; returns how
    /// many it has evicted. It ends before a victim that a tier below may still take a copy of. Nothing is done on a
    /// device that has shrunk: there a victim may take its parents with it, which have no copy.
    pub fn make_spare(&mut self) -> u32 {
        let (tier, before) = (Tier::DEVICE, self.counters.evicted[Tier::DEVICE.at()]);
        let free = self.tiers[tier].ledger().free();
        let spare = self.spare().min(free + AT_ONCE);
        let lacks = spare.saturating_sub(free);
        if lacks == 0 {
            return 0;
        }
        let together = self.losable(lacks);
        if together > FEW && !self.tiers[tier].pool().is_shrunk() {
            self.evict_batch(tier, together as usize);
        }
        while self.tiers[tier].ledger().free() < spare
            && let Some(slot) = self.tiers[tier].victim(&self.usages)
            && self.is_losable(slot)
        {
            self.evict_with_parents(tier, slot);
        }
        let evicted = self.counters.evicted[tier.at()] - before;
        self.counters.evicted_ahead += evicted;
        evicted as u32
    }

    /// How many slots of the device are kept free ahead of need.
    #[inline]
    pub(super) fn spare(&self) -> u32 {
        let pool = self.tiers[Tier::DEVICE].pool();
        if pool.room() < pool.len() {
            return 0;
        }
        self.config.spare_of(pool.room())
    }

    /// How many of the device's next `most` victims no tier below may still take.
    fn losable(&mut self, most: u32) -> u32 {
        if self.tiers.next_below(Tier::DEVICE).is_none() {
            return most;
        }
        // Where copies are late, no step looks further than at the first.
        let first = self.tiers[Tier::DEVICE].victim(&self.usages);
        if first.is_none_or(|slot| !self.is_losable(slot)) {
            return 0;
        }
        let mut slots = std::mem::take(&mut self.scratch.victims);
        slots.clear();
        let (trie, usages) = (&self.trie, &self.usages);
        self.tiers[Tier::DEVICE].next(most as usize, trie, usages, &mut slots);
        // What is blocked is no victim, though it may stand before those that are.
        let blocked = |slot| self.evictability_of(Tier::DEVICE, slot) == Evictability::Blocked;
        let victims = slots.iter().filter(|&&slot| !blocked(slot));
        let losable = victims.take_while(|&&slot| self.is_losable(slot));
        let losable = losable.count() as u32;
        self.scratch.victims = slots;
        losable
    }

    /// Whether a block of the device is lost on no tier that may still have it: it has a ready copy below, or
    /// gets none.
    fn is_losable(&self, slot: SlotIx) -> bool {
        let Some(node) = self.node_in(Tier::DEVICE, slot) else {
            return true;
        };
        if self.is_below(node, Tier::DEVICE) {
            let mut below = self.tiers.below(Tier::DEVICE);
            return below.any(|below| self.ready(node, below).is_some());
        }
        self.tiers.next_below(Tier::DEVICE).is_none() || !self.lacks_copy(node, Tier::DEVICE)
    }

    /// Evicts the next victims together, of a tier where nothing retires by that: what they need is
    /// read ahead, and no parent that goes next is told of its child.
    fn evict_batch(&mut self, tier: Tier, count: usize) {
        let mut slots = std::mem::take(&mut self.scratch.victims);
        slots.clear();
        let (trie, usages) = (&self.trie, &self.usages);
        self.tiers[tier].take(count, trie, usages, &mut slots);
        let nodes = self.warm_blocks(tier, &slots);
        self.tiers[tier].evict_all(&slots);
        self.counters.evicted[tier.at()] += slots.len() as u64;
        let has_below = self.tiers.next_below(tier).is_some();
        let through = has_below && self.config.write_of(tier) == WritePolicy::Through;
        let (now, mut dropped) = (self.trie.epoch(), 0);
        self.emit_all_gone(&nodes, tier);
        for (at, &node) in nodes.iter().enumerate() {
            match nodes.get(at + 1) {
                Some(&next) if self.trie[node].parent == Some(self.trie.id(next)) => {
                    self.trie.residency_mut(next, tier).children -= 1;
                }
                _ => {
                    self.leave_parent(node, tier);
                }
            }
            self.trie.residency_mut(node, tier).slot = None;
            if through {
                self.count_unwritten(node, tier);
            }
            let lost = self.trie[node].epoch == now;
            if self.remove_tagged(node, self.scratch.tags[at]) {
                dropped += u64::from(lost);
                continue;
            }
            self.look_again(node, tier);
            if tier == Tier::DEVICE {
                self.reclass_below(node);
            }
        }
        if has_below {
            self.counters.dropped[tier.at()] += dropped;
        }
        (self.scratch.victims, self.scratch.nodes) = (slots, nodes);
    }

    /// Reads ahead what making this room will read, in the calls that follow.
    pub(super) fn warm_room(&mut self, tier: Tier, need: u32) {
        let deficit = need.saturating_sub(self.tiers[tier].ledger().free());
        if deficit > FEW {
            let mut slots = std::mem::take(&mut self.scratch.victims);
            slots.clear();
            self.tiers[tier].front(deficit as usize, &self.usages, &mut slots);
            self.scratch.nodes = self.warm_blocks(tier, &slots);
            self.scratch.victims = slots;
        }
    }

    /// The blocks in these idle slots, whose tags are left, and whose places in the index are read.
    fn warm_blocks(&mut self, tier: Tier, slots: &[SlotIx]) -> Vec<NodeIx> {
        let mut nodes = std::mem::take(&mut self.scratch.nodes);
        nodes.clear();
        let pool = self.tiers[tier].pool();
        let blocks = slots.iter().filter_map(|&slot| pool.cell(slot).node);
        nodes.extend(blocks.map(Link::at));
        let keys = nodes.iter().map(|&node| &self.trie[node].key);
        self.trie.warm(keys, &mut self.scratch.tags);
        nodes
    }
}
