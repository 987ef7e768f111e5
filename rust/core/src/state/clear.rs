//! Clear: the weights have changed, and no block published so far may be used again. It never waits.

use super::State;
use crate::tiers::FORGOTTEN;

impl State {
    /// Ends all holds, breaks all keeps, ends the epoch, hands all idle blocks over to be evicted first, and
    /// detaches the running leases: their blocks stay theirs and are never published.
    pub fn clear(&mut self) {
        self.end_holds();
        for parked in self.youngest_first() {
            self.break_keep(parked);
        }
        self.trie.end_epoch();
        self.emit_cleared();
        for tier in self.tiers.all() {
            self.tiers[tier].clear();
        }
    }

    /// Whether anything of an ended epoch is still held or in flight.
    pub fn draining(&self) -> bool {
        let now = self.trie.epoch();
        let ended = |epoch: u32| epoch != now && epoch != FORGOTTEN;
        self.leases.iter().any(|(_, lease)| ended(lease.epoch))
            || self.held.iter().any(|held| ended(held.epoch))
            || self.flights.iter().any(|(_, flight)| ended(flight.epoch))
    }
}
