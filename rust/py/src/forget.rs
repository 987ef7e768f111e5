//! Adopt: blocks are said to be in a shared store. Forget: blocks leave all tiers, and no restart brings
//! them back; or their names leave one.

use crate::arguments;
use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::gil::{beside, enter};
use crate::keys::{Keys, ready_keys};
use crate::prompt::text;
use crate::results::Forgotten;
use blockyard_core::{Condemned, Key};
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Publishes the leading blocks of a prompt as being in a shared store. No bytes move.
    ///
    /// A begin or fetch then finds them on the tier, and loads them. A block that is on any tier, or on
    /// its way there, is counted and gets no name. Where no slot of the tier is free, its next victims
    /// go, never blocks of this prompt; where there is no room, fewer blocks are adopted. It stops at a
    /// key that contradicts what is known, and at one that was forgotten and whose value the stores are
    /// still deleting. Repeated, it changes nothing.
    ///
    /// Nothing is believed: until a load of a block has landed, the block counts as a hit in no
    /// statistic. A load that fails drops the name of its first bad block.
    ///
    /// Where blocks are not linked, the keys are a set: each block that can be is adopted, and none
    /// stops the others.
    ///
    /// Args:
    ///     keys: The keys of the prompt.
    ///     blocks: How many of the leading blocks are there; None for all of them.
    ///     tier: The tier, whose plans must carry keys (`keyed`). Only "remote" can be.
    ///
    /// Returns:
    ///     How many of the leading blocks are on any tier now; of a set, how many of all.
    ///
    /// Raises:
    ///     Misuse: The cache has no such tier, it is not keyed or finds its blocks by slot, the keys are
    ///         of blocks of another size, `blocks` is out of range, or the cache is closed.
    #[pyo3(signature = (keys, blocks=None, tier="remote"))]
    fn adopt(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, Keys>,
        #[pyo3(from_py_with = arguments::most)] blocks: Option<u32>,
        #[pyo3(from_py_with = arguments::tier_text)] tier: &str,
    ) -> PyResult<u32> {
        self.check_open()?;
        let tier = arguments::tier(tier)?;
        let chain = &keys.get().0;
        let checked: Outcome<()> = self.check_keys(chain);
        checked?;
        let most = blocks.map_or(usize::MAX, |blocks| blocks as usize);
        let own = &chain.keys()[..most.min(chain.keys().len())];
        let leading = enter(py, &self.inner, own.len(), |state| {
            state.adopt(own, chain.root(), tier)
        })?;
        self.inner.emit_found(chain, leading as usize);
        Ok(leading)
    }

    /// Forgets blocks on all tiers, with all that stands on any of them; or their names on one.
    ///
    /// With `tier`, the names of `keys` are dropped there, and nothing else happens: the store keeps
    /// what it has, and other engines use it. A name stays while its block loads, while something
    /// keeps it, and while a block that stands on it has a name. The rest of this is about a call
    /// without `tier`.
    ///
    /// They are found by nobody from now on. What is idle goes at once, and what is in use when its
    /// use ends: running sequences go on with it, are "detached", and publish nothing from now on.
    /// What parked sequences and kept requests keep stays as it was, and is found on, unless
    /// `force` is True. A copy that is under way lands nowhere.
    ///
    /// Blocks of which no tier has the one before them any more go as well, whosever they are:
    /// nobody can say on what they stood. They are not in `blocks`.
    ///
    /// A tier that outlives the process has records of blocks, also of some that were evicted from
    /// it. `dispatch` gives its cranes a plan that voids those. When that flight has ended, no
    /// restart brings anything back; `stats()["voiding"]` counts those that have not ended.
    ///
    /// Args:
    ///     keys: `Keys`, all of which are meant; or 32 bytes for each block, as a buffer or a list
    ///         of bytes or of hexadecimal strings. To spare a beginning that others share, name the
    ///         keys behind it alone. Keys that are nowhere are passed over.
    ///     salt: In place of keys, the salt of a tenant: all sequences with it go, also those whose
    ///         first block is not full yet, and those that a restart has found.
    ///     adapter: The adapter that these sequences have, as `lora` of `keys`; None for those
    ///         without one. One call forgets one adapter's.
    ///     tier: "remote", to drop names there alone; it goes with `keys` and nothing else.
    ///     force: Whether what parked sequences and kept requests keep of it goes too. They are
    ///         computed again; where the engine cannot recompute, their requests fail.
    ///
    /// A shared store is asked to delete the values of the keys that are named, and of what is
    /// forgotten with them in this cache, by the plan of its tier. Until that flight has ended, these
    /// keys are not adopted; `Crane.undeleted` says which store has not answered. It does not reach
    /// values that stand on them and have no name here, nor what other engines have: each of them must
    /// forget for itself.
    ///
    /// Returns:
    ///     What was forgotten, and who keeps some of what was named. With `tier`, how many names were
    ///     dropped.
    ///
    /// Raises:
    ///     Misuse: There are both keys and a salt or neither, an adapter without a salt, or a salt
    ///         where the engine makes the keys; a key is not of 32 bytes, or keys are of blocks of
    ///         another size; `tier` is not "remote" or not with keys alone; or the cache is closed.
    ///         Nothing is changed.
    ///     Unavailable: There is no memory to look through all blocks. Nothing is changed.
    #[pyo3(signature = (keys=None, *, salt=None, adapter=None, force=false, tier=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn forget(
        &self,
        py: Python<'_>,
        keys: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        adapter: Option<&Bound<'_, PyAny>>,
        force: bool,
        #[pyo3(from_py_with = arguments::tier_text_or_none)] tier: Option<&str>,
    ) -> PyResult<Py<PyAny>> {
        self.check_open()?;
        let Some(tier) = tier else {
            let forgotten = self.forget_all(py, (keys, salt, adapter), force)?;
            return Ok(Py::new(py, forgotten)?.into_any());
        };
        let (Some(keys), None, None, false) = (keys, salt, adapter, force) else {
            let message = "tier goes with keys= alone: it drops names, and no block";
            return Err(Failure::misuse(message.to_owned()).into());
        };
        let dropped = self.forget_names(py, keys, tier)?;
        Ok(dropped.into_pyobject(py)?.into_any().unbind())
    }
}

/// What is to be forgotten: keys, a salt, and an adapter.
type Meant<'a, 'py> = (
    Option<&'a Bound<'py, PyAny>>,
    Option<&'a Bound<'py, PyAny>>,
    Option<&'a Bound<'py, PyAny>>,
);

impl Cache {
    fn forget_all(
        &self,
        py: Python<'_>,
        (keys, salt, adapter): Meant<'_, '_>,
        force: bool,
    ) -> PyResult<Forgotten> {
        let given = match (keys, salt, adapter) {
            (Some(keys), None, None) => {
                let keys = self.named(keys)?;
                let forgotten = beside(py, &self.inner, || {
                    self.inner.forget(Condemned::Keys(&keys), force)
                });
                return Ok(Forgotten::from(forgotten?));
            }
            (None, Some(salt), adapter) => {
                let adapter = adapter.map(|lora| text("adapter", lora)).transpose()?;
                let salt = text("salt", salt)?;
                let root = self.inner.seed().root_of(adapter.as_deref(), Some(&salt));
                let forgotten = beside(py, &self.inner, || {
                    self.inner.forget(Condemned::Root(root), force)
                });
                return Ok(Forgotten::from(forgotten?));
            }
            (Some(_), Some(_), _) => "keys and a salt",
            (Some(_), None, Some(_)) => "keys and an adapter",
            (None, None, Some(_)) => "an adapter without a salt",
            (None, None, None) => "neither keys nor a salt",
        };
        let help = "give keys=, or salt= and the adapter of its sequences";
        Err(Failure::misuse(format!("forget was given {given}: {help}")).into())
    }

    fn forget_names(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, tier: &str) -> PyResult<u32> {
        let tier = arguments::tier(tier)?;
        let keys = self.named(keys)?;
        let dropped = enter(py, &self.inner, keys.len(), |state| {
            state.forget_names(&keys, tier)
        });
        Ok(dropped?)
    }

    fn named(&self, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Key>> {
        let Ok(keys) = keys.cast::<Keys>() else {
            return ready_keys(keys, u64::MAX);
        };
        let chain = &keys.get().0;
        let checked: Outcome<()> = self.check_keys(chain);
        checked?;
        Ok(chain.keys().to_vec())
    }
}
