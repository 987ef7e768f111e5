//! How a cache is made, closed and resized, and the verbs that see all of it.

use crate::arguments;
use crate::buffers::{array, integers};
use crate::cache_class::Cache;
use crate::error::Failure;
use crate::gil::{LONG, beside, enter};
use crate::keys::key_rows;
use crate::on_disk::key_array;
use crate::plan::Plan;
use crate::recorder::Recorder;
use crate::results::Violation;
use blockyard_core::{self as core, BlockCosts, Config, KeyHash};
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[guarded]
#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (*, block_size=16, device=None, engine=None, host=0, disk=0, remote=0,
        null_slots=1,
        eviction="recency", host_copies=None, write="on-evict", writes_below=None, ghosts=None, spare=None,
        block_costs=None, recompute=true, remote_writes=true, copy_retries=3, groups=1, linked=true, group=0,
        namespace=None, key_hash="sha256", keyed=None, yard=None, boot=None, memory=None,
        recorder=None))]
    #[expect(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "keywords"
    )]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::block_size)] block_size: u32,
        #[pyo3(from_py_with = arguments::device)] device: Option<u32>,
        #[pyo3(from_py_with = arguments::engine)] engine: Option<u32>,
        #[pyo3(from_py_with = arguments::host)] host: u32,
        #[pyo3(from_py_with = arguments::disk)] disk: u32,
        #[pyo3(from_py_with = arguments::remote)] remote: u32,
        #[pyo3(from_py_with = arguments::null_slots)] null_slots: u32,
        eviction: &str,
        host_copies: Option<&str>,
        write: &str,
        writes_below: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::ghosts)] ghosts: Option<u32>,
        #[pyo3(from_py_with = arguments::spare)] spare: Option<u32>,
        #[pyo3(from_py_with = arguments::block_costs)] block_costs: Option<BlockCosts>,
        recompute: bool,
        remote_writes: bool,
        #[pyo3(from_py_with = arguments::copy_retries)] copy_retries: u32,
        #[pyo3(from_py_with = arguments::groups)] groups: u8,
        linked: bool,
        #[pyo3(from_py_with = arguments::group)] group: u8,
        namespace: Option<&Bound<'_, PyAny>>,
        key_hash: &str,
        keyed: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::yard)] yard: Option<u64>,
        #[pyo3(from_py_with = arguments::boot)] boot: Option<u32>,
        #[pyo3(from_py_with = arguments::memory)] memory: Option<u64>,
        recorder: Option<&Bound<'_, Recorder>>,
    ) -> PyResult<Self> {
        let (device, engine) = match (device, engine) {
            (Some(device), None) => (device, false),
            (None, Some(blocks)) => (blocks, true),
            (Some(device), Some(engine)) => {
                let message = format!(
                    "device = {device}, engine = {engine}: give one of them. The blocks of the \
                     device are the cache's, or those of an engine that gives them out itself"
                );
                return Err(Failure::misuse(message).into());
            }
            (None, None) => {
                let message = "give device=, the slots of the device; or engine=, the blocks of \
                               an engine that gives them out itself";
                return Err(Failure::misuse(message).into());
            }
        };
        // A tier takes memory for each slot of all tiers, so that the last ones are there only if wanted.
        let mut slots = vec![device, host, disk, remote];
        while slots.len() > 2 && slots.last() == Some(&0) {
            slots.pop();
        }
        let config = Config {
            block_size,
            slots,
            null_slots,
            engine,
            policy: arguments::eviction(eviction)?,
            host_copies: arguments::host_copies(host_copies)?,
            write: arguments::write(write)?,
            writes_below: arguments::writes_below(writes_below)?,
            ghosts,
            spare,
            block_costs,
            recompute,
            remote_writes,
            copy_retries,
            groups,
            linked,
            group: core::Group(group),
            keyed: arguments::keyed(keyed)?,
            yard: core::YardId(yard.unwrap_or_default()),
            boot: arguments::drawn_boot(py, boot)?,
        };
        config.fits(memory).map_err(Failure::from)?;
        let namespace = arguments::namespace(namespace)?;
        let recorder = recorder.map(|given| given.get().of(block_size));
        let boot = config.boot.0;
        let inner = core::Cache::new(config, arguments::key_hash(key_hash)?, &namespace);
        let inner = inner.map_err(Failure::from)?;
        Ok(Self::over(
            inner,
            block_size,
            null_slots,
            recorder.transpose()?,
            boot,
        ))
    }

    /// The core's own defaults, by keyword. A test compares all others with them.
    #[staticmethod]
    fn _defaults(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let own = Config::default();
        let load = |own: BlockCosts| own.load[core::Tier::HOST.0];
        let block_costs = own
            .block_costs
            .map(|own| (load(own), own.compute, own.attend));
        let hash = arguments::said(&KeyHash::default(), &arguments::KEY_HASHES);
        let all = PyDict::new(py);
        all.set_item("block_size", own.block_size)?;
        all.set_item("null_slots", own.null_slots)?;
        let eviction = arguments::said(&own.policy, &arguments::EVICTIONS);
        all.set_item("eviction", eviction)?;
        let copies = own.host_copies;
        let copies = copies.and_then(|copies| arguments::said(&copies, &arguments::HOST_COPIES));
        all.set_item("host_copies", copies)?;
        all.set_item("write", arguments::said(&own.write, &arguments::WRITES))?;
        all.set_item("ghosts", own.ghosts)?;
        all.set_item("spare", own.spare)?;
        all.set_item("block_costs", block_costs)?;
        all.set_item("recompute", own.recompute)?;
        all.set_item("remote_writes", own.remote_writes)?;
        all.set_item("copy_retries", own.copy_retries)?;
        all.set_item("groups", own.groups)?;
        all.set_item("linked", own.linked)?;
        all.set_item("group", own.group.0)?;
        all.set_item("key_hash", hash)?;
        let keyed = own.keyed.contains(&true).then_some(own.keyed);
        all.set_item("keyed", keyed)?;
        let yard = (own.yard != core::YardId::default()).then_some(own.yard.0);
        all.set_item("yard", yard)?;
        Ok(all)
    }

    /// Tokens per block.
    #[getter]
    fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Forgets all published blocks, as after a change of weights. It never waits.
    ///
    /// Running sequences go on, and publish nothing from now on. The kept blocks of parked ones are
    /// lost.
    ///
    /// Args:
    ///     memory: "disk kept" forgets all blocks except on keyed tiers, as after a restart of the
    ///         engine. Those are still found, and sequences that are whole there stay parked.
    ///
    /// Raises:
    ///     Misuse: It is neither word, or no tier is keyed.
    #[pyo3(signature = (*, memory="lost"))]
    fn clear(&self, py: Python<'_>, memory: &str) -> PyResult<()> {
        self.check_sound()?;
        let keeps = arguments::keeps_disk(memory)?;
        enter(py, &self.inner, LONG, |state| {
            if keeps {
                return state.lose_unkeyed();
            }
            state.clear();
            Ok(())
        })?;
        Ok(())
    }

    /// Tells whether anything from before a clear is still held or in flight.
    fn draining(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_sound()?;
        Ok(enter(py, &self.inner, LONG, |state| Ok(state.draining()))?)
    }

    /// Gives a tier `slots` slots. Slots beyond that retire when they become free.
    ///
    /// A copy that has missed its deadline may read retired slots still, until its end is reported.
    ///
    /// Args:
    ///     tier: The tier.
    ///     slots: How many, null slots included.
    ///     memory: Bytes that the bookkeeping of new slots may take; None for what the system
    ///         grants.
    ///
    /// Raises:
    ///     InUse: The pinned, claimed, promised and quarantined slots do not fit.
    ///     Unavailable: There is no memory for the bookkeeping; nothing is changed.
    ///     Misuse: The cache was made without that tier, or `slots` is out of range.
    #[pyo3(signature = (tier, slots, *, memory=None))]
    fn resize(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
        #[pyo3(from_py_with = arguments::slots)] slots: u32,
        #[pyo3(from_py_with = arguments::memory)] memory: Option<u64>,
    ) -> PyResult<()> {
        self.check_open()?;
        let tier = arguments::tier(tier)?;
        let resized = enter(py, &self.inner, LONG, |state| {
            state.resize_where(tier, slots, memory)
        });
        Ok(resized?)
    }

    /// Withdraws slots of a tier whose memory is gone, as when one of several disks has died.
    ///
    /// Their blocks are dropped, and all others stay: blocks behind a dropped one are found again
    /// once that one is cached again. Parked sequences that kept one there are recomputed. Copies
    /// that still land there are not published. Slots that a copy still reads or writes leave when
    /// it has ended.
    ///
    /// Args:
    ///     tier: "host" or "disk".
    ///     slots: Slots of the tier, shape (slots,). Those that were withdrawn before are left.
    ///
    /// Returns:
    ///     How many blocks were dropped there.
    ///
    /// Raises:
    ///     InUse: Tickets would lose promised slots. Nothing is changed.
    ///     Misuse: It is the device, a tier that is not there, or a slot that it does not have.
    fn withdraw(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
        slots: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        self.check_open()?;
        let tier = arguments::tier(tier)?;
        let slots: Vec<u32> = integers("slots", slots)?;
        Ok(enter(py, &self.inner, LONG, |state| {
            state.withdraw(tier, &slots)
        })?)
    }

    /// Publishes blocks that a tier has kept over a restart, from its records.
    ///
    /// Call it once, before the first begin. No sequence holds the restored blocks.
    ///
    /// Args:
    ///     tier: "host" or "disk".
    ///     slots: Slots of the tier, shape (rows,), each once. The oldest row is first, and is the
    ///         first to be evicted, but never before the blocks that follow it in a sequence.
    ///     keys: The keys of their blocks, bytes of shape (rows, 32), each once.
    ///     parents: The keys of the blocks before them in their sequences, likewise; zeros, or
    ///         a root as in `Plan.parents`, for the first block of a sequence. One that is not among
    ///         `keys` may come back later.
    ///
    /// Raises:
    ///     Misuse: Something began or was restored before, a slot or key comes twice or is out of
    ///         range, or `parents` lead in a circle. Nothing is changed.
    fn restore(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
        slots: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.check_open()?;
        let tier = arguments::tier(tier)?;
        let slots: Vec<u32> = integers("slots", slots)?;
        let (keys, parents) = (key_rows("keys", keys)?, key_rows("parents", parents)?);
        Ok(enter(py, &self.inner, LONG, |state| {
            state.restore(tier, &slots, &keys, &parents)
        })?)
    }

    /// Returns the slots of a tier with idle blocks, the next to be evicted first.
    ///
    /// It takes time in proportion to the tier; with `alone`, to the tiers above, too.
    ///
    /// Args:
    ///     tier: "device", "host" or "disk".
    ///     alone: Whether blocks that are on higher tiers too take the order that they have there,
    ///         in the places that they have in this tier: a copy down has the time of the copy, not
    ///         of the use. A tier that outlives the cache should remember this order for `restore`.
    ///
    /// Returns:
    ///     Slots, shape (blocks,).
    ///
    /// Raises:
    ///     Misuse: There is no such tier.
    #[pyo3(signature = (tier, *, alone=false))]
    fn eviction_order<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
        alone: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_sound()?;
        let tier = arguments::tier(tier)?;
        let slots = enter(py, &self.inner, LONG, |state| {
            if alone {
                state.order_alone(tier)
            } else {
                state.eviction_order(tier)
            }
        })?;
        array(py, &slots, "uint32")
    }

    /// Returns the keys of published blocks above a tier that are not on it, or not whole yet.
    ///
    /// The last to be evicted is first, but no block comes before those that its sequence has before
    /// it. A block is left out where one of these is nowhere: no request finds it. It takes time in
    /// proportion to the tiers above.
    ///
    /// Args:
    ///     tier: "host" or "disk".
    ///
    /// Returns:
    ///     Keys, uint8, shape (blocks, 32).
    ///
    /// Raises:
    ///     Misuse: There is no such tier, or it has no slots.
    fn unwritten<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_sound()?;
        let tier = arguments::tier(tier)?;
        let keys = enter(py, &self.inner, LONG, |state| state.unwritten(tier))?;
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.0).collect();
        key_array(py, &bytes)
    }

    /// Returns the keys of idle blocks on a tier that may be replaced by blocks not written there.
    ///
    /// Of all blocks on the tier and above it, they are the ones that do not fit, in the order of
    /// their tiers. Blocks above count as newer than blocks on the tier alone, except where a block
    /// on both shows otherwise. It takes time in proportion to the tiers.
    ///
    /// Args:
    ///     tier: "host" or "disk".
    ///
    /// Returns:
    ///     Keys, uint8, shape (blocks, 32), the first to be replaced first; and how many of the
    ///     blocks of `unwritten`, from the first, they make room for.
    ///
    /// Raises:
    ///     Misuse: There is no such tier, or it has no slots.
    fn outranked<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
    ) -> PyResult<(Bound<'py, PyAny>, usize)> {
        self.check_sound()?;
        let tier = arguments::tier(tier)?;
        let (keys, newer) = enter(py, &self.inner, LONG, |state| state.outranked(tier))?;
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.0).collect();
        Ok((key_array(py, &bytes)?, newer))
    }

    /// Copies blocks down to a tier that lacks them, from the nearest tier above that has them.
    ///
    /// A block stays where it is if it finds no room, or if a block before it in its sequence is
    /// neither there nor on its way. Only the blocks of `instead` are evicted for them; in
    /// "remote" the next victims are, as stores keep what the cache has no name of any more.
    ///
    /// Args:
    ///     keys: Their keys, as `unwritten` returns them, or some of these in their order.
    ///     tier: "host", "disk" or "remote".
    ///     instead: Keys of blocks to evict where no slot is free, as `outranked` returns them.
    ///
    /// Returns:
    ///     A plan for each run of blocks from one tier, which `dispatch` hands out too; and how
    ///     many of `instead`, from the first, have gone or may not.
    ///
    /// Raises:
    ///     Misuse: There is no such tier, or it has no slots; or the keys are something else.
    fn write_down(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
        instead: &Bound<'_, PyAny>,
    ) -> PyResult<(Vec<Plan>, usize)> {
        self.check_open()?;
        let (tier, keys) = (arguments::tier(tier)?, key_rows("keys", keys)?);
        let instead = key_rows("instead", instead)?;
        let (plans, looked) = enter(py, &self.inner, keys.len(), |state| {
            state.write_down(tier, &keys, &instead)
        })?;
        Ok((plans.into_iter().map(Plan).collect(), looked))
    }

    /// Returns how many blocks of these keys are whole on a tier.
    ///
    /// Args:
    ///     keys: As in `write_down`.
    ///     tier: As in `write_down`.
    ///
    /// Raises:
    ///     Misuse: As in `write_down`.
    fn written(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
    ) -> PyResult<u32> {
        self.check_sound()?;
        let (tier, keys) = (arguments::tier(tier)?, key_rows("keys", keys)?);
        Ok(enter(py, &self.inner, keys.len(), |state| {
            state.written(tier, &keys)
        })?)
    }

    /// Returns counters and sizes, read at one moment; `stats_schema` has units and meanings.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_sound()?;
        let stats = enter(py, &self.inner, 0, |state| Ok(state.stats()))?;
        let values = PyDict::new(py);
        stats
            .values()
            .into_iter()
            .try_for_each(|(name, value)| values.set_item(name, value))?;
        Ok(values)
    }

    /// Returns the first law found broken, or None. It takes time in proportion to the cache.
    fn audit(&self, py: Python<'_>) -> PyResult<Option<Violation>> {
        self.check_sound()?;
        let violation = beside(py, &self.inner, || Ok(self.inner.audit()))?;
        Ok(violation.map(Violation::from))
    }

    /// Whether its memory is gone: nothing begins any more, and leases can only end.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// Gives up all promises, for an end after which nothing begins: tickets have no blocks,
    /// running sequences no growth, and parked ones are recomputed.
    fn _end_promises(&self, py: Python<'_>) -> PyResult<()> {
        self.check_sound()?;
        Ok(enter(py, &self.inner, LONG, |state| {
            state.end_promises();
            Ok(())
        })?)
    }

    /// Closes it: from now on, verbs that begin something or go on with it raise `Misuse`. Holds end.
    fn _close(&self, py: Python<'_>) -> PyResult<()> {
        self.close();
        if self.check_sound().is_err() {
            // In a forked child they are the parent's, and a broken cache gives no slot out.
            return Ok(());
        }
        Ok(enter(py, &self.inner, LONG, |state| {
            state.end_holds();
            Ok(())
        })?)
    }
}
