//! Waits of our threads for one another. In debug builds, one that goes on for long is reported: which thread waits, for what, and
//! how long already. In other builds these are plain waits.
//!
//! A report gives the time since the one before it. Invariant: a thread that was waked looks again at what it waits for, whatever waked it.

use crate::health::quietly;
use crate::lock_order::RankedGuard;
use std::sync::Condvar;
use std::time::{Duration, Instant};

/// The time between reports of a thread: no healthy wait needs as long. In tests of the library it is longer than they wait for anything: a thread that is
/// reported looks again, which would hide that nobody has notified it.
const EVERY: Duration = Duration::from_secs(if cfg!(test) { 120 } else { 10 });

/// Waits to be notified, or for no reason. `what` completes "waits for".
pub(crate) fn wait<'l, R, T>(
    condvar: &Condvar,
    guard: RankedGuard<'l, R, T>,
    what: &'static str,
) -> RankedGuard<'l, R, T> {
    if cfg!(debug_assertions) { watched(EVERY, condvar, guard, report(what)) } else { guard.wait(condvar) }
}

/// Waits until this thread is unparked, or for no reason. `what` completes "waits for".
pub(crate) fn park(what: &'static str) {
    // Miri tells of threads that wait for ever, and of the reason.
    let is_watched = cfg!(debug_assertions) && !cfg!(miri);
    if is_watched { park_watched(EVERY, report(what)) } else { std::thread::park() }
}

fn park_watched(time: Duration, mut report: impl FnMut(Duration)) {
    let began = Instant::now();
    std::thread::park_timeout(time);
    if began.elapsed() >= time {
        report(began.elapsed());
    }
}

/// Waits to be notified, and reports after a time that brought nothing. What is waited for may have come to be while the thread woke up by
/// itself, when a notification reaches it no more: so it looks again.
fn watched<'l, R, T>(
    time: Duration,
    condvar: &Condvar,
    guard: RankedGuard<'l, R, T>,
    mut report: impl FnMut(Duration),
) -> RankedGuard<'l, R, T> {
    let began = Instant::now();
    let (guard, is_notified) = guard.wait_for(condvar, time);
    if !is_notified {
        report(began.elapsed());
    }
    guard
}

fn report(what: &'static str) -> impl FnMut(Duration) {
    move |waited| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("without a name");
        quietly(|| tracing::warn!(target: "sapwood::watchdog", thread, ?waited, "waits for {what}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_order::{RankedMutex, rank};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    #[test]
    fn a_long_wait_is_reported_and_ends_when_it_is_notified() {
        let is_done = RankedMutex::<rank::Pool, _>::new(false);
        let changed = Condvar::new();
        let (mut reports, is_reported) = (Vec::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let mut guard = is_done.lock();
            scope.spawn(|| {
                while !is_reported.load(SeqCst) {
                    std::thread::yield_now();
                }
                *is_done.lock() = true;
                changed.notify_one();
            });
            let every = Duration::from_millis(10);
            while !*guard {
                guard = watched(every, &changed, guard, |waited| {
                    reports.push(waited);
                    is_reported.store(true, SeqCst);
                });
            }
        });
        assert!(!reports.is_empty() && reports.iter().all(|waited| *waited >= Duration::from_millis(10)));
        report("a test")(Duration::ZERO);
    }

    #[test]
    fn a_long_park_is_reported() {
        let mut reports = Vec::new();
        std::thread::current().unpark();
        park_watched(Duration::from_secs(5), |waited| reports.push(waited));
        assert!(reports.is_empty(), "it was unparked: {reports:?}");
        while reports.is_empty() {
            park_watched(Duration::from_millis(10), |waited| reports.push(waited));
        }
    }

    #[test]
    fn a_wait_ends_when_it_is_notified() {
        let is_done = RankedMutex::<rank::Pool, _>::new(false);
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            let mut guard = is_done.lock();
            scope.spawn(|| {
                *is_done.lock() = true;
                changed.notify_one();
            });
            while !*guard {
                guard = wait(&changed, guard, "the other thread");
            }
        });
    }

    /// What it waits for came to be while it woke up by itself, and nobody notified it any more.
    #[test]
    fn a_thread_that_is_reported_looks_again() {
        let is_done = RankedMutex::<rank::Pool, _>::new(true);
        let mut reports = 0;
        let time = Duration::from_millis(10);
        drop(watched(time, &Condvar::new(), is_done.lock(), |_| reports += 1));
        assert_eq!(reports, 1);
    }
}
