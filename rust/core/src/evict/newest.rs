//! What was computed last goes first, once the cache is full; what was found stays, and among that
//! the order is by recency.
//!
//! A loop that is longer than the cache finds nothing under recency, since each block goes right
//! before its turn. Here a part of the loop stays, as large as the cache (MRU: Chou and `DeWitt`, 1985).

use super::usage::Usage;
use crate::base::Result;
use crate::evict::order::Order;

#[derive(Hash, Debug, Default)]
pub(crate) struct Newest {
    /// Whether anything was evicted yet.
    full: bool,
}

impl Newest {
    /// The list of what stays.
    pub(crate) const STAYS: u8 = 0;
    /// The list of what goes first.
    pub(crate) const PASSES: u8 = 1;
}

impl Order for Newest {
    const CLASSES: usize = 2;

    fn new(_slots: usize) -> Result<Self> {
        Ok(Self::default())
    }

    fn resize(&mut self, _slots: usize) {
        self.full = false;
    }

    fn class(&self, usage: Usage) -> u8 {
        if usage.found() || !self.full {
            Self::STAYS
        } else {
            Self::PASSES
        }
    }

    fn value(&self, class: u8, age: u32) -> u32 {
        if class == Self::PASSES {
            0
        } else {
            u32::MAX - age
        }
    }

    fn evicted(&mut self, _class: u8) {
        self.full = true;
    }
}

#[cfg(test)]
mod tests {
    use super::Newest;
    use crate::evict::order::Order;
    use crate::evict::usage::{Hint, Usage};

    #[test]
    fn what_is_computed_in_a_full_cache_goes_first() {
        let mut order = Newest::new(8).expect("no memory is asked for");
        let computed = Usage::told(1, 0, false, Hint::None);
        let found = Usage::told(computed.uses(), computed.length(), true, computed.hint());
        assert_eq!(order.class(computed), Newest::STAYS);
        order.evicted(Newest::STAYS);
        assert_eq!(order.class(computed), Newest::PASSES);
        assert_eq!(order.class(found), Newest::STAYS);
        assert!(order.value(Newest::PASSES, 0) < order.value(Newest::STAYS, 1000));
        order.resize(9);
        assert_eq!(order.class(computed), Newest::STAYS);
    }
}
