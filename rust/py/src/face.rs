//! `Cache`: the class, and what every verb checks first. The verbs are in the files above this one.

use crate::error::{Failure, Outcome};
use crate::gil::enter;
use blockyard_core as core;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Forks so far in this process and its ancestors.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Counts a fork, in the child: caches made before it refuse to be used there.
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The bookkeeping of one KV cache.
#[pyclass(frozen, subclass, module = "blockyard", weakref)]
pub(crate) struct Cache {
    pub(crate) inner: core::Cache,
    pub(crate) block_size: u32,
    pub(crate) null_slots: u32,
    /// Forks before it was made.
    born: u64,
    closed: AtomicBool,
}

impl Cache {
    pub(crate) fn over(inner: core::Cache, block_size: u32, null_slots: u32) -> Self {
        Self {
            inner,
            block_size,
            null_slots,
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
