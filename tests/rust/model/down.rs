//! How blocks go down: the naive yard says which a plan must copy, and which it must not cost their
//! own copy.

use crate::yard::{Block, DEVICE, HOST, InFlight, Purpose, What, Yard};
use blockyard_core::{FlightId, ParkedId, Pending, Plan, State, Tier, WritePolicy};

impl Yard {
    /// Copies ahead of need: what was published, then the next victims.
    pub(crate) fn demote(&mut self, state: &State, most: usize, heap: bool, plan: Option<&Plan>) {
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
        let mut spare = self.free(HOST) as usize;
        for block in self.blocks_on(HOST) {
            let [above, below] = self.blocks[block].slots;
            let slot = below.expect("it is there");
            // One that a resize left beyond the limit has to go anyway.
            let gone = slot < self.limits[HOST]
                && self.idle(HOST, slot)
                && !state.holds_block(Tier::HOST, slot);
            spare += usize::from(gone && above.is_none());
            if let Some(above) = above.filter(|_| gone) {
                let own = rank(above).unwrap_or(usize::MAX);
                assert!(first.is_some_and(|first| first < own), "{block} is bare");
            }
        }
        let fresh = self.take_fresh(most, &sources[..spare.min(sources.len())]);
        let path = [&fresh[..], &victims].concat();
        self.copy_down(state, &path, most, None, plan);
        while let Some(&block) = self.fresh.front()
            && !self.wants_copy(block)
        {
            self.fresh.pop_front();
        }
        let copied = plan.map_or(0, Plan::len);
        let left = |block: &&Block| self.wants_copy(**block);
        let through = self.write == WritePolicy::Through;
        let waits = self.fresh.iter().find(left).filter(|_| through);
        for block in victims.iter().find(left).into_iter().chain(waits) {
            assert!(
                copied == most || !self.has_room_below(*block),
                "block {block} was passed over"
            );
        }
    }

    /// Copies of these blocks down, in order, at most `most`: what has none below, as far as the
    /// promises of both tiers stay backed.
    pub(crate) fn copy_down(
        &mut self,
        state: &State,
        blocks: &[Block],
        most: usize,
        parked: Option<ParkedId>,
        plan: Option<&Plan>,
    ) {
        let lacks = |yard: &Self, block: Block| {
            yard.ready(block, DEVICE).is_some() && yard.blocks[block].slots[HOST].is_none()
        };
        let first = blocks.iter().copied().find(|&block| lacks(self, block));
        let free = self.free(HOST);
        let gone = self.see_host_evictions(state);
        // Exactly what was lacking went, but for what does not count beyond the tier's size.
        let lacked = plan
            .map_or(0, |plan| plan.len() as u64)
            .saturating_sub(free);
        assert_eq!(gone, lacked, "evicted from the host for {plan:?}");
        if let Some(plan) = plan {
            let from: Vec<Block> = plan
                .sources
                .iter()
                .filter_map(|&slot| self.block_in(DEVICE, slot))
                .collect();
            assert!(from.len() == plan.len() && plan.len() <= most);
            assert!(from.iter().all(|&block| lacks(self, block)));
            assert_eq!(first, from.first().copied());
            let mut rest = blocks.iter();
            assert!(
                from.iter().all(|block| rest.any(|other| other == block)),
                "in this order"
            );
            let moves = from
                .iter()
                .copied()
                .zip(&plan.sources)
                .map(|(block, &slot)| (Some(block), slot))
                .collect();
            self.fly(plan, DEVICE, HOST, Purpose::Down(parked), moves);
        }
        let copied = plan.map_or(0, Plan::len);
        let left = blocks.iter().find(|&&block| lacks(self, block));
        if let Some(&block) = left.filter(|_| copied < most) {
            assert!(!self.has_room_below(block), "block {block} was passed over");
        }
    }

    /// What of a parked sequence moves, and what could be evicted were its copies down ready.
    pub(crate) fn pending(&self, id: ParkedId) -> Pending {
        let stay = &self.parked[&id];
        let path = &stay.path[..stay.on_device];
        let moves = |&block: &Block| self.filling(block, HOST).is_some();
        let mut then = self.clone();
        then.parked.get_mut(&id).expect("it is parked").on_device = 0;
        for flight in then.flights.values_mut().filter(|flight| flight.to == HOST) {
            flight.moves.retain(|&(block, _, to)| {
                block.is_none_or(|block| {
                    !path.contains(&block) || self.block_in(HOST, to) != Some(block)
                })
            });
        }
        let may = then.may_go(DEVICE);
        let goes = |block: &&Block| {
            let slot = self.blocks[**block].slots[DEVICE].expect("it is on the device");
            may.contains(&slot) && slot < self.limits[DEVICE] && !moves(block)
        };
        Pending {
            moving: path.iter().filter(|block| moves(block)).count() as u32,
            alone: path.iter().filter(goes).count() as u32,
        }
    }

    /// Whether one more copy would find a free slot, and leave all promises backed.
    fn has_room_below(&self, block: Block) -> bool {
        let free = (0..self.limits[HOST]).find(|slot| !self.slots[HOST].contains_key(slot));
        let (Some(to), Some(from)) = (free, self.ready(block, DEVICE)) else {
            return false;
        };
        let mut then = self.clone();
        then.slots[HOST].insert(to, What::Filling(Some(block)));
        then.blocks[block].slots[HOST] = Some(to);
        let (from_tier, purpose) = (DEVICE, Purpose::Down(None));
        let flight = InFlight {
            from: from_tier,
            to: HOST,
            purpose,
            moves: vec![(Some(block), from, to)],
            overdue: false,
        };
        let unborn = FlightId::from_number(u64::MAX).expect("a number");
        then.flights.insert(unborn, flight);
        !then.unbacked(DEVICE) && !then.unbacked(HOST)
    }
}
