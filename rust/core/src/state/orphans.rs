//! Orphans: copies below whose prefix is nowhere. Copies ahead make none; a copy that fails, memory that
//! is lost and a tier that is evicted apart from another may leave some. They go before all others of
//! their tier (INV-39).

use super::State;
use crate::base::{Class, Ix, NodeIx, Tier};
use crate::tiers::Hold;

/// What is known of the prefix of a block, while blocks are looked at.
#[derive(Clone, Copy, PartialEq)]
enum Prefix {
    Unknown,
    Whole,
    Nowhere,
}

/// What is known of orphans between two looks for them.
#[derive(Hash, Debug)]
pub(super) struct Orphans {
    /// Whether a block has left that others below had as their prefix, which go first from now on, or one
    /// that goes first was linked again. Always with an engine's blocks, of which none is an orphan.
    pub(super) torn: bool,
    /// Whether some were found, when they were looked for last.
    pub(super) known: bool,
}

impl State {
    /// Has what has become an orphan go first, and what is one no more stand as any other. It takes time in
    /// proportion to the blocks, and there is nothing to do unless a block has left before what stood on it,
    /// or an orphan was linked again.
    pub(super) fn mend(&mut self) {
        // What lies below of an engine's blocks may stand on what the engine has.
        if self.config.engine || !self.orphans.torn {
            return;
        }
        let (mut moved, mut found) = (Vec::new(), false);
        self.each_prefix(|node, orphan| {
            found |= orphan;
            if orphan || self.is_orphan(node) {
                moved.push((node, orphan));
            }
        });
        for (node, orphan) in moved.into_iter().rev() {
            for tier in self.tiers.below(Tier::DEVICE) {
                self.turn_orphan(node, tier, orphan);
            }
        }
        self.orphans = Orphans {
            torn: false,
            known: found,
        };
    }

    /// The idle copy of a block goes first, or does no more; those below it have turned.
    fn turn_orphan(&mut self, node: NodeIx, tier: Tier, orphan: bool) {
        let Some(slot) = self.trie.slot(node, tier) else {
            return;
        };
        match self.hold(tier, slot) {
            Hold::Idle { class } if orphan != (class == Class::Cleared) => {}
            _ => return,
        }
        if orphan {
            return self.enter(node, tier, slot, Class::Cleared);
        }
        self.enter(node, tier, slot, self.class_on(node, tier));
        let class = Class::Cleared;
        if let Some(above) = self.trie.parent(node)
            && let Some(slot) = self.trie.slot(above, tier)
            && self.hold(tier, slot) != (Hold::Idle { class })
        {
            // It has not turned, and stands behind its children all the same.
            self.move_to_back(above, tier);
        }
    }

    /// A path has been linked again: what of it was orphaned is not, and stands in order with the rest.
    pub(super) fn reach(&mut self, path: &[NodeIx]) {
        if !self.orphans.known {
            return;
        }
        let Some(first) = path.iter().position(|&node| self.is_orphan(node)) else {
            return;
        };
        for &node in path[first..].iter().rev() {
            for tier in self.tiers.below(Tier::DEVICE) {
                if let Some(slot) = self.trie.slot(node, tier)
                    && let Hold::Idle { .. } = self.hold(tier, slot)
                {
                    self.reorder(node, tier, slot);
                }
            }
        }
        if let Some(&above) = first.checked_sub(1).map(|above| &path[above]) {
            for tier in self.tiers.below(Tier::DEVICE) {
                self.move_to_back(above, tier);
            }
        }
    }

    /// Whether the block is known as an orphan.
    fn is_orphan(&self, node: NodeIx) -> bool {
        let below = self.tiers.below(Tier::DEVICE);
        let mut slots = below.filter_map(|tier| Some((tier, self.trie.slot(node, tier)?)));
        let class = Class::Cleared;
        self.trie[node].epoch == self.trie.epoch()
            && slots.any(|(tier, slot)| self.hold(tier, slot) == Hold::Idle { class })
    }

    /// A copy of a block below becomes idle, or moves: it may be an orphan that stands as any other then.
    #[inline]
    pub(super) fn note_orphan(&mut self, node: NodeIx) {
        if !self.orphans.torn {
            self.note_if_orphan(node);
        }
    }

    #[inline(never)]
    fn note_if_orphan(&mut self, node: NodeIx) {
        let orphaned = match (self.trie[node].parent, self.trie.parent(node)) {
            (Some(_), None) => true,
            (_, Some(parent)) => self.orphans.known && self.is_orphan(parent),
            (None, None) => false,
        };
        self.orphans.torn = orphaned;
    }

    /// Blocks of this epoch whose prefix is nowhere and not on its way, each behind its parent.
    pub(super) fn orphans(&self) -> Vec<NodeIx> {
        let mut orphans = Vec::new();
        self.each_prefix(|node, orphan| {
            if orphan {
                orphans.push(node);
            }
        });
        orphans
    }

    /// Says of the blocks of this epoch, of each behind its parent, whether it is an orphan. What has a slot of
    /// a tier is there, or on its way there.
    pub(super) fn each_prefix(&self, mut say: impl FnMut(NodeIx, bool)) {
        let mut known = vec![Prefix::Unknown; self.trie.places()];
        let mut path = Vec::new();
        for (node, _) in self.trie.iter() {
            let (mut at, mut prefix) = (Some(node), Prefix::Whole);
            while let Some(node) = at {
                if known[node.at()] != Prefix::Unknown {
                    prefix = known[node.at()];
                    break;
                }
                path.push(node);
                at = self.trie.parent(node);
                if at.is_none() && self.trie[node].parent.is_some() {
                    prefix = Prefix::Nowhere;
                }
            }
            while let Some(node) = path.pop() {
                known[node.at()] = prefix;
                let block = &self.trie[node];
                if block.epoch == self.trie.epoch() && !block.is_anonymous() {
                    say(node, prefix == Prefix::Nowhere);
                }
            }
        }
    }

    /// How many copies below have a prefix that is nowhere, for tests.
    #[doc(hidden)]
    pub fn unreachable(&self) -> usize {
        self.orphans().len()
    }
}
