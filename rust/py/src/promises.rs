//! The verbs that promise blocks which no lease has: tickets, and the headroom of the running batch.

use crate::arguments;
use crate::cache_class::Cache;
use crate::gil::enter;
use crate::ticket::Ticket;
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Keeps blocks obtainable for a request that is not running yet or will be parked.
    ///
    /// On the device, the growth of running sequences and other begins do not take them; on the
    /// lower tiers, other parks and copies ahead of need do not.
    ///
    /// Args:
    ///     blocks: How many, >= 1.
    ///     tier: "device" for a `begin`, "host" or "disk" for a `park`.
    ///
    /// Returns:
    ///     The ticket, which keeps them until a verb spends it.
    ///
    /// Raises:
    ///     NoRoom: Fewer blocks are available.
    ///     TooLarge: The tier never holds that many.
    ///     Misuse: `blocks` is 0, or there is no such tier.
    #[pyo3(signature = (blocks, *, tier="device"))]
    fn promise(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = arguments::promised)] blocks: u64,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
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

    /// Keeps device blocks promised for the growth of the running sequences as a whole.
    ///
    /// No begin, ticket, load or copy ahead of need takes them. A `grow` beyond its row's own
    /// promise takes them when nothing else is left. Each call replaces the number that was kept
    /// before. It falls as blocks are used or as a `resize` needs them, and to 0 as soon as the
    /// last running sequence has ended or is parked; only another call raises it.
    ///
    /// Args:
    ///     blocks: How many are wanted, >= 0.
    ///
    /// Returns:
    ///     How many are kept: fewer if fewer are available, and 0 while nothing runs.
    ///
    /// Raises:
    ///     Misuse: `blocks` is out of range.
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

    /// Gives a ticket back: its blocks are no longer promised.
    ///
    /// Args:
    ///     ticket: The ticket of `promise`.
    ///
    /// Raises:
    ///     SpentLease: The ticket has ended before.
    ///     ForeignLease: It is another cache's.
    fn release(&self, py: Python<'_>, ticket: &Bound<'_, Ticket>) -> PyResult<()> {
        let handle = ticket.get().of(self, py)?;
        let id = handle.id();
        enter(py, &self.inner, 0, |state| state.release_ticket(id))?;
        handle.spend();
        Ok(())
    }
}
