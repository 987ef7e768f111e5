//! Flights: how they are opened, filled, launched and dispatched, which begin, resume, fork, demote
//! and promote share; and how one is given up whose end is unknown at its deadline. `land.rs` has
//! their outcomes.

use super::State;
use crate::base::{FlightId, FlightIx, Key, LeaseId, NodeIx, Result, SlotIx, Tier};
use crate::copies::{Flight, Move, Outcome, Plan, Purpose};
use crate::tiers::{Hold, Trie};

impl State {
    /// An empty flight whose number destinations can carry; [`Self::launch`] fills it.
    pub(super) fn open_flight(&mut self, from: Tier, to: Tier, purpose: Purpose) -> FlightIx {
        self.flights
            .insert(Flight::new(from, to, purpose, self.trie.epoch()))
    }

    /// Puts a flight in flight whose sources are marked and whose destinations are filling. Returns
    /// the plan to carry out.
    pub(super) fn launch(&mut self, flight: FlightIx, moves: Vec<Move>) -> Plan {
        let number = self.counters.flights;
        let (keys, parents) = self.keys_to_carry(flight, &moves);
        let record = &mut self.flights[flight];
        (record.moves, record.waits) = (moves, Some(number));
        record.launched = number;
        (record.keys, record.parents) = (keys, parents);
        let plan = self.plan_of(flight);
        self.in_flight[plan.from.at()][plan.to.at()] += plan.len() as u32;
        self.counters.flights += 1;
        self.counters.moved[plan.from.at()][plan.to.at()] += plan.len() as u64;
        plan
    }

    /// The keys of a flight's blocks where one of its tiers must know them, and those of their
    /// parents where the one that it fills must: as they are now, since blocks may be gone before
    /// the plan is dispatched.
    fn keys_to_carry(&self, flight: FlightIx, moves: &[Move]) -> (Vec<Key>, Vec<Key>) {
        let Flight { from, to, .. } = self.flights[flight];
        let [reads, fills] = [from, to].map(|tier| self.config.keyed[tier.at()]);
        if !reads && !fills {
            return Default::default();
        }
        // Private blocks, which have no node, move within the device alone, and that is not keyed.
        let carry = |key: fn(&Trie, NodeIx) -> Key| {
            let node = |step: &Move| step.node.and_then(|id| self.trie.live(id));
            let keys = moves.iter().map(node);
            keys.map(|node| node.map_or(Key::UNKNOWN, |node| key(&self.trie, node)))
                .collect()
        };
        let keys = carry(Trie::carried_key);
        let parents = if fills {
            carry(Trie::carried_parent)
        } else {
            Vec::new()
        };
        (keys, parents)
    }

    pub(super) fn plan_of(&self, flight: FlightIx) -> Plan {
        let record = &self.flights[flight];
        Plan {
            flight: FlightId(self.flights.id(flight)),
            yard: self.config.yard,
            group: self.config.group,
            rank: 0,
            from: record.from,
            to: record.to,
            sources: record.copies().map(|(from, _)| from).collect(),
            destinations: record.copies().map(|(_, to)| to).collect(),
            keys: record.keys.clone(),
            parents: record.parents.clone(),
        }
    }

    /// Loads what of a path is behind the blocks of a table: each run of so many marked blocks by a flight
    /// from its tier. Their destinations are added to the table.
    pub(super) fn load_runs(
        &mut self,
        lease: LeaseId,
        path: &[NodeIx],
        runs: impl Iterator<Item = (Tier, u32)>,
        table: &mut Vec<SlotIx>,
    ) -> Vec<Plan> {
        runs.map(|(tier, blocks)| {
            let behind = &path[table.len()..];
            self.load(lease, tier, &behind[..blocks as usize], table)
        })
        .collect()
    }

    fn load(
        &mut self,
        lease: LeaseId,
        tier: Tier,
        nodes: &[NodeIx],
        table: &mut Vec<SlotIx>,
    ) -> Plan {
        let base = table.len() as u32;
        let flight = self.open_flight(tier, Tier::DEVICE, Purpose::Up { lease, base });
        let mut moves = Vec::with_capacity(nodes.len());
        let mut above = None;
        for &node in nodes {
            let from = self.trie.slot(node, tier);
            let to = match above {
                Some(above) => self.attach_next(node, above, flight),
                None => self.attach(node, Tier::DEVICE, flight),
            };
            above = Some(node);
            if let Some((from, to)) = from.zip(to) {
                moves.push(Move {
                    node: Some(self.trie.id(node)),
                    from,
                    to,
                });
                table.push(to);
            }
        }
        self.launch(flight, moves)
    }

    /// Puts the copy of a marked slot, with its block where that is published, into a private one in flight.
    pub(super) fn private_copy(
        &mut self,
        lease: LeaseId,
        (tier, from, node): (Tier, SlotIx, Option<NodeIx>),
        table: &mut Vec<SlotIx>,
    ) -> Plan {
        let block = table.len() as u32;
        let lease = Some(lease);
        let flight = self.open_flight(tier, Tier::DEVICE, Purpose::Private { lease, block });
        let mut moves = Vec::with_capacity(1);
        if let Some(to) = self.tiers[Tier::DEVICE].take_free(Hold::Filling { flight }) {
            moves.push(Move {
                node: node.map(|node| self.trie.id(node)),
                from,
                to,
            });
            table.push(to);
        }
        self.launch(flight, moves)
    }

    /// The flight to wait for, if this block is in flight on the tier.
    pub(super) fn flight_to_await(&self, node: NodeIx, tier: Tier) -> Option<FlightId> {
        self.filling(node, tier)
            .map(|flight| FlightId(self.flights.id(flight)))
    }

    /// Plans that were not dispatched yet, in the order in which they were made; what has ended
    /// meanwhile is left out. It takes time in proportion to what is in flight.
    pub fn dispatch(&mut self) -> Vec<Plan> {
        self.mend();
        if self.trie.has_forgotten() {
            self.trim_forgotten();
        }
        let mut waiting: Vec<(u64, FlightIx)> = self
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

    /// A flight's deadline has passed and its end is unknown: its destinations are unlinked and
    /// quarantined at once, so that nothing it brings is believed, and its sources are released. Not
    /// where it goes to a keyed tier: that would keep what is written late under the key of the block
    /// that was to be read, and a restart would find it. `false`: it has ended before.
    pub fn mark_unknown(&mut self, id: FlightId) -> Result<bool> {
        if !self.check_outcome(&Outcome::failed(id, 0))? {
            self.counters.late += 1;
            return Ok(false);
        }
        let flight = &mut self.flights[id.at()];
        if std::mem::replace(&mut flight.overdue, true) {
            self.counters.late += 1;
            return Ok(false);
        }
        self.counters.overdue += 1;
        let (from, moves) = (flight.from, flight.moves.clone());
        self.counters.unproven += std::mem::take(&mut flight.unproven).len() as u64;
        // It may never end: nothing waits behind it.
        self.in_flight[from.at()][flight.to.at()] -= moves.len() as u32;
        flight.reads = self.config.keyed[flight.to.at()];
        let releases = !flight.reads;
        // In the order of an end: sources before any lease, and what retires behind all.
        if releases {
            self.unmark_all(from, &moves);
        }
        self.quarantine(id.at(), &moves);
        if releases {
            self.retire_all(from, &moves);
        }
        Ok(true)
    }

    /// Nothing that a flight brings will be believed: its destinations are unlinked, and stay out of use
    /// until its outcome comes.
    fn quarantine(&mut self, flight: FlightIx, moves: &[Move]) {
        let Flight {
            from, to, purpose, ..
        } = self.flights[flight];
        if let Purpose::Up { lease, base: block }
        | Purpose::Private {
            lease: Some(lease),
            block,
        } = purpose
        {
            self.fall_back(lease, block, flight);
            if let Purpose::Private { .. } = purpose {
                self.undo_fork(lease, moves);
            }
            return;
        }
        self.cut_kept(moves.iter().filter_map(|step| step.node), to);
        for step in moves {
            if let Some(node) = self.arrival(to, step) {
                self.lose_arrival(from, node, to);
            }
            self.tiers[to].put(step.to, Hold::Quarantined);
        }
        self.break_unbacked(to);
    }

    /// A flight reads its sources no more.
    pub(super) fn unmark_all(&mut self, from: Tier, moves: &[Move]) {
        for step in moves {
            self.unmark(from, step.from);
        }
    }

    /// Sources that a resize left beyond the limit retire, as nothing reads them any more.
    pub(super) fn retire_all(&mut self, from: Tier, moves: &[Move]) {
        for step in moves {
            self.retire(from, step.from);
        }
    }

    /// What a copy brings to a tier below the device will not be published: its block is not there, and
    /// where that was its home, the tier owes it a slot again.
    pub(super) fn lose_arrival(&mut self, from: Tier, node: NodeIx, to: Tier) {
        self.detach(node, to);
        if self.keeps_at(node, to) > 0 {
            self.tiers[to].promise(1);
        }
        self.note_failed(from, to, node);
        self.remove_if_gone(node);
    }

    /// The lease falls back to its good prefix: the table ends before `block`, and growth up to
    /// where it ended is promised as far as it is backed. What loads behind it is given up: no lease
    /// waits for it, and it is never published.
    fn fall_back(&mut self, id: LeaseId, block: u32, overdue: FlightIx) {
        let lease = id.at();
        let promised = self.leases[lease].promised();
        let limit = self.leases[lease].limit;
        let mut ended = Vec::new();
        while self.leases[lease].blocks() > block {
            let Some(slot) = self.leases[lease].table.pop() else {
                break;
            };
            match self.hold(Tier::DEVICE, slot) {
                Hold::Filling { flight } => {
                    if let Some(node) = self.node_in(Tier::DEVICE, slot) {
                        self.detach(node, Tier::DEVICE);
                        self.remove_if_gone(node);
                    }
                    let given_up = Purpose::Private { lease: None, block };
                    let record = &mut self.flights[flight];
                    if flight == overdue {
                        self.tiers[Tier::DEVICE].put(slot, Hold::Quarantined);
                    } else if std::mem::replace(&mut record.purpose, given_up) != given_up {
                        ended.extend(record.ended.map(|ended| (flight, ended)));
                        self.leases[lease].flight_ends();
                    }
                }
                _ => self.release_slot(slot),
            }
        }
        for (flight, (good, end)) in ended {
            self.end_flight(flight, good, end);
        }
        self.shorten(id, block);
        let record = &mut self.leases[lease];
        record.shown = record.shown.min(block);
        if record.has_ended() {
            record.limit = record.blocks();
        } else {
            self.promise_to(lease, promised, limit);
        }
        self.landed(id);
    }
}
