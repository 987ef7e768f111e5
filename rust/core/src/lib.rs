//! The bookkeeping of a KV cache: which block lives where, which sequence may use it, what moves next
//! and what waits. It knows no bytes, no devices, no Python and no clock.
//!
//! A [`Cache`] is a yard behind one short mutex. [`State`] has every verb, by id. Handles ([`Lease`],
//! [`Parked`], [`Ticket`], [`HeldBlocks`]) stand for what is held or was promised. Keys are made outside the
//! lock ([`Chain`]). Copies are [`Plan`]s: the caller carries them out and reports their outcomes.
//!
//! A folder may use only those above it; names on one line are strangers. Its `mod.rs` has the order
//! of its files, where they have one:
//! layer: base
//! layer: collections keys
//! layer: tiers evict copies events
//! layer: state
//! layer: api

#![forbid(unsafe_code)]

mod api;
mod base;
mod collections;
mod copies;
mod events;
mod evict;
mod keys;
mod state;
mod tiers;

pub use api::{
    Appended, Batch, Cache, Drained, HeldBlocks, Lease, Locked, Parked, Seals, Snapshot, Ticket,
};
pub use base::{
    Boot, Error, FlightId, Group, HoldId, Key, LeaseId, MAX_TIERS, ParkedId, Result, Slot,
    TicketId, Tier, YardId,
};
pub use copies::{BlockCosts, End, Outcome, Plan, Run};
pub use events::{Clears, EventStats, Salts, Spoken};
pub use evict::{EvictionPolicy, Hints, NextUse, Priority, Retention};
pub use keys::{Chain, Extras, KeyHash, Media, Namespace, Seed};
pub use state::{
    Answer, Begun, Cells, Condemned, Config, Counters, Fetch, Field, Filling, Forgotten, Growth,
    HeldPath, Holder, HolderId, HostCopies, Kind, Loading, MAX_RUNS, Need, NewCell, ParkedView,
    Pending, Presence, Probe, Request, Room, Sealing, SlotGenerations, State, Stats, Stepped, Stop,
    TableCells, TierStats, View, Violation, Wanted, WritePolicy,
};
