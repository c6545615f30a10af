//! The concurrent PIO B-tree, with the paper's simple locks (VLDB 2011, section 4): searches run side by side; a batch update has the
//! whole tree to itself; an arrival takes the queue for a moment.
//!
//! Invariants:
//! 1. While a batch update runs, no search does: what a search reads of queue and tree belongs together.
//! 2. Whoever fills the queue brings it to the tree. Threads that append at the same moment may fill it by one operation each
//!    beyond what it holds.
//! 3. Transactions are those of [`transaction`](super::transaction): what they log and queue is in one order, under the log's
//!    lock, so a reader that looks at the queue once sees all of a commit or nothing.

use super::PioTree;
use super::transaction::Transaction;
use crate::index::Index;
use crate::page::leaf_segments::Op;
use crate::queue::opq::COMMITTED;
use crate::{Counters, Key, Result, Value};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A PIO B-tree for many threads.
pub struct SharedPioTree {
    tree: RwLock<PioTree>,
    /// Nanoseconds that callers have waited for the lock.
    waited: AtomicU64,
}

impl SharedPioTree {
    /// Shares a tree.
    pub fn new(tree: PioTree) -> Self {
        Self { tree: RwLock::new(tree), waited: AtomicU64::new(0) }
    }

    /// The tree, for one thread again.
    pub fn into_inner(self) -> PioTree {
        self.tree.into_inner()
    }

    /// How long callers have waited for the tree, all together, by the wall clock: searches and arrivals for a batch update, a
    /// batch update for them.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    fn read(&self) -> RwLockReadGuard<'_, PioTree> {
        self.tree.try_read().unwrap_or_else(|| self.waiting(|| self.tree.read()))
    }

    fn write(&self) -> RwLockWriteGuard<'_, PioTree> {
        self.tree.try_write().unwrap_or_else(|| self.waiting(|| self.tree.write()))
    }

    /// Only who must wait looks at the clock.
    fn waiting<G>(&self, lock: impl FnOnce() -> G) -> G {
        let began = Instant::now();
        let guard = lock();
        self.waited.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        guard
    }

    fn change(&self, key: Key, value: Value, op: Op) -> Result<()> {
        let is_full = self.read().queue_up(COMMITTED, key, value, op)?;
        if is_full { self.relieve() } else { Ok(()) }
    }

    /// A batch update, unless somebody else was faster.
    fn relieve(&self) -> Result<()> {
        self.write().relieve()
    }

    fn change_in(&self, transaction: &Transaction, key: Key, value: Value, op: Op) -> Result<()> {
        let queued = self.read().change_if_room(transaction, key, value, op)?;
        match queued {
            Some(false) => Ok(()),
            Some(true) => self.relieve(),
            // With the tree to itself it finds out whether there is anything to take.
            None => self.write().change_in(transaction, key, value, op),
        }
    }

    /// Begins a transaction: see [`PioTree::begin`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trees::{Index, PioOptions, PioTree, SharedPioTree};
    /// let volume = Arc::new(psync::Simulated::new(1));
    /// let tree = SharedPioTree::new(PioTree::create(volume, &PioOptions::default())?);
    /// std::thread::scope(|scope| {
    ///     let transfer = |from, to| {
    ///         let transaction = tree.begin();
    ///         tree.insert_in(&transaction, from, 1)?;
    ///         tree.insert_in(&transaction, to, 2)?;
    ///         tree.commit(transaction)
    ///     };
    ///     scope.spawn(move || transfer(1, 2)).join().expect("no panic")?;
    ///     scope.spawn(move || transfer(3, 4)).join().expect("no panic")
    /// })?;
    /// assert_eq!(tree.search_many(&[1, 2, 3, 4])?, [Some(1), Some(2), Some(1), Some(2)]);
    /// # Ok::<(), trees::Error>(())
    /// ```
    pub fn begin(&self) -> Transaction {
        self.read().begin_shared()
    }

    /// See [`PioTree::insert_in`].
    pub fn insert_in(&self, transaction: &Transaction, key: Key, value: Value) -> Result<()> {
        self.change_in(transaction, key, value, Op::Insert)
    }

    /// See [`PioTree::update_in`].
    pub fn update_in(&self, transaction: &Transaction, key: Key, value: Value) -> Result<()> {
        self.change_in(transaction, key, value, Op::Update)
    }

    /// See [`PioTree::delete_in`].
    pub fn delete_in(&self, transaction: &Transaction, key: Key) -> Result<()> {
        self.change_in(transaction, key, 0, Op::Delete)
    }

    /// See [`PioTree::search_in`]. It waits while the log is synced, unlike [`Self::search`].
    pub fn search_in(&self, transaction: &Transaction, key: Key) -> Result<Option<Value>> {
        self.read().search_in(transaction, key)
    }

    /// See [`PioTree::commit`].
    pub fn commit(&self, transaction: Transaction) -> Result<()> {
        let is_full = {
            let tree = self.read();
            tree.commit_shared(&transaction)?;
            tree.queue.read().is_full()
        };
        if is_full { self.relieve() } else { Ok(()) }
    }

    /// See [`PioTree::abort`].
    pub fn abort(&self, transaction: Transaction) -> Result<()> {
        self.read().abort_shared(&transaction)
    }

    /// See [`Index::insert`].
    pub fn insert(&self, key: Key, value: Value) -> Result<()> {
        self.change(key, value, Op::Insert)
    }

    /// See [`Index::update`].
    pub fn update(&self, key: Key, value: Value) -> Result<()> {
        self.change(key, value, Op::Update)
    }

    /// See [`Index::delete`].
    pub fn delete(&self, key: Key) -> Result<()> {
        self.change(key, 0, Op::Delete)
    }

    /// See [`Index::search`].
    pub fn search(&self, key: Key) -> Result<Option<Value>> {
        self.read().search(key)
    }

    /// See [`Index::search_many`].
    pub fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.read().search_many(keys)
    }

    /// See [`Index::range`].
    pub fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.read().range(range)
    }

    /// See [`Index::flush`].
    pub fn flush(&self) -> Result<()> {
        self.write().flush()
    }

    /// See [`Index::stats`].
    pub fn stats(&self) -> Counters {
        self.read().stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PioOptions;
    use std::sync::Arc;

    #[test]
    fn who_waits_for_the_tree_is_counted_and_nobody_else() {
        let volume = Arc::new(psync::Simulated::new(1));
        let tree = SharedPioTree::new(PioTree::create(volume, &PioOptions::default()).unwrap());
        tree.insert(1, 1).unwrap();
        assert_eq!((tree.search(1).unwrap(), tree.waited()), (Some(1), Duration::ZERO));
        const HELD: Duration = Duration::from_millis(20);
        let began = Instant::now();
        // The other thread may come late, on a busy machine too late to wait.
        while tree.waited() < HELD {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", tree.waited());
            std::thread::scope(|scope| {
                let guard = tree.tree.write();
                let search = scope.spawn(|| tree.search(1).unwrap());
                std::thread::sleep(5 * HELD);
                drop(guard);
                assert_eq!(search.join().unwrap(), Some(1));
            });
        }
    }
}
