//! Tokens that were given before their blocks came: an engine that makes its keys itself says early
//! what they stand for. The oldest go first where there are too many.

use crate::events::Origin;
use std::collections::{HashMap, VecDeque};

/// A block that may come.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) tokens: Box<[u32]>,
    pub(super) number: u64,
    /// The number of the one before it; `None` at the root.
    pub(super) parent: Option<u64>,
    pub(super) origin: Origin,
    /// Its place in its sequence.
    pub(super) block: u32,
}

/// Blocks that may come, by their keys.
#[derive(Debug)]
pub(super) struct Foretold {
    blocks: HashMap<u64, Coming>,
    order: VecDeque<u64>,
    most: usize,
}

impl Foretold {
    pub(super) fn new(most: usize) -> Self {
        Self {
            blocks: HashMap::new(),
            order: VecDeque::new(),
            most,
        }
    }

    pub(super) fn get(&self, key: u64) -> Option<&Coming> {
        self.blocks.get(&key)
    }

    pub(super) fn insert(&mut self, key: u64, block: Coming) {
        if self.blocks.insert(key, block).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.blocks.remove(&oldest);
        }
    }
}
