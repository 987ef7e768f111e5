//! Words, counts and prompts, out of Python's arguments.

use crate::buffers::{Whole, each, integer, integers, is_integer, keys_of, shown};
use crate::enter::hash;
use crate::error::{Failure, Outcome};
use blockyard_core::{
    Cache, Cells, Chain, EvictionPolicy, Extras, Filling, FlightId, Key, Media, Retention, Speeds,
    WritePolicy,
};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyMapping, PyString};

/// One count for all rows, or one each.
pub(crate) enum Counts {
    All(u64),
    Each(Vec<u64>),
}

impl Counts {
    pub(crate) fn new(name: &'static str, from: &Bound<'_, PyAny>, rows: usize) -> PyResult<Self> {
        if from.is_instance_of::<PyInt>() {
            return Ok(Self::All(integer(name, from)?));
        }
        let each: Vec<u64> = match integers(name, from) {
            Err(_) if is_integer(from) => return Ok(Self::All(integer(name, from)?)),
            each => each?,
        };
        if each.len() != rows {
            let len = each.len();
            let message = format!("{name} has {len} values for a batch of {rows}: pass one each");
            return Err(Failure::misuse(message).into());
        }
        Ok(Self::Each(each))
    }

    pub(crate) fn of(&self, row: usize) -> u64 {
        match self {
            Self::All(count) => *count,
            Self::Each(each) => each[row],
        }
    }

    pub(crate) fn each(self, rows: usize) -> Vec<u64> {
        match self {
            Self::All(count) => vec![count; rows],
            Self::Each(each) => each,
        }
    }
}

/// Keywords that are one integer: what is none, or does not fit, is named. `PyO3` alone would raise
/// `OverflowError` for it.
macro_rules! whole {
    ($($name:ident: $type:ty),*) => {$(
        pub(crate) fn $name(from: &Bound<'_, PyAny>) -> PyResult<$type> {
            Keyword::read(stringify!($name), from)
        }
    )*};
}

trait Keyword: Sized {
    fn read(name: &str, from: &Bound<'_, PyAny>) -> PyResult<Self>;
}

impl<T: Whole> Keyword for T {
    fn read(name: &str, from: &Bound<'_, PyAny>) -> PyResult<Self> {
        integer(name, from)
    }
}

impl<T: Whole> Keyword for Option<T> {
    fn read(name: &str, from: &Bound<'_, PyAny>) -> PyResult<Self> {
        if from.is_none() {
            return Ok(None);
        }
        integer(name, from).map(Some)
    }
}

whole!(
    block_size: u32, device: u32, host: u32, null_slots: u32, retries: u32, groups: u8,
    tokens: u64, reserve: u64, computed: u64, slots: u32, blocks: u32,
    load: Option<u32>, after: Option<u64>, done: Option<u64>, memory: Option<u64>, ghosts: Option<u32>
);

/// How many blocks come before.
pub(crate) fn before(from: &Bound<'_, PyAny>) -> PyResult<u32> {
    Keyword::read("after", from)
}

/// How many blocks to promise; what no tier can hold is the yard's to say.
pub(crate) fn promised(from: &Bound<'_, PyAny>) -> PyResult<u64> {
    Keyword::read("blocks", from)
}

/// How many blocks; `None` for all.
pub(crate) fn most(from: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    Keyword::read("blocks", from)
}

/// Words of truth, one for all rows or one each: bools, or integers that are not 0.
pub(crate) fn flags(
    name: &'static str,
    from: &Bound<'_, PyAny>,
    rows: usize,
) -> PyResult<Vec<bool>> {
    if from.is_instance_of::<PyBool>() || is_integer(from) {
        return Ok(vec![from.is_truthy()?; rows]);
    }
    let items = from.try_iter().map_err(|_| {
        let kind = from.get_type();
        Failure::misuse(format!("{name} is {kind}: pass a bool, or one each"))
    })?;
    let each = each(name, from, items, |_, item| item.is_truthy())?;
    if each.len() != rows {
        let len = each.len();
        let message = format!("{name} has {len} values for a batch of {rows}: pass one each");
        return Err(Failure::misuse(message).into());
    }
    Ok(each)
}

fn word<T: Copy>(name: &str, given: &str, words: &[(&str, T)]) -> Outcome<T> {
    let found = words.iter().find(|(word, _)| *word == given);
    found.map(|&(_, value)| value).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Failure::misuse(format!("{name} = {given:?}: pass one of {known:?}"))
    })
}

pub(crate) fn retention(given: &str) -> Outcome<Retention> {
    let words = [
        ("ordinary", Retention::Ordinary),
        ("session-ended", Retention::SessionEnded),
        ("retain", Retention::Retain),
    ];
    word("retention", given, &words)
}

pub(crate) fn filling(given: &str) -> Outcome<Filling> {
    word(
        "filling",
        given,
        &[("stop", Filling::Stop), ("soon", Filling::Soon)],
    )
}

pub(crate) fn cells(given: &str) -> Outcome<Cells> {
    word(
        "cells",
        given,
        &[("all", Cells::All), ("changed", Cells::Changed)],
    )
}

pub(crate) fn eviction(given: &str) -> Outcome<EvictionPolicy> {
    word(
        "eviction",
        given,
        &[
            ("recency", EvictionPolicy::Recency),
            ("heap", EvictionPolicy::Heap),
        ],
    )
}

pub(crate) fn write(given: &str) -> Outcome<WritePolicy> {
    let words = [
        ("on-evict", WritePolicy::OnEvict),
        ("through", WritePolicy::Through),
        ("second-touch", WritePolicy::SecondTouch),
    ];
    word("write", given, &words)
}

/// Three counts of nanoseconds, in order: load, compute, attend.
pub(crate) fn speeds(from: &Bound<'_, PyAny>) -> PyResult<Option<Speeds>> {
    if from.is_none() {
        return Ok(None);
    }
    let given: Vec<u64> = integers("speeds", from)?;
    let &[load, compute, attend] = given.as_slice() else {
        let message = format!(
            "speeds = {}: pass three counts of nanoseconds, load, compute, attend",
            shown(from)
        );
        return Err(Failure::misuse(message).into());
    };
    Ok(Some(Speeds {
        load,
        compute,
        attend,
    }))
}

pub(crate) fn key_hash(given: &str) -> Outcome<blockyard_core::KeyHash> {
    use blockyard_core::KeyHash::{Sha256, Xxh3};
    word("key_hash", given, &[("sha256", Sha256), ("xxh3", Xxh3)])
}

pub(crate) fn tier(given: &str) -> Outcome<blockyard_core::Tier> {
    use blockyard_core::Tier;
    word(
        "tier",
        given,
        &[
            ("device", Tier::DEVICE),
            ("host", Tier::HOST),
            ("disk", Tier::DISK),
        ],
    )
}

pub(crate) fn namespace(from: Option<&Bound<'_, PyAny>>) -> PyResult<blockyard_core::Namespace> {
    let mut namespace = blockyard_core::Namespace::default();
    let Some(from) = from else {
        return Ok(namespace);
    };
    let mapping = from.cast::<PyMapping>().map_err(|_| {
        Failure::misuse("namespace: pass a mapping with model, weights, dtype, layout, parallel")
    })?;
    for item in mapping.items()? {
        let (name, value): (String, String) = item.extract().map_err(|_| {
            Failure::misuse(format!(
                "namespace has {}: names and values are strings",
                shown(&item)
            ))
        })?;
        *match name.as_str() {
            "model" => &mut namespace.model,
            "weights" => &mut namespace.weights,
            "dtype" => &mut namespace.dtype,
            "layout" => &mut namespace.layout,
            "parallel" => &mut namespace.parallel,
            _ => {
                let message = format!(
                    "namespace has {name:?}: it knows model, weights, dtype, layout and parallel"
                );
                return Err(Failure::misuse(message).into());
            }
        } = value;
    }
    Ok(namespace)
}

/// What tells a prompt's keys apart besides its tokens.
pub(crate) struct Apart<'a, 'py> {
    pub(crate) lora: Option<&'a Bound<'py, PyAny>>,
    pub(crate) salt: Option<&'a Bound<'py, PyAny>>,
    pub(crate) media: Option<&'a Bound<'py, PyAny>>,
}

impl Apart<'_, '_> {
    pub(crate) fn is_plain(&self) -> bool {
        self.lora.is_none() && self.salt.is_none() && self.media.is_none()
    }

    fn extras(&self, tokens: usize) -> PyResult<Extras> {
        let mut extras = Extras {
            lora: self.lora.map(|lora| text("lora", lora)).transpose()?,
            salt: self.salt.map(|salt| text("salt", salt)).transpose()?,
            media: Vec::new(),
        };
        if let Some(media) = self.media {
            let items = media.try_iter().map_err(|_| {
                let kind = media.get_type();
                Failure::misuse(format!("media is {kind}: pass a list of (start, end, id)"))
            })?;
            extras.media = each("media", media, items, |at, item| {
                one_item(at, &item, tokens)
            })?;
        }
        Ok(extras)
    }
}

/// One media item of a prompt of so many tokens.
fn one_item(at: usize, item: &Bound<'_, PyAny>, tokens: usize) -> PyResult<Media> {
    if at == tokens {
        let message =
            format!("media has more items than the prompt has tokens, which are {tokens}");
        return Err(Failure::misuse(message).into());
    }
    let wrong = |_| {
        Failure::misuse(format!(
            "media has {}: pass (start, end, id) with token positions and str or bytes",
            shown(item)
        ))
    };
    let (start, end, id): (u64, u64, Bound<'_, PyAny>) = item.extract().map_err(wrong)?;
    let id = text("media id", &id)?;
    Ok(Media { start, end, id })
}

/// No item reaches beyond the prompt: what its tokens stand for is known when they are.
fn check_within(extras: &Extras, tokens: usize) -> Outcome<()> {
    match extras.media.last() {
        Some(last) if last.end > tokens as u64 => {
            let (start, end) = (last.start, last.end);
            Err(Failure::misuse(format!(
                "media has [{start}, {end}), and the prompt has {tokens} tokens: an item ends where \
                 the prompt does, or before"
            )))
        }
        _ => Ok(()),
    }
}

fn text(name: &str, from: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(text) = from.cast::<PyString>() {
        return Ok(text.to_cow()?.as_bytes().to_vec());
    }
    if let Ok(bytes) = from.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    Err(Failure::misuse(format!("{name} is {}: pass str or bytes", from.get_type())).into())
}

/// The keys of a prompt, hashed detached when it is long.
pub(crate) fn chain(
    py: Python<'_>,
    cache: &Cache,
    tokens: &Bound<'_, PyAny>,
    apart: &Apart<'_, '_>,
) -> PyResult<Chain> {
    let tokens: Vec<u32> = integers("tokens", tokens)?;
    let extras = apart.extras(tokens.len())?;
    let within = check_within(&extras, tokens.len());
    let mut chain = cache.chain(extras).map_err(Failure::from)?;
    within?;
    hash(py, cache, tokens.len(), || chain.extend(&tokens))?;
    Ok(chain)
}

/// Keys given ready: bytes of 32 each, a buffer of them, or a list of bytes or hex strings; no more
/// than there are blocks.
pub(crate) fn ready_keys(from: &Bound<'_, PyAny>, blocks: u64) -> PyResult<Vec<Key>> {
    if let Ok(buffer) = pyo3::buffer::PyBuffer::<u8>::get(from) {
        let keys = keys_of(from.py(), &buffer)?;
        return Ok(keys.into_iter().map(Key).collect());
    }
    let items = from.try_iter().map_err(|_| {
        let kind = from.get_type();
        Failure::misuse(format!(
            "keys is {kind}: pass a buffer, or a list of bytes or of hex"
        ))
    })?;
    each("keys", from, items, |at, item| {
        if at as u64 == blocks {
            let message =
                format!("keys has more than the {blocks} keys that the tokens fill blocks for");
            return Err(Failure::misuse(message).into());
        }
        Ok(Key(one_key(at, &item)?))
    })
}

fn one_key(at: usize, item: &Bound<'_, PyAny>) -> Outcome<[u8; 32]> {
    let wrong = || {
        Failure::misuse(format!(
            "keys[{at}] = {}: pass 32 bytes, or 64 hexadecimal digits",
            shown(item)
        ))
    };
    if let Ok(bytes) = item.cast::<PyBytes>() {
        return bytes.as_bytes().try_into().map_err(|_| wrong());
    }
    let text = item.cast::<PyString>().map_err(|_| wrong())?;
    let text = text.to_cow().map_err(|_| wrong())?;
    let digits = text.as_bytes();
    let mut key = [0; 32];
    if digits.len() != 64 {
        return Err(wrong());
    }
    for (byte, pair) in key.iter_mut().zip(digits.as_chunks::<2>().0) {
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(key)
}

/// A flight's number, from an int or a plan.
pub(crate) fn flight(number: u64) -> Outcome<FlightId> {
    FlightId::from_number(number).ok_or_else(|| {
        Failure::Foreign(format!(
            "flight {number} was never issued: pass the number of a plan"
        ))
    })
}
