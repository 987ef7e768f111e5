//! Grow and trim: they take counts and no token values, so that they can run a step ahead.

use super::State;
use super::record::Running;
use crate::base::{Error, LeaseId, LeaseIx, Result, SlotIx, Tier};
use crate::tiers::Hold;

impl State {
    /// Adds token positions to each row, in order, each whole or not at all; `unserved` gets the
    /// rows that found no room. A row inside its promise is always served; beyond it, the headroom
    /// is used where nothing else is left. Then it makes spare room, as [`Self::make_spare`] does.
    pub fn grow(
        &mut self,
        leases: &[LeaseId],
        more: impl Fn(usize) -> u64,
        unserved: &mut Vec<u32>,
    ) -> Result<()> {
        self.check_rows(leases)?;
        let full = leases
            .iter()
            .filter(|id| self.is_full(&self.leases[id.at()]));
        self.warm_growth(full.count());
        for (row, id) in leases.iter().enumerate() {
            if !self.grow_one(id.at(), more(row)) {
                unserved.push(row as u32);
            }
        }
        self.counters.unserved += unserved.len() as u64;
        self.make_spare();
        Ok(())
    }

    /// Whether its next token needs a block.
    #[inline]
    pub(super) fn is_full(&self, record: &Running) -> bool {
        record.tokens >= u64::from(record.blocks()) * u64::from(self.config.block_size)
    }

    /// Reads what rows that are full will evict, a block or more each: their cache misses overlap only
    /// here.
    pub(super) fn warm_growth(&mut self, full: usize) {
        if self.tiers[Tier::DEVICE].order().warms() {
            self.warm_room(Tier::DEVICE, full as u32);
        }
    }

    /// Whether every row is a live lease. It is checked before the first row is served, so that a bad
    /// one leaves the batch as it was.
    pub(crate) fn check_rows(&self, leases: &[LeaseId]) -> Result<()> {
        leases
            .iter()
            .try_for_each(|&id| self.check_row(id).map(drop))
    }

    /// The record of a row, if it is a live lease.
    #[inline]
    pub(super) fn check_row(&self, id: LeaseId) -> Result<&Running> {
        let live = self.leases.get(id.0).filter(|record| !record.has_ended());
        let Some(record) = live else {
            return Err(self.has_no_lease(id));
        };
        if record.is_incomplete() && !self.config.recompute {
            return Err(cannot_recompute(id));
        }
        Ok(record)
    }

    #[cold]
    fn has_no_lease(&self, id: LeaseId) -> Error {
        let (what, number) = ("lease", id.number());
        self.lease(id)
            .err()
            .unwrap_or(Error::Spent { what, number })
    }

    /// Whether nothing is on its way to a lease, for what a verb is doing to it.
    pub(super) fn check_loaded(&self, id: LeaseId, doing: &str) -> Result<()> {
        if self.leases[id.at()].loading() == 0 {
            return Ok(());
        }
        let number = id.number();
        Err(Error::state(
            format!("{doing} lease {number}, whose blocks are loading"),
            "commit the outcomes of its plans first, or finish it",
        ))
    }

    /// Adds token positions to a row, whole or not at all.
    #[inline]
    pub(super) fn grow_one(&mut self, lease: LeaseIx, more: u64) -> bool {
        let block_size = u64::from(self.config.block_size);
        let record = &mut self.leases[lease];
        let tokens = record.tokens.saturating_add(more);
        if tokens <= u64::from(record.blocks()) * block_size {
            record.tokens = tokens;
            if record.is_incomplete() {
                self.accept_incomplete(lease);
            }
            return true;
        }
        self.grow_blocks(lease, tokens)
    }

    /// Takes the blocks that a row lacks for so many token positions.
    fn grow_blocks(&mut self, lease: LeaseIx, tokens: u64) -> bool {
        let block_size = u64::from(self.config.block_size);
        let record = &mut self.leases[lease];
        let need = tokens.div_ceil(block_size) - u64::from(record.blocks());
        let promised = u64::from(record.promised()).min(need);
        let beyond = need - promised;
        if beyond > 0 && !self.afford_growth(beyond) {
            return false;
        }
        self.accept_incomplete(lease);
        self.tiers[Tier::DEVICE].release(promised as u32);
        self.make_room(Tier::DEVICE, need as u32);
        let record = &mut self.leases[lease];
        let total = record.blocks() + need as u32;
        self.tiers[Tier::DEVICE].claim(total, &mut record.table);
        record.tokens = tokens;
        record.limit = record.limit.max(record.blocks());
        true
    }

    /// Cuts each row to a number of tokens, and gives back the blocks behind them: to the row's own
    /// promise, if they came from there.
    pub fn trim(&mut self, leases: &[LeaseId], to: &[u64]) -> Result<()> {
        self.check_rows(leases)?;
        let block_size = u64::from(self.config.block_size);
        for (&id, &tokens) in leases.iter().zip(to) {
            let record = &self.leases[id.at()];
            let sealed = u64::from(record.sealed) * block_size;
            if tokens < sealed.max(record.cached.min(record.tokens)) || tokens == 0 {
                let help = "trim to no less than what is sealed or was cached, and to 1 or more";
                return Err(Error::argument("tokens", tokens, help));
            }
            if tokens > record.tokens {
                let help = "trim only cuts: use grow to add token positions";
                return Err(Error::argument("tokens", tokens, help));
            }
            self.check_loaded(id, "trimming")?;
        }
        for (&id, &tokens) in leases.iter().zip(to) {
            let lease = id.at();
            let record = &mut self.leases[lease];
            record.tokens = tokens;
            record.trims = record.trims.wrapping_add(1);
            let blocks = self.blocks_of(tokens) as u32;
            // What it had been promised beyond begin was its own growth: only the reserve is
            // promised again.
            let promised = self.leases[lease].promised();
            let limit = self.leases[lease].reserve_limit;
            self.cut(lease, blocks);
            self.promise_to(lease, promised, limit);
        }
        Ok(())
    }

    /// Drops private blocks behind `blocks` from the table, deepest first.
    pub(super) fn cut(&mut self, lease: LeaseIx, blocks: u32) {
        while self.leases[lease].blocks() > blocks {
            let Some(slot) = self.leases[lease].table.pop() else {
                return;
            };
            self.release_slot(slot);
        }
        let record = &mut self.leases[lease];
        record.shown = record.shown.min(blocks);
    }

    /// Takes a lease off a slot of a table. A duplicate is freed before the block that it stands
    /// beside is unpinned.
    pub(super) fn release_slot(&mut self, slot: SlotIx) {
        if let Hold::Pinned { .. } = self.hold(Tier::DEVICE, slot) {
            return self.unpin(Tier::DEVICE, slot);
        }
        let beside = self.tiers[Tier::DEVICE].unshare(slot);
        let published = beside.and_then(|node| self.trie.slot(node.at(), Tier::DEVICE));
        if let Some(slot) = published {
            self.unpin(Tier::DEVICE, slot);
        }
    }

    /// Sets the promise so that growth up to `limit` blocks is promised, as far as it is backed;
    /// `promised` is what the ledger counts for the lease now.
    pub(super) fn promise_to(&mut self, lease: LeaseIx, promised: u32, limit: u32) {
        let blocks = self.leases[lease].blocks();
        let want = limit.saturating_sub(blocks);
        let device = &mut self.tiers[Tier::DEVICE];
        device.release(promised);
        self.leases[lease].limit = blocks + device.promise_up_to(want.into());
    }
}

#[cold]
fn cannot_recompute(id: LeaseId) -> Error {
    let number = id.number();
    Error::state(
        format!("using lease {number}, whose resume came back incomplete"),
        "this engine cannot recompute: park it again and resume it later",
    )
}
