//! By recency, but what was used more than once counts as younger by one turnover: by as many uses
//! as the cache has slots. A block that came back has shown that it may come back again.

use super::usage::Usage;
use crate::base::Result;
use crate::evict::order::Order;

#[derive(Hash, Debug)]
pub(crate) struct Bonus {
    turnover: u32,
}

impl Bonus {
    /// The list of what was used once.
    pub(crate) const ONCE: u8 = 0;
    /// The list of what was used again.
    pub(crate) const AGAIN: u8 = 1;

    /// For a cache of so many slots.
    pub(crate) fn of(slots: usize) -> Self {
        let turnover = u32::try_from(slots).unwrap_or(u32::MAX);
        Self { turnover }
    }
}

impl Order for Bonus {
    const CLASSES: usize = 2;

    fn new(slots: usize) -> Result<Self> {
        Ok(Self::of(slots))
    }

    fn resize(&mut self, slots: usize) {
        *self = Self::of(slots);
    }

    fn class(&self, usage: Usage) -> u8 {
        if usage.uses() > 1 {
            Self::AGAIN
        } else {
            Self::ONCE
        }
    }

    fn value(&self, class: u8, age: u32) -> u32 {
        let bonus = if class == Self::AGAIN {
            0
        } else {
            self.turnover
        };
        u32::MAX - age.saturating_add(bonus)
    }
}

#[cfg(test)]
mod tests {
    use super::Bonus;
    use crate::evict::order::Order;
    use crate::evict::usage::{Hint, Usage};

    /// Law: INV-20h
    #[test]
    fn what_was_used_again_counts_as_younger_by_a_turnover() {
        let mut order = Bonus::new(100).expect("no memory is asked for");
        let once = order.class(Usage::told(1, 0, false, Hint::None));
        let again = order.class(Usage::told(2, 0, false, Hint::None));
        assert_eq!((once, again), (Bonus::ONCE, Bonus::AGAIN));
        assert_eq!(order.value(again, 107), order.value(once, 7));
        order.resize(200);
        assert_eq!(order.value(again, 207), order.value(once, 7));
        assert_eq!(order.value(once, u32::MAX), 0);
    }
}
