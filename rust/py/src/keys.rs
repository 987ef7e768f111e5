//! `Keys`: the keys of a prompt, made once and used by probe, begin and promote; and keys that the
//! engine has made.

use crate::buffers::{each, keys_of, shown};
use crate::error::{Failure, Outcome};
use blockyard_core::{Chain, Key};
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyType};
use std::hash::{Hash, Hasher};

/// The chained keys of a prompt's full blocks, frozen. `docs/keys.md` has the encoding.
///
/// `len` counts them, and `bytes` joins them, 32 bytes each. Any thread may read them. They are
/// equal where they are alike and go on alike. Pickled they are for a process of the same version,
/// and as secret as the prompt and its salt.
///
/// Args:
///     data: Their pickled bytes.
///
/// Raises:
///     Misuse: The bytes are not whole keys of this version.
#[pyclass(frozen, module = "blockyard")]
pub(crate) struct Keys(pub(crate) Chain);

#[guarded]
#[pymethods]
impl Keys {
    /// Tokens of the prompt, including those of its partial last block.
    #[getter]
    fn tokens(&self) -> u64 {
        self.0.tokens()
    }

    /// Returns the keys as 64 hexadecimal digits each.
    fn hex(&self) -> Vec<String> {
        self.0.keys().iter().map(blockyard_core::Key::hex).collect()
    }

    fn __len__(&self) -> usize {
        self.0.keys().len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let all: Vec<[u8; 32]> = self.0.keys().iter().map(|key| key.0).collect();
        PyBytes::new(py, all.as_flattened())
    }

    /// Returns itself: it is frozen.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Returns itself: it is frozen.
    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    // Short names make short pickles: see `__reduce__`.
    #[new]
    fn new(data: &[u8]) -> PyResult<Self> {
        Ok(Self(Chain::from_bytes(data).map_err(Failure::from)?))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        let data = PyBytes::new(slf.py(), &slf.get().0.to_bytes());
        (slf.get_type(), (data,))
    }

    fn __eq__(&self, other: &Self) -> bool {
        // Keys that are alike go on alike only where the rest is, too.
        self.0.keys() == other.0.keys() && self.0.to_bytes() == other.0.to_bytes()
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        (self.0.keys(), self.0.tokens()).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!(
            "Keys({} blocks, {} tokens)",
            self.0.keys().len(),
            self.0.tokens()
        )
    }
}

/// Reads keys that the engine has made: a buffer of 32 bytes each, or a list of bytes or hex strings,
/// no more than `blocks`.
pub(crate) fn ready_keys(from: &Bound<'_, PyAny>, blocks: u64) -> PyResult<Vec<Key>> {
    if let Ok(buffer) = pyo3::buffer::PyBuffer::<u8>::get(from) {
        let keys = keys_of("keys", from.py(), &buffer)?;
        return Ok(keys.into_iter().map(Key).collect());
    }
    let items = from.try_iter().map_err(|_| {
        let kind = from.get_type();
        Failure::misuse(format!(
            "keys is {kind}: pass a buffer, or a list of bytes or of hex"
        ))
    })?;
    each("keys", from, items, |at, item| {
        if at as u64 == blocks {
            let message =
                format!("keys has more than the {blocks} keys that the tokens fill blocks for");
            return Err(Failure::misuse(message).into());
        }
        Ok(Key(one_key(at, &item)?))
    })
}

/// Keys as a buffer, 32 bytes each.
pub(crate) fn key_rows(name: &'static str, from: &Bound<'_, PyAny>) -> PyResult<Vec<Key>> {
    let buffer = pyo3::buffer::PyBuffer::<u8>::get(from).map_err(|_| {
        let kind = from.get_type();
        Failure::misuse(format!(
            "{name} is {kind}: pass bytes, or uint8 of shape (rows, 32)"
        ))
    })?;
    let keys = keys_of(name, from.py(), &buffer)?;
    Ok(keys.into_iter().map(Key).collect())
}

fn one_key(at: usize, item: &Bound<'_, PyAny>) -> Outcome<[u8; 32]> {
    let wrong = || {
        Failure::misuse(format!(
            "keys[{at}] = {}: pass 32 bytes, or 64 hexadecimal digits",
            shown(item)
        ))
    };
    if let Ok(bytes) = item.cast::<PyBytes>() {
        return bytes.as_bytes().try_into().map_err(|_| wrong());
    }
    let text = item.cast::<PyString>().map_err(|_| wrong())?;
    let text = text.to_cow().map_err(|_| wrong())?;
    let digits = text.as_bytes();
    let mut key = [0; 32];
    if digits.len() != 64 {
        return Err(wrong());
    }
    for (byte, pair) in key.iter_mut().zip(digits.as_chunks::<2>().0) {
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(key)
}
