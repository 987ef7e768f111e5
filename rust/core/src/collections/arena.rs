//! A slab with generations: u32 indices inside, stale handles are misses outside.

use crate::base::{Error, Id, Ix, Link, Result, memory};
use std::num::NonZeroU32;

/// A record that lends the arena one of its fields while it is dead: the free list runs through
/// it, so that a million dead records need no list beside them.
pub(crate) trait Record: Default {
    /// The index type of its places.
    type Ix: Ix;
    fn link(&self) -> Option<Link<Self::Ix>>;
    fn set_link(&mut self, link: Option<Link<Self::Ix>>);
}

/// A [`Record`] lends its field `link`.
macro_rules! lends_link {
    ($($record:ty: $ix:ty),+) => {
        $(impl Record for $record {
            type Ix = $ix;
            fn link(&self) -> Option<Link<$ix>> {
                self.link
            }
            fn set_link(&mut self, link: Option<Link<$ix>>) {
                self.link = link;
            }
        })+
    };
}
pub(crate) use lends_link;

/// It begins a line of the cache: a node, of 60 bytes, fills one, and never lies in two.
#[derive(Hash, Debug)]
#[repr(C, align(64))]
struct Entry<T> {
    /// Odd while the record lives.
    generation: u32,
    record: T,
}

/// What an id finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Live,
    /// It was given out, and its record has ended.
    Ended,
    /// It was never given out.
    Never,
}

#[derive(Hash, Debug)]
pub(crate) struct Arena<T: Record> {
    entries: Vec<Entry<T>>,
    vacant: Option<Link<T::Ix>>,
    live: u32,
}

impl<T: Record> Arena<T> {
    /// Bytes of a record, with its generation.
    pub(crate) const BYTES: usize = size_of::<Entry<T>>();

    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            vacant: None,
            live: 0,
        }
    }

    /// Room for `capacity` records is made at once: a later insert within it never allocates.
    pub(crate) fn reserve(&mut self, capacity: usize) -> Result<()> {
        memory::reserve(&mut self.entries, capacity, "the blocks' records")
    }

    pub(crate) fn insert(&mut self, record: T) -> T::Ix {
        self.live += 1;
        if let Some(link) = self.vacant {
            let entry = &mut self.entries[link.at().get() as usize];
            self.vacant = entry.record.link();
            entry.record = record;
            entry.generation = entry.generation.wrapping_add(1);
            link.at()
        } else {
            self.entries.push(Entry {
                generation: 1,
                record,
            });
            T::Ix::new((self.entries.len() - 1) as u32)
        }
    }

    /// A place that lives from here on; what it holds is the caller's to write over, field by field.
    #[inline]
    pub(crate) fn revive(&mut self) -> (T::Ix, &mut T) {
        let Some(link) = self.vacant else {
            return self.insert_new();
        };
        let entry = &mut self.entries[link.at().get() as usize];
        self.vacant = entry.record.link();
        entry.generation = entry.generation.wrapping_add(1);
        self.live += 1;
        (link.at(), &mut entry.record)
    }

    #[cold]
    fn insert_new(&mut self) -> (T::Ix, &mut T) {
        let index = self.insert(T::default());
        (index, &mut self[index])
    }

    pub(crate) fn remove(&mut self, index: T::Ix) -> T {
        let record = std::mem::take(&mut self[index]);
        self.discard(index);
        record
    }

    /// Ends a record and leaves it where it is.
    pub(crate) fn discard(&mut self, index: T::Ix) {
        let entry = &mut self.entries[index.get() as usize];
        debug_assert!(entry.generation % 2 == 1, "removing a dead record");
        entry.generation = entry.generation.wrapping_add(1);
        entry.record.set_link(self.vacant);
        self.vacant = Some(Link::to(index));
        self.live -= 1;
    }

    /// Forgets all records, and that there ever were any: no id of one may be left.
    pub(crate) fn forget_all(&mut self) {
        self.entries.clear();
        (self.vacant, self.live) = (None, 0);
    }

    pub(crate) fn id(&self, index: T::Ix) -> Id<T::Ix> {
        let generation = NonZeroU32::new(self.entries[index.get() as usize].generation);
        Id {
            index,
            generation: generation.unwrap_or(NonZeroU32::MIN),
        }
    }

    /// The record of an id that lives.
    #[inline]
    pub(crate) fn get(&self, id: Id<T::Ix>) -> Option<&T> {
        let entry = self.entries.get(id.index.get() as usize)?;
        let lives = entry.generation == id.generation.get() && entry.generation % 2 == 1;
        lives.then_some(&entry.record)
    }

    pub(crate) fn find(&self, id: Id<T::Ix>) -> Found {
        match self.entries.get(id.index.get() as usize) {
            Some(entry)
                if entry.generation == id.generation.get() && id.generation.get() % 2 == 1 =>
            {
                Found::Live
            }
            Some(entry) if id.generation.get() < entry.generation => Found::Ended,
            _ => Found::Never,
        }
    }

    /// The place of what a handle of a `what` names.
    ///
    /// # Errors
    /// `Spent` where its record has ended, or is not `open`; `Foreign` where there was none.
    pub(crate) fn place_of(
        &self,
        id: Id<T::Ix>,
        what: &'static str,
        open: impl Fn(&T) -> bool,
    ) -> Result<T::Ix> {
        let number = id.number();
        match self.find(id) {
            Found::Live if open(&self[id.index]) => Ok(id.index),
            Found::Never => Err(Error::Foreign { what, number }),
            Found::Live | Found::Ended => Err(Error::Spent { what, number }),
        }
    }

    pub(crate) fn lives(&self, id: Id<T::Ix>) -> bool {
        self.find(id) == Found::Live
    }

    pub(crate) fn occupied(&self, index: T::Ix) -> bool {
        self.entries
            .get(index.get() as usize)
            .is_some_and(|entry| entry.generation % 2 == 1)
    }

    /// Places that hold a record, or have held one.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.live as usize
    }

    pub(crate) fn for_each(&mut self, act: impl FnMut(&mut T)) {
        let live = self
            .entries
            .iter_mut()
            .filter(|entry| entry.generation % 2 == 1);
        live.map(|entry| &mut entry.record).for_each(act);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (T::Ix, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.generation % 2 == 1)
            .map(|(index, entry)| (T::Ix::new(index as u32), &entry.record))
    }
}

impl<T: Record> std::ops::Index<T::Ix> for Arena<T> {
    type Output = T;
    fn index(&self, index: T::Ix) -> &T {
        &self.entries[index.get() as usize].record
    }
}

impl<T: Record> std::ops::IndexMut<T::Ix> for Arena<T> {
    fn index_mut(&mut self, index: T::Ix) -> &mut T {
        &mut self.entries[index.get() as usize].record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::NodeIx;

    #[derive(Default, Debug)]
    struct Thing(Option<Link<NodeIx>>, u32);

    impl Record for Thing {
        type Ix = NodeIx;
        fn link(&self) -> Option<Link<NodeIx>> {
            self.0
        }
        fn set_link(&mut self, link: Option<Link<NodeIx>>) {
            self.0 = link;
        }
    }

    #[test]
    fn a_stale_id_finds_nothing_even_when_its_place_is_taken_again() {
        let mut arena = Arena::new();
        let first = arena.insert(Thing(None, 7));
        let old = arena.id(first);
        assert!(arena.lives(old));
        assert_eq!(arena.remove(first).1, 7);
        assert_eq!(arena.find(old), Found::Ended);
        let again = arena.insert(Thing(None, 8));
        assert_eq!(again, first);
        assert_eq!(arena.find(old), Found::Ended);
        assert!(arena.lives(arena.id(again)));
        let never = Id {
            index: NodeIx::new(9),
            generation: NonZeroU32::MIN,
        };
        assert_eq!(arena.find(never), Found::Never);
    }

    #[test]
    fn dead_places_are_taken_before_new_ones() {
        let mut arena = Arena::new();
        let all: Vec<NodeIx> = (0..4).map(|n| arena.insert(Thing(None, n))).collect();
        arena.remove(all[1]);
        arena.remove(all[3]);
        assert_eq!(arena.insert(Thing::default()).get(), 3);
        assert_eq!(arena.insert(Thing::default()).get(), 1);
        assert_eq!(arena.insert(Thing::default()).get(), 4);
        assert_eq!(arena.len(), 5);
        assert_eq!(arena.iter().count(), 5);
    }
}
