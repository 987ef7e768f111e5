//! The last uses of a sample of the blocks, in order of time.
//!
//! A block is in the sample by its key, so all its uses are or none (Waldspurger et al. 2015). A use
//! is live until the block is used again; when the array is full, the live ones move together and
//! the oldest are dropped. Cursors into it only move forward, which makes what is derived from it
//! cheap: the fronts of shadow caches, and what has outlived an age.

use crate::base::{Result, memory};

/// What it is, where there is no memory for it.
const SAMPLE: &str = "the sample that the eviction order learns from";

/// What the sample knows of one use.
#[derive(Clone, Copy, Hash, Debug, Default)]
pub(crate) struct Use {
    key: u32,
    pub(crate) stamp: u32,
    older: Link,
    /// Of the learned order.
    pub(crate) class: u8,
    /// Bits of the shadow caches, of no meaning here; all are 0 once the block was used again.
    pub(crate) marks: u8,
}

impl Use {
    /// Of `marks`: the block was not used since.
    pub(crate) const LIVE: u8 = 0x80;

    pub(crate) fn is(&self, marks: u8) -> bool {
        self.marks & marks == marks
    }
}

/// A place in the history, or none.
#[derive(Clone, Copy, Hash, Debug, Default)]
struct Link(u16);

impl Link {
    fn to(at: usize) -> Self {
        // The array is shorter than 65,535.
        Self(at as u16 + 1)
    }

    fn at(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }
}

#[derive(Hash, Debug)]
pub(crate) struct History {
    /// One of 2 to the power of this many keys is in the sample.
    rate: u32,
    /// The slots of a shadow cache.
    shadow: usize,
    uses: Vec<Use>,
    len: usize,
    /// For some bits of a key, the last use; older ones follow by their links.
    heads: Vec<Link>,
}

impl History {
    /// Uses kept by a cache of some hundred slots or more, and at most.
    const ROOM: std::ops::RangeInclusive<usize> = 8192..=65_534;
    /// Of a full array, at least one in this many places becomes free.
    const FREED: usize = 4;
    /// Blocks that a full history keeps for each slot of a shadow cache, at least.
    const TURNOVERS: usize = 18;

    pub(crate) fn new(slots: usize) -> Result<Self> {
        let enough = (Self::TURNOVERS + Self::TURNOVERS / 3) * slots.max(1);
        let room = enough
            .min(*Self::ROOM.start())
            .max((slots / 16).min(*Self::ROOM.end()));
        let most = ((room - room / Self::FREED) / Self::TURNOVERS).max(1);
        let rate = (0..usize::BITS)
            .find(|rate| slots >> rate <= most)
            .unwrap_or(0);
        let heads = room.next_power_of_two() / 2;
        Ok(Self {
            rate,
            shadow: (slots >> rate).max(1),
            uses: memory::filled(room, Use::default(), SAMPLE)?,
            len: 0,
            heads: memory::filled(heads, Link::default(), SAMPLE)?,
        })
    }

    /// The slots of a shadow cache.
    pub(crate) fn shadow(&self) -> usize {
        self.shadow
    }

    /// One of 2 to the power of this many keys is in the sample.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.uses) + size_of_val(&*self.heads)
    }

    pub(crate) fn uses(&self) -> &[Use] {
        &self.uses[..self.len]
    }

    /// What stands for a key here, if it is in the sample.
    pub(crate) fn sampled(&self, key: u64) -> Option<u32> {
        // Fibonacci hashing (Knuth 1973): the highest bits depend on all of the key's.
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let in_sample = mixed.leading_zeros() >= self.rate;
        in_sample.then_some((mixed >> (32_u32.saturating_sub(self.rate))) as u32)
    }

    fn head(&self, key: u32) -> usize {
        (key.wrapping_mul(0x9E37_79B1) >> 8) as usize & (self.heads.len() - 1)
    }

    /// The last use of a block.
    pub(crate) fn last(&self, key: u32) -> Option<usize> {
        let mut link = self.heads[self.head(key)];
        while let Some(at) = link.at() {
            let used = &self.uses[at];
            if used.key == key {
                return used.is(Use::LIVE).then_some(at);
            }
            link = used.older;
        }
        None
    }

    /// A use is over, since the block was used again.
    pub(crate) fn end(&mut self, at: usize) -> Use {
        let ended = self.uses[at];
        self.uses[at].marks = 0;
        ended
    }

    /// Takes marks from a use.
    pub(crate) fn unmark(&mut self, at: usize, marks: u8) {
        self.uses[at].marks &= !marks;
    }

    /// Adds a use; there must be room: see `is_full`.
    pub(crate) fn push(&mut self, key: u32, stamp: u32, class: u8, marks: u8) {
        let head = self.head(key);
        let older = std::mem::replace(&mut self.heads[head], Link::to(self.len));
        self.uses[self.len] = Use {
            key,
            stamp,
            older,
            class,
            marks: marks | Use::LIVE,
        };
        self.len += 1;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == self.uses.len()
    }

    /// Makes room: drops what is not live, and the oldest; says what was live and is dropped. The
    /// cursors point at the same uses as before, or at the next one kept.
    pub(crate) fn compact(&mut self, cursors: &mut [&mut [u16]], mut dropped: impl FnMut(&Use)) {
        let live = self.uses().iter().filter(|used| used.is(Use::LIVE)).count();
        let mut drop = live.saturating_sub(self.uses.len() - self.uses.len() / Self::FREED);
        let mut kept = 0;
        // The links will be made anew: until then they say where a use moves.
        for used in &mut self.uses[..self.len] {
            used.older = Link::to(kept);
            if used.is(Use::LIVE) {
                if drop > 0 {
                    drop -= 1;
                    dropped(used);
                    used.marks = 0;
                } else {
                    kept += 1;
                }
            }
        }
        for cursor in cursors.iter_mut().flat_map(|some| some.iter_mut()) {
            let at = self
                .uses()
                .get(usize::from(*cursor))
                .and_then(|used| used.older.at());
            *cursor = at.unwrap_or(kept) as u16;
        }
        self.heads.fill(Link::default());
        let len = std::mem::replace(&mut self.len, 0);
        for at in 0..len {
            let used = self.uses[at];
            if used.is(Use::LIVE) {
                self.push(used.key, used.stamp, used.class, used.marks);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{History, Use};

    const SLOTS: [usize; 9] = [0, 1, 100, 1000, 5000, 65_536, 1 << 20, 1 << 27, 1 << 33];

    #[test]
    fn the_sample_fits_into_the_history_at_any_size() {
        for slots in SLOTS {
            let history = History::new(slots).expect("there is memory");
            let bytes = history.bytes();
            assert!(bytes <= (112 << 10).max(slots), "{slots}: {bytes} bytes");
            let room = history.uses.len();
            assert!(history.shadow() * History::TURNOVERS <= room.max(History::TURNOVERS));
            assert!(room < usize::from(u16::MAX));
        }
    }

    #[test]
    fn one_of_so_many_keys_is_in_the_sample() {
        let history = History::new(5000).expect("there is memory");
        assert_eq!(history.rate(), 4);
        let sampled = (0..16_000_u64)
            .filter(|&key| history.sampled(key).is_some())
            .count();
        assert!((900..1100).contains(&sampled), "{sampled}");
        assert_eq!(history.sampled(7), history.sampled(7));
    }

    #[test]
    fn a_block_is_found_by_its_last_use() {
        let mut history = History::new(100).expect("there is memory");
        for (stamp, key) in [5, 6, 5].into_iter().enumerate() {
            if let Some(at) = history.last(key) {
                history.end(at);
            }
            history.push(key, stamp as u32, 3, 1);
        }
        assert_eq!(
            [5, 6, 7].map(|key| history.last(key)),
            [Some(2), Some(1), None]
        );
        assert!(!history.uses()[0].is(Use::LIVE) && history.uses()[2].is(Use::LIVE | 1));
        history.unmark(2, 1);
        assert!(!history.uses()[2].is(1));
    }

    #[test]
    fn a_full_history_keeps_the_newest_blocks_and_cursors_keep_their_place() {
        let mut history = History::new(1).expect("there is memory");
        let room = history.uses.len() as u32;
        for key in 0..room {
            assert!(!history.is_full());
            history.push(key, key, 0, 0);
        }
        assert!(history.is_full());
        history.end(room as usize - 2);
        let mut cursors = [0, room as u16 - 3, room as u16 - 2, room as u16];
        let mut dropped = Vec::new();
        history.compact(&mut [&mut cursors], |used| dropped.push(used.stamp));
        let stamps: Vec<u32> = history.uses().iter().map(|used| used.stamp).collect();
        let all: Vec<u32> = dropped.iter().chain(&stamps).copied().collect();
        assert_eq!(
            all,
            (0..room).filter(|&key| key != room - 2).collect::<Vec<_>>()
        );
        assert_eq!(
            stamps.len(),
            history.uses.len() - history.uses.len() / History::FREED
        );
        let at = cursors.map(|at| stamps.get(usize::from(at)).copied());
        assert_eq!(at, [Some(stamps[0]), Some(room - 3), Some(room - 1), None]);
        assert!(history.last(room - 1).is_some() && history.last(0).is_none());
    }
}
