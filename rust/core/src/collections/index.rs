//! The index: places in a row, two in five of them taken at most, in which a key is searched from its home
//! on. A place names a node and half of the hash of its key, so that what is absent is known, and a
//! node taken out, without a look at any node; keys are compared in the node.
//!
//! What leaves pulls up what stands behind it, so that nothing marks where it was, and nothing is
//! rehashed but by a resize: a general map at constant size stalls for milliseconds when it clears its
//! tombstones.

use crate::base::{Ix, Key, NodeIx, Result, memory};

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

/// Half of a key's hash, by which it is searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(u32);

impl Tag {
    #[inline]
    pub(crate) fn of(key: &Key) -> Self {
        Self((mix(key) >> 32) as u32)
    }
}

/// A tag above, the node and one below; 0 is empty. It is one word, which is read and compared as
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct KeySlot(u64);

impl KeySlot {
    const EMPTY: Self = Self(0);

    fn new(tag: Tag, node: NodeIx) -> Self {
        Self(u64::from(tag.0) << 32 | u64::from(node.get() + 1))
    }

    fn tag(self) -> Tag {
        Tag((self.0 >> 32) as u32)
    }

    fn node(self) -> Option<NodeIx> {
        (self.0 as u32).checked_sub(1).map(NodeIx::new)
    }
}

/// Where a key that is absent belongs, until the index changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    at: usize,
    tag: Tag,
}

#[derive(Hash, Debug)]
pub(crate) struct Index {
    places: Vec<KeySlot>,
}

impl Index {
    /// Two and a half times as many places as nodes, and one that stays empty: searches are short.
    pub(crate) fn new(nodes: usize) -> Result<Self> {
        let places = memory::filled(Self::places(nodes), KeySlot::EMPTY, "the index of the keys")?;
        Ok(Self { places })
    }

    fn places(nodes: usize) -> usize {
        5 * nodes / 2 + 1
    }

    /// Bytes that an index of `nodes` nodes takes.
    pub(crate) fn bytes(nodes: usize) -> usize {
        Self::places(nodes) * size_of::<KeySlot>()
    }

    fn home(&self, tag: Tag) -> usize {
        ((u128::from(tag.0) * self.places.len() as u128) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 < self.places.len() {
            at + 1
        } else {
            0
        }
    }

    /// How far behind a place another stands.
    fn behind(&self, place: usize, at: usize) -> usize {
        if at >= place {
            at - place
        } else {
            at + self.places.len() - place
        }
    }

    /// The first node with this tag that `is` the one, or the gap where it belongs.
    #[inline]
    pub(crate) fn seek(
        &self,
        tag: Tag,
        is: impl Fn(NodeIx) -> bool,
    ) -> std::result::Result<NodeIx, Gap> {
        let mut at = self.home(tag);
        loop {
            let place = self.places[at];
            match place.node() {
                None => return Err(Gap { at, tag }),
                Some(node) if place.tag() == tag && is(node) => return Ok(node),
                Some(_) => at = self.after(at),
            }
        }
    }

    /// A number that depends on what stands at the homes of these tags, and two places on, where
    /// another line of the cache may begin: to have it read.
    pub(crate) fn read(&self, tags: &[Tag]) -> u64 {
        tags.iter().fold(0, |sum, &tag| {
            let home = self.home(tag);
            let further = self.places.get(home + 2).map_or(0, |place| place.0);
            sum.wrapping_add(self.places[home].0 ^ further)
        })
    }

    /// Places that are taken, for the audit: as many as there are nodes with a key.
    pub(crate) fn taken(&self) -> usize {
        let taken = self.places.iter().filter(|&&place| place != KeySlot::EMPTY);
        taken.count()
    }

    pub(crate) fn forget_all(&mut self) {
        self.places.fill(KeySlot::EMPTY);
    }

    pub(crate) fn insert(&mut self, gap: Gap, node: NodeIx) {
        debug_assert!(self.places[gap.at] == KeySlot::EMPTY, "the gap has closed");
        self.places[gap.at] = KeySlot::new(gap.tag, node);
    }

    /// Takes a node out that is there, and pulls up what stands behind it and not at its home.
    pub(crate) fn remove(&mut self, tag: Tag, node: NodeIx) {
        let (mut gap, own) = (self.home(tag), KeySlot::new(tag, node));
        while self.places[gap] != own {
            if self.places[gap] == KeySlot::EMPTY {
                debug_assert!(false, "node {node} has no place");
                return;
            }
            gap = self.after(gap);
        }
        let mut at = self.after(gap);
        while self.places[at] != KeySlot::EMPTY {
            // As far from its home as from the gap, or farther: its search passes the gap.
            let home = self.home(self.places[at].tag());
            if self.behind(home, at) >= self.behind(gap, at) {
                self.places[gap] = self.places[at];
                gap = at;
            }
            at = self.after(at);
        }
        self.places[gap] = KeySlot::EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(index: &mut Index, tag: Tag, node: NodeIx) {
        let gap = index.seek(tag, |_| false).expect_err("a gap");
        index.insert(gap, node);
    }

    #[test]
    fn what_passes_the_end_goes_on_at_the_beginning_and_comes_back() {
        let mut index = Index::new(8).unwrap();
        let last = |n: u32| Tag(u32::MAX - n);
        let node = NodeIx::new;
        let find = |index: &Index, n| index.seek(last(n), |node| node == NodeIx::new(n)).ok();
        for n in 0..8 {
            insert(&mut index, last(n), node(n));
        }
        let taken = |index: &Index| {
            let taken = (0..index.places.len()).filter(|&at| index.places[at] != KeySlot::EMPTY);
            taken.collect::<Vec<_>>()
        };
        assert_eq!(taken(&index), [0, 1, 2, 3, 4, 5, 6, 20]);
        // One at home in the middle of them: it stays behind its home.
        let home = (0..u32::MAX)
            .step_by(1 << 20)
            .map(Tag)
            .find(|&tag| index.home(tag) == 5);
        let home = home.expect("a tag");
        insert(&mut index, home, node(9));
        for n in [3, 0, 7, 1, 2] {
            index.remove(last(n), node(n));
            assert_eq!(find(&index, n), None);
            assert_eq!(
                index.seek(home, |found| found == node(9)).ok(),
                Some(node(9))
            );
        }
        assert!([4, 5, 6].iter().all(|&n| find(&index, n) == Some(node(n))));
        assert_eq!(taken(&index), [0, 1, 5, 20]);
    }

    #[test]
    fn the_same_tag_twice_is_told_apart_by_the_node() {
        let mut index = Index::new(4).unwrap();
        let (one, two) = (NodeIx::new(1), NodeIx::new(2));
        insert(&mut index, Tag(7), one);
        insert(&mut index, Tag(7), two);
        assert_eq!(index.seek(Tag(7), |node| node == two).ok(), Some(two));
        index.remove(Tag(7), one);
        assert_eq!(index.seek(Tag(7), |_| true).ok(), Some(two));
    }
}
