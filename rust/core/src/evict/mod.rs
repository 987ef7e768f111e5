//! Which block is evicted next. A policy sees slot numbers of one tier, and what is known of their
//! blocks' uses. `queues.rs` has the structure that an order stands on; an order is one file.

mod bonus;
mod ghost;
mod heap;
mod hint;
mod learned;
mod life;
mod newest;
mod order;
mod queues;
mod recency;
mod seen;

pub use hint::{Hints, NextUse, Priority, Retention};

pub(crate) use ghost::Ghosts;
pub(crate) use life::{Hint, Life, Lives, Past};

use crate::base::{Class, Result, SlotIx};
use heap::Heap;
use learned::Learned;
use queues::Queues;
use recency::Recency;

/// Lists that any order has, with those of the classes: no more.
const HEADS: usize = 64;

/// Whether an idle slot may be taken now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Evictability {
    /// Yes.
    Leaf,
    /// Only after its children on this tier.
    Branch,
    /// No: it is read, or something below it is pinned or read.
    Blocked,
}

/// Where in its class a slot enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// As the last to go.
    Back,
    /// Just before its parent.
    Before(SlotIx),
}

/// The slot that becomes a leaf when this one leaves.
pub(crate) type Opens<'a> = &'a mut dyn FnMut(SlotIx) -> Option<SlotIx>;

/// The tick at which a request has used the block in a slot last.
pub(crate) type Stamps<'a> = &'a dyn Fn(SlotIx) -> u32;

/// Whether a slot stands before the one that is asked about.
pub(crate) type Passed<'a> = &'a dyn Fn(SlotIx) -> bool;

/// A policy. The caller guarantees that a slot is inserted once until it is removed, and that a
/// child is inserted before its parent; the policy guarantees that a victim is a leaf.
pub(crate) trait Evict {
    /// A slot has become idle.
    fn insert(
        &mut self,
        slot: SlotIx,
        class: Class,
        past: Past<'_>,
        place: Place,
        evictability: Evictability,
    );
    /// A slot is idle no more.
    fn remove(&mut self, slot: SlotIx);
    /// A victim leaves.
    fn evict(&mut self, slot: SlotIx) {
        self.remove(slot);
    }
    /// A request that ends has used the block of this key: the deepest of its path first, and before
    /// they become idle. `now` counts such uses.
    fn used(&mut self, key: u64, life: Life, now: u64);
    /// An idle slot may be taken, or may not be, from now on; it keeps its place.
    fn refresh(&mut self, slot: SlotIx, evictability: Evictability);
    /// The next to go; it stays until it is removed.
    fn victim(&mut self, stamps: Stamps<'_>) -> Option<SlotIx>;
    /// Removes as many victims, one after the other, and adds them to `out`, or fewer: the caller asks
    /// for each of the others then. `opens` is told each in turn, by a policy that must know.
    fn take(&mut self, count: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>);
    /// Adds the next `limit` victims to `out`, in the order in which they would go. `opens` is
    /// told each in turn, by a policy that must know, and says which slot is a leaf without it.
    fn ahead(&self, limit: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>);
    /// Adds those of the next `limit` victims to `out`, in that order, that were not seen.
    fn unseen(&self, limit: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>);
    /// A slot that `unseen` gave is seen: until it leaves or `unsee`, it is passed over. `false`:
    /// one before it must be looked at again first.
    fn see(&mut self, slot: SlotIx) -> bool;
    /// All that `unseen` gives for this limit is as good as seen, for a policy that walks it whole.
    fn settle(&mut self, limit: usize);
    /// A slot must be looked at again, and may be what is behind it.
    fn unsee(&mut self, slot: SlotIx);
    /// Whether a slot goes before another, the first that was not seen, with the classes in which they
    /// were inserted; `passed` says whether `unseen` gave a slot before that one.
    fn precedes(&self, slot: (SlotIx, Class), other: (SlotIx, Class), passed: Passed<'_>) -> bool;
    /// All must be looked at again.
    fn unsee_all(&mut self);
    /// How many of those that it holds were seen; `None`: it does not know.
    fn looked(&self) -> Option<usize> {
        None
    }
    /// Whether a slot was seen, for the audit.
    fn seen(&self, slot: SlotIx) -> bool;
    /// All that is idle now goes before all that will be, in the order it has.
    fn clear(&mut self);
    /// The tier holds so many blocks from now on, together with those above it.
    fn resize(&mut self, _room: usize) {}
    /// Makes room to grow to that many slots.
    fn reserve(&mut self, slots: usize) -> Result<()>;
    /// The tier has this many slots now, for which there is room.
    fn grow(&mut self, slots: usize);
    /// Whether an idle slot is in the policy's order, for the audit.
    fn holds(&self, slot: SlotIx) -> bool;
    /// Whether the policy knows this of an idle slot, as far as it depends on it; for the audit.
    fn agrees(&self, slot: SlotIx, evictability: Evictability) -> bool;
    /// Whether an idle block must stand behind its children by its place.
    fn sorted(&self) -> bool;
    /// A rank that rises along the order, for the audit; `None` if it does not say that a child goes
    /// before its parent.
    fn ranks(&self, slots: usize) -> Option<Vec<u32>>;
}

/// Which policy a yard uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EvictionPolicy {
    /// Lists by class in order of last use: O(1).
    #[default]
    Recency,
    /// Lists by what is known of a block's uses; which goes first is learned.
    Learned,
    /// An indexed heap of leaves by priority and last use: O(log n).
    Heap,
}

impl EvictionPolicy {
    /// Whether it asks how blocks were used.
    pub(crate) fn learns(self) -> bool {
        self == Self::Learned
    }

    /// Whether it asks what blocks are worth.
    pub(crate) fn weighs(self) -> bool {
        self == Self::Heap
    }
}

/// The policies by arm: a call is a jump, not an allocation.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each tier; what costs least is reached without a pointer"
)]
#[derive(Hash, Debug)]
pub(crate) enum Policy {
    Recency(Queues<Recency>),
    Learned(Box<Queues<Learned>>),
    Heap(Heap),
}

impl Policy {
    /// For a tier of so many slots, which holds `room` blocks together with those above it. `sorted`:
    /// its classes keep a child before its parent.
    pub(crate) fn new(
        kind: EvictionPolicy,
        slots: usize,
        room: usize,
        sorted: bool,
    ) -> Result<Self> {
        Ok(match kind {
            EvictionPolicy::Recency => Self::Recency(Queues::new(slots, room, sorted)?),
            EvictionPolicy::Learned => Self::Learned(Box::new(Queues::new(slots, room, sorted)?)),
            EvictionPolicy::Heap => Self::Heap(Heap::new(slots)?),
        })
    }

    /// Bytes that a policy has of a slot.
    pub(crate) fn bytes(kind: EvictionPolicy) -> usize {
        match kind {
            EvictionPolicy::Recency => Queues::<Recency>::BYTES,
            EvictionPolicy::Learned => Queues::<Learned>::BYTES,
            EvictionPolicy::Heap => Heap::BYTES,
        }
    }
}

macro_rules! each {
    ($self:ident, $policy:ident => $call:expr) => {
        match $self {
            Policy::Recency($policy) => $call,
            Policy::Learned($policy) => $call,
            Policy::Heap($policy) => $call,
        }
    };
}

/// What happens to each block, out of the way of the order that costs least.
impl Policy {
    #[inline(never)]
    fn insert_other(
        &mut self,
        slot: SlotIx,
        class: Class,
        past: Past<'_>,
        place: Place,
        evictability: Evictability,
    ) {
        each!(self, policy => policy.insert(slot, class, past, place, evictability));
    }

    #[inline(never)]
    fn remove_other(&mut self, slot: SlotIx) {
        each!(self, policy => policy.remove(slot));
    }

    #[inline(never)]
    fn evict_other(&mut self, slot: SlotIx) {
        each!(self, policy => policy.evict(slot));
    }

    #[inline(never)]
    fn refresh_other(&mut self, slot: SlotIx, evictability: Evictability) {
        each!(self, policy => policy.refresh(slot, evictability));
    }

    #[inline(never)]
    fn victim_other(&mut self, stamps: Stamps<'_>) -> Option<SlotIx> {
        each!(self, policy => policy.victim(stamps))
    }
}

impl Evict for Policy {
    #[inline]
    fn insert(
        &mut self,
        slot: SlotIx,
        class: Class,
        past: Past<'_>,
        place: Place,
        evictability: Evictability,
    ) {
        match self {
            Self::Recency(policy) => policy.insert(slot, class, past, place, evictability),
            _ => self.insert_other(slot, class, past, place, evictability),
        }
    }
    #[inline]
    fn remove(&mut self, slot: SlotIx) {
        match self {
            Self::Recency(policy) => policy.remove(slot),
            _ => self.remove_other(slot),
        }
    }
    #[inline]
    fn evict(&mut self, slot: SlotIx) {
        match self {
            Self::Recency(policy) => policy.evict(slot),
            _ => self.evict_other(slot),
        }
    }
    fn used(&mut self, key: u64, life: Life, now: u64) {
        each!(self, policy => policy.used(key, life, now));
    }
    #[inline]
    fn refresh(&mut self, slot: SlotIx, evictability: Evictability) {
        match self {
            Self::Recency(policy) => policy.refresh(slot, evictability),
            _ => self.refresh_other(slot, evictability),
        }
    }
    #[inline]
    fn victim(&mut self, stamps: Stamps<'_>) -> Option<SlotIx> {
        match self {
            Self::Recency(policy) => policy.victim(stamps),
            _ => self.victim_other(stamps),
        }
    }
    fn take(&mut self, count: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        each!(self, policy => policy.take(count, stamps, opens, out));
    }
    fn ahead(&self, limit: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        each!(self, policy => policy.ahead(limit, stamps, opens, out));
    }
    fn unseen(&self, limit: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        each!(self, policy => policy.unseen(limit, stamps, opens, out));
    }
    fn see(&mut self, slot: SlotIx) -> bool {
        each!(self, policy => policy.see(slot))
    }
    fn settle(&mut self, limit: usize) {
        each!(self, policy => policy.settle(limit));
    }
    fn unsee(&mut self, slot: SlotIx) {
        each!(self, policy => policy.unsee(slot));
    }
    fn precedes(&self, slot: (SlotIx, Class), other: (SlotIx, Class), passed: Passed<'_>) -> bool {
        each!(self, policy => policy.precedes(slot, other, passed))
    }
    fn unsee_all(&mut self) {
        each!(self, policy => policy.unsee_all());
    }
    fn looked(&self) -> Option<usize> {
        each!(self, policy => policy.looked())
    }
    fn seen(&self, slot: SlotIx) -> bool {
        each!(self, policy => policy.seen(slot))
    }
    fn clear(&mut self) {
        each!(self, policy => policy.clear());
    }
    fn resize(&mut self, room: usize) {
        each!(self, policy => policy.resize(room));
    }
    fn reserve(&mut self, slots: usize) -> Result<()> {
        each!(self, policy => policy.reserve(slots))
    }
    fn grow(&mut self, slots: usize) {
        each!(self, policy => policy.grow(slots));
    }
    fn holds(&self, slot: SlotIx) -> bool {
        each!(self, policy => policy.holds(slot))
    }
    fn agrees(&self, slot: SlotIx, evictability: Evictability) -> bool {
        each!(self, policy => policy.agrees(slot, evictability))
    }
    fn sorted(&self) -> bool {
        each!(self, policy => policy.sorted())
    }
    fn ranks(&self, slots: usize) -> Option<Vec<u32>> {
        each!(self, policy => policy.ranks(slots))
    }
}
