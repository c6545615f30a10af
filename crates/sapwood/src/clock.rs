//! The database's clock, by which records expire.
//!
//! Invariant: it never goes back, whatever the system's clock does, so that nothing comes to life again. What the manifest has
//! seen of it counts too ([`crate::version::Version::clock`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last time, in milliseconds (ms) since 1970: what the stamp of a record has room for, in the year 10889. What expires later never does.
pub(crate) const LAST: u64 = (1 << 48) - 1;

/// The function that says what time it is.
type Source = dyn Fn() -> SystemTime + Send + Sync;

/// See the module. Times are milliseconds since 1970.
pub(crate) struct Clock {
    source: Arc<Source>,
    latest: AtomicU64,
}

/// Where a clock has its time from; a builder keeps it until the database is opened.
#[derive(Clone)]
pub(crate) struct ClockSource(pub Arc<Source>);

impl Default for ClockSource {
    fn default() -> Self {
        Self(Arc::new(SystemTime::now))
    }
}

impl fmt::Debug for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockSource")
    }
}

impl Clock {
    /// A clock that does not go back behind `latest`.
    pub fn new(ClockSource(source): ClockSource, latest: u64) -> Self {
        Self { source, latest: AtomicU64::new(latest) }
    }

    /// It does not go back behind `latest` either.
    pub fn not_before(&self, latest: u64) {
        self.latest.fetch_max(latest, Relaxed);
    }

    /// The time now.
    pub fn now(&self) -> u64 {
        let now = millis((self.source)());
        let latest = self.latest.load(Relaxed);
        // Most readers come within the same millisecond, and share the cache line.
        if now <= latest { latest } else { self.latest.fetch_max(now, Relaxed).max(now) }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.latest.load(Relaxed))
    }
}

/// Whole milliseconds since 1970; none before, and no more than stamps have room for: the manifest has times, and there are numbers that it does
/// not have.
fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).map_or(LAST, |millis| millis.min(LAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_forward_only() {
        let time = Arc::new(AtomicU64::new(5000));
        let source = Arc::clone(&time);
        let source = ClockSource(Arc::new(move || UNIX_EPOCH + Duration::from_millis(source.load(Relaxed))));
        let clock = Clock::new(source, 4000);
        assert_eq!(clock.now(), 5000);
        time.store(7, Relaxed);
        assert_eq!(clock.now(), 5000);
        time.store(5001, Relaxed);
        assert_eq!(clock.now(), 5001);
        let before_1970 = ClockSource(Arc::new(|| UNIX_EPOCH - Duration::from_secs(1)));
        assert_eq!(Clock::new(before_1970, 0).now(), 0);
        let absurd = ClockSource(Arc::new(|| UNIX_EPOCH + Duration::from_secs(1 << 60)));
        assert_eq!(Clock::new(absurd, 0).now(), LAST);
    }
}
