//! What a server allows, and what it has done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a server allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Of these, such as have not proved the secret.
    pub unproved: usize,
    /// How long a meeting, one frame, or one block that is not long may take.
    pub patience: Duration,
    /// How long a reader may say nothing.
    pub idle: Duration,
    /// How long a block may still take whose offer has ended.
    pub finish: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            unproved: 64,
            patience: Duration::from_secs(5),
            idle: Duration::from_secs(30),
            finish: Duration::from_secs(1),
        }
    }
}

/// What a server has done, and what it is at.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Served {
    /// Readers that are connected.
    pub connections: u64,
    /// Connections that were let in.
    pub accepted: u64,
    /// Connections that were closed at once, as there were too many.
    pub refused: u64,
    /// Meetings in which another secret, or none, was proved.
    pub unproved: u64,
    /// Meetings in which a field differed.
    pub differing: u64,
    /// Connections that were ended for what they said, or did not say in time.
    pub faulty: u64,
    /// Blocks that were sent.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks whose offer ended while they were sent: their reader does not use them.
    pub stale: u64,
    /// Blocks and offers that were asked for and not to be had.
    pub gone: u64,
}

/// The same, as its threads count it.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) unproved: AtomicU64,
    pub(crate) differing: AtomicU64,
    pub(crate) faulty: AtomicU64,
    pub(crate) blocks: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) gone: AtomicU64,
}

pub(crate) fn count(one: &AtomicU64) {
    one.fetch_add(1, Ordering::Relaxed);
}
