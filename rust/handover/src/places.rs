//! Memory as a socket sees it: the pieces of a block, to send from and to receive into.

use blockyard_disk::Lent;
use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Deref;
use twox_hash::XxHash3_128;

/// Bytes of a block that are moved at once, at most: they are still in the cache when they are summed.
pub(crate) const CHUNK: usize = 512 << 10;

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

/// Copies a block of staging into the memory of a flight, a piece at a time while that is lent.
///
/// # Returns
/// The sum of its bytes; `None` where the memory was given up meanwhile.
pub(crate) fn copy_block(
    staging: &dyn Pieces,
    at: usize,
    memory: &Lent<dyn Pieces>,
    row: usize,
    bytes: usize,
) -> Option<u128> {
    let (mut sum, mut done) = (XxHash3_128::new(), 0);
    while done < bytes {
        memory.touch(|memory| {
            memory.target(row, done, CHUNK.min(bytes - done), &mut |into, room| {
                staging.source(at, done, room, &mut |from| {
                    let there = from.iter().map(|piece| piece.len()).sum();
                    if into.is_empty() {
                        add(&mut sum, from, there);
                        done += there;
                    } else {
                        let copied = copy(from, into);
                        // Of what is in the flight's memory, whatever becomes of the staging.
                        add(&mut sum, into, copied);
                        done += copied;
                    }
                });
            });
        })?;
    }
    Some(sum.finish_128())
}

/// Copies bytes from piece to piece, as far as both go; returns how many.
fn copy(from: &[IoSlice<'_>], into: &mut [IoSliceMut<'_>]) -> usize {
    let mut from = from.iter().map(|piece| &**piece);
    let (mut left, mut copied) = (&[][..], 0);
    for piece in into {
        let mut room = &mut **piece;
        while !room.is_empty() {
            if left.is_empty() {
                let Some(next) = from.next() else {
                    return copied;
                };
                left = next;
            }
            let count = left.len().min(room.len());
            let (now, later) = room.split_at_mut(count);
            now.copy_from_slice(&left[..count]);
            (room, left) = (later, &left[count..]);
            copied += count;
        }
    }
    copied
}
