//! Point searches of many threads, gathered into one MPSearch: whoever finds no search under way takes all that wait along.
//!
//! Nobody waits for others to come: a lone search begins at once. What comes while it is under way is the next set.
//!
//! Invariants:
//! 1. At most `leaders_max` searches are under way, and none has more than `keys_max` keys.
//! 2. While fewer are under way, no key waits but those of threads that are about to lead.
//! 3. A key whose search has panicked is asked for again by its own thread; the panic is the leader's alone.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// See the module.
///
/// ```
/// use mpsearch::Gather;
/// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
///
/// let squares: Vec<u64> = (0..1000).map(|n| n * n).collect();
/// // Whatever answers many keys at once: with a tree on a device, an MPSearch.
/// let searches = AtomicUsize::new(0);
/// let search = |keys: &[usize]| {
///     searches.fetch_add(1, Relaxed);
///     keys.iter().map(|key| squares[*key]).collect()
/// };
/// let gather = Gather::new(1, 64);
/// std::thread::scope(|scope| {
///     for thread in 0..8 {
///         let (gather, search) = (&gather, &search);
///         scope.spawn(move || {
///             for key in (thread..1000).step_by(8) {
///                 assert_eq!(gather.ask(key, search), (key * key) as u64);
///             }
///         });
///     }
/// });
/// assert!(searches.load(Relaxed) <= 1000);
/// ```
#[derive(Debug)]
pub struct Gather<K, A> {
    leaders_max: usize,
    keys_max: usize,
    queue: Mutex<Queue<K, A>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue<K, A> {
    /// Of the next thread that asks.
    ticket: u64,
    /// In order of ticket.
    waiting: VecDeque<(u64, K)>,
    /// None for a key whose search has panicked.
    answers: HashMap<u64, Option<A>>,
    leaders: usize,
}

impl<K: Clone, A> Gather<K, A> {
    /// At most so many searches at a time (1 or more), with at most so many keys each (1 or more).
    pub fn new(leaders_max: usize, keys_max: usize) -> Self {
        let queue = Queue { ticket: 0, waiting: VecDeque::new(), answers: HashMap::new(), leaders: 0 };
        Self {
            leaders_max: leaders_max.max(1),
            keys_max: keys_max.max(1),
            queue: Mutex::new(queue),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<K, A>> {
        // Nothing that can panic is done under the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer for a key. `search`, of this thread or of another that asks meanwhile, is given the keys of all that
    /// wait, in the order of their arrival, and answers in that order.
    ///
    /// # Panics
    /// If `search` does, or if it answers more or fewer keys than it was given.
    pub fn ask(&self, key: K, search: impl Fn(&[K]) -> Vec<A>) -> A {
        let mut queue = self.lock();
        let mut mine = queue.wait_for(key.clone());
        loop {
            match queue.answers.remove(&mine) {
                Some(Some(answer)) => return answer,
                Some(None) => mine = queue.wait_for(key.clone()),
                None => {}
            }
            // Keys are taken in order of ticket.
            let waits = queue.waiting.front().is_some_and(|(first, _)| *first <= mine);
            if waits && queue.leaders < self.leaders_max {
                queue.leaders += 1;
                let count = queue.waiting.len().min(self.keys_max);
                let (tickets, keys) = queue.waiting.drain(..count).unzip();
                drop(queue);
                Leader { gather: self, own: mine, tickets }.search(keys, &search);
                queue = self.lock();
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl<K, A> Queue<K, A> {
    fn wait_for(&mut self, key: K) -> u64 {
        self.ticket += 1;
        self.waiting.push_back((self.ticket, key));
        self.ticket
    }
}

/// A thread that searches for others. Dropped before it has answered, it gives them their keys back.
struct Leader<'a, K: Clone, A> {
    gather: &'a Gather<K, A>,
    own: u64,
    tickets: Vec<u64>,
}

impl<K: Clone, A> Leader<'_, K, A> {
    fn search(mut self, keys: Vec<K>, search: &impl Fn(&[K]) -> Vec<A>) {
        let answers = search(&keys);
        assert_eq!(answers.len(), keys.len(), "a search answers each key");
        let tickets = std::mem::take(&mut self.tickets);
        self.gather.lock().answers.extend(tickets.into_iter().zip(answers.into_iter().map(Some)));
    }
}

impl<K: Clone, A> Drop for Leader<'_, K, A> {
    fn drop(&mut self) {
        let mut queue = self.gather.lock();
        queue.leaders -= 1;
        for ticket in self.tickets.drain(..).filter(|ticket| *ticket != self.own) {
            queue.answers.insert(ticket, None);
        }
        drop(queue);
        self.gather.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn every_thread_gets_its_own_answer_within_the_limits() {
        let (leaders, most, sets) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let gather = Gather::new(2, 5);
        let search = |keys: &[u64]| {
            assert!(leaders.fetch_add(1, SeqCst) < 2 && keys.len() <= 5);
            most.fetch_max(keys.len(), SeqCst);
            sets.fetch_add(1, SeqCst);
            // Long enough for others to come.
            std::thread::sleep(Duration::from_micros(200));
            leaders.fetch_sub(1, SeqCst);
            keys.iter().map(|key| key * 3).collect()
        };
        std::thread::scope(|scope| {
            for thread in 0..12 {
                let (gather, search) = (&gather, &search);
                scope.spawn(move || {
                    (0..40).for_each(|n| {
                        assert_eq!(gather.ask(100 * thread + n, search), 3 * (100 * thread + n))
                    });
                });
            }
        });
        assert_eq!(most.load(SeqCst), 5);
        assert!(sets.load(SeqCst) < 12 * 40 / 2, "most keys went along with others: {sets:?}");
        let queue = gather.lock();
        assert!(queue.waiting.is_empty() && queue.answers.is_empty() && queue.leaders == 0);
    }

    #[test]
    fn who_is_alone_waits_for_nobody() {
        let gather = Gather::new(1, 64);
        assert_eq!(gather.ask(7, |keys: &[u32]| keys.to_vec()), 7);
    }

    #[test]
    fn a_panic_is_the_leaders_alone() {
        let gather = Gather::new(1, 64);
        let fails = AtomicBool::new(true);
        let (under_way, is_under_way) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let may_go_on = Mutex::new(may_go_on);
        let search = |keys: &[u64]| {
            if fails.load(SeqCst) && keys.len() > 1 {
                fails.store(false, SeqCst);
                panic!("the device is gone");
            }
            keys.to_vec()
        };
        let (answered, panicked) = std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                gather.ask(1, |keys: &[u64]| {
                    under_way.send(()).unwrap();
                    may_go_on.lock().unwrap().recv().unwrap();
                    keys.to_vec()
                })
            });
            is_under_way.recv().unwrap();
            let others: Vec<_> = (2..6)
                .map(|key| {
                    scope.spawn({
                        let (gather, search) = (&gather, &search);
                        move || gather.ask(key, search)
                    })
                })
                .collect();
            while gather.lock().waiting.len() < 4 {
                std::thread::yield_now();
            }
            go_on.send(()).unwrap();
            assert_eq!(first.join().unwrap(), 1);
            let ended: Vec<_> = others.into_iter().map(|other| other.join().is_ok()).collect();
            (ended.iter().filter(|ok| **ok).count(), ended.iter().filter(|ok| !**ok).count())
        });
        assert_eq!((answered, panicked), (3, 1));
        assert!(gather.lock().answers.is_empty() && gather.lock().leaders == 0);
    }
}
