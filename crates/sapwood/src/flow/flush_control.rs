//! State shared by flushes and the threads that wait for them: whether a flush is running, how many have ended
//! or failed, and counters.
//!
//! Invariant: a thread that changes something another may wait for does so under `inner`, or takes that lock
//! afterwards to notify ([`FlushControl::notify`]). So no thread sleeps through a change.

use super::low_space::LowSpace;
use crate::error::{Error, Result};
use crate::lock_order::{RankedMutex, rank};
use crate::log_area::Charged;
use crate::log_area::read_cost::ReadCosts;
use crate::watchdog;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Runs the flush of a frozen queue in the thread that calls it.
pub(crate) trait FlushInCaller: Send + Sync {
    fn flush_now(self: Arc<Self>) -> Result<()>;
}

/// Wakes the flush thread, and the threads that wait for it.
#[derive(Default)]
pub(crate) struct FlushControl {
    /// Set once the database has been put together. Weak, since the flush holds this.
    in_caller: OnceLock<Weak<dyn FlushInCaller>>,
    inner: RankedMutex<rank::FlushControl, Control>,
    changed: Condvar,
    /// Number of threads that wait for the flush to end, or to write nodes themselves.
    waiting: AtomicUsize,
    /// Total nanoseconds that working threads have rested.
    rested: AtomicU64,
    pub low_space: LowSpace,
    pub counters: Counters,
}

/// Registers the current thread as waiting, until dropped.
pub(crate) struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[derive(Default)]
pub(crate) struct Control {
    stop: bool,
    /// A flush was requested, and must not wait for a pause to end.
    asked: bool,
    /// A flush is running; its queue may already be in the trees.
    at_work: bool,
    /// Number of attempts to flush that are over, including the cleansing after them: those that have
    /// succeeded, and those that have failed.
    over: u64,
    /// The last attempt that failed, counted from one in the order of `over`, and why.
    failure: Option<(u64, Error)>,
}

impl Control {
    /// Number of attempts that are over.
    pub fn over(&self) -> u64 {
        self.over
    }

    /// The attempts that began before now: those that are over, and the running one.
    pub fn begun(&self) -> u64 {
        self.over + u64::from(self.at_work)
    }

    /// The failure of an attempt after so many, if one of these has failed.
    pub fn failure_after(&self, attempts: u64) -> Option<&Error> {
        self.failure.as_ref().filter(|(number, _)| *number > attempts).map(|(_, error)| error)
    }
}

/// Counters of flushes and cleansing.
#[derive(Default)]
pub(crate) struct Counters {
    pub flushes: AtomicU64,
    pub portions: AtomicU64,
    pub collected_bytes: AtomicU64,
    pub changes: AtomicU64,
    /// The part of `changes` that was appended beside the end of the previous flush.
    pub changes_ahead: AtomicU64,
    pub change_bytes: AtomicU64,
    pub blocks_appended: AtomicU64,
    pub blocks_cleansed: AtomicU64,
    pub blocks_cleansed_for_scans: AtomicU64,
    pub blocks_merged_for_scans: AtomicU64,
    /// Prices, in bytes that a device could have moved.
    pub price_for_scans: AtomicU64,
}

impl Counters {
    /// Counts blocks that were cleansed because of the read cost charged to them.
    pub fn cleansed_for_scans(&self, read_costs: &ReadCosts, charged: &[Charged]) {
        self.blocks_cleansed_for_scans.fetch_add(charged.len() as u64, Relaxed);
        self.discharge(read_costs, charged);
    }

    /// Counts blocks whose runs were merged because of the read cost charged to them.
    pub fn merged_for_scans(&self, read_costs: &ReadCosts, charged: &[Charged]) {
        self.blocks_merged_for_scans.fetch_add(charged.len() as u64, Relaxed);
        self.discharge(read_costs, charged);
    }

    fn discharge(&self, read_costs: &ReadCosts, charged: &[Charged]) {
        for Charged { area, price } in charged {
            self.price_for_scans.fetch_add(*price, Relaxed);
            read_costs.discharge(area.read_cost());
        }
    }
}

impl FlushControl {
    /// Sets what flushes in the caller's thread.
    pub fn set_in_caller(&self, flush: Weak<dyn FlushInCaller>) {
        let _ = self.in_caller.set(flush);
    }

    /// Flushes the frozen queue, if there is one, in this thread.
    pub fn flush_now(&self) -> Result<()> {
        let flush = self.in_caller.get().and_then(Weak::upgrade).ok_or(Error::Closed)?;
        flush.flush_now()
    }

    /// Registers the caller as waiting, so that work in progress does not take its time.
    pub fn waits(&self) -> Waits<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waits(&self.waiting)
    }

    #[cfg(test)]
    pub fn waiting_for_test(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Whether no thread waits, so that work in progress may take its time.
    pub fn has_time(&self) -> bool {
        self.waiting.load(Relaxed) == 0
    }

    pub fn notify(&self) {
        let _guard = self.inner.lock();
        self.changed.notify_all();
    }

    /// Whether the background thread has been told to stop.
    pub fn stops(&self) -> bool {
        self.inner.lock().stop
    }

    pub fn stop(&self) {
        self.inner.lock().stop = true;
        self.changed.notify_all();
    }

    /// Sleeps for `time`, or until notified or stopped. Does not sleep if `is_work` returns true. A thread that
    /// creates work takes the lock afterwards to notify, so no wakeup is lost.
    pub fn sleep(&self, time: Duration, is_work: impl FnOnce() -> bool) {
        let control = self.inner.lock();
        if !control.stop && !is_work() {
            control.wait_for(&self.changed, time);
        }
    }

    /// Waits until `until`, or until a flush is requested or the thread is told to stop.
    pub fn pause(&self, until: Instant) {
        let mut control = self.inner.lock();
        while !control.stop && !control.asked {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (control, _) = control.wait_for(&self.changed, left);
        }
    }

    /// Waits until `is_done`. `check`: whether writes are accepted.
    ///
    /// # Errors
    /// That of `check`; that of an attempt after so many `attempts`; [`Error::Closed`] once the thread is told to stop.
    pub fn wait_after(
        &self,
        attempts: u64,
        check: impl Fn() -> Result<()>,
        is_done: impl Fn(&Control) -> bool,
    ) -> Result<()> {
        let _waits = self.waits();
        let mut control = self.inner.lock();
        loop {
            if is_done(&control) {
                return Ok(());
            }
            check()?;
            if control.stop {
                return Err(Error::Closed);
            }
            if let Some(error) = control.failure_after(attempts) {
                return Err(error.clone());
            }
            control = watchdog::wait(&self.changed, control, "the flush");
        }
    }

    /// A working thread has rested for `time`.
    pub fn rested(&self, time: Duration) {
        self.rested.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// The total time rested so far.
    pub fn time_rested(&self) -> Duration {
        Duration::from_nanos(self.rested.load(Relaxed))
    }

    /// Requests a flush, which ends a pause. Returns how many attempts began before: what they found, such as a
    /// disk that was full then, is no answer to this request.
    pub(crate) fn ask(&self) -> u64 {
        let mut control = self.inner.lock();
        control.asked = true;
        self.changed.notify_all();
        control.begun()
    }

    /// A flush begins.
    pub(crate) fn begin(&self) {
        let mut control = self.inner.lock();
        control.at_work = true;
        control.asked = false;
    }

    /// The flush has ended, or has failed.
    pub(crate) fn end(&self, failure: Option<&Error>) {
        let mut control = self.inner.lock();
        control.at_work = false;
        control.over += 1;
        if let Some(error) = failure {
            control.failure = Some((control.over, error.clone()));
        }
    }

    /// How many attempts are over, and how many have begun.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let control = self.inner.lock();
        (control.over, control.begun())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request after space came back does not get the error of the disk that was full before.
    #[test]
    fn an_attempt_that_began_before_is_no_answer() {
        let flush = FlushControl::default();
        let full = Error::corrupt("data", 0, "in place of a full disk", "", "");
        let failed_since = |asked| flush.inner.lock().failure_after(asked).is_some();
        assert_eq!(flush.ask(), 0);
        flush.begin();
        let asked = flush.ask();
        assert_eq!(asked, 1, "one is running");
        flush.end(Some(&full));
        assert!(failed_since(0) && !failed_since(asked));
        flush.begin();
        flush.end(None);
        assert!(!failed_since(asked));
        flush.begin();
        flush.end(Some(&full));
        assert!(failed_since(asked), "this one began after the request");
        assert_eq!(flush.ask(), 3, "and is over");
    }
}
