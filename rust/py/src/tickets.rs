//! Promises that no lease has: tickets, and the headroom of the running batch.

use crate::arguments;
use crate::cache::Cache;
use crate::enter::enter;
use crate::error::Failure;
use crate::handles::foreign;
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

/// Blocks promised to somebody who does not have them yet.
#[pyclass(frozen, module = "blockyard", weakref)]
pub(crate) struct Ticket {
    inner: core::Ticket,
    cache: Py<Cache>,
    blocks: u64,
    tier: core::Tier,
}

impl Ticket {
    /// Of the cache that it is used with, and not spent.
    pub(crate) fn of<'a>(&'a self, cache: &Cache, py: Python<'_>) -> PyResult<&'a core::Ticket> {
        cache.check_sound()?;
        let good = if cache.inner.made_ticket(&self.inner) {
            self.inner.check().map_err(Failure::from)
        } else {
            Err(foreign("ticket", self.id()))
        };
        match good {
            Ok(()) => Ok(&self.inner),
            Err(bad) => Err(cache.reject(py, 1, bad)),
        }
    }
}

/// As for `Lease`.
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
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().number()
    }

    #[getter]
    fn blocks(&self) -> u64 {
        self.blocks
    }

    #[getter]
    fn tier(&self) -> &'static str {
        self.tier.name()
    }

    #[getter]
    fn cache<'py>(&self, py: Python<'py>) -> Bound<'py, Cache> {
        self.cache.bind(py).clone()
    }

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

#[guarded]
#[pymethods]
impl Cache {
    #[pyo3(signature = (blocks, *, tier="device"))]
    fn promise(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = arguments::promised)] blocks: u64,
        tier: &str,
    ) -> PyResult<Ticket> {
        let cache = slf.get();
        cache.check_open()?;
        let tier = arguments::tier(tier)?;
        let id = enter(slf.py(), &cache.inner, 0, |state| {
            state.promise(blocks, tier)
        });
        Ok(Ticket {
            inner: cache.inner.handle_ticket(id?),
            cache: slf.clone().unbind(),
            blocks,
            tier,
        })
    }

    fn set_headroom(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::promised)] blocks: u64,
    ) -> PyResult<u32> {
        // None is room that somebody gives up.
        if blocks == 0 {
            self.check_sound()?;
        } else {
            self.check_open()?;
        }
        Ok(enter(py, &self.inner, 0, |state| {
            Ok(state.set_headroom(blocks))
        })?)
    }

    fn release(&self, py: Python<'_>, ticket: &Bound<'_, Ticket>) -> PyResult<()> {
        let handle = ticket.get().of(self, py)?;
        let id = handle.id();
        enter(py, &self.inner, 0, |state| state.release_ticket(id))?;
        handle.spend();
        Ok(())
    }
}
