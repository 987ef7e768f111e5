//! Where an array of any library lies, by `DLPack`, if the CPU can write it: a tensor of `PyTorch` has
//! no buffer.
//!
//! The capsule stays unused, so that its destructor frees what it holds.

use crate::error::Failure;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCapsule};
use std::ffi::c_void;
use std::slice;

/// The version that is asked for. A later one of the same first number has the same fields.
const VERSION: (u32, u32) = (1, 2);
const READ_ONLY: u64 = 1;
const COPIED: u64 = 2;
const CPU: i32 = 1;
/// Memory of the CPU that is pinned for a GPU.
const PINNED: i32 = 3;
/// CUDA's, CUDA's managed, `ROCm`'s, oneAPI's.
const OF_A_GPU: [i32; 4] = [2, 13, 10, 14];

/// `DLTensor` of dlpack.h.
#[repr(C)]
struct Raw {
    data: *mut u8,
    device: i32,
    index: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The beginning of `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Raw,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: *const c_void,
    flags: u64,
    tensor: Raw,
}

/// A writable array in memory of the CPU.
pub(crate) struct Tensor {
    pub(crate) first: *mut u8,
    pub(crate) shape: Vec<usize>,
    /// As "int32".
    pub(crate) dtype: String,
    /// Items from one to the next on each axis; none where the array is contiguous.
    strides: Option<Vec<i64>>,
    /// It keeps the memory alive.
    _capsule: Py<PyAny>,
}

impl Tensor {
    /// Reads where an array lies; none if it does not speak `DLPack`. `wrong` makes the error of what
    /// is wrong.
    pub(crate) fn new(
        from: &Bound<'_, PyAny>,
        wrong: impl Fn(String) -> Failure,
    ) -> PyResult<Option<Self>> {
        if !(from.hasattr("__dlpack__")? && from.hasattr("__dlpack_device__")?) {
            return Ok(None);
        }
        let py = from.py();
        let refuses = |error: PyErr| {
            if error.is_instance_of::<PyException>(py) {
                wrong(format!("refuses DLPack ({error})")).into()
            } else {
                error
            }
        };
        let device = from.call_method0("__dlpack_device__");
        let (device, _) = device
            .and_then(|device| device.extract::<(i32, i32)>())
            .map_err(refuses)?;
        // Before the capsule, for which a GPU may have to wait.
        check_device(device, &wrong)?;
        let capsule = capsule(from).map_err(refuses)?;
        let Ok(capsule) = capsule.cast::<PyCapsule>() else {
            return Err(wrong(format!("gives {} for DLPack", capsule.get_type())).into());
        };
        let raw = raw(capsule, &wrong)?;
        check_device(raw.device, &wrong)?;
        let (shape, strides) = numbers(raw);
        let shape = shape
            .iter()
            .map(|&length| usize::try_from(length).ok())
            .collect::<Option<Vec<usize>>>()
            .filter(|shape| {
                let mut lengths = shape.iter();
                lengths
                    .try_fold(1_usize, |all, &length| all.checked_mul(length))
                    .is_some()
            })
            .ok_or_else(|| wrong(format!("has shape {shape:?}")))?;
        Ok(Some(Self {
            first: raw.data.wrapping_add(raw.byte_offset as usize),
            shape,
            dtype: dtype_name(raw),
            strides: strides.map(<[i64]>::to_vec),
            _capsule: capsule.clone().into_any().unbind(),
        }))
    }

    /// The number of its items.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its strides, if its items do not follow one another in C's order.
    pub(crate) fn scattered(&self) -> Option<&[i64]> {
        let strides = self.strides.as_deref()?;
        let mut step = 1_usize;
        let mut axes = self.shape.iter().zip(strides).rev();
        let contiguous = axes.all(|(&length, &stride)| {
            let follows = length == 1 || usize::try_from(stride) == Ok(step);
            step = step.saturating_mul(length);
            follows
        });
        (!contiguous && self.len() > 0).then_some(strides)
    }
}

fn check_device(device: i32, wrong: &impl Fn(String) -> Failure) -> PyResult<()> {
    if device == CPU || device == PINNED {
        return Ok(());
    }
    let whose = if OF_A_GPU.contains(&device) {
        "memory of a GPU"
    } else {
        "memory that the CPU may not write"
    };
    Err(wrong(format!(
        "is in {whose} (DLPack's device type {device}), and the CPU writes it"
    ))
    .into())
}

/// Asks for a capsule, also of a producer from before there were versions.
fn capsule<'py>(from: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = from.py();
    let asked = [("max_version", VERSION)].into_py_dict(py)?;
    match from.call_method("__dlpack__", (), Some(&asked)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => from.call_method0("__dlpack__"),
        given => given,
    }
}

#[expect(unsafe_code, reason = "a capsule gives a pointer")]
fn raw<'a>(
    capsule: &'a Bound<'_, PyCapsule>,
    wrong: &impl Fn(String) -> Failure,
) -> PyResult<&'a Raw> {
    let name = Some(c"dltensor_versioned");
    if capsule.is_valid_checked(name) {
        let pointer = capsule.pointer_checked(name)?.cast::<Versioned>();
        // SAFETY: a capsule of this name holds such a struct, which begins with its version in each of
        // them, and which lives as long as the capsule that is borrowed; nothing here writes it.
        let managed = unsafe { pointer.as_ref() };
        let (major, minor) = (managed.major, managed.minor);
        if major != VERSION.0 {
            return Err(wrong(format!("speaks DLPack {major}.{minor}, not 1.x")).into());
        }
        if managed.flags & READ_ONLY != 0 {
            return Err(wrong("is read-only".to_owned()).into());
        }
        if managed.flags & COPIED != 0 {
            return Err(wrong("hands out a copy of itself".to_owned()).into());
        }
        return Ok(&managed.tensor);
    }
    let name = Some(c"dltensor");
    if capsule.is_valid_checked(name) {
        let pointer = capsule.pointer_checked(name)?.cast::<Managed>();
        // SAFETY: as above; before there were versions a capsule had this name and began with this.
        return Ok(unsafe { &pointer.as_ref().tensor });
    }
    Err(wrong("gives a DLPack capsule that is used".to_owned()).into())
}

/// Shape, and strides where they are said.
#[expect(unsafe_code, reason = "the struct has pointers")]
fn numbers(raw: &Raw) -> (&[i64], Option<&[i64]>) {
    let dimensions = usize::try_from(raw.dimensions).unwrap_or(0);
    let read = |from: *const i64| {
        // SAFETY: where it is not null, DLPack has one number for each dimension there, which lives as
        // long as the struct.
        (!from.is_null()).then(|| unsafe { slice::from_raw_parts(from, dimensions) })
    };
    (read(raw.shape).unwrap_or(&[]), read(raw.strides))
}

fn dtype_name(raw: &Raw) -> String {
    let bits = raw.bits;
    let name = match raw.code {
        0 => format!("int{bits}"),
        1 => format!("uint{bits}"),
        2 => format!("float{bits}"),
        4 => format!("bfloat{bits}"),
        5 => format!("complex{bits}"),
        6 => "bool".to_owned(),
        code => format!("of DLPack's type {code} with {bits} bits"),
    };
    match raw.lanes {
        1 => name,
        lanes => format!("{name} in vectors of {lanes}"),
    }
}
