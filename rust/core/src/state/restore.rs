//! Restore: a tier that outlives the yard is told what it has, before the first begin. Its blocks are
//! published again, held by no sequence.

use super::State;
use crate::base::{Error, Ix, Key, NodeIx, Result, SlotIx, Tier};
use crate::tiers::Hold;

/// Rows whose keys are looked up together.
const AHEAD: usize = 32;

/// The parent of the first block of a sequence.
const NONE: Key = Key([0; 32]);

impl State {
    /// Publishes what a tier below the device has: the block with `keys[row]`, behind the one with
    /// `parents[row]`, in `slots[row]`. A parent of 32 zero bytes is none, and so is one that stands for
    /// the root of a sequence, as plans have it: the block is the first of its sequence. The oldest row is first, and is evicted first; but a block stands behind its
    /// children. One whose parent is not among the rows is found again by a walk that passes there. Where
    /// blocks are not linked, parents say nothing.
    ///
    /// It comes once, before the first begin or adopt, and takes time in proportion to the rows.
    ///
    /// # Errors
    /// `Argument` for the device or a tier that is not there, rows of different number, a slot that
    /// is out of range or comes twice, a key of zeros or that comes twice, or parents in a circle;
    /// `State` after a begin or another restore. Nothing is changed then.
    pub fn restore(
        &mut self,
        tier: Tier,
        slots: &[u32],
        keys: &[Key],
        parents: &[Key],
    ) -> Result<()> {
        self.check_restore(tier, slots, keys, parents)?;
        let ordered = self
            .name_rows(tier, slots, keys)
            .map(|()| self.link_rows(parents))
            .and_then(|family| Ok((family.leaf_first(keys)?, family)));
        let (order, family) = match ordered {
            Ok(ordered) => ordered,
            Err(error) => {
                self.trie.forget_all();
                return Err(error);
            }
        };
        self.trie.set_children(tier, &family.children);
        let blocks = order.into_iter().map(|row| {
            let slot = SlotIx::new(slots[row as usize]);
            (slot, NodeIx::new(row), family.children[row as usize])
        });
        self.tiers[tier].restore(blocks, &self.usages);
        self.orphans.torn = true;
        self.resync();
        Ok(())
    }

    /// The slots of a tier that idle blocks have, the next to be evicted first: what a tier that outlives
    /// the yard is to remember, for the order of [`Self::restore`]. It takes time in proportion to the tier.
    ///
    /// # Errors
    /// `Argument` for a tier that is not there.
    pub fn eviction_order(&self, tier: Tier) -> Result<Vec<u32>> {
        let mut slots = Vec::new();
        let tier_state = self.tiers.named(tier)?;
        tier_state.all(&self.trie, &self.usages, &mut slots);
        // What may not go now comes last.
        let mut listed = vec![false; tier_state.pool().len() as usize];
        for &slot in &slots {
            listed[slot.at()] = true;
        }
        let all = (0..tier_state.pool().len()).map(SlotIx::new);
        let idle = |&slot: &SlotIx| matches!(self.hold(tier, slot), Hold::Idle { .. });
        slots.extend(all.filter(|&slot| !listed[slot.at()]).filter(idle));
        Ok(slots.into_iter().map(|slot| slot.at() as u32).collect())
    }

    fn check_restore(
        &self,
        tier: Tier,
        slots: &[u32],
        keys: &[Key],
        parents: &[Key],
    ) -> Result<()> {
        self.tiers.below_device(tier)?;
        if tier == Tier::REMOTE {
            let help = "what a store has is adopted, not restored: others write there too";
            return Err(Error::argument("tier", tier.name(), help));
        }
        // Rows are numbered as their nodes are, so that none was there before, not even one dropped.
        if self.counters.begun > 0 || !self.trie.is_new() {
            let help = "restore once, before the first begin";
            return Err(Error::state(
                "restoring a cache that has, or had, blocks".to_owned(),
                help,
            ));
        }
        for (name, rows) in [("keys", keys.len()), ("parents", parents.len())] {
            if rows != slots.len() {
                let help = "give as many as slots";
                return Err(Error::argument(name, rows, help));
            }
        }
        let pool = self.tiers[tier].pool();
        let mut taken = vec![false; pool.limit() as usize];
        for &slot in slots {
            let place = taken.get_mut(slot as usize);
            let Some(place) = place.filter(|_| pool.stays(SlotIx::new(slot))) else {
                let help = "the tier has no such slot";
                return Err(Error::argument("slots", slot, help));
            };
            if std::mem::replace(place, true) {
                let help = "it comes twice: a slot has one block";
                return Err(Error::argument("slots", slot, help));
            }
        }
        Ok(())
    }

    /// Makes a node of each row, numbered like it.
    fn name_rows(&mut self, tier: Tier, slots: &[u32], keys: &[Key]) -> Result<()> {
        let mut tags = Vec::with_capacity(AHEAD);
        for (keys, slots) in keys.chunks(AHEAD).zip(slots.chunks(AHEAD)) {
            self.trie.warm(keys.iter(), &mut tags);
            for ((key, &tag), &slot) in keys.iter().zip(&tags).zip(slots) {
                let gap = match self.trie.seek(key, tag) {
                    Err(gap) if !key.is_reserved() => gap,
                    Err(_) => {
                        let help = "no block has this key: it begins with 24 zero bytes, or has all \
                                    bits set";
                        return Err(Error::argument("keys", key.hex(), help));
                    }
                    Ok(_) => {
                        let help = "it comes twice: a block has one slot of a tier";
                        return Err(Error::argument("keys", key.hex(), help));
                    }
                };
                self.trie.restore(key, gap, tier, SlotIx::new(slot));
            }
        }
        Ok(())
    }

    /// Puts each row under its parent, if that is a row too.
    fn link_rows(&mut self, parents: &[Key]) -> Family {
        let mut family = Family {
            parents: Vec::with_capacity(parents.len()),
            children: vec![0; parents.len()],
        };
        let mut tags = Vec::with_capacity(AHEAD);
        for parents in parents.chunks(AHEAD) {
            self.trie.warm(parents.iter(), &mut tags);
            for (parent, &tag) in parents.iter().zip(&tags) {
                let row = NodeIx::new(family.parents.len() as u32);
                let above = if *parent == NONE || !self.config.linked {
                    None
                } else if parent.is_root() {
                    self.trie.set_root(row, *parent);
                    None
                } else {
                    let above = self.trie.seek(parent, tag).ok();
                    self.trie.put_under(row, above);
                    above
                };
                if let Some(above) = above {
                    family.children[above.at()] += 1;
                }
                family.parents.push(above.map_or(ORPHAN, Ix::get));
            }
        }
        family
    }
}

/// A row without a parent among the rows.
const ORPHAN: u32 = u32::MAX;

/// How rows follow each other, by number: apart from the nodes, so that it is walked in little memory.
struct Family {
    parents: Vec<u32>,
    children: Vec<u32>,
}

impl Family {
    /// The rows in order, but each behind its last child.
    fn leaf_first(&self, keys: &[Key]) -> Result<Vec<u32>> {
        let mut waits = self.children.clone();
        let mut order = Vec::with_capacity(keys.len());
        for first in 0..keys.len() as u32 {
            let mut next = if waits[first as usize] == 0 {
                first
            } else {
                ORPHAN
            };
            while next != ORPHAN {
                order.push(next);
                let parent = self.parents[next as usize];
                next = ORPHAN;
                if parent != ORPHAN {
                    waits[parent as usize] -= 1;
                    // One that comes later is taken in its turn.
                    if waits[parent as usize] == 0 && parent < first {
                        next = parent;
                    }
                }
            }
        }
        if order.len() == keys.len() {
            return Ok(order);
        }
        let left = waits.iter().position(|&waits| waits > 0).unwrap_or(0);
        let help = "it is among its own parents: the rows contradict each other";
        Err(Error::argument("parents", keys[left].hex(), help))
    }
}
