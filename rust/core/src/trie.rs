//! The prefix trie: an index by chained key, parent links, and counts of children per tier. No
//! child lists: a key says its whole prefix, so that a match is one look-up per block.

use crate::arena::{Arena, Record};
use crate::id::{Class, Id, Key, Link, MAX_TIERS};
use crate::index::Index;

/// One tier's view of a block.
#[derive(Clone, Copy, Hash, Debug, Default)]
pub(crate) struct Copy {
    pub(crate) slot: Option<Link>,
    /// Children with a slot on this tier.
    pub(crate) children: u32,
    /// Children with a slot on this tier that is hot: read, filling, or with something hot below.
    pub(crate) busy: u32,
}

#[derive(Hash, Debug, Default)]
pub(crate) struct Node {
    pub(crate) key: Key,
    /// `None` at the root. A dead id: the parent was dropped; found again when a walk passes.
    pub(crate) parent: Option<Id>,
    next: Option<Link>,
    pub(crate) copies: [Copy; MAX_TIERS],
    pub(crate) epoch: u32,
    /// Parked sequences that keep it.
    pub(crate) keeps: u16,
    pub(crate) class: Class,
    pub(crate) touched: Touched,
}

/// How often sequences have begun over a block or published it. One byte with what has no key, so
/// that a node is no wider for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Touched {
    /// Without a key: a parked tail, reached only through its parked handle.
    #[default]
    Anonymous,
    /// Published, and not asked for since.
    Once,
    Again,
}

impl Record for Node {
    // A dead node is in no bucket, so the link that the index needs is free for the arena.
    fn link(&self) -> Option<Link> {
        self.next
    }
    fn set_link(&mut self, link: Option<Link>) {
        self.next = link;
    }
}

impl Node {
    pub(crate) fn slot(&self, tier: usize) -> Option<u32> {
        self.copies[tier].slot.map(Link::at)
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.touched == Touched::Anonymous
    }
}

#[derive(Hash, Debug)]
pub(crate) struct Trie {
    nodes: Arena<Node>,
    index: Index,
    epoch: u32,
}

impl Trie {
    /// Every node has at least one slot, so that `slots` bounds their number.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            nodes: Arena::with_capacity(slots),
            index: Index::new(slots),
            epoch: 0,
        }
    }

    /// Room for more slots: the one place that rehashes, called by a resize only.
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.nodes.reserve(slots);
        self.index = Index::new(slots);
        let named: Vec<u32> = self
            .nodes
            .iter()
            .filter(|(_, node)| !node.is_anonymous())
            .map(|(index, _)| index)
            .collect();
        for node in named {
            self.nodes[node].next = self.index.insert(&self.nodes[node].key, node);
        }
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// From here on nothing published before is found.
    pub(crate) fn end_epoch(&mut self) {
        self.epoch += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.nodes.iter()
    }

    pub(crate) fn id(&self, node: u32) -> Id {
        self.nodes.id(node)
    }

    pub(crate) fn live(&self, id: Id) -> Option<u32> {
        self.nodes.lives(id).then_some(id.index)
    }

    /// Whether there is a node in this place, for the audit.
    pub(crate) fn alive(&self, node: u32) -> bool {
        self.nodes.occupied(node)
    }

    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        let mut at = self.index.first(key);
        while let Some(link) = at {
            let node = &self.nodes[link.at()];
            if node.key == *key && node.epoch == self.epoch {
                return Some(link.at());
            }
            at = node.next;
        }
        None
    }

    /// Touches what looking these keys up will read, and nothing else: the misses of a loop that
    /// does only this overlap, where those of a loop that works with each key wait for each other.
    pub(crate) fn warm<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        // The key and the link behind it, no other field: a node does not fit a line of the cache.
        let touched = keys.fold(0_usize, |sum, key| {
            let first = self.index.first(key).map(|link| &self.nodes[link.at()]);
            let read = first.map_or(0, |node| {
                usize::from(node.key.0[0]) + node.next.map_or(0, Link::at) as usize
            });
            sum.wrapping_add(read)
        });
        std::hint::black_box(touched);
    }

    pub(crate) fn parent(&self, node: u32) -> Option<u32> {
        self.nodes[node].parent.and_then(|id| self.live(id))
    }

    /// A new node without a key, and without a slot yet.
    pub(crate) fn add(&mut self, parent: Option<u32>) -> u32 {
        let parent = parent.map(|node| self.nodes.id(node));
        let epoch = self.epoch;
        self.nodes.insert(Node {
            parent,
            epoch,
            ..Node::default()
        })
    }

    /// Gives a node its key: from now on it is found.
    pub(crate) fn name(&mut self, node: u32, key: Key, touched: Touched) {
        debug_assert!(self.find(&key).is_none(), "key {key:?} published twice");
        let next = self.index.insert(&key, node);
        let named = &mut self.nodes[node];
        (named.key, named.next, named.touched) = (key, next, touched);
    }

    /// Ends a node that has no slot left.
    pub(crate) fn bury(&mut self, node: u32) {
        let dead = &self.nodes[node];
        debug_assert!(
            dead.copies.iter().all(|copy| copy.slot.is_none()),
            "buried with a slot"
        );
        if !dead.is_anonymous() {
            self.unlink(node);
        }
        self.nodes.remove(node);
    }

    fn unlink(&mut self, node: u32) {
        let (key, next) = (self.nodes[node].key, self.nodes[node].next);
        let mut at = self.index.first(&key);
        if at == Some(Link::to(node)) {
            self.index.set_first(&key, next);
            return;
        }
        while let Some(link) = at {
            at = self.nodes[link.at()].next;
            if at == Some(Link::to(node)) {
                self.nodes[link.at()].next = next;
                return;
            }
        }
        debug_assert!(false, "node {node} is in no bucket");
    }
}

impl std::ops::Index<u32> for Trie {
    type Output = Node;
    fn index(&self, node: u32) -> &Node {
        &self.nodes[node]
    }
}

impl std::ops::IndexMut<u32> for Trie {
    fn index_mut(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        Key([n; 32])
    }

    #[test]
    fn a_node_is_no_wider_than_it_must_be() {
        assert_eq!(size_of::<Node>(), 88);
    }

    #[test]
    fn a_buried_node_is_not_found_and_its_children_lose_their_parent() {
        let mut trie = Trie::new(8);
        let root = trie.add(None);
        trie.name(root, key(1), Touched::Once);
        let child = trie.add(Some(root));
        trie.name(child, key(2), Touched::Once);
        assert_eq!(trie.find(&key(2)), Some(child));
        assert_eq!(trie.parent(child), Some(root));
        trie.bury(root);
        assert_eq!(trie.find(&key(1)), None);
        assert_eq!(trie.parent(child), None);
        let other = trie.add(None);
        assert_eq!(other, root, "the place is taken again");
        assert_eq!(trie.parent(child), None, "and is not taken for the parent");
    }

    #[test]
    fn buckets_survive_removal_in_any_order() {
        let mut trie = Trie::new(2);
        for n in 0..64 {
            let node = trie.add(None);
            trie.name(node, key(n), Touched::Once);
        }
        for n in (0..64).step_by(3) {
            let node = trie.find(&key(n)).expect("published");
            trie.bury(node);
        }
        for n in 0..64 {
            assert_eq!(trie.find(&key(n)).is_some(), n % 3 != 0);
        }
        trie.reserve(4096);
        assert_eq!(
            (0..64).filter(|&n| trie.find(&key(n)).is_some()).count(),
            trie.len()
        );
    }

    #[test]
    fn an_ended_epoch_is_not_found_but_can_be_published_again() {
        let mut trie = Trie::new(8);
        let old = trie.add(None);
        trie.name(old, key(1), Touched::Once);
        trie.end_epoch();
        assert_eq!(trie.find(&key(1)), None);
        let new = trie.add(None);
        trie.name(new, key(1), Touched::Once);
        assert_eq!(trie.find(&key(1)), Some(new));
        trie.bury(old);
        assert_eq!(trie.find(&key(1)), Some(new));
    }
}
