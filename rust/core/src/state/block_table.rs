//! Block tables and slot mappings, written into the engine's own arrays.

use super::State;
use super::record::Running;
use crate::base::{Error, Ix, LeaseId, Result, SlotIx};

/// Which cells of a block table are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cells {
    /// All, padded with the null slot.
    #[default]
    All,
    /// Those that are new since the last call for the lease. The row must still hold what that
    /// call wrote there.
    Changed,
}

/// Whether slots are told whose blocks are still on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Loading {
    /// No: a batch with a lease that loads is refused.
    #[default]
    Refuse,
    /// Yes: the engine's stream waits for the copies before it touches the slots.
    Joined,
}

/// Cells of a block table that follow each other in a row.
#[derive(Clone, Copy, Debug)]
pub struct TableCells<'a> {
    /// The row.
    pub row: usize,
    /// The column of the first.
    pub first: usize,
    slots: &'a [SlotIx],
}

impl TableCells<'_> {
    /// The device slots that the cells show.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = u32> {
        self.slots.iter().map(|slot| slot.get())
    }

    /// Writes the slots into their cells of a row, which has as many at least.
    pub fn copy_to(&self, row: &mut [u32]) {
        for (cell, slot) in row[self.first..].iter_mut().zip(self.slots()) {
            *cell = slot;
        }
    }
}

impl State {
    /// How many cells `block_tables` would write, without the padding; rows that it refuses count
    /// as empty.
    pub fn table_cells(&self, leases: &[LeaseId], cells: Cells) -> usize {
        let known = leases.iter().filter_map(|&id| self.lease(id).ok());
        known
            .map(|lease| unshown(&self.leases[lease], cells).1.len())
            .sum()
    }

    /// Writes each lease's device slots into its row of `width` cells; returns the cells written,
    /// with the padding. The caller pads: outside the lock, as a row may be long.
    ///
    /// # Errors
    /// `Spent`; `State` for a lease that loads, unless `loading` allows it; `Argument` when a table is
    /// wider than a row. Nothing is written then.
    pub fn block_tables(
        &mut self,
        leases: &[LeaseId],
        width: usize,
        cells: Cells,
        loading: Loading,
        mut write: impl FnMut(TableCells<'_>),
    ) -> Result<u64> {
        self.check_rows(leases)?;
        for (row, &id) in leases.iter().enumerate() {
            let record = &self.leases[id.at()];
            check_table(row, id, record, loading, width, record.blocks().into())?;
        }
        let mut written = 0;
        for (row, id) in leases.iter().enumerate() {
            let record = &mut self.leases[id.at()];
            let (first, slots) = unshown(record, cells);
            write(TableCells { row, first, slots });
            written += if cells == Cells::All {
                width
            } else {
                slots.len()
            };
            record.shown = record.blocks();
        }
        Ok(written as u64)
    }

    /// The flat place, slot × block size + offset, of `count` tokens from `first` on of each row,
    /// one row after the other.
    ///
    /// # Errors
    /// `Spent`; `State` for a lease that loads, unless `loading` allows it; `Argument` for positions
    /// without slots. Nothing is written then.
    pub fn slot_mapping(
        &self,
        leases: &[LeaseId],
        first: &[u64],
        count: impl Fn(usize) -> u64,
        loading: Loading,
        mut write: impl FnMut(usize, u64),
    ) -> Result<u64> {
        self.check_rows(leases)?;
        let block_size = u64::from(self.config.block_size);
        for (row, id) in leases.iter().enumerate() {
            let record = &self.leases[id.at()];
            if record.is_loading() && loading == Loading::Refuse {
                return Err(still_loads(*id, row));
            }
            let room = u64::from(record.blocks()) * block_size;
            let end = first[row].saturating_add(count(row));
            if end > room {
                let help = "the lease has no slots for these positions: grow it first";
                return Err(Error::argument("position", end.saturating_sub(1), help));
            }
        }
        let mut at = 0;
        for (row, id) in leases.iter().enumerate() {
            let table = &self.leases[id.at()].table;
            let (mut block, mut offset) =
                ((first[row] / block_size) as usize, first[row] % block_size);
            for _ in 0..count(row) {
                write(at, u64::from(table[block].get()) * block_size + offset);
                at += 1;
                offset += 1;
                if offset == block_size {
                    (block, offset) = (block + 1, 0);
                }
            }
        }
        Ok(at as u64)
    }
}

/// Whether the table of a lease can be written when it has so many blocks.
#[inline]
pub(super) fn check_table(
    row: usize,
    id: LeaseId,
    record: &Running,
    loading: Loading,
    width: usize,
    blocks: u64,
) -> Result<()> {
    if record.is_loading() && loading == Loading::Refuse {
        return Err(still_loads(id, row));
    }
    if blocks > width as u64 {
        return Err(too_narrow(blocks));
    }
    Ok(())
}

#[cold]
fn too_narrow(blocks: u64) -> Error {
    let help = "out is too narrow: give it a column per block of the longest lease";
    Error::argument("blocks", blocks, help)
}

/// The cells of a lease to write, from which column on.
pub(super) fn unshown(record: &Running, cells: Cells) -> (usize, &[SlotIx]) {
    let shown = if cells == Cells::All { 0 } else { record.shown };
    let first = record.table.len().min(shown as usize);
    (first, &record.table[first..])
}

/// What is read in its slots before its copies have landed is not its KV, and what is written there is
/// overwritten by them.
#[cold]
fn still_loads(id: LeaseId, row: usize) -> Error {
    let what = format!("row {row} is lease {}, which is loading", id.number());
    let help = "wait by `while lease.state == \"loading\": cache.step()` (without a crane, commit the \
                outcomes of its plans), and read lease.cached only then; or pass loading=\"joined\" \
                where the engine's stream waits for the copies after crane.join()";
    Error::state(what, help)
}
