//! What routers are told: batches of events, and what was told of them.

use crate::arguments;
use crate::buffers::integers;
use crate::cache_class::Cache;
use crate::error::Failure;
use crate::gil::beside;
use crate::keys::Keys;
use crate::prompt::Apart;
use blockyard_core::EventStats;
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// A payload, and whether more is to come at once.
type Taken<'py> = (Option<Bound<'py, PyBytes>>, bool);
/// What has gone, and a snapshot.
type Late<'py> = (Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

#[guarded]
#[pymethods]
impl Cache {
    /// Keeps a list of what happens to blocks from here on, for a router to be told.
    ///
    /// Call it once, when the cache is made: of sequences that are there already the tokens are not
    /// known, and blocks without tokens are told when a prompt brings them again. A
    /// `Publisher` does all of this.
    ///
    /// Args:
    ///     ring: Events that are kept until `take_events`: beyond that they are dropped and
    ///         counted, and all blocks are told again.
    ///     salts: "hide" tells nothing of blocks with a salt; "tell" tells them with their salt, to
    ///         everybody who listens.
    ///     clears: "all" tells a clear as one event, of all blocks of the rank; "own" as the
    ///         removal of each block that was told, where somebody else tells of other blocks of
    ///         this rank.
    ///
    /// Raises:
    ///     Misuse: Somebody listens already, or a value is out of range.
    ///     Unavailable: There is no memory for the list.
    #[pyo3(signature = (*, ring=131_072, salts="hide", clears="all"))]
    fn listen(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::ring)] ring: u32,
        salts: &str,
        clears: &str,
    ) -> PyResult<()> {
        self.check_open()?;
        let (salts, clears) = (arguments::salts(salts)?, arguments::clears(clears)?);
        Ok(beside(py, &self.inner, || {
            self.inner.listen(ring as usize, salts, clears)
        })?)
    }

    /// Returns what has happened since the last call, in the form that vLLM publishes.
    ///
    /// It holds the lock while it copies 384 blocks at most, and 6,144 of their tokens. All is encoded outside of that and
    /// detached from Python, so that a thread of its own may call it.
    ///
    /// Args:
    ///     now: The time to put on it, in seconds since 1970. Nothing depends on it.
    ///     rank: The data parallel rank to put on it; None for none.
    ///
    /// Returns:
    ///     A batch in msgpack, or None where there is nothing to tell; and whether more is to come
    ///     at once, as so much has happened, or all is told again in slices.
    ///
    /// Raises:
    ///     Misuse: Nobody listens.
    #[pyo3(signature = (*, now=0.0, rank=None))]
    fn take_events<'py>(
        &self,
        py: Python<'py>,
        now: f64,
        #[pyo3(from_py_with = arguments::rank)] rank: Option<u32>,
    ) -> PyResult<Taken<'py>> {
        self.check_sound()?;
        let drained = beside(py, &self.inner, || self.inner.drain(now, rank))?;
        let payload = drained.payload.map(|bytes| PyBytes::new(py, &bytes));
        Ok((payload, drained.more))
    }

    /// Returns all that was told and is true still, as a batch that begins with a clear.
    ///
    /// It is for whoever comes late or has lost a batch. With `clears="own"` it has no clear, as
    /// others tell of blocks of this rank, too. Blocks that were stored since the last
    /// `take_events` are not in it. On the device parents come before their children. While a
    /// clear waits for the next `take_events`, it is empty.
    ///
    /// Args:
    ///     now: As in `take_events`.
    ///     rank: As in `take_events`.
    ///
    /// Returns:
    ///     Two batches. The first has what has gone since the last `take_events`, which does not
    ///     return it again, or is None: send it to those who follow already, before the next
    ///     batch. The second is the snapshot; who begins with it goes on with the batch behind the
    ///     first, and hears of nothing go that it does not know.
    ///
    /// Raises:
    ///     Misuse: Nobody listens.
    #[pyo3(signature = (*, now=0.0, rank=None))]
    fn snapshot_events<'py>(
        &self,
        py: Python<'py>,
        now: f64,
        #[pyo3(from_py_with = arguments::rank)] rank: Option<u32>,
    ) -> PyResult<Late<'py>> {
        self.check_sound()?;
        let snapshot = beside(py, &self.inner, || self.inner.snapshot(now, rank))?;
        let before = snapshot.before.map(|bytes| PyBytes::new(py, &bytes));
        Ok((before, PyBytes::new(py, &snapshot.payload)))
    }

    /// Returns how much was told, and how much not.
    ///
    /// Returns:
    ///     Counters: "stored" and "removed", blocks that were told so, on each tier anew; "lost",
    ///     events that were dropped because nobody took them, and "resyncs", how often all was
    ///     told again for that; "deferred", blocks that came to a tier while their tokens were not
    ///     known, and "salted", those that have a salt; "unknown_tokens", blocks whose tokens are not
    ///     known now; "snapshots", how many were made.
    ///
    /// Raises:
    ///     Misuse: Nobody listens.
    fn event_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_sound()?;
        let EventStats {
            stored,
            removed,
            lost,
            resyncs,
            deferred,
            salted,
            unknown_tokens,
            snapshots,
        } = beside(py, &self.inner, || self.inner.event_stats())?;
        let stats = PyDict::new(py);
        stats.set_item("stored", stored)?;
        stats.set_item("removed", removed)?;
        stats.set_item("lost", lost)?;
        stats.set_item("resyncs", resyncs)?;
        stats.set_item("deferred", deferred)?;
        stats.set_item("salted", salted)?;
        stats.set_item("unknown_tokens", unknown_tokens)?;
        stats.set_item("snapshots", snapshots)?;
        Ok(stats)
    }

    /// Gives the tokens of blocks whose keys the engine has made, so that they are told.
    ///
    /// They may come before the blocks or after them. The last twice as many as the cache has slots
    /// are remembered.
    ///
    /// Args:
    ///     keys: The keys of the sequence.
    ///     tokens: The tokens of blocks `first` and following, whole blocks, shape (tokens,).
    ///     first: The block that the first tokens are of.
    ///     numbers: What these blocks are told by, shape (blocks,), where that is not the last 8
    ///         bytes of their keys; where `first` is above 0, the number of the block before them
    ///         comes first.
    ///     lora: As in `keys`.
    ///     salt: As in `keys`.
    ///     media: As in `keys`, by positions in the sequence.
    ///
    /// Raises:
    ///     Misuse: Nobody listens, or there are not as many tokens or numbers as the blocks.
    #[pyo3(signature = (keys, tokens, *, first=0, numbers=None, lora=None, salt=None, media=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn describe(
        &self,
        keys: &Bound<'_, Keys>,
        tokens: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::first)] first: u32,
        numbers: Option<&Bound<'_, PyAny>>,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        media: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.check_open()?;
        let chain = &keys.get().0;
        self.check_keys(chain)?;
        let tokens: Vec<u32> = integers("tokens", tokens)?;
        let numbers: Vec<u64> = match numbers {
            Some(numbers) => integers("numbers", numbers)?,
            None => Vec::new(),
        };
        let apart = Apart { lora, salt, media };
        let extras = apart.extras(first as usize * self.block_size as usize + tokens.len())?;
        let described =
            self.inner
                .describe(chain.keys(), first as usize, &tokens, &numbers, extras);
        Ok(described.map_err(Failure::from)?)
    }
}
