//! Fork: shares the full blocks and copies only the partial one.

use super::record::Start;
use super::{Begun, State, Stop};
use crate::base::{Error, LeaseId, MAX_TIERS, Result, SlotIx, Tier};
use crate::tiers::Hold;

impl State {
    /// Begins one more sequence with the same `computed` tokens. Blocks full up to there are shared,
    /// the partial one is copied on the device, and the rest gets slots of its own. Where the engine cannot
    /// recompute, a fork whose copy fails is undone: its handle is spent.
    pub fn fork(&mut self, id: LeaseId, computed: u64, reserve: u64) -> Result<Begun> {
        self.check_fork(id, computed)?;
        let block_size = u64::from(self.config.block_size);
        let parent = id.at();
        let tokens = self.leases[parent].tokens;
        let shared = (computed / block_size) as u32;
        let (total, limit) = self.size(tokens, reserve)?;
        let partial = !computed.is_multiple_of(block_size);
        let need = u64::from(limit - shared);
        let decision = self.decide(Tier::DEVICE, need, 0);
        self.afford(decision)?;
        let parent = &self.leases[parent];
        let mut table = parent.table[..shared as usize].to_vec();
        let source = parent
            .table
            .get(shared as usize)
            .copied()
            .filter(|_| partial);
        let start = Start {
            tokens,
            limit,
            sealed: parent.sealed.min(shared),
            cached: computed,
            epoch: parent.epoch,
        };
        let child = self.open_lease(start, total, shared);
        for &slot in &table {
            self.share(slot);
        }
        if let Some(root) = self.root_of(id) {
            self.name_root(child, Some(root));
        }
        let mut plans = Vec::new();
        if let Some(slot) = source {
            self.mark(Tier::DEVICE, slot);
            plans.push(self.private_copy(child, Tier::DEVICE, slot, None, &mut table));
        }
        self.tiers[Tier::DEVICE].claim(total, &mut table);
        self.leases[child.at()].start(table, plans.len(), None);
        self.counters.forked += 1;
        let mut hits = [0; MAX_TIERS];
        hits[0] = shared;
        Ok(Begun {
            lease: child,
            cached: computed,
            hits,
            stop: Stop::Whole,
            plans,
        })
    }

    fn check_fork(&self, id: LeaseId, computed: u64) -> Result<()> {
        self.check_rows(&[id])?;
        self.check_loaded(id, "forking")?;
        let record = &self.leases[id.at()];
        if record.is_short() {
            let number = id.number();
            return Err(Error::state(
                format!("forking lease {number}, whose resume came back short"),
                "seal it once it is recomputed, or park it again",
            ));
        }
        let block_size = u64::from(self.config.block_size);
        let room = record.tokens.min(u64::from(record.blocks()) * block_size);
        let found = record
            .cached
            .max(u64::from(record.sealed) * block_size)
            .min(record.tokens);
        if computed > room || computed < found {
            let help = "give the tokens whose KV the parent has: no less than sealed or cached, \
                        and no more than it has slots for";
            return Err(Error::argument("computed", computed, help));
        }
        Ok(())
    }

    /// One more lease on a slot of a table.
    fn share(&mut self, slot: SlotIx) {
        match self.hold(Tier::DEVICE, slot) {
            Hold::Claimed { leases } | Hold::Owned { leases } => {
                self.tiers[Tier::DEVICE].put(slot, Hold::Owned { leases: leases + 1 });
            }
            Hold::Duplicate { leases } => {
                self.tiers[Tier::DEVICE].put(slot, Hold::Duplicate { leases: leases + 1 });
            }
            _ => self.pin(Tier::DEVICE, slot),
        }
    }
}
