//! What comes over all of the naive yard: clear and resize.

use crate::yard::{Class, DEVICE, What, Yard};
use blockyard_core::{Error, Result, Tier};

impl Yard {
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
            assert_eq!((*at, *want), (Tier(tier), u64::from(slots - null)));
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
