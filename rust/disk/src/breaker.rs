//! A breaker: after failures in a row a disk is left alone for a while, and then tried again.

use std::time::{Duration, Instant};

/// Whether a disk is to be asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Breaker {
    most: u32,
    first: Duration,
    failures: u32,
    rest: Duration,
    until: Option<Instant>,
}

/// The longest rest.
const LONGEST: Duration = Duration::from_secs(60);

impl Breaker {
    /// One that rests after so many failures, for this long at first.
    pub(crate) fn new(most: u32, first: Duration) -> Self {
        Self {
            most: most.max(1),
            first,
            failures: 0,
            rest: first,
            until: None,
        }
    }

    /// Whether it rests now. When a rest is over the disk is asked again, and one more failure is enough.
    pub(crate) fn rests(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Takes note of an answer of the disk.
    pub(crate) fn note(&mut self, good: bool, now: Instant) {
        if good {
            *self = Self::new(self.most, self.first);
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.most && !self.rests(now) {
            self.until = Some(now + self.rest);
            self.rest = (2 * self.rest).min(LONGEST);
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
}
