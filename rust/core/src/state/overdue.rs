//! Flights whose end is unknown at their deadline: what they were to fill is kept out of everybody's
//! hands, and who waited for it waits no more.

use super::State;
use super::keep::HOST;
use crate::error::Result;
use crate::flight::Errand;
use crate::id::{FlightId, LeaseId};
use crate::pool::Hold;

impl State {
    /// A flight's deadline has passed and its end is unknown: its destinations are unlinked and
    /// quarantined at once; its sources stay, readable. `false`: it has ended before.
    pub fn mark_unknown(&mut self, id: FlightId) -> Result<bool> {
        if !self.check_outcome(id, 0)? {
            self.counters.late += 1;
            return Ok(false);
        }
        let flight = &mut self.flights[id.0.index];
        if std::mem::replace(&mut flight.overdue, true) {
            self.counters.late += 1;
            return Ok(false);
        }
        self.counters.overdue += 1;
        let (from, to) = (flight.from, flight.to);
        let (errand, moves) = (flight.errand, flight.moves.clone());
        // It may never end: nothing waits behind it.
        if let Some(air) = self.in_flight_of(from, to) {
            *air -= moves.len() as u32;
        }
        let to = to.at();
        if let Errand::Up { lease, base: block }
        | Errand::Private {
            lease: Some(lease),
            block,
        } = errand
        {
            self.fall_back(lease, block, id.0.index);
            if let Errand::Private { .. } = errand {
                self.undo_fork(lease, &moves);
            }
            return Ok(true);
        }
        for step in &moves {
            if let Some(node) = self.arrival(to, step) {
                self.detach(node, to);
                if self.trie[node].keeps > 0 {
                    self.tiers[to].ledger.promise(1);
                }
                self.put(to, step.to, Hold::Quarantined);
                if to == HOST {
                    self.note_copy(node, false);
                }
                self.bury_if_gone(node);
            } else {
                self.put(to, step.to, Hold::Quarantined);
            }
        }
        if to == HOST {
            self.break_unbacked();
        }
        Ok(true)
    }

    /// The lease falls back to its good prefix: the table ends before `block`, and growth up to
    /// where it ended is promised as far as it is backed.
    fn fall_back(&mut self, id: LeaseId, block: u32, overdue: u32) {
        let lease = id.0.index;
        let promised = self.leases[lease].promised();
        let limit = self.leases[lease].limit;
        while self.leases[lease].blocks() > block {
            let Some(slot) = self.leases[lease].table.pop() else {
                break;
            };
            match self.hold(0, slot) {
                Hold::Filling { flight } if flight == overdue => {
                    if let Some(node) = self.node_in(0, slot) {
                        self.detach(node, 0);
                        self.bury_if_gone(node);
                    }
                    self.put(0, slot, Hold::Quarantined);
                }
                Hold::Filling { flight } => {
                    // The private copy of a full hit: still in flight, for nobody.
                    self.flights[flight].errand = Errand::Private { lease: None, block };
                    self.leases[lease].loading -= 1;
                }
                _ => self.leave(slot),
            }
        }
        self.shorten(id, block);
        let record = &mut self.leases[lease];
        record.shown = record.shown.min(block);
        if record.ended.is_some() {
            record.limit = record.blocks();
        } else {
            self.promise_to(lease, promised, limit);
        }
        self.landed(id);
    }
}
