//! What flushes, and those who wait for them, know of one another: whether one is at work, how many have ended and failed, what one leaves
//! to the next, and what all of them have done.
//!
//! Invariant: whoever changes what somebody may wait for does it under `inner`, or takes that lock afterwards to tell
//! ([`FlushControl::notify`]); so nobody sleeps on what has happened.

use super::shortage::Shortage;
use crate::advisor::Advisor;
use crate::error::Error;
use crate::store::rent::Rents;
use crate::tree::logged::Paid;
use crate::tree::sweep::Sweep;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Wakes the flushing thread, and those who wait for it.
pub(crate) struct FlushControl {
    in_background: bool,
    pub(super) inner: Mutex<Control>,
    pub(super) changed: Condvar,
    /// Which blocks are cleansed next, and when.
    pub(super) sweep: Mutex<Sweep>,
    pub(super) advisor: Mutex<Advisor>,
    /// Whether the last flush had several portions, as the next one will have then.
    pub(super) in_portions: AtomicBool,
    /// Thousandths of the last queue's bytes that came to the trees: the newest version of each key.
    pub(super) newest: AtomicU64,
    /// Threads that wait for the flush to end, or to write nodes themselves.
    waiting: AtomicUsize,
    /// Nanoseconds that whoever was at work has rested.
    rested: AtomicU64,
    pub shortage: Shortage,
    pub counters: Counters,
}

/// Somebody waits, until this is dropped.
pub(crate) struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[derive(Default)]
pub(super) struct Control {
    pub stop: bool,
    /// Somebody asks for a flush, and is not to wait for a pause to end.
    pub asked: bool,
    /// A flush is at work, perhaps when its queue is in the trees already.
    pub at_work: bool,
    /// Counts flushes that are over with all that belongs to them, and have succeeded.
    pub ended: u64,
    /// Counts failed tries, so that whoever waits sees a new one.
    pub failures: u64,
    pub failure: Option<Error>,
}

/// What flushes have done, and cleansing.
#[derive(Default)]
pub(crate) struct Counters {
    pub flushes: AtomicU64,
    pub portions: AtomicU64,
    pub collected_bytes: AtomicU64,
    pub changes: AtomicU64,
    /// Of these, appended beside the end of the flush before.
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
    /// These blocks are cleansed because of the rent that was paid for them.
    pub fn cleansed_for_scans(&self, rents: &Rents, paid: &[Paid]) {
        self.blocks_cleansed_for_scans.fetch_add(paid.len() as u64, Relaxed);
        self.settle(rents, paid);
    }

    /// The layers of these blocks are merged because of it.
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

    /// Tells whoever takes his time that somebody waits for him.
    pub fn waits(&self) -> Waits<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waits(&self.waiting)
    }

    #[cfg(test)]
    pub fn waiting_for_test(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Whether nobody waits, so that what is at work may take its time.
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

    /// Waits for so long, or until somebody tells of something, or closes; not if there `is_work` already. Who makes some takes the lock to tell of it,
    /// afterwards.
    pub fn sleep(&self, time: Duration, is_work: impl FnOnce() -> bool) {
        let mut control = self.inner.lock();
        if !control.stop && !is_work() {
            self.changed.wait_for(&mut control, time);
        }
    }

    /// Whoever is at work has rested for so long.
    pub fn rested(&self, time: Duration) {
        self.rested.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// How long all have rested so far.
    pub fn time_rested(&self) -> Duration {
        Duration::from_nanos(self.rested.load(Relaxed))
    }

    /// Ends a pause.
    pub(super) fn ask(&self) {
        self.inner.lock().asked = true;
        self.changed.notify_all();
    }

    /// A flush is at work.
    pub(super) fn begin(&self) {
        let mut control = self.inner.lock();
        control.at_work = true;
        control.asked = false;
    }

    /// It is over, or has failed.
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

    /// How many flushes will have ended when the one that is at work is over.
    pub(super) fn begun(&self) -> u64 {
        let control = self.inner.lock();
        control.ended + u64::from(control.at_work)
    }
}
