//! Resize: slot ids are addresses, so that a tier shrinks by retiring its highest slots as they
//! come free (table 2.7).

use super::{Config, State, TierState};
use crate::base::{Error, Ix, ParkedIx, Result, SlotIx, Tier, memory};
use crate::tiers::Hold;
use std::collections::BTreeMap;

impl State {
    /// Gives a tier `slots` slots. Growing is at once. Shrinking is refused with `InUse` where
    /// what is pinned, claimed, promised or quarantined does not fit; keeps in the way are broken
    /// first where the engine can recompute. Slots beyond the new size retire as they come free:
    /// an idle block there is evicted once nothing reads it and nothing is below it.
    pub fn resize(&mut self, tier: Tier, slots: u32) -> Result<()> {
        self.resize_where(tier, slots, None)
    }

    /// The same where `there` bytes of memory are there for what is new; `None`: as much as the
    /// system grants.
    ///
    /// # Errors
    /// `Memory` too, before anything is changed.
    pub fn resize_where(&mut self, tier: Tier, slots: u32, there: Option<u64>) -> Result<()> {
        self.tiers.named(tier)?;
        if tier == Tier::DEVICE {
            self.of_its_own("resizing the device")?;
        }
        let null = self.config.null_slots_of(tier);
        if tier == Tier::DEVICE && slots <= null {
            let help = "must be more than the null slots";
            return Err(Error::argument("slots", slots, help));
        }
        if slots > super::config::MOST_SLOTS {
            return Err(Error::argument(
                "slots",
                slots,
                "a tier has at most 2,147,483,631 blocks",
            ));
        }
        if slots < self.tiers[tier].pool().limit() {
            // Headroom yields to the new size, and is restored where that is refused.
            let headroom = self.headroom_on(tier);
            self.headroom -= headroom;
            self.tiers[tier].release(headroom);
            let answer = self.shrink(tier, slots, null);
            if headroom > 0 {
                self.set_headroom(u64::from(headroom));
            }
            answer?;
        } else {
            self.widen(tier, slots, there)?;
        }
        self.resize_orders(tier);
        Ok(())
    }

    /// Makes room for a tier of that many slots; if that fails, nothing is changed.
    fn reserve(&mut self, tier: Tier, slots: usize, there: Option<u64>) -> Result<()> {
        let own = |tier_state: &TierState| tier_state.pool().len() as usize;
        let mut tiers: Vec<usize> = self.tiers.iter().map(own).collect();
        let before = self.config.bytes(&tiers);
        tiers[tier.at()] = slots;
        // A second index is made beside the old one, so that it is asked for whole.
        let more = self.config.bytes(&tiers) - before;
        memory::ask(more, there, "the bookkeeping of so many more slots")?;
        self.tiers[tier].reserve(&self.config, slots)?;
        let blocks = self.config.resting(&tiers).iter().sum();
        self.usages.reserve(blocks)?;
        if let Some(events) = &mut self.events {
            events.reserve(blocks)?;
        }
        self.trie.reserve(&self.config.resting(&tiers))
    }

    /// The orders of the tier and those below it learn about the new size from now on.
    fn resize_orders(&mut self, tier: Tier) {
        let own = |tier_state: &TierState| tier_state.pool().limit() as usize;
        let tiers: Vec<usize> = self.tiers.iter().map(own).collect();
        for below in std::iter::once(tier).chain(self.tiers.below(tier)) {
            let room = Config::room_of(below, &tiers);
            self.tiers[below].resize_order(room);
        }
    }

    fn widen(&mut self, tier: Tier, slots: u32, there: Option<u64>) -> Result<()> {
        let old = self.tiers[tier].pool().len();
        if slots > old {
            self.reserve(tier, slots as usize, there)?;
        }
        self.tiers[tier].set_limit(slots.min(old), &self.trie);
        if slots > old {
            self.tiers[tier].grow(slots);
            let own = |tier_state: &TierState| tier_state.pool().len() as usize;
            let tiers: Vec<usize> = self.tiers.iter().map(own).collect();
            self.usages.grow(self.config.resting(&tiers).iter().sum());
        }
        Ok(())
    }

    fn shrink(&mut self, tier: Tier, slots: u32, null: u32) -> Result<()> {
        let want = u64::from(self.tiers[tier].pool().room_below(slots) - null);
        let before = self.tiers[tier].pool().limit();
        let free: Vec<SlotIx> = self.tiers[tier].pool().free_slots().collect();
        let mut fits = self.set_limit(tier, slots) && self.tiers[tier].ledger().used() <= want;
        let mut keepers = Vec::new();
        if !fits {
            keepers = self.keepers_on(tier);
            let least = self
                .used_without(tier, &keepers, |_| false)
                .filter(|&used| self.config.recompute && used <= want);
            if least.is_none() {
                // Where promises lose their backing, the blocks that they lack count as used.
                let ledger = self.tiers[tier].ledger();
                let lacking = u64::try_from(-ledger.available()).unwrap_or(0);
                let used = ledger.used().max(want + lacking);
                self.set_limit(tier, before);
                self.tiers[tier].restore_free(&free);
                return Err(Error::InUse { tier, want, used });
            }
        }
        // Idle leaves retire now, and the others as they become such.
        for slot in (slots..self.tiers[tier].pool().len()).map(SlotIx::new) {
            self.retire(tier, slot);
        }
        for parked in keepers {
            if fits {
                break;
            }
            self.break_keep(parked);
            let ledger = self.tiers[tier].ledger();
            fits = ledger.used() <= want && ledger.available() >= 0;
        }
        debug_assert!(fits, "{tier:?} does not fit {slots} slots");
        Ok(())
    }

    /// What would be in use at the limit if these keeps, all that are on the tier, were broken, and
    /// some slots withdrawn, which `leaves` tells; `None` if promises would lose their backing.
    pub(super) fn used_without(
        &self,
        tier: Tier,
        keepers: &[ParkedIx],
        leaves: impl Fn(SlotIx) -> bool,
    ) -> Option<u64> {
        let (pool, ledger) = (self.tiers[tier].pool(), self.tiers[tier].ledger());
        let kept = self.kept_pins(tier);
        let kept = |slot: SlotIx| {
            self.hold(tier, slot)
                == (Hold::Pinned {
                    pins: kept[slot.at()],
                })
        };
        // An anonymous block dissolves with its last keep, also one that is in flight, or that is kept
        // elsewhere and has another copy here.
        let mut unkept = BTreeMap::new();
        let paths = keepers.iter().map(|&keeper| &self.parked[keeper].path);
        for &node in paths.flatten() {
            if self.trie[node].is_anonymous() {
                *unkept.entry(node).or_insert(0) += 1;
            }
        }
        let dissolves = |slot: SlotIx| {
            let node = self.node_in(tier, slot);
            node.is_some_and(|node| unkept.get(&node) == Some(&self.trie[node].keeps.count()))
        };
        let idle = |slot: SlotIx| matches!(self.hold(tier, slot), Hold::Idle { .. });
        let lost = |slot: SlotIx| leaves(slot) && self.node_in(tier, slot).is_some();
        let gone = |slot: SlotIx| lost(slot) || dissolves(slot) && (idle(slot) || kept(slot));
        let blocked = self.blocked_without(tier, |slot| lost(slot) || dissolves(slot));
        let promised = match tier {
            Tier::DEVICE => ledger.promised(),
            _ => self.kept_by_tickets(tier),
        };
        let (mut used, mut backing) = (promised, 0);
        for (slot, cell) in pool.cells() {
            let below = u32::from(pool.stays(slot) && !leaves(slot));
            match cell.hold {
                Hold::Null | Hold::Retired => {}
                Hold::Free { .. } => backing += below,
                _ if gone(slot) && cell.readers > 0 => used += 1,
                _ if gone(slot) => backing += below,
                Hold::Idle { .. } => backing += below * u32::from(!blocked[slot.at()]),
                _ if kept(slot) => backing += below * u32::from(!blocked[slot.at()]),
                _ => used += 1,
            }
        }
        (backing >= promised).then_some(u64::from(used))
    }

    /// How often keeps alone pin each slot.
    fn kept_pins(&self, tier: Tier) -> Vec<u32> {
        let mut pins = vec![0; self.tiers[tier].pool().len() as usize];
        for (_, parked) in self.parked.iter() {
            let on_device = parked.on_device as usize;
            let pinned = parked
                .path
                .iter()
                .enumerate()
                .filter(|&(at, &node)| match tier {
                    Tier::DEVICE => at < on_device,
                    _ => self.keeps_at(node, tier) > 0,
                });
            for slot in pinned.filter_map(|(_, &node)| self.ready(node, tier)) {
                pins[slot.at()] += 1;
            }
        }
        pins
    }

    /// Slots that are read, or have something below that is read or filling, were some `gone`.
    fn blocked_without(&self, tier: Tier, gone: impl Fn(SlotIx) -> bool) -> Vec<bool> {
        let pool = self.tiers[tier].pool();
        let mut blocked = vec![false; pool.len() as usize];
        for (slot, cell) in pool.cells() {
            let filling = tier > Tier::DEVICE && matches!(cell.hold, Hold::Filling { .. });
            let mut at = Some(slot).filter(|_| filling || cell.readers > 0);
            while let Some(slot) = at.filter(|&slot| !blocked[slot.at()] && !gone(slot)) {
                blocked[slot.at()] = true;
                at = self.parent_slot(tier, slot);
            }
        }
        blocked
    }

    /// Moves the limit; `false` if promises would lose their backing by it.
    fn set_limit(&mut self, tier: Tier, slots: u32) -> bool {
        self.tiers[tier].set_limit(slots, &self.trie);
        self.tiers[tier].ledger().available() >= 0
            && (self.config.recompute || !self.keeps_would_break(tier))
    }

    /// Whether a kept block is on its way to a slot beyond the limit: if that copy fails, its slot
    /// retires, and nothing backs the promise that stands again.
    fn keeps_would_break(&self, tier: Tier) -> bool {
        let pool = self.tiers[tier].pool();
        (pool.limit()..pool.len()).map(SlotIx::new).any(|slot| {
            let node = self.node_in(tier, slot);
            tier > Tier::DEVICE
                && matches!(pool.cell(slot).hold, Hold::Filling { .. })
                && node.is_some_and(|node| self.keeps_at(node, tier) > 0)
        })
    }
}
