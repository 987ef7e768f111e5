//! What comes over all of the naive yard: clear, resize and withdraw.

use crate::moves::NO_WORTH;
use crate::yard::{Class, DEVICE, Idle, What, Yard};
use blockyard_core::{Error, EvictionPolicy, Result, Tier};
use std::collections::BTreeSet;

impl Yard {
    pub(crate) fn clear(&mut self) {
        self.end_holds();
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
            .map(|slot| Idle {
                class: Class::Cleared,
                priority: if self.policy == EvictionPolicy::Heap {
                    0
                } else {
                    NO_WORTH.0
                },
                until: NO_WORTH.1,
                slot,
            })
            .collect();
    }

    /// A rank has lost what it had, but for these tiers below the device. What is in flight from a lost
    /// tier is not published; what a table has stays its own.
    pub(crate) fn lose_but(&mut self, kept: &[usize]) {
        self.end_holds();
        self.raise_running();
        let mut all: Vec<_> = self
            .parked
            .iter()
            .map(|(&id, stay)| (stay.order, id))
            .collect();
        all.sort_unstable();
        for (_, id) in all.into_iter().rev() {
            let stay = &self.parked[&id];
            let stays =
                |&block: &usize| kept.contains(&self.blocks[block].home) && self.at_home(block);
            if stay.lease.is_some() || !stay.path.iter().all(stays) {
                self.break_keep(id);
            }
        }
        self.shrink_keeps();
        for tier in 0..self.tiers {
            for (slot, what) in self.slots[tier].clone() {
                let is_kept = kept.contains(&tier);
                match what {
                    What::Duplicate(_) => {
                        self.slots[tier].insert(slot, What::Owned);
                    }
                    What::Filling(Some(block)) => {
                        let from = self.flights[&self.filling(block, tier).expect("it fills")].from;
                        if !is_kept || !kept.contains(&from) {
                            self.blocks[block].slots[tier] = None;
                            self.slots[tier].insert(slot, What::Filling(None));
                        }
                    }
                    What::Ready(block) if !is_kept => {
                        self.blocks[block].slots[tier] = None;
                        if tier == DEVICE && self.in_table(slot) {
                            self.slots[tier].insert(slot, What::Owned);
                        } else {
                            self.give_back(tier, slot);
                        }
                    }
                    _ => {}
                }
            }
        }
        let ended = self.epoch;
        self.epoch += 1;
        for block in self.blocks.iter_mut().filter(|block| block.epoch == ended) {
            block.epoch = self.epoch;
        }
        for seq in self.leases.values_mut() {
            seq.sealed = 0;
        }
        self.settle();
    }

    /// What is published counts as what has ended does: a block's class is never below its children's.
    fn raise_running(&mut self) {
        let running = self.leases.values().map(|seq| &seq.table);
        for table in running.chain(self.held.iter().map(|held| &held.1)) {
            let mut least = Class::Ordinary;
            for slot in table.iter().rev() {
                if let Some(
                    What::Ready(block) | What::Duplicate(block) | What::Filling(Some(block)),
                ) = self.slots[DEVICE].get(slot)
                {
                    let class = &mut self.blocks[*block].class;
                    least = least.max(*class);
                    *class = least;
                }
            }
        }
    }

    /// Table 2.7. What a refusal leaves is compared by the caller.
    pub(crate) fn resize(&mut self, tier: usize, slots: u32, answer: &Result<()>) {
        let null = if tier == DEVICE { self.null } else { 0 };
        if tier >= self.tiers || (tier == DEVICE && slots <= null) {
            return assert!(matches!(answer, Err(Error::Argument { .. })));
        }
        // What is kept for growth yields to the new size.
        let shrinks = slots < self.limits[tier];
        let headroom = match tier {
            DEVICE if shrinks => std::mem::take(&mut self.headroom),
            _ => 0,
        };
        if let Err(Error::InUse { tier: at, want, .. }) = answer {
            let before = std::mem::replace(&mut self.limits[tier], slots);
            assert_eq!((*at, *want), (Tier(tier), self.size(tier)));
            self.limits[tier] = before;
            // With every keep broken, were that allowed, it must not have fitted.
            assert!(!self.fits_somehow(tier, slots), "refused, and would fit");
            self.headroom += headroom;
            return;
        }
        assert_eq!(answer, &Ok(()));
        self.limits[tier] = slots;
        self.most_fresh[tier] = self.most_fresh[tier].max(slots as usize);
        self.settle();
        while shrinks && !self.fits(tier) {
            assert!(self.recompute, "a keep was in the way");
            let youngest = self.youngest(tier).expect("something was in the way");
            self.break_keep(youngest);
        }
        if headroom > 0 {
            self.set_headroom(headroom);
        }
    }

    /// The memory of these slots is gone. What a refusal leaves is compared by the caller.
    pub(crate) fn withdraw(&mut self, tier: usize, slots: &[u32], answer: &Result<u64>) {
        if tier == DEVICE || tier >= self.tiers {
            return assert!(matches!(answer, Err(Error::Argument { .. })));
        }
        let mut other = self.clone();
        let dropped = other.lose(tier, slots);
        while other.unbacked(tier) {
            let Some(youngest) = other.youngest(tier) else {
                let refused = matches!(answer, Err(Error::InUse { tier: at, want, used })
                    if *at == Tier(tier) && *want == other.size(tier) && used > want);
                return assert!(refused, "{answer:?}");
            };
            other.break_keep(youngest);
        }
        assert_eq!(answer, &Ok(dropped));
        *self = other;
        self.settle();
    }

    /// Drops what is ready in these slots, with the keeps that need it, and gives up what is on its way
    /// there; returns how many were ready.
    fn lose(&mut self, tier: usize, slots: &[u32]) -> u64 {
        let slots: BTreeSet<u32> = slots.iter().copied().collect();
        let mut dropped = 0;
        for &slot in slots.difference(&self.withdrawn[tier].clone()) {
            let Some(block) = self.block_in(tier, slot) else {
                continue;
            };
            if let Some(flight) = self.filling(block, tier) {
                self.blocks[block].slots[tier] = None;
                self.slots[tier].insert(slot, What::Filling(None));
                let from = self.flights[&flight].from;
                if from < tier {
                    self.note_copy(from, block, false);
                }
            } else {
                self.drop_copy(tier, block, slot);
                dropped += 1;
            }
            self.retire();
        }
        self.withdrawn[tier].extend(slots);
        dropped
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
                What::Filling(Some(block)) => {
                    tier > DEVICE
                        && !self.recompute
                        && self.blocks[*block].home == tier
                        && self.kept(*block)
                }
                _ => false,
            });
        self.used(tier) <= self.size(tier) && !self.unbacked(tier) && !stranded
    }

    pub(crate) fn fits_somehow(&mut self, tier: usize, slots: u32) -> bool {
        let mut other = self.clone();
        other.limits[tier] = slots;
        while !other.fits(tier) {
            match other.youngest(tier).filter(|_| self.recompute) {
                Some(youngest) => other.break_keep(youngest),
                None => return false,
            }
        }
        true
    }
}
