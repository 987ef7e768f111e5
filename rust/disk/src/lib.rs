//! Blocks in slot files: what makes KV outlive a process, a kill and a power cut. It knows slots, keys
//! and bytes, and no policy: which block goes where is the yard's to say.
//!
//! A rank has a folder with two files. `slots` has the payload of each block at its slot; `table` has a
//! [`Record`] of 128 bytes for each slot, which says whose bytes these are. Safety is the checksum: a
//! block is served only where its record is whole and says what was asked for, and its bytes have the
//! record's sum. Durability is the sync: a block is acknowledged when payload and record are synced. So
//! no order of writes can serve a wrong byte, and no kill or power cut loses what was acknowledged.
//!
//! A file may use only what stands above it; names on one line are strangers:
//! layer: error
//! layer: record medium
//! layer: identity
//! layer: `crashing_disk` files
//! layer: blocks `eviction_order` staging breaker clock witness
//! layer: formats
//! layer: folder
//! layer: flight baseline inspect
//! layer: `sync_queue`
//! layer: threads
//! layer: lane
//! layer: rank

#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "its threads wait for a disk, and never under a yard's lock"
)]

mod baseline;
mod blocks;
mod breaker;
mod clock;
mod crashing_disk;
mod error;
mod eviction_order;
mod files;
mod flight;
mod folder;
mod formats;
mod identity;
mod inspect;
mod lane;
mod medium;
mod rank;
mod record;
mod staging;
mod sync_queue;
mod threads;
mod witness;

pub use baseline::Baseline;
pub use blocks::{Asked, Blocks, Doubt, Family, Geometry};
pub use breaker::Breaker;
pub use clock::Clock;
pub use crashing_disk::CrashingDisk;
pub use error::{Error, Result};
pub use files::{ALIGNED, Files, Foreign, Way};
pub use flight::{Copy, Landed, Lent, Memory, Short, Written};
pub use folder::{Folder, FolderPlace};
pub use inspect::{Inspector, Scrubbed, State, Tally};
pub use lane::Lane;
pub use medium::{Epochs, Medium};
pub use rank::SlotFiles;
pub use record::{Found, Key, Owner, RECORD, Record, sum_of};
pub use staging::{Buffer, Staging};
pub use sync_queue::{Counts, LaneState};
pub use threads::{Options, Threads};
