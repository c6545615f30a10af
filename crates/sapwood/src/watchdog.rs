//! Waits of our threads for one another. In debug builds, one that goes on for long is reported: which thread waits, for what, and
//! how long already. In other builds these are plain waits.
//!
//! Invariant: a report changes nothing. A thread stops waiting when it is notified, and only then.

use crate::lock_order::RankedGuard;
use parking_lot::Condvar;
use std::time::{Duration, Instant};

/// The time between reports: no healthy wait needs as long.
const EVERY: Duration = Duration::from_secs(10);

/// Waits to be notified. `what` completes "waits for".
pub(crate) fn wait<R, T>(condvar: &Condvar, guard: &mut RankedGuard<'_, R, T>, what: &'static str) {
    if cfg!(debug_assertions) {
        watched(EVERY, |time| guard.wait_for(condvar, time).then_some(()), report(what));
    } else {
        guard.wait(condvar);
    }
}

/// Waits in turns of `every` until `wait` has a result. Reports after each that brought none.
fn watched<R>(
    every: Duration,
    mut wait: impl FnMut(Duration) -> Option<R>,
    mut report: impl FnMut(Duration),
) -> R {
    let began = Instant::now();
    loop {
        if let Some(result) = wait(every) {
            return result;
        }
        report(began.elapsed());
    }
}

fn report(what: &'static str) -> impl FnMut(Duration) {
    move |waited| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("without a name");
        tracing::warn!(target: "sapwood::watchdog", thread, ?waited, "waits for {what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_order::{RankedMutex, rank};

    #[test]
    fn a_long_wait_is_reported_and_ends_when_it_is_notified() {
        let is_done = RankedMutex::<rank::Pool, _>::new(false);
        let changed = Condvar::new();
        let mut reports = Vec::new();
        std::thread::scope(|scope| {
            let mut guard = is_done.lock();
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                *is_done.lock() = true;
                changed.notify_one();
            });
            let every = Duration::from_millis(10);
            while !*guard {
                let wait = |time| guard.wait_for(&changed, time).then_some(());
                watched(every, wait, |waited| reports.push(waited));
            }
        });
        assert!(!reports.is_empty() && reports.is_sorted() && reports[0] >= Duration::from_millis(10));
        report("a test")(Duration::ZERO);
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
                wait(&changed, &mut guard, "the other thread");
            }
        });
    }
}
