//! How blocks go down: the naive yard says which a plan must copy, and which it must not cost their
//! own copy.

use crate::yard::{Block, DEVICE, InFlight, Purpose, What, Yard};
use blockyard_core::{FlightId, LeaseId, ParkedId, Plan, State, Tier, WritePolicy};

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
    pub(crate) fn demote(
        &mut self,
        state: &State,
        from: usize,
        most: usize,
        heap: bool,
        plan: Option<&Plan>,
    ) {
        let Some(to) = self.below(from).next() else {
            return assert_eq!(plan, None, "there is nowhere to copy it to");
        };
        let copies = Copies {
            from,
            to,
            most,
            parked: None,
        };
        if from == DEVICE {
            self.demote_device(state, copies, heap, plan);
        } else {
            self.demote_below(state, copies, heap, plan);
        }
    }

    fn demote_device(&mut self, state: &State, copies: Copies, heap: bool, plan: Option<&Plan>) {
        let Copies { to, most, .. } = copies;
        let victims = self.pick_for_demote(most, heap);
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
            let gone = slot < self.limits[to]
                && self.idle(to, slot)
                && !state.holds_block(Tier(to), slot);
            spare += usize::from(gone && above.is_none());
            if let Some(above) = above.filter(|_| gone) {
                let own = rank(above).unwrap_or(usize::MAX);
                assert!(first.is_some_and(|first| first < own), "{block} is bare");
            }
        }
        let fresh = self.take_fresh(most, &sources[..spare.min(sources.len())]);
        let path = [&fresh[..], &victims].concat();
        self.copy_down(state, &path, copies, plan);
        self.forget_fresh();
        let copied = plan.map_or(0, Plan::len);
        let left = |block: &&Block| self.wants_copy(DEVICE, **block);
        let through = self.writes[DEVICE] == WritePolicy::Through;
        let waits = self.fresh.iter().find(left).filter(|_| through);
        for block in victims.iter().find(left).into_iter().chain(waits) {
            assert!(
                copied == most || !self.has_room(*block, DEVICE, to),
                "block {block} was passed over"
            );
        }
    }

    /// The order of the tier is not known: any of its victims may be the next.
    fn demote_below(&mut self, state: &State, copies: Copies, heap: bool, plan: Option<&Plan>) {
        let Copies { from, to, most, .. } = copies;
        let ahead = self.ahead_below(from, heap);
        let wants = |block: &Block| self.wants_copy(from, *block);
        let victims: Vec<Block> = ahead.iter().copied().filter(wants).collect();
        let sources = plan.map_or(&[][..], |plan| &plan.sources).iter();
        let path: Vec<Block> = sources
            .filter_map(|&slot| self.block_in(from, slot))
            .collect();
        let (fresh, next) = self.take_arrivals(from, most, &path);
        for block in &path[fresh..] {
            assert!(victims.contains(block), "{block} is no victim");
        }
        self.copy_down(state, &path, copies, plan);
        let room = |&block: &Block| self.has_room(block, from, to);
        if path.len() < most {
            let all = next.iter().all(room);
            assert!(next.is_empty() || !all, "of {next:?} none was copied");
        }
        if path.len() < most && ahead.len() <= most {
            let mut left = victims.into_iter().filter(|&block| self.wants_copy(from, block));
            let left = left.find(room);
            assert_eq!(left, None, "was passed over");
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
        let Copies {
            from,
            to,
            most,
            parked,
        } = copies;
        let lacks = |yard: &Self, block: Block| {
            let node = &yard.blocks[block];
            let below = match parked {
                Some(_) => node.home != to || node.slots[to].is_some(),
                None => yard.has_copy_below(block, from),
            };
            yard.ready(block, from).is_some() && !below
        };
        let first = blocks.iter().copied().find(|&block| lacks(self, block));
        self.see_room(state, to, plan);
        if let Some(plan) = plan {
            let sources: Vec<Block> = plan
                .sources
                .iter()
                .filter_map(|&slot| self.block_in(from, slot))
                .collect();
            assert!(sources.len() == plan.len() && plan.len() <= most);
            assert!(sources.iter().all(|&block| lacks(self, block)));
            assert_eq!(first, sources.first().copied());
            let mut rest = blocks.iter();
            assert!(
                sources
                    .iter()
                    .all(|block| rest.any(|other| other == block)),
                "in this order"
            );
            let moves = self.sources(from, &sources);
            self.fly(plan, from, to, Purpose::Down(parked), moves);
        }
        let copied = plan.map_or(0, Plan::len);
        let left = blocks.iter().find(|&&block| lacks(self, block));
        if let Some(&block) = left.filter(|_| copied < most) {
            let room = self.has_room(block, from, to);
            assert!(!room, "block {block} was passed over");
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

    /// Whether one more copy would find a free slot, and leave all promises backed.
    pub(crate) fn has_room(&self, block: Block, from: usize, to: usize) -> bool {
        let free = (0..self.limits[to]).find(|slot| !self.slots[to].contains_key(slot));
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
            ended: None,
        };
        let unborn = FlightId::from_number(u64::MAX).expect("a number");
        then.flights.insert(unborn, flight);
        !then.unbacked(from) && !then.unbacked(to)
    }
}
