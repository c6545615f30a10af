//! The order in which locks may be taken, in one table, and locks that check it in debug builds.
//!
//! A thread that holds a lock may take only locks that stand below it in [`Rank`], so no threads can wait for one another in a
//! circle. A violation panics at once, whether or not another thread is there to make it a deadlock, and the panic names both
//! locks and the lines that take them. Release builds check nothing, and a lock is no larger there than that of the standard library.
//!
//! Invariants:
//! 1. every lock of the engine has a rank (the house rules check it);
//! 2. a rank is part of the lock's type. A thread never holds two locks of one rank;
//! 3. `try_lock` does not wait and may be called in any order; what is locked after it may not;
//! 4. locks have no state outside themselves: in a child that was forked, other databases can be opened (`psync`'s `lock.rs`);
//! 5. code of the user that runs under a lock ([`UserIter`]) is not checked against it: it may use another database.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

/// A rank as a type. See [`ranks!`].
pub(crate) trait Ranked {
    const RANK: Rank;
}

/// Makes the table of ranks, from the outermost lock to the innermost.
macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The locks, in the order in which they may be taken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Rank { $($(#[$doc])* $name,)* }

        /// The ranks as types.
        pub(crate) mod rank {
            $(
                $(#[$doc])*
                #[derive(Debug)]
                pub(crate) struct $name;
                impl super::Ranked for $name {
                    const RANK: super::Rank = super::Rank::$name;
                }
            )*
        }
    };
}

ranks! {
    /// The stream that a backup goes to: written while the database is read.
    BackupStream,
    /// Files of a directory of backups that are not durable yet.
    BackupFiles,
    /// Closing a database, and the lock of its directory.
    Close,
    /// The background work, which closing waits for.
    Background,
    /// Where a follower's next refresh goes on.
    Refresh,
    /// Creation of keyspaces: one manifest edit at a time.
    Creation,
    /// Names of the keyspaces that are to be created.
    CreationNames,
    /// Ids of the keyspaces by name.
    KeyspaceIds,
    /// Commits that need no sync: one at a time.
    CommitLock,
    /// Which thread gets the writer of nodes next.
    WriterNext,
    /// The writer of nodes: one flush, cleansing, collection or ingestion at a time.
    Writer,
    /// Which blocks are cleansed next.
    CleansingCursor,
    /// Target lengths of log areas.
    Tuning,
    /// Where the flush of a queue goes on.
    Resume,
    /// Where cleansing for the reserve goes on.
    ReserveWalk,
    /// How much the running flush has written.
    FlushProgress,
    /// Segments, or dropped trees, that could not be read.
    Unreadable,
    /// The nodes of the segments that are emptied next.
    LiveNodes,
    /// The log: one group of commits at a time.
    Log,
    /// Threads that wait for the lock of commits that need no sync. Its holder may let go of it with the log locked.
    CommitLockWaiting,
    /// Batches that wait for a leader.
    CommitQueue,
    /// The result of one commit, which its thread waits for.
    Answer,
    /// The manifest: one edit at a time.
    Manifest,
    /// Ranges of keys that are known to be empty.
    EmptyRanges,
    /// The reserve for a full disk.
    Reserve,
    /// Whether a flush is requested, runs or has failed.
    FlushControl,
    /// Since when the disk has been full.
    LowSpace,
    /// Changes that open transactions are validated against.
    History,
    /// What a transaction has read.
    ReadSet,
    /// Syncs of closed log files.
    LogSyncs,
    /// Log files that are kept for the change feed.
    KeptGenerations,
    /// How often the durable part of the log has grown, while a reader of the change feed waits for that.
    ChangesWatch,
    /// Keys of a queue whose newest operand does not have all beneath it.
    OpqChained,
    /// Insertion into a queue, and the sample of what was inserted.
    Opq,
    /// The memory budget: one change of the cache's capacity at a time.
    Memory,
    /// The division of the cache.
    CachePartition,
    /// Free chunks of queues. Dropping the last reference to a queue takes it.
    FreeList,
    /// The number of buckets of the record cache.
    RecordBuckets,
    /// Some buckets of the record cache.
    RecordChunk,
    /// The ranges that a queue removes.
    RangeRemovals,
    /// The prefetch buffer.
    Prefetch,
    /// Blocks that scans have charged enough.
    ReadCosts,
    /// Free node ids.
    NodeIds,
    /// What followers said last.
    Followers,
    /// The file `DURABLE`.
    Publication,
    /// A follower's registration.
    Registration,
    /// Free segments. Dropping the last reference to a segment takes it.
    Slots,
    /// Nodes that are being written behind the writer.
    WriteBehind,
    /// Samples that a dictionary is trained of.
    Training,
    /// How much memory the samples of each keyspace take.
    SampleHolders,
    /// Free frames. Dropping the last reference to a cached node takes it.
    Frames,
    /// Callbacks of commits that are not durable yet.
    DurableWaits,
    /// Gets of tasks that wait for a group.
    #[cfg_attr(not(feature = "async"), allow(dead_code, reason = "there are no tasks"))]
    Gather,
    /// Transactions of tasks that wait to be repeated.
    #[cfg_attr(not(feature = "async"), allow(dead_code, reason = "there are no tasks"))]
    RetryQueue,
    /// The result and the waker of a future.
    Polled,
    /// Whether a follower's renewals end.
    Renewal,
    /// The pool's threads and what waits for them.
    Pool,
    /// Whether a piece of work has run.
    Task,
    /// Why writes are refused.
    Health,
}

/// A mutex with a rank. It does not know poisoning: a panic under a lock is made an error by what waits for the work.
#[derive(Debug)]
pub(crate) struct RankedMutex<R, T> {
    lock: Mutex<T>,
    rank: PhantomData<fn() -> R>,
}

/// A mutex with a rank, locked.
pub(crate) type RankedGuard<'a, R, T> = Guard<R, MutexGuard<'a, T>>;

impl<R, T: Default> Default for RankedMutex<R, T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<R, T> RankedMutex<R, T> {
    pub const fn new(value: T) -> Self {
        Self { lock: Mutex::new(value), rank: PhantomData }
    }

    /// The value, which nothing else can lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, for good.
    pub fn into_inner(self) -> T {
        self.lock.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Ranked, T> RankedMutex<R, T> {
    /// Waits for the lock and takes it.
    #[track_caller]
    pub fn lock(&self) -> RankedGuard<'_, R, T> {
        Guard::take(|| self.lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<RankedGuard<'_, R, T>> {
        match self.lock.try_lock() {
            Ok(guard) => Some(Guard::taken(guard)),
            Err(TryLockError::Poisoned(guard)) => Some(Guard::taken(guard.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A reader-writer lock with a rank. A thread holds it once, also for reading: a writer between would wait for ever.
#[derive(Debug)]
pub(crate) struct RankedRwLock<R, T> {
    lock: RwLock<T>,
    rank: PhantomData<fn() -> R>,
}

impl<R, T: Default> Default for RankedRwLock<R, T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<R, T> RankedRwLock<R, T> {
    pub const fn new(value: T) -> Self {
        Self { lock: RwLock::new(value), rank: PhantomData }
    }
}

impl<R: Ranked, T> RankedRwLock<R, T> {
    #[track_caller]
    pub fn read(&self) -> Guard<R, RwLockReadGuard<'_, T>> {
        Guard::take(|| self.lock.read().unwrap_or_else(PoisonError::into_inner))
    }

    #[track_caller]
    pub fn write(&self) -> Guard<R, RwLockWriteGuard<'_, T>> {
        Guard::take(|| self.lock.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A lock that is held: the guard of some library, and in debug builds what this thread knows of it.
pub(crate) struct Guard<R, G> {
    guard: G,
    /// Is dropped after the guard.
    held: Held<R>,
}

impl<R: Ranked, G> Guard<R, G> {
    /// Takes a lock by waiting for it.
    #[track_caller]
    pub fn take(wait: impl FnOnce() -> G) -> Self {
        check(R::RANK);
        Self::taken(wait())
    }

    /// The lock was taken without waiting.
    #[track_caller]
    pub fn taken(guard: G) -> Self {
        Self { guard, held: Held::new() }
    }
}

impl<R, T> RankedGuard<'_, R, T> {
    /// Sleeps until notified. The lock is free meanwhile.
    pub fn wait(self, condvar: &Condvar) -> Self {
        let Self { guard, held } = self;
        Self { guard: condvar.wait(guard).unwrap_or_else(PoisonError::into_inner), held }
    }

    /// Sleeps until notified, at most for `time`. Also returns whether it was notified.
    pub fn wait_for(self, condvar: &Condvar, time: Duration) -> (Self, bool) {
        let Self { guard, held } = self;
        let (guard, timeout) = condvar.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
        (Self { guard, held }, !timeout.timed_out())
    }
}

impl<R, G: Deref> Deref for Guard<R, G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<R, G: DerefMut> DerefMut for Guard<R, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// An iterator of the user, which runs and is dropped while a lock is held.
pub(crate) struct UserIter<I>(Option<I>);

impl<I> UserIter<I> {
    pub fn new(iter: I) -> Self {
        Self(Some(iter))
    }
}

impl<I: Iterator> Iterator for UserIter<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        set_aside(|| self.0.as_mut()?.next())
    }
}

impl<I> Drop for UserIter<I> {
    fn drop(&mut self) {
        set_aside(|| drop(self.0.take()));
    }
}

#[cfg(debug_assertions)]
use debug::{Held, check, set_aside};
#[cfg(not(debug_assertions))]
use release::{Held, check, set_aside};

/// What each thread holds, and the check.
#[cfg(debug_assertions)]
mod debug {
    use super::{Rank, Ranked};
    use std::cell::RefCell;
    use std::marker::PhantomData;
    use std::panic::Location;

    type Line = &'static Location<'static>;

    thread_local! {
        /// The locks that this thread holds, and the lines that took them, oldest first.
        static HELD: RefCell<Vec<(Rank, Line)>> = const { RefCell::new(Vec::new()) };
    }

    /// Panics if this thread holds a lock of this rank or of a later one. Not while it panics already: that would end
    /// the process.
    #[track_caller]
    pub(super) fn check(rank: Rank) {
        if std::thread::panicking() {
            return;
        }
        let later =
            |held: &RefCell<Vec<(Rank, Line)>>| held.borrow().iter().copied().find(|(held, _)| *held >= rank);
        let Some((held, at)) = HELD.try_with(later).ok().flatten() else { return };
        let thread = std::thread::current();
        panic!(
            "lock order: {rank:?} is taken at {} by the thread {:?} ({}), which has held {held:?} since {at}; \
             the order is that of `Rank` in {}",
            Location::caller(),
            thread.id(),
            thread.name().unwrap_or("without a name"),
            file!(),
        );
    }

    /// Runs code of the user, which is checked by itself.
    pub(super) fn set_aside<T>(run: impl FnOnce() -> T) -> T {
        struct Restore(Vec<(Rank, Line)>);
        impl Drop for Restore {
            fn drop(&mut self) {
                HELD.with_borrow_mut(|held| *held = std::mem::take(&mut self.0));
            }
        }
        let _restore = Restore(HELD.take());
        run()
    }

    /// An entry of [`HELD`].
    pub(super) struct Held<R>(Rank, PhantomData<fn() -> R>);

    impl<R: Ranked> Held<R> {
        #[track_caller]
        pub fn new() -> Self {
            // A lock that is taken while the thread ends, by a destructor, is not noted.
            let line = Location::caller();
            let _ = HELD.try_with(|held| held.borrow_mut().push((R::RANK, line)));
            Self(R::RANK, PhantomData)
        }
    }

    impl<R> Drop for Held<R> {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(index) = held.iter().rposition(|(rank, _)| *rank == self.0) {
                    held.remove(index);
                }
            });
        }
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
mod release {
    use super::Rank;
    use std::marker::PhantomData;

    pub(super) fn check(_: Rank) {}

    pub(super) fn set_aside<T>(run: impl FnOnce() -> T) -> T {
        run()
    }

    /// Nothing.
    pub(super) struct Held<R>(PhantomData<fn() -> R>);

    impl<R> Held<R> {
        pub fn new() -> Self {
            Self(PhantomData)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_the_order_of_the_table() {
        let (log, manifest) = (RankedMutex::<rank::Log, _>::new(1), RankedMutex::<rank::Manifest, _>::new(2));
        let _log = log.lock();
        assert_eq!(*manifest.lock(), 2);
        assert_eq!(*manifest.lock(), 2, "the first guard is gone");
    }

    /// The message of the panic.
    #[cfg(debug_assertions)]
    fn refused(take: impl FnOnce()) -> String {
        let refused =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(take)).expect_err("the order is wrong");
        *refused.downcast().expect("a text")
    }

    #[cfg(debug_assertions)]
    #[test]
    fn the_wrong_order_panics_and_names_both_locks_and_lines() {
        let (log, manifest) =
            (RankedMutex::<rank::Log, _>::new(()), RankedMutex::<rank::Manifest, _>::new(()));
        let (held, line) = (manifest.lock(), line!());
        let why = refused(|| drop(log.lock()));
        let taken = line!() - 1;
        for part in [
            "Log is taken",
            "held Manifest",
            &format!("lock_order.rs:{line}:"),
            &format!("lock_order.rs:{taken}:"),
        ] {
            assert!(why.contains(part), "{part} in {why}");
        }
        assert!(why.contains(std::thread::current().name().unwrap()), "{why}");
        drop(held);
        drop(log.lock());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn two_locks_of_one_rank_and_two_readers_in_one_thread_are_refused() {
        let (one, two) = (RankedMutex::<rank::Answer, _>::new(()), RankedMutex::<rank::Answer, _>::new(()));
        let held = one.lock();
        refused(|| drop(two.lock()));
        drop(held);
        let names = RankedRwLock::<rank::KeyspaceIds, _>::new(());
        drop(names.write());
        refused(|| {
            let _first = names.read();
            drop(names.read());
        });
    }

    #[cfg(debug_assertions)]
    #[test]
    fn what_is_locked_after_a_try_is_checked() {
        let (log, manifest) =
            (RankedMutex::<rank::Log, _>::new(()), RankedMutex::<rank::Manifest, _>::new(()));
        let answer = RankedMutex::<rank::Answer, _>::new(());
        let _manifest = manifest.lock();
        let _log = log.try_lock().unwrap();
        assert!(log.try_lock().is_none());
        refused(|| drop(answer.lock()));
    }

    #[test]
    fn code_of_the_user_is_checked_by_itself() {
        struct Locks<'a>(&'a RankedMutex<rank::Close, u8>);
        impl Drop for Locks<'_> {
            fn drop(&mut self) {
                drop(self.0.lock());
            }
        }
        let (close, writer) =
            (RankedMutex::<rank::Close, _>::new(7), RankedMutex::<rank::Writer, _>::new(()));
        let held = writer.lock();
        let locks = Locks(&close);
        let records = UserIter::new(std::iter::from_fn(move || Some(*locks.0.lock())));
        assert_eq!(records.take(3).count(), 3);
        #[cfg(debug_assertions)]
        refused(|| drop(close.lock()));
        drop(held);
        drop(close.lock());
    }

    #[test]
    fn ranks_take_no_memory() {
        assert_eq!(size_of::<RankedMutex<rank::Log, u64>>(), size_of::<Mutex<u64>>());
        #[cfg(not(debug_assertions))]
        assert_eq!(size_of::<RankedGuard<'_, rank::Log, u64>>(), size_of::<MutexGuard<'_, u64>>());
    }
}
