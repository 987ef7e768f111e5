//! Keep: what protects the one copy that a parked block must not lose (INV-23, INV-34).
//!
//! A kept block has a home, one tier below the device. Each keeper pins its copy there if that is
//! ready. Without one, the tier owes it a slot: promised once per block, however many keep it. The
//! device copies of a path stay pinned up to the last block without a copy at home, so that pins on
//! the device stay closed to the root.

use super::State;
use super::record::Keep;
use crate::base::{MAX_TIERS, NodeIx, ParkedIx, Tier};
use crate::tiers::{Hold, KeepCount};

/// Where the blocks of a sequence are kept that no other one keeps yet.
#[derive(Clone, Copy)]
pub(super) struct Homes {
    /// The tier of those that have no copy below.
    pub(super) tier: Tier,
    /// Whether the others are kept there too, or each where its lowest copy is.
    pub(super) only: bool,
}

impl State {
    /// Keepers of a block whose home is this tier.
    pub(super) fn keeps_at(&self, node: NodeIx, tier: Tier) -> u32 {
        let keeps = self.trie[node].keeps;
        if keeps.home() == tier {
            keeps.count().into()
        } else {
            0
        }
    }

    /// Whether this tier, the home of a kept block, owes it a slot.
    pub(super) fn is_owed(&self, node: NodeIx, tier: Tier) -> bool {
        self.keeps_at(node, tier) > 0 && self.trie.slot(node, tier).is_none()
    }

    /// Whether a kept block is ready at its home.
    pub(super) fn is_home(&self, node: NodeIx) -> bool {
        self.ready(node, self.trie[node].keeps.home()).is_some()
    }

    /// The lowest tier below the device that has a ready copy of a block. A store may lose what it has, so
    /// that no name there counts as one.
    pub(super) fn lowest(&self, node: NodeIx) -> Option<Tier> {
        let mut lasting = self.tiers.lasting().rev();
        lasting.find(|&tier| self.ready(node, tier).is_some())
    }

    /// The tiers below the device that may be a home, from the top, and stores last: only where there are some,
    /// and what they lose can be computed again.
    pub(super) fn home_tiers(&self) -> impl Iterator<Item = Tier> + use<> {
        let weak = self.config.recompute && self.tiers.writes(Tier::REMOTE);
        let below = self.tiers.below(Tier::DEVICE);
        below.filter(move |&tier| tier != Tier::REMOTE || weak)
    }

    /// Whether a tier has a block by hearsay alone: no home, as no copy there was ever acknowledged.
    pub(super) fn is_hearsay(&self, node: NodeIx, tier: Tier) -> bool {
        let slot = self.ready(node, tier);
        slot.is_some_and(|slot| self.tiers[tier].is_unproven(slot))
    }

    /// The home that a block would have, which none keeps yet.
    fn home_among(&self, node: NodeIx, homes: Homes) -> Tier {
        let lowest = if homes.only { None } else { self.lowest(node) };
        lowest.unwrap_or(homes.tier)
    }

    /// How many slots of each tier parking these published blocks would take or promise: slots that
    /// are owed, and those that cannot be taken any more, because they are pinned or stand above a
    /// pinned one. On the tier of `homes`, where that is the only one, these are no more than blocks.
    /// `None`: too many keep one of them.
    // Within a park its loop has too few registers.
    #[inline(never)]
    pub(super) fn keep_cost(&self, path: &[NodeIx], homes: Homes) -> Option<[u64; MAX_TIERS]> {
        let mut costs = [0; MAX_TIERS];
        if homes.tier == Tier::REMOTE {
            costs[Tier::REMOTE.at()] = self.hearsay_cost(path, homes);
        }
        let mut above = [false; MAX_TIERS];
        for &node in path.iter().rev() {
            let keeps = self.trie[node].keeps.count();
            let new = keeps == 0;
            if keeps == KeepCount::MOST {
                return None;
            }
            if !self.is_below(node, Tier::DEVICE) {
                costs[homes.tier.at()] += u64::from(new);
                above = [false; MAX_TIERS];
                continue;
            }
            let own = new.then(|| self.home_among(node, homes));
            if let Some(own) = own.filter(|&own| self.trie.slot(node, own).is_none()) {
                costs[own.at()] += 1;
            }
            for tier in self.tiers.below(Tier::DEVICE) {
                let slot = self.trie.slot(node, tier);
                let pinned = own == Some(tier) && self.ready(node, tier).is_some();
                above[tier.at()] = slot.is_some() && (above[tier.at()] || pinned);
                let blocks = above[tier.at()] && slot.is_some_and(|slot| self.takeable(tier, slot));
                costs[tier.at()] += u64::from(blocks);
            }
        }
        Some(costs)
    }

    /// What a store would owe for blocks that are there by hearsay alone: they have no slot there to be copied
    /// to, and none that can be had.
    #[cold]
    fn hearsay_cost(&self, path: &[NodeIx], homes: Homes) -> u64 {
        let hearsay = |&&node: &&NodeIx| {
            let new = self.trie[node].keeps.count() == 0;
            new && self.home_among(node, homes) == Tier::REMOTE
                && self.is_hearsay(node, Tier::REMOTE)
        };
        let never = u64::from(self.tiers[Tier::REMOTE].pool().len()) + 1;
        path.iter().filter(hearsay).count() as u64 * never
    }

    /// Makes a record keep its path. Its pins on the device are the caller's to make.
    pub(super) fn keep(&mut self, parked: ParkedIx, homes: Homes) {
        let path = std::mem::take(&mut self.parked[parked].path);
        let (mut on_device, mut owed) = (0, 0);
        for (&node, at) in path.iter().zip(1_u32..) {
            let new = self.trie[node].keeps.count() == 0;
            if new && !self.is_below(node, Tier::DEVICE) {
                owed += 1;
                on_device = at;
                self.trie[node].keeps = KeepCount::one(homes.tier);
                continue;
            }
            if new {
                let own = self.home_among(node, homes);
                self.trie[node].keeps = KeepCount::default().at(own);
                let lacks = self.trie.slot(node, own).is_none();
                self.tiers[own].promise(u32::from(lacks));
            }
            let own = self.trie[node].keeps.home();
            match self.ready(node, own) {
                Some(slot) => self.pin(own, slot),
                None => on_device = at,
            }
            self.trie[node].keeps.gain();
        }
        self.tiers[homes.tier].promise(owed);
        let record = &mut self.parked[parked];
        (record.path, record.on_device) = (path, on_device);
    }

    /// A kept block has a copy on this tier now, which its keepers pin: they let go of what it has,
    /// or is owed, where it was kept before.
    pub(super) fn move_home(&mut self, node: NodeIx, to: Tier) {
        let keeps = self.trie[node].keeps;
        let from = keeps.home();
        let owed = self.is_owed(node, from);
        self.trie[node].keeps = keeps.at(to);
        if owed {
            self.tiers[from].release(1);
        } else if let Some(slot) = self.ready(node, from) {
            for _ in 0..keeps.count() {
                self.unpin(from, slot);
            }
        }
    }

    /// Ends a record: its keeps go, deepest block first; anonymous blocks of it dissolve.
    pub(super) fn end_keep(&mut self, parked: ParkedIx) {
        self.unkeep(parked);
        self.parked.remove(parked);
    }

    /// Takes the keeps of a record away, all of them. Its sequence is computed again when it resumes.
    pub(super) fn break_keep(&mut self, parked: ParkedIx) {
        if self.parked[parked].keep == Keep::Whole {
            self.counters.broken += 1;
            self.give_keep_up(parked);
        }
    }

    pub(super) fn give_keep_up(&mut self, parked: ParkedIx) {
        self.parked[parked].keep = Keep::Broken;
        self.unkeep(parked);
    }

    /// Breaks keeps, youngest first, until a lower tier's promises are backed again. They are then,
    /// tickets' too: only a verb that has checked takes a slot there, and the one promise made
    /// without a check is that of a kept block whose copy to its home has failed.
    pub(super) fn break_unbacked(&mut self, tier: Tier) {
        if self.tiers[tier].ledger().available() >= 0 {
            return;
        }
        for parked in self.keepers_on(tier) {
            if self.tiers[tier].ledger().available() >= 0 {
                break;
            }
            self.break_keep(parked);
        }
        debug_assert!(self.tiers[tier].ledger().available() >= 0);
    }

    /// The whole records that keep something on the tier, the youngest first. They stay so until they
    /// are broken, whatever others are.
    pub(super) fn keepers_on(&self, tier: Tier) -> Vec<ParkedIx> {
        let holds = |path: &[NodeIx]| path.iter().any(|&node| self.keeps_at(node, tier) > 0);
        let mut keepers = self.youngest_first();
        keepers.retain(|&parked| {
            let record = &self.parked[parked];
            record.keep == Keep::Whole && (tier == Tier::DEVICE || holds(&record.path))
        });
        keepers
    }

    fn unkeep(&mut self, parked: ParkedIx) {
        self.unkeep_from(parked, 0);
    }

    /// Takes the keeps of its blocks from this one on away, the deepest first.
    pub(super) fn unkeep_from(&mut self, parked: ParkedIx, first: usize) {
        let record = &mut self.parked[parked];
        let path = record.path.split_off(first);
        let on_device = std::mem::take(&mut record.on_device) as usize;
        for (at, &node) in path.iter().enumerate().rev() {
            let held = self
                .trie
                .slot(node, Tier::DEVICE)
                .filter(|_| at < on_device);
            let block = &mut self.trie[node];
            let (home, last) = (block.keeps.home(), block.keeps.count() == 1);
            block.keeps.lose();
            let dissolves = last && block.is_anonymous();
            let below = self.trie.slot(node, home);
            if below.is_none() && last {
                self.tiers[home].release(1);
            }
            if dissolves {
                self.dissolve(node, u32::from(at < on_device));
                continue;
            }
            let below = below.filter(|&slot| self.hold(home, slot).is_ready());
            if let Some(slot) = held {
                self.unpin(Tier::DEVICE, slot);
            }
            if let Some(slot) = below {
                self.unpin(home, slot);
            }
        }
    }

    /// Ends an anonymous block. Its copies below are freed; one in flight is abandoned, since
    /// the engine may write its source. Its device slot stays with the leases that hold it.
    fn dissolve(&mut self, node: NodeIx, kept: u32) {
        for tier in self.tiers.all().rev() {
            let Some(slot) = self.trie.slot(node, tier) else {
                continue;
            };
            if let Hold::Idle { .. } = self.hold(tier, slot) {
                self.pin(tier, slot);
                self.detach(node, tier);
                self.tiers[tier].free(slot);
                continue;
            }
            self.detach(node, tier);
            match self.hold(tier, slot) {
                Hold::Pinned { pins } if tier == Tier::DEVICE && pins > kept => {
                    self.tiers[tier].put(
                        slot,
                        Hold::Owned {
                            leases: pins - kept,
                        },
                    );
                }
                Hold::Pinned { .. } => self.tiers[tier].free(slot),
                // In flight: its flight frees it, or lands it as a lease's private block.
                _ => {}
            }
        }
        self.trie.remove(node);
    }

    /// Kept blocks have become ready at home: device copies that only held the path are unpinned.
    pub(super) fn shrink_keeps(&mut self) {
        let holding = self
            .parked
            .iter()
            .filter(|(_, parked)| parked.on_device > 0);
        let all: Vec<ParkedIx> = holding.map(|(index, _)| index).collect();
        for parked in all {
            self.shrink_keep(parked);
        }
    }

    /// The same for one record.
    pub(super) fn shrink_keep(&mut self, parked: ParkedIx) {
        while let Some(last) = self.parked[parked].on_device.checked_sub(1) {
            let node = self.parked[parked].path[last as usize];
            if !self.is_home(node) {
                break;
            }
            self.parked[parked].on_device = last;
            if let Some(slot) = self.trie.slot(node, Tier::DEVICE) {
                self.unpin(Tier::DEVICE, slot);
            }
        }
    }
}
