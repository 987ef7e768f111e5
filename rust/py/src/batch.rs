//! Batches: sequences of leases, and of flights.

use crate::arguments::flight;
use crate::buffers::{MOST, each, integers, room, shown, too_many};
use crate::enter::SHORT;
use crate::error::{Failure, Outcome};
use crate::handles::Lease;
use crate::plan::Plan;
use blockyard_core as core;
use blockyard_core::{FlightId, LeaseId};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyTuple};

/// The leases of a batch; `Cache::batch` checks that they are its own and not spent.
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

    /// Only the rows that are good.
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

    /// A lease that is named twice would be served twice: refused where that matters.
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

/// A flight that the caller has named, by its plan or by its number.
pub(crate) struct Named<'py> {
    pub(crate) flight: FlightId,
    plan: Option<Bound<'py, Plan>>,
}

impl<'py> Named<'py> {
    /// Flights out of a plan, a number, a sequence of either, or an array of numbers.
    pub(crate) fn all(from: &Bound<'py, PyAny>) -> PyResult<Vec<Self>> {
        if from.is_instance_of::<Plan>() || from.is_instance_of::<PyInt>() {
            return Ok(vec![Self::one(from)?]);
        }
        if from.is_instance_of::<PyList>() || from.is_instance_of::<PyTuple>() {
            let items = from.try_iter()?;
            return each("flights", from, items, |_, item| Self::one(&item));
        }
        let numbers: Vec<u64> = integers("flights", from)?;
        let named = |number| {
            Ok(Self {
                flight: flight(number)?,
                plan: None,
            })
        };
        Ok(numbers.into_iter().map(named).collect::<Outcome<_>>()?)
    }

    fn one(from: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(plan) = from.cast::<Plan>() {
            return Ok(Self {
                flight: plan.get().0.flight,
                plan: Some(plan.clone()),
            });
        }
        let number = from.extract().map_err(|_| {
            Failure::misuse(format!(
                "flight {}: pass a Plan, or the number of its flight",
                shown(from)
            ))
        })?;
        Ok(Self {
            flight: flight(number)?,
            plan: None,
        })
    }

    pub(crate) fn plan(&self) -> Option<&core::Plan> {
        self.plan.as_ref().map(|plan| &plan.get().0)
    }

    /// The plan's blocks, where it is known.
    pub(crate) fn len(&self) -> Option<u32> {
        self.plan().map(|plan| plan.len() as u32)
    }

    /// About how many blocks a batch is of; a number alone may be of any.
    pub(crate) fn blocks(all: &[Self]) -> usize {
        let len = |named: &Self| named.len().map_or(SHORT + 1, |len| len as usize + 1);
        all.iter().map(len).sum()
    }

    pub(crate) fn plans(all: &[Self]) -> Vec<&core::Plan> {
        all.iter().filter_map(Self::plan).collect()
    }
}
