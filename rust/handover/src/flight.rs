//! Blocks of an offer that a flight wants, and how far it is.

use crate::offers::OfferId;
use crate::places::Pieces;
use blockyard_disk::{Key, Lent};
use blockyard_store::Short;
use std::sync::Arc;

/// Blocks of an offer, as its reader knows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// The process that has offered it.
    pub boot: u32,
    /// The first of its blocks that is known.
    pub first: usize,
    /// The key of each from there on.
    pub keys: Vec<Key>,
    /// Where it is, there.
    pub slots: Vec<u32>,
    /// The generation of that slot.
    pub generations: Vec<u64>,
}

/// A block that a flight wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) boot: u32,
    pub(crate) id: OfferId,
    pub(crate) reader: u64,
    pub(crate) at: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u64,
}

/// A flight that was taken.
#[derive(Debug)]
pub(crate) struct Flying {
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) memory: Lent<dyn Pieces>,
}

/// The same, and how far it is.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) flying: Arc<Flying>,
    /// The next block that is asked for, and the next that comes.
    pub(crate) next: usize,
    pub(crate) come: usize,
    pub(crate) good: usize,
    pub(crate) short: Option<Short>,
    /// The sums of the leading blocks, where another carrier brings the bytes.
    pub(crate) sums: Vec<u128>,
}

/// What is to be landed now of blocks whose bytes another carrier has brought.
#[derive(Debug)]
pub(crate) enum Landing {
    /// Nothing any more: their flight has ended, or ends before them.
    Over,
    /// Not before their sums, and the blocks before them, are there.
    Later,
    Now(Arc<Flying>, Vec<u128>),
}
