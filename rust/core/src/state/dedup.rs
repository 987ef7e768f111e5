//! Dedup: sequences give their duplicates up in place, where others lack the room.

use super::State;
use crate::base::{LeaseId, LeaseIx, Result, Tier};
use crate::tiers::Hold;

impl State {
    /// Gives up the duplicates of running sequences: each table shows from now on the published
    /// block beside which its own one stood, and a private slot that no fork shares is free. Returns
    /// the cells that changed.
    ///
    /// A sequence holds no more than the blocks of its table then. That is what lets the last of
    /// several equal ones go on alone on a device that it fits in (INV-11, INV-25).
    ///
    /// No step in flight may read these tables: the slots are free at once.
    ///
    /// # Errors
    /// As [`State::grow`] for a lease that is not there, or whose resume came back incomplete; nothing is
    /// given up then.
    pub fn dedup(&mut self, leases: &[LeaseId]) -> Result<u64> {
        self.check_rows(leases)?;
        let changed = leases.iter().map(|id| self.dedup_one(id.at())).sum();
        self.counters.deduped += changed;
        Ok(changed)
    }

    /// Deepest first, as everything is given back.
    fn dedup_one(&mut self, lease: LeaseIx) -> u64 {
        let mut changed = 0;
        for at in (0..self.leases[lease].blocks()).rev() {
            let slot = self.leases[lease].table[at as usize];
            if !matches!(self.hold(Tier::DEVICE, slot), Hold::Duplicate { .. }) {
                continue;
            }
            let Some(published) = self
                .node_of(slot)
                .and_then(|node| self.trie.slot(node, Tier::DEVICE))
            else {
                debug_assert!(false, "slot {slot} is a duplicate of nothing");
                continue;
            };
            // The table's own pin comes before the duplicate's goes.
            self.pin(Tier::DEVICE, published);
            let record = &mut self.leases[lease];
            record.table[at as usize] = published;
            record.shown = record.shown.min(at);
            self.release_slot(slot);
            changed += 1;
        }
        changed
    }
}
