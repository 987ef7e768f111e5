//! What is told of flights, of takes, and of a peer.

/// Why a flight has ended before its last block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Short {
    /// The other side did not answer, or is not asked for a while.
    Failed,
    /// What came has another length or sum.
    Corrupt,
    /// It is not there any more, or its slot has another generation, or no offer here has it.
    Missing,
    /// It was given up.
    GivenUp,
}

/// How a flight has ended: nothing of its memory is written any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landed {
    /// The number that was given for it.
    pub number: u64,
    /// Leading blocks that are in memory, and are what was offered.
    pub good: usize,
    /// None where all are.
    pub short: Option<Short>,
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

/// Whether the other side is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// It is asked as ever.
    Well,
    /// It has failed, and is not asked.
    Resting,
    /// It has rested, and what is asked next decides.
    Trying,
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
