//! Looks at a disk without owning it: what folders of blocks have, and how fast the disk itself is.

use crate::gil::wait;
use crate::on_disk::refused;
use blockyard_disk as disk;
use blockyard_guard::guarded;
use disk::{Baseline, Geometry, Inspector, Scrubbed, State, Tally, Way};
use pyo3::prelude::*;
use std::path::PathBuf;

/// Slots by state, in the order of `State::ALL`, and their names.
type Counts = Vec<(&'static str, u64)>;

fn counts(tally: &Tally) -> Counts {
    let name = |state| match state {
        State::Void => "void",
        State::Broken => "broken",
        State::Another => "another",
        State::Cleared => "cleared",
        State::Parked => "parked",
        State::Block => "blocks",
        State::Torn => "torn",
        State::Unreadable => "unreadable",
        State::Busy => "busy",
    };
    let states = State::ALL.into_iter();
    states.map(|state| (name(state), tally.of(state))).collect()
}

/// A rank's folder of blocks, seen without owning it: nothing is written, and no owner waits.
///
/// Any thread may call it.
///
/// Args:
///     path: The folder of the rank: `ROOT/IDENTITY/rank-N`.
///
/// Raises:
///     Unavailable: It is no such folder, of a later format, or the system refuses.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct DiskInspector {
    inspector: Inspector,
}

#[guarded]
#[pymethods]
impl DiskInspector {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = wait(py, || Inspector::open(&path));
        let inspector = opened.map_err(|error| refused(&error))?;
        Ok(Self { inspector })
    }

    /// What its bytes depend on, in clear text: a title, and a line for each field.
    #[getter]
    fn text(&self) -> &str {
        self.inspector.text()
    }

    /// The version of Blockyard that was its last owner, or None where it has not said so.
    #[getter]
    fn writer(&self) -> Option<&str> {
        self.inspector.writer()
    }

    /// Its rank.
    #[getter]
    fn rank(&self) -> u16 {
        self.inspector.rank()
    }

    /// The process that owned it when this was made, or None.
    #[getter]
    fn owner(&self) -> Option<u32> {
        self.inspector.owner()
    }

    /// Its slots; 0 where its files have no length yet.
    #[getter]
    fn slots(&self) -> u32 {
        self.inspector.slots()
    }

    /// Bytes from a slot to the next: a block's, up to a multiple of 4 KiB.
    #[getter]
    fn slot_bytes(&self) -> u32 {
        self.inspector.stride()
    }

    /// Bytes that its files take on the disk.
    #[getter]
    fn disk_bytes(&self) -> u64 {
        self.inspector.disk_bytes()
    }

    /// Counts what its slots have, by the table alone.
    ///
    /// Returns:
    ///     Slots by state: "void", "broken" (no whole record), "another" (a record of another
    ///     place), "cleared", "parked" (of a parked request, which no restart finds), "blocks".
    ///     Those that only `scrub` finds are 0.
    ///
    /// Raises:
    ///     Unavailable: The table cannot be read.
    fn count(&self, py: Python<'_>) -> PyResult<Counts> {
        let tally = wait(py, || self.inspector.count());
        Ok(counts(&tally.map_err(|error| refused(&error))?))
    }

    /// Reads blocks, and says which are what was written.
    ///
    /// Args:
    ///     first: The first slot.
    ///     slots: Slots from there on; fewer where there are not as many.
    ///     threads: Threads that read, 1 to 64.
    ///
    /// Returns:
    ///     Slots by state, as `count`: "blocks" and "parked" are whole, others "torn" (not the
    ///     bytes that were written), "unreadable", or "busy" (written to meanwhile). Then the slots
    ///     that are broken, another's, torn or unreadable, and the bytes that were read.
    ///
    /// Raises:
    ///     Unavailable: The table cannot be read.
    fn scrub(
        &self,
        py: Python<'_>,
        first: u32,
        slots: u32,
        threads: usize,
    ) -> PyResult<(Counts, Vec<u32>, u64)> {
        let found = wait(py, || self.inspector.scrub(first, slots, threads));
        let Scrubbed { tally, bad, bytes } = found.map_err(|error| refused(&error))?;
        Ok((counts(&tally), bad, bytes))
    }
}

/// A file on a disk that is written and read with nothing else: no records, checksums or copies.
///
/// It is what a disk tier is compared with. Any thread may call it; one call at a time measures.
///
/// Args:
///     path: The file, which is made with all of its room, and stays.
///     slots: Blocks, each written and read once by each call, in an order without order.
///     block_bytes: Bytes of a block; as on a disk tier they are filled up to a multiple of 4 KiB.
///     threads: Threads that write and read, 1 to 64.
///
/// Raises:
///     Misuse: A number is out of range.
///     Unavailable: There is no room, or the system refuses.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct DiskBaseline {
    floor: Baseline,
}

#[guarded]
#[pymethods]
impl DiskBaseline {
    #[new]
    #[pyo3(signature = (path, *, slots, block_bytes, threads=4))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        slots: u32,
        block_bytes: u32,
        threads: usize,
    ) -> PyResult<Self> {
        let opened = wait(py, || {
            Baseline::open(&path, Geometry::new(slots, block_bytes)?, threads)
        });
        let floor = opened.map_err(|error| refused(&error))?;
        Ok(Self { floor })
    }

    /// Whether the page cache is passed by.
    #[getter]
    fn direct(&self) -> bool {
        self.floor.way() == Way::Direct
    }

    /// Writes each block once, and returns when all of them are durable.
    ///
    /// Raises:
    ///     Unavailable: The system refuses.
    fn write(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, || self.floor.write()).map_err(|error| refused(&error))
    }

    /// Reads each block once.
    ///
    /// Raises:
    ///     Unavailable: The system refuses.
    fn read(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, || self.floor.read()).map_err(|error| refused(&error))
    }
}
