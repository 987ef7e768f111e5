//! Lose: the memory of a rank is gone, as where its process has died. Tiers that outlive the process have what
//! they had, and no other has anything.

use super::State;
use super::record::Keep;
use crate::base::{Class, Error, FlightId, FlightIx, Ix as _, NodeIx, Result, SlotIx, Tier};
use crate::copies::Outcome;
use crate::tiers::Hold;

impl State {
    /// [`Self::lose_but`] of the tiers that know whose blocks they have, so that nothing wrong is read there.
    /// What was planned from a lost tier to one below the device and not dispatched ends, and never is: the
    /// rank would write there what its new memory has, under the keys of before.
    ///
    /// # Errors
    /// `Argument` where no tier is keyed.
    pub fn lose_unkeyed(&mut self) -> Result<()> {
        let below = self.tiers.below(Tier::DEVICE);
        let kept: Vec<Tier> = below.filter(|tier| self.config.keyed[tier.at()]).collect();
        if kept.is_empty() {
            let help = "no tier is keyed, and knows whose blocks it has: give \"lost\", or the \
                        configuration keyed=(\"disk\",)";
            return Err(Error::argument("memory", "disk kept", help));
        }
        let mut planned: Vec<(u64, FlightIx)> = self
            .flights
            .iter()
            .filter(|(_, record)| record.to > Tier::DEVICE && !kept.contains(&record.from))
            .filter_map(|(flight, record)| Some((record.waits?, flight)))
            .collect();
        planned.sort_unstable();
        for (_, flight) in planned {
            let flight = FlightId(self.flights.id(flight));
            self.commit(&[Outcome::failed(flight, 0)], None)?;
        }
        self.lose_but(&kept);
        Ok(())
    }

    /// The contents of all tiers but the kept ones are lost; those of the device always are, so that all holds
    /// end. Nothing that was
    /// there is found any more, and no copy from there is published, however it ends. Running leases are
    /// detached, as by [`Self::clear`]: their blocks stay theirs. What the kept tiers have is found, and parked
    /// sequences that have all of it there stay parked; the keeps of others are broken.
    ///
    /// It takes time in proportion to the tiers, and never waits.
    pub fn lose_but(&mut self, kept: &[Tier]) {
        self.end_holds();
        self.raise_running();
        self.break_lost(kept);
        let (lost, kept): (Vec<Tier>, Vec<Tier>) = self
            .tiers
            .all()
            .partition(|tier| *tier == Tier::DEVICE || !kept.contains(tier));
        for tier in kept {
            for slot in self.tiers[tier].pool().slots() {
                if let Hold::Filling { flight } = self.hold(tier, slot)
                    && let Some(node) = self.node_in(tier, slot)
                    && lost.contains(&self.flights[flight].from)
                {
                    // What it kept beyond the size of the tier may go with it.
                    self.detach(node, tier);
                    self.remove_if_gone(node);
                }
            }
        }
        let leases = self.holders_of_slots();
        for slot in self.tiers[Tier::DEVICE].pool().slots() {
            if let Hold::Duplicate { leases } = self.hold(Tier::DEVICE, slot) {
                self.tiers[Tier::DEVICE].put(slot, Hold::Owned { leases });
                self.tiers[Tier::DEVICE].unlink(slot);
            }
        }
        for &tier in &lost {
            for slot in self.tiers[tier].pool().slots() {
                self.strip(tier, slot, &leases);
            }
        }
        let ended = self.trie.epoch();
        self.trie.end_epoch();
        self.trie.carry_over(ended);
        self.leases.for_each(|lease| lease.sealed = 0);
    }

    /// What running sequences have published stands in its own right where it is kept, as if they had ended:
    /// a block's class is never below its children's.
    fn raise_running(&mut self) {
        let running = self.leases.iter().map(|(_, lease)| &lease.table);
        for table in running.chain(self.held.iter().map(|held| &held.table)) {
            let pool = self.tiers[Tier::DEVICE].pool();
            let nodes = table.iter().rev().filter_map(|&slot| pool.cell(slot).node);
            nodes.fold(Class::Ordinary, |least, node| {
                self.trie.raise_class(node.at(), least)
            });
        }
    }

    /// Breaks the keeps of parked sequences that lack a block on a kept tier; those of others hold nothing
    /// above any more.
    fn break_lost(&mut self, kept: &[Tier]) {
        for index in self.youngest_first() {
            let record = &self.parked[index];
            let stays =
                |&node: &NodeIx| kept.contains(&self.trie[node].keeps.home()) && self.is_home(node);
            if record.keep == Keep::Whole && record.lease.is_none() && record.path.iter().all(stays)
            {
                self.shrink_keep(index);
            } else {
                self.break_keep(index);
            }
        }
    }

    /// How many tables have each slot of the device.
    fn holders_of_slots(&self) -> Vec<u32> {
        let mut leases = vec![0; self.tiers[Tier::DEVICE].pool().len() as usize];
        let running = self.leases.iter().map(|(_, lease)| &lease.table);
        for slot in running
            .chain(self.held.iter().map(|held| &held.table))
            .flatten()
        {
            leases[slot.at()] += 1;
        }
        leases
    }

    /// Takes a block off a lost tier, once nothing that follows it is there; then those above it.
    fn strip(&mut self, tier: Tier, slot: SlotIx, leases: &[u32]) {
        let mut next = Some(slot);
        while let Some(slot) = next
            && let Some(node) = self.node_in(tier, slot)
            && self.trie.residency(node, tier).children == 0
        {
            next = self.parent_slot(tier, slot);
            if let Hold::Idle { .. } = self.hold(tier, slot) {
                self.pin(tier, slot);
            }
            self.let_go(node, tier, slot);
            // What fills is freed by its flight, or left to its lease.
            if !matches!(self.hold(tier, slot), Hold::Filling { .. }) {
                match leases.get(slot.at()).filter(|_| tier == Tier::DEVICE) {
                    Some(&leases) if leases > 0 => {
                        self.tiers[tier].put(slot, Hold::Owned { leases });
                    }
                    _ => self.tiers[tier].free(slot),
                }
            }
            if !self.remove_if_gone(node) && tier == Tier::DEVICE {
                self.reclass_below(node);
            }
        }
    }
}
