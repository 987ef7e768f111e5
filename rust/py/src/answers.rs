//! Small frozen answers: what a verb has found out, without a hold on anything.

use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::prelude::*;

/// Part of the prefix is in flight: ask again when the flight has landed. Nothing is held.
#[pyclass(frozen, eq, hash, get_all, module = "blockyard")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Soon {
    flight: u64,
}

impl From<core::FlightId> for Soon {
    fn from(flight: core::FlightId) -> Self {
        let flight = flight.number();
        Self { flight }
    }
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
    device: u32,
    host: u32,
    disk: u32,
    stop: &'static str,
    flight: Option<u64>,
    evicted: Option<bool>,
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

/// Room on one tier, in blocks.
#[pyclass(frozen, eq, hash, get_all, module = "blockyard")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Room {
    free: u32,
    evictable: u32,
    promised: u32,
    available: i64,
    headroom: u32,
    evicted: u64,
}

impl From<core::Room> for Room {
    fn from(room: core::Room) -> Self {
        Self {
            free: room.free,
            evictable: room.evictable,
            promised: room.promised,
            available: room.available,
            headroom: room.headroom,
            evicted: room.evicted,
        }
    }
}

#[guarded]
#[pymethods]
impl Room {
    fn __repr__(&self) -> String {
        let Self {
            free,
            evictable,
            promised,
            available,
            headroom,
            evicted,
        } = self;
        format!(
            "Room(free={free}, evictable={evictable}, promised={promised}, available={available}, \
             headroom={headroom}, evicted={evicted})"
        )
    }
}

/// What a begin would answer.
#[pyclass(frozen, eq, get_all, module = "blockyard")]
#[derive(PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "what is needed of what is there")]
pub(crate) struct Need {
    need: u64,
    free: u64,
    evictable: u64,
    promised: u64,
    available: i64,
    fits: bool,
    ever: bool,
    waits: Option<u64>,
    device: u32,
    loads: u32,
    slow: u32,
    stop: &'static str,
}

impl From<core::Need> for Need {
    fn from(need: core::Need) -> Self {
        Self {
            need: need.need,
            free: need.free,
            evictable: need.evictable,
            promised: need.promised,
            available: need.available,
            fits: need.fits,
            ever: need.ever,
            waits: need.waits.map(core::FlightId::number),
            device: need.device,
            loads: need.loads,
            slow: need.slow,
            stop: stop_word(need.stop),
        }
    }
}

#[guarded]
#[pymethods]
impl Need {
    fn __repr__(&self) -> String {
        let truth = |truth| if truth { "True" } else { "False" };
        format!(
            "Need(need={}, free={}, evictable={}, promised={}, available={}, fits={}, ever={}, \
             stop={:?})",
            self.need,
            self.free,
            self.evictable,
            self.promised,
            self.available,
            truth(self.fits),
            truth(self.ever),
            self.stop
        )
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
