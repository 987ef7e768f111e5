//! Ghosts: the keys of blocks that were dropped from every tier, 8 bytes each, so that a block
//! which is computed again is known to have been wanted before.
//!
//! A fixed array of buckets of one cache line each; within a bucket the oldest is forgotten first.
//! Nothing is ever rehashed. Two keys with the same 8 bytes pass for one: a block is then copied
//! down for nothing, and never served for another.

use crate::error::Result;
use crate::id::Key;
use crate::index::mix;
use crate::memory;

const WAYS: usize = 8;

/// The youngest first; 0 is an empty place.
type Bucket = [u64; WAYS];

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

    fn bucket(&self, ghost: u64) -> usize {
        (ghost >> self.shift) as usize
    }

    pub(crate) fn knows(&self, key: &Key) -> bool {
        let ghost = ghost(key);
        self.buckets[self.bucket(ghost)].contains(&ghost)
    }

    /// The youngest of its bucket from now on; the oldest is forgotten if the bucket was full.
    pub(crate) fn remember(&mut self, key: &Key) {
        let ghost = ghost(key);
        let at = self.bucket(ghost);
        let bucket = &mut self.buckets[at];
        let place = bucket.iter().position(|&other| other == ghost);
        bucket[..=place.unwrap_or(WAYS - 1)].rotate_right(1);
        bucket[0] = ghost;
    }

    /// Gives a ghost's place up, for its block is back; whether there was one.
    pub(crate) fn take(&mut self, key: &Key) -> bool {
        let ghost = ghost(key);
        let at = self.bucket(ghost);
        let bucket = &mut self.buckets[at];
        let Some(place) = bucket.iter().position(|&other| other == ghost) else {
            return false;
        };
        bucket[place..].rotate_left(1);
        bucket[WAYS - 1] = 0;
        true
    }
}

fn ghost(key: &Key) -> u64 {
    mix(key).max(1)
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
        ghosts.remember(&key(1));
        ghosts.remember(&key(1));
        assert!(ghosts.knows(&key(1)) && !ghosts.knows(&key(2)));
        assert!(
            ghosts.take(&key(1)),
            "one place, however often it was dropped"
        );
        assert!(!ghosts.knows(&key(1)) && !ghosts.take(&key(1)));
    }

    #[test]
    fn the_oldest_of_a_full_bucket_is_forgotten_first() {
        let mut ghosts = Ghosts::new(16).unwrap();
        let bucket = |n: u32| mix(&key(n)) >> 63;
        let own: Vec<u32> = (0..100).filter(|&n| bucket(n) == 0).collect();
        for &n in &own[..WAYS] {
            ghosts.remember(&key(n));
        }
        // Dropped again, so that it is the youngest.
        ghosts.remember(&key(own[0]));
        ghosts.remember(&key(own[WAYS]));
        let known: Vec<u32> = own
            .iter()
            .copied()
            .filter(|&n| ghosts.knows(&key(n)))
            .collect();
        let but_the_oldest: Vec<u32> = (0..=WAYS).filter(|&at| at != 1).map(|at| own[at]).collect();
        assert_eq!(known, but_the_oldest);
        assert!(ghosts.take(&key(own[3])));
        ghosts.remember(&key(own[9]));
        assert!(
            ghosts.knows(&key(own[2])),
            "the place that was given up is used first"
        );
    }

    #[test]
    fn most_of_as_many_keys_as_there_is_room_for_are_known() {
        let mut ghosts = Ghosts::new(1 << 14).unwrap();
        (0..1 << 13).for_each(|n| ghosts.remember(&key(n)));
        let known = (0..1 << 13).filter(|&n| ghosts.knows(&key(n))).count();
        assert!(known > 8000, "{known} of 8192");
    }
}
