//! What a routing that goes ahead of its flush leaves aside: changes for blocks that others are at, and what does not go to log areas. They come to the trees when the
//! flush is alone.
//!
//! Invariant: what was passed by is in key order, no key twice.

use crate::node::NodeId;
use crate::operation::KeyspaceId;
use crate::store::stage::Mark;
use crate::tree::sweep::beyond;
use bytes::Bytes;
use std::collections::HashSet;

/// A part of the order of keys, from here up to there; to its end if there is none. What was passed by is of one keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub from: Mark,
    pub to: Option<Mark>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Aside {
    /// So many chunks are taken at most: then it is time for a newer version.
    pub chunks: usize,
    /// Blocks that others may change.
    pub claimed: HashSet<NodeId>,
    /// Where the changes are that it has passed by, in key order and no key twice: those for these blocks, and what does not go to log areas.
    pub passed: Vec<Part>,
}

impl Aside {
    pub(super) fn pass(&mut self, keyspace: KeyspaceId, low: Bytes, fence: Option<Bytes>) {
        // Copies: slices would keep the nodes that they are of.
        let copy = |key: Bytes| Bytes::copy_from_slice(&key);
        let (from, to) = ((keyspace, copy(low)), beyond(keyspace, fence.map(copy)));
        match self.passed.last_mut() {
            // In a newer version the block may have what was its neighbour's, which was passed by.
            Some(Part { from: (of, _), to: Some(end) }) if *of == keyspace && from <= *end => {
                *end = std::mem::take(end).max(to);
            }
            _ => self.passed.push(Part { from, to: Some(to) }),
        }
    }
}
