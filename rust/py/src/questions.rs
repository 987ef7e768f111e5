//! Questions of a scheduler, or of an operator who asks why. They change nothing.

use crate::answers::{Need, Room};
use crate::arguments;
use crate::face::Cache;
use crate::gil::{LONG, enter};
use crate::lease::Lease;
use crate::prompt::Apart;
use blockyard_core::{HolderId, Request, Tier};
use blockyard_guard::guarded;
use pyo3::prelude::*;

/// Kind, number, blocks held, blocks promised, and blocks held alone.
type HolderRow = (&'static str, u64, u32, u32, u32);

#[guarded]
#[pymethods]
impl Cache {
    #[pyo3(signature = (prompt, /, *, reserve=0, load=None, filling="stop", lora=None, salt=None,
        media=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn dry_run(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::reserve)] reserve: u64,
        #[pyo3(from_py_with = arguments::load)] load: Option<u32>,
        filling: &str,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        media: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Need> {
        self.check_sound()?;
        let filling = arguments::filling(filling)?;
        let chain = self.prompt(py, prompt, &Apart { lora, salt, media })?;
        let request = Request {
            keys: chain.keys(),
            tokens: chain.tokens(),
            reserve,
            load: load.unwrap_or(u32::MAX),
            filling,
        };
        let need = enter(py, &self.inner, chain.keys().len(), |state| {
            state.dry_run(&request)
        });
        Ok(need?.into())
    }

    #[pyo3(signature = (tier="device"))]
    fn room(&self, py: Python<'_>, tier: &str) -> PyResult<Room> {
        self.check_sound()?;
        let tier = arguments::tier(tier)?;
        let room = enter(py, &self.inner, 0, |state| state.room(tier));
        Ok(room?.into())
    }

    #[pyo3(signature = (tier="device"))]
    fn limit(&self, py: Python<'_>, tier: &str) -> PyResult<u32> {
        self.check_sound()?;
        let tier = arguments::tier(tier)?;
        Ok(enter(py, &self.inner, 0, |state| state.limit(tier))?)
    }

    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_sound()?;
        let done = enter(py, &self.inner, 0, |state| Ok(state.last_done()))?;
        Ok(done.unwrap_or(0))
    }

    fn holders(&self, py: Python<'_>) -> PyResult<Vec<HolderRow>> {
        self.check_sound()?;
        let all = enter(py, &self.inner, LONG, |state| Ok(state.holders()))?;
        let row = |holder: blockyard_core::Holder| {
            let (kind, number) = match holder.id {
                HolderId::Lease(id) => ("lease", id.number()),
                HolderId::Parked(id) => ("parked", id.number()),
                HolderId::Ticket(id) if holder.tier == Tier::HOST => ("host ticket", id.number()),
                HolderId::Ticket(id) => ("ticket", id.number()),
            };
            (kind, number, holder.device, holder.promised, holder.alone)
        };
        Ok(all.into_iter().map(row).collect())
    }

    fn digest(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_sound()?;
        Ok(enter(py, &self.inner, LONG, |state| Ok(state.digest()))?)
    }

    fn exclusive_blocks(&self, lease: &Bound<'_, Lease>) -> PyResult<u32> {
        let batch = self.batch(lease.as_any())?;
        let blocks = self.blocks(&batch);
        let id = batch.ids[0];
        let alone = enter(lease.py(), &self.inner, blocks, |state| {
            state.exclusive_blocks(id)
        });
        Ok(alone?)
    }

    fn blocks_in_flight(&self, py: Python<'_>) -> PyResult<(u32, u32)> {
        self.check_sound()?;
        Ok(enter(py, &self.inner, 0, |state| {
            Ok(state.blocks_in_flight())
        })?)
    }

    /// Returns how many plans no `dispatch` has returned yet, and the flight of the oldest.
    ///
    /// None where there are none: flights that have ended meanwhile do not count.
    fn undispatched(&self, py: Python<'_>) -> PyResult<Option<(u32, u64)>> {
        self.check_sound()?;
        let oldest = enter(py, &self.inner, 0, |state| Ok(state.undispatched()))?;
        Ok(oldest.map(|(plans, flight)| (plans, flight.number())))
    }

    #[pyo3(signature = (blocks, after=0))]
    fn worth_loading(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::blocks)] blocks: u32,
        #[pyo3(from_py_with = arguments::before)] after: u32,
    ) -> PyResult<bool> {
        self.check_sound()?;
        Ok(enter(py, &self.inner, 0, |state| {
            Ok(state.worth_loading(blocks, after))
        })?)
    }
}
