//! `Cache`: every verb, one crossing each.

use crate::arguments::{self, Apart, Counts, chain, ready_keys};
use crate::batch::Batch;
use crate::enter::{LONG, check_fork, enter, generation};
use crate::error::{Failure, Outcome};
use crate::handles::{Lease, Parked, Probe, Soon, Violation, foreign};
use crate::keys::Keys;
use crate::tickets::Ticket;
use blockyard_core::{self as core, Answer, Chain, Config, Request, Seals, Speeds, State};
use blockyard_guard::guarded;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tokens that are read and hashed sooner than it is asked whether they fit.
const FEW: u64 = 4096;

/// The bookkeeping of one KV cache.
#[pyclass(frozen, subclass, module = "blockyard", weakref)]
pub(crate) struct Cache {
    pub(crate) inner: core::Cache,
    pub(crate) block_size: u32,
    pub(crate) null_slots: u32,
    born: u64,
    pub(crate) closed: AtomicBool,
}

impl Cache {
    /// Of this process, and not broken.
    pub(crate) fn check_sound(&self) -> Outcome<()> {
        check_fork(self.born)?;
        Ok(self.inner.check()?)
    }

    /// For what would begin something, or go on with it: to ask and to end stays possible.
    pub(crate) fn check_open(&self) -> Outcome<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Failure::misuse("this cache is closed: make another one"));
        }
        self.check_sound()
    }

    pub(crate) fn batch<'py>(&self, from: &Bound<'py, PyAny>) -> PyResult<Batch<'py>> {
        self.check_open()?;
        let batch = Batch::new(from)?;
        let bad = batch
            .leases
            .iter()
            .find_map(|lease| self.check(lease).err());
        match bad {
            None => Ok(batch),
            Some(bad) => Err(self.reject(from.py(), 1, bad)),
        }
    }

    /// A lease of this cache that is not spent.
    fn check(&self, lease: &Bound<'_, Lease>) -> Outcome<()> {
        let handle = &lease.get().inner;
        if !self.inner.made(handle) {
            return Err(foreign("lease", handle.id().number()));
        }
        Ok(handle.check()?)
    }

    pub(crate) fn parked<'a>(
        &self,
        py: Python<'_>,
        parked: &'a Parked,
    ) -> PyResult<&'a core::Parked> {
        self.check_sound()?;
        let handle = &parked.inner;
        let good = if self.inner.made_parked(handle) {
            handle.check().map_err(Failure::from)
        } else {
            Err(foreign("parked sequence", handle.id().number()))
        };
        match good {
            Ok(()) => Ok(handle),
            Err(bad) => Err(self.reject(py, 1, bad)),
        }
    }

    pub(crate) fn reject(&self, py: Python<'_>, handles: u64, bad: Failure) -> PyErr {
        let counted = enter(py, &self.inner, 0, |state| {
            state.reject(handles);
            Ok(())
        });
        counted.err().unwrap_or(bad).into()
    }

    /// Keys are cut into this cache's blocks.
    pub(crate) fn check_keys(&self, keys: &Chain) -> Outcome<()> {
        if keys.block_size() == self.block_size {
            return Ok(());
        }
        let (own, other) = (self.block_size, keys.block_size());
        let message = format!("keys of blocks of {other} tokens, and the cache has {own}");
        Err(Failure::misuse(message))
    }

    /// A prompt that says itself that it is too large is not read, let alone hashed.
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

    /// The keys of a prompt: given, or made of its tokens.
    pub(crate) fn prompt(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        apart: &Apart<'_, '_>,
    ) -> PyResult<Chain> {
        let Ok(keys) = prompt.cast::<Keys>() else {
            return chain(py, &self.inner, prompt, apart);
        };
        check_plain(apart)?;
        let chain = keys.get().0.clone();
        self.check_keys(&chain)?;
        Ok(chain)
    }

    fn answer(slf: &Bound<'_, Self>, answer: Answer, chain: Chain) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        match answer {
            Answer::Soon(flight) => soon(py, flight),
            Answer::Begun(begun) => {
                let handle = slf.get().inner.handle(begun.lease, chain);
                let lease = Lease::new(py, slf.clone().unbind(), handle, begun)?;
                Ok(Py::new(py, lease)?.into_any())
            }
        }
    }

    /// One begin or resume, with the room of a ticket if there is one.
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
        let handle = cache.parked(py, parked)?;
        let chain = handle.chain();
        let answer = cache.admit(py, chain.keys().len(), ticket, |state| {
            state.resume(handle.id(), chain.keys(), chain.tokens(), reserve)
        });
        match answer? {
            Answer::Soon(flight) => soon(py, flight),
            Answer::Begun(begun) => {
                let lease = handle.into_lease(begun.lease);
                let lease = Lease::new(py, slf.clone().unbind(), lease, begun)?;
                Ok(Py::new(py, lease)?.into_any())
            }
        }
    }

    pub(crate) fn finish(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        retention: &str,
        after: Option<u64>,
    ) -> PyResult<()> {
        let retention = arguments::retention(retention)?;
        self.check_sound()?;
        let mut batch = Batch::new(batch)?;
        let (rows, blocks) = (batch.len(), self.blocks(&batch));
        let mut bad: Vec<Failure> = Vec::new();
        // Spent at once: the same lease a second time is turned away like any other.
        batch.retain(|lease| {
            let good = self
                .check(lease)
                .and_then(|()| Ok(lease.get().inner.take()?));
            good.map_err(|failure| bad.push(failure)).is_ok()
        });
        let (ids, rejected) = (&batch.ids, bad.len() as u64);
        enter(py, &self.inner, blocks, |state| {
            if rejected > 0 {
                state.reject(rejected);
            }
            state.finish(ids, retention, after)
        })?;
        match Failure::of_rows(bad, rows) {
            None => Ok(()),
            Some(bad) => Err(bad.into()),
        }
    }

    /// About how many blocks a batch holds.
    pub(crate) fn blocks(&self, batch: &Batch<'_>) -> usize {
        let size = u64::from(self.block_size);
        batch
            .handles()
            .iter()
            .map(|lease| (lease.tokens() / size) as usize + 1)
            .sum()
    }

    pub(crate) fn seals(batch: &Batch<'_>, computed: &Counts) -> Outcome<Seals> {
        let mut seals = Seals::default();
        for (row, lease) in batch.handles().into_iter().enumerate() {
            seals.add(lease, computed.of(row))?;
        }
        Ok(seals)
    }
}

#[guarded]
#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (*, block_size=16, device, host=0, null_slots=1, eviction="recency",
        write="on-evict", ghosts=None, speeds=None, recompute=true, retries=3, groups=1,
        namespace=None, key_hash="sha256", memory=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn new(
        #[pyo3(from_py_with = arguments::block_size)] block_size: u32,
        #[pyo3(from_py_with = arguments::device)] device: u32,
        #[pyo3(from_py_with = arguments::host)] host: u32,
        #[pyo3(from_py_with = arguments::null_slots)] null_slots: u32,
        eviction: &str,
        write: &str,
        #[pyo3(from_py_with = arguments::ghosts)] ghosts: Option<u32>,
        #[pyo3(from_py_with = arguments::speeds)] speeds: Option<Speeds>,
        recompute: bool,
        #[pyo3(from_py_with = arguments::retries)] retries: u32,
        #[pyo3(from_py_with = arguments::groups)] groups: u8,
        namespace: Option<&Bound<'_, PyAny>>,
        key_hash: &str,
        #[pyo3(from_py_with = arguments::memory)] memory: Option<u64>,
    ) -> PyResult<Self> {
        let config = Config {
            block_size,
            slots: vec![device, host],
            null_slots,
            policy: arguments::eviction(eviction)?,
            write: arguments::write(write)?,
            ghosts,
            speeds,
            recompute,
            retries,
            groups,
        };
        config.fits(memory).map_err(Failure::from)?;
        let namespace = arguments::namespace(namespace)?;
        let inner = core::Cache::new(config, arguments::key_hash(key_hash)?, &namespace);
        Ok(Self {
            inner: inner.map_err(Failure::from)?,
            block_size,
            null_slots,
            born: generation(),
            closed: AtomicBool::new(false),
        })
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.block_size
    }

    #[pyo3(signature = (tokens, *, lora=None, salt=None, media=None))]
    fn keys(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        media: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Keys> {
        self.check_sound()?;
        Ok(Keys(chain(
            py,
            &self.inner,
            tokens,
            &Apart { lora, salt, media },
        )?))
    }

    fn ready_keys(
        &self,
        keys: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::tokens)] tokens: u64,
    ) -> PyResult<Keys> {
        self.check_sound()?;
        let keys = ready_keys(keys, tokens / u64::from(self.block_size))?;
        let chain = Chain::ready(self.block_size, keys, tokens);
        Ok(Keys(chain.map_err(Failure::from)?))
    }

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

    #[pyo3(signature = (prompt, /, *, reserve=0, load=None, filling="stop", lora=None, salt=None,
        media=None, ticket=None))]
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
    ) -> PyResult<Py<PyAny>> {
        let (py, cache) = (slf.py(), slf.get());
        cache.check_open()?;
        let apart = Apart { lora, salt, media };
        if prompt.is_instance_of::<Parked>() {
            check_plain(&apart)?;
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
        let (keys, tokens) = (chain.keys(), chain.tokens());
        let request = Request {
            keys,
            tokens,
            reserve,
            load: load.unwrap_or(u32::MAX),
            filling,
        };
        let blocks = (tokens / u64::from(cache.block_size)) as usize;
        let answer = cache.admit(py, blocks, ticket, |state| state.begin(&request));
        Self::answer(slf, answer?, chain)
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.check_sound()?;
        enter(py, &self.inner, LONG, |state| {
            state.clear();
            Ok(())
        })?;
        Ok(())
    }

    fn draining(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_sound()?;
        Ok(enter(py, &self.inner, LONG, |state| Ok(state.draining()))?)
    }

    #[pyo3(signature = (tier, slots, *, memory=None))]
    fn resize(
        &self,
        py: Python<'_>,
        tier: &str,
        #[pyo3(from_py_with = arguments::slots)] slots: u32,
        #[pyo3(from_py_with = arguments::memory)] memory: Option<u64>,
    ) -> PyResult<()> {
        self.check_open()?;
        let tier = arguments::tier(tier)?;
        let resized = enter(py, &self.inner, LONG, |state| {
            state.resize_where(tier, slots, memory)
        });
        Ok(resized?)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_sound()?;
        let stats = enter(py, &self.inner, 0, |state| Ok(state.stats()))?;
        let values = PyDict::new(py);
        stats
            .values()
            .into_iter()
            .try_for_each(|(name, value)| values.set_item(name, value))?;
        Ok(values)
    }

    fn audit(&self, py: Python<'_>) -> PyResult<Option<Violation>> {
        self.check_sound()?;
        let violation = enter(py, &self.inner, LONG, |state| Ok(state.audit()))?;
        Ok(violation.map(Violation::from))
    }

    /// From here on nothing is begun and nothing goes on: the memory is gone.
    fn _close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

fn check_plain(apart: &Apart<'_, '_>) -> Outcome<()> {
    if apart.is_plain() {
        return Ok(());
    }
    let message = "lora, salt and media are in the keys already: pass them to keys()";
    Err(Failure::misuse(message))
}

fn soon(py: Python<'_>, flight: core::FlightId) -> PyResult<Py<PyAny>> {
    let flight = flight.number();
    Ok(Py::new(py, Soon { flight })?.into_any())
}
