//! How flushes behave while the disk is full. They write a small portion and pause between attempts, so that
//! data that does not fit is not written again and again; portions that fit stay. Each portion that found space
//! doubles the next one, so that flushing speeds up soon after there is space again.
//!
//! Invariants:
//! 1. There is an attempt at least every [`PAUSE_MAX`], at once when a flush is requested, and once more before
//!    a writer is refused.
//! 2. After a complete flush there is no limit. But for a while, no portion is larger than a small database's.

use crate::lock_order::{RankedMutex, rank};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Approximate bytes that the first portion after a full disk writes: so few that little is written in vain.
const LIMIT_MIN: u64 = 256 << 10;
/// The first and the longest pause between attempts in the background, which doubles each time: an attempt must not
/// cost much where space does not come back, and come soon where it does.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_millis(800);
/// In the foreground, commits try again each time the active queue has filled by another 64th of its capacity, because
/// each attempt costs the writer a flush's beginning.
const TRIES_A_QUEUE: usize = 64;

/// Number of flushes that avoid large portions after one for which there was no space: a disk that was full so lately
/// will be again.
const CAREFUL: u64 = 100;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct LowSpace {
    now: RankedMutex<rank::LowSpace, Option<Short>>,
    /// Number of further flushes that must avoid large portions.
    careful: AtomicU64,
}

#[derive(Clone, Copy)]
struct Short {
    /// Bytes that a portion may write.
    limit: u64,
    pause: Duration,
    /// Bytes in the active queue at the last attempt.
    fill: usize,
}

impl LowSpace {
    /// A flush found the disk full. The active queue then held `fill` bytes.
    pub fn failed(&self, fill: usize) {
        let mut now = self.now.lock();
        let pause = now.map_or(PAUSE, |short| (2 * short.pause).min(PAUSE_MAX));
        *now = Some(Short { limit: LIMIT_MIN, pause, fill });
    }

    /// A portion found space.
    pub fn eased(&self) {
        if let Some(short) = &mut *self.now.lock() {
            short.limit = short.limit.saturating_mul(2);
            short.pause = PAUSE / 2;
        }
    }

    /// A whole flush found space.
    pub fn over(&self) {
        *self.now.lock() = None;
        let _ = self.careful.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    }

    /// There was no space for a large portion, though there may be for a small one.
    pub fn be_careful(&self) {
        self.careful.store(CAREFUL, Relaxed);
    }

    /// Whether portions must be small.
    pub fn is_careful(&self) -> bool {
        self.careful.load(Relaxed) > 0
    }

    /// Approximate bytes that a portion may write. What has been started is finished.
    pub fn limit(&self) -> u64 {
        self.now.lock().map_or(u64::MAX, |short| short.limit)
    }

    /// How long to pause after a failed attempt.
    pub fn pause(&self) -> Duration {
        self.now.lock().map_or(Duration::ZERO, |short| short.pause)
    }

    /// Whether a commit in the foreground should try again, with `fill` of `capacity` bytes in the active
    /// queue.
    pub fn is_worth_a_try(&self, fill: usize, capacity: usize) -> bool {
        self.now.lock().is_none_or(|short| fill < short.fill || fill - short.fill >= capacity / TRIES_A_QUEUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_become_rare_and_portions_small_until_there_is_space() {
        let low_space = LowSpace::default();
        assert!(low_space.limit() == u64::MAX && low_space.is_worth_a_try(0, 6400));
        let pauses: Vec<_> = (0..4)
            .map(|_| {
                low_space.failed(1000);
                low_space.pause().as_millis()
            })
            .collect();
        assert_eq!(pauses, [200, 400, 800, 800]);
        assert_eq!(
            [1000, 1099, 1100, 10].map(|fill| low_space.is_worth_a_try(fill, 6400)),
            [false, false, true, true]
        );
        assert_eq!(low_space.limit(), LIMIT_MIN);
        (0..70).for_each(|_| low_space.eased());
        assert_eq!(low_space.limit(), u64::MAX, "no limit any more");
        low_space.failed(1000);
        assert_eq!((low_space.limit(), low_space.pause()), (LIMIT_MIN, PAUSE));
        low_space.over();
        assert_eq!(low_space.limit(), u64::MAX);
        low_space.be_careful();
        let careful = (0..1000).take_while(|_| low_space.is_careful()).inspect(|_| low_space.over()).count();
        assert_eq!(careful as u64, CAREFUL);
    }
}
