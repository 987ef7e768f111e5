//! The exceptions, and how the core's errors become them. A new one takes a class here, an arm in
//! `from_core`, and a line in the stub and in `blockyard/__init__.py`.

use blockyard_core::Error;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    blockyard,
    BlockyardError,
    PyException,
    "Any error of Blockyard."
);
create_exception!(
    blockyard,
    Misuse,
    BlockyardError,
    "A bug in the caller: a bad argument, or a handle in a wrong state."
);
create_exception!(
    blockyard,
    SpentLease,
    Misuse,
    "A handle was used after the verb that ended it."
);
create_exception!(
    blockyard,
    ForeignLease,
    Misuse,
    "A handle or flight of another cache."
);
create_exception!(
    blockyard,
    Unsupported,
    Misuse,
    "Something that Blockyard does not do yet."
);
create_exception!(
    blockyard,
    NoRoom,
    BlockyardError,
    "There is no room now: try again later; nothing is held.

`TooLarge` and `InUse` set the numbers to 0 that do not matter to them.

Attributes:
    tier: The tier that has no room: \"device\" or \"host\".
    need: Blocks that are needed.
    free: Blocks that hold nothing.
    evictable: Idle blocks that may be evicted now.
    promised: Blocks of both that are promised to others.
    available: `free + evictable - promised`: the blocks to be had."
);
create_exception!(
    blockyard,
    TooLarge,
    NoRoom,
    "The request never fits.

Attributes:
    capacity: Blocks that the tier may hold."
);
create_exception!(
    blockyard,
    InUse,
    NoRoom,
    "A resize or a withdraw that leaves fewer slots than are in use.

Blocks that promises would lack count as used: what a copy reads cannot be evicted for them yet.

Attributes:
    want: Blocks that the tier was to hold.
    used: Blocks that are in use."
);
create_exception!(
    blockyard,
    Unavailable,
    BlockyardError,
    "A tier, device or store is out, there is no memory, or Blockyard has a bug.

A cache that such a bug has left half changed raises this error in every later call. Make
another cache: the bug does not touch the others."
);

/// The error of a verb, before it becomes a Python exception. It holds no Python object, so that it
/// can be made while detached.
#[derive(Debug)]
pub(crate) enum Failure {
    Core(Error),
    Misuse(String),
    Spent(String),
    Foreign(String),
    Panicked(String),
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// One error for all rows of a batch that were rejected while the others were served. It has the
    /// kind of the first, and the messages of all.
    pub(crate) fn of_rows(mut bad: Vec<Self>, rows: usize) -> Option<Self> {
        if bad.len() <= 1 && rows <= 1 {
            return bad.pop();
        }
        let all: Vec<String> = bad.iter().map(Self::message).collect();
        let (rejected, all) = (bad.len(), all.join("; "));
        let message = format!("{rejected} of {rows} rows rejected, the others served: {all}");
        match bad.into_iter().next()? {
            Self::Core(Error::Spent { .. }) => Some(Self::Spent(message)),
            Self::Core(Error::Foreign { .. }) => Some(Self::Foreign(message)),
            _ => Some(Self::Misuse(message)),
        }
    }

    /// The error of a handle in this row of a batch.
    pub(crate) fn in_row(row: usize, error: Error) -> Self {
        let message = format!("batch[{row}]: {error}");
        match error {
            Error::Spent { .. } => Self::Spent(message),
            Error::Foreign { .. } => Self::Foreign(message),
            error => Self::Core(error),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Core(error) => error.to_string(),
            Self::Misuse(message) | Self::Spent(message) | Self::Foreign(message) => {
                message.clone()
            }
            Self::Panicked(why) => format!(
                "a bug of Blockyard's own ({why}) has cut this call short; the cache is sound: report what \
                 standard error says"
            ),
        }
    }

    pub(crate) fn misuse(message: impl Into<String>) -> Self {
        Self::Misuse(message.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Misuse(message) => Misuse::new_err(message),
            Failure::Spent(message) => SpentLease::new_err(message),
            Failure::Foreign(message) => ForeignLease::new_err(message),
            Failure::Core(error) => from_core(&error),
            panicked @ Failure::Panicked(_) => Unavailable::new_err(panicked.message()),
        }
    }
}

fn from_core(error: &Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Spent { .. } => SpentLease::new_err(message),
        Error::Foreign { .. } | Error::UnknownFlight { .. } => ForeignLease::new_err(message),
        Error::Unsupported { .. } => Unsupported::new_err(message),
        Error::Memory { .. } | Error::Broken { .. } => Unavailable::new_err(message),
        &Error::NoRoom {
            tier,
            need,
            free,
            evictable,
            promised,
            available,
        } => {
            let numbers = [
                ("need", need),
                ("free", free),
                ("evictable", evictable),
                ("promised", promised),
            ];
            with(NoRoom::new_err(message), tier.name(), &numbers, available)
        }
        &Error::TooLarge {
            tier,
            need,
            capacity,
        } => {
            // It never fits, whatever is free or promised.
            let numbers = [
                ("need", need),
                ("capacity", capacity),
                ("free", 0),
                ("evictable", 0),
                ("promised", 0),
            ];
            with(TooLarge::new_err(message), tier.name(), &numbers, 0)
        }
        &Error::InUse { tier, want, used } => {
            let numbers = [
                ("want", want),
                ("used", used),
                ("need", used),
                ("free", 0),
                ("evictable", 0),
                ("promised", 0),
            ];
            with(InUse::new_err(message), tier.name(), &numbers, 0)
        }
        _ => Misuse::new_err(message),
    }
}

/// Adds the numbers as attributes, for a scheduler to act on.
fn with(error: PyErr, tier: &str, numbers: &[(&str, u64)], available: i64) -> PyErr {
    Python::attach(|py| {
        let value = error.value(py);
        let mut numbers = numbers.iter();
        let set = value
            .setattr("tier", tier)
            .and_then(|()| value.setattr("available", available))
            .and_then(|()| numbers.try_for_each(|(name, number)| value.setattr(*name, *number)));
        set.err().unwrap_or(error)
    })
}
