//! Withdraw: the memory of some slots is gone, as where one of several disks has died. They leave the
//! capacity, and what was in them is lost; all others stay as they are.

use super::State;
use crate::base::{Error, Ix, Result, SlotIx, Tier};
use crate::tiers::Hold;

impl State {
    /// Gives these slots of a tier below the device out no more. Ready copies in them are dropped:
    /// what follows them in a sequence stays, and parked sequences that kept them are computed again.
    /// What a copy brings there is not published, however it ends. Slots that a copy still reads or
    /// writes leave when it has ended. Slots that were withdrawn before are left as they are. Returns
    /// how many copies were dropped.
    ///
    /// It takes time in proportion to the tier.
    ///
    /// # Errors
    /// `Argument` for the device, a tier that is not there, or a slot that is out of range; `InUse`
    /// where tickets would lose what they were promised though all parked sequences of the tier were
    /// given up. Nothing is changed then.
    pub fn withdraw(&mut self, tier: Tier, slots: &[u32]) -> Result<u64> {
        self.tiers.below_device(tier)?;
        let pool = self.tiers[tier].pool();
        if let Some(&slot) = slots.iter().find(|&&slot| slot >= pool.len()) {
            return Err(Error::argument("slots", slot, "the tier has no such slot"));
        }
        let mut fresh: Vec<SlotIx> = slots.iter().copied().map(SlotIx::new).collect();
        fresh.retain(|&slot| !pool.is_withdrawn(slot));
        fresh.sort_unstable();
        fresh.dedup();
        let leaves = |slot: SlotIx| fresh.binary_search(&slot).is_ok();
        let keepers = self.keepers_on(tier);
        if self.used_without(tier, &keepers, leaves).is_none() {
            let given = fresh.iter().filter(|&&slot| pool.stays(slot)).count() as u32;
            let want = u64::from(pool.room() - given);
            // The blocks that tickets would lack count as used.
            let used = self.tiers[tier].ledger().used().max(want + 1);
            return Err(Error::InUse { tier, want, used });
        }
        let mut dropped = 0;
        for &slot in &fresh {
            let Some(node) = self.node_in(tier, slot) else {
                continue;
            };
            if let Hold::Filling { flight } = self.hold(tier, slot) {
                self.cut_kept(std::iter::once(self.trie.id(node)), tier);
                // An anonymous block dissolved with its keep.
                if self.node_in(tier, slot).is_some() {
                    self.lose_arrival(self.flights[flight].from, node, tier);
                }
            } else {
                self.drop_copy(tier, node, slot);
                dropped += 1;
            }
        }
        self.tiers[tier].withdraw(&fresh, &self.trie);
        self.break_unbacked(tier);
        Ok(dropped)
    }
}
