//! Orphans: copies below whose prefix is nowhere. Copies ahead make none; a copy that fails, memory that
//! is lost and a tier that is evicted apart from another may leave some. They go before all others of
//! their tier (INV-39).

use super::State;
use crate::base::{Class, Ix, NodeIx, Tier};
use crate::tiers::Hold;

/// How far a block is from the first of its path whose prefix is nowhere: itself, 1.
type Depth = u32;
const REACHED: Depth = 0;
const UNKNOWN: Depth = Depth::MAX;

/// What is known of orphans between two looks for them.
#[derive(Hash, Debug)]
pub(super) struct Orphans {
    /// Whether a block has left that others below had as their prefix: they go first from now on. Always
    /// with an engine's blocks, of which none is an orphan.
    pub(super) torn: bool,
    /// Whether some were found, when they were looked for last.
    pub(super) known: bool,
}

impl State {
    /// Has what has become an orphan go first. It takes time in proportion to the blocks, and there is
    /// nothing to do unless a block has left before what stood on it.
    pub(super) fn mend(&mut self) {
        // What lies below of an engine's blocks may stand on what the engine has.
        if self.config.engine || !std::mem::take(&mut self.orphans.torn) {
            return;
        }
        let mut orphans = self.orphans();
        self.orphans.known = !orphans.is_empty();
        orphans.sort_by_key(|&(_, depth)| std::cmp::Reverse(depth));
        for (node, _) in orphans {
            for tier in self.tiers.below(Tier::DEVICE) {
                if let Some(slot) = self.trie.slot(node, tier)
                    && matches!(self.hold(tier, slot), Hold::Idle { class } if class != Class::Cleared)
                {
                    self.enter(node, tier, slot, Class::Cleared);
                }
            }
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
        let torn = self.orphans.torn;
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
        self.orphans.torn = torn;
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

    /// Blocks of this epoch whose prefix is nowhere and not on its way, with how far they are from where
    /// it ends. What has a slot of a tier is there, or on its way there.
    pub(super) fn orphans(&self) -> Vec<(NodeIx, Depth)> {
        let mut depths = vec![UNKNOWN; self.trie.places()];
        let (mut orphans, mut path) = (Vec::new(), Vec::new());
        for (node, _) in self.trie.iter() {
            let (mut at, mut depth) = (Some(node), REACHED);
            while let Some(node) = at {
                if depths[node.at()] != UNKNOWN {
                    depth = depths[node.at()];
                    break;
                }
                path.push(node);
                at = self.trie.parent(node);
                if at.is_none() && self.trie[node].parent.is_some() {
                    depth = 1;
                    depths[node.at()] = depth;
                    path.pop();
                    orphans.push((node, depth));
                }
            }
            while let Some(node) = path.pop() {
                if depth != REACHED {
                    depth += 1;
                    orphans.push((node, depth));
                }
                depths[node.at()] = depth;
            }
        }
        let lives = |&(node, _): &(NodeIx, Depth)| {
            let block = &self.trie[node];
            block.epoch == self.trie.epoch() && !block.is_anonymous()
        };
        orphans.retain(lives);
        orphans
    }

    /// How many copies below have a prefix that is nowhere, for tests.
    #[doc(hidden)]
    pub fn unreachable(&self) -> usize {
        self.orphans().len()
    }
}
