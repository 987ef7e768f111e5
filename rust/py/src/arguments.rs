//! Reads words, counts and numbers out of Python's arguments.

use crate::buffers::{Whole, each, integer, integers, is_integer, shown};
use crate::error::{Failure, Outcome};
use blockyard_core::{
    BlockCosts, Boot, Cells, Clears, Error, EvictionPolicy, Filling, FlightId, Hints, HostCopies,
    KeyHash, Loading, MAX_TIERS, NextUse, Priority, Retention, Salts, Tier, WritePolicy,
};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyMapping, PyString};
use std::num::NonZeroU32;
use std::time::Duration;

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

/// Keywords that are one integer. The error names the keyword; `PyO3` alone would raise
/// `OverflowError`.
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
    block_size: u32, host: u32, disk: u32, remote: u32, null_slots: u32, copy_retries: u32, groups: u8, group: u8,
    tokens: u64, reserve: u64, computed: u64, slots: u32, blocks: u32, prompt: u64, answer: u64,
    arrived: u64, far: u32, ready: u32, step: u32,
    load: Option<u32>, after: Option<u64>, done: Option<u64>, memory: Option<u64>, yard: Option<u64>, boot: Option<u32>, ghosts: Option<u32>, spare: Option<u32>,
    ttl: Option<u32>, ring: u32, rank: Option<u32>
);

/// The boot of a cache: a random one, if none is given. After a fork no two processes draw the same.
pub(crate) fn drawn_boot(py: Python<'_>, given: Option<u32>) -> PyResult<Boot> {
    let boot = if let Some(boot) = given {
        NonZeroU32::new(boot)
            .ok_or_else(|| Failure::misuse("boot = 0: must be 1 or more, or None to draw it"))?
    } else {
        let drawn = py.import("os")?.call_method1("urandom", (4,))?;
        NonZeroU32::new(u32::from_le_bytes(drawn.extract()?)).unwrap_or(NonZeroU32::MIN)
    };
    Ok(Boot(boot))
}

/// The slots of the device, and the blocks of an engine that gives them out itself: one of them.
pub(crate) fn device(from: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    Keyword::read("device", from)
}

/// The same of the engine.
pub(crate) fn engine(from: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    Keyword::read("engine", from)
}

/// The block that comes first.
pub(crate) fn first(from: &Bound<'_, PyAny>) -> PyResult<u32> {
    Keyword::read("first", from)
}

/// How many blocks come before.
pub(crate) fn before(from: &Bound<'_, PyAny>) -> PyResult<u32> {
    Keyword::read("after", from)
}

/// How many blocks to promise. The yard refuses more than a tier can hold.
pub(crate) fn promised(from: &Bound<'_, PyAny>) -> PyResult<u64> {
    Keyword::read("blocks", from)
}

/// How many blocks; `None` for all.
pub(crate) fn most(from: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    Keyword::read("blocks", from)
}

/// Truth values, one for all rows or one each: bools, or integers that are not 0.
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
        let near = words.iter().max_by(|(one, _), (other, _)| {
            let like = |word: &str| strsim::jaro_winkler(&given.to_lowercase(), word);
            like(one).total_cmp(&like(other))
        });
        let near = near.map_or("", |(word, _)| *word);
        let known: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        let known = known.join(", ");
        Failure::misuse(format!(
            "{name} = {given:?}: did you mean {near:?}? It must be one of {known}"
        ))
    })
}

/// The word for a value.
pub(crate) fn said<T: PartialEq>(value: &T, words: &[(&'static str, T)]) -> Option<&'static str> {
    let found = words.iter().find(|(_, known)| known == value);
    found.map(|&(word, _)| word)
}

fn retention(given: &str) -> Outcome<Retention> {
    let words = [
        ("ordinary", Retention::Ordinary),
        ("session-ended", Retention::SessionEnded),
        ("retain", Retention::Retain),
    ];
    word("retention", given, &words)
}

/// All that a caller says of a request's future.
pub(crate) fn hints(
    said: &str,
    next_use: Option<NextUse>,
    priority: Option<Priority>,
    ttl: Option<u32>,
) -> Outcome<Hints> {
    Ok(Hints {
        retention: retention(said)?,
        next_use,
        priority,
        ttl,
    })
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

pub(crate) fn loading(given: &str) -> Outcome<Loading> {
    word(
        "loading",
        given,
        &[("refuse", Loading::Refuse), ("joined", Loading::Joined)],
    )
}

pub(crate) const EVICTIONS: [(&str, EvictionPolicy); 3] = [
    ("recency", EvictionPolicy::Recency),
    ("learned", EvictionPolicy::Learned),
    ("heap", EvictionPolicy::Heap),
];

pub(crate) fn eviction(given: &str) -> Outcome<EvictionPolicy> {
    word("eviction", given, &EVICTIONS)
}

pub(crate) const HOST_COPIES: [(&str, HostCopies); 2] =
    [("first", HostCopies::First), ("last", HostCopies::Last)];

pub(crate) fn salts(given: &str) -> Outcome<Salts> {
    word(
        "salts",
        given,
        &[("hide", Salts::Hide), ("tell", Salts::Tell)],
    )
}

pub(crate) fn clears(given: &str) -> Outcome<Clears> {
    word(
        "clears",
        given,
        &[("all", Clears::All), ("own", Clears::Own)],
    )
}

/// Whether what the keyed tiers have is kept.
pub(crate) fn keeps_disk(memory: &str) -> Outcome<bool> {
    word("memory", memory, &[("lost", false), ("disk kept", true)])
}

pub(crate) fn host_copies(given: Option<&str>) -> Outcome<Option<HostCopies>> {
    given
        .map(|given| word("host_copies", given, &HOST_COPIES))
        .transpose()
}

/// In how many seconds the blocks of a request will be used again.
pub(crate) fn next_use(from: &Bound<'_, PyAny>) -> PyResult<Option<NextUse>> {
    if from.is_none() {
        return Ok(None);
    }
    // That of NumPy is "bool" or "bool_", by its version, and reads as a number too.
    let kind = from.get_type().name()?;
    let seconds = match from.extract::<f64>() {
        Ok(seconds) if !kind.to_string().starts_with("bool") => seconds,
        _ => f64::NAN,
    };
    if !seconds.is_finite() || seconds < 0.0 {
        let message = format!(
            "next_use = {}: give seconds, a finite number that is not negative; or leave it out",
            shown(from)
        );
        return Err(Failure::misuse(message).into());
    }
    // A number beyond what fits is the most that fits.
    let millis = Duration::try_from_secs_f64(seconds)
        .ok()
        .and_then(|time| u64::try_from(time.as_millis()).ok());
    Ok(Some(NextUse::in_millis(millis.unwrap_or(u64::MAX))))
}

/// How much a request's blocks are worth.
pub(crate) fn priority(from: &Bound<'_, PyAny>) -> PyResult<Option<Priority>> {
    if from.is_none() {
        return Ok(None);
    }
    if let Some(Ok(priority)) = integer("priority", from).ok().map(Priority::new) {
        return Ok(Some(priority));
    }
    let message = format!(
        "priority = {}: give an integer from 0 to {}, the last to be evicted; or leave it out for \
         {}",
        shown(from),
        Priority::MOST,
        Priority::default().get()
    );
    Err(Failure::misuse(message).into())
}

pub(crate) const WRITES: [(&str, WritePolicy); 3] = [
    ("on-evict", WritePolicy::OnEvict),
    ("through", WritePolicy::Through),
    ("second-touch", WritePolicy::SecondTouch),
];

pub(crate) fn write(given: &str) -> Outcome<WritePolicy> {
    word("write", given, &WRITES)
}

/// The same for each tier below the device that has another one below it, in order.
pub(crate) fn writes_below(from: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<WritePolicy>> {
    let what = "what is copied down from each tier below the device";
    let given = from.map(|from| words("writes_below", what, from, &WRITES));
    given.unwrap_or_else(|| Ok(Vec::new()))
}

/// Several words.
fn words<T: Copy>(
    name: &'static str,
    what: &str,
    from: &Bound<'_, PyAny>,
    known: &[(&str, T)],
) -> PyResult<Vec<T>> {
    let wrong = || Failure::misuse(format!("{name} = {}: pass {what}", shown(from)));
    if from.is_instance_of::<PyString>() {
        return Err(wrong().into());
    }
    let items = from.try_iter().map_err(|_| wrong())?;
    each(name, from, items, |_, item| {
        let given: String = item.extract().map_err(|_| wrong())?;
        Ok(word(name, &given, known)?)
    })
}

/// Counts of nanoseconds, in order: load, compute, attend; and what a load from the disk and one from a
/// store take, where that is not what it takes from the tier above.
pub(crate) fn block_costs(from: &Bound<'_, PyAny>) -> PyResult<Option<BlockCosts>> {
    if from.is_none() {
        return Ok(None);
    }
    let given: Vec<u64> = integers("block_costs", from)?;
    let refused = || {
        let message = format!(
            "block_costs = {}: pass three counts of nanoseconds, load, compute, attend; or four or five, \
             with those of a load from the disk and from a store",
            shown(from)
        );
        PyErr::from(Failure::misuse(message))
    };
    let &[host, compute, attend, ref below @ ..] = given.as_slice() else {
        return Err(refused());
    };
    let [disk, remote] = match *below {
        [] => [host; 2],
        [disk] => [disk; 2],
        [disk, remote] => [disk, remote],
        _ => return Err(refused()),
    };
    let mut load = [host; MAX_TIERS];
    (load[Tier::DISK.0], load[Tier::REMOTE.0]) = (disk, remote);
    Ok(Some(BlockCosts {
        load,
        compute,
        attend,
    }))
}

pub(crate) const KEY_HASHES: [(&str, KeyHash); 2] =
    [("sha256", KeyHash::Sha256), ("xxh3", KeyHash::Xxh3)];

pub(crate) fn key_hash(given: &str) -> Outcome<KeyHash> {
    word("key_hash", given, &KEY_HASHES)
}

const TIERS: [(&str, Tier); MAX_TIERS] = [
    ("device", Tier::DEVICE),
    ("host", Tier::HOST),
    ("disk", Tier::DISK),
    ("remote", Tier::REMOTE),
];

pub(crate) fn tier(given: &str) -> Outcome<Tier> {
    named_tier("tier", given)
}

/// The text of a tier's name, for `tier`. `PyO3` alone would raise `TypeError`.
pub(crate) fn tier_text<'a>(from: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    let text = from.cast::<PyString>().ok();
    let text = text.and_then(|text| text.to_str().ok());
    text.ok_or_else(|| {
        let known = TIERS.map(|(word, _)| format!("{word:?}")).join(", ");
        Failure::misuse(format!("tier = {}: must be one of {known}", shown(from))).into()
    })
}

/// The same, where there may be none.
pub(crate) fn tier_text_or_none<'a>(from: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a str>> {
    if from.is_none() {
        return Ok(None);
    }
    tier_text(from).map(Some)
}

/// A tier, given for the argument of this name.
pub(crate) fn named_tier(name: &str, given: &str) -> Outcome<Tier> {
    word(name, given, &TIERS)
}

/// Names of tiers, as a flag for each tier that there may be; none without any.
pub(crate) fn keyed(from: Option<&Bound<'_, PyAny>>) -> PyResult<[bool; MAX_TIERS]> {
    let mut keyed = [false; MAX_TIERS];
    let Some(from) = from else {
        return Ok(keyed);
    };
    for tier in words("keyed", "names of tiers", from, &TIERS)? {
        keyed[tier.0] = true;
    }
    Ok(keyed)
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

/// A flight's number, from an int or a plan.
pub(crate) fn flight(number: u64) -> Outcome<FlightId> {
    let flight = FlightId::from_number(number);
    flight.ok_or(Failure::Core(Error::UnknownFlight { number }))
}
