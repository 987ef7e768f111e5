//! The rows by name: the same for criterion, for `floor` and for callgrind. Their Python side is in
//! `benches/python/rows.py`.

use crate::adopt::Adopt;
use crate::engine::{self, Engine};
use crate::forget::{self, Path};
use crate::tiers::Below;
use crate::told::{self, Told};
use crate::verbs::{Copies, Decode, Evict, Hashing, InFlight, Moves, Probe, Turn, Verb, Verbs};
use crate::work::Row;
use blockyard_core::EvictionPolicy::{Heap, Learned, Recency};

/// Makes a row on a full pool of so many blocks.
type Make = fn(u32) -> Box<dyn Row>;

pub(crate) const ROWS: &[(&str, Make)] = &[
    ("probe", |n| Box::new(Probe::new(n, 0, 10_000))),
    ("match64", |n| Box::new(Probe::new(n, 64, 500))),
    ("match128", |n| Box::new(Probe::new(n, 128, 500))),
    ("match300", |n| Box::new(Probe::new(n, 300, 500))),
    ("adopt1000", |n| Box::new(Adopt::new(n, false))),
    ("adopt1000-known", |n| Box::new(Adopt::new(n, true))),
    ("begin", |n| Box::new(Turn::new(n, Verb::Begin, Recency))),
    ("begin-spare", |n| {
        Box::new(Turn::new(n, Verb::BeginSpare, Recency))
    }),
    ("spare", |n| Box::new(Turn::new(n, Verb::Spare, Recency))),
    ("begin-learned", |n| {
        Box::new(Turn::new(n, Verb::Begin, Learned))
    }),
    ("begin-two-tiers", |n| Box::new(Below::new(n, false))),
    ("begin-three-tiers", |n| Box::new(Below::new(n, true))),
    ("begin-path", |n| {
        Box::new(Path::new(n, forget::Verb::BeginNew))
    }),
    ("begin-path-found", |n| {
        Box::new(Path::new(n, forget::Verb::BeginFound))
    }),
    ("forget-path", |n| {
        Box::new(Path::new(n, forget::Verb::Forget))
    }),
    ("forget-first", |n| {
        Box::new(Path::new(n, forget::Verb::ForgetFirst))
    }),
    ("seal", |n| Box::new(Turn::new(n, Verb::Seal, Recency))),
    ("park", |n| Box::new(Turn::new(n, Verb::Park, Recency))),
    ("resume", |n| Box::new(Turn::new(n, Verb::Resume, Recency))),
    ("finish", |n| Box::new(Turn::new(n, Verb::Finish, Recency))),
    ("finish-learned", |n| {
        Box::new(Turn::new(n, Verb::Finish, Learned))
    }),
    ("demote", |n| Box::new(Moves::new(n, Copies::Demote))),
    ("promote", |n| Box::new(Moves::new(n, Copies::Promote))),
    ("commit", |n| Box::new(Moves::new(n, Copies::Commit))),
    ("commit-lease", |n| {
        Box::new(Moves::new(n, Copies::CommitLease))
    }),
    ("decode", |n| Box::new(Decode::new(n, Verbs::Four))),
    ("decode-step", |n| Box::new(Decode::new(n, Verbs::One))),
    ("grow", |n| Box::new(Decode::new(n, Verbs::Grow))),
    ("evict4-list", |_| {
        Box::new(Evict::new(25_000, 4, Recency, InFlight::Nothing))
    }),
    ("evict4-heap", |_| {
        Box::new(Evict::new(25_000, 4, Heap, InFlight::Nothing))
    }),
    ("evict4-learned", |_| {
        Box::new(Evict::new(25_000, 4, Learned, InFlight::Nothing))
    }),
    ("evict4-list-air", |_| {
        Box::new(Evict::new(25_000, 4, Recency, InFlight::Chain))
    }),
    ("evict4-heap-air", |_| {
        Box::new(Evict::new(25_000, 4, Heap, InFlight::Chain))
    }),
    ("evict1000-list", |_| {
        Box::new(Evict::new(1_000_000, 1000, Recency, InFlight::Nothing))
    }),
    ("evict1000-heap", |_| {
        Box::new(Evict::new(1_000_000, 1000, Heap, InFlight::Nothing))
    }),
    ("evict1000-learned", |_| {
        Box::new(Evict::new(1_000_000, 1000, Learned, InFlight::Nothing))
    }),
    ("keys", |_| Box::new(Hashing::new())),
    ("engine-find", |n| {
        Box::new(Engine::new(n, engine::Verb::Find))
    }),
    ("engine-which", |n| {
        Box::new(Engine::new(n, engine::Verb::Which))
    }),
    ("engine-fetch", |n| {
        Box::new(Engine::new(n, engine::Verb::Fetch))
    }),
    ("engine-offload", |n| {
        Box::new(Engine::new(n, engine::Verb::Offload))
    }),
    ("engine-land", |n| {
        Box::new(Engine::new(n, engine::Verb::Land))
    }),
    ("engine-step", |n| {
        Box::new(Engine::new(n, engine::Verb::Step))
    }),
    ("quiet-begin", |n| {
        Box::new(Told::new(n, told::Verb::Begin, false))
    }),
    ("quiet-seal", |n| {
        Box::new(Told::new(n, told::Verb::Seal, false))
    }),
    ("told-begin", |n| {
        Box::new(Told::new(n, told::Verb::Begin, true))
    }),
    ("told-seal", |n| {
        Box::new(Told::new(n, told::Verb::Seal, true))
    }),
    ("told-seal-known", |n| {
        Box::new(Told::new(n, told::Verb::SealKnown, true))
    }),
    ("told-drain", |n| {
        Box::new(Told::new(n, told::Verb::Drain, true))
    }),
    ("told-snapshot", |n| {
        Box::new(Told::new(n, told::Verb::Snapshot, true))
    }),
    ("told-resync", |n| {
        Box::new(Told::new(n, told::Verb::Resync, true))
    }),
];
