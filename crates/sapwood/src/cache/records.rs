//! The record cache: caches single records that were requested, where the pager's cache holds whole leaves.
//! If hot records lie among many cold ones, it holds twenty to thirty times as many of them in the same
//! memory.
//!
//! It is a hash table of buckets that grows and shrinks by one bucket at a time (linear hashing: Litwin, VLDB 1980):
//!
//! ```text
//! buckets  0 … s-1 │ s … 2^k-1 │ 2^k … n-1      n = 2^k + s:  the first s are split, each with its twin at the end
//! grow:    bucket s hands half of its records to a new bucket n
//! shrink:  bucket n-1 gives its records back to its twin, or lets them go if they do not fit
//! memory:  chunks of 64 buckets, taken from the operating system and given back whole
//! ```
//!
//! **Why nothing in it is ever stale.** It holds what *trees* say, for readers that have found nothing in the
//! queues. A tree's answer for a key changes only when a frozen queue with that key is flushed, or records
//! are ingested. States are numbered: a new number begins when a queue is frozen, when it has been flushed,
//! and with an ingestion, whose keys are in no cache (but for one whose removal the active queue has: that queue
//! answers it, and its flush renews it; and for expired ones, which are dropped while no state is served). The cache serves the readers of one number at a time,
//! and checks the number under the lock of the key's chunk:
//!
//! ```text
//! state n   { active Q }            a reader that misses in Q as of its time may put the tree's answer here
//! state n+1 { active R, frozen Q }  Q answers its keys. The flush updates the cached records of these keys, and adds those
//!                                   that a reader has asked Q for: the cache would have answered it
//! state n+2 { active R }            all of Q is in the trees, and the cache agrees with them
//! ```
//! A reader that still has state n (a snapshot) when n+1 is served bypasses the cache: it can neither put an
//! old value here after the flush has passed that key, nor see a value that is too new for it.
//!
//! Invariants:
//! 1. A cached record is what the tree says to every reader of a state with the number that is served.
//! 2. Memory: as many bytes as requested, rounded up to a chunk, and only of buckets that ever held records:
//!    no other is touched.

use crate::cache::bucket::{BUCKET, Name, fits};
use crate::cache::buckets::{BUCKETS_A_CHUNK, Buckets, Chunk, index, tag};
use crate::lock_order::{Guard, rank};
use crate::operation::KeyspaceId;
use bytes::Bytes;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use foldhash::quality::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Buckets added or removed while readers wait (count): so few that the lock is held for some microseconds.
const STEP: usize = 32;
/// How long readers that wait have to come in between two such steps: it takes as long to wake one. The lock has no
/// queue, and they would mostly find it taken again, until the last step.
const LET_IN: Duration = Duration::from_micros(100);

/// The cache is idle when flushes have gone on for this long without any reader wanting a record: so long that readers
/// that come now and then keep it.
const IDLE: Duration = Duration::from_secs(3);

/// What happened to a record that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepOutcome {
    Yes,
    /// Kept, and it had been evicted a moment ago.
    Again,
    TooLong,
    /// Not kept: the reader's state is not served, or there is no memory.
    No,
}

/// See the module.
pub(crate) struct RecordCache {
    hasher: RandomState,
    /// The number of the states that are served.
    serves: AtomicU64,
    is_used: AtomicBool,
    /// Whether a reader has found or put a record here since the last flush.
    is_asked: AtomicBool,
    /// When one last had before that, as of the flush that noticed it, in milliseconds since `epoch`; 0:
    /// never.
    asked_at: AtomicU64,
    epoch: Instant,
    /// Sharded, so that readers do not get in each other's way; see [`crate::storage::striped`].
    buckets: ShardedLock<Buckets>,
    /// Readers that wait for this lock.
    waiting: AtomicUsize,
}

impl Default for RecordCache {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            serves: AtomicU64::new(0),
            is_used: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            asked_at: AtomicU64::new(0),
            epoch: Instant::now(),
            buckets: ShardedLock::default(),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl RecordCache {
    fn hash(&self, keyspace: KeyspaceId, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(keyspace.0);
        hasher.write(key);
        hasher.finish()
    }

    /// No panic comes between two changes that belong together.
    #[track_caller]
    fn read(&self) -> Guard<rank::RecordBuckets, ShardedLockReadGuard<'_, Buckets>> {
        Guard::take(|| {
            match self.buckets.try_read() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let guard = self.buckets.read().unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            guard
        })
    }

    /// Gives readers that wait for the lock time to take it.
    fn let_readers_in(&self) {
        let began = Instant::now();
        while self.waiting.load(Ordering::SeqCst) > 0 && began.elapsed() < LET_IN {
            std::thread::yield_now();
        }
    }

    #[track_caller]
    fn write(&self) -> Guard<rank::RecordBuckets, ShardedLockWriteGuard<'_, Buckets>> {
        Guard::take(|| self.buckets.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes that the cache may hold.
    pub fn capacity(&self) -> u64 {
        (self.read().count * BUCKET) as u64
    }

    /// Changes how many bytes the cache may hold.
    pub fn set_capacity(&self, bytes: u64) {
        let wanted = (bytes / BUCKET as u64) as usize;
        loop {
            let mut buckets = self.write();
            for _ in 0..STEP {
                if buckets.count == wanted {
                    return;
                }
                if buckets.count > wanted {
                    buckets.shrink();
                } else if !buckets.grow(|keyspace, key| self.hash(keyspace, key)) {
                    return;
                }
            }
            drop(buckets);
            self.let_readers_in();
        }
    }

    /// From now on serves readers of states with this number, unless it serves later ones already.
    pub fn serve(&self, number: u64) {
        self.serves.fetch_max(number, Ordering::SeqCst);
    }

    /// Calls `work` with the chunk of a key's bucket, under the chunk's lock, if there is any bucket.
    fn with<T>(
        &self,
        name: (KeyspaceId, &[u8]),
        work: impl FnOnce(&mut Chunk, usize, Name<'_>) -> T,
    ) -> Option<T> {
        let hash = self.hash(name.0, name.1);
        let buckets = self.read();
        if buckets.count == 0 {
            return None;
        }
        let index = index(hash, buckets.count);
        let mut chunk = buckets.chunks[index / BUCKETS_A_CHUNK].lock();
        Some(work(&mut chunk, index, Name { tag: tag(hash), keyspace: name.0, key: name.1 }))
    }

    /// The value of a key, for a reader of the state with this number.
    pub fn get(&self, number: u64, keyspace: KeyspaceId, key: &[u8]) -> Option<Bytes> {
        self.with((keyspace, key), |chunk, index, name| {
            let served = self.serves.load(Ordering::SeqCst) == number && chunk.has(index);
            if !served {
                return None;
            }
            let mut bucket = chunk.bucket(index);
            let place = bucket.find(name)?;
            Some(Bytes::copy_from_slice(bucket.ask(place)))
        })
        .flatten()
        .inspect(|_| self.note_asked())
    }

    /// Keeps a record that a reader of the state with this number has found in a tree.
    pub fn put(&self, number: u64, keyspace: KeyspaceId, key: &[u8], value: &[u8]) -> KeepOutcome {
        if !fits(key, value) {
            return KeepOutcome::TooLong;
        }
        self.with((keyspace, key), |chunk, index, name| {
            // Set before checking the number: a thread that has changed the number and then sees an unused
            // cache finds nothing in it to renew.
            if !self.is_used.load(Ordering::Acquire) {
                self.is_used.store(true, Ordering::SeqCst);
            }
            self.note_asked();
            if self.serves.load(Ordering::SeqCst) != number {
                return KeepOutcome::No;
            }
            let mut kept = KeepOutcome::Yes;
            if chunk.has(index) {
                let mut bucket = chunk.bucket(index);
                if bucket.find(name).is_some() {
                    return kept;
                }
                if bucket.take_ghost(name.tag) {
                    kept = KeepOutcome::Again;
                }
            }
            chunk.insert(index, name, value, false);
            kept
        })
        .unwrap_or(KeepOutcome::No)
    }

    /// Whether any reader ever tried to put a record here.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::SeqCst)
    }

    /// Notes that a reader wants records. Many readers share the flag, so it is written only if it is not
    /// set.
    fn note_asked(&self) {
        if !self.is_asked.load(Ordering::Relaxed) {
            self.is_asked.store(true, Ordering::Relaxed);
        }
    }

    /// Notes a flush.
    pub fn note_flush(&self) {
        if self.is_asked.swap(false, Ordering::Relaxed) {
            self.asked_at.store(self.epoch.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
        }
    }

    /// Whether flushes have long gone on without any reader wanting a record, or none ever did.
    pub fn is_idle(&self) -> bool {
        self.is_idle_at(self.epoch.elapsed())
    }

    pub(crate) fn is_idle_at(&self, now: Duration) -> bool {
        let asked_at = self.asked_at.load(Ordering::Relaxed);
        !self.is_asked.load(Ordering::Relaxed)
            && (asked_at == 0 || now >= Duration::from_millis(asked_at) + IDLE)
    }

    /// Announces that a flush is about to remove all records of which `is_removed` is true. Called as [`RecordCache::renew`].
    ///
    /// The locks are held for a bucket at a time: a change of the capacity would wait, and readers behind it. A bucket that goes
    /// meanwhile may leave its records to one that was looked at, so chunks that got some are looked at again. (A new one lies ahead.)
    pub fn remove_all(&self, is_removed: impl Fn(KeyspaceId, &[u8]) -> bool) {
        let (mut seen, mut is_first) = (0, true);
        loop {
            let begun = self.read().shrinks;
            let mut index = 0;
            loop {
                let buckets = self.read();
                if index >= buckets.count {
                    break;
                }
                let mut chunk = buckets.chunks[index / BUCKETS_A_CHUNK].lock();
                if is_first || chunk.moved > seen {
                    chunk.remove_all(index, &is_removed);
                    index += 1;
                } else {
                    index = (index / BUCKETS_A_CHUNK + 1) * BUCKETS_A_CHUNK;
                }
            }
            if self.read().shrinks == begun {
                return;
            }
            (seen, is_first) = (begun, false);
        }
    }

    /// Announces a change that a flush is about to bring to the trees: a cached record becomes what the trees
    /// will say, and an uncached one is added if a reader has requested it meanwhile. Called while the frozen
    /// queue with that change answers all readers that are served.
    pub fn renew(&self, keyspace: KeyspaceId, key: &[u8], value: Option<&[u8]>, is_asked: bool) {
        let value = value.filter(|value| fits(key, value));
        self.with((keyspace, key), |chunk, index, name| {
            let place = if chunk.has(index) { chunk.bucket(index).find(name) } else { None };
            match (value, place) {
                (Some(value), Some(place)) => {
                    let mut bucket = chunk.bucket(index);
                    if is_asked {
                        self.note_asked();
                        bucket.ask(place);
                    }
                    if !bucket.overwrite(place, value) {
                        bucket.remove(place);
                        bucket.insert(name, value, is_asked);
                    }
                }
                (Some(value), None) if is_asked => {
                    self.note_asked();
                    chunk.insert(index, name, value, false);
                }
                (None, Some(place)) => chunk.bucket(index).remove(place),
                (_, None) => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const KS: KeyspaceId = KeyspaceId(7);

    fn key(number: u32) -> [u8; 4] {
        number.to_be_bytes()
    }

    fn here(value: &[u8]) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(value))
    }

    #[test]
    fn growing_loses_nothing_and_shrinking_little_more_than_it_must() {
        let cache = RecordCache::default();
        assert_eq!(cache.get(0, KS, &key(1)), None);
        assert!(!cache.is_used());
        cache.set_capacity(3 * BUCKET as u64);
        // Few enough that no bucket overflows however they are hashed, which is another way each time.
        let count = 40;
        for number in 0..count {
            assert_eq!(cache.put(0, KS, &key(number), &[number as u8; 100]), KeepOutcome::Yes);
        }
        for buckets in [4, 5, 64, 65, 200, 1000, 999, 512, 130, 128, 33, 4] {
            cache.set_capacity(buckets * BUCKET as u64 + 17);
            assert_eq!(cache.capacity(), buckets * BUCKET as u64);
            let found = (0..count).filter(|number| match cache.get(0, KS, &key(*number)) {
                Some(value) => {
                    assert_eq!(value, [*number as u8; 100][..]);
                    true
                }
                None => false,
            });
            assert_eq!(found.count(), count as usize, "with {buckets} buckets");
        }
        cache.set_capacity(BUCKET as u64);
        let left = (0..count).filter(|number| cache.get(0, KS, &key(*number)).is_some()).count();
        assert!((8..=36).contains(&left), "{left} are left, of what fits into one bucket");
        cache.set_capacity(0);
        assert_eq!((cache.get(0, KS, &key(1)), cache.capacity()), (None, 0));
    }

    #[test]
    fn memory_is_filled() {
        let cache = RecordCache::default();
        cache.set_capacity(96 * BUCKET as u64);
        (0..20_000).for_each(|number| assert_ne!(cache.put(0, KS, &key(number), &[1; 100]), KeepOutcome::No));
        let here = (0..20_000).filter(|number| cache.get(0, KS, &key(*number)).is_some());
        let bytes = here.count() * 104;
        assert!(bytes > 96 * BUCKET * 85 / 100, "{bytes} bytes of keys and values");
    }

    /// The lock was taken again each time before they were awake, for 20 changes one after the other.
    #[test]
    fn readers_come_in_while_the_capacity_changes() {
        let cache = RecordCache::default();
        let sizes = [64 << 20, 32 << 20];
        cache.set_capacity(sizes[1]);
        (0..200_000)
            .for_each(|number| assert_ne!(cache.put(0, KS, &key(number), &[1; 100]), KeepOutcome::No));
        let (is_over, gets) = (AtomicBool::new(false), AtomicU64::new(0));
        let within: Vec<_> = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (0..200_000).cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    cache.get(0, KS, &key(number));
                    gets.fetch_add(1, Ordering::SeqCst);
                }
            });
            let changes = (0..40).map(|round| {
                let before = gets.load(Ordering::SeqCst);
                cache.set_capacity(sizes[round % 2]);
                gets.load(Ordering::SeqCst) - before
            });
            let within = changes.collect();
            is_over.store(true, Ordering::Relaxed);
            within
        });
        // The first may have begun before the change. The reader may have no processor, but not in all changes.
        let count = within.iter().filter(|gets| **gets >= 2).count();
        assert!(count >= 10, "reads within each change: {within:?}");
    }

    /// A change of the capacity waited for the whole walk, and readers behind it.
    #[test]
    fn readers_come_in_while_ranges_are_removed() {
        const RECORDS: u64 = 20_000;
        // This thread may sleep before it counts, but not each time.
        let is_early = |_| removed_before_a_reader_came_in(RECORDS as u32) < RECORDS / 4;
        assert!((0..5).any(is_early), "a reader waits for most of {RECORDS} records");
    }

    /// How many of so many records are looked at while a reader waits behind a change of the capacity.
    fn removed_before_a_reader_came_in(records: u32) -> u64 {
        let cache = RecordCache::default();
        cache.set_capacity(8 << 20);
        (0..records)
            .for_each(|number| assert_ne!(cache.put(0, KS, &key(number), &[1; 100]), KeepOutcome::No));
        let (looked_at, is_in) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cache.remove_all(|_, _| {
                    // A search for the ranges of a key takes some time.
                    if !is_in.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                    looked_at.fetch_add(1, Ordering::SeqCst);
                    false
                });
            });
            while looked_at.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            cache.set_capacity((8 << 20) + BUCKET as u64);
            cache.get(0, KS, &key(1));
            is_in.store(true, Ordering::Relaxed);
            looked_at.load(Ordering::SeqCst)
        })
    }

    /// Records come to buckets that were looked at before, and to new ones.
    #[test]
    fn what_changes_of_the_capacity_move_is_removed_too() {
        const RECORDS: u32 = if cfg!(miri) { 200 } else { 5000 };
        let is_odd = |key: &[u8]| key[3] % 2 == 1;
        for round in 0..if cfg!(miri) { 2 } else { 8 } {
            let cache = RecordCache::default();
            cache.set_capacity(1000 * BUCKET as u64);
            (0..RECORDS).for_each(|number| {
                let _ = cache.put(0, KS, &key(number), &[1; 100]);
            });
            let is_over = AtomicBool::new(false);
            let changes = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let looked_at = std::cell::Cell::new(0);
                    cache.remove_all(|_, key| {
                        looked_at.set(looked_at.get() + 1);
                        if looked_at.get() % 50 == 0 {
                            std::thread::sleep(Duration::from_micros(50));
                        }
                        is_odd(key)
                    });
                    is_over.store(true, Ordering::SeqCst);
                });
                let mut changes = 0;
                while !is_over.load(Ordering::SeqCst) && changes < 6 {
                    let buckets = [700 - round, 1000, 1300 + round][changes % 3];
                    cache.set_capacity(buckets * BUCKET as u64);
                    changes += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                changes
            });
            let left = (0..RECORDS).filter(|number| cache.get(0, KS, &key(*number)).is_some());
            let (odd, even): (Vec<_>, Vec<_>) = left.partition(|number| number % 2 == 1);
            assert!(odd.is_empty() && !even.is_empty(), "after {changes} changes: {odd:?}");
        }
    }

    #[test]
    fn a_reader_of_another_state_passes_the_cache_by() {
        let cache = RecordCache::default();
        cache.set_capacity(1 << 20);
        assert_eq!(cache.put(0, KS, &key(1), b"one"), KeepOutcome::Yes);
        cache.serve(1);
        assert_eq!(cache.get(0, KS, &key(1)), None, "a reader from before");
        assert_eq!(cache.get(1, KS, &key(1)), here(b"one"));
        assert_eq!(cache.put(0, KS, &key(2), b"old"), KeepOutcome::No);
        assert_eq!(cache.get(1, KS, &key(2)), None, "what he found may be old");
        cache.renew(KS, &key(1), Some(b"a longer one"), false);
        assert_eq!(cache.get(1, KS, &key(1)), here(b"a longer one"));
        cache.serve(3);
        cache.serve(2);
        assert_eq!(cache.get(3, KS, &key(1)), here(b"a longer one"), "numbers do not go back");
        assert_eq!(cache.get(3, KeyspaceId(8), &key(1)), None);
        cache.renew(KS, &key(1), None, true);
        assert_eq!(cache.get(3, KS, &key(1)), None);
        assert_eq!(cache.put(3, KS, &key(1), &[0; 4096]), KeepOutcome::TooLong);
    }

    #[test]
    fn what_was_read_from_the_queue_is_cached_when_it_has_gone() {
        let cache = RecordCache::default();
        cache.set_capacity(1 << 20);
        cache.renew(KS, &key(1), Some(b"asked for"), true);
        cache.renew(KS, &key(2), Some(b"not asked for"), false);
        cache.renew(KS, &key(3), None, true);
        cache.renew(KS, &key(4), Some(&[0; 4096]), true);
        let found: Vec<_> = (1..5).map(|number| cache.get(0, KS, &key(number))).collect();
        assert_eq!(found, [here(b"asked for"), None, None, None]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

        /// One reader, and one writer that flushes now and then, as the engine does; the reader's state is at
        /// times an older one.
        #[test]
        fn no_reader_finds_what_its_trees_do_not_say(
            steps in prop::collection::vec((0u32..40, 0u8..10, 0usize..300), 1..600), buckets in 1u64..4)
        {
            let cache = RecordCache::default();
            cache.set_capacity(buckets * BUCKET as u64);
            // The trees, as each state of the last ones sees them.
            let mut trees: Vec<BTreeMap<u32, Vec<u8>>> = vec![BTreeMap::new()];
            let mut queue: BTreeMap<u32, (Option<Vec<u8>>, bool)> = BTreeMap::new();
            for (number, what, len) in steps {
                let now = trees.len() as u64 - 1;
                match what {
                    0 => {
                        // Frozen; the flush brings up to date what is here; flushed.
                        cache.serve(now + 1);
                        let mut next = trees[now as usize].clone();
                        trees.push(next.clone());
                        for (number, (change, is_asked)) in std::mem::take(&mut queue) {
                            cache.renew(KS, &key(number), change.as_deref(), is_asked);
                            match change {
                                Some(value) => next.insert(number, value),
                                None => next.remove(&number),
                            };
                        }
                        trees.push(next);
                        cache.serve(now + 2);
                    }
                    1 => drop(queue.insert(number, (None, len % 2 == 0))),
                    2 | 3 => drop(queue.insert(number, (Some(vec![len as u8; len]), what == 2))),
                    4 => cache.set_capacity((1 + len as u64 % 5) * BUCKET as u64),
                    _ => {
                        let state = if what == 5 { now.saturating_sub(len as u64 % 3) } else { now };
                        let said = trees[state as usize].get(&number);
                        match cache.get(state, KS, &key(number)) {
                            Some(found) => prop_assert_eq!(Some(&found[..]), said.map(|value| &value[..])),
                            None => drop(said.map(|value| cache.put(state, KS, &key(number), value))),
                        }
                    }
                }
            }
        }
    }
}
