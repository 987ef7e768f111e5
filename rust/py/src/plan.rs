//! `Plan`: frozen, equal by value, picklable.

use crate::buffers::{frozen, zeros};
use crate::error::Failure;
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use std::hash::{Hash, Hasher};

/// Copies to make between two tiers, or within the device.
#[pyclass(frozen, eq, module = "blockyard")]
#[derive(PartialEq, Eq)]
pub(crate) struct Plan(pub(crate) core::Plan);

#[guarded]
#[pymethods]
impl Plan {
    #[getter]
    fn flight(&self) -> u64 {
        self.0.flight.number()
    }

    #[getter]
    fn group(&self) -> u8 {
        self.0.group.0
    }

    #[getter]
    fn source_tier(&self) -> &'static str {
        self.0.from.name()
    }

    #[getter]
    fn destination_tier(&self) -> &'static str {
        self.0.to.name()
    }

    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        frozen(&self.to_bytes(py), "<u4", self.0.len(), 16)
    }

    #[getter]
    fn destinations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        frozen(
            &self.to_bytes(py),
            "<u4",
            self.0.len(),
            16 + 4 * self.0.len(),
        )
    }

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

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    // Short names make short pickles: see `__reduce__`.
    #[new]
    fn new(data: &[u8]) -> PyResult<Self> {
        Self::from_bytes(data)
    }

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
