//! What an eviction order is: a class for a block, and a value for the front of a class. It touches no
//! link and no mark; those are in `queues.rs`.

use super::life::{Asks, Life};
use crate::base::Result;
use std::fmt::Debug;
use std::hash::Hash;

/// An order over the idle blocks of a tier. It reads no clock but the one that it is given, which
/// ticks once for each block that a request has used, and no number with a fraction: the same calls
/// give the same victims on every rank.
pub(crate) trait Order: Debug + Hash + Sized {
    /// Lists that it wants.
    const CLASSES: usize;
    /// What it asks of a block.
    const ASKS: Asks = Asks::Nothing;

    /// An order for a tier that holds so many blocks together with those above it.
    fn new(room: usize) -> Result<Self>;

    /// The tier, and those above it, hold so many blocks from now on. It stays as it is where there is
    /// no memory for that.
    fn resize(&mut self, _room: usize) {}

    /// A request that ends has used the block of this key, of which so much is known; once for each
    /// block of its path, the deepest first, before they become idle.
    fn used(&mut self, _key: u64, _life: Life, _now: u32) {}

    /// The list at whose back a block stands that becomes idle now.
    fn class(&self, life: Life) -> u8;

    /// What the front of a list is worth, which became idle `age` ticks ago. The smallest goes first;
    /// it never rises with the age.
    fn value(&self, class: u8, age: u32) -> u32;

    /// A block of this class was evicted.
    fn evicted(&mut self, _class: u8) {}
}
