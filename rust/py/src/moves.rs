//! The verbs that end, park, share and move what a sequence holds, and the outcomes of flights.

use crate::arguments::{self, Counts};
use crate::batch::Named;
use crate::cache::Cache;
use crate::enter::enter;
use crate::error::Failure;
use crate::handles::{Lease, Parked};
use crate::keys::Keys;
use crate::plan::Plan;
use crate::tickets::Ticket;
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    #[pyo3(signature = (lease, computed, *, after=None, ticket=None))]
    fn park(
        slf: &Bound<'_, Self>,
        lease: &Bound<'_, Lease>,
        computed: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::after)] after: Option<u64>,
        ticket: Option<&Bound<'_, Ticket>>,
    ) -> PyResult<Parked> {
        let (py, cache) = (slf.py(), slf.get());
        let batch = cache.batch(lease.as_any())?;
        let ticket = ticket
            .map(|ticket| ticket.get().of(cache, py))
            .transpose()?;
        let computed = Counts::new("computed", computed, 1)?;
        let seals = Self::seals(&batch, &computed)?;
        let handle = &lease.get().inner;
        let row = seals.row(handle, computed.of(0));
        let parked = enter(
            py,
            &cache.inner,
            cache.blocks(&batch),
            |state| match ticket {
                Some(ticket) => state.redeem_parking(ticket.id(), &row, after),
                None => state.park(&row, after),
            },
        );
        let inner = handle.into_parked(parked?);
        if let Some(ticket) = ticket {
            ticket.spend();
        }
        Ok(Parked {
            inner,
            cache: slf.clone().unbind(),
        })
    }

    fn abandon(&self, py: Python<'_>, parked: &Bound<'_, Parked>) -> PyResult<()> {
        let handle = self.parked(py, parked.get())?;
        let blocks = (handle.tokens() / u64::from(self.block_size)) as usize;
        enter(py, &self.inner, blocks, |state| state.abandon(handle.id()))?;
        handle.spend();
        Ok(())
    }

    #[pyo3(signature = (lease, computed, *, reserve=0))]
    fn fork(
        slf: &Bound<'_, Self>,
        lease: &Bound<'_, Lease>,
        #[pyo3(from_py_with = arguments::computed)] computed: u64,
        #[pyo3(from_py_with = arguments::reserve)] reserve: u64,
    ) -> PyResult<Lease> {
        let (py, cache) = (slf.py(), slf.get());
        let batch = cache.batch(lease.as_any())?;
        let id = batch.ids[0];
        let handle = &lease.get().inner;
        handle.check_computed(computed).map_err(Failure::from)?;
        let blocks = cache.blocks(&batch);
        let begun = enter(py, &cache.inner, blocks, |state| {
            state.fork(id, computed, reserve)
        })?;
        let handle = cache.inner.handle(begun.lease, handle.chain());
        Lease::new(py, slf.clone().unbind(), handle, begun)
    }

    #[pyo3(name = "finish", signature = (batch, *, retention="ordinary", after=None))]
    fn finish_batch(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        retention: &str,
        #[pyo3(from_py_with = arguments::after)] after: Option<u64>,
    ) -> PyResult<()> {
        self.finish(py, batch, retention, after)
    }

    fn dispatch(&self, py: Python<'_>) -> PyResult<Vec<Plan>> {
        self.check_open()?;
        let plans = enter(py, &self.inner, 0, |state| Ok(state.dispatch()))?;
        Ok(plans.into_iter().map(Plan).collect())
    }

    #[pyo3(signature = (blocks, *, of=None))]
    fn demote(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::blocks)] blocks: u32,
        of: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Plan>> {
        self.check_open()?;
        let named = blocks as usize;
        let plan = match of {
            None => enter(py, &self.inner, named, |state| Ok(state.demote(blocks))),
            Some(of) => {
                if let Ok(parked) = of.cast::<Parked>() {
                    let id = self.parked(py, parked.get())?.id();
                    enter(py, &self.inner, named, |state| {
                        state.demote_parked(id, blocks)
                    })
                } else {
                    let lease = of.cast::<Lease>().map_err(|_| {
                        let kind = of.get_type();
                        Failure::misuse(format!("of is {kind}: pass a lease or a parked sequence"))
                    })?;
                    let id = self.batch(lease.as_any())?.ids[0];
                    enter(py, &self.inner, named, |state| {
                        state.demote_lease(id, blocks)
                    })
                }
            }
        };
        Ok(plan?.map(Plan))
    }

    #[pyo3(signature = (keys, blocks=None))]
    fn promote(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, Keys>,
        #[pyo3(from_py_with = arguments::most)] blocks: Option<u32>,
    ) -> PyResult<Option<Plan>> {
        self.check_open()?;
        self.check_keys(&keys.get().0)?;
        let keys = keys.get().0.keys();
        let most = blocks.unwrap_or(u32::MAX);
        let plan = enter(py, &self.inner, keys.len(), |state| {
            state.promote(keys, most)
        });
        Ok(plan?.map(Plan))
    }

    #[pyo3(signature = (flights, good=None, *, corrupt=None, done=None))]
    fn commit(
        &self,
        py: Python<'_>,
        flights: &Bound<'_, PyAny>,
        good: Option<&Bound<'_, PyAny>>,
        corrupt: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::done)] done: Option<u64>,
    ) -> PyResult<u64> {
        self.check_sound()?;
        let named = Named::all(flights)?;
        let good = good
            .map(|good| Counts::new("good", good, named.len()))
            .transpose()?;
        let corrupt = corrupt
            .map(|bad| arguments::flags("corrupt", bad, named.len()))
            .transpose()?;
        let mut outcomes = Vec::with_capacity(named.len());
        for (at, own) in named.iter().enumerate() {
            let flight = own.flight;
            let good = good
                .as_ref()
                .map(|good| good.of(at))
                .or_else(|| own.len().map(u64::from));
            let good = good.ok_or_else(|| {
                Failure::misuse(format!(
                    "good is missing for flight {}: pass it, or plans",
                    flight.number()
                ))
            })?;
            let good = u32::try_from(good).map_err(|_| {
                Failure::misuse(format!("good[{at}] = {good}: no plan has as many blocks"))
            })?;
            let corrupt = corrupt.as_ref().is_some_and(|bad| bad[at]);
            outcomes.push(if corrupt {
                blockyard_core::Outcome::corrupt(flight, good)
            } else {
                blockyard_core::Outcome::failed(flight, good)
            });
        }
        let blocks = outcomes.iter().map(|one| one.good as usize + 1).sum();
        let plans = Named::plans(&named);
        let ended = enter(py, &self.inner, blocks, |state| {
            plans.iter().try_for_each(|plan| state.check_plan(plan))?;
            state.commit(&outcomes, done)
        });
        Ok(ended?)
    }

    fn abort(&self, py: Python<'_>, flights: &Bound<'_, PyAny>) -> PyResult<u64> {
        self.check_sound()?;
        let named = Named::all(flights)?;
        let outcomes: Vec<_> = named
            .iter()
            .map(|named| blockyard_core::Outcome::failed(named.flight, 0))
            .collect();
        let (blocks, plans) = (Named::blocks(&named), Named::plans(&named));
        let ended = enter(py, &self.inner, blocks, |state| {
            plans.iter().try_for_each(|plan| state.check_plan(plan))?;
            state.commit(&outcomes, None)
        });
        Ok(ended?)
    }

    fn mark_unknown(&self, py: Python<'_>, flights: &Bound<'_, PyAny>) -> PyResult<u64> {
        self.check_sound()?;
        let named = Named::all(flights)?;
        let ids: Vec<_> = named.iter().map(|named| named.flight).collect();
        let (blocks, plans) = (Named::blocks(&named), Named::plans(&named));
        let ended = enter(py, &self.inner, blocks, |state| {
            plans.iter().try_for_each(|plan| state.check_plan(plan))?;
            state.check_flights(&ids)?;
            ids.iter().try_fold(0, |ended, &id| {
                Ok(ended + u64::from(state.mark_unknown(id)?))
            })
        });
        Ok(ended?)
    }
}
