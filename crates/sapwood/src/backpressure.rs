//! Backpressure: when flushing lags behind writing, writers are slowed smoothly, so that the active queue is full just
//! when the flush is through, instead of being stopped for the whole of it. A flush is through when it has cleansed what was due; should
//! that take longer than foreseen, nobody is stopped for it.
//!
//! With `room` bytes left in the active queue, and a flush that will take `rest` seconds more, a writer of `n` bytes
//! owes `n × rest / room` seconds. Small debts are gathered: nobody sleeps for less than a millisecond.
//!
//! What a flush will take is a guess, and one that is always too high would leave the device idle between two flushes, one that is
//! too low would leave work undone that adds up. So the queue may be ahead of the flush by a *lead*, which grows with what was left of the room
//! when a flush that had slowed writers was through, and shrinks with what was left of its work when the queue was full. As long as
//! the frozen queue is not in the trees there is no lead: until then a full queue stops everybody.

use crate::engine::Engine;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How the running flush is getting on.
#[derive(Default)]
pub(crate) struct Pace {
    started: Mutex<Option<Instant>>,
    /// Thousandths of what the flush writes that are written.
    progress: AtomicU64,
    /// Thousandths of the queue by which it may be ahead of the flush.
    lead: AtomicU64,
    /// What `delayed_us` was when the flush began.
    delayed_before: AtomicU64,
    debt_us: AtomicU64,
    /// Microseconds that writers were delayed, in all.
    pub delayed_us: AtomicU64,
    /// Microseconds that writers waited for a full queue, in all.
    pub stopped_us: AtomicU64,
}

const SLEEP_MIN_US: u64 = 1000;
const SLEEP_MAX_US: u64 = 50_000;
/// Thousandths of the queue.
const LEAD_MAX: u64 = 500;

impl Pace {
    pub fn begin(&self) {
        *self.started.lock() = Some(Instant::now());
        self.progress.store(0, Relaxed);
        self.delayed_before.store(self.delayed_us.load(Relaxed), Relaxed);
    }

    /// The flush is over. Then the active queue held `used` of `capacity` bytes, and of `due` pieces of work `left` were not done.
    pub fn learn(&self, (used, capacity): (usize, usize), (left, due): (usize, usize)) {
        let share = |part: usize, whole: usize| (part as u64 * 1000).checked_div(whole as u64).unwrap_or(0);
        let room = 1000 - share(used, capacity).min(1000);
        let was_delayed = self.delayed_us.load(Relaxed) > self.delayed_before.load(Relaxed);
        let more = if was_delayed && left == 0 { room / 4 } else { 0 };
        let lead = (self.lead.load(Relaxed) + more).saturating_sub(share(left, due) / 4);
        self.lead.store(lead.min(LEAD_MAX), Relaxed);
    }

    pub fn report(&self, done: u64, total: u64) {
        self.progress.store((done * 1000 / total.max(1)).clamp(1, 999), Relaxed);
    }

    pub fn end(&self) {
        *self.started.lock() = None;
        self.debt_us.store(0, Relaxed);
    }

    /// Microseconds that a writer of `bytes` owes when the active queue holds `used` of `capacity` bytes.
    fn owed(&self, bytes: usize, used: usize, capacity: usize, is_frozen: bool) -> u64 {
        let Some(started) = *self.started.lock() else { return 0 };
        let progress = self.progress.load(Relaxed);
        let fill = (used as u64 * 1000) / capacity.max(1) as u64;
        let lead = if is_frozen { 0 } else { self.lead.load(Relaxed) };
        if fill <= progress + lead || progress == 0 {
            return 0;
        }
        let elapsed = started.elapsed().as_micros() as u64;
        let rest = elapsed * (1000 - progress) / progress;
        let room = capacity.saturating_sub(used).max(bytes).max(1) as u64;
        (bytes as u64).saturating_mul(rest) / room
    }
}

impl Engine {
    /// Freezes the active queue, which whoever filled it could not, if nobody has done so meanwhile.
    fn freeze_full(&self) -> Result<()> {
        let mut guard = self.log.lock();
        let state = self.state.load();
        if state.frozen.is_some() || state.active.fill() < self.shares.queue {
            return Ok(());
        }
        drop(state);
        self.freeze(guard.as_mut().ok_or(Error::Closed)?)
    }

    /// Delays a writer of `bytes` as the flush needs it, and stops it while there is no room at all. An error if there is no space for a
    /// log that a new queue would need.
    pub fn wait_for_room(&self, bytes: usize) -> Result<()> {
        let state = self.state.load();
        let (used, capacity) = (state.active.fill(), self.shares.queue);
        let is_frozen = state.frozen.is_some();
        drop(state);
        if used >= capacity && is_frozen {
            let began = Instant::now();
            let result = self.wait_for_flush();
            self.pace.stopped_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
            return result;
        }
        if used >= capacity {
            return self.freeze_full();
        }
        let owed = self.pace.owed(bytes, used, capacity, is_frozen);
        if owed > 0 && self.pace.debt_us.fetch_add(owed, Relaxed) + owed >= SLEEP_MIN_US {
            let debt = self.pace.debt_us.swap(0, Relaxed).min(SLEEP_MAX_US);
            self.pace.delayed_us.fetch_add(debt, Relaxed);
            std::thread::sleep(Duration::from_micros(debt));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_flush_that_lags_costs_and_more_the_less_room_there_is() {
        let pace = Pace::default();
        assert_eq!(pace.owed(1000, 90, 100, true), 0, "no flush");
        pace.begin();
        *pace.started.lock() = Some(Instant::now() - Duration::from_secs(1));
        pace.report(1, 2);
        assert_eq!(pace.owed(1000, 400_000, 1_000_000, true), 0, "the flush is ahead");
        let some = pace.owed(1000, 600_000, 1_000_000, true);
        let more = pace.owed(1000, 900_000, 1_000_000, true);
        assert!((2_400..=2_700).contains(&some), "1000 bytes of 400,000 in a second: {some} us");
        assert!(more > 3 * some, "{more} us");
        pace.lead.store(200, Relaxed);
        assert!(
            pace.owed(1000, 600_000, 1_000_000, true) >= some,
            "no lead before the queue is in the trees"
        );
        assert_eq!(pace.owed(1000, 600_000, 1_000_000, false), 0);
    }

    #[test]
    fn the_lead_follows_what_was_left_of_the_room_or_of_the_work() {
        let pace = Pace::default();
        let lead = |used, left| {
            pace.begin();
            pace.delayed_us.fetch_add(1, Relaxed);
            pace.learn((used, 1000), (left, 100));
            pace.end();
            pace.lead.load(Relaxed)
        };
        assert_eq!(lead(600, 0), 100, "the flush was through with 400 of 1000 left");
        assert_eq!(lead(800, 0), 150);
        assert_eq!(lead(1000, 0), 150, "just in time");
        assert_eq!(lead(1000, 40), 50, "40 of 100 blocks were left");
        assert_eq!(lead(1000, 100), 0);
        pace.begin();
        pace.learn((0, 1000), (0, 100));
        assert_eq!(pace.lead.load(Relaxed), 0, "nobody was slowed");
        assert_eq!((0..20).map(|_| lead(0, 0)).max(), Some(LEAD_MAX));
    }
}
