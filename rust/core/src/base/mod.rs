//! What every other folder uses: ids and indices, errors, memory that may be refused, bytes that may be
//! broken, and the lock's types.
//!
//! layer: id sync reader
//! layer: error
//! layer: memory

mod error;
mod id;
pub(crate) mod memory;
mod reader;
pub(crate) mod sync;

pub use error::{Error, Result};
pub use id::{
    Boot, FlightId, Group, HoldId, Key, LeaseId, MAX_TIERS, ParkedId, Slot, TicketId, Tier, YardId,
};

pub(crate) use id::{
    Class, FlightIx, HoldingIx, Id, Ix, LeaseIx, Link, NodeIx, ParkedIx, Set, SlotIx, TicketIx,
};
pub(crate) use reader::{Read, Reader};
