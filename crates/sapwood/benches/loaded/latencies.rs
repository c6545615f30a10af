//! How long calls took: a histogram of nanoseconds, to three digits, and what the longest of them come to.

use super::stalls::Stalls;
use hdrhistogram::Histogram;
use std::time::Duration;

/// What takes longer counts as this.
const LONGEST: Duration = Duration::from_secs(600);

/// Counts calls by how long they took.
pub struct Latencies {
    counts: Histogram<u64>,
    pub stalls: Stalls,
}

impl Default for Latencies {
    fn default() -> Self {
        let made = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3);
        let counts = made.expect("the bounds are constants that the crate allows");
        Self { counts, stalls: Stalls::default() }
    }
}

impl Latencies {
    /// One more.
    pub fn add(&mut self, took: Duration) {
        self.counts.saturating_record((took.as_nanos() as u64).max(1));
        self.stalls.add(took);
    }

    /// All of another.
    pub fn merge(&mut self, other: &Self) {
        self.counts.add(&other.counts).expect("both have the same bounds");
        self.stalls.merge(&other.stalls);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Microseconds that this share of them did not exceed.
    pub fn micros(&self, share: f64) -> f64 {
        self.counts.value_at_quantile(share) as f64 / 1e3
    }
}
