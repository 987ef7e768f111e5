//! The only place that decides about the GIL.
//!
//! A short verb tries the lock while attached and, if the lock is free, does its arithmetic
//! attached. Detached, a call of some µs might have to wait 5 ms to attach again, which is the
//! switch interval of one busy Python thread. A long verb, and one that finds the lock held,
//! detaches: no thread waits for the lock while attached, and each releases it before it attaches.

use crate::error::{Failure, Outcome};
use blockyard_core::{self as core, Cache, State};
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A verb that names this many blocks (or rows) is still short: at 20 to 60 ns each, it takes some
/// tens of µs. See "short verbs" in `docs/measurements.md`.
pub(crate) const SHORT: usize = 1024;

/// The weight of a verb that takes time in proportion to the whole cache.
pub(crate) const LONG: usize = usize::MAX;

/// So many tokens are hashed attached: at about 5 ns each, this takes 20 µs.
const SHORT_HASHING: usize = 4096;

/// So many runs of bytes are computed attached: at about 10 ns each, this takes 160 µs.
const SHORT_RECKONING: usize = 1 << 14;

/// Runs a verb that names `blocks` blocks; [`LONG`] for one that walks all of them. A panic in it
/// breaks this cache, and no other. R2-8
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

/// The same for a verb that does some of its work at a time, of [`SHORT`] blocks at most, and says whether
/// more is left: between two slices other threads have the yard.
pub(crate) fn enter_sliced(
    py: Python<'_>,
    cache: &Cache,
    blocks: usize,
    mut act: impl FnMut(&mut State) -> core::Result<bool> + Send,
) -> Outcome<()> {
    if !enter(py, cache, blocks, &mut act)? {
        return Ok(());
    }
    away(py, || {
        contained(cache, || {
            cache.let_others();
            while act(&mut *cache.enter()?)? {
                cache.let_others();
            }
            Ok(())
        })
    })
}

/// The same for a verb that names no blocks: `weigh` tells, under the lock, how many it will visit.
pub(crate) fn enter_weighed<T: Send>(
    py: Python<'_>,
    cache: &Cache,
    weigh: impl FnOnce(&State) -> usize,
    act: impl FnOnce(&mut State) -> core::Result<T> + Send,
) -> Outcome<T> {
    if let Some(mut locked) = contained(cache, || cache.try_enter())?
        && contained(cache, || Ok(weigh(&locked)))? <= SHORT
    {
        return contained(cache, move || act(&mut locked));
    }
    away(py, || contained(cache, || act(&mut *cache.enter()?)))
}

/// The same for a verb that is short, attached, and only if no other thread has the yard.
pub(crate) fn attached<T>(
    cache: &Cache,
    weigh: impl FnOnce(&State) -> usize,
    act: impl FnOnce(&mut State) -> core::Result<T>,
) -> Outcome<Option<T>> {
    let Some(mut locked) = contained(cache, || cache.try_enter())? else {
        return Ok(None);
    };
    if contained(cache, || Ok(weigh(&locked)))? > SHORT {
        return Ok(None);
    }
    contained(cache, move || act(&mut locked)).map(Some)
}

/// Makes keys of `tokens` tokens, outside the yard. A panic in it breaks the cache: keys that are
/// half made must not be used. R2-8
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

/// Does what takes the yard's lock for a moment and works outside of it for longer. A panic in it
/// breaks the cache: a listener that has half followed would tell what is not so. R2-8
pub(crate) fn beside<T: Send>(
    py: Python<'_>,
    cache: &Cache,
    act: impl FnOnce() -> core::Result<T> + Send,
) -> Outcome<T> {
    away(py, || contained(cache, act))
}

/// Computes up to `runs` runs of bytes.
pub(crate) fn reckon<T: Send>(py: Python<'_>, runs: usize, act: impl FnOnce() -> T + Send) -> T {
    if runs <= SHORT_RECKONING {
        act()
    } else {
        away(py, act)
    }
}

/// Waits for a disk.
pub(crate) fn wait<T: Send>(py: Python<'_>, act: impl FnOnce() -> T + Send) -> T {
    away(py, act)
}

#[expect(clippy::disallowed_methods, reason = "the one place")]
fn away<T: Send>(py: Python<'_>, act: impl FnOnce() -> T + Send) -> T {
    py.detach(act)
}

/// Turns a panic of the core into an error that breaks the cache. If the panicking thread held the
/// yard's lock, the lock is poisoned, so that no other thread enters before the cache is marked here.
fn contained<T>(cache: &Cache, act: impl FnOnce() -> core::Result<T>) -> Outcome<T> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => Ok(done?),
        Err(panic) => Err(cache.break_down(said(&*panic)).into()),
    }
}

/// Turns a panic of the binding itself into an error; `#[guarded]` puts everything that Python calls
/// in here. The yards stay sound: only code inside [`contained`] changes them.
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
