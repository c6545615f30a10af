//! What one workload on one store came to, as the process that holds the store saw it.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Latencies are kept from a nanosecond to ten minutes, with three digits; what takes longer counts as ten minutes.
const LONGEST: Duration = Duration::from_secs(600);

/// Counts latencies.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub fn new() -> Self {
        let made = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3);
        Self(made.expect("the bounds are constants that the crate allows"))
    }

    pub fn add(&mut self, took: Duration) {
        self.0.saturating_record((took.as_nanos() as u64).max(1));
    }

    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    pub fn latency(&self) -> Latency {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Latency { p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us: at(1.0) }
    }
}

/// Latencies of a workload's calls, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the calls took less.
    pub p50_us: f64,
    /// 99 of 100 calls took less.
    pub p99_us: f64,
    /// 999 of 1000 calls took less.
    pub p999_us: f64,
    /// The longest call: the longest that anybody stood still.
    pub max_us: f64,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Operations, in the workload's unit.
    pub operations: u64,
    /// Operations of the warm-up, which are not among those: processor time is of both. Nothing if it was not recorded, or is not
    /// all that took such time: transactions are checked by reading all records, before and after.
    #[serde(default)]
    pub warm_up_operations: Option<u64>,
    /// Calls that they took; a batch, a multi_get and a scan are one call.
    pub calls: u64,
    /// Seconds from the first call to the last one's end, a closing sync included where there is one.
    pub seconds: f64,
    /// Bytes of keys and values that the calls wrote (of a removal: the record's), those of the warm-up among them: the device counts its traffic as well.
    pub bytes_written: u64,
    /// Bytes of keys and values that the calls read, likewise.
    pub bytes_read: u64,
    /// Latencies of the calls.
    pub latency: Latency,
    /// The share of the work that was done when the time ended: 1 if all of it was.
    pub done: f64,
    /// How often transactions were run again, since others had changed what they read.
    #[serde(default)]
    pub conflicts: u64,
}

impl Outcome {
    /// Operations a second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.operations as f64 / self.seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_all_that_was_added() {
        let (mut one, mut other) = (Latencies::new(), Latencies::new());
        for micros in 1..=500 {
            one.add(Duration::from_micros(micros));
            other.add(Duration::from_micros(500 + micros));
        }
        other.add(Duration::from_secs(3600));
        one.merge(&other);
        let latency = one.latency();
        assert!((latency.p50_us / 501.0 - 1.0).abs() < 0.01, "{latency:?}");
        assert!((latency.p99_us / 991.0 - 1.0).abs() < 0.01, "{latency:?}");
        assert!(latency.max_us >= 599e6 && latency.p999_us < 1100.0, "{latency:?}");
    }
}
