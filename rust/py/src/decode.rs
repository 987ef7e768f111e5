//! Batches that are made once, and a decode step of one in one crossing.

use crate::arguments::{self, Counts};
use crate::batch::{Batch, LeaseBatch};
use crate::buffers::{Out, integers, row_array};
use crate::cache_class::Cache;
use crate::error::Failure;
use crate::gil::{SHORT, enter_weighed, hash};
use crate::step::{CELLS, check_counted, counts_of};
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Makes a batch of leases, for the verbs of many steps.
    ///
    /// Args:
    ///     leases: A lease or a list of leases, each once; by default none.
    ///
    /// Returns:
    ///     The batch, to which rows are added and from which they are removed.
    ///
    /// Raises:
    ///     Misuse: A lease is in the list twice.
    ///     SpentLease: A row has ended before.
    ///     ForeignLease: A row is another cache's.
    #[pyo3(signature = (leases=None))]
    fn batch(slf: &Bound<'_, Self>, leases: Option<&Bound<'_, PyAny>>) -> PyResult<LeaseBatch> {
        let cache = slf.get();
        let rows = match leases {
            Some(leases) => cache.rows(leases)?,
            None => Batch::Given(Vec::new(), Vec::new()),
        };
        LeaseBatch::new(slf, rows)
    }

    /// Does a decode step of a batch: `append`, `seal`, `grow` and the changed cells of `block_tables`.
    ///
    /// It is called with the output of one step, and makes room for the next: it appends the tokens
    /// that were sampled, publishes the full blocks that are computed, adds token positions, and writes
    /// the cells that have changed. The outcome is that of these four verbs in this order; but if one
    /// of them would raise, none does anything.
    ///
    /// At its end it makes room for the next calls, as `make_spare` does.
    ///
    /// A row that finds no room to grow keeps its length; its tokens are appended, its blocks sealed
    /// and its cells written all the same. So are the other rows, which grow.
    ///
    /// Args:
    ///     batch: A batch of `KVCache.batch`, or a list of leases, each once.
    ///     tokens: Token ids, row after row, shape (tokens,), from 0 to 2**32 - 1.
    ///     computed: Tokens of each row whose KV the engine has acknowledged, shape (rows,).
    ///     counts: Tokens to append to each row, shape (rows,); by default all to a single row, and 1
    ///         to each of several.
    ///     grow: Token positions to add to each row, shape (rows,); 1 by default.
    ///     out: The block tables, as in `block_tables`; None to write no cells.
    ///     loading: As in `block_tables`.
    ///
    /// Returns:
    ///     The rows that found no room, shape (rows,); how many cells were written; and how many blocks
    ///     were newly sealed.
    ///
    /// Raises:
    ///     Misuse: As in the four verbs; or a lease is in the list twice, or a row would be wider than
    ///         `out` after its growth, whether it finds room or not. Nothing is changed.
    ///     SpentLease: A row has ended before. Nothing is changed.
    ///     ForeignLease: A row, or the batch, is another cache's. Nothing is changed.
    ///     Unavailable: There is no memory for the keys. Nothing is changed.
    #[pyo3(signature = (batch, tokens, computed, *, counts=None, grow=None, out=None,
        loading="refuse"))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn decode_step<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyAny>,
        tokens: &Bound<'_, PyAny>,
        computed: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
        grow: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        loading: &str,
    ) -> PyResult<(Bound<'py, PyAny>, usize, u64)> {
        self.check_open()?;
        let given = Batch::new(batch)?;
        let listed;
        let rows = match &given {
            Batch::Made(made) if made.inner.is_of(&self.inner) => &made.inner,
            _ => {
                self.check_rows(py, &given)?;
                let mut all = self.inner.batch();
                let added = all.add(&self.inner, given.handles().into_iter());
                added.map_err(Failure::from)?;
                listed = all;
                &listed
            }
        };
        let step = DecodeStep {
            loading,
            tokens,
            computed,
            counts,
            grow,
            out,
        };
        let done = self.step_rows(py, rows, &step);
        if done.is_err() {
            // One that was ended meanwhile, or before, comes first: as where the leases are looked up.
            self.check_rows(py, &given)?;
        }
        done
    }
}

/// What a step is given besides its rows.
struct DecodeStep<'a, 'py> {
    loading: &'a str,
    tokens: &'a Bound<'py, PyAny>,
    computed: &'a Bound<'py, PyAny>,
    counts: Option<&'a Bound<'py, PyAny>>,
    grow: Option<&'a Bound<'py, PyAny>>,
    out: Option<&'a Bound<'py, PyAny>>,
}

impl Cache {
    fn step_rows<'py>(
        &self,
        py: Python<'py>,
        rows: &core::Batch,
        step: &DecodeStep<'_, '_>,
    ) -> PyResult<(Bound<'py, PyAny>, usize, u64)> {
        let len = rows.ids().len();
        let loading = arguments::loading(step.loading)?;
        let tokens: Vec<u32> = integers("tokens", step.tokens)?;
        let counts = counts_of(step.counts, tokens.len(), len)?;
        let computed = Counts::new("computed", step.computed, len)?;
        let grow = step.grow.map(|grow| Counts::new("grow", grow, len));
        let grow = grow.unwrap_or(Ok(Counts::All(1)))?;
        let out = step.out.map(|out| Out::<i32>::new(out, "int32", 2));
        let out = out.transpose()?;
        let width = out.as_ref().map(|out| out.shape()[1]);
        if let Some(out) = &out
            && out.shape()[0] < len
        {
            let has = out.shape()[0];
            return Err(Failure::misuse(format!("out has {has} rows: pass {len} or more")).into());
        }
        check_counted(&counts, tokens.len(), len)?;
        let hashed = self.hashed(&counts, len, |row, more| rows.keys_made_by(row, more));
        let mut appended = hash(py, &self.inner, hashed, || {
            rows.append(
                &tokens,
                |row| counts.of(row) as usize,
                |row| computed.of(row),
            )
        })?;
        let blocks = appended.blocks();
        let weigh = |state: &core::State| match width.unwrap_or(0).saturating_mul(len) / CELLS {
            most if blocks + most <= SHORT => blocks,
            _ => blocks + state.new_cells(rows.ids()) / CELLS,
        };
        let growth = core::Growth {
            more: |row| grow.of(row),
            width,
            loading,
        };
        let done = enter_weighed(py, &self.inner, weigh, |state| {
            appended.step(state, &growth)
        });
        drop(appended);
        let done = done?;
        if let (Some(out), Some(width)) = (&out, width) {
            for cell in &done.cells {
                let at = cell.row as usize * width + cell.column as usize;
                out.write(py, at, [cell.slot.cast_signed()].into_iter());
            }
        }
        Ok((
            row_array(py, &done.unserved)?,
            done.cells.len(),
            done.sealed,
        ))
    }
}
