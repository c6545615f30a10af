//! Stalls: waits for requests that the kernel does not complete. They are reported, counted, and limited.
//!
//! A backend waits in slices of at most [`SLICE`]. After each slice without a completion it asks the [`Watch`] of this
//! wait, which reports what is outstanding, and says when the set is to be cancelled.
//!
//! ```text
//! wait ─▶ a slice without progress ─▶ … ─▶ warning: event, counted ─▶ … ─▶ timeout: the backend cancels the set
//! ```
//! Invariants:
//! 1. Reporting never unwinds: whoever waits has requests in flight.
//! 2. Any completion counts as progress, and the time starts again.
//!
//! Ordinary calls and syncs are not watched: they cannot be cancelled, and the kernel itself reports those that hang.

#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "no other backend can be cancelled"))]

use crate::lock::Mutex;
use crate::transfer::{Memory, Transfer};
use std::collections::VecDeque;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The longest time in the kernel at a stretch. Entering it again also runs task work that was forgotten.
const SLICE: Duration = Duration::from_secs(1);
/// How long to wait for what was cancelled, and again for the end of the ring.
const GRACE: Duration = Duration::from_secs(5);
/// A report names so many requests, and gives the number of the others.
const NAMED: usize = 8;
/// The longest time between two reports of a stall.
const REPORT: Duration = Duration::from_secs(60);
/// After so many sets that had to be cancelled within this time, the backend is not used for as long.
const TIMEOUTS_MAX: usize = 3;
const TIMEOUTS_SPAN: Duration = Duration::from_secs(3600);
/// A longer step between two looks at the clock counts as this much: the process, or the machine, was stopped.
const STEP_MAX: Duration = Duration::from_secs(10);

/// The limits of a disk's waits, and the totals so far.
pub(crate) struct Stalls {
    warning: Duration,
    timeout: Duration,
    stalls: AtomicU64,
    longest: AtomicU64,
    timeouts: AtomicU64,
    /// When the last few sets were cancelled.
    recent: Mutex<VecDeque<Instant>>,
}

impl Stalls {
    pub fn new(warning: Duration, timeout: Duration) -> Self {
        let zero = || AtomicU64::new(0);
        let recent = Mutex::default();
        Self { warning, timeout, stalls: zero(), longest: zero(), timeouts: zero(), recent }
    }

    /// Waits without progress for longer than the warning.
    pub fn count(&self) -> u64 {
        self.stalls.load(Relaxed)
    }

    /// The longest of them, in milliseconds. Includes those that are not over.
    pub fn longest_ms(&self) -> u64 {
        self.longest.load(Relaxed)
    }

    /// Sets that were cancelled.
    pub fn timeouts(&self) -> u64 {
        self.timeouts.load(Relaxed)
    }

    /// Whether the backend loses so many sets that ordinary calls are better.
    pub fn are_too_many(&self) -> bool {
        self.timeouts() >= TIMEOUTS_MAX as u64 && {
            let recent = self.recent.lock();
            let (Some(first), Some(last)) = (recent.front(), recent.back()) else { return false };
            recent.len() == TIMEOUTS_MAX && are_too_close(*first, *last, Instant::now())
        }
    }

    /// Begins to wait.
    pub fn watch(&self) -> Watch<'_> {
        Watch { stalls: self, waited: Duration::ZERO, last: Instant::now(), reported: None }
    }

    /// How long to wait for what was cancelled.
    pub fn grace(&self) -> Duration {
        self.timeout.min(GRACE)
    }
}

/// Whether sets that were cancelled, the first and the last of as many as are too many, are within the span, and the last not as long ago.
fn are_too_close(first: Instant, last: Instant, now: Instant) -> bool {
    last.duration_since(first) < TIMEOUTS_SPAN && now.duration_since(last) < TIMEOUTS_SPAN
}

/// One wait.
pub(crate) struct Watch<'a> {
    stalls: &'a Stalls,
    /// How long without progress, until `last`.
    waited: Duration,
    last: Instant,
    /// How long it had waited when it last reported.
    reported: Option<Duration>,
}

impl Watch<'_> {
    /// Something has completed.
    pub fn has_progressed(&mut self) {
        self.waited = Duration::ZERO;
        self.last = Instant::now();
        self.reported = None;
    }

    /// How long it has waited without progress.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How long to wait before asking again.
    pub fn slice(&self) -> Duration {
        SLICE.min(self.stalls.warning).min(self.stalls.timeout).max(Duration::from_millis(1))
    }

    /// After a slice without progress. Reports a stall when it is time to, with the requests that `outstanding` lists.
    /// Returns whether the set should be cancelled.
    pub fn has_timed_out(&mut self, outstanding: impl FnOnce() -> Vec<String>) -> bool {
        let now = Instant::now();
        self.waited += (now - self.last).min(STEP_MAX);
        self.last = now;
        self.note(self.waited, outstanding);
        self.waited >= self.stalls.timeout
    }

    /// The set is cancelled.
    pub fn cancels(&self, outstanding: impl FnOnce() -> Vec<String>) {
        {
            let mut recent = self.stalls.recent.lock();
            recent.push_back(Instant::now());
            while recent.len() > TIMEOUTS_MAX {
                recent.pop_front();
            }
        }
        self.stalls.timeouts.fetch_add(1, Relaxed);
        let waited = self.waited();
        quietly(|| {
            let outstanding = shown(&outstanding());
            tracing::error!(
                ?waited,
                outstanding,
                "requests have not been completed by the kernel: cancelled"
            );
        });
    }

    fn note(&mut self, waited: Duration, outstanding: impl FnOnce() -> Vec<String>) {
        if waited < self.stalls.warning {
            return;
        }
        self.stalls.longest.fetch_max(waited.as_millis() as u64, Relaxed);
        if self.reported.is_none() {
            self.stalls.stalls.fetch_add(1, Relaxed);
        }
        if self.reported.is_some_and(|reported| waited < reported + reported.min(REPORT)) {
            return;
        }
        self.reported = Some(waited);
        quietly(|| {
            let outstanding = shown(&outstanding());
            tracing::warn!(?waited, outstanding, "requests are not completed by the kernel");
        });
    }
}

/// Reports, and survives a subscriber that panics.
pub(crate) fn quietly(report: impl FnOnce()) {
    _ = catch_unwind(AssertUnwindSafe(report));
}

fn shown(outstanding: &[String]) -> String {
    let named = &outstanding[..outstanding.len().min(NAMED)];
    let mut shown = named.join(", ");
    if outstanding.len() > named.len() {
        shown.push_str(&format!(" and {} more", outstanding.len() - named.len()));
    }
    shown
}

/// A request, for reports.
pub(crate) fn described(transfer: &Transfer<'_>) -> String {
    let operation = if matches!(transfer.memory, Memory::Into(_)) { "read" } else { "write" };
    request(operation, transfer.file, transfer.offset, transfer.memory.len())
}

/// A request, for reports.
pub(crate) fn request(operation: &str, file: &File, offset: u64, len: usize) -> String {
    format!("{operation} of {len} bytes at byte {offset} of {}", path_of(file))
}

#[cfg(not(unix))]
fn path_of(_: &File) -> &'static str {
    "a file"
}

#[cfg(unix)]
fn path_of(file: &File) -> String {
    use std::os::fd::AsRawFd;
    let descriptor = file.as_raw_fd();
    match std::fs::read_link(format!("/proc/self/fd/{descriptor}")) {
        Ok(path) => path.display().to_string(),
        Err(_) => format!("file descriptor {descriptor}"),
    }
}

/// Members of a set, by number: those whose completion is outstanding.
#[derive(Default)]
pub(crate) struct Pending {
    /// The first 64, without an allocation.
    first: u64,
    rest: Vec<u64>,
    count: usize,
}

impl Pending {
    pub fn insert(&mut self, index: usize) {
        let word = match index / 64 {
            0 => &mut self.first,
            further => {
                self.rest.resize(self.rest.len().max(further), 0);
                &mut self.rest[further - 1]
            }
        };
        *word |= 1 << (index % 64);
        self.count += 1;
    }

    /// Whether it was outstanding.
    pub fn remove(&mut self, index: usize) -> bool {
        let word = match index / 64 {
            0 => Some(&mut self.first),
            further => self.rest.get_mut(further - 1),
        };
        let bit = 1 << (index % 64);
        let found = word.is_some_and(|word| {
            let found = *word & bit != 0;
            *word &= !bit;
            found
        });
        self.count -= usize::from(found);
        found
    }

    pub fn contains(&self, index: usize) -> bool {
        let word = if index < 64 { Some(&self.first) } else { self.rest.get(index / 64 - 1) };
        word.is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// All of them, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..64 * (1 + self.rest.len())).filter(|index| self.contains(*index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outstanding_counts_once() {
        let mut pending = Pending::default();
        for index in [0, 1, 63, 64, 200, 4095] {
            pending.insert(index);
        }
        assert_eq!(pending.iter().collect::<Vec<_>>(), [0, 1, 63, 64, 200, 4095]);
        for index in [1, 64, 4095] {
            assert!(pending.contains(index) && pending.remove(index));
            assert!(!pending.remove(index) && !pending.contains(index), "{index} a second time");
        }
        assert!(!pending.remove(2) && !pending.remove(300) && !pending.remove(1 << 20));
        assert_eq!((pending.count(), pending.iter().collect::<Vec<_>>()), (3, vec![0, 63, 200]));
    }

    #[test]
    fn a_stall_is_counted_once_and_reported_more_and_more_seldom() {
        let stalls = Stalls::new(Duration::from_secs(5), Duration::from_secs(60));
        let mut watch = stalls.watch();
        watch.last -= Duration::from_secs(3600);
        assert!(!watch.has_timed_out(Vec::new), "the machine was stopped");
        watch.has_progressed();
        let mut reports = Vec::new();
        for second in 0..600 {
            let was = watch.reported;
            watch.note(Duration::from_secs(second), Vec::new);
            if watch.reported != was {
                reports.push(second);
            }
        }
        assert_eq!(reports[..6], [5, 10, 20, 40, 80, 140]);
        assert_eq!((stalls.count(), stalls.longest_ms()), (2, 599_000));
        watch.has_progressed();
        assert!(!watch.has_timed_out(|| panic!("too early for a report")));
        watch.note(Duration::from_secs(6), Vec::new);
        assert_eq!(stalls.count(), 3, "another one");
    }

    #[test]
    fn ordinary_calls_are_made_for_as_long_after_the_last_of_too_many() {
        let first = Instant::now();
        let after = |seconds| first + Duration::from_secs(seconds);
        assert!(are_too_close(first, after(3590), after(3601)), "an hour from the first is over");
        assert!(are_too_close(first, after(3590), after(7000)));
        assert!(!are_too_close(first, after(3590), after(7190)));
        assert!(!are_too_close(first, after(3600), after(3601)), "they came too seldom");
    }

    #[test]
    fn a_report_names_a_few_requests() {
        let ten: Vec<_> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(shown(&ten), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        assert_eq!(shown(&ten[..2]), "0, 1");
        let file = tempfile::NamedTempFile::new().unwrap();
        let told = request("read", file.as_file(), 7, 100);
        assert_eq!(told, format!("read of 100 bytes at byte 7 of {}", file.path().display()));
        quietly(|| panic!("in the subscriber"));
    }
}
