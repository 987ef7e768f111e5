//! Keys of blocks: the hash and its encoding, what besides tokens decides about it, and the chain that
//! a sequence extends as its tokens arrive. No lock is needed for it.
//!
//! layer: hash
//! layer: extras
//! layer: chain

mod chain;
mod extras;
mod hash;

pub(crate) use chain::Before;
pub use chain::Chain;
pub use extras::{Extras, Media};
pub use hash::{KeyHash, Namespace, Seed};
