//! Seal: publishes full, computed blocks, one by one (table 2.1).

use super::State;
use super::record::Running;
use crate::base::{Error, Key, LeaseId, LeaseIx, Link, NodeIx, Result, SlotIx, Tier};
use crate::collections::Gap;
use crate::events::Spoken;
use crate::tiers::Uses;

/// One row of a seal.
#[derive(Clone, Copy, Debug)]
pub struct Sealing<'a> {
    /// The lease that has the blocks.
    pub lease: LeaseId,
    /// Tokens whose KV the engine has acknowledged as computed.
    pub computed: u64,
    /// The first of `keys` is the key of this block.
    pub first: u32,
    /// Keys up to the last full computed block.
    pub keys: &'a [Key],
    /// What the blocks of `keys` stand for, where somebody listens.
    pub spoken: Option<Spoken<'a>>,
}

impl State {
    /// Publishes what is full and computed of each row; returns the blocks newly sealed.
    pub fn seal(&mut self, rows: &[Sealing<'_>]) -> Result<u64> {
        self.check_seal(rows)?;
        Ok(self.seal_rows(rows))
    }

    pub(crate) fn check_seal(&self, rows: &[Sealing<'_>]) -> Result<()> {
        rows.iter().try_for_each(|row| self.check_sealing(row))
    }

    /// Publishes the next blocks of a row that was checked before. `None`: it has ended or was trimmed
    /// since, so that its blocks may not be computed any more.
    pub(crate) fn seal_part(&mut self, row: &Sealing<'_>, trims: u32) -> Option<u64> {
        self.check_sealing(row).ok()?;
        (self.trims(row.lease) == trims).then(|| self.seal_rows(std::slice::from_ref(row)))
    }

    /// How often a lease was trimmed.
    pub(crate) fn trims(&self, id: LeaseId) -> u32 {
        self.leases[id.at()].trims
    }

    /// The same for rows that are checked.
    pub(super) fn seal_rows(&mut self, rows: &[Sealing<'_>]) -> u64 {
        // In a step of decodes each row has a block or none: their cache misses overlap only here.
        let firsts = rows.iter().filter_map(|row| row.keys.first());
        self.trie.warm(firsts, &mut self.scratch.tags);
        let mut sealed = 0;
        for row in rows {
            sealed += u64::from(self.seal_one(row));
        }
        self.counters.sealed += sealed;
        sealed
    }

    /// Leading blocks that are sealed.
    pub(crate) fn sealed(&self, id: LeaseId) -> u32 {
        self.leases[id.at()].sealed
    }

    pub(super) fn check_sealing(&self, row: &Sealing<'_>) -> Result<()> {
        self.check_rows(&[row.lease])?;
        self.check_computed(row)
    }

    /// The same for a row that is a live lease.
    pub(super) fn check_computed(&self, row: &Sealing<'_>) -> Result<()> {
        let record = &self.leases[row.lease.at()];
        self.check_loaded(row.lease, "sealing")?;
        let room = u64::from(record.blocks()) * u64::from(self.config.block_size);
        if row.computed > record.tokens.min(room) {
            let help = "no more can be computed than the lease has slots for: grow it first";
            return Err(Error::argument("computed", row.computed, help));
        }
        if self.config.keyed.contains(&true)
            && let Some(key) = row.keys.iter().find(|key| key.is_reserved())
        {
            let help = "where a tier is keyed, a key does not begin with 24 zero bytes, and has not \
                        all bits set: give 32 bytes of a hash";
            return Err(Error::argument("key", key.hex(), help));
        }
        Ok(())
    }

    pub(super) fn seal_one(&mut self, row: &Sealing<'_>) -> u32 {
        let lease = row.lease.at();
        self.accept_incomplete(lease);
        if self.detached(lease) {
            return 0;
        }
        let record = &self.leases[lease];
        let before = record.sealed;
        let Some(keys) = before
            .checked_sub(row.first)
            .and_then(|known| row.keys.get(known as usize..))
        else {
            return 0;
        };
        let above = before.checked_sub(1);
        let mut parent = above.and_then(|above| self.published(record, above));
        let mut tags = std::mem::take(&mut self.scratch.tags);
        self.trie.warm(keys.iter(), &mut tags);
        // No block changes the table.
        let table = std::mem::take(&mut self.leases[lease].table);
        let notes =
            self.ghosts.is_some() || self.usages.asked() || self.is_written_through(Tier::DEVICE);
        let mut sealed = before;
        for ((key, &tag), &slot) in keys.iter().zip(&tags).zip(&table[before as usize..]) {
            let node = match (self.node_of(slot), self.trie.seek(key, tag)) {
                (None, Err(gap)) => Some(self.publish_new(slot, parent, (key, gap), notes)),
                (Some(own), Err(gap)) => self.publish_own(own, (key, gap)),
                (own, Ok(node)) => self.publish_known(node, slot, parent, own),
            };
            if node.is_none() {
                // It must wait for the next step.
                break;
            }
            parent = node;
            sealed += 1;
        }
        self.scratch.tags = tags;
        self.leases[lease].table = table;
        self.leases[lease].sealed = sealed;
        if before == 0 && sealed > 0 {
            self.note_root(lease);
        }
        self.emit_sealed(row, before..sealed);
        sealed - before
    }

    /// A lease has its first block, published by itself or before.
    fn note_root(&mut self, lease: LeaseIx) {
        if let Some(root) = self.root_of(self.lease_id(lease))
            && let Some(first) = self.published(&self.leases[lease], 0)
            && self.trie.root(first) != Some(root)
        {
            self.trie.set_root(first, root);
        }
    }

    /// The block whose copy a slot of a table is, or beside whose copy it stands.
    pub(super) fn node_of(&self, slot: SlotIx) -> Option<NodeIx> {
        self.tiers[Tier::DEVICE]
            .pool()
            .cell(slot)
            .node
            .map(Link::at)
    }

    /// The published block that a sealed block of the table is or stands beside.
    pub(super) fn published(&self, record: &Running, block: u32) -> Option<NodeIx> {
        self.node_of(*record.table.get(block as usize)?)
    }

    /// A private slot becomes the device copy of a new block. `notes`: its uses, or its coming, are noted.
    #[inline]
    fn publish_new(
        &mut self,
        slot: SlotIx,
        parent: Option<NodeIx>,
        (key, gap): (&Key, Gap),
        notes: bool,
    ) -> NodeIx {
        let node = self.trie.add_on_device(parent, slot, (key, gap));
        let is_read = self.tiers[Tier::DEVICE].adopt(slot, Link::to(node));
        debug_assert!(is_read.is_some(), "slot {slot} is not private");
        if is_read == Some(true) {
            self.block_ancestors(node, Tier::DEVICE);
        }
        if notes {
            self.note_new(node, key);
        }
        node
    }

    /// A fork that was parked has given the block a node already, which gets its key now. One that was
    /// published may have given it another key, which stays; so does the one under which a keyed tier has
    /// it, until the fork is parked no more.
    #[inline(never)]
    fn publish_own(&mut self, own: NodeIx, (key, gap): (&Key, Gap)) -> Option<NodeIx> {
        if !self.trie[own].is_anonymous() || self.is_stored(own) {
            return None;
        }
        self.trie.name(own, key, gap);
        self.note_new(own, key);
        Some(own)
    }

    /// The key of the block is known: the slot is its device copy, becomes it, or stands beside it.
    #[inline(never)]
    fn publish_known(
        &mut self,
        node: NodeIx,
        slot: SlotIx,
        parent: Option<NodeIx>,
        own: Option<NodeIx>,
    ) -> Option<NodeIx> {
        if own == Some(node) {
            return Some(node);
        }
        let orphan = parent.is_some() && self.trie.parent(node).is_none();
        if own.is_some() || (orphan && self.is_read(node)) || !self.link(node, parent) {
            return None;
        }
        let Some(published) = self.trie.slot(node, Tier::DEVICE) else {
            // Only below the device so far: the lease's slot becomes its device copy.
            self.move_in(node, slot);
            self.note_use(node);
            self.usages.find(node);
            self.reclass_below(node);
            return Some(node);
        };
        if !self.hold(Tier::DEVICE, published).is_ready() {
            return None;
        }
        // A duplicate: the slot stays private, and the published block is pinned beside it.
        if self.takeable(Tier::DEVICE, published)
            && self.tiers[Tier::DEVICE].ledger().available() < 1
        {
            return None;
        }
        self.pin(Tier::DEVICE, published);
        self.note_use(node);
        self.usages.find(node);
        self.tiers[Tier::DEVICE].stand_beside(slot, Link::to(node));
        self.counters.duplicates += 1;
        Some(node)
    }

    /// A block of the device has its key now.
    fn note_new(&mut self, node: NodeIx, key: &Key) {
        self.recall_uses(node, key);
        self.note_fresh(Tier::DEVICE, node);
    }

    /// A block is published now: it may have been dropped before, and was used then.
    #[inline]
    pub(super) fn recall_uses(&mut self, node: NodeIx, key: &Key) {
        let before = match self.ghosts {
            None => 0,
            Some(_) => self.take_ghost(node, key),
        };
        self.usages.born(node, before);
    }

    fn take_ghost(&mut self, node: NodeIx, key: &Key) -> u8 {
        let ghost = self.ghosts.as_mut().and_then(|ghosts| ghosts.take(key));
        if ghost.is_some() {
            self.trie[node].uses = Uses::Repeated;
        }
        ghost.unwrap_or(0)
    }

    /// Whether a keyed tier has the block, or will have it: under the key that it had then.
    fn is_stored(&self, node: NodeIx) -> bool {
        self.tiers
            .below(Tier::DEVICE)
            .any(|tier| self.config.keyed[tier.at()] && self.trie.slot(node, tier).is_some())
    }

    /// A private slot becomes the device copy of a block, which has nothing below it there yet.
    #[inline]
    pub(super) fn move_in(&mut self, node: NodeIx, slot: SlotIx) {
        let Some(is_read) = self.tiers[Tier::DEVICE].adopt(slot, Link::to(node)) else {
            return;
        };
        self.trie.residency_mut(node, Tier::DEVICE).slot = Some(Link::to(slot));
        self.count_child(node, Tier::DEVICE, is_read);
    }
}
