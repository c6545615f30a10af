//! Changes that an append ahead of the flush leaves aside: those for blocks that others are changing, and
//! those that do not go to log areas. They go to the trees later, when the flush is alone.
//!
//! Invariant: the parts that were passed by are in key order, and no key is in two of them.

use crate::cache::prefetch_buffer::KeyPosition;
use crate::operation::KeyspaceId;
use crate::storage::node::NodeId;
use crate::tree::cleansing_cursor::beyond;
use bytes::Bytes;
use std::collections::HashSet;

/// An interval in key order: from `from` up to `to`, or to the end if there is none. All of it is in one
/// keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyInterval {
    pub from: KeyPosition,
    pub to: Option<KeyPosition>,
}

impl KeyInterval {
    /// What of it lies at `next` or behind; `None` if nothing does.
    pub fn behind(self, next: &KeyPosition) -> Option<Self> {
        let ends_before = self.to.as_ref().is_some_and(|to| to <= next);
        (!ends_before).then(|| Self { from: self.from.max(next.clone()), to: self.to })
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct DeferredRanges {
    /// How many more chunks may be taken, before it is time for a newer version.
    pub chunks: usize,
    /// Blocks that others may be changing.
    pub claimed: HashSet<NodeId>,
    /// Intervals of the changes that were passed by: those for claimed blocks, and those that do not go to
    /// log areas.
    pub passed: Vec<KeyInterval>,
}

impl DeferredRanges {
    pub(super) fn pass(&mut self, keyspace: KeyspaceId, low: Bytes, fence: Option<Bytes>) {
        // Copied: slices would keep the nodes in memory.
        let copy = |key: Bytes| Bytes::copy_from_slice(&key);
        let (from, to) = ((keyspace, copy(low)), beyond(keyspace, fence.map(copy)));
        match self.passed.last_mut() {
            // In a newer version the block may have taken over the range of its neighbour, which was passed
            // by.
            Some(KeyInterval { from: (of, _), to: Some(end) }) if *of == keyspace && from <= *end => {
                *end = std::mem::take(end).max(to);
            }
            _ => self.passed.push(KeyInterval { from, to: Some(to) }),
        }
    }
}
