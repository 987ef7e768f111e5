//! `finish` ends sequences; a lease in a `with` block ends with the block.

use crate::arguments;
use crate::batch::Batch;
use crate::error::{Failure, SpentLease};
use crate::face::Cache;
use crate::gil::enter;
use crate::lease::Lease;
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Ends sequences. Their last blocks are given back first.
    ///
    /// Args:
    ///     batch: Leases.
    ///     retention: With "session-ended", blocks that no other sequence shares are evicted first;
    ///         with "retain", last.
    ///     after: A step in flight that may still write: slots are held back until `commit(done=)`.
    ///
    /// Raises:
    ///     SpentLease: A row was ended before, or is in the batch twice. Such rows are rejected,
    ///         counted and named; the others are ended.
    ///     ForeignLease: A row is a lease of another cache. The same happens.
    #[pyo3(signature = (batch, *, retention="ordinary", after=None))]
    fn finish(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        retention: &str,
        #[pyo3(from_py_with = arguments::after)] after: Option<u64>,
    ) -> PyResult<()> {
        self.end(py, batch, retention, after)
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
            .end(slf.py(), slf.as_any(), "ordinary", None);
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
        retention: &str,
        after: Option<u64>,
    ) -> PyResult<()> {
        let retention = arguments::retention(retention)?;
        self.check_sound()?;
        let mut batch = Batch::new(batch)?;
        let (rows, blocks) = (batch.len(), self.blocks(&batch));
        let mut bad: Vec<Failure> = Vec::new();
        // Each is spent at once: a second mention of the same lease is rejected like any other.
        batch.retain(|lease| {
            let lease = &lease.get().inner;
            let good = self.inner.check_lease(lease).and_then(|()| lease.take());
            good.map_err(|error| bad.push(error.into())).is_ok()
        });
        let (ids, rejected) = (&batch.ids, bad.len() as u64);
        enter(py, &self.inner, blocks, |state| {
            if rejected > 0 {
                state.reject(rejected);
            }
            state.finish(ids, retention, after)
        })?;
        match Failure::of_rows(bad, rows) {
            None => Ok(()),
            Some(bad) => Err(bad.into()),
        }
    }
}
