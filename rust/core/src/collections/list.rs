//! Intrusive doubly linked lists over slot numbers: many heads, one array of links, no boxes.

use crate::base::{Ix, Result, SlotIx, memory};

/// `heads` circular lists over the numbers `0..len`; a number is in one list at most.
#[derive(Hash, Debug)]
pub(crate) struct Lists {
    /// The heads come first, so that growing leaves them where they are.
    links: Vec<[u32; 2]>,
    heads: u32,
}

const PREV: usize = 0;
const NEXT: usize = 1;

impl Lists {
    pub(crate) fn new(heads: usize, len: usize) -> Result<Self> {
        let mut lists = Self {
            links: Vec::new(),
            heads: heads as u32,
        };
        lists.reserve(len)?;
        lists.grow(len);
        Ok(lists)
    }

    /// Makes room to grow to that many numbers.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<()> {
        let all = self.heads as usize + len;
        memory::reserve(&mut self.links, all, "the eviction order")
    }

    /// More numbers, for which there is room.
    pub(crate) fn grow(&mut self, len: usize) {
        let all = self.heads as usize + len;
        for at in self.links.len()..all {
            self.links.push([at as u32; 2]);
        }
    }

    pub(crate) fn holds(&self, slot: SlotIx) -> bool {
        let at = self.place(slot);
        self.links[at as usize][NEXT] != at
    }

    pub(crate) fn push_back(&mut self, head: usize, slot: SlotIx) {
        self.link_before(head as u32, self.place(slot));
    }

    /// Adds slots at the back, the last of them first.
    pub(crate) fn push_path(&mut self, head: usize, path: &[SlotIx]) {
        let Some((&end, above)) = path.split_first() else {
            return;
        };
        let (mut next, mut at) = (head as u32, self.place(end));
        let before = std::mem::replace(&mut self.links[head][PREV], at);
        for &slot in above {
            let prev = self.place(slot);
            debug_assert!(self.links[at as usize] == [at; 2], "already in a list");
            self.links[at as usize] = [prev, next];
            (next, at) = (at, prev);
        }
        debug_assert!(self.links[at as usize] == [at; 2], "already in a list");
        self.links[at as usize] = [before, next];
        self.links[before as usize][NEXT] = at;
    }

    pub(crate) fn push_front(&mut self, head: usize, slot: SlotIx) {
        self.link_before(self.links[head][NEXT], self.place(slot));
    }

    pub(crate) fn insert_before(&mut self, other: SlotIx, slot: SlotIx) {
        self.link_before(self.place(other), self.place(slot));
    }

    fn link_before(&mut self, next: u32, at: u32) {
        debug_assert!(self.links[at as usize] == [at; 2], "already in a list");
        let prev = self.links[next as usize][PREV];
        self.links[at as usize] = [prev, next];
        self.links[prev as usize][NEXT] = at;
        self.links[next as usize][PREV] = at;
    }

    pub(crate) fn remove(&mut self, slot: SlotIx) {
        let at = self.place(slot);
        let [prev, next] = self.links[at as usize];
        debug_assert!(next != at, "in no list");
        self.join(prev, next);
        self.links[at as usize] = [at; 2];
    }

    /// Removes slots. Neighbours of which the one behind is named first are cut out together.
    #[inline]
    pub(crate) fn remove_all(&mut self, mut slots: impl Iterator<Item = SlotIx>) {
        let Some(first) = slots.next() else {
            return;
        };
        let [mut prev, mut next] = self.unlink(self.place(first));
        for slot in slots {
            let at = self.place(slot);
            if at == prev {
                [prev, _] = self.unlink(at);
            } else {
                self.join(prev, next);
                [prev, next] = self.unlink(at);
            }
        }
        self.join(prev, next);
    }

    /// Takes the links of a slot, and leaves those of its neighbours.
    fn unlink(&mut self, at: u32) -> [u32; 2] {
        let links = std::mem::replace(&mut self.links[at as usize], [at; 2]);
        debug_assert!(links != [at; 2], "in no list");
        links
    }

    fn join(&mut self, prev: u32, next: u32) {
        self.links[prev as usize][NEXT] = next;
        self.links[next as usize][PREV] = prev;
    }

    pub(crate) fn front(&self, head: usize) -> Option<SlotIx> {
        self.slot(self.links[head][NEXT])
    }

    /// The one behind it in its list.
    pub(crate) fn after(&self, slot: SlotIx) -> Option<SlotIx> {
        self.slot(self.links[self.place(slot) as usize][NEXT])
    }

    /// The one before it in its list.
    pub(crate) fn before(&self, slot: SlotIx) -> Option<SlotIx> {
        self.slot(self.links[self.place(slot) as usize][PREV])
    }

    /// Moves a whole list behind another, in its order.
    pub(crate) fn append(&mut self, to: usize, from: usize) {
        let [last, first] = self.links[from];
        if first == from as u32 {
            return;
        }
        let end = self.links[to][PREV];
        self.links[end as usize][NEXT] = first;
        self.links[first as usize][PREV] = end;
        self.links[last as usize][NEXT] = to as u32;
        self.links[to][PREV] = last;
        self.links[from] = [from as u32; 2];
    }

    /// Where the links of a slot are: behind the heads.
    fn place(&self, slot: SlotIx) -> u32 {
        self.heads + slot.get()
    }

    fn slot(&self, at: u32) -> Option<SlotIx> {
        at.checked_sub(self.heads).map(SlotIx::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u32) -> SlotIx {
        SlotIx::new(number)
    }

    fn all(lists: &Lists, head: usize) -> Vec<u32> {
        let all = std::iter::successors(lists.front(head), |&slot| lists.after(slot));
        all.map(SlotIx::get).collect()
    }

    #[test]
    fn lists_keep_their_order_through_inserts_removes_and_appends() {
        let mut lists = Lists::new(2, 3).unwrap();
        lists.push_back(0, slot(0));
        lists.push_back(0, slot(2));
        lists.insert_before(slot(2), slot(1));
        assert_eq!(all(&lists, 0), [0, 1, 2]);
        lists.remove(slot(1));
        assert!(!lists.holds(slot(1)) && lists.holds(slot(2)));
        lists.reserve(5).unwrap();
        lists.grow(5);
        lists.push_back(1, slot(4));
        lists.push_back(1, slot(1));
        lists.append(0, 1);
        assert_eq!(all(&lists, 0), [0, 2, 4, 1]);
        assert!(all(&lists, 1).is_empty());
        lists.append(0, 1);
        assert_eq!(all(&lists, 0), [0, 2, 4, 1]);
        lists.push_front(1, slot(3));
        lists.remove(slot(4));
        lists.push_front(1, slot(4));
        assert_eq!(all(&lists, 1), [4, 3]);
        for number in [0, 2, 1] {
            lists.remove(slot(number));
        }
        lists.push_path(1, &[]);
        lists.push_path(1, &[slot(2), slot(0)]);
        lists.push_path(0, &[slot(1)]);
        assert_eq!(
            (all(&lists, 1), all(&lists, 0)),
            (vec![4, 3, 0, 2], vec![1])
        );
        lists.remove_all([0, 3, 1, 2].map(slot).into_iter());
        assert_eq!((all(&lists, 1), all(&lists, 0)), (vec![4], vec![]));
        lists.push_path(1, &[slot(0)]);
        assert_eq!(all(&lists, 1), [4, 0]);
    }
}
