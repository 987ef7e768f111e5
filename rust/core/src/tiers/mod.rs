//! What a tier is made of: its slots and what holds each, its sets and promises as numbers, and the
//! prefix trie over all tiers, with the keeps of its nodes.
//!
//! layer: keeps ledger pool
//! layer: trie

mod keeps;
mod ledger;
mod pool;
mod trie;

pub(crate) use keeps::Keeps;
pub(crate) use ledger::Ledger;
pub(crate) use pool::{Cell, Hold, Pool};
pub(crate) use trie::{FORGOTTEN, Node, Residency, Trie, Uses};
