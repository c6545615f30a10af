//! Backpressure: slows writers smoothly when flushing lags behind. The active queue should become full just
//! when the flush ends, so that writers need not stop for the whole flush. A flush ends when it has cleansed
//! what was due; if that takes longer than estimated, no writer is stopped for it.
//!
//! With `room` bytes left in the active queue, and a flush that will take `rest` seconds more, `n` bytes are delayed to
//! `n × rest / room` seconds after the bytes before them ([`crate::flow::write_throttle`]).
//!
//! The flush's remaining time is estimated from its own speed and from that of previous flushes. The further
//! the flush has come, the more its own speed counts.
//!
//! The estimate is only a guess. If it were always too high, the device would be idle between flushes; if
//! always too low, undone work would add up. So the queue may be ahead of the flush by a *slack*. After a flush
//! that slowed writers, the slack grows with the room that was left in the queue when the flush ended, and with
//! the time that the flush had to wait for the next queue to run beside it. It shrinks with the work that was
//! left undone when the queue was full. There is no slack until the frozen queue is in the trees: until then a
//! full queue stops all writers.
//!
//! The next queue may be frozen before a flush ends; it is then applied to the trees beside the end of that
//! flush ([`crate::background::flush`]). The active queue is then the next but one. It is a whole queue ahead, and has as
//! much time per byte as a flush takes per byte of a queue.

use crate::flow::flush_estimate::FlushEstimate;
use crate::flow::write_throttle::WriteThrottle;
use crate::lock_order::{RankedMutex, rank};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The progress of the running flush.
#[derive(Default)]
pub(crate) struct FlushProgress {
    now: RankedMutex<rank::FlushProgress, RunningFlush>,
    /// Nanoseconds that previous flushes took per KiB of expected writes. 0: unknown.
    before_ns: AtomicU64,
    /// Progress of the flush's writes in thousandths. 0 if no flush runs, or if its duration cannot be
    /// estimated yet.
    progress: AtomicU64,
    /// The slack: by how many thousandths of its capacity the queue may be ahead of the flush.
    slack: AtomicU64,
    /// Whether the running flush's queue is in the trees.
    in_trees: AtomicBool,
    /// Thousandths of its work that the previous flush left undone.
    undone: AtomicU64,
    /// How long writers had slept when the flush began.
    delayed_before: AtomicU64,
    /// Lets writers sleep.
    pub throttle: WriteThrottle,
    /// Total microseconds that writers waited because the queue was full.
    pub stopped_us: AtomicU64,
}

#[derive(Default)]
struct RunningFlush {
    /// `None` if no flush is running.
    started: Option<Instant>,
    estimate: FlushEstimate,
}

/// The maximum slack, in thousandths of the queue's capacity: with more, flushes of half-empty queues would write more
/// than delays cost.
const SLACK_MAX: u64 = 500;

impl FlushProgress {
    /// Starts a flush that will write `bytes`, not counting what the collector copies.
    pub fn begin(&self, bytes: u64) {
        let mut now = self.now.lock();
        now.started = Some(Instant::now());
        now.estimate.begin(bytes);
        // Until the flush has written something, only earlier flushes tell how long it will take.
        let is_known = self.before_ns.load(Relaxed) > 0 && bytes > 0;
        self.progress.store(u64::from(is_known), Relaxed);
        self.in_trees.store(false, Relaxed);
        self.delayed_before.store(self.throttle.slept_us(), Relaxed);
    }

    /// Learns from the flush that ends now; it was idle for the time `waited`. The active queue then held
    /// `used` of `capacity` bytes, and `left` of `due` pieces of work were not done.
    pub fn learn(&self, (used, capacity): (usize, usize), (left, due): (usize, usize), waited: Duration) {
        let share = |part: usize, whole: usize| (part as u64 * 1000).checked_div(whole as u64).unwrap_or(0);
        let (room, undone) = (1000 - share(used, capacity).min(1000), share(left, due));
        let now = self.now.lock();
        // A small flush would be measured by its syncs.
        if let Some(started) = now.started
            && now.estimate.done() >= capacity as u64 / 8
        {
            let kib = now.estimate.estimate_of_done(undone) >> 10;
            let took = (started.elapsed().as_nanos() as u64).checked_div(kib);
            // The newest flush alone: it is a mean over a whole flush.
            took.into_iter().for_each(|took| self.before_ns.store(took, Relaxed));
        }
        let took = now.started.map_or(0, |started| started.elapsed().as_micros() as u64);
        let waited = (waited.as_micros() as u64 * 1000).checked_div(took).unwrap_or(0);
        drop(now);
        self.undone.store(undone, Relaxed);
        let was_delayed = self.throttle.slept_us() > self.delayed_before.load(Relaxed);
        let more = if was_delayed && left == 0 { (room + waited) / 4 } else { 0 };
        let slack = (self.slack.load(Relaxed) + more).saturating_sub(undone / 4);
        self.slack.store(slack.min(SLACK_MAX), Relaxed);
    }

    /// Updates what is known of the running flush. Writes while no flush runs count for none.
    fn tell(&self, what: impl FnOnce(&mut FlushEstimate)) {
        let mut now = self.now.lock();
        if now.started.is_some() {
            what(&mut now.estimate);
            self.progress.store(now.estimate.progress(), Relaxed);
        }
    }

    /// The flush has written `bytes` more.
    pub fn wrote(&self, bytes: u64) {
        self.tell(|estimate| estimate.wrote(bytes));
    }

    /// The collector has copied `bytes` more.
    pub fn copied(&self, bytes: u64) {
        self.tell(|estimate| estimate.copied(bytes));
    }

    /// The flush's queue is in the trees, and cleansing will write `due` bytes more.
    pub fn expect(&self, due: u64) {
        self.tell(|estimate| estimate.expect(due));
        self.in_trees.store(true, Relaxed);
    }

    #[cfg(test)]
    pub fn elapsed_for_test(&self) -> Option<Duration> {
        self.now.lock().started.map(|started| started.elapsed())
    }

    /// The flush thread deliberately rested for `time`, which must not count towards the flush's duration.
    pub fn rested(&self, time: Duration) {
        if let Some(started) = self.now.lock().started.as_mut() {
            *started += time;
        }
    }

    pub fn end(&self) {
        self.now.lock().started = None;
        self.progress.store(0, Relaxed);
        self.throttle.end();
    }

    /// The time in nanoseconds that a writer of `bytes` takes from other writers, when the active queue holds
    /// `used` of `capacity` bytes.
    pub fn delay_ns(&self, bytes: usize, used: usize, capacity: usize, is_frozen: bool) -> u64 {
        let progress = self.progress.load(Relaxed);
        let (share, slack) = ((used as u64 * 1000) / capacity.max(1) as u64, self.slack.load(Relaxed));
        let is_next_but_one = is_frozen && self.in_trees.load(Relaxed);
        // `fill`: how much of the queue is filled. `slack`: how far that may be ahead of the flush. `left`: how
        // much of a flush remains. `used`: how much of the room is used. They refer to this flush, or to the
        // whole of the next.
        let (fill, slack, left, used) = match is_next_but_one {
            true => (1000 + share, slack, 1000, 0),
            false => (share, if is_frozen { 0 } else { slack }, 1000_u64.saturating_sub(progress), used),
        };
        if fill <= progress + slack || progress == 0 {
            return 0;
        }
        // Take the lock only now: all writers share it.
        let now = self.now.lock();
        let Some(started) = now.started else { return 0 };
        let total = now.estimate.total();
        drop(now);
        let elapsed = started.elapsed().as_nanos() as u64;
        let rest = match self.before_ns.load(Relaxed) {
            0 => elapsed.saturating_mul(left) / progress,
            before => {
                let as_before = (total >> 10).saturating_mul(before) / 1000 * left;
                // A mix of previous flushes' speed and `elapsed × left / progress`; the latter counts more
                // the further the flush is.
                as_before / 1000 * (1000 - progress) + elapsed / 1000 * left
            }
        };
        // Work left undone was added to this flush. Slow writers so far that it gets done, and none is left
        // again.
        let rest = u128::from(rest) * u128::from(1000 + self.undone.load(Relaxed)) / 1000;
        let room = capacity.saturating_sub(used).max(bytes).max(1);
        (bytes as u128 * rest / room as u128) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
    use std::sync::Arc;

    /// An upper bound for what grows with time, a tenth of a second or more: this thread may have slept since `began`.
    fn late(bound: u64, began: Instant) -> u64 {
        (bound as f64 * (1.0 + 10.0 * began.elapsed().as_secs_f64())) as u64
    }

    #[test]
    fn only_a_flush_that_lags_costs_and_more_the_less_room_there_is() {
        let progress = FlushProgress::default();
        assert_eq!(progress.delay_ns(1000, 90, 100, true), 0, "no flush");
        let began = Instant::now();
        progress.begin(2000);
        progress.now.lock().started = Some(began - Duration::from_secs(1));
        progress.wrote(1000);
        assert_eq!(progress.delay_ns(1000, 400_000, 1_000_000, true), 0, "the flush is ahead");
        let some = progress.delay_ns(1000, 600_000, 1_000_000, true);
        let more = progress.delay_ns(1000, 900_000, 1_000_000, true);
        let most = late(2_700_000, began);
        assert!((2_400_000..=most).contains(&some), "1000 bytes of 400,000 in a second: {some} ns");
        assert!(more > 3 * some, "{more} ns");
        progress.slack.store(200, Relaxed);
        assert!(
            progress.delay_ns(1000, 600_000, 1_000_000, true) >= some,
            "no slack before the queue is in the trees"
        );
        assert_eq!(progress.delay_ns(1000, 600_000, 1_000_000, false), 0);
    }

    /// The active queue is then the next but one.
    #[test]
    fn a_queue_that_fills_while_the_next_is_frozen_has_as_long_as_a_flush() {
        let progress = FlushProgress::default();
        let start = |ago| progress.now.lock().started = Some(Instant::now() - Duration::from_millis(ago));
        for takes in [1000, 800] {
            let began = Instant::now();
            progress.begin(1000 << 10);
            start(takes);
            progress.wrote(1000 << 10);
            progress.learn((1000, 1000), (0, 0), Duration::ZERO);
            // At the end of a flush that takes a second.
            progress.begin(1000 << 10);
            start(900);
            progress.wrote(900 << 10);
            assert_eq!(progress.delay_ns(1000, 500_000, 1_000_000, true), 0, "less than is flushed");
            progress.expect(100 << 10);
            let delay = progress.delay_ns(1000, 10_000, 1_000_000, true);
            assert!(
                (800_000..=late(1_100_000, began)).contains(&delay),
                "1000 of 1,000,000 bytes in a second: {delay} ns"
            );
            progress.slack.store(200, Relaxed);
            assert_eq!(progress.delay_ns(1000, 80_000, 1_000_000, true), 0, "the slack");
            assert!(progress.delay_ns(1000, 150_000, 1_000_000, true) > 0);
            progress.slack.store(0, Relaxed);
        }
    }

    #[test]
    fn at_its_beginning_a_flush_is_taken_for_one_as_before() {
        let began = Instant::now();
        let progress = FlushProgress::default();
        let start = |ago| progress.now.lock().started = Some(Instant::now() - Duration::from_millis(ago));
        progress.begin(1000 << 10);
        start(1000);
        progress.wrote(400 << 10);
        progress.learn((1000, 1000), (0, 0), Duration::ZERO);
        assert!(
            (900_000..late(1_200_000, began)).contains(&progress.before_ns.load(Relaxed)),
            "a millisecond for each KiB that was estimated"
        );
        progress.begin(1000 << 10);
        let delay = |progress: &FlushProgress| progress.delay_ns(1000, 500_000, 1_000_000, true);
        assert!(
            (1_500_000..late(2_700_000, began)).contains(&delay(&progress)),
            "nothing is written yet: {}",
            delay(&progress)
        );
        start(100);
        progress.wrote(10 << 10);
        let delay = delay(&progress);
        assert!(
            (1_900_000..late(2_700_000, began)).contains(&delay),
            "1000 of 500,000 bytes in about a second, not in ten: {delay}"
        );
    }

    /// Work in the background that belongs to no flush is not the next one's.
    #[test]
    fn what_is_written_while_nothing_is_flushed_is_not_foreseen() {
        let progress = FlushProgress::default();
        let total = || progress.now.lock().estimate.total();
        progress.copied(500);
        progress.expect(500);
        progress.begin(1000);
        assert_eq!((total(), progress.progress.load(Relaxed)), (1000, 0));
        progress.wrote(900);
        assert_eq!(progress.progress.load(Relaxed), 900);
    }

    /// Its syncs would be taken for its length, whatever was estimated.
    #[test]
    fn nothing_is_learned_from_a_flush_that_wrote_little() {
        let progress = FlushProgress::default();
        let began = Instant::now();
        let flush = |own, written, copied, took| {
            progress.begin(own);
            progress.now.lock().started = Some(Instant::now() - Duration::from_millis(took));
            progress.wrote(written);
            progress.copied(copied);
            progress.learn((0, 8 << 20), (0, 0), Duration::ZERO);
            progress.end();
            progress.before_ns.load(Relaxed) / 1000
        };
        assert!((95..late(130, began)).contains(&flush(10 << 20, 10 << 20, 0, 1000)));
        assert!((95..late(130, began)).contains(&flush(10 << 20, 10 << 20, 90 << 20, 10_000)));
        assert!(
            (95..late(130, began)).contains(&flush(1000, 1000, 0, 5)),
            "though as much was estimated as had been copied before"
        );
        assert!(
            (95..late(130, began)).contains(&flush(10 << 20, 10 << 20, 0, 1000)),
            "and what was not copied took no time"
        );
    }

    #[test]
    fn the_slack_follows_what_was_left_of_the_room_or_of_the_work() {
        let progress = FlushProgress::default();
        let slack = |used, left| {
            progress.begin(0);
            progress.throttle.delay(400_000);
            progress.learn((used, 1000), (left, 100), Duration::ZERO);
            progress.end();
            progress.slack.load(Relaxed)
        };
        assert_eq!(slack(600, 0), 100, "the flush was through with 400 of 1000 left");
        assert_eq!(slack(800, 0), 150);
        assert_eq!(slack(1000, 0), 150, "just in time");
        assert_eq!(slack(1000, 40), 50, "40 of 100 blocks were left");
        assert_eq!(slack(1000, 100), 0);
        progress.begin(0);
        progress.learn((0, 1000), (0, 100), Duration::ZERO);
        assert_eq!(progress.slack.load(Relaxed), 0, "no writer was slowed");
        assert_eq!((0..20).map(|_| slack(0, 0)).max(), Some(SLACK_MAX));
    }

    /// Flushes with one refused write of data, the `nth`, after a flush that had found the disk full. Says what the slack of 400 thousandths
    /// is then, and how often what a portion may write was doubled, unless it is without limit, in how many portions; `None`: nothing was
    /// refused.
    fn flush_short_of_space(nth: u64) -> Option<(u64, Option<u64>, u64)> {
        let volume = Simulated::new(1);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(shared).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
        let put = |round: u32| {
            let mut batch = db.batch();
            for number in 0..1000 {
                // 7919 is a prime.
                batch.insert(&keyspace, ((round * 1000 + number) * 7919 % 20_000).to_be_bytes(), [1; 100]);
            }
            batch.commit().unwrap();
        };
        for round in 0..12 {
            put(round);
            db.flush().unwrap();
        }
        put(12);
        let engine = &db.handle.engine;
        engine.progress.slack.store(400, Relaxed);
        engine.flush.low_space.failed(0);
        let (limit, portions) = (engine.flush.low_space.limit(), db.stats().writes.portions);
        let writes = Filter::kinds([OperationKind::Write]).file("data");
        // A small portion is tried again.
        volume.fail_nth(writes, nth, Fault::NoSpace, Repeat::Sticky);
        let flushed = db.flush();
        let now = engine.flush.low_space.limit();
        let doubled = (flushed.is_ok() && now != u64::MAX).then(|| u64::from((now / limit).ilog2()));
        let portions = db.stats().writes.portions - portions;
        (volume.fired() > 0).then(|| (engine.progress.slack.load(Relaxed), doubled, portions))
    }

    #[test]
    fn cleansing_that_finds_the_disk_full_is_work_undone_behind_portions_that_found_space() {
        let flushes: Vec<_> = (1..).map_while(flush_short_of_space).collect();
        let short =
            flushes.iter().filter_map(|(slack, doubled, portions)| Some((*slack, (*doubled)?, *portions)));
        let short: Vec<_> = short.collect();
        // The first refused write was one of the first portion of cleansing: all others were the queue's.
        let first = short.first().unwrap_or_else(|| panic!("no write was one of cleansing: {flushes:?}"));
        assert_eq!(first.1, first.2, "each portion found space: {flushes:?}");
        assert!(short.iter().all(|(slack, ..)| *slack == 150), "all that was due is undone: {flushes:?}");
    }
}
