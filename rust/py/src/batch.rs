//! Batches: leases that one call of a verb takes together.

use crate::arguments::Counts;
use crate::buffers::{MOST, each, room, too_many};
use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::lease::Lease;
use blockyard_core as core;
use blockyard_core::{LeaseId, Seals};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// The leases of a batch. `Cache::batch` checks that the cache made them and that none is spent.
pub(crate) struct Batch<'py> {
    pub(crate) leases: Vec<Bound<'py, Lease>>,
    pub(crate) ids: Vec<LeaseId>,
}

impl<'py> Batch<'py> {
    pub(crate) fn new(from: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(lease) = from.cast::<Lease>() {
            let mut batch = Self {
                leases: Vec::with_capacity(1),
                ids: Vec::with_capacity(1),
            };
            batch.add(lease.clone());
            return Ok(batch);
        }
        if let Ok(list) = from.cast::<PyList>() {
            return Self::all(list.len(), list.iter());
        }
        if let Ok(tuple) = from.cast::<PyTuple>() {
            return Self::all(tuple.len(), tuple.iter());
        }
        let items = from.try_iter().map_err(|_| {
            let kind = from.get_type();
            Failure::misuse(format!(
                "batch is {kind}: pass a lease, or a list of leases"
            ))
        })?;
        let items = each("batch", from, items, |_, item| Ok(item))?;
        Self::all(items.len(), items.into_iter())
    }

    fn all(rows: usize, items: impl Iterator<Item = Bound<'py, PyAny>>) -> PyResult<Self> {
        if rows > MOST {
            return Err(too_many("batch", rows).into());
        }
        let mut batch = Self {
            leases: Vec::new(),
            ids: Vec::new(),
        };
        room(&mut batch.leases, rows, "a batch")?;
        room(&mut batch.ids, rows, "a batch")?;
        for (row, item) in items.enumerate() {
            let lease = item.cast_into::<Lease>().map_err(|wrong| {
                let kind = wrong.into_inner().get_type();
                Failure::misuse(format!("batch[{row}] is {kind}: pass leases"))
            })?;
            batch.add(lease);
        }
        Ok(batch)
    }

    fn add(&mut self, lease: Bound<'py, Lease>) {
        self.ids.push(lease.get().inner.id());
        self.leases.push(lease);
    }

    /// Keeps only the rows that are good.
    pub(crate) fn retain(&mut self, good: impl FnMut(&Bound<'py, Lease>) -> bool) {
        self.leases.retain(good);
        let kept = self.leases.iter().map(|lease| lease.get().inner.id());
        self.ids.clear();
        self.ids.extend(kept);
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn handles(&self) -> Vec<&core::Lease> {
        self.leases.iter().map(|lease| &lease.get().inner).collect()
    }

    /// What each row may publish when that many of its tokens are computed.
    pub(crate) fn seals(&self, computed: &Counts) -> Outcome<Seals> {
        let mut seals = Seals::default();
        for (row, lease) in self.handles().into_iter().enumerate() {
            seals.add(lease, computed.of(row))?;
        }
        Ok(seals)
    }

    /// Refuses a lease that is named twice, for verbs that would serve it twice.
    pub(crate) fn check_once(&self, verb: &str) -> Outcome<()> {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => {
                let number = pair[0].number();
                Err(Failure::misuse(format!(
                    "lease {number} is in the batch twice: {verb} it once"
                )))
            }
        }
    }
}

impl Cache {
    /// A batch of leases that this cache made, none of them spent.
    pub(crate) fn batch<'py>(&self, from: &Bound<'py, PyAny>) -> PyResult<Batch<'py>> {
        self.check_open()?;
        let batch = Batch::new(from)?;
        let mut handles = batch.handles().into_iter();
        let checked = handles.try_for_each(|lease| self.inner.check_lease(lease));
        self.admit_handle(from.py(), checked)?;
        Ok(batch)
    }

    /// About how many blocks a batch holds.
    pub(crate) fn blocks(&self, batch: &Batch<'_>) -> usize {
        let size = u64::from(self.block_size);
        let handles = batch.handles().into_iter();
        handles
            .map(|lease| (lease.tokens() / size) as usize + 1)
            .sum()
    }
}
