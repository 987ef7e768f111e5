//! `park` takes a sequence off the device; `abandon` gives it up. `begin` brings it back.

use crate::arguments::{self, Counts};
use crate::cache_class::Cache;
use crate::gil::enter;
use crate::lease::Lease;
use crate::parked::Parked;
use crate::recorder::record_parked;
use crate::ticket::Ticket;
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Takes a sequence off the device without losing its work, after the engine's stop ack.
    ///
    /// Full, computed blocks are sealed first. Nothing is copied yet: the nearest lower tier that
    /// has room promises slots for blocks without a copy below, and `demote(of=parked)` copies the
    /// last blocks first, as many as are needed.
    ///
    /// Args:
    ///     lease: The sequence.
    ///     computed: Tokens whose KV it has. The number is fixed from now on.
    ///     after: A step in flight that may still write: slots are held back until `commit(done=)`.
    ///     ticket: A ticket of `promise(tier="host")` or `"disk"`: the park may use the blocks that
    ///         it keeps, and never lacks room for that many. On success the ticket is spent,
    ///         including blocks that were not needed. After an error it stays open.
    ///
    /// Returns:
    ///     The parked sequence: `begin` resumes it, and `abandon` gives it up.
    ///
    /// Raises:
    ///     NoRoom: No tier below can promise the slots; the numbers are the nearest one's. Nothing
    ///         is given up, and full blocks are sealed all the same. `promised` does not count the
    ///         blocks of `ticket`.
    ///     TooLarge: No tier below can ever hold it, or there is none.
    ///     Misuse: `computed` is out of range, the lease is loading or detached, or the ticket is
    ///         for the device.
    ///     SpentLease: The lease or the ticket has ended before.
    ///     ForeignLease: One of them is another cache's.
    #[pyo3(signature = (lease, computed, *, after=None, ticket=None))]
    fn park(
        slf: &Bound<'_, Self>,
        lease: &Bound<'_, Lease>,
        computed: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::after)] after: Option<u64>,
        ticket: Option<&Bound<'_, Ticket>>,
    ) -> PyResult<Parked> {
        let (py, cache) = (slf.py(), slf.get());
        let batch = cache.rows(lease.as_any())?;
        let ticket = ticket
            .map(|ticket| ticket.get().of(cache, py))
            .transpose()?;
        let computed = Counts::new("computed", computed, 1)?;
        let seals = batch.seals(&computed)?;
        let handle = &lease.get().inner;
        let parked = enter(py, &cache.inner, cache.blocks(&batch), |state| {
            let row = seals.row(handle, computed.of(0));
            match ticket {
                Some(ticket) => state.redeem_parking(ticket.id(), &row, after),
                None => state.park(&row, after),
            }
        });
        let inner = handle.into_parked(parked?);
        if let Some(ticket) = ticket {
            ticket.spend();
        }
        Ok(Parked::new(inner, slf.clone().unbind(), lease.get().seen))
    }

    /// Gives a parked sequence up, with its work.
    ///
    /// Args:
    ///     parked: The handle of `park`.
    ///
    /// Raises:
    ///     SpentLease: It has ended before.
    ///     ForeignLease: It is another cache's.
    fn abandon(&self, py: Python<'_>, parked: &Bound<'_, Parked>) -> PyResult<()> {
        let handle = parked.get().of(self, py)?;
        let blocks = (handle.tokens() / u64::from(self.block_size)) as usize;
        enter(py, &self.inner, blocks, |state| state.abandon(handle.id()))?;
        handle.spend();
        record_parked(self.recorder.as_ref(), parked.get().seen, handle);
        Ok(())
    }
}
