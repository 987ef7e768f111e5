//! Handles of running and parked sequences, and of promised and held blocks. The verb that ends one spends it.
//! If it is dropped instead, it gives back what it holds, and is counted.

use super::shared::{Dropped, Keys, Known, Shared};
use crate::base::sync::{Arc, AtomicBool, Ordering};
use crate::base::{Error, HoldId, Key, LeaseId, ParkedId, Result, TicketId};
use crate::events::{Origin, Spoken};
use crate::keys::Chain;
use crate::state::{HeldPath, Sealing, State};

/// A running sequence: its pinned block table, and its keys. Not `Clone`: see `fork`.
#[derive(Debug)]
pub struct Lease {
    shared: Arc<Shared>,
    id: LeaseId,
    keys: Arc<Keys>,
    open: AtomicBool,
}

/// A parked sequence: its keeps, and its keys.
#[derive(Debug)]
pub struct Parked {
    shared: Arc<Shared>,
    id: ParkedId,
    keys: Arc<Keys>,
    open: AtomicBool,
}

/// Blocks promised to a request that does not have them yet: of the device for a begin or a resume,
/// of a tier below it for a park.
#[derive(Debug)]
pub struct Ticket {
    shared: Arc<Shared>,
    id: TicketId,
    open: AtomicBool,
}

/// Blocks of the device that stay where they are until the hold ends, by [`Self::release`] or by a verb that
/// forgets them. Any thread may use it, and only a release locks the yard.
#[derive(Debug)]
pub struct HeldBlocks {
    shared: Arc<Shared>,
    path: HeldPath,
    open: AtomicBool,
}

/// What handles have in common.
macro_rules! handle {
    ($($handle:ident: $id:ident, $what:literal;)+) => {
        $(impl $handle {
            /// Its id, as the verbs of [`State`] take it.
            pub fn id(&self) -> $id {
                self.id
            }

            pub(crate) fn shared(&self) -> &Arc<Shared> {
                &self.shared
            }

            /// # Errors
            /// `Spent` once a verb has ended what it stands for.
            pub fn check(&self) -> Result<()> {
                if self.open.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let number = self.id.number();
                Err(Error::Spent { what: $what, number })
            }

            /// Marks the handle as spent, after a verb of [`State`] has ended what it stands for.
            pub fn spend(&self) {
                self.open.store(false, Ordering::Relaxed);
            }
        }

        impl Drop for $handle {
            fn drop(&mut self) {
                if *self.open.get_mut() {
                    self.shared.give_back(Dropped::$handle(self.id));
                }
            }
        })+
    };
}

handle! {
    Lease: LeaseId, "lease";
    Parked: ParkedId, "parked sequence";
    Ticket: TicketId, "ticket";
}

impl Lease {
    pub(super) fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    pub(crate) fn new(shared: &Arc<Shared>, id: LeaseId, keys: Arc<Keys>) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            keys,
            open: AtomicBool::new(true),
        }
    }

    /// A copy of its keys as they are now: for a fork, or to begin the same prompt again.
    pub fn chain(&self) -> Chain {
        self.keys.lock().chain.clone()
    }

    /// Looks at its keys as they are now, without a copy of them.
    pub fn read<T>(&self, look: impl FnOnce(&Chain) -> T) -> T {
        look(&self.keys.lock().chain)
    }

    /// Tokens appended so far, the prompt included.
    pub fn tokens(&self) -> u64 {
        self.keys.lock().chain.tokens()
    }

    /// Extends the keys by tokens. They are hashed here, outside the yard's lock; a long text is hashed
    /// without a lock on the keys, so that a thread that asks for the number of tokens does not wait.
    ///
    /// # Errors
    /// `Spent`; `Argument` when its keys are given ready.
    pub fn append(&self, tokens: &[u32]) -> Result<()> {
        self.check()?;
        self.keys.append(self.keys.sound()?, tokens).map(drop)
    }

    /// Makes room for the keys of `more` tokens, so that a batch is refused before its first row.
    ///
    /// # Errors
    /// `Memory` where there is none.
    pub fn reserve(&self, more: usize) -> Result<()> {
        self.keys.sound()?.chain.reserve(more)
    }

    /// Whether tokens can be appended, so that a batch is refused before its first row.
    ///
    /// # Errors
    /// `Spent`; `Argument` when its keys are given ready.
    pub fn check_append(&self) -> Result<()> {
        self.check()?;
        if self.keys.are_ready() {
            return self.keys.lock().chain.check_extend();
        }
        Ok(())
    }

    /// The same for keys given ready: `tokens` more, which complete the blocks of `keys`.
    ///
    /// # Errors
    /// `Spent`; `Argument` when the keys do not fit the tokens, or it makes its own.
    pub fn append_ready(&self, tokens: u64, keys: &[Key]) -> Result<()> {
        self.check()?;
        self.keys.sound()?.chain.extend_ready(tokens, keys)
    }

    /// Whether `computed` tokens can have their KV: what two sequences share must have the same
    /// tokens.
    ///
    /// # Errors
    /// `Spent`; `Argument` when more is computed than was appended.
    pub fn check_computed(&self, computed: u64) -> Result<()> {
        self.check()?;
        if computed > self.tokens() {
            let help = "no more can be computed than was appended: append the tokens first";
            return Err(Error::argument("computed", computed, help));
        }
        Ok(())
    }

    /// Blocks that `more` tokens would complete, to judge the work of an append.
    pub fn keys_made_by(&self, more: usize) -> usize {
        self.keys.lock().chain.keys_made_by(more)
    }

    /// Spends the handle; of several threads that try, one succeeds.
    ///
    /// # Errors
    /// `Spent`, for the others.
    pub fn take(&self) -> Result<()> {
        if self.open.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        self.check()
    }

    /// Its keys pass on to what it has become.
    pub fn into_parked(&self, id: ParkedId) -> Parked {
        self.spend();
        let keys = Arc::clone(&self.keys);
        let mut known = keys.lock();
        known.sealed = 0;
        known.parkings = known.parkings.wrapping_add(1);
        drop(known);
        Parked::new(&self.shared, id, keys)
    }
}

impl Parked {
    pub(crate) fn new(shared: &Arc<Shared>, id: ParkedId, keys: Arc<Keys>) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            keys,
            open: AtomicBool::new(true),
        }
    }

    /// Looks at its keys as they are now, without a copy of them.
    pub fn read<T>(&self, look: impl FnOnce(&Chain) -> T) -> T {
        look(&self.keys.lock().chain)
    }

    /// Tokens appended so far. The yard has the number of computed ones, which parking has fixed.
    pub fn tokens(&self) -> u64 {
        self.keys.lock().chain.tokens()
    }

    /// A copy of its keys, so that no lock on them is held while the yard is waited for.
    pub fn chain(&self) -> Chain {
        self.keys.lock().chain.clone()
    }

    /// Its keys pass on to what it has become.
    pub fn into_lease(&self, id: LeaseId) -> Lease {
        self.spend();
        Lease::new(&self.shared, id, Arc::clone(&self.keys))
    }
}

impl Ticket {
    pub(crate) fn new(shared: &Arc<Shared>, id: TicketId) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            open: AtomicBool::new(true),
        }
    }
}

impl HeldBlocks {
    pub(crate) fn new(shared: &Arc<Shared>, path: HeldPath) -> Self {
        Self {
            shared: Arc::clone(shared),
            path,
            open: AtomicBool::new(true),
        }
    }

    /// Its id, as [`State::release_hold`] takes it.
    pub fn id(&self) -> HoldId {
        self.path.id
    }

    /// The device slots of its blocks, in the order of their sequence.
    pub fn slots(&self) -> &[u32] {
        &self.path.slots
    }

    /// The generation that each slot has while it is held.
    pub fn generations(&self) -> &[u64] {
        &self.path.generations
    }

    /// The keys of its blocks.
    pub fn keys(&self) -> &[Key] {
        &self.path.keys
    }

    /// The key of the block before each, as [`crate::Plan::parents`] has them.
    pub fn parents(&self) -> &[Key] {
        &self.path.parents
    }

    /// The generation that the slot of block `at` has now. Bytes that were read from it before this call are
    /// the block's, if this is the one of [`Self::generations`].
    pub fn generation_now(&self, at: usize) -> Option<u64> {
        self.path.numbers.of(*self.path.slots.get(at)?)
    }

    /// Whether it still holds its blocks. A verb that ends it ends all holds of its last block.
    pub fn is_held(&self) -> bool {
        let last = self.path.slots.len() - 1;
        self.open.load(Ordering::Relaxed)
            && self.generation_now(last) == self.path.generations.get(last).copied()
    }

    /// Ends it, unless it has ended.
    ///
    /// # Errors
    /// `Broken` after a panic in a verb.
    pub fn release(&self) -> Result<()> {
        if self.open.load(Ordering::Relaxed) {
            self.release_in(&mut *self.shared.enter()?);
        }
        Ok(())
    }

    /// The same where the yard that made it is locked already.
    pub fn release_in(&self, state: &mut State) {
        if self.open.swap(false, Ordering::Relaxed) {
            // It may have ended by a verb that forgot its blocks.
            let _ = state.release_hold(self.path.id);
        }
    }

    /// Marks the handle as spent: it gives nothing back.
    pub fn spend(&self) {
        self.open.store(false, Ordering::Relaxed);
    }
}

impl Drop for HeldBlocks {
    fn drop(&mut self) {
        if *self.open.get_mut() {
            self.shared.give_back(Dropped::HeldBlocks(self.path.id));
        }
    }
}

/// The keys of a batch that a seal may publish, gathered before the yard is locked.
#[derive(Debug, Default)]
pub struct Seals {
    leases: Vec<LeaseId>,
    keys: Vec<Key>,
    rows: Vec<Row>,
    /// Their tokens, where somebody listens.
    tokens: Vec<u32>,
    /// Whether its rows were checked, the first of them that is not published whole, and the blocks
    /// sealed so far.
    checked: bool,
    next: usize,
    sealed: u64,
}

#[derive(Debug)]
struct Row {
    /// Its place in the batch.
    at: usize,
    lease: LeaseId,
    computed: u64,
    first: u32,
    keys: std::ops::Range<usize>,
    /// Its tokens, and what its keys have besides.
    spoken: Option<(std::ops::Range<usize>, Origin)>,
    sealed: u32,
    /// How often the sequence had been parked.
    parkings: u32,
    /// Its keys that a slice has taken, and how often it had been trimmed before the first.
    taken: usize,
    trims: u32,
}

impl Seals {
    /// With room for so many rows of a block each.
    pub(super) fn with_capacity(rows: usize) -> Self {
        Self {
            keys: Vec::with_capacity(rows),
            rows: Vec::with_capacity(rows),
            ..Self::default()
        }
    }

    /// Adds a row: `computed` tokens of this lease have their KV.
    ///
    /// # Errors
    /// `Spent`; `Argument` when more is computed than was appended.
    pub fn add(&mut self, lease: &Lease, computed: u64) -> Result<()> {
        lease.check()?;
        let known = lease.keys.sound()?;
        if known.computes_more(computed)? {
            self.gather(self.leases.len(), lease.id, &known, computed);
        }
        self.leases.push(lease.id);
        Ok(())
    }

    /// Adds the blocks that row `at` of a batch has computed and not sealed.
    pub(super) fn gather(&mut self, at: usize, lease: LeaseId, known: &Known, computed: u64) {
        let (size, first) = (u64::from(known.chain.block_size()), known.sealed as usize);
        let full = (computed / size) as usize;
        let spoken = known.chain.spoken(first..full).map(|(tokens, origin)| {
            let start = self.tokens.len();
            self.tokens.extend_from_slice(tokens);
            (start..self.tokens.len(), origin.clone())
        });
        let start = self.keys.len();
        self.keys
            .extend_from_slice(&known.chain.keys()[first..full]);
        let (keys, sealed) = (start..self.keys.len(), known.sealed);
        self.rows.push(Row {
            at,
            lease,
            computed,
            first: sealed,
            keys,
            spoken,
            sealed,
            parkings: known.parkings,
            taken: 0,
            trims: 0,
        });
    }

    /// Blocks it may publish, to judge the work.
    pub fn blocks(&self) -> usize {
        self.keys.len()
    }

    /// Publishes; returns the blocks newly sealed.
    ///
    /// # Errors
    /// As [`State::seal`]; nothing is changed then.
    pub fn apply(&mut self, state: &mut State) -> Result<u64> {
        while self.apply_slice(state, usize::MAX)? {}
        Ok(self.sealed)
    }

    /// Publishes at most `most` blocks more, so that the yard may be unlocked between two calls. All rows
    /// are checked by the first call. If a row has ended or was trimmed since, by another thread, the rest
    /// of it is left out: [`Self::sealed`] says how many blocks were sealed. Returns whether more is left.
    ///
    /// # Errors
    /// As [`State::seal`], by the first call alone; nothing is changed then.
    pub fn apply_slice(&mut self, state: &mut State, most: usize) -> Result<bool> {
        if !self.checked {
            state.check_rows(&self.leases)?;
            if self.keys.len() <= most {
                self.sealed = state.seal(&self.sealings())?;
                self.next = self.rows.len();
                self.read_sealed(state);
                return Ok(false);
            }
            state.check_seal(&self.sealings())?;
            for row in &mut self.rows {
                row.trims = state.trims(row.lease);
            }
            self.checked = true;
        }
        let mut left = most;
        while left > 0
            && let Some(row) = self.rows.get(self.next)
        {
            let end = row.keys.len().min(row.taken.saturating_add(left));
            let part = self.part(row, row.taken..end);
            let sealed = state.seal_part(&part, row.trims);
            left -= end - row.taken;
            let row = &mut self.rows[self.next];
            row.taken = end;
            match sealed {
                Some(sealed) => {
                    self.sealed += sealed;
                    row.sealed = state.sealed(row.lease);
                }
                None => row.taken = row.keys.len(),
            }
            self.next += usize::from(row.taken == row.keys.len());
        }
        Ok(self.next < self.rows.len())
    }

    /// The blocks that were newly sealed so far.
    pub fn sealed(&self) -> u64 {
        self.sealed
    }

    pub(super) fn sealings(&self) -> Vec<Sealing<'_>> {
        self.rows.iter().map(|row| self.sealing(row)).collect()
    }

    /// Reads how much is sealed now, for [`Self::remember`].
    pub(super) fn read_sealed(&mut self, state: &State) {
        for row in &mut self.rows {
            row.sealed = state.sealed(row.lease);
        }
    }

    fn sealing<'a>(&'a self, row: &'a Row) -> Sealing<'a> {
        self.part(row, 0..row.keys.len())
    }

    /// Some of a row's keys. The tokens of all may be there, as they say where they begin.
    fn part<'a>(&'a self, row: &'a Row, keys: std::ops::Range<usize>) -> Sealing<'a> {
        let spoken = row.spoken.as_ref().map(|(tokens, origin)| Spoken {
            tokens: &self.tokens[tokens.clone()],
            origin,
            block: row.first,
        });
        Sealing {
            lease: row.lease,
            computed: row.computed,
            first: row.first + keys.start as u32,
            keys: &self.keys[row.keys.clone()][keys],
            spoken,
        }
    }

    /// The row of the batch that a park seals.
    pub fn row(&self, lease: &Lease, computed: u64) -> Sealing<'_> {
        let none = Sealing {
            lease: lease.id,
            computed,
            first: 0,
            keys: &[],
            spoken: None,
        };
        self.rows.first().map_or(none, |row| self.sealing(row))
    }

    /// Remembers what is sealed, so that the next seal gathers only what is new. `batch` gives the
    /// leases of the batch, in the order in which they were added.
    pub fn remember<'a>(&self, batch: impl Fn(usize) -> &'a Lease) {
        self.remember_keys(|at| &batch(at).keys);
    }

    pub(super) fn remember_keys<'a>(&self, batch: impl Fn(usize) -> &'a Keys) {
        for row in &self.rows {
            let mut known = batch(row.at).lock();
            // If another thread has parked it meanwhile, the parked sequence counts from 0.
            if known.parkings == row.parkings {
                known.sealed = row.sealed;
            }
        }
    }
}
