//! What changes in the naive yard, in the words that its verbs share.

use crate::yard::{Block, Class, DEVICE, HOST, InFlight, Node, What, Yard};
use blockyard_core::{Key, ParkedId, Retention, State, Tier, WritePolicy};

impl Yard {
    pub(crate) fn add(&mut self, key: Option<Key>, parent: Option<Block>) -> Block {
        let (epoch, class, slots, failures) = (self.epoch, Class::Ordinary, [None; 2], 0);
        self.blocks.push(Node {
            key,
            parent,
            epoch,
            class,
            slots,
            failures,
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
        self.parent(block).is_none() && [DEVICE, HOST].iter().any(|&tier| self.busy(block, tier))
    }

    fn busy(&self, block: Block, tier: usize) -> bool {
        let Some(slot) = self.blocks[block].slots[tier] else {
            return false;
        };
        let reads = |flight: &InFlight| {
            flight.from == tier && flight.moves.iter().any(|step| step.1 == slot)
        };
        self.flights.values().any(reads)
            || (tier == HOST && matches!(self.slots[tier][&slot], What::Filling(_)))
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
    fn retire(&mut self) {
        for tier in [DEVICE, HOST] {
            let leaf = |yard: &Self| {
                let beyond = yard.slots[tier].range(yard.limits[tier]..);
                let mut slots = beyond.map(|(&slot, _)| slot);
                slots.find(|&slot| {
                    let block = yard.block_in(tier, slot);
                    let block = block.filter(|_| yard.idle(tier, slot) && !yard.read(tier, slot));
                    block.is_some_and(|block| yard.children(tier, block).is_empty())
                })
            };
            while let Some(slot) = leaf(self) {
                self.evict(tier, slot);
                self.evicted[tier] += 1;
            }
        }
    }

    /// What has become idle on the device goes to the back of its class, deepest first; what is
    /// held again leaves the order.
    pub(crate) fn settle(&mut self) {
        self.retire();
        let mut order = std::mem::take(&mut self.order);
        order.retain(|&(_, slot)| self.idle(DEVICE, slot));
        let mut new: Vec<_> = (self.slots[DEVICE].iter())
            .filter_map(|(&slot, what)| match what {
                What::Ready(block)
                    if order.iter().all(|idle| idle.1 != slot) && self.idle(DEVICE, slot) =>
                {
                    Some((*block, slot))
                }
                _ => None,
            })
            .collect();
        new.sort_by_key(|&(block, _)| std::cmp::Reverse(self.depth(block)));
        for (block, slot) in new {
            let node = &self.blocks[block];
            let class = if node.epoch == self.epoch {
                node.class
            } else {
                Class::Cleared
            };
            order.push((class, slot));
        }
        self.order = order;
    }

    /// The device's idle slots in the order in which they would go, were none blocked.
    pub(crate) fn ahead(&self) -> Vec<u32> {
        let mut order = self.order.clone();
        order.sort_by_key(|&(class, _)| class);
        order.into_iter().map(|(_, slot)| slot).collect()
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

    /// A block is published, or put back because its copy has failed.
    pub(crate) fn note_fresh(&mut self, block: Block) {
        self.fresh.push_back(block);
        if self.fresh.len() > self.most_fresh {
            self.fresh.pop_front();
        }
    }

    /// A copy down has ended: what was published is tried again, so many times.
    pub(crate) fn note_copy(&mut self, block: Block, good: bool) {
        let node = &mut self.blocks[block];
        if node.epoch != self.epoch || node.key.is_none() || node.slots[DEVICE].is_none() {
            return;
        }
        node.failures = if good { 0 } else { node.failures + 1 };
        if !good && node.failures <= self.retries {
            self.note_fresh(block);
        }
    }

    /// Whether a block should have a copy below and has none.
    pub(crate) fn wants_copy(&self, block: Block) -> bool {
        let lacks = self.blocks[block].slots[HOST].is_none();
        lacks && self.ready(block, DEVICE).is_some() && self.is_worth_a_copy(block)
    }

    fn is_worth_a_copy(&self, block: Block) -> bool {
        let node = &self.blocks[block];
        node.epoch == self.epoch
            && node.failures <= self.retries
            && (self.write != WritePolicy::SecondTouch || self.again.contains(&block))
    }

    /// What of a plan is of fresh blocks, in the order of publication; the first that found no room
    /// stays in line.
    pub(crate) fn take_fresh(&mut self, most: usize, sources: &[u32]) -> Vec<Block> {
        let mut taken = Vec::new();
        while self.write == WritePolicy::Through && taken.len() < most {
            let Some(block) = self.fresh.pop_front() else {
                break;
            };
            if !self.wants_copy(block) || taken.contains(&block) {
                continue;
            }
            if sources.get(taken.len()).copied() != self.ready(block, DEVICE) {
                self.fresh.push_front(block);
                break;
            }
            taken.push(block);
        }
        taken
    }

    /// What of the next victims should have a copy, in their order.
    pub(crate) fn pick_for_demote(&self, blocks: usize, heap: bool) -> Vec<Block> {
        // A list looks ahead over what is in flight too, a heap over its leaves alone.
        let heap = heap.then(|| self.next_victims(blocks));
        let ahead = heap
            .unwrap_or_else(|| self.ahead())
            .into_iter()
            .take(blocks);
        ahead
            .filter_map(|slot| self.block_in(DEVICE, slot))
            .filter(|&block| self.is_worth_a_copy(block))
            .collect()
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

    /// Evicts from the device exactly what `need` slots lack, leaf first in order of last use.
    pub(crate) fn make_room(&mut self, need: usize) {
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

    /// The core gave out this slot: it must have been free.
    pub(crate) fn take(&mut self, tier: usize, slot: u32, what: What) {
        assert!(
            slot < self.limits[tier],
            "slot {slot} lies beyond tier {tier}"
        );
        assert!(
            tier == HOST || slot >= self.null,
            "null slot {slot} was given out"
        );
        let before = self.slots[tier].insert(slot, what);
        assert_eq!(before, None, "slot {slot} of tier {tier} was given out");
    }

    /// Host blocks that the core has evicted: each must have been allowed to go. How many of them
    /// made room.
    pub(crate) fn see_host_evictions(&mut self, state: &State) -> u64 {
        let may = self.may_go(HOST);
        let gone = |slot: &u32| !state.holds_block(Tier::HOST, *slot);
        let idle = self.slots[HOST]
            .keys()
            .copied()
            .filter(|&slot| self.idle(HOST, slot));
        let gone: Vec<u32> = idle.filter(gone).collect();
        for &slot in &gone {
            assert!(
                may.contains(&slot),
                "host slot {slot} was evicted and had to stay"
            );
            self.evict(HOST, slot);
            self.evicted[HOST] += 1;
        }
        gone.into_iter()
            .filter(|&slot| slot < self.limits[HOST])
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

    /// As [`Self::let_go`], with the hint that says which class the blocks rest in.
    pub(crate) fn release(&mut self, table: &[u32], retention: Retention) {
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
            let below = [DEVICE, HOST]
                .map(|tier| self.children(tier, block))
                .concat();
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

    /// A record's keeps go; anonymous blocks that no record keeps any more dissolve.
    pub(crate) fn unkeep(&mut self, id: ParkedId) {
        let stay = self.parked.get_mut(&id).expect("parked");
        let path = std::mem::take(&mut stay.path);
        stay.on_device = 0;
        for &block in path.iter().rev() {
            if self.blocks[block].key.is_some() || self.kept(block) {
                continue;
            }
            for tier in [HOST, DEVICE] {
                let Some(slot) = self.blocks[block].slots[tier].take() else {
                    continue;
                };
                match self.slots[tier][&slot] {
                    What::Filling(_) => {
                        self.slots[tier].insert(slot, What::Filling(None));
                    }
                    _ if tier == DEVICE && self.in_table(slot) => {
                        self.slots[DEVICE].insert(slot, What::Owned);
                    }
                    _ => self.give_back(tier, slot),
                }
            }
        }
        self.settle();
    }

    pub(crate) fn end_keep(&mut self, id: ParkedId) {
        self.unkeep(id);
        self.parked.remove(&id);
    }

    pub(crate) fn break_keep(&mut self, id: ParkedId) {
        if !self.parked[&id].broken {
            self.unkeep(id);
            self.parked.get_mut(&id).expect("parked").broken = true;
        }
    }

    pub(crate) fn youngest(&self) -> Option<ParkedId> {
        let whole = self.parked.iter().filter(|(_, stay)| !stay.broken);
        whole.max_by_key(|(_, stay)| stay.order).map(|(&id, _)| id)
    }

    pub(crate) fn break_unbacked(&mut self) {
        while self.unbacked(HOST) {
            let youngest = self.youngest().expect("a ticket never loses its backing");
            self.break_keep(youngest);
        }
    }

    /// Device copies that only held the path of a keep are let go once what is below is ready.
    pub(crate) fn shrink_keeps(&mut self) {
        let mut all: Vec<ParkedId> = self.parked.keys().copied().collect();
        all.sort_by_key(|id| id.number() as u32);
        for id in all {
            let stay = &self.parked[&id];
            let lacks = |&block: &Block| self.ready(block, HOST).is_none();
            let on_device = stay.path.iter().rposition(lacks).map_or(0, |at| at + 1);
            self.parked.get_mut(&id).expect("parked").on_device = on_device;
            self.settle();
        }
    }
}
