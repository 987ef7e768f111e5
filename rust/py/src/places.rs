//! Places: where the bytes of blocks are in memory, for threads of a disk or a store.

use crate::buffers::{each, integers, shown};
use crate::error::{Failure, Outcome};
use blockyard_disk::Memory;
use blockyard_handover::{Pieces, Receiving, Sending};
use pyo3::prelude::*;
use std::io::{IoSlice, IoSliceMut};
use std::{ptr, slice};

/// Pieces that one call of the system takes: half of what Linux allows.
const AT_ONCE: usize = 512;

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
        let (planes, all) = planes_of(planes)?;
        if all != Some(block_bytes as usize) {
            let all = all.unwrap_or(usize::MAX);
            let message = format!(
                "a block of these planes has {all} bytes, and one below them {block_bytes}"
            );
            return Err(Failure::misuse(message).into());
        }
        let made = Self { planes, slots };
        made.check()?;
        Ok(made)
    }

    /// All slots of a tier, and the bytes of a block.
    pub(crate) fn all(planes: &Bound<'_, PyAny>, slots: u32) -> PyResult<(Self, u32)> {
        let (_, all) = planes_of(planes)?;
        let bytes = all.and_then(|all| u32::try_from(all).ok());
        let bytes = bytes.filter(|&bytes| (1..=1 << 31).contains(&bytes));
        let bytes = bytes.ok_or_else(|| {
            let all = all.unwrap_or(usize::MAX);
            Failure::misuse(format!(
                "a block of these planes has {all} bytes: 1 to 2^31"
            ))
        })?;
        Ok((Self::new(planes, (0..slots).collect(), bytes)?, bytes))
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

    /// The parts of pieces that lie in a range of a block: their addresses and lengths, as far as one call goes.
    fn parts(&self, at: usize, from: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
        let end = from.saturating_add(most);
        self.pieces(at)
            .skip_while(move |&(_, first, bytes)| first + bytes <= from)
            .take_while(move |&(_, first, _)| first < end)
            .map(move |(address, first, bytes)| {
                let (begin, end) = (first.max(from), (first + bytes).min(end));
                let skipped = if address == 0 { 0 } else { begin - first };
                (address + skipped, end - begin)
            })
            .take(AT_ONCE)
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

/// Reads where planes are, and how many bytes a block of them has, if that is a number.
fn planes_of(planes: &Bound<'_, PyAny>) -> PyResult<(Vec<PlanePlace>, Option<usize>)> {
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
    Ok((made, all))
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

#[expect(unsafe_code, reason = "likewise")]
impl Pieces for Addresses {
    fn source(&self, at: usize, from: usize, most: usize, act: Sending<'_>) {
        let parts = self.parts(at, from, most);
        let pieces: Vec<IoSlice<'_>> = parts
            .map(|(address, bytes)| {
                // SAFETY: by the contract of `OfferServer` these bytes are there until it is closed. Who reads them
                // while a slot is another's finds another generation afterwards, and what was read is not used.
                let piece =
                    unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), bytes) };
                IoSlice::new(piece)
            })
            .collect();
        act(&pieces);
    }

    fn target(&self, at: usize, from: usize, most: usize, act: Receiving<'_>) {
        let mut parts = self.parts(at, from, most).peekable();
        if let Some((_, bytes)) = parts.next_if(|part| part.0 == 0) {
            act(&mut [], bytes);
            return;
        }
        let mut all = 0;
        let mut pieces: Vec<IoSliceMut<'_>> = parts
            .take_while(|part| part.0 != 0)
            .map(|(address, bytes)| {
                all += bytes;
                // SAFETY: by the contract of `Peer.submit_up` these bytes are there, and nobody else reads or
                // writes them, until the flight has landed or was given up; the peer calls this only before that.
                let piece = unsafe {
                    slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address), bytes)
                };
                IoSliceMut::new(piece)
            })
            .collect();
        act(&mut pieces, all);
    }
}
