//! Headroom: device blocks kept promised for the growth of the running batch as a whole. Begins may
//! not take them; a grow beyond its own promise may.

use super::State;
use crate::base::Tier;

impl State {
    /// Keeps up to `blocks` device blocks promised for the growth of the sequences that run, in
    /// place of what was kept before; returns how many are. It is fewer where fewer can be had, and
    /// none while nothing runs.
    ///
    /// It falls as grows beyond their own promise use it, and as a resize needs it; it is zero as
    /// soon as the last running sequence has ended or is parked. It never rises by itself.
    pub fn set_headroom(&mut self, blocks: u64) -> u32 {
        let runs = self.runs();
        let device = &mut self.tiers[Tier::DEVICE];
        device.release(self.headroom);
        self.headroom = device.promise_up_to(if runs { blocks } else { 0 });
        self.headroom
    }

    /// Whether a grow may take that many blocks beyond its own promise. What is not available comes
    /// out of the headroom, which is there for this.
    pub(super) fn afford_growth(&mut self, beyond: u64) -> bool {
        let ledger = self.tiers[Tier::DEVICE].ledger();
        if ledger.affords(beyond) {
            return true;
        }
        let lack = beyond.saturating_sub(ledger.available().max(0).cast_unsigned());
        if lack > u64::from(self.headroom) {
            return false;
        }
        self.headroom -= lack as u32;
        self.tiers[Tier::DEVICE].release(lack as u32);
        true
    }

    /// A sequence has ended or was parked: with the last one the headroom goes too.
    pub(super) fn ease_headroom(&mut self) {
        if self.headroom > 0 && !self.runs() {
            self.tiers[Tier::DEVICE].release(std::mem::take(&mut self.headroom));
        }
    }

    /// Whether a sequence runs: one that has ended and waits for its loads does not.
    pub(super) fn runs(&self) -> bool {
        self.leases.iter().any(|(_, lease)| !lease.has_ended())
    }
}
