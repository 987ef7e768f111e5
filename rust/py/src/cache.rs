//! `Cache`: every verb, one crossing each.

use crate::arguments::{self, Apart, Counts, chain, ready_keys};
use crate::batch::Batch;
use crate::enter::{away, check_fork, enter, generation};
use crate::error::{Failure, Outcome};
use crate::handles::{Breach, Lease, Parked, Probe, Soon, foreign};
use crate::keys::Keys;
use crate::tickets::Ticket;
use blockyard_core::{self as core, Answer, Chain, Config, Request, Seals, Speeds, State};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The bookkeeping of one KV cache.
#[pyclass(frozen, subclass, module = "blockyard", weakref)]
pub(crate) struct Cache {
    pub(crate) inner: core::Cache,
    pub(crate) block_size: u32,
    pub(crate) null_slots: u32,
    born: u64,
}

impl Cache {
    pub(crate) fn check_fork(&self) -> Outcome<()> {
        check_fork(self.born)
    }

    pub(crate) fn batch<'py>(&self, from: &Bound<'py, PyAny>) -> PyResult<Batch<'py>> {
        self.check_fork()?;
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
        self.check_fork()?;
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
        enter(py, &self.inner, 0, |state| state.reject(handles));
        bad.into()
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
            return Ok(enter(py, &self.inner, blocks, act)?);
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
        self.check_fork()?;
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
        let done = enter(py, &self.inner, blocks, |state| {
            if rejected > 0 {
                state.reject(rejected);
            }
            state.finish(ids, retention, after)
        });
        done.map_err(Failure::from)?;
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

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (*, block_size=16, device, host=0, null_slots=1, eviction="recency",
        write="on-evict", ghosts=None, speeds=None, recompute=true, retries=3, groups=1,
        namespace=None, key_hash="sha256"))]
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
        let namespace = arguments::namespace(namespace)?;
        let inner = core::Cache::new(config, arguments::key_hash(key_hash)?, &namespace);
        Ok(Self {
            inner: inner.map_err(Failure::from)?,
            block_size,
            null_slots,
            born: generation(),
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
        self.check_fork()?;
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
        self.check_fork()?;
        let chain = Chain::ready(self.block_size, ready_keys(keys)?, tokens);
        Ok(Keys(chain.map_err(Failure::from)?))
    }

    #[pyo3(signature = (prefix=None, /))]
    fn probe(&self, py: Python<'_>, prefix: Option<&Bound<'_, PyAny>>) -> PyResult<Probe> {
        self.check_fork()?;
        let Some(prefix) = prefix else {
            return Ok(enter(py, &self.inner, 0, |state| state.probe(&[])).into());
        };
        if let Ok(keys) = prefix.cast::<Keys>() {
            self.check_keys(&keys.get().0)?;
            let keys = keys.get().0.keys();
            return Ok(enter(py, &self.inner, keys.len(), |state| state.probe(keys)).into());
        }
        let apart = Apart {
            lora: None,
            salt: None,
            media: None,
        };
        let chain = chain(py, &self.inner, prefix, &apart)?;
        let blocks = chain.keys().len();
        Ok(enter(py, &self.inner, blocks, |state| state.probe(chain.keys())).into())
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
        cache.check_fork()?;
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
        self.check_fork()?;
        away(py, || self.inner.lock().clear());
        Ok(())
    }

    fn draining(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_fork()?;
        Ok(away(py, || self.inner.lock().draining()))
    }

    fn resize(
        &self,
        py: Python<'_>,
        tier: &str,
        #[pyo3(from_py_with = arguments::slots)] slots: u32,
    ) -> PyResult<()> {
        self.check_fork()?;
        let tier = arguments::tier(tier)?;
        let resized = away(py, || self.inner.lock().resize(tier, slots));
        Ok(resized.map_err(Failure::from)?)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_fork()?;
        let stats = enter(py, &self.inner, 0, |state| state.stats());
        let values = PyDict::new(py);
        stats
            .values()
            .into_iter()
            .try_for_each(|(name, value)| values.set_item(name, value))?;
        Ok(values)
    }

    fn audit(&self, py: Python<'_>) -> PyResult<Option<Breach>> {
        self.check_fork()?;
        Ok(away(py, || self.inner.lock().audit()).map(Breach::from))
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
