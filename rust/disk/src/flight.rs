//! Copies between memory and the disk: what is asked for, and how it has ended.

use crate::blocks::{Asked, Doubt};
use crate::record::Owner;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

/// Where the bytes of a copy are, or go, beside the disk.
pub trait Memory: Send + Sync + Debug {
    /// Fills a staged block with the bytes of block `at` of the copy.
    fn gather(&self, at: usize, staged: &mut [u8]);

    /// Puts a staged block where block `at` of the copy goes.
    fn scatter(&self, at: usize, staged: &[u8]);
}

/// A block that is to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// The slot that it goes to.
    pub slot: u32,
    /// Whose it is.
    pub owner: Owner,
    /// When it was asked for: above all stamps that are below the floor, or were given before.
    pub stamp: u64,
}

/// A copy between memory and the disk.
#[derive(Clone, Debug)]
pub enum Copy {
    /// Blocks to write.
    Down(Vec<Written>),
    /// Blocks to read.
    Up(Vec<Asked>),
}

/// Which way a copy goes. Each has threads and a breaker of its own, so that reads go on where writes hang.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// To the disk.
    Down,
    /// From it.
    Up,
}

impl Copy {
    pub(crate) fn blocks(&self) -> usize {
        match self {
            Self::Down(blocks) => blocks.len(),
            Self::Up(blocks) => blocks.len(),
        }
    }

    pub(crate) fn direction(&self) -> Direction {
        match self {
            Self::Down(_) => Direction::Down,
            Self::Up(_) => Direction::Up,
        }
    }
}

/// Why a copy has ended before its last block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Short {
    /// The system has failed, or the lane rests.
    Failed,
    /// The disk has something else there.
    Doubt(Doubt),
    /// It was given up.
    GivenUp,
}

/// How a copy has ended: nothing of it is read or written any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landed {
    /// The number that was given for it.
    pub number: u64,
    /// Leading blocks that are whole, and durable where they went down.
    pub good: usize,
    /// None where all are.
    pub short: Option<Short>,
}

/// Memory that a copy may read and write until it was given up.
#[derive(Debug)]
pub struct Lent<M: ?Sized = dyn Memory>(RwLock<Option<Arc<M>>>);

impl<M: ?Sized> Lent<M> {
    /// Lends memory.
    pub fn new(memory: Arc<M>) -> Self {
        Self(RwLock::new(Some(memory)))
    }

    /// Does something with the memory; `None` where it was given up. Threads do so at once with different
    /// blocks.
    pub fn touch<T>(&self, act: impl FnOnce(&M) -> T) -> Option<T> {
        let memory = self.0.read().unwrap_or_else(PoisonError::into_inner);
        memory.as_deref().map(act)
    }

    /// Waits for the threads that touch the memory; none does so afterwards. INV-32
    pub fn leave(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A copy that was taken.
#[derive(Debug)]
pub(crate) struct Flying {
    pub(crate) copy: Copy,
    /// The number of its plan, for the records.
    pub(crate) plan: u32,
    memory: Lent,
}

impl Flying {
    pub(crate) fn new(copy: Copy, plan: u32, memory: Arc<dyn Memory>) -> Self {
        Self {
            copy,
            plan,
            memory: Lent::new(memory),
        }
    }

    /// Does something with its memory, unless it was given up.
    pub(crate) fn touch(&self, act: impl FnOnce(&(dyn Memory + 'static))) -> Result<(), Short> {
        self.memory.touch(act).ok_or(Short::GivenUp)
    }

    /// Waits for the threads that touch its memory; none does so afterwards.
    pub(crate) fn leave(&self) {
        self.memory.leave();
    }
}
