//! `Cache`: the class, and what every verb checks first. The verbs are in the files above this one.

use crate::error::{Failure, Outcome};
use crate::gil::enter;
use blockyard_core as core;
use blockyard_record::Recorder;
use pyo3::prelude::*;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Forks so far in this process and its ancestors.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Counts a fork, in the child: caches made before it refuse to be used there.
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The bookkeeping of one KV cache.
///
/// Any thread may call every verb, except those documented for the thread that drives the steps. One
/// verb happens before or after another, never during it.
///
/// Every verb raises `Misuse` for an argument of a wrong value, and in a process that was forked
/// after the cache was made; `Unavailable` once a bug of Blockyard has broken the cache. Verbs that
/// begin or continue something raise `Misuse` once it is closed. A verb that raises has changed
/// nothing, unless its documentation has an exception.
///
/// Args:
///     block_size: Tokens per block.
///     device: Slots of the device, null slots included.
///     engine: In place of `device`, the number of blocks of an engine that allocates them itself.
///     host: Slots of the host; 0 for none.
///     disk: Slots of the tier below the host; 0 for none.
///     remote: Names of blocks in shared stores that it remembers; 0 for none.
///     null_slots: Leading device slots that pad block tables and are never given out.
///     eviction: Which leaf block of a tier is evicted next. "recency": the least recently used
///         one. "learned": the least likely to be used again soon, learned from the reuse of blocks
///         of similar requests, and of similar hints of `finish`. "heap": the one of the lowest
///         priority, then as recency.
///     host_copies: When host copies of blocks that are on the device too are evicted: "first", once
///         the device has used the block again, or "last". None: "first" where eviction is
///         "learned".
///     write: Blocks that `demote(blocks)` copies down from the device. "on-evict": the next victims.
///         "through": first the published blocks in the order of their publication, then the next
///         victims. "second-touch": the next victims that were used more than once: published
///         again, found by a begin, or computed again after they were dropped.
///         A copy of a block that the device has too stays, unless a block that will be evicted
///         sooner has no copy.
///     ghosts: Keys of dropped blocks to remember, rounded up to a multiple of 16. With
///         "second-touch" each takes 4 bytes, and None remembers four per slot of all tiers;
///         with "learned" each takes 2 bytes, and None remembers 1.75 per slot. Elsewhere each
///         takes 2 bytes, and None remembers none. 0 remembers none. Where none are remembered
///         `missed_evicted` is 0: such misses count as unseen.
///     spare: Slots of the device that `grow`, `decode_step` and `make_spare` keep free ahead of need;
///         None for a 512th of the device, 512 at most. A 64th is the most, or 8 where that is more;
///         with `engine` it is 0.
///     writes_below: The same for each tier below the device, from the host down; "on-evict" where
///         one is missing. "through" copies blocks that have landed there.
///     block_costs: Three times in nanoseconds: to load one block; to compute one block at the start of
///         a sequence; and to compute it for each block before it, in addition. A fourth and a fifth are to load one
///         from the disk and from a store, where that is not what it takes from the tier above. A begin then loads
///         what it found below only if that takes less time than computing it, queued behind the
///         loads in flight from the same tier. None loads everything.
///     recompute: Whether the engine can recompute KV that was lost.
///     remote_writes: Whether blocks are written to `remote`; False where it has only what is adopted.
///     copy_retries: How often a failed copy down is tried again. After that, the keep of a kept
///         block is broken, and no copy of another block is made ahead of need any more.
///     groups: Groups of layers; only 1 is supported.
///     linked: Whether each block stands on the one before it in its row. False, for the further groups of
///         layers of an engine that allocates its blocks itself, makes a row a set: `save_request` keeps all
///         of it or breaks, and nothing is evicted for what stands before or behind it.
///     group: The number of the group of layers in its plans. It ends no flight of another group.
///     namespace: Names that are part of every key: model, weights, dtype, layout, parallel.
///     key_hash: "sha256", or "xxh3" where all tenants trust each other.
///     keyed: Names of tiers whose plans carry the keys of their blocks; None for none. The device
///         cannot be one. Where there is one, `seal` refuses a key of the engine's own that begins
///         with 24 zero bytes or has all bits set: in a plan these have another meaning.
///     yard: The number of the yard in plans; None for 0. It decides nothing.
///     boot: The upper half of the generations of its slots, from 1 on, for tests; None draws it. No two
///         caches whose blocks are read at one address may have the same. It decides nothing.
///     memory: Bytes that its bookkeeping may take; None for all that the system grants. All of it
///         is allocated at once: 110 to 200 bytes for each slot, and the ghosts.
///     recorder: Records requests, in blocks of as many tokens; None to record nothing.
///
/// Raises:
///     Misuse: A value is out of range. The message names it.
///     Unsupported: `groups` is not 1.
///     Unavailable: There is no memory for the bookkeeping. The message gives the bytes.
#[pyclass(frozen, subclass, module = "blockyard", weakref)]
pub(crate) struct Cache {
    pub(crate) inner: core::Cache,
    pub(crate) block_size: u32,
    pub(crate) null_slots: u32,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) boot: NonZeroU32,
    /// Forks before it was made.
    born: u64,
    closed: AtomicBool,
}

impl Cache {
    pub(crate) fn over(
        inner: core::Cache,
        block_size: u32,
        null_slots: u32,
        recorder: Option<Arc<Recorder>>,
        boot: NonZeroU32,
    ) -> Self {
        Self {
            inner,
            block_size,
            null_slots,
            recorder,
            boot,
            born: FORKS.load(Ordering::Relaxed),
            closed: AtomicBool::new(false),
        }
    }

    /// The cache is of this process, and no panic has broken it.
    pub(crate) fn check_sound(&self) -> Outcome<()> {
        // In a forked child, a thread that does not exist there may hold the lock: refuse before it.
        if self.born != FORKS.load(Ordering::Relaxed) {
            return Err(Failure::misuse(
                "this cache was made before a fork: make the cache after fork or spawn, in the process that uses it",
            ));
        }
        Ok(self.inner.check()?)
    }

    /// For verbs that begin something or go on with it. Questions, and verbs that end something,
    /// stay possible after the cache was closed.
    pub(crate) fn check_open(&self) -> Outcome<()> {
        if self.is_closed() {
            return Err(Failure::misuse("this cache is closed: make another one"));
        }
        self.check_sound()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// What a check of one handle has found; a handle that fails it is counted as rejected.
    pub(crate) fn admit_handle<T>(&self, py: Python<'_>, checked: core::Result<T>) -> PyResult<T> {
        checked.map_err(|bad| self.reject(py, 1, bad.into()))
    }

    /// Counts `handles` handles as rejected. Returns the error to raise.
    pub(crate) fn reject(&self, py: Python<'_>, handles: u64, bad: Failure) -> PyErr {
        let counted = enter(py, &self.inner, 0, |state| {
            state.reject(handles);
            Ok(())
        });
        counted.err().unwrap_or(bad).into()
    }
}
