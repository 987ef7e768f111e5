//! The bookkeeping of a KV cache: which block lives where, which sequence may use it, what moves next
//! and what waits. It knows no bytes, no devices, no Python and no clock.
//!
//! A [`Cache`] is a yard behind one short mutex. [`State`] has every verb, by id. Handles ([`Lease`],
//! [`Parked`], [`Ticket`]) stand for what a sequence holds or was promised. Keys are made outside the
//! lock ([`Chain`]). Copies are [`Plan`]s: the caller carries them out and reports their outcomes.
//!
//! A file may use only what stands above it; names on one line are strangers:
//! layer: id sync reader
//! layer: error
//! layer: memory
//! layer: hash arena list index keeps hint
//! layer: life
//! layer: extras pool ledger trie ghost cost evict plan record
//! layer: chain events flight
//! layer: wire
//! layer: mirror
//! layer: stats
//! layer: state
//! layer: shared
//! layer: lease
//! layer: cache

#![forbid(unsafe_code)]

mod arena;
mod cache;
mod chain;
mod cost;
mod error;
mod events;
mod evict;
mod extras;
mod flight;
mod ghost;
mod hash;
mod hint;
mod id;
mod index;
mod keeps;
mod lease;
mod ledger;
mod life;
mod list;
mod memory;
mod mirror;
mod plan;
mod pool;
mod reader;
mod record;
mod shared;
mod state;
mod stats;
mod sync;
mod trie;
mod wire;

pub use cache::Cache;
pub use chain::Chain;
pub use cost::Speeds;
pub use error::{Error, Result};
pub use evict::EvictionPolicy;
pub use extras::{Extras, Media};
pub use hash::{KeyHash, Namespace, Seed};
pub use hint::{Hints, NextUse, Priority, Retention};
pub use id::{FlightId, Group, Key, LeaseId, MAX_TIERS, ParkedId, Slot, TicketId, Tier, YardId};
pub use lease::{Lease, Parked, Seals, Ticket};
pub use mirror::{Clears, Heard, Salts};
pub use plan::{End, Outcome, Plan, Run};
pub use shared::{Drained, Locked};
pub use state::{
    Answer, Begun, Cells, Config, Fetch, Filling, Holder, HolderId, HostCopies, Loading, MAX_RUNS,
    Need, ParkedView, Pending, Probe, Request, Room, Sealing, State, Stop, View, Violation, Wanted,
    WritePolicy,
};
pub use stats::{Counters, Field, Kind, Stats, TierStats};
