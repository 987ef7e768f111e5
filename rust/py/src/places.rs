//! Places: where the bytes of blocks are in memory, for threads of a disk or a store.

use crate::buffers::{each, integers, shown};
use crate::error::{Failure, Outcome};
use blockyard_disk::Memory;
use pyo3::prelude::*;
use std::{ptr, slice};

/// The addresses of a plane's pieces in slot 0, the bytes from a slot to the next, and of a piece.
type Plane<'py> = (Bound<'py, PyAny>, u64, u64);

/// Bytes of a block in memory: piece p of slot s begins at `pieces[p] + s * stride`. Pieces at address 0 are
/// another's to write.
#[derive(Debug)]
struct PlanePlace {
    pieces: Vec<u64>,
    stride: u64,
    bytes: usize,
}

/// Where the blocks of a copy are in memory.
#[derive(Debug)]
pub(crate) struct Addresses {
    planes: Vec<PlanePlace>,
    slots: Vec<u32>,
}

impl Addresses {
    pub(crate) fn new(
        planes: &Bound<'_, PyAny>,
        slots: Vec<u32>,
        block_bytes: u32,
    ) -> PyResult<Self> {
        let wrong = |given: &Bound<'_, PyAny>| {
            let given = shown(given);
            Failure::misuse(format!(
                "planes = {given}: pass (addresses, stride, bytes) of each"
            ))
        };
        let items = planes.try_iter().map_err(|_| wrong(planes))?;
        let made = each("planes", planes, items, |_, item| {
            let (pieces, stride, bytes): Plane<'_> = item.extract().map_err(|_| wrong(&item))?;
            Ok(PlanePlace {
                pieces: integers("pieces", &pieces)?,
                stride,
                bytes: usize::try_from(bytes)?,
            })
        })?;
        let bytes = |plane: &PlanePlace| plane.pieces.len().checked_mul(plane.bytes);
        let all = made
            .iter()
            .try_fold(0_usize, |all, plane| all.checked_add(bytes(plane)?));
        if all != Some(block_bytes as usize) {
            let all = all.unwrap_or(usize::MAX);
            let message = format!(
                "a block of these planes has {all} bytes, and one below them {block_bytes}"
            );
            return Err(Failure::misuse(message).into());
        }
        let made = Self {
            planes: made,
            slots,
        };
        made.check()?;
        Ok(made)
    }

    /// Checks that all bytes have an address, so that later sums do not overflow.
    fn check(&self) -> Outcome<()> {
        let slot = self.slots.iter().max().copied().unwrap_or(0);
        let has_address = |plane: &PlanePlace| {
            let piece = plane.pieces.iter().max().copied().unwrap_or(0);
            let end = plane.stride.checked_mul(slot.into())?;
            end.checked_add(piece)?.checked_add(plane.bytes as u64)
        };
        let all = self.planes.iter().all(|plane| has_address(plane).is_some());
        all.then_some(())
            .ok_or_else(|| Failure::misuse(format!("slot {slot} has no address of 64 bits")))
    }

    /// The pieces of a block: their addresses, and where they stand among its bytes.
    fn pieces(&self, at: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let slot = u64::from(self.slots[at]);
        let mut first = 0;
        self.planes
            .iter()
            .flat_map(move |plane| {
                plane.pieces.iter().map(move |&piece| {
                    let address = usize::try_from(piece + plane.stride * slot);
                    (address.unwrap_or(usize::MAX), plane.bytes)
                })
            })
            .map(move |(address, bytes)| {
                let place = (address, first, bytes);
                first += bytes;
                place
            })
    }
}

#[expect(unsafe_code, reason = "a tier's memory is known by its addresses")]
impl Memory for Addresses {
    fn gather(&self, at: usize, staged: &mut [u8]) {
        for (address, first, bytes) in self.pieces(at) {
            // SAFETY: by the contract of `submit_down` these bytes are there, and nobody writes them,
            // until the copy has landed or was given up; the lane calls this only before that.
            let piece =
                unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), bytes) };
            staged[first..first + bytes].copy_from_slice(piece);
        }
    }

    fn scatter(&self, at: usize, staged: &[u8]) {
        for (address, first, bytes) in self.pieces(at).filter(|piece| piece.0 != 0) {
            // SAFETY: likewise, by that of `submit_up`; and nobody else reads or writes them.
            let piece = unsafe {
                slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), bytes)
            };
            piece.copy_from_slice(&staged[first..first + bytes]);
        }
    }
}
