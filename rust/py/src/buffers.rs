//! Buffers in, arrays out: the engine's own arrays, or new `NumPy` ones.

use crate::error::Failure;
use pyo3::buffer::{Element, ElementType, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

/// Integers of any width and sign out of a buffer, or out of a sequence of ints.
pub(crate) fn integers<T>(name: &'static str, from: &Bound<'_, PyAny>) -> PyResult<Vec<T>>
where
    T: TryFrom<i64> + TryFrom<u64>,
{
    let Ok(buffer) = PyUntypedBuffer::get(from) else {
        return sequence(name, from);
    };
    if buffer.dimensions() > 1 {
        let shape = buffer.shape();
        let message = format!("{name} has shape {shape:?}: pass one dimension");
        return Err(Failure::misuse(message).into());
    }
    let py = from.py();
    match ElementType::from_format(buffer.format()) {
        ElementType::SignedInteger { bytes: 4 } => typed::<i32, T>(py, name, &buffer),
        ElementType::UnsignedInteger { bytes: 4 } => typed::<u32, T>(py, name, &buffer),
        ElementType::SignedInteger { bytes: 8 } => typed::<i64, T>(py, name, &buffer),
        ElementType::UnsignedInteger { bytes: 8 } => typed::<u64, T>(py, name, &buffer),
        ElementType::SignedInteger { bytes: 2 } => typed::<i16, T>(py, name, &buffer),
        ElementType::UnsignedInteger { bytes: 2 } => typed::<u16, T>(py, name, &buffer),
        other => {
            let message =
                format!("{name} has a wrong dtype, {other:?}: pass int32, uint32, int64 or uint64");
            Err(Failure::misuse(message).into())
        }
    }
}

/// An element wide enough to be checked.
trait Wide: Element + Copy + std::fmt::Display {
    fn narrow<T: TryFrom<i64> + TryFrom<u64>>(self) -> Option<T>;
}

macro_rules! wide {
    ($($element:ty as $wide:ty),*) => {$(
        impl Wide for $element {
            fn narrow<T: TryFrom<i64> + TryFrom<u64>>(self) -> Option<T> {
                T::try_from(<$wide>::from(self)).ok()
            }
        }
    )*};
}

wide!(
    i16 as i64, u16 as u64, i32 as i64, u32 as u64, i64 as i64, u64 as u64
);

fn typed<E: Wide, T: TryFrom<i64> + TryFrom<u64>>(
    py: Python<'_>,
    name: &'static str,
    buffer: &PyUntypedBuffer,
) -> PyResult<Vec<T>> {
    let buffer = buffer.as_typed::<E>()?;
    let check = |at: usize, element: E| {
        element
            .narrow()
            .ok_or_else(|| out_of_range(name, at, &element).into())
    };
    let elements = buffer.to_vec(py)?;
    elements
        .into_iter()
        .enumerate()
        .map(|(at, element)| check(at, element))
        .collect()
}

fn out_of_range(name: &str, at: usize, value: &dyn std::fmt::Display) -> Failure {
    Failure::misuse(format!(
        "{name}[{at}] = {value}: out of range; pass integers from 0 to 4294967295 (tokens) or \
         18446744073709551615 (counts)"
    ))
}

fn sequence<T: TryFrom<i64> + TryFrom<u64>>(
    name: &'static str,
    from: &Bound<'_, PyAny>,
) -> PyResult<Vec<T>> {
    let iterator = from.try_iter().map_err(|_| {
        let kind = from.get_type();
        Failure::misuse(format!(
            "{name} is {kind}: pass an integer array or a sequence of ints"
        ))
    })?;
    let mut all = Vec::with_capacity(from.len().unwrap_or(0));
    for (at, item) in iterator.enumerate() {
        let item = item?;
        let value: u64 = item.extract().map_err(|_| out_of_range(name, at, &item))?;
        all.push(T::try_from(value).map_err(|_| out_of_range(name, at, &value))?);
    }
    Ok(all)
}

/// A writable, C-contiguous array that the caller has given for results.
pub(crate) struct Out<T: Element>(PyBuffer<T>);

impl<T: Element> Out<T> {
    pub(crate) fn new(from: &Bound<'_, PyAny>, dtype: &str, dimensions: usize) -> PyResult<Self> {
        let wrong = |what: String| {
            Failure::misuse(format!(
                "out {what}: pass a writable, C-contiguous {dtype} array of {dimensions} dimension(s)"
            ))
        };
        let buffer = PyUntypedBuffer::get(from)
            .map_err(|_| wrong(format!("is {} and has no buffer", from.get_type())))?;
        if buffer.dimensions() != dimensions {
            return Err(wrong(format!("has shape {:?}", buffer.shape())).into());
        }
        if buffer.readonly() {
            return Err(wrong("is read-only".to_owned()).into());
        }
        if !buffer.is_c_contiguous() {
            return Err(wrong(format!("has strides {:?}", buffer.strides())).into());
        }
        let format = buffer.format().to_string_lossy().into_owned();
        let typed = buffer.into_typed::<T>();
        Ok(Self(
            typed.map_err(|_| wrong(format!("has format {format:?}")))?,
        ))
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    /// Writes one element.
    ///
    /// # Panics
    /// If `at` is beyond the array.
    #[expect(
        unsafe_code,
        reason = "PyO3 has no safe way to write single elements of a buffer"
    )]
    pub(crate) fn set(&self, _py: Python<'_>, at: usize, value: T) {
        assert!(
            at < self.0.item_count(),
            "out has {} elements",
            self.0.item_count()
        );
        let first = self.0.buf_ptr().cast::<T>();
        // SAFETY: `new` has checked that the buffer is writable, C-contiguous and of elements of
        // this type, so that `item_count` of them, aligned, follow `first`; the buffer is
        // exported while `self` lives, and `_py` shows that no Python code runs meanwhile.
        unsafe { first.add(at).write(value) }
    }
}

/// A new `NumPy` array of zeros.
pub(crate) fn zeros<'py>(
    py: Python<'py>,
    shape: &[usize],
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    static ZEROS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ZEROS.import(py, "numpy", "zeros")?.call1((shape, dtype))
}

/// A new one-dimensional array with these values.
pub(crate) fn array<'py, T: Element + Copy>(
    py: Python<'py>,
    values: &[T],
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let array = zeros(py, &[values.len()], dtype)?;
    if !values.is_empty() {
        PyBuffer::<T>::get(&array)?.copy_from_slice(py, values)?;
    }
    Ok(array)
}

/// A read-only array over bytes that nobody changes.
pub(crate) fn frozen<'py>(
    bytes: &Bound<'py, PyBytes>,
    dtype: &str,
    count: usize,
    offset: usize,
) -> PyResult<Bound<'py, PyAny>> {
    static FROM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = bytes.py();
    FROM.import(py, "numpy", "frombuffer")?
        .call1((bytes, dtype, count, offset))
}
