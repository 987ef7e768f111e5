//! Questions of a scheduler, and of whoever asks why.

use crate::arguments;
use crate::cache::Cache;
use crate::enter::{away, enter};
use crate::error::Failure;
use blockyard_core::Who;
use pyo3::prelude::*;

/// Room on one tier, in blocks.
#[pyclass(frozen, eq, hash, get_all, module = "blockyard")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Room {
    free: u32,
    evictable: u32,
    promised: u32,
    evicted: u64,
}

#[pymethods]
impl Room {
    fn __repr__(&self) -> String {
        let Self {
            free,
            evictable,
            promised,
            evicted,
        } = self;
        format!("Room(free={free}, evictable={evictable}, promised={promised}, evicted={evicted})")
    }
}

#[pymethods]
impl Cache {
    #[pyo3(signature = (tier="device"))]
    fn room(&self, py: Python<'_>, tier: &str) -> PyResult<Room> {
        self.check_fork()?;
        let tier = arguments::tier(tier)?;
        let room = enter(py, &self.inner, 0, |state| state.room(tier)).map_err(Failure::from)?;
        Ok(Room {
            free: room.free,
            evictable: room.evictable,
            promised: room.promised,
            evicted: room.evicted,
        })
    }

    fn holders(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, u64, u32, u32)>> {
        self.check_fork()?;
        let all = away(py, || self.inner.lock().holders());
        let row = |holder: blockyard_core::Holder| {
            let (kind, number) = match holder.who {
                Who::Lease(id) => ("lease", id.number()),
                Who::Parked(id) => ("parked", id.number()),
                Who::Ticket(id) => ("ticket", id.number()),
            };
            (kind, number, holder.device, holder.promised)
        };
        Ok(all.into_iter().map(row).collect())
    }

    fn digest(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_fork()?;
        Ok(away(py, || self.inner.lock().digest()))
    }

    fn blocks_in_air(&self, py: Python<'_>) -> PyResult<(u32, u32)> {
        self.check_fork()?;
        Ok(enter(py, &self.inner, 0, |state| state.blocks_in_air()))
    }

    #[pyo3(signature = (blocks, after=0))]
    fn worth_loading(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::blocks)] blocks: u32,
        #[pyo3(from_py_with = arguments::before)] after: u32,
    ) -> PyResult<bool> {
        self.check_fork()?;
        Ok(enter(py, &self.inner, 0, |state| {
            state.worth_loading(blocks, after)
        }))
    }
}
