//! The prefix trie: an index by chained key, parent links, and counts of children per tier. No
//! child lists: a key says its whole prefix, so that a match is one look-up per block.

use super::keep_count::KeepCount;
use crate::base::{Class, Id, Ix, Key, Link, MAX_TIERS, NodeIx, Result, SlotIx, Tier, memory};
use crate::collections::{Arena, Gap, Index, Record, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

/// The epoch of blocks that were forgotten, which no trie comes to: they are not found in any.
pub(crate) const FORGOTTEN: u32 = u32::MAX;

/// Where a block is on one tier, and what is below it there.
#[derive(Clone, Copy, Hash, Debug, Default)]
pub(crate) struct Residency {
    pub(crate) slot: Option<Link<SlotIx>>,
    /// Children with a slot on this tier.
    pub(crate) children: u32,
    /// Children with a slot on this tier that is busy: read, filling, or with something busy below.
    pub(crate) busy: u32,
}

/// What every walk and every eviction reads: with its generation, one line of the cache.
#[derive(Hash, Debug, Default)]
pub(crate) struct Node {
    pub(crate) key: Key,
    /// `None` at the root. A dead id: the parent was dropped; found again when a walk passes.
    pub(crate) parent: Option<Id<NodeIx>>,
    device: Residency,
    pub(crate) epoch: u32,
    pub(crate) keeps: KeepCount,
    pub(crate) class: Class,
    pub(crate) uses: Uses,
}

/// How often sequences have begun over a block or published it. One byte with what has no key, so
/// that a node is no wider for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Uses {
    /// Without a key: a parked tail, reached only through its parked handle.
    #[default]
    Anonymous,
    /// Published, and not asked for since.
    Once,
    Repeated,
}

impl Record for Node {
    type Ix = NodeIx;
    // A dead node has no slot, so that the place for one is free for the arena.
    fn link(&self) -> Option<Link<NodeIx>> {
        self.device.slot.map(Link::lent)
    }
    fn set_link(&mut self, link: Option<Link<NodeIx>>) {
        self.device.slot = link.map(Link::lent);
    }
}

impl Node {
    pub(crate) fn is_anonymous(&self) -> bool {
        self.uses == Uses::Anonymous
    }
}

#[derive(Hash, Debug)]
pub(crate) struct Trie {
    nodes: Arena<Node>,
    /// What each tier below has of each node; without room while it has no slots.
    below: [Vec<Residency>; MAX_TIERS - 1],
    index: Index,
    epoch: u32,
    /// The roots of the first blocks of sequences, where they are known.
    roots: BTreeMap<NodeIx, Key>,
    rooted: BTreeSet<(Key, NodeIx)>,
    /// Blocks that were forgotten while something used them; some may be gone.
    forgotten: Vec<Id<NodeIx>>,
}

impl Trie {
    /// For tiers of these sizes in slots, the device first. Every node has one at least, so that they
    /// bound their number.
    pub(crate) fn new(tiers: &[usize]) -> Result<Self> {
        let mut trie = Self {
            nodes: Arena::new(),
            below: Default::default(),
            index: Index::new(0)?,
            epoch: 0,
            roots: BTreeMap::new(),
            rooted: BTreeSet::new(),
            forgotten: Vec::new(),
        };
        trie.reserve(tiers)?;
        Ok(trie)
    }

    /// Bytes that it takes for tiers of these sizes in slots.
    pub(crate) fn bytes(tiers: &[usize]) -> usize {
        let slots = tiers.iter().sum::<usize>();
        let below = tiers[1..].iter().filter(|&&own| own > 0).count();
        slots * (Arena::<Node>::BYTES + below * size_of::<Residency>()) + Index::bytes(slots)
    }

    /// Room for more slots: the one place that rehashes, called by a resize only. Refused, it is as
    /// it was.
    pub(crate) fn reserve(&mut self, tiers: &[usize]) -> Result<()> {
        let slots = tiers.iter().sum::<usize>();
        self.nodes.reserve(slots)?;
        // A tier without slots must stay without room, so that what is new waits beside it.
        let mut rooms: [Vec<Residency>; MAX_TIERS - 1] = Default::default();
        for ((copies, &own), room) in self.below.iter_mut().zip(&tiers[1..]).zip(&mut rooms) {
            if own > 0 && copies.capacity() == 0 {
                memory::reserve(room, slots, "the copies below")?;
            } else if own > 0 {
                memory::reserve(copies, slots, "the copies below")?;
            }
        }
        self.index = Index::new(slots)?;
        for (copies, room) in self.below.iter_mut().zip(rooms) {
            if room.capacity() > 0 {
                *copies = room;
                copies.resize(self.nodes.places(), Residency::default());
            }
        }
        for (node, named) in self.nodes.iter().filter(|(_, node)| !node.is_anonymous()) {
            // Of two epochs a key can have a node each.
            if let Err(gap) = self.index.seek(Tag::of(&named.key), |_| false) {
                self.index.insert(gap, node);
            }
        }
        Ok(())
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// From here on nothing published before is found.
    pub(crate) fn end_epoch(&mut self) {
        self.epoch += 1;
    }

    /// What was published in an epoch is found in this one.
    pub(crate) fn carry_over(&mut self, ended: u32) {
        let epoch = self.epoch;
        self.nodes.for_each(|node| {
            if node.epoch == ended {
                node.epoch = epoch;
            }
        });
    }

    /// Places that nodes have, or have had.
    pub(crate) fn places(&self) -> usize {
        self.nodes.places()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether it has no node, and never had one.
    pub(crate) fn is_new(&self) -> bool {
        self.nodes.places() == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeIx, &Node)> {
        self.nodes.iter()
    }

    /// Nodes that the index names, for the audit.
    pub(crate) fn indexed(&self) -> usize {
        self.index.taken()
    }

    pub(crate) fn id(&self, node: NodeIx) -> Id<NodeIx> {
        self.nodes.id(node)
    }

    pub(crate) fn live(&self, id: Id<NodeIx>) -> Option<NodeIx> {
        self.nodes.lives(id).then_some(id.index)
    }

    /// Whether there is a node in this place, for the audit.
    pub(crate) fn alive(&self, node: NodeIx) -> bool {
        self.nodes.occupied(node)
    }

    pub(crate) fn find(&self, key: &Key) -> Option<NodeIx> {
        self.seek(key, Tag::of(key)).ok()
    }

    /// The node of this key, whose tag is known, or where it would be published.
    #[inline]
    pub(crate) fn seek(&self, key: &Key, tag: Tag) -> std::result::Result<NodeIx, Gap> {
        self.index.seek(tag, |node| {
            let node = &self.nodes[node];
            node.key == *key && node.epoch == self.epoch
        })
    }

    /// Leaves the tags of these keys, and touches what looking them up will read first, and nothing
    /// else: the misses of a loop that does only this overlap, where those of a loop that works with
    /// each key wait for each other.
    pub(crate) fn warm<'a>(&self, keys: impl Iterator<Item = &'a Key>, tags: &mut Vec<Tag>) {
        tags.clear();
        tags.extend(keys.map(Tag::of));
        std::hint::black_box(self.index.read(tags));
    }

    /// One tier's view of a node.
    #[inline]
    pub(crate) fn residency(&self, node: NodeIx, tier: Tier) -> &Residency {
        const NONE: Residency = Residency {
            slot: None,
            children: 0,
            busy: 0,
        };
        match tier.at().checked_sub(1) {
            None => &self.nodes[node].device,
            Some(below) => self.below[below].get(node.at()).unwrap_or(&NONE),
        }
    }

    #[inline]
    pub(crate) fn residency_mut(&mut self, node: NodeIx, tier: Tier) -> &mut Residency {
        match tier.at().checked_sub(1) {
            None => &mut self.nodes[node].device,
            Some(below) => &mut self.below[below][node.at()],
        }
    }

    #[inline]
    pub(crate) fn slot(&self, node: NodeIx, tier: Tier) -> Option<SlotIx> {
        self.residency(node, tier).slot.map(Link::at)
    }

    /// The highest tier that has the node, and its slot there.
    #[inline]
    pub(crate) fn highest(&self, node: NodeIx) -> Option<(Tier, SlotIx)> {
        if let Some(slot) = self.nodes[node].device.slot {
            return Some((Tier::DEVICE, slot.at()));
        }
        let on = |tier: Tier| Some((tier, self.slot(node, tier)?));
        on(Tier::HOST)
            .or_else(|| on(Tier::DISK))
            .or_else(|| on(Tier::REMOTE))
    }

    /// Whether no tier has the node.
    pub(crate) fn is_gone(&self, node: NodeIx) -> bool {
        self.highest(node).is_none()
    }

    /// Where no tier has the node: whether a tier below has something whose parent it is.
    #[inline]
    pub(crate) fn gone(&self, node: NodeIx) -> Option<bool> {
        if self.nodes[node].device.slot.is_some() {
            return None;
        }
        let on = |own: &Vec<Residency>| match own.get(node.at()) {
            None => Some(false),
            Some(own) => own.slot.is_none().then_some(own.children > 0),
        };
        let [host, disk, remote] = &self.below;
        Some(on(host)? | on(disk)? | on(remote)?)
    }

    pub(crate) fn parent(&self, node: NodeIx) -> Option<NodeIx> {
        self.nodes[node].parent.and_then(|id| self.live(id))
    }

    /// A block of a sequence that ends is worth no less than what is below it, and no less than what
    /// nothing is known of. Returns its class.
    #[inline]
    pub(crate) fn raise_class(&mut self, node: NodeIx, below: Class) -> Class {
        let class = &mut self.nodes[node].class;
        *class = below.max(Class::Ordinary).max(*class);
        *class
    }

    /// The class in which a block stands where no higher tier has it.
    #[inline]
    pub(crate) fn class(&self, node: NodeIx) -> Class {
        let block = &self.nodes[node];
        if block.epoch == self.epoch {
            block.class
        } else {
            Class::Cleared
        }
    }

    /// The key that a plan carries for a block.
    pub(crate) fn carried_key(&self, node: NodeIx) -> Key {
        let block = &self.nodes[node];
        if block.is_anonymous() {
            return Key::anonymous(self.id(node));
        }
        block.key
    }

    /// The key that a plan carries for a block's parent.
    pub(crate) fn carried_parent(&self, node: NodeIx) -> Key {
        let Some(parent) = self.nodes[node].parent else {
            return self.root(node).unwrap_or(Key::NO_PARENT);
        };
        let parent = self.live(parent);
        parent.map_or(Key::UNKNOWN, |parent| self.carried_key(parent))
    }

    /// The root of the sequences that begin with this block, where it is known.
    pub(crate) fn root(&self, node: NodeIx) -> Option<Key> {
        self.roots.get(&node).copied()
    }

    /// Notes the root of a sequence's first block.
    pub(crate) fn set_root(&mut self, node: NodeIx, root: Key) {
        if let Some(before) = self.roots.insert(node, root) {
            self.rooted.remove(&(before, node));
        }
        self.rooted.insert((root, node));
    }

    #[cold]
    fn lose_root(&mut self, node: NodeIx) {
        if let Some(root) = self.roots.remove(&node) {
            self.rooted.remove(&(root, node));
        }
    }

    /// The first blocks of sequences of this root.
    pub(crate) fn rooted(&self, root: Key) -> impl Iterator<Item = NodeIx> {
        let (first, last) = (NodeIx::new(0), NodeIx::new(u32::MAX));
        let rooted = self.rooted.range((root, first)..=(root, last));
        rooted.map(|&(_, node)| node)
    }

    /// A forgotten block is in use still.
    pub(crate) fn note_forgotten(&mut self, node: NodeIx) {
        self.forgotten.push(self.nodes.id(node));
    }

    /// Forgotten blocks that are in use still.
    pub(crate) fn forgotten(&self) -> impl Iterator<Item = NodeIx> {
        self.forgotten.iter().filter_map(|&id| self.live(id))
    }

    /// Whether forgotten blocks may be there, which something uses.
    #[inline]
    pub(crate) fn has_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Drops those off the list that are gone, as far as its end goes. Returns whether all are.
    pub(crate) fn trim_forgotten(&mut self) -> bool {
        while let Some(&last) = self.forgotten.last()
            && !self.nodes.lives(last)
        {
            self.forgotten.pop();
        }
        self.forgotten.is_empty()
    }

    /// The parent has a child less on a tier: its copy there since.
    #[inline]
    pub(crate) fn lose_child(&mut self, node: NodeIx, tier: Tier) -> Option<Residency> {
        let residency = self.residency_mut(self.parent(node)?, tier);
        residency.children -= 1;
        Some(*residency)
    }

    /// A new node without a slot yet; its key, if it has one, [`Self::seek`] has not found just now.
    pub(crate) fn add(&mut self, parent: Option<NodeIx>, name: Option<(&Key, Gap)>) -> NodeIx {
        self.write(parent, None, name)
    }

    /// The same of a node on a slot of the device, which has a key. Its parent counts it.
    #[inline]
    pub(crate) fn add_on_device(
        &mut self,
        parent: Option<NodeIx>,
        slot: SlotIx,
        name: (&Key, Gap),
    ) -> NodeIx {
        if let Some(above) = parent {
            self.nodes[above].device.children += 1;
        }
        self.write(parent, Some(slot), Some(name))
    }

    #[expect(
        clippy::inline_always,
        reason = "it is written by a path with a slot and a key, by others without"
    )]
    #[inline(always)]
    fn write(
        &mut self,
        parent: Option<NodeIx>,
        slot: Option<SlotIx>,
        name: Option<(&Key, Gap)>,
    ) -> NodeIx {
        let parent = parent.map(|node| self.nodes.id(node));
        // Field by field: a node made beside its place and moved there waits for its own bytes.
        let (node, new) = self.nodes.revive();
        (new.parent, new.epoch) = (parent, self.epoch);
        (new.device, new.keeps, new.class) = Default::default();
        new.device.slot = slot.map(Link::to);
        if let Some((key, gap)) = name {
            (new.key, new.uses) = (*key, Uses::Once);
            self.index.insert(gap, node);
        } else {
            (new.key, new.uses) = Default::default();
        }
        let reset = |copies: &mut Vec<Residency>| {
            if copies.capacity() > 0 {
                match copies.get_mut(node.at()) {
                    Some(residency) => *residency = Residency::default(),
                    None => copies.push(Residency::default()),
                }
            }
        };
        // One by one: of so many the compiler makes a loop, which costs each new block more.
        let [host, disk, remote] = &mut self.below;
        reset(host);
        reset(disk);
        reset(remote);
        node
    }

    /// Gives a node its key, which [`Self::seek`] has not found just now: from here on it is.
    pub(crate) fn name(&mut self, node: NodeIx, key: &Key, gap: Gap) {
        self.index.insert(gap, node);
        let named = &mut self.nodes[node];
        (named.key, named.uses) = (*key, Uses::Once);
    }

    /// A new node of this key, which a tier has had before, without a parent.
    pub(crate) fn restore(&mut self, key: &Key, gap: Gap, tier: Tier, slot: SlotIx) {
        let node = self.add(None, Some((key, gap)));
        self.residency_mut(node, tier).slot = Some(Link::to(slot));
    }

    /// Puts a restored node under this one, or leaves it without a living parent.
    pub(crate) fn put_under(&mut self, node: NodeIx, parent: Option<NodeIx>) {
        // An even generation: no node has it while it lives.
        let dead = Id {
            index: NodeIx::new(0),
            generation: NonZeroU32::MIN.saturating_add(1),
        };
        let parent = parent.map_or(dead, |parent| self.id(parent));
        self.nodes[node].parent = Some(parent);
    }

    /// How many children each of the first nodes has on a tier.
    pub(crate) fn set_children(&mut self, tier: Tier, children: &[u32]) {
        for (node, &count) in children.iter().enumerate() {
            self.residency_mut(NodeIx::new(node as u32), tier).children = count;
        }
    }

    /// Forgets all nodes of a trie to which no handle, slot or other record refers.
    pub(crate) fn forget_all(&mut self) {
        self.nodes.forget_all();
        self.below.iter_mut().for_each(Vec::clear);
        self.index.forget_all();
        self.roots.clear();
        self.rooted.clear();
    }

    /// Ends a node that has no slot left.
    pub(crate) fn remove(&mut self, node: NodeIx) {
        self.remove_tagged(node, Tag::of(&self.nodes[node].key));
    }

    /// The same, and the tag of its key is known.
    pub(crate) fn remove_tagged(&mut self, node: NodeIx, tag: Tag) {
        debug_assert!(self.is_gone(node), "removed with a slot");
        if !self.nodes[node].is_anonymous() {
            self.index.remove(tag, node);
        }
        if !self.roots.is_empty() && self.nodes[node].parent.is_none() {
            self.lose_root(node);
        }
        self.nodes.discard(node);
    }
}

impl std::ops::Index<NodeIx> for Trie {
    type Output = Node;
    fn index(&self, node: NodeIx) -> &Node {
        &self.nodes[node]
    }
}

impl std::ops::IndexMut<NodeIx> for Trie {
    fn index_mut(&mut self, node: NodeIx) -> &mut Node {
        &mut self.nodes[node]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        Key([n; 32])
    }

    fn publish(trie: &mut Trie, parent: Option<NodeIx>, key: Key) -> NodeIx {
        let gap = trie.seek(&key, Tag::of(&key)).expect_err("not there yet");
        trie.add(parent, Some((&key, gap)))
    }

    #[test]
    fn a_node_is_no_wider_than_it_must_be() {
        assert_eq!(size_of::<Node>(), 60);
    }

    #[test]
    fn a_removed_node_is_not_found_and_its_children_lose_their_parent() {
        let mut trie = Trie::new(&[8]).unwrap();
        let root = publish(&mut trie, None, key(1));
        let child = publish(&mut trie, Some(root), key(2));
        assert_eq!(trie.find(&key(2)), Some(child));
        assert_eq!(trie.parent(child), Some(root));
        trie.remove(root);
        assert_eq!(trie.find(&key(1)), None);
        assert_eq!(trie.parent(child), None);
        let other = trie.add(None, None);
        assert_eq!(other, root, "the place is taken again");
        assert_eq!(trie.parent(child), None, "and is not taken for the parent");
    }

    #[test]
    fn a_plan_carries_the_key_of_a_block_or_what_stands_for_it() {
        let mut trie = Trie::new(&[8]).unwrap();
        let root = publish(&mut trie, None, key(1));
        let child = publish(&mut trie, Some(root), key(2));
        let tail = trie.add(Some(child), None);
        let end = trie.add(Some(tail), None);
        let number = u64::from_le_bytes(trie.carried_key(tail).0[24..].try_into().unwrap());
        assert_eq!(number, 1 << 32 | 2, "its generation and its place");
        assert_eq!(trie.carried_key(child), key(2));
        assert_eq!(trie.carried_parent(root), Key::NO_PARENT);
        assert_eq!(trie.carried_parent(child), key(1));
        assert_eq!(trie.carried_parent(tail), key(2));
        assert_eq!(trie.carried_parent(end), trie.carried_key(tail));
        trie.remove(root);
        assert_eq!(trie.carried_parent(child), Key::UNKNOWN);
        let other = publish(&mut trie, None, key(3));
        assert_eq!(other, root, "the place is taken again");
        assert_eq!(trie.carried_parent(child), Key::UNKNOWN, "and is another's");
    }

    #[test]
    fn what_is_published_is_found_whatever_has_left_before() {
        // Full as it can be: hashes meet, and those at the end go on at the beginning.
        let mut trie = Trie::new(&[48]).unwrap();
        let mut there = std::collections::BTreeSet::new();
        let mut seed = 1_u32;
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let n = (seed >> 24) as u8;
            if there.remove(&n) {
                let node = trie.find(&key(n)).expect("published");
                trie.remove(node);
            } else if there.len() < 48 {
                publish(&mut trie, None, key(n));
                there.insert(n);
            }
            for n in 0..=u8::MAX {
                assert_eq!(trie.find(&key(n)).is_some(), there.contains(&n), "{n}");
            }
        }
        trie.reserve(&[4096]).unwrap();
        let found = (0..=u8::MAX).filter(|&n| trie.find(&key(n)).is_some());
        assert_eq!(found.collect::<std::collections::BTreeSet<u8>>(), there);
    }

    #[test]
    fn an_ended_epoch_is_not_found_but_can_be_published_again() {
        let mut trie = Trie::new(&[8]).unwrap();
        let old = publish(&mut trie, None, key(1));
        trie.end_epoch();
        assert_eq!(trie.find(&key(1)), None);
        let new = publish(&mut trie, None, key(1));
        assert_eq!(trie.find(&key(1)), Some(new));
        trie.remove(old);
        assert_eq!(trie.find(&key(1)), Some(new));
    }
}
