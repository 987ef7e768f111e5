//! `Plan`: frozen, equal by value, picklable.

use crate::buffers::{frozen, zeros};
use crate::error::Failure;
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use std::hash::{Hash, Hasher};

/// An array of slots.
fn slots<'py>(py: Python<'py>, slots: &[u32]) -> PyResult<Bound<'py, PyAny>> {
    let mut bytes = Vec::with_capacity(4 * slots.len());
    for slot in slots {
        bytes.extend_from_slice(&slot.to_le_bytes());
    }
    frozen(&PyBytes::new(py, &bytes), "<u4", slots.len(), 0)
}

/// An array with a row for each key, if there are any.
fn keys<'py>(py: Python<'py>, keys: &[core::Key]) -> PyResult<Option<Bound<'py, PyAny>>> {
    if keys.is_empty() {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(32 * keys.len());
    for key in keys {
        bytes.extend_from_slice(&key.0);
    }
    let flat = frozen(&PyBytes::new(py, &bytes), "u1", bytes.len(), 0)?;
    flat.call_method1("reshape", ((keys.len(), 32),)).map(Some)
}

/// Copies to make between two tiers, or within the device: frozen, equal by value.
///
/// As bytes it takes 24, and 8 per block; pickled it takes at most 72, and 8 per block. Where it
/// carries keys it takes 16 more, and 32 more for each key. `len` counts its blocks. Any thread
/// may read it.
///
/// Args:
///     data: The bytes of `to_bytes`.
///
/// Raises:
///     Misuse: The bytes are not one whole plan of this version.
#[pyclass(frozen, eq, module = "blockyard")]
#[derive(PartialEq, Eq)]
pub(crate) struct Plan(pub(crate) core::Plan);

#[guarded]
#[pymethods]
impl Plan {
    /// The flight to report outcomes of.
    #[getter]
    fn flight(&self) -> u64 {
        self.0.flight.number()
    }

    /// The number of the yard that made it: flights of two yards may have one number.
    #[getter]
    fn yard(&self) -> u64 {
        self.0.yard.0
    }

    /// Group of layers that is copied: `Config.group` of the yard.
    #[getter]
    fn group(&self) -> u8 {
        self.0.group.0
    }

    /// Tier of the sources: "device", "host" or "disk".
    #[getter]
    fn source_tier(&self) -> &'static str {
        self.0.from.name()
    }

    /// Tier of the destinations: "device", "host" or "disk".
    #[getter]
    fn destination_tier(&self) -> &'static str {
        self.0.to.name()
    }

    /// The rank that it is for; always 0.
    #[getter]
    fn rank(&self) -> u16 {
        self.0.rank
    }

    /// Source slots, shape (blocks,), read-only.
    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        slots(py, &self.0.sources)
    }

    /// Destination slots, shape (blocks,), read-only.
    #[getter]
    fn destinations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        slots(py, &self.0.destinations)
    }

    /// Keys of the blocks, shape (blocks, 32), read-only; None where neither tier is keyed.
    ///
    /// A block that was parked before it had a key has 24 zero bytes and a number that is not 0,
    /// its own as long as it is parked. Of keyed tiers, no published block has such a key.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        keys(py, &self.0.keys)
    }

    /// Keys of their parents, likewise; None where the tier of the destinations is not keyed.
    ///
    /// The first block of a sequence has 32 zero bytes, or with an adapter or a salt 16 zero bytes and
    /// half of the root that these make; one whose parent was dropped has 32 bytes 0xFF.
    ///
    /// A plan from a tier to the same tier below the device copies nothing: the tier voids the
    /// records of its keys, and of what stands on them, but for keys with 32 bytes 0xFF here.
    #[getter]
    fn parents<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        keys(py, &self.0.parents)
    }

    /// Returns runs of consecutive slots: first source, first destination, blocks.
    ///
    /// The shape is (runs, 3).
    fn runs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let runs = self.0.runs();
        let array = zeros(py, &[runs.len(), 3], "uint32")?;
        let flat: Vec<u32> = runs
            .iter()
            .flat_map(|run| [run.source, run.destination, run.blocks])
            .collect();
        if !flat.is_empty() {
            PyBuffer::<u32>::get(&array)?.copy_from_slice(py, &flat)?;
        }
        Ok(array)
    }

    /// Returns the plan as bytes, which are the same on every machine.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    // Short names make short pickles: see `__reduce__`.
    #[new]
    fn new(data: &[u8]) -> PyResult<Self> {
        Self::from_bytes(data)
    }

    /// Makes a plan from the bytes of `to_bytes`.
    ///
    /// Args:
    ///     data: The bytes of one plan.
    ///
    /// Raises:
    ///     Misuse: The bytes are not one whole plan of this version.
    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        Ok(Self(core::Plan::from_bytes(data).map_err(Failure::from)?))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        (self.0.flight, self.0.from, self.0.to, &self.0.sources).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!(
            "Plan(flight={}, {} blocks, {} to {})",
            self.flight(),
            self.0.len(),
            self.source_tier(),
            self.destination_tier()
        )
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (slf.get_type(), (slf.get().to_bytes(slf.py()),))
    }
}
