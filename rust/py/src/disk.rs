//! The disk: a rank's blocks in slot files, read from and written to memory by address.

use crate::buffers::{array, integers};
use crate::error::{Failure, Outcome};
use crate::gil::wait;
use crate::on_disk::{Restored, duration, names_and_values, owner, refused, restored, rows};
use crate::places::Addresses;
use blockyard_disk as disk;
use blockyard_guard::guarded;
use disk::{
    Asked, Copy, Folder, FolderPlace, Geometry, Options, Owner, Short, SlotFiles, Threads, Way,
    Written,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The threads of a disk, which all lanes over it may share.
///
/// They begin with the first lane, and end with the last one.
///
/// Args:
///     threads: Threads that read, and as many that write; one more makes durable what was written.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct DiskThreads {
    threads: Threads,
}

#[guarded]
#[pymethods]
impl DiskThreads {
    #[new]
    #[pyo3(signature = (threads=4))]
    fn new(threads: usize) -> Self {
        Self {
            threads: Threads::new(threads.clamp(1, 64)),
        }
    }
}

/// Blocks of one rank on a disk: slot files in a folder, and threads that read and write.
///
/// A block is served only where its record and its sum say that it is what was asked for. A copy
/// down is reported when it is durable. Any thread may call it.
///
/// Args:
///     root: The folder of all identities; it is made where it is missing.
///     fields: Names and values of what the bytes depend on. Another value is another folder.
///     rank: The rank.
///     slots: Slots of the tier.
///     block_bytes: Bytes of a block on this rank.
///     direct: Whether the page cache is passed by, where the system can.
///     threads: Those of the disk; or how many threads of its own read, and as many that write.
///     owned: Whether this process writes the folder. One of another process is read, as soon as
///         it is there.
///     rest: Seconds for which copies of one way fail at once after three failures in a row; twice
///         as long after each try that fails.
///     group: The number of the group of layers, which each record names.
///
/// Raises:
///     Misuse: A number is out of range.
///     Unavailable: There is no room, another process owns the folder, or the system refuses. For
///         lack of room alone it has its `folder`, and `quota`, whether the file system says that
///         there is enough: nothing else is wrong there, and no room was taken.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct DiskLane {
    files: SlotFiles,
    forgets: AtomicBool,
    process: u32,
    closed: AtomicBool,
}

/// Threads that serve a lane.
#[derive(FromPyObject)]
enum Serving {
    Shared(Py<DiskThreads>),
    Own(usize),
}

#[guarded]
#[pymethods]
impl DiskLane {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (root, fields, *, rank, slots, block_bytes, direct=true, threads=None, owned=true,
        rest=0.5, group=0))]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        fields: &Bound<'_, PyAny>,
        rank: u16,
        slots: u32,
        block_bytes: u32,
        direct: bool,
        threads: Option<Serving>,
        owned: bool,
        rest: f64,
        group: u16,
    ) -> PyResult<Self> {
        let fields = names_and_values(fields)?;
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let way = if direct { Way::Direct } else { Way::Buffered };
        let options = Options {
            rest: duration("rest", rest)?,
            ..Options::default()
        };
        let threads = match threads {
            Some(Serving::Shared(shared)) => shared.get().threads.clone(),
            Some(Serving::Own(threads)) => Threads::new(threads.clamp(1, 64)),
            None => Threads::new(options.threads),
        };
        let opened = wait(py, || {
            let geometry = Geometry::new(slots, block_bytes)?;
            if owned {
                let folder = Folder::open(&root, &fields, rank)?;
                SlotFiles::own(folder, (rank, group), geometry, way, (&threads, options))
            } else {
                let place = FolderPlace::of(&root, &fields, rank);
                Ok(SlotFiles::read(
                    place,
                    (rank, group),
                    geometry,
                    way,
                    (&threads, options),
                ))
            }
        });
        Ok(Self {
            files: opened.map_err(|error| refused(&error))?,
            forgets: AtomicBool::new(false),
            process: process::id(),
            closed: AtomicBool::new(false),
        })
    }

    /// Returns a rank's folder, and the bytes of disk that its files still want.
    ///
    /// Args:
    ///     root: The path of all identities, as for a new one.
    ///     fields: The identity, likewise.
    ///     rank: The rank, likewise.
    ///     slots: The slots, likewise.
    ///     block_bytes: The bytes of a block, likewise.
    ///
    /// Raises:
    ///     Misuse: A number is out of range.
    #[staticmethod]
    #[pyo3(signature = (root, fields, *, rank, slots, block_bytes))]
    fn lacking(
        root: PathBuf,
        fields: &Bound<'_, PyAny>,
        rank: u16,
        slots: u32,
        block_bytes: u32,
    ) -> PyResult<(PathBuf, u64)> {
        let fields = names_and_values(fields)?;
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let geometry = Geometry::new(slots, block_bytes).map_err(|error| refused(&error))?;
        let path = FolderPlace::of(&root, &fields, rank).path;
        let wanted = SlotFiles::lacking(&path, geometry);
        Ok((path, wanted))
    }

    /// The folder.
    #[getter]
    fn path(&self) -> PathBuf {
        self.files.path().to_owned()
    }

    /// Whether the page cache is passed by.
    #[getter]
    fn direct(&self) -> bool {
        self.files.way() == Way::Direct
    }

    /// The number of this owner, the upper half of its stamps: higher than that of any before.
    ///
    /// Raises:
    ///     Misuse: This process does not own the folder.
    #[getter]
    fn run(&self) -> PyResult<u32> {
        Ok(self.owned()?.run())
    }

    /// The floor: what has a smaller stamp was cleared.
    ///
    /// Raises:
    ///     Misuse: This process does not own the folder.
    #[getter]
    fn floor(&self) -> PyResult<u64> {
        Ok(self.owned()?.floor())
    }

    /// Counts as this owner, where that is a later one, before the first block is written.
    ///
    /// Args:
    ///     run: The highest number of all ranks.
    ///
    /// Raises:
    ///     Misuse: This process does not own the folder.
    ///     Unavailable: The system refuses.
    fn count_as(&self, py: Python<'_>, run: u32) -> PyResult<()> {
        let folder = self.owned()?;
        wait(py, || folder.count_as(run)).map_err(|error| refused(&error))
    }

    /// Takes blocks to write. Their memory stays as it is until the copy has landed.
    ///
    /// Args:
    ///     slots: Slots of the disk, shape (blocks,).
    ///     keys: The keys of the blocks, as `Plan.keys`.
    ///     parents: Those of their parents, as `Plan.parents`.
    ///     stamps: When they were asked for, shape (blocks,): the run in the upper 32 bits, a count
    ///         in the lower ones that rises from block to block.
    ///     planes: For each plane the addresses of the pieces of slot 0, the bytes from a slot to
    ///         the next, and the bytes of a piece.
    ///     sources: Slots of that memory, shape (blocks,).
    ///     plan: A number of their plan, from 1 on, the same on all ranks; 0 for none.
    ///
    /// Returns:
    ///     The number of the copy.
    ///
    /// Raises:
    ///     Misuse: The arguments do not have as many blocks, or this process does not own the
    ///         folder.
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (slots, keys, parents, stamps, planes, sources, plan=0))]
    fn submit_down(
        &self,
        slots: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
        stamps: &Bound<'_, PyAny>,
        planes: &Bound<'_, PyAny>,
        sources: &Bound<'_, PyAny>,
        plan: u32,
    ) -> PyResult<u64> {
        self.owned()?;
        let slots: Vec<u32> = integers("slots", slots)?;
        let stamps: Vec<u64> = integers("stamps", stamps)?;
        let (keys, parents) = (rows("keys", keys)?, rows("parents", parents)?);
        let sources: Vec<u32> = integers("sources", sources)?;
        let others = [keys.len(), parents.len(), stamps.len(), sources.len()];
        self.check_rows(&slots, &others)?;
        let bytes = self.files.geometry().bytes();
        let memory = Addresses::new(planes, sources, bytes)?;
        let forgets = self.forgets.load(Ordering::Relaxed);
        let blocks = slots.into_iter().zip(keys).zip(parents).zip(stamps);
        let written = blocks.map(|(((slot, key), parent), stamp)| Written {
            slot,
            owner: if forgets {
                Owner::Nobody(key)
            } else {
                owner(key, parent)
            },
            stamp,
        });
        let copy = Copy::Down(written.collect());
        Ok(self.files.lane.submit_of(plan, copy, Arc::new(memory)))
    }

    /// Takes blocks to read. Their memory is the copy's until it has landed or was given up.
    ///
    /// Args:
    ///     slots: As in `submit_down`.
    ///     keys: The keys that are asked for.
    ///     planes: As in `submit_down`.
    ///     destinations: Slots of that memory, shape (blocks,).
    ///
    /// Returns:
    ///     The number of the copy.
    ///
    /// Raises:
    ///     Misuse: As in `submit_down`.
    fn submit_up(
        &self,
        slots: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        planes: &Bound<'_, PyAny>,
        destinations: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        self.check_process()?;
        let slots: Vec<u32> = integers("slots", slots)?;
        let keys = rows("keys", keys)?;
        let destinations: Vec<u32> = integers("destinations", destinations)?;
        self.check_rows(&slots, &[keys.len(), destinations.len()])?;
        let bytes = self.files.geometry().bytes();
        let memory = Addresses::new(planes, destinations, bytes)?;
        let asked = slots
            .into_iter()
            .zip(keys)
            .map(|(slot, key)| Asked { slot, key });
        Ok(self
            .files
            .lane
            .submit(Copy::Up(asked.collect()), Arc::new(memory)))
    }

    /// Takes keys whose records are to be void, with those of all that stands on them.
    ///
    /// Copies down that may still write such a record must have ended, or have later stamps. A
    /// failure is tried again.
    ///
    /// Args:
    ///     keys: Keys of blocks, or roots as `Plan.parents` has them, bytes of shape (rows, 32).
    ///     spared: Keys whose records stay, likewise.
    ///     before: Only records with a smaller stamp go.
    ///
    /// Returns:
    ///     A number as of a copy. It is reported, with 1 good block, when all of that is durable:
    ///     no restart brings anything back.
    ///
    /// Raises:
    ///     Misuse: The keys are something else, or this process does not own the folder.
    fn void_records(
        &self,
        keys: &Bound<'_, PyAny>,
        spared: &Bound<'_, PyAny>,
        before: u64,
    ) -> PyResult<u64> {
        self.owned()?;
        let (keys, spared) = (rows("keys", keys)?, rows("spared", spared)?);
        Ok(self.files.lane.void(disk::Family {
            keys,
            spared,
            before,
        }))
    }

    /// Returns what has ended since the last call: number, good blocks, and "" or why no more.
    ///
    /// The words are "failed", "corrupt" and "given up".
    fn poll(&self) -> Vec<(u64, usize, &'static str)> {
        let landed = self.files.lane.poll().into_iter();
        landed
            .map(|one| {
                let why = match one.short {
                    None => "",
                    Some(Short::Failed) => "failed",
                    Some(Short::Doubt(_)) => "corrupt",
                    Some(Short::GivenUp) => "given up",
                };
                (one.number, one.good, why)
            })
            .collect()
    }

    /// Waits until a copy has landed, or was given up; `poll` says how.
    ///
    /// Args:
    ///     number: Of the copy, as `submit_down` and `submit_up` gave it.
    ///     seconds: How long it waits at most.
    ///
    /// Returns:
    ///     Whether it has landed.
    ///
    /// Raises:
    ///     Misuse: `seconds` is below 0 or no number, or the process was forked.
    fn wait(&self, py: Python<'_>, number: u64, seconds: f64) -> PyResult<bool> {
        self.check_fork()?;
        let patience = duration("seconds", seconds)?;
        Ok(wait(py, || self.files.lane.wait(number, patience)))
    }

    /// Gives a copy up: when it returns, no byte of its memory is read or written any more.
    ///
    /// A slot that a thread still writes is written for no other copy before that thread has ended.
    ///
    /// Args:
    ///     number: Of the copy, as `submit_down` and `submit_up` gave it.
    ///     late: Whether the disk did not answer in time, which counts as a failure of it.
    #[pyo3(signature = (number, *, late=false))]
    fn give_up(&self, py: Python<'_>, number: u64, late: bool) {
        wait(py, || {
            if late {
                self.files.lane.give_up_late(number);
            } else {
                self.files.lane.give_up(number);
            }
        });
    }

    /// Returns what is found again, the next to be evicted first.
    ///
    /// Their order is that of `keep_order`, where the owner before has closed the folder, else
    /// that of their stamps. A key may be in two slots: of those that all ranks have the later one
    /// counts, as `Restored.agreed` says. It is asked once.
    ///
    /// Returns:
    ///     Slots, shape (blocks,); keys and parents, bytes of shape (blocks, 32), as
    ///     `KVCache.restore` takes them; stamps, shape (blocks,), by which this rank orders them.
    ///
    /// Raises:
    ///     Misuse: This process does not own the folder.
    ///     Unavailable: The table cannot be read.
    fn restore<'py>(&self, py: Python<'py>) -> PyResult<Restored<'py>> {
        Ok(self.restored(py)?.0)
    }

    /// Returns what `restore` does, and the number of the plan that has written each block.
    ///
    /// All ranks must have that alike, and the stamps where it is 0. Its shape is (blocks,).
    ///
    /// Raises:
    ///     Misuse: This process does not own the folder.
    ///     Unavailable: The table cannot be read.
    fn restored<'py>(&self, py: Python<'py>) -> PyResult<(Restored<'py>, Bound<'py, PyAny>)> {
        self.owned()?;
        let found = wait(py, || self.files.restore()).map_err(|error| refused(&error))?;
        let plans: Vec<u32> = found.iter().map(|record| record.plan).collect();
        Ok((restored(py, &found)?, array(py, &plans, "uint32")?))
    }

    /// Clears what has a smaller stamp. Nothing is reported as written before that is durable.
    ///
    /// Args:
    ///     floor: The next stamp.
    ///     patience: Seconds that it waits for that.
    ///
    /// Returns:
    ///     Whether it is durable: no restart brings anything back. Where not, the lane goes on
    ///     trying, and `stats` says so.
    ///
    /// Raises:
    ///     Misuse: This process does not own the folder, or `patience` is no such number.
    #[pyo3(signature = (floor, *, patience=1.0))]
    fn clear(&self, py: Python<'_>, floor: u64, patience: f64) -> PyResult<bool> {
        self.owned()?;
        let patience = duration("patience", patience)?;
        Ok(wait(py, || self.files.lane.clear(floor, patience)))
    }

    /// Lets no restart find what is written from here on.
    fn forget(&self) {
        self.forgets.store(true, Ordering::Relaxed);
    }

    /// Notes the eviction order for the next owner; `close` comes next.
    ///
    /// Args:
    ///     slots: The next to be evicted first, as `KVCache.eviction_order`.
    ///
    /// Raises:
    ///     Misuse: This process does not own the folder.
    ///     Unavailable: The system refuses.
    fn keep_order(&self, py: Python<'_>, slots: &Bound<'_, PyAny>) -> PyResult<()> {
        let folder = self.owned()?;
        let slots: Vec<u32> = integers("slots", slots)?;
        wait(py, || folder.keep_order(&slots)).map_err(|error| refused(&error))
    }

    /// Returns what it has done, and what it is at now. Any thread may ask.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (counts, state) = (self.files.lane.counts(), self.files.lane.state());
        let values = PyDict::new(py);
        let bytes = u64::from(self.files.geometry().bytes());
        for (name, value) in [
            ("written_blocks", counts.written),
            ("written_bytes", counts.written * bytes),
            ("read_blocks", counts.read),
            ("read_bytes", counts.read * bytes),
            ("syncs", counts.syncs),
            ("failed", counts.failed),
            ("corrupt", counts.doubted),
            ("given_up", counts.given_up),
            ("rests", counts.rests),
            ("in_flight", state.flying as u64),
            ("held", state.held as u64),
            ("hung", state.hung as u64),
            ("down_rests", state.rests[0].into()),
            ("up_rests", state.rests[1].into()),
            ("dead", state.dead.into()),
            ("clearing", state.clearing.into()),
        ] {
            values.set_item(name, value)?;
        }
        Ok(values)
    }

    /// Returns why the disk has refused last; "" where it never has. Any thread may ask.
    fn why(&self) -> String {
        self.files.lane.why()
    }

    /// Ends copies and threads, closes all files, and gives the folder to the next owner.
    ///
    /// Args:
    ///     patience: Seconds that it waits for threads. Where one hangs in the system, the files
    ///         are open, and the folder has no other owner, until that has ended.
    ///
    /// Raises:
    ///     Misuse: `patience` is no such number.
    #[pyo3(signature = (*, patience=5.0))]
    fn close(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        let patience = duration("patience", patience)?;
        if self.process == process::id() && !self.closed.swap(true, Ordering::Relaxed) {
            wait(py, || self.files.close(patience));
        }
        Ok(())
    }

    /// Closes it, and gives back the room that it took when it was opened.
    ///
    /// It is for a start that fails elsewhere, before anything is written.
    fn abandon(&self, py: Python<'_>) {
        if self.process == process::id() && !self.closed.swap(true, Ordering::Relaxed) {
            wait(py, || self.files.abandon(Duration::from_secs(5)));
        }
    }
}

impl DiskLane {
    fn owned(&self) -> Outcome<&Folder> {
        self.check_process()?;
        self.files.folder().ok_or_else(|| {
            let path = self.files.path().display();
            Failure::misuse(format!(
                "{path}: another process owns this folder; it is only read here"
            ))
        })
    }

    fn check_process(&self) -> Outcome<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Failure::misuse("the disk is closed: open it again"));
        }
        self.check_fork()
    }

    fn check_fork(&self) -> Outcome<()> {
        if self.process == process::id() {
            return Ok(());
        }
        let owner = self.process;
        let message = format!(
            "process {owner} owns this folder: a process that was forked must open its own"
        );
        Err(Failure::misuse(message))
    }

    fn check_rows(&self, slots: &[u32], others: &[usize]) -> Outcome<()> {
        if others.iter().any(|&rows| rows != slots.len()) {
            let message = format!(
                "{} slots, and {others:?} of the others: pass as many",
                slots.len()
            );
            return Err(Failure::misuse(message));
        }
        let most = self.files.geometry().slots();
        slots
            .iter()
            .find(|&&slot| slot >= most)
            .map_or(Ok(()), |slot| {
                Err(Failure::misuse(format!(
                    "slots = {slot}: the disk has {most}"
                )))
            })
    }
}
