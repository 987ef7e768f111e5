//! Keeps: what protects the one copy that a parked block must not lose (INV-23).
//!
//! Of a block that is kept, each keeper pins the host copy if it is ready. Without one, the host
//! owes a slot: promised once per block, however many keep it. The device copies of a path stay
//! pinned up to the last block without a copy below, so that pins stay closed to the root.

use super::State;
use crate::id::{NodeIx, ParkedIx, Tier};
use crate::pool::Hold;
use crate::record::Keep;

impl State {
    /// How many slots of the host parking these published blocks would take or promise.
    pub(super) fn keep_cost(&self, path: impl Iterator<Item = NodeIx>) -> u64 {
        path.map(|node| match self.ready(node, Tier::HOST) {
            Some(slot) => u64::from(self.takeable(Tier::HOST, slot)),
            None => u64::from(self.owes_host(node, 0)),
        })
        .sum()
    }

    /// Whether the host owes this block a slot, where `keeps` records keep it.
    fn owes_host(&self, node: NodeIx, keeps: u16) -> bool {
        self.trie[node].keeps == keeps && self.trie.slot(node, Tier::HOST).is_none()
    }

    /// Makes a record keep its path.
    pub(super) fn keep(&mut self, parked: ParkedIx) {
        let path = std::mem::take(&mut self.parked[parked].path);
        let mut on_device = 0;
        for (&node, at) in path.iter().zip(1_u32..) {
            if let Some(slot) = self.ready(node, Tier::HOST) {
                self.pin(Tier::HOST, slot);
            } else {
                on_device = at;
                let owed = u32::from(self.owes_host(node, 0));
                self.tiers[Tier::HOST].ledger.promise(owed);
            }
            self.trie[node].keeps += 1;
        }
        for &node in &path[..on_device as usize] {
            if let Some(slot) = self.trie.slot(node, Tier::DEVICE) {
                self.pin(Tier::DEVICE, slot);
            }
        }
        let record = &mut self.parked[parked];
        (record.path, record.on_device) = (path, on_device);
    }

    /// Ends a record: its keeps go, deepest block first; anonymous blocks of it dissolve.
    pub(super) fn end_keep(&mut self, parked: ParkedIx) {
        self.unkeep(parked);
        self.parked.remove(parked);
    }

    /// Takes the keeps of a record away, all of them. Its sequence is computed again when it resumes.
    pub(super) fn break_keep(&mut self, parked: ParkedIx) {
        if self.parked[parked].keep == Keep::Whole {
            self.parked[parked].keep = Keep::Broken;
            self.counters.broken += 1;
            self.unkeep(parked);
        }
    }

    /// Breaks keeps, youngest first, until the host's promises are backed again. They are then,
    /// tickets' too: only a verb that has checked takes a slot of the host, and the one promise made
    /// without a check is that of a kept block whose copy down has failed.
    pub(super) fn break_unbacked(&mut self) {
        while self.tiers[Tier::HOST].ledger.available() < 0 && self.break_youngest() {}
        debug_assert!(self.tiers[Tier::HOST].ledger.available() >= 0);
    }

    /// Breaks the youngest keep; `false`: there is none.
    pub(super) fn break_youngest(&mut self) -> bool {
        let youngest = self
            .parked
            .iter()
            .filter(|(_, parked)| parked.keep == Keep::Whole)
            .max_by_key(|(_, parked)| parked.order)
            .map(|(index, _)| index);
        if let Some(parked) = youngest {
            self.break_keep(parked);
        }
        youngest.is_some()
    }

    fn unkeep(&mut self, parked: ParkedIx) {
        let record = &mut self.parked[parked];
        let path = std::mem::take(&mut record.path);
        let on_device = std::mem::take(&mut record.on_device) as usize;
        for (at, &node) in path.iter().enumerate().rev() {
            let owed = self.owes_host(node, 1);
            self.trie[node].keeps -= 1;
            if owed {
                self.tiers[Tier::HOST].ledger.release(1);
            }
            if self.trie[node].is_anonymous() && self.trie[node].keeps == 0 {
                self.dissolve(node, u32::from(at < on_device));
                continue;
            }
            let below = self.ready(node, Tier::HOST);
            if at < on_device
                && let Some(slot) = self.trie.slot(node, Tier::DEVICE)
            {
                self.unpin(Tier::DEVICE, slot);
            }
            if let Some(slot) = below {
                self.unpin(Tier::HOST, slot);
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
                self.free(tier, slot);
                continue;
            }
            self.detach(node, tier);
            match self.hold(tier, slot) {
                Hold::Pinned { pins } if tier == Tier::DEVICE && pins > kept => {
                    self.put(
                        tier,
                        slot,
                        Hold::Owned {
                            leases: pins - kept,
                        },
                    );
                }
                Hold::Pinned { .. } => self.free(tier, slot),
                // In flight: its flight frees it, or lands it as a lease's private block.
                _ => {}
            }
        }
        self.trie.remove(node);
    }

    /// Kept blocks have become ready below: device copies that only held the path are unpinned.
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
            if self.ready(node, Tier::HOST).is_none() {
                break;
            }
            self.parked[parked].on_device = last;
            if let Some(slot) = self.trie.slot(node, Tier::DEVICE) {
                self.unpin(Tier::DEVICE, slot);
            }
        }
    }
}
