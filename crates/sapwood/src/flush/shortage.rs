//! What flushes do while the disk is full: they try a little at a time and pause in between, so that what does not fit is not written again
//! and again; what has fitted stays. A portion that found space doubles the next, so that the end of a shortage is soon felt.
//!
//! Invariants:
//! 1. There is a try at least every [`PAUSE_MAX`], at once for whoever asks for a flush, and a last one before a writer is refused.
//! 2. After a whole flush nothing is limited; but for a while no portion is larger than a small database's.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes that the first portion after a full disk writes, about.
const LIMIT_MIN: u64 = 256 << 10;
/// Between two tries in the background: twice as long each time.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_millis(800);
/// In the foreground commits try: whenever the active queue has filled by a 64th of what it may hold.
const TRIES_A_QUEUE: usize = 64;

/// Flushes that take no large portions after one for which there was no space.
const CAREFUL: u64 = 100;

/// See the module.
#[derive(Default)]
pub(crate) struct Shortage {
    now: Mutex<Option<Short>>,
    /// So many flushes are careful still.
    careful: AtomicU64,
}

#[derive(Clone, Copy)]
struct Short {
    /// Bytes that a portion may write.
    limit: u64,
    pause: Duration,
    /// How full the active queue was at the last try.
    fill: usize,
}

impl Shortage {
    /// A flush found the disk full, while the active queue was so full.
    pub fn failed(&self, fill: usize) {
        let mut now = self.now.lock();
        let pause = now.map_or(PAUSE, |short| (2 * short.pause).min(PAUSE_MAX));
        *now = Some(Short { limit: LIMIT_MIN, pause, fill });
    }

    /// There was space for a portion.
    pub fn eased(&self) {
        if let Some(short) = &mut *self.now.lock() {
            short.limit = short.limit.saturating_mul(2);
            short.pause = PAUSE / 2;
        }
    }

    /// There was space for everything.
    pub fn over(&self) {
        *self.now.lock() = None;
        let _ = self.careful.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    }

    /// There was no space for a large portion, but perhaps there is for a small one.
    pub fn be_careful(&self) {
        self.careful.store(CAREFUL, Relaxed);
    }

    /// Whether portions are to be small.
    pub fn is_careful(&self) -> bool {
        self.careful.load(Relaxed) > 0
    }

    /// Bytes that a portion may write, about: what is begun is finished.
    pub fn limit(&self) -> u64 {
        self.now.lock().map_or(u64::MAX, |short| short.limit)
    }

    /// How long to wait after a try that failed.
    pub fn pause(&self) -> Duration {
        self.now.lock().map_or(Duration::ZERO, |short| short.pause)
    }

    /// Whether a commit in the foreground is to try, now that the active queue is so full of so much.
    pub fn is_worth_a_try(&self, fill: usize, capacity: usize) -> bool {
        self.now.lock().is_none_or(|short| fill < short.fill || fill - short.fill >= capacity / TRIES_A_QUEUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_become_rare_and_portions_small_until_there_is_space() {
        let shortage = Shortage::default();
        assert!(shortage.limit() == u64::MAX && shortage.is_worth_a_try(0, 6400));
        let pauses: Vec<_> = (0..4)
            .map(|_| {
                shortage.failed(1000);
                shortage.pause().as_millis()
            })
            .collect();
        assert_eq!(pauses, [200, 400, 800, 800]);
        assert_eq!(
            [1000, 1099, 1100, 10].map(|fill| shortage.is_worth_a_try(fill, 6400)),
            [false, false, true, true]
        );
        assert_eq!(shortage.limit(), LIMIT_MIN);
        (0..70).for_each(|_| shortage.eased());
        assert_eq!(shortage.limit(), u64::MAX, "no limit any more");
        shortage.failed(1000);
        assert_eq!((shortage.limit(), shortage.pause()), (LIMIT_MIN, PAUSE));
        shortage.over();
        assert_eq!(shortage.limit(), u64::MAX);
        shortage.be_careful();
        let careful = (0..1000).take_while(|_| shortage.is_careful()).inspect(|_| shortage.over()).count();
        assert_eq!(careful as u64, CAREFUL);
    }
}
