//! Batches: leases that one call of a verb takes together.

use crate::arguments::Counts;
use crate::buffers::{MOST, each, integers, room, too_many};
use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::lease::Lease;
use blockyard_core as core;
use blockyard_core::{LeaseId, Seals};
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

/// The rows of a running batch: leases that verbs take together, in this order.
///
/// `KVCache.batch` makes it, and every verb takes it that takes a list of leases. `decode_step` looks its
/// leases up once, and not in every step. It holds its leases as a list does. A verb refuses it with
/// `SpentLease` while a lease in it has ended, as by `finish` or `park`: remove that row.
///
/// `len` counts its rows. Any thread may use it; to change it while a verb of another thread uses it
/// raises `Misuse`.
#[pyclass(module = "blockyard._core", weakref)]
pub(crate) struct LeaseBatch {
    cache: Py<Cache>,
    leases: Vec<Py<Lease>>,
    pub(crate) inner: core::Batch,
}

impl LeaseBatch {
    pub(crate) fn new(cache: &Bound<'_, Cache>, rows: Batch<'_>) -> PyResult<Self> {
        let mut inner = cache.get().inner.batch();
        let added = inner.add(&cache.get().inner, rows.handles().into_iter());
        added.map_err(Failure::from)?;
        let leases = rows.into_leases().into_iter().map(Bound::unbind).collect();
        let cache = cache.clone().unbind();
        Ok(Self {
            cache,
            leases,
            inner,
        })
    }

    fn change<'py>(slf: &Bound<'py, Self>) -> Outcome<PyRefMut<'py, Self>> {
        slf.try_borrow_mut().map_err(|_| {
            Failure::misuse("another thread uses this batch in a verb: change it afterwards")
        })
    }
}

#[guarded]
#[pymethods]
impl LeaseBatch {
    /// The leases, row by row.
    #[getter]
    fn leases<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.leases)
    }

    /// Adds rows behind the others.
    ///
    /// Args:
    ///     leases: A lease, or a list of leases.
    ///
    /// Raises:
    ///     Misuse: A lease has a row already, or another thread uses the batch. No row is added.
    ///     SpentLease: A lease has ended before. No row is added.
    ///     ForeignLease: A lease is another cache's. No row is added.
    fn add(slf: &Bound<'_, Self>, leases: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let cache = slf.borrow().cache.clone_ref(py);
        let rows = cache.get().rows(leases)?;
        let mut batch = Self::change(slf)?;
        let handles = rows.handles().into_iter();
        let added = batch.inner.add(&cache.get().inner, handles);
        added.map_err(Failure::from)?;
        batch
            .leases
            .extend(rows.into_leases().into_iter().map(Bound::unbind));
        Ok(())
    }

    /// Removes rows; those behind them move up.
    ///
    /// Args:
    ///     rows: Numbers of rows, shape (rows,), from 0 on, in any order.
    ///
    /// Raises:
    ///     Misuse: There is no such row, one comes twice, or another thread uses the batch. No row
    ///         is removed.
    fn remove(slf: &Bound<'_, Self>, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let rows: Vec<u32> = integers("rows", rows)?;
        let mut batch = Self::change(slf)?;
        let mut gone = vec![false; batch.leases.len()];
        for (at, &row) in rows.iter().enumerate() {
            match gone.get_mut(row as usize) {
                Some(gone) if !*gone => *gone = true,
                Some(_) => {
                    let message = format!("rows[{at}] = {row}: it comes twice");
                    return Err(Failure::misuse(message).into());
                }
                None => {
                    let message = format!(
                        "rows[{at}] = {row}: the batch has {} rows, counted from 0",
                        gone.len()
                    );
                    return Err(Failure::misuse(message).into());
                }
            }
        }
        batch.inner.remove(|row| gone[row]);
        let mut gone = gone.into_iter();
        let kept = batch
            .leases
            .extract_if(.., |_| gone.next().is_some_and(|gone| gone));
        let removed: Vec<Py<Lease>> = kept.collect();
        drop(batch);
        // Only now: a lease that nobody else has ends with it.
        drop(removed);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.leases.len()
    }

    fn __repr__(&self) -> String {
        format!("LeaseBatch({} rows)", self.leases.len())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.cache)?;
        self.leases.iter().try_for_each(|lease| visit.call(lease))
    }
}

/// The leases that a verb was given. `Cache::rows` checks that the cache made them and that none is
/// spent.
pub(crate) enum Batch<'py> {
    Given(Vec<Bound<'py, Lease>>, Vec<LeaseId>),
    Made(PyRef<'py, LeaseBatch>),
}

impl<'py> Batch<'py> {
    pub(crate) fn new(from: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(made) = from.cast::<LeaseBatch>() {
            return Ok(Self::Made(made.borrow()));
        }
        let leases = leases(from)?;
        let ids = leases.iter().map(|lease| lease.get().inner.id()).collect();
        Ok(Self::Given(leases, ids))
    }

    pub(crate) fn ids(&self) -> &[LeaseId] {
        match self {
            Self::Given(_, ids) => ids,
            Self::Made(made) => made.inner.ids(),
        }
    }

    pub(crate) fn lease(&self, row: usize) -> &Lease {
        match self {
            Self::Given(leases, _) => leases[row].get(),
            Self::Made(made) => made.leases[row].get(),
        }
    }

    pub(crate) fn into_leases(self) -> Vec<Bound<'py, Lease>> {
        match self {
            Self::Given(leases, _) => leases,
            Self::Made(made) => {
                let py = made.py();
                let leases = made.leases.iter();
                leases.map(|lease| lease.bind(py).clone()).collect()
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids().len()
    }

    pub(crate) fn handles(&self) -> Vec<&core::Lease> {
        (0..self.len()).map(|row| &self.lease(row).inner).collect()
    }

    /// What each row may publish when that many of its tokens are computed.
    pub(crate) fn seals(&self, computed: &Counts) -> Outcome<Seals> {
        let mut seals = Seals::default();
        for (row, lease) in self.handles().into_iter().enumerate() {
            seals.add(lease, computed.of(row))?;
        }
        Ok(seals)
    }

    /// An error that names its row, where there are several.
    pub(crate) fn in_row(&self, row: usize, bad: core::Error) -> Failure {
        if let Self::Given(leases, _) = self
            && leases.len() == 1
        {
            return bad.into();
        }
        Failure::in_row(row, bad)
    }

    /// Refuses a lease that is named twice, for verbs that would serve it twice.
    pub(crate) fn check_once(&self, verb: &str) -> Outcome<()> {
        let mut ids = self.ids().to_vec();
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

/// A lease, or those of a list.
pub(crate) fn leases<'py>(from: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Lease>>> {
    if let Ok(lease) = from.cast::<Lease>() {
        return Ok(vec![lease.clone()]);
    }
    if let Ok(list) = from.cast::<PyList>() {
        return all(list.len(), list.iter());
    }
    if let Ok(tuple) = from.cast::<PyTuple>() {
        return all(tuple.len(), tuple.iter());
    }
    let items = from.try_iter().map_err(|_| {
        let kind = from.get_type();
        Failure::misuse(format!(
            "batch is {kind}: pass a lease, a list of leases, or a batch of them"
        ))
    })?;
    let items = each("batch", from, items, |_, item| Ok(item))?;
    all(items.len(), items.into_iter())
}

fn all<'py>(
    rows: usize,
    items: impl Iterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Vec<Bound<'py, Lease>>> {
    if rows > MOST {
        return Err(too_many("batch", rows).into());
    }
    let mut leases = Vec::new();
    room(&mut leases, rows, "a batch")?;
    for (row, item) in items.enumerate() {
        leases.push(item.cast_into::<Lease>().map_err(|wrong| {
            let kind = wrong.into_inner().get_type();
            Failure::misuse(format!("batch[{row}] is {kind}: pass leases"))
        })?);
    }
    Ok(leases)
}

impl Cache {
    /// A batch of leases that this cache made, none of them spent.
    pub(crate) fn rows<'py>(&self, from: &Bound<'py, PyAny>) -> PyResult<Batch<'py>> {
        self.check_open()?;
        let batch = Batch::new(from)?;
        self.check_rows(from.py(), &batch)?;
        Ok(batch)
    }

    /// Whether this cache made the leases of a batch, and none is spent.
    pub(crate) fn check_rows(&self, py: Python<'_>, batch: &Batch<'_>) -> PyResult<()> {
        if let Batch::Made(made) = batch
            && !made.inner.is_of(&self.inner)
        {
            let message = "the batch belongs to another cache: pass it to the cache that made it";
            return Err(self.reject(py, 1, Failure::Foreign(message.to_owned())));
        }
        for (row, lease) in batch.handles().into_iter().enumerate() {
            if let Err(bad) = self.inner.check_lease(lease) {
                return Err(self.reject(py, 1, batch.in_row(row, bad)));
            }
        }
        Ok(())
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
