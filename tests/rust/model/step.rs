//! A decode step: as one verb in some worlds, and as its four verbs in others.

use crate::act::pick;
use crate::ops::StepRow;
use crate::world::{WIDTH, World};
use blockyard_core::{
    Batch, Cells, Growth, Lease, LeaseId, Loading, NewCell, Result, Seals, Stepped, TableCells,
};

/// What a step does to a lease.
#[derive(Clone, Copy, Debug)]
struct Row {
    at: usize,
    tokens: usize,
    computed: u64,
    refused: bool,
    grow: u64,
}

impl World {
    /// Whether it was refused.
    pub(crate) fn decode(&mut self, rows: &[StepRow], tables: bool, safe: bool) -> Option<bool> {
        let mut named: Vec<Row> = Vec::new();
        for row in rows {
            let at = pick(&self.leases, row.lease)?;
            if named.iter().all(|other| other.at != at) {
                let (computed, refused) = self.computed_after(&self.leases[at], *row, safe);
                named.push(Row {
                    at,
                    tokens: row.tokens.into(),
                    computed,
                    refused,
                    grow: row.grow.into(),
                });
            }
        }
        let width = tables.then_some(WIDTH);
        let answer = if self.one_verb {
            self.one_verb(&named, width)
        } else {
            self.four_verbs(&named, width)
        };
        let Ok(done) = answer else { return Some(true) };
        for cell in &done.cells {
            let id = self.leases[named[cell.row as usize].at].id();
            let row = self.rows.entry(id);
            row.or_insert_with(|| vec![u32::MAX; WIDTH])[cell.column as usize] = cell.slot;
        }
        for row in &named {
            let chain = self.leases[row.at].chain();
            self.know(chain.keys());
        }
        let sealing = named.iter().map(|row| (&self.leases[row.at], row.computed));
        let sealing: Vec<(&Lease, u64)> = sealing.collect();
        self.yard.seal_batch(&sealing, &Ok(done.sealed));
        let growing = named.iter().map(|row| (self.leases[row.at].id(), row.grow));
        let growing: Vec<(LeaseId, u64)> = growing.collect();
        let state = self.cache.lock();
        self.yard.grow(&state, &growing, &Ok(()), &done.unserved);
        Some(false)
    }

    fn one_verb(&self, rows: &[Row], width: Option<usize>) -> Result<Stepped> {
        let mut batch: Batch = self.cache.batch();
        let leases = rows.iter().map(|row| &self.leases[row.at]);
        batch.add(&self.cache, leases).expect("each once");
        let lengths = || rows.iter().map(|row| self.leases[row.at].tokens());
        let before: Vec<u64> = lengths().collect();
        let tokens: Vec<u32> = rows.iter().flat_map(|row| vec![1; row.tokens]).collect();
        let growth = Growth {
            more: |row: usize| rows[row].grow,
            width,
            loading: Loading::Refuse,
        };
        let appended = batch.append(&tokens, |row| rows[row].tokens, |row| rows[row].computed);
        let answer = appended.and_then(|mut appended| {
            let mut state = self.cache.lock();
            let answer = appended.step(&mut state, &growth);
            drop(state);
            answer
        });
        if answer.is_err() {
            assert!(lengths().eq(before), "refused, and something was appended");
        }
        answer
    }

    /// If one of the four would refuse, none does anything: so the refusals are asked for first, and
    /// sealing comes before appending where it needs none of the new tokens.
    fn four_verbs(&self, rows: &[Row], width: Option<usize>) -> Result<Stepped> {
        let lease = |row: &Row| &self.leases[row.at];
        let ids: Vec<LeaseId> = rows.iter().map(|row| lease(row).id()).collect();
        let mut done = Stepped::default();
        let loading = width.map_or(Loading::Joined, |_| Loading::Refuse);
        let (none, nowhere) = (vec![0; rows.len()], |_, _| ());
        let state = self.cache.lock();
        state.slot_mapping(&ids, &none, |_| 0, loading, nowhere)?;
        drop(state);
        let append = || {
            for row in rows {
                let tokens = vec![1; row.tokens];
                lease(row).append(&tokens).expect("it makes its own keys");
            }
        };
        let late = rows.iter().any(|row| row.computed > lease(row).tokens());
        if late && !rows.iter().any(|row| row.refused) {
            append();
        }
        let mut seals = Seals::default();
        for row in rows {
            seals.add(lease(row), row.computed)?;
        }
        done.sealed = seals.apply(&mut self.cache.lock())?;
        seals.remember(|at| lease(&rows[at]));
        if !late {
            append();
        }
        let mut state = self.cache.lock();
        state.grow(&ids, |row| rows[row].grow, &mut done.unserved)?;
        if let Some(width) = width {
            let write = |cells: TableCells<'_>| {
                let (row, columns) = (cells.row as u32, cells.first as u32..);
                let slots = columns.zip(cells.slots());
                let cells = slots.map(|(column, slot)| NewCell { row, column, slot });
                done.cells.extend(cells);
            };
            state.block_tables(&ids, width, Cells::Changed, loading, write)?;
        }
        Ok(done)
    }

    /// What of a row is computed when its tokens are there, and whether that may be refused: only where
    /// none of them is among it.
    fn computed_after(&self, lease: &Lease, row: StepRow, safe: bool) -> (u64, bool) {
        let all = lease.tokens() + u64::from(row.tokens);
        if !safe {
            return match row.computed {
                253 => (all + 1, true),
                by => (self.computed(lease, by), true),
            };
        }
        let view = self.cache.lock().view(lease.id()).expect("it lives");
        let room = u64::from(view.blocks) * self.yard.block_size;
        let most = view.tokens.min(room).min(all);
        let loads = view.loading > 0;
        (if loads { 0 } else { most }, false)
    }
}
