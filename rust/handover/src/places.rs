//! Memory as a socket sees it: the pieces of a block, to send from and to receive into.

use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Deref;
use twox_hash::XxHash3_128;

/// Where the bytes of blocks are, or go. Nothing is copied: the system reads and writes these pieces itself.
pub trait Pieces: Send + Sync + Debug {
    /// Calls `act` once, with the pieces that block `at` has from its byte `from` on, of `most` bytes at most.
    fn source(&self, at: usize, from: usize, most: usize, act: Sending<'_>);

    /// The same for bytes that come, whose number `act` is told, too. There is no piece where these are another's
    /// to write: then they go nowhere.
    fn target(&self, at: usize, from: usize, most: usize, act: Receiving<'_>);
}

/// What is done with pieces that are there.
pub type Sending<'act> = &'act mut dyn FnMut(&[IoSlice<'_>]);

/// What is done with pieces that are to be filled.
pub type Receiving<'act> = &'act mut dyn FnMut(&mut [IoSliceMut<'_>], usize);

/// Sums the leading bytes of pieces.
pub(crate) fn add(sum: &mut XxHash3_128, pieces: &[impl Deref<Target = [u8]>], mut bytes: usize) {
    for piece in pieces {
        let part = &piece[..bytes.min(piece.len())];
        sum.write(part);
        bytes -= part.len();
    }
}
