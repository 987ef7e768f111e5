//! `finish` ends sequences; a lease in a `with` block ends with the block.

use crate::arguments;
use crate::batch::Batch;
use crate::cache_class::Cache;
use crate::error::{Failure, SpentLease};
use crate::gil::enter;
use crate::lease::Lease;
use crate::recorder::record;
use blockyard_core::{Hints, LeaseId, NextUse, Priority};
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Ends sequences. Their last blocks are released first.
    ///
    /// Args:
    ///     batch: Leases.
    ///     retention: With "session-ended", blocks that no other sequence shares are evicted first;
    ///         with "retain", last. The "learned" order obeys no hint: it learns their value.
    ///     next_use: Seconds until the blocks are expected to be used again; for the "learned"
    ///         order. None: unknown.
    ///     priority: From 0 to 100, the highest evicted last, for "heap"; 35 by default. Without
    ///         this and `ttl`, a block keeps its earlier values; one of them replaces both.
    ///     ttl: Ticks after which the blocks are evicted first, for "heap". Each block that a
    ///         request has used is a tick, counted when that request ends.
    ///     after: A step in flight that may still write: slots are held back until `commit(done=)`.
    ///
    /// Raises:
    ///     Misuse: A hint is out of range. The message names it; nothing is ended.
    ///     SpentLease: A row was ended before, or is in the batch twice. Such rows are rejected,
    ///         counted and named; the others are ended.
    ///     ForeignLease: A row is a lease of another cache. The same happens.
    #[pyo3(signature = (batch, *, retention="ordinary", next_use=None, priority=None, ttl=None,
        after=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn finish(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        retention: &str,
        #[pyo3(from_py_with = arguments::next_use)] next_use: Option<NextUse>,
        #[pyo3(from_py_with = arguments::priority)] priority: Option<Priority>,
        #[pyo3(from_py_with = arguments::ttl)] ttl: Option<u32>,
        #[pyo3(from_py_with = arguments::after)] after: Option<u64>,
    ) -> PyResult<()> {
        let hints = arguments::hints(retention, next_use, priority, ttl)?;
        self.end(py, batch, hints, after)
    }
}

#[guarded]
#[pymethods]
impl Lease {
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let lease = slf.get();
        if lease.inner.check().is_err() {
            return Ok(());
        }
        let finished = lease
            .cache
            .get()
            .end(slf.py(), slf.as_any(), Hints::default(), None);
        // The yard may have undone it, as a fork whose copy failed: then nothing is left to end.
        match finished {
            Err(error) if !error.is_instance_of::<SpentLease>(slf.py()) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Cache {
    fn end(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        hints: Hints,
        after: Option<u64>,
    ) -> PyResult<()> {
        self.check_sound()?;
        let batch = Batch::new(batch)?;
        let (rows, blocks) = (batch.len(), self.blocks(&batch));
        let mut bad: Vec<Failure> = Vec::new();
        // Each is spent at once: a second mention of the same lease is rejected like any other.
        let mut leases = batch.into_leases();
        leases.retain(|lease| {
            let lease = &lease.get().inner;
            let good = self.inner.check_lease(lease).and_then(|()| lease.take());
            good.map_err(|error| bad.push(error.into())).is_ok()
        });
        let ids: Vec<LeaseId> = leases.iter().map(|lease| lease.get().inner.id()).collect();
        let rejected = bad.len() as u64;
        enter(py, &self.inner, blocks, |state| {
            if rejected > 0 {
                state.reject(rejected);
            }
            state.finish(&ids, hints, after)
        })?;
        for lease in leases.iter().map(Bound::get) {
            record(self.recorder.as_ref(), lease.seen, &lease.inner);
        }
        match Failure::of_rows(bad, rows) {
            None => Ok(()),
            Some(bad) => Err(bad.into()),
        }
    }
}
