//! The verbs that promise blocks which no lease has: tickets, and the headroom of the running batch.

use crate::arguments;
use crate::face::Cache;
use crate::gil::enter;
use crate::ticket::Ticket;
use blockyard_guard::guarded;
use pyo3::prelude::*;

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
        let handle = cache.inner.handle_ticket(id?);
        Ok(Ticket::new(handle, slf.clone().unbind(), blocks, tier))
    }

    fn set_headroom(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::promised)] blocks: u64,
    ) -> PyResult<u32> {
        // 0 only gives room up, which stays possible after the cache was closed.
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
