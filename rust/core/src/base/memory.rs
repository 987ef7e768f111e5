//! Memory that may not be there. Arrays that grow with a number from outside are asked for here, so
//! that a refusal is an answer. Elsewhere in Rust a refusal ends the process.

use super::error::{Error, Result};

/// Room for `total` elements in all.
pub(crate) fn reserve<T>(vec: &mut Vec<T>, total: usize, what: &'static str) -> Result<()> {
    let more = total.saturating_sub(vec.len());
    let had = vec.try_reserve_exact(more);
    had.map_err(|_| lacking::<T>(what, total))
}

/// So many elements, each this one.
pub(crate) fn filled<T: Clone>(count: usize, with: T, what: &'static str) -> Result<Vec<T>> {
    let mut vec = Vec::new();
    reserve(&mut vec, count, what)?;
    vec.resize(count, with);
    Ok(vec)
}

/// Whether the system grants that many bytes at once, and they are no more than `there`, if that is
/// known, as the system grants memory that it does not have. Nothing is written: if several arrays were
/// each granted without memory for all, the process would end when the last of them is written to.
pub(crate) fn ask(bytes: u64, there: Option<u64>, what: &'static str) -> Result<()> {
    let there = there.filter(|&there| there < bytes);
    let mut all: Vec<u8> = Vec::new();
    let had = usize::try_from(bytes).is_ok_and(|bytes| all.try_reserve_exact(bytes).is_ok());
    // The array is not used, and the compiler might drop the request without this.
    std::hint::black_box(&mut all);
    if had && there.is_none() {
        return Ok(());
    }
    Err(Error::Memory { what, bytes, there })
}

/// The error for a vector that could not grow to `total` elements.
pub(crate) fn lacking<T>(what: &'static str, total: usize) -> Error {
    Error::Memory {
        what,
        bytes: (total as u64).saturating_mul(size_of::<T>() as u64),
        there: None,
    }
}
