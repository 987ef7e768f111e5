//! `Lease`: what a running sequence holds.

use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::gil::enter;
use crate::plan::Plan;
use crate::results::stop_word;
use blockyard_core as core;
use blockyard_guard::guarded;
use blockyard_record::Seen;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit};

/// A running sequence: its block table, with every block pinned.
///
/// End it with `Cache.finish` or `with`. If it is dropped instead, the next verb gives its blocks
/// back, and `stats()["leaked"]` counts it.
///
/// Any thread may use it. Once a verb has ended it, its properties raise `SpentLease`, except `id`,
/// `plans`, `hits`, `stop`, `appended` and `state`.
#[pyclass(frozen, module = "blockyard", weakref)]
pub(crate) struct Lease {
    pub(crate) inner: core::Lease,
    pub(crate) cache: Py<Cache>,
    hits: [u32; core::MAX_TIERS],
    stop: core::Stop,
    plans: Vec<Py<Plan>>,
    /// How its begin was seen, where it is recorded.
    pub(crate) seen: Option<Seen>,
}

impl Lease {
    pub(crate) fn new(
        py: Python<'_>,
        cache: Py<Cache>,
        inner: core::Lease,
        begun: core::Begun,
        seen: Option<Seen>,
    ) -> PyResult<Self> {
        let plans = begun.plans.into_iter().map(|plan| Py::new(py, Plan(plan)));
        let plans = plans.collect::<PyResult<_>>()?;
        Ok(Self {
            inner,
            cache,
            hits: begun.hits,
            stop: begun.stop,
            plans,
            seen,
        })
    }

    fn view(&self, py: Python<'_>) -> Outcome<core::View> {
        let cache = self.cache.get();
        cache.check_sound()?;
        self.inner.check()?;
        enter(py, &cache.inner, 1, |state| state.view(self.inner.id()))
    }
}

/// In a forked child, a thread that does not exist there may hold the locks, so that a handle made
/// before the fork gives nothing back.
impl Drop for Lease {
    fn drop(&mut self) {
        if self.cache.get().check_sound().is_err() {
            self.inner.spend();
        }
    }
}

#[guarded]
#[pymethods]
impl Lease {
    /// Its number, which no other one ever gets.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().number()
    }

    /// Blocks found at the start on device, host, disk and remote.
    #[getter]
    fn hits(&self) -> (u32, u32, u32, u32) {
        self.hits.into()
    }

    /// Why the prefix that was found ended there: a word as in `Probe.stop`.
    #[getter]
    fn stop(&self) -> &'static str {
        stop_word(self.stop)
    }

    /// Copies to make before the sequence may run; until they have landed it is "loading".
    #[getter]
    fn plans<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.plans.iter().map(|plan| plan.clone_ref(py)))
    }

    /// Tokens appended so far, the prompt included.
    #[getter]
    fn appended(&self) -> PyResult<u64> {
        self.cache.get().check_sound()?;
        Ok(self.inner.tokens())
    }

    /// Leading tokens whose KV is there or, while `state` is "loading", on its way.
    ///
    /// The model computes the tokens from here on, once the lease has loaded. Read it then: it is
    /// less where a load has failed. A prompt that is found whole has all its tokens but the last,
    /// and loads a private copy of its last block, without any host too.
    #[getter]
    fn cached(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.view(py)?.cached)
    }

    /// Token positions that it has slots for, or has asked slots for.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.view(py)?.tokens)
    }

    /// Blocks in its table.
    #[getter]
    fn blocks(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.blocks)
    }

    /// Leading blocks that are published, or duplicate a published block.
    #[getter]
    fn sealed(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.sealed)
    }

    /// Blocks of growth that are still promised to it.
    #[getter]
    fn promised(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.promised)
    }

    /// Whether it still represents a parked sequence.
    ///
    /// This is so until all its loads have landed. If some fail, `park` brings the sequence back to
    /// where it was; `grow` or `seal` goes on from `cached`, and this becomes False.
    #[getter]
    fn resumed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.view(py)?.resumed)
    }

    /// Whether it may run.
    ///
    /// "ready": it may run.
    ///
    /// "loading": it waits until its plans have landed. Its slots do not have its KV yet, and
    /// `block_tables` and `slot_mapping` refuse it.
    ///
    /// "incomplete": it lacks blocks. If `resumed` is True, loads of the resume failed: `seal` or `grow`
    /// goes on from `cached`, and `park` goes back. Otherwise its table ends before `tokens`, as a
    /// copy into it has an unknown outcome: `grow` by 0 gives it slots, and it goes on from
    /// `cached`.
    ///
    /// "detached": it may run, but `clear` was called, so that it publishes nothing.
    ///
    /// "spent": a verb has ended it.
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        let view = match self.view(py) {
            // A verb has spent this handle, or the yard has undone a fork.
            Err(Failure::Core(core::Error::Spent { .. })) => return Ok("spent"),
            view => view?,
        };
        Ok(match (view.loading > 0, view.incomplete, view.detached) {
            (true, ..) => "loading",
            (_, true, _) => "incomplete",
            (.., true) => "detached",
            _ => "ready",
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.cache)
    }

    fn __repr__(&self) -> String {
        format!("Lease(id={})", self.id())
    }
}
