//! One tier: its slots, which goes next, and the accounts of both, moved together. What a slot holds
//! is known here by number; blocks and their parents are the trie's. Others read these parts, and change
//! them by the verbs below alone.

mod descent;
mod holds;
mod names;
mod size;

use super::Config;
use crate::base::{Class, Error, Id, Link, NodeIx, Result, Set, SlotIx, Tier};
use crate::evict::{
    Children, CopyAhead, Evictability, InsertAt, Policy, Usage, UsageTable, UsageView,
};
use crate::tiers::{Cell, Hold, Ledger, Pool, Residency, Trie};
use descent::Descent;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

#[derive(Hash, Debug)]
pub(crate) struct TierState {
    tier: Tier,
    pool: Pool,
    order: Policy,
    children: Children,
    ledger: Ledger,
    /// What its blocks need to go down.
    pub(super) descent: Box<Descent>,
    /// Slots whose blocks are there by hearsay: a bit for each, 64 a word. Of a slot without a block it says
    /// nothing. Empty where no name was taken.
    unproven: Vec<u64>,
}

/// The tiers of a yard, the device first.
#[derive(Hash, Debug)]
pub(crate) struct Tiers(Vec<TierState>);

impl Tiers {
    pub(crate) fn new(tiers: Vec<TierState>) -> Self {
        Self(tiers)
    }

    /// Whether the yard was made with this one.
    pub(crate) fn has(&self, tier: Tier) -> bool {
        tier.at() < self.0.len()
    }

    /// The tier that a caller has named.
    ///
    /// # Errors
    /// `Argument` for one that is not there.
    pub(crate) fn named(&self, tier: Tier) -> Result<&TierState> {
        let help = "this cache was made without that tier";
        let lacks = || Error::argument("tier", tier.name(), help);
        self.0.get(tier.at()).ok_or_else(lacks)
    }

    /// The same of one below the device.
    pub(crate) fn below_device(&self, tier: Tier) -> Result<&TierState> {
        let help = "name a tier below the device that this cache was made with";
        let below = self.0.get(tier.at()).filter(|_| tier > Tier::DEVICE);
        below.ok_or_else(|| Error::argument("tier", tier.name(), help))
    }

    /// Their names, from the device down.
    #[inline]
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = Tier> + use<> {
        (0..self.0.len()).map(Tier)
    }

    /// Those below this one.
    #[inline]
    pub(crate) fn below(&self, tier: Tier) -> impl DoubleEndedIterator<Item = Tier> + use<> {
        (tier.0 + 1..self.0.len()).map(Tier)
    }

    /// Those below the device that keep what they have.
    #[inline]
    pub(crate) fn lasting(&self) -> impl DoubleEndedIterator<Item = Tier> + use<> {
        (Tier::HOST.0..self.0.len().min(Tier::REMOTE.0)).map(Tier)
    }

    /// The lowest.
    #[inline]
    pub(crate) fn last(&self) -> Tier {
        Tier(self.0.len() - 1)
    }

    /// The nearest one below this one that has slots: where its blocks go down to.
    #[inline]
    pub(crate) fn next_below(&self, tier: Tier) -> Option<Tier> {
        let next = self.below(tier).find(|&below| self[below].pool.room() > 0);
        next.filter(|&next| next != Tier::REMOTE || self.writes(next))
    }

    /// Whether the yard was made with this one, and blocks are written to it.
    #[cold]
    pub(crate) fn writes(&self, tier: Tier) -> bool {
        self.0
            .get(tier.0)
            .is_some_and(|one| !one.descent.reads_alone)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &TierState> {
        self.0.iter()
    }
}

impl Index<Tier> for Tiers {
    type Output = TierState;
    #[inline]
    fn index(&self, tier: Tier) -> &TierState {
        &self.0[tier.at()]
    }
}

impl IndexMut<Tier> for Tiers {
    #[inline]
    fn index_mut(&mut self, tier: Tier) -> &mut TierState {
        &mut self.0[tier.at()]
    }
}

/// Whether an idle slot may be taken, by its block's residency on the tier and its cell.
#[inline]
pub(super) fn evictability(residency: Residency, cell: &Cell) -> Evictability {
    if residency.busy > 0 || cell.readers > 0 {
        Evictability::Blocked
    } else if residency.children > 0 {
        Evictability::Branch
    } else {
        Evictability::Leaf
    }
}

/// The tick at which a request has used the block in this slot last.
fn last_use(pool: &Pool, usages: &UsageTable, slot: SlotIx) -> u32 {
    let node = pool.cell(slot).node;
    node.map_or(0, |node| usages.last_use(node.at()))
}

/// The idle parent on the tier that is a leaf once this slot, and those before it, are gone.
fn opened_by(
    pool: &Pool,
    trie: &Trie,
    tier: Tier,
    slot: SlotIx,
    gone: &mut BTreeMap<NodeIx, u32>,
) -> Option<SlotIx> {
    let parent = trie.parent(pool.cell(slot).node?.at())?;
    let residency = trie.residency(parent, tier);
    let above = residency.slot?.at();
    if residency.children > 1 {
        let children = gone.entry(parent).or_default();
        *children += 1;
        if *children < residency.children {
            return None;
        }
    }
    let cell = pool.cell(above);
    let idle = matches!(cell.hold, Hold::Idle { .. });
    (idle && residency.busy == 0 && cell.readers == 0).then_some(above)
}

/// Whether a slot alone makes its block busy: it is read or, below the device, filling or pinned.
#[inline]
pub(super) fn is_busy(tier: Tier, cell: &Cell) -> bool {
    cell.readers > 0
        || (tier > Tier::DEVICE && matches!(cell.hold, Hold::Filling { .. } | Hold::Pinned { .. }))
}

impl TierState {
    pub(super) fn new(config: &Config, tier: Tier) -> Result<Self> {
        let (slots, null) = (config.slots[tier.at()], config.null_slots_of(tier));
        let room = Config::room_of(tier, &config.sizes());
        let children = config.children_on(tier);
        let order = Policy::new(config.policy, slots as usize, room, children)?;
        let mut ledger = Ledger::default();
        ledger.enter(slots - null);
        Ok(Self {
            tier,
            pool: Pool::new(slots, null)?,
            children: order.children(),
            order,
            ledger,
            descent: Box::new(Descent::new(config, tier)?),
            unproven: Vec::new(),
        })
    }

    #[inline]
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    #[inline]
    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    #[inline]
    pub(super) fn order(&self) -> &Policy {
        &self.order
    }

    /// Whether an idle block must stand behind its children.
    #[inline]
    pub(super) fn keeps_order(&self) -> bool {
        self.children == Children::InOrder
    }

    /// Keeps so many slots obtainable for later; the caller knows that they can be had, or that others will
    /// give theirs up.
    #[inline]
    pub(super) fn promise(&mut self, slots: u32) {
        self.ledger.promise(slots);
    }

    /// Promises as many of these slots as can be had. Returns how many those are.
    pub(super) fn promise_up_to(&mut self, slots: u64) -> u32 {
        let room = self.ledger.available().max(0).cast_unsigned();
        // No more than the room, which is a number of slots.
        let promised = slots.min(room) as u32;
        self.ledger.promise(promised);
        promised
    }

    /// So many slots are promised no more.
    #[inline]
    pub(super) fn release(&mut self, slots: u32) {
        self.ledger.release(slots);
    }

    /// Whether an idle slot that stands so backs promises: taking it gives a slot that may be given out
    /// again.
    #[inline]
    pub(super) fn backs(&self, slot: SlotIx, evictability: Evictability) -> bool {
        evictability != Evictability::Blocked && self.pool.stays(slot)
    }

    /// Moves an idle slot to the back of this class.
    #[inline]
    pub(super) fn reclass(
        &mut self,
        slot: SlotIx,
        class: Class,
        view: UsageView<'_>,
        evictability: Evictability,
    ) {
        self.order.remove(slot);
        self.pool.cell_mut(slot).hold = Hold::Idle { class };
        let place = InsertAt::Back;
        self.order.insert(slot, class, view, place, evictability);
    }

    /// Takes an idle slot out of the order; [`Self::make_idle`] puts it back.
    #[inline]
    pub(super) fn leave_order(&mut self, slot: SlotIx, evictability: Evictability) {
        if self.backs(slot, evictability) {
            self.ledger.lose_takeable();
        }
        self.order.remove(slot);
    }

    /// All that is idle goes before all that will be.
    pub(super) fn clear(&mut self) {
        self.order.clear();
        // The class is in the hold too; it is what the audit and `move_to_back` read.
        for slot in self.pool.slots() {
            if let Hold::Idle { class } = &mut self.pool.cell_mut(slot).hold {
                *class = Class::Cleared;
            }
        }
    }

    /// A request that ends has used the blocks of a path.
    pub(super) fn used(&mut self, path: &[(u64, Usage)], now: u64) {
        self.order.used(path, now);
    }

    /// What copies ahead have looked at of its next victims.
    #[inline]
    pub(super) fn copies_ahead(&mut self) -> &mut dyn CopyAhead {
        &mut *self.order
    }

    /// What was cut off, if anything was, may go down now.
    #[inline]
    pub(super) fn look_at_ends(&mut self) {
        if self.descent.take_cut() {
            self.order.unsee_all();
        }
    }

    /// A copy of a block down is good. After one that has failed all is looked at again.
    pub(super) fn note_copied(&mut self, id: Id<NodeIx>) {
        if self.descent.succeed(id) {
            self.order.unsee_all();
        }
    }

    /// A copy of a block down has failed.
    pub(super) fn note_failed(&mut self, id: Id<NodeIx>, trie: &Trie) {
        self.descent.fail(id, self.pool.len() as usize, trie);
    }

    /// A block came that is to go down.
    #[inline]
    pub(super) fn note_fresh(&mut self, id: Id<NodeIx>) {
        self.descent.note_fresh(id, self.pool.len() as usize);
    }

    /// Puts a ready slot without a holder into the order; its block has this residency.
    #[inline]
    pub(super) fn make_idle(
        &mut self,
        slot: SlotIx,
        class: Class,
        view: UsageView<'_>,
        place: InsertAt,
        residency: Residency,
    ) {
        let cell = self.pool.cell_mut(slot);
        self.ledger.shift(cell.hold.set(), Some(Set::Idle));
        cell.hold = Hold::Idle { class };
        let evictability = evictability(residency, cell);
        if self.backs(slot, evictability) {
            self.ledger.gain_takeable(1);
        }
        self.order.insert(slot, class, view, place, evictability);
    }

    /// The block that goes next.
    #[inline]
    pub(super) fn victim(&mut self, usages: &UsageTable) -> Option<SlotIx> {
        let pool = &self.pool;
        self.order.victim(&|slot| last_use(pool, usages, slot))
    }

    /// Takes as many victims out of the order, or fewer.
    pub(super) fn take(
        &mut self,
        count: usize,
        trie: &Trie,
        usages: &UsageTable,
        out: &mut Vec<SlotIx>,
    ) {
        let (pool, tier) = (&self.pool, self.tier);
        let mut gone = BTreeMap::new();
        let mut opens = |slot| opened_by(pool, trie, tier, slot, &mut gone);
        let stamps = |slot| last_use(pool, usages, slot);
        self.order.take(count, &stamps, &mut opens, out);
    }

    /// Adds the blocks that go next, in order, as far as none becomes a leaf on the way.
    pub(super) fn front(&self, limit: usize, usages: &UsageTable, out: &mut Vec<SlotIx>) {
        let stamps = |slot| last_use(&self.pool, usages, slot);
        self.order.ahead(limit, &stamps, &mut |_| None, out);
    }

    /// Adds all blocks in the order in which they go.
    pub(super) fn all(&self, trie: &Trie, usages: &UsageTable, out: &mut Vec<SlotIx>) {
        self.next(usize::MAX, trie, usages, out);
    }

    /// Adds the blocks that go next, in order.
    pub(super) fn next(
        &self,
        limit: usize,
        trie: &Trie,
        usages: &UsageTable,
        out: &mut Vec<SlotIx>,
    ) {
        let mut gone = BTreeMap::new();
        let mut opens = |slot| opened_by(&self.pool, trie, self.tier, slot, &mut gone);
        let stamps = |slot| last_use(&self.pool, usages, slot);
        self.order.ahead(limit, &stamps, &mut opens, out);
    }

    /// Adds those of the blocks that go next that no copy ahead has looked at.
    pub(super) fn unseen(
        &self,
        limit: usize,
        trie: &Trie,
        usages: &UsageTable,
        out: &mut Vec<SlotIx>,
    ) {
        let mut gone = BTreeMap::new();
        let mut opens = |slot| opened_by(&self.pool, trie, self.tier, slot, &mut gone);
        let stamps = |slot| last_use(&self.pool, usages, slot);
        self.order.unseen(limit, &stamps, &mut opens, out);
    }

    /// Evicts an idle leaf: its slot is free, or retires beyond the size. Returns its block.
    #[inline]
    pub(super) fn evict(&mut self, slot: SlotIx) -> Option<Link<NodeIx>> {
        let cell = self.pool.cell_mut(slot);
        debug_assert!(
            matches!(cell.hold, Hold::Idle { .. }) && cell.readers == 0,
            "evicting slot {slot}, which is {cell:?}"
        );
        let node = cell.node.take();
        self.order.evict(slot);
        self.leave_idle(slot);
        node
    }

    /// A slot that has left the order is free, or retires beyond the size.
    #[inline]
    fn leave_idle(&mut self, slot: SlotIx) {
        if self.pool.stays(slot) {
            self.ledger.lose_takeable();
            self.ledger.shift(Some(Set::Idle), Some(Set::Free));
            self.pool.push_free(slot);
        } else {
            self.put(slot, Hold::Retired);
        }
    }

    /// Drops an idle block that nothing reads, wherever it stands in the order; its slot is free, or retires
    /// beyond the size. `false`: it is held, or read, or something below it is.
    pub(super) fn drop_idle(&mut self, slot: SlotIx, residency: Residency) -> bool {
        let cell = self.pool.cell(slot);
        let idle = matches!(cell.hold, Hold::Idle { .. });
        if !idle || evictability(residency, cell) == Evictability::Blocked {
            return false;
        }
        self.order.remove(slot);
        self.pool.cell_mut(slot).node = None;
        self.leave_idle(slot);
        true
    }

    /// Frees idle slots that have left the order and lie below the limit.
    pub(super) fn evict_all(&mut self, slots: &[SlotIx]) {
        for &slot in slots {
            self.pool.cell_mut(slot).node = None;
            self.pool.push_free(slot);
        }
        let count = slots.len() as u32;
        self.ledger.shift_all(Set::Idle, Set::Free, count);
        self.ledger.take(count);
    }

    /// The first child of a block has become busy. Whether the block in this slot was busy before; if
    /// not, and it is idle, it may not be taken from now on.
    #[expect(
        clippy::inline_always,
        reason = "a call for each block above is 2 % of a begin from two tiers"
    )]
    #[inline(always)]
    pub(super) fn block(&mut self, slot: SlotIx) -> bool {
        let cell = self.pool.cell(slot);
        if is_busy(self.tier, cell) {
            return true;
        }
        if matches!(cell.hold, Hold::Idle { .. }) {
            if self.pool.stays(slot) {
                self.ledger.lose_takeable();
            }
            self.order.refresh(slot, Evictability::Blocked);
        }
        false
    }

    /// What has made a block of this residency busy is one less. Whether nothing does any more; then, if it
    /// is idle, it may be taken from now on.
    #[inline]
    pub(super) fn unblock(&mut self, residency: Residency) -> bool {
        let Some(slot) = residency.slot.filter(|_| residency.busy == 0).map(Link::at) else {
            return false;
        };
        let cell = self.pool.cell(slot);
        if is_busy(self.tier, cell) {
            return false;
        }
        if matches!(cell.hold, Hold::Idle { .. }) {
            let evictability = evictability(residency, cell);
            if self.pool.stays(slot) {
                self.ledger.gain_takeable(1);
            }
            self.order.refresh(slot, evictability);
        }
        true
    }

    /// Tells the order that the number of children of a block has changed: its slot may be a leaf now,
    /// or a branch. Whether it is takeable has not changed.
    #[inline]
    pub(super) fn refresh(&mut self, residency: Residency) {
        if let Some(slot) = residency.slot.map(Link::at) {
            let cell = self.pool.cell(slot);
            if matches!(cell.hold, Hold::Idle { .. }) {
                self.order.refresh(slot, evictability(residency, cell));
            }
        }
    }
}

#[cfg(test)]
impl TierState {
    /// What no verb changes alone.
    pub(super) fn parts(&mut self) -> (&mut Pool, &mut Policy, &mut Ledger) {
        (&mut self.pool, &mut self.order, &mut self.ledger)
    }
}
