//! Latency histograms: how long operations take, by kind. Off unless [`Builder::latencies`](crate::Builder::latencies) asks for
//! them; then each operation tests a pointer.
//!
//! To time an operation is to read the clock twice, some 50 ns. Gets and steps of scans can be as short as 100 ns, so only one in [`SAMPLED`]
//! of them is timed, which costs a few nanoseconds on average. Everything else is timed each time.
//!
//! Invariants:
//! 1. An operation is recorded once, when it ends, whether it succeeds or fails; a flush only when it is in the trees.
//! 2. What is recorded is never taken back: counts and sums only grow.

use crate::durability::Durability;
use histogram::{AtomicHistogram, Config, Histogram};
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// One get in so many is timed, and one step of a scan (count). A prime, so that no loop of a program falls in step with it.
pub(crate) const SAMPLED: u32 = 13;

/// 32 buckets for each power of two, an error of 3 percent, up to 2^40 ns, which are 18 minutes: 9 KiB a histogram.
const BUCKETS: Config = match Config::new(5, 40) {
    Ok(config) => config,
    Err(_) => panic!("no such histogram"),
};
/// The longest time that is told from others, 2^40 ns: what takes longer is recorded as this.
const LONGEST: u64 = (1 << 40) - 1;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timed {
    Get,
    MultiGet,
    ScanStep,
    CommitImmediate,
    CommitBuffered,
    CommitNone,
    Flush,
    LogSync,
    DataSync,
    Read,
}

impl Timed {
    pub const ALL: [Self; 10] = [
        Self::Get,
        Self::MultiGet,
        Self::ScanStep,
        Self::CommitImmediate,
        Self::CommitBuffered,
        Self::CommitNone,
        Self::Flush,
        Self::LogSync,
        Self::DataSync,
        Self::Read,
    ];

    /// A commit of this durability.
    pub fn commit(durability: Durability) -> Self {
        match durability {
            Durability::Immediate => Self::CommitImmediate,
            Durability::Buffered => Self::CommitBuffered,
            Durability::None => Self::CommitNone,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::MultiGet => "multi_get",
            Self::ScanStep => "scan_step",
            Self::CommitImmediate => "commit_immediate",
            Self::CommitBuffered => "commit_buffered",
            Self::CommitNone => "commit_none",
            Self::Flush => "flush",
            Self::LogSync => "log_sync",
            Self::DataSync => "data_sync",
            Self::Read => "read",
        }
    }

    fn sampled(self) -> u32 {
        match self {
            Self::Get | Self::ScanStep => SAMPLED,
            _ => 1,
        }
    }
}

/// The histograms of a database, or none. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(Option<Arc<[Recorder; Timed::ALL.len()]>>);

/// What was recorded of one kind.
#[derive(Debug)]
struct Recorder {
    buckets: AtomicHistogram,
    sum_ns: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { buckets: AtomicHistogram::with_config(&BUCKETS), sum_ns: AtomicU64::new(0) }
    }
}

impl Recorder {
    fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(LONGEST).min(LONGEST);
        self.sum_ns.fetch_add(ns, Relaxed);
        // No value is out of range.
        let _ = self.buckets.increment(ns);
    }
}

impl Latencies {
    /// Histograms without any times yet.
    pub fn on() -> Self {
        Self(Some(Arc::default()))
    }

    /// When an operation begins that is to be timed until [`Latencies::end`]; `None` if it is not.
    #[inline]
    pub fn begin(&self, what: Timed) -> Option<Instant> {
        if self.0.is_some() && is_due(what) { Some(Instant::now()) } else { None }
    }

    /// Records an operation of this kind, if it is timed.
    #[inline]
    pub fn end(&self, what: Timed, began: Option<Instant>) {
        if let (Some(recorders), Some(began)) = (&self.0, began) {
            recorders[what as usize].record(began.elapsed());
        }
    }

    /// Times a call.
    #[inline]
    pub fn timed<T>(&self, what: Timed, call: impl FnOnce() -> T) -> T {
        let began = self.begin(what);
        let result = call();
        self.end(what, began);
        result
    }

    /// What was recorded, if anything is.
    pub fn all(&self) -> Option<Vec<Latency>> {
        let recorders = self.0.as_deref()?;
        let of = |what: Timed| {
            let Recorder { buckets, sum_ns } = &recorders[what as usize];
            let buckets = buckets.load();
            let sum = Duration::from_nanos(sum_ns.load(Relaxed));
            Latency { what: what.name(), sampled: what.sampled(), buckets, sum }
        };
        Some(Timed::ALL.into_iter().map(of).collect())
    }
}

/// Whether this operation is one of those that are timed.
#[inline(never)]
fn is_due(what: Timed) -> bool {
    thread_local!(static LEFT: Cell<u32> = const { Cell::new(0) });
    if what.sampled() == 1 {
        return true;
    }
    let left = LEFT.get();
    LEFT.set(left.checked_sub(1).unwrap_or(what.sampled() - 1));
    left == 0
}

/// How long one kind of operation took since the database was opened, as a histogram. In
/// [`Stats::latencies`](crate::Stats::latencies).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let db = sapwood::Database::builder().latencies(true).open(dir.path().join("ships.db"))?;
/// db.keyspace("ships")?.insert("fram", "1892")?;
/// let latencies = db.stats().latencies.expect("they were asked for");
/// let commit = latencies.iter().find(|latency| latency.name() == "commit_immediate").expect("a kind");
/// println!("{} commits, half of them within {:?}", commit.count(), commit.quantile(0.5).expect("there are some"));
/// # assert_eq!(commit.count(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    what: &'static str,
    sampled: u32,
    buckets: Histogram,
    sum: Duration,
}

impl Latency {
    /// What was timed:
    ///
    /// | name | from beginning to end of |
    /// |---|---|
    /// | `get` | the get of one key |
    /// | `multi_get` | the get of several keys |
    /// | `scan_step` | a step of a range, if it takes more than the next record of the node at hand |
    /// | `commit_immediate`, `commit_buffered`, `commit_none` | a commit of that durability, the wait for room and for others included |
    /// | `flush` | what brings a full queue to the trees, without the cleansing behind it |
    /// | `log_sync`, `data_sync` | a sync of the log for a group of commits; of the data for an edit |
    /// | `read` | the wait for a set of parallel reads of nodes |
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().latencies(true).open(dir.path().join("ships.db"))?;
    /// let names: Vec<_> = db.stats().latencies.expect("asked for").iter().map(|latency| latency.name()).collect();
    /// assert!(names.contains(&"get") && names.contains(&"log_sync"));
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &'static str {
        self.what
    }

    /// One operation in so many was timed: 13 for `get` and `scan_step`, which are too short to time each, and 1 for the others.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().latencies(true).open(dir.path().join("ships.db"))?;
    /// let get = &db.stats().latencies.expect("asked for")[0];
    /// println!("about {} gets", get.count() * u64::from(get.sampled()));
    /// # Ok(()) }
    /// ```
    pub fn sampled(&self) -> u32 {
        self.sampled
    }

    /// How many operations were timed.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().latencies(true).open(dir.path().join("ships.db"))?;
    /// assert!(db.stats().latencies.expect("asked for").iter().all(|latency| latency.name() != "get" || latency.count() == 0));
    /// # Ok(()) }
    /// ```
    pub fn count(&self) -> u64 {
        self.buckets.as_slice().iter().sum()
    }

    /// The sum of all times.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().latencies(true).open(dir.path().join("ships.db"))?;
    /// # db.keyspace("ships")?.insert("fram", "1892")?;
    /// for latency in db.stats().latencies.expect("asked for").iter().filter(|latency| latency.count() > 0) {
    ///     println!("{}: {:?} on average", latency.name(), latency.sum().div_f64(latency.count() as f64));
    /// }
    /// # Ok(()) }
    /// ```
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The time within which this part (0 to 1) of the operations ended, up to 3 percent too long; `None` if there were none, or
    /// there is no such part.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().latencies(true).open(dir.path().join("ships.db"))?;
    /// # db.keyspace("ships")?.insert("fram", "1892")?;
    /// for latency in db.stats().latencies.expect("asked for") {
    ///     println!("{}: 99.9 percent within {:?}", latency.name(), latency.quantile(0.999));
    /// }
    /// # Ok(()) }
    /// ```
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let bucket = self.buckets.quantile_bucket(part).ok()??;
        Some(Duration::from_nanos(bucket.end()))
    }

    /// How many of the timed operations ended within `time`, as far as buckets tell: one that ends in the bucket of `time` may
    /// not count.
    pub(crate) fn within(&self, time: Duration) -> u64 {
        let most = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets.iter().take_while(|bucket| bucket.end() <= most).map(|bucket| bucket.count()).sum()
    }
}

/// As count, sum and some quantiles, in microseconds; quantiles are absent while there is nothing.
impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quantile = |part| self.quantile(part).map(|time| time.as_nanos() as f64 / 1000.0);
        let mut fields = serializer.serialize_struct("Latency", 9)?;
        fields.serialize_field("name", self.what)?;
        fields.serialize_field("sampled", &self.sampled)?;
        fields.serialize_field("count", &self.count())?;
        fields.serialize_field("sum_us", &(self.sum.as_nanos() as f64 / 1000.0))?;
        fields.serialize_field("p50_us", &quantile(0.5))?;
        fields.serialize_field("p90_us", &quantile(0.9))?;
        fields.serialize_field("p99_us", &quantile(0.99))?;
        fields.serialize_field("p999_us", &quantile(0.999))?;
        fields.serialize_field("max_us", &quantile(1.0))?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(latencies: &Latencies, what: Timed) -> Latency {
        latencies.all().expect("they are on").swap_remove(what as usize)
    }

    #[test]
    fn kinds_are_in_the_order_of_their_names() {
        for (index, what) in Timed::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, index);
        }
    }

    #[test]
    fn quantiles_are_at_most_three_percent_too_long_and_never_too_short() {
        let latencies = Latencies::on();
        let recorder = &latencies.0.as_deref().expect("they are on")[Timed::MultiGet as usize];
        (1..=1000).for_each(|us| recorder.record(Duration::from_micros(us)));
        let latency = of(&latencies, Timed::MultiGet);
        assert_eq!((latency.count(), latency.sum()), (1000, Duration::from_micros(500_500)));
        for (part, us) in [(0.001, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let (exact, told) = (Duration::from_micros(us), latency.quantile(part).expect("there are some"));
            assert!(exact <= told && told <= exact.mul_f64(1.0 + 1.0 / 32.0), "{part}: {told:?}");
        }
        assert_eq!((latency.quantile(1.5), of(&latencies, Timed::Get).quantile(0.5)), (None, None));
        for us in [0, 1, 50, 1000, 2000] {
            let exact = us.min(1000);
            let told = latency.within(Duration::from_micros(us));
            assert!(told <= exact && told as f64 >= exact as f64 * 0.96 - 1.0, "{us}: {told}");
        }
    }

    #[test]
    fn what_takes_forever_is_recorded_as_the_longest() {
        let recorder = Recorder::default();
        recorder.record(Duration::MAX);
        assert_eq!(recorder.buckets.load().as_slice().last(), Some(&1));
    }

    #[test]
    fn one_get_in_thirteen_is_timed_and_each_flush() {
        let latencies = Latencies::on();
        for _ in 0..26 {
            latencies.timed(Timed::Get, || ());
            latencies.timed(Timed::Flush, || ());
        }
        assert_eq!((of(&latencies, Timed::Get).count(), of(&latencies, Timed::Flush).count()), (2, 26));
        assert!(Latencies::default().all().is_none());
    }
}
