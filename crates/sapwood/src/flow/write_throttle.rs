//! Delays writers: each takes time from the others, one after the other, and one that comes before its time sleeps until
//! then, if that is long enough to be worth a sleep. Short delays add up until it is, so that writers of short commits
//! sleep a little now and then, and none of their calls takes long.
//!
//! How much time a writer takes is up to [`crate::flow::flush_progress`].
//!
//! Invariant: time that was not used is not saved up, and no writer sleeps for more than 50 ms at a time.

use psync::nap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The shortest sleep (ns): a tenth of it is lost in waking up.
const SLEEP_MIN_NS: u64 = 200_000;
/// The longest sleep (ns): the flush may be faster than estimated.
const SLEEP_MAX_NS: u64 = 50_000_000;

/// See the module.
pub(crate) struct WriteThrottle {
    /// When the next writer may go on: `next_ns` nanoseconds after `epoch`.
    epoch: Instant,
    next_ns: AtomicU64,
    /// Total microseconds that writers slept.
    slept_us: AtomicU64,
}

impl Default for WriteThrottle {
    fn default() -> Self {
        Self { epoch: Instant::now(), next_ns: AtomicU64::default(), slept_us: AtomicU64::default() }
    }
}

impl WriteThrottle {
    /// Takes `ns` nanoseconds for a writer, after those that others have taken, and lets it sleep until these are over.
    pub fn delay(&self, ns: u64) {
        let early = self.take_time(ns).min(SLEEP_MAX_NS);
        if early >= SLEEP_MIN_NS {
            self.slept_us.fetch_add(early / 1000, Relaxed);
            nap(Duration::from_nanos(early));
        }
    }

    /// The flush is over: there is nothing to wait for.
    pub fn end(&self) {
        self.next_ns.store(0, Relaxed);
    }

    /// Total microseconds that writers slept.
    pub fn slept_us(&self) -> u64 {
        self.slept_us.load(Relaxed)
    }

    /// Takes `ns` nanoseconds. Returns how far in the future their end is.
    fn take_time(&self, ns: u64) -> u64 {
        let now = self.epoch.elapsed().as_nanos() as u64;
        // Unused time is not saved up, and no writer is put off for more than `SLEEP_MAX_NS`.
        let take = |next: u64| next.clamp(now, now + SLEEP_MAX_NS) + ns;
        let before = self.next_ns.fetch_update(Relaxed, Relaxed, |next| Some(take(next)));
        before.map_or(0, take) - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_one_another_and_are_not_saved_up() {
        let throttle = WriteThrottle::default();
        std::thread::sleep(Duration::from_millis(5));
        let first = throttle.take_time(2_000_000);
        assert!((1..=2_000_000).contains(&first), "time that has passed counts for nothing: {first}");
        let second = throttle.take_time(2_000_000);
        assert!((first..=4_000_000).contains(&second), "{second}");
        std::thread::sleep(Duration::from_millis(10));
        assert!(throttle.take_time(500_000) <= 500_000, "a late one does not wait");
        let longest = (0..100).map(|_| throttle.take_time(10_000_000)).max();
        assert!(longest <= Some(SLEEP_MAX_NS + 10_000_000), "{longest:?}");
    }

    /// Their delays add up until they are worth a sleep.
    #[test]
    fn short_commits_sleep_seldom_and_are_delayed_as_much() {
        let throttle = WriteThrottle::default();
        let began = Instant::now();
        (0..2_000).for_each(|_| throttle.delay(10_000));
        let (took, slept) = (began.elapsed(), Duration::from_micros(throttle.slept_us()));
        assert!(took >= Duration::from_millis(18), "2,000 take 20 ms: {took:?}");
        assert!(slept >= Duration::from_millis(5) && slept <= took, "{slept:?} of {took:?}");
        let throttle = WriteThrottle::default();
        let longest = (0..100).map(|_| {
            let began = Instant::now();
            throttle.delay(SLEEP_MIN_NS / 4);
            began.elapsed()
        });
        let slept = longest.filter(|took| *took >= Duration::from_nanos(SLEEP_MIN_NS / 2)).count();
        assert!((1..=50).contains(&slept), "{slept} of 100 slept");
    }
}
