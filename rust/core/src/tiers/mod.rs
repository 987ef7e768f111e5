//! What a tier is made of: its slots and what holds each, its sets and promises as numbers, and the
//! prefix trie over all tiers, with the keeps of its nodes.
//!
//! layer: generations `keep_count` ledger pool
//! layer: trie

mod generations;
mod keep_count;
mod ledger;
mod pool;
mod trie;

pub(crate) use generations::{Generations, HeldSlots};
pub(crate) use keep_count::KeepCount;
pub(crate) use ledger::Ledger;
pub(crate) use pool::{Cell, Hold, Pool};
pub(crate) use trie::{FORGOTTEN, Node, Residency, Trie, Uses};
