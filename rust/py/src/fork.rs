//! `fork`: one more sequence with the same tokens.

use crate::arguments;
use crate::error::Failure;
use crate::face::Cache;
use crate::gil::enter;
use crate::lease::Lease;
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Makes one more sequence with the same tokens.
    ///
    /// It shares the full blocks, and copies the partial one: it loads until that has landed.
    ///
    /// Where the engine cannot recompute, a fork whose copy fails is undone, and its lease is
    /// "spent".
    ///
    /// Args:
    ///     lease: The parent.
    ///     computed: Tokens whose KV the parent has.
    ///     reserve: Tokens of growth to promise.
    ///
    /// Returns:
    ///     The new lease. Its `plans` has the copy of the partial block.
    ///
    /// Raises:
    ///     NoRoom: There is no room now; nothing is held.
    ///     TooLarge: It never fits.
    ///     Misuse: `computed` is out of range, or the parent is loading or came back short.
    ///     SpentLease: The parent has ended before.
    ///     ForeignLease: It is another cache's.
    #[pyo3(signature = (lease, computed, *, reserve=0))]
    fn fork(
        slf: &Bound<'_, Self>,
        lease: &Bound<'_, Lease>,
        #[pyo3(from_py_with = arguments::computed)] computed: u64,
        #[pyo3(from_py_with = arguments::reserve)] reserve: u64,
    ) -> PyResult<Lease> {
        let (py, cache) = (slf.py(), slf.get());
        let batch = cache.batch(lease.as_any())?;
        let id = batch.ids[0];
        let handle = &lease.get().inner;
        handle.check_computed(computed).map_err(Failure::from)?;
        let blocks = cache.blocks(&batch);
        let begun = enter(py, &cache.inner, blocks, |state| {
            state.fork(id, computed, reserve)
        })?;
        let handle = cache.inner.handle(begun.lease, handle.chain());
        // The samples of a prompt are one request: the first one is recorded.
        Lease::new(py, slf.clone().unbind(), handle, begun, None)
    }
}
