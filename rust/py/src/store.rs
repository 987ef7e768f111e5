//! Shared stores: jobs for threads that ask them, and the values that pass through staging.

use crate::buffers::{integers, shown};
use crate::error::{Failure, Outcome};
use crate::gil::wait;
use crate::on_disk::{duration, owner, rows};
use crate::places::Addresses;
use blockyard_guard::guarded;
use blockyard_store as store;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView};
use std::ffi::c_int;
use std::process;
use std::sync::Arc;
use std::{ptr, slice};
use store::{Condition, Copy, Job, Kind, Landed, Lane, Options, Room, Shape, Short, Way};

/// Blocks of one rank on their way to and from shared stores. It knows keys and bytes, and no client.
///
/// Threads take jobs, ask a store for each, and say what came of it. A value is a record and the
/// bytes of a block, and nothing that does not agree with what was asked for comes into memory. Any
/// thread may call it.
///
/// Args:
///     identity: The number of the identity, which every record has.
///     rank: The rank.
///     group: The number of the group of layers.
///     block_bytes: Bytes of a block on this rank.
///     stores: How many stores there are.
///     buffers: Staging buffers of one value each, 2 or more; each way has half of them.
///     failures: Failures in a row after which a store rests, one way.
///     rest: Seconds that it rests at first; twice as long after each try that fails.
///     limit: Seconds; a store rests, too, where the 99th percentile of the last calls took longer.
///
/// Raises:
///     Misuse: A number is out of range.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct StoreLane {
    lane: Lane,
    process: u32,
}

#[guarded]
#[pymethods]
impl StoreLane {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (identity, *, rank, block_bytes, stores, buffers, group=0, failures=3, rest=0.5, limit=2.0))]
    fn new(
        identity: u64,
        rank: u16,
        block_bytes: u32,
        stores: usize,
        buffers: usize,
        group: u16,
        failures: u32,
        rest: f64,
        limit: f64,
    ) -> PyResult<Self> {
        let wrong = |name, value: usize, help| {
            PyErr::from(Failure::misuse(format!("{name} = {value}: {help}")))
        };
        if block_bytes == 0 || block_bytes > 1 << 31 {
            return Err(wrong(
                "block_bytes",
                block_bytes as usize,
                "must be 1 to 2^31",
            ));
        }
        if stores > 64 {
            return Err(wrong("stores", stores, "must be 0 to 64"));
        }
        if !(2..=1 << 20).contains(&buffers) {
            return Err(wrong("buffers", buffers, "must be 2 to 2^20"));
        }
        let options = Options {
            stores,
            buffers,
            failures,
            rest: duration("rest", rest)?,
            limit: duration("limit", limit)?,
        };
        let shape = Shape {
            identity,
            rank,
            group,
            bytes: block_bytes,
        };
        Ok(Self {
            lane: Lane::new(shape, &options),
            process: process::id(),
        })
    }

    /// Takes blocks to put. Their memory stays as it is until the copy has landed or was given up.
    ///
    /// Args:
    ///     keys: The keys of the blocks, as `Plan.keys`.
    ///     parents: Those of their parents, as `Plan.parents`.
    ///     planes: As in `DiskLane.submit_down`.
    ///     sources: Slots of that memory, shape (blocks,).
    ///     now: What time it is, as for `poll`.
    ///
    /// Returns:
    ///     The number of the copy. It has failed at once where all stores rest.
    ///
    /// Raises:
    ///     Misuse: The arguments do not have as many blocks, or the process was forked.
    fn submit_down(
        &self,
        keys: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
        planes: &Bound<'_, PyAny>,
        sources: &Bound<'_, PyAny>,
        now: f64,
    ) -> PyResult<u64> {
        self.check_process()?;
        let (keys, parents) = (rows("keys", keys)?, rows("parents", parents)?);
        let sources: Vec<u32> = integers("sources", sources)?;
        check_rows(keys.len(), &[parents.len(), sources.len()])?;
        let memory = Addresses::new(planes, sources, self.lane.shape().bytes)?;
        let owners = keys.into_iter().zip(parents);
        let owners = owners.map(|(key, parent)| owner(key, parent)).collect();
        self.lane.turn(now);
        Ok(self.lane.submit(Copy::Down(owners), Arc::new(memory)))
    }

    /// Takes blocks to get. Their memory is the copy's until it has landed or was given up.
    ///
    /// Args:
    ///     keys: The keys that are asked for.
    ///     planes: As in `submit_down`; of a piece at address 0 nothing is written.
    ///     destinations: Slots of that memory, shape (blocks,).
    ///     now: As there.
    ///
    /// Returns:
    ///     As in `submit_down`.
    ///
    /// Raises:
    ///     Misuse: As in `submit_down`.
    fn submit_up(
        &self,
        keys: &Bound<'_, PyAny>,
        planes: &Bound<'_, PyAny>,
        destinations: &Bound<'_, PyAny>,
        now: f64,
    ) -> PyResult<u64> {
        self.check_process()?;
        let keys = rows("keys", keys)?;
        let destinations: Vec<u32> = integers("destinations", destinations)?;
        check_rows(keys.len(), &[destinations.len()])?;
        let memory = Addresses::new(planes, destinations, self.lane.shape().bytes)?;
        self.lane.turn(now);
        Ok(self.lane.submit(Copy::Up(keys), Arc::new(memory)))
    }

    /// Whether a copy would fail at once, as all stores rest; it takes what time it is, too.
    ///
    /// Args:
    ///     down: Whether it would go down.
    ///     now: As for `poll`.
    fn shut(&self, down: bool, now: f64) -> bool {
        self.lane.turn(now);
        self.lane.is_shut(if down { Way::Down } else { Way::Up })
    }

    /// Takes keys whose values every store is to delete; puts that may still write one end before.
    ///
    /// A failure is tried again.
    ///
    /// Args:
    ///     keys: Keys of blocks, bytes of shape (rows, 32).
    ///
    /// Returns:
    ///     A number as of a copy. It is reported, with as many good blocks as keys, when every store
    ///     has answered.
    ///
    /// Raises:
    ///     Misuse: The keys are something else, or the process was forked.
    fn delete(&self, keys: &Bound<'_, PyAny>) -> PyResult<u64> {
        self.check_process()?;
        Ok(self.lane.delete(&rows("keys", keys)?))
    }

    /// Waits for a job, for a thread that asks stores and has nothing else to do.
    ///
    /// Args:
    ///     way: "down" for puts and deletes, "up" for gets.
    ///     seconds: How long it waits at most.
    ///     now: What time it is, in seconds of the clock that `poll` has.
    ///
    /// Returns:
    ///     The job, and its staging buffer: the value of a put, room for that of a get, None for a
    ///     delete. None where there is nothing to do, or the lane is closed.
    ///
    /// Raises:
    ///     Misuse: The way is another one, or `seconds` no such number.
    fn take<'py>(
        &self,
        py: Python<'py>,
        way: &Bound<'_, PyAny>,
        seconds: f64,
        now: f64,
    ) -> PyResult<Option<(StoreJob, Option<Bound<'py, PyMemoryView>>)>> {
        let patience = duration("seconds", seconds)?;
        let way = match way.extract().unwrap_or("") {
            "down" => Way::Down,
            "up" => Way::Up,
            _ => {
                let given = shown(way);
                let message = format!("way = {given}: must be \"down\" or \"up\"");
                return Err(Failure::misuse(message).into());
            }
        };
        if self.process != process::id() {
            return Ok(None);
        }
        let Some(mut job) = wait(py, || self.lane.take(way, patience, now)) else {
            return Ok(None);
        };
        let readonly = matches!(job.kind(), Kind::Put(_));
        let room = job.room.take();
        let job = StoreJob { job };
        let Some(room) = room else {
            return Ok(Some((job, None)));
        };
        let value = Bound::new(py, StoreValue::new(room, readonly))?;
        Ok(Some((job, Some(PyMemoryView::from(&value)?))))
    }

    /// Returns what has ended since the last call: number, good blocks, and "" or why no more.
    ///
    /// It takes what time it is. The words are "failed", "corrupt", "missing" and "given up". It never waits.
    ///
    /// Args:
    ///     now: Seconds of any clock. Rests of stores end by it.
    fn poll(&self, now: f64) -> Vec<(u64, usize, &'static str)> {
        ends(self.lane.poll(now))
    }

    /// Waits until a copy or a delete has ended; `poll` says how.
    ///
    /// Args:
    ///     number: Its number.
    ///     seconds: How long it waits at most.
    ///
    /// Returns:
    ///     Whether it has ended.
    ///
    /// Raises:
    ///     Misuse: `seconds` is no such number.
    fn wait(&self, py: Python<'_>, number: u64, seconds: f64) -> PyResult<bool> {
        let patience = duration("seconds", seconds)?;
        Ok(wait(py, || self.lane.wait(number, patience)))
    }

    /// Gives a copy up: when it returns, no byte of its memory is read or written any more.
    ///
    /// A buffer in a client's hands stays there until its thread says that the call has ended.
    ///
    /// Args:
    ///     number: Its number.
    ///     late: Whether no store did answer in time, which counts as a failure of those asked.
    #[pyo3(signature = (number, *, late=false))]
    fn give_up(&self, py: Python<'_>, number: u64, late: bool) {
        if self.process == process::id() {
            wait(py, || self.lane.give_up(number, late));
        }
    }

    /// Returns what it has done, and what it is at now. Any thread may ask.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (counts, state) = (self.lane.counts(), self.lane.state());
        let values = PyDict::new(py);
        let bytes = u64::from(self.lane.shape().bytes);
        let rests = |way: usize| {
            let resting = |ways: &&[Condition; 2]| ways[way] == Condition::Resting;
            state.stores.iter().filter(resting).count() as u64
        };
        for (name, value) in [
            ("put_blocks", counts.put),
            ("put_bytes", counts.put * bytes),
            ("got_blocks", counts.got),
            ("got_bytes", counts.got * bytes),
            ("deleted", counts.deleted),
            ("failed", counts.failed),
            ("corrupt", counts.corrupt),
            ("missing", counts.missing),
            ("given_up", counts.given_up),
            ("rests", counts.rests),
            ("in_flight", state.flying as u64),
            ("calls", state.busy as u64),
            ("hung", state.hung as u64),
            ("held", state.held as u64),
            ("buffers", self.lane.buffers() as u64),
            ("undeleted", state.undeleted.iter().sum::<usize>() as u64),
            ("down_rests", rests(0)),
            ("up_rests", rests(1)),
        ] {
            values.set_item(name, value)?;
        }
        Ok(values)
    }

    /// Returns why each store has refused last; "" where it never has. Any thread may ask.
    fn why(&self) -> Vec<String> {
        self.lane.why()
    }

    /// Returns the states of each store for puts and for gets, and how many keys it has yet to delete.
    ///
    /// A state is "well", "resting" or "trying". Any thread may ask.
    fn states(&self) -> Vec<(&'static str, &'static str, usize)> {
        let state = self.lane.state();
        let stores = state.stores.iter().zip(state.undeleted);
        stores
            .map(|(&[down, up], undeleted)| (word(down), word(up), undeleted))
            .collect()
    }

    /// Fails all copies that come from now on, as where weights have changed under one name.
    fn stop(&self) {
        self.lane.stop();
    }

    /// Whether it takes nothing more. Any thread may ask.
    #[getter]
    fn closed(&self) -> bool {
        self.process != process::id() || self.lane.is_closed()
    }

    /// Ends all copies, and tries once more what is to be deleted. Threads find no job afterwards.
    ///
    /// Args:
    ///     patience: Seconds that it waits for deletes.
    ///
    /// Returns:
    ///     For each store, how many keys it has not deleted.
    ///
    /// Raises:
    ///     Misuse: `patience` is no such number.
    #[pyo3(signature = (*, patience=1.0))]
    fn close(&self, py: Python<'_>, patience: f64) -> PyResult<Vec<usize>> {
        let patience = duration("patience", patience)?;
        if self.process != process::id() {
            return Ok(Vec::new());
        }
        Ok(wait(py, || self.lane.close(patience)))
    }
}

impl StoreLane {
    fn check_process(&self) -> Outcome<()> {
        if self.process == process::id() {
            return Ok(());
        }
        let owner = self.process;
        let message = format!(
            "process {owner} has these stores' threads: a process that was forked must make its own"
        );
        Err(Failure::misuse(message))
    }
}

fn check_rows(keys: usize, others: &[usize]) -> Outcome<()> {
    if others.iter().all(|&rows| rows == keys) {
        return Ok(());
    }
    let message = format!("{keys} keys, and {others:?} of the others: pass as many");
    Err(Failure::misuse(message))
}

/// A staging buffer that a client reads or fills, as a buffer of bytes.
#[pyclass(frozen, module = "blockyard._core")]
struct StoreValue {
    /// Nobody but who has a view of it touches its bytes; it is free again when the last view has gone.
    _room: Room,
    address: usize,
    bytes: usize,
    readonly: bool,
}

impl StoreValue {
    fn new(mut room: Room, readonly: bool) -> Self {
        Self {
            address: room.as_mut_ptr().expose_provenance(),
            bytes: room.len(),
            readonly,
            _room: room,
        }
    }
}

#[expect(unsafe_code, reason = "a buffer is lent by its address")]
#[pymethods]
impl StoreValue {
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("a view is missing"));
        }
        let this = slf.get();
        let bytes = ffi::Py_ssize_t::try_from(this.bytes)?;
        // SAFETY: the bytes are there until the room is dropped, with this object, which the view holds.
        let made = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                ptr::with_exposed_provenance_mut(this.address),
                bytes,
                c_int::from(this.readonly),
                flags,
            )
        };
        if made == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

/// What a thread asks of stores, one block or some deletes. It ends by the thread's word.
///
/// `done`, `fail`, `missing`, and a `landed` that is true, end it; dropped before, it has failed.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct StoreJob {
    job: Job,
}

#[guarded]
#[pymethods]
impl StoreJob {
    /// "put", "get" or "delete".
    #[getter]
    fn kind(&self) -> &'static str {
        match self.job.kind() {
            Kind::Put(_) => "put",
            Kind::Get(_) => "get",
            Kind::Delete(..) => "delete",
        }
    }

    /// The keys of its blocks, of 32 bytes each: one, or those to delete.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        match self.job.kind() {
            Kind::Put(owner) => vec![PyBytes::new(py, &owner.key())],
            Kind::Get(key) => vec![PyBytes::new(py, &key)],
            Kind::Delete(_, keys) => keys.iter().map(|key| PyBytes::new(py, key)).collect(),
        }
    }

    /// The store that a delete is for; None for all others, which ask one after the other.
    #[getter]
    fn store(&self) -> Option<usize> {
        match self.job.kind() {
            Kind::Delete(store, _) => Some(store),
            _ => None,
        }
    }

    /// Begins a call of a store: `answered` or `refused` ends it.
    ///
    /// Returns:
    ///     False where the store is not to be asked now.
    fn ask(&self, store: usize) -> bool {
        self.job.ask(store)
    }

    /// The store has answered, whatever it has said.
    ///
    /// Args:
    ///     seconds: How long the call took.
    fn answered(&self, seconds: f64) {
        self.job
            .answered(duration("seconds", seconds).unwrap_or_default());
    }

    /// The store has refused, or did not answer.
    ///
    /// Args:
    ///     why: The reason, without secrets: it is logged.
    ///     seconds: How long the call took.
    fn refused(&self, why: &str, seconds: f64) {
        let took = duration("seconds", seconds).unwrap_or_default();
        self.job.refused(why, took);
    }

    /// A store has acknowledged the put, or has deleted the keys.
    fn done(&self) {
        self.job.done();
    }

    /// No store was to be had.
    fn fail(&self) {
        self.job.fail();
    }

    /// No store has it.
    fn missing(&self) {
        self.job.missing();
    }

    /// Takes what a store has given for a get.
    ///
    /// Args:
    ///     value: The job's buffer, or the leading part of it; or bytes of any kind, of any length.
    ///
    /// Returns:
    ///     Whether it is what was asked for: then it is in memory, unless the copy was given up, and
    ///     the job has ended. Else the next store may have it.
    fn landed(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> bool {
        if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            let bytes = bytes.as_bytes();
            return wait(py, || self.job.landed(bytes));
        }
        let Ok(buffer) = PyBuffer::<u8>::get(value) else {
            return self.job.landed(&[]);
        };
        if buffer.item_count() != self.job.value_bytes() {
            // Nothing of it is looked at, however long it is.
            return self.job.landed(&[]);
        }
        if buffer.is_c_contiguous() && self.job.has_room(buffer.buf_ptr().addr()) {
            return self.landed_in_room(py, &buffer);
        }
        // Somebody else may write there.
        match buffer.to_vec(py) {
            Ok(bytes) => wait(py, || self.job.landed(&bytes)),
            Err(_) => self.job.landed(&[]),
        }
    }
}

impl StoreJob {
    #[expect(unsafe_code, reason = "it is the job's own buffer")]
    fn landed_in_room(&self, py: Python<'_>, buffer: &PyBuffer<u8>) -> bool {
        // SAFETY: the view is as long, and holds the staging buffer. The client's call has ended, so that
        // nobody writes there.
        let bytes =
            unsafe { slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.item_count()) };
        wait(py, || self.job.landed(bytes))
    }
}

/// What has ended, as `poll` of a lane and of a peer says it.
pub(crate) fn ends(landed: Vec<Landed>) -> Vec<(u64, usize, &'static str)> {
    let word = |short| match short {
        None => "",
        Some(Short::Failed) => "failed",
        Some(Short::Corrupt) => "corrupt",
        Some(Short::Missing) => "missing",
        Some(Short::GivenUp) => "given up",
    };
    let landed = landed.into_iter();
    landed
        .map(|one| (one.number, one.good, word(one.short)))
        .collect()
}

/// The word for whether a store, or a peer, is asked.
pub(crate) fn word(condition: Condition) -> &'static str {
    match condition {
        Condition::Well => "well",
        Condition::Resting => "resting",
        Condition::Trying => "trying",
    }
}
