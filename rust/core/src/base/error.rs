//! Errors are answers: each carries the numbers that let a scheduler act.

use super::id::Tier;
use thiserror::Error as Derive;

/// Results of the yard's verbs.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a verb changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, Derive)]
#[non_exhaustive]
pub enum Error {
    /// A bad argument.
    #[error("{name} = {value}: {help}")]
    Argument {
        /// Which argument.
        name: &'static str,
        /// Its value.
        value: String,
        /// What to do.
        help: &'static str,
    },
    /// A verb that this handle's state does not allow.
    #[error("{what}: {help}")]
    State {
        /// What was asked of what.
        what: String,
        /// What to do.
        help: &'static str,
    },
    /// A handle that has been used up.
    #[error("{what} {number} is spent: the verb that ends it came before; drop it")]
    Spent {
        /// Lease, parked sequence or ticket.
        what: &'static str,
        /// Its number.
        number: u64,
    },
    /// A handle of another yard.
    #[error("{what} {number} belongs to another cache: pass it to the cache that made it")]
    Foreign {
        /// Lease, parked sequence or ticket.
        what: &'static str,
        /// Its number.
        number: u64,
    },
    /// A flight that was never issued.
    #[error("flight {number} was never issued here: pass the number of a plan of this cache")]
    UnknownFlight {
        /// Its number.
        number: u64,
    },
    /// Something that Blockyard does not do yet.
    #[error("{what} = {value} is not supported: {help}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What to do.
        help: &'static str,
    },
    /// Try again later.
    #[error(
        "no room on the {}: need {need} blocks, free {free}, evictable {evictable}, \
         promised {promised}", .tier.name()
    )]
    NoRoom {
        /// Where.
        tier: Tier,
        /// Blocks that would be taken or promised.
        need: u64,
        /// Free slots.
        free: u64,
        /// Idle slots that may be taken, less those of the request's own prefix.
        evictable: u64,
        /// Slots promised to others.
        promised: u64,
        /// Blocks to be had: free and evictable, less promised.
        available: i64,
    },
    /// It never fits.
    #[error(
        "too large for the {}: need {need} blocks, capacity {capacity}; shorten it, reserve less, \
         or resize the tier", .tier.name()
    )]
    TooLarge {
        /// Where.
        tier: Tier,
        /// Blocks needed.
        need: u64,
        /// Blocks there are.
        capacity: u64,
    },
    /// Memory that is not to be had.
    #[error("no memory for {what}: it takes {bytes} bytes, {}; ask for less", of(*.there))]
    Memory {
        /// What it was for.
        what: &'static str,
        /// How much of it.
        bytes: u64,
        /// How much there was, if that is known.
        there: Option<u64>,
    },
    /// A verb has panicked.
    #[error(
        "this cache is broken by a bug of Blockyard's own ({why}): its numbers may be wrong, so that \
         it refuses every call; make another one, and report what standard error says"
    )]
    Broken {
        /// The message of the panic.
        why: String,
    },
    /// A resize or a withdraw below what is held.
    #[error(
        "cannot shrink the {} to {want} blocks: {used} are pinned, claimed, promised or \
         quarantined; finish or park leases or release tickets first", .tier.name()
    )]
    InUse {
        /// Where.
        tier: Tier,
        /// Blocks asked for.
        want: u64,
        /// Blocks in use.
        used: u64,
    },
}

fn of(there: Option<u64>) -> String {
    let refused = || "which the system refuses".to_owned();
    there.map_or_else(refused, |there| format!("and {there} are there"))
}

impl Error {
    pub(crate) fn argument(
        name: &'static str,
        value: impl std::fmt::Display,
        help: &'static str,
    ) -> Self {
        Self::Argument {
            name,
            value: value.to_string(),
            help,
        }
    }

    pub(crate) fn state(what: impl Into<String>, help: &'static str) -> Self {
        Self::State {
            what: what.into(),
            help,
        }
    }
}
