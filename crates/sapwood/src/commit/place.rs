//! The place of the one thread that commits what needs no sync: a mutex with eventual fairness.
//!
//! A thread that finds the place free takes it, whoever waits: to wake a thread takes longer than such a commit, and if each left
//! the place to the first that waits, no thread would commit until that is awake. But after each [`HANDED_ON_AFTER`] the place is
//! handed to the thread that has waited longest, so that no thread waits for ever.
//!
//! ```text
//! enter ──(free, or free again soon)──────────────────────────────▶ place
//!    └────(taken)──▶ sleeps, in order ──(woken: takes it if it is free, or is handed it)──▶ place
//! ```
//! Invariants:
//! 1. `is_taken` as long as a thread has the place, and while it is handed on.
//! 2. If the place is free, no thread waits, or one of those that wait is awake.

use crate::lock_order::{Guard, RankedMutex, rank};
use crate::watchdog;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// While threads wait, one of them is handed the place so often: some hundred commits, so that waking it costs little of their time.
const HANDED_ON_AFTER: Duration = Duration::from_micros(500);
/// How often a thread looks whether the place is free before it sleeps: some microseconds, a commit or two.
const LOOKS: u32 = 100;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct CommitPlace {
    is_taken: AtomicBool,
    /// Threads in `waiting`.
    count: AtomicUsize,
    waiting: RankedMutex<rank::CommitPlaceWaiting, Waiting>,
}

#[derive(Default)]
struct Waiting {
    threads: VecDeque<Arc<Waiter>>,
    handed_on: Option<Instant>,
}

struct Waiter {
    thread: Thread,
    /// Whether it looks again before it sleeps.
    is_awake: AtomicBool,
    /// It was handed the place, and is in the queue no more.
    has_place: AtomicBool,
}

/// The place. It is free again when this is dropped.
pub(crate) struct Taken<'p>(&'p CommitPlace);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl CommitPlace {
    /// Waits for the place, and takes it.
    #[track_caller]
    pub fn enter(&self) -> Guard<rank::CommitPlace, Taken<'_>> {
        Guard::take(|| {
            if !self.take() && !(0..LOOKS).any(|_| self.look()) {
                self.wait();
            }
            Taken(self)
        })
    }

    /// The thread that has the place, and those that wait.
    #[cfg(test)]
    pub fn threads(&self) -> usize {
        self.count.load(SeqCst) + usize::from(self.is_taken.load(SeqCst))
    }

    fn take(&self) -> bool {
        self.is_taken.compare_exchange(false, true, SeqCst, Relaxed).is_ok()
    }

    fn look(&self) -> bool {
        std::hint::spin_loop();
        !self.is_taken.load(Relaxed) && self.take()
    }

    fn wait(&self) {
        let is_awake = AtomicBool::new(true);
        let waiter = Waiter { thread: std::thread::current(), is_awake, has_place: AtomicBool::new(false) };
        let waiter = Arc::new(waiter);
        let mut waiting = self.waiting.lock();
        if waiting.threads.is_empty() {
            waiting.handed_on = Some(Instant::now());
        }
        waiting.threads.push_back(Arc::clone(&waiter));
        self.count.fetch_add(1, SeqCst);
        drop(waiting);
        loop {
            if waiter.has_place.load(SeqCst) {
                return;
            }
            if self.take() || (0..LOOKS).any(|_| self.look()) {
                self.waiting.lock().threads.retain(|other| !Arc::ptr_eq(other, &waiter));
                self.count.fetch_sub(1, SeqCst);
                return;
            }
            waiter.is_awake.store(false, SeqCst);
            // Whoever left the place before that did not wake this thread.
            if self.is_taken.load(SeqCst) && !waiter.has_place.load(SeqCst) {
                watchdog::park("the place of a commit");
            }
            waiter.is_awake.store(true, SeqCst);
        }
    }

    fn leave(&self) {
        let mut has_place = true;
        if self.count.load(Relaxed) == 0 {
            self.is_taken.store(false, SeqCst);
            has_place = false;
            if self.count.load(SeqCst) == 0 {
                return;
            }
        }
        let mut waiting = self.waiting.lock();
        let now = Instant::now();
        if has_place
            && waiting.handed_on.is_none_or(|before| now - before > HANDED_ON_AFTER)
            && let Some(first) = waiting.threads.pop_front()
        {
            self.count.fetch_sub(1, SeqCst);
            waiting.handed_on = Some(now);
            drop(waiting);
            first.has_place.store(true, SeqCst);
            first.thread.unpark();
            return;
        }
        if has_place {
            self.is_taken.store(false, SeqCst);
        }
        let asleep = waiting.threads.front().filter(|first| !first.is_awake.swap(true, SeqCst)).cloned();
        drop(waiting);
        if let Some(first) = asleep {
            first.thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// More threads than processors, so that many sleep, and are woken or handed the place.
    #[test]
    fn one_thread_at_a_time_has_the_place() {
        const THREADS: u64 = if cfg!(miri) { 4 } else { 8 };
        const TURNS: u64 = if cfg!(miri) { 40 } else { 20_000 };
        let (place, counter) = (CommitPlace::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for turn in 0..TURNS {
                        let _taken = place.enter();
                        let before = counter.load(Relaxed);
                        if turn % 1000 == 0 {
                            std::thread::yield_now();
                        }
                        counter.store(before + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(counter.into_inner(), THREADS * TURNS);
        assert_eq!(place.threads(), 0);
        assert!(place.waiting.lock().threads.is_empty());
    }

    /// The place is left just when a thread goes to sleep, and no other thread comes that would wake it later.
    #[test]
    fn a_thread_does_not_sleep_when_the_place_is_free() {
        const ROUNDS: u32 = if cfg!(miri) { 20 } else { 40_000 };
        let (place, begin) = (CommitPlace::default(), std::sync::Barrier::new(2));
        let (taken, mut longest) = (AtomicBool::new(false), Duration::ZERO);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    begin.wait();
                    let _taken = place.enter();
                    taken.store(true, SeqCst);
                    // Twice as long as the other one looks, before it waits and then again.
                    (0..round.wrapping_mul(7) % (4 * LOOKS)).for_each(|_| std::hint::spin_loop());
                }
            });
            for _ in 0..ROUNDS {
                begin.wait();
                while !taken.swap(false, SeqCst) {
                    std::hint::spin_loop();
                }
                let began = Instant::now();
                drop(place.enter());
                longest = longest.max(began.elapsed());
            }
        });
        // In a debug build it looks again after ten seconds, to be reported.
        assert!(longest < Duration::from_secs(8), "it slept for {longest:?}");
    }

    /// One that always comes back before a thread that sleeps is awake.
    #[test]
    fn a_thread_that_waits_is_handed_the_place() {
        let (place, is_done) = (CommitPlace::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let mut taken = Some(place.enter());
            scope.spawn(|| {
                drop(place.enter());
                is_done.store(true, SeqCst);
            });
            let waiter = || place.waiting.lock().threads.front().map(|first| first.is_awake.load(SeqCst));
            while waiter() != Some(false) {
                std::thread::yield_now();
            }
            // As if it were awake, so that it is not woken: it has the place only if that is handed to it.
            place.waiting.lock().threads[0].is_awake.store(true, SeqCst);
            let began = Instant::now();
            while !is_done.load(SeqCst) {
                drop(taken.take());
                taken = Some(place.enter());
            }
            // In a debug build it looks again after ten seconds, to be reported.
            assert!(began.elapsed() < Duration::from_secs(8), "it was not handed the place");
        });
    }

    /// In the order in which they came.
    #[test]
    fn threads_that_wait_are_handed_the_place_in_their_order() {
        let (place, order) = (CommitPlace::default(), std::sync::Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let taken = place.enter();
            for number in 0..5 {
                let (place, order) = (&place, &order);
                scope.spawn(move || {
                    let _taken = place.enter();
                    order.lock().unwrap().push(number);
                    std::thread::sleep(2 * HANDED_ON_AFTER);
                });
                while place.waiting.lock().threads.len() <= number {
                    std::thread::yield_now();
                }
            }
            std::thread::sleep(2 * HANDED_ON_AFTER);
            drop(taken);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4]);
    }
}
