//! Resize: slot ids are addresses, so that a tier shrinks by retiring its highest slots as they
//! come free. Table 2.7.

use super::State;
use super::keep::HOST;
use crate::error::{Error, Result};
use crate::evict::{Evict, Stand};
use crate::id::Tier;
use crate::pool::Hold;

impl State {
    /// Gives a tier `slots` slots. Growing is at once. Shrinking is refused with `InUse` where
    /// what is pinned, claimed, promised or quarantined does not fit; keeps in the way are broken
    /// first where the engine can recompute. Idle and held slots beyond the new size retire as
    /// they come free.
    pub fn resize(&mut self, tier: Tier, slots: u32) -> Result<()> {
        let at = tier.at();
        if at >= self.tiers.len() {
            let help = "this cache was made without that tier";
            return Err(Error::argument("tier", tier.name(), help));
        }
        let null = if at == 0 { self.config.null_slots } else { 0 };
        if at == 0 && slots <= null {
            let help = "give the device more blocks than its null slots";
            return Err(Error::argument("slots", slots, help));
        }
        if slots > super::MOST_SLOTS {
            return Err(Error::argument(
                "slots",
                slots,
                "a tier has at most 2,147,483,631 blocks",
            ));
        }
        if slots < self.tiers[at].pool.limit() {
            self.shrink(at, slots, null)
        } else {
            self.widen(at, slots);
            Ok(())
        }
    }

    fn widen(&mut self, tier: usize, slots: u32) {
        let storey = &mut self.tiers[tier];
        let old = storey.pool.len();
        storey.pool.set_limit(slots.min(old));
        let revived = storey.pool.revive();
        storey.ledger.enter(revived);
        if slots > old {
            storey.pool.grow(slots, 0);
            storey.ledger.enter(slots - old);
            storey.order.grow(slots as usize);
            let all = self
                .tiers
                .iter()
                .map(|storey| storey.pool.len() as usize)
                .sum();
            self.trie.reserve(all);
        }
        self.recount(tier);
    }

    fn shrink(&mut self, tier: usize, slots: u32, null: u32) -> Result<()> {
        let want = u64::from(slots - null);
        let before = self.tiers[tier].pool.limit();
        loop {
            let used = self.tiers[tier].ledger.used();
            if used <= want && self.set_limit(tier, slots) {
                break;
            }
            self.set_limit(tier, before);
            if !(tier <= HOST && self.config.recompute && self.break_youngest(tier)) {
                return Err(Error::InUse {
                    tier: Tier(tier as u8),
                    want,
                    used,
                });
            }
        }
        self.retire_idle(tier);
        Ok(())
    }

    /// Moves the limit; `false` if promises would lose their backing by it.
    fn set_limit(&mut self, tier: usize, slots: u32) -> bool {
        let storey = &mut self.tiers[tier];
        let retired = storey.pool.set_limit(slots);
        storey.ledger.retire(retired);
        let revived = storey.pool.revive();
        storey.ledger.enter(revived);
        self.recount(tier);
        self.tiers[tier].ledger.available() >= 0
            && (self.config.recompute || !self.keeps_would_break(tier))
    }

    /// Whether a kept block is on its way to a slot beyond the limit: if that copy fails, its slot
    /// retires, and nothing backs the promise that stands again.
    fn keeps_would_break(&self, tier: usize) -> bool {
        let pool = &self.tiers[tier].pool;
        (pool.limit()..pool.len()).any(|slot| {
            let node = self.node_in(tier, slot);
            tier == HOST
                && matches!(pool.cell(slot).hold, Hold::Filling { .. })
                && node.is_some_and(|node| self.trie[node].keeps > 0)
        })
    }

    /// Counts the takeable slots anew: those beyond the limit back no promise.
    fn recount(&mut self, tier: usize) {
        let slots = 0..self.tiers[tier].pool.len();
        let takeable = slots.filter(|&slot| self.takeable(tier, slot)).count() as u32;
        self.tiers[tier].ledger.set_takeable(takeable);
    }

    fn break_youngest(&mut self, tier: usize) -> bool {
        let used = |state: &Self| state.tiers[tier].ledger.used();
        let before = used(self);
        while used(self) == before {
            let youngest = self
                .parked
                .iter()
                .filter(|(_, parked)| !parked.broken)
                .max_by_key(|(_, parked)| parked.order)
                .map(|(index, _)| index);
            let Some(parked) = youngest else { return false };
            self.break_keep(parked);
        }
        true
    }

    /// Evicts idle leaves beyond the limit, and what becomes a leaf by it.
    fn retire_idle(&mut self, tier: usize) {
        for first in self.tiers[tier].pool.limit()..self.tiers[tier].pool.len() {
            let mut slot = Some(first);
            while let Some(at) = slot.filter(|&at| at >= self.tiers[tier].pool.limit()) {
                let idle = matches!(self.hold(tier, at), Hold::Idle { .. });
                if !idle || self.stand_of(tier, at) != Stand::Leaf {
                    break;
                }
                let parent = self
                    .node_in(tier, at)
                    .and_then(|node| self.trie.parent(node));
                self.drop_copy(tier, at);
                slot = parent.and_then(|parent| self.trie[parent].slot(tier));
            }
        }
    }
}
