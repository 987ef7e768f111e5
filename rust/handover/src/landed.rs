//! What is told of takes, and of a peer. Flights end as those of a store's lane.

use blockyard_store::Condition;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What peers share with who polls them: it is rung when a flight has ended, and knows what time it is. Who finds it
/// rung no more than before the last polls need poll none of them.
#[derive(Clone, Debug)]
pub struct Bell(Arc<Both>);

#[derive(Debug)]
struct Both {
    rung: AtomicU64,
    /// The bits of seconds.
    now: AtomicU64,
}

impl Default for Bell {
    fn default() -> Self {
        Self(Arc::new(Both {
            rung: AtomicU64::new(0),
            now: AtomicU64::new(f64::NAN.to_bits()),
        }))
    }
}

impl Bell {
    /// A flight has ended, and a poll from now on has it.
    pub(crate) fn ring(&self) {
        self.0.rung.fetch_add(1, Ordering::Release);
    }

    /// Takes what time it is for all that ring it, as their polls do; returns how often it was rung.
    pub fn look(&self, now: f64) -> u64 {
        self.0.now.store(now.to_bits(), Ordering::Relaxed);
        self.0.rung.load(Ordering::Acquire)
    }

    /// What time it was at the last look; no number before the first.
    pub(crate) fn now(&self) -> f64 {
        f64::from_bits(self.0.now.load(Ordering::Relaxed))
    }
}

/// What has become of a `take`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The number that was given with it.
    pub number: u64,
    /// How many leading keys the offer has, from the first key on.
    pub blocks: usize,
    /// Why there are none; empty where there are.
    pub why: String,
}

/// What a peer has done since it was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Blocks that came and are what was offered.
    pub got: u64,
    /// Offers that were taken.
    pub taken: u64,
    /// Offers that were not to be had.
    pub gone: u64,
    /// Blocks whose slot had another generation, or another block.
    pub stale: u64,
    /// Blocks that came with another sum.
    pub corrupt: u64,
    /// Blocks that were not there any more.
    pub missing: u64,
    /// Connections that were lost or not to be had while something was asked.
    pub failed: u64,
    /// Flights that were given up as late.
    pub given_up: u64,
    /// Connections that were made.
    pub connected: u64,
    /// How often it has begun to rest.
    pub rests: u64,
}

/// What a peer is at now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerState {
    /// Whether the other side is asked.
    pub condition: Condition,
    /// Flights that have not ended.
    pub flying: usize,
    /// Offers that were taken and are not done.
    pub offers: usize,
    /// Leases that are renewed.
    pub leases: usize,
}
