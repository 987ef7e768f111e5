//! The tokens that came with a list of events, by the numbers of their blocks.

use crate::events::{NO_TOKENS, Origin, Told};

/// The staged tokens of a list, found in ascending order for the most part.
pub(super) struct Staged<'a> {
    told: &'a Told,
    stage: usize,
    row: usize,
    /// The first block of the row, and its first within the stage.
    first: u32,
    offset: u32,
}

impl<'a> Staged<'a> {
    pub(super) fn new(told: &'a Told) -> Self {
        Self {
            told,
            stage: 0,
            row: 0,
            first: 0,
            offset: 0,
        }
    }

    /// A block's tokens, its origin, and its place in its sequence.
    pub(super) fn block(
        &mut self,
        block: u32,
        size: usize,
    ) -> Option<(&'a [u32], &'a Origin, u32)> {
        if block == NO_TOKENS {
            return None;
        }
        if block < self.first {
            *self = Self::new(self.told);
        }
        let told = self.told;
        loop {
            let stage = told.stages.get(self.stage)?;
            let Some(row) = stage.rows.get(self.row) else {
                (self.stage, self.row, self.offset) = (self.stage + 1, 0, 0);
                continue;
            };
            let within = block - self.first;
            if within < row.blocks {
                let start = (self.offset + within) as usize * size;
                let tokens = stage.tokens.get(start..start + size)?;
                return Some((tokens, &row.origin, row.first + within));
            }
            self.first += row.blocks;
            self.offset += row.blocks;
            self.row += 1;
        }
    }
}
