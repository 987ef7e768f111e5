//! The verbs of the naive yard: each gets what the core answered, and says what it should have.

use crate::moves::NO_WORTH;
use crate::yard::{Block, DEVICE, Purpose, Seq, What, Yard};
use blockyard_core::{
    Begun, Error, Hints, Key, Lease, LeaseId, Loading, MAX_TIERS, Result, State, Stop, Tier,
};
use std::collections::BTreeSet;

/// Slots of a lease's table, as the core has them.
pub(crate) fn table(state: &State, block_size: u64, lease: LeaseId) -> Vec<u32> {
    let blocks = u64::from(state.view(lease).expect("it lives").blocks);
    let mut cells = Vec::new();
    let places = state.slot_mapping(
        &[lease],
        &[0],
        |_| blocks * block_size,
        Loading::Joined,
        |_, place| {
            if place.is_multiple_of(block_size) {
                cells.push((place / block_size) as u32);
            }
        },
    );
    assert_eq!(places, Ok(blocks * block_size));
    cells
}

impl Yard {
    pub(crate) fn need(&self, tokens: u64, reserve: u64) -> Result<(usize, usize), Error> {
        let (need, capacity) = (self.blocks_of(tokens + reserve), self.size(DEVICE));
        if need as u64 > capacity {
            return Err(Error::TooLarge {
                tier: Tier::DEVICE,
                need: need as u64,
                capacity,
            });
        }
        Ok((self.blocks_of(tokens), need))
    }

    pub(crate) fn no_room(&self, tier: usize, need: u64, evictable: u64) -> Error {
        let (free, promised) = (self.free(tier), self.promised(tier));
        Error::NoRoom {
            tier: Tier(tier),
            need,
            free,
            evictable,
            promised,
            available: (free + evictable).cast_signed() - promised.cast_signed(),
        }
    }

    pub(crate) fn fork(
        &mut self,
        state: &State,
        id: LeaseId,
        computed: u64,
        reserve: u64,
        answer: &Result<Begun>,
    ) {
        let parent = self.leases[&id].clone();
        if parent.loading > 0 || parent.incomplete {
            return assert!(matches!(answer, Err(Error::State { .. })));
        }
        let room = parent
            .tokens
            .min(parent.table.len() as u64 * self.block_size);
        let found = parent
            .cached
            .max(parent.sealed as u64 * self.block_size)
            .min(parent.tokens);
        if computed > room || computed < found {
            return assert!(matches!(
                answer,
                Err(Error::Argument {
                    name: "computed",
                    ..
                })
            ));
        }
        let (total, limit) = match self.need(parent.tokens, reserve) {
            Ok(size) => size,
            Err(error) => return assert_eq!(answer, &Err(error)),
        };
        let shared = (computed / self.block_size) as usize;
        if let Err(error) = self.afford(&[], limit - shared) {
            return assert_eq!(answer, &Err(error));
        }
        let begun = answer.as_ref().expect("there is room");
        let partial = !computed.is_multiple_of(self.block_size);
        let seq = Seq {
            table: parent.table[..shared].to_vec(),
            tokens: parent.tokens,
            sealed: parent.sealed.min(shared),
            cached: computed,
            epoch: parent.epoch,
            loading: u32::from(partial),
            ..Seq::default()
        };
        for slot in &seq.table {
            if self.slots[DEVICE][slot] == What::Claimed {
                self.slots[DEVICE].insert(*slot, What::Owned);
            }
        }
        self.enter(state, begun.lease, seq, total, limit);
        if partial {
            self.untake(begun.lease, shared, 1);
            let source = vec![(None, parent.table[shared])];
            self.fly(
                &begun.plans[0],
                DEVICE,
                DEVICE,
                Purpose::Private(Some(begun.lease), shared),
                source,
            );
        }
        assert_eq!(begun.plans.len(), usize::from(partial));
        let mut hits = [0; MAX_TIERS];
        hits[DEVICE] = shared as u32;
        assert_eq!(
            (begun.cached, begun.hits, begun.stop),
            (computed, hits, Stop::Whole)
        );
        self.settle();
    }

    /// Whether an engine that cannot recompute may use the lease.
    pub(crate) fn usable(&self, id: LeaseId) -> bool {
        self.recompute || !self.leases[&id].incomplete
    }

    pub(crate) fn accept_incomplete(&mut self, id: LeaseId) {
        let seq = self.leases.get_mut(&id).expect("it lives");
        seq.incomplete = false;
        if let Some(parked) = seq.resumed.take() {
            self.end_keep(parked);
        }
    }

    pub(crate) fn grow(
        &mut self,
        state: &State,
        rows: &[(LeaseId, u64)],
        answer: &Result<()>,
        unserved: &[u32],
    ) {
        if rows.iter().any(|row| !self.usable(row.0)) {
            return assert!(matches!(answer, Err(Error::State { .. })));
        }
        assert_eq!(answer, &Ok(()));
        let mut missed = Vec::new();
        for (row, &(id, more)) in rows.iter().enumerate() {
            let seq = &self.leases[&id];
            let (tokens, had) = (seq.tokens + more, seq.table.len());
            let need = self.blocks_of(tokens).saturating_sub(had);
            let beyond = need.saturating_sub(seq.limit.saturating_sub(had));
            let lack = beyond.saturating_sub(self.spare(DEVICE)) as u64;
            if lack > self.headroom {
                missed.push(row as u32);
                continue;
            }
            self.headroom -= lack;
            if self.leases[&id].incomplete {
                self.accept_incomplete(id);
            }
            self.make_room(state, need);
            // A later row may have grown the same lease further: look at these blocks alone.
            let cells = table(state, self.block_size, id);
            assert_eq!(cells[..had], self.leases[&id].table);
            for &slot in &cells[had..had + need] {
                self.take(DEVICE, slot, What::Claimed);
            }
            let seq = self.leases.get_mut(&id).expect("it lives");
            seq.table.extend(&cells[had..had + need]);
            seq.tokens = tokens;
            seq.limit = seq.limit.max(seq.table.len());
        }
        assert_eq!(unserved, missed);
        self.make_spare(state);
    }

    pub(crate) fn trim(&mut self, id: LeaseId, to: u64, answer: &Result<()>) {
        let seq = &self.leases[&id];
        let least = (seq.sealed as u64 * self.block_size)
            .max(seq.cached.min(seq.tokens))
            .max(1);
        let right = match answer {
            Ok(()) => self.usable(id) && (least..=seq.tokens).contains(&to) && seq.loading == 0,
            Err(Error::Argument { .. }) => !(least..=seq.tokens).contains(&to),
            Err(_) => seq.loading > 0 || !self.usable(id),
        };
        assert!(right, "{answer:?}");
        if answer.is_err() {
            return;
        }
        let blocks = self.blocks_of(to).min(seq.table.len());
        let limit = seq.reserve_limit;
        let seq = self.leases.get_mut(&id).expect("it lives");
        seq.tokens = to;
        let cut = seq.table.split_off(blocks);
        seq.limit = blocks;
        self.let_go(&cut);
        self.promise_to(id, limit);
    }

    /// A table shows the published blocks, and nothing holds its duplicates any more.
    pub(crate) fn dedup(&mut self, rows: &[LeaseId], answer: &Result<u64>) {
        if rows.iter().any(|&id| !self.usable(id)) {
            return assert!(matches!(answer, Err(Error::State { .. })));
        }
        let (mut given, mut changed) = (BTreeSet::new(), 0);
        for id in rows {
            let mut table = self.leases[id].table.clone();
            for slot in &mut table {
                if let What::Duplicate(block) = self.slots[DEVICE][slot] {
                    given.insert(*slot);
                    changed += 1;
                    *slot = self.blocks[block].slots[DEVICE].expect("it is pinned");
                }
            }
            self.leases.get_mut(id).expect("it lives").table = table;
        }
        assert_eq!(answer, &Ok(changed));
        self.let_go(&Vec::from_iter(given));
    }

    /// Promises growth up to `limit` blocks, as far as it is backed.
    pub(crate) fn promise_to(&mut self, id: LeaseId, limit: usize) {
        let blocks = self.leases[&id].table.len();
        self.leases.get_mut(&id).expect("it lives").limit = blocks;
        let backed = self.spare(DEVICE);
        self.leases.get_mut(&id).expect("it lives").limit =
            blocks + limit.saturating_sub(blocks).min(backed);
    }

    /// Whether a seal, or the seal in a park, is refused.
    pub(crate) fn refuses_sealing(&self, id: LeaseId, computed: u64) -> bool {
        let seq = &self.leases[&id];
        let room = seq.tokens.min(seq.table.len() as u64 * self.block_size);
        !self.usable(id) || seq.loading > 0 || computed > room
    }

    /// Whether a keyed tier has a block, or will have it, under the key that it had then.
    fn is_stored(&self, block: Block) -> bool {
        let slots = self.blocks[block].slots;
        (DEVICE + 1..self.tiers).any(|tier| self.keyed[tier] && slots[tier].is_some())
    }

    /// Table 2.1, block by block.
    pub(crate) fn seal(&mut self, id: LeaseId, keys: &[Key], computed: u64) {
        if self.leases[&id].incomplete {
            self.accept_incomplete(id);
        }
        let full = (computed / self.block_size) as usize;
        while self.leases[&id].epoch == self.epoch && self.leases[&id].sealed < full {
            let at = self.leases[&id].sealed;
            let slot = self.leases[&id].table[at];
            let above = at
                .checked_sub(1)
                .and_then(|above| self.block_of(self.leases[&id].table[above]));
            let own = self.block_of(slot);
            match self.find(&keys[at]) {
                None if own.is_some_and(|own| self.is_stored(own)) => break,
                None => {
                    let block = own.unwrap_or_else(|| self.add(None, above));
                    self.blocks[block].key = Some(keys[at]);
                    self.blocks[block].worth = NO_WORTH;
                    if self.ghosts.remove(&keys[at]) {
                        self.again.insert(block);
                    }
                    self.note_fresh(DEVICE, block);
                    self.adopt(block, slot);
                }
                Some(block) if own == Some(block) => {}
                Some(_) if own.is_some() => break,
                Some(block) if above.is_some() && self.waits_for_a_fence(block) => break,
                Some(block) => {
                    self.link(&above.into_iter().chain([block]).collect::<Vec<_>>());
                    match self.blocks[block].slots[DEVICE] {
                        None => {
                            self.again.insert(block);
                            self.adopt(block, slot);
                        }
                        Some(published) => {
                            let backs = self.may_go(DEVICE).contains(&published)
                                && self.stays(DEVICE, published);
                            if self.ready(block, DEVICE).is_none()
                                || (backs && self.spare(DEVICE) < 1)
                            {
                                break;
                            }
                            self.again.insert(block);
                            self.slots[DEVICE].insert(slot, What::Duplicate(block));
                        }
                    }
                }
            }
            self.leases.get_mut(&id).expect("it lives").sealed += 1;
        }
        self.settle();
    }

    /// A batch is checked before the first row is sealed.
    pub(crate) fn seal_batch(&mut self, batch: &[(&Lease, u64)], answer: &Result<u64>) {
        if answer.is_err() {
            let refuses =
                |&(lease, computed): &(&Lease, u64)| self.refuses_sealing(lease.id(), computed);
            return assert!(batch.iter().any(refuses), "{answer:?}");
        }
        let mut sealed = 0;
        for &(lease, computed) in batch {
            let (id, before) = (lease.id(), self.leases[&lease.id()].sealed);
            // With nothing new to publish the core is not asked; of a resume that came back incomplete
            // the handle knows nothing yet, and nothing of a loss, which has unsealed all.
            let full = (computed / self.block_size) as usize;
            let attached = self.leases[&id].epoch == self.epoch;
            if (attached && full > before) || (self.leases[&id].incomplete && full > 0) {
                assert!(!self.refuses_sealing(id, computed));
                self.seal(id, lease.chain().keys(), computed);
            }
            sealed += self.leases[&id].sealed - before;
        }
        assert_eq!(answer, &Ok(sealed as u64));
    }

    /// The block that a slot of a table is or stands beside.
    pub(crate) fn block_of(&self, slot: u32) -> Option<Block> {
        match self.slots[DEVICE][&slot] {
            What::Ready(block) | What::Duplicate(block) => Some(block),
            _ => None,
        }
    }

    /// Sealed blocks of a lease that may still be published.
    pub(crate) fn sealed_path(&self, id: LeaseId) -> Vec<Block> {
        let seq = &self.leases[&id];
        let sealed = if seq.epoch == self.epoch {
            seq.sealed
        } else {
            0
        };
        seq.table[..sealed]
            .iter()
            .map_while(|&slot| self.block_of(slot))
            .collect()
    }

    pub(crate) fn adopt(&mut self, block: Block, slot: u32) {
        self.blocks[block].slots[DEVICE] = Some(slot);
        self.slots[DEVICE].insert(slot, What::Ready(block));
    }

    pub(crate) fn hold_or_release(&mut self, table: Vec<u32>, hints: Hints, after: Option<u64>) {
        match after.filter(|&step| self.done.is_none_or(|done| done < step)) {
            Some(step) => self.held.push((step, table, hints)),
            None => self.release(&table, hints),
        }
        self.settle();
    }

    pub(crate) fn done(&mut self, step: u64) {
        self.done = self.done.max(Some(step));
        while let Some(at) = self.held.iter().position(|held| held.0 <= step) {
            let (_, table, hints) = self.held.remove(at);
            self.release(&table, hints);
        }
    }

    /// Finish, or a dropped handle.
    pub(crate) fn end(&mut self, id: LeaseId, hints: Hints, after: Option<u64>) {
        let seq = self.leases.get_mut(&id).expect("it lives");
        if seq.loading > 0 {
            // Its path stays pinned until its loads land.
            let filling = seq
                .table
                .iter()
                .rposition(|slot| matches!(self.slots[DEVICE][slot], What::Filling(_)));
            let cut = seq
                .table
                .split_off(filling.map_or(0, |at| at + 1).max(seq.sealed));
            (seq.limit, seq.ended) = (seq.table.len(), Some(hints));
            return self.let_go(&cut);
        }
        if let Some(parked) = seq.resumed {
            self.end_keep(parked);
        }
        let seq = self.leases.remove(&id).expect("it lives");
        self.hold_or_release(seq.table, hints, after);
    }
}
