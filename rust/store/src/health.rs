//! Whether a store is asked: `well -> (failures in a row, or slow calls) -> resting -> trying (one call) -> well`.

use blockyard_disk::Breaker;
use std::time::{Duration, Instant};

/// Which way a job goes. Each has threads, buffers and a state of its own, so that reads go on where writes hang.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To a store: puts and deletes.
    Down,
    /// From it.
    Up,
}

/// Calls whose times are remembered.
const WINDOW: u128 = (1 << 100) - 1;
/// So many slow ones of these, and the 99th percentile is over the limit.
const SLOW: u32 = 2;

/// Whether a store, or a peer, is asked, one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// It is asked as ever.
    Well,
    /// It has failed, and is not asked.
    Resting,
    /// It has rested, and the next call, or the one that is under way, decides.
    Trying,
}

/// A call that a thread is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) store: usize,
    /// Whether it is the one that tries whether the store works again.
    pub(crate) is_try: bool,
}

/// The state of a store, one way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Health {
    breaker: Breaker,
    limit: Duration,
    /// Which of the last calls were slow.
    slow: u128,
    trying: bool,
}

impl Health {
    /// One that rests after so many failures in a row, for this long at first, or where the 99th percentile of
    /// the last calls took longer than the limit.
    pub(crate) fn new(failures: u32, rest: Duration, limit: Duration) -> Self {
        Self {
            breaker: Breaker::new(failures, rest),
            limit,
            slow: 0,
            trying: false,
        }
    }

    pub(crate) fn rests(&self, now: Instant) -> bool {
        self.breaker.rests(now)
    }

    pub(crate) fn condition(&self, now: Instant) -> Condition {
        if self.rests(now) {
            Condition::Resting
        } else if self.breaker.is_well() {
            Condition::Well
        } else {
            Condition::Trying
        }
    }

    /// Whether a call may be made now.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        !self.rests(now) && (self.breaker.is_well() || !self.trying)
    }

    /// Begins a call of this store, if one may be made now.
    pub(crate) fn ask(&mut self, store: usize, now: Instant) -> Option<Ask> {
        let is_try = !self.breaker.is_well();
        if !self.is_open(now) {
            return None;
        }
        self.trying |= is_try;
        Some(Ask { store, is_try })
    }

    /// Takes note of how a call has ended; returns whether a rest has begun.
    pub(crate) fn note(&mut self, ask: Ask, good: bool, took: Duration, now: Instant) -> bool {
        let before = self.rests(now);
        if ask.is_try {
            self.trying = false;
        } else if good && !self.breaker.is_well() {
            // It began before the failures, and says nothing about now.
            return false;
        }
        let slow = took > self.limit;
        self.slow = (self.slow << 1 | u128::from(slow)) & WINDOW;
        if self.slow.count_ones() >= SLOW {
            self.slow = 0;
            self.breaker.trip(now);
        } else {
            self.breaker.note(good && !(slow && ask.is_try), now);
        }
        !before && self.rests(now)
    }

    /// Takes note that threads hang in it still; returns whether a rest has begun.
    pub(crate) fn note_hung(&mut self, now: Instant) -> bool {
        let before = self.rests(now);
        self.breaker.note(false, now);
        !before && self.rests(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const QUICK: Duration = Duration::ZERO;

    fn health() -> (Health, Instant) {
        (Health::new(3, SECOND / 2, SECOND), Instant::now())
    }

    #[test]
    fn one_call_tries_after_a_rest_and_the_others_wait_for_it() {
        let (mut health, now) = health();
        for failed in 0..3 {
            let ask = health.ask(0, now).unwrap();
            assert_eq!(health.note(ask, false, QUICK, now), failed == 2);
        }
        assert!(health.rests(now) && health.ask(0, now).is_none());
        let later = now + SECOND;
        let first = health.ask(0, later).unwrap();
        assert!(health.ask(0, later).is_none(), "one call tries");
        assert!(health.note(first, false, QUICK, later));
        assert!(
            health.rests(later + SECOND * 9 / 10),
            "twice as long as before"
        );
        let later = later + SECOND;
        let second = health.ask(0, later).unwrap();
        health.note(second, true, QUICK, later);
        assert!(health.ask(0, later).is_some() && health.ask(0, later).is_some());
    }

    #[test]
    fn a_call_that_began_before_the_failures_ends_no_rest_and_no_try() {
        let (mut health, now) = health();
        let old = health.ask(0, now).unwrap();
        for _ in 0..3 {
            let ask = health.ask(0, now).unwrap();
            health.note(ask, false, QUICK, now);
        }
        health.note(old, true, QUICK, now);
        assert!(health.rests(now));
        let later = now + SECOND;
        health.ask(0, later).unwrap();
        health.note(old, true, QUICK, later);
        assert!(health.ask(0, later).is_none(), "the try is under way still");
    }

    #[test]
    fn it_rests_where_two_of_a_hundred_calls_are_slow() {
        let (mut health, now) = health();
        let mut call = |took| {
            let ask = health.ask(0, now).unwrap();
            health.note(ask, true, took, now)
        };
        assert!(!call(2 * SECOND));
        for _ in 0..99 {
            assert!(!call(QUICK));
        }
        assert!(!call(2 * SECOND), "the first is forgotten");
        assert!(!call(SECOND), "at its limit it is not over it");
        assert!(call(2 * SECOND));
    }

    #[test]
    fn a_slow_try_has_failed() {
        let (mut health, now) = health();
        for _ in 0..3 {
            let ask = health.ask(0, now).unwrap();
            health.note(ask, false, QUICK, now);
        }
        let later = now + SECOND;
        let first = health.ask(0, later).unwrap();
        assert!(health.note(first, true, 2 * SECOND, later));
    }
}
