//! State shared by flushes and the threads that wait for them: whether a flush is running, how many have ended
//! or failed, what one flush leaves to the next, and counters.
//!
//! Invariant: a thread that changes something another may wait for does so under `inner`, or takes that lock
//! afterwards to notify ([`FlushControl::notify`]). So no thread sleeps through a change.

use super::shortage::Shortage;
use crate::advisor::Advisor;
use crate::error::Error;
use crate::store::rent::Rents;
use crate::tree::logged::Paid;
use crate::tree::sweep::Sweep;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Wakes the flush thread, and the threads that wait for it.
pub(crate) struct FlushControl {
    in_background: bool,
    pub(super) inner: Mutex<Control>,
    pub(super) changed: Condvar,
    /// Which blocks are cleansed next, and when.
    pub(super) sweep: Mutex<Sweep>,
    pub(super) advisor: Mutex<Advisor>,
    /// Whether the last flush had several portions. Then the next one is expected to as well.
    pub(super) in_portions: AtomicBool,
    /// Thousandths of the last queue's bytes that came to the trees, which takes only the newest version of
    /// each key.
    pub(super) newest: AtomicU64,
    /// Number of threads that wait for the flush to end, or to write nodes themselves.
    waiting: AtomicUsize,
    /// Total nanoseconds that working threads have rested.
    rested: AtomicU64,
    pub shortage: Shortage,
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
pub(super) struct Control {
    pub stop: bool,
    /// A flush was requested, and must not wait for a pause to end.
    pub asked: bool,
    /// A flush is running; its queue may already be in the trees.
    pub at_work: bool,
    /// Number of flushes that have ended successfully, including the cleansing after them.
    pub ended: u64,
    /// Number of failed attempts, so that a waiting thread notices a new one.
    pub failures: u64,
    pub failure: Option<Error>,
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
    pub spent_for_scans: AtomicU64,
}

impl Counters {
    /// Counts blocks that were cleansed because of the rent paid for them.
    pub fn cleansed_for_scans(&self, rents: &Rents, paid: &[Paid]) {
        self.blocks_cleansed_for_scans.fetch_add(paid.len() as u64, Relaxed);
        self.settle(rents, paid);
    }

    /// Counts blocks whose layers were merged because of the rent paid for them.
    pub fn merged_for_scans(&self, rents: &Rents, paid: &[Paid]) {
        self.blocks_merged_for_scans.fetch_add(paid.len() as u64, Relaxed);
        self.settle(rents, paid);
    }

    fn settle(&self, rents: &Rents, paid: &[Paid]) {
        for Paid { area, price } in paid {
            self.spent_for_scans.fetch_add(*price, Relaxed);
            rents.settle(area.rent());
        }
    }
}

impl FlushControl {
    pub fn new(in_background: bool) -> Self {
        Self {
            in_background,
            inner: Mutex::default(),
            changed: Condvar::new(),
            sweep: Mutex::default(),
            advisor: Mutex::default(),
            in_portions: AtomicBool::new(false),
            newest: AtomicU64::new(1000),
            waiting: AtomicUsize::new(0),
            rested: AtomicU64::new(0),
            shortage: Shortage::default(),
            counters: Counters::default(),
        }
    }

    #[cfg(test)]
    pub fn sweep_for_test(&self) -> &Mutex<Sweep> {
        &self.sweep
    }

    #[cfg(test)]
    pub fn advisor_for_test(&self) -> &Mutex<Advisor> {
        &self.advisor
    }

    pub fn in_background(&self) -> bool {
        self.in_background
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
        let mut control = self.inner.lock();
        if !control.stop && !is_work() {
            self.changed.wait_for(&mut control, time);
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

    /// Requests a flush, which ends a pause.
    pub(super) fn ask(&self) {
        self.inner.lock().asked = true;
        self.changed.notify_all();
    }

    /// A flush begins.
    pub(super) fn begin(&self) {
        let mut control = self.inner.lock();
        control.at_work = true;
        control.asked = false;
    }

    /// The flush has ended, or has failed.
    pub(super) fn end(&self, failure: Option<&Error>) {
        let mut control = self.inner.lock();
        control.at_work = false;
        match failure {
            None => control.ended += 1,
            Some(error) => {
                control.failures += 1;
                control.failure = Some(error.clone());
            }
        }
    }

    /// The value that `ended` will have when the running flush, if any, has ended.
    pub(super) fn begun(&self) -> u64 {
        let control = self.inner.lock();
        control.ended + u64::from(control.at_work)
    }
}
