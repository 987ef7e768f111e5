//! Which block is evicted next. A policy sees slot numbers of one tier, and what is known of their
//! blocks' uses. `queues.rs` has the lists of an [`order::Order`], which is one file; `policy.rs` registers it.

mod bonus;
mod ghost;
mod heap;
mod hint;
mod learned;
mod newest;
mod order;
mod policy;
mod queues;
mod recency;
mod seen;
mod usage;

pub use hint::{Hints, NextUse, Priority, Retention};
pub use policy::EvictionPolicy;

pub(crate) use ghost::Ghosts;
pub(crate) use policy::Policy;
#[cfg(test)]
pub(crate) use usage::Hint;
pub(crate) use usage::{Ending, Usage, UsageTable, UsageView};

use crate::base::{Class, Result, SlotIx};

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
pub(crate) enum InsertAt {
    /// As the last to go.
    Back,
    /// Just before its parent.
    Before(SlotIx),
}

/// What is known of the uses of the block in a slot.
pub(crate) type Views<'a> = &'a dyn Fn(SlotIx) -> UsageView<'a>;

/// The slot that becomes a leaf when this one leaves.
pub(crate) type Opens<'a> = &'a mut dyn FnMut(SlotIx) -> Option<SlotIx>;

/// The tick at which a request has used the block in a slot last.
pub(crate) type Stamps<'a> = &'a dyn Fn(SlotIx) -> u32;

/// Whether a slot stands before the one that is asked about.
pub(crate) type Passed<'a> = &'a dyn Fn(SlotIx) -> bool;

/// How a child of an idle block is kept in front of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Children {
    /// The caller inserts it there: an idle block stands behind its children.
    InOrder,
    /// It may stand anywhere: the policy tracks which blocks have children.
    Tracked,
}

/// A policy. The caller guarantees that a slot is inserted once until it is removed, and that a
/// child is inserted before its parent; the policy guarantees that a victim is a leaf.
pub(crate) trait Evict: CopyAhead + EvictAudit {
    /// A slot has become idle.
    fn insert(
        &mut self,
        slot: SlotIx,
        class: Class,
        view: UsageView<'_>,
        place: InsertAt,
        evictability: Evictability,
    );
    /// Slots of a path have become idle, the last first, and may be taken alike.
    fn insert_path(
        &mut self,
        path: &[SlotIx],
        class: Class,
        views: Views<'_>,
        evictability: Evictability,
    ) {
        for &slot in path.iter().rev() {
            self.insert(slot, class, views(slot), InsertAt::Back, evictability);
        }
    }
    /// A slot is idle no more.
    fn remove(&mut self, slot: SlotIx);
    /// Slots of a path are idle no more: each before its parent, which is named first.
    fn remove_path(&mut self, path: &[SlotIx]) {
        for &slot in path {
            self.remove(slot);
        }
    }
    /// A victim leaves.
    fn evict(&mut self, slot: SlotIx) {
        self.remove(slot);
    }
    /// An idle slot may be taken, or may not be, from now on; it keeps its place.
    fn refresh(&mut self, slot: SlotIx, evictability: Evictability);
    /// A request that ends has used the blocks of a path, of which it gets the keys and what is known of
    /// each: the deepest first, and before they become idle. `now` counts such uses, with these.
    fn used(&mut self, path: &[(u64, Usage)], now: u64);
    /// The next to go; it stays until it is removed.
    fn victim(&mut self, stamps: Stamps<'_>) -> Option<SlotIx>;
    /// Removes as many victims, one after the other, and adds them to `out`, or fewer: the caller asks
    /// for each of the others then. `opens` is told each in turn, by a policy that must know.
    fn take(&mut self, _: usize, _: Stamps<'_>, _: Opens<'_>, _out: &mut Vec<SlotIx>) {}
    /// Adds the next `limit` victims to `out`, in the order in which they would go. `opens` is
    /// told each in turn, by a policy that must know, and says which slot is a leaf without it.
    fn ahead(&self, limit: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>);
    /// Whether `ahead` gives the next victims at little cost and without `opens`, so that it pays to read
    /// ahead what evicting them will read.
    fn warms(&self) -> bool;
    /// How a child is kept in front of its parent.
    fn children(&self) -> Children;
    /// All that is idle now goes before all that will be, in the order it has.
    fn clear(&mut self);
    /// The tier holds so many blocks from now on, together with those above it.
    fn resize(&mut self, _room: usize) {}
    /// Makes room to grow to that many slots.
    fn reserve(&mut self, slots: usize) -> Result<()>;
    /// The tier has this many slots now, for which there is room.
    fn grow(&mut self, slots: usize);
}

/// What copies ahead of need have looked at of the next victims, so that the next look passes over it.
pub(crate) trait CopyAhead {
    /// Adds those of the next `limit` victims to `out`, in that order, that were not seen.
    fn unseen(&self, limit: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>);
    /// A slot of this class that `unseen` gave is seen: until it leaves or `unsee`, it is passed over.
    /// `false`: one before it must be looked at again first.
    fn see(&mut self, slot: SlotIx, class: Class) -> bool;
    /// All that `unseen` gives for this limit is as good as seen, for a policy that walks it whole.
    fn settle(&mut self, limit: usize);
    /// A slot must be looked at again, and may be what is behind it.
    fn unsee(&mut self, slot: SlotIx);
    /// All must be looked at again.
    fn unsee_all(&mut self);
    /// Whether a slot goes before another, the first that was not seen, with the classes in which they
    /// were inserted; `passed` says whether `unseen` gave a slot before that one.
    fn precedes(&self, slot: (SlotIx, Class), other: (SlotIx, Class), passed: Passed<'_>) -> bool;
    /// How many of those that it holds were seen; `None`: it does not know.
    fn looked(&self) -> Option<usize> {
        None
    }
}

/// What the audit compares with the blocks themselves.
pub(crate) trait EvictAudit {
    /// Whether an idle slot is in the policy's order.
    fn holds(&self, slot: SlotIx) -> bool;
    /// Whether the policy knows this of an idle slot, as far as it depends on it.
    fn agrees(&self, slot: SlotIx, evictability: Evictability) -> bool;
    /// Whether a copy ahead has seen a slot.
    fn seen(&self, _slot: SlotIx) -> bool {
        false
    }
}

/// Enters a slot whose block was never used.
#[cfg(test)]
fn put(policy: &mut dyn Evict, slot: u32, class: Class, evictability: Evictability) {
    let (slot, view) = (<SlotIx as crate::base::Ix>::new(slot), UsageView::none());
    policy.insert(slot, class, view, InsertAt::Back, evictability);
}
