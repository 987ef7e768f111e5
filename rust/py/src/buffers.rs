//! Reads buffers, and writes arrays: the engine's own ones, or new ones of `NumPy`.

use crate::dlpack::Tensor;
use crate::error::{Failure, Outcome};
use blockyard_core::Error;
use pyo3::buffer::{Element, ElementType, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyException, PyOverflowError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyBool, PyBytes, PyInt, PyIterator, PyList, PyTuple};
use std::cell::Cell;
use std::ffi::CStr;
use std::ops::Range;
use std::slice;

/// One call takes at most this many values of anything. No prompt or batch has as many, and an endless
/// iterator reaches them in a second or two.
pub(crate) const MOST: usize = 1 << 25;

/// Room for more values than these is not made on the word of a `len`, which may lie.
const BELIEVED: usize = 1 << 12;

pub(crate) fn too_many(name: &str, count: impl std::fmt::Display) -> Failure {
    Failure::misuse(format!(
        "{name} has {count} values: one call takes {MOST} at most"
    ))
}

/// Makes room for `more` more values.
pub(crate) fn room<T>(all: &mut Vec<T>, more: usize, what: &'static str) -> Outcome<()> {
    all.try_reserve(more).map_err(|_| {
        let bytes = (all.len() as u64).saturating_add(more as u64);
        let bytes = bytes.saturating_mul(size_of::<T>() as u64);
        Failure::Core(Error::Memory {
            what,
            bytes,
            there: None,
        })
    })
}

/// Makes a value of each item of an iterable, and refuses an endless one. R2-8
pub(crate) fn each<'py, T>(
    name: &'static str,
    from: &Bound<'py, PyAny>,
    items: Bound<'py, PyIterator>,
    mut one: impl FnMut(usize, Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let mut all = Vec::new();
    room(&mut all, said(name, from)?.min(BELIEVED), name)?;
    for (at, item) in items.enumerate() {
        if at == MOST {
            return Err(too_many(name, format_args!("more than {MOST}")).into());
        }
        let value = one(at, item?)?;
        if all.len() == all.capacity() {
            room(&mut all, 1, name)?;
        }
        all.push(value);
    }
    Ok(all)
}

/// What `len` says, 0 where there is none; an error if one call never takes that many.
fn said(name: &str, from: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = from.py();
    match from.len() {
        Ok(count) if count > MOST => Err(too_many(name, count).into()),
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Ok(0),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
            Err(too_many(name, "2^63 or more").into())
        }
        said => said,
    }
}

/// The types that integers are read into.
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

/// Reads integers of any width and sign out of a buffer, or out of a sequence of ints.
pub(crate) fn integers<T>(name: &'static str, from: &Bound<'_, PyAny>) -> PyResult<Vec<T>>
where
    T: Whole,
{
    if from.is_exact_instance_of::<PyList>() {
        return listed(name, from, ffi::PyList_GetItem);
    }
    if from.is_exact_instance_of::<PyTuple>() {
        return listed(name, from, ffi::PyTuple_GetItem);
    }
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

/// `PyO3` mistakes big endian for native.
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
trait Wide: Element + Copy + Default + std::fmt::Display {
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
    let elements = copied(py, name, buffer)?;
    let wrong = |element: &E| element.narrow::<T>().is_none();
    if let Some(at) = elements.iter().position(wrong) {
        let element = elements[at].to_string();
        return Err(out_of_range::<T>(&format!("{name}[{at}]"), &element).into());
    }
    if size_of::<T>() <= size_of::<E>() {
        // In place.
        return Ok(elements.into_iter().filter_map(Wide::narrow).collect());
    }
    let mut all = Vec::new();
    vacant(&mut all, elements.len(), name)?;
    all.extend(elements.into_iter().filter_map(Wide::narrow::<T>));
    Ok(all)
}

/// Makes room for exactly `count` values; an error if one call never takes that many.
fn vacant<T>(all: &mut Vec<T>, count: usize, name: &'static str) -> Outcome<()> {
    if count > MOST {
        return Err(too_many(name, count));
    }
    room(all, count, name)
}

/// The elements of a buffer, whatever its strides.
fn copied<E: Element + Copy + Default>(
    py: Python<'_>,
    name: &'static str,
    buffer: &PyBuffer<E>,
) -> PyResult<Vec<E>> {
    let mut elements = Vec::new();
    let count = buffer.item_count();
    vacant(&mut elements, count, name)?;
    elements.resize(count, E::default());
    buffer.copy_to_slice(py, &mut elements)?;
    Ok(elements)
}

/// Bytes, 32 of them for each value.
pub(crate) fn keys_of(
    name: &'static str,
    py: Python<'_>,
    buffer: &PyBuffer<u8>,
) -> PyResult<Vec<[u8; 32]>> {
    let count = buffer.item_count();
    if !count.is_multiple_of(32) {
        let message = format!("{name} has {count} bytes: pass 32 per key");
        return Err(Failure::misuse(message).into());
    }
    let shape = buffer.shape();
    if shape.len() > 1 && shape.last() != Some(&32) {
        let message = format!("{name} has shape {shape:?}: pass 32 bytes per key, (rows, 32)");
        return Err(Failure::misuse(message).into());
    }
    let mut all = Vec::new();
    vacant(&mut all, count / 32, name)?;
    all.resize(count / 32, [0; 32]);
    buffer.copy_to_slice(py, all.as_flattened_mut())?;
    Ok(all)
}

fn out_of_range<T: Whole>(name: &str, value: &str) -> Failure {
    let most = T::MOST;
    Failure::misuse(format!(
        "{name} = {value}: must be an integer from 0 to {most}"
    ))
}

/// The beginning of `str(value)`, which may be of any length, or fail.
pub(crate) fn shown(value: &Bound<'_, PyAny>) -> String {
    const FEW: usize = 100;
    let said = value.str();
    let said = said.and_then(|said| Ok(said.to_cow()?.into_owned()));
    let mut text = said.unwrap_or_else(|_| format!("{} that does not say", value.get_type()));
    if let Some((end, _)) = text.char_indices().nth(FEW) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The error that a value is wrong; but something like Ctrl-C is passed on.
fn unless_it_ends(from: &Bound<'_, PyAny>, error: PyErr, wrong: Failure) -> PyErr {
    if error.is_instance_of::<PyException>(from.py()) {
        wrong.into()
    } else {
        error
    }
}

/// One integer; a bool is none.
pub(crate) fn integer<T: Whole>(name: &str, from: &Bound<'_, PyAny>) -> PyResult<T> {
    let wrong = || out_of_range::<T>(name, &shown(from));
    if from.is_instance_of::<PyBool>() {
        return Err(wrong().into());
    }
    let value = from.extract::<u64>();
    let value = value.map_err(|error| unless_it_ends(from, error, wrong()))?;
    Ok(T::try_from(value).map_err(|_| wrong())?)
}

/// Whether this is one integer, also one of `NumPy`, and no array.
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
    each(name, from, iterator, |at, item| one_of(name, at, &item))
}

/// The integer at a place of a sequence.
fn one_of<T: Whole>(name: &str, at: usize, item: &Bound<'_, PyAny>) -> PyResult<T> {
    let wrong = || out_of_range::<T>(&format!("{name}[{at}]"), &shown(item));
    let value = match item.extract::<u64>() {
        Ok(value) if !item.is_instance_of::<PyBool>() => T::try_from(value).ok(),
        Err(error) => return Err(unless_it_ends(item, error, wrong())),
        Ok(_) => None,
    };
    Ok(value.ok_or_else(wrong)?)
}

/// Lends the item at a place of a list, or of a tuple.
type Lend = unsafe extern "C" fn(*mut ffi::PyObject, ffi::Py_ssize_t) -> *mut ffi::PyObject;

/// As [`sequence`], four times faster: nearly all items of a list or tuple are plain ints.
fn listed<T: Whole>(name: &'static str, list: &Bound<'_, PyAny>, lend: Lend) -> PyResult<Vec<T>> {
    let mut all = Vec::new();
    vacant(&mut all, list.len()?, name)?;
    loop {
        with_critical_section(list, || append_plain(list, lend, &mut all))?;
        let at = all.len();
        if at >= list.len()? {
            return Ok(all);
        }
        // What this item runs to say its value may change the list, which may end there, or go on.
        let item = list.get_item(at)?;
        if at == MOST {
            return Err(too_many(name, format_args!("more than {MOST}")).into());
        }
        let value = one_of(name, at, &item)?;
        room(&mut all, 1, name)?;
        all.push(value);
    }
}

/// Appends items of a list or tuple, as many as there is room for: up to one that is no int, but of
/// a class of its own, or out of range.
#[expect(unsafe_code, reason = "PyO3 counts a reference to each item")]
fn append_plain<T: Whole>(list: &Bound<'_, PyAny>, lend: Lend, all: &mut Vec<T>) -> PyResult<()> {
    for at in all.len()..list.len()?.min(all.capacity()) {
        // SAFETY: `list` is what `lend` is for and `at` is in it, so that there is an item. The list
        // keeps it: no other thread changes the list inside of its critical section, and an int that
        // is of no class of its own runs no code of Python's. A tuple never changes.
        let value = unsafe {
            let item = lend(list.as_ptr(), at.cast_signed());
            if ffi::PyLong_CheckExact(item) == 0 {
                return Ok(());
            }
            ffi::PyLong_AsSsize_t(item)
        };
        let Ok(value) = T::try_from(value as i64) else {
            // That it is too large an int is for the next who looks at it to say.
            drop(PyErr::take(list.py()));
            return Ok(());
        };
        all.push(value);
    }
    Ok(())
}

/// A writable, C-contiguous array of the CPU that the caller has given for results.
pub(crate) struct Out<T: Element> {
    first: *mut T,
    shape: Vec<usize>,
    count: usize,
    /// It keeps the memory where it is.
    _owner: Owner<T>,
}

#[expect(dead_code, reason = "they are held, not read")]
enum Owner<T: Element> {
    Buffer(PyBuffer<T>),
    Tensor(Tensor),
}

impl<T: Element + Default> Out<T> {
    pub(crate) fn new(from: &Bound<'_, PyAny>, dtype: &str, dimensions: usize) -> PyResult<Self> {
        let wrong = |what: String| {
            Failure::misuse(format!(
                "out {what}: pass a writable, C-contiguous {dtype} array of {dimensions} \
                 dimension(s), of the CPU or pinned"
            ))
        };
        let Ok(buffer) = PyUntypedBuffer::get(from) else {
            let tensor = Tensor::new(from, wrong)?;
            let tensor = tensor.ok_or_else(|| {
                wrong(format!(
                    "is {}, which has no buffer and no DLPack",
                    from.get_type()
                ))
            })?;
            return Self::of_tensor(tensor, dtype, dimensions, wrong);
        };
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
        Ok(Self {
            first: typed.buf_ptr().cast::<T>(),
            shape: typed.shape().to_vec(),
            count: typed.item_count(),
            _owner: Owner::Buffer(typed),
        })
    }

    fn of_tensor(
        tensor: Tensor,
        dtype: &str,
        dimensions: usize,
        wrong: impl Fn(String) -> Failure,
    ) -> PyResult<Self> {
        if tensor.shape.len() != dimensions {
            return Err(wrong(format!("has shape {:?}", tensor.shape)).into());
        }
        if let Some(strides) = tensor.scattered() {
            return Err(wrong(format!("has strides {strides:?}, in items")).into());
        }
        let first = tensor.first.cast::<T>();
        if tensor.dtype != dtype {
            return Err(wrong(format!("is {}", tensor.dtype)).into());
        }
        if !first.is_aligned() || (first.is_null() && tensor.len() > 0) {
            return Err(wrong(format!("is not aligned, at {first:?}")).into());
        }
        Ok(Self {
            first,
            shape: tensor.shape.clone(),
            count: tensor.len(),
            _owner: Owner::Tensor(tensor),
        })
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Writes elements that follow each other.
    ///
    /// # Panics
    /// If they reach beyond the array.
    pub(crate) fn write(
        &self,
        py: Python<'_>,
        at: usize,
        values: impl ExactSizeIterator<Item = T>,
    ) {
        let cells = self.cells(py, at..at + values.len());
        for (cell, value) in cells.iter().zip(values) {
            cell.set(value);
        }
    }

    /// Writes zeros.
    ///
    /// # Panics
    /// If they reach beyond the array.
    pub(crate) fn clear(&self, py: Python<'_>, at: Range<usize>) {
        for cell in self.cells(py, at) {
            cell.set(T::default());
        }
    }

    #[expect(
        unsafe_code,
        reason = "PyO3 gives a slice of cells only of a whole buffer"
    )]
    fn cells<'a>(&'a self, _py: Python<'a>, at: Range<usize>) -> &'a [Cell<T>] {
        assert!(
            at.start <= at.end && at.end <= self.count,
            "out has {} elements",
            self.count
        );
        if at.is_empty() {
            return &[];
        }
        // SAFETY: `new` has checked that the array is writable, C-contiguous and of elements of this
        // type, so that `count` of them, aligned, follow `first`; the owner keeps them there while
        // `self` lives. Others may write them too, so they are cells, and `_py` shows that no Python
        // code runs meanwhile.
        unsafe { slice::from_raw_parts(self.first.add(at.start).cast::<Cell<T>>(), at.len()) }
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
    // `zeros` would release the GIL to clear a kilobyte or more.
    let array = EMPTY
        .import(py, "numpy", "empty")?
        .call1((values.len(), dtype))?;
    if !values.is_empty() {
        PyBuffer::<T>::get(&array)?.copy_from_slice(py, values)?;
    }
    Ok(array)
}

/// Rows by number; where there are none, an array that all such answers share.
pub(crate) fn row_array<'py>(py: Python<'py>, rows: &[u32]) -> PyResult<Bound<'py, PyAny>> {
    static NONE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if rows.is_empty() {
        let none = NONE.get_or_try_init(py, || array::<i32>(py, &[], "int32").map(Bound::unbind));
        return Ok(none?.bind(py).clone());
    }
    let rows: Vec<i32> = rows.iter().map(|row| row.cast_signed()).collect();
    array(py, &rows, "int32")
}

/// A read-only array over bytes that never change.
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
