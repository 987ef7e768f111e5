//! What verbs give: leases, parked sequences, and small frozen answers.

use crate::cache::Cache;
use crate::enter::enter;
use crate::error::{Failure, Outcome, SpentLease};
use crate::plan::Plan;
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

/// A running sequence: its block table, with every block pinned.
#[pyclass(frozen, module = "blockyard", weakref)]
pub(crate) struct Lease {
    pub(crate) inner: core::Lease,
    pub(crate) cache: Py<Cache>,
    hits: [u32; core::MAX_TIERS],
    stop: core::Stop,
    plans: Vec<Py<Plan>>,
}

impl Lease {
    pub(crate) fn new(
        py: Python<'_>,
        cache: Py<Cache>,
        inner: core::Lease,
        begun: core::Begun,
    ) -> PyResult<Self> {
        let plans = begun.plans.into_iter().map(|plan| Py::new(py, Plan(plan)));
        let plans = plans.collect::<PyResult<_>>()?;
        Ok(Self {
            inner,
            cache,
            hits: begun.hits,
            stop: begun.stop,
            plans,
        })
    }

    fn view(&self, py: Python<'_>) -> Outcome<core::View> {
        let cache = self.cache.get();
        cache.check_sound()?;
        self.inner.check()?;
        enter(py, &cache.inner, 1, |state| state.view(self.inner.id()))
    }
}

/// In a forked child somebody who is not there may hold the locks: what was made before is left
/// alone.
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
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().number()
    }

    #[getter]
    fn hits(&self) -> (u32, u32, u32) {
        self.hits.into()
    }

    #[getter]
    fn stop(&self) -> &'static str {
        stop_word(self.stop)
    }

    #[getter]
    fn plans<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.plans.iter().map(|plan| plan.clone_ref(py)))
    }

    #[getter]
    fn appended(&self) -> PyResult<u64> {
        self.cache.get().check_sound()?;
        Ok(self.inner.tokens())
    }

    #[getter]
    fn cached(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.view(py)?.cached)
    }

    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.view(py)?.tokens)
    }

    #[getter]
    fn blocks(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.blocks)
    }

    #[getter]
    fn sealed(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.sealed)
    }

    #[getter]
    fn promised(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.promised)
    }

    #[getter]
    fn resumed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.view(py)?.resumed)
    }

    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        let view = match self.view(py) {
            // By this handle, or by the yard: a fork that was undone.
            Err(Failure::Core(core::Error::Spent { .. })) => return Ok("spent"),
            view => view?,
        };
        Ok(match (view.loading > 0, view.short, view.detached) {
            (true, ..) => "loading",
            (_, true, _) => "short",
            (.., true) => "detached",
            _ => "ready",
        })
    }

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
            .finish(slf.py(), slf.as_any(), "ordinary", None);
        // The yard may have undone it: a fork whose copy failed. There is nothing left to end.
        match finished {
            Err(error) if !error.is_instance_of::<SpentLease>(slf.py()) => Err(error),
            _ => Ok(()),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.cache)
    }

    fn __repr__(&self) -> String {
        format!("Lease(id={})", self.id())
    }
}

/// A sequence taken off the device without losing its work.
#[pyclass(frozen, module = "blockyard", weakref)]
pub(crate) struct Parked {
    pub(crate) inner: core::Parked,
    pub(crate) cache: Py<Cache>,
}

impl Parked {
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

/// As for `Lease`.
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
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().number()
    }

    #[getter]
    fn appended(&self) -> PyResult<u64> {
        self.cache.get().check_sound()?;
        Ok(self.inner.tokens())
    }

    #[getter]
    fn computed(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.view(py)?.computed)
    }

    #[getter]
    fn blocks(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.blocks)
    }

    #[getter]
    fn on_device(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.on_device)
    }

    #[getter]
    fn moving(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.pending(py)?.moving)
    }

    #[getter]
    fn alone(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.pending(py)?.alone)
    }

    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.view(py) {
            Err(Failure::Core(core::Error::Spent { .. })) => "spent",
            view => {
                if view?.broken {
                    "broken"
                } else {
                    "kept"
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

/// Part of the prefix is in flight: ask again when the flight has landed. Nothing is held.
#[pyclass(frozen, eq, hash, get_all, module = "blockyard")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Soon {
    pub(crate) flight: u64,
}

#[guarded]
#[pymethods]
impl Soon {
    fn __repr__(&self) -> String {
        format!("Soon(flight={})", self.flight)
    }
}

/// How much of a prefix is where.
#[pyclass(frozen, eq, get_all, module = "blockyard")]
#[derive(PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) device: u32,
    pub(crate) host: u32,
    pub(crate) disk: u32,
    pub(crate) stop: &'static str,
    pub(crate) flight: Option<u64>,
    pub(crate) evicted: Option<bool>,
}

impl From<core::Probe> for Probe {
    fn from(probe: core::Probe) -> Self {
        let [device, host, disk] = probe.hits;
        let flight = match probe.stop {
            core::Stop::Filling(flight) => Some(flight.number()),
            _ => None,
        };
        Self {
            device,
            host,
            disk,
            stop: stop_word(probe.stop),
            flight,
            evicted: probe.evicted,
        }
    }
}

#[guarded]
#[pymethods]
impl Probe {
    fn __repr__(&self) -> String {
        let Self {
            device,
            host,
            disk,
            stop,
            ..
        } = self;
        format!("Probe(device={device}, host={host}, disk={disk}, stop={stop:?})")
    }
}

/// The first law that the audit found broken.
#[pyclass(frozen, get_all, module = "blockyard")]
pub(crate) struct Violation {
    law: &'static str,
    detail: String,
    tier: Option<&'static str>,
    slot: Option<u32>,
    block: Option<String>,
}

impl From<core::Violation> for Violation {
    fn from(violation: core::Violation) -> Self {
        let block = violation.block.map(|key| key.hex());
        Self {
            law: violation.law,
            detail: violation.detail,
            tier: violation.slot.map(|slot| slot.tier.name()),
            slot: violation.slot.map(|slot| slot.index),
            block,
        }
    }
}

#[guarded]
#[pymethods]
impl Violation {
    fn __repr__(&self) -> String {
        let Self {
            law,
            detail,
            tier,
            slot,
            block,
        } = self;
        format!("Violation({law}: {detail}; tier {tier:?}, slot {slot:?}, block {block:?})")
    }
}

pub(crate) fn stop_word(stop: core::Stop) -> &'static str {
    match stop {
        core::Stop::Whole => "whole",
        core::Stop::Missing => "missing",
        core::Stop::Filling(_) => "filling",
        core::Stop::Slow => "slow",
        core::Stop::Promised => "promised",
        core::Stop::Contradiction => "contradiction",
    }
}

/// A handle that belongs elsewhere.
pub(crate) fn foreign(what: &str, number: u64) -> Failure {
    Failure::Foreign(format!(
        "{what} {number} belongs to another cache: pass it to the cache that made it"
    ))
}
