//! What changes in the naive yard, in the words that its verbs share.

use crate::yard::{Block, Class, DEVICE, FORGOTTEN, Idle, Node, What, Yard};
use blockyard_core::{EvictionPolicy, Hints, Key, MAX_TIERS, Retention, State, Tier};
use std::collections::BTreeSet;

/// Where nothing was said.
pub(crate) const NO_WORTH: (u8, u64) = (35, u64::MAX);

impl Yard {
    pub(crate) fn add(&mut self, key: Option<Key>, parent: Option<Block>) -> Block {
        self.blocks.push(Node {
            key,
            parent,
            epoch: self.epoch,
            class: Class::Ordinary,
            worth: NO_WORTH,
            slots: [None; MAX_TIERS],
            home: DEVICE,
            failures: [0; MAX_TIERS],
        });
        self.blocks.len() - 1
    }

    /// A path that a walk found is linked again where a parent had been dropped.
    pub(crate) fn link(&mut self, path: &[Block]) {
        for pair in path.windows(2) {
            let (above, below) = (pair[0], pair[1]);
            let parent = self.blocks[below].parent.expect("not the first");
            if self.alive(parent) {
                assert_eq!(parent, above);
                continue;
            }
            self.blocks[below].parent = Some(above);
            // A block's class is never below its children's.
            let (class, mut at) = (self.blocks[below].class, Some(above));
            while let Some(block) = at {
                self.blocks[block].class = self.blocks[block].class.max(class);
                at = self.parent(block);
            }
        }
    }

    /// A block without its parent is not linked again while a copy of it, or of one below it, is
    /// in flight: what is above it would have to stay.
    pub(crate) fn waits_for_a_fence(&self, block: Block) -> bool {
        self.parent(block).is_none() && (0..self.tiers).any(|tier| self.busy(block, tier))
    }

    fn busy(&self, block: Block, tier: usize) -> bool {
        let Some(slot) = self.blocks[block].slots[tier] else {
            return false;
        };
        self.read(tier, slot)
            || (tier > DEVICE && matches!(self.slots[tier][&slot], What::Filling(_)))
            || (0..self.blocks.len()).any(|below| {
                self.alive(below) && self.parent(below) == Some(block) && self.busy(below, tier)
            })
    }

    pub(crate) fn parent(&self, block: Block) -> Option<Block> {
        self.blocks[block]
            .parent
            .filter(|&parent| self.alive(parent))
    }

    pub(crate) fn depth(&self, mut block: Block) -> usize {
        let mut depth = 0;
        while let Some(parent) = self.blocks[block].parent {
            (block, depth) = (parent, depth + 1);
        }
        depth
    }

    /// Table 2.7: what is idle beyond a tier's size goes at once if nothing reads it and nothing is
    /// below it on the tier, and what becomes such a leaf by it.
    pub(crate) fn retire(&mut self) {
        for tier in 0..self.tiers {
            let leaf = |yard: &Self| {
                let forgotten = yard.slots[tier].keys().copied().filter(|&slot| {
                    let block = yard.block_in(tier, slot);
                    block.is_some_and(|block| yard.is_forgotten(block))
                });
                let mut slots = yard.leaving(tier).chain(forgotten);
                slots.find(|&slot| {
                    let block = yard.block_in(tier, slot);
                    let block = block.filter(|_| yard.idle(tier, slot) && !yard.read(tier, slot));
                    block.is_some_and(|block| yard.children(tier, block).is_empty())
                })
            };
            while let Some(slot) = leaf(self) {
                self.go(tier, slot);
            }
        }
    }

    /// The same of one block, and of those above it that are leaves then.
    pub(crate) fn leave(&mut self, tier: usize, block: Block) {
        let mut at = Some(block);
        while let Some(block) = at
            && let Some(slot) = self.ready(block, tier)
            && (!self.stays(tier, slot) || self.is_forgotten(block))
            && self.idle(tier, slot)
            && !self.read(tier, slot)
            && self.children(tier, block).is_empty()
        {
            at = self.parent(block);
            self.go(tier, slot);
        }
    }

    /// A block leaves the tier; where it was forgotten, it does not count as evicted.
    fn go(&mut self, tier: usize, slot: u32) {
        let block = self.block_in(tier, slot).expect("it is ready");
        self.evicted[tier] += u64::from(!self.is_forgotten(block));
        self.evict(tier, slot);
    }

    pub(crate) fn is_forgotten(&self, block: Block) -> bool {
        self.blocks[block].epoch == FORGOTTEN
    }

    /// What has become idle on the device goes to the back of its class, deepest first; what is
    /// held again leaves the order.
    pub(crate) fn settle(&mut self) {
        self.retire();
        let (mut order, idle) = (std::mem::take(&mut self.order), self.idle_slots(DEVICE));
        order.retain(|known| idle.contains(&known.slot));
        let new = idle
            .into_iter()
            .filter(|&slot| order.iter().all(|known| known.slot != slot));
        let mut new: Vec<(Block, u32)> = new
            .filter_map(|slot| Some((self.block_in(DEVICE, slot)?, slot)))
            .collect();
        new.sort_by_key(|&(block, _)| std::cmp::Reverse(self.depth(block)));
        for (block, slot) in new {
            let node = &self.blocks[block];
            let class = if node.epoch == self.epoch {
                node.class
            } else {
                Class::Cleared
            };
            let (priority, until) = match self.policy {
                EvictionPolicy::Heap => node.worth,
                _ => NO_WORTH,
            };
            let ended = until <= self.ticks;
            order.push(Idle {
                class: if ended {
                    class.min(Class::Ended)
                } else {
                    class
                },
                priority,
                until: if ended || class == Class::Cleared {
                    u64::MAX
                } else {
                    until
                },
                slot,
            });
        }
        self.order = order;
    }

    /// The device's idle slots in the order in which they would go, were none blocked.
    pub(crate) fn ahead(&self) -> Vec<u32> {
        let mut order = self.order.clone();
        order.sort_by_key(|idle| (idle.class, idle.priority));
        order.into_iter().map(|idle| idle.slot).collect()
    }

    /// What would be evicted from the device next, leaf first.
    pub(crate) fn next_victims(&self, most: usize) -> Vec<u32> {
        let (may, order) = (self.may_go(DEVICE), self.ahead());
        let mut gone: Vec<u32> = Vec::new();
        while gone.len() < most {
            let open = |slot: &&u32| {
                let block = self.block_in(DEVICE, **slot).expect("idle");
                let mut below = self.children(DEVICE, block).into_iter();
                may.contains(*slot)
                    && !gone.contains(*slot)
                    && below.all(|child| {
                        gone.iter()
                            .any(|&slot| self.block_in(DEVICE, slot) == Some(child))
                    })
            };
            let Some(&next) = order.iter().find(open) else {
                break;
            };
            gone.push(next);
        }
        gone
    }

    /// The block leaves the tier, and its slot is given back.
    pub(crate) fn evict(&mut self, tier: usize, slot: u32) {
        if let Some(block) = self.block_in(tier, slot) {
            self.blocks[block].slots[tier] = None;
        }
        self.give_back(tier, slot);
    }

    /// A slot that holds nothing is free, unless a copy still reads it.
    pub(crate) fn give_back(&mut self, tier: usize, slot: u32) {
        if self.read(tier, slot) {
            self.slots[tier].insert(slot, What::Quarantined);
        } else {
            self.slots[tier].remove(&slot);
        }
    }

    /// Whether the device's victims are not predicted.
    pub(crate) fn follows(&self) -> bool {
        !matches!(self.policy, EvictionPolicy::Recency | EvictionPolicy::Heap)
    }

    /// A request that ends has used a block: what has outlived its time by that goes first.
    fn tick(&mut self) {
        self.ticks += 1;
        for idle in &mut self.order {
            if idle.until <= self.ticks {
                let ended = (Class::Ended, 0);
                (idle.class, idle.priority) = ended.min((idle.class, idle.priority));
                idle.until = u64::MAX;
            }
        }
    }

    /// Evicts from the device exactly what `need` slots lack, leaf first in order of last use; or what
    /// the core has evicted, all that a call needs at once.
    pub(crate) fn make_room(&mut self, state: &State, need: usize) {
        if self.follows() {
            let lacked = (need as u64).saturating_sub(self.free(DEVICE) - self.surplus);
            self.surplus += self.see_evictions(state, DEVICE);
            assert!(self.surplus >= lacked, "room for {need} was not made");
            self.surplus -= lacked;
            return self.settle();
        }
        while self.free(DEVICE) < need as u64 {
            let victim = self
                .next_victims(1)
                .pop()
                .expect("what was promised is there");
            self.evict(DEVICE, victim);
            self.evicted[DEVICE] += 1;
            self.settle();
        }
    }

    /// Evicts from the device ahead of need, and never more than the deficit of the slots to keep free: returns
    /// how many. Where the device's victims are not predicted, those of a `grow` are not told apart.
    pub(crate) fn make_spare(&mut self, state: &State) -> u64 {
        let whole = self.limits[DEVICE] as usize == self.most_fresh[DEVICE];
        let whole = whole && self.withdrawn[DEVICE].is_empty();
        let goal = if whole { self.kept_free } else { 0 };
        let before = self.evicted_ahead;
        if self.follows() {
            let alone = self.surplus == 0;
            let blocks: BTreeSet<Block> = self.blocks_on(DEVICE).collect();
            self.surplus += self.see_evictions(state, DEVICE);
            let mut gone = blocks
                .iter()
                .filter(|&&block| self.blocks[block].slots[DEVICE].is_none());
            assert!(!alone || gone.all(|&block| self.is_losable(block)));
            self.evicted_ahead += std::mem::take(&mut self.surplus);
            self.settle();
            let free = self.free(DEVICE);
            assert!(self.evicted_ahead == before || free <= goal, "too many");
            let last = self.below(DEVICE).next().is_none();
            let enough = free >= goal || self.takeable(DEVICE) == 0;
            assert!(enough || !last, "too few are kept free");
            return self.evicted_ahead - before;
        }
        while self.free(DEVICE) < goal
            && let Some(victim) = self.next_victims(1).pop()
            && let Some(block) = self.block_in(DEVICE, victim)
            && self.is_losable(block)
        {
            self.evict(DEVICE, victim);
            self.evicted[DEVICE] += 1;
            self.evicted_ahead += 1;
            self.settle();
        }
        self.evicted_ahead - before
    }

    /// Whether no tier below the device may still get a copy of the block: one has it, or none will.
    fn is_losable(&self, block: Block) -> bool {
        (1..self.tiers).any(|tier| self.ready(block, tier).is_some())
            || !self.has_copy_below(block, DEVICE)
                && (self.below(DEVICE).next().is_none() || !self.is_worth_a_copy(DEVICE, block))
    }

    /// The core gave out this slot: it must have been free.
    pub(crate) fn take(&mut self, tier: usize, slot: u32, what: What) {
        assert!(
            self.stays(tier, slot),
            "slot {slot} of tier {tier} is not to be given out"
        );
        assert!(
            tier > DEVICE || slot >= self.null,
            "null slot {slot} was given out"
        );
        let before = self.slots[tier].insert(slot, what);
        assert_eq!(before, None, "slot {slot} of tier {tier} was given out");
    }

    /// Blocks that the core has evicted from a tier whose order is not known: each must have been allowed to
    /// go, and none has left a child there. How many of them made room.
    pub(crate) fn see_evictions(&mut self, state: &State, tier: usize) -> u64 {
        let may = self.may_go(tier);
        let gone = |slot: &u32| !state.holds_block(Tier(tier), *slot);
        let idle = self.slots[tier]
            .keys()
            .copied()
            .filter(|&slot| self.idle(tier, slot));
        let gone: Vec<u32> = idle.filter(gone).collect();
        for &slot in &gone {
            assert!(
                may.contains(&slot),
                "slot {slot} of tier {tier} was evicted and had to stay"
            );
            for child in self
                .block_in(tier, slot)
                .map_or(vec![], |block| self.children(tier, block))
            {
                let child = self.blocks[child].slots[tier].expect("it is there");
                assert!(
                    gone.contains(&child),
                    "slot {slot} of tier {tier} was evicted and is no leaf"
                );
            }
        }
        for &slot in &gone {
            self.evict(tier, slot);
            self.evicted[tier] += 1;
        }
        gone.into_iter()
            .filter(|&slot| self.stays(tier, slot))
            .count() as u64
    }

    /// One holder less for each slot of a table that is no more among the leases.
    pub(crate) fn let_go(&mut self, table: &[u32]) {
        for &slot in table.iter().rev() {
            match self.slots[DEVICE][&slot] {
                What::Claimed | What::Owned | What::Duplicate(_)
                    if !self.has_holder(DEVICE, slot) =>
                {
                    self.give_back(DEVICE, slot);
                }
                _ => {}
            }
        }
        self.settle();
    }

    /// As [`Self::let_go`], with the hints that say which class the blocks rest in, and what they are
    /// worth.
    pub(crate) fn release(&mut self, table: &[u32], hints: Hints) {
        for &slot in table.iter().rev() {
            if let What::Ready(block) | What::Duplicate(block) = self.slots[DEVICE][&slot] {
                self.tick();
                if hints.priority.is_some() || hints.ttl.is_some() {
                    let priority = hints.priority.unwrap_or_default().get();
                    let ttl = hints.ttl.map(u64::from);
                    let until = ttl.map_or(u64::MAX, |ttl| self.ticks + ttl);
                    self.blocks[block].worth = (priority, until);
                }
            }
        }
        // An order that learns what hints are worth obeys none.
        let retention = if self.follows() {
            Retention::Ordinary
        } else {
            hints.retention
        };
        let mut alone = retention == Retention::SessionEnded;
        let mut least = if retention == Retention::Retain {
            Class::Retained
        } else {
            Class::Ended
        };
        let mut own: Option<Block> = None;
        for &slot in table.iter().rev() {
            let (What::Ready(block) | What::Duplicate(block)) = self.slots[DEVICE][&slot] else {
                continue;
            };
            // No other sequence holds the block, and nothing is below it but the session's own.
            let below: Vec<Block> = (0..self.tiers)
                .flat_map(|tier| self.children(tier, block))
                .collect();
            let published = self.blocks[block].slots[DEVICE].expect("it is held");
            let twins = self.slots[DEVICE]
                .iter()
                .any(|(&s, &what)| s != slot && what == What::Duplicate(block));
            alone = alone
                && !(self.kept(block) || twins || self.in_table(slot) || self.in_table(published))
                && below.iter().all(|&child| Some(child) == own);
            if alone {
                self.blocks[block].class = Class::Ended;
            } else {
                least = least.max(Class::Ordinary).max(self.blocks[block].class);
                self.blocks[block].class = least;
            }
            own = Some(block);
        }
        self.let_go(table);
    }
}
