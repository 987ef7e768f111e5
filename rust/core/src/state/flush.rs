//! Flush: what a clean stop copies to a tier that outlives the yard, and the order that it leaves there.

use super::State;
use crate::base::{Ix, Key, NodeIx, Result, SlotIx, Tier};
use crate::copies::Plan;
use crate::tiers::Hold;

/// What is known of a block while the tiers are searched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Unknown,
    /// It lies on the tier, or is listed.
    Good,
    /// It has no key, or a block before it is nowhere.
    Lost,
}

impl State {
    /// The keys of published blocks that lie above a tier, or are on their way there, and are not ready
    /// on it: the last to be evicted first, the device's before those of the tiers below it, but each
    /// behind the blocks before it in its sequence, none of which is nowhere. It takes time in proportion to the tiers above.
    ///
    /// # Errors
    /// `Argument` for the device, or a tier without slots.
    pub fn unwritten(&self, to: Tier) -> Result<Vec<Key>> {
        self.check_lower(to)?;
        let mut found = vec![Found::Unknown; self.trie.places()];
        let mut keys = Vec::new();
        for tier in above(to) {
            for slot in self.order_of_all(tier)?.into_iter().rev() {
                if let Some(node) = self.node_in(tier, slot) {
                    self.list_path(node, to, &mut found, &mut keys);
                }
            }
        }
        Ok(keys)
    }

    /// Lists what of a block's path is not ready on the tier, the root first.
    fn list_path(&self, node: NodeIx, to: Tier, found: &mut [Found], keys: &mut Vec<Key>) {
        let (mut path, mut next) = (Vec::new(), Some(node));
        let mut last = Found::Good;
        while let Some(node) = next {
            if found[node.at()] != Found::Unknown {
                last = found[node.at()];
                break;
            }
            path.push(node);
            next = self.trie.parent(node);
            if next.is_none() && self.trie[node].parent.is_some() {
                last = Found::Lost;
            }
        }
        for node in path.into_iter().rev() {
            let block = &self.trie[node];
            let published = block.epoch == self.trie.epoch() && !block.is_anonymous();
            if last == Found::Good && published && self.ready(node, to).is_none() {
                // What is on its way to the tier, or to one above it, is not written yet, either.
                let mut there = above(to).chain([to]);
                if there.any(|tier| self.trie.slot(node, tier).is_some()) {
                    keys.push(block.key);
                } else {
                    last = Found::Lost;
                }
            } else if !published {
                last = Found::Lost;
            }
            found[node.at()] = last;
        }
    }

    /// The nearest tier above this one where a block is ready.
    fn nearest_above(&self, node: NodeIx, to: Tier) -> Option<Tier> {
        above(to)
            .rev()
            .find(|&tier| self.ready(node, tier).is_some())
    }

    /// Copies those of these blocks to a tier that it has not, from the nearest tier above, as many as
    /// find room there: a plan for each run of blocks from one tier. A block whose parent neither lies
    /// on the tier nor goes there is left out, and none that lies above too makes room for another.
    ///
    /// # Errors
    /// `Argument` for the device, or a tier without slots.
    pub fn write_down(&mut self, to: Tier, keys: &[Key]) -> Result<Vec<Plan>> {
        self.check_lower(to)?;
        let (mut plans, mut flight, mut moves) = (Vec::new(), None, Vec::new());
        for key in keys {
            let Some(node) = self
                .trie
                .find(key)
                .filter(|&node| self.may_go_down(node, to))
            else {
                continue;
            };
            let Some(from) = self.nearest_above(node, to) else {
                continue;
            };
            let flight = self.of_run((from, to), &mut flight, &mut moves, &mut plans);
            let parent = self.trie.parent(node);
            self.copy_one(node, flight, &mut moves, |state, victim| {
                Some(victim) != parent
                    && above(to).all(|tier| state.trie.slot(victim, tier).is_none())
            });
        }
        plans.extend(flight.and_then(|flight| self.launch_named(flight, moves)));
        Ok(plans)
    }

    /// Whether a published block is not on the tier, and the one before it is, or is on its way there.
    fn may_go_down(&self, node: NodeIx, to: Tier) -> bool {
        let block = &self.trie[node];
        let parent = block.parent.map(|_| self.trie.parent(node));
        let follows = parent
            .is_none_or(|parent| parent.is_some_and(|parent| self.trie.slot(parent, to).is_some()));
        block.epoch == self.trie.epoch() && self.trie.slot(node, to).is_none() && follows
    }

    /// How many of these blocks are ready on a tier.
    ///
    /// # Errors
    /// `Argument` for the device, or a tier without slots.
    pub fn written(&self, to: Tier, keys: &[Key]) -> Result<u32> {
        self.check_lower(to)?;
        let ready = |key: &&Key| {
            let node = self.trie.find(key);
            node.is_some_and(|node| self.ready(node, to).is_some())
        };
        Ok(keys.iter().filter(ready).count() as u32)
    }

    /// As [`Self::eviction_order`], but what lies above too is in the order of the tiers above, the
    /// device's last: a copy down says when it was made, and not when its block was used. It takes time
    /// in proportion to the tiers.
    ///
    /// # Errors
    /// `Argument` for a tier that is not there.
    pub fn order_alone(&self, tier: Tier) -> Result<Vec<u32>> {
        let mut order = self.eviction_order(tier)?;
        let mut place = vec![None; self.tiers[tier].pool.len() as usize];
        for upper in above(tier).rev() {
            for (at, slot) in self.order_of_all(upper)?.into_iter().enumerate() {
                let node = self.node_in(upper, slot);
                if let Some(slot) = node.and_then(|node| self.trie.slot(node, tier)) {
                    // What a higher tier has too stands where it does there.
                    place[slot.at()] = Some((tier.at() - upper.at(), at));
                }
            }
        }
        let lies_above = |slot: u32| place[slot as usize].is_some();
        let mut above: Vec<u32> = order
            .iter()
            .copied()
            .filter(|&slot| lies_above(slot))
            .collect();
        above.sort_by_key(|&slot| place[slot as usize]);
        let mut above = above.into_iter();
        for slot in &mut order {
            if lies_above(*slot) {
                *slot = above.next().unwrap_or(*slot);
            }
        }
        Ok(order)
    }

    /// The slots of a tier's blocks: the idle ones in their order, then those that are held or on their way.
    fn order_of_all(&self, tier: Tier) -> Result<Vec<SlotIx>> {
        let mut slots: Vec<SlotIx> = self
            .eviction_order(tier)?
            .into_iter()
            .map(SlotIx::new)
            .collect();
        let all = (0..self.tiers[tier].pool.len()).map(SlotIx::new);
        slots.extend(all.filter(|&slot| {
            let hold = self.hold(tier, slot);
            matches!(hold, Hold::Pinned { .. } | Hold::Filling { .. })
        }));
        Ok(slots)
    }
}

/// The tiers above this one, the device first.
fn above(tier: Tier) -> impl DoubleEndedIterator<Item = Tier> {
    (0..tier.at()).map(Tier)
}
