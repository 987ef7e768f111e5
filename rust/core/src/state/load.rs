//! Putting copies in the air: the part that begin, resume, fork, demote and promote share.

use super::State;
use crate::flight::{Errand, Flight, Move};
use crate::id::{FlightId, Group, Tier};
use crate::plan::Plan;
use crate::pool::Hold;

impl State {
    /// An empty flight whose number destinations can carry; [`Self::take_off`] fills it.
    pub(super) fn board(&mut self, from: usize, to: usize, errand: Errand) -> u32 {
        let (from, to) = (Tier(from as u8), Tier(to as u8));
        self.flights
            .insert(Flight::new(from, to, errand, self.trie.epoch()))
    }

    /// A slot on the device or below that this flight will fill, attached to its block.
    pub(super) fn destination(&mut self, node: u32, tier: usize, flight: u32) -> Option<u32> {
        // Claimed for the moment of its way from the free list to the block.
        let slot = self.take_free(tier, Hold::Claimed { leases: 0 })?;
        self.attach(node, tier, slot, Hold::Filling { flight });
        Some(slot)
    }

    /// Sources must have been marked, destinations be filling. Gives the plan to carry out.
    pub(super) fn take_off(&mut self, flight: u32, moves: Vec<Move>) -> Plan {
        let id = FlightId(self.flights.id(flight));
        let record = &mut self.flights[flight];
        let plan = Plan {
            flight: id,
            group: Group(0),
            from: record.from,
            to: record.to,
            sources: moves.iter().map(|step| step.from).collect(),
            destinations: moves.iter().map(|step| step.to).collect(),
        };
        record.moves = moves;
        self.counters.flights += 1;
        self.counters.moved[plan.from.at()][plan.to.at()] += plan.len() as u64;
        plan
    }
}
