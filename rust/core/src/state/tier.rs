//! One tier: its slots, which goes next, and the accounts of both, moved together. What a slot holds
//! is known here by number; blocks and their parents are the trie's.

use crate::base::{Class, FlightIx, Id, Link, NodeIx, Set, SlotIx, Tier};
use crate::evict::{Children, Evictability, Lives, Opens, Past, Place, Policy};
use crate::tiers::{Cell, Hold, Ledger, Pool, Residency, Trie};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};

#[derive(Hash, Debug)]
pub(crate) struct TierState {
    pub(crate) pool: Pool,
    pub(crate) order: Policy,
    /// What the order says of that.
    pub(crate) children: Children,
    pub(crate) ledger: Ledger,
    /// What its blocks need to go down.
    pub(crate) descent: Box<Descent>,
}

/// What is remembered of the blocks of one tier that are to be copied down.
#[derive(Hash, Debug, Default)]
pub(crate) struct Descent {
    /// Blocks that came and were not copied down yet, under [`super::WritePolicy::Through`].
    pub(crate) fresh: VecDeque<Id<NodeIx>>,
    /// How often the copy down of a block has failed since one was good.
    pub(crate) failures: BTreeMap<Id<NodeIx>, u32>,
    /// Whether the end of a path was passed over because what is before it could not be copied.
    pub(crate) cut: bool,
    pub(crate) speed: Speed,
}

/// How fast blocks go down, in looks ahead.
#[derive(Hash, Debug, Default)]
pub(crate) struct Speed {
    /// Blocks that land from one look to the next.
    pub(crate) blocks: u32,
    /// How many were on their way after the last look, and looks since some have landed.
    pub(crate) flying: u32,
    looks: u32,
    /// Whether none were at the last look, before it.
    idle: bool,
}

impl Speed {
    /// So many are on their way now. Whether none are, and none were at the last look.
    pub(crate) fn look(&mut self, flying: u32) -> bool {
        let rested = std::mem::replace(&mut self.idle, flying == 0) && flying == 0;
        self.looks += u32::from(self.flying > 0);
        let landed = self.flying.saturating_sub(flying);
        if landed > 0 {
            let seen = landed.div_ceil(self.looks);
            // Few that land at once do not say that more would not.
            let more = self.looks == 1 && flying == 0;
            self.blocks = if more { self.blocks.max(seen) } else { seen };
            self.looks = 0;
        }
        rested
    }
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

    pub(crate) fn get(&self, tier: Tier) -> Option<&TierState> {
        self.0.get(tier.at())
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

    /// The lowest.
    #[inline]
    pub(crate) fn last(&self) -> Tier {
        Tier(self.0.len() - 1)
    }

    /// The nearest one below this one that has slots: where its blocks go down to.
    #[inline]
    pub(crate) fn next_below(&self, tier: Tier) -> Option<Tier> {
        self.below(tier).find(|&below| self[below].pool.room() > 0)
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
fn last_use(pool: &Pool, lives: &Lives, slot: SlotIx) -> u32 {
    let node = pool.cell(slot).node;
    node.map_or(0, |node| lives.last_use(node.at()))
}

/// The idle parent on the tier that is a leaf once this slot, and those before it, are gone.
pub(super) fn opened_by(
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
    /// Sets what holds a slot; not for free or idle ones, which stand in lists too.
    #[inline]
    pub(super) fn put(&mut self, slot: SlotIx, hold: Hold) {
        let cell = self.pool.cell_mut(slot);
        self.ledger.shift(cell.hold.set(), hold.set());
        cell.hold = hold;
    }

    /// A private slot gets a block of the trie: the leases that had the slot pin the block. Returns
    /// whether it is read; `None`: it is not private.
    #[inline]
    pub(super) fn adopt(&mut self, slot: SlotIx, node: Link<NodeIx>) -> Option<bool> {
        let cell = self.pool.cell_mut(slot);
        let pins = match cell.hold {
            Hold::Claimed { leases } => {
                self.ledger.shift(Some(Set::Claimed), Some(Set::Pinned));
                leases
            }
            Hold::Owned { leases } => leases,
            _ => return None,
        };
        (cell.node, cell.hold) = (Some(node), Hold::Pinned { pins });
        Some(cell.readers > 0)
    }

    /// Adds a holder to a ready slot, whose block has this residency.
    #[inline]
    pub(super) fn pin(&mut self, slot: SlotIx, residency: Residency) {
        let stays = self.pool.stays(slot);
        let cell = self.pool.cell_mut(slot);
        match &mut cell.hold {
            Hold::Pinned { pins } => *pins += 1,
            Hold::Idle { .. } => {
                let backs = evictability(residency, cell) != Evictability::Blocked && stays;
                cell.hold = Hold::Pinned { pins: 1 };
                if backs {
                    self.ledger.lose_takeable();
                }
                self.ledger.shift(Some(Set::Idle), Some(Set::Pinned));
                self.order.remove(slot);
            }
            hold => debug_assert!(false, "pinning slot {slot}, which is {hold:?}"),
        }
    }

    /// Puts a ready slot without a holder into the order; its block has this residency.
    #[inline]
    pub(super) fn make_idle(
        &mut self,
        slot: SlotIx,
        class: Class,
        past: Past<'_>,
        place: Place,
        residency: Residency,
    ) {
        let stays = self.pool.stays(slot);
        let cell = self.pool.cell_mut(slot);
        self.ledger.shift(cell.hold.set(), Some(Set::Idle));
        cell.hold = Hold::Idle { class };
        let evictability = evictability(residency, cell);
        let backs = evictability != Evictability::Blocked && stays;
        if backs {
            self.ledger.gain_takeable();
        }
        self.order.insert(slot, class, past, place, evictability);
    }

    /// The block that goes next.
    #[inline]
    pub(super) fn victim(&mut self, lives: &Lives) -> Option<SlotIx> {
        let pool = &self.pool;
        self.order.victim(&|slot| last_use(pool, lives, slot))
    }

    /// Takes as many victims out of the order, or fewer.
    pub(super) fn take(
        &mut self,
        count: usize,
        trie: &Trie,
        lives: &Lives,
        tier: Tier,
        out: &mut Vec<SlotIx>,
    ) {
        let pool = &self.pool;
        let mut gone = BTreeMap::new();
        let mut opens = |slot| opened_by(pool, trie, tier, slot, &mut gone);
        let stamps = |slot| last_use(pool, lives, slot);
        self.order.take(count, &stamps, &mut opens, out);
    }

    /// The blocks that go next, in order.
    pub(super) fn ahead(
        &self,
        limit: usize,
        lives: &Lives,
        opens: Opens<'_>,
        out: &mut Vec<SlotIx>,
    ) {
        let stamps = |slot| last_use(&self.pool, lives, slot);
        self.order.ahead(limit, &stamps, opens, out);
    }

    /// Of those the ones that no copy ahead has looked at.
    pub(super) fn unseen(
        &self,
        limit: usize,
        lives: &Lives,
        opens: Opens<'_>,
        out: &mut Vec<SlotIx>,
    ) {
        let stamps = |slot| last_use(&self.pool, lives, slot);
        self.order.unseen(limit, &stamps, opens, out);
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
    pub(super) fn block(&mut self, tier: Tier, slot: SlotIx) -> bool {
        let cell = self.pool.cell(slot);
        if is_busy(tier, cell) {
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

    /// Takes a free slot; the caller has made room, and says what holds it now.
    pub(super) fn take_free(&mut self, hold: Hold) -> Option<SlotIx> {
        let slot = self.pool.pop_free()?;
        self.ledger.shift(Some(Set::Free), hold.set());
        self.pool.cell_mut(slot).hold = hold;
        Some(slot)
    }

    /// Takes a free slot, likewise, that this flight will fill for a block.
    #[inline]
    pub(super) fn fill(&mut self, node: Link<NodeIx>, flight: FlightIx) -> Option<SlotIx> {
        let slot = self.pool.pop_free()?;
        self.ledger.shift(Some(Set::Free), Some(Set::Pinned));
        let cell = self.pool.cell_mut(slot);
        (cell.node, cell.hold) = (Some(node), Hold::Filling { flight });
        Some(slot)
    }

    /// Claims free slots until a table has `total`; the caller has made room.
    pub(super) fn claim(&mut self, total: u32, table: &mut Vec<SlotIx>) {
        let before = table.len();
        while (table.len() as u32) < total
            && let Some(slot) = self.pool.pop_free()
        {
            self.pool.cell_mut(slot).hold = Hold::Claimed { leases: 1 };
            table.push(slot);
        }
        let claimed = (table.len() - before) as u32;
        self.ledger.shift_all(Set::Free, Set::Claimed, claimed);
    }

    /// Gives a slot back that holds no block: to the free ones, to retirement, or, while a flight
    /// still reads it, to quarantine.
    pub(super) fn free(&mut self, slot: SlotIx) {
        let cell = self.pool.cell(slot);
        debug_assert!(cell.node.is_none(), "slot {slot} still holds a block");
        if cell.readers > 0 {
            self.put(slot, Hold::Quarantined);
        } else if !self.pool.stays(slot) {
            self.put(slot, Hold::Retired);
        } else {
            self.ledger.shift(cell.hold.set(), Some(Set::Free));
            self.pool.push_free(slot);
        }
    }
}
