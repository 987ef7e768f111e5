//! What is told of takes, and of a peer. Flights end as those of a store's lane.

use blockyard_store::Condition;

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
