//! How blocks go down: the naive yard says which a plan must copy, and which it must not cost their
//! own copy.

use crate::yard::{Block, DEVICE, InFlight, Purpose, What, Yard};
use blockyard_core::{FlightId, Key, LeaseId, ParkedId, Plan, State, Tier, WritePolicy};
use std::collections::BTreeSet;

/// Copies from a tier to one below it, at most so many.
#[derive(Clone, Copy)]
pub(crate) struct Copies {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) most: usize,
    pub(crate) parked: Option<ParkedId>,
}

impl Yard {
    /// Copies ahead of need: what came to the tier, then its next victims.
    pub(crate) fn demote(&mut self, state: &State, from: usize, most: usize, plan: Option<&Plan>) {
        let Some(to) = self.below(from).next() else {
            return assert_eq!(plan, None, "there is nowhere to copy it to");
        };
        let copies = Copies {
            from,
            to,
            most,
            parked: None,
        };
        if from == DEVICE && !self.follows() {
            self.demote_device(state, copies, plan);
        } else {
            self.demote_unknown(state, copies, plan);
        }
    }

    fn demote_device(&mut self, state: &State, copies: Copies, plan: Option<&Plan>) {
        let Copies { to, most, .. } = copies;
        let victims = self.pick_for_demote(most);
        let sources = plan.map_or(&[][..], |plan| &plan.sources);
        // What is still on the device loses its copy only to a victim that goes before it.
        let order = self.ahead();
        let rank = |slot: u32| order.iter().position(|&other| other == slot);
        let of_victims = victims
            .iter()
            .filter_map(|&block| self.ready(block, DEVICE));
        let first = of_victims.filter(|slot| sources.contains(slot));
        let first = first.filter_map(rank).min();
        let mut spare = self.free(to) as usize;
        for block in self.blocks_on(to) {
            let [above, below] = [DEVICE, to].map(|tier| self.blocks[block].slots[tier]);
            let slot = below.expect("it is there");
            // One that a resize left beyond the limit has to go anyway.
            let gone =
                self.stays(to, slot) && self.idle(to, slot) && !state.holds_block(Tier(to), slot);
            // A copy may go first that the device has used again.
            let first_to_go = above.is_none() || self.leaves_copies(to);
            spare += usize::from(gone && first_to_go);
            if let Some(above) = above.filter(|_| gone && !first_to_go) {
                let own = rank(above).unwrap_or(usize::MAX);
                assert!(first.is_some_and(|first| first < own), "{block} is bare");
            }
        }
        let fresh = self.take_fresh(to, most, &sources[..spare.min(sources.len())]);
        let path = [&fresh[..], &victims].concat();
        self.copy_down(state, &path, copies, plan);
        self.forget_fresh();
        let moved = plan.map_or(0, Plan::len);
        let left = |block: &&Block| self.wants_copy(DEVICE, **block);
        let through = self.writes[DEVICE] == WritePolicy::Through;
        let waits = self.fresh.iter().find(left).filter(|_| through);
        for block in victims.iter().find(left).into_iter().chain(waits) {
            assert!(
                moved == most || !self.has_room(*block, DEVICE, to),
                "block {block} was passed over"
            );
        }
    }

    /// The order of the tier is not known: any of its victims may be the next.
    fn demote_unknown(&mut self, state: &State, copies: Copies, plan: Option<&Plan>) {
        let Copies { from, to, most, .. } = copies;
        // What has made room for a victim before it may be moved again.
        let before: BTreeSet<Block> = self.blocks_on(from).collect();
        let before = before
            .into_iter()
            .filter(|&block| self.wants_copy(from, block));
        let before: BTreeSet<Block> = before.collect();
        self.see_room(state, to, plan);
        for arrival in &mut self.came[from] {
            arrival.sure &= before.contains(&arrival.block);
        }
        let ahead = self.look_ahead(from);
        let mut victims = ahead.clone();
        victims.retain(|&block| self.wants_copy(from, block) && !self.is_copy(from, block));
        let sources = plan.map_or(&[][..], |plan| &plan.sources).iter();
        let path = sources.filter_map(|&slot| self.block_in(from, slot));
        let path: Vec<Block> = path.collect();
        let (fresh, next) = if from == DEVICE {
            self.take_published(to, most, &path, &before)
        } else {
            self.take_arrivals(from, most, &path)
        };
        for block in &path[fresh..] {
            assert!(victims.contains(block), "{block} is no victim");
        }
        self.fly_down(&path, copies, plan);
        if from == DEVICE {
            self.forget_fresh();
        }
        if path.len() == most {
            return;
        }
        // One that found no room kept those behind it from being looked at.
        victims.retain(|&block| ahead.len() <= most && self.wants_copy(from, block));
        for left in [next, victims] {
            let room = |&block: &Block| self.has_room(block, from, to);
            let none = left.is_empty() || !left.iter().all(room);
            assert!(none, "{left:?} were passed over by {plan:?}");
        }
    }

    /// What a running sequence has sealed, the root first.
    pub(crate) fn demote_lease(
        &mut self,
        state: &State,
        id: LeaseId,
        most: usize,
        plan: Option<&Plan>,
    ) {
        let Some(to) = self.below(DEVICE).next() else {
            return assert_eq!(plan, None, "there is nowhere to copy it to");
        };
        let path = self.sealed_path(id);
        let copies = Copies {
            from: DEVICE,
            to,
            most,
            parked: None,
        };
        self.copy_down(state, &path, copies, plan);
    }

    /// Copies of these blocks down, in order: what has none below, as far as the promises of both
    /// tiers stay backed.
    pub(crate) fn copy_down(
        &mut self,
        state: &State,
        blocks: &[Block],
        copies: Copies,
        plan: Option<&Plan>,
    ) {
        let first = blocks.iter().find(|&&block| self.lacks(block, copies));
        if copies.parked.is_none() || !self.see_way(state, copies, plan) {
            self.see_room(state, copies.to, plan);
        }
        let source = plan.map(|plan| plan.sources[0]);
        let source = source.and_then(|slot| self.block_in(copies.from, slot));
        assert!(
            source.is_none() || source.as_ref() == first,
            "the first comes first"
        );
        self.fly_down(blocks, copies, plan);
    }

    /// Whether the block should be among these copies.
    fn lacks(&self, block: Block, copies: Copies) -> bool {
        let Copies { from, to, .. } = copies;
        let node = &self.blocks[block];
        let below = match copies.parked {
            Some(_) => node.home != to || node.slots[to].is_some(),
            None => self.has_copy_below(block, from),
        };
        self.ready(block, from).is_some() && !below
    }

    fn fly_down(&mut self, blocks: &[Block], copies: Copies, plan: Option<&Plan>) {
        let Copies {
            from,
            to,
            most,
            parked,
        } = copies;
        if let Some(plan) = plan {
            let sources: Vec<Block> = plan
                .sources
                .iter()
                .filter_map(|&slot| self.block_in(from, slot))
                .collect();
            assert!(sources.len() == plan.len() && plan.len() <= most);
            assert!(sources.iter().all(|&block| self.lacks(block, copies)));
            let mut rest = blocks.iter();
            assert!(
                sources.iter().all(|block| rest.any(|other| other == block)),
                "in this order"
            );
            let moves = self.sources(from, &sources);
            self.fly(plan, from, to, Purpose::Down(parked), moves);
        }
        let moved = plan.map_or(0, Plan::len);
        let left = blocks.iter().find(|&&block| self.lacks(block, copies));
        if let Some(&block) = left.filter(|_| moved < most) {
            // No block makes room for its child.
            let parent = self.parent(block);
            let next = parent.and_then(|above| self.ready(above, to));
            let room = self.has_room(block, from, to) && next.is_none();
            assert!(!room, "block {block} was passed over");
        }
    }

    /// Copies ahead by whole paths: each block behind its prefix, which has a copy below, or goes there with it.
    pub(crate) fn copy_ahead(&mut self, state: &State, from: usize, plan: &Plan) {
        let to = self.below(from).next().expect("a tier to copy to");
        self.see_room(state, to, Some(plan));
        let path = self.copied_by(from, plan);
        assert!(
            path.iter().all(|&block| self.is_bare(block, from)),
            "what has a copy below needs no other"
        );
        for (at, &block) in path.iter().enumerate() {
            let parent = self.blocks[block].parent;
            let reached = parent.is_none_or(|parent| {
                path[..at].contains(&parent)
                    || (self.alive(parent) && self.has_copy_below(parent, from))
            });
            assert!(
                reached,
                "{block} goes down, and its prefix is nowhere there"
            );
        }
        let moves = self.sources(from, &path);
        self.fly(plan, from, to, Purpose::Down(None), moves);
        if from == DEVICE {
            self.forget_fresh();
        }
    }

    fn is_bare(&self, block: Block, from: usize) -> bool {
        let node = &self.blocks[block];
        node.epoch == self.epoch && !self.has_copy_below(block, from)
    }

    fn copied_by(&self, from: usize, plan: &Plan) -> Vec<Block> {
        let sources = plan.sources.iter();
        let blocks = sources.map(|&slot| self.block_in(from, slot));
        blocks.map(|block| block.expect("it has one")).collect()
    }

    /// All that has a key and is of this epoch, lies above a tier or is on its way there, and is not ready on it,
    /// each behind its parent and none whose prefix is nowhere.
    pub(crate) fn compare_unwritten(&self, to: usize, keys: &[Key]) {
        let mut told = BTreeSet::new();
        for key in keys {
            let block = self.find(key).expect("it is known");
            assert!(self.ready(block, to).is_none() && told.insert(block));
            let parent = self.blocks[block].parent;
            let behind = |parent| told.contains(&parent) || self.ready(parent, to).is_some();
            assert!(
                parent.is_none_or(behind),
                "{block} stands before its prefix"
            );
        }
        let written = |block| self.ready(block, to).is_some() || told.contains(&block);
        for tier in 0..to {
            let ready = |&block: &Block| self.ready(block, tier).is_some();
            for block in self.blocks_on(tier).filter(ready) {
                let above = |&block: &Block| self.blocks[block].parent;
                let mut path = std::iter::successors(above(&block), above);
                let node = &self.blocks[block];
                let published = node.epoch == self.epoch && node.key.is_some();
                assert!(
                    written(block) || !published || !path.all(written),
                    "{block} is left out"
                );
            }
        }
    }

    /// The keys of what the tiers above have, each behind those of its beginning.
    pub(crate) fn paths_above(&self, to: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        for tier in 0..to {
            for block in self.blocks_on(tier) {
                let above = |&block: &Block| self.blocks[block].parent;
                let path = std::iter::successors(Some(block), above);
                let mut path: Vec<Key> = path.filter_map(|block| self.blocks[block].key).collect();
                path.reverse();
                keys.extend(path);
            }
        }
        keys
    }

    pub(crate) fn keys_on(&self, tier: usize) -> Vec<Key> {
        let blocks = self.blocks_on(tier);
        blocks.filter_map(|block| self.blocks[block].key).collect()
    }

    /// What a clean stop copies to a tier: each block from the nearest tier above, and behind its parent.
    pub(crate) fn write_down(&mut self, state: &State, to: usize, plans: &[Plan]) {
        let free = self.free(to);
        let gone = self.see_evictions(state, to);
        let total: usize = plans.iter().map(Plan::len).sum();
        assert_eq!(gone, (total as u64).saturating_sub(free));
        for plan in plans {
            let from = plan.from.0;
            let path = self.copied_by(from, plan);
            for (at, &block) in path.iter().enumerate() {
                let nearest = (0..to)
                    .rev()
                    .find(|&tier| self.ready(block, tier).is_some());
                assert_eq!(nearest, Some(from), "from the nearest tier above");
                let parent = self.blocks[block].parent;
                let follows = parent.is_none_or(|parent| {
                    path[..at].contains(&parent) || self.blocks[parent].slots[to].is_some()
                });
                assert!(follows, "{block} is written, and its prefix is not there");
            }
            let moves = self.sources(from, &path);
            self.fly(plan, from, to, Purpose::Down(None), moves);
        }
    }

    /// Exactly what a plan to this tier lacked went, but for what does not count beyond its size.
    pub(crate) fn see_room(&mut self, state: &State, to: usize, plan: Option<&Plan>) {
        let free = self.free(to);
        let gone = self.see_evictions(state, to);
        let lacked = plan
            .map_or(0, |plan| plan.len() as u64)
            .saturating_sub(free);
        assert_eq!(gone, lacked, "evicted from tier {to} for {plan:?}");
    }

    /// What stood above a block that goes home, and would have kept it from a promised slot, has gone,
    /// and victims before it: whether that was so.
    fn see_way(&mut self, state: &State, copies: Copies, plan: Option<&Plan>) -> bool {
        let Copies { from, to, .. } = copies;
        let sources = plan.map_or(&[][..], |plan| &plan.sources).iter();
        let blocks: Vec<Block> = sources
            .filter_map(|&slot| self.block_in(from, slot))
            .collect();
        let shades = blocks.iter().any(|&block| {
            let above = self.blocks[block].parent;
            let above = above.and_then(|above| self.blocks[above].slots[to]);
            above.is_some_and(|slot| self.idle(to, slot) && !state.holds_block(Tier(to), slot))
        });
        if shades {
            let lacked = (blocks.len() as u64).saturating_sub(self.free(to));
            assert!(self.see_evictions(state, to) >= lacked);
        }
        shades
    }

    /// Whether one more copy would find a free slot, and leave all promises backed.
    pub(crate) fn has_room(&self, block: Block, from: usize, to: usize) -> bool {
        let mut slots = (0..self.limits[to]).filter(|&slot| self.stays(to, slot));
        let free = slots.find(|slot| !self.slots[to].contains_key(slot));
        let (Some(free), Some(source)) = (free, self.ready(block, from)) else {
            return false;
        };
        let mut then = self.clone();
        then.slots[to].insert(free, What::Filling(Some(block)));
        then.blocks[block].slots[to] = Some(free);
        let flight = InFlight {
            from,
            to,
            purpose: Purpose::Lift,
            moves: vec![(Some(block), source, free)],
            overdue: false,
            reads: true,
            hearsay: Vec::new(),
            ended: None,
        };
        let unborn = FlightId::from_number(u64::MAX).expect("a number");
        then.flights.insert(unborn, flight);
        !then.unbacked(from) && !then.unbacked(to)
    }
}
