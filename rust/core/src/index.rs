//! The intrusive index: a fixed power-of-two array of heads; `next` is in the node, keys are
//! compared in the node. It never rehashes in a call: a general map at constant size stalls for
//! milliseconds when it clears its tombstones.

use crate::id::{Key, Link};

/// All 32 bytes count and are mixed: an engine's ready keys need not be uniform. The high bits are
/// the best.
pub(crate) fn mix(key: &Key) -> u64 {
    let mut mixed = 0_u64;
    for word in key.0.as_chunks::<8>().0 {
        mixed =
            (mixed.rotate_left(29) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    mixed
}

#[derive(Hash, Debug)]
pub(crate) struct Index {
    heads: Vec<Option<Link>>,
    shift: u32,
}

impl Index {
    /// Heads for `nodes` nodes: at most one node per head, on average, when all are there.
    pub(crate) fn new(nodes: usize) -> Self {
        let heads = nodes.next_power_of_two().max(2);
        Self {
            heads: vec![None; heads],
            shift: 64 - heads.trailing_zeros(),
        }
    }

    fn head(&self, key: &Key) -> usize {
        (mix(key) >> self.shift) as usize
    }

    pub(crate) fn first(&self, key: &Key) -> Option<Link> {
        self.heads[self.head(key)]
    }

    /// Makes `node` the first of its bucket; returns what it must have as its `next`.
    pub(crate) fn insert(&mut self, key: &Key, node: u32) -> Option<Link> {
        let head = self.head(key);
        self.heads[head].replace(Link::to(node))
    }

    pub(crate) fn set_first(&mut self, key: &Key, first: Option<Link>) {
        let head = self.head(key);
        self.heads[head] = first;
    }
}
