//! `probe` looks a prefix up; `begin` admits a sequence, or brings a parked one back; `fork` makes one
//! more of a sequence.

use crate::arguments;
use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::gil::enter;
use crate::keys::Keys;
use crate::lease::Lease;
use crate::parked::Parked;
use crate::prompt::{Apart, chain, check_plain, read};
use crate::results::{Probe, Soon};
use crate::ticket::Ticket;
use blockyard_core::{self as core, Answer, Request, State};
use blockyard_guard::guarded;
use blockyard_record::Seen;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

/// A prompt of at most this many tokens is read and hashed before its size is judged: that takes
/// less time.
const FEW: u64 = 4096;

#[guarded]
#[pymethods]
impl Cache {
    /// Tells how much of a prefix is where. It changes nothing, not even recency.
    ///
    /// Args:
    ///     prefix: Keys, or tokens without an adapter, a salt and media; None asks about no block.
    ///
    /// Raises:
    ///     Misuse: The keys are of blocks of another size, or a token is out of range.
    #[pyo3(signature = (prefix=None, /))]
    fn probe(&self, py: Python<'_>, prefix: Option<&Bound<'_, PyAny>>) -> PyResult<Probe> {
        self.check_sound()?;
        let Some(prefix) = prefix else {
            return Ok(enter(py, &self.inner, 0, |state| Ok(state.probe(&[])))?.into());
        };
        if let Ok(keys) = prefix.cast::<Keys>() {
            self.check_keys(&keys.get().0)?;
            let keys = keys.get().0.keys();
            let probe = enter(py, &self.inner, keys.len(), |state| Ok(state.probe(keys)));
            return Ok(probe?.into());
        }
        let apart = Apart {
            lora: None,
            salt: None,
            media: None,
        };
        let chain = chain(py, &self.inner, prefix, &apart)?;
        let blocks = chain.keys().len();
        let probe = enter(py, &self.inner, blocks, |state| {
            Ok(state.probe(chain.keys()))
        });
        Ok(probe?.into())
    }

    /// Admits a sequence, or brings a parked one back: all or nothing.
    ///
    /// It matches the longest prefix over all tiers and pins it, claims the missing slots, promises
    /// the growth, and evicts exactly as many blocks as lack. When all tokens hit, the last one is
    /// computed again to obtain logits, in a private copy of the last block. A parked sequence
    /// resumes at the token at which it was parked.
    ///
    /// A lease with `plans` is "loading" until they have landed: wait for that before the model
    /// runs. `block_tables` and `slot_mapping` refuse it until then.
    ///
    /// Args:
    ///     prompt: Keys, tokens, or the handle of `park`.
    ///     reserve: Tokens of growth to promise. A `grow` within them never fails.
    ///     load: The most blocks to load from below the device; None for all, as far as the cache's
    ///         `block_costs` allow. If blocks were left out, the lease's `stop` is "slow".
    ///     filling: At a block in flight, "stop" ends the prefix there; "soon" returns `Soon`. If the
    ///         engine cannot recompute, "stop" returns `Soon` too.
    ///     lora: As in `keys`.
    ///     salt: As in `keys`.
    ///     media: As in `keys`.
    ///     ticket: A ticket of `promise`: the begin may use the device blocks that it keeps. On
    ///         success the ticket is spent, including blocks that were not needed. After `Soon` or
    ///         an error it stays open.
    ///     read_prefix: False to find nothing, so that every token is computed, as log
    ///         probabilities of a prompt need it. Its blocks are published all the same.
    ///
    /// Returns:
    ///     The lease; or `Soon`, while part of the prefix is in flight.
    ///
    /// Raises:
    ///     NoRoom: There is no room now; nothing is held. `promised` does not count the blocks of
    ///         `ticket`.
    ///     TooLarge: It never fits. If the length of the prompt shows that, the prompt is not read.
    ///     Misuse: The prompt is empty, a value is out of range, `lora`, `salt` or `media` came
    ///         beside ready keys, or the ticket is not for the device.
    ///     SpentLease: The parked sequence or the ticket has ended.
    ///     ForeignLease: One of them is another cache's.
    #[pyo3(signature = (prompt, /, *, reserve=0, load=None, filling="stop", lora=None, salt=None,
        media=None, ticket=None, read_prefix=true))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn begin(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::reserve)] reserve: u64,
        #[pyo3(from_py_with = arguments::load)] load: Option<u32>,
        filling: &str,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        media: Option<&Bound<'_, PyAny>>,
        ticket: Option<&Bound<'_, Ticket>>,
        read_prefix: bool,
    ) -> PyResult<Py<PyAny>> {
        let (py, cache) = (slf.py(), slf.get());
        cache.check_open()?;
        let apart = Apart { lora, salt, media };
        if prompt.is_instance_of::<Parked>() {
            check_plain(&apart)?;
            if !read_prefix {
                let message =
                    "read_prefix = False: a parked sequence comes back with its own blocks";
                return Err(Failure::misuse(message).into());
            }
        }
        let ticket = ticket
            .map(|ticket| ticket.get().of(cache, py))
            .transpose()?;
        if let Ok(parked) = prompt.cast::<Parked>() {
            return Self::resume(slf, parked.get(), reserve, ticket);
        }
        let filling = arguments::filling(filling)?;
        cache.check_ever(py, prompt, reserve)?;
        let chain = cache.prompt(py, prompt, &apart)?;
        let (keys, tokens) = (read(&chain, read_prefix), chain.tokens());
        let request = Request {
            keys,
            tokens,
            reserve,
            load: load.unwrap_or(u32::MAX),
            filling,
        };
        let blocks = (tokens / u64::from(cache.block_size)) as usize;
        let answer = cache.admit(py, blocks, ticket, |state| {
            rooted(state, chain.root(), |state| state.begin(&request))
        });
        let answer = answer?;
        if let Answer::Begun(begun) = &answer {
            let found: u32 = begun.hits.iter().sum();
            cache.inner.emit_found(&chain, found as usize);
        }
        let seen = cache.recorder.as_ref().and_then(|to| to.see(tokens));
        Self::answer(slf, answer, seen, |id| cache.inner.handle(id, chain))
    }

    /// Makes one more sequence with the same tokens.
    ///
    /// It shares the full blocks, and copies the partial one: it loads until that has landed.
    ///
    /// Where the engine cannot recompute, a fork whose copy fails is undone, and its lease is
    /// "spent".
    ///
    /// Args:
    ///     lease: The parent.
    ///     computed: Tokens whose KV the parent has.
    ///     reserve: Tokens of growth to promise.
    ///
    /// Returns:
    ///     The new lease. Its `plans` has the copy of the partial block.
    ///
    /// Raises:
    ///     NoRoom: There is no room now; nothing is held.
    ///     TooLarge: It never fits.
    ///     Misuse: `computed` is out of range, or the parent is loading or came back incomplete.
    ///     SpentLease: The parent has ended before.
    ///     ForeignLease: It is another cache's.
    #[pyo3(signature = (lease, computed, *, reserve=0))]
    fn fork(
        slf: &Bound<'_, Self>,
        lease: &Bound<'_, Lease>,
        #[pyo3(from_py_with = arguments::computed)] computed: u64,
        #[pyo3(from_py_with = arguments::reserve)] reserve: u64,
    ) -> PyResult<Lease> {
        let (py, cache) = (slf.py(), slf.get());
        let batch = cache.rows(lease.as_any())?;
        let id = batch.ids()[0];
        let handle = &lease.get().inner;
        handle.check_computed(computed).map_err(Failure::from)?;
        let blocks = cache.blocks(&batch);
        let begun = enter(py, &cache.inner, blocks, |state| {
            state.fork(id, computed, reserve)
        })?;
        let handle = cache.inner.handle(begun.lease, handle.chain());
        // The samples of a prompt are one request: the first one is recorded.
        Lease::new(py, slf.clone().unbind(), handle, begun, None)
    }
}

/// A begin or resume of a sequence that stands on this root.
fn rooted(
    state: &mut State,
    root: Option<core::Key>,
    act: impl FnOnce(&mut State) -> core::Result<Answer>,
) -> core::Result<Answer> {
    let answer = act(state)?;
    if let Answer::Begun(begun) = &answer {
        state.name_root(begun.lease, root);
    }
    Ok(answer)
}

impl Cache {
    /// Refuses a prompt whose own length says that it never fits, before it is read and hashed.
    fn check_ever(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>, reserve: u64) -> Outcome<()> {
        let said = match prompt.len() {
            Ok(said) => said as u64,
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => u64::MAX,
            Err(_) => return Ok(()),
        };
        if said <= FEW {
            return Ok(());
        }
        enter(py, &self.inner, 0, |state| state.ever(said, reserve))
    }

    /// One begin or resume; with a ticket, it may use the blocks that the ticket keeps.
    fn admit(
        &self,
        py: Python<'_>,
        blocks: usize,
        ticket: Option<&core::Ticket>,
        act: impl FnOnce(&mut State) -> core::Result<Answer> + Send,
    ) -> Outcome<Answer> {
        let Some(ticket) = ticket else {
            return enter(py, &self.inner, blocks, act);
        };
        let id = ticket.id();
        let answer = enter(py, &self.inner, blocks, |state| state.redeem(id, act))?;
        if let Answer::Begun(_) = answer {
            ticket.spend();
        }
        Ok(answer)
    }

    fn resume(
        slf: &Bound<'_, Self>,
        parked: &Parked,
        reserve: u64,
        ticket: Option<&core::Ticket>,
    ) -> PyResult<Py<PyAny>> {
        let (py, cache) = (slf.py(), slf.get());
        let handle = parked.of(cache, py)?;
        let chain = handle.chain();
        let answer = cache.admit(py, chain.keys().len(), ticket, |state| {
            rooted(state, chain.root(), |state| {
                state.resume(handle.id(), chain.keys(), chain.tokens(), reserve)
            })
        });
        Self::answer(slf, answer?, parked.seen, |id| handle.into_lease(id))
    }

    fn answer(
        slf: &Bound<'_, Self>,
        answer: Answer,
        seen: Option<Seen>,
        handle: impl FnOnce(core::LeaseId) -> core::Lease,
    ) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        match answer {
            Answer::Soon(flight) => Ok(Py::new(py, Soon::from(flight))?.into_any()),
            Answer::Begun(begun) => {
                let handle = handle(begun.lease);
                let lease = Lease::new(py, slf.clone().unbind(), handle, begun, seen)?;
                Ok(Py::new(py, lease)?.into_any())
            }
        }
    }
}
