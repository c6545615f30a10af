//! The log as commits share it: the writer, the number of the next operation, the commits that wait for the device, and
//! the queues of batches that wait for a leader.
//!
//! Invariant: a thread that holds the log and finds `syncing` empty finds no commit in the log that is not visible.

use super::CommitPipeline;
use super::commit_lock::CommitLock;
use super::ingestion::Ingested;
use super::queue::{CommitQueue, PendingBatch};
use super::turn::TurnHolder;
use crate::clock::Clock;
use crate::conflict::validation::Validation;
use crate::lock_order::{RankedGuard, RankedMutex, rank};
use crate::operation::{KeyspaceId, Operation, OperationRef, Operations, SeqNo};
use crate::wal::WalWriter;
use crate::watchdog;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar};
use std::time::Duration;

/// How long a durable commit leaves the log to a thread that waits for it at most: a thread gets a processor meanwhile, though others are busy.
const GIVE_WAY: Duration = Duration::from_millis(10);

/// The log and the sequence number of the next operation.
pub(crate) struct Log {
    pub wal: WalWriter,
    /// Of the log. The queue's is the one behind the last visible one; it is lower while durable commits are being synced.
    pub next_seq: SeqNo,
    /// The commits that are in the log, and wait for the device without holding the log.
    pub syncing: Option<Syncing>,
    /// Whether commits are recorded in the history, for open transactions.
    pub is_recorded: bool,
    /// The keyspaces in which ingested records are about to become visible.
    pub ingesting: Vec<KeyspaceId>,
    /// The last ingestions into keyspaces.
    pub(super) ingested: Ingested,
}

impl Log {
    pub fn new(wal: WalWriter, next_seq: SeqNo) -> Self {
        Self {
            wal,
            next_seq,
            syncing: None,
            is_recorded: false,
            ingesting: Vec::new(),
            ingested: Ingested::default(),
        }
    }

    /// Whether these have to wait for commits that are being synced, or for records that are being ingested: a transaction
    /// that has read of that keyspace is validated when it is known whether they are there.
    pub fn holds_up<'a>(&self, group: impl Iterator<Item = &'a PendingBatch> + Clone) -> bool {
        let is_read = |keyspace: &KeyspaceId| {
            let mut transactions = group.clone().filter_map(|pending| pending.validation.as_ref());
            transactions.any(|validation| validation.concerns_keyspace(*keyspace))
        };
        self.syncing.as_ref().is_some_and(|syncing| syncing.concerns(group.clone()))
            || self.ingesting.iter().any(is_read)
    }

    /// Whether there are such commits.
    pub fn is_syncing(&self) -> bool {
        self.syncing.is_some()
    }
}

/// The log behind its lock, which only commits take.
#[derive(Default)]
pub(crate) struct SharedLog(RankedMutex<rank::Log, Option<Log>>);

impl SharedLog {
    #[track_caller]
    pub(super) fn lock(&self) -> RankedGuard<'_, rank::Log, Option<Log>> {
        self.0.lock()
    }

    #[cfg(test)]
    #[track_caller]
    pub fn lock_for_test(&self) -> RankedGuard<'_, rank::Log, Option<Log>> {
        self.0.lock()
    }
}

impl CommitPipeline {
    /// Gives a newly opened database its log.
    pub fn install_log(&self, wal: WalWriter) {
        let mut log = self.log.lock();
        *log = Some(Log::new(wal, self.state.visible() + 1));
        // Opening has made all durable that it has found.
        self.durable_waits.note_durable(self.state.visible());
    }

    /// From now on the log has the time every second.
    pub fn tell_times(&self, clock: &Arc<Clock>) {
        if let Some(log) = self.log.lock().as_mut() {
            log.wal.tell_times(Arc::clone(clock));
        }
    }

    /// False during replay, if the database is read-only, and once it is closed.
    pub fn has_log(&self) -> bool {
        self.log.lock().is_some()
    }

    /// Bytes written to the log since it was opened, and syncs of it.
    pub fn log_counters(&self) -> (u64, u64) {
        self.log.lock().as_ref().map_or((0, 0), |log| (log.wal.bytes_written(), log.wal.syncs()))
    }

    /// Freezes the active queue, unless there was a commit after `visible`, or one is under way.
    pub fn freeze_if_quiet(&self, visible: SeqNo) {
        let mut guard = self.log.lock();
        let Some(log) = guard.as_mut() else { return };
        if log.is_syncing() || self.state.visible() != visible || self.state.load().frozen.is_some() {
            return;
        }
        // If this fails for lack of space, the next commit tries again.
        let _ = self.freeze(log);
    }
}

/// Hashes of the keys that the commits being synced change, and what the transactions among them have read.
#[derive(Default)]
pub(crate) struct Syncing {
    keys: HashSet<u64>,
    /// Whether they remove a range: then all others wait, since any key may be in it.
    has_ranges: bool,
    transactions: Vec<Arc<Validation>>,
    hasher: foldhash::fast::RandomState,
}

impl Syncing {
    pub fn of<'a>(group: impl Iterator<Item = &'a PendingBatch> + Clone) -> Self {
        let transactions = group.clone().filter_map(|pending| pending.validation.clone()).collect();
        let mut syncing = Self { transactions, ..Self::default() };
        for operation in operations(group) {
            match operation {
                Operation::Change(change) | Operation::Merge(change) => {
                    let hash = syncing.hash(&change);
                    syncing.keys.insert(hash);
                }
                Operation::RemoveRange(_) => syncing.has_ranges = true,
            }
        }
        syncing
    }

    /// The same, as if no transactions were among them.
    #[cfg(test)]
    pub fn without_reads(self) -> Self {
        Self { transactions: Vec::new(), ..self }
    }

    fn hash(&self, operation: &OperationRef<'_>) -> u64 {
        self.hasher.hash_one((operation.keyspace.0, operation.key))
    }

    /// Whether these have to wait: for their durability, since they change the same keys, since they merge (an operand is known by its
    /// number in the log, which is not that in the queue of what passes by), or since they change what a transaction
    /// has read that is being synced. Such a change comes after the transaction, and would be visible before it: a reader
    /// between could see what cannot be in any order. A transaction waits for all, to be validated against them.
    pub fn concerns<'a>(&self, mut group: impl Iterator<Item = &'a PendingBatch> + Clone) -> bool {
        let is_concerned = |operation: Operation<'_>| {
            let is_changed = match &operation {
                Operation::Change(change) => self.has_ranges || self.keys.contains(&self.hash(change)),
                Operation::Merge(_) => self.has_ranges || !self.keys.is_empty(),
                Operation::RemoveRange(_) => true,
            };
            is_changed || self.transactions.iter().any(|transaction| transaction.concerns(&operation))
        };
        group.clone().any(|pending| pending.is_durable() || pending.validation.is_some())
            || group.any(|pending| operations(std::iter::once(pending)).any(is_concerned))
    }

    /// Whether a transaction that is being synced has read anything of a keyspace.
    pub fn has_read_of(&self, keyspace: KeyspaceId) -> bool {
        self.transactions.iter().any(|transaction| transaction.concerns_keyspace(keyspace))
    }
}

pub(crate) fn operations<'a>(
    group: impl Iterator<Item = &'a PendingBatch>,
) -> impl Iterator<Item = Operation<'a>> {
    group.flat_map(|pending| Operations::new(&pending.body)).map_while(|operation| operation.ok())
}

/// Batches that wait to be committed.
#[derive(Default)]
pub(crate) struct CommitQueues {
    pub durable: CommitQueue,
    /// Is held by the thread that commits what needs no sync.
    pub without_sync: CommitLock,
    /// No commit waits for the device any more, or an ingestion or a turn has ended.
    pub blocker_ended: Condvar,
    /// Threads that wait for the end of a sync. While there are some, the log is not let go of for the next one, or durable
    /// commits would always be there before them.
    pub wanted: AtomicUsize,
    /// All that wait for anything.
    #[cfg(test)]
    pub waiting: AtomicUsize,
    /// One of them has the log.
    served: Condvar,
    /// How often that was so, ...
    count_served: AtomicUsize,
    /// ... and how often when a durable commit last went before those that wait.
    count_before: AtomicUsize,
    /// Which thread has the turn.
    pub turn: TurnHolder,
}

impl CommitQueues {
    /// Waits while the log is so: until what is in the way is over.
    pub fn wait<'l>(
        &self,
        mut guard: RankedGuard<'l, rank::Log, Option<Log>>,
        is_so: impl Fn(&Log) -> bool,
    ) -> RankedGuard<'l, rank::Log, Option<Log>> {
        while guard.as_ref().is_some_and(&is_so) {
            // What waits for a turn or an ingestion could not go if it had the log.
            let is_for_sync = guard.as_ref().is_some_and(Log::is_syncing);
            if is_for_sync {
                self.wanted.fetch_add(1, Relaxed);
            }
            #[cfg(test)]
            self.waiting.fetch_add(1, Relaxed);
            guard = watchdog::wait(
                &self.blocker_ended,
                guard,
                "a sync of durable commits, an ingestion or a turn",
            );
            #[cfg(test)]
            self.waiting.fetch_sub(1, Relaxed);
            if is_for_sync {
                self.wanted.fetch_sub(1, Relaxed);
                self.count_served.fetch_add(1, Relaxed);
                self.served.notify_all();
            }
        }
        guard
    }

    /// A durable commit goes before threads that wait for the log. The caller holds it.
    pub fn go_before(&self) {
        self.count_before.store(self.count_served.load(Relaxed), Relaxed);
    }

    /// Whether threads wait for the log, and none has had it since a durable commit went before them.
    fn are_passed_over(&self) -> bool {
        self.wanted.load(Relaxed) > 0 && self.count_served.load(Relaxed) == self.count_before.load(Relaxed)
    }

    /// Leaves the log to a thread that waits for it, for a moment, if durable commits would go before it once more: the lock is not fair, and
    /// where processors are short a thread that commits durably has it again each time before another is awake.
    pub fn give_way<'l>(
        &self,
        guard: RankedGuard<'l, rank::Log, Option<Log>>,
    ) -> RankedGuard<'l, rank::Log, Option<Log>> {
        if self.are_passed_over() { guard.wait_for(&self.served, GIVE_WAY).0 } else { guard }
    }

    /// Whether a group has to wait because another thread has the turn. Syncs need not: they change nothing.
    pub fn are_held_up<'a>(&self, mut group: impl Iterator<Item = &'a PendingBatch>) -> bool {
        self.turn.is_others() && !group.all(PendingBatch::is_sync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::durability::Durability;
    use crate::operation::{KeyRange, put_merge, put_remove, put_remove_range};
    use psync::{Simulated, Volume};
    use std::time::Instant;

    /// Where processors are short, they went before for seconds.
    #[test]
    fn durable_commits_leave_the_log_to_whoever_they_have_gone_before() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
        let queues = &db.handle.engine.commits.queues;
        let takes = || {
            let began = Instant::now();
            db.handle.engine.commits.sync().unwrap();
            began.elapsed()
        };
        takes();
        queues.go_before();
        assert!(!queues.are_passed_over(), "no thread waits");
        // A thread that is slow to wake up.
        queues.wanted.fetch_add(1, Relaxed);
        assert!(takes() >= GIVE_WAY);
        // Each time until it has had the log.
        assert!(takes() >= GIVE_WAY);
        queues.count_served.fetch_add(1, Relaxed);
        assert!(!queues.are_passed_over(), "another thread may have come since");
        takes();
        assert!(queues.are_passed_over());
        queues.wanted.fetch_sub(1, Relaxed);
    }

    /// It would hold durable commits up, and what it waits for, which wants the log.
    #[test]
    fn a_thread_that_waits_for_a_turn_is_not_waited_for() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
        let (keyspace, commits) = (db.keyspace("main").unwrap(), &db.handle.engine.commits);
        let turn = commits.take_turn().unwrap();
        std::thread::scope(|scope| {
            scope
                .spawn(|| drop(commits.queues.wait(commits.log.lock(), |_| commits.queues.turn.is_others())));
            while commits.queues.waiting.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            // It is counted with the log locked.
            drop(commits.log.lock());
            assert_eq!(commits.queues.wanted.load(Relaxed), 0);
            keyspace.insert("key", "value").unwrap();
            drop(turn);
        });
        assert_eq!(commits.queues.wanted.load(Relaxed), 0);
    }

    fn batch(keyspace: u32, key: &[u8], is_range: bool) -> PendingBatch {
        let (mut body, keyspace) = (Vec::new(), KeyspaceId(keyspace));
        match is_range {
            true => put_remove_range(&mut body, KeyRange { keyspace, from: key, to: None }),
            false => put_remove(&mut body, keyspace, key),
        }
        PendingBatch::new(body, 1, Durability::Buffered)
    }

    #[test]
    fn what_may_change_the_same_keys_waits_for_those_that_are_synced() {
        let syncing = Syncing::of([&batch(1, b"k", false), &batch(2, b"m", false)].into_iter());
        let waits = |other: &PendingBatch| syncing.concerns(std::iter::once(other));
        assert!(waits(&batch(1, b"k", false)) && waits(&batch(2, b"m", false)));
        assert!(!waits(&batch(1, b"m", false)) && !waits(&batch(2, b"k", false)));
        assert!(waits(&batch(1, b"a", true)), "a range may have any key");
        let syncing = Syncing::of(std::iter::once(&batch(1, b"k", true)));
        assert!(syncing.concerns(std::iter::once(&batch(1, b"z", false))));
        let mut body = Vec::new();
        put_merge(&mut body, KeyspaceId(1), b"z", b"1");
        let merge = PendingBatch::new(body, 1, Durability::Buffered);
        assert!(Syncing::of(std::iter::once(&batch(2, b"k", false))).concerns(std::iter::once(&merge)));
        let sync = PendingBatch::new(Vec::new(), 0, Durability::Immediate);
        assert!(!Syncing::of(std::iter::once(&sync)).concerns(std::iter::once(&merge)));
    }
}
