//! Small frozen answers: what a verb has found out, without a hold on anything.

use crate::arguments;
use crate::error::Failure;
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// What all answers have: their fields make one again, so that pickle carries them, and a copy is the
/// answer itself.
macro_rules! frozen {
    ($(#[$lint:meta])? $answer:ident { $($(#[$how:meta])? $field:ident: $kind:ty),+ $(,)? }) => {
        #[guarded]
        #[pymethods]
        impl $answer {
            $(#[$lint])?
            #[new]
            fn new($($(#[$how])? $field: $kind),+) -> Self {
                Self { $($field),+ }
            }

            fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, ($($kind,)+)) {
                let answer = slf.get();
                (slf.get_type(), ($(answer.$field.clone(),)+))
            }

            /// Returns itself: it is frozen.
            fn __copy__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            /// Returns itself: it is frozen.
            fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
                slf
            }
        }
    };
}

frozen!(Soon { flight: u64 });
frozen!(Forgotten {
    blocks: u64,
    kept: Vec<u64>,
    flights: Vec<u64>,
});
frozen!(
    #[expect(clippy::too_many_arguments, reason = "a value for each field")]
    Probe {
        device: u32,
        host: u32,
        disk: u32,
        remote: u32,
        #[pyo3(from_py_with = stop_of)] stop: &'static str,
        flight: Option<u64>,
        evicted: Option<bool>,
    }
);
frozen!(Violation {
    law: String,
    detail: String,
    #[pyo3(from_py_with = tier_of)] tier: Option<&'static str>,
    slot: Option<u32>,
    block: Option<String>,
});
frozen!(Room {
    free: u32,
    evictable: u32,
    promised: u32,
    available: i64,
    headroom: u32,
    evicted: u64,
});
frozen!(
    #[expect(clippy::too_many_arguments, reason = "a value for each field")]
    Need {
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
        #[pyo3(from_py_with = stop_of)] stop: &'static str,
    }
);

/// Part of the prefix is in flight. Ask again when the flight has landed; nothing is held.
///
/// It is frozen, and any thread may read it.
#[pyclass(frozen, eq, hash, get_all, module = "blockyard")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Soon {
    /// The flight to wait for.
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

/// The answer of `forget`.
///
/// It is frozen, and any thread may read it.
#[pyclass(frozen, eq, get_all, module = "blockyard._core")]
#[derive(PartialEq, Eq)]
pub(crate) struct Forgotten {
    /// Blocks that are found no more, on any tier.
    blocks: u64,
    /// The `id` of each parked sequence that keeps some of the named blocks.
    ///
    /// Its blocks stay; by force, its keep was broken. Saved requests are parked, too.
    kept: Vec<u64>,
    /// The flight that voids records, for each tier that outlives the process.
    flights: Vec<u64>,
}

impl From<core::Forgotten> for Forgotten {
    fn from(from: core::Forgotten) -> Self {
        let flights = from.plans.iter().map(|plan| plan.flight.number());
        Self {
            blocks: from.blocks,
            kept: from.kept.iter().map(|id| id.number()).collect(),
            flights: flights.collect(),
        }
    }
}

#[guarded]
#[pymethods]
impl Forgotten {
    fn __repr__(&self) -> String {
        let Self {
            blocks,
            kept,
            flights,
        } = self;
        format!("Forgotten(blocks={blocks}, kept={kept:?}, flights={flights:?})")
    }
}

/// The blocks of a prefix by tier. Each counts on the highest tier that has it.
///
/// It is frozen, and any thread may read it.
#[pyclass(frozen, eq, get_all, module = "blockyard")]
#[derive(PartialEq, Eq)]
pub(crate) struct Probe {
    /// Blocks on the device.
    device: u32,
    /// Blocks that follow them on the host; blocks on disk may be between them.
    host: u32,
    /// Blocks that follow them on disk, likewise.
    disk: u32,
    /// Blocks that follow them in shared stores, likewise.
    remote: u32,
    /// Why the prefix ended.
    ///
    /// "whole": all of it was found.
    ///
    /// "missing": the next block is on no tier.
    ///
    /// "filling": the next block is in flight.
    ///
    /// "scattered": the prefix lies on lower tiers in more runs than one begin loads, which are 8.
    ///
    /// "slow": a begin left the rest below, as its `load` or the cache's `block_costs` say.
    ///
    /// "promised": the next block backs a promise to another request.
    ///
    /// "contradiction": the next key is known with another parent, so that the keys were made in
    /// another way.
    stop: &'static str,
    /// The flight that fills the next block, if `stop` is "filling".
    flight: Option<u64>,
    /// Whether the first missing block was there before and was dropped.
    ///
    /// The cache remembers a limited number of dropped blocks, and only under
    /// `write="second-touch"`. Without them, and where `stop` is not "missing", this is None.
    evicted: Option<bool>,
}

impl From<core::Probe> for Probe {
    fn from(probe: core::Probe) -> Self {
        let [device, host, disk, remote] = probe.hits;
        let flight = match probe.stop {
            core::Stop::Filling(flight) => Some(flight.number()),
            _ => None,
        };
        Self {
            device,
            host,
            disk,
            remote,
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
            remote,
            stop,
            ..
        } = self;
        format!("Probe(device={device}, host={host}, disk={disk}, remote={remote}, stop={stop:?})")
    }
}

/// The first law that the audit found broken. Only a bug of Blockyard can break one.
///
/// It is frozen, and any thread may read it.
#[pyclass(frozen, eq, hash, get_all, module = "blockyard")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Violation {
    /// The name of the law, such as "INV-1".
    law: String,
    /// The value found, and the value that the law demands.
    detail: String,
    /// The tier where it was found; None if it is on no tier.
    tier: Option<&'static str>,
    /// The slot where it was found; None if it is in no slot.
    slot: Option<u32>,
    /// Key of the block, in hex; None for an anonymous or private block.
    block: Option<String>,
}

impl From<core::Violation> for Violation {
    fn from(violation: core::Violation) -> Self {
        let block = violation.block.map(|key| key.hex());
        Self {
            law: violation.law.to_owned(),
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

/// Room on one tier, in blocks, read at one moment.
///
/// It is frozen, and any thread may read it.
#[pyclass(frozen, eq, hash, get_all, module = "blockyard._core")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Room {
    /// Slots that hold nothing.
    free: u32,
    /// Idle blocks that may be evicted now.
    evictable: u32,
    /// Blocks of both that are promised: to growth, headroom, tickets or keeps.
    promised: u32,
    /// Blocks to be had: free and evictable ones, less those that are promised.
    available: i64,
    /// The promised blocks that `Cache.set_headroom` keeps; 0 below the device.
    headroom: u32,
    /// Blocks evicted so far.
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

/// The predicted answer of a begin, in blocks, by the begin's own arithmetic.
///
/// It is frozen, and any thread may read it.
#[pyclass(frozen, eq, get_all, module = "blockyard._core")]
#[derive(PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "what is needed of what is there")]
pub(crate) struct Need {
    /// Device slots that the begin would take or have promised.
    need: u64,
    /// Slots that hold nothing.
    free: u64,
    /// Idle blocks that may be evicted for it, without those that it would hold itself.
    evictable: u64,
    /// Blocks of both that are promised to others.
    promised: u64,
    /// Blocks to be had for it: free and evictable ones, less those that are promised.
    ///
    /// It is below 0 where others were promised blocks that this begin would hold itself.
    available: i64,
    /// Whether the begin would be served.
    fits: bool,
    /// Whether the device could ever hold it.
    ever: bool,
    /// The flight that the begin would have to wait for; None if there is none.
    waits: Option<u64>,
    /// Blocks that the begin would find on the device.
    device: u32,
    /// Blocks that the begin would load, as far as promises allow.
    loads: u32,
    /// Blocks that it would find below the device and not load.
    slow: u32,
    /// Why the prefix that the begin would use ends: a word as in `Probe.stop`.
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

/// A word of `Probe.stop`.
fn stop_of(from: &Bound<'_, PyAny>) -> PyResult<&'static str> {
    let words = [
        "whole",
        "missing",
        "filling",
        "scattered",
        "slow",
        "promised",
        "contradiction",
    ];
    let word: String = from.extract()?;
    let known = words.into_iter().find(|known| **known == word);
    Ok(known.ok_or_else(|| {
        Failure::misuse(format!(
            "stop = {word:?}: must be one of {}",
            words.join(", ")
        ))
    })?)
}

fn tier_of(from: &Bound<'_, PyAny>) -> PyResult<Option<&'static str>> {
    let name: Option<String> = from.extract()?;
    let tier = name.map(|name| arguments::tier(&name)).transpose()?;
    Ok(tier.map(core::Tier::name))
}

pub(crate) fn stop_word(stop: core::Stop) -> &'static str {
    match stop {
        core::Stop::Whole => "whole",
        core::Stop::Missing => "missing",
        core::Stop::Filling(_) => "filling",
        core::Stop::Scattered => "scattered",
        core::Stop::Slow => "slow",
        core::Stop::Promised => "promised",
        core::Stop::Contradiction => "contradiction",
    }
}
