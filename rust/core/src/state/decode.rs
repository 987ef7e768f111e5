//! A decode step: seal, grow and the new cells of the tables of one batch, checked once.

use super::block_table::{Cells, Loading, check_table, unshown};
use super::record::Running;
use super::{Sealing, State};
use crate::base::{Ix, LeaseId, Result, memory};

/// What a decode step does besides sealing.
#[derive(Clone, Copy, Debug)]
pub struct Growth<F> {
    /// Token positions to add to each row.
    pub more: F,
    /// The cells in each row of the tables; `None` where no cells are wanted.
    pub width: Option<usize>,
    /// Whether rows may still load.
    pub loading: Loading,
}

/// A new cell of a block table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewCell {
    /// The row of the batch.
    pub row: u32,
    /// The block of the sequence.
    pub column: u32,
    /// Its slot on the device.
    pub slot: u32,
}

/// What a decode step has done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stepped {
    /// Blocks newly sealed.
    pub sealed: u64,
    /// Rows that found no room to grow.
    pub unserved: Vec<u32>,
    /// The new cells of the tables, row by row.
    pub cells: Vec<NewCell>,
}

impl State {
    /// Seals, grows and tells the new cells of the tables, as [`Self::seal`], [`Self::grow`] and
    /// [`Self::block_tables`] do one after the other; but all is checked before anything changes.
    ///
    /// At the end it makes spare room, as `grow` does. A row that finds no room is sealed, keeps its length, and shows the new cells that it has.
    ///
    /// # Errors
    /// What the first of the three that refuses would say. A table is too wide if it would be with all
    /// its growth, whether there is room for that or not.
    pub fn decode_step(
        &mut self,
        leases: &[LeaseId],
        seals: &[Sealing<'_>],
        growth: &Growth<impl Fn(usize) -> u64>,
    ) -> Result<Stepped> {
        let mut done = Stepped::default();
        let (mut full, mut hidden, mut cells) = (0, Ok(()), 0);
        for (row, &id) in leases.iter().enumerate() {
            let record = self.check_row(id)?;
            full += usize::from(self.is_full(record));
            if let Some(width) = growth.width {
                let blocks = self.blocks_after(record, (growth.more)(row));
                if let Err(error) = check_table(row, id, record, growth.loading, width, blocks)
                    && hidden.is_ok()
                {
                    hidden = Err(error);
                }
                if blocks > record.shown.into() {
                    cells += blocks - u64::from(record.shown);
                }
            }
        }
        for row in seals {
            self.check_computed(row)?;
        }
        hidden?;
        memory::reserve(&mut done.cells, cells as usize, "the cells of block tables")?;
        done.sealed = self.seal_rows(seals);
        self.warm_growth(full);
        for (row, id) in (0_u32..).zip(leases) {
            if !self.grow_one(id.at(), (growth.more)(row as usize)) {
                done.unserved.push(row);
            }
            let record = &mut self.leases[id.at()];
            if growth.width.is_some() && record.shown < record.blocks() {
                let (first, slots) = unshown(record, Cells::Changed);
                let cells = (first as u32..).zip(slots);
                done.cells.extend(cells.map(|(column, slot)| NewCell {
                    row,
                    column,
                    slot: slot.get(),
                }));
                record.shown = record.blocks();
            }
        }
        self.counters.unserved += done.unserved.len() as u64;
        self.make_spare();
        Ok(done)
    }

    /// The blocks of a row when it has grown, if it finds room.
    #[inline]
    fn blocks_after(&self, record: &Running, more: u64) -> u64 {
        let (tokens, blocks) = (record.tokens.saturating_add(more), record.blocks().into());
        if tokens <= blocks * u64::from(self.config.block_size) {
            return blocks;
        }
        self.blocks_of(tokens)
    }

    /// About how many cells of their tables leases have not shown.
    pub fn new_cells(&self, leases: &[LeaseId]) -> usize {
        let live = leases.iter().filter(|id| self.leases.occupied(id.at()));
        live.map(|id| {
            let record = &self.leases[id.at()];
            record.blocks().saturating_sub(record.shown) as usize
        })
        .sum()
    }
}
