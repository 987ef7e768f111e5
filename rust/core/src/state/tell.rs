//! Tell: what a listener hears of the yard (O1 to O3). Every door by which a copy becomes readable, or
//! is no more, leads through here; nothing is decided by it, and without a listener it is a branch.
//!
//! Blocks without a key, and those of an ended epoch, are not told. On the device a parent is told
//! before its child.

use super::{Sealing, State};
use crate::base::{Error, Id, Ix, MAX_TIERS, NodeIx, Result, Tier};
use crate::copies::Move;
use crate::events::{Above, Events, NO_TOKENS, Name, Stage, StagedRow, Told, number};
use crate::mirror::Known;
use std::ops::Range;

/// Blocks that are told again in one slice, or places that are passed.
const SLICE: usize = 1024;

impl State {
    /// Somebody listens from here on: what is there already is told first. `most`: events that are
    /// kept until they are taken. Returns an empty list, and how many blocks there may be.
    ///
    /// # Errors
    /// `State` where somebody listens already; `Argument` for no room; `Memory`.
    pub(crate) fn listen(&mut self, most: usize) -> Result<(Told, usize)> {
        if self.events.is_some() {
            let what = "listening to a cache that has a listener".to_owned();
            return Err(Error::state(what, "one listener tells all others"));
        }
        // A slice names a block, and tells it on every tier.
        if most <= 2 * MAX_TIERS {
            let help = "room for a few events at least: 131,072 are 12 MiB";
            return Err(Error::argument("ring", most, help));
        }
        let blocks = self.slots();
        let mut events = Box::new(Events::new(most, blocks)?);
        events.tell_again();
        self.events = Some(events);
        Ok((Events::room(most)?, blocks))
    }

    /// Slots of all tiers.
    fn slots(&self) -> usize {
        let slots = self.tiers.iter().map(|tier| tier.pool().len() as usize);
        slots.sum()
    }

    /// Hands over what has happened, for a list that was worked through and reset, and tells the next slice
    /// where all is told again. `false`: more of that is to come.
    pub(crate) fn hand_over(&mut self, other: &mut Told) -> bool {
        self.tell_slice();
        let Some(events) = &mut self.events else {
            return true;
        };
        events.swap(other);
        events.retelling.is_none()
    }

    /// Takes the tokens of blocks that the next seal may publish.
    pub(crate) fn stage(&mut self, mut stage: Stage) {
        if self.events.is_none() {
            return;
        }
        let known = |row: &StagedRow| match self.lease(row.lease) {
            Ok(lease) if !self.detached(lease) => {
                self.leases[lease].sealed.saturating_sub(row.first)
            }
            _ => row.blocks,
        };
        stage.cut(self.config.block_size as usize, known);
        let slots = self.slots();
        if let Some(events) = &mut self.events {
            events.stage(stage, slots);
        }
    }

    /// Whether what happens to a block is told.
    #[inline]
    fn is_told(&self, node: NodeIx) -> bool {
        let block = &self.trie[node];
        !block.is_anonymous() && block.epoch == self.trie.epoch()
    }

    /// A block may be read on a tier from here on.
    fn tell_ready(&mut self, node: NodeIx, tier: Tier) {
        if self.is_told(node)
            && let Some(events) = &mut self.events
        {
            events.ready(self.trie.id(node), tier);
        }
    }

    /// Copies have landed, the root first: those that can be read now are told in that order.
    pub(super) fn tell_landed(&mut self, tier: Tier, moves: &[Move]) {
        if self.events.is_none() {
            return;
        }
        for step in moves {
            if let Some(node) = self.arrival(tier, step)
                && self.ready(node, tier).is_some()
            {
                self.tell_ready(node, tier);
            }
        }
    }

    /// A copy that could be read leaves a tier.
    #[inline]
    pub(super) fn tell_gone(&mut self, node: NodeIx, tier: Tier) {
        if self.events.is_some() {
            self.tell_gone_to_listener(node, tier);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_gone_to_listener(&mut self, node: NodeIx, tier: Tier) {
        if self.is_told(node)
            && let Some(events) = &mut self.events
        {
            events.gone(self.trie.id(node), tier);
        }
    }

    /// A block is found no more on any tier: it was told so far, and is not any more.
    pub(super) fn tell_forgotten(&mut self, node: NodeIx) {
        if self.events.is_none() || self.trie[node].is_anonymous() {
            return;
        }
        for tier in self.tiers.all() {
            if self.ready(node, tier).is_some()
                && let Some(events) = &mut self.events
            {
                events.gone(self.trie.id(node), tier);
            }
        }
    }

    /// These blocks of a row are published. One branch for all of them, as a seal is nothing but its
    /// blocks.
    #[inline]
    pub(super) fn tell_sealed(&mut self, row: &Sealing<'_>, blocks: Range<u32>) {
        if self.events.is_some() {
            self.tell_sealed_to_listener(row, blocks);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_sealed_to_listener(&mut self, row: &Sealing<'_>, blocks: Range<u32>) {
        let end = row.first + row.keys.len() as u32;
        let events = self.events.as_mut();
        let staged = events.and_then(|events| events.staged_for(row.lease, end));
        let named = blocks.end - blocks.start;
        for block in blocks {
            if let Some(node) = self.published(&self.leases[row.lease.at()], block) {
                let from = staged.and_then(|(first, number)| {
                    Some(number + u64::from(block.checked_sub(first)?))
                });
                self.tell_name_and_copies(node, from.unwrap_or(NO_TOKENS));
            }
        }
        self.pass_names(named);
    }

    /// So many blocks were named. Where nobody takes the list, twice as many of the oldest names make
    /// room, and those that stand still are named again: so each block keeps its name and its tokens,
    /// and no verb does much for it.
    fn pass_names(&mut self, named: u32) {
        let size = self.config.block_size as usize;
        for _ in 0..2 * named {
            let Some(passed) = self.events.as_mut().and_then(|events| events.pass(size)) else {
                return;
            };
            let node = passed.node;
            let stands = self.trie.alive(node)
                && self.is_told(node)
                && number(&self.trie[node].key) == passed.key;
            if stands && !passed.is_again {
                let mut name = self.name_of(node, NO_TOKENS);
                if name.above == Above::Unknown {
                    // What was before it stays what it was.
                    name.above = passed.above;
                }
                if let Some(events) = &mut self.events {
                    events.name_again(name, passed.kept);
                }
            }
        }
    }

    /// A block has got its key, and may have been there before.
    #[inline]
    pub(super) fn tell_named(&mut self, node: NodeIx) {
        if self.events.is_some() {
            self.tell_name_and_copies(node, NO_TOKENS);
            self.pass_names(1);
        }
    }

    /// `from`: its staged tokens.
    #[inline(never)]
    fn tell_name_and_copies(&mut self, node: NodeIx, from: u64) {
        let (name, id) = (self.name_of(node, from), self.trie.id(node));
        let waits = self.is_below_untold(node);
        if let Some(events) = &mut self.events {
            events.named(name, id, waits);
        }
        self.tell_copies(node);
    }

    fn tell_copies(&mut self, node: NodeIx) {
        if !self.is_told(node) {
            return;
        }
        for tier in self.tiers.all() {
            if self.ready(node, tier).is_some()
                && let Some(events) = &mut self.events
            {
                events.ready(self.trie.id(node), tier);
            }
        }
    }

    /// A block that had lost its parent has one again.
    pub(super) fn tell_linked(&mut self, node: NodeIx) {
        if self.events.is_none() || !self.is_told(node) {
            return;
        }
        // Its parent must not be told after a copy of its own comes to the device. The walk that
        // has found it came along this path.
        let mut path = Vec::new();
        let mut above = self.trie.parent(node);
        while let Some(next) = above.filter(|&next| self.is_untold(next)) {
            path.push(next);
            above = self.trie.parent(next);
        }
        let mut named = 1;
        for next in path.into_iter().rev() {
            if self.is_below_untold(next) {
                // The list has overflowed meanwhile: all are told again, these in their turn.
                break;
            }
            self.tell_whole(next);
            named += 1;
        }
        let name = self.name_of(node, NO_TOKENS);
        if let Some(events) = &mut self.events {
            events.name(name);
        }
        self.pass_names(named);
    }

    /// Whether a block is to be told again, and was not yet.
    fn is_untold(&self, node: NodeIx) -> bool {
        let retelling = self.events.as_ref().and_then(|own| own.retelling.as_ref());
        retelling.is_some_and(|retelling| !retelling.is_told(self.trie.id(node)))
            && self.is_told(node)
    }

    /// Whether the block above this one is.
    fn is_below_untold(&self, node: NodeIx) -> bool {
        let above = self.trie.parent(node);
        above.is_some_and(|above| self.is_untold(above))
    }

    fn name_of(&self, node: NodeIx, from: u64) -> Name {
        let above = match self.trie[node].parent {
            None => Above::Root,
            Some(id) => match self.trie.live(id) {
                Some(parent) if !self.trie[parent].is_anonymous() => {
                    Above::Block(parent, number(&self.trie[parent].key))
                }
                _ => Above::Unknown,
            },
        };
        Name {
            node,
            key: number(&self.trie[node].key),
            above,
            from,
        }
    }

    /// Tells what a block is, and where.
    fn tell_whole(&mut self, node: NodeIx) {
        let name = self.name_of(node, NO_TOKENS);
        let id = self.trie.id(node);
        if let Some(events) = &mut self.events {
            if let Some(retelling) = &mut events.retelling {
                retelling.set_told(id);
            }
            events.name(name);
        }
        self.tell_copies(node);
    }

    /// Tells the next blocks again, ancestors first, as many as a slice has.
    fn tell_slice(&mut self) {
        for _ in 0..SLICE {
            let Some(events) = self.events.as_mut() else {
                return;
            };
            if !events.has_room(2 * MAX_TIERS) {
                return;
            }
            let Some(retelling) = &mut events.retelling else {
                return;
            };
            let Some(next) = retelling.path.last().copied() else {
                if let Some(behind) = retelling.behind.pop() {
                    retelling.path.push(behind);
                    continue;
                }
                let place = NodeIx::new(retelling.cursor);
                if retelling.cursor as usize >= self.trie.places() {
                    events.retelling = None;
                    return;
                }
                retelling.cursor += 1;
                if self.trie.alive(place) {
                    retelling.path.push(self.trie.id(place));
                }
                continue;
            };
            self.tell_next(next);
        }
    }

    /// Tells a block, or first the one above it.
    fn tell_next(&mut self, id: Id<NodeIx>) {
        let node = self.trie.live(id).filter(|&node| self.is_untold(node));
        let above = node.and_then(|node| self.trie.parent(node));
        let above = above.filter(|&above| self.is_untold(above));
        let above = above.map(|above| self.trie.id(above));
        if let Some(retelling) = self.events.as_mut().and_then(|own| own.retelling.as_mut()) {
            if let Some(above) = above {
                return retelling.path.push(above);
            }
            retelling.path.pop();
        }
        if let Some(node) = node {
            self.tell_whole(node);
        }
    }

    /// What a listener must know: each block that has a key, is of this epoch and may be read, by its
    /// number, and where. It takes time in proportion to the trie, and is for tests.
    pub fn ready_blocks(&self) -> Vec<(u64, Tier)> {
        let mut ready = Vec::new();
        for (node, block) in self.trie.iter().filter(|&(node, _)| self.is_told(node)) {
            for tier in self.tiers.all() {
                if self.ready(node, tier).is_some() {
                    ready.push((number(&block.key), tier));
                }
            }
        }
        ready
    }

    /// The same by place, with a bit for each tier, but for what is to be told again and was not yet:
    /// what the audit compares a listener with.
    pub(crate) fn told_blocks(&self) -> Vec<Known> {
        let told = |&(node, _): &(NodeIx, _)| self.is_told(node) && !self.is_untold(node);
        let known = |(node, block): (NodeIx, &crate::tiers::Node)| {
            let ready = self
                .tiers
                .all()
                .filter(|&tier| self.ready(node, tier).is_some());
            let tiers = ready.fold(0, |set, tier| set | 1 << tier.at());
            (node.get(), number(&block.key), tiers)
        };
        let known = self.trie.iter().filter(told).map(known);
        known.filter(|&(_, _, tiers)| tiers != 0).collect()
    }

    /// What a listener has not taken yet.
    pub(crate) fn pending_events(&self) -> Option<&Told> {
        self.events.as_ref().map(|events| events.pending())
    }

    /// The epoch has ended.
    pub(super) fn tell_cleared(&mut self) {
        if let Some(events) = &mut self.events {
            events.clear();
        }
    }

    /// So much has changed that all is told again.
    pub(super) fn tell_all(&mut self) {
        if let Some(events) = &mut self.events {
            events.tell_again();
        }
    }
}
