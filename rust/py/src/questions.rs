//! Questions of a scheduler, and of whoever asks why.

use crate::arguments::{self, Apart};
use crate::cache::Cache;
use crate::enter::{LONG, enter};
use crate::handles::{Lease, stop_word};
use blockyard_core::{HolderId, Request, Tier};
use blockyard_guard::guarded;
use pyo3::prelude::*;
use std::sync::atomic::Ordering;

/// Room on one tier, in blocks.
#[pyclass(frozen, eq, hash, get_all, module = "blockyard")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Room {
    free: u32,
    evictable: u32,
    promised: u32,
    headroom: u32,
    evicted: u64,
}

#[guarded]
#[pymethods]
impl Room {
    fn __repr__(&self) -> String {
        let Self {
            free,
            evictable,
            promised,
            headroom,
            evicted,
        } = self;
        format!(
            "Room(free={free}, evictable={evictable}, promised={promised}, headroom={headroom}, \
             evicted={evicted})"
        )
    }
}

/// Kind, number, blocks held, promised, and held alone.
type HolderRow = (&'static str, u64, u32, u32, u32);

/// What a begin would answer.
#[pyclass(frozen, eq, get_all, module = "blockyard")]
#[derive(PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "what is needed of what is there")]
pub(crate) struct Need {
    need: u64,
    free: u64,
    evictable: u64,
    promised: u64,
    fits: bool,
    ever: bool,
    waits: Option<u64>,
    device: u32,
    loads: u32,
    slow: u32,
    stop: &'static str,
}

#[guarded]
#[pymethods]
impl Need {
    fn __repr__(&self) -> String {
        let truth = |truth| if truth { "True" } else { "False" };
        format!(
            "Need(need={}, free={}, evictable={}, promised={}, fits={}, ever={}, stop={:?})",
            self.need,
            self.free,
            self.evictable,
            self.promised,
            truth(self.fits),
            truth(self.ever),
            self.stop
        )
    }
}

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
        })?;
        Ok(Need {
            need: need.need,
            free: need.free,
            evictable: need.evictable,
            promised: need.promised,
            fits: need.fits,
            ever: need.ever,
            waits: need.waits.map(blockyard_core::FlightId::number),
            device: need.device,
            loads: need.loads,
            slow: need.slow,
            stop: stop_word(need.stop),
        })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    #[pyo3(signature = (tier="device"))]
    fn room(&self, py: Python<'_>, tier: &str) -> PyResult<Room> {
        self.check_sound()?;
        let tier = arguments::tier(tier)?;
        let room = enter(py, &self.inner, 0, |state| state.room(tier))?;
        Ok(Room {
            free: room.free,
            evictable: room.evictable,
            promised: room.promised,
            headroom: room.headroom,
            evicted: room.evicted,
        })
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
