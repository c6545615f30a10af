//! What all writers of the data file share, so that two writers at the same time take nothing twice: slots,
//! segment numbers, and node ids.
//!
//! Invariants:
//! 1. As long as the database accepts writes: an id is free only if the current version has no node with that
//!    id, and no attempt in progress has taken it.
//! 2. A number is taken once, even by a version builder that is aborted: no position is published twice.

use crate::lock_order::{RankedMutex, rank};
use crate::storage::mapping_table::MappingTable;
use crate::storage::node::{HEADER as NODE_HEADER, NodeId};
use crate::storage::segment::Segment;
use crate::storage::slots::{Slots, granules};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The least bytes of a data file whose ids of nodes are all below this one, free ids included: a reader of a manifest
/// believes no larger ones.
pub(crate) fn least_len(id: u64) -> u64 {
    id.saturating_mul(NODE_HEADER as u64)
}

/// Bytes of a page (4 KiB): a data file ends with a whole one, since direct I/O reads no part of one.
pub(crate) const PAGE: u64 = 4096;

/// See the module.
pub(crate) struct DataFile {
    slots: Arc<Slots>,
    next_number: AtomicU64,
    ids: RankedMutex<rank::NodeIds, Ids>,
    /// Bytes written since the file was opened.
    bytes_written: AtomicU64,
}

struct Ids {
    /// Ids below this one were handed out at some time.
    next: u64,
    /// Free ids below `next`, as a stack.
    free: Vec<NodeId>,
}

impl Ids {
    /// The ids that the table does not have are free.
    fn beside(table: &MappingTable) -> Self {
        let (mut next, mut free) = (0, Vec::new());
        for (id, _) in table.iter() {
            free.extend((next..id.0).map(NodeId));
            next = id.0 + 1;
        }
        free.reverse();
        Self { next, free }
    }
}

impl DataFile {
    /// A data file whose segments have their slots from `slots`, and numbers above `newest`. The ids that `table` does not
    /// have are free.
    pub fn new(newest: u64, table: &MappingTable, slots: Arc<Slots>) -> Self {
        slots.keep_long(granules(least_len(table.ids_end())));
        Self {
            slots,
            next_number: AtomicU64::new(newest + 1),
            ids: RankedMutex::new(Ids::beside(table)),
            bytes_written: AtomicU64::new(0),
        }
    }

    /// Begins a segment in a free place that has room for `capacity` bytes; for a part of them, but no less than
    /// `least`, if there is such a place below the end of the file.
    pub fn begin_segment(&self, least: u64, capacity: u64) -> Arc<Segment> {
        let place = self.slots.take(granules(least), granules(capacity.max(least)));
        Segment::new(self.next_number.fetch_add(1, Relaxed), place, &self.slots)
    }

    /// All segments that begin later have this number or a higher one.
    pub fn next_number(&self) -> u64 {
        self.next_number.load(Relaxed)
    }

    /// Takes an id for a new node.
    pub fn take_id(&self) -> NodeId {
        let mut ids = self.ids.lock();
        ids.free.pop().unwrap_or_else(|| {
            ids.next += 1;
            self.slots.keep_long(granules(least_len(ids.next)));
            NodeId(ids.next - 1)
        })
    }

    /// Frees ids that an edit has freed, or that an aborted version builder has taken. The first will be taken again
    /// first.
    pub fn give_back_ids(&self, ids: impl DoubleEndedIterator<Item = NodeId>) {
        self.ids.lock().free.extend(ids.rev());
    }

    /// Counts written bytes.
    pub fn wrote(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Relaxed);
    }

    /// Bytes written since the file was opened, including those of aborted version builders.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::mapping_table::{Address, NodeLengths, Position};

    #[test]
    fn no_id_is_taken_twice_and_the_smallest_is_first() {
        let mut table = MappingTable::default();
        for id in [1, 2, 5] {
            table.set(NodeId(id), Address::new(Position(0), NodeLengths::of(9, 9), 0));
        }
        let file = DataFile::new(0, &table, Arc::default());
        let take = |count| (0..count).map(|_| file.take_id().0).collect::<Vec<_>>();
        assert_eq!(take(5), [0, 3, 4, 6, 7]);
        file.give_back_ids([3, 1].map(NodeId).into_iter());
        assert_eq!(take(3), [3, 1, 8]);
    }
}
