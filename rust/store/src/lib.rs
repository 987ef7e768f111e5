//! Blocks on their way to and from stores that engines share. It knows jobs, keys and bytes, and no client:
//! threads take jobs, ask a store, and say what came of it.
//!
//! A value is the disk's [`Record`](blockyard_disk::Record), with all bits of the slot set, and the payload.
//! Safety is the check: a block is served only where its record is whole and says what was asked for, and its
//! bytes have the record's sum. Nothing else that a store says is believed. INV-35a
//!
//! A client reads and writes a staging buffer alone, never memory of the crane. Whoever waits for a copy may
//! give it up: the memory is left then, and the buffer stays the client's until its thread says that the call
//! has ended. Time comes from outside, by `poll`.
//!
//! A file may use only what stands above it; names on one line are strangers:
//! layer: health value options
//! layer: flight erasures
//! layer: queue
//! layer: shared
//! layer: job
//! layer: lane

#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "its threads wait for a store, and never under a yard's lock"
)]

mod erasures;
mod flight;
mod health;
mod job;
mod lane;
mod options;
mod queue;
mod shared;
mod value;

pub use flight::{Copy, Landed, Short};
pub use health::{Condition, Way};
pub use job::{Job, Kind, Room};
pub use lane::Lane;
pub use options::Options;
pub use queue::{Counts, LaneState};
pub use value::{Shape, valued};
