//! A breaker: after failures in a row a disk or a store is left alone for a while, and then tried again.

use std::time::{Duration, Instant};

/// Whether a disk or a store is to be asked.
#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    most: u32,
    first: Duration,
    failures: u32,
    rest: Duration,
    until: Option<Instant>,
    /// How often it has rested since something was good.
    rests: u32,
}

/// The longest rest.
const LONGEST: Duration = Duration::from_secs(60);

/// Rests in a row after which a disk counts as dead: a minute, where the first takes half a second.
const DEAD: u32 = 8;

impl Breaker {
    /// One that rests after so many failures, for this long at first.
    pub fn new(most: u32, first: Duration) -> Self {
        Self {
            most: most.max(1),
            first,
            failures: 0,
            rest: first,
            until: None,
            rests: 0,
        }
    }

    /// Whether it rests now. When a rest is over the disk is asked again, and one more failure is enough.
    pub fn rests(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether each try has failed for so long that there is no hope. It is tried on even so.
    pub(crate) fn is_dead(&self) -> bool {
        self.rests >= DEAD
    }

    /// Whether it is asked as ever: it has not failed so often in a row since it was last good.
    pub fn is_well(&self) -> bool {
        self.failures < self.most
    }

    /// Lets it rest from now on, as after failures in a row.
    pub fn trip(&mut self, now: Instant) {
        self.failures = self.failures.max(self.most - 1);
        self.note(false, now);
    }

    /// The disk lives, as something else that it was asked was good: it is not dead.
    pub(crate) fn hope(&mut self) {
        self.rests = 0;
    }

    /// Takes note of an answer of the disk or store.
    pub fn note(&mut self, good: bool, now: Instant) {
        if good {
            *self = Self::new(self.most, self.first);
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.most && !self.rests(now) {
            self.until = Some(now + self.rest);
            self.rest = (2 * self.rest).min(LONGEST);
            self.rests = self.rests.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_after_failures_in_a_row_and_longer_each_time() {
        let second = Duration::from_secs(1);
        let (mut breaker, start) = (Breaker::new(2, second), Instant::now());
        breaker.note(false, start);
        breaker.note(true, start);
        breaker.note(false, start);
        assert!(!breaker.rests(start), "they were not in a row");
        breaker.note(false, start);
        assert!(breaker.rests(start) && !breaker.rests(start + second));
        breaker.note(false, start + second);
        assert!(breaker.rests(start + 2 * second), "one is enough then");
        assert!(!breaker.rests(start + 3 * second));
        let mut now = start;
        for _ in 0..20 {
            breaker.note(false, now);
            now += 2 * LONGEST;
        }
        breaker.note(false, now);
        assert!(!breaker.rests(now + LONGEST));
        breaker.note(true, now);
        assert!(!breaker.rests(now));
    }

    #[test]
    fn it_is_dead_after_so_many_rests_in_a_row() {
        let (mut breaker, mut now) = (Breaker::new(1, Duration::from_millis(500)), Instant::now());
        let start = now;
        while !breaker.is_dead() {
            breaker.note(false, now);
            while breaker.rests(now) && !breaker.is_dead() {
                breaker.note(false, now);
                now += Duration::from_millis(100);
            }
        }
        let took = now - start;
        assert!((60..70).contains(&took.as_secs()), "{took:?}");
        breaker.note(true, now);
        assert!(!breaker.is_dead());
    }
}
