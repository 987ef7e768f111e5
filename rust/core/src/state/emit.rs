//! Emit: what a listener hears of the yard (O1 to O3). Every door by which a copy becomes readable, or
//! is no more, leads through here; nothing is decided by it, and without a listener it is a branch.
//!
//! Blocks without a key, and those of an ended epoch, are not emitted. On the device a parent is emitted
//! before its child.

use super::audit::Violation;
use super::{Sealing, State};
use crate::base::{Error, Ix, Key, MAX_TIERS, NodeIx, Result, Tier};
use crate::copies::Move;
use crate::events::{
    Above, Clears, EventStats, Events, Late, Marks, PLACES, Salts, Slice, Walk, bits, number,
};
use std::ops::Range;

impl State {
    /// Somebody listens from here on: what is there already is emitted first. `most`: events that wait
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

    /// What was emitted so far, and what not.
    pub(crate) fn event_stats(&self) -> EventStats {
        self.events
            .as_ref()
            .map(|own| own.stats)
            .unwrap_or_default()
    }

    // -- what happens -----------------------------------------------------------------------

    /// Whether what happens to a block is emitted.
    #[inline]
    fn is_findable(&self, node: NodeIx) -> bool {
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

    /// Copies have landed, the root first: those that can be read now are emitted in that order.
    pub(super) fn emit_landed(&mut self, tier: Tier, moves: &[Move]) {
        if self.events.is_none() {
            return;
        }
        for step in moves {
            if let Some(node) = self.arrival(tier, step)
                && self.ready(node, tier).is_some()
                && self.is_findable(node)
                && let Some(events) = &mut self.events
            {
                events.stored(node);
            }
        }
    }

    /// Blocks that are new were adopted, the root first.
    pub(super) fn emit_adopted(&mut self, leading: &[(NodeIx, bool)]) {
        if let Some(events) = &mut self.events {
            for &(node, _) in leading.iter().filter(|&&(_, is_new)| is_new) {
                events.stored(node);
            }
        }
    }

    /// A copy that could be read leaves a tier.
    #[inline]
    pub(super) fn emit_gone(&mut self, node: NodeIx, tier: Tier) {
        if self.events.is_some() {
            self.emit_gone_to_listener(node, tier);
        }
    }

    /// The same of several, with one branch where nobody listens.
    #[inline]
    pub(super) fn emit_all_gone(&mut self, nodes: &[NodeIx], tier: Tier) {
        if self.events.is_some() {
            for &node in nodes {
                self.emit_gone_to_listener(node, tier);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn emit_gone_to_listener(&mut self, node: NodeIx, tier: Tier) {
        let Some(events) = &mut self.events else {
            return;
        };
        if !events.removed_plain(node, tier, &self.trie[node].key) {
            self.emit_gone_in_full(node, tier);
        }
    }

    #[inline(never)]
    fn emit_gone_in_full(&mut self, node: NodeIx, tier: Tier) {
        let Some(events) = &mut self.events else {
            return;
        };
        events.removed(node, tier, &self.trie[node].key);
        if events.marks(node).lacks()
            && self.ready_on(node) & !(1 << tier.at()) == 0
            && let Some(events) = &mut self.events
        {
            events.lack(node, false);
        }
    }

    /// A block has left the trie.
    #[inline]
    pub(super) fn emit_dropped(&mut self, node: NodeIx) {
        if self.events.is_some()
            && let Some(events) = &mut self.events
        {
            events.dropped(node);
        }
    }

    /// A block is found no more on any tier.
    pub(super) fn emit_forgotten(&mut self, node: NodeIx) {
        let Some(events) = &mut self.events else {
            return;
        };
        for tier in bits(events.marks(node).emitted()) {
            events.removed(node, Tier(tier.into()), &self.trie[node].key);
        }
        events.lack(node, false);
    }

    /// These blocks of a row are published. One branch for all of them, as a seal is nothing but its
    /// blocks.
    #[inline]
    pub(super) fn emit_sealed(&mut self, row: &Sealing<'_>, blocks: Range<u32>) {
        if self.events.is_some() {
            self.emit_sealed_to_listener(row, blocks);
        }
    }

    #[cold]
    #[inline(never)]
    fn emit_sealed_to_listener(&mut self, row: &Sealing<'_>, blocks: Range<u32>) {
        let Some(mut events) = self.events.take() else {
            return;
        };
        let slots = &self.leases[row.lease.at()].table[blocks.start as usize..blocks.end as usize];
        let mut nodes = std::mem::take(&mut self.scratch.nodes);
        nodes.clear();
        nodes.extend(
            slots
                .iter()
                .map(|&slot| self.node_of(slot).unwrap_or_default()),
        );
        if let Some(&first) = nodes.first() {
            let keys = &row.keys[(blocks.start - row.first) as usize..];
            let above = self.above(&events, first);
            events.sealed((&nodes, keys), blocks.start, above, row.spoken);
        }
        self.scratch.nodes = nodes;
        self.events = Some(events);
    }

    /// A block has got its key, and no copy yet. Its parent may be dropped before it has.
    #[inline]
    pub(super) fn emit_named(&mut self, node: NodeIx) {
        if self.events.is_some() {
            self.note_parent(node);
        }
    }

    /// A block that had lost its parent has one again.
    pub(super) fn emit_linked(&mut self, node: NodeIx) {
        if self.events.is_some() && self.is_findable(node) {
            self.note_parent(node);
            if let Some(events) = &mut self.events {
                events.stored(node);
            }
        }
    }

    /// Notes what stands before a block.
    fn note_parent(&mut self, node: NodeIx) {
        if let Some(events) = &self.events
            && !events.marks(node).is_placed()
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
    pub(super) fn emit_cleared(&mut self) {
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

    /// So much has changed that all is emitted again.
    pub(super) fn resync(&mut self) {
        if let Some(events) = &mut self.events {
            events.resync();
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
            if let Some(node) = found.filter(|&node| !events.marks(node).has_tokens()) {
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
            if out.is_full() || !self.emit_next(&mut events, out) {
                break;
            }
        }
        let more = events.has_more();
        self.events = Some(events);
        more
    }

    /// Tells the next block, or looks at the one above it first. `false`: there is none.
    fn emit_next(&self, events: &mut Events, out: &mut Slice) -> bool {
        let next = match events.walk.path.pop() {
            Some(id) => self.trie.live(id),
            None => match events.next(self.trie.places()) {
                Some(node) => Some(node).filter(|&node| self.trie.alive(node)),
                None => return false,
            },
        };
        let Some(node) = next.filter(|&node| self.is_findable(node)) else {
            return true;
        };
        let mut marks = events.marks(node);
        let tiers = self.ready_on(node) & !marks.emitted();
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
        if !marks.is_complete() {
            marks = self.complete(events, node, key);
        }
        let orphan = above.filter(|&above| tiers & !events.marks(above).emitted() & 1 != 0);
        let deferred = if !marks.is_complete() {
            tiers
        } else if let Some(above) = orphan {
            // A router would drop it.
            events.wait_for(above);
            1
        } else {
            0
        };
        if deferred != 0 {
            events.stats.deferred += u64::from(deferred.count_ones());
        }
        events.lack(node, deferred != 0);
        if tiers != deferred {
            events.emit(node, tiers & !deferred, key, out);
        }
        true
    }

    /// Whether a block must be emitted before those below it, and can be.
    #[inline]
    fn goes_first(&self, events: &Events, node: NodeIx) -> bool {
        events.is_due(node) && {
            let marks = events.marks(node);
            !marks.lacks()
                && marks.is_complete()
                && self.is_findable(node)
                && self.ready_on(node) & !marks.emitted() != 0
        }
    }

    /// Looks for what is not known yet of a block.
    #[cold]
    fn complete(&self, events: &mut Events, node: NodeIx, key: &Key) -> Marks {
        if !events.marks(node).has_tokens() {
            events.recall(node, number(key));
        }
        if !events.marks(node).is_placed() {
            events.place(node, self.above(events, node));
        }
        events.marks(node)
    }

    /// Copies some of what was emitted and is true still, for whoever comes late. `seen`: the tiers of each
    /// place that were copied before. Returns whether there is more; at the end it hands over what has gone.
    pub(crate) fn copy_snapshot(
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
            let wanted =
                |node: &NodeIx| events.marks(*node).is_in_snapshot() && seen[node.at()] == 0;
            let Some(node) = next.filter(wanted) else {
                continue;
            };
            if let Some(above) = self.trie.parent(node).filter(wanted) {
                let ids = [node, above].map(|node| self.trie.id(node));
                walk.path.extend(ids);
                continue;
            }
            let tiers = events.marks(node).emitted();
            seen[node.at()] = tiers;
            events.copy(node, tiers, &self.trie[node].key, out);
        }
        true
    }

    /// One more snapshot is made. Returns how many blocks it may have, and the places to walk.
    pub(crate) fn count_snapshot(&mut self) -> (usize, usize) {
        if let Some(events) = &mut self.events {
            events.stats.snapshots += 1;
        }
        (self.trie.len(), self.trie.places())
    }

    // -- for tests ----------------------------------------------------------------------------

    /// What a listener must know: each block that has a key, is of this epoch and may be read, by its
    /// number, and where. It takes time in proportion to the trie, and is for tests.
    pub fn ready_blocks(&self) -> Vec<(u64, Tier)> {
        let emitted = self.trie.iter().filter(|&(node, _)| self.is_findable(node));
        let on = emitted.flat_map(|(node, block)| {
            bits(self.ready_on(node)).map(|tier| (number(&block.key), Tier(tier.into())))
        });
        on.collect()
    }

    /// What was emitted to a listener is there, and what is there was emitted, waits in its turn, or lacks its
    /// tokens.
    pub(super) fn audit_events(&self) -> std::result::Result<(), Violation> {
        let Some(events) = &self.events else {
            return Ok(());
        };
        let mut lacking = 0;
        for node in (0..self.trie.places() as u32).map(NodeIx::new) {
            let is_emitted = self.trie.alive(node) && self.is_findable(node);
            let ready = if is_emitted { self.ready_on(node) } else { 0 };
            let emitted = events.marks(node).emitted();
            lacking += u64::from(events.marks(node).lacks());
            let waits = events.is_due(node)
                || events.marks(node).lacks()
                || events.walk.path.iter().any(|id| id.index == node);
            let above = if is_emitted {
                self.trie.parent(node)
            } else {
                None
            };
            let is_orphan = emitted & 1 != 0
                && above.is_some_and(|above| events.marks(above).emitted() & 1 == 0);
            if emitted & !ready != 0 || (emitted != ready && !waits) || is_orphan {
                let place = node.get();
                let detail = format!(
                    "a listener knows place {place} on tiers {emitted:#b}, and it is on {ready:#b}"
                );
                return Err(unheard(detail));
            }
        }
        if lacking == events.stats.unknown_tokens {
            return Ok(());
        }
        let counted = events.stats.unknown_tokens;
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
