//! View: one consistent reading of a lease or a parked sequence.

use super::State;
use super::record::Keep;
use crate::base::{Error, FlightId, LeaseId, MAX_TIERS, ParkedId, Result};
use crate::collections::Found;
use crate::copies::Plan;

/// A lease as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Leading tokens whose KV it had at its start; shorter once a load has failed.
    pub cached: u64,
    /// Token positions it has, or asked, slots for.
    pub tokens: u64,
    /// Blocks in its table.
    pub blocks: u32,
    /// Leading blocks that are sealed.
    pub sealed: u32,
    /// Blocks of growth still promised to it.
    pub promised: u32,
    /// Flights in flight for it; it may not run before they have landed.
    pub loading: u32,
    /// A resume whose loads did not come whole, or a table that ends before `tokens` because a
    /// copy into it has an unknown end: `grow` by 0 gives it its slots.
    pub incomplete: bool,
    /// It stands for a parked sequence still: the loads of its resume are in flight, or did not
    /// come whole, and a park takes it back to where it was.
    pub resumed: bool,
    /// `clear` has detached it: what it computes is never published.
    pub detached: bool,
}

/// A parked sequence as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParkedView {
    /// Tokens whose KV is kept; frozen when it was parked.
    pub computed: u64,
    /// Blocks kept.
    pub blocks: u32,
    /// Leading blocks whose device slots it still pins.
    pub on_device: u32,
    /// Blocks that are ready at their home, by that tier.
    pub kept: [u32; MAX_TIERS],
    /// Its keeps were broken: it will be computed again.
    pub broken: bool,
}

impl State {
    /// The lease as it is now.
    ///
    /// # Errors
    /// `Spent`.
    pub fn view(&self, id: LeaseId) -> Result<View> {
        let lease = self.lease(id)?;
        let record = &self.leases[lease];
        let lacks = u64::from(record.blocks()) < self.blocks_of(record.tokens);
        Ok(View {
            cached: record.cached,
            tokens: record.tokens,
            blocks: record.blocks(),
            sealed: record.sealed,
            promised: record.promised(),
            loading: record.loading(),
            incomplete: record.is_incomplete() || lacks,
            resumed: record.resumes().is_some(),
            detached: self.detached(lease),
        })
    }

    /// The parked sequence as it is now.
    ///
    /// # Errors
    /// `Spent`.
    pub fn view_parked(&self, id: ParkedId) -> Result<ParkedView> {
        let record = &self.parked[self.parked(id)?];
        Ok(ParkedView {
            computed: record.computed,
            blocks: record.path.len() as u32,
            on_device: record.on_device,
            kept: self.kept(record).0,
            broken: record.keep == Keep::Broken,
        })
    }

    /// Whether a plan is of this yard, and the one that its flight was made for, unless that has
    /// ended: the plan of another cache has a number that may be in use here.
    ///
    /// # Errors
    /// `UnknownFlight`; `State` where it is of another group of layers.
    pub fn check_plan(&self, plan: &Plan) -> Result<()> {
        if plan.group != self.config.group {
            let (given, own) = (plan.group.0, self.config.group.0);
            let what = format!("ending a flight of group {given} in the cache of group {own}");
            return Err(Error::state(what, "pass it to the cache of its own group"));
        }
        let number = plan.flight.number();
        let own = match self.flights.find(plan.flight.0) {
            Found::Never => false,
            Found::Ended => true,
            Found::Live => {
                let flight = &self.flights[plan.flight.at()];
                let copies = plan
                    .sources
                    .iter()
                    .copied()
                    .zip(plan.destinations.iter().copied());
                (flight.from, flight.to) == (plan.from, plan.to)
                    && flight.copies().eq(copies)
                    && (&flight.keys, &flight.parents) == (&plan.keys, &plan.parents)
            }
        };
        if own && plan.yard == self.config.yard {
            Ok(())
        } else {
            Err(Error::UnknownFlight { number })
        }
    }

    /// Whether all of these flights were issued here, so that a batch of outcomes is refused
    /// before its first is applied.
    ///
    /// # Errors
    /// `UnknownFlight`.
    pub fn check_flights(&self, flights: &[FlightId]) -> Result<()> {
        match flights
            .iter()
            .find(|id| self.flights.find(id.0) == Found::Never)
        {
            Some(id) => Err(Error::UnknownFlight {
                number: id.number(),
            }),
            None => Ok(()),
        }
    }
}
