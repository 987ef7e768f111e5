//! How a lane works.

use std::time::Duration;

/// How a lane works.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many stores there are.
    pub stores: usize,
    /// Staging buffers: each way has half of them, and one at least.
    pub buffers: usize,
    /// Failures in a row after which a store rests, one way.
    pub failures: u32,
    /// How long it rests at first; twice as long after each try that fails.
    pub rest: Duration,
    /// A store rests, too, where the 99th percentile of the last calls took longer.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            stores: 1,
            buffers: 2,
            failures: 3,
            rest: Duration::from_millis(500),
            limit: Duration::from_secs(2),
        }
    }
}
