//! Tell: what a listener hears of the yard (O1 to O3). Every door by which a copy becomes readable, or
//! is no more, leads through here; nothing is decided by it, and without a listener it is a branch.
//!
//! Blocks without a key, and those of an ended epoch, are not told. On the device a parent is told
//! before its child.

use super::audit::Violation;
use super::{Sealing, State};
use crate::base::{Error, Ix, Key, MAX_TIERS, NodeIx, Result, Tier};
use crate::copies::Move;
use crate::events::{Above, Clears, Events, Heard, Late, PLACES, Salts, Slice, Walk, bits, number};
use std::ops::Range;

impl State {
    /// Somebody listens from here on: what is there already is told first. `most`: events that wait
    /// until they are taken. Returns an empty slice.
    ///
    /// # Errors
    /// `State` where somebody listens already; `Argument` for no room; `Memory`.
    pub(crate) fn listen(&mut self, most: usize, salts: Salts, clears: Clears) -> Result<Slice> {
        if self.events.is_some() {
            let what = "listening to a cache that has a listener".to_owned();
            return Err(Error::state(what, "one listener tells all others"));
        }
        if most <= 2 * MAX_TIERS {
            let help = "room for a few events at least: 131,072 are 5 MiB";
            return Err(Error::argument("ring", most, help));
        }
        let size = self.config.block_size;
        let blocks = self
            .tiers
            .iter()
            .map(|tier| tier.pool().len() as usize)
            .sum();
        let mut events = Box::new(Events::new(size, blocks, (most, salts, clears))?);
        if self.trie.is_new() {
            events.walk = Walk::ENDED;
        }
        let slice = Slice::with_room(size, most.min(blocks))?;
        self.events = Some(events);
        Ok(slice)
    }

    /// What was told so far, and what not.
    pub(crate) fn heard(&self) -> Heard {
        self.events
            .as_ref()
            .map(|own| own.heard)
            .unwrap_or_default()
    }

    // -- what happens -----------------------------------------------------------------------

    /// Whether what happens to a block is told.
    #[inline]
    fn is_told(&self, node: NodeIx) -> bool {
        let block = &self.trie[node];
        !block.is_anonymous() && block.epoch == self.trie.epoch()
    }

    /// The tiers where a block may be read, a bit for each.
    fn ready_on(&self, node: NodeIx) -> u8 {
        let ready = self
            .tiers
            .all()
            .filter(|&tier| self.ready(node, tier).is_some());
        ready.fold(0, |set, tier| set | 1 << tier.at())
    }

    /// Copies have landed, the root first: those that can be read now are told in that order.
    pub(super) fn tell_landed(&mut self, tier: Tier, moves: &[Move]) {
        if self.events.is_none() {
            return;
        }
        for step in moves {
            if let Some(node) = self.arrival(tier, step)
                && self.ready(node, tier).is_some()
                && self.is_told(node)
                && let Some(events) = &mut self.events
            {
                events.stored(node);
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
        let Some(events) = &mut self.events else {
            return;
        };
        events.removed(node, tier, &self.trie[node].key);
        if events.lacks(node)
            && self.ready_on(node) & !(1 << tier.at()) == 0
            && let Some(events) = &mut self.events
        {
            events.lack(node, false);
        }
    }

    /// A block has left the trie.
    #[inline]
    pub(super) fn tell_dropped(&mut self, node: NodeIx) {
        if self.events.is_some()
            && let Some(events) = &mut self.events
        {
            events.dropped(node);
        }
    }

    /// A block is found no more on any tier.
    pub(super) fn tell_forgotten(&mut self, node: NodeIx) {
        let Some(events) = &mut self.events else {
            return;
        };
        for tier in bits(events.told(node)) {
            events.removed(node, Tier(tier.into()), &self.trie[node].key);
        }
        events.lack(node, false);
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
        let Some(mut events) = self.events.take() else {
            return;
        };
        let (size, mut above) = (self.config.block_size as usize, None);
        for block in blocks {
            let Some(node) = self.published(&self.leases[row.lease.at()], block) else {
                continue;
            };
            if !events.is_placed(node) {
                let above = above.unwrap_or_else(|| self.above(&events, node));
                events.place(node, above);
            }
            if !events.has_tokens(node)
                && let Some(spoken) = row.spoken.and_then(|all| all.of(block, size))
            {
                events.speak(node, spoken);
            }
            events.stored(node);
            above = Some(Above::Block(events.number_of(node, &self.trie[node].key)));
        }
        self.events = Some(events);
    }

    /// A block has got its key, and no copy yet. Its parent may be dropped before it has.
    #[inline]
    pub(super) fn tell_named(&mut self, node: NodeIx) {
        if self.events.is_some() {
            self.tell_place(node);
        }
    }

    /// A block that had lost its parent has one again.
    pub(super) fn tell_linked(&mut self, node: NodeIx) {
        if self.events.is_some() && self.is_told(node) {
            self.tell_place(node);
            if let Some(events) = &mut self.events {
                events.stored(node);
            }
        }
    }

    /// Notes what stands before a block.
    fn tell_place(&mut self, node: NodeIx) {
        if let Some(events) = &self.events
            && !events.is_placed(node)
        {
            let above = self.above(events, node);
            if let Some(events) = &mut self.events {
                events.place(node, above);
            }
        }
    }

    fn above(&self, events: &Events, node: NodeIx) -> Above {
        let Some(id) = self.trie[node].parent else {
            return Above::Root;
        };
        match self.trie.live(id) {
            Some(parent) if !self.trie[parent].is_anonymous() => {
                Above::Block(events.number_of(parent, &self.trie[parent].key))
            }
            _ => Above::Unknown,
        }
    }

    /// The epoch has ended.
    pub(super) fn tell_cleared(&mut self) {
        let Some(mut events) = self.events.take() else {
            return;
        };
        let mut order = Vec::new();
        if events.removes_each() {
            // Each behind the blocks above it.
            let mut seen = vec![false; self.trie.places()];
            for (node, _) in self.trie.iter() {
                let (start, mut next) = (order.len(), Some(node));
                while let Some(node) = next.filter(|node| !seen[node.at()]) {
                    seen[node.at()] = true;
                    order.push(node);
                    next = self.trie.parent(node);
                }
                order[start..].reverse();
            }
        }
        let key = |&node: &NodeIx| (node, &self.trie[node].key);
        events.clear(order.iter().rev().map(key));
        self.events = Some(events);
    }

    /// So much has changed that all is told again.
    pub(super) fn tell_all(&mut self) {
        if let Some(events) = &mut self.events {
            events.start_over();
        }
    }

    // -- what is handed over ----------------------------------------------------------------

    /// Takes tokens of some blocks that came, or may come, without them.
    pub(crate) fn describe(&mut self, late: &Late, blocks: Range<usize>) {
        let Some(events) = &mut self.events else {
            return;
        };
        let size = self.config.block_size as usize;
        for at in blocks {
            let (key, own) = (&late.keys[at], late.number(at));
            let (above, spoken) = (late.above(at), late.spoken(at, size));
            let found = self.trie.find(key);
            if let Some(node) = found.filter(|&node| !events.has_tokens(node)) {
                events.describe(node, own, above, spoken);
                events.stored(node);
            }
            if late.early {
                events.foretell(number(key), own, above, spoken);
            }
        }
    }

    /// Hands over some of what has happened, for a slice that is empty. Returns whether there is more.
    pub(crate) fn hand_over(&mut self, out: &mut Slice) -> bool {
        let Some(mut events) = self.events.take() else {
            return false;
        };
        events.hand_removed(out);
        for _ in 0..events.steps() {
            if out.is_full() || !self.tell_next(&mut events, out) {
                break;
            }
        }
        let more = events.has_more();
        self.events = Some(events);
        more
    }

    /// Tells the next block, or looks at the one above it first. `false`: there is none.
    fn tell_next(&self, events: &mut Events, out: &mut Slice) -> bool {
        let next = match events.walk.path.pop() {
            Some(id) => self.trie.live(id),
            None => match events.next(self.trie.places()) {
                Some(node) => Some(node).filter(|&node| self.trie.alive(node)),
                None => return false,
            },
        };
        let Some(node) = next.filter(|&node| self.is_told(node)) else {
            return true;
        };
        let tiers = self.ready_on(node) & !events.told(node);
        if tiers == 0 {
            return true;
        }
        let above = self.trie.parent(node);
        if let Some(above) = above.filter(|&above| self.goes_first(events, above)) {
            let ids = [node, above].map(|node| self.trie.id(node));
            events.walk.path.extend(ids);
            return true;
        }
        let key = &self.trie[node].key;
        if !events.is_tellable(node) {
            self.complete(events, node, key);
        }
        let untold = if !events.is_tellable(node) {
            tiers
        } else if let Some(above) = above.filter(|&above| tiers & !events.told(above) & 1 != 0) {
            // A router would drop it.
            events.wait_for(above);
            1
        } else {
            0
        };
        events.heard.untold += u64::from(untold.count_ones());
        events.lack(node, untold != 0);
        if tiers != untold {
            events.tell(node, tiers & !untold, key, out);
        }
        true
    }

    /// Whether a block must be told before those below it, and can be.
    fn goes_first(&self, events: &Events, node: NodeIx) -> bool {
        events.is_due(node)
            && !events.lacks(node)
            && events.is_tellable(node)
            && self.is_told(node)
            && self.ready_on(node) & !events.told(node) != 0
    }

    /// Looks for what is not known yet of a block.
    #[cold]
    fn complete(&self, events: &mut Events, node: NodeIx, key: &Key) {
        if !events.has_tokens(node) {
            events.recall(node, number(key));
        }
        if !events.is_placed(node) {
            events.place(node, self.above(events, node));
        }
    }

    /// Copies some of what was told and is true still, for whoever comes late. `seen`: the tiers of each
    /// place that were copied before. Returns whether there is more; at the end it hands over what has gone.
    pub(crate) fn tell_late(
        &mut self,
        walk: &mut Walk,
        seen: &mut Vec<u8>,
        out: &mut Slice,
    ) -> bool {
        let Some(events) = &mut self.events else {
            return false;
        };
        let places = self.trie.places();
        seen.resize(places.max(seen.len()), 0);
        for _ in 0..PLACES {
            if out.is_full() {
                break;
            }
            let next = if let Some(id) = walk.path.pop() {
                self.trie.live(id)
            } else if let Some(node) = walk.next(places) {
                Some(node)
            } else {
                events.hand_gone(out);
                return false;
            };
            let wanted = |node: &NodeIx| events.is_heard(*node) && seen[node.at()] == 0;
            let Some(node) = next.filter(wanted) else {
                continue;
            };
            if let Some(above) = self.trie.parent(node).filter(wanted) {
                let ids = [node, above].map(|node| self.trie.id(node));
                walk.path.extend(ids);
                continue;
            }
            seen[node.at()] = events.told(node);
            events.copy(node, events.told(node), &self.trie[node].key, out);
        }
        true
    }

    /// One more snapshot is made. Returns how many blocks it may have.
    pub(crate) fn count_snapshot(&mut self) -> usize {
        if let Some(events) = &mut self.events {
            events.heard.snapshots += 1;
        }
        self.trie.len()
    }

    // -- for tests ----------------------------------------------------------------------------

    /// What a listener must know: each block that has a key, is of this epoch and may be read, by its
    /// number, and where. It takes time in proportion to the trie, and is for tests.
    pub fn ready_blocks(&self) -> Vec<(u64, Tier)> {
        let told = self.trie.iter().filter(|&(node, _)| self.is_told(node));
        let on = told.flat_map(|(node, block)| {
            bits(self.ready_on(node)).map(|tier| (number(&block.key), Tier(tier.into())))
        });
        on.collect()
    }

    /// What a listener was told is there, and what is there was told, waits in its turn, or lacks its
    /// tokens.
    pub(super) fn heard_rightly(&self) -> std::result::Result<(), Violation> {
        let Some(events) = &self.events else {
            return Ok(());
        };
        let mut lacking = 0;
        for node in (0..self.trie.places() as u32).map(NodeIx::new) {
            let is_told = self.trie.alive(node) && self.is_told(node);
            let ready = if is_told { self.ready_on(node) } else { 0 };
            let told = events.told(node);
            lacking += u64::from(events.lacks(node));
            let waits = events.is_due(node)
                || events.lacks(node)
                || events.walk.path.iter().any(|id| id.index == node);
            let above = if is_told {
                self.trie.parent(node)
            } else {
                None
            };
            let is_orphan = told & 1 != 0 && above.is_some_and(|above| events.told(above) & 1 == 0);
            if told & !ready != 0 || (told != ready && !waits) || is_orphan {
                let place = node.get();
                let detail = format!(
                    "a listener knows place {place} on tiers {told:#b}, and it is on {ready:#b}"
                );
                return Err(unheard(detail));
            }
        }
        if lacking == events.heard.lacking {
            return Ok(());
        }
        let counted = events.heard.lacking;
        Err(unheard(format!(
            "{lacking} blocks lack, and {counted} are counted"
        )))
    }
}

fn unheard(detail: String) -> Violation {
    Violation {
        law: "O1",
        detail,
        slot: None,
        block: None,
    }
}
