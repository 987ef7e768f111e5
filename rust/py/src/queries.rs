//! Questions of a scheduler, or of an operator who asks why. They change nothing.

use crate::arguments;
use crate::cache_class::Cache;
use crate::error::Failure;
use crate::gil::{LONG, enter, enter_weighed};
use crate::lease::Lease;
use crate::prompt::{Apart, read};
use crate::results::{Need, Room};
use blockyard_core::{FlightId, HolderId, Request, State, Tier};
use blockyard_guard::guarded;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// Kind, number, device blocks held, blocks promised, device blocks held alone, and blocks kept below.
type HolderRow = (&'static str, u64, u32, u32, u32, (u32, u32, u32));

#[guarded]
#[pymethods]
impl Cache {
    /// Predicts the answer of `begin` now, without a ticket. It changes nothing.
    ///
    /// Args:
    ///     prompt: Keys or tokens.
    ///     reserve: As in `begin`.
    ///     load: As in `begin`.
    ///     filling: As in `begin`.
    ///     lora: As in `keys`.
    ///     salt: As in `keys`.
    ///     media: As in `keys`.
    ///     read_prefix: As in `begin`.
    ///
    /// Raises:
    ///     Misuse: As in `begin`.
    #[pyo3(signature = (prompt, /, *, reserve=0, load=None, filling="stop", lora=None, salt=None,
        media=None, read_prefix=true))]
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
        read_prefix: bool,
    ) -> PyResult<Need> {
        self.check_sound()?;
        let filling = arguments::filling(filling)?;
        let chain = self.prompt(py, prompt, &Apart { lora, salt, media })?;
        let request = Request {
            keys: read(&chain, read_prefix),
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

    /// Returns the room on a tier, read at one moment.
    ///
    /// Args:
    ///     tier: The tier.
    ///
    /// Raises:
    ///     Misuse: The cache has no such tier.
    #[pyo3(signature = (tier="device"))]
    fn room(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
    ) -> PyResult<Room> {
        self.check_sound()?;
        let tier = arguments::tier(tier)?;
        let room = enter(py, &self.inner, 0, |state| state.room(tier));
        Ok(room?.into())
    }

    /// Returns the blocks that a tier may hold: its size, less null and withdrawn slots.
    ///
    /// Args:
    ///     tier: The tier.
    ///
    /// Raises:
    ///     Misuse: The cache has no such tier.
    #[pyo3(signature = (tier="device"))]
    fn limit(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
    ) -> PyResult<u32> {
        self.check_sound()?;
        let tier = arguments::tier(tier)?;
        Ok(enter(py, &self.inner, 0, |state| state.limit(tier))?)
    }

    /// The last `done` of `commit`; 0 before the first.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_sound()?;
        let done = enter(py, &self.inner, 0, |state| Ok(state.last_done()))?;
        Ok(done.unwrap_or(0))
    }

    /// How many leases have ended their loads, good or not.
    ///
    /// While it stays the same, no lease has left the state "loading", unless a verb has ended it.
    #[getter]
    fn loaded(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_sound()?;
        Ok(enter(py, &self.inner, 0, |state| Ok(state.loaded()))?)
    }

    /// Returns which sequence, hold or ticket holds how much, the largest first.
    ///
    /// This is a diagnostic: it takes time in proportion to all that is held.
    ///
    /// Returns:
    ///     A row for each running or parked sequence, also for those that have ended or come back
    ///     and wait for their loads: its kind; its number; the device blocks in its table or pinned
    ///     by its keeps; the blocks promised to it, which are growth on the device or, of a parked
    ///     one, slots below; the device blocks that only it holds, so that its end makes at least
    ///     that many free or evictable at once; and the blocks that its keeps pin on the host, on
    ///     the disk and in stores. A "hold" is of `hold`, for other engines. A "ticket" holds nothing, and is promised blocks of the device; a
    ///     "host ticket", "disk ticket" or "remote ticket" is promised blocks there.
    fn holders(&self, py: Python<'_>) -> PyResult<Vec<HolderRow>> {
        self.check_sound()?;
        let all = enter(py, &self.inner, LONG, |state| Ok(state.holders()))?;
        let row = |holder: blockyard_core::Holder| {
            let (kind, number) = match holder.id {
                HolderId::Lease(id) => ("lease", id.number()),
                HolderId::Parked(id) => ("parked", id.number()),
                HolderId::Hold(id) => ("hold", id.number()),
                HolderId::Ticket(id) => {
                    let of = |tier: Tier| holder.promised[tier.0] > 0;
                    let kind = match [Tier::HOST, Tier::DISK, Tier::REMOTE].map(of) {
                        [true, ..] => "host ticket",
                        [_, true, _] => "disk ticket",
                        [.., true] => "remote ticket",
                        _ => "ticket",
                    };
                    (kind, id.number())
                }
            };
            let [device, host, disk, remote] = holder.held;
            let promised = holder.promised.iter().sum();
            let below = (host, disk, remote);
            (kind, number, device, promised, holder.alone, below)
        };
        Ok(all.into_iter().map(row).collect())
    }

    /// Returns a fingerprint, of 64 bits, of blocks, slots, leases, promises and flights.
    ///
    /// `KVCache.digest` documents it, and adds the reports of the ranks.
    fn digest(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_sound()?;
        Ok(enter(py, &self.inner, LONG, |state| Ok(state.digest()))?)
    }

    /// Returns how many device blocks the end of a lease makes free or evictable at once.
    ///
    /// No other sequence holds them, and no copy reads them or fills blocks that follow them. More
    /// may become evictable.
    ///
    /// Args:
    ///     lease: The lease.
    ///
    /// Raises:
    ///     SpentLease: It has ended before.
    ///     ForeignLease: It is another cache's.
    fn exclusive_blocks(&self, lease: &Bound<'_, Lease>) -> PyResult<u32> {
        let batch = self.rows(lease.as_any())?;
        let blocks = self.blocks(&batch);
        let id = batch.ids()[0];
        let alone = enter(lease.py(), &self.inner, blocks, |state| {
            state.exclusive_blocks(id)
        });
        Ok(alone?)
    }

    /// Returns the blocks in flight, down and up, without flights whose outcome is unknown.
    ///
    /// Args:
    ///     tier: Counts the blocks that go down from this tier, and those that come up from below
    ///         it; None counts all.
    ///
    /// Raises:
    ///     Misuse: The cache has no such tier.
    #[pyo3(signature = (tier=None))]
    fn blocks_in_flight(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::tier_text_or_none)] tier: Option<&str>,
    ) -> PyResult<(u32, u32)> {
        self.check_sound()?;
        let tier = tier.map(arguments::tier).transpose()?;
        Ok(enter(py, &self.inner, 0, |state| match tier {
            None => Ok(state.blocks_in_flight()),
            Some(tier) => state.in_flight_of(tier),
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

    /// Returns the idle blocks that cannot be evicted while copies need them, by tier.
    ///
    /// This is a diagnostic: it takes time in proportion to the cache.
    ///
    /// Returns:
    ///     For each tier with such blocks how many they are, and the flights, the oldest first.
    fn idle_in_flight(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, (u32, Vec<u64>)>> {
        self.check_sound()?;
        let all = enter(py, &self.inner, LONG, |state| Ok(state.idle_in_flight()))?;
        let row = |(tier, blocks, flights): (Tier, u32, Vec<FlightId>)| {
            let numbers = flights.into_iter().map(FlightId::number).collect();
            (tier.name(), (blocks, numbers))
        };
        Ok(all.into_iter().map(row).collect())
    }

    /// Returns the flights whose plans `dispatch` has returned, and whose outcome has not come.
    ///
    /// Those that count as unknown are among them.
    fn dispatched(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.check_sound()?;
        let flights = enter_weighed(py, &self.inner, State::dispatch_work, |state| {
            Ok(state.dispatched())
        })?;
        Ok(flights.into_iter().map(FlightId::number).collect())
    }

    /// Tells whether loading takes less time than computing, behind the tier's loads in flight.
    ///
    /// Args:
    ///     blocks: Blocks to load.
    ///     after: Blocks of the sequence before them.
    ///     tier: Where they are.
    ///
    /// Returns:
    ///     The answer by the cache's `block_costs`; True for a cache that was made without.
    ///
    /// Raises:
    ///     Misuse: A value is out of range, or the tier is not below the device.
    #[pyo3(signature = (blocks, after=0, *, tier="host"))]
    fn worth_loading(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::blocks)] blocks: u32,
        #[pyo3(from_py_with = arguments::before)] after: u32,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
    ) -> PyResult<bool> {
        self.check_sound()?;
        let tier = arguments::tier(tier)?;
        if tier == Tier::DEVICE {
            let message = "tier = 'device': blocks are loaded from a tier below it";
            return Err(Failure::misuse(message.to_owned()).into());
        }
        Ok(enter(py, &self.inner, 0, |state| {
            Ok(state.worth_loading(tier, blocks, after))
        })?)
    }
}
