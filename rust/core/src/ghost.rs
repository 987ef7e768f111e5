//! Ghosts: the keys of blocks that were dropped from every tier and how often they had been used, in 4
//! bytes each, so that a block which is computed again is known to have been wanted before.
//!
//! A fixed array of buckets of one cache line each; within a bucket the oldest is forgotten first.
//! Nothing is ever rehashed. Two keys of a bucket with the same 28 bits pass for one, which is one in
//! some 17 million that are asked for: a block is then copied down for nothing, or kept for longer than it
//! is worth, and never served for another.

use crate::error::Result;
use crate::id::Key;
use crate::index::mix;
use crate::memory;

const WAYS: usize = 16;
/// Bits below those of the key: how often it was used.
const USES: u32 = 4;

/// The youngest first; 0 is an empty place.
type Bucket = [u32; WAYS];

#[derive(Hash, Debug)]
pub(crate) struct Ghosts {
    buckets: Vec<Bucket>,
    shift: u32,
}

impl Ghosts {
    /// Room for `keys` keys or more: a power of two.
    pub(crate) fn new(keys: u32) -> Result<Self> {
        let buckets = Self::buckets(keys);
        Ok(Self {
            buckets: memory::filled(buckets, [0; WAYS], "the ghosts")?,
            shift: 64 - buckets.trailing_zeros(),
        })
    }

    fn buckets(keys: u32) -> usize {
        (keys as usize).div_ceil(WAYS).next_power_of_two().max(2)
    }

    /// Bytes that room for `keys` keys takes.
    pub(crate) fn bytes(keys: u32) -> usize {
        Self::buckets(keys) * size_of::<Bucket>()
    }

    /// The bucket of a key, and its ghost without its uses.
    fn place(&self, key: &Key) -> (usize, u32) {
        let mixed = mix(key);
        let own = (mixed as u32 >> USES).max(1);
        ((mixed >> self.shift) as usize, own << USES)
    }

    pub(crate) fn knows(&self, key: &Key) -> bool {
        self.uses(key).is_some()
    }

    /// How often a block that was dropped had been used, if that is known.
    pub(crate) fn uses(&self, key: &Key) -> Option<u8> {
        let (at, ghost) = self.place(key);
        let known = self.buckets[at].iter().find(|&&known| is(known, ghost))?;
        Some(uses_of(*known))
    }

    /// The youngest of its bucket from now on; the oldest is forgotten if the bucket was full.
    pub(crate) fn remember(&mut self, key: &Key, uses: u8) {
        let (at, ghost) = self.place(key);
        let bucket = &mut self.buckets[at];
        let place = bucket.iter().position(|&known| is(known, ghost));
        bucket[..=place.unwrap_or(WAYS - 1)].rotate_right(1);
        bucket[0] = ghost | u32::from(uses) & ((1 << USES) - 1);
    }

    /// Gives a ghost's place up, for its block is back; how often it had been used, if there was one.
    pub(crate) fn take(&mut self, key: &Key) -> Option<u8> {
        let (at, ghost) = self.place(key);
        let bucket = &mut self.buckets[at];
        let place = bucket.iter().position(|&known| is(known, ghost))?;
        let uses = uses_of(bucket[place]);
        bucket[place..].rotate_left(1);
        bucket[WAYS - 1] = 0;
        Some(uses)
    }
}

fn is(known: u32, ghost: u32) -> bool {
    known >> USES == ghost >> USES
}

fn uses_of(known: u32) -> u8 {
    (known & ((1 << USES) - 1)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> Key {
        let mut key = Key::default();
        key.0[..4].copy_from_slice(&n.to_le_bytes());
        key
    }

    #[test]
    fn a_ghost_is_known_until_it_is_taken() {
        let mut ghosts = Ghosts::new(64).unwrap();
        assert!(!ghosts.knows(&key(1)));
        ghosts.remember(&key(1), 2);
        ghosts.remember(&key(1), 3);
        assert!(ghosts.knows(&key(1)) && !ghosts.knows(&key(2)));
        assert_eq!(ghosts.uses(&key(1)), Some(3));
        assert_eq!(
            ghosts.take(&key(1)),
            Some(3),
            "one place, however often it was dropped"
        );
        assert!(!ghosts.knows(&key(1)) && ghosts.take(&key(1)).is_none());
    }

    #[test]
    fn the_oldest_of_a_full_bucket_is_forgotten_first() {
        let mut ghosts = Ghosts::new(32).unwrap();
        let bucket = |n: u32| mix(&key(n)) >> 63;
        let own: Vec<u32> = (0..100).filter(|&n| bucket(n) == 0).collect();
        for &n in &own[..WAYS] {
            ghosts.remember(&key(n), 1);
        }
        // Dropped again, so that it is the youngest.
        ghosts.remember(&key(own[0]), 1);
        ghosts.remember(&key(own[WAYS]), 1);
        let known: Vec<u32> = own
            .iter()
            .copied()
            .filter(|&n| ghosts.knows(&key(n)))
            .collect();
        let but_the_oldest: Vec<u32> = (0..=WAYS).filter(|&at| at != 1).map(|at| own[at]).collect();
        assert_eq!(known, but_the_oldest);
        assert!(ghosts.take(&key(own[3])).is_some());
        ghosts.remember(&key(own[WAYS + 1]), 1);
        assert!(
            ghosts.knows(&key(own[2])),
            "the place that was given up is used first"
        );
    }

    #[test]
    fn most_of_as_many_keys_as_there_is_room_for_are_known() {
        let mut ghosts = Ghosts::new(1 << 14).unwrap();
        (0..1 << 13).for_each(|n| ghosts.remember(&key(n), 1));
        let known = (0..1 << 13).filter(|&n| ghosts.knows(&key(n))).count();
        assert!(known > 8000, "{known} of 8192");
    }
}
