//! Collections of the size that they were made with: a slab with generations, linked lists over slot
//! numbers, and the index of keys. They know nothing of a cache.
//!
//! layer: arena index list

mod arena;
mod index;
mod list;

pub(crate) use arena::{Arena, Found, Record, lends_link};
pub(crate) use index::{Gap, Index, Tag, mix};
pub(crate) use list::Lists;
