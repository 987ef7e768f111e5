//! What stands in several lists: the front of one may have a child in another. It is set aside, and
//! stands in front again when its last child has left.

use super::{BLOCKED, FIRST, Front, OPEN, Queues, STUCK, WAITS};
use crate::base::{Class, Ix, SlotIx};
use crate::evict::order::Order;
use crate::evict::usage::UsageView;
use crate::evict::{Evict, Evictability, HEADS, Opens, Stamps, Views};

impl<O: Order> Queues<O> {
    /// Which of the order's lists a head is.
    pub(super) fn own(head: usize) -> Option<usize> {
        head.checked_sub(FIRST)
            .filter(|&own| Self::VALUED && own < O::CLASSES)
    }

    /// The front of a list may be another now.
    #[inline]
    pub(super) fn touch(&mut self, head: usize) {
        if let Some(own) = Self::own(head) {
            self.fronts.stale |= 1 << own;
        }
    }

    /// The same of the list of this slot, where that is its front.
    #[inline]
    pub(super) fn touch_front(&mut self, slot: SlotIx) {
        if Self::VALUED
            && let Some(own) = Self::own(usize::from(self.heads[slot.at()]))
            && self.fronts.known[own].is_none_or(|front| front.slot == slot)
        {
            self.fronts.stale |= 1 << own;
        }
    }

    /// The lists of classes that go before those of the order, and of those that go behind.
    pub(super) fn around() -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        if Self::VALUED {
            (0..FIRST, FIRST + O::CLASSES..Self::WAITING)
        } else {
            (0..Self::WAITING, 0..0)
        }
    }

    /// As [`Evict::take`], until there are so many, where what is opened may stand anywhere.
    pub(super) fn take_loose(
        &mut self,
        all: usize,
        stamps: Stamps<'_>,
        opens: Opens<'_>,
        out: &mut Vec<SlotIx>,
    ) {
        let (before, behind) = Self::around();
        self.settled = 0;
        while out.len() < all {
            if let Some(slot) = before.clone().find_map(|head| self.leaf_from(head)) {
                self.evict(slot);
                out.push(slot);
                self.open_parent(opens(slot));
                continue;
            }
            if Self::VALUED
                && let Some((own, _)) = self.best(stamps)
            {
                self.take_from(own, all, stamps, opens, out);
                continue;
            }
            let Some(slot) = behind.clone().find_map(|head| self.leaf_from(head)) else {
                return;
            };
            self.evict(slot);
            out.push(slot);
            self.open_parent(opens(slot));
        }
    }

    /// The last child of this slot was taken.
    fn open_parent(&mut self, parent: Option<SlotIx>) {
        if let Some(parent) = parent {
            self.refresh_loose(parent, Evictability::Leaf);
        }
    }

    /// Takes from the list that goes next, as long as it does.
    fn take_from(
        &mut self,
        own: usize,
        all: usize,
        stamps: Stamps<'_>,
        opens: Opens<'_>,
        out: &mut Vec<SlotIx>,
    ) {
        let others = ones(self.fronts.filled & !(1 << own));
        let others =
            others.filter_map(|other| self.fronts.known[other].map(|front| (front.rank, other)));
        let second = others.min();
        while let Some(Front { slot, rank }) = self.fronts.known[own]
            && second.is_none_or(|second| (rank, own) < second)
            && self.marks[slot.at()] == OPEN
            && out.len() < all
        {
            self.order.evicted(own as u8);
            self.lists.remove(slot);
            out.push(slot);
            let parent = opens(slot);
            self.open_parent(parent);
            self.look_at(own, stamps);
            let elsewhere = |parent: SlotIx| usize::from(self.heads[parent.at()]) != FIRST + own;
            if parent.is_some_and(elsewhere) {
                return;
            }
        }
    }

    /// Looks at the front of a list again.
    fn look_at(&mut self, own: usize, stamps: Stamps<'_>) {
        let open = self.open_from(FIRST + own);
        self.fronts.known[own] = open.map(|slot| self.front(own, slot, stamps));
        self.fronts.filled = self.fronts.filled & !(1 << own) | u64::from(open.is_some()) << own;
        self.fronts.stale &= !(1 << own);
    }

    /// As [`Evict::insert`], where the place of a child says nothing of its parent.
    #[inline(never)]
    pub(super) fn insert_loose(
        &mut self,
        slot: SlotIx,
        class: Class,
        view: UsageView<'_>,
        evictability: Evictability,
    ) {
        self.insert_path_loose(&[slot], class, &|_| view, evictability);
    }

    /// As [`Evict::insert_path`], likewise.
    #[inline(never)]
    pub(super) fn insert_path_loose(
        &mut self,
        path: &[SlotIx],
        class: Class,
        views: Views<'_>,
        evictability: Evictability,
    ) {
        self.settled = 0;
        let mark = Self::mark(evictability);
        // What enters a list together ends here.
        let (mut last, mut end) = (None, path.len());
        for (at, &slot) in path.iter().enumerate().rev() {
            let head = self.head(class, views(slot));
            self.marks[slot.at()] = mark;
            self.heads[slot.at()] = head as u8;
            if last != Some(head) {
                self.push_loose(last, &path[at + 1..end]);
                (last, end) = (Some(head), at + 1);
            }
        }
        self.push_loose(last, &path[..end]);
    }

    fn push_loose(&mut self, head: Option<usize>, path: &[SlotIx]) {
        let Some(head) = head else {
            return;
        };
        self.lists.push_path(head, path);
        if let Some(own) = Self::own(head)
            && self.fronts.known[own].is_none()
        {
            self.fronts.stale |= 1 << own;
        }
    }

    /// As [`Evict::refresh`], of what may be a branch, or wait.
    #[inline(never)]
    pub(super) fn refresh_loose(&mut self, slot: SlotIx, evictability: Evictability) {
        self.settled = 0;
        let (was, mark) = (self.marks[slot.at()], Self::mark(evictability));
        if was == WAITS || was == STUCK {
            match mark {
                OPEN => self.bring_back(slot),
                BLOCKED => self.marks[slot.at()] = STUCK,
                _ => self.marks[slot.at()] = WAITS,
            }
        } else {
            self.open(slot, was);
            self.marks[slot.at()] = mark;
        }
    }

    /// A front has a child: it waits for that.
    #[inline(never)]
    pub(super) fn set_aside(&mut self, slot: SlotIx) {
        self.lists.remove(slot);
        self.lists.push_back(Self::WAITING, slot);
        self.marks[slot.at()] = WAITS;
        self.touch(usize::from(self.heads[slot.at()]));
    }

    /// The last child of a slot that waited has left.
    #[inline(never)]
    fn bring_back(&mut self, slot: SlotIx) {
        let head = usize::from(self.heads[slot.at()]);
        self.lists.remove(slot);
        self.lists.push_front(head, slot);
        self.cursors[head % HEADS] = None;
        self.marks[slot.at()] = OPEN;
        self.touch(head);
    }

    /// The leaf that goes next of the order's lists, and its list.
    #[inline(never)]
    pub(super) fn best(&mut self, stamps: Stamps<'_>) -> Option<(usize, SlotIx)> {
        loop {
            while self.fronts.stale > 0 {
                self.look_at(self.fronts.stale.trailing_zeros() as usize, stamps);
            }
            let fronts = ones(self.fronts.filled).filter_map(|own| {
                self.fronts.known[own].map(|front| (front.rank, own, front.slot))
            });
            let (_, own, slot) = fronts.min()?;
            if self.marks[slot.at()] == OPEN {
                return Some((own, slot));
            }
            self.set_aside(slot);
        }
    }

    /// What the fronts are worth may have changed.
    pub(super) fn look_again(&mut self) {
        if Self::VALUED {
            self.fronts.stale |= self.fronts.filled;
        }
    }

    pub(super) fn front(&self, own: usize, slot: SlotIx, stamps: Stamps<'_>) -> Front {
        let age = self.fronts.now.wrapping_sub(stamps(slot));
        let value = self.order.value(own as u8, age);
        let rank = u64::from(value) << 32 | u64::from(u32::MAX - age);
        Front { rank, slot }
    }
}

/// The places of the bits that are set, from the lowest.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros();
        bits = bits.checked_sub(1)? & bits;
        Some(place as usize)
    })
}
