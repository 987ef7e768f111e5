//! Copies between memory and the disk: what is asked for, how far it is, and how it has ended.

use crate::blocks::{Asked, Doubt};
use crate::record::{Owner, Record};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the bytes of a copy are, or go, beside the disk.
pub trait Memory: Send + Sync + Debug {
    /// Fills a staged block with the bytes of block `at` of the copy.
    fn gather(&self, at: usize, staged: &mut [u8]);

    /// Puts a staged block where block `at` of the copy goes.
    fn scatter(&self, at: usize, staged: &[u8]);
}

/// A copy between memory and the disk.
#[derive(Clone, Debug)]
pub enum Copy {
    /// Blocks to write: their slots, and whose they are.
    Down(Vec<(u32, Owner)>),
    /// Blocks to read.
    Up(Vec<Asked>),
}

impl Copy {
    pub(crate) fn blocks(&self) -> usize {
        match self {
            Self::Down(blocks) => blocks.len(),
            Self::Up(blocks) => blocks.len(),
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

/// A copy that was taken.
#[derive(Debug)]
pub(crate) struct Flying {
    pub(crate) number: u64,
    /// Of its first block, where it goes down.
    pub(crate) stamp: u64,
    pub(crate) copy: Copy,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) progress: Mutex<Progress>,
}

#[derive(Debug)]
pub(crate) struct Progress {
    /// The next block that a thread takes.
    pub(crate) next: usize,
    /// Blocks that threads work on.
    pub(crate) busy: usize,
    /// Blocks before the first that has failed.
    pub(crate) good: usize,
    pub(crate) short: Option<Short>,
    pub(crate) records: Vec<Record>,
}

impl Flying {
    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    pub(crate) fn cut(&mut self, at: usize, short: Short) {
        if at < self.good {
            (self.good, self.short) = (at, Some(short));
        }
    }
}
