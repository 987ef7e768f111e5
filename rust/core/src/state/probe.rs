//! Probe: how much of a prefix is where. It changes nothing, not even recency.

use super::State;
use crate::base::{FlightId, Id, Key, MAX_TIERS, NodeIx, Tier};
use crate::tiers::Hold;

/// Why a prefix ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stop {
    /// All of it was found.
    #[default]
    Whole,
    /// The next block is nowhere.
    Missing,
    /// The next block is in flight.
    Filling(FlightId),
    /// The next block would be on a tier apart, and as many runs as one load has lie before it.
    Scattered,
    /// Loading the next block was not worth it: the caller's bound, or the configured `block_costs`.
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

/// Keys that a walk looks ahead for.
pub(super) const AHEAD: usize = 32;

impl State {
    /// Walks the keys from the root, leaving the nodes found in `self.scratch.path`. The device's blocks
    /// come before all others (INV-33); the tiers of those are left in `self.scratch.runs`.
    pub(super) fn walk(&mut self, keys: &[Key]) -> Probe {
        let mut path = std::mem::take(&mut self.scratch.path);
        let mut tags = std::mem::take(&mut self.scratch.tags);
        path.clear();
        self.scratch.loose = false;
        // How many blocks are on the device, once one is not.
        let (mut device, mut above) = (None, None);
        self.scratch.runs.clear();
        let mut stop = Stop::Whole;
        'walk: for keys in keys.chunks(AHEAD) {
            self.trie.warm(keys.iter(), &mut tags);
            for (key, &tag) in keys.iter().zip(&tags) {
                let Ok(node) = self.trie.seek(key, tag) else {
                    stop = Stop::Missing;
                    break 'walk;
                };
                if self.trie[node].parent != above {
                    if let Some(astray) = self.is_astray(node, above, &path) {
                        stop = astray;
                        break 'walk;
                    }
                    self.scratch.loose = true;
                }
                if let Some(slot) = self.trie.slot(node, Tier::DEVICE) {
                    if let Hold::Filling { flight } = self.hold(Tier::DEVICE, slot) {
                        stop = Stop::Filling(FlightId(self.flights.id(flight)));
                        break 'walk;
                    }
                } else {
                    let source = self.source(node);
                    if let Err(none) = source {
                        stop = none;
                        break 'walk;
                    }
                    device = device.or(Some(path.len()));
                    if source.is_ok_and(|tier| !self.scratch.runs.push(tier)) {
                        stop = Stop::Scattered;
                        break 'walk;
                    }
                }
                path.push(node);
                above = Some(self.trie.id(node));
            }
        }
        let mut hits = [0; MAX_TIERS];
        if device.is_some() {
            hits = self.scratch.runs.by_tier();
        }
        hits[0] = device.unwrap_or(path.len()) as u32;
        (self.scratch.path, self.scratch.tags) = (path, tags);
        let evicted = None;
        Probe {
            hits,
            stop,
            evicted,
        }
    }

    /// The highest tier below the device that has a block ready, or why a prefix ends before it.
    pub(super) fn source(&self, node: NodeIx) -> Result<Tier, Stop> {
        let mut below = self.tiers.below(Tier::DEVICE);
        below
            .find(|&tier| self.ready(node, tier).is_some())
            .ok_or_else(|| self.not_below(node))
    }

    #[cold]
    #[inline(never)]
    fn not_below(&self, node: NodeIx) -> Stop {
        let mut below = self.tiers.below(Tier::DEVICE);
        let flight = below.find_map(|tier| self.flight_to_await(node, tier));
        flight.map_or(Stop::Missing, Stop::Filling)
    }

    /// Why a block that does not name the one `above` as its parent cannot stand behind it; an
    /// orphan can, and each block of a set.
    fn is_astray(&self, node: NodeIx, above: Option<Id<NodeIx>>, path: &[NodeIx]) -> Option<Stop> {
        if !self.config.linked {
            return None;
        }
        let parent = self.trie[node].parent;
        let alive = parent.is_some_and(|id| self.trie.live(id).is_some());
        // Living parents are each met once; only an orphan can come again.
        if alive || parent.is_none() || above.is_none() || path.contains(&node) {
            return Some(Stop::Contradiction);
        }
        // Of one that is ready nowhere the flight is told, which brings it.
        let ready = self
            .tiers
            .all()
            .any(|tier| self.ready(node, tier).is_some());
        (ready && self.is_read(node)).then_some(Stop::Promised)
    }

    /// How much of the prefix is where.
    pub fn probe(&mut self, keys: &[Key]) -> Probe {
        let probe = self.walk(keys);
        let missing = keys.get(self.scratch.path.len());
        let missing = missing.filter(|_| probe.stop == Stop::Missing);
        Probe {
            evicted: missing
                .zip(self.ghosts.as_ref())
                .map(|(key, ghosts)| ghosts.knows(key)),
            ..probe
        }
    }
}
