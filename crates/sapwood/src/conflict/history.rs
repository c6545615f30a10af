//! The history of commits: the keys that were changed since the oldest open transaction began, in the order of their sequence
//! numbers. A transaction is validated against what came after its snapshot.
//!
//! The operation queues have the same keys, but in key order: a range that a transaction has read would have to be walked
//! with all older changes in it (a work queue's first record lies behind the tombstones of all others), and queues would
//! have to be held with all their values after their flush. Here validation costs what was changed meanwhile.
//! (docs/adr/0027-optimistic-transactions.md)
//!
//! Nothing is recorded while there are no transactions: the first one turns recording on, and some while after the last one a
//! commit turns it off again. Both happen under the lock of the log.
//!
//! Invariants:
//! 1. While recording is on, the history has all operations above `floor`, and of these each is there before it is visible.
//! 2. The snapshot of an open transaction is at `floor` or above, unless the history has grown too large.
//! 3. The lock in here is taken after the log's, and held for moments.

use crate::conflict::read_set::ReadSet;
use crate::lock_order::{RankedMutex, rank};
use crate::operation::{KeyRange, KeyspaceId, Operation, OperationRef, SeqNo};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A chunk is complete with so many operations, or bytes of keys. Complete chunks are searched without any lock; what is in the
/// last one takes some 20 µs under the lock of the log.
const CHUNK_COUNT: usize = 1024;
const CHUNK_BYTES: usize = 64 << 10;

/// Groups of commits that are recorded with no transaction open before recording is turned off. Turning it on waits for
/// the lock of the log, so it is to be rare.
const IDLE_GROUPS: u32 = 4096;

/// Stands for the keyspace of an operation that changes no key of its own: the removal of a range, which is in `ranges`.
const NO_KEYSPACE: KeyspaceId = KeyspaceId(u32::MAX);

/// A range that was removed, with its number.
#[derive(Debug)]
struct RemovedRange {
    seq: SeqNo,
    keyspace: KeyspaceId,
    from: Bytes,
    to: Option<Bytes>,
}

impl RemovedRange {
    fn memory(&self) -> usize {
        size_of::<Self>() + self.from.len() + self.to.as_ref().map_or(0, Bytes::len)
    }
}

/// Keys of operations with consecutive sequence numbers.
#[derive(Debug, Default)]
struct Chunk {
    first_seq: SeqNo,
    /// The ranges that were removed among them.
    ranges: Vec<RemovedRange>,
    /// Keyspaces, and where their keys end in `keys`.
    ends: Vec<(KeyspaceId, u32)>,
    keys: Vec<u8>,
}

impl Chunk {
    /// The sequence number behind the last.
    fn end_seq(&self) -> SeqNo {
        self.first_seq + self.ends.len() as SeqNo
    }

    fn is_complete(&self) -> bool {
        let ranges = self.ranges.iter().map(RemovedRange::memory).sum::<usize>();
        self.ends.len() >= CHUNK_COUNT || self.keys.len() + ranges >= CHUNK_BYTES
    }

    fn memory(&self) -> usize {
        let ranges = self.ranges.iter().map(RemovedRange::memory).sum::<usize>();
        self.ends.capacity() * size_of::<(KeyspaceId, u32)>() + self.keys.capacity() + ranges
    }

    /// The first key changed after `since` that is in `reads`.
    fn conflict(&self, reads: &ReadSet, since: SeqNo) -> Option<(KeyspaceId, Bytes)> {
        for RemovedRange { keyspace, from, to, .. } in self.ranges.iter().filter(|range| range.seq > since) {
            if let Some(key) = reads.first_in(KeyRange { keyspace: *keyspace, from, to: to.as_deref() }) {
                return Some((*keyspace, key));
            }
        }
        let skipped = (since + 1).saturating_sub(self.first_seq) as usize;
        (skipped..self.ends.len()).find_map(|index| {
            let (keyspace, end) = self.ends[index];
            let start = index.checked_sub(1).map_or(0, |before| self.ends[before].1 as usize);
            let key = &self.keys[start..end as usize];
            reads.contains(keyspace, key).then(|| (keyspace, Bytes::copy_from_slice(key)))
        })
    }
}

/// What validation against the history finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No conflict with operations up to this number.
    Nothing(SeqNo),
    /// This key was read, and changed since.
    Conflict(KeyspaceId, Bytes),
    /// The history does not reach back to the snapshot.
    TooOld,
}

/// See the module.
pub(crate) struct History {
    inner: RankedMutex<rank::History, Inner>,
    memory_max: usize,
    /// Of `inner`.
    memory: AtomicUsize,
    /// Handed to the read sets of transactions.
    #[cfg(test)]
    pub ignores_ranges: std::sync::atomic::AtomicBool,
    /// Of the commits that are being synced: what the transactions among them have read counts for nothing.
    #[cfg(test)]
    pub ignores_syncing: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct Inner {
    is_recording: bool,
    /// The snapshots of open transactions, and how many have each.
    open: BTreeMap<SeqNo, usize>,
    complete: VecDeque<Arc<Chunk>>,
    last: Chunk,
    floor: SeqNo,
    idle_groups: u32,
    /// Of `complete`.
    memory: usize,
}

impl Inner {
    /// Drops what no open transaction needs.
    fn trim(&mut self) {
        let oldest = self.open.keys().next().copied();
        while self
            .complete
            .front()
            .is_some_and(|first| oldest.is_none_or(|oldest| first.end_seq() <= oldest + 1))
        {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.complete.pop_front() {
            self.memory -= first.memory();
            self.floor = first.end_seq() - 1;
        }
    }

    /// Drops everything up to `seq`, which is the number of the last operation recorded.
    fn clear(&mut self, seq: SeqNo) {
        self.complete.clear();
        (self.memory, self.floor) = (0, seq);
        self.last.first_seq = seq + 1;
        self.last.ends.clear();
        self.last.keys.clear();
        self.last.ranges.clear();
    }

    fn complete_last(&mut self) {
        let fresh = Chunk { first_seq: self.last.end_seq(), ..Chunk::default() };
        let last = std::mem::replace(&mut self.last, fresh);
        self.memory += last.memory();
        self.complete.push_back(Arc::new(last));
    }
}

impl History {
    /// A history that takes `memory_max` bytes at most.
    pub fn new(memory_max: usize) -> Self {
        Self {
            inner: RankedMutex::default(),
            memory_max,
            memory: AtomicUsize::new(0),
            #[cfg(test)]
            ignores_ranges: std::sync::atomic::AtomicBool::new(false),
            #[cfg(test)]
            ignores_syncing: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Bytes of memory taken.
    pub fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// Begins a transaction: takes its view, and its snapshot's number. `None` if recording has to be turned on first.
    pub fn begin<S>(&self, view: impl FnOnce() -> (S, SeqNo)) -> Option<(S, SeqNo)> {
        let mut inner = self.inner.lock();
        if !inner.is_recording {
            return None;
        }
        // Under the lock: what is recorded from now on is kept.
        let (state, seq) = view();
        *inner.open.entry(seq).or_default() += 1;
        inner.idle_groups = 0;
        Some((state, seq))
    }

    /// Turns recording on. The caller holds the log lock, and lets the log know. `visible` is the newest visible operation.
    pub fn start(&self, visible: SeqNo) {
        let mut inner = self.inner.lock();
        if !inner.is_recording {
            inner.clear(visible);
            (inner.is_recording, inner.idle_groups) = (true, 0);
        }
    }

    /// A transaction with this snapshot has ended.
    pub fn end(&self, seq: SeqNo) {
        let mut inner = self.inner.lock();
        if let Some(count) = inner.open.get_mut(&seq) {
            *count -= 1;
            if *count == 0 {
                inner.open.remove(&seq);
                inner.trim();
                self.memory.store(inner.memory, Relaxed);
            }
        }
    }

    /// The oldest snapshot of an open transaction.
    pub fn oldest(&self) -> Option<SeqNo> {
        self.inner.lock().open.keys().next().copied()
    }

    /// Records operations that will be visible next. The caller holds the log lock. Returns whether recording stays on.
    pub fn record<'a>(&self, first_seq: SeqNo, operations: impl Iterator<Item = Operation<'a>>) -> bool {
        let mut inner = self.inner.lock();
        if inner.open.is_empty() {
            // These are recorded all the same: a transaction that begins now does not see them.
            inner.clear(first_seq - 1);
            inner.idle_groups += 1;
            if inner.idle_groups > IDLE_GROUPS {
                *inner = Inner::default();
                self.memory.store(0, Relaxed);
                return false;
            }
        }
        for operation in operations {
            let (keyspace, key) = match operation {
                Operation::Change(OperationRef { keyspace, key, .. })
                | Operation::Merge(OperationRef { keyspace, key, .. }) => (keyspace, key),
                Operation::RemoveRange(KeyRange { keyspace, from, to }) => {
                    let (from, to) = (Bytes::copy_from_slice(from), to.map(Bytes::copy_from_slice));
                    let seq = inner.last.end_seq();
                    inner.last.ranges.push(RemovedRange { seq, keyspace, from, to });
                    (NO_KEYSPACE, &[][..])
                }
            };
            inner.last.keys.extend_from_slice(key);
            let end = inner.last.keys.len() as u32;
            inner.last.ends.push((keyspace, end));
            if inner.last.is_complete() {
                inner.complete_last();
            }
        }
        while inner.memory > self.memory_max {
            inner.drop_first();
        }
        self.memory.store(inner.memory, Relaxed);
        true
    }

    /// Seeks a conflict with what was recorded in complete chunks after `since`. Needs no lock of the log.
    pub fn check_complete(&self, reads: &ReadSet, since: SeqNo) -> Found {
        let chunks: Vec<_> = {
            let inner = self.inner.lock();
            if since < inner.floor {
                return Found::TooOld;
            }
            let first = inner.complete.partition_point(|chunk| chunk.end_seq() <= since + 1);
            inner.complete.range(first..).cloned().collect()
        };
        let conflict = chunks.iter().find_map(|chunk| chunk.conflict(reads, since));
        let checked = chunks.last().map_or(since, |last| since.max(last.end_seq() - 1));
        conflict.map_or(Found::Nothing(checked), |(keyspace, key)| Found::Conflict(keyspace, key))
    }

    /// Seeks a conflict with all that was recorded after `since`. The caller holds the log lock, so that no more is recorded.
    pub fn check(&self, reads: &ReadSet, since: SeqNo) -> Found {
        match self.check_complete(reads, since) {
            Found::Nothing(checked) => {
                let inner = self.inner.lock();
                let conflict = inner.last.conflict(reads, checked);
                let checked = checked.max(inner.last.end_seq() - 1);
                conflict.map_or(Found::Nothing(checked), |(keyspace, key)| Found::Conflict(keyspace, key))
            }
            found => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: KeyspaceId = KeyspaceId(1);

    fn record(history: &History, first_seq: SeqNo, numbers: std::ops::Range<u32>) -> bool {
        let keys: Vec<_> = numbers.map(u32::to_be_bytes).collect();
        let of = |key| OperationRef { keyspace: MAIN, key, value: None };
        history.record(first_seq, keys.iter().map(|key| of(&key[..]).into()))
    }

    fn reads_of(number: u32) -> ReadSet {
        let mut reads = ReadSet::new(1 << 20);
        reads.add_key(MAIN, &number.to_be_bytes());
        reads
    }

    fn conflict(number: u32) -> Found {
        Found::Conflict(MAIN, Bytes::copy_from_slice(&number.to_be_bytes()))
    }

    #[test]
    fn what_comes_after_a_snapshot_conflicts_and_what_came_before_does_not() {
        let history = History::new(1 << 20);
        assert!(history.begin(|| ((), 10)).is_none(), "recording is off");
        history.start(10);
        // Operation n has the key n.
        history.begin(|| ((), 10)).unwrap();
        for first in (11..5011).step_by(50) {
            assert!(record(&history, first, first as u32..first as u32 + 50));
        }
        assert_eq!(history.check(&reads_of(4000), 3999), conflict(4000));
        assert_eq!(history.check(&reads_of(4000), 4000), Found::Nothing(5010));
        assert_eq!(history.check(&reads_of(5010), 10), conflict(5010));
        assert_eq!(history.check_complete(&reads_of(5010), 10), Found::Nothing(10 + 4 * 1024));
        assert_eq!(history.check(&reads_of(9), 10), Found::Nothing(5010));
        assert_eq!(history.check(&reads_of(11), 9), Found::TooOld);
        history.begin(|| ((), 5010)).unwrap();
        history.end(10);
        assert_eq!(history.memory(), 0, "what is not needed is dropped");
        assert_eq!(history.check(&reads_of(20), 10), Found::TooOld);
        assert!(record(&history, 5011, 5011..5012));
        assert_eq!(history.check(&reads_of(5011), 5010), conflict(5011));
    }

    #[test]
    fn a_history_that_is_too_large_loses_its_beginning() {
        let history = History::new(64 << 10);
        history.start(0);
        history.begin(|| ((), 0)).unwrap();
        assert!(record(&history, 1, 1..100_001));
        assert!(history.memory() <= 64 << 10, "{} bytes", history.memory());
        assert_eq!(history.check(&reads_of(100_000), 0), Found::TooOld);
        assert_eq!(history.check(&reads_of(100_000), 99_000), conflict(100_000));
    }

    #[test]
    fn recording_goes_off_when_no_transaction_is_open_and_not_before() {
        let history = History::new(1 << 20);
        history.start(0);
        history.begin(|| ((), 0)).unwrap();
        let last = SeqNo::from(2 * IDLE_GROUPS);
        assert!((1..last).all(|seq| record(&history, seq, 7..8)));
        history.end(0);
        let on = (last..).take_while(|seq| record(&history, *seq, 7..8)).count();
        assert_eq!(on, IDLE_GROUPS as usize);
        assert!(history.begin(|| ((), 0)).is_none());
        // A transaction that begins before the group is visible which was recorded with none open.
        history.start(last);
        assert!(record(&history, last + 1, 7..8));
        history.begin(|| ((), last)).unwrap();
        assert_eq!(history.check(&reads_of(7), last), conflict(7));
    }
}
