//! `Cache`: every verb, one crossing each.

use crate::arguments::{self, Apart, Counts, chain, ready_keys};
use crate::batch::Batch;
use crate::enter::{away, check_fork, enter, generation};
use crate::error::{Failure, Outcome};
use crate::handles::{Breach, Lease, Parked, Probe, Soon, foreign};
use crate::keys::Keys;
use blockyard_core::{self as core, Answer, Chain, Config, Request, Seals};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The bookkeeping of one KV cache.
#[pyclass(frozen, subclass, module = "blockyard", weakref)]
pub(crate) struct Cache {
    pub(crate) inner: core::Cache,
    pub(crate) block_size: u32,
    born: u64,
}

impl Cache {
    pub(crate) fn check_fork(&self) -> Outcome<()> {
        check_fork(self.born)
    }

    pub(crate) fn batch<'py>(&self, from: &Bound<'py, PyAny>) -> PyResult<Batch<'py>> {
        self.check_fork()?;
        Batch::new(self, from)
    }

    pub(crate) fn parked<'a>(&self, parked: &'a Parked) -> Outcome<&'a core::Parked> {
        self.check_fork()?;
        if !self.inner.made_parked(&parked.inner) {
            return Err(foreign("parked sequence", parked.inner.id().number()));
        }
        parked.inner.check()?;
        Ok(&parked.inner)
    }

    fn answer(slf: &Bound<'_, Self>, answer: Answer, chain: Chain) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        match answer {
            Answer::Soon(flight) => Ok(Py::new(
                py,
                Soon {
                    flight: flight.number(),
                },
            )?
            .into_any()),
            Answer::Begun(begun) => {
                let handle = slf.get().inner.handle(begun.lease, chain);
                let lease = Lease::new(py, slf.clone().unbind(), handle, begun)?;
                Ok(Py::new(py, lease)?.into_any())
            }
        }
    }

    fn resume(slf: &Bound<'_, Self>, parked: &Parked, reserve: u64) -> PyResult<Py<PyAny>> {
        let (py, cache) = (slf.py(), slf.get());
        let handle = cache.parked(parked)?;
        let blocks = (handle.tokens() / u64::from(cache.block_size)) as usize;
        let answer = enter(py, &cache.inner, blocks, |state| {
            handle.with_keys(|keys, tokens| state.resume(handle.id(), keys, tokens, reserve))
        });
        match answer.map_err(Failure::from)? {
            Answer::Soon(flight) => Ok(Py::new(
                py,
                Soon {
                    flight: flight.number(),
                },
            )?
            .into_any()),
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
        let batch = self.batch(batch)?;
        batch.check_once("finish")?;
        let blocks = self.blocks(&batch);
        let ids = &batch.ids;
        let done = enter(py, &self.inner, blocks, |state| {
            state.finish(ids, retention, after)
        });
        done.map_err(Failure::from)?;
        batch.handles().iter().for_each(|lease| lease.spend());
        Ok(())
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
        recompute=true, retries=3, groups=1, namespace=None, key_hash="sha256"))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn new(
        block_size: i64,
        device: i64,
        host: i64,
        null_slots: i64,
        eviction: &str,
        recompute: bool,
        retries: u32,
        groups: u8,
        namespace: Option<&Bound<'_, PyAny>>,
        key_hash: &str,
    ) -> PyResult<Self> {
        let count = |name: &str, value: i64| {
            u32::try_from(value).map_err(|_| {
                Failure::misuse(format!("{name} = {value}: pass 0 or more, below 2**32"))
            })
        };
        if device <= 0 {
            let message = format!("device = {device}: a device needs at least one block");
            return Err(Failure::misuse(message).into());
        }
        let config = Config {
            block_size: count("block_size", block_size)?,
            slots: vec![count("device", device)?, count("host", host)?],
            null_slots: count("null_slots", null_slots)?,
            policy: arguments::eviction(eviction)?,
            recompute,
            retries,
            groups,
        };
        let namespace = arguments::namespace(namespace)?;
        let block_size = config.block_size;
        let inner = core::Cache::new(config, arguments::key_hash(key_hash)?, &namespace);
        Ok(Self {
            inner: inner.map_err(Failure::from)?,
            block_size,
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
        Ok(Keys(chain(
            py,
            &self.inner,
            tokens,
            &Apart { lora, salt, media },
        )?))
    }

    fn ready_keys(&self, keys: &Bound<'_, PyAny>, tokens: u64) -> PyResult<Keys> {
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
        media=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords")]
    fn begin(
        slf: &Bound<'_, Self>,
        prompt: &Bound<'_, PyAny>,
        reserve: u64,
        load: Option<u32>,
        filling: &str,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        media: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (py, cache) = (slf.py(), slf.get());
        cache.check_fork()?;
        let apart = Apart { lora, salt, media };
        let given = prompt.is_instance_of::<Keys>() || prompt.is_instance_of::<Parked>();
        if given && !apart.is_plain() {
            let message = "lora, salt and media are in the keys already: pass them to keys()";
            return Err(Failure::misuse(message).into());
        }
        if let Ok(parked) = prompt.cast::<Parked>() {
            return Self::resume(slf, parked.get(), reserve);
        }
        let filling = arguments::filling(filling)?;
        let chain = match prompt.cast::<Keys>() {
            Ok(keys) => keys.get().0.clone(),
            Err(_) => chain(py, &cache.inner, prompt, &apart)?,
        };
        let (keys, tokens) = (chain.keys(), chain.tokens());
        if chain.block_size() != cache.block_size {
            let (own, other) = (cache.block_size, chain.block_size());
            let message = format!("keys of blocks of {other} tokens, and the cache has {own}");
            return Err(Failure::misuse(message).into());
        }
        let request = Request {
            keys,
            tokens,
            reserve,
            load: load.unwrap_or(u32::MAX),
            filling,
        };
        let blocks = (tokens / u64::from(cache.block_size)) as usize;
        let answer = enter(py, &cache.inner, blocks, |state| state.begin(&request));
        Self::answer(slf, answer.map_err(Failure::from)?, chain)
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

    fn resize(&self, py: Python<'_>, tier: &str, slots: i64) -> PyResult<()> {
        self.check_fork()?;
        let tier = arguments::tier(tier)?;
        let slots = u32::try_from(slots).map_err(|_| {
            Failure::misuse(format!("slots = {slots}: pass 0 or more, below 2**32"))
        })?;
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
