//! The only lock on the yard, and the only file that takes a lock.

use crate::base::sync::{
    Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, TryLockError, yield_now,
};
use crate::base::{Error, HoldId, LeaseId, ParkedId, Result, TicketId};
use crate::events::{Batch, Clears, EventStats, Late, Salts, Slice, Walk};
use crate::keys::Chain;
use crate::state::State;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, OnceLock};

/// The yard behind its one short mutex. Only arithmetic happens under it: it is never held while
/// hashing, copying, logging or calling out.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Threads that wait for it.
    waiting: AtomicU32,
    /// What dropped handles held. The thread that locks next takes it back, so that a drop never waits.
    dropped: Mutex<Vec<Dropped>>,
    any_dropped: AtomicBool,
    /// Steps so far that have appended.
    steps: AtomicU64,
    /// The message of a panic that a caller has caught.
    broken: OnceLock<String>,
    /// The listener, if there is one.
    ear: OnceLock<Ear>,
}

/// A listener, beside the yard. Its lock is taken before the yard's, and held while events are encoded.
struct Ear {
    slice: Mutex<Slice>,
    block_size: u32,
    clears: Clears,
    /// Tokens that come beside their blocks, until they are taken, and how many.
    late: Mutex<(Vec<Late>, usize)>,
    /// Whether there are blocks without their tokens.
    lacks: AtomicBool,
}

/// How often a thread looks whether another has come in before it goes on: about as long as that takes to
/// wake up.
const TURNS: usize = 500;

/// Tokens that wait to be taken at most.
const MOST_LATE: usize = 1 << 24;

/// The events that a late subscriber begins with.
#[derive(Debug)]
pub struct Snapshot {
    /// What has gone and was not taken yet: a batch for those who follow already, to be sent before it.
    pub before: Option<Vec<u8>>,
    /// All that was emitted and is still true, as one batch.
    pub payload: Vec<u8>,
}

/// The events of one drain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drained {
    /// A batch of events in vLLM's form, or `None` where nothing has happened.
    pub payload: Option<Vec<u8>>,
    /// Whether more is to come at once.
    pub more: bool,
}

#[derive(Debug)]
pub(crate) enum Dropped {
    Lease(LeaseId),
    Parked(ParkedId),
    Ticket(TicketId),
    HeldBlocks(HoldId),
}

/// The yard, locked. It unlocks when dropped.
#[derive(Debug)]
pub struct Locked<'a>(MutexGuard<'a, State>);

impl Deref for Locked<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

/// Short, as a printed handle must not print the whole yard and its keys.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Yard")
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl Shared {
    pub(crate) fn new(state: State) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(state),
            waiting: AtomicU32::new(0),
            dropped: Mutex::new(Vec::new()),
            any_dropped: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            broken: OnceLock::new(),
            ear: OnceLock::new(),
        })
    }

    /// Somebody listens from here on.
    pub(crate) fn listen(
        &self,
        most: usize,
        block_size: u32,
        salts: Salts,
        clears: Clears,
    ) -> Result<()> {
        // Under the lock, as two that come together must not both have the room.
        let mut state = self.enter()?;
        if !state.config.linked {
            let what = "listening to a cache whose blocks are not linked".to_owned();
            return Err(Error::state(what, "listen to the cache of group 0"));
        }
        let ear = Ear {
            slice: Mutex::new(state.listen(most, salts, clears)?),
            block_size,
            clears,
            late: Mutex::default(),
            lacks: AtomicBool::new(true),
        };
        // The yard has no listener before, so that there was no ear either.
        let _ = self.ear.set(ear);
        Ok(())
    }

    pub(crate) fn has_listener(&self) -> bool {
        self.ear.get().is_some()
    }

    /// Whether tokens are wanted of blocks that were emitted before.
    pub(crate) fn lacks_tokens(&self) -> bool {
        let ear = self.ear.get();
        ear.is_some_and(|ear| ear.lacks.load(Ordering::Relaxed))
    }

    /// Takes tokens of blocks that came, or may come, without them.
    pub(crate) fn describe(&self, late: Late) {
        if let Some(ear) = self.ear.get() {
            let mut waiting = wait(&ear.late);
            // Where nobody takes them, their blocks stay deferred.
            if !late.keys.is_empty() && waiting.1 + late.tokens.len() <= MOST_LATE {
                waiting.1 += late.tokens.len();
                waiting.0.push(late);
            }
        }
    }

    fn ear(&self) -> Result<&Ear> {
        self.ear.get().ok_or_else(|| {
            let what = "taking events of a cache that has no listener".to_owned();
            Error::state(what, "call listen first")
        })
    }

    /// Some of what has happened since the last time.
    pub(crate) fn drain(&self, time: f64, rank: Option<u32>) -> Result<Drained> {
        let ear = self.ear()?;
        let mut slice = wait(&ear.slice);
        let (late, _) = std::mem::take(&mut *wait(&ear.late));
        for late in &late {
            let all = late.keys.len();
            for first in (0..all).step_by(slice.most()) {
                let end = all.min(first + slice.most());
                self.enter()?.describe(late, first..end);
            }
        }
        let mut state = self.enter()?;
        let more = state.hand_over(&mut slice);
        // What the next slices pass may have no tokens.
        let lacks = more || state.event_stats().unknown_tokens > 0;
        ear.lacks.store(lacks, Ordering::Relaxed);
        drop(state);
        let mut batch = Batch::new(time);
        slice.encode(ear.block_size, &mut batch);
        let payload = (batch.events() > 0).then(|| batch.finish(rank));
        Ok(Drained { payload, more })
    }

    /// All that was emitted to the listener and is still true.
    pub(crate) fn snapshot(&self, time: f64, rank: Option<u32>) -> Result<Snapshot> {
        let ear = self.ear()?;
        // While nobody drains, nothing more counts as emitted.
        let mut slice = wait(&ear.slice);
        let mut batch = Batch::new(time);
        if ear.clears == Clears::All {
            batch.cleared();
        }
        let (blocks, places) = self.enter()?.count_snapshot();
        batch.reserve(blocks, 0, ear.block_size);
        // With room before the lock is taken; it grows there only as far as the trie does meanwhile.
        let (mut walk, mut seen) = (Walk::default(), vec![0; places]);
        while self
            .enter()?
            .copy_snapshot(&mut walk, &mut seen, &mut slice)
        {
            slice.encode_stored(ear.block_size, &mut batch);
        }
        slice.encode_stored(ear.block_size, &mut batch);
        let mut before = Batch::new(time);
        slice.encode_late(&seen, &mut before, &mut batch);
        Ok(Snapshot {
            before: (before.events() > 0).then(|| before.finish(rank)),
            payload: batch.finish(rank),
        })
    }

    pub(crate) fn event_stats(&self) -> Result<EventStats> {
        self.ear()?;
        Ok(self.enter()?.event_stats())
    }

    /// The yard, unless a panic has left it half changed.
    pub(crate) fn enter(&self) -> Result<Locked<'_>> {
        match self.wait() {
            Ok(guard) if self.broken.get().is_none() => Ok(self.collect(Locked(guard))),
            _ => Err(self.is_broken()),
        }
    }

    #[inline]
    fn wait(&self) -> LockResult<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
            Err(TryLockError::WouldBlock) => self.wait_for_others(),
        }
    }

    #[cold]
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    fn wait_for_others(&self) -> LockResult<MutexGuard<'_, State>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.state.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Lets one of the threads that wait have the yard, before this one enters it again: it would have it
    /// before any of them is awake.
    pub(crate) fn let_others(&self) {
        let waiting = self.waiting.load(Ordering::Relaxed);
        for _ in 0..TURNS {
            match self.waiting.load(Ordering::Relaxed) {
                0 => return,
                fewer if fewer < waiting => return,
                _ => yield_now(),
            }
        }
    }

    /// The same, if no other thread has it.
    pub(crate) fn try_enter(&self) -> Result<Option<Locked<'_>>> {
        match self.state.try_lock() {
            Ok(guard) if self.broken.get().is_none() => Ok(Some(self.collect(Locked(guard)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            _ => Err(self.is_broken()),
        }
    }

    /// The number of another step.
    pub(crate) fn next_step(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether it can be entered, unless a panic has not been reported yet.
    pub(crate) fn check(&self) -> Result<()> {
        if self.broken.get().is_some() {
            return Err(self.is_broken());
        }
        Ok(())
    }

    /// Refuses to be entered from now on; the first reason stays.
    pub(crate) fn break_down(&self, why: String) -> Error {
        self.broken.get_or_init(|| why);
        self.is_broken()
    }

    fn is_broken(&self) -> Error {
        let why = self
            .broken
            .get()
            .map_or("a verb has panicked", String::as_str);
        Error::Broken {
            why: why.to_owned(),
        }
    }

    /// The yard as it is, even after a panic.
    pub(crate) fn lock(&self) -> Locked<'_> {
        let guard = self.wait();
        self.collect(Locked(
            guard.unwrap_or_else(std::sync::PoisonError::into_inner),
        ))
    }

    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        match self.state.try_lock() {
            Ok(guard) => Some(self.collect(Locked(guard))),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(self.collect(Locked(poisoned.into_inner())))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn give_back(&self, what: Dropped) {
        if self.check().is_err() {
            return;
        }
        wait(&self.dropped).push(what);
        self.any_dropped.store(true, Ordering::Release);
    }

    fn collect<'a>(&self, mut locked: Locked<'a>) -> Locked<'a> {
        if self.any_dropped.load(Ordering::Acquire) {
            self.any_dropped.store(false, Ordering::Relaxed);
            let dropped = std::mem::take(&mut *wait(&self.dropped));
            for what in dropped {
                match what {
                    Dropped::Lease(id) => locked.leak_lease(id),
                    Dropped::Parked(id) => locked.leak_parked(id),
                    Dropped::Ticket(id) => locked.leak_ticket(id),
                    Dropped::HeldBlocks(id) => locked.leak_hold(id),
                }
            }
        }
        locked
    }
}

/// So many keys are made while the sequence's keys are locked: at about 45 ns each, this takes 12 µs.
const FEW_KEYS: usize = 256;

/// A sequence's keys, beside its lease so that hashing happens outside the yard's lock.
#[repr(align(64))]
pub(crate) struct Keys {
    known: Mutex<Known>,
    ready: bool,
}

/// What every step looks at is together, in few lines of the cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Known {
    /// Leading blocks that the yard had sealed when it was last asked; it never unseals one.
    pub(crate) sealed: u32,
    /// How often the sequence was parked: it has no sealed blocks then, whatever was read before.
    pub(crate) parkings: u32,
    /// The step that has appended last; 0 where it was no step, or tokens came since.
    pub(crate) step: u64,
    pub(crate) chain: Chain,
}

impl Known {
    /// Whether `computed` tokens make blocks full that were not sealed.
    ///
    /// # Errors
    /// `Argument` when more is computed than was appended.
    #[inline]
    pub(crate) fn computes_more(&self, computed: u64) -> Result<bool> {
        if computed > self.chain.tokens() {
            return Err(not_appended(computed));
        }
        let size = u64::from(self.chain.block_size());
        Ok(computed >= (u64::from(self.sealed) + 1) * size)
    }
}

#[cold]
fn not_appended(computed: u64) -> Error {
    let help = "no more can be computed than was appended: append the tokens first";
    Error::argument("computed", computed, help)
}

impl Keys {
    pub(crate) fn new(chain: Chain) -> Arc<Self> {
        Arc::new(Self {
            ready: chain.check_extend().is_err(),
            known: Mutex::new(Known {
                chain,
                sealed: 0,
                step: 0,
                parkings: 0,
            }),
        })
    }

    /// Appends tokens to keys that are locked. They stay locked, but not while many keys are made: a
    /// thread that asks for the number of tokens does not wait for that.
    #[inline]
    pub(crate) fn append<'a>(
        &'a self,
        mut known: MutexGuard<'a, Known>,
        tokens: &[u32],
    ) -> Result<MutexGuard<'a, Known>> {
        known.step = 0;
        if tokens.len() > FEW_KEYS && known.chain.keys_made_by(tokens.len()) > FEW_KEYS {
            return self.append_long(known, tokens);
        }
        known.chain.extend(tokens)?;
        Ok(known)
    }

    #[cold]
    fn append_long<'a>(
        &'a self,
        known: MutexGuard<'a, Known>,
        tokens: &[u32],
    ) -> Result<MutexGuard<'a, Known>> {
        let mut chain = known.chain.clone();
        drop(known);
        let before = chain.tokens();
        chain.extend(tokens)?;
        let mut known = self.sound()?;
        // A step that has appended meanwhile takes nothing back any more.
        known.step = 0;
        if known.chain.tokens() == before {
            chain = std::mem::replace(&mut known.chain, chain);
        } else {
            // Another thread has appended to the same sequence meanwhile.
            known.chain.extend(tokens)?;
        }
        drop(known);
        drop(chain);
        self.sound()
    }

    /// Whether the engine makes them.
    pub(crate) fn are_ready(&self) -> bool {
        self.ready
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Known> {
        wait(&self.known)
    }

    /// The same, to make or to publish keys; an error after a panic, which may have left them half made.
    #[inline]
    pub(crate) fn sound(&self) -> Result<MutexGuard<'_, Known>> {
        #[expect(clippy::disallowed_methods, reason = "this is the place")]
        self.known.lock().map_err(|_| Self::half_made())
    }

    #[cold]
    fn half_made() -> Error {
        Error::Broken {
            why: "making a sequence's keys has panicked".to_owned(),
        }
    }
}

/// Takes the lock even after a panic, for callers that may go on after one.
#[expect(clippy::disallowed_methods, reason = "this is the place")]
fn wait<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
