//! The only lock on the yard, and the only file that takes a lock.

use crate::chain::Chain;
use crate::id::{LeaseId, ParkedId, TicketId};
use crate::state::State;
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, TryLockError};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The yard behind its one short mutex. Only arithmetic happens under it: it is never held while
/// hashing, copying, logging or calling out.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// What dropped handles held: taken back by whoever locks next, so that a drop never waits.
    dropped: Mutex<Vec<Dropped>>,
    any_dropped: AtomicBool,
}

#[derive(Debug)]
pub(crate) enum Dropped {
    Lease(LeaseId),
    Parked(ParkedId),
    Ticket(TicketId),
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

/// Short: a handle that is printed must not print the whole yard, keys included.
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
            dropped: Mutex::new(Vec::new()),
            any_dropped: AtomicBool::new(false),
        })
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        self.collect(Locked(wait(&self.state)))
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
                }
            }
        }
        locked
    }
}

/// A sequence's keys, beside its lease so that hashing happens outside the yard's lock.
pub(crate) struct Keys {
    known: Mutex<Known>,
    ready: bool,
}

#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) chain: Chain,
    /// Leading blocks that the yard has sealed, as last heard; never more than it has.
    pub(crate) sealed: u32,
}

impl Keys {
    pub(crate) fn new(chain: Chain) -> Arc<Self> {
        Arc::new(Self {
            ready: chain.check_extend().is_err(),
            known: Mutex::new(Known { chain, sealed: 0 }),
        })
    }

    /// Whether the engine makes them.
    pub(crate) fn are_ready(&self) -> bool {
        self.ready
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Known> {
        wait(&self.known)
    }
}

/// A panic under a lock is a bug that the audit will name; the bookkeeping goes on.
#[expect(clippy::disallowed_methods, reason = "this is the place")]
fn wait<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
