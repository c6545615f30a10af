//! Point searches of many threads, gathered into one MPSearch: whoever finds no search under way takes all that wait along.
//!
//! Nobody waits for others to come: a lone search begins at once. What comes while it is under way is the next set.
//!
//! Invariants:
//! 1. At most `leaders_max` searches are under way, and none has more than `keys_max` keys.
//! 2. While fewer are under way, no key waits but those of threads that are about to lead.
//! 3. A key whose search has panicked is asked for again by its own thread; the panic is the leader's alone.
//! 4. With a patience, no thread waits longer for others: then it searches for its key by itself, beyond `leaders_max`, and
//!    nobody keeps an answer for it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    patience: Option<Duration>,
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
    /// With a leader, while their threads wait no more.
    abandoned: HashSet<u64>,
    leaders: usize,
}

impl<K: Clone, A> Gather<K, A> {
    /// At most so many searches at a time (1 or more), with at most so many keys each (1 or more).
    pub fn new(leaders_max: usize, keys_max: usize) -> Self {
        let queue = Queue {
            ticket: 0,
            waiting: VecDeque::new(),
            answers: HashMap::new(),
            abandoned: HashSet::new(),
            leaders: 0,
        };
        Self {
            leaders_max: leaders_max.max(1),
            keys_max: keys_max.max(1),
            patience: None,
            queue: Mutex::new(queue),
            changed: Condvar::new(),
        }
    }

    /// A thread waits so long, by the wall clock, for others to answer; then it searches for its key alone. Without this, those
    /// whose key is with a search that never returns wait for ever, as does everyone once `leaders_max` searches do not. Choose
    /// it longer than any search that is merely slow.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
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
        let asked = self.patience.map(|patience| (Instant::now(), patience));
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
            } else if let Some((since, patience)) = asked {
                let left = patience.saturating_sub(since.elapsed());
                if left.is_zero() {
                    queue.give_up(mine);
                    drop(queue);
                    return alone(key, &search);
                }
                queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// The answer for a key that goes with no others.
fn alone<K, A>(key: K, search: &impl Fn(&[K]) -> Vec<A>) -> A {
    let mut answers = search(&[key]).into_iter();
    match (answers.next(), answers.next()) {
        (Some(answer), None) => answer,
        _ => panic!("a search answers each key"),
    }
}

impl<K, A> Queue<K, A> {
    fn wait_for(&mut self, key: K) -> u64 {
        self.ticket += 1;
        self.waiting.push_back((self.ticket, key));
        self.ticket
    }

    /// Nobody waits for a ticket any more. Its answer may be there already; or its key waits, or is with a leader.
    fn give_up(&mut self, ticket: u64) {
        if self.answers.remove(&ticket).is_some() {
            return;
        }
        match self.waiting.iter().position(|(waiting, _)| *waiting == ticket) {
            Some(at) => drop(self.waiting.remove(at)),
            None => drop(self.abandoned.insert(ticket)),
        }
    }

    fn answer(&mut self, ticket: u64, answer: Option<A>) {
        if !self.abandoned.remove(&ticket) {
            self.answers.insert(ticket, answer);
        }
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
        let mut queue = self.gather.lock();
        tickets.into_iter().zip(answers).for_each(|(ticket, answer)| queue.answer(ticket, Some(answer)));
    }
}

impl<K: Clone, A> Drop for Leader<'_, K, A> {
    fn drop(&mut self) {
        let mut queue = self.gather.lock();
        queue.leaders -= 1;
        // It panics, and will not ask for its own answer, if its key was not among those that it has searched for.
        if !self.tickets.is_empty() && !self.tickets.contains(&self.own) {
            queue.give_up(self.own);
        }
        for ticket in self.tickets.drain(..).filter(|ticket| *ticket != self.own) {
            queue.answer(ticket, None);
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
    fn a_leader_that_panics_leaves_no_key_of_its_own() {
        let gather: Gather<u64, u64> = Gather::new(1, 1);
        let mut queue = gather.lock();
        let (other, own) = (queue.wait_for(7), queue.wait_for(8));
        queue.waiting.pop_front();
        queue.leaders = 1;
        drop(queue);
        drop(Leader { gather: &gather, own, tickets: vec![other] });
        let queue = gather.lock();
        assert!(queue.waiting.is_empty() && queue.answers.keys().eq([&other]));
    }

    /// Another leader has taken its key along and answered it before this one panicked: nobody will fetch that answer.
    #[test]
    fn a_leader_that_panics_leaves_no_answer_of_its_own() {
        let gather: Gather<u64, u64> = Gather::new(2, 1);
        let mut queue = gather.lock();
        let (other, own) = (queue.wait_for(7), queue.wait_for(8));
        queue.waiting.clear();
        queue.leaders = 1;
        queue.answer(own, Some(80));
        drop(queue);
        drop(Leader { gather: &gather, own, tickets: vec![other] });
        let queue = gather.lock();
        assert!(queue.answers.keys().eq([&other]) && queue.abandoned.is_empty(), "{queue:?}");
    }

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

    /// One search hangs before the others have come, the next one with their keys: nobody waits for either for ever.
    #[test]
    fn a_search_that_hangs_is_waited_for_no_longer_than_the_patience() {
        // With more patience where the machine is so busy that the threads come too late.
        let patiences = [1, 4, 16].map(|halves| Duration::from_millis(500 * halves));
        assert!(patiences.into_iter().any(hangs), "this machine is too slow for the test");
    }

    /// False if the threads came too late.
    fn hangs(patience: Duration) -> bool {
        let gather = Gather::new(1, 64).with_patience(patience);
        let hangs = [Mutex::new(()), Mutex::new(())];
        let (began, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let search = |keys: &[u64]| {
            most.fetch_max(keys.len(), SeqCst);
            let hang = match keys {
                [1] => Some(&hangs[0]),
                [_, _, ..] => Some(&hangs[1]),
                _ => None,
            };
            if let Some(hang) = hang {
                began.fetch_add(1, SeqCst);
                drop(hang.lock());
            }
            keys.to_vec()
        };
        let is_in_time = std::thread::scope(|scope| {
            let ask = |key: u64| {
                let (gather, search) = (&gather, &search);
                scope.spawn(move || gather.ask(key, search))
            };
            let [first_hang, second_hang] = hangs.each_ref().map(|hang| hang.lock().unwrap());
            let first = ask(1);
            while began.load(SeqCst) < 1 {
                std::thread::yield_now();
            }
            // Behind a search that hangs.
            assert_eq!([2, 3].map(ask).map(|asked| asked.join().unwrap()), [2, 3]);
            assert!(gather.lock().waiting.is_empty() && !first.is_finished());
            // Within one.
            let others = [4, 5, 6].map(ask);
            while gather.lock().waiting.len() < 3 {
                if others.iter().any(|other| other.is_finished()) {
                    return false;
                }
                std::thread::yield_now();
            }
            drop(first_hang);
            assert_eq!(first.join().unwrap(), 1);
            while others.iter().filter(|other| other.is_finished()).count() < 2 {
                std::thread::yield_now();
            }
            let is_in_time = most.load(SeqCst) == 3;
            assert!(!is_in_time || gather.lock().abandoned.len() == 2);
            drop(second_hang);
            assert_eq!(others.map(|other| other.join().unwrap()), [4, 5, 6]);
            is_in_time
        });
        let queue = gather.lock();
        assert!(queue.answers.is_empty() && queue.abandoned.is_empty() && queue.leaders == 0);
        is_in_time
    }
}
