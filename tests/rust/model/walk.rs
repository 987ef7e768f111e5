//! What of a prefix is where, and how much of it a begin loads.

use crate::yard::{Block, DEVICE, Yard};
use blockyard_core::{Key, MAX_RUNS, Probe, Stop, WritePolicy};

impl Yard {
    /// Where a block is read from: the device, or else the highest tier where it is ready. None
    /// while its copy on the device is on its way, or nothing but such copies is there.
    pub(crate) fn source(&self, block: Block) -> Option<usize> {
        if self.blocks[block].slots[DEVICE].is_some() {
            return self.ready(block, DEVICE).map(|_| DEVICE);
        }
        (1..self.tiers).find(|&tier| self.ready(block, tier).is_some())
    }

    /// The longest prefix that is there: first on the device, then on the tiers below, in runs.
    pub(crate) fn walk(&self, keys: &[Key]) -> (Vec<Block>, Probe) {
        let (mut path, mut probe) = (Vec::new(), Probe::default());
        let mut runs: Vec<usize> = Vec::new();
        for key in keys {
            let Some(block) = self.find(key) else {
                probe.stop = Stop::Missing;
                break;
            };
            let Some(tier) = self.source(block) else {
                let all = 0..self.tiers;
                let flight = all.into_iter().find_map(|tier| self.filling(block, tier));
                probe.stop = Stop::Filling(flight.expect("it is on its way"));
                break;
            };
            if !path.is_empty() && self.waits_for_a_fence(block) {
                probe.stop = Stop::Promised;
                break;
            }
            assert!(tier > DEVICE || runs.is_empty(), "INV-33");
            if tier > DEVICE && runs.last() != Some(&tier) {
                if runs.len() == MAX_RUNS {
                    probe.stop = Stop::Scattered;
                    break;
                }
                runs.push(tier);
            }
            probe.hits[tier] += 1;
            path.push(block);
        }
        (path, probe)
    }

    pub(crate) fn probe(&self, keys: &[Key]) -> Probe {
        let (path, probe) = self.walk(keys);
        let missing = probe.stop == Stop::Missing;
        Probe {
            evicted: missing.then(|| self.ghosts.contains(&keys[path.len()])),
            ..probe
        }
    }

    /// Whether so much of each ghost is remembered that none passes for another.
    pub(crate) fn sure_ghosts(&self) -> bool {
        self.writes.contains(&WritePolicy::SecondTouch)
    }

    /// What has left every tier since the last call leaves a ghost.
    pub(crate) fn haunt(&mut self) {
        for block in 0..self.blocks.len() {
            if !self.alive(block) && self.gone.insert(block) {
                let key = self.blocks[block].key;
                self.ghosts
                    .extend(key.filter(|_| !self.is_forgotten(block)));
            }
        }
    }

    /// Blocks in flight between these tiers, in flights that may still end in time.
    pub(crate) fn in_flight(&self, from: usize, to: usize) -> u32 {
        let all = self.flights.values();
        let all = all.filter(|flight| !flight.overdue && flight.ended.is_none());
        all.filter(|flight| (flight.from, flight.to) == (from, to))
            .map(|flight| flight.moves.len() as u32)
            .sum()
    }

    /// What loading these blocks behind `after` others saves, by adding up what each block takes:
    /// tiers load beside each other. Each load is the tier that it comes from.
    fn saving(&self, loads: &[usize], after: usize) -> i128 {
        let block_costs = self.block_costs.expect("it is asked where they are known");
        let computing: u64 = (after..after + loads.len())
            .map(|before| block_costs.compute + block_costs.attend * before as u64)
            .sum();
        let lane = |&tier: &usize| {
            let blocks = loads.iter().filter(|&&load| load == tier).count() as u64;
            (u64::from(self.in_flight(tier, DEVICE)) + blocks) * block_costs.load[tier]
        };
        let loading = loads.iter().map(lane).max().unwrap_or(0);
        i128::from(computing) - i128::from(loading)
    }

    /// Whether loading beats computing.
    pub(crate) fn pays(&self, from: usize, blocks: usize, after: usize) -> bool {
        self.block_costs.is_none() || self.saving(&vec![from; blocks], after) > 0
    }

    /// How many of these loads a begin takes: the runs that save most, and of such the fewest.
    pub(crate) fn taken(&self, loads: &[usize], after: usize) -> usize {
        if self.block_costs.is_none() || !self.recompute {
            return loads.len();
        }
        let (mut most, mut best) = (0, 0);
        for end in 1..=loads.len() {
            if loads.get(end) == Some(&loads[end - 1]) {
                continue;
            }
            let saved = self.saving(&loads[..end], after);
            if saved > most {
                (most, best) = (saved, end);
            }
        }
        best
    }
}
