//! The disk: a rank's blocks in slot files, read from and written to memory by address.

use crate::buffers::{MOST, array, frozen, integers, too_many};
use crate::error::{Failure, Outcome, Unavailable};
use crate::gil::wait;
use crate::keys::key_rows;
use crate::places::{Addresses, Plane};
use blockyard_disk as disk;
use blockyard_guard::guarded;
use disk::{Asked, Blocks, Copy, Files, Folder, Geometry, Lane, Options, Owner, Short, Way};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Slots, keys, parents and stamps.
type Restored<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
);

/// One rank's blocks on a disk: slot files in a folder that this process owns, and threads.
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
///     threads: Threads that read and write.
///
/// Raises:
///     Misuse: A number is out of range.
///     Unavailable: There is no room, another process owns the folder, or the system refuses.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct DiskLane {
    lane: Lane,
    folder: Folder,
    blocks: Blocks,
    direct: bool,
    process: u32,
    closed: AtomicBool,
}

fn refused(error: &disk::Error) -> PyErr {
    match error {
        disk::Error::Argument { .. } => Failure::misuse(error.to_string()).into(),
        disk::Error::System { .. } => Unavailable::new_err(error.to_string()),
    }
}

/// The rows of bytes of shape (rows, 32).
fn rows(name: &'static str, from: &Bound<'_, PyAny>) -> PyResult<Vec<disk::Key>> {
    Ok(key_rows(name, from)?.into_iter().map(|key| key.0).collect())
}

/// Whose block has this key, behind this parent.
fn owner(key: disk::Key, parent: disk::Key) -> Owner {
    if key[..24] == [0; 24] {
        Owner::Nobody(key)
    } else if parent == [0; 32] {
        Owner::First(key)
    } else {
        Owner::After { key, parent }
    }
}

#[guarded]
#[pymethods]
impl DiskLane {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (root, fields, *, rank, slots, block_bytes, direct=true, threads=4))]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        fields: Vec<(String, String)>,
        rank: u16,
        slots: u32,
        block_bytes: u32,
        direct: bool,
        threads: usize,
    ) -> PyResult<Self> {
        let opened = wait(py, || -> disk::Result<Self> {
            let fields: Vec<(&str, &str)> = fields
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            let geometry = Geometry::new(slots, block_bytes)?;
            let folder = Folder::open(&root, &fields, rank)?;
            let way = if direct { Way::Direct } else { Way::Buffered };
            let payloads =
                Files::open(&folder.path().join("slots"), geometry.payload_bytes(), way)?;
            let direct = payloads.way() == Way::Direct;
            let table = folder.path().join("table");
            let table = Files::open(&table, geometry.table_bytes(), Way::Buffered)?;
            let blocks = Blocks::new(
                Arc::new(payloads),
                Arc::new(table),
                geometry,
                folder.identity(),
                rank,
            );
            let options = Options {
                threads: threads.clamp(1, 64),
                ..Options::default()
            };
            let lane = Lane::new(blocks.clone(), folder.first_stamp(), options);
            Ok(Self {
                lane,
                folder,
                blocks,
                direct,
                process: process::id(),
                closed: AtomicBool::new(false),
            })
        });
        opened.map_err(|error| refused(&error))
    }

    /// The folder.
    #[getter]
    fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Whether the page cache is passed by.
    #[getter]
    fn direct(&self) -> bool {
        self.direct
    }

    /// Whether it rests after failures: copies fail at once until it is tried again.
    #[getter]
    fn rests(&self) -> bool {
        self.lane.rests()
    }

    /// Takes blocks to write. Their memory stays as it is until the copy has landed.
    ///
    /// Args:
    ///     slots: Slots of the disk, shape (blocks,).
    ///     keys: The keys of the blocks, as `Plan.keys`.
    ///     parents: Those of their parents, as `Plan.parents`.
    ///     planes: For each plane the addresses of the pieces of slot 0, the bytes from a slot to
    ///         the next, and the bytes of a piece.
    ///     sources: Slots of that memory, shape (blocks,).
    ///
    /// Returns:
    ///     The number of the copy.
    ///
    /// Raises:
    ///     Misuse: The arguments do not have as many blocks, or the process was forked.
    fn submit_down(
        &self,
        slots: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
        planes: Vec<Plane<'_>>,
        sources: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        self.check_process()?;
        let slots: Vec<u32> = integers("slots", slots)?;
        let (keys, parents) = (rows("keys", keys)?, rows("parents", parents)?);
        let sources: Vec<u32> = integers("sources", sources)?;
        self.check_rows(&slots, [keys.len(), parents.len(), sources.len()])?;
        let bytes = self.blocks.geometry().bytes();
        let memory = Addresses::new(planes, sources, bytes)?;
        let owners = keys
            .into_iter()
            .zip(parents)
            .map(|(key, parent)| owner(key, parent));
        let copy = Copy::Down(slots.into_iter().zip(owners).collect());
        Ok(self.lane.submit(copy, Arc::new(memory)))
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
        planes: Vec<Plane<'_>>,
        destinations: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        self.check_process()?;
        let slots: Vec<u32> = integers("slots", slots)?;
        let keys = rows("keys", keys)?;
        let destinations: Vec<u32> = integers("destinations", destinations)?;
        self.check_rows(&slots, [keys.len(), keys.len(), destinations.len()])?;
        let bytes = self.blocks.geometry().bytes();
        let memory = Addresses::new(planes, destinations, bytes)?;
        let asked = slots
            .into_iter()
            .zip(keys)
            .map(|(slot, key)| Asked { slot, key });
        Ok(self
            .lane
            .submit(Copy::Up(asked.collect()), Arc::new(memory)))
    }

    /// Returns what has ended since the last call: number, good blocks, and "" or why no more.
    ///
    /// The words are "failed", "corrupt" and "given up".
    fn poll(&self) -> Vec<(u64, usize, &'static str)> {
        let landed = self.lane.poll().into_iter();
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

    /// Gives a copy up: when it returns, no byte of its memory is read or written any more.
    ///
    /// Where it went down its slots may still be written.
    ///
    /// Args:
    ///     number: Of the copy, as `submit_down` and `submit_up` gave it.
    fn give_up(&self, py: Python<'_>, number: u64) {
        wait(py, || self.lane.give_up(number));
    }

    /// Returns what is found again, the oldest first: slots, keys, parents and stamps.
    ///
    /// Returns:
    ///     Slots, shape (blocks,); keys and parents, bytes of shape (blocks, 32), as
    ///     `KVCache.restore` takes them; stamps, shape (blocks,), which all ranks must have alike.
    ///
    /// Raises:
    ///     Unavailable: The table cannot be read.
    fn restore<'py>(&self, py: Python<'py>) -> PyResult<Restored<'py>> {
        self.check_process()?;
        let found = wait(py, || self.blocks.restore());
        let mut found = found.map_err(|error| Unavailable::new_err(error.to_string()))?;
        let floor = self.folder.floor();
        found.retain(|record| record.stamp >= floor);
        found.sort_by_key(|record| record.stamp);
        // Of two slots with one key the later one counts.
        let mut seen = std::collections::HashSet::new();
        found.reverse();
        found.retain(|record| seen.insert(record.owner.key()));
        found.reverse();
        if found.len() > MOST {
            return Err(too_many("the table", found.len()).into());
        }
        let slots: Vec<u32> = found.iter().map(|record| record.slot).collect();
        let stamps: Vec<u64> = found.iter().map(|record| record.stamp).collect();
        let keys: Vec<u8> = found.iter().flat_map(|record| record.owner.key()).collect();
        let parents: Vec<u8> = found
            .iter()
            .flat_map(|record| match record.owner {
                Owner::After { parent, .. } => parent,
                Owner::First(_) | Owner::Nobody(_) => [0; 32],
            })
            .collect();
        let bytes = |all: &[u8]| -> PyResult<Bound<'py, PyAny>> {
            let flat = frozen(&PyBytes::new(py, all), "uint8", all.len(), 0)?;
            flat.call_method1("reshape", ((found.len(), 32),))
        };
        Ok((
            array(py, &slots, "uint32")?,
            bytes(&keys)?,
            bytes(&parents)?,
            array(py, &stamps, "uint64")?,
        ))
    }

    /// Clears all that was submitted so far: when it returns, no restart brings it back.
    ///
    /// Raises:
    ///     Unavailable: The system refuses; then nothing is cleared.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        let stamp = self.lane.next_stamp();
        wait(py, || self.folder.raise(stamp)).map_err(|error| refused(&error))
    }

    /// Ends all copies and the threads, and gives the folder to the next owner.
    fn close(&self, py: Python<'_>) {
        if self.process == process::id() && !self.closed.swap(true, Ordering::Relaxed) {
            wait(py, || {
                self.lane.close();
                // Where that fails the system does it at the end of the process.
                let _ = self.folder.release();
            });
        }
    }
}

impl DiskLane {
    fn check_process(&self) -> Outcome<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Failure::misuse("the disk is closed: open it again"));
        }
        if self.process == process::id() {
            return Ok(());
        }
        let owner = self.process;
        let message = format!(
            "process {owner} owns this folder: a process that was forked must open its own"
        );
        Err(Failure::misuse(message))
    }

    fn check_rows(&self, slots: &[u32], others: [usize; 3]) -> Outcome<()> {
        if others.iter().any(|&rows| rows != slots.len()) {
            let message = format!(
                "{} slots, and {others:?} of the others: pass as many",
                slots.len()
            );
            return Err(Failure::misuse(message));
        }
        let most = self.blocks.geometry().slots();
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
