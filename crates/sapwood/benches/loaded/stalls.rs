//! How much of its time a thread stood in long calls. Whoever makes one call after the other makes none while one lasts, so a few stalls among
//! millions of calls are in no percentile, however long they are. Of the time they are a part.

use std::time::Duration;

/// From here on a call is long.
const LONG: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

/// What tables call them.
pub const NAMES: [&str; 2] = ["in >1 ms", "in >10 ms"];

/// What the names mean.
pub const MEANING: &str =
    "in >1 ms, in >10 ms: share of the measured threads' time that they stood in calls longer than that";

/// See the module.
#[derive(Clone, Copy, Default)]
pub struct Stalls {
    within: [Duration; 2],
    longest: Duration,
    /// From the first call's beginning to the last one's end, of all threads together.
    time: Duration,
}

impl Stalls {
    /// One more call.
    pub fn add(&mut self, took: Duration) {
        for (within, long) in self.within.iter_mut().zip(LONG) {
            if took > long {
                *within += took;
            }
        }
        self.longest = self.longest.max(took);
    }

    /// What a thread has added lasted so long.
    pub fn lasted(&mut self, time: Duration) {
        self.time += time;
    }

    /// All of another.
    pub fn merge(&mut self, other: &Self) {
        for (within, other) in self.within.iter_mut().zip(other.within) {
            *within += other;
        }
        self.longest = self.longest.max(other.longest);
        self.time += other.time;
    }

    /// Percent of the time.
    pub fn percent(&self) -> [f64; 2] {
        self.within.map(|within| 100.0 * within.as_secs_f64() / self.time.as_secs_f64())
    }

    /// The longest call of all.
    pub fn longest_ms(&self) -> f64 {
        self.longest.as_secs_f64() * 1e3
    }
}
