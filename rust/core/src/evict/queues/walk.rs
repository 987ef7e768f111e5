//! What would go next of several lists, one after the other, without taking it.

use super::{BRANCH, FIRST, Front, OPEN, Queues, WAITS};
use crate::base::{Ix, SlotIx};
use crate::evict::order::Order;
use crate::evict::{HEADS, Opens, Stamps};
use std::collections::BTreeSet;

/// Where the walk is.
struct Walk<'a, O> {
    queues: &'a Queues<O>,
    stamps: Stamps<'a>,
    /// The next of each list.
    next: [Option<SlotIx>; HEADS],
    /// What was set aside and stands before that again, the last one in front.
    back: [Vec<SlotIx>; HEADS],
    /// What was set aside on the way.
    aside: BTreeSet<SlotIx>,
    /// What has no child any more, and was not reached.
    opened: BTreeSet<SlotIx>,
    /// What stands in front of the order's lists.
    fronts: Vec<Option<Front>>,
    /// Which of them goes first, and what the next one of another list is worth.
    best: Option<(usize, (u64, usize))>,
}

impl<O: Order> Queues<O> {
    /// Adds the next `limit` victims, in order, if no worth changed.
    pub(super) fn walk(
        &self,
        limit: usize,
        stamps: Stamps<'_>,
        opens: Opens<'_>,
        out: &mut Vec<SlotIx>,
    ) {
        let next = |head: usize| self.cursors[head].or_else(|| self.lists.front(head));
        let mut nexts = [None; HEADS];
        for (head, first) in nexts.iter_mut().enumerate().take(Self::WAITING) {
            *first = next(head);
        }
        let mut walk = Walk {
            queues: self,
            stamps,
            next: nexts,
            back: std::array::from_fn(|_| Vec::new()),
            aside: BTreeSet::new(),
            opened: BTreeSet::new(),
            fronts: vec![None; O::CLASSES],
            best: None,
        };
        for own in 0..O::CLASSES {
            walk.look_at(FIRST + own);
        }
        for _ in 0..limit {
            let Some((head, slot)) = walk.first() else {
                break;
            };
            out.push(slot);
            walk.go(head, slot, opens);
        }
    }
}

impl<O: Order> Walk<'_, O> {
    /// The leaf that goes next, and its list.
    fn first(&mut self) -> Option<(usize, SlotIx)> {
        loop {
            let (head, slot) = self.front()?;
            let open = self.queues.marks[slot.at()] != BRANCH
                || self.opened.contains(&slot)
                || self.back[head].last() == Some(&slot);
            if open {
                return Some((head, slot));
            }
            self.aside.insert(slot);
            self.next[head] = self.queues.lists.after(slot);
            self.look_at(head);
        }
    }

    /// What stands in front of all, and its list; it may have a child.
    fn front(&mut self) -> Option<(usize, SlotIx)> {
        let (mut before, mut behind) = Queues::<O>::around();
        if let Some(first) = before.find_map(|head| Some((head, self.open(head)?))) {
            return Some(first);
        }
        if let Some((own, slot)) = self.best() {
            return Some((FIRST + own, slot));
        }
        behind.find_map(|head| Some((head, self.open(head)?)))
    }

    /// What stands in front of the order's lists.
    fn best(&mut self) -> Option<(usize, SlotIx)> {
        if let Some((own, second)) = self.best
            && let Some(front) = self.fronts[own]
            && (front.rank, own) < second
        {
            return Some((own, front.slot));
        }
        let ranks = |own: usize| Some((self.fronts[own]?.rank, own));
        let (_, own) = (0..O::CLASSES).filter_map(ranks).min()?;
        let others = (0..O::CLASSES).filter(|&other| other != own);
        let second = others.filter_map(ranks).min();
        self.best = Some((own, second.unwrap_or((u64::MAX, O::CLASSES))));
        Some((own, self.fronts[own]?.slot))
    }

    /// The next of a list that is not blocked.
    fn open(&mut self, head: usize) -> Option<SlotIx> {
        if let Some(&slot) = self.back[head].last() {
            return Some(slot);
        }
        while let Some(slot) = self.next[head] {
            if matches!(self.queues.marks[slot.at()], OPEN | BRANCH) {
                return Some(slot);
            }
            self.next[head] = self.queues.lists.after(slot);
        }
        None
    }

    /// The next leaf of a list goes, and with it may be the last child of another.
    fn go(&mut self, head: usize, slot: SlotIx, opens: Opens<'_>) {
        if self.back[head].pop().is_none() {
            self.opened.remove(&slot);
            self.next[head] = self.queues.lists.after(slot);
        }
        if let Some(parent) = opens(slot) {
            if self.queues.marks[parent.at()] == WAITS || self.aside.remove(&parent) {
                let own = usize::from(self.queues.heads[parent.at()]);
                self.back[own].push(parent);
                if own != head {
                    self.look_at(own);
                }
            } else {
                self.opened.insert(parent);
            }
        }
        self.look_at(head);
    }

    /// The front of a list may be another now.
    fn look_at(&mut self, head: usize) {
        if let Some(own) = Queues::<O>::own(head) {
            self.best = self.best.filter(|best| best.0 == own);
            let open = self.open(head);
            self.fronts[own] = open.map(|slot| self.queues.front(own, slot, self.stamps));
        }
    }
}
