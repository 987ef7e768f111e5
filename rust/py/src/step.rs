//! The verbs of every step, for a whole batch in one crossing.

use crate::arguments::{self, Counts};
use crate::batch::Batch;
use crate::buffers::{MOST, Out, array, integers, room, row_array, too_many, zeros};
use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::gil::{LONG, SHORT, attached, enter, enter_sliced, hash};
use crate::keys::ready_keys;
use crate::lease::Lease;
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Extends each row's keys by sampled or accepted tokens.
    ///
    /// Args:
    ///     batch: Leases.
    ///     tokens: Token ids, row after row, shape (tokens,), from 0 to 2**32 - 1.
    ///     counts: Tokens of each row; by default all for a single lease, 1 for each of several.
    ///
    /// Raises:
    ///     Misuse: The counts do not add up to the tokens, a token is out of range, or the engine
    ///         makes the keys of a row; nothing is appended.
    ///     SpentLease: A row has ended before; nothing is appended.
    ///     ForeignLease: A row is another cache's; nothing is appended.
    ///     Unavailable: There is no memory for the keys; nothing is appended.
    #[pyo3(signature = (batch, tokens, counts=None))]
    fn append(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let batch = self.rows(batch)?;
        let tokens: Vec<u32> = integers("tokens", tokens)?;
        let rows = batch.len();
        let counts = counts_of(counts, tokens.len(), rows)?;
        let handles = batch.handles();
        handles
            .iter()
            .try_for_each(|lease| lease.check_append())
            .map_err(Failure::from)?;
        check_counted(&counts, tokens.len(), rows)?;
        let hashed = self.hashed(&counts, rows, |row, more| handles[row].keys_made_by(more));
        let appended = hash(py, &self.inner, hashed, || {
            if tokens.len() > handles.len() {
                // If there is no memory for one row, the others stay as they are, too.
                let mut rows = handles.iter().enumerate();
                rows.try_for_each(|(row, lease)| lease.reserve(counts.of(row) as usize))?;
            }
            let mut rest = tokens.as_slice();
            handles.iter().enumerate().try_for_each(|(row, lease)| {
                let (own, others) = rest.split_at(counts.of(row) as usize);
                rest = others;
                lease.append(own)
            })
        });
        Ok(appended?)
    }

    /// Extends a sequence whose keys the engine makes, one that began with `ready_keys`.
    ///
    /// Args:
    ///     lease: The lease.
    ///     tokens: How many tokens follow.
    ///     keys: A key for each block that they complete: a buffer of 32 bytes per key, or a list
    ///         of bytes or of hexadecimal strings.
    ///
    /// Raises:
    ///     Misuse: There is not exactly one key for each block that becomes full, or the sequence
    ///         began with tokens; nothing is appended.
    ///     SpentLease: The lease has ended before.
    ///     ForeignLease: It is another cache's.
    fn append_ready(
        &self,
        lease: &Bound<'_, Lease>,
        #[pyo3(from_py_with = arguments::tokens)] tokens: u64,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let batch = self.rows(lease.as_any())?;
        let keys = ready_keys(keys, tokens / u64::from(self.block_size) + 1)?;
        let appended = batch.lease(0).inner.append_ready(tokens, &keys);
        Ok(appended.map_err(Failure::from)?)
    }

    /// Adds 1 token position to each row, or `counts`, in order; each row whole or not at all.
    ///
    /// Afterwards it makes room for the next calls, as `make_spare` does.
    ///
    /// Args:
    ///     batch: Leases.
    ///     counts: Token positions to add to each row; 1 by default.
    ///
    /// Returns:
    ///     The rows that found no room, shape (rows,). A row within its promise is never one.
    ///
    /// Raises:
    ///     Misuse: A value is out of range, or a resume came back incomplete where the engine cannot
    ///         recompute; no row grows.
    ///     SpentLease: A row has ended before; no row grows.
    ///     ForeignLease: A row is another cache's; no row grows.
    #[pyo3(signature = (batch, counts=None))]
    fn grow<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyAny>,
        counts: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = self.rows(batch)?;
        let counts = match counts {
            Some(counts) => Counts::new("counts", counts, batch.len())?,
            None => Counts::All(1),
        };
        let (ids, mut unserved) = (batch.ids(), Vec::new());
        let grown = enter(py, &self.inner, batch.len(), |state| {
            state.grow(ids, |row| counts.of(row), &mut unserved)
        });
        grown?;
        row_array(py, &unserved)
    }

    /// Evicts the device's next victims ahead of need, until `spare` slots are free.
    ///
    /// `grow` and `decode_step` do this at their end; an engine that never decodes calls it once a
    /// step, while the step computes. It stops at a block that a tier below could still get a copy of, and evicts 1,024 blocks at
    /// most. After a shrink of the device it evicts none.
    ///
    /// Returns:
    ///     How many blocks it has evicted.
    fn make_spare(&self, py: Python<'_>) -> PyResult<u32> {
        self.check_sound()?;
        Ok(enter(py, &self.inner, SHORT, |state| {
            Ok(state.make_spare())
        })?)
    }

    /// Cuts each row to a number of token positions. The blocks beyond are released.
    ///
    /// Args:
    ///     batch: Leases, each once.
    ///     lengths: Token positions that each row keeps, >= 1.
    ///
    /// Raises:
    ///     Misuse: A length is beyond the row's end, or cuts blocks that are sealed or were found at
    ///         the start; or a row is loading. No row is cut.
    ///     SpentLease: A row has ended before; no row is cut.
    ///     ForeignLease: A row is another cache's; no row is cut.
    fn trim(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let batch = self.rows(batch)?;
        batch.check_once("trim")?;
        let lengths = Counts::new("lengths", lengths, batch.len())?.each(batch.len());
        let ids = batch.ids();
        let trimmed = enter(py, &self.inner, batch.len(), |state| {
            state.trim(ids, &lengths)
        });
        Ok(trimmed?)
    }

    /// Gives up duplicates in place: blocks of the leases that another sequence published first.
    ///
    /// The cell of the block table then shows the published block, and the lease's own copy becomes
    /// free at once, so that no step in flight may read these tables. `block_tables` with
    /// cells="changed" then writes all cells from the first such one.
    ///
    /// Args:
    ///     batch: Leases.
    ///
    /// Returns:
    ///     How many cells of the tables now show another slot.
    ///
    /// Raises:
    ///     SpentLease: A row has ended before; nothing is changed.
    ///     ForeignLease: A row is another cache's; nothing is changed.
    fn dedup(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<u64> {
        let batch = self.rows(batch)?;
        let ids = batch.ids();
        let given = enter(py, &self.inner, self.blocks(&batch), |state| {
            state.dedup(ids)
        });
        Ok(given?)
    }

    /// Writes each lease's device slots, in order.
    ///
    /// Args:
    ///     batch: Leases.
    ///     out: An int32 array, C-contiguous, shape (rows or more, columns): a buffer, or a tensor
    ///         that speaks DLPack and is of the CPU or pinned. Without it a new array is made, of
    ///         shape (rows, blocks of the longest).
    ///     cells: "all" writes all cells, padded with the null slot 0. "changed" writes those that
    ///         have changed since the last call for the lease: the row must still hold what that
    ///         call wrote.
    ///     loading: For a row that is loading, "refuse" raises: its slots do not have its KV yet, and
    ///         the copies would overwrite any writes. "joined" writes the cells anyway, for an engine
    ///         whose stream waits for the copies: after `step` has submitted them and `Crane.join`
    ///         has returned True.
    ///
    /// Returns:
    ///     The new array, or how many cells were written.
    ///
    /// Raises:
    ///     Misuse: A row is loading, or `out` is too small or another kind of array; nothing is
    ///         written.
    ///     SpentLease: A row has ended before; nothing is written.
    ///     ForeignLease: A row is another cache's; nothing is written.
    #[pyo3(signature = (batch, out=None, *, cells="all", loading="refuse"))]
    fn block_tables(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        cells: &str,
        loading: &str,
    ) -> PyResult<Py<PyAny>> {
        let (cells, loading) = (arguments::cells(cells)?, arguments::loading(loading)?);
        let batch = self.rows(batch)?;
        let ids = batch.ids();
        let Some(out) = out else {
            if cells == core::Cells::Changed {
                let message = "cells = \"changed\" without out: pass the array that has the others";
                return Err(Failure::misuse(message).into());
            }
            let width = enter(py, &self.inner, batch.len(), |state| {
                ids.iter()
                    .try_fold(0, |width, &id| Ok(state.view(id)?.blocks.max(width)))
            });
            let width: u32 = width?;
            let table = zeros(py, &[batch.len(), width as usize], "int32")?;
            self.fill_tables(py, &batch, &table, core::Cells::All, loading)?;
            return Ok(table.unbind());
        };
        let written = self.fill_tables(py, &batch, out, cells, loading)?;
        Ok(written.into_pyobject(py)?.into_any().unbind())
    }

    /// Writes where the KV of tokens goes: slot * block size + offset, row after row.
    ///
    /// Args:
    ///     batch: Leases.
    ///     first: First token position of each row.
    ///     counts: Tokens of each row; 1 by default.
    ///     out: An int64 array, C-contiguous, shape (tokens or more,), of the kinds that
    ///         `block_tables` takes. The rest is padded with 0, which is in the null slot. Without
    ///         it a new array is made, shape (tokens,).
    ///     loading: As in `block_tables`.
    ///
    /// Returns:
    ///     The new array, or how many places were written.
    ///
    /// Raises:
    ///     Misuse: A row is loading, or has no slots for these positions; or `out` is too small or
    ///         another kind of array. Nothing is written.
    ///     SpentLease: A row has ended before; nothing is written.
    ///     ForeignLease: A row is another cache's; nothing is written.
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    #[pyo3(signature = (batch, first, counts=None, out=None, *, loading="refuse"))]
    fn slot_mapping(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        first: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        loading: &str,
    ) -> PyResult<Py<PyAny>> {
        let loading = arguments::loading(loading)?;
        let batch = self.rows(batch)?;
        let first = Counts::new("first", first, batch.len())?.each(batch.len());
        let counts = match counts {
            Some(counts) => Counts::new("counts", counts, batch.len())?,
            None => Counts::All(1),
        };
        let sum = (0..batch.len()).fold(0_u64, |sum, row| sum.saturating_add(counts.of(row)));
        if sum > MOST as u64 {
            return Err(too_many("counts together", sum).into());
        }
        let (ids, mut places) = (batch.ids(), Vec::new());
        room(&mut places, sum as usize, "a slot mapping")?;
        let mapped = enter(py, &self.inner, sum as usize / 8 + batch.len(), |state| {
            state.slot_mapping(
                ids,
                &first,
                |row| counts.of(row),
                loading,
                |_, at| places.push(at.cast_signed()),
            )
        });
        mapped?;
        let Some(out) = out else {
            return Ok(array(py, &places, "int64")?.unbind());
        };
        let out = Out::<i64>::new(out, "int64", 1)?;
        let len = out.shape()[0];
        if len < places.len() {
            let need = places.len();
            let message = format!("out has {len} elements: pass {need} or more");
            return Err(Failure::misuse(message).into());
        }
        if len > places.len() && self.null_slots == 0 {
            let need = places.len();
            let message = format!(
                "out has {len} elements for {need} places, and this cache has no null slot to pad \
                 with: pass exactly {need}, or make the cache with null_slots=1"
            );
            return Err(Failure::misuse(message).into());
        }
        // The padding points into slot 0, which is a null slot.
        out.write(py, 0, places.iter().copied());
        out.clear(py, places.len()..len);
        Ok((places.len()).into_pyobject(py)?.into_any().unbind())
    }

    /// Publishes the full blocks whose tokens are all computed and acknowledged.
    ///
    /// The cache is locked for 1,024 blocks at a time. If another thread ends or trims a lease in between,
    /// the rest of that lease is not sealed, and the other rows are.
    ///
    /// Args:
    ///     batch: Leases.
    ///     computed: Tokens of each row whose KV the engine has acknowledged.
    ///
    /// Returns:
    ///     Blocks newly sealed. A block that a flight is loading meanwhile waits for a later seal.
    ///
    /// Raises:
    ///     Misuse: More is computed than was appended or has slots, or a row is loading.
    ///     SpentLease: A row has ended before; nothing is sealed.
    ///     ForeignLease: A row is another cache's; nothing is sealed.
    fn seal(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        computed: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let batch = self.rows(batch)?;
        let computed = Counts::new("computed", computed, batch.len())?;
        let mut seals = batch.seals(&computed)?;
        let blocks = seals.blocks().max(batch.len());
        let all = enter_sliced(py, &self.inner, blocks, |state| {
            seals.apply_slice(state, SHORT)
        });
        let handles = batch.handles();
        seals.remember(|at| handles[at]);
        all?;
        Ok(seals.sealed())
    }
}

/// So many cells of a table take as long as a block does in other verbs: they are copied row by row.
pub(crate) const CELLS: usize = 256;

/// Tokens to append to each row.
pub(crate) fn counts_of(
    counts: Option<&Bound<'_, PyAny>>,
    tokens: usize,
    rows: usize,
) -> PyResult<Counts> {
    match counts {
        Some(counts) => Counts::new("counts", counts, rows),
        None if rows == 1 => Ok(Counts::All(tokens as u64)),
        None => Ok(Counts::All(1)),
    }
}

/// Whether the counts of all rows add up to the tokens that were given.
pub(crate) fn check_counted(counts: &Counts, tokens: usize, rows: usize) -> Outcome<()> {
    let sum = (0..rows).try_fold(0_u64, |sum, row| sum.checked_add(counts.of(row)));
    if sum == Some(tokens as u64) {
        return Ok(());
    }
    let sum = sum.unwrap_or(u64::MAX);
    let message = format!("{tokens} tokens given and {sum} counted: pass one per count");
    Err(Failure::misuse(message))
}

impl Cache {
    /// How many tokens are hashed when each row gets its count; `made` tells the blocks that are completed.
    pub(crate) fn hashed(
        &self,
        counts: &Counts,
        rows: usize,
        made: impl Fn(usize, usize) -> usize,
    ) -> usize {
        let blocks: usize = match counts {
            // Each row completes at most one short block.
            Counts::All(1) if self.block_size <= 64 => 0,
            _ => (0..rows)
                .map(|row| made(row, counts.of(row) as usize))
                .sum(),
        };
        blocks * self.block_size as usize
    }

    /// Writes tables into the caller's array: directly, if the yard can be entered while attached.
    fn fill_tables(
        &self,
        py: Python<'_>,
        batch: &Batch<'_>,
        out: &Bound<'_, PyAny>,
        cells: core::Cells,
        loading: core::Loading,
    ) -> PyResult<u64> {
        let out = Out::<i32>::new(out, "int32", 2)?;
        let (rows, width) = (out.shape()[0], out.shape()[1]);
        if rows < batch.len() {
            let need = batch.len();
            return Err(
                Failure::misuse(format!("out has {rows} rows: pass {need} or more")).into(),
            );
        }
        let ids = batch.ids();
        let mut ends = Vec::new();
        room(&mut ends, ids.len(), "a block table")?;
        let mut write = |cells: core::TableCells<'_>| {
            let (at, slots) = (cells.row * width + cells.first, cells.slots());
            ends.push(at + slots.len());
            out.write(py, at, slots.map(u32::cast_signed));
        };
        let weigh = |state: &core::State| ids.len() + state.table_cells(ids, cells) / CELLS;
        let direct = attached(&self.inner, weigh, |state| {
            state.block_tables(ids, width, cells, loading, &mut write)
        })?;
        let written = if let Some(written) = direct {
            written
        } else {
            let (mut rows, mut gathered) = (Vec::new(), Vec::new());
            room(&mut rows, ids.len(), "a block table")?;
            let written = enter(py, &self.inner, LONG, |state| {
                let all = state.table_cells(ids, cells);
                let refused = gathered.try_reserve(all);
                refused.map_err(|_| core::Error::Memory {
                    what: "a block table",
                    bytes: (all * size_of::<i32>()) as u64,
                    there: None,
                })?;
                let gather = |cells: core::TableCells<'_>| {
                    gathered.extend(cells.slots().map(u32::cast_signed));
                    rows.push((cells.row * width + cells.first, cells.slots().len()));
                };
                state.block_tables(ids, width, cells, loading, gather)
            })?;
            let mut from = gathered.into_iter();
            for (at, len) in rows {
                out.write(py, at, from.by_ref().take(len));
                ends.push(at + len);
            }
            written
        };
        if cells == core::Cells::All {
            for (row, end) in ends.into_iter().enumerate() {
                out.clear(py, end..(row + 1) * width);
            }
        }
        Ok(written)
    }
}
