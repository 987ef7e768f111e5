//! The audit: everything that is counted or linked is computed again from what is held, by the
//! definitions of the laws, and compared. It may be called at any moment.

mod order;
mod promises;
mod slots;

use super::{State, TierState};
use crate::base::{Ix, Key, Link, Slot, SlotIx, Tier};
use crate::tiers::Hold;
use std::fmt;

/// The first law found broken. There is none unless Blockyard has a bug.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Its name.
    pub law: &'static str,
    /// What was found and what should have been.
    pub detail: String,
    /// Where.
    pub slot: Option<Slot>,
    /// The block's key; `None` for an anonymous or private block.
    pub block: Option<Key>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.detail)?;
        if let Some(slot) = self.slot {
            write!(f, ", {} slot {}", slot.tier.name(), slot.index)?;
        }
        if let Some(key) = self.block {
            write!(f, ", block {key:?}")?;
        }
        Ok(())
    }
}

type Check = Result<(), Violation>;

/// Holders of each slot, counted from the records.
struct Holders {
    /// Tables of leases, running, ended and held back, and of holds, plus duplicates and keeps.
    pins: Vec<Vec<u32>>,
    readers: Vec<Vec<u32>>,
    /// Destinations in flight, overdue ones included.
    written: Vec<Vec<u32>>,
}

impl State {
    /// Checks INV-1, 3, 6, 14, 20, 22 to 24, 33, 34, 36a, 36b, 39 and 40, R2-11, E1, G4, G8, and O1.
    pub fn audit(&self) -> Option<Violation> {
        self.laws().err()
    }

    /// Whether the slot holds a block that may be read: what a test cannot learn from outside.
    #[doc(hidden)]
    pub fn holds_block(&self, tier: Tier, slot: u32) -> bool {
        self.tiers[tier]
            .pool()
            .cell(SlotIx::new(slot))
            .hold
            .is_ready()
    }

    /// The blocks that are ready on a tier: the slot of each, its number, which is never another's, and what
    /// stands for its key. What a test cannot learn from outside.
    #[doc(hidden)]
    pub fn blocks_on(&self, tier: Tier) -> Vec<(u32, u64, Key)> {
        let cells = self.tiers[tier].pool().cells();
        let ready = cells.filter(|(_, cell)| cell.hold.is_ready());
        let blocks = ready.filter_map(|(slot, cell)| Some((slot, cell.node?.at())));
        blocks
            .map(|(slot, node)| {
                let key = self.trie.carried_key(node);
                (slot.get(), self.trie.id(node).number(), key)
            })
            .collect()
    }

    /// Blocks that walks towards the root have passed so far, where a verb's work may grow faster
    /// than what it is told; 0 in a release, which does not count.
    #[doc(hidden)]
    pub fn climbed(&self) -> u64 {
        self.climbed
    }

    fn laws(&self) -> Check {
        let holders = self.count_holders()?;
        for tier in self.tiers.all() {
            self.conserved(tier)?;
            for slot in self.tiers[tier].pool().slots() {
                self.held_rightly(tier, slot, &holders)?;
                self.given_out_by_the_engine(tier, slot)?;
                self.resident(tier, slot)?;
                self.fenced(tier, slot, &holders)?;
            }
            self.budget(tier)?;
            self.ordered(tier)?;
        }
        for (index, node) in self.trie.iter() {
            self.monotone(index, node)?;
        }
        self.indexed()?;
        self.reachable()?;
        self.counted()?;
        self.in_the_air()?;
        self.believed()?;
        self.loading()?;
        self.held()?;
        self.promises()?;
        self.keeps()?;
        self.epochs()?;
        self.audit_events()?;
        self.deletes()?;
        self.forgotten()
    }

    fn violation(&self, law: &'static str, tier: Tier, slot: SlotIx, detail: String) -> Violation {
        let place = Slot {
            group: self.config.group,
            tier,
            index: slot.get(),
        };
        let node = (slot.get() < self.tiers[tier].pool().len())
            .then(|| self.node_in(tier, slot))
            .flatten()
            .filter(|&node| self.trie.alive(node));
        let block = node
            .filter(|&node| !self.trie[node].is_anonymous())
            .map(|n| self.trie[n].key);
        Violation {
            law,
            detail,
            slot: Some(place),
            block,
        }
    }

    fn count_holders(&self) -> Result<Holders, Violation> {
        let zeros = || {
            let slots = |tier_state: &TierState| vec![0; tier_state.pool().len() as usize];
            self.tiers.iter().map(slots).collect::<Vec<Vec<u32>>>()
        };
        let (mut pins, mut readers, mut written) = (zeros(), zeros(), zeros());
        let running = self.leases.iter().map(|(_, lease)| &lease.table);
        let held = self.held.iter().map(|held| &held.table);
        for &slot in running.chain(held).flatten() {
            pins[0][slot.at()] += 1;
        }
        let holdings = self.holdings.iter().map(|(_, holding)| &holding.table);
        for &slot in holdings.flatten() {
            pins[self.held_tier().at()][slot.at()] += 1;
        }
        for (slot, cell) in self.tiers[Tier::DEVICE].pool().cells() {
            if !matches!(cell.hold, Hold::Duplicate { .. }) {
                continue;
            }
            let published = cell.node.map(Link::at).filter(|&n| self.trie.alive(n));
            let Some(published) = published.and_then(|node| self.trie.slot(node, Tier::DEVICE))
            else {
                let detail = "the published block beside this duplicate is gone".to_owned();
                return Err(self.violation("INV-3", Tier::DEVICE, slot, detail));
            };
            pins[0][published.at()] += 1;
        }
        for (_, parked) in self.parked.iter() {
            for (at, &node) in parked.path.iter().enumerate() {
                if let Some(slot) = self
                    .trie
                    .slot(node, Tier::DEVICE)
                    .filter(|_| at < parked.on_device as usize)
                {
                    pins[0][slot.at()] += 1;
                }
                let home = self.trie[node].keeps.home();
                if let Some(slot) = self.ready(node, home).filter(|_| home > Tier::DEVICE) {
                    pins[home.at()][slot.at()] += 1;
                }
            }
        }
        for (_, flight) in self.flights.iter() {
            let reads = u32::from(flight.reads);
            for step in &flight.moves {
                readers[flight.from.at()][step.from.at()] += reads;
                written[flight.to.at()][step.to.at()] += 1;
            }
        }
        Ok(Holders {
            pins,
            readers,
            written,
        })
    }
}
