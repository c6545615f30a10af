//! Times in the log: from time to time a record says that it was not written before a moment, so that a backup can be restored to a moment.
//!
//! Invariant: what follows a time, up to the next, was written within [`EVERY`] milliseconds after it, or while the clock stood still.

use crate::clock::Clock;
use std::sync::Arc;

/// Milliseconds (ms) after which the next record has a time again: people tell moments by the second, and a shorter time would make the log longer.
const EVERY: u64 = 1000;

/// When a record was last given a time.
pub(super) struct Times {
    clock: Arc<Clock>,
    last: Option<u64>,
}

impl Times {
    pub fn of(clock: Arc<Clock>) -> Self {
        Self { clock, last: None }
    }

    /// The time for the next record, if it is to have one.
    pub fn next(&mut self) -> Option<u64> {
        let now = self.clock.now();
        if self.last.is_some_and(|last| now < last.saturating_add(EVERY)) {
            return None;
        }
        self.last = Some(now);
        Some(now)
    }

    /// The last records were taken back: perhaps one with a time.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ClockSource;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_second_after_a_time_there_is_another() {
        let time = Arc::new(AtomicU64::new(5000));
        let source = Arc::clone(&time);
        let source = ClockSource(Arc::new(move || UNIX_EPOCH + Duration::from_millis(source.load(Relaxed))));
        let mut times = Times::of(Arc::new(Clock::new(source, 0)));
        let mut next_at = |now| {
            time.store(now, Relaxed);
            times.next()
        };
        assert_eq!(
            [5000, 5001, 5999, 6000, 6001, 9000].map(&mut next_at),
            [Some(5000), None, None, Some(6000), None, Some(9000)]
        );
        times.forget();
        assert!(times.next().is_some());
    }
}
