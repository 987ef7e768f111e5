//! Hints: what a caller knows of a request's future when it ends. They may be wrong, and none is a
//! promise: what a hint is worth, an eviction order that heeds it learns.

use crate::base::{Error, Result};

/// What the caller knows of a sequence's future when it finishes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Retention {
    /// Its session has ended: what no other sequence shares is not expected to be used again.
    SessionEnded,
    /// Nothing is known.
    #[default]
    Ordinary,
    /// It will come back.
    Retain,
}

/// In how long the blocks of a request will be used again, as its caller expects, in steps four
/// times as long as the one before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NextUse(u8);

impl NextUse {
    /// How many steps there are.
    pub const STEPS: u8 = 7;
    /// The first step ends here.
    const FIRST_MILLIS: u64 = 2_000;

    /// In so many milliseconds. A step ends at 2, 8, 32, 128, 512 and 2,048 seconds; the last has
    /// no end.
    pub fn in_millis(millis: u64) -> Self {
        let fours = (millis / Self::FIRST_MILLIS).max(1).ilog2() / 2;
        let within = u32::from(millis >= Self::FIRST_MILLIS);
        Self((fours + within).min(u32::from(Self::STEPS) - 1) as u8)
    }

    /// This step, or the last.
    pub(crate) fn of_step(step: u8) -> Self {
        Self(step.min(Self::STEPS - 1))
    }

    /// Its step, below [`Self::STEPS`].
    pub fn step(self) -> u8 {
        self.0
    }
}

/// How much a request's blocks are worth beside others, as its caller says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Priority(u8);

impl Priority {
    /// The highest.
    pub const MOST: u8 = 100;

    /// This priority.
    ///
    /// # Errors
    /// `Argument` for one above [`Self::MOST`].
    pub fn new(priority: u64) -> Result<Self> {
        if priority <= u64::from(Self::MOST) {
            return Ok(Self(priority as u8));
        }
        let help = "a priority is an integer from 0 to 100; 35 where none is given";
        Err(Error::argument("priority", priority, help))
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }
}

/// Where nothing is said: what TensorRT-LLM's `RetentionPriority` has as its default, so that the same
/// numbers say the same.
impl Default for Priority {
    fn default() -> Self {
        Self(35)
    }
}

/// All that a caller says of a request's future when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Hints {
    /// Whether its session goes on.
    pub retention: Retention,
    /// In how long its blocks will be used again.
    pub next_use: Option<NextUse>,
    /// What its blocks are worth, for the heap.
    pub priority: Option<Priority>,
    /// After how many ticks its blocks go first, for the heap. The order's clock ticks once for each
    /// block that a request has used, when that ends. Where neither is said, they stay worth what the
    /// request before said.
    pub ttl: Option<u32>,
}

impl From<Retention> for Hints {
    fn from(retention: Retention) -> Self {
        Self {
            retention,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_next_use_is_four_times_as_long_as_the_one_before() {
        let step = |seconds: u64| NextUse::in_millis(seconds * 1000).step();
        let first: Vec<u8> = [0, 1, 2, 7, 8, 31, 32].map(step).to_vec();
        assert_eq!(first, [0, 0, 1, 1, 2, 2, 3]);
        assert_eq!([127, 128, 512, 2048].map(step), [3, 4, 5, 6]);
        assert_eq!(NextUse::in_millis(u64::MAX).step(), NextUse::STEPS - 1);
    }

    #[test]
    fn a_priority_beyond_its_range_is_refused_with_the_range() {
        assert_eq!(Priority::new(100).map(Priority::get), Ok(100));
        let error = Priority::new(101).expect_err("too high").to_string();
        assert!(
            error.contains("101") && error.contains("0 to 100"),
            "{error}"
        );
    }
}
