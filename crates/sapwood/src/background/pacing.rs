//! Rests between portions of background work that is not urgent: the readers that the work serves use the same
//! device.
//!
//! Invariant: a frozen queue ends a rest at once, and so does closing the database.

use crate::background::context::WorkContext;
use crate::background::pick::STILL;
use std::time::{Duration, Instant};

/// The longest rest between two portions of work that charges of readers have led to: a portion that a busy device made long must not
/// stop the work.
const REST_MAX: Duration = Duration::from_secs(1);
/// How often a resting thread checks whether another waits for it: short beside a portion, so that the wait is too.
const LOOK_BETWEEN: Duration = Duration::from_millis(5);
/// Work is not urgent while the active queue is less than this fraction (1/8) full.
const HARDLY_ANY: usize = 8;

/// How long to rest after a portion: `times` as long as it took, up to `REST_MAX`.
pub(crate) fn rest_after(times: u32, took: Duration) -> Duration {
    (times * took).min(REST_MAX)
}

impl WorkContext {
    /// Sleeps for `time`, or until a queue is frozen.
    pub fn rest(&self, time: Duration) {
        self.flush.sleep(time, || self.state.load().frozen.is_some());
    }

    /// Rests for `time` between portions of work that is not urgent, to leave the device to readers. Ends early
    /// when more than a little has been written since the last flush, or when a thread waits for the running work
    /// or for the resting thread.
    pub fn rest_beside_readers(&self, time: Duration) {
        let began = Instant::now();
        loop {
            let left = time.saturating_sub(began.elapsed());
            let (fill, most) = self.memory.fill(&self.state.load());
            if left.is_zero() || fill >= most / HARDLY_ANY || !self.no_thread_waits() {
                return;
            }
            let looked = Instant::now();
            self.rest(left.min(LOOK_BETWEEN));
            self.progress.rested(looked.elapsed());
            self.flush.rested(looked.elapsed());
            // The thread may work and rest like this for a long time, and does its idle work only afterwards.
            self.memory.give_back_free_list(STILL);
        }
    }

    fn no_thread_waits(&self) -> bool {
        let is_short = self.flush.low_space.limit() != u64::MAX;
        !self.is_wanted() && !is_short && self.flush.has_time() && self.health.check_writable().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::flow::memory::Need;
    use psync::{Simulated, Volume};
    use std::sync::Arc;

    #[test]
    fn it_rests_as_long_as_no_thread_writes_or_waits() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(32 << 20).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        let rests = |time| {
            let began = Instant::now();
            engine.background.ctx.rest_beside_readers(time);
            began.elapsed()
        };
        const LONG: Duration = Duration::from_secs(20);
        let short = Duration::from_millis(30);
        keyspace.insert("one", "record").unwrap();
        assert!((short..LONG).contains(&rests(short)));
        // No thread takes that for work.
        let is_left_out = || {
            let began = Instant::now();
            engine.progress.begin(0);
            rests(short);
            let elapsed = engine.progress.elapsed_for_test().unwrap();
            engine.progress.end();
            elapsed + short <= began.elapsed()
        };
        // On a busy machine the thread may stand still beside its rest.
        assert!((0..100).any(|_| is_left_out()));
        let waits = engine.flush.waits();
        assert!(rests(LONG) < LONG / 2, "a thread waits");
        drop(waits);
        // A thread that comes while it rests, and writes nodes itself.
        std::thread::scope(|scope| {
            let buffered = engine.writer().lock(Need::default()).unwrap();
            scope.spawn(|| drop(engine.writer().lock(Need::default())));
            assert!(rests(LONG) < LONG / 2);
            drop(buffered);
        });
        engine.health.poison(&crate::Error::Closed);
        assert!(rests(LONG) < LONG / 2, "nothing is written any more");
    }

    #[test]
    fn a_write_ends_a_rest() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(32 << 20).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        keyspace.insert("much", vec![1; 1 << 20]).unwrap();
        let began = Instant::now();
        engine.background.ctx.rest_beside_readers(Duration::from_secs(20));
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
