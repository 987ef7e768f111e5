//! The verbs of a cache as tests use them: each locks once, takes handles and gives handles.

#![cfg_attr(
    feature = "shuttle",
    expect(clippy::result_large_err, reason = "shuttle's atomics are large")
)]

use blockyard_core::{
    Answer, Begun, Cache, Chain, Error, Filling, Lease, Parked, Plan, Request, Result, Retention,
    Seals, Ticket, Tier,
};

/// Blocks for which a seal holds the lock at a time: few, so that others come in between.
const SLICE: usize = 2;

pub(crate) trait Verbs {
    /// Admits a sequence. `None`: part of its prefix is in flight.
    fn begin(&self, chain: Chain, reserve: u64, load: u32) -> Result<Option<(Lease, Begun)>>;
    /// Publishes the full blocks among the computed tokens of each lease; returns how many.
    fn seal(&self, batch: &[(&Lease, u64)]) -> Result<u64>;
    fn finish(&self, lease: Lease, retention: Retention) -> Result<()>;
    /// Parks a sequence; refused, the lease comes back.
    fn park(&self, lease: Lease, computed: u64) -> Result<Parked, (Lease, Error)>;
    /// Resumes a sequence; refused, or with `None` while part of its path is in flight, the handle
    /// comes back.
    fn resume(
        &self,
        parked: Parked,
        reserve: u64,
    ) -> Result<(Lease, Begun), (Parked, Option<Error>)>;
    fn fork(&self, lease: &Lease, computed: u64, reserve: u64) -> Result<(Lease, Begun)>;
    fn promise(&self, blocks: u64, tier: Tier) -> Result<Ticket>;
    fn release(&self, ticket: Ticket) -> Result<()>;
    /// Reports plans as carried out, whole.
    fn landed(&self, plans: &[Plan]) -> Result<()>;
}

impl Verbs for Cache {
    fn begin(&self, chain: Chain, reserve: u64, load: u32) -> Result<Option<(Lease, Begun)>> {
        let (keys, tokens) = (chain.keys(), chain.tokens());
        let request = Request {
            keys,
            tokens,
            reserve,
            load,
            filling: Filling::Soon,
        };
        let answer = self.enter()?.begin(&request)?;
        Ok(match answer {
            Answer::Begun(begun) => Some((self.handle(begun.lease, chain), begun)),
            Answer::Soon(_) => None,
        })
    }

    fn seal(&self, batch: &[(&Lease, u64)]) -> Result<u64> {
        let mut seals = Seals::default();
        for (lease, computed) in batch {
            self.check_lease(lease)?;
            seals.add(lease, *computed)?;
        }
        while seals.apply_slice(&mut *self.enter()?, SLICE)? {
            self.let_others();
        }
        seals.remember(|at| batch[at].0);
        Ok(seals.sealed())
    }

    fn finish(&self, lease: Lease, retention: Retention) -> Result<()> {
        self.check_lease(&lease)?;
        self.enter()?.finish(&[lease.id()], retention, None)?;
        lease.spend();
        Ok(())
    }

    fn park(&self, lease: Lease, computed: u64) -> Result<Parked, (Lease, Error)> {
        let mut seals = Seals::default();
        let parked = self
            .check_lease(&lease)
            .and_then(|()| seals.add(&lease, computed))
            .and_then(|()| {
                let mut state = self.enter()?;
                state.park(&seals.row(&lease, computed), None)
            });
        match parked {
            Ok(id) => Ok(lease.into_parked(id)),
            Err(error) => Err((lease, error)),
        }
    }

    fn resume(
        &self,
        parked: Parked,
        reserve: u64,
    ) -> Result<(Lease, Begun), (Parked, Option<Error>)> {
        let (id, chain) = (parked.id(), parked.chain());
        let answer = self
            .check_parked(&parked)
            .and_then(|()| self.enter())
            .and_then(|mut state| state.resume(id, chain.keys(), chain.tokens(), reserve));
        match answer {
            Ok(Answer::Begun(begun)) => Ok((parked.into_lease(begun.lease), begun)),
            Ok(Answer::Soon(_)) => Err((parked, None)),
            Err(error) => Err((parked, Some(error))),
        }
    }

    fn fork(&self, lease: &Lease, computed: u64, reserve: u64) -> Result<(Lease, Begun)> {
        lease.check_computed(computed)?;
        let begun = self.enter()?.fork(lease.id(), computed, reserve)?;
        Ok((self.handle(begun.lease, lease.chain()), begun))
    }

    fn promise(&self, blocks: u64, tier: Tier) -> Result<Ticket> {
        let id = self.enter()?.promise(blocks, tier)?;
        Ok(self.handle_ticket(id))
    }

    fn release(&self, ticket: Ticket) -> Result<()> {
        self.check_ticket(&ticket)?;
        self.enter()?.release_ticket(ticket.id())?;
        ticket.spend();
        Ok(())
    }

    fn landed(&self, plans: &[Plan]) -> Result<()> {
        let outcomes: Vec<_> = plans.iter().map(Plan::whole).collect();
        self.enter()?.commit(&outcomes, None).map(|_| ())
    }
}
