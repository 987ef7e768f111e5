//! Runs: a prefix below the device as stretches, each on one tier, which are loaded by a flight each
//! and published in their order.

use super::State;
use crate::base::{FlightIx, LeaseId, MAX_TIERS, Tier};
use crate::copies::{End, Purpose};

/// The most runs that one begin or promote loads: beyond them a prefix ends.
pub const MAX_RUNS: usize = 8;

/// The tiers of the blocks behind a path's device prefix, in order.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Runs {
    tiers: [u8; MAX_RUNS],
    count: u8,
    blocks: [u32; MAX_RUNS],
}

impl Runs {
    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// A block more, on this tier. `false`: it would begin a run too many.
    #[inline]
    pub(super) fn push(&mut self, tier: Tier) -> bool {
        let (at, own) = (usize::from(self.count), tier.at() as u8);
        if at > 0 && self.tiers[at - 1] == own {
            self.blocks[at - 1] += 1;
        } else if at == MAX_RUNS {
            return false;
        } else {
            (self.tiers[at], self.blocks[at]) = (own, 1);
            self.count += 1;
        }
        true
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Tier, u32)> + use<> {
        let own = *self;
        let run = move |at: usize| (Tier(usize::from(own.tiers[at])), own.blocks[at]);
        (0..usize::from(own.count)).map(run)
    }

    pub(super) fn blocks(&self) -> u32 {
        self.iter().map(|(_, blocks)| blocks).sum()
    }

    /// Only the first `blocks` blocks.
    pub(super) fn cut(&mut self, blocks: u32) {
        let mut left = blocks;
        let mut count = 0;
        for own in &mut self.blocks[..usize::from(self.count)] {
            *own = left.min(*own);
            left -= *own;
            count += u8::from(*own > 0);
        }
        self.count = count;
    }

    /// Blocks on each tier.
    #[inline]
    pub(super) fn by_tier(&self) -> [u32; MAX_TIERS] {
        let mut sums = [0; MAX_TIERS];
        if self.count == 0 {
            return sums;
        }
        for (tier, blocks) in self.iter() {
            sums[tier.at()] += blocks;
        }
        sums
    }
}

impl State {
    /// Whether an earlier part of the same prefix is on its way still: the runs of a lease are
    /// published in their order, as what is on the device has its parents there (INV-33).
    pub(super) fn waits_for_earlier(&self, flight: FlightIx) -> bool {
        let Purpose::Up { lease, base } = self.flights[flight].purpose else {
            return false;
        };
        self.leases[lease.at()].loading() > 1 && self.runs_of(lease).any(|(first, _)| first < base)
    }

    /// The flights that load the runs of a lease, each with its first block.
    fn runs_of(&self, lease: LeaseId) -> impl Iterator<Item = (u32, FlightIx)> {
        let all = self.flights.iter().filter(|(_, record)| !record.overdue);
        all.filter_map(move |(flight, record)| match record.purpose {
            Purpose::Up { lease: own, base } if own == lease => Some((base, flight)),
            _ => None,
        })
    }

    /// The first run of a lease that has not landed, if its copies have ended, and how.
    pub(super) fn next_ended(&self, lease: LeaseId) -> Option<(FlightIx, u32, End)> {
        if !self.leases.lives(lease.0) || self.leases[lease.at()].loading() == 0 {
            return None;
        }
        let (_, next) = self.runs_of(lease).min()?;
        let (good, end) = self.flights[next].ended?;
        Some((next, good, end))
    }

    /// A run is not there whole: what loads behind it lands unpublished, as the lease's own.
    pub(super) fn cut_off(&mut self, lease: LeaseId) {
        let mut later: Vec<_> = self.runs_of(lease).collect();
        later.sort_unstable();
        for (_, flight) in later.into_iter().rev() {
            for at in (0..self.flights[flight].moves.len()).rev() {
                let step = self.flights[flight].moves[at];
                if let Some(node) = self.arrival(Tier::DEVICE, &step) {
                    self.detach(node, Tier::DEVICE);
                    self.remove_if_gone(node);
                }
            }
        }
    }
}
