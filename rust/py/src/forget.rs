//! Forget: blocks leave all tiers, and no restart brings them back.

use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::gil::beside;
use crate::keys::{Keys, ready_keys};
use crate::prompt::text;
use crate::results::Forgotten;
use blockyard_core::{Condemned, Key};
use blockyard_guard::guarded;
use pyo3::prelude::*;

#[guarded]
#[pymethods]
impl Cache {
    /// Forgets blocks on all tiers, with all that stands on any of them.
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
    ///     force: Whether what parked sequences and kept requests keep of it goes too. They are
    ///         computed again; where the engine cannot recompute, their requests fail.
    ///
    /// Returns:
    ///     What was forgotten, and who keeps some of what was named.
    ///
    /// Raises:
    ///     Misuse: There are both keys and a salt or neither, an adapter without a salt, or a salt
    ///         where the engine makes the keys; a key is not of 32 bytes, or keys are of blocks of
    ///         another size; or the cache is closed. Nothing is changed.
    ///     Unavailable: There is no memory to look through all blocks. Nothing is changed.
    #[pyo3(signature = (*, keys=None, salt=None, adapter=None, force=false))]
    fn forget(
        &self,
        py: Python<'_>,
        keys: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        adapter: Option<&Bound<'_, PyAny>>,
        force: bool,
    ) -> PyResult<Forgotten> {
        self.check_open()?;
        let forgotten = match (keys, salt) {
            (Some(keys), None) if adapter.is_none() => {
                let keys = self.named(keys)?;
                beside(py, &self.inner, || {
                    self.inner.forget(Condemned::Keys(&keys), force)
                })
            }
            (None, Some(salt)) => {
                let adapter = adapter.map(|lora| text("adapter", lora)).transpose()?;
                let salt = text("salt", salt)?;
                let root = self.inner.seed().root_of(adapter.as_deref(), Some(&salt));
                beside(py, &self.inner, || {
                    self.inner.forget(Condemned::Root(root), force)
                })
            }
            _ => Err(wrong(keys.is_some(), salt.is_some(), adapter.is_some())),
        };
        Ok(Forgotten::from(forgotten?))
    }
}

fn wrong(keys: bool, salt: bool, adapter: bool) -> Failure {
    let given = match (keys, salt) {
        (true, true) => "keys and a salt",
        (true, false) => "keys and an adapter",
        (false, _) if adapter => "an adapter without a salt",
        _ => "neither keys nor a salt",
    };
    Failure::misuse(format!(
        "forget was given {given}: give keys=, or salt= and the adapter of its sequences"
    ))
}

impl Cache {
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
