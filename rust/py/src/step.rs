//! The verbs of every step, for a whole batch in one crossing.

use crate::arguments::{self, Counts};
use crate::batch::Batch;
use crate::buffers::{MOST, Out, array, integers, room, too_many, zeros};
use crate::error::Failure;
use crate::face::Cache;
use crate::gil::{LONG, attached, enter, hash};
use crate::keys::ready_keys;
use crate::lease::Lease;
use blockyard_core as core;
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    #[pyo3(signature = (batch, tokens, counts=None))]
    fn append(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let batch = self.batch(batch)?;
        let tokens: Vec<u32> = integers("tokens", tokens)?;
        let counts = match counts {
            Some(counts) => Counts::new("counts", counts, batch.len())?,
            None if batch.len() == 1 => Counts::All(tokens.len() as u64),
            None => Counts::All(1),
        };
        let rows = 0..batch.len();
        let handles = batch.handles();
        handles
            .iter()
            .try_for_each(|lease| lease.check_append())
            .map_err(Failure::from)?;
        let sum = rows
            .clone()
            .try_fold(0_u64, |sum, row| sum.checked_add(counts.of(row)));
        if sum != Some(tokens.len() as u64) {
            let (given, sum) = (tokens.len(), sum.unwrap_or(u64::MAX));
            let message = format!("{given} tokens given and {sum} counted: pass one per count");
            return Err(Failure::misuse(message).into());
        }
        let blocks: usize = match &counts {
            // Each row completes at most one short block.
            Counts::All(1) if self.block_size <= 64 => 0,
            _ => rows
                .map(|row| handles[row].keys_made_by(counts.of(row) as usize))
                .sum(),
        };
        let appended = hash(py, &self.inner, blocks * self.block_size as usize, || {
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

    fn append_ready(
        &self,
        lease: &Bound<'_, Lease>,
        #[pyo3(from_py_with = arguments::tokens)] tokens: u64,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let batch = self.batch(lease.as_any())?;
        let keys = ready_keys(keys, tokens / u64::from(self.block_size) + 1)?;
        let appended = batch.leases[0].get().inner.append_ready(tokens, &keys);
        Ok(appended.map_err(Failure::from)?)
    }

    #[pyo3(signature = (batch, counts=None))]
    fn grow<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyAny>,
        counts: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = self.batch(batch)?;
        let counts = match counts {
            Some(counts) => Counts::new("counts", counts, batch.len())?,
            None => Counts::All(1),
        };
        let (ids, mut unserved) = (&batch.ids, Vec::new());
        let grown = enter(py, &self.inner, batch.len(), |state| {
            state.grow(ids, |row| counts.of(row), &mut unserved)
        });
        grown?;
        array(
            py,
            &unserved
                .iter()
                .map(|&row| row.cast_signed())
                .collect::<Vec<_>>(),
            "int32",
        )
    }

    fn trim(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let batch = self.batch(batch)?;
        batch.check_once("trim")?;
        let lengths = Counts::new("lengths", lengths, batch.len())?.each(batch.len());
        let ids = &batch.ids;
        let trimmed = enter(py, &self.inner, batch.len(), |state| {
            state.trim(ids, &lengths)
        });
        Ok(trimmed?)
    }

    fn dedup(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<u64> {
        let batch = self.batch(batch)?;
        let ids = &batch.ids;
        let given = enter(py, &self.inner, self.blocks(&batch), |state| {
            state.dedup(ids)
        });
        Ok(given?)
    }

    #[pyo3(signature = (batch, out=None, *, cells="all"))]
    fn block_tables(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        cells: &str,
    ) -> PyResult<Py<PyAny>> {
        let cells = arguments::cells(cells)?;
        let batch = self.batch(batch)?;
        let ids = &batch.ids;
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
            self.fill_tables(py, &batch, &table, core::Cells::All)?;
            return Ok(table.unbind());
        };
        let written = self.fill_tables(py, &batch, out, cells)?;
        Ok(written.into_pyobject(py)?.into_any().unbind())
    }

    #[pyo3(signature = (batch, first, counts=None, out=None))]
    fn slot_mapping(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        first: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let batch = self.batch(batch)?;
        let first = Counts::new("first", first, batch.len())?.each(batch.len());
        let counts = match counts {
            Some(counts) => Counts::new("counts", counts, batch.len())?,
            None => Counts::All(1),
        };
        let sum = (0..batch.len()).fold(0_u64, |sum, row| sum.saturating_add(counts.of(row)));
        if sum > MOST as u64 {
            return Err(too_many("counts together", sum).into());
        }
        let (ids, mut places) = (&batch.ids, Vec::new());
        room(&mut places, sum as usize, "a slot mapping")?;
        let mapped = enter(py, &self.inner, sum as usize / 8 + batch.len(), |state| {
            state.slot_mapping(
                ids,
                &first,
                |row| counts.of(row),
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
        for at in 0..len {
            out.set(py, at, places.get(at).copied().unwrap_or(0));
        }
        Ok((places.len()).into_pyobject(py)?.into_any().unbind())
    }

    fn seal(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        computed: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let batch = self.batch(batch)?;
        let computed = Counts::new("computed", computed, batch.len())?;
        let mut seals = batch.seals(&computed)?;
        let blocks = seals.blocks().max(batch.len());
        let sealed = enter(py, &self.inner, blocks, |state| seals.apply(state));
        let handles = batch.handles();
        seals.remember(|at| handles[at]);
        Ok(sealed?)
    }
}

impl Cache {
    /// Writes tables into the caller's array: directly, if the yard can be entered while attached.
    fn fill_tables(
        &self,
        py: Python<'_>,
        batch: &Batch<'_>,
        out: &Bound<'_, PyAny>,
        cells: core::Cells,
    ) -> PyResult<u64> {
        let out = Out::<i32>::new(out, "int32", 2)?;
        let (rows, width) = (out.shape()[0], out.shape()[1]);
        if rows < batch.len() {
            let need = batch.len();
            return Err(
                Failure::misuse(format!("out has {rows} rows: pass {need} or more")).into(),
            );
        }
        let ids = &batch.ids;
        let blocks = if cells == core::Cells::All {
            batch.len() * width / 8
        } else {
            batch.len()
        };
        let written = attached(&self.inner, blocks, |state| {
            let set = |at, slot: u32| out.set(py, at, slot.cast_signed());
            state.block_tables(ids, width, cells, set)
        });
        if let Some(written) = written? {
            return Ok(written);
        }
        let mut gathered = Vec::new();
        if cells == core::Cells::All {
            room(&mut gathered, batch.len() * width, "a block table")?;
        }
        let written = enter(py, &self.inner, LONG, |state| {
            state.block_tables(ids, width, cells, |at, slot| gathered.push((at, slot)))
        });
        for (at, slot) in gathered {
            out.set(py, at, slot.cast_signed());
        }
        Ok(written?)
    }
}
