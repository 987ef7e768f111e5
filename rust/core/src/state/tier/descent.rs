//! What is remembered of the blocks of one tier that are to be copied down.

use crate::base::{Id, NodeIx, Result, Tier, memory};
use crate::state::{Config, WritePolicy};
use crate::tiers::Trie;
use std::collections::{BTreeMap, VecDeque};

#[derive(Hash, Debug, Default)]
pub(crate) struct Descent {
    /// Blocks that came and were not copied down yet, under [`WritePolicy::Through`].
    fresh: VecDeque<Id<NodeIx>>,
    /// How often the copy down of a block has failed since one was good.
    failures: BTreeMap<Id<NodeIx>, u32>,
    /// Whether the end of a path was passed over because what is before it could not be copied.
    cut: bool,
    /// Whether no block is written to this tier: it is read alone.
    pub(super) reads_alone: bool,
    pub(crate) speed: Speed,
}

impl Descent {
    pub(super) fn new(config: &Config, tier: Tier) -> Result<Self> {
        let mut descent = Self {
            reads_alone: tier == Tier::REMOTE && !config.remote_writes,
            ..Self::default()
        };
        descent.reserve(config, tier, config.slots[tier.at()] as usize)?;
        Ok(descent)
    }

    /// Makes room for all that may have come to a tier of that many slots, where it is told in that
    /// order.
    pub(super) fn reserve(&mut self, config: &Config, tier: Tier, slots: usize) -> Result<()> {
        if config.write_of(tier) != WritePolicy::Through {
            return Ok(());
        }
        let more = slots.saturating_sub(self.fresh.len());
        let had = self.fresh.try_reserve_exact(more);
        had.map_err(|_| memory::lacking::<Id<NodeIx>>("what was published last", slots))
    }

    /// A block came. Where no copy down ever comes, the oldest beyond `most` are forgotten.
    #[inline]
    pub(super) fn note_fresh(&mut self, id: Id<NodeIx>, most: usize) {
        if self.fresh.len() >= most {
            self.fresh.pop_front();
        }
        self.fresh.push_back(id);
    }

    /// The block that came first.
    pub(crate) fn first_fresh(&self) -> Option<Id<NodeIx>> {
        self.fresh.front().copied()
    }

    pub(crate) fn take_fresh(&mut self) -> Option<Id<NodeIx>> {
        self.fresh.pop_front()
    }

    /// It stays the first.
    pub(crate) fn put_back(&mut self, id: Id<NodeIx>) {
        self.fresh.push_front(id);
    }

    /// A copy of the block is good. Whether one had failed.
    pub(super) fn succeed(&mut self, id: Id<NodeIx>) -> bool {
        self.failures.remove(&id).is_some()
    }

    /// A copy of the block has failed; of more blocks than `most` those are forgotten that are gone.
    pub(super) fn fail(&mut self, id: Id<NodeIx>, most: usize, trie: &Trie) {
        if self.failures.len() > most {
            self.failures.retain(|&id, _| trie.live(id).is_some());
        }
        let failures = self.failures.entry(id).or_default();
        *failures = failures.saturating_add(1);
    }

    /// Whether copies of a block have failed more often than this since one was good.
    #[inline]
    pub(crate) fn exceeds(&self, retries: u32, id: impl FnOnce() -> Id<NodeIx>) -> bool {
        let failures = || self.failures.get(&id()).copied();
        !self.failures.is_empty() && failures().is_some_and(|failures| failures > retries)
    }

    /// The end of a path was passed over.
    pub(crate) fn cut(&mut self) {
        self.cut = true;
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    pub(super) fn take_cut(&mut self) -> bool {
        std::mem::take(&mut self.cut)
    }
}

/// How fast blocks go down, in looks ahead.
#[derive(Hash, Debug, Default)]
pub(crate) struct Speed {
    /// Blocks that land from one look to the next.
    pub(crate) blocks: u32,
    /// How many were on their way after the last look, and looks since some have landed.
    pub(crate) flying: u32,
    looks: u32,
    /// Whether none were at the last look, before it.
    idle: bool,
}

impl Speed {
    /// So many are on their way now. Whether none are, and none were at the last look.
    pub(crate) fn look(&mut self, flying: u32) -> bool {
        let rested = std::mem::replace(&mut self.idle, flying == 0) && flying == 0;
        self.looks += u32::from(self.flying > 0);
        let landed = self.flying.saturating_sub(flying);
        if landed > 0 {
            let seen = landed.div_ceil(self.looks);
            // Few that land at once do not say that more would not.
            let more = self.looks == 1 && flying == 0;
            self.blocks = if more { self.blocks.max(seen) } else { seen };
            self.looks = 0;
        }
        rested
    }
}
