//! Lists by class, holding all idle slots: links, marks and cursors, under any order that is a class
//! and a value. Everything is released deepest first, so that within a list a child stands before
//! its parent.
//!
//! The fixed classes go one after the other. Between them stand the lists of the order, of which that
//! goes first whose front has the smallest value. Where there is one list a child stands before its
//! parent in it. Where there are more, the front of one may have a child in another: it is
//! set aside, and stands in front again when its last child has left. Eviction is leaf first under
//! every order.
//!
//! Blocked slots keep their place. A cursor per list remembers that everything before it is blocked,
//! so that a long chain in flight is passed once and not at every call.

mod loose;
mod walk;

use super::order::Order;
use super::seen::Seen;
use super::usage::{Asks, Usage, UsageView};
use super::{
    Children, CopyAhead, Evict, EvictAudit, Evictability, HEADS, InsertAt, Opens, Passed, Stamps,
    Views,
};
use crate::base::{Class, Ix, Result, SlotIx, memory};
use crate::collections::Lists;

/// What the marks are, where there is no memory for them.
const MARKS: &str = "the marks of the eviction order";
/// May be taken.
const OPEN: u8 = 0;
const BLOCKED: u8 = 1;
/// Has a child, where a front may have one.
const BRANCH: u8 = 2;
/// Was a front and has a child: it was set aside.
const WAITS: u8 = 3;
/// The same, and is blocked now.
const STUCK: u8 = u8::MAX;
/// Blocked, and passed by the cursor of this list, which is added; or before a clear.
const PASSED: u8 = 4;

/// The first list of the order, behind those of the classes that go before.
const FIRST: usize = Class::Ordinary as usize;

/// The front of a list: what has the smallest rank goes first. That is its value and, of two of one
/// value, which was used longer ago.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Front {
    rank: u64,
    slot: SlotIx,
}

/// Where the order has several lists: what is known of their fronts at this tick.
#[derive(Hash, Debug)]
struct Fronts {
    known: Vec<Option<Front>>,
    /// Which of them there are, and which are to be looked at again: a bit each.
    filled: u64,
    stale: u64,
    now: u32,
}

#[derive(Hash, Debug)]
pub(crate) struct Queues<O> {
    /// Elsewhere, so that all queues are of one size.
    order: Box<O>,
    lists: Lists,
    marks: Vec<u8>,
    /// What copies ahead have looked at, where children are in order.
    seen: Seen,
    /// Where they are tracked: so many of the next victims, until anything changes.
    settled: usize,
    /// The last slot of each list that was passed; `None`: look from the front.
    cursors: [Option<SlotIx>; HEADS],
    children: Children,
    /// Where children are tracked, the list of each slot.
    heads: Vec<u8>,
    fronts: Fronts,
}

impl<O: Order> Queues<O> {
    /// The lists of the classes, those of the order in place of one of them, and what waits.
    const HEADS: usize = Class::COUNT + O::CLASSES;
    const WAITING: usize = Self::HEADS - 1;
    /// Whether values decide at all.
    const VALUED: bool = O::CLASSES > 1;

    pub(super) const ASKS: Asks = O::ASKS;
    /// Bytes for a slot: two links and its mark, and whether it was seen or which list it is in.
    pub(super) const BYTES: usize = 2 * size_of::<u32>() + 2;

    /// Lists for a tier of so many slots, which holds `room` blocks together with those above it. Several
    /// lists of an order keep no child before its parent.
    pub(super) fn new(slots: usize, room: usize, children: Children) -> Result<Self> {
        let mut queues = Self {
            order: Box::new(O::new(room)?),
            lists: Lists::new(Self::HEADS, 0)?,
            marks: Vec::new(),
            seen: Seen::new(),
            settled: 0,
            cursors: [None; HEADS],
            children: if Self::VALUED {
                Children::Tracked
            } else {
                children
            },
            heads: Vec::new(),
            fronts: Fronts {
                known: vec![None; O::CLASSES],
                filled: 0,
                stale: 0,
                now: 0,
            },
        };
        queues.reserve(slots)?;
        queues.grow(slots);
        Ok(queues)
    }

    #[inline]
    fn in_order(&self) -> bool {
        self.children == Children::InOrder
    }

    /// The list of a class, and of the order's within the ordinary one.
    #[inline]
    fn head(&self, class: Class, view: UsageView<'_>) -> usize {
        match class {
            _ if !Self::VALUED => class as usize,
            Class::Ordinary => FIRST + usize::from(self.order.class(view.usage())),
            class if class < Class::Ordinary => class as usize,
            class => class as usize + O::CLASSES - 1,
        }
    }

    #[inline]
    fn mark(evictability: Evictability) -> u8 {
        match evictability {
            Evictability::Blocked => BLOCKED,
            Evictability::Branch => BRANCH,
            Evictability::Leaf => OPEN,
        }
    }

    /// The same, where no front has a child.
    #[inline]
    fn mark_in_order(evictability: Evictability) -> u8 {
        match evictability {
            Evictability::Blocked => BLOCKED,
            Evictability::Branch | Evictability::Leaf => OPEN,
        }
    }

    /// A slot leaves. Where the cursor of its list stands, that goes back to the one before, which
    /// it has passed too.
    #[inline]
    fn step_back(&mut self, slot: SlotIx) {
        if let Some(head) = self.marks[slot.at()].checked_sub(PASSED)
            && self.cursors[head as usize % HEADS] == Some(slot)
        {
            self.cursors[head as usize % HEADS] = self.lists.before(slot);
        }
    }

    /// A slot may be taken from now on that had this mark.
    #[inline]
    fn open(&mut self, slot: SlotIx, was: u8) {
        if let Some(head) = was.checked_sub(PASSED) {
            // It may stand before the cursor: look from the front again. What was passed before a clear
            // has the list of then, and needs no more: the cursor of the cleared marks all that it
            // passes as its own, so it has not passed this slot.
            self.cursors[head as usize % HEADS] = None;
            self.touch(head as usize);
        }
        debug_assert!(self.lists.holds(slot), "it is idle");
    }

    /// Slots leave, of which those of one list are named from the back on.
    #[inline]
    fn remove_backwards(&mut self, slots: impl Iterator<Item = SlotIx> + Clone) {
        let passed = self.cursors[..Self::HEADS].iter().any(Option::is_some);
        if passed || self.seen.any() {
            for slot in slots.clone() {
                self.step_back(slot);
                self.seen.leave(&self.lists, slot);
            }
        }
        self.lists.remove_all(slots);
    }

    /// Where to look for what may be taken of a list: all before it is blocked.
    #[inline]
    fn start(&self, head: usize) -> Option<SlotIx> {
        self.cursors[head % HEADS].or_else(|| self.lists.front(head))
    }

    /// The first of a list that is not blocked.
    #[expect(
        clippy::inline_always,
        reason = "a call for each list is 14 % of an eviction"
    )]
    #[inline(always)]
    fn open_from(&mut self, head: usize) -> Option<SlotIx> {
        self.open_at(self.start(head), head)
    }

    /// The first from this one on, where all before it is blocked or leaves.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn open_at(&mut self, mut at: Option<SlotIx>, head: usize) -> Option<SlotIx> {
        while let Some(slot) = at {
            if matches!(self.marks[slot.at()], OPEN | BRANCH) {
                return Some(slot);
            }
            self.marks[slot.at()] = PASSED + head as u8;
            self.cursors[head % HEADS] = Some(slot);
            at = self.lists.after(slot);
        }
        None
    }

    /// The same, and it is no other's parent.
    #[inline]
    fn leaf_from(&mut self, head: usize) -> Option<SlotIx> {
        while let Some(slot) = self.open_from(head) {
            if self.marks[slot.at()] == OPEN {
                return Some(slot);
            }
            self.set_aside(slot);
        }
        None
    }

    /// Slots of a list from this one on.
    fn from(&self, first: Option<SlotIx>) -> impl Iterator<Item = SlotIx> {
        std::iter::successors(first, |&slot| self.lists.after(slot))
    }
}

impl<O: Order> Evict for Queues<O> {
    #[expect(
        clippy::inline_always,
        reason = "a call for each block that becomes idle is 2 % of a finish"
    )]
    #[inline(always)]
    fn insert(
        &mut self,
        slot: SlotIx,
        class: Class,
        view: UsageView<'_>,
        place: InsertAt,
        evictability: Evictability,
    ) {
        if !self.in_order() {
            return self.insert_loose(slot, class, view, evictability);
        }
        match place {
            InsertAt::Back => self.lists.push_back(class as usize, slot),
            InsertAt::Before(other) => {
                self.seen.unsee(&self.lists, other);
                self.lists.insert_before(other, slot);
                self.cursors[class as usize % HEADS] = None;
            }
        }
        self.marks[slot.at()] = Self::mark_in_order(evictability);
    }

    #[inline]
    fn insert_path(
        &mut self,
        path: &[SlotIx],
        class: Class,
        views: Views<'_>,
        evictability: Evictability,
    ) {
        if !self.in_order() {
            return self.insert_path_loose(path, class, views, evictability);
        }
        self.lists.push_path(class as usize, path);
        let mark = Self::mark_in_order(evictability);
        for slot in path {
            self.marks[slot.at()] = mark;
        }
    }

    #[inline]
    fn remove(&mut self, slot: SlotIx) {
        self.step_back(slot);
        if self.in_order() {
            self.seen.leave(&self.lists, slot);
        } else {
            self.settled = 0;
            self.touch_front(slot);
        }
        self.lists.remove(slot);
    }

    #[inline]
    fn remove_path(&mut self, path: &[SlotIx]) {
        if self.in_order() {
            self.remove_backwards(path.iter().copied());
        } else {
            for &slot in path {
                self.remove(slot);
            }
        }
    }

    #[inline]
    fn evict(&mut self, slot: SlotIx) {
        if Self::VALUED {
            let own = Self::own(usize::from(self.heads[slot.at()]));
            if let Some(own) = own {
                self.order.evicted(own as u8);
            }
        }
        self.remove(slot);
    }

    #[inline]
    fn refresh(&mut self, slot: SlotIx, evictability: Evictability) {
        let was = self.marks[slot.at()];
        let waits = was == WAITS || was == STUCK;
        if !self.in_order() && (waits || evictability != Evictability::Blocked) {
            return self.refresh_loose(slot, evictability);
        }
        if evictability == Evictability::Blocked {
            if was == OPEN || was == BRANCH {
                self.marks[slot.at()] = BLOCKED;
                if !self.in_order() {
                    self.settled = 0;
                    self.touch_front(slot);
                }
            }
        } else {
            self.open(slot, was);
            self.marks[slot.at()] = OPEN;
        }
    }

    fn used(&mut self, path: &[(u64, Usage)], now: u64) {
        if Self::VALUED {
            self.fronts.now = now as u32;
            self.settled = 0;
            let mut tick = self.fronts.now.wrapping_sub(path.len() as u32);
            for &(key, usage) in path {
                tick = tick.wrapping_add(1);
                self.order.used(key, usage, tick);
            }
            self.look_again();
        }
    }

    #[inline]
    fn victim(&mut self, stamps: Stamps<'_>) -> Option<SlotIx> {
        if self.in_order() {
            return (0..Self::WAITING).find_map(|head| self.open_from(head));
        }
        if !Self::VALUED {
            return (0..Self::WAITING).find_map(|head| self.leaf_from(head));
        }
        (0..FIRST)
            .find_map(|head| self.leaf_from(head))
            .or_else(|| self.best(stamps).map(|(_, slot)| slot))
            .or_else(|| (FIRST + O::CLASSES..Self::WAITING).find_map(|head| self.leaf_from(head)))
    }

    fn take(&mut self, count: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        let all = out.len() + count;
        if !self.in_order() {
            return self.take_loose(all, stamps, opens, out);
        }
        for head in 0..Self::WAITING {
            let (first, mut at) = (out.len(), self.start(head));
            while out.len() < all
                && let Some(slot) = self.open_at(at, head)
            {
                out.push(slot);
                at = self.lists.after(slot);
            }
            self.remove_backwards(out[first..].iter().rev().copied());
        }
    }

    fn ahead(&self, limit: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        if self.in_order() {
            let all = (0..Self::WAITING).flat_map(|head| self.from(self.lists.front(head)));
            out.extend(all.take(limit));
        } else {
            self.walk(limit, stamps, opens, out);
        }
    }

    fn clear(&mut self) {
        let cleared = Class::Cleared as usize;
        for head in 1..Self::HEADS {
            self.lists.append(cleared, head);
        }
        self.cursors.fill(None);
        self.seen.clear();
        self.settled = 0;
        self.heads.fill(cleared as u8);
        for mark in &mut self.marks {
            *mark = match *mark {
                WAITS => BRANCH,
                STUCK => BLOCKED,
                own => own,
            };
        }
        self.fronts.known.fill(None);
        self.fronts.filled = 0;
    }

    fn reserve(&mut self, slots: usize) -> Result<()> {
        self.lists.reserve(slots)?;
        memory::reserve(&mut self.marks, slots, MARKS)?;
        let loose = if self.in_order() { 0 } else { slots };
        memory::reserve(&mut self.heads, loose, MARKS)?;
        self.seen.reserve(if self.in_order() { slots } else { 0 })
    }

    fn grow(&mut self, slots: usize) {
        self.lists.grow(slots);
        self.marks.resize(slots, OPEN);
        self.heads
            .resize(if self.in_order() { 0 } else { slots }, 0);
        self.seen.grow(if self.in_order() { slots } else { 0 });
    }

    fn resize(&mut self, room: usize) {
        self.order.resize(room);
        self.settled = 0;
        self.look_again();
    }

    fn warms(&self) -> bool {
        self.in_order()
    }

    fn children(&self) -> Children {
        self.children
    }
}

impl<O: Order> CopyAhead for Queues<O> {
    fn unseen(&self, limit: usize, stamps: Stamps<'_>, opens: Opens<'_>, out: &mut Vec<SlotIx>) {
        if !self.in_order() {
            if limit > self.settled {
                self.walk(limit, stamps, opens, out);
            }
            return;
        }
        // A shadow needs no copy, and comes last.
        let mut left = limit;
        for head in 0..Class::Shadow as usize {
            left = left.saturating_sub(self.seen.count(head));
            let first = self.seen.first_unseen(&self.lists, head);
            let before = out.len();
            out.extend(self.from(first.filter(|_| left > 0)).take(left));
            left -= out.len() - before;
        }
    }

    fn see(&mut self, slot: SlotIx, class: Class) -> bool {
        if !self.in_order() {
            return true;
        }
        let head = class as usize;
        let next = self.seen.first_unseen(&self.lists, head) == Some(slot);
        if next {
            self.seen.see(slot, head);
        }
        next
    }

    fn settle(&mut self, limit: usize) {
        self.settled = limit;
    }

    fn unsee(&mut self, slot: SlotIx) {
        self.settled = 0;
        if self.in_order() {
            self.seen.unsee(&self.lists, slot);
        }
    }

    fn precedes(&self, slot: (SlotIx, Class), other: (SlotIx, Class), passed: Passed<'_>) -> bool {
        if !self.in_order() {
            passed(slot.0)
        } else if slot.1 == other.1 {
            self.seen.holds(slot.0)
        } else {
            slot.1 < other.1
        }
    }

    fn unsee_all(&mut self) {
        self.settled = 0;
        if self.in_order() {
            self.seen.clear();
        }
    }

    fn looked(&self) -> Option<usize> {
        let lists = 0..Class::Shadow as usize;
        let count = lists.map(|head| self.seen.count(head)).sum();
        Some(count).filter(|_| self.in_order())
    }
}

impl<O: Order> EvictAudit for Queues<O> {
    fn holds(&self, slot: SlotIx) -> bool {
        self.lists.holds(slot)
    }

    fn agrees(&self, slot: SlotIx, evictability: Evictability) -> bool {
        match self.marks[slot.at()] {
            OPEN if self.in_order() => evictability != Evictability::Blocked,
            OPEN => evictability == Evictability::Leaf,
            BRANCH | WAITS => evictability == Evictability::Branch,
            _ => evictability == Evictability::Blocked,
        }
    }

    fn seen(&self, slot: SlotIx) -> bool {
        self.in_order() && self.seen.holds(slot)
    }
}

#[cfg(test)]
mod tests;
