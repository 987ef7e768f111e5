//! Copies between memory and stores: what is asked for, and how it has ended.

use crate::health::Way;
use blockyard_disk::{Key, Lent, Memory, Owner};
use std::sync::Arc;

/// A copy between memory and stores.
#[derive(Clone, Debug)]
pub enum Copy {
    /// Blocks to put.
    Down(Vec<Owner>),
    /// Keys of blocks to get.
    Up(Vec<Key>),
}

impl Copy {
    pub(crate) fn way(&self) -> Way {
        match self {
            Self::Down(_) => Way::Down,
            Self::Up(_) => Way::Up,
        }
    }

    pub(crate) fn blocks(&self) -> usize {
        match self {
            Self::Down(blocks) => blocks.len(),
            Self::Up(keys) => keys.len(),
        }
    }
}

/// Why a copy has ended before its last block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Short {
    /// Nobody has answered, or all who could rest.
    Failed,
    /// What came is something else.
    Corrupt,
    /// Nobody has it, or not any more.
    Missing,
    /// It was given up.
    GivenUp,
}

/// How a copy has ended: nothing of it is read or written any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landed {
    /// The number that was given for it.
    pub number: u64,
    /// Leading blocks that a store has acknowledged, or that are whole in memory and what was asked for; keys that
    /// are deleted.
    pub good: usize,
    /// None where all are.
    pub short: Option<Short>,
}

/// A copy that was taken.
#[derive(Debug)]
pub(crate) struct Flying {
    pub(crate) copy: Copy,
    pub(crate) memory: Lent,
}

impl Flying {
    pub(crate) fn new(copy: Copy, memory: Arc<dyn Memory>) -> Self {
        let memory = Lent::new(memory);
        Self { copy, memory }
    }
}
