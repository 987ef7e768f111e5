//! The crate's own face: the cache behind its one lock, and the handles of what it gives.
//!
//! layer: shared
//! layer: lease
//! layer: cache
//! layer: batch

mod batch;
mod cache;
mod lease;
mod shared;

pub use batch::{Appended, Batch};
pub use cache::Cache;
pub use lease::{HeldBlocks, Lease, Parked, Seals, Ticket};
pub use shared::{Drained, Locked, Snapshot};
