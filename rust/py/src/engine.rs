//! Verbs of a cache whose device belongs to an engine that gives out its blocks itself.

use crate::arguments;
use crate::buffers::{array, each, integers};
use crate::cache_class::Cache;
use crate::error::Failure;
use crate::gil::{LONG, enter};
use crate::keys::{Keys, key_rows};
use crate::on_disk::key_array;
use crate::parked::Parked;
use crate::plan::Plan;
use crate::results::{Probe, Soon};
use blockyard_core::{self as core, Fetch, Key, NextUse, Priority, Wanted};
use blockyard_guard::guarded;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Tells how much of a prefix lies below the engine's blocks, and pays to load.
    ///
    /// It changes nothing. The blocks before `after` are the engine's; nothing is asked of them. A
    /// block that is on its way down, or up for another request, is "filling".
    ///
    /// Args:
    ///     keys: The keys of the prefix.
    ///     after: Leading blocks that the engine has.
    ///
    /// Raises:
    ///     Misuse: The cache owns its device, the keys are of blocks of another size, or `after` is
    ///         out of range.
    #[pyo3(signature = (keys, after=0))]
    fn find(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, Keys>,
        #[pyo3(from_py_with = arguments::before)] after: u32,
    ) -> PyResult<Probe> {
        self.check_sound()?;
        let keys = self.own_keys(keys)?;
        let found = enter(py, &self.inner, keys.len(), |state| state.find(keys, after));
        Ok(found?.into())
    }

    /// Tells of each block by itself whether it lies below the engine's blocks.
    ///
    /// It changes nothing. Where `find` ends at the first block that is not there, this looks at all of
    /// them: so it finds the last of many states, or whether a window is whole.
    ///
    /// Args:
    ///     keys: Keys; or the keys as bytes, or uint8 of shape (keys, 32).
    ///
    /// Returns:
    ///     A `Presence` for each key, uint8, shape (keys,): 0 for missing, 1 for ready, 2 for filling, which
    ///     is on its way down, or up for another request.
    ///
    /// Raises:
    ///     Misuse: The cache owns its device, the keys are of blocks of another size, or are something else.
    fn which<'py>(&self, py: Python<'py>, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.check_sound()?;
        let found = if let Ok(keys) = keys.cast::<Keys>() {
            let keys = self.own_keys(keys)?;
            enter(py, &self.inner, keys.len(), |state| state.which(keys))?
        } else {
            let keys = key_rows("keys", keys)?;
            enter(py, &self.inner, keys.len(), |state| state.which(&keys))?
        };
        let found: Vec<u8> = found.into_iter().map(|one| one as u8).collect();
        array(py, &found, "uint8")
    }

    /// Returns the keys of all blocks below that `find` may find.
    ///
    /// It takes time in proportion to the blocks.
    ///
    /// Returns:
    ///     Keys, uint8, shape (blocks, 32).
    ///
    /// Raises:
    ///     Misuse: The cache owns its device.
    fn known_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check_sound()?;
        let keys = enter(py, &self.inner, LONG, |state| state.known_keys())?;
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.0).collect();
        key_array(py, &bytes)
    }

    /// Copies blocks up to the engine's ids.
    ///
    /// Their copies below stay until the outcome has come. What is kept of a request stays kept:
    /// give it up with `abandon` when the engine has what it needs.
    ///
    /// Args:
    ///     what: The keys of a prefix; or what `save_request` gave, with its partial block.
    ///     ids: The engine's ids of blocks `first` and following, shape (blocks,), each once.
    ///     first: The block that the first id is for.
    ///
    /// Returns:
    ///     Plans, one for each run of blocks of one tier, which `dispatch` hands out too: they fill
    ///     as many of the leading ids as are below. `Soon` where the first block, or one of the
    ///     ids, is in the air.
    ///
    /// Raises:
    ///     Misuse: The cache owns its device; an id is out of range or comes twice; or there are
    ///         more ids than blocks from `first` on.
    ///     SpentLease: What was kept has been given up.
    ///     ForeignLease: It is another cache's.
    #[pyo3(signature = (what, ids, first=0))]
    fn fetch(
        &self,
        py: Python<'_>,
        what: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::first)] first: u32,
    ) -> PyResult<Py<PyAny>> {
        self.check_open()?;
        let ids: Vec<u32> = integers("ids", ids)?;
        let answer = if let Ok(kept) = what.cast::<Parked>() {
            let id = kept.get().of(self, py)?.id();
            enter(py, &self.inner, ids.len(), |state| {
                state.fetch(Wanted::Kept(id), &ids, first)
            })
        } else {
            let keys = what.cast::<Keys>().map_err(|_| {
                let kind = what.get_type();
                Failure::misuse(format!(
                    "what is {kind}: pass Keys, or what save_request gave"
                ))
            })?;
            let keys = self.own_keys(keys)?;
            enter(py, &self.inner, ids.len(), |state| {
                state.fetch(Wanted::Keys(keys), &ids, first)
            })
        };
        match answer? {
            Fetch::Soon(flight) => Soon::from(flight).into_py_any(py),
            Fetch::Plans(plans) => {
                let plans: Vec<Plan> = plans.into_iter().map(Plan).collect();
                plans.into_py_any(py)
            }
        }
    }

    /// Copies blocks down from the engine's ids, for all requests that have the same prefix.
    ///
    /// What is below, or on its way there, is not copied again. The others go to the nearest tier
    /// that has slots, the root first, as far as there is room.
    ///
    /// Args:
    ///     keys: The keys of a prefix; or a list of them, a row each.
    ///     ids: The engine's ids of blocks `first` and following, shape (blocks,), each once; or a
    ///         list of such.
    ///     first: The block that the first id is for; or a list.
    ///
    /// Returns:
    ///     The plan, which `dispatch` hands out too; None if there is nothing to copy. For rows a
    ///     list.
    ///
    /// Raises:
    ///     Misuse: As in `fetch`; or the lists differ in length. Nothing is copied then.
    #[pyo3(signature = (keys, ids, first=None))]
    fn offload(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        first: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.check_open()?;
        if let Ok(held) = keys.cast::<Keys>() {
            let keys = self.own_keys(held)?;
            let ids: Vec<u32> = integers("ids", ids)?;
            let first = first.map_or(Ok(0), arguments::first)?;
            let plan = enter(py, &self.inner, ids.len(), |state| {
                state.offload(keys, &ids, first)
            })?;
            self.inner.emit_offloaded(&held.get().0, first, ids.len());
            return plan.map(Plan).into_py_any(py);
        }
        let held = keys_list(keys)?;
        let items = ids.try_iter().map_err(|_| {
            let kind = ids.get_type();
            Failure::misuse(format!("ids is {kind}: pass an array for each of the keys"))
        })?;
        let ids: Vec<Vec<u32>> = each("ids", ids, items, |_, row| integers("ids", &row))?;
        let first: Vec<u32> = match first {
            None => vec![0; held.len()],
            Some(first) => integers("first", first)?,
        };
        for (name, rows) in [("ids", ids.len()), ("first", first.len())] {
            if rows != held.len() {
                let message = format!("{name} has {rows} rows, and keys {}", held.len());
                return Err(Failure::misuse(message).into());
            }
        }
        let mut rows: Vec<(&[Key], &[u32], u32)> = Vec::with_capacity(held.len());
        for ((keys, ids), first) in held.iter().zip(&ids).zip(first) {
            rows.push((self.own_keys(keys)?, ids, first));
        }
        let blocks = ids.iter().map(Vec::len).sum();
        let plans = enter(py, &self.inner, blocks, |state| state.offload_all(&rows))?;
        for (keys, &(_, ids, first)) in held.iter().zip(&rows) {
            self.inner.emit_offloaded(&keys.get().0, first, ids.len());
        }
        let plans: Vec<Option<Plan>> = plans.into_iter().map(|plan| plan.map(Plan)).collect();
        plans.into_py_any(py)
    }

    /// Copies all of a request down and keeps it, with its partial block, until it is given up.
    ///
    /// What is below already is only kept. If a copy fails, or its end is unknown, the request is
    /// kept up to the block before it: its `state` is "incomplete", or "broken" where nothing is left.
    ///
    /// Args:
    ///     keys: The keys of its full blocks.
    ///     ids: The engine's ids of all its blocks, shape (blocks,), each once.
    ///     tokens: Tokens whose KV the blocks have.
    ///
    /// Returns:
    ///     What is kept: `fetch` brings it up, and `abandon` gives it up. Its `plans` are the
    ///     copies, which `dispatch` hands out too.
    ///
    /// Raises:
    ///     NoRoom: No tier below has room for it now; nothing is kept.
    ///     TooLarge: No tier below can ever hold it.
    ///     Misuse: As in `fetch`; the ids are not as many as the blocks, the keys fewer than the
    ///         full blocks, or an id is being filled.
    fn save_request(
        slf: &Bound<'_, Self>,
        keys: &Bound<'_, Keys>,
        ids: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::tokens)] tokens: u64,
    ) -> PyResult<Parked> {
        let (py, cache) = (slf.py(), slf.get());
        cache.check_open()?;
        let all = cache.own_keys(keys)?;
        let ids: Vec<u32> = integers("ids", ids)?;
        let (id, plan) = enter(py, &cache.inner, ids.len(), |state| {
            state.save_request(all, &ids, tokens)
        })?;
        cache.inner.emit_offloaded(&keys.get().0, 0, all.len());
        let handle = cache.inner.handle_kept(id, keys.get().0.clone());
        Ok(Parked::kept(handle, slf.clone().unbind(), tokens, plan))
    }

    /// Returns the newest flight that reads or writes one of the engine's ids, or None.
    ///
    /// Nobody may write them before it has ended, and all flights that were launched before it. One
    /// that has missed its deadline has not ended.
    ///
    /// Args:
    ///     ids: Ids, shape (ids,).
    ///
    /// Raises:
    ///     Misuse: The cache owns its device, or an id is out of range.
    fn must_finish(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        self.check_sound()?;
        let ids: Vec<u32> = integers("ids", ids)?;
        let flight = enter(py, &self.inner, ids.len(), |state| state.must_finish(&ids))?;
        Ok(flight.map(core::FlightId::number))
    }

    /// Says that the engine uses these paths, whatever of them lies below.
    ///
    /// Hits on the engine's own blocks are not seen here, so that what is below would grow old.
    /// Say it of each request once when it has `ended`, so that the order learns from it, and as
    /// often as you like before.
    ///
    /// Args:
    ///     rows: The keys of each path, a list.
    ///     ended: Whether their requests have ended. The others are asked for then alone.
    ///     retention: What is known of their future, as in `finish`; so are the others.
    ///     next_use: Seconds until they will be used again.
    ///     priority: From 0 to 100, the last to be evicted.
    ///     ttl: After so many ticks they go first.
    ///
    /// Raises:
    ///     Misuse: The cache owns its device, the keys are of blocks of another size, or a hint is
    ///         out of range.
    #[pyo3(signature = (rows, *, ended=false, retention="ordinary", next_use=None, priority=None,
        ttl=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn used(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        ended: bool,
        retention: &str,
        #[pyo3(from_py_with = arguments::next_use)] next_use: Option<NextUse>,
        #[pyo3(from_py_with = arguments::priority)] priority: Option<Priority>,
        #[pyo3(from_py_with = arguments::ttl)] ttl: Option<u32>,
    ) -> PyResult<()> {
        self.check_open()?;
        let hints = arguments::hints(retention, next_use, priority, ttl)?;
        let held = keys_list(rows)?;
        let rows = held.iter().map(|keys| self.own_keys(keys));
        let rows: Vec<&[Key]> = rows.collect::<PyResult<_>>()?;
        let blocks = rows.iter().map(|keys| keys.len()).sum();
        Ok(enter(py, &self.inner, blocks, |state| {
            state.used(&rows, ended.then_some(hints))
        })?)
    }
}

impl Cache {
    fn own_keys<'a>(&self, keys: &'a Bound<'_, Keys>) -> PyResult<&'a [Key]> {
        let chain = &keys.get().0;
        self.check_keys(chain)?;
        Ok(chain.keys())
    }
}

fn keys_list<'py>(from: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Keys>>> {
    let wrong =
        |kind: String| Failure::misuse(format!("keys is {kind}: pass Keys, or a list of them"));
    let items = from
        .try_iter()
        .map_err(|_| wrong(from.get_type().to_string()))?;
    each("keys", from, items, |_, item| {
        let kind = item.get_type().to_string();
        Ok(item.cast_into::<Keys>().map_err(|_| wrong(kind))?)
    })
}
