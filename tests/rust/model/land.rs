//! The naive yard's flights, and what comes over all of it: clear and resize.

use crate::yard::{Class, DEVICE, HOST, Purpose, What, Yard};
use blockyard_core::{Error, FlightId, LeaseId, Result, Retention, Tier};

impl Yard {
    /// The copies of a flight have ended; the leading `good` ones are intact.
    pub(crate) fn land(&mut self, id: FlightId, good: usize, corrupt: bool) {
        let flight = self.flights.remove(&id).expect("in flight");
        for &(_, source, _) in &flight.moves {
            if self.slots[flight.from].get(&source) == Some(&What::Quarantined) {
                self.fence(flight.from, source);
            }
        }
        if flight.overdue {
            for step in &flight.moves {
                self.fence(flight.to, step.2);
            }
            return self.settle();
        }
        let arrived = |yard: &Self, step: &(Option<usize>, u32, u32)| {
            step.0
                .filter(|&block| yard.block_in(flight.to, step.2) == Some(block))
        };
        match flight.purpose {
            Purpose::Down(parked) => {
                let mut failed = Vec::new();
                for (at, step) in flight.moves.iter().enumerate() {
                    match arrived(self, step) {
                        Some(block) if at < good && self.blocks[block].epoch == self.epoch => {
                            self.note_copy(block, true);
                            self.slots[HOST].insert(step.2, What::Ready(block));
                        }
                        Some(block) => {
                            failed.extend(Some(block).filter(|&block| self.kept(block)));
                            self.evict(HOST, step.2);
                            self.note_copy(block, false);
                        }
                        None => self.give_back(HOST, step.2),
                    }
                }
                if let Some(id) = parked.filter(|id| self.parked.contains_key(id)) {
                    let stay = self.parked.get_mut(&id).expect("it is parked");
                    for block in failed {
                        *stay.failures.entry(block).or_default() += 1;
                    }
                    if stay.failures.values().any(|&times| times > self.retries) {
                        self.break_keep(id);
                    }
                }
                self.break_unbacked();
                self.shrink_keeps();
            }
            Purpose::Up(lease, base) => {
                let detached = self.leases[&lease].epoch != self.epoch;
                for (at, step) in flight.moves.iter().enumerate() {
                    let content = if at < good {
                        What::Owned
                    } else {
                        What::Claimed
                    };
                    let what = match arrived(self, step) {
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
                let seq = self.leases.get_mut(&lease).expect("it waits");
                if detached {
                    seq.sealed = seq.sealed.min(base);
                }
                if corrupt {
                    self.drop_corrupt(flight.moves.get(good).and_then(|step| step.0));
                }
                self.landed(lease);
            }
            Purpose::Private(None, _) => self.give_back(DEVICE, flight.moves[0].2),
            Purpose::Private(Some(lease), block) => {
                let what = if good > 0 { What::Owned } else { What::Claimed };
                self.slots[DEVICE].insert(flight.moves[0].2, what);
                if good == 0 {
                    self.shorten(lease, block);
                    self.drop_corrupt(flight.moves[0].0.filter(|_| corrupt && flight.from == HOST));
                }
                self.landed(lease);
                if good == 0 {
                    self.undo_fork(lease, flight.moves[0].0);
                }
            }
        }
        self.settle();
    }

    /// Without its partial block, a fork that cannot recompute ends.
    pub(crate) fn undo_fork(&mut self, lease: LeaseId, source: Option<usize>) {
        let lives = self
            .leases
            .get(&lease)
            .is_some_and(|seq| seq.ended.is_none());
        if source.is_none() && lives && !self.recompute {
            self.end(lease, Retention::Ordinary, None);
        }
    }

    /// A quarantined slot is free once nothing reads or writes it any more.
    pub(crate) fn fence(&mut self, tier: usize, slot: u32) {
        let written = self
            .flights
            .values()
            .any(|flight| flight.to == tier && flight.moves.iter().any(|step| step.2 == slot));
        if !written && !self.read(tier, slot) {
            self.slots[tier].remove(&slot);
        }
    }

    pub(crate) fn shorten(&mut self, lease: LeaseId, block: usize) {
        let tokens = block as u64 * self.block_size;
        let seq = self.leases.get_mut(&lease).expect("it waits");
        (seq.cached, seq.sealed) = (seq.cached.min(tokens), seq.sealed.min(block));
    }

    pub(crate) fn landed(&mut self, lease: LeaseId) {
        let seq = self.leases.get_mut(&lease).expect("it waits");
        seq.loading -= 1;
        if seq.loading > 0 {
            return;
        }
        if let Some(retention) = seq.ended {
            if let Some(parked) = seq.resumed {
                self.end_keep(parked);
            }
            let seq = self.leases.remove(&lease).expect("it waits");
            return self.release(&seq.table, retention);
        }
        if let Some(parked) = seq.resumed {
            if seq.cached == self.parked[&parked].computed {
                seq.resumed = None;
                self.end_keep(parked);
            } else {
                seq.short = true;
            }
        }
    }

    /// A copy below failed its checksum: a sequence that kept it recomputes, and an idle copy is
    /// dropped.
    pub(crate) fn drop_corrupt(&mut self, block: Option<usize>) {
        let Some(block) = block.filter(|&block| self.alive(block)) else {
            return;
        };
        let mut keepers: Vec<_> = self
            .parked
            .iter()
            .filter(|(_, stay)| stay.path.contains(&block))
            .map(|(&id, _)| id)
            .collect();
        keepers.sort_by_key(|id| id.number() as u32);
        for id in keepers {
            self.break_keep(id);
        }
        if let Some(slot) = self.ready(block, HOST) {
            self.evict(HOST, slot);
            self.break_unbacked();
        }
    }

    /// A deadline has passed: destinations are quarantined, sources stay.
    pub(crate) fn mark_unknown(&mut self, id: FlightId) -> bool {
        let flight = self.flights.get_mut(&id).expect("in flight");
        if std::mem::replace(&mut flight.overdue, true) {
            return false;
        }
        let (to, purpose, moves) = (flight.to, flight.purpose, flight.moves.clone());
        for &(_, _, slot) in &moves {
            if let Some(block) = self.block_in(to, slot) {
                self.blocks[block].slots[to] = None;
                if to == HOST {
                    self.note_copy(block, false);
                }
            }
            self.slots[to].insert(slot, What::Quarantined);
        }
        if let Purpose::Up(lease, block) | Purpose::Private(Some(lease), block) = purpose {
            let limit = self.leases[&lease].limit;
            let cut = self
                .leases
                .get_mut(&lease)
                .expect("it waits")
                .table
                .split_off(block);
            for slot in cut
                .iter()
                .filter(|slot| matches!(self.slots[DEVICE][slot], What::Filling(_)))
            {
                // The private copy of a full hit: it is still in flight, but no sequence wants it.
                let other = self.flights.values_mut().find(|flight| {
                    flight.to == DEVICE && flight.moves.iter().any(|step| step.2 == *slot)
                });
                other.expect("it fills").purpose = Purpose::Private(None, 0);
                self.leases.get_mut(&lease).expect("it waits").loading -= 1;
            }
            self.leases.get_mut(&lease).expect("it waits").limit = block;
            self.let_go(&cut);
            self.shorten(lease, block);
            if self.leases[&lease].ended.is_none() {
                self.promise_to(lease, limit);
            }
            self.landed(lease);
            if let Purpose::Private(..) = purpose {
                self.undo_fork(lease, moves[0].0);
            }
        }
        self.break_unbacked();
        self.settle();
        true
    }

    pub(crate) fn clear(&mut self) {
        let mut all: Vec<_> = self
            .parked
            .iter()
            .map(|(&id, stay)| (stay.order, id))
            .collect();
        all.sort_unstable();
        for (_, id) in all.into_iter().rev() {
            self.break_keep(id);
        }
        self.epoch += 1;
        self.order = self
            .ahead()
            .into_iter()
            .map(|slot| (Class::Cleared, slot))
            .collect();
    }

    /// Table 2.7. What a refusal leaves is compared by the caller.
    pub(crate) fn resize(&mut self, tier: usize, slots: u32, answer: &Result<()>) {
        let null = if tier == DEVICE { self.null } else { 0 };
        if tier == DEVICE && slots <= null {
            return assert!(matches!(answer, Err(Error::Argument { .. })));
        }
        // What is kept for growth yields to the new size.
        let shrinks = slots < self.limits[tier];
        let headroom = match tier {
            DEVICE if shrinks => std::mem::take(&mut self.headroom),
            _ => 0,
        };
        if let Err(Error::InUse { tier: at, want, .. }) = answer {
            assert_eq!((*at, *want), (Tier(tier), u64::from(slots - null)));
            // With every keep broken, were that allowed, it must not have fitted.
            assert!(!self.fits_somehow(tier, slots), "refused, and would fit");
            self.headroom += headroom;
            return;
        }
        assert_eq!(answer, &Ok(()));
        self.limits[tier] = slots;
        self.most_fresh = self.most_fresh.max(self.limits[DEVICE] as usize);
        self.settle();
        while shrinks && !self.fits(tier) {
            assert!(self.recompute, "a keep was in the way");
            let youngest = self.youngest().expect("something was in the way");
            self.break_keep(youngest);
        }
        if headroom > 0 {
            self.set_headroom(headroom);
        }
    }

    pub(crate) fn used(&self, tier: usize) -> u64 {
        let sizes = self.sizes(tier);
        sizes.pinned + sizes.claimed + sizes.promised + sizes.quarantined
    }

    /// What is held, promised or quarantined fits the size, and promises keep their backing: also
    /// that of a kept block whose copy is on its way beyond the size and may yet fail.
    pub(crate) fn fits(&self, tier: usize) -> bool {
        let stranded = self.slots[tier]
            .range(self.limits[tier]..)
            .any(|(_, what)| match what {
                What::Filling(Some(block)) => tier == HOST && !self.recompute && self.kept(*block),
                _ => false,
            });
        self.used(tier) <= self.size(tier) && !self.unbacked(tier) && !stranded
    }

    pub(crate) fn fits_somehow(&mut self, tier: usize, slots: u32) -> bool {
        let mut other = self.clone();
        other.limits[tier] = slots;
        while !other.fits(tier) {
            match other.youngest().filter(|_| self.recompute) {
                Some(youngest) => other.break_keep(youngest),
                None => return false,
            }
        }
        true
    }
}
