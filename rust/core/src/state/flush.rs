//! Flush: what a clean stop copies to a tier that outlives the yard, what goes there for it, and the
//! order that it leaves there.

use super::State;
use super::copy_down::Draft;
use super::record::Keep;
use crate::base::{Error, Ix, Key, LeaseIx, NodeIx, ParkedIx, Result, SlotIx, Tier};
use crate::copies::Plan;
use crate::tiers::Hold;

/// What is known of a block while the tiers are searched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Unknown,
    /// It lies on the tier, or above it, and so do all before it.
    Good,
    /// It has no key, or a block before it is nowhere.
    Lost,
}

/// Blocks of some tiers, in an order in which each is behind those before it in its sequence.
struct Listing {
    found: Vec<Found>,
    nodes: Vec<NodeIx>,
}

impl State {
    /// The keys of published blocks that lie above a tier, or are on their way there, and are not ready
    /// on it: the last to be evicted first, the device's before those of the tiers below it, but each
    /// behind the blocks before it in its sequence, none of which is nowhere. It takes time in proportion to the tiers above.
    ///
    /// # Errors
    /// `Argument` for the device, a store, or a tier without slots.
    pub fn unwritten(&self, to: Tier) -> Result<Vec<Key>> {
        self.check_outlives(to)?;
        let mut all = self.listing();
        for node in self.above_newest_first(to)? {
            self.list_path(node, to, &mut all);
        }
        let bare = |&node: &NodeIx| self.ready(node, to).is_none();
        let nodes = all.nodes.into_iter().filter(bare);
        Ok(nodes.map(|node| self.trie[node].key).collect())
    }

    /// The keys of idle blocks on a tier that may go for what is [`Self::unwritten`], the first to go first,
    /// and for how many of those, from the first: of all blocks there and above, what has no room behind the
    /// others. What is above counts in its order there, and as newer than what the tier alone has, but
    /// where a block of both tells. It takes time in proportion to the tiers.
    ///
    /// # Errors
    /// `Argument` for the device, a store, or a tier without slots.
    pub fn outranked(&self, to: Tier) -> Result<(Vec<Key>, usize)> {
        self.check_outlives(to)?;
        let own = self.order_alone(to)?;
        let node_in = |slot| self.node_in(to, slot);
        let own: Vec<NodeIx> = own
            .into_iter()
            .map(SlotIx::new)
            .filter_map(node_in)
            .collect();
        let newest = self.newest(to, &own)?;
        let bare = |&&node: &&NodeIx| self.ready(node, to).is_none();
        let newer = newest.iter().filter(bare).count();
        let mut kept = vec![false; self.trie.places()];
        for node in newest {
            kept[node.at()] = true;
        }
        let goes = own.into_iter().filter(|node| !kept[node.at()]);
        Ok((goes.map(|node| self.trie[node].key).collect(), newer))
    }

    /// The newest blocks of the tier and those above it, as many as it has room for, where `own` are those
    /// that are idle there, the oldest first.
    fn newest(&self, to: Tier, own: &[NodeIx]) -> Result<Vec<NodeIx>> {
        let mut on_tier = vec![false; self.trie.places()];
        for node in own {
            on_tier[node.at()] = true;
        }
        let mut all = self.listing();
        let held = self.order_of_all(to)?;
        let held = held.into_iter().filter_map(|slot| self.node_in(to, slot));
        for node in held.filter(|node| !on_tier[node.at()]) {
            self.list_path(node, to, &mut all);
        }
        let on_it = |&&node: &&NodeIx| self.trie.slot(node, to).is_some();
        let held = all.nodes.iter().filter(on_it).count();
        let room = self.tiers[to].ledger().free() as usize + own.len() + held;
        let alone = |node: NodeIx| above(to).all(|tier| self.trie.slot(node, tier).is_none());
        let mut own = own.iter().rev().copied().peekable();
        for node in self.above_newest_first(to)? {
            if on_tier[node.at()] {
                // It tells where the others of the tier stand.
                while let Some(other) = own.next_if(|&other| other != node && alone(other)) {
                    self.list_path(other, to, &mut all);
                }
                own.next_if_eq(&node);
            }
            self.list_path(node, to, &mut all);
        }
        for node in own {
            self.list_path(node, to, &mut all);
        }
        all.nodes.truncate(room);
        Ok(all.nodes)
    }

    /// What the tiers above have, the last to be evicted first, the device's before the others'.
    fn above_newest_first(&self, to: Tier) -> Result<Vec<NodeIx>> {
        let (mut nodes, mut seen) = (Vec::new(), vec![false; self.trie.places()]);
        for tier in above(to) {
            for slot in self.order_of_all(tier)?.into_iter().rev() {
                if let Some(node) = self.node_in(tier, slot)
                    && !std::mem::replace(&mut seen[node.at()], true)
                {
                    nodes.push(node);
                }
            }
        }
        Ok(nodes)
    }

    fn listing(&self) -> Listing {
        Listing {
            found: vec![Found::Unknown; self.trie.places()],
            nodes: Vec::new(),
        }
    }

    /// Lists what of a block's path is not listed and can be found, the root first.
    fn list_path(&self, node: NodeIx, to: Tier, all: &mut Listing) {
        let (mut path, mut next) = (Vec::new(), Some(node));
        let mut last = Found::Good;
        while let Some(node) = next {
            if all.found[node.at()] != Found::Unknown {
                last = all.found[node.at()];
                break;
            }
            path.push(node);
            next = self.trie.parent(node);
            if next.is_none() && self.trie[node].parent.is_some() {
                last = Found::Lost;
            }
        }
        for node in path.into_iter().rev() {
            let block = &self.trie[node];
            let published = block.epoch == self.trie.epoch() && !block.is_anonymous();
            // What is on its way to the tier, or to one above it, is there, too.
            let mut there = above(to).chain([to]);
            let there = there.any(|tier| self.trie.slot(node, tier).is_some());
            if last == Found::Good && published && there {
                all.nodes.push(node);
            } else {
                last = Found::Lost;
            }
            all.found[node.at()] = last;
        }
    }

    /// The nearest tier above this one where a block is ready.
    fn nearest_above(&self, node: NodeIx, to: Tier) -> Option<Tier> {
        above(to)
            .rev()
            .find(|&tier| self.ready(node, tier).is_some())
    }

    /// Copies those of these blocks to a tier that it has not, from the nearest tier above, as many as
    /// find room there: a plan for each run of blocks from one tier. A block whose parent neither lies
    /// on the tier nor goes there is left out. Where no slot is free the next of `instead` goes that may,
    /// and no other block; but the name of a block in a store, which stays there, goes in the order of its
    /// tier. Returns how many of `instead` were looked at, too.
    ///
    /// # Errors
    /// `Argument` for the device, or a tier without slots.
    pub fn write_down(
        &mut self,
        to: Tier,
        keys: &[Key],
        instead: &[Key],
    ) -> Result<(Vec<Plan>, usize)> {
        self.check_lower(to)?;
        let (mut plans, mut draft) = (Vec::new(), None);
        let mut goes = instead.iter();
        for key in keys {
            let Some(node) = self
                .trie
                .find(key)
                .filter(|&node| self.may_go_down(node, to))
            else {
                continue;
            };
            let Some(from) = self.nearest_above(node, to) else {
                continue;
            };
            let draft = self.of_run((from, to), &mut draft, &mut plans);
            self.write_one(node, draft, &mut goes);
        }
        plans.extend(draft.and_then(|draft| self.launch_named(draft)));
        Ok((plans, instead.len() - goes.len()))
    }

    /// Adds a block to a flight, and evicts the next of these for it that may go.
    fn write_one<'keys>(
        &mut self,
        node: NodeIx,
        draft: &mut Draft,
        goes: &mut impl Iterator<Item = &'keys Key>,
    ) {
        let (from, to) = (
            self.flights[draft.flight].from,
            self.flights[draft.flight].to,
        );
        if to == Tier::REMOTE {
            let parent = self.trie.parent(node);
            self.copy_one(node, draft, |_, other| Some(other) != parent);
            return;
        }
        if self.tiers[to].ledger().free() == 0 {
            // Nothing goes for a copy that a promise forbids.
            let owed = i64::from(self.is_owed(node, to));
            let takes = 1 + i64::from(self.shaded_by(node, to));
            if self.tiers[to].ledger().available() + owed < takes || !self.may_be_read(node, from) {
                return;
            }
            let parent = self.trie.parent(node);
            let victim = goes.find_map(|key| {
                let other = self.trie.find(key).filter(|&other| Some(other) != parent)?;
                let slot = self.trie.slot(other, to)?;
                self.is_idle_leaf(to, slot).then_some(slot)
            });
            let Some(victim) = victim else {
                return;
            };
            self.evict_with_parents(to, victim);
        }
        self.copy_one(node, draft, |_, _| false);
    }

    /// Whether no promise needs a block that a copy from the tier would read.
    fn may_be_read(&mut self, node: NodeIx, from: Tier) -> bool {
        let Some(slot) = self.ready(node, from) else {
            return false;
        };
        let may = self.mark_backed(node, from, slot);
        if may {
            self.unmark(from, slot);
        }
        may
    }

    /// Gives up what is promised and what is kept, for an end behind which nothing begins: tickets have
    /// no blocks, sequences and the batch no growth, and what is parked is computed again. So nothing
    /// stands in the way of [`Self::write_down`].
    pub fn end_promises(&mut self) {
        let tickets: Vec<_> = self.tickets.iter().map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            let ticket = &mut self.tickets[ticket];
            let blocks = std::mem::take(&mut ticket.blocks);
            self.tiers[ticket.tier].release(blocks);
        }
        self.set_headroom(0);
        let running = self.leases.iter().filter(|(_, lease)| !lease.has_ended());
        let running: Vec<LeaseIx> = running.map(|(lease, _)| lease).collect();
        for lease in running {
            self.promise_to(lease, self.leases[lease].promised(), 0);
            self.leases[lease].reserve_limit = 0;
        }
        let whole = self.parked.iter();
        let whole = whole.filter(|(_, parked)| parked.keep == Keep::Whole);
        let whole: Vec<ParkedIx> = whole.map(|(parked, _)| parked).collect();
        for parked in whole {
            self.give_keep_up(parked);
        }
    }

    /// Whether a published block is not on the tier, and the one before it is, or is on its way there.
    fn may_go_down(&self, node: NodeIx, to: Tier) -> bool {
        let block = &self.trie[node];
        let parent = block.parent.map(|_| self.trie.parent(node));
        let follows = parent
            .is_none_or(|parent| parent.is_some_and(|parent| self.trie.slot(parent, to).is_some()));
        block.epoch == self.trie.epoch() && self.trie.slot(node, to).is_none() && follows
    }

    /// A tier below the device that has slots, and no store: others write there too, so that nothing is
    /// left there for this yard alone.
    fn check_outlives(&self, tier: Tier) -> Result<()> {
        self.check_lower(tier)?;
        if tier != Tier::REMOTE {
            return Ok(());
        }
        let help = "a store is not flushed to at a stop, as others write there too: name the disk";
        Err(Error::argument("to", tier.name(), help))
    }

    /// How many of these blocks are ready on a tier.
    ///
    /// # Errors
    /// `Argument` for the device, or a tier without slots.
    pub fn written(&self, to: Tier, keys: &[Key]) -> Result<u32> {
        self.check_lower(to)?;
        let ready = |key: &&Key| {
            let node = self.trie.find(key);
            node.is_some_and(|node| self.ready(node, to).is_some())
        };
        Ok(keys.iter().filter(ready).count() as u32)
    }

    /// As [`Self::eviction_order`], but what lies above too is in the order of the tiers above, the
    /// device's last: a copy down says when it was made, and not when its block was used. It takes time
    /// in proportion to the tiers.
    ///
    /// # Errors
    /// `Argument` for a tier that is not there.
    pub fn order_alone(&self, tier: Tier) -> Result<Vec<u32>> {
        let mut order = self.eviction_order(tier)?;
        let mut place = vec![None; self.tiers[tier].pool().len() as usize];
        for upper in above(tier).rev() {
            for (at, slot) in self.order_of_all(upper)?.into_iter().enumerate() {
                let node = self.node_in(upper, slot);
                if let Some(slot) = node.and_then(|node| self.trie.slot(node, tier)) {
                    // What a higher tier has too stands where it does there.
                    place[slot.at()] = Some((tier.at() - upper.at(), at));
                }
            }
        }
        let lies_above = |slot: u32| place[slot as usize].is_some();
        let mut above: Vec<u32> = order
            .iter()
            .copied()
            .filter(|&slot| lies_above(slot))
            .collect();
        above.sort_by_key(|&slot| place[slot as usize]);
        let mut above = above.into_iter();
        for slot in &mut order {
            if lies_above(*slot) {
                *slot = above.next().unwrap_or(*slot);
            }
        }
        Ok(order)
    }

    /// The slots of a tier's blocks: the idle ones in their order, then those that are held or on their way.
    fn order_of_all(&self, tier: Tier) -> Result<Vec<SlotIx>> {
        let mut slots: Vec<SlotIx> = self
            .eviction_order(tier)?
            .into_iter()
            .map(SlotIx::new)
            .collect();
        let all = (0..self.tiers[tier].pool().len()).map(SlotIx::new);
        slots.extend(all.filter(|&slot| {
            let hold = self.hold(tier, slot);
            matches!(hold, Hold::Pinned { .. } | Hold::Filling { .. })
        }));
        Ok(slots)
    }
}

/// The tiers above this one, the device first.
fn above(tier: Tier) -> impl DoubleEndedIterator<Item = Tier> {
    (0..tier.at()).map(Tier)
}
