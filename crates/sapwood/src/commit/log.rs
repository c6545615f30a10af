//! The log as commits share it: the writer, the number of the next operation, the commits that wait for the device, and
//! the queues of batches that wait for a leader.
//!
//! Invariant: who holds the log and finds `syncing` empty finds no commit in the log that is not visible.

use super::queue::{CommitQueue, PendingBatch};
use crate::operation::{OperationRef, Operations, SeqNo};
use crate::wal::WalWriter;
use crate::watchdog;
use parking_lot::{Condvar, MutexGuard};
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The log and the sequence number of the next operation.
pub(crate) struct Log {
    pub wal: WalWriter,
    /// Of the log. The queue's is the one behind the last visible one; it is lower while durable commits are being synced.
    pub next_seq: SeqNo,
    /// The commits that are in the log, and wait for the device without holding the log.
    pub syncing: Option<Syncing>,
}

impl Log {
    pub fn new(wal: WalWriter, next_seq: SeqNo) -> Self {
        Self { wal, next_seq, syncing: None }
    }

    /// Whether there are such commits.
    pub fn is_syncing(&self) -> bool {
        self.syncing.is_some()
    }
}

/// Hashes of the keys that the commits being synced change.
#[derive(Default)]
pub(crate) struct Syncing {
    keys: HashSet<u64>,
    hasher: foldhash::fast::RandomState,
}

impl Syncing {
    pub fn of<'a>(group: impl Iterator<Item = &'a PendingBatch>) -> Self {
        let mut syncing = Self::default();
        for operation in operations(group) {
            let hash = syncing.hash(&operation);
            syncing.keys.insert(hash);
        }
        syncing
    }

    fn hash(&self, operation: &OperationRef<'_>) -> u64 {
        self.hasher.hash_one((operation.keyspace.0, operation.key))
    }

    /// Whether these have to wait: for their durability, or since they change the same keys.
    pub fn concerns<'a>(&self, mut group: impl Iterator<Item = &'a PendingBatch> + Clone) -> bool {
        group.clone().any(PendingBatch::is_durable)
            || group.any(|pending| {
                operations(std::iter::once(pending)).any(|op| self.keys.contains(&self.hash(&op)))
            })
    }
}

pub(crate) fn operations<'a>(
    group: impl Iterator<Item = &'a PendingBatch>,
) -> impl Iterator<Item = OperationRef<'a>> {
    group.flat_map(|pending| Operations::new(&pending.body)).map_while(|operation| operation.ok())
}

/// Batches that wait for their leader.
#[derive(Default)]
pub(crate) struct CommitQueues {
    pub durable: CommitQueue,
    pub others: CommitQueue,
    /// No commit waits for the device any more.
    pub settled: Condvar,
    /// Threads that wait for this. While there are some, the log is not let go of for a sync, or the next durable
    /// commits would always be there before them.
    pub wanted: AtomicUsize,
}

impl CommitQueues {
    /// Waits until no commit waits for the device, if one of those that do is this.
    pub fn wait(&self, guard: &mut MutexGuard<'_, Option<Log>>, is_this: impl Fn(&Syncing) -> bool) {
        let must_wait = |log: &Log| log.syncing.as_ref().is_some_and(&is_this);
        if !guard.as_ref().is_some_and(must_wait) {
            return;
        }
        self.wanted.fetch_add(1, Relaxed);
        while guard.as_ref().is_some_and(must_wait) {
            watchdog::wait(&self.settled, guard, "a sync of durable commits");
        }
        self.wanted.fetch_sub(1, Relaxed);
    }

    pub fn queue_for(&self, pending: &PendingBatch) -> &CommitQueue {
        if pending.is_durable() { &self.durable } else { &self.others }
    }
}
