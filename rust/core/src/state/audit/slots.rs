//! Slots: INV-1, 3, 6 and 14, and R2-11.

use super::{Check, Holders};
use crate::base::{Ix, MAX_TIERS, Set, SlotIx, Tier};
use crate::copies::Flight;
use crate::state::State;
use crate::tiers::Hold;

impl State {
    /// The sets add up to the capacity, and the free list is the free set (INV-1).
    pub(super) fn conserved(&self, tier: Tier) -> Check {
        let tier_state = &self.tiers[tier];
        let mut counts = [0_u32; 5];
        for (_, cell) in tier_state.pool().cells() {
            if let Some(set) = cell.hold.set() {
                counts[set as usize] += 1;
            }
        }
        let sets = [
            Set::Free,
            Set::Claimed,
            Set::Pinned,
            Set::Idle,
            Set::Quarantined,
        ];
        for set in sets {
            if tier_state.ledger().count(set) != counts[set as usize] {
                let (told, found) = (tier_state.ledger().count(set), counts[set as usize]);
                let detail = format!("the ledger counts {told} {set:?} slots, there are {found}");
                return Err(self.violation("INV-1", tier, SlotIx::default(), detail));
            }
        }
        let sum: u32 = counts.iter().sum();
        if sum != tier_state.ledger().capacity() {
            let detail = format!(
                "the sets add up to {sum}, not {}",
                tier_state.ledger().capacity()
            );
            return Err(self.violation("INV-1", tier, SlotIx::default(), detail));
        }
        let listed = tier_state.pool().free_slots().count();
        if listed != counts[0] as usize {
            let detail = format!("the free list has {listed} slots, {} are free", counts[0]);
            return Err(self.violation("INV-1", tier, SlotIx::default(), detail));
        }
        Ok(())
    }

    /// Each slot is in the set that its holders put it in (INV-1).
    pub(super) fn held_rightly(&self, tier: Tier, slot: SlotIx, holders: &Holders) -> Check {
        let pins = holders.pins[tier.at()][slot.at()];
        let written = holders.written[tier.at()][slot.at()];
        let hold = self.hold(tier, slot);
        let right = match hold {
            Hold::Free { .. } | Hold::Retired | Hold::Null | Hold::Idle { .. } => {
                pins == 0 && written == 0
            }
            Hold::Claimed { leases } | Hold::Owned { leases } | Hold::Duplicate { leases } => {
                pins == leases && written == 0
            }
            // A lease's destination is in its table; a copy down is in no table.
            Hold::Filling { .. } => pins <= 1 && written == 1,
            Hold::Pinned { pins: told } => pins == told && written == 0,
            Hold::Quarantined => pins == 0 && written <= 1,
        };
        if right && (hold != Hold::Null || slot.get() < self.config.null_slots_of(tier)) {
            return Ok(());
        }
        let detail = format!("it is {hold:?}, with {pins} holders and {written} copies into it");
        Err(self.violation("INV-1", tier, slot, detail))
    }

    /// A block of an engine that gives it out itself is held by nothing here, and names no block; a
    /// fetch fills it, or did to an end that is not known (E1).
    pub(super) fn given_out_by_the_engine(&self, tier: Tier, slot: SlotIx) -> Check {
        if tier > Tier::DEVICE || !self.config.engine {
            return Ok(());
        }
        let cell = self.tiers[tier].pool().cell(slot);
        let theirs = matches!(
            cell.hold,
            Hold::Null | Hold::Filling { .. } | Hold::Quarantined
        );
        if theirs && cell.node.is_none() {
            return Ok(());
        }
        let detail = format!("the engine's, and it is {:?} here", cell.hold);
        Err(self.violation("E1", tier, slot, detail))
    }

    /// Slot and block name each other, and only ready or filling slots have a block (INV-3).
    pub(super) fn resident(&self, tier: Tier, slot: SlotIx) -> Check {
        let hold = self.hold(tier, slot);
        let Some(node) = self.node_in(tier, slot) else {
            if hold.is_ready() {
                let detail = format!("it is {hold:?} and holds no block");
                return Err(self.violation("INV-3", tier, slot, detail));
            }
            return Ok(());
        };
        let alive = self.trie.alive(node);
        if !alive || self.trie.slot(node, tier) != Some(slot) {
            let detail = "its block is dead or stands elsewhere".to_owned();
            return Err(self.violation("INV-3", tier, slot, detail));
        }
        if !hold.is_ready() && !matches!(hold, Hold::Filling { .. }) {
            let detail = format!("it is {hold:?} and still names a block");
            return Err(self.violation("INV-3", tier, slot, detail));
        }
        let node = &self.trie[node];
        if !node.is_anonymous()
            && node.epoch == self.trie.epoch()
            && self
                .trie
                .find(&node.key)
                .is_none_or(|found| self.trie.slot(found, tier) != Some(slot))
        {
            return Err(self.violation("INV-3", tier, slot, "its key does not find it".to_owned()));
        }
        Ok(())
    }

    /// Reader marks are the copies in flight, and no slot is given out before its fence (INV-6).
    pub(super) fn fenced(&self, tier: Tier, slot: SlotIx, holders: &Holders) -> Check {
        let cell = self.tiers[tier].pool().cell(slot);
        let readers = holders.readers[tier.at()][slot.at()];
        let written = holders.written[tier.at()][slot.at()];
        if cell.readers != readers {
            let detail = format!("{} reader marks, {readers} copies read it", cell.readers);
            return Err(self.violation("INV-6", tier, slot, detail));
        }
        let fenced = matches!(cell.hold, Hold::Filling { .. } | Hold::Quarantined);
        if written > 0 && !fenced {
            let detail = format!("it is {:?} while a copy writes it", cell.hold);
            return Err(self.violation("INV-6", tier, slot, detail));
        }
        if cell.hold == Hold::Quarantined && written == 0 && readers == 0 {
            let detail = "quarantined, and no copy has an unknown end".to_owned();
            return Err(self.violation("INV-6", tier, slot, detail));
        }
        Ok(())
    }

    /// What is counted as in flight is in flights that may still end in time (INV-6).
    pub(super) fn in_the_air(&self) -> Check {
        let mut in_flight = [[0; MAX_TIERS]; MAX_TIERS];
        let ends = |flight: &&Flight| !flight.overdue && flight.ended.is_none();
        for flight in self.flights.iter().map(|(_, flight)| flight).filter(ends) {
            in_flight[flight.from.at()][flight.to.at()] += flight.moves.len() as u32;
        }
        if in_flight != self.in_flight {
            let told = self.in_flight;
            let detail = format!("{told:?} blocks are counted in flight, not {in_flight:?}");
            return Err(self.violation("INV-6", Tier::DEVICE, SlotIx::default(), detail));
        }
        Ok(())
    }

    /// Nothing is believed of a flight whose end is unknown, or whose sources may be others' blocks by
    /// now (INV-6).
    pub(super) fn believed(&self) -> Check {
        let flights = self.flights.iter().map(|(_, flight)| flight);
        for flight in flights.filter(|flight| flight.overdue || !flight.reads) {
            for slot in flight.moves.iter().map(|step| step.to) {
                let hold = self.hold(flight.to, slot);
                if hold != Hold::Quarantined || !flight.overdue {
                    let detail =
                        format!("it is {hold:?}, and what writes it is not to be believed");
                    return Err(self.violation("INV-6", flight.to, slot, detail));
                }
            }
        }
        Ok(())
    }

    /// A lease that ends while it loads pins its path up to the last block in flight, and that is all
    /// of its path (INV-20).
    pub(super) fn loading(&self) -> Check {
        for (lease, record) in self.leases.iter().filter(|(_, lease)| lease.loading() > 0) {
            let last = self.last_filling(record);
            if record.sealed > last {
                let detail = format!(
                    "{} blocks of lease {lease} are sealed, and the last in flight is block {last}",
                    record.sealed
                );
                return Err(self.violation("INV-20", Tier::DEVICE, SlotIx::default(), detail));
            }
        }
        Ok(())
    }

    /// What is held is published and found, and its slots are counted as held (INV-36a), so that their
    /// generations are raised with the last of their holds (INV-36b).
    pub(super) fn held(&self) -> Check {
        let tier = self.held_tier();
        if !self.tiers.has(tier) {
            return Ok(());
        }
        let mut holds = vec![0; self.tiers[tier].pool().len() as usize];
        for (_, holding) in self.holdings.iter() {
            for &slot in &holding.table {
                holds[slot.at()] += 1;
                let node = self.node_in(tier, slot);
                if node.is_none_or(|node| self.trie[node].epoch != self.trie.epoch()) {
                    let detail = "it is held, and has no block that is found".to_owned();
                    return Err(self.violation("INV-36a", tier, slot, detail));
                }
            }
        }
        let told = self.held_slots.as_ref();
        let count = |at: usize| {
            told.and_then(|told| told.holds().get(at))
                .copied()
                .unwrap_or(0)
        };
        if let Some(at) = (0..holds.len()).find(|&at| holds[at] != count(at)) {
            let (told, found) = (count(at), holds[at]);
            let detail = format!("{told} holds are counted, {found} are");
            return Err(self.violation("INV-36b", tier, SlotIx::new(at as u32), detail));
        }
        let (told, found) = (
            self.held_blocks(),
            holds.iter().filter(|&&own| own > 0).count(),
        );
        if told != found as u64 {
            let detail = format!("{told} slots are counted as held, {found} are");
            return Err(self.violation("INV-36a", tier, SlotIx::default(), detail));
        }
        Ok(())
    }

    /// A tier has no more slots than it was given, but for those that cannot retire yet: they are held
    /// or read, or something is below them. One that was withdrawn has no block in any case (INV-14). What was
    /// evicted ahead of need was evicted (R2-11).
    pub(super) fn budget(&self, tier: Tier) -> Check {
        let pool = self.tiers[tier].pool();
        let (ahead, all) = (
            self.counters.evicted_ahead,
            self.counters.evicted[tier.at()],
        );
        if tier == Tier::DEVICE && ahead > all {
            let detail = format!("{ahead} were evicted ahead of need, of {all}");
            return Err(self.violation("R2-11", tier, SlotIx::new(0), detail));
        }
        for (slot, cell) in pool.cells() {
            let free = matches!(cell.hold, Hold::Free { .. }) && !pool.stays(slot);
            let retired = cell.hold == Hold::Retired && pool.stays(slot);
            if free || retired || self.retires(tier, slot) {
                let detail = format!("{:?}, and the tier's size is {}", cell.hold, pool.limit());
                return Err(self.violation("INV-14", tier, slot, detail));
            }
            let found = cell.node.is_some() || cell.hold.is_ready();
            if found && pool.is_withdrawn(slot) {
                let detail = format!("{:?}, with a block, and its memory is gone", cell.hold);
                return Err(self.violation("INV-14", tier, slot, detail));
            }
        }
        Ok(())
    }
}
