//! `Parked`: what is kept of a sequence that is off the device.

use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::gil::enter;
use crate::plan::Plan;
use blockyard_core as core;
use blockyard_guard::guarded;
use blockyard_record::Seen;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

/// A sequence that was taken off the device without losing its work.
///
/// End it with `Cache.begin` or `Cache.abandon`. If it is dropped instead, the next verb gives up
/// its blocks, and `stats()["leaked"]` counts it.
///
/// Any thread may use it. Once a verb has ended it, its properties raise `SpentLease`, except `id`,
/// `appended` and `state`.
#[pyclass(frozen, module = "blockyard", weakref)]
pub(crate) struct Parked {
    inner: core::Parked,
    cache: Py<Cache>,
    /// The tokens that `save_request` was told, and its copies.
    kept: Option<(u64, Option<core::Plan>)>,
    /// How its begin was seen, where it is recorded.
    pub(crate) seen: Option<Seen>,
}

impl Parked {
    pub(crate) fn new(inner: core::Parked, cache: Py<Cache>, seen: Option<Seen>) -> Self {
        Self {
            inner,
            cache,
            kept: None,
            seen,
        }
    }

    /// A request that is kept for an engine that gives out its blocks itself.
    pub(crate) fn kept(
        inner: core::Parked,
        cache: Py<Cache>,
        tokens: u64,
        plan: Option<core::Plan>,
    ) -> Self {
        Self {
            inner,
            cache,
            kept: Some((tokens, plan)),
            seen: None,
        }
    }

    /// The handle, if this cache made it and it is not spent.
    pub(crate) fn of<'a>(&'a self, cache: &Cache, py: Python<'_>) -> PyResult<&'a core::Parked> {
        cache.check_sound()?;
        let checked = cache.inner.check_parked(&self.inner);
        cache.admit_handle(py, checked.map(|()| &self.inner))
    }

    fn view(&self, py: Python<'_>) -> Outcome<core::ParkedView> {
        let cache = self.cache.get();
        cache.check_sound()?;
        self.inner.check()?;
        enter(py, &cache.inner, 1, |state| {
            state.view_parked(self.inner.id())
        })
    }

    fn pending(&self, py: Python<'_>) -> Outcome<core::Pending> {
        let cache = self.cache.get();
        cache.check_sound()?;
        self.inner.check()?;
        let blocks = (self.inner.tokens() / u64::from(cache.block_size)) as usize;
        enter(py, &cache.inner, blocks, |state| {
            state.pending(self.inner.id())
        })
    }
}

/// In a forked child it gives nothing back: see `Lease`.
impl Drop for Parked {
    fn drop(&mut self) {
        if self.cache.get().check_sound().is_err() {
            self.inner.spend();
        }
    }
}

#[guarded]
#[pymethods]
impl Parked {
    /// Its number, which no other one ever gets.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().number()
    }

    /// Tokens appended so far.
    #[getter]
    fn appended(&self) -> PyResult<u64> {
        self.cache.get().check_sound()?;
        Ok(self.inner.tokens())
    }

    /// Tokens whose KV is kept. The number is fixed by `park`.
    #[getter]
    fn computed(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.view(py)?.computed)
    }

    /// Blocks kept.
    #[getter]
    fn blocks(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.blocks)
    }

    /// Leading blocks whose device slots the sequence still pins.
    #[getter]
    fn on_device(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.on_device)
    }

    /// Blocks that are kept below, on the host, on the disk and in stores.
    ///
    /// The other ones of `blocks` are on the device, and are promised slots below.
    #[getter]
    fn below(&self, py: Python<'_>) -> PyResult<(u32, u32, u32)> {
        let [_, host, disk, remote] = self.view(py)?.kept;
        Ok((host, disk, remote))
    }

    /// Blocks of `on_device` whose copy down is in flight.
    ///
    /// Other sequences may pin them too. This and `alone` take time in proportion to `on_device`.
    #[getter]
    fn moving(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.pending(py)?.moving)
    }

    /// The other blocks of `on_device` that only this sequence pins, and no other copy reads.
    ///
    /// Each becomes free or evictable when it and the blocks that follow it have copies below, or
    /// when `abandon` has ended the keeps, and its own copies in flight have landed.
    #[getter]
    fn alone(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.pending(py)?.alone)
    }

    /// The copies that `save_request` made, one plan or none; none where `park` has made it.
    #[getter]
    fn plans(&self) -> PyResult<Vec<Plan>> {
        self.cache.get().check_sound()?;
        let plan = self.kept.as_ref().and_then(|(_, plan)| plan.clone());
        Ok(plan.into_iter().map(Plan).collect())
    }

    /// Whether it will come back as it was.
    ///
    /// "kept": it will.
    ///
    /// "incomplete": a copy that `save_request` made has failed, so that only the `computed` tokens before it
    /// are kept.
    ///
    /// "broken": some kept blocks are lost, so that the sequence will be recomputed.
    ///
    /// "spent": a verb has ended it.
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.view(py) {
            Err(Failure::Core(core::Error::Spent { .. })) => "spent",
            view => {
                let view = view?;
                let short = |&(tokens, _): &(u64, _)| view.computed < tokens;
                match () {
                    () if view.broken => "broken",
                    () if self.kept.as_ref().is_some_and(short) => "incomplete",
                    () => "kept",
                }
            }
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.cache)
    }

    fn __repr__(&self) -> String {
        format!("Parked(id={})", self.id())
    }
}
