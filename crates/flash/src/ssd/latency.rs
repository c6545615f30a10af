//! How long requests took in virtual time.

use crate::RequestKind;
use hdrhistogram::Histogram;
use std::time::Duration;

/// Nanoseconds; what takes longer counts as this.
const LONGEST: u64 = 1_000_000_000_000;

/// Latencies of requests of one kind, to three digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Requests.
    pub count: u64,
    /// Mean.
    pub mean: Duration,
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// 99.9th percentile.
    pub p999: Duration,
    /// The longest.
    pub max: Duration,
}

/// One histogram of nanoseconds for each kind.
#[derive(Clone, Debug)]
pub(super) struct Latencies {
    read: Histogram<u64>,
    write: Histogram<u64>,
    command: Histogram<u64>,
}

impl Latencies {
    pub(super) fn new() -> Self {
        let empty = || Histogram::new_with_bounds(1, LONGEST, 3).expect("these bounds are possible");
        Self { read: empty(), write: empty(), command: empty() }
    }

    fn of(&mut self, kind: RequestKind) -> &mut Histogram<u64> {
        match kind {
            RequestKind::Read => &mut self.read,
            RequestKind::Write => &mut self.write,
            RequestKind::Command => &mut self.command,
        }
    }

    pub(super) fn note(&mut self, kind: RequestKind, latency: Duration) {
        self.of(kind).saturating_record(latency.as_nanos().min(u128::from(LONGEST)) as u64);
    }

    pub(super) fn clear(&mut self) {
        for histogram in [&mut self.read, &mut self.write, &mut self.command] {
            histogram.clear();
        }
    }

    pub(super) fn get(&mut self, kind: RequestKind) -> Latency {
        let histogram = self.of(kind);
        let at = |share| Duration::from_nanos(histogram.value_at_quantile(share));
        Latency {
            count: histogram.len(),
            mean: Duration::from_nanos(histogram.mean() as u64),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: Duration::from_nanos(histogram.max()),
        }
    }
}
