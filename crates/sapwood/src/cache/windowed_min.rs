//! The windowed minimum of the capacity: the least that the cache has had in the last few seconds.
//!
//! ```text
//! capacity   ▔▔▔▔▔▔╲▁▁╱▔▔▔▔▔╲▁▁╱▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔     each flush takes memory and returns it
//! minimum    ▔▔▔▔▔▔╲▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁╱▔▔     from `SPAN` to twice that long after the last one
//! ```
//!
//! Invariant: it is never more than the capacity.

use std::time::Duration;

/// The least is known for this and for the span before: must be longer than from one flush to the next under load.
const SPAN: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WindowedMin {
    /// When this span began.
    began: Duration,
    /// The least of the span before, and of this one. `None`: nothing is known.
    least: Option<(u64, u64)>,
}

impl WindowedMin {
    /// The windowed minimum of the capacity, if the capacity is `now` at a time `at`, and was so since this was called last.
    pub fn of(&mut self, capacity: u64, at: Duration) -> u64 {
        let (before, this) = self.least.unwrap_or((capacity, capacity));
        let this = this.min(capacity);
        let (before, this) = match at.saturating_sub(self.began) {
            passed if passed < SPAN => (before, this),
            passed if passed < 2 * SPAN => (this, capacity),
            _ => (capacity, capacity),
        };
        if at.saturating_sub(self.began) >= SPAN {
            self.began = at;
        }
        self.least = Some((before, this));
        before.min(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_less_counts_at_once_and_what_is_more_when_it_lasts() {
        let mut minimum = WindowedMin::default();
        let mut of = |capacity, ms| minimum.of(capacity, Duration::from_millis(ms));
        assert_eq!(of(100, 10), 100);
        assert_eq!(of(60, 20), 60);
        for flush in 0..20 {
            assert_eq!(of(100, flush * 1000 + 600), 60, "flush {flush}");
            assert_eq!(of(60, flush * 1000 + 900), 60, "flush {flush}");
        }
        assert_eq!(of(100, 20_000), 60);
        let lasts = (20_000..40_000).step_by(100).find(|ms| of(100, *ms) == 100);
        let after = lasts.expect("it lasts") - 19_900;
        assert!((3_000..6_200).contains(&after), "{after} ms after the last flush ended");
        assert_eq!(of(99, 40_000), 99);
    }

    #[test]
    fn a_long_time_without_a_change_is_as_good_as_many_calls() {
        let mut minimum = WindowedMin::default();
        minimum.of(50, Duration::ZERO);
        minimum.of(100, Duration::from_secs(1));
        assert_eq!(minimum.of(100, Duration::from_secs(60)), 100);
    }
}
