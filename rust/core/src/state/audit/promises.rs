//! Promises, keeps and epochs: INV-22 to 24, 34 and 40.

use super::{Check, Violation};
use crate::base::{Class, NodeIx, SlotIx, Tier};
use crate::copies::Purpose;
use crate::state::State;
use crate::state::record::{Keep, Running};
use crate::tiers::{FORGOTTEN, Hold, Node};

impl State {
    /// Promises are the sum of what was promised, and they are backed; where nothing runs there is no
    /// headroom (INV-22).
    pub(super) fn promises(&self) -> Check {
        if self.headroom > 0 && !self.runs() {
            let detail = format!("{} blocks of headroom, and nothing runs", self.headroom);
            return Err(self.violation("INV-22", Tier::DEVICE, SlotIx::default(), detail));
        }
        for tier in self.tiers.all() {
            let tier_state = &self.tiers[tier];
            let ledger = tier_state.ledger();
            let takeable = tier_state.count_takeable(&self.trie);
            if takeable != ledger.takeable() {
                let detail = format!("{} takeable are counted, {takeable} are", ledger.takeable());
                return Err(self.violation("INV-22", tier, SlotIx::default(), detail));
            }
            let own: u32 = if tier == Tier::DEVICE {
                let running = self.leases.iter().filter(|(_, lease)| !lease.has_ended());
                running.map(|(_, lease)| Running::promised(lease)).sum()
            } else {
                let owed = |&(node, _): &(NodeIx, &Node)| self.is_owed(node, tier);
                self.trie.iter().filter(owed).count() as u32
            };
            let promised = own + self.kept_by_tickets(tier) + self.headroom_on(tier);
            if promised != ledger.promised() {
                let detail = format!(
                    "{} are counted as promised, {promised} are",
                    ledger.promised()
                );
                return Err(self.violation("INV-22", tier, SlotIx::default(), detail));
            }
            if ledger.available() < 0 {
                let (free, takeable) = (ledger.free(), ledger.takeable());
                let detail = format!("{promised} promised, {free} free, {takeable} takeable");
                return Err(self.violation("INV-22", tier, SlotIx::default(), detail));
            }
        }
        Ok(())
    }

    /// What is kept is counted, whole, and pinned no higher than it must be; it has one home, below the
    /// device (INV-23, INV-34); and a set is kept as a whole (G8).
    pub(super) fn keeps(&self) -> Check {
        let mut keeps = std::collections::BTreeMap::new();
        for (_, parked) in self.parked.iter() {
            let (blocks, path) = (self.blocks_of(parked.computed), parked.path.len() as u64);
            if parked.keep == Keep::Whole && !self.config.linked && path != blocks {
                let detail = format!("a kept set has {path} blocks, and {blocks} were kept");
                return Err(self.violation("G8", Tier::DEVICE, SlotIx::default(), detail));
            }
            for (&node, at) in parked.path.iter().zip(1..) {
                *keeps.entry(node).or_insert(0_u16) += 1;
                let home = self.trie[node].keeps.home();
                let comes = self.config.engine && self.filling(node, home).is_some();
                let below = comes || self.is_home(node);
                let lost = !below && self.ready(node, Tier::DEVICE).is_none();
                if lost || (below && at == parked.on_device) || (!below && at > parked.on_device) {
                    let detail = format!(
                        "block {at} of a parked sequence, {} pinned on the device, ready below: \
                         {below}, lost: {lost}",
                        parked.on_device
                    );
                    let block = Some(self.trie[node].key);
                    return Err(Violation {
                        law: "INV-23",
                        detail,
                        slot: None,
                        block,
                    });
                }
            }
        }
        for (index, node) in self.trie.iter() {
            let kept = keeps.get(&index).copied().unwrap_or(0);
            let (told, home) = (node.keeps.count(), node.keeps.home());
            let astray = (kept > 0) != (home > Tier::DEVICE) || !self.tiers.has(home);
            if told != kept || astray || (node.is_anonymous() && kept == 0) {
                let detail = format!("{told} keeps are counted, {kept} are, at {}", home.name());
                return Err(Violation {
                    law: "INV-23",
                    detail,
                    slot: None,
                    block: Some(node.key),
                });
            }
        }
        Ok(())
    }

    /// What an ended epoch left idle goes first, is not found, and nothing keeps it (INV-24).
    pub(super) fn epochs(&self) -> Check {
        for (index, node) in self
            .trie
            .iter()
            .filter(|(_, node)| node.epoch != self.trie.epoch())
        {
            let found = self.trie.find(&node.key);
            let found = found.is_some_and(|found| self.trie[found].epoch == node.epoch);
            let kept = node.keeps.count() > 0;
            let late = self.tiers.all().find_map(|tier| {
                let slot = self.trie.slot(index, tier)?;
                let idle =
                    matches!(self.hold(tier, slot), Hold::Idle { class } if class > Class::Cleared);
                idle.then_some((tier, slot))
            });
            if found || kept || late.is_some() {
                let detail = format!("a block of an ended epoch; found: {found}, kept: {kept}");
                let (tier, slot) = late.unwrap_or((
                    Tier::DEVICE,
                    self.trie.slot(index, Tier::DEVICE).unwrap_or_default(),
                ));
                return Err(self.violation("INV-24", tier, slot, detail));
            }
        }
        Ok(())
    }

    /// What stores are deleting is what the flights say that do it (INV-42).
    pub(super) fn deletes(&self) -> Check {
        let mut told = std::collections::BTreeMap::new();
        for (_, flight) in self.flights.iter() {
            if (flight.purpose, flight.to) == (Purpose::Void, Tier::REMOTE) {
                for &key in &flight.keys {
                    *told.entry(key).or_insert(0) += 1;
                }
            }
        }
        if told == self.deleting {
            return Ok(());
        }
        let (own, told) = (self.deleting.len(), told.len());
        let detail = format!("{own} keys are being deleted, and flights delete {told}");
        Err(self.violation("INV-42", Tier::DEVICE, SlotIx::default(), detail))
    }

    /// What was forgotten is there only while something uses it, with all that stands on it; and who uses
    /// it publishes nothing (INV-42).
    pub(super) fn forgotten(&self) -> Check {
        let is_forgotten = |node| self.trie[node].epoch == FORGOTTEN;
        for (node, _) in self.trie.iter() {
            let above = self.trie.parent(node).is_some_and(is_forgotten);
            let wrong = if !is_forgotten(node) {
                above.then_some("it stands on a forgotten block, and was not forgotten")
            } else if !self.trie.forgotten().any(|listed| listed == node) {
                Some("it was forgotten, and is not known as such")
            } else {
                let used = |tier| match self.trie.slot(node, tier) {
                    Some(slot) => !self.retires(tier, slot),
                    None => true,
                };
                (!self.tiers.all().all(used)).then_some("it was forgotten, and nothing uses it")
            };
            if let Some(wrong) = wrong {
                let (tier, slot) = self.trie.highest(node).unwrap_or_default();
                return Err(self.violation("INV-42", tier, slot, wrong.to_owned()));
            }
        }
        for (lease, record) in self.leases.iter() {
            let mut nodes = record.table.iter().filter_map(|&slot| self.node_of(slot));
            if nodes.any(is_forgotten) && !self.detached(lease) {
                let detail = format!("lease {lease} uses a forgotten block, and may publish");
                return Err(self.violation("INV-42", Tier::DEVICE, SlotIx::default(), detail));
            }
        }
        Ok(())
    }
}
