//! What all who write to the data file draw from, so that two who write beside one another take nothing twice: its slots, the numbers of
//! segments, and the ids of nodes.
//!
//! Invariants:
//! 1. An id is free only if the current version has no node of that id, and no attempt that is under way has taken it; as long as anything is written.
//! 2. A number is taken once, also by an attempt that comes to nothing: positions are never used twice.

use crate::node::NodeId;
use crate::store::mapping_table::MappingTable;
use crate::store::segment::{Segment, Slots};
use crate::store::version::Version;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the module.
pub(crate) struct DataFile {
    slots: Arc<Slots>,
    next_number: AtomicU64,
    ids: Mutex<Ids>,
    /// Bytes written to it since it was opened.
    bytes_written: AtomicU64,
}

struct Ids {
    /// Ids below this one have been given out at some time.
    next: u64,
    /// Ids below `next` that are free, as a stack.
    free: Vec<NodeId>,
}

impl Ids {
    /// Those that a table does not have.
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
    /// That of a database which is at this version, and whose segments have their slots from `slots`.
    pub fn new(version: &Version, slots: Arc<Slots>) -> Self {
        let last = version.segments.last().map_or(0, |last| last.segment.number);
        Self {
            slots,
            next_number: AtomicU64::new(last.max(version.open_segment) + 1),
            ids: Mutex::new(Ids::beside(&version.table)),
            bytes_written: AtomicU64::new(0),
        }
    }

    /// A segment, in a slot that was free.
    pub fn begin_segment(&self) -> Arc<Segment> {
        Segment::new(self.next_number.fetch_add(1, Relaxed), self.slots.take(), &self.slots)
    }

    /// All segments that begin later have this number or a higher one.
    pub fn next_number(&self) -> u64 {
        self.next_number.load(Relaxed)
    }

    /// An id for a node that is new.
    pub fn take_id(&self) -> NodeId {
        let mut ids = self.ids.lock();
        ids.free.pop().unwrap_or_else(|| {
            ids.next += 1;
            NodeId(ids.next - 1)
        })
    }

    /// These are free now: an edit has freed them, or an attempt has not used them. The first is the first to be taken again.
    pub fn give_back_ids(&self, ids: impl DoubleEndedIterator<Item = NodeId>) {
        self.ids.lock().free.extend(ids.rev());
    }

    /// So many bytes more are written to it.
    pub fn wrote(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Relaxed);
    }

    /// Bytes written since it was opened, by attempts that came to nothing, too.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mapping_table::{Address, Position};

    #[test]
    fn no_id_is_taken_twice_and_the_smallest_is_first() {
        let mut version = Version::empty(1 << 20);
        for id in [1, 2, 5] {
            version.table.set(NodeId(id), Address { position: Position(0), len: 9, crc: 0 });
        }
        let file = DataFile::new(&version, Arc::default());
        let take = |count| (0..count).map(|_| file.take_id().0).collect::<Vec<_>>();
        assert_eq!(take(5), [0, 3, 4, 6, 7]);
        file.give_back_ids([3, 1].map(NodeId).into_iter());
        assert_eq!(take(3), [3, 1, 8]);
    }
}
