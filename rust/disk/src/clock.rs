//! Time that comes from outside.

use std::time::{Duration, Instant};

/// The time that somebody was told last, which never runs back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    now: Instant,
    said: Option<f64>,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// One that was told nothing yet.
    pub fn new() -> Self {
        Self {
            now: Instant::now(),
            said: None,
        }
    }

    /// What time it is. Only differences mean something.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Turns it on, by seconds of any clock. One that was set back by a second or more counts from there on.
    pub fn turn(&mut self, said: f64) {
        if !said.is_finite() {
            return;
        }
        let passed = said - self.said.unwrap_or(said);
        let step = Duration::try_from_secs_f64(passed).unwrap_or_default();
        self.now = self.now.checked_add(step).unwrap_or(self.now);
        if passed >= 0.0 || passed <= -1.0 {
            self.said = Some(said);
        }
    }
}
