//! The only place that decides about the GIL.
//!
//! A verb that is short tries the lock while attached and, if it is free, does its arithmetic
//! attached: to attach again, a call of some µs may have to wait for the switch interval, 5 ms, of
//! one busy Python thread. A long verb, and one that finds the lock held, detaches: nobody waits
//! for the lock while attached, and the lock is released before attaching again.

use crate::error::{Failure, Outcome};
use blockyard_core::{self as core, Cache, State};
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks (or rows) that a verb may name and still be short: at 20 to 60 ns each, some tens of
/// µs. See "short verbs" in `docs/measurements.md`.
pub(crate) const SHORT: usize = 1024;

/// Of a verb that takes time in proportion to all that there is.
pub(crate) const LONG: usize = usize::MAX;

/// Tokens that may be hashed attached: at about 5 ns each, 20 µs.
const SHORT_HASHING: usize = 4096;

/// Runs of bytes that may be reckoned attached: at about 10 ns each, 160 µs.
const SHORT_RECKONING: usize = 1 << 14;

/// Forks so far in this process and its ancestors.
static FORKS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The fork count that a cache is born with.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// In a forked child the lock may be held by a thread that is not there: refuse before it.
pub(crate) fn check_fork(born: u64) -> Outcome<()> {
    if born == generation() {
        return Ok(());
    }
    Err(Failure::misuse(
        "this cache was made before a fork: make the cache after fork or spawn, in the process that uses it",
    ))
}

/// Runs a verb that names `blocks` blocks; [`LONG`] for one that walks all of them. A panic in it
/// breaks this cache, and no other.
pub(crate) fn enter<T: Send>(
    py: Python<'_>,
    cache: &Cache,
    blocks: usize,
    act: impl FnOnce(&mut State) -> core::Result<T> + Send,
) -> Outcome<T> {
    if blocks <= SHORT
        && let Some(mut locked) = contained(cache, || cache.try_enter())?
    {
        return contained(cache, move || act(&mut locked));
    }
    away(py, || contained(cache, || act(&mut *cache.enter()?)))
}

/// The same for a verb that is short, attached, and only if nobody has the yard.
pub(crate) fn attached<T>(
    cache: &Cache,
    blocks: usize,
    act: impl FnOnce(&mut State) -> core::Result<T>,
) -> Outcome<Option<T>> {
    if blocks > SHORT {
        return Ok(None);
    }
    let locked = contained(cache, || cache.try_enter())?;
    let done = locked.map(|mut locked| contained(cache, move || act(&mut locked)));
    done.transpose()
}

/// Makes keys outside the yard, over `tokens` tokens. A panic in it breaks the cache: keys that are
/// half made must not be used.
pub(crate) fn hash<T: Send>(
    py: Python<'_>,
    cache: &Cache,
    tokens: usize,
    act: impl FnOnce() -> core::Result<T> + Send,
) -> Outcome<T> {
    if tokens <= SHORT_HASHING {
        contained(cache, act)
    } else {
        away(py, || contained(cache, act))
    }
}

/// Reckons up to so many runs of bytes.
pub(crate) fn reckon<T: Send>(py: Python<'_>, runs: usize, act: impl FnOnce() -> T + Send) -> T {
    if runs <= SHORT_RECKONING {
        act()
    } else {
        away(py, act)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place")]
fn away<T: Send>(py: Python<'_>, act: impl FnOnce() -> T + Send) -> T {
    py.detach(act)
}

/// What a panic of the core becomes. The yard's lock is poisoned where it was held, so that no other
/// thread enters before the cache is marked here.
fn contained<T>(cache: &Cache, act: impl FnOnce() -> core::Result<T>) -> Outcome<T> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => Ok(done?),
        Err(panic) => Err(cache.break_down(said(&*panic)).into()),
    }
}

/// What a panic of the binding itself becomes; `#[guarded]` puts all that Python calls in here. Yards
/// are sound after it: they are changed in [`contained`] alone.
pub(crate) fn guard<T>(act: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => done,
        Err(panic) => Err(Failure::Panicked(said(&*panic)).into()),
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without words").to_owned()
}
