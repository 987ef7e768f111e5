//! How many parked sequences keep a block, and where: two bytes in its node.

use crate::base::{MAX_TIERS, Tier};

/// How many parked sequences keep a block, and its home: the one tier below the device where it is
/// pinned for them, or owed a slot. Without a keeper it has none. The low bits are the home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct KeepCount(u16);

impl KeepCount {
    const HOME: u16 = 2;
    /// The most sequences that may keep one block.
    pub(crate) const MOST: u16 = u16::MAX >> Self::HOME;

    /// One keeper, and this home.
    #[inline]
    pub(crate) fn one(home: Tier) -> Self {
        Self(1 << Self::HOME | home.at() as u16)
    }

    #[inline]
    pub(crate) fn count(self) -> u16 {
        self.0 >> Self::HOME
    }

    /// The device, where nothing keeps it.
    #[inline]
    pub(crate) fn home(self) -> Tier {
        Tier(usize::from(self.0 & ((1 << Self::HOME) - 1)))
    }

    /// As many keepers, and this home.
    #[inline]
    pub(crate) fn at(self, home: Tier) -> Self {
        Self(self.count() << Self::HOME | home.at() as u16)
    }

    /// One keeper more.
    #[inline]
    pub(crate) fn gain(&mut self) {
        self.0 += 1 << Self::HOME;
    }

    /// One keeper less; with the last one it loses its home.
    #[inline]
    pub(crate) fn lose(&mut self) {
        self.0 -= 1 << Self::HOME;
        if self.count() == 0 {
            self.0 = 0;
        }
    }
}

const _: () = assert!(MAX_TIERS <= 1 << KeepCount::HOME, "a home has two bits");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepers_are_counted_beside_the_home_which_goes_with_the_last() {
        let mut keeps = KeepCount::default().at(Tier::DISK);
        keeps.gain();
        keeps.gain();
        assert_eq!((keeps.count(), keeps.home()), (2, Tier::DISK));
        let mut moved = keeps.at(Tier::HOST);
        assert_eq!((moved.count(), moved.home()), (2, Tier::HOST));
        moved.lose();
        moved.lose();
        assert_eq!(moved, KeepCount::default());
        for _ in 0..KeepCount::MOST - 2 {
            keeps.gain();
        }
        assert_eq!((keeps.count(), keeps.home()), (KeepCount::MOST, Tier::DISK));
    }
}
