//! The tokens of blocks that are told, by number: as they were staged, in the order in which their
//! blocks are named. What a name that stands aside goes on to need is kept by itself.

use super::Origin;
use crate::base::LeaseId;
use std::collections::VecDeque;

/// Where a block's tokens do not come with it.
pub(crate) const NO_TOKENS: u64 = u64::MAX;
/// The numbers of tokens that are kept by themselves have this bit.
const KEPT: u64 = 1 << 63;

/// A block's tokens, its origin, and its place in its sequence.
pub(crate) type Spoken<'a> = (&'a [u32], &'a Origin, u32);

/// The tokens of blocks that a seal may publish.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    /// Of whole blocks, one behind the other.
    pub(crate) tokens: Vec<u32>,
    /// Blocks, one row behind the other.
    pub(crate) rows: Vec<StagedRow>,
}

/// Blocks of one sequence in a [`Stage`].
#[derive(Debug)]
pub(crate) struct StagedRow {
    pub(crate) lease: LeaseId,
    pub(crate) blocks: u32,
    /// The first one's place in its sequence.
    pub(crate) first: u32,
    pub(crate) origin: Origin,
}

impl Stage {
    pub(crate) fn blocks(&self) -> u32 {
        self.rows.iter().map(|row| row.blocks).sum()
    }

    /// Cuts off so many leading blocks of each row as `known` says: of those no seal tells.
    pub(crate) fn cut(&mut self, size: usize, known: impl Fn(&StagedRow) -> u32) {
        let (mut read, mut write) = (0, 0);
        for row in &mut self.rows {
            let cut = known(row).min(row.blocks);
            let end = read + row.blocks as usize * size;
            let start = read + cut as usize * size;
            self.tokens.copy_within(start..end, write);
            (row.first, row.blocks) = (row.first + cut, row.blocks - cut);
            (read, write) = (end, write + end - start);
        }
        if write < read {
            self.tokens.truncate(write);
            self.tokens.shrink_to_fit();
            self.rows.retain(|row| row.blocks > 0);
        }
    }
}

/// The tokens of one block whose stage is freed.
#[derive(Debug)]
pub(crate) struct Kept {
    tokens: Box<[u32]>,
    origin: Origin,
    block: u32,
}

/// All tokens that came with a list of events.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    stages: VecDeque<Stage>,
    /// The number of the first block of the first stage, and of the block that comes next.
    base: u64,
    staged: u64,
    /// The number behind the last that a name has.
    named: u64,
    kept: VecDeque<Kept>,
    kept_base: u64,
}

impl Tokens {
    /// Frees all of them.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The number of the block that is staged next.
    pub(super) fn next(&self) -> u64 {
        self.staged
    }

    /// A name has this number.
    pub(super) fn named(&mut self, from: u64) {
        if from < KEPT {
            self.named = self.named.max(from + 1);
        }
    }

    /// Frees the last stage where no name has come to it: none will.
    pub(super) fn forget_unnamed(&mut self) {
        if let Some(last) = self.stages.back()
            && self.staged - u64::from(last.blocks()) >= self.named
        {
            self.staged -= u64::from(last.blocks());
            self.stages.pop_back();
        }
    }

    /// Takes a stage, unless there are more than so many blocks then; one alone is always taken.
    pub(super) fn stage(&mut self, stage: Stage, most: u64) -> bool {
        let blocks = u64::from(stage.blocks());
        if self.staged > self.base && self.staged - self.base + blocks > most {
            return false;
        }
        self.staged += blocks;
        self.stages.push_back(stage);
        true
    }

    /// Takes the tokens of the oldest name that has some, and frees all before them.
    pub(super) fn take(&mut self, from: u64, size: usize) -> Option<Kept> {
        if from == NO_TOKENS {
            return None;
        }
        if from & KEPT != 0 {
            let before = (from & !KEPT).checked_sub(self.kept_base)? as usize;
            self.kept_base += before as u64 + 1;
            return self.kept.drain(..=before).next_back();
        }
        while let Some(stage) = self.stages.front()
            && self.base + u64::from(stage.blocks()) <= from
        {
            self.base += u64::from(stage.blocks());
            self.stages.pop_front();
        }
        let (tokens, origin, block) = Reader::new(self).block(from, size)?;
        Some(Kept {
            tokens: tokens.into(),
            origin: origin.clone(),
            block,
        })
    }

    /// Keeps a block's tokens by themselves; returns their number.
    pub(super) fn keep(&mut self, kept: Kept) -> u64 {
        self.kept.push_back(kept);
        KEPT | (self.kept_base + self.kept.len() as u64 - 1)
    }
}

/// Finds tokens by ascending numbers, for the most part.
pub(crate) struct Reader<'a> {
    tokens: &'a Tokens,
    stage: usize,
    row: usize,
    /// The number of the first block of the row, and which of the stage's it is.
    first: u64,
    offset: u32,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(tokens: &'a Tokens) -> Self {
        Self {
            tokens,
            stage: 0,
            row: 0,
            first: tokens.base,
            offset: 0,
        }
    }

    /// What a number stands for; `None`: nothing, or it is gone.
    pub(crate) fn block(&mut self, from: u64, size: usize) -> Option<Spoken<'a>> {
        let tokens = self.tokens;
        if from == NO_TOKENS {
            return None;
        }
        if from & KEPT != 0 {
            let at = (from & !KEPT).checked_sub(tokens.kept_base)?;
            let kept = tokens.kept.get(at as usize)?;
            return Some((&kept.tokens, &kept.origin, kept.block));
        }
        if from < self.first {
            *self = Self::new(tokens);
        }
        loop {
            let stage = tokens.stages.get(self.stage)?;
            let Some(row) = stage.rows.get(self.row) else {
                (self.stage, self.row, self.offset) = (self.stage + 1, 0, 0);
                continue;
            };
            let within = from.checked_sub(self.first)?;
            if within < u64::from(row.blocks) {
                let start = (u64::from(self.offset) + within) as usize * size;
                let spoken = stage.tokens.get(start..start + size)?;
                return Some((spoken, &row.origin, row.first + within as u32));
            }
            self.first += u64::from(row.blocks);
            self.offset += row.blocks;
            self.row += 1;
        }
    }
}
