//! Probe: how much of a prefix is where. It changes nothing, not even recency.

use super::State;
use crate::id::{FlightId, Key, MAX_TIERS};

/// Why a prefix ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stop {
    /// All of it was found.
    #[default]
    Whole,
    /// The next block is nowhere.
    Missing,
    /// The next block is in the air.
    Filling(FlightId),
    /// Loading the next block was not worth it: the caller's bound, or the configured speeds.
    Slow,
    /// The next block, or loading it, would use what is promised to others.
    Promised,
    /// The next key has another parent: keys given ready contradict each other.
    Contradiction,
}

/// What a probe found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Probe {
    /// Blocks of the prefix per tier, the device first; each is counted on its highest tier.
    pub hits: [u32; MAX_TIERS],
    /// Why it ended.
    pub stop: Stop,
    /// Whether the first missing block was there once and was dropped, as far as is remembered;
    /// `None` where no ghosts are kept, or nothing is missing.
    pub evicted: Option<bool>,
}

impl State {
    /// Walks the keys from the root, leaving the nodes found in `self.path`. The device's blocks
    /// come before those only below (INV-21), and only one lower tier is entered.
    pub(super) fn walk(&mut self, keys: &[Key]) -> Probe {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let mut probe = Probe::default();
        let mut tier = 0;
        let mut parent = None;
        for key in keys {
            let Some(node) = self.trie.find(key) else {
                probe.stop = Stop::Missing;
                break;
            };
            let found = &self.trie[node];
            let alive = found.parent.and_then(|id| self.trie.live(id));
            let consistent = found.parent.is_some() == parent.is_some()
                && alive.is_none_or(|alive| Some(alive) == parent);
            let orphan = parent.is_some() && alive.is_none();
            // Living parents are each met once; only an orphan can come again.
            if !consistent || (orphan && path.contains(&node)) {
                probe.stop = Stop::Contradiction;
                break;
            }
            if orphan && self.is_read(node) {
                probe.stop = Stop::Promised;
                break;
            }
            let Some(top) = (0..self.tiers.len()).find(|&tier| found.slot(tier).is_some()) else {
                probe.stop = Stop::Missing;
                break;
            };
            if let Some(flight) = self.filling(node, top) {
                probe.stop = Stop::Filling(FlightId(self.flights.id(flight)));
                break;
            }
            if top != tier {
                if top < tier || tier > 0 {
                    probe.stop = Stop::Missing;
                    break;
                }
                tier = top;
            }
            probe.hits[tier] += 1;
            path.push(node);
            parent = Some(node);
        }
        self.path = path;
        probe
    }

    /// How much of the prefix is where.
    pub fn probe(&mut self, keys: &[Key]) -> Probe {
        let probe = self.walk(keys);
        let missing = keys.get(self.path.len());
        let missing = missing.filter(|_| probe.stop == Stop::Missing);
        Probe {
            evicted: missing
                .zip(self.ghosts.as_ref())
                .map(|(key, ghosts)| ghosts.knows(key)),
            ..probe
        }
    }
}
