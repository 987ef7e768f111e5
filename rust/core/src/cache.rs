//! The public face in Rust: makes the yard, hands out handles, and locks it.

use crate::chain::{Chain, Extras};
use crate::error::{Error, Result};
use crate::hash::{KeyHash, Namespace, Seed};
use crate::id::{Group, LeaseId, Retention, TicketId, Tier};
use crate::lease::{Lease, Parked, Seals, Ticket};
use crate::plan::Plan;
use crate::shared::{Keys, Locked, Shared};
use crate::state::{Answer, Begun, Config, Filling, Request, State};
use crate::sync::Arc;

/// A KV cache's bookkeeping, shared between threads.
///
/// ```
/// use blockyard_core::{Cache, Config, Extras, Retention};
///
/// let cache = Cache::new(Config { slots: vec![64, 256], ..Config::default() }, Default::default(), &Default::default())?;
/// let mut chain = cache.chain(Extras::default())?;
/// chain.extend(&(0..100).collect::<Vec<u32>>())?;
/// let (lease, _) = cache.begin(chain.clone(), 32, u32::MAX)?.expect("nothing is in flight");
/// assert_eq!(cache.seal(&[(&lease, 100)])?, 6);
/// cache.finish(lease, Retention::Ordinary)?;
/// let (again, begun) = cache.begin(chain, 32, u32::MAX)?.expect("nothing is in flight");
/// assert_eq!(begun.cached, 96);
/// assert_eq!(cache.lock().audit(), None);
/// # cache.finish(again, Retention::Ordinary)?;
/// # Ok::<(), blockyard_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cache {
    shared: Arc<Shared>,
    seed: Seed,
}

impl Cache {
    /// A yard with these tiers, whose keys are in this namespace.
    ///
    /// # Errors
    /// `Argument` and `Unsupported`, naming the value.
    pub fn new(config: Config, hash: KeyHash, namespace: &Namespace) -> Result<Self> {
        let block_size = config.block_size;
        let state = State::new(config)?;
        let seed = Seed::new(hash, namespace, Group(0), block_size);
        Ok(Self {
            shared: Shared::new(state),
            seed,
        })
    }

    /// Waits for the yard. Hold it for one verb: a panic meanwhile breaks it, this one alone.
    ///
    /// # Errors
    /// `Broken` after a panic in a verb, in this call and every later one.
    pub fn enter(&self) -> Result<Locked<'_>> {
        self.shared.enter()
    }

    /// The yard, if nobody has it.
    ///
    /// # Errors
    /// `Broken` after a panic in a verb.
    pub fn try_enter(&self) -> Result<Option<Locked<'_>>> {
        self.shared.try_enter()
    }

    /// Whether it can be entered: for what does not have to.
    ///
    /// # Errors
    /// `Broken` after [`Self::break_down`].
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Refuses every call from here on, for who has caught a panic of one, with what it said.
    pub fn break_down(&self, why: String) -> Error {
        self.shared.break_down(why)
    }

    /// Waits for the yard as it is, also after a panic: to look at, or where panics are the caller's
    /// own.
    pub fn lock(&self) -> Locked<'_> {
        self.shared.lock()
    }

    /// The same, if nobody has it.
    pub fn try_lock(&self) -> Option<Locked<'_>> {
        self.shared.try_lock()
    }

    /// An empty chain of keys in this cache's namespace.
    ///
    /// # Errors
    /// `Argument` when media ranges overlap or are out of order.
    pub fn chain(&self, extras: Extras) -> Result<Chain> {
        Chain::new(&self.seed, extras)
    }

    /// What the cache's keys are seeded with.
    pub fn seed(&self) -> &Seed {
        &self.seed
    }

    /// The handle of a lease that [`State::begin`] or [`State::fork`] made for this chain.
    pub fn handle(&self, id: LeaseId, chain: Chain) -> Lease {
        Lease::new(&self.shared, id, Keys::new(chain))
    }

    /// Whether it made this lease.
    pub fn made(&self, lease: &Lease) -> bool {
        Arc::ptr_eq(&self.shared, lease.shared())
    }

    fn own(&self, lease: &Lease) -> Result<()> {
        let number = lease.id().number();
        if self.made(lease) {
            Ok(())
        } else {
            Err(Error::Foreign { number })
        }
    }

    /// Whether it made this parked sequence.
    pub fn made_parked(&self, parked: &Parked) -> bool {
        Arc::ptr_eq(&self.shared, parked.shared())
    }

    /// Admits a sequence. `None`: part of its prefix is in flight.
    ///
    /// # Errors
    /// `NoRoom`, `TooLarge`, `Argument`; nothing is held then.
    pub fn begin(&self, chain: Chain, reserve: u64, load: u32) -> Result<Option<(Lease, Begun)>> {
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

    /// Publishes full, computed blocks of a batch; returns how many.
    ///
    /// # Errors
    /// As [`State::seal`].
    pub fn seal(&self, batch: &[(&Lease, u64)]) -> Result<u64> {
        let mut seals = Seals::default();
        for (lease, computed) in batch {
            self.own(lease)?;
            seals.add(lease, *computed)?;
        }
        let sealed = seals.apply(&mut *self.enter()?)?;
        seals.remember(|at| batch[at].0);
        Ok(sealed)
    }

    /// Ends a sequence.
    ///
    /// # Errors
    /// `Foreign` for a lease of another cache.
    #[expect(clippy::needless_pass_by_value, reason = "it is spent")]
    pub fn finish(&self, lease: Lease, retention: Retention) -> Result<()> {
        self.own(&lease)?;
        self.enter()?.finish(&[lease.id()], retention, None)?;
        lease.spend();
        Ok(())
    }

    /// Parks a sequence after the engine's stop ack.
    ///
    /// # Errors
    /// The lease comes back with the reason: nothing is given up.
    pub fn park(&self, lease: Lease, computed: u64) -> Result<Parked, (Lease, Error)> {
        let mut seals = Seals::default();
        let parked = self
            .own(&lease)
            .and_then(|()| seals.add(&lease, computed))
            .and_then(|()| self.enter()?.park(&seals.row(&lease, computed), None));
        match parked {
            Ok(id) => Ok(lease.into_parked(id)),
            Err(error) => Err((lease, error)),
        }
    }

    /// Brings a parked sequence back.
    ///
    /// # Errors
    /// The handle comes back with `None` while part of its path is in flight, or the reason.
    pub fn resume(
        &self,
        parked: Parked,
        reserve: u64,
    ) -> Result<(Lease, Begun), (Parked, Option<Error>)> {
        let id = parked.id();
        if !self.made_parked(&parked) {
            let number = id.number();
            return Err((parked, Some(Error::Foreign { number })));
        }
        let chain = parked.chain();
        let answer = self
            .enter()
            .and_then(|mut state| state.resume(id, chain.keys(), chain.tokens(), reserve));
        match answer {
            Ok(Answer::Begun(begun)) => Ok((parked.into_lease(begun.lease), begun)),
            Ok(Answer::Soon(_)) => Err((parked, None)),
            Err(error) => Err((parked, Some(error))),
        }
    }

    /// The handle of a ticket that [`State::promise`] made.
    pub fn handle_ticket(&self, id: TicketId) -> Ticket {
        Ticket::new(&self.shared, id)
    }

    /// Whether it made this ticket.
    pub fn made_ticket(&self, ticket: &Ticket) -> bool {
        Arc::ptr_eq(&self.shared, ticket.shared())
    }

    /// Promises blocks of the device to somebody who does not run yet, or of the host to somebody
    /// who is to be parked.
    ///
    /// # Errors
    /// As [`State::promise`].
    pub fn promise(&self, blocks: u64, tier: Tier) -> Result<Ticket> {
        let id = self.enter()?.promise(blocks, tier)?;
        Ok(self.handle_ticket(id))
    }

    /// Gives a ticket back.
    ///
    /// # Errors
    /// `Foreign` for a ticket of another cache.
    #[expect(clippy::needless_pass_by_value, reason = "it is spent")]
    pub fn release(&self, ticket: Ticket) -> Result<()> {
        if !self.made_ticket(&ticket) {
            let number = ticket.id().number();
            return Err(Error::Foreign { number });
        }
        self.enter()?.release_ticket(ticket.id())?;
        ticket.spend();
        Ok(())
    }

    /// Forks a sequence of which `computed` tokens have their KV.
    ///
    /// # Errors
    /// As [`State::fork`].
    pub fn fork(&self, lease: &Lease, computed: u64, reserve: u64) -> Result<(Lease, Begun)> {
        lease.check_computed(computed)?;
        let begun = self.enter()?.fork(lease.id(), computed, reserve)?;
        Ok((self.handle(begun.lease, lease.chain()), begun))
    }

    /// Reports plans as carried out, whole.
    ///
    /// # Errors
    /// `UnknownFlight`.
    pub fn landed(&self, plans: &[Plan]) -> Result<()> {
        let outcomes: Vec<_> = plans.iter().map(Plan::whole).collect();
        self.enter()?.commit(&outcomes, None).map(|_| ())
    }
}
