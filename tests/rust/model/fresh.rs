//! What has come to a tier and not been copied down yet, and which copies are worth making.

use crate::yard::{Arrival, Block, DEVICE, Yard};
use blockyard_core::{EvictionPolicy, WritePolicy};
use std::collections::BTreeSet;

impl Yard {
    /// A block is published on the device, or has landed on a tier below it; or it is put back
    /// because its copy has failed.
    pub(crate) fn note_fresh(&mut self, tier: usize, block: Block) {
        if tier == DEVICE {
            self.fresh.push_back(block);
            if self.fresh.len() > self.most_fresh[DEVICE] {
                self.fresh.pop_front();
            }
            return;
        }
        let (landing, sure) = (self.landings, true);
        let came = &mut self.came[tier];
        came.push_back(Arrival {
            block,
            landing,
            sure,
        });
        // Of those that came together any may be the first to be forgotten.
        let first = came.len().saturating_sub(self.most_fresh[tier]);
        let forgotten = first.checked_sub(1).map(|last| came[last].landing);
        for arrival in came {
            arrival.sure &= forgotten.is_none_or(|last| arrival.landing > last);
        }
    }

    /// A copy down from this tier has ended: what came to it is tried again, so many times.
    pub(crate) fn note_copy(&mut self, tier: usize, block: Block, good: bool) {
        let node = &mut self.blocks[block];
        if node.epoch != self.epoch || node.key.is_none() || node.slots[tier].is_none() {
            return;
        }
        node.failures[tier] = if good { 0 } else { node.failures[tier] + 1 };
        if !good && node.failures[tier] <= self.retries {
            self.note_fresh(tier, block);
        }
    }

    /// Whether a block on the tier should have a copy below and has none.
    pub(crate) fn wants_copy(&self, tier: usize, block: Block) -> bool {
        let lacks = !self.has_copy_below(block, tier);
        let mut above = 0..tier;
        let comes_up = above.any(|above| {
            self.blocks[block].slots[above].is_some() && self.ready(block, above).is_none()
        });
        lacks && !comes_up && self.ready(block, tier).is_some() && self.is_worth_a_copy(tier, block)
    }

    pub(crate) fn is_worth_a_copy(&self, tier: usize, block: Block) -> bool {
        let node = &self.blocks[block];
        node.epoch == self.epoch
            && node.failures[tier] <= self.retries
            && (self.writes[tier] != WritePolicy::SecondTouch || self.again.contains(&block))
    }

    /// What of a plan to this tier is of published blocks, in the order of publication; the first that found no
    /// room stays in line.
    pub(crate) fn take_fresh(&mut self, to: usize, most: usize, sources: &[u32]) -> Vec<Block> {
        let mut taken = Vec::new();
        while self.writes[DEVICE] == WritePolicy::Through && taken.len() < most {
            let next = sources.get(taken.len());
            let next = next.and_then(|&slot| self.block_in(DEVICE, slot));
            if let Some(block) = next.filter(|block| self.maybe.remove(block)) {
                taken.push(block);
                continue;
            }
            let Some(block) = self.fresh.pop_front() else {
                break;
            };
            // What had a copy may have lost it to the one before.
            let source = self.ready(block, DEVICE);
            let next = source.is_some() && sources.get(taken.len()).copied() == source;
            let bare = self.wants_copy(DEVICE, block) || (next && self.leaves_copies(to));
            if !bare || taken.contains(&block) {
                if !bare && self.leaves_copies(to) && source.is_some() {
                    self.maybe.insert(block);
                }
                continue;
            }
            if !next {
                self.fresh.push_front(block);
                break;
            }
            taken.push(block);
        }
        taken
    }

    /// How many of these blocks, which a plan of at most `most` copies from the device to `to`, are taken
    /// in the order of publication; and what then is next in line, which found no room. `before`: what
    /// should have a copy before the plan was made.
    pub(crate) fn take_published(
        &mut self,
        to: usize,
        most: usize,
        plan: &[Block],
        before: &BTreeSet<Block>,
    ) -> (usize, Vec<Block>) {
        if self.writes[DEVICE] != WritePolicy::Through {
            return (0, Vec::new());
        }
        let mut taken = 0;
        while taken < most {
            // It may stand in line still, though it had a copy when it was passed.
            while plan.get(taken).is_some_and(|next| self.maybe.remove(next)) {
                taken += 1;
            }
            if taken >= most {
                break;
            }
            let Some(block) = self.fresh.pop_front() else {
                break;
            };
            // What had a copy may have lost it to the one before.
            let next = plan.get(taken) == Some(&block);
            let bare = before.contains(&block) || (next && self.leaves_copies(to));
            if !bare || plan[..taken].contains(&block) {
                // The plan has taken its copy, before its turn or after it; or that of one that stands before it.
                if !bare && self.leaves_copies(to) && self.ready(block, DEVICE).is_some() {
                    self.maybe.insert(block);
                }
                continue;
            }
            if !next {
                self.fresh.push_front(block);
                break;
            }
            taken += 1;
        }
        let left = |block: &&Block| self.wants_copy(DEVICE, **block) && !plan.contains(block);
        let next = self.fresh.iter().find(left).copied();
        (taken, next.into_iter().collect())
    }

    /// The device's published blocks that should have a copy have all had their turn.
    pub(crate) fn forget_fresh(&mut self) {
        while let Some(&block) = self.fresh.front()
            && !self.wants_copy(DEVICE, block)
        {
            self.fresh.pop_front();
            // One before it may stand in line still.
            if !self.maybe.is_empty() && self.ready(block, DEVICE).is_some() {
                self.maybe.insert(block);
            }
        }
    }

    /// How many of these blocks, which a plan of at most `most` copies down from the tier, are taken
    /// in the order in which they came; and what then is next in line, of which one found no room.
    pub(crate) fn take_arrivals(
        &mut self,
        tier: usize,
        most: usize,
        plan: &[Block],
    ) -> (usize, Vec<Block>) {
        if self.writes[tier] != WritePolicy::Through {
            return (0, Vec::new());
        }
        let came: Vec<Arrival> = std::mem::take(&mut self.came[tier]).into();
        let mut batches = came.chunk_by(|one, other| one.landing == other.landing);
        let (mut taken, mut rest, mut next) = (0, Vec::new(), Vec::new());
        for together in batches.by_ref() {
            let mut left = together.to_vec();
            let wants = |block| self.wants_copy(tier, block) && !plan[..taken].contains(&block);
            left.retain(|arrival| wants(arrival.block));
            while let Some(&block) = plan.get(taken)
                && left.iter().any(|arrival| arrival.block == block)
            {
                left.retain(|arrival| arrival.block != block);
                taken += 1;
            }
            // Who had a turn is not known, but of those that would have been copied.
            let queued = |block| left.iter().any(|arrival| arrival.block == block);
            let stays = |arrival: &Arrival| Arrival {
                sure: arrival.sure && queued(arrival.block),
                ..*arrival
            };
            next.extend(left.iter().map(|arrival| arrival.block));
            if taken == most || !next.is_empty() {
                rest.extend(together.iter().map(stays));
            }
            if left.iter().any(|arrival| arrival.sure) {
                break;
            }
        }
        rest.extend(batches.flatten());
        // They may all have been forgotten, or be no more in line.
        if !rest.iter().any(|arrival| arrival.sure) {
            next.clear();
        }
        self.came[tier] = rest.into();
        (taken, next)
    }

    /// What of the device's next victims should have a copy, in their order.
    pub(crate) fn pick_for_demote(&self, blocks: usize) -> Vec<Block> {
        // A list looks ahead over what is in flight too, a heap over its leaves alone.
        let heap = self.is_heap().then(|| self.next_victims(blocks));
        let ahead = heap
            .unwrap_or_else(|| self.ahead())
            .into_iter()
            .take(blocks);
        ahead
            .filter_map(|slot| self.block_in(DEVICE, slot))
            .filter(|&block| self.is_worth_a_copy(DEVICE, block))
            .collect()
    }

    fn is_heap(&self) -> bool {
        self.policy == EvictionPolicy::Heap
    }

    /// Whether copies of what the device has go first from this tier.
    pub(crate) fn leaves_copies(&self, tier: usize) -> bool {
        self.copies_first && tier == 1
    }

    /// Whether the device has the block too.
    pub(crate) fn is_copy(&self, tier: usize, block: Block) -> bool {
        let here = self.blocks[block].epoch == self.epoch;
        tier > DEVICE && here && self.ready(block, DEVICE).is_some()
    }

    /// What a tier whose order is not known would look at, had it time for all: idle blocks; but no
    /// copies of what the device has, where these go last, whatever time they have outlived.
    pub(crate) fn look_ahead(&self, tier: usize) -> Vec<Block> {
        let may = self.may_go(tier);
        let slots = self.slots[tier].keys().copied();
        let leaves = self.is_heap() || self.follows() || self.leaves_copies(tier);
        let idle = slots.filter(|slot| self.idle(tier, *slot) && (!leaves || may.contains(slot)));
        idle.filter_map(|slot| self.block_in(tier, slot))
            .filter(|&block| {
                self.is_heap() || self.leaves_copies(tier) || !self.is_copy(tier, block)
            })
            .collect()
    }
}
