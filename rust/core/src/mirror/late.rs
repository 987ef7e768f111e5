//! Tokens that do not come with their blocks: a prompt has found the blocks, or an engine has made
//! their keys.

use super::{Mirror, PARENT, ROOT};
use crate::base::Key;
use crate::events::{Batch, Origin, number};
use std::collections::{HashMap, VecDeque};

/// Tokens of blocks that are told already, or will be, under keys that do not come with them.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) keys: Vec<Key>,
    /// The key before the first; `None` at the root.
    pub(crate) above: Option<Key>,
    pub(crate) tokens: Vec<u32>,
    /// The first block's place in its sequence.
    pub(crate) first: u32,
    pub(crate) origin: Origin,
    /// The numbers that they are told by, with that of the block before them; none for their keys'.
    pub(crate) numbers: Vec<u64>,
    pub(crate) number_above: u64,
    /// Whether they may come before their blocks do.
    pub(crate) early: bool,
}

impl Mirror {
    /// The tokens of blocks that came, or will come, without them.
    pub(super) fn describe(&mut self, late: &Late, batch: &mut Batch) {
        let size = self.block_size as usize;
        let mut above = late.above.as_ref().map(number);
        if !late.numbers.is_empty() && above.is_some() {
            above = Some(late.number_above);
        }
        let blocks = late.keys.iter().zip(late.tokens.chunks_exact(size));
        for (at, (key, tokens)) in blocks.enumerate() {
            let key = number(key);
            let coming = Coming {
                tokens: tokens.into(),
                number: late.numbers.get(at).copied().unwrap_or(key),
                parent: above,
                origin: late.origin.clone(),
                block: late.first + at as u32,
            };
            above = Some(coming.number);
            if let Some(&place) = self.lacking.get(&key) {
                self.complete(place, &coming);
                self.store_all(place, batch);
            }
            if late.early {
                self.foretold.insert(key, coming);
            }
        }
    }

    /// The same where they have come before it.
    pub(super) fn complete_early(&mut self, at: u32, key: u64) {
        if self.lacking.get(&key) != Some(&at) || self.foretold.get(key).is_none() {
            return;
        }
        let foretold = std::mem::replace(&mut self.foretold, Foretold::new(0));
        if let Some(coming) = foretold.get(key) {
            self.complete(at, coming);
        }
        self.foretold = foretold;
    }

    /// A block's tokens have come, and what stands before it.
    fn complete(&mut self, at: u32, coming: &Coming) {
        let place = &mut self.places[at as usize];
        place.number = coming.number;
        place.parent = coming.parent.unwrap_or(0);
        let flag = coming.parent.map_or(ROOT, |_| PARENT);
        place.flags = place.flags & !(ROOT | PARENT) | flag;
        self.set_tokens(at, &coming.tokens, &coming.origin, coming.block);
    }
}

/// A block that may come.
#[derive(Debug)]
struct Coming {
    tokens: Box<[u32]>,
    number: u64,
    /// The number of the one before it; `None` at the root.
    parent: Option<u64>,
    origin: Origin,
    /// Its place in its sequence.
    block: u32,
}

/// Blocks that may come, by their keys: an engine that makes its keys itself says early what they stand
/// for. The oldest go first where there are too many.
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

    fn get(&self, key: u64) -> Option<&Coming> {
        self.blocks.get(&key)
    }

    fn insert(&mut self, key: u64, block: Coming) {
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
