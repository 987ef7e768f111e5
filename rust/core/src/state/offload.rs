//! Offload: copies of the engine's blocks to a tier below, for all that have the same prefix.
//! `save_request.rs` keeps them for one request.

use super::State;
use super::copy_down::Draft;
use super::engine::check_range;
use crate::base::{Error, Ix, Key, NodeIx, Result, SlotIx, Tier};
use crate::collections::{Gap, Tag};
use crate::copies::{Move, Plan, Purpose};
use crate::tiers::Hold;

/// What a block of a path stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Above {
    /// Nothing: it is the first of its sequence.
    Root,
    Block(NodeIx),
    /// A block that is nowhere.
    Gone,
}

impl Above {
    fn of(node: Option<NodeIx>) -> Self {
        node.map_or(Self::Gone, Self::Block)
    }

    pub(super) fn block(self) -> Option<NodeIx> {
        match self {
            Self::Block(node) => Some(node),
            Self::Root | Self::Gone => None,
        }
    }
}

/// A block that is there, or the tag of its key.
pub(super) type Known = std::result::Result<NodeIx, Tag>;

impl State {
    /// Copies what of blocks `first..first + ids.len()` is neither below nor on its way there from the
    /// engine's `ids`, to the nearest lower tier that has slots: the root first, as many as there is
    /// room for. `None`: all is there, or nothing finds room.
    ///
    /// # Errors
    /// `State` where the device is the yard's own; `Argument` for ids that the engine does not have, that
    /// come twice, or are more than the blocks.
    pub fn offload(&mut self, keys: &[Key], ids: &[u32], first: u32) -> Result<Option<Plan>> {
        self.check_offload(keys, ids, first)?;
        Ok(self.offload_checked(keys, ids, first as usize))
    }

    /// The same of several requests, each with its keys, ids and first block, in their order.
    ///
    /// # Errors
    /// As [`Self::offload`], and `Argument` for an id with two keys; then none of them is copied.
    pub fn offload_all(&mut self, rows: &[(&[Key], &[u32], u32)]) -> Result<Vec<Option<Plan>>> {
        let mut given: Vec<(u32, &Key)> = Vec::new();
        for &(keys, ids, first) in rows {
            self.check_offload(keys, ids, first)?;
            given.extend(ids.iter().copied().zip(&keys[first as usize..]));
        }
        given.sort_unstable_by_key(|&(id, _)| id);
        let twice = |pair: &&[(u32, &Key)]| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1;
        if let Some(pair) = given.windows(2).find(twice) {
            let help = "it comes twice, with two keys: an id has one block";
            return Err(Error::argument("ids", pair[0].0, help));
        }
        let offload = |&(keys, ids, first): &(&[Key], &[u32], u32)| {
            self.offload_checked(keys, ids, first as usize)
        };
        Ok(rows.iter().map(offload).collect())
    }

    fn check_offload(&self, keys: &[Key], ids: &[u32], first: u32) -> Result<()> {
        self.of_an_engine("offload")?;
        self.check_ids(ids)?;
        let first = first as usize;
        check_range(ids, &(first..first + ids.len()), keys.len())
    }

    fn offload_checked(&mut self, keys: &[Key], ids: &[u32], first: usize) -> Option<Plan> {
        let to = self.tiers.next_below(Tier::DEVICE)?;
        let above = match first.checked_sub(1) {
            None => Above::Root,
            Some(last) => self.behind(self.trie.find(&keys[last])),
        };
        let keys = &keys[first..first + ids.len()];
        let path = self.known(keys, ids, above);
        let linked = self.config.linked;
        let copied =
            |&(node, &id): &(&Known, &u32)| node.is_err() && (linked || !self.is_filled(id));
        let new = path.iter().zip(ids).filter(copied).count();
        if new == 0 {
            return None;
        }
        // What is there of the path already is no room for it.
        let parent = above.block();
        let own = parent.iter().chain(path.iter().flatten());
        let own: Vec<SlotIx> = own.filter_map(|&node| self.ready(node, to)).collect();
        for &slot in &own {
            self.mark(to, slot);
        }
        let room = self.tiers[to].ledger().available().max(0);
        let most = usize::try_from(room).map_or(new, |room| room.min(new));
        self.make_room(to, most as u32);
        let plan = self.fill_path(keys, ids, (above, &path), to, most);
        for &slot in own.iter().rev() {
            self.unmark(to, slot);
        }
        for &slot in own.iter().rev() {
            self.retire(to, slot);
        }
        plan
    }

    /// The blocks of a path that are known, and the tags of those to copy: as far as the keys agree with
    /// what is known, and none of the ids of the others is being filled.
    fn known(&mut self, keys: &[Key], ids: &[u32], mut above: Above) -> Vec<Known> {
        let mut path = Vec::with_capacity(keys.len());
        let mut tags = std::mem::take(&mut self.scratch.tags);
        self.trie.warm(keys.iter(), &mut tags);
        for ((key, &tag), &id) in keys.iter().zip(&tags).zip(ids) {
            let node = self.trie.seek(key, tag).map_err(|_| tag);
            match node {
                Ok(node) if !self.stands_on(node, above) => break,
                Err(_) if self.config.linked && self.is_filled(id) => break,
                Ok(node) => {
                    self.join(node, above);
                    self.note_use(node);
                    if self.copies_first {
                        self.keep_copy(node);
                    }
                }
                Err(_) => {}
            }
            path.push(node);
            above = self.behind(node.ok());
        }
        self.scratch.tags = tags;
        path
    }

    /// Copies the first `most` blocks of a path that are not known; they have room.
    fn fill_path(
        &mut self,
        keys: &[Key],
        ids: &[u32],
        (mut above, path): (Above, &[Known]),
        to: Tier,
        most: usize,
    ) -> Option<Plan> {
        let mut draft = self.draft(Tier::DEVICE, to, Purpose::Offload);
        draft.moves.reserve(most);
        let mut behind_new = false;
        for ((key, &id), &known) in keys.iter().zip(ids).zip(path) {
            let node = match known {
                Ok(node) => {
                    if behind_new {
                        self.link(node, above.block());
                    }
                    node
                }
                Err(_) if draft.moves.len() == most => break,
                // Of a set the others go.
                Err(_) if !self.config.linked && self.is_filled(id) => continue,
                Err(tag) => {
                    let Err(gap) = self.trie.seek(key, tag) else {
                        // It comes twice.
                        if self.config.linked {
                            break;
                        }
                        continue;
                    };
                    let node = self.new_block(above, Some((key, gap)));
                    self.fill_from(node, SlotIx::new(id), &mut draft);
                    node
                }
            };
            behind_new = known.is_err();
            above = self.behind(Some(node));
        }
        self.launch_if_any(draft)
    }

    /// Whether a copy fills this block of the engine, or may still.
    pub(super) fn is_filled(&self, id: u32) -> bool {
        self.hold(Tier::DEVICE, SlotIx::new(id)) != Hold::Null
    }

    /// What the block behind this one in a row stands on; in a set that is the root.
    pub(super) fn behind(&self, node: Option<NodeIx>) -> Above {
        if self.config.linked {
            Above::of(node)
        } else {
            Above::Root
        }
    }

    /// Whether a block names this one as its parent, or one that was dropped.
    pub(super) fn stands_on(&self, node: NodeIx, above: Above) -> bool {
        let Some(parent) = self.trie[node].parent else {
            return above == Above::Root;
        };
        match self.trie.live(parent) {
            Some(parent) => above == Above::Block(parent),
            None => above != Above::Root,
        }
    }

    /// Links an orphan again, unless a promise could lose its backing by that.
    pub(super) fn join(&mut self, node: NodeIx, above: Above) {
        if let Some(parent) = above.block()
            && self.trie.parent(node).is_none()
            && !self.is_read(node)
        {
            self.link(node, Some(parent));
        }
    }

    /// A block that is new here; without a key it is a partial one.
    #[inline]
    pub(super) fn new_block(&mut self, above: Above, key: Option<(&Key, Gap)>) -> NodeIx {
        let node = self.trie.add(above.block(), key);
        if above == Above::Gone {
            self.trie.put_under(node, None);
        }
        if let Some((key, _)) = key {
            self.recall_uses(node, key);
            self.emit_named(node);
        } else {
            self.usages.born(node, 0);
        }
        node
    }

    /// Adds a block to an offload, whose tier has a free slot.
    pub(super) fn fill_from(&mut self, node: NodeIx, id: SlotIx, draft: &mut Draft) {
        let to = self.flights[draft.flight].to;
        // It is in no order and backs nothing, so that a mark is all there is to it.
        self.tiers[Tier::DEVICE].read(id);
        if let Some(slot) = self.attach(node, to, draft.flight) {
            draft.moves.push(Move {
                node: Some(self.trie.id(node)),
                from: id,
                to: slot,
            });
        }
    }
}
