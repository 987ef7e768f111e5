//! `Keys`: a prompt's keys, made once and used by probe, begin and promote.

use blockyard_core::Chain;
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The chained keys of a prompt's full blocks, frozen.
#[pyclass(frozen, module = "blockyard")]
pub(crate) struct Keys(pub(crate) Chain);

#[guarded]
#[pymethods]
impl Keys {
    #[getter]
    fn tokens(&self) -> u64 {
        self.0.tokens()
    }

    fn hex(&self) -> Vec<String> {
        self.0.keys().iter().map(blockyard_core::Key::hex).collect()
    }

    fn __len__(&self) -> usize {
        self.0.keys().len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let all: Vec<u8> = self.0.keys().iter().flat_map(|key| key.0).collect();
        PyBytes::new(py, &all)
    }

    fn __repr__(&self) -> String {
        format!(
            "Keys({} blocks, {} tokens)",
            self.0.keys().len(),
            self.0.tokens()
        )
    }
}
