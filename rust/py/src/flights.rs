//! The verbs that make copies between tiers, hand their plans out, and take their outcomes in.

use crate::arguments::{self, Counts, flight};
use crate::buffers::{each, integers, shown};
use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::gil::{SHORT, enter, enter_weighed};
use crate::keys::Keys;
use crate::lease::Lease;
use crate::parked::Parked;
use crate::plan::Plan;
use blockyard_core::{self as core, FlightId, State, Tier};
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyTuple};

#[guarded]
#[pymethods]
impl Cache {
    /// Returns the plans that no earlier call returned, in the order in which they were made.
    ///
    /// Plans that begins, forks, demotes and promotes have returned are among them: carry each out
    /// only once. Flights that have ended meanwhile are left out. It is for the thread that drives
    /// the steps.
    fn dispatch(&self, py: Python<'_>) -> PyResult<Vec<Plan>> {
        self.check_open()?;
        let plans = enter_weighed(py, &self.inner, State::dispatch_work, |state| {
            Ok(state.dispatch())
        })?;
        Ok(plans.into_iter().map(Plan).collect())
    }

    /// Copies blocks of a tier down to the next lower one that has slots.
    ///
    /// Args:
    ///     blocks: The most blocks to copy. Without `of` it examines that many of the tier's next
    ///         victims, and copies those without a copy below. So it may copy fewer, or none,
    ///         although blocks behind them have no copy either. The cache's `write` may select
    ///         other blocks than victims. Blocks examined by an earlier call are skipped, so it may
    ///         be called at every step.
    ///     of: A parked sequence, whose last blocks go first, from the device to the tier that has
    ///         promised them slots; or a lease, whose first sealed blocks go first.
    ///     tier: Where they are, without `of`.
    ///     to: For a parked sequence, a lower tier to keep blocks that a higher one keeps or has
    ///         promised. Each block is kept there once its copy has landed. Call it again until it
    ///         returns None: one plan has one source.
    ///
    /// Returns:
    ///     The plan, which `dispatch` hands out too; None if there is nothing to copy.
    ///
    /// Raises:
    ///     Misuse: A value is out of range, `of` is something else, or there is no such tier.
    ///     SpentLease: The sequence has ended before.
    ///     ForeignLease: It is another cache's.
    #[pyo3(signature = (blocks, *, of=None, tier="device", to=None))]
    fn demote(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::blocks)] blocks: u32,
        of: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
        to: Option<&str>,
    ) -> PyResult<Option<Plan>> {
        self.check_open()?;
        let named = blocks as usize;
        let tier = arguments::tier(tier)?;
        let to = to.map(|to| arguments::named_tier("to", to)).transpose()?;
        if to.is_some() && !of.is_some_and(Bound::is_instance_of::<Parked>) {
            let message = "to goes with of=, a parked sequence: other blocks go to the next tier";
            return Err(Failure::misuse(message.to_owned()).into());
        }
        if of.is_some() && tier != Tier::DEVICE {
            let message = "tier goes without of=: the blocks of a sequence are where they are";
            return Err(Failure::misuse(message.to_owned()).into());
        }
        let plan = match of {
            None => enter(py, &self.inner, named, |state| {
                state.limit(tier)?;
                Ok(state.demote(tier, blocks))
            }),
            Some(of) => {
                if let Ok(parked) = of.cast::<Parked>() {
                    let id = parked.get().of(self, py)?.id();
                    enter(py, &self.inner, named, |state| {
                        state.demote_parked(id, blocks, to)
                    })
                } else {
                    let lease = of.cast::<Lease>().map_err(|_| {
                        let kind = of.get_type();
                        Failure::misuse(format!("of is {kind}: pass a lease or a parked sequence"))
                    })?;
                    let id = self.rows(lease.as_any())?.ids()[0];
                    enter(py, &self.inner, named, |state| {
                        state.demote_lease(id, blocks)
                    })
                }
            }
        };
        Ok(plan?.map(Plan))
    }

    /// Copies down blocks that a tier may evict soon, if that is due now, as `dispatch` does by itself.
    ///
    /// While fewer than `least` slots are free, so many of the next victims have a copy below. Paths are
    /// copied whole, the root first, or as far as there is room.
    ///
    /// Args:
    ///     least: The fewest next victims that should have a copy below.
    ///     tier: Where they are.
    ///     grows: Whether as many victims as the largest begin has taken so far should have one, if
    ///         that is more; and whether the blocks behind them follow, the oldest first and `least`
    ///         blocks at a time, while no copy down is under way.
    ///
    /// Returns:
    ///     The plan, which `dispatch` hands out too; None if there is nothing to copy.
    ///
    /// Raises:
    ///     Misuse: A value is out of range, or there is no such tier.
    #[pyo3(signature = (least, *, tier="device", grows=true))]
    fn copy_ahead(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::blocks)] least: u32,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
        grows: bool,
    ) -> PyResult<Option<Plan>> {
        self.check_open()?;
        let tier = arguments::tier(tier)?;
        let plan = enter(py, &self.inner, least as usize, |state| {
            state.limit(tier)?;
            Ok(state.copy_ahead(tier, least, grows))
        });
        Ok(plan?.map(Plan))
    }

    /// Copies the part of a prefix that lies below a tier up to it, ahead of a request.
    ///
    /// Args:
    ///     keys: The keys of the prefix.
    ///     blocks: The most blocks to copy; None for all.
    ///     to: The tier. To the device all of them go or none; to a lower one, the first that find
    ///         room there.
    ///
    /// Returns:
    ///     A plan for each run of blocks that lie on one tier, which `dispatch` hands out too; none
    ///     if there is nothing to copy.
    ///
    /// Raises:
    ///     NoRoom: The device has no room for them now.
    ///     TooLarge: The device never holds the prefix.
    ///     Misuse: The keys are of blocks of another size, `blocks` is out of range, or the tier
    ///         has no slots.
    #[pyo3(signature = (keys, blocks=None, *, to="device"))]
    fn promote(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, Keys>,
        #[pyo3(from_py_with = arguments::most)] blocks: Option<u32>,
        to: &str,
    ) -> PyResult<Vec<Plan>> {
        self.check_open()?;
        let to = arguments::named_tier("to", to)?;
        self.check_keys(&keys.get().0)?;
        let keys = keys.get().0.keys();
        let most = blocks.unwrap_or(u32::MAX);
        let plans = enter(py, &self.inner, keys.len(), |state| {
            state.promote(keys, most, to)
        });
        Ok(plans?.into_iter().map(Plan).collect())
    }

    /// Reports the outcomes of flights whose copies have ended.
    ///
    /// It is for the thread that drives the steps.
    ///
    /// Args:
    ///     flights: Plans, or numbers of flights.
    ///     good: Leading intact blocks of each, the minimum over ranks. The default for plans is
    ///         all.
    ///     corrupt: True where the first bad block failed its checksum: its source is dropped.
    ///     done: A step that the engine has done: slots that were held back for it are given back.
    ///
    /// Returns:
    ///     Flights that ended. Outcomes that come twice or too late are counted and change nothing.
    ///
    /// Raises:
    ///     Misuse: More blocks are good than the plan has, or `good` is missing for a number;
    ///         nothing is committed.
    ///     ForeignLease: A flight or plan is not of this cache; nothing is committed.
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

    /// Reports that the copies of these flights have ended, and that none is good.
    ///
    /// It is for the thread that drives the steps.
    ///
    /// Args:
    ///     flights: Plans, or numbers of flights.
    ///
    /// Returns:
    ///     Flights that ended. Those that had ended before are counted and change nothing.
    ///
    /// Raises:
    ///     ForeignLease: A flight or plan is not of this cache; nothing is changed.
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

    /// Reports that these flights have missed their deadline, and their outcome is unknown.
    ///
    /// Their destinations are quarantined until `commit` or `abort` reports that the copies have
    /// ended, and never published. Their sources are released, except for copies to a keyed tier. It
    /// is for the thread that drives the steps.
    ///
    /// Args:
    ///     flights: Plans, or numbers of flights.
    ///
    /// Returns:
    ///     Flights that are unknown now and were not before.
    ///
    /// Raises:
    ///     ForeignLease: A flight or plan is not of this cache; nothing is changed.
    fn mark_unknown(&self, py: Python<'_>, flights: &Bound<'_, PyAny>) -> PyResult<u64> {
        self.check_sound()?;
        let named = Named::all(flights)?;
        let mut ids: Vec<_> = named.iter().map(|named| named.flight).collect();
        let (blocks, plans) = (Named::blocks(&named), Named::plans(&named));
        let ended = enter(py, &self.inner, blocks, |state| {
            plans.iter().try_for_each(|plan| state.check_plan(plan))?;
            state.check_flights(&ids)?;
            // The caller's order decides nothing.
            ids.sort_by_key(|&id| state.launch_of(id));
            ids.iter().try_fold(0, |ended, &id| {
                Ok(ended + u64::from(state.mark_unknown(id)?))
            })
        });
        Ok(ended?)
    }
}

/// A flight that the caller has named, by its plan or by its number.
struct Named<'py> {
    flight: FlightId,
    plan: Option<Bound<'py, Plan>>,
}

impl<'py> Named<'py> {
    /// Reads flights out of a plan, a number, a sequence of either, or an array of numbers.
    fn all(from: &Bound<'py, PyAny>) -> PyResult<Vec<Self>> {
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
        let number = from.extract().ok();
        let number = number.filter(|_| !from.is_instance_of::<PyBool>());
        let number = number.ok_or_else(|| {
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

    fn plan(&self) -> Option<&core::Plan> {
        self.plan.as_ref().map(|plan| &plan.get().0)
    }

    /// The plan's blocks, if the plan was given.
    fn len(&self) -> Option<u32> {
        self.plan().map(|plan| plan.len() as u32)
    }

    /// About how many blocks these flights have; a number alone counts as a long flight.
    fn blocks(all: &[Self]) -> usize {
        let len = |named: &Self| named.len().map_or(SHORT + 1, |len| len as usize + 1);
        all.iter().map(len).sum()
    }

    fn plans(all: &[Self]) -> Vec<&core::Plan> {
        all.iter().filter_map(Self::plan).collect()
    }
}
