//! Snapshots that cannot be received: where that is told, and how long the sender waits.
//!
//! openraft gives the error of a piece that cannot be written to the node that has sent it, and to nobody else: Raft runs on here, and the leader
//! sends the whole again, at once.

use parking_lot::Mutex;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// The parts of the time after an attempt that failed in which the next one is not begun: each costs a network and a disk what the
/// whole snapshot does, so no more than a tenth of the time goes to them.
const PAUSE_PARTS: u32 = 9;
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// As long as an operator who has made room may wait.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// What this node could not receive since it was started.
#[derive(Debug, Default)]
pub struct Receiving(Mutex<Failures>);

#[derive(Clone, Debug, Default)]
pub struct Failures {
    pub count: u64,
    /// Why, if nothing was received since.
    pub last: Option<String>,
}

impl Receiving {
    pub fn note_failure(&self, error: &impl Display) {
        tracing::error!(
            "a snapshot that the leader sends cannot be received: {error}. It is sent again, from its beginning: \
             make room on the disk, or replace it"
        );
        let mut failures = self.0.lock();
        failures.count += 1;
        failures.last = Some(error.to_string());
    }

    pub fn note_whole(&self) {
        self.0.lock().last = None;
    }

    pub fn failures(&self) -> Failures {
        self.0.lock().clone()
    }
}

/// What a node was sent, and could not receive.
#[derive(Debug, Default)]
pub struct Attempts {
    begun: Option<Instant>,
    pause: Duration,
}

impl Attempts {
    /// How long to wait before the next one is begun.
    pub fn pause(&mut self) -> Duration {
        std::mem::take(&mut self.pause)
    }

    pub fn note_begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    pub fn note_failure(&mut self, now: Instant) -> Duration {
        let took = self.begun.take().map_or(Duration::ZERO, |begun| now.duration_since(begun));
        self.pause = (took * PAUSE_PARTS).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_fail_take_a_tenth_of_the_time() {
        let begin = Instant::now();
        let mut attempts = Attempts::default();
        assert_eq!(attempts.pause(), Duration::ZERO);
        for (took, pause) in [(0, 1), (20, 180), (3600, 300)] {
            attempts.note_begin(begin);
            attempts.note_failure(begin + Duration::from_secs(took));
            assert_eq!(attempts.pause(), Duration::from_secs(pause), "{took} s");
            assert_eq!(attempts.pause(), Duration::ZERO);
        }
    }
}
