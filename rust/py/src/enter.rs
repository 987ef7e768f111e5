//! The only place that decides about the GIL.
//!
//! A verb that is short tries the lock while attached and, if it is free, does its arithmetic
//! attached: to attach again, a call of some µs may have to wait for the switch interval, 5 ms, of
//! one busy Python thread. A long verb, and one that finds the lock held, detaches: nobody waits
//! for the lock while attached, and the lock is released before attaching again.

use crate::error::{Failure, Outcome};
use blockyard_core::{Cache, Locked, State};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks (or rows) that a verb may name and still be short: at 20 to 60 ns each, some tens of
/// µs. See "short verbs" in `docs/measurements.md`.
pub(crate) const SHORT: usize = 1024;

/// Tokens that may be hashed attached: at about 5 ns each, 20 µs.
const SHORT_HASHING: usize = 4096;

/// Runs of bytes that may be reckoned attached: at about 10 ns each, 160 µs.
const SHORT_RECKONING: usize = 1 << 14;

/// Forks so far in this process and its ancestors.
static FORKS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The fork count that a cache is born with.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// In a forked child the lock may be held by a thread that is not there: refuse before it.
pub(crate) fn check_fork(born: u64) -> Outcome<()> {
    if born == generation() {
        return Ok(());
    }
    Err(Failure::misuse(
        "this cache was made before a fork: make the cache after fork or spawn, in the process that uses it",
    ))
}

/// The yard, if the verb is short and nobody has it.
pub(crate) fn attached(cache: &Cache, blocks: usize) -> Option<Locked<'_>> {
    if blocks <= SHORT {
        cache.try_lock()
    } else {
        None
    }
}

/// Runs a verb that names `blocks` blocks.
pub(crate) fn enter<T: Send>(
    py: Python<'_>,
    cache: &Cache,
    blocks: usize,
    act: impl FnOnce(&mut State) -> T + Send,
) -> T {
    if let Some(mut locked) = attached(cache, blocks) {
        return act(&mut locked);
    }
    away(py, || act(&mut cache.lock()))
}

/// Runs work outside the yard, hashing say, over `tokens` tokens.
pub(crate) fn hash<T: Send>(py: Python<'_>, tokens: usize, act: impl FnOnce() -> T + Send) -> T {
    if tokens <= SHORT_HASHING {
        act()
    } else {
        away(py, act)
    }
}

/// Reckons up to so many runs of bytes.
pub(crate) fn reckon<T: Send>(py: Python<'_>, runs: usize, act: impl FnOnce() -> T + Send) -> T {
    if runs <= SHORT_RECKONING {
        act()
    } else {
        away(py, act)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place")]
pub(crate) fn away<T: Send>(py: Python<'_>, act: impl FnOnce() -> T + Send) -> T {
    py.detach(act)
}
