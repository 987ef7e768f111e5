//! The public face in Rust: makes the yard, hands out handles, and locks it.

use super::lease::{HeldBlocks, Lease, Parked, Ticket};
use super::shared::{Drained, Keys, Locked, Shared, Snapshot};
use crate::base::sync::Arc;
use crate::base::{Error, Group, Key, LeaseId, ParkedId, Result, TicketId};
use crate::events::{Clears, EventStats, Late, Salts};
use crate::keys::{Chain, Extras, KeyHash, Namespace, Seed};
use crate::state::{Condemned, Config, Forgotten, HeldPath, Lineage, State, Violation};
use std::ops::Range;

/// Places of the trie that a forget looks at in one lock, and how often it looks through all of them before
/// it does so in one.
const SLICE: usize = 1024;
const TRIES: u32 = 3;

/// A KV cache's bookkeeping, shared between threads: [`Self::enter`] locks the [`State`], which has
/// the verbs. They take ids; the handles of what they give are made here.
///
/// ```
/// use blockyard_core::{Answer, Cache, Config, Extras, Filling, Request, Retention, Seals};
///
/// let cache = Cache::new(Config { slots: vec![64, 256], ..Config::default() }, Default::default(), &Default::default())?;
/// let mut chain = cache.chain(Extras::default())?;
/// chain.extend(&(0..100).collect::<Vec<u32>>())?;
/// let (keys, tokens) = (chain.keys(), chain.tokens());
/// let request = Request { keys, tokens, reserve: 32, load: u32::MAX, filling: Filling::Stop };
///
/// let Answer::Begun(begun) = cache.enter()?.begin(&request)? else { panic!("nothing is in flight") };
/// let lease = cache.handle(begun.lease, chain.clone());
/// let mut seals = Seals::default();
/// seals.add(&lease, 100)?;
/// assert_eq!(seals.apply(&mut *cache.enter()?)?, 6);
/// cache.enter()?.finish(&[lease.id()], Retention::Ordinary, None)?;
/// lease.spend();
///
/// assert_eq!(cache.enter()?.probe(keys).hits[0], 6);
/// assert_eq!(cache.lock().audit(), None);
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

    /// Waits for the yard. Hold it for one verb: a panic meanwhile breaks this yard, and no other.
    ///
    /// # Errors
    /// `Broken` after a panic in a verb, in this call and every later one.
    pub fn enter(&self) -> Result<Locked<'_>> {
        self.shared.enter()
    }

    /// Lets threads that wait for the yard have it, between two slices of a long verb.
    pub fn let_others(&self) {
        self.shared.let_others();
    }

    /// The yard, if no other thread has it.
    ///
    /// # Errors
    /// `Broken` after a panic in a verb.
    pub fn try_enter(&self) -> Result<Option<Locked<'_>>> {
        self.shared.try_enter()
    }

    /// Whether it can be entered, for calls that need not enter it.
    ///
    /// # Errors
    /// `Broken` after [`Self::break_down`].
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Refuses every later call. A caller that has caught a panic in a verb tells its message here.
    pub fn break_down(&self, why: String) -> Error {
        self.shared.break_down(why)
    }

    /// Waits for the yard as it is, even after a panic: to look at it, or where the caller answers for
    /// panics.
    pub fn lock(&self) -> Locked<'_> {
        self.shared.lock()
    }

    /// The same, if no other thread has it.
    pub fn try_lock(&self) -> Option<Locked<'_>> {
        self.shared.try_lock()
    }

    /// An empty chain of keys in this cache's namespace.
    ///
    /// # Errors
    /// `Argument` when media ranges overlap or are out of order.
    pub fn chain(&self, extras: Extras) -> Result<Chain> {
        if !self.shared.has_listener() {
            return Chain::new(&self.seed, extras);
        }
        Ok(Chain::new(&self.seed, extras.clone())?.telling(extras))
    }

    /// Somebody listens to what happens to its blocks from here on, of `ring` events at a time at
    /// most: when so many wait, they are dropped and counted, and all blocks are told again. What is
    /// there already is told when a prompt brings its tokens.
    ///
    /// # Errors
    /// `State` where somebody listens already; `Argument` for a ring that holds nothing; `Memory`.
    pub fn listen(&self, ring: usize, salts: Salts, clears: Clears) -> Result<()> {
        let size = self.seed.block_size();
        self.shared.listen(ring, size, salts, clears)
    }

    /// Whether somebody listens.
    pub fn has_listener(&self) -> bool {
        self.shared.has_listener()
    }

    /// Some of what has happened since the last time, as a batch of events of this time and rank. Under the
    /// lock it copies a slice, and it encodes outside of it.
    ///
    /// # Errors
    /// `State` where nobody listens; `Broken`.
    pub fn drain(&self, time: f64, rank: Option<u32>) -> Result<Drained> {
        self.shared.drain(time, rank)
    }

    /// All that was told and is true still, as one batch that begins with a clear.
    ///
    /// # Errors
    /// `State` where nobody listens.
    pub fn snapshot(&self, time: f64, rank: Option<u32>) -> Result<Snapshot> {
        self.shared.snapshot(time, rank)
    }

    /// The first law found broken: [`State::audit`].
    pub fn audit(&self) -> Option<Violation> {
        self.shared.lock().audit()
    }

    /// How much was told, and how much not.
    ///
    /// # Errors
    /// `State` where nobody listens.
    pub fn event_stats(&self) -> Result<EventStats> {
        self.shared.event_stats()
    }

    /// A prompt has begun that has found blocks: tells their tokens, where some are not known.
    pub fn emit_found(&self, chain: &Chain, blocks: usize) {
        if !self.shared.lacks_tokens() {
            return;
        }
        self.emit_chain(chain, 0..blocks.min(chain.keys().len()));
    }

    /// Blocks of an engine's own ids were offloaded: publishes their tokens, where their keys were made here.
    pub fn emit_offloaded(&self, chain: &Chain, first: u32, blocks: usize) {
        if self.shared.has_listener() {
            let first = (first as usize).min(chain.keys().len());
            self.emit_chain(chain, first..(first + blocks).min(chain.keys().len()));
        }
    }

    fn emit_chain(&self, chain: &Chain, blocks: Range<usize>) {
        if let Some((tokens, origin)) = chain.spoken(blocks.clone()) {
            self.shared.describe(Late {
                above: blocks.start.checked_sub(1).map(|above| chain.keys()[above]),
                first: blocks.start as u32,
                tokens: tokens.to_vec(),
                origin: origin.clone(),
                keys: chain.keys()[blocks].to_vec(),
                numbers: Vec::new(),
                number_above: 0,
                early: false,
            });
        }
    }

    /// Tells the tokens of blocks `first..` of a sequence whose keys the engine has made. They may come
    /// before their blocks: the last twice as many as there are slots are remembered. `numbers`: what they, and before them the block above, are told by; none
    /// for their keys' own.
    ///
    /// # Errors
    /// `State` where nobody listens; `Argument` where tokens or numbers are not as many as the blocks.
    pub fn describe(
        &self,
        keys: &[Key],
        first: usize,
        tokens: &[u32],
        numbers: &[u64],
        extras: Extras,
    ) -> Result<()> {
        if !self.shared.has_listener() {
            let what = "describing blocks of a cache that has no listener".to_owned();
            return Err(Error::state(what, "call listen first"));
        }
        let size = self.seed.block_size() as usize;
        let blocks = tokens.len() / size;
        if !tokens.len().is_multiple_of(size) || first + blocks > keys.len() {
            let help = "give the tokens of whole blocks, no more than there are keys from first on";
            return Err(Error::argument("tokens", tokens.len(), help));
        }
        let above = usize::from(first > 0);
        if !numbers.is_empty() && numbers.len() != blocks + above {
            let help = "give one for each block, and before them that of the block above, if any";
            return Err(Error::argument("numbers", numbers.len(), help));
        }
        let (before, own) = numbers.split_at(above.min(numbers.len()));
        self.shared.describe(Late {
            keys: keys[first..first + blocks].to_vec(),
            above: first.checked_sub(1).map(|above| keys[above]),
            tokens: tokens.to_vec(),
            first: first as u32,
            origin: (extras != Extras::default()).then(|| std::sync::Arc::new(extras)),
            numbers: own.to_vec(),
            number_above: before.first().copied().unwrap_or(0),
            early: true,
        });
        Ok(())
    }

    /// Forgets blocks, as [`State::forget`]; but it looks through the trie in slices, so that no lock is
    /// held longer than what is forgotten takes.
    ///
    /// # Errors
    /// As [`State::forget`]; `Broken`.
    pub fn forget(&self, what: Condemned<'_>, force: bool) -> Result<Forgotten> {
        let mut state = self.enter()?;
        state.check_forget(what)?;
        if let Some(done) = state.forget_family(what, None, force) {
            return Ok(done);
        }
        drop(state);
        for _ in 0..TRIES {
            let mut lineage = Lineage::default();
            while !self.enter()?.look_at(what, SLICE, &mut lineage)? {}
            let behind = lineage.behind();
            // Where others have published something behind it meanwhile, it looks again.
            if let Some(done) = self.enter()?.forget_family(what, Some(&behind), force) {
                return Ok(done);
            }
        }
        self.enter()?.forget(what, force)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What the cache's keys are seeded with.
    pub fn seed(&self) -> &Seed {
        &self.seed
    }

    /// The handle of a lease that [`State::begin`] or [`State::fork`] made for this chain.
    pub fn handle(&self, id: LeaseId, chain: Chain) -> Lease {
        Lease::new(&self.shared, id, Keys::new(chain))
    }

    /// The handle of a request that [`State::save_request`] keeps, of this chain.
    pub fn handle_kept(&self, id: ParkedId, chain: Chain) -> Parked {
        Parked::new(&self.shared, id, Keys::new(chain))
    }

    /// The handle of a ticket that [`State::promise`] made.
    pub fn handle_ticket(&self, id: TicketId) -> Ticket {
        Ticket::new(&self.shared, id)
    }

    /// The handle of a hold that [`State::hold_blocks`] made.
    pub fn handle_held(&self, path: HeldPath) -> HeldBlocks {
        HeldBlocks::new(&self.shared, path)
    }

    /// Whether verbs may be given this lease: this cache made it, and it is not spent.
    ///
    /// # Errors
    /// `Foreign`, `Spent`.
    pub fn check_lease(&self, lease: &Lease) -> Result<()> {
        self.check_own(lease.shared(), "lease", lease.id().number())?;
        lease.check()
    }

    /// The same for a parked sequence.
    ///
    /// # Errors
    /// `Foreign`, `Spent`.
    pub fn check_parked(&self, parked: &Parked) -> Result<()> {
        self.check_own(parked.shared(), "parked sequence", parked.id().number())?;
        parked.check()
    }

    /// The same for a ticket.
    ///
    /// # Errors
    /// `Foreign`, `Spent`.
    pub fn check_ticket(&self, ticket: &Ticket) -> Result<()> {
        self.check_own(ticket.shared(), "ticket", ticket.id().number())?;
        ticket.check()
    }

    fn check_own(&self, maker: &Arc<Shared>, what: &'static str, number: u64) -> Result<()> {
        if Arc::ptr_eq(&self.shared, maker) {
            Ok(())
        } else {
            Err(Error::Foreign { what, number })
        }
    }
}
