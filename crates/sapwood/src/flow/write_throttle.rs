//! Delays: gives writers their turns, one after the other, and lets a writer that comes before its turn sleep until
//! then, if that is long enough to be worth a sleep:
//!
//! ```text
//! alone, a short commit    1 to 4 ms     so long that at most one in some thousands sleeps, and p99.9 is that of the others
//! not alone, a short one   1 ms          others would be asleep as long, and then all awake at once
//! a longer one             0.05 ms       a batch takes some tenths of a millisecond anyway
//! others sleep already     0.2 ms        each of them has longer to wait
//! ```
//! How much of the others' time a writer takes is up to [`crate::flow::flush_progress`].
//!
//! Invariant: turns that nobody used are not saved up, and no writer sleeps for more than 50 ms at a time.

use psync::nap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A commit of at most this many bytes is short.
const SHORT: usize = 4 << 10;
/// The shortest sleep of a writer that is alone, with a short commit: what it owes for so many of them,
const SHORT_COMMITS_A_SLEEP: u64 = 2048;
/// but never more than this, nor less than that of one that is not alone.
const SLEEP_MIN_ALONE_NS: u64 = 4_000_000;
const SLEEP_MIN_SHORT_NS: u64 = 1_000_000;
/// The shortest sleep of a writer with a longer commit; and of a writer while others sleep.
const SLEEP_MIN_NS: u64 = 50_000;
const SLEEP_MIN_BESIDE_OTHERS_NS: u64 = 200_000;
const SLEEP_MAX_NS: u64 = 50_000_000;

/// The other writers.
#[derive(Clone, Copy)]
enum OtherWriters {
    /// None came while a writer slept last.
    Away,
    Awake,
    Asleep,
}

/// The shortest sleep that a commit of `bytes`, which owes `owed` nanoseconds, is delayed by.
fn shortest_sleep(bytes: usize, owed: u64, others: OtherWriters) -> u64 {
    match others {
        OtherWriters::Asleep => SLEEP_MIN_BESIDE_OTHERS_NS,
        _ if bytes > SHORT => SLEEP_MIN_NS,
        OtherWriters::Awake => SLEEP_MIN_SHORT_NS,
        OtherWriters::Away => {
            owed.saturating_mul(SHORT_COMMITS_A_SLEEP).clamp(SLEEP_MIN_SHORT_NS, SLEEP_MIN_ALONE_NS)
        }
    }
}

/// See the module.
pub(crate) struct WriteThrottle {
    /// When the next bytes have their turn: `turn_ns` nanoseconds after `epoch`.
    epoch: Instant,
    turn_ns: AtomicU64,
    /// Number of writers that sleep until their turn.
    asleep: AtomicUsize,
    /// Whether a writer came while another slept. The next one that sleeps while no other does begins anew.
    in_company: AtomicBool,
    /// Total microseconds that writers slept.
    slept_us: AtomicU64,
}

impl Default for WriteThrottle {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            turn_ns: AtomicU64::default(),
            asleep: AtomicUsize::default(),
            in_company: AtomicBool::default(),
            slept_us: AtomicU64::default(),
        }
    }
}

impl WriteThrottle {
    /// Takes a turn for a writer of `bytes` that owes `owed` nanoseconds, and waits for it if that is worth it.
    pub fn wait_for_turn(&self, bytes: usize, owed: u64) {
        let early = self.turn(owed).min(SLEEP_MAX_NS);
        if early >= shortest_sleep(bytes, owed, self.others()) {
            self.sleep(early);
        }
    }

    /// Nobody owes anything any more.
    pub fn end(&self) {
        self.turn_ns.store(0, Relaxed);
    }

    /// Total microseconds that writers slept.
    pub fn slept_us(&self) -> u64 {
        self.slept_us.load(Relaxed)
    }

    /// Assigns the next turn to a writer that owes `owed` nanoseconds. Returns how far in the future that turn
    /// is.
    fn turn(&self, owed: u64) -> u64 {
        let now = self.epoch.elapsed().as_nanos() as u64;
        // Unused turns are not saved up, and no writer is put off for more than `SLEEP_MAX_NS`.
        let take = |turn: u64| turn.clamp(now, now + SLEEP_MAX_NS) + owed;
        let before = self.turn_ns.fetch_update(Relaxed, Relaxed, |turn| Some(take(turn)));
        before.map_or(0, take) - now
    }

    /// Notes that a writer came that may have to sleep. Returns what the others do.
    fn others(&self) -> OtherWriters {
        match self.asleep.load(Relaxed) {
            0 if self.in_company.load(Relaxed) => OtherWriters::Awake,
            0 => OtherWriters::Away,
            _ => {
                self.in_company.store(true, Relaxed);
                OtherWriters::Asleep
            }
        }
    }

    /// Lets a writer sleep.
    fn sleep(&self, ns: u64) {
        self.slept_us.fetch_add(ns / 1000, Relaxed);
        if self.asleep.fetch_add(1, Relaxed) == 0 {
            self.in_company.store(false, Relaxed);
        }
        nap(Duration::from_nanos(ns));
        self.asleep.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_follow_one_another_and_are_not_saved_up() {
        let throttle = WriteThrottle::default();
        std::thread::sleep(Duration::from_millis(5));
        let first = throttle.turn(2_000_000);
        assert!((1..=2_000_000).contains(&first), "time that has passed counts for nothing: {first}");
        let second = throttle.turn(2_000_000);
        assert!((first..=4_000_000).contains(&second), "{second}");
        std::thread::sleep(Duration::from_millis(10));
        assert!(throttle.turn(500_000) <= 500_000, "who comes late has not to wait");
        let longest = (0..100).map(|_| throttle.turn(10_000_000)).max();
        assert!(longest <= Some(SLEEP_MAX_NS + 10_000_000), "{longest:?}");
    }

    /// What each owes adds up until it is worth a sleep.
    #[test]
    fn short_commits_sleep_seldom_and_owe_as_much() {
        use OtherWriters::{Asleep, Awake, Away};
        let commits = [(100, Away), (SHORT, Awake), (SHORT + 1, Away), (1 << 20, Awake), (100, Asleep)];
        let shortest = commits.map(|(bytes, others)| shortest_sleep(bytes, 100, others) / 1000);
        assert_eq!(shortest, [1000, 1000, 50, 50, 200], "microseconds");
        let owed = [1000, 100_000, u64::MAX].map(|owed| shortest_sleep(100, owed, Away));
        assert_eq!(owed, [2_048_000, 4_000_000, 4_000_000], "the more each owes, the longer they sleep");
        assert_eq!(shortest_sleep(100, 1000, Awake), 1_000_000, "but not if all would sleep so long");
        let throttle = WriteThrottle::default();
        let (each, longest) = (10_000, SLEEP_MIN_ALONE_NS);
        let begun = throttle.turn(each);
        assert!(begun < SLEEP_MIN_SHORT_NS, "{begun} ns: it goes on");
        let would_sleep = (0..10_000).filter(|_| throttle.turn(each) >= longest).count();
        assert!(would_sleep >= 5_000, "turns add up as long as nobody sleeps: {would_sleep}");
    }

    #[test]
    fn a_writer_is_alone_if_no_other_came_while_one_slept() {
        let throttle = WriteThrottle::default();
        assert!(matches!(throttle.others(), OtherWriters::Away), "nobody has slept");
        throttle.asleep.store(1, Relaxed);
        assert!(matches!(throttle.others(), OtherWriters::Asleep));
        throttle.asleep.store(0, Relaxed);
        assert!(matches!(throttle.others(), OtherWriters::Awake), "one came meanwhile");
        throttle.sleep(1);
        assert!(matches!(throttle.others(), OtherWriters::Away), "none came this time");
    }
}
