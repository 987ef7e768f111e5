//! `Recorder`: what requests were, in a file, for a replay of them.

use crate::arguments;
use crate::error::{Failure, Outcome};
use crate::gil::wait;
use crate::keys::Keys;
use crate::on_disk::duration;
use blockyard_core::{Chain, Lease, Parked};
use blockyard_guard::guarded;
use blockyard_record::{Recorder as Inner, Seen};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// Records requests in a file: 8 bytes of each key, lengths and times, and no token.
///
/// A cache with `record` in its configuration has one, and its `begin`, `finish` and `abandon` record
/// requests. A scheduler that knows when a request has arrived, and which `begin` is a retry, calls
/// `arrived` and `ended` instead.
///
/// It never waits: requests that find no room in its queue, or on the disk, are dropped and counted.
/// Any thread may use it.
///
/// Args:
///     path: The file. One that is there already must be a recording of blocks as large: it is
///         appended to, and never overwritten.
///     block_size: Tokens per block.
///
/// Raises:
///     Misuse: The path cannot be written, holds something else, or is written by another recorder.
#[pyclass(frozen, module = "blockyard")]
pub(crate) struct Recorder {
    pub(crate) inner: Arc<Inner>,
    pub(crate) block_size: u32,
}

#[guarded]
#[pymethods]
impl Recorder {
    #[new]
    fn new(
        path: PathBuf,
        #[pyo3(from_py_with = arguments::block_size)] block_size: u32,
    ) -> PyResult<Self> {
        if block_size == 0 {
            let message = "block_size = 0: a block has at least one token";
            return Err(Failure::misuse(message).into());
        }
        let inner = Inner::open(&path, block_size);
        let inner = Arc::new(inner.map_err(|error| Failure::misuse(error.to_string()))?);
        Ok(Self { inner, block_size })
    }

    /// Returns the time, in nanoseconds, of a request that arrives now, for `ended`.
    ///
    /// From the first call on, the cache's verbs record nothing themselves.
    fn arrived(&self) -> u64 {
        self.inner.tell();
        self.inner.now()
    }

    /// Records a request that ends now. For 300 blocks it takes half a microsecond.
    ///
    /// Args:
    ///     arrived: The time that `arrived` returned.
    ///     keys: The keys of its prompt; more are left out. None where its blocks have none.
    ///     prompt: Tokens of its prompt.
    ///     answer: Tokens of its answer.
    #[pyo3(signature = (arrived, keys, prompt, answer, /))]
    fn ended(
        &self,
        #[pyo3(from_py_with = arguments::arrived)] arrived: u64,
        keys: Option<&Bound<'_, Keys>>,
        #[pyo3(from_py_with = arguments::prompt)] prompt: u64,
        #[pyo3(from_py_with = arguments::answer)] answer: u64,
    ) {
        let seen = Seen { arrived, prompt };
        match keys {
            Some(keys) => write(&self.inner, seen, answer, &keys.get().0),
            None => self.inner.write(seen, answer, [].iter()),
        }
    }

    /// Returns the requests that the system has taken, and those that were dropped.
    fn counts(&self) -> (u64, u64) {
        let counts = self.inner.counts();
        (counts.recorded, counts.dropped)
    }

    /// Returns the system's error when it first refused to write; None if it never has.
    fn trouble(&self) -> Option<&str> {
        self.inner.trouble()
    }

    /// Takes no more requests, and waits until its queue is written.
    ///
    /// Args:
    ///     seconds: How long it waits at most.
    ///
    /// Returns:
    ///     Whether they are.
    ///
    /// Raises:
    ///     Misuse: `seconds` is out of range.
    #[pyo3(signature = (seconds=1.0, /))]
    fn close(&self, py: Python<'_>, seconds: f64) -> Outcome<bool> {
        let patience = duration("seconds", seconds)?;
        Ok(wait(py, || self.inner.close(patience)))
    }
}

impl Recorder {
    /// What a cache of such blocks tells.
    pub(crate) fn of(&self, block_size: u32) -> Outcome<Arc<Inner>> {
        if self.block_size == block_size {
            return Ok(Arc::clone(&self.inner));
        }
        let own = self.block_size;
        let message =
            format!("a recorder of blocks of {own} tokens, and the cache has {block_size}");
        Err(Failure::misuse(message))
    }
}

/// Records a sequence that was begun as `seen`, and ends.
pub(crate) fn record(recorder: Option<&Arc<Inner>>, seen: Option<Seen>, lease: &Lease) {
    if let (Some(recorder), Some(seen)) = (recorder, seen) {
        lease.read(|chain| whole(recorder, seen, chain));
    }
}

/// The same for one that is given up while it is parked.
pub(crate) fn record_parked(recorder: Option<&Arc<Inner>>, seen: Option<Seen>, parked: &Parked) {
    if let (Some(recorder), Some(seen)) = (recorder, seen) {
        parked.read(|chain| whole(recorder, seen, chain));
    }
}

/// What was appended behind the prompt is the answer.
fn whole(recorder: &Inner, seen: Seen, chain: &Chain) {
    write(recorder, seen, chain.tokens() - seen.prompt, chain);
}

fn write(recorder: &Inner, seen: Seen, answer: u64, chain: &Chain) {
    let full = (seen.prompt / u64::from(chain.block_size())) as usize;
    let keys = &chain.keys()[..full.min(chain.keys().len())];
    recorder.write(seen, answer, keys.iter().map(|key| &key.0));
}
