//! The exceptions, and how the core's errors become them. To add one: an arm in `From<Error>`,
//! a class here, a line in the stub and in `blockyard/__init__.py`.

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
    "Try again later; nothing is held. Attributes: tier, need, free, evictable, promised (blocks)."
);
create_exception!(
    blockyard,
    TooLarge,
    NoRoom,
    "It never fits. Attributes: tier, need, capacity (blocks)."
);
create_exception!(
    blockyard,
    InUse,
    NoRoom,
    "A resize below what is held. Attributes: tier, want, used (blocks)."
);
create_exception!(
    blockyard,
    Unavailable,
    BlockyardError,
    "A tier, device or store is out; there is no memory; or a cache is broken by a bug of Blockyard's own."
);

/// What a verb of the binding fails with, before it becomes a Python exception: it holds nothing
/// of Python's, so that it can be made while detached.
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
    /// One for the rows of a batch that were rejected while the others were served: of the first
    /// one's kind, with what all of them say.
    pub(crate) fn of_rows(mut bad: Vec<Self>, rows: usize) -> Option<Self> {
        if bad.len() <= 1 && rows <= 1 {
            return bad.pop();
        }
        let all: Vec<String> = bad.iter().map(Self::message).collect();
        let (rejected, all) = (bad.len(), all.join("; "));
        let message = format!("{rejected} of {rows} rows rejected, the others served: {all}");
        match bad.into_iter().next()? {
            Self::Core(Error::Spent { .. }) => Some(Self::Spent(message)),
            Self::Foreign(_) => Some(Self::Foreign(message)),
            _ => Some(Self::Misuse(message)),
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
            ..
        } => with(
            NoRoom::new_err(message),
            tier.name(),
            &[
                ("need", need),
                ("free", free),
                ("evictable", evictable),
                ("promised", promised),
            ],
        ),
        &Error::TooLarge {
            tier,
            need,
            capacity,
        } => {
            // What is free or promised does not matter: it never fits.
            let numbers = [
                ("need", need),
                ("capacity", capacity),
                ("free", 0),
                ("evictable", 0),
                ("promised", 0),
            ];
            with(TooLarge::new_err(message), tier.name(), &numbers)
        }
        &Error::InUse { tier, want, used } => with(
            InUse::new_err(message),
            tier.name(),
            &[
                ("want", want),
                ("used", used),
                ("need", used),
                ("free", 0),
                ("evictable", 0),
                ("promised", 0),
            ],
        ),
        _ => Misuse::new_err(message),
    }
}

/// The numbers as attributes, for a scheduler to act on.
fn with(error: PyErr, tier: &str, numbers: &[(&str, u64)]) -> PyErr {
    Python::attach(|py| {
        let value = error.value(py);
        let set = value.setattr("tier", tier).and_then(|()| {
            numbers
                .iter()
                .try_for_each(|(name, number)| value.setattr(*name, *number))
        });
        set.err().unwrap_or(error)
    })
}
