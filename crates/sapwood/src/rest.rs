//! Rests between two portions of work that is in no hurry: those for whom it works read from the same device.
//!
//! Invariant: a queue that is frozen ends a rest at once, and so does closing.

use crate::engine::Engine;
use crate::idle::STILL;
use std::time::{Duration, Instant};

/// No rest between two portions of what somebody pays for is longer, however long one took.
const REST_MAX: Duration = Duration::from_secs(1);
/// How often a thread that rests looks whether anybody waits for it.
const LOOK: Duration = Duration::from_millis(5);
/// It has time as long as less than such a part of the next queue is written.
const HARDLY_ANY: usize = 8;

impl Engine {
    /// How long to rest after a portion that took so long: so many times as long, within bounds.
    pub fn rest_after(times: u32, took: Duration) -> Duration {
        (times * took).min(REST_MAX)
    }

    /// Waits for so long, or until there is something to flush.
    pub fn rest(&self, time: Duration) {
        self.flush.sleep(time, || self.state.load().frozen.is_some());
    }

    /// Takes a rest of so long after work that is in no hurry, since those who read use the device too: as long as hardly anything was written
    /// since the last flush, and nobody waits for what is at work, or for whoever rests.
    pub fn rest_beside_readers(&self, time: Duration) {
        self.rest_while(time, || {
            let (fill, most) = self.fill(&self.state.load());
            fill < most / HARDLY_ANY
        });
    }

    /// The same, as long as it may for another reason. Says whether nothing has ended it before its time.
    pub fn rest_while(&self, time: Duration, may: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        loop {
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return true;
            }
            if !may() || !self.nobody_waits() {
                return false;
            }
            let looked = Instant::now();
            self.rest(left.min(LOOK));
            self.pace.rested(looked.elapsed());
            self.flush.rested(looked.elapsed());
            // It may be at work for long, and only then be idle.
            self.give_back_spare(STILL);
        }
    }

    fn nobody_waits(&self) -> bool {
        let is_short = self.flush.shortage.limit() != u64::MAX;
        let is_wanted = self.state.load().frozen.is_some() || self.flush.stops();
        !is_wanted && !is_short && self.flush.has_time() && self.check_writable().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::budget::Need;
    use psync::{Simulated, Volume};
    use std::sync::Arc;

    #[test]
    fn it_rests_as_long_as_nobody_writes_or_waits() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(32 << 20).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        let rests = |time| {
            let began = Instant::now();
            engine.rest_beside_readers(time);
            began.elapsed()
        };
        const LONG: Duration = Duration::from_secs(20);
        let short = Duration::from_millis(30);
        keyspace.insert("one", "record").unwrap();
        assert!((short..LONG).contains(&rests(short)));
        // Nobody takes that for work.
        engine.pace.begin(0);
        rests(short);
        assert!(engine.pace.elapsed_for_test().unwrap() < short);
        engine.pace.end();
        let waits = engine.flush.waits();
        assert!(rests(LONG) < LONG / 2, "somebody waits");
        drop(waits);
        // Who comes while it rests, and wants to write nodes himself.
        std::thread::scope(|scope| {
            let held = engine.writer(Need::default()).unwrap();
            scope.spawn(|| drop(engine.writer(Need::default())));
            assert!(rests(LONG) < LONG / 2);
            drop(held);
        });
        engine.poison(&crate::Error::Closed);
        assert!(rests(LONG) < LONG / 2, "nothing is written any more");
    }

    #[test]
    fn who_writes_ends_a_rest() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(32 << 20).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        keyspace.insert("much", vec![1; 1 << 20]).unwrap();
        let began = Instant::now();
        engine.rest_beside_readers(Duration::from_secs(20));
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
