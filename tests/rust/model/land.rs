//! The naive yard's flights: how they land, and what a deadline does.

use crate::names::REMOTE;
use crate::yard::{Block, DEVICE, InFlight, Purpose, What, Yard};
use blockyard_core::{FlightId, Hints, LeaseId};

/// A block, its source and its destination.
type Step = (Option<Block>, u32, u32);

impl Yard {
    /// Whether its outcome has not come yet.
    pub(crate) fn flies(&self, id: FlightId) -> bool {
        let flight = self.flights.get(&id);
        flight.is_some_and(|flight| flight.ended.is_none())
    }

    /// The copies of a flight have ended; the leading `good` ones are intact. The runs of a lease
    /// settle in their order: one whose end comes early waits for those before it.
    pub(crate) fn land(&mut self, id: FlightId, good: usize, corrupt: bool) {
        let flight = self.flights.get_mut(&id).expect("in flight");
        let Purpose::Up(lease, _) = flight.purpose else {
            return self.settle_flight(id, good, corrupt);
        };
        if flight.overdue {
            return self.settle_flight(id, good, corrupt);
        }
        flight.ended = Some((good, corrupt));
        while let Some(&first) = self.runs_of(lease).first()
            && let Some((good, corrupt)) = self.flights[&first].ended
        {
            self.settle_flight(first, good, corrupt);
        }
    }

    /// The flights that load the runs of a lease, in their order.
    fn runs_of(&self, lease: LeaseId) -> Vec<FlightId> {
        let run = |(&id, flight): (&FlightId, &InFlight)| match flight.purpose {
            Purpose::Up(own, base) if own == lease && !flight.overdue => Some((base, id)),
            _ => None,
        };
        let mut runs: Vec<(usize, FlightId)> = self.flights.iter().filter_map(run).collect();
        runs.sort_unstable();
        runs.into_iter().map(|(_, id)| id).collect()
    }

    /// The block that a destination will be the copy of, if it was not given up.
    fn arrival(&self, to: usize, step: &Step) -> Option<Block> {
        step.0
            .filter(|&block| self.block_in(to, step.2) == Some(block))
    }

    fn settle_flight(&mut self, id: FlightId, good: usize, corrupt: bool) {
        let flight = self.flights.remove(&id).expect("in flight");
        self.landings += 1;
        self.deletes.remove(&id);
        if flight.reads {
            self.fence_sources(&flight);
        }
        if flight.overdue {
            for step in &flight.moves {
                self.fence(flight.to, step.2);
            }
            return self.settle();
        }
        let given_up = matches!(flight.purpose, Purpose::Private(None, _));
        self.prove(&flight, if given_up { 0 } else { good });
        // Of a store the first bad block is not believed, whatever it says.
        let corrupt = corrupt || flight.from == REMOTE;
        match flight.purpose {
            Purpose::Down(_) | Purpose::Lift => self.land_below(&flight, good, corrupt),
            Purpose::Up(lease, base) => self.land_run(&flight, lease, base, good, corrupt),
            Purpose::Void => {}
            Purpose::Private(None, _) => {
                for step in &flight.moves {
                    self.give_back(DEVICE, step.2);
                }
            }
            Purpose::Private(Some(lease), block) => {
                let what = if good > 0 { What::Owned } else { What::Claimed };
                self.slots[DEVICE].insert(flight.moves[0].2, what);
                let source = flight.moves[0].0;
                if good == 0 {
                    self.shorten(lease, block);
                    if corrupt && flight.from > DEVICE {
                        self.drop_corrupt(flight.moves.first(), flight.from);
                    }
                }
                self.landed(lease);
                if good == 0 {
                    self.undo_fork(lease, source);
                }
            }
        }
        self.settle();
    }

    fn land_below(&mut self, flight: &InFlight, good: usize, corrupt: bool) {
        let (from, to) = (flight.from, flight.to);
        let (mut failed, mut left) = (Vec::new(), Vec::new());
        for (at, step) in flight.moves.iter().enumerate() {
            let Some(block) = self.arrival(to, step) else {
                self.give_back(to, step.2);
                continue;
            };
            let lands = at < good && self.blocks[block].epoch == self.epoch;
            let home = self.kept(block) && self.blocks[block].home == to;
            if lands {
                self.slots[to].insert(step.2, What::Ready(block));
                let moves = matches!(flight.purpose, Purpose::Down(Some(_)));
                if moves && self.kept(block) && self.blocks[block].home < to {
                    left.push((self.blocks[block].home, block));
                    self.blocks[block].home = to;
                }
            } else {
                failed.extend(Some(block).filter(|_| home));
                self.evict(to, step.2);
            }
            if from < to {
                self.note_copy(from, block, lands);
            }
            if lands {
                self.note_fresh(to, block);
            }
        }
        // What no home keeps beyond the size of a tier leaves it before a keep is broken.
        left.sort_by_key(|&(_, block)| std::cmp::Reverse(self.depth(block)));
        for (tier, block) in left {
            self.leave(tier, block);
        }
        if let Purpose::Down(Some(id)) = flight.purpose
            && let Some(stay) = self.parked.get_mut(&id)
        {
            for block in failed {
                *stay.failures.entry(block).or_default() += 1;
            }
            if stay.failures.values().any(|&times| times > self.retries) {
                self.break_keep(id);
            }
        }
        if corrupt && from > DEVICE {
            self.drop_corrupt(flight.moves.get(good), from);
        }
        self.break_unbacked(to);
        self.shrink_keeps();
    }

    fn land_run(
        &mut self,
        flight: &InFlight,
        lease: LeaseId,
        base: usize,
        good: usize,
        corrupt: bool,
    ) {
        let detached = self.leases[&lease].epoch != self.epoch;
        for (at, step) in flight.moves.iter().enumerate() {
            let content = if at < good {
                What::Owned
            } else {
                What::Claimed
            };
            let what = match self.arrival(DEVICE, step) {
                Some(block) if at < good && !detached => What::Ready(block),
                Some(block) => {
                    self.blocks[block].slots[DEVICE] = None;
                    content
                }
                None => content,
            };
            self.slots[DEVICE].insert(step.2, what);
        }
        if good < flight.moves.len() {
            self.shorten(lease, base + good);
        }
        if good < flight.moves.len() || detached {
            for later in self.runs_of(lease) {
                self.cut_off(later);
            }
        }
        let seq = self.leases.get_mut(&lease).expect("it waits");
        if detached {
            seq.sealed = seq.sealed.min(base);
        }
        if corrupt {
            self.drop_corrupt(flight.moves.get(good), flight.from);
        }
        self.landed(lease);
    }

    /// What a flight brings to the device will not be published.
    fn cut_off(&mut self, id: FlightId) {
        for step in self.flights[&id].moves.clone() {
            if let Some(block) = self.arrival(DEVICE, &step) {
                self.blocks[block].slots[DEVICE] = None;
                self.slots[DEVICE].insert(step.2, What::Filling(None));
            }
        }
    }

    /// Without its partial block, a fork that cannot recompute ends.
    fn undo_fork(&mut self, lease: LeaseId, source: Option<Block>) {
        let lives = self
            .leases
            .get(&lease)
            .is_some_and(|seq| seq.ended.is_none());
        if source.is_none() && lives && !self.recompute {
            self.end(lease, Hints::default(), None);
        }
    }

    fn fence_sources(&mut self, flight: &InFlight) {
        for &(_, source, _) in &flight.moves {
            if self.slots[flight.from].get(&source) == Some(&What::Quarantined) {
                self.fence(flight.from, source);
            }
        }
    }

    /// A quarantined slot is free once nothing reads or writes it any more.
    fn fence(&mut self, tier: usize, slot: u32) {
        let written = self
            .flights
            .values()
            .any(|flight| flight.to == tier && flight.moves.iter().any(|step| step.2 == slot));
        if !written && !self.read(tier, slot) {
            self.slots[tier].remove(&slot);
        }
    }

    fn shorten(&mut self, lease: LeaseId, block: usize) {
        let tokens = block as u64 * self.block_size;
        let seq = self.leases.get_mut(&lease).expect("it waits");
        (seq.cached, seq.sealed) = (seq.cached.min(tokens), seq.sealed.min(block));
    }

    fn landed(&mut self, lease: LeaseId) {
        let seq = self.leases.get_mut(&lease).expect("it waits");
        seq.loading -= 1;
        if seq.loading > 0 {
            return;
        }
        self.loaded += 1;
        if let Some(hints) = seq.ended {
            if let Some(parked) = seq.resumed {
                self.end_keep(parked);
            }
            let seq = self.leases.remove(&lease).expect("it waits");
            return self.release(&seq.table, hints);
        }
        if let Some(parked) = seq.resumed {
            if seq.cached == self.parked[&parked].computed {
                seq.resumed = None;
                self.end_keep(parked);
            } else {
                seq.incomplete = true;
            }
        }
    }

    /// A copy below failed its checksum: it is dropped, and a sequence that kept this very one
    /// recomputes.
    fn drop_corrupt(&mut self, step: Option<&Step>, tier: usize) {
        let read = |&(block, slot, _): &Step| Some((block?, slot));
        let Some((block, slot)) = step.and_then(read) else {
            return;
        };
        if self.ready(block, tier) != Some(slot) {
            return;
        }
        self.drop_copy(tier, block, slot);
        self.break_unbacked(tier);
    }

    /// The ready copy in the slot is gone, and the keeps of those that kept it.
    pub(crate) fn drop_copy(&mut self, tier: usize, block: Block, slot: u32) {
        let mut keepers: Vec<_> = self
            .parked
            .iter()
            .filter(|(_, stay)| stay.path.contains(&block) && self.blocks[block].home == tier)
            .map(|(&id, _)| id)
            .collect();
        keepers.sort_by_key(|id| id.number() as u32);
        self.evict(tier, slot);
        for id in keepers {
            self.break_keep(id);
        }
    }

    /// A deadline has passed: destinations are quarantined, and sources are held no more, unless the
    /// copy goes where it would be kept under its key. What a lease loads behind them is given up.
    pub(crate) fn mark_unknown(&mut self, id: FlightId) -> bool {
        if !self.flies(id) {
            return false;
        }
        let flight = self.flights.get_mut(&id).expect("in flight");
        if std::mem::replace(&mut flight.overdue, true) {
            return false;
        }
        let (from, to, purpose) = (flight.from, flight.to, flight.purpose);
        let moves = flight.moves.clone();
        self.lost += std::mem::take(&mut flight.hearsay).len() as u64;
        flight.reads = self.keyed[to];
        if !flight.reads {
            let flight = flight.clone();
            self.fence_sources(&flight);
        }
        for &(_, _, slot) in &moves {
            if let Some(block) = self.block_in(to, slot) {
                self.blocks[block].slots[to] = None;
                if to > from {
                    self.note_copy(from, block, false);
                }
            }
            self.slots[to].insert(slot, What::Quarantined);
        }
        if let Purpose::Up(lease, block) | Purpose::Private(Some(lease), block) = purpose {
            self.fall_back(lease, block);
            if let Purpose::Private(..) = purpose {
                self.undo_fork(lease, moves[0].0);
            }
        }
        if to > DEVICE {
            self.break_unbacked(to);
        }
        self.settle();
        true
    }

    /// A lease's table ends before this block, of which a copy has an unknown end.
    fn fall_back(&mut self, lease: LeaseId, block: usize) {
        let seq = self.leases.get_mut(&lease).expect("it waits");
        let (limit, mut cut) = (seq.limit, seq.table.split_off(block));
        seq.limit = block;
        let later = |flight: &InFlight| match flight.purpose {
            Purpose::Up(own, base) | Purpose::Private(Some(own), base) => {
                own == lease && base > block && !flight.overdue
            }
            _ => false,
        };
        let later = self.flights.iter().filter(|(_, flight)| later(flight));
        let later: Vec<FlightId> = later.map(|(&id, _)| id).collect();
        for id in later {
            self.cut_off(id);
            let flight = self.flights.get_mut(&id).expect("in flight");
            flight.purpose = Purpose::Private(None, 0);
            if flight.ended.is_some() {
                self.settle_flight(id, 0, false);
            }
            self.leases.get_mut(&lease).expect("it waits").loading -= 1;
        }
        cut.retain(|slot| self.slots[DEVICE].contains_key(slot));
        self.let_go(&cut);
        self.shorten(lease, block);
        if self.leases[&lease].ended.is_none() {
            self.promise_to(lease, limit);
        }
        self.landed(lease);
    }
}
