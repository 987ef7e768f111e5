//! Putting copies in flight: the part that begin, resume, fork, demote and promote share.

use super::State;
use crate::flight::{Errand, Flight, Move};
use crate::id::{FlightId, Group, Tier};
use crate::plan::Plan;
use crate::pool::Hold;
use std::cmp::Ordering;

impl State {
    /// An empty flight whose number destinations can carry; [`Self::take_off`] fills it.
    pub(super) fn board(&mut self, from: usize, to: usize, errand: Errand) -> u32 {
        let (from, to) = (Tier(from as u8), Tier(to as u8));
        self.flights
            .insert(Flight::new(from, to, errand, self.trie.epoch()))
    }

    /// The count of blocks in flight that a flight between these tiers belongs to.
    pub(super) fn in_flight_of(&mut self, from: Tier, to: Tier) -> Option<&mut u32> {
        let [down, up] = &mut self.air;
        match from.cmp(&to) {
            Ordering::Less => Some(down),
            Ordering::Greater => Some(up),
            Ordering::Equal => None,
        }
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
        let number = self.counters.flights;
        let record = &mut self.flights[flight];
        (record.moves, record.waits) = (moves, Some(number));
        let plan = self.plan_of(flight);
        if let Some(air) = self.in_flight_of(plan.from, plan.to) {
            *air += plan.len() as u32;
        }
        self.counters.flights += 1;
        self.counters.moved[plan.from.at()][plan.to.at()] += plan.len() as u64;
        plan
    }

    fn plan_of(&self, flight: u32) -> Plan {
        let record = &self.flights[flight];
        Plan {
            flight: FlightId(self.flights.id(flight)),
            group: Group(0),
            from: record.from,
            to: record.to,
            sources: record.moves.iter().map(|step| step.from).collect(),
            destinations: record.moves.iter().map(|step| step.to).collect(),
        }
    }

    /// Plans that nobody was given yet, in the order in which they were made; what has ended
    /// meanwhile is left out. It takes time in proportion to what is in flight.
    pub fn dispatch(&mut self) -> Vec<Plan> {
        let mut waiting: Vec<(u64, u32)> = self
            .flights
            .iter()
            .filter_map(|(flight, record)| Some((record.waits?, flight)))
            .collect();
        waiting.sort_unstable();
        for &(_, flight) in &waiting {
            self.flights[flight].waits = None;
        }
        waiting
            .into_iter()
            .map(|(_, flight)| self.plan_of(flight))
            .collect()
    }
}
