//! Turns plans into runs of bytes, for the crane: arithmetic on slots, without state.
//!
//! `NumPy` releases the GIL in every loop of more than 500 elements. Beside a busy Python thread that
//! costs up to 5 ms each time; the functions here keep the GIL.

use crate::buffers::{MOST, array, integers, room, too_many};
use crate::error::{Failure, Outcome};
use crate::gil::reckon;
use blockyard_guard::guarded;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

type Arrays<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Where pieces are: piece p of slot s begins at `pieces[p] + s * stride`.
struct Places {
    pieces: Vec<u64>,
    stride: u64,
}

impl Places {
    /// From the pair that `blockyard.crane.gpu.Places` is.
    fn new(from: (Bound<'_, PyAny>, u64)) -> PyResult<Self> {
        let (pieces, stride) = from;
        let pieces = integers("pieces", &pieces)?;
        Ok(Self { pieces, stride })
    }

    /// Checks that all bytes of these slots have an address, so that later sums do not overflow.
    fn check(&self, slots: &[u32], bytes: u64) -> Outcome<()> {
        let slot = slots.iter().max().copied().unwrap_or(0);
        let piece = self.pieces.iter().max().copied().unwrap_or(0);
        let end = self.stride.checked_mul(slot.into());
        let end = end.and_then(|end| end.checked_add(piece)?.checked_add(bytes));
        end.map(drop)
            .ok_or_else(|| Failure::misuse(format!("slot {slot} has no address of 64 bits")))
    }

    fn first(&self, slot: u32) -> u64 {
        self.pieces[0] + self.stride * u64::from(slot)
    }

    fn of(&self, slot: u32) -> impl Iterator<Item = u64> {
        let skip = self.stride * u64::from(slot);
        self.pieces.iter().map(move |piece| piece + skip)
    }
}

/// Contiguous bytes to copy.
#[derive(Default)]
struct Runs {
    to: Vec<u64>,
    from: Vec<u64>,
    sizes: Vec<u64>,
}

impl Runs {
    fn with_room(runs: usize) -> Outcome<Self> {
        let mut all = Self::default();
        for one in [&mut all.to, &mut all.from, &mut all.sizes] {
            room(one, runs, "the runs of a plan")?;
        }
        Ok(all)
    }

    fn push(&mut self, to: u64, from: u64, size: u64) {
        self.to.push(to);
        self.from.push(from);
        self.sizes.push(size);
    }

    /// Adds bytes to the last run if they follow it on both sides, or else makes a new run.
    fn join(&mut self, to: u64, from: u64, size: u64) {
        match (self.to.last(), self.from.last(), self.sizes.last_mut()) {
            (Some(last), Some(other), Some(length))
                if last + *length == to && other + *length == from =>
            {
                *length += size;
            }
            _ => self.push(to, from, size),
        }
    }

    fn arrays(self, py: Python<'_>) -> PyResult<Arrays<'_>> {
        let [to, from, sizes] =
            [self.to, self.from, self.sizes].map(|one| array(py, &one, "uint64"));
        Ok((to?, from?, sizes?))
    }
}

fn pairs(
    sources: &Bound<'_, PyAny>,
    destinations: &Bound<'_, PyAny>,
) -> PyResult<(Vec<u32>, Vec<u32>)> {
    let sources: Vec<u32> = integers("sources", sources)?;
    let destinations: Vec<u32> = integers("destinations", destinations)?;
    if sources.len() != destinations.len() {
        let (from, to) = (sources.len(), destinations.len());
        let message = format!("{from} sources and {to} destinations: pass as many");
        return Err(Failure::misuse(message).into());
    }
    Ok((sources, destinations))
}

/// Counts the runs of slots that are consecutive on both sides. Any thread may call it.
///
/// Args:
///     sources: Slots, shape (blocks,).
///     destinations: Slots, shape (blocks,).
///
/// Raises:
///     Misuse: The two sides do not have equally many slots.
#[guarded]
#[pyfunction]
pub(crate) fn consecutive(
    sources: &Bound<'_, PyAny>,
    destinations: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let py = sources.py();
    let (sources, destinations) = pairs(sources, destinations)?;
    Ok(reckon(py, sources.len(), || {
        let follows = |slots: &[u32]| slots[0].checked_add(1) == Some(slots[1]);
        let both = sources.windows(2).zip(destinations.windows(2));
        let joints = both.filter(|&(here, there)| follows(here) && follows(there));
        sources.len() - joints.count()
    }))
}

/// Returns the bytes to copy from slots to slots, in the order of the slots and their pieces.
///
/// Slots that are consecutive on both sides make one run if, on both, a piece is a whole slot. Any
/// thread may call it.
///
/// Args:
///     sources: Slots, shape (blocks,).
///     destinations: Slots, shape (blocks,).
///     source: Address of each piece of slot 0, and bytes from a slot to the next.
///     destination: The same of the other side, with as many pieces.
///     piece_bytes: Bytes of a piece.
///
/// Returns:
///     Addresses to copy to, addresses to copy from, and bytes; shape (runs,) each.
///
/// Raises:
///     Misuse: The two sides are not alike, or an address does not fit into 64 bits.
#[guarded]
#[pyfunction]
pub(crate) fn runs<'py>(
    sources: &Bound<'py, PyAny>,
    destinations: &Bound<'py, PyAny>,
    source: (Bound<'py, PyAny>, u64),
    destination: (Bound<'py, PyAny>, u64),
    piece_bytes: u64,
) -> PyResult<Arrays<'py>> {
    let py = sources.py();
    let (sources, destinations) = pairs(sources, destinations)?;
    let (from, to) = (Places::new(source)?, Places::new(destination)?);
    let pieces = from.pieces.len();
    if to.pieces.len() != pieces {
        let others = to.pieces.len();
        let message = format!("a source of {pieces} pieces and a destination of {others}");
        return Err(Failure::misuse(message).into());
    }
    let most = sources.len().saturating_mul(pieces);
    if most > MOST {
        return Err(too_many("a plan, piece by piece,", most).into());
    }
    let runs = reckon(py, most, || {
        from.check(&sources, piece_bytes)?;
        to.check(&destinations, piece_bytes)?;
        let flat = pieces == 1 && [from.stride, to.stride] == [piece_bytes; 2];
        let mut runs = Runs::with_room(most)?;
        for (&here, &there) in sources.iter().zip(&destinations) {
            for (to, from) in to.of(there).zip(from.of(here)) {
                if flat {
                    runs.join(to, from, piece_bytes);
                } else {
                    runs.push(to, from, piece_bytes);
                }
            }
        }
        Outcome::Ok(runs)
    });
    runs?.arrays(py)
}

/// Returns the bytes to copy between slots and a ring of blocks that is filled repeatedly.
///
/// Within one filling, blocks that follow one another in the slots make one run. Any thread may
/// call it.
///
/// Args:
///     below: Slots of the tier below, shape (blocks,).
///     places: Where their pieces are; in a slot they follow one another.
///     ring: Address of the ring.
///     held: Blocks that it holds.
///     block_bytes: Bytes of a block.
///
/// Returns:
///     Addresses in the slots, addresses in the ring, and bytes, shape (runs,) each; and the first
///     run of each filling, followed by the number of runs.
///
/// Raises:
///     Misuse: The ring holds nothing, or an address does not fit into 64 bits.
#[guarded]
#[pyfunction]
pub(crate) fn through<'py>(
    below: &Bound<'py, PyAny>,
    places: (Bound<'py, PyAny>, u64),
    ring: u64,
    held: usize,
    block_bytes: u64,
) -> PyResult<(Arrays<'py>, Vec<usize>)> {
    let py = below.py();
    let below: Vec<u32> = integers("below", below)?;
    let mut places = Places::new(places)?;
    places.pieces.truncate(1);
    if held == 0 || places.pieces.is_empty() {
        return Err(
            Failure::misuse("pass a ring of a block or more, and one piece or more").into(),
        );
    }
    let ring = Places {
        pieces: vec![ring],
        stride: block_bytes,
    };
    let made = reckon(py, below.len(), || {
        places.check(&below, block_bytes)?;
        let used = u32::try_from(held.min(below.len())).unwrap_or(u32::MAX);
        ring.check(&[used], 0)?;
        let mut runs = Runs::with_room(below.len())?;
        let mut fillings = vec![0];
        for filling in below.chunks(held) {
            for (&slot, at) in filling.iter().zip(0..) {
                let (outside, inside) = (places.first(slot), ring.first(at));
                if at == 0 {
                    runs.push(outside, inside, block_bytes);
                } else {
                    runs.join(outside, inside, block_bytes);
                }
            }
            fillings.push(runs.sizes.len());
        }
        Outcome::Ok((runs, fillings))
    });
    let (runs, fillings) = made?;
    Ok((runs.arrays(py)?, fillings))
}

/// A number for each slot of a tier, 0 at first.
///
/// Any thread may call its verbs. Each slot is read and written on its own: a reader beside a
/// writer may see some slots marked and others not yet.
///
/// Args:
///     slots: Slots of the tier.
///
/// Raises:
///     Misuse: `slots` is out of range.
///     Unavailable: There is no memory for them.
#[pyclass(module = "blockyard._core", frozen)]
pub(crate) struct Marks(Vec<AtomicU64>);

#[guarded]
#[pymethods]
impl Marks {
    #[new]
    fn new(slots: u32) -> PyResult<Self> {
        let mut all = Vec::new();
        room(&mut all, slots as usize, "marks")?;
        all.extend((0..slots).map(|_| AtomicU64::new(0)));
        Ok(Self(all))
    }

    /// Marks slots with a number.
    ///
    /// Args:
    ///     slots: Slots, shape (slots,).
    ///     number: The number, >= 0.
    ///
    /// Raises:
    ///     Misuse: A slot does not exist; none is marked.
    fn touch(&self, slots: &Bound<'_, PyAny>, number: u64) -> PyResult<()> {
        for slot in self.there(slots)? {
            self.0[slot as usize].store(number, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the highest number of these slots; 0 for no slots.
    ///
    /// Args:
    ///     slots: Slots, shape (slots,).
    ///
    /// Raises:
    ///     Misuse: A slot does not exist.
    fn latest(&self, slots: &Bound<'_, PyAny>) -> PyResult<u64> {
        let slots = self.there(slots)?.into_iter();
        let numbers = slots.map(|slot| self.0[slot as usize].load(Ordering::Relaxed));
        Ok(numbers.max().unwrap_or(0))
    }
}

impl Marks {
    fn there(&self, slots: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let slots: Vec<u32> = integers("slots", slots)?;
        let most = self.0.len();
        match slots.iter().find(|&&slot| slot as usize >= most) {
            Some(slot) => Err(Failure::misuse(format!("slot {slot}: there are {most}")).into()),
            None => Ok(slots),
        }
    }
}
