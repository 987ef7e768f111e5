//! `Ticket`: blocks promised to a request that does not have them yet.

use crate::cache_class::Cache;
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

/// Blocks promised to a request that does not have them yet; no slot moves for them.
///
/// `Cache.begin` spends a ticket for the device, and `Cache.park` one for a tier below it.
/// `Cache.release` gives it back. If it is dropped instead, the next verb gives its promise back,
/// and `stats()["leaked"]` counts it. Any thread may use it.
#[pyclass(frozen, module = "blockyard", weakref)]
pub(crate) struct Ticket {
    inner: core::Ticket,
    cache: Py<Cache>,
    blocks: u64,
    tier: core::Tier,
}

impl Ticket {
    pub(crate) fn new(
        inner: core::Ticket,
        cache: Py<Cache>,
        blocks: u64,
        tier: core::Tier,
    ) -> Self {
        Self {
            inner,
            cache,
            blocks,
            tier,
        }
    }

    /// The handle, if this cache made it and it is not spent.
    pub(crate) fn of<'a>(&'a self, cache: &Cache, py: Python<'_>) -> PyResult<&'a core::Ticket> {
        cache.check_sound()?;
        let checked = cache.inner.check_ticket(&self.inner);
        cache.admit_handle(py, checked.map(|()| &self.inner))
    }
}

/// In a forked child it gives nothing back: see `Lease`.
impl Drop for Ticket {
    fn drop(&mut self) {
        if self.cache.get().check_sound().is_err() {
            self.inner.spend();
        }
    }
}

#[guarded]
#[pymethods]
impl Ticket {
    /// Its number, which no other one ever gets.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().number()
    }

    /// Blocks that were promised to it.
    #[getter]
    fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The tier whose blocks it keeps: "device", "host" or "disk".
    #[getter]
    fn tier(&self) -> &'static str {
        self.tier.name()
    }

    /// The cache that made it.
    #[getter]
    fn cache<'py>(&self, py: Python<'py>) -> Bound<'py, Cache> {
        self.cache.bind(py).clone()
    }

    /// Whether it still keeps its blocks: "open", or "spent" by a verb that ended it.
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        self.cache.get().check_sound()?;
        Ok(match self.inner.check() {
            Ok(()) => "open",
            Err(_) => "spent",
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.cache)
    }

    fn __repr__(&self) -> String {
        let (id, blocks) = (self.id(), self.blocks);
        match self.tier {
            core::Tier::DEVICE => format!("Ticket(id={id}, blocks={blocks})"),
            tier => format!("Ticket(id={id}, blocks={blocks}, tier={:?})", tier.name()),
        }
    }
}
