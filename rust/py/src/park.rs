//! `park` takes a sequence off the device; `abandon` gives it up. `begin` brings it back.

use crate::arguments::{self, Counts};
use crate::face::Cache;
use crate::gil::enter;
use crate::lease::Lease;
use crate::parked::Parked;
use crate::ticket::Ticket;
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    #[pyo3(signature = (lease, computed, *, after=None, ticket=None))]
    fn park(
        slf: &Bound<'_, Self>,
        lease: &Bound<'_, Lease>,
        computed: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::after)] after: Option<u64>,
        ticket: Option<&Bound<'_, Ticket>>,
    ) -> PyResult<Parked> {
        let (py, cache) = (slf.py(), slf.get());
        let batch = cache.batch(lease.as_any())?;
        let ticket = ticket
            .map(|ticket| ticket.get().of(cache, py))
            .transpose()?;
        let computed = Counts::new("computed", computed, 1)?;
        let seals = batch.seals(&computed)?;
        let handle = &lease.get().inner;
        let row = seals.row(handle, computed.of(0));
        let parked = enter(
            py,
            &cache.inner,
            cache.blocks(&batch),
            |state| match ticket {
                Some(ticket) => state.redeem_parking(ticket.id(), &row, after),
                None => state.park(&row, after),
            },
        );
        let inner = handle.into_parked(parked?);
        if let Some(ticket) = ticket {
            ticket.spend();
        }
        Ok(Parked::new(inner, slf.clone().unbind()))
    }

    fn abandon(&self, py: Python<'_>, parked: &Bound<'_, Parked>) -> PyResult<()> {
        let handle = parked.get().of(self, py)?;
        let blocks = (handle.tokens() / u64::from(self.block_size)) as usize;
        enter(py, &self.inner, blocks, |state| state.abandon(handle.id()))?;
        handle.spend();
        Ok(())
    }
}
