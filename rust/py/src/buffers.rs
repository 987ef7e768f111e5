//! Buffers in, arrays out: the engine's own arrays, or new `NumPy` ones.

use crate::error::Failure;
use pyo3::buffer::{Element, ElementType, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyInt};
use std::ffi::CStr;

/// What integers are checked to fit into.
pub(crate) trait Whole: TryFrom<i64> + TryFrom<u64> {
    const MOST: u64;
}

impl Whole for u8 {
    const MOST: u64 = Self::MAX as u64;
}

impl Whole for u32 {
    const MOST: u64 = Self::MAX as u64;
}

impl Whole for u64 {
    const MOST: u64 = Self::MAX;
}

/// Integers of any width and sign out of a buffer, or out of a sequence of ints.
pub(crate) fn integers<T>(name: &'static str, from: &Bound<'_, PyAny>) -> PyResult<Vec<T>>
where
    T: Whole,
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
    let format = buffer.format();
    let element = ElementType::from_format(format);
    match element {
        _ if !is_native(format) => {
            let order = "is not in this machine's byte order: pass a native copy";
            Err(Failure::misuse(format!("{name} {order}")).into())
        }
        ElementType::SignedInteger { bytes: 4 } => typed::<i32, T>(py, name, &buffer),
        ElementType::UnsignedInteger { bytes: 4 } => typed::<u32, T>(py, name, &buffer),
        ElementType::SignedInteger { bytes: 8 } => typed::<i64, T>(py, name, &buffer),
        ElementType::UnsignedInteger { bytes: 8 } => typed::<u64, T>(py, name, &buffer),
        ElementType::SignedInteger { bytes: 2 } => typed::<i16, T>(py, name, &buffer),
        ElementType::UnsignedInteger { bytes: 2 } => typed::<u16, T>(py, name, &buffer),
        _ => {
            let dtype = dtype_name(element);
            let message =
                format!("{name} has the dtype {dtype}: pass int32, uint32, int64 or uint64");
            Err(Failure::misuse(message).into())
        }
    }
}

/// `PyO3` takes big endian for native.
fn is_native(format: &CStr) -> bool {
    let foreign = if cfg!(target_endian = "little") {
        &b">!"[..]
    } else {
        b"<"
    };
    !format
        .to_bytes()
        .first()
        .is_some_and(|order| foreign.contains(order))
}

fn dtype_name(element: ElementType) -> String {
    match element {
        ElementType::SignedInteger { bytes } => format!("int{}", 8 * bytes),
        ElementType::UnsignedInteger { bytes } => format!("uint{}", 8 * bytes),
        ElementType::Float { bytes } => format!("float{}", 8 * bytes),
        ElementType::Bool => "bool".to_owned(),
        ElementType::Unknown => "of something else".to_owned(),
    }
}

/// An element wide enough to be checked.
trait Wide: Element + Copy + std::fmt::Display {
    fn narrow<T: Whole>(self) -> Option<T>;
}

macro_rules! wide {
    ($($element:ty as $wide:ty),*) => {$(
        impl Wide for $element {
            fn narrow<T: Whole>(self) -> Option<T> {
                T::try_from(<$wide>::from(self)).ok()
            }
        }
    )*};
}

wide!(
    i16 as i64, u16 as u64, i32 as i64, u32 as u64, i64 as i64, u64 as u64
);

fn typed<E: Wide, T: Whole>(
    py: Python<'_>,
    name: &'static str,
    buffer: &PyUntypedBuffer,
) -> PyResult<Vec<T>> {
    let buffer = buffer
        .as_typed::<E>()
        .map_err(|_| Failure::misuse(format!("{name} is not aligned: pass a copy")))?;
    let check = |at: usize, element: E| {
        element
            .narrow()
            .ok_or_else(|| out_of_range::<T>(&format!("{name}[{at}]"), &element).into())
    };
    let elements = buffer.to_vec(py)?;
    elements
        .into_iter()
        .enumerate()
        .map(|(at, element)| check(at, element))
        .collect()
}

fn out_of_range<T: Whole>(name: &str, value: &dyn std::fmt::Display) -> Failure {
    let most = T::MOST;
    Failure::misuse(format!(
        "{name} = {value}: pass an integer from 0 to {most}"
    ))
}

/// One integer; a bool is none.
pub(crate) fn integer<T: Whole>(name: &str, from: &Bound<'_, PyAny>) -> PyResult<T> {
    let wrong = || out_of_range::<T>(name, from);
    if from.is_instance_of::<PyBool>() {
        return Err(wrong().into());
    }
    let value: u64 = from.extract().map_err(|_| wrong())?;
    Ok(T::try_from(value).map_err(|_| wrong())?)
}

/// Whether this is one integer, `NumPy`'s included, and no array.
pub(crate) fn is_integer(from: &Bound<'_, PyAny>) -> bool {
    from.is_instance_of::<PyInt>()
        || (from.hasattr("__index__").unwrap_or(false) && !from.hasattr("__len__").unwrap_or(true))
}

fn sequence<T: Whole>(name: &'static str, from: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    let iterator = from.try_iter().map_err(|_| {
        let kind = from.get_type();
        Failure::misuse(format!(
            "{name} is {kind}: pass an integer array or a sequence of ints"
        ))
    })?;
    let mut all = Vec::with_capacity(from.len().unwrap_or(0));
    for (at, item) in iterator.enumerate() {
        let item = item?;
        let value = match item.extract::<u64>() {
            Ok(value) if !item.is_instance_of::<PyBool>() => T::try_from(value).ok(),
            _ => None,
        };
        all.push(value.ok_or_else(|| out_of_range::<T>(&format!("{name}[{at}]"), &item))?);
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
        if !is_native(buffer.format()) {
            return Err(wrong("is not in this machine's byte order".to_owned()).into());
        }
        let given = dtype_name(ElementType::from_format(buffer.format()));
        let typed = buffer.into_typed::<T>();
        let typed = typed.map_err(|_| wrong(format!("is {given}, or not aligned")))?;
        Ok(Self(typed))
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
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // `zeros` gives the GIL away to clear a kilobyte or more.
    let array = EMPTY
        .import(py, "numpy", "empty")?
        .call1((values.len(), dtype))?;
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
