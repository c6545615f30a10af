//! How long calls took: a histogram of nanoseconds, to three digits.

use hdrhistogram::Histogram;
use std::time::Duration;

/// What takes longer counts as this.
const LONGEST: Duration = Duration::from_secs(600);

/// Counts calls by how long they took.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let made = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3);
        Self(made.expect("the bounds are constants that the crate allows"))
    }
}

impl Latencies {
    /// One more.
    pub fn add(&mut self, took: Duration) {
        self.0.saturating_record((took.as_nanos() as u64).max(1));
    }

    /// All of another.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Microseconds that this share of them did not exceed.
    pub fn micros(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }
}
