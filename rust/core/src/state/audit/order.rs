//! Order and paths: INV-20, 21 and 39.

use super::{Check, Violation};
use crate::base::{Class, Ix, MAX_TIERS, NodeIx, SlotIx, Tier};
use crate::state::State;
use crate::tiers::{Hold, Node};

impl State {
    /// The order holds all idle blocks, child before parent; pins are closed to the root (INV-20).
    pub(super) fn ordered(&self, tier: Tier) -> Check {
        let tier_state = &self.tiers[tier];
        let places = self.places(tier);
        for (slot, cell) in tier_state.pool().cells() {
            let idle = matches!(cell.hold, Hold::Idle { .. });
            if tier_state.order().holds(slot) != idle {
                let detail = format!("it is {:?}; in the order: {}", cell.hold, !idle);
                return Err(self.violation("INV-20", tier, slot, detail));
            }
            if idle
                && !tier_state
                    .order()
                    .agrees(slot, self.evictability_of(tier, slot))
            {
                let detail = format!(
                    "the order does not know that it is {:?}",
                    self.evictability_of(tier, slot)
                );
                return Err(self.violation("INV-20", tier, slot, detail));
            }
            let Some(node) = self.node_in(tier, slot) else {
                continue;
            };
            self.classed(node, tier, slot)?;
            // What a higher tier has needs none until it is dropped there, and is looked at again then.
            let class = Class::Copied;
            let spare = cell.hold == Hold::Idle { class };
            if tier_state.order().seen(slot) && !spare && self.should_be_below(node, tier) {
                let detail = "a copy ahead passes it over, and it has none below".to_owned();
                return Err(self.violation("INV-20", tier, slot, detail));
            }
            if let Some(above) = self.parent_slot(tier, slot) {
                self.stands_before(tier, slot, above, places.as_deref())?;
            }
        }
        Ok(())
    }

    /// A block and its parent may both be as they are, and a child stands before it.
    fn stands_before(
        &self,
        tier: Tier,
        slot: SlotIx,
        above: SlotIx,
        places: Option<&[u32]>,
    ) -> Check {
        let hold = self.hold(tier, slot);
        let idle = matches!(hold, Hold::Idle { .. });
        match self.hold(tier, above) {
            Hold::Idle { class } => {
                let blocks = tier > Tier::DEVICE
                    && matches!(hold, Hold::Filling { .. } | Hold::Pinned { .. });
                if !idle && !blocks {
                    let detail = format!("it is {hold:?}, and its parent is idle");
                    return Err(self.violation("INV-20", tier, slot, detail));
                }
                let after = |places: &[u32]| places[slot.at()] >= places[above.at()];
                let behind = idle && places.is_some_and(after);
                let own = match hold {
                    Hold::Idle { class } => class,
                    _ => Class::Cleared,
                };
                // A copy of what the device has may wait for what the host alone has; and an orphan for one
                // that is not known as such before the next dispatch.
                let torn = self.orphans.torn && !self.config.engine;
                let waits = class == Class::Copied || (class == Class::Cleared && torn);
                if behind || (own > class && !waits) {
                    let detail = format!("it stands behind its parent in slot {above}");
                    return Err(self.violation("INV-20", tier, slot, detail));
                }
            }
            Hold::Filling { .. } if idle && tier == Tier::DEVICE => {
                let detail = "it is idle, and its parent is still filling".to_owned();
                return Err(self.violation("INV-20", tier, slot, detail));
            }
            _ => {}
        }
        Ok(())
    }

    /// The place of each idle slot in the order, where that says which goes first.
    fn places(&self, tier: Tier) -> Option<Vec<u32>> {
        let tier_state = &self.tiers[tier];
        tier_state.order().warms().then(|| {
            let mut slots = Vec::new();
            tier_state.front(usize::MAX, &self.usages, &mut slots);
            let mut places = vec![0; tier_state.pool().len() as usize];
            for (place, slot) in (0..).zip(slots) {
                places[slot.at()] = place;
            }
            places
        })
    }

    /// An idle copy stands with the copies while the device has its block, and only then (INV-20d).
    fn classed(&self, node: NodeIx, tier: Tier, slot: SlotIx) -> Check {
        let Hold::Idle { class } = self.hold(tier, slot) else {
            return Ok(());
        };
        let ended = self.trie[node].epoch != self.trie.epoch();
        // What an engine has on its own device is not known.
        if tier == Tier::DEVICE || ended || self.config.engine {
            return Ok(());
        }
        let above = self.ready(node, Tier::DEVICE).is_some();
        if above != matches!(class, Class::Copied | Class::Shadow) {
            let detail = format!("it is {class:?}, and the device has it: {above}");
            return Err(self.violation("INV-20d", tier, slot, detail));
        }
        Ok(())
    }

    /// The children of each block, and the busy ones, are as many as are counted (INV-20).
    pub(super) fn counted(&self) -> Check {
        let mut families = std::collections::BTreeMap::new();
        for (index, _) in self.trie.iter() {
            let Some(parent) = self.trie.parent(index) else {
                continue;
            };
            let family = families
                .entry(parent)
                .or_insert([(0_u32, 0_u32); MAX_TIERS]);
            for (tier, (children, busy)) in (0..).map(Tier).zip(family.iter_mut()) {
                *children += u32::from(self.trie.slot(index, tier).is_some());
                *busy += u32::from(self.busy_by_definition(index, tier));
            }
        }
        for (index, _) in self.trie.iter() {
            let family = families.get(&index).copied().unwrap_or_default();
            for (tier, found) in (0..).map(Tier).zip(family) {
                let residency = *self.trie.residency(index, tier);
                if (residency.children, residency.busy) != found {
                    let told = (residency.children, residency.busy);
                    let detail =
                        format!("{told:?} children and busy ones are counted, not {found:?}");
                    let slot = self.trie.slot(index, tier).unwrap_or_default();
                    return Err(self.violation(
                        "INV-20",
                        self.tiers
                            .all()
                            .next_back()
                            .map_or(tier, |last| tier.min(last)),
                        slot,
                        detail,
                    ));
                }
            }
        }
        Ok(())
    }

    fn busy_by_definition(&self, node: NodeIx, tier: Tier) -> bool {
        let Some(slot) = self.trie.slot(node, tier) else {
            return false;
        };
        let cell = self.tiers[tier].pool().cell(slot);
        let held = matches!(cell.hold, Hold::Filling { .. } | Hold::Pinned { .. });
        cell.readers > 0
            || (tier > Tier::DEVICE && held)
            || self.trie.residency(node, tier).busy > 0
    }

    /// What has a key is found by it, and the index names nothing else (INV-3).
    pub(super) fn indexed(&self) -> Check {
        let mut named = 0;
        for (index, node) in self.trie.iter().filter(|(_, node)| !node.is_anonymous()) {
            named += 1;
            let found = self.trie.find(&node.key);
            if node.epoch == self.trie.epoch() && found != Some(index) {
                let (tier, slot) = self.trie.highest(index).unwrap_or_default();
                let detail = format!("by its key block {found:?} is found, and it is {index}");
                return Err(self.violation("INV-3", tier, slot, detail));
            }
        }
        let indexed = self.trie.indexed();
        if named != indexed {
            let detail = format!("the index names {indexed} blocks, and {named} have a key");
            return Err(self.violation("INV-3", Tier::DEVICE, SlotIx::default(), detail));
        }
        Ok(())
    }

    /// A copy whose prefix is nowhere goes before all others of its tier, and no other goes with it, after the
    /// next dispatch at the latest (INV-39).
    pub(super) fn reachable(&self) -> Check {
        if self.orphans.torn {
            return Ok(());
        }
        let mut found = Ok(());
        self.each_prefix(|node, orphan| {
            for tier in self.tiers.below(Tier::DEVICE) {
                if let Some(slot) = self.trie.slot(node, tier)
                    && let Hold::Idle { class } = self.hold(tier, slot)
                    && orphan != (class == Class::Cleared)
                    && found.is_ok()
                {
                    let detail = format!("its prefix is nowhere: {orphan}, and it is {class:?}");
                    found = Err(self.violation("INV-39", tier, slot, detail));
                }
            }
        });
        found
    }

    /// The parent of a block that the device has is there too (INV-33), and where blocks are not linked
    /// none has a parent (G4).
    pub(super) fn monotone(&self, index: NodeIx, node: &Node) -> Check {
        if node.parent.is_some() && !self.config.linked {
            let (tier, slot) = self.trie.highest(index).unwrap_or_default();
            let detail = "it stands on another block, and is of a set".to_owned();
            return Err(self.violation("G4", tier, slot, detail));
        }
        for tier in self.tiers.all() {
            let Some(slot) = self.trie.slot(index, tier) else {
                continue;
            };
            if self.node_in(tier, slot) != Some(index) {
                let detail = "a block says that it is here, and the slot has another".to_owned();
                return Err(self.violation("INV-3", tier, slot, detail));
            }
        }
        let Some((own, slot)) = self.trie.highest(index) else {
            let detail = format!("block {index} is in the trie and on no tier");
            return Err(Violation {
                law: "INV-3",
                detail,
                slot: None,
                block: Some(node.key),
            });
        };
        let parent = self.trie.parent(index);
        let above = parent.is_some_and(|parent| self.trie.slot(parent, Tier::DEVICE).is_some());
        if own == Tier::DEVICE && node.parent.is_some() && !above {
            let detail = "it is on the device, and its parent is not".to_owned();
            return Err(self.violation("INV-33", own, slot, detail));
        }
        Ok(())
    }
}
