//! Tokens that do not come with their blocks: a prompt has found the blocks, or an engine has made
//! their keys.

use super::{Above, Origin, Spoken, number};
use crate::base::Key;
use std::collections::{HashMap, VecDeque};

/// Tokens of blocks that are emitted already, or will be, under keys that do not come with them.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) keys: Vec<Key>,
    /// The key before the first; `None` at the root.
    pub(crate) above: Option<Key>,
    pub(crate) tokens: Vec<u32>,
    /// The first block's place in its sequence.
    pub(crate) first: u32,
    pub(crate) origin: Origin,
    /// The numbers that they are emitted by, with that of the block before them; none for their keys'.
    pub(crate) numbers: Vec<u64>,
    pub(crate) number_above: u64,
    /// Whether they may come before their blocks do.
    pub(crate) early: bool,
}

impl Late {
    /// The number by which a block is emitted.
    pub(crate) fn number(&self, at: usize) -> u64 {
        let own = self.numbers.get(at).copied();
        own.unwrap_or_else(|| number(&self.keys[at]))
    }

    /// What stands before a block.
    pub(crate) fn above(&self, at: usize) -> Above {
        match (at.checked_sub(1), &self.above) {
            (Some(before), _) => Above::Block(self.number(before)),
            (None, None) => Above::Root,
            (None, Some(key)) if self.numbers.is_empty() => Above::Block(number(key)),
            (None, Some(_)) => Above::Block(self.number_above),
        }
    }

    /// What a block of this size stands for.
    pub(crate) fn spoken(&self, at: usize, size: usize) -> Spoken<'_> {
        Spoken {
            tokens: &self.tokens[at * size..(at + 1) * size],
            origin: &self.origin,
            block: self.first + at as u32,
        }
    }
}

/// A block that may come.
#[derive(Debug)]
struct Coming {
    number: u64,
    above: Above,
    tokens: Box<[u32]>,
    origin: Origin,
    block: u32,
}

/// Blocks that may come, by the numbers of their keys: an engine that makes its keys itself says early
/// what they stand for. The oldest go first where there are too many.
#[derive(Debug, Default)]
pub(super) struct EarlyTokens {
    blocks: HashMap<u64, Coming>,
    order: VecDeque<u64>,
    most: usize,
}

impl EarlyTokens {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    pub(super) fn get(&self, key: u64) -> Option<(u64, Above, Spoken<'_>)> {
        let coming = self.blocks.get(&key)?;
        let spoken = Spoken {
            tokens: &coming.tokens,
            origin: &coming.origin,
            block: coming.block,
        };
        Some((coming.number, coming.above, spoken))
    }

    pub(super) fn insert(&mut self, key: u64, number: u64, above: Above, spoken: Spoken<'_>) {
        let coming = Coming {
            number,
            above,
            tokens: spoken.tokens.into(),
            origin: spoken.origin.clone(),
            block: spoken.block,
        };
        if self.blocks.insert(key, coming).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.blocks.remove(&oldest);
        }
    }
}
