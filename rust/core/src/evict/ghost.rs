//! Ghosts: the keys of blocks that were dropped from every tier and how often they had been used, so that
//! a block which is computed again is known to have been wanted before.
//!
//! A fixed array of buckets; within a bucket the oldest is forgotten first. Nothing is ever rehashed.
//! Of a key there are so many bits that two of a bucket pass for one now and then: a block is then copied
//! down for nothing, or kept for longer than it is worth, and never served for another.

use crate::base::{Key, Result, memory};
use crate::collections::mix;
use std::fmt::Debug;
use std::hash::Hash;

const WAYS: usize = 16;
/// Bits below those of the key: how often it was used, from once to four times or more.
const USES: u32 = 2;
const MOST: u8 = 1 << USES;

/// A place for a ghost; its default is an empty one.
trait Way: Copy + Default + Debug + Hash {
    /// The key's bits, never all 0, and the uses.
    fn of(mixed: u64, uses: u8) -> Self;
    fn bits(self) -> u32;
    fn is(self, other: Self) -> bool;

    fn uses(self) -> u8 {
        (self.bits() & ((1 << USES) - 1)) as u8 + 1
    }
}

fn bits(mixed: u64, width: u32, uses: u8) -> u32 {
    let own = (mixed as u32 & (((1_u64 << width) - 1) as u32)) >> USES;
    own.max(1) << USES | u32::from(uses.clamp(1, MOST) - 1)
}

impl Way for u32 {
    fn of(mixed: u64, uses: u8) -> Self {
        bits(mixed, Self::BITS, uses)
    }
    fn bits(self) -> u32 {
        self
    }
    fn is(self, other: Self) -> bool {
        self ^ other < 1 << USES
    }
}

impl Way for u16 {
    fn of(mixed: u64, uses: u8) -> Self {
        bits(mixed, Self::BITS, uses) as Self
    }
    fn bits(self) -> u32 {
        self.into()
    }
    fn is(self, other: Self) -> bool {
        self ^ other < 1 << USES
    }
}

/// In each the youngest comes first.
#[derive(Hash, Debug)]
struct Buckets<W>(Vec<[W; WAYS]>);

impl<W: Way> Buckets<W> {
    fn new(keys: u32) -> Result<Self> {
        let buckets = count(keys);
        memory::filled(buckets, [W::default(); WAYS], "the ghosts").map(Self)
    }

    /// Where the bucket of a key is: by its high bits, the low ones tell it from others there.
    fn at(&self, mixed: u64) -> usize {
        (((mixed >> 32) * self.0.len() as u64) >> 32) as usize
    }

    fn uses(&self, mixed: u64) -> Option<u8> {
        let ghost = W::of(mixed, 0);
        let bucket = &self.0[self.at(mixed)];
        Some(bucket[place(bucket, ghost)?].uses())
    }

    fn remember(&mut self, mixed: u64, uses: u8) {
        let (at, ghost) = (self.at(mixed), W::of(mixed, uses));
        let bucket = &mut self.0[at];
        let place = place(bucket, ghost).unwrap_or(WAYS - 1);
        bucket.copy_within(..place, 1);
        bucket[0] = ghost;
    }

    fn take(&mut self, mixed: u64) -> Option<u8> {
        let (at, ghost) = (self.at(mixed), W::of(mixed, 0));
        let bucket = &mut self.0[at];
        let place = place(bucket, ghost)?;
        let uses = bucket[place].uses();
        bucket.copy_within(place + 1.., place);
        bucket[WAYS - 1] = W::default();
        Some(uses)
    }
}

/// Where a ghost is in its bucket. All are compared, for that takes no branch.
#[inline]
fn place<W: Way>(bucket: &[W; WAYS], ghost: W) -> Option<usize> {
    let all = bucket.iter().enumerate();
    let bits = all.fold(0_u32, |bits, (at, known)| {
        bits | u32::from(known.is(ghost)) << at
    });
    (bits > 0).then(|| bits.trailing_zeros() as usize)
}

/// How many buckets have room for `keys` keys.
fn count(keys: u32) -> usize {
    (keys as usize).div_ceil(WAYS).max(1)
}

/// With 30 bits of each key, of which one in 67 million passes for another; or with 14, of which one in
/// 1,024 does.
#[derive(Hash, Debug)]
pub(crate) struct Ghosts(Table);

#[derive(Hash, Debug)]
enum Table {
    Sure(Buckets<u32>),
    Small(Buckets<u16>),
}

macro_rules! each {
    ($self:ident, $buckets:ident => $call:expr) => {
        match $self {
            Ghosts(Table::Sure($buckets)) => $call,
            Ghosts(Table::Small($buckets)) => $call,
        }
    };
}

impl Ghosts {
    /// Room for `keys` keys or a few more. `sure`: a write depends on each.
    pub(crate) fn new(keys: u32, sure: bool) -> Result<Self> {
        Ok(Self(if sure {
            Table::Sure(Buckets::new(keys)?)
        } else {
            Table::Small(Buckets::new(keys)?)
        }))
    }

    /// Bytes that room for `keys` keys takes.
    pub(crate) fn bytes(keys: u32, sure: bool) -> usize {
        let way = if sure {
            size_of::<u32>()
        } else {
            size_of::<u16>()
        };
        count(keys) * WAYS * way
    }

    pub(crate) fn knows(&self, key: &Key) -> bool {
        self.uses(key).is_some()
    }

    /// How often a block that was dropped had been used, if that is known.
    pub(crate) fn uses(&self, key: &Key) -> Option<u8> {
        each!(self, buckets => buckets.uses(mix(key)))
    }

    /// The youngest of its bucket from now on; the oldest is forgotten if the bucket was full.
    pub(crate) fn remember(&mut self, key: &Key, uses: u8) {
        each!(self, buckets => buckets.remember(mix(key), uses));
    }

    /// Gives a ghost's place up, for its block is back; how often it had been used, if there was one.
    pub(crate) fn take(&mut self, key: &Key) -> Option<u8> {
        each!(self, buckets => buckets.take(mix(key)))
    }
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
        for sure in [true, false] {
            let mut ghosts = Ghosts::new(64, sure).unwrap();
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
    }

    #[test]
    fn the_oldest_of_a_full_bucket_is_forgotten_first() {
        let mut ghosts = Ghosts::new(32, true).unwrap();
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
        let mut ghosts = Ghosts::new(1 << 14, true).unwrap();
        (0..1 << 13).for_each(|n| ghosts.remember(&key(n), 1));
        let known = (0..1 << 13).filter(|&n| ghosts.knows(&key(n))).count();
        assert!(known > 8000, "{known} of 8192");
        let mut small = Ghosts::new(1 << 14, false).unwrap();
        (0..1 << 13).for_each(|n| small.remember(&key(n), 1));
        let wrong = (1 << 20..(1 << 20) + (1 << 13)).filter(|&n| small.knows(&key(n)));
        let wrong = wrong.count();
        assert!(wrong < 64, "{wrong} of 8192 pass for another");
    }
}
