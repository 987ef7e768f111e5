//! Frames: what the two sides say to each other. A frame is a head of 8 bytes, and as many bytes as that says; the
//! bytes of blocks stand between frames, as many as the frame before them says. All numbers are little-endian.
//!
//! ```text
//!   0  length  4     4  version  1     5  kind  1     6  zeros  2     8  the rest
//! ```
//! A frame of an unknown kind is passed over; one that is too long, or is not what its kind is, ends the connection.

use crate::offers::{Gone, OfferId};
use blockyard_disk::Key;

/// The version of all this.
pub(crate) const VERSION: u8 = 1;
/// Bytes of a head.
pub(crate) const HEAD: usize = 8;
/// Bytes that may follow a head.
pub(crate) const MOST: usize = 1 << 20;
/// The same, until the other side has proved that it knows the secret.
pub(crate) const MOST_UNPROVEN: usize = 4096;
/// Blocks that one frame tells at most, so that it stays below [`MOST`].
pub(crate) const BLOCKS_PER_FRAME: usize = 8192;
/// Bytes of a frame of kind `Block`, and of one of kind `Sum`.
pub(crate) const BLOCK: usize = HEAD + 24;
pub(crate) const SUM: usize = HEAD + 24;

/// Which side says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Prefill,
    Decode,
}

/// A block of an offer, as a reader is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) key: Key,
    pub(crate) parent: Key,
    pub(crate) slot: u32,
    pub(crate) generation: u64,
}

/// What is said. An answer has the number `ask` of its question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Frame {
    /// Of both: who speaks, and fresh random bytes; `secret` is whether it has one, and wants a proof.
    Nonce {
        role: Role,
        secret: bool,
        boot: u32,
        nonce: [u8; 32],
    },
    /// Of both: that the secret is known.
    Proof([u8; 32]),
    /// Of both: what the bytes depend on.
    Hello {
        name: String,
        rank: u32,
        bytes: u32,
        fields: Vec<(String, String)>,
    },
    /// Of the prefill side: which field differs, and what it is there.
    Differs { field: String, here: String },
    /// Of the decode side: a reader wants blocks from the first one on.
    Take {
        ask: u32,
        id: OfferId,
        boot: u32,
        reader: u64,
        first: u32,
    },
    /// The answer, in several frames if need be: `more` blocks follow in others.
    Blocks {
        ask: u32,
        more: u32,
        lease_ms: u32,
        blocks: Vec<Told>,
    },
    /// Of the decode side: it wants bytes; or `sums` alone, as another way brings it the bytes.
    Read {
        ask: u32,
        id: OfferId,
        reader: u64,
        first: u32,
        count: u32,
        sums: bool,
    },
    /// The answer, for each block: as many bytes as `length` says follow, then a `Sum`.
    Block {
        ask: u32,
        at: u32,
        slot: u32,
        length: u32,
        generation: u64,
    },
    /// The sum of the bytes, and the generation of the slot after they were read.
    Sum { sum: u128, generation: u64 },
    /// In place of blocks that are not to be had; `ask` is 0 where nobody has asked.
    Gone { ask: u32, id: OfferId, why: Gone },
    /// Of the decode side.
    Renew { id: OfferId, reader: u64 },
    /// Of the decode side.
    Done { id: OfferId, reader: u64 },
    /// Of the decode side.
    Refuse {
        id: OfferId,
        reader: u64,
        why: String,
    },
    /// Of the decode side: where is the memory, for who reads that by himself?
    Where,
    /// The answer, in a carrier's own words; empty where there is no such carrier.
    Memory(Vec<u8>),
}

/// What is no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Wrong {
    #[error(
        "it speaks version {0} of the protocol, and this side {VERSION}: run one version on both"
    )]
    Version(u8),
    #[error("it has sent a frame of {length} bytes, and {most} are allowed here")]
    Long { length: u32, most: usize },
    #[error("it has sent a frame of kind {0} that is none")]
    Content(u8),
}

/// What stands in a head: how many bytes follow, and the kind.
pub(crate) fn head(bytes: [u8; HEAD], most: usize) -> Result<(usize, u8), Wrong> {
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    if bytes[4] != VERSION {
        return Err(Wrong::Version(bytes[4]));
    }
    if length as usize > most {
        return Err(Wrong::Long { length, most });
    }
    Ok((length as usize, bytes[5]))
}
