//! The lock that a thread holds while it commits what needs no sync: a mutex with eventual fairness.
//!
//! A thread that finds the lock free takes it, whoever waits: to wake a thread takes longer than such a commit, and if each left
//! the lock to the first that waits, no thread would commit until that is awake. But after each [`HANDED_ON_AFTER`] the lock is
//! handed to the thread that has waited longest, so that no thread waits for ever. That time begins when the thread is awake: else
//! one that takes longer to wake up hands it on at once, and each commit waits for a thread to wake up.
//!
//! ```text
//! lock ──(free, or free again soon)───────────────────────────────▶ holds it
//!    └───(held)──▶ sleeps, in order ──(woken: takes it if it is free, or is handed it)──▶ holds it
//! ```
//! The standard library's mutex is not fair. That of parking_lot is, in the same way, but queues its threads in a table of the process,
//! which a forked child inherits with threads that are not there (`psync`'s `lock.rs`).
//!
//! Invariants:
//! 1. `is_held` as long as a thread holds the lock, and while it is handed on.
//! 2. If the lock is free, no thread waits, or one of those that wait is awake.

use crate::lock_order::{Guard, RankedMutex, rank};
use crate::watchdog;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// While threads wait, one of them is handed the lock so often: some hundred commits, so that waking it costs little of their time.
const HANDED_ON_AFTER: Duration = Duration::from_micros(500);
/// How often a thread looks whether the lock is free before it sleeps: some microseconds, a commit or two.
const LOOKS: u32 = 100;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct CommitLock {
    is_held: AtomicBool,
    /// Threads in `waiting`.
    count: AtomicUsize,
    waiting: RankedMutex<rank::CommitLockWaiting, Waiting>,
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
    /// It was handed the lock, and is in the queue no more.
    has_lock: AtomicBool,
}

/// The lock, held. It is free again when this is dropped.
pub(crate) struct Held<'l>(&'l CommitLock);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl CommitLock {
    /// Waits for the lock, and takes it.
    #[track_caller]
    pub fn lock(&self) -> Guard<rank::CommitLock, Held<'_>> {
        Guard::take(|| {
            if !self.take() && !(0..LOOKS).any(|_| self.look()) {
                self.wait();
            }
            Held(self)
        })
    }

    /// The thread that holds the lock, and those that wait.
    #[cfg(test)]
    pub fn threads(&self) -> usize {
        self.count.load(SeqCst) + usize::from(self.is_held.load(SeqCst))
    }

    fn take(&self) -> bool {
        self.is_held.compare_exchange(false, true, SeqCst, Relaxed).is_ok()
    }

    fn look(&self) -> bool {
        std::hint::spin_loop();
        !self.is_held.load(Relaxed) && self.take()
    }

    fn wait(&self) {
        let is_awake = AtomicBool::new(true);
        let waiter = Waiter { thread: std::thread::current(), is_awake, has_lock: AtomicBool::new(false) };
        let waiter = Arc::new(waiter);
        let mut waiting = self.waiting.lock();
        if waiting.threads.is_empty() {
            waiting.handed_on = Some(Instant::now());
        }
        waiting.threads.push_back(Arc::clone(&waiter));
        self.count.fetch_add(1, SeqCst);
        drop(waiting);
        loop {
            if waiter.has_lock.load(SeqCst) {
                // From now on: until this thread was awake, none has committed.
                self.waiting.lock().handed_on = Some(Instant::now());
                return;
            }
            if self.take() || (0..LOOKS).any(|_| self.look()) {
                self.waiting.lock().threads.retain(|other| !Arc::ptr_eq(other, &waiter));
                self.count.fetch_sub(1, SeqCst);
                return;
            }
            waiter.is_awake.store(false, SeqCst);
            // Whoever left the lock before that did not wake this thread.
            if self.is_held.load(SeqCst) && !waiter.has_lock.load(SeqCst) {
                watchdog::park("the lock of commits without a sync");
            }
            waiter.is_awake.store(true, SeqCst);
        }
    }

    fn unlock(&self) {
        let mut has_lock = true;
        if self.count.load(Relaxed) == 0 {
            self.is_held.store(false, SeqCst);
            has_lock = false;
            if self.count.load(SeqCst) == 0 {
                return;
            }
        }
        let mut waiting = self.waiting.lock();
        let now = Instant::now();
        if has_lock
            && waiting.handed_on.is_none_or(|before| now - before > HANDED_ON_AFTER)
            && let Some(first) = waiting.threads.pop_front()
        {
            self.count.fetch_sub(1, SeqCst);
            waiting.handed_on = Some(now);
            drop(waiting);
            first.has_lock.store(true, SeqCst);
            first.thread.unpark();
            return;
        }
        if has_lock {
            self.is_held.store(false, SeqCst);
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

    /// More threads than processors, so that many sleep, and are woken or handed the lock.
    #[test]
    fn one_thread_at_a_time_holds_the_lock() {
        const THREADS: u64 = if cfg!(miri) { 4 } else { 8 };
        const TURNS: u64 = if cfg!(miri) { 40 } else { 20_000 };
        let (lock, counter) = (CommitLock::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for turn in 0..TURNS {
                        let _held = lock.lock();
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
        assert_eq!(lock.threads(), 0);
        assert!(lock.waiting.lock().threads.is_empty());
    }

    /// The lock is left just when a thread goes to sleep, and no other thread comes that would wake it later.
    #[test]
    fn a_thread_does_not_sleep_when_the_lock_is_free() {
        const ROUNDS: u32 = if cfg!(miri) { 20 } else { 40_000 };
        let (lock, begin) = (CommitLock::default(), std::sync::Barrier::new(2));
        let (held, mut longest) = (AtomicBool::new(false), Duration::ZERO);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    begin.wait();
                    let _held = lock.lock();
                    held.store(true, SeqCst);
                    // Twice as long as the other one looks, before it waits and then again.
                    (0..round.wrapping_mul(7) % (4 * LOOKS)).for_each(|_| std::hint::spin_loop());
                }
            });
            for _ in 0..ROUNDS {
                begin.wait();
                while !held.swap(false, SeqCst) {
                    std::hint::spin_loop();
                }
                let began = Instant::now();
                drop(lock.lock());
                longest = longest.max(began.elapsed());
            }
        });
        // In a debug build it looks again after two minutes, to be reported.
        assert!(longest < Duration::from_secs(100), "it slept for {longest:?}");
    }

    /// One that always comes back before a thread that sleeps is awake.
    #[test]
    fn a_thread_that_waits_is_handed_the_lock() {
        let (lock, is_done) = (CommitLock::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let mut held = Some(lock.lock());
            scope.spawn(|| {
                drop(lock.lock());
                is_done.store(true, SeqCst);
            });
            let waiter = || lock.waiting.lock().threads.front().map(|first| first.is_awake.load(SeqCst));
            while waiter() != Some(false) {
                std::thread::yield_now();
            }
            // As if it were awake, so that it is not woken: it has the lock only if that is handed to it.
            lock.waiting.lock().threads[0].is_awake.store(true, SeqCst);
            let began = Instant::now();
            while !is_done.load(SeqCst) {
                drop(held.take());
                held = Some(lock.lock());
            }
            // In a debug build it looks again after two minutes, to be reported.
            assert!(began.elapsed() < Duration::from_secs(100), "it was not handed the lock");
        });
    }

    /// Waking up takes long where threads are many. One that was handed the lock before that handed it on after a single commit, as
    /// did the next, and 500 threads of transactions made 500 commits a second.
    #[test]
    fn a_thread_has_the_lock_from_when_it_is_awake() {
        let lock = CommitLock::default();
        std::thread::scope(|scope| {
            let held = lock.lock();
            let handed_to = scope.spawn(|| {
                let _held = lock.lock();
                lock.waiting.lock().handed_on
            });
            while lock.waiting.lock().threads.is_empty() {
                std::thread::yield_now();
            }
            // As it is handed on, and then the thread takes its time.
            let mut waiting = lock.waiting.lock();
            let first = waiting.threads.pop_front().unwrap();
            lock.count.fetch_sub(1, SeqCst);
            let handed = Instant::now();
            waiting.handed_on = Some(handed);
            drop(waiting);
            while Instant::now() == handed {}
            first.has_lock.store(true, SeqCst);
            first.thread.unpark();
            let had = handed_to.join().unwrap();
            // It was free again by now.
            std::mem::forget(held);
            assert!(had > Some(handed), "{had:?}, {handed:?}");
        });
    }

    /// In the order in which they came.
    #[test]
    fn threads_that_wait_are_handed_the_lock_in_their_order() {
        let (lock, order) = (CommitLock::default(), std::sync::Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let held = lock.lock();
            for number in 0..5 {
                let (lock, order) = (&lock, &order);
                scope.spawn(move || {
                    let _held = lock.lock();
                    order.lock().unwrap().push(number);
                    std::thread::sleep(2 * HANDED_ON_AFTER);
                });
                while lock.waiting.lock().threads.len() <= number {
                    std::thread::yield_now();
                }
            }
            std::thread::sleep(2 * HANDED_ON_AFTER);
            drop(held);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4]);
    }
}
