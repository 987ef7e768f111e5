//! Probe: how much of a prefix is where. It changes nothing, not even recency.

use super::State;
use crate::id::{FlightId, Id, Key, MAX_TIERS, NodeIx, Tier};
use crate::pool::Hold;

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

/// Keys that a walk looks ahead for.
const AHEAD: usize = 32;

impl State {
    /// Walks the keys from the root, leaving the nodes found in `self.path`. The device's blocks
    /// come before those only below (INV-21), and only one lower tier is entered.
    pub(super) fn walk(&mut self, keys: &[Key]) -> Probe {
        let mut path = std::mem::take(&mut self.path);
        let mut tags = std::mem::take(&mut self.tags);
        path.clear();
        self.loose = false;
        // The lower tier that was entered, and behind how many blocks.
        let (mut lower, mut above) = (None, None);
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
                    self.loose = true;
                }
                let Some((tier, slot)) = self.trie.highest(node) else {
                    stop = Stop::Missing;
                    break 'walk;
                };
                if let Hold::Filling { flight } = self.hold(tier, slot) {
                    stop = Stop::Filling(FlightId(self.flights.id(flight)));
                    break 'walk;
                }
                match lower {
                    None if tier > Tier::DEVICE => lower = Some((tier, path.len())),
                    Some((entered, _)) if tier != entered => {
                        stop = Stop::Missing;
                        break 'walk;
                    }
                    _ => {}
                }
                path.push(node);
                above = Some(self.trie.id(node));
            }
        }
        let mut hits = [0; MAX_TIERS];
        hits[0] = path.len() as u32;
        if let Some((tier, device)) = lower {
            (hits[0], hits[tier.at()]) = (device as u32, (path.len() - device) as u32);
        }
        (self.path, self.tags) = (path, tags);
        let evicted = None;
        Probe {
            hits,
            stop,
            evicted,
        }
    }

    /// Why a block that does not name the one `above` as its parent cannot stand behind it; an
    /// orphan can.
    fn is_astray(&self, node: NodeIx, above: Option<Id<NodeIx>>, path: &[NodeIx]) -> Option<Stop> {
        let parent = self.trie[node].parent;
        let alive = parent.is_some_and(|id| self.trie.live(id).is_some());
        // Living parents are each met once; only an orphan can come again.
        if alive || parent.is_none() || above.is_none() || path.contains(&node) {
            return Some(Stop::Contradiction);
        }
        self.is_read(node).then_some(Stop::Promised)
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
