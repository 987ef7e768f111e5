//! Checksums of blocks in memory, which tell whether what was written there is there still.

use crate::buffers::{array, integers, room};
use crate::error::{Failure, Outcome};
use crate::gil::reckon;
use blockyard_guard::guarded;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use std::{ptr, slice};
use twox_hash::XxHash3_64;

/// A checksum is computed at some 10 GB/s: so many bytes take as long as a run.
const BYTES_OF_A_RUN: usize = 128;

/// A tier's plane, in each of whose slots a block's bytes follow one another.
struct Plane {
    /// The address of its first byte.
    first: usize,
    blocks: usize,
    bytes: usize,
    stride: usize,
    /// Keeps the memory there.
    _owner: PyBuffer<u8>,
}

impl Plane {
    fn new(from: &Bound<'_, PyAny>) -> PyResult<Self> {
        let wrong = |says: String| Failure::misuse(format!("plane {says}"));
        let buffer = PyBuffer::<u8>::get(from)
            .map_err(|_| wrong("is no array of bytes in this process's memory".to_owned()))?;
        let &[blocks, pieces, piece] = buffer.shape() else {
            let shape = format!("has shape {:?}: pass blocks, pieces, bytes", buffer.shape());
            return Err(wrong(shape).into());
        };
        let bytes = pieces * piece;
        let strides = buffer.strides().iter().map(|&one| usize::try_from(one));
        let strides: Result<Vec<usize>, _> = strides.collect();
        match strides.as_deref() {
            Ok(&[stride, next, 1])
                if (next == piece || pieces < 2) && (stride >= bytes || blocks < 2) =>
            {
                Ok(Self {
                    first: buffer.buf_ptr().expose_provenance(),
                    blocks,
                    bytes,
                    stride,
                    _owner: buffer,
                })
            }
            _ => Err(wrong(format!("has strides {:?}", buffer.strides())).into()),
        }
    }

    fn check(&self, slots: &[u32]) -> Outcome<()> {
        let beyond = slots.iter().find(|&&slot| slot as usize >= self.blocks);
        beyond.map_or(Ok(()), |slot| {
            let blocks = self.blocks;
            Err(Failure::misuse(format!(
                "slots = {slot}: the plane has {blocks}"
            )))
        })
    }

    #[expect(unsafe_code, reason = "PyO3 gives a strided buffer as a pointer")]
    fn sum(&self, slot: u32) -> u64 {
        if self.bytes == 0 {
            return XxHash3_64::oneshot(&[]);
        }
        let first = self.first + self.stride * slot as usize;
        // SAFETY: `check` has seen that the plane has this slot, and `new` that its bytes follow one
        // another; the owner keeps them there while `self` lives. By the contract of `checksums`
        // nobody writes to the slot meanwhile.
        XxHash3_64::oneshot(unsafe {
            slice::from_raw_parts(ptr::with_exposed_provenance(first), self.bytes)
        })
    }
}

/// Returns a checksum of each of some slots of a plane: XXH3 of 64 bits over its bytes.
///
/// The interpreter's lock is not held meanwhile. Any thread may call it; nobody may write to these
/// slots before it returns.
///
/// Args:
///     plane: Bytes, shape (blocks, pieces, piece_bytes), of which a slot's follow one another.
///     slots: Slots, shape (slots,).
///
/// Returns:
///     Checksums, shape (slots,).
///
/// Raises:
///     Misuse: The plane is no such array, or has no such slot.
#[guarded]
#[pyfunction]
pub(crate) fn checksums<'py>(
    plane: &Bound<'py, PyAny>,
    slots: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = plane.py();
    let slots: Vec<u32> = integers("slots", slots)?;
    let plane = Plane::new(plane)?;
    plane.check(&slots)?;
    let mut sums = Vec::new();
    room(&mut sums, slots.len(), "checksums")?;
    let runs = slots.len().saturating_mul(plane.bytes) / BYTES_OF_A_RUN;
    reckon(py, runs, || {
        sums.extend(slots.iter().map(|&slot| plane.sum(slot)));
    });
    array(py, &sums, "uint64")
}
