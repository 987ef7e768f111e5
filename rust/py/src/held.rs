//! `HeldBlocks`: blocks that stay where they are, for other engines to read.

use crate::buffers::array;
use crate::cache_class::Cache;
use crate::gil::enter;
use crate::keys::Keys;
use crate::lease::Lease;
use crate::on_disk::key_array;
use crate::{arguments, error::Outcome};
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use std::sync::Arc;

/// Blocks that stay where they are until the hold ends, so that another engine can read them.
///
/// `release` ends a hold, and so do `Cache.clear`, a loss of the memory, `Cache.forget` of one of its
/// blocks, and the cache's close. If it is dropped instead, the next verb ends it, and `stats()["leaked"]` counts it.
/// Any thread may use it.
///
/// A reader compares generations: bytes that it read from a slot are the block's if the slot has the
/// generation of `generations` after the read. A generation changes before anything else is written
/// to the slot, and never comes back, nor does a cache that is made later have it.
#[pyclass(frozen, module = "blockyard", weakref)]
pub(crate) struct HeldBlocks {
    inner: Arc<core::HeldBlocks>,
    cache: Py<Cache>,
}

impl HeldBlocks {
    /// The hold, for threads that do not attach to Python.
    pub(crate) fn shared(&self) -> Arc<core::HeldBlocks> {
        Arc::clone(&self.inner)
    }
}

/// The generations of all device slots: they stay in one place for as long as this object lives.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct SlotGenerations(core::SlotGenerations);

#[guarded]
#[pymethods]
impl SlotGenerations {
    /// The address of the generation of slot 0, in this process; the others follow, 8 bytes each.
    #[getter]
    fn address(&self) -> usize {
        self.0.address()
    }

    /// How many there are.
    #[getter]
    fn slots(&self) -> usize {
        self.0.slots()
    }
}

/// In a forked child it gives nothing back: see `Lease`.
impl Drop for HeldBlocks {
    fn drop(&mut self) {
        if self.cache.get().check_sound().is_err() {
            self.inner.spend();
        }
    }
}

#[guarded]
#[pymethods]
impl HeldBlocks {
    /// Its number, which no other one ever gets.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().number()
    }

    /// Blocks that it holds, or held.
    #[getter]
    fn blocks(&self) -> usize {
        self.inner.slots().len()
    }

    /// The slots of its blocks, in the order of their sequence: uint32, shape (blocks,).
    #[getter]
    fn slots<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, self.inner.slots(), "uint32")
    }

    /// The generations that the slots have while it is held: uint64, shape (blocks,).
    #[getter]
    fn generations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        array(py, self.inner.generations(), "uint64")
    }

    /// The generations that the slots have now: uint64, shape (blocks,). It does not wait for the cache.
    ///
    /// What was read from a slot before this call is the block's, if the slot still has the one of
    /// `generations`.
    #[getter]
    fn generations_now<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.cache.get().check_sound()?;
        let every = 0..self.inner.slots().len();
        let now: Vec<u64> = every
            .map(|at| self.inner.generation_now(at).unwrap_or(0))
            .collect();
        array(py, &now, "uint64")
    }

    /// The keys of its blocks: uint8, shape (blocks, 32).
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        key_array(py, &bytes(self.inner.keys()))
    }

    /// The keys of the blocks before them, as in `Plan.parents`: uint8, shape (blocks, 32).
    #[getter]
    fn parents<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        key_array(py, &bytes(self.inner.parents()))
    }

    /// Whether it still holds its blocks. It does not wait for the cache.
    #[getter]
    fn is_held(&self) -> PyResult<bool> {
        self.cache.get().check_sound()?;
        Ok(self.inner.is_held())
    }

    /// The cache that made it.
    #[getter]
    fn cache<'py>(&self, py: Python<'py>) -> Bound<'py, Cache> {
        self.cache.bind(py).clone()
    }

    /// Ends the hold; if it has ended before, nothing happens.
    ///
    /// The generations of slots that nothing else holds change, and then the slots may be given out.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.cache.get();
        cache.check_sound()?;
        let blocks = self.inner.slots().len();
        Ok(enter(py, &cache.inner, blocks, |state| {
            self.inner.release_in(state);
            Ok(())
        })?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.cache)
    }

    fn __repr__(&self) -> String {
        let (id, blocks, held) = (self.id(), self.blocks(), self.inner.is_held());
        let held = if held { "True" } else { "False" };
        format!("HeldBlocks(id={id}, blocks={blocks}, is_held={held})")
    }
}

fn bytes(keys: &[core::Key]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.0).collect()
}

/// Whose leading blocks are held.
#[derive(FromPyObject)]
enum Prefix<'py> {
    Keys(Bound<'py, Keys>),
    Lease(Bound<'py, Lease>),
}

#[guarded]
#[pymethods]
impl Cache {
    /// Holds the leading blocks of a prefix that are on the device, so that another engine can read them.
    ///
    /// Where the engine allocates its blocks itself (`engine`), those that are on the host are held.
    /// They keep their slots and their bytes until the hold ends; no slot is taken and nothing is
    /// copied. Held blocks are not evicted, and count as room in nothing. A hold stops before a block
    /// that is not sealed, before one that backs a promise, and before one in a slot that a `resize`
    /// has added to the first size of that tier: such a slot has no generation.
    ///
    /// Args:
    ///     prefix: The keys of a prefix, or a running sequence.
    ///     blocks: How many blocks to hold at most; None for all of them.
    ///
    /// Returns:
    ///     The hold; None if no leading block is there to be held.
    ///
    /// Raises:
    ///     Misuse: The keys are of blocks of another size; `blocks` is out of range; or the cache is
    ///         closed.
    ///     Unavailable: There is no memory for the generations, 12 bytes for each slot, which the first
    ///         hold makes. Nothing is changed.
    ///     SpentLease: The sequence has ended before.
    ///     ForeignLease: It is another cache's.
    #[pyo3(signature = (prefix, blocks=None))]
    fn hold(
        slf: &Bound<'_, Self>,
        prefix: Prefix<'_>,
        #[pyo3(from_py_with = arguments::most)] blocks: Option<u32>,
    ) -> PyResult<Option<HeldBlocks>> {
        let (py, cache) = (slf.py(), slf.get());
        cache.check_open()?;
        let most = blocks.map_or(usize::MAX, |blocks| blocks as usize);
        let first = |keys: &[core::Key]| keys[..most.min(keys.len())].to_vec();
        let keys = match prefix {
            Prefix::Keys(keys) => {
                let chain = &keys.get().0;
                let checked: Outcome<()> = cache.check_keys(chain);
                checked?;
                first(chain.keys())
            }
            Prefix::Lease(lease) => {
                let lease = &lease.get().inner;
                cache.admit_handle(py, cache.inner.check_lease(lease))?;
                lease.read(|chain| first(chain.keys()))
            }
        };
        let path = enter(py, &cache.inner, keys.len(), |state| {
            state.hold_blocks(&keys)
        })?;
        Ok(path.map(|path| HeldBlocks {
            inner: Arc::new(cache.inner.handle_held(path)),
            cache: slf.clone().unbind(),
        }))
    }

    /// Returns where the generations of all device slots are, for a transport that reads memory by itself.
    ///
    /// Raises:
    ///     Misuse: The device is the engine's (`engine`), or the cache is closed.
    ///     Unavailable: There is no memory for them, 12 bytes for each slot.
    fn slot_generations(&self, py: Python<'_>) -> PyResult<SlotGenerations> {
        self.check_open()?;
        let made = enter(py, &self.inner, 0, core::State::slot_generations)?;
        Ok(SlotGenerations(made))
    }

    /// The upper half of every generation of a slot: a number that differs between two caches, from 1 on.
    #[getter]
    fn boot(&self) -> u32 {
        self.boot.get()
    }
}
