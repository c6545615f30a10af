//! Packs a stream of entries into nodes: the k-way split of bupdate (PIO B-tree, VLDB 2011, section 3.2.2),
//! and the CB-tree's filling to the brim when keys only come at the end.
//!
//! Invariants:
//! 1. Nodes come out in key order and together hold exactly the entries that were put in.
//! 2. A node is longer than the target only if it has no more than the fewest entries that make sense: one in a leaf,
//!    [`FAN_OUT_MIN`] in an inner node, without which a tree of very long separators would never end in one root.
//! 3. At most a little more than three nodes' worth of entries waits here, however long the stream is.

use crate::error::Result;
use crate::operation::KeyspaceId;
use crate::storage::entries::Entries;
use crate::storage::node::{ChildPayload, HEADER, Node, NodeId};
use crate::version::builder::VersionBuilder;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;

/// Least number of children of an inner node, however long their separators are: otherwise a tree of long separators
/// would never end in one root.
const FAN_OUT_MIN: usize = 8;

/// A leaf is at least this many times as long as its separators, which are in the nodes above it. Where keys are long
/// and differ late, as paths and URLs do, these nodes would otherwise be longer than all leaves.
const SEPARATOR_SHARE: usize = 8;

/// But a leaf of this length ends in any case: with one more record it must fit into a segment of the least span, 1 MiB.
const LEAF_LONGEST: usize = 256 << 10;

/// A lone leaf's key may be at most 1/32 of the leaf: the block's node holds the whole key, and must stay
/// small beside its leaves.
const KEY_SHARE: usize = 32;

/// Bytes of entries in a node of so many bytes.
fn capacity_of(node_len: usize) -> usize {
    node_len.saturating_sub(HEADER).max(1)
}

/// Whether the only record of a leaf has a key short enough to be stored in the parent.
fn may_be_lone(key: &[u8], len: usize) -> bool {
    key.len() * KEY_SHARE <= len
}

/// What a parent stores about a child.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    /// The smallest key that may be below the child.
    pub separator: Bytes,
    pub id: NodeId,
    /// The child is a leaf with one record, whose key is the separator.
    pub is_lone: bool,
}

impl Child {
    pub fn payload(&self) -> ChildPayload {
        ChildPayload::of(self.id, self.is_lone)
    }
}

/// Packs the entries of one run of neighbouring nodes.
pub(crate) struct Packer {
    level: u8,
    keyspace: KeyspaceId,
    /// Bytes of a node that is not compressed.
    node_len: usize,
    /// Bytes of entries that fit a node.
    capacity: usize,
    pending: Entries,
    /// Ids of the run's old nodes, to be reused.
    ids: VecDeque<NodeId>,
    /// The last leaf whose id was given up.
    given_up: Option<NodeId>,
    /// Separator of the first node. Normally the old one, since the parent's other children do not change ...
    first_separator: Bytes,
    /// ... but if this is set it may be greater: the keys below it then belong to another child of the same
    /// parent.
    may_rise: bool,
    last_key: Option<Bytes>,
    /// Length of the longest separator that could be needed between entries seen so far, of a leaf.
    separator: usize,
    out: Packed,
}

/// The nodes of a run, in key order.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    pub nodes: Vec<Child>,
    /// Bytes of the nodes on the device, those that stayed in place among them.
    pub bytes: u64,
}

impl Packer {
    pub fn new(
        level: u8,
        keyspace: KeyspaceId,
        node_len: usize,
        ids: impl IntoIterator<Item = NodeId>,
        first_separator: Bytes,
    ) -> Self {
        Self {
            level,
            keyspace,
            node_len,
            capacity: capacity_of(node_len),
            pending: Entries::default(),
            ids: ids.into_iter().collect(),
            given_up: None,
            first_separator,
            may_rise: false,
            last_key: None,
            separator: 0,
            out: Packed::default(),
        }
    }

    /// Makes leaves as long as they may be if they compress as those before.
    pub fn sized_by(mut self, builder: &VersionBuilder<'_>) -> Self {
        self.resize(builder);
        self
    }

    fn resize(&mut self, builder: &VersionBuilder<'_>) {
        if self.level == 0 {
            self.capacity = capacity_of(builder.leaf_len(self.keyspace, self.node_len));
        }
    }

    pub fn push(&mut self, builder: &mut VersionBuilder<'_>, key: &[u8], payload: &[u8]) -> Result<()> {
        if self.may_lengthen(key.len())
            && let Some(last) = self.pending.len().checked_sub(1)
        {
            self.separator = self.separator.max(separator_len(self.pending.key(last), key));
        }
        self.pending.push(key, &[payload]);
        self.emit_full(builder)
    }

    /// Whether the separator before a leaf's entry whose key has so many bytes may be longer than those that count.
    #[inline]
    fn may_lengthen(&self, key_len: usize) -> bool {
        self.level == 0 && key_len > self.separator.max(self.capacity / SEPARATOR_SHARE)
    }

    /// Looks at the separators before the pending entries from this one on.
    fn see(&mut self, from: usize) {
        if self.level > 0 {
            return;
        }
        for index in from.max(1)..self.pending.len() {
            // Most entries are shorter as a whole.
            if self.may_lengthen(self.pending.node_bytes(index, index + 1)) {
                let (before, key) = (self.pending.key(index - 1), self.pending.key(index));
                if self.may_lengthen(key.len()) {
                    self.separator = self.separator.max(separator_len(before, key));
                }
            }
        }
    }

    /// Bytes of entries that fit a node here.
    fn capacity(&self) -> usize {
        self.capacity.max((SEPARATOR_SHARE * self.separator).min(LEAF_LONGEST))
    }

    fn emit_full(&mut self, builder: &mut VersionBuilder<'_>) -> Result<()> {
        while self.pending_bytes() > 2 * self.capacity() && self.pending.len() > self.entries_min() {
            self.emit(builder, self.capacity())?;
        }
        Ok(())
    }

    fn pending_bytes(&self) -> usize {
        self.pending.node_bytes(0, self.pending.len())
    }

    fn entries_min(&self) -> usize {
        if self.level == 0 { 1 } else { FAN_OUT_MIN }
    }

    /// Whether the run holds something, but too little for a node of its own, and so should join a neighbour.
    pub fn is_underfull(&self) -> bool {
        let waits = self.pending_bytes();
        self.out.nodes.is_empty() && waits > 0 && waits < self.capacity() / 4
    }

    /// Puts the entries of the left neighbour in front. Only allowed while no node was written yet.
    pub fn join_left(&mut self, id: NodeId, separator: Bytes, mut entries: Entries, may_rise: bool) {
        debug_assert!(self.out.nodes.is_empty(), "nodes came out already");
        entries.append(&self.pending);
        self.pending = entries;
        self.see(0);
        self.ids.push_front(id);
        self.first_separator = separator;
        self.may_rise = may_rise;
    }

    /// Takes the right neighbour into the run.
    pub fn join_right(
        &mut self,
        builder: &mut VersionBuilder<'_>,
        id: NodeId,
        entries: &Entries,
    ) -> Result<()> {
        self.ids.push_back(id);
        let before = self.pending.len();
        self.pending.append(entries);
        self.see(before);
        self.emit_full(builder)
    }

    /// Whether a record of so many bytes fills a leaf of its own.
    fn is_long(&self, bytes: usize) -> bool {
        2 * bytes >= self.capacity
    }

    /// Allows the first node's separator to rise: the node is not its parent's first child.
    pub fn may_rise(mut self, may_rise: bool) -> Self {
        self.may_rise = may_rise;
        self
    }

    /// Whether a leaf may stay in place: it holds one long record that is mostly value, and neither the pending entries nor the
    /// next entry, of `next` bytes, would join it.
    pub fn may_stay(&self, records: usize, key: &[u8], len: usize, next: Option<usize>) -> bool {
        let waits = self.pending_bytes();
        let joins = |bytes: usize| bytes > 0 && !self.is_long(bytes) && len < self.capacity + HEADER;
        records == 1 && self.is_long(len) && key.len() * 2 < len && !joins(waits) && !next.is_some_and(joins)
    }

    /// Leaves a leaf of so many bytes on the device and in memory in place; [`may_stay`](Packer::may_stay) has allowed it.
    pub fn leave(
        &mut self,
        builder: &mut VersionBuilder<'_>,
        id: NodeId,
        key: &[u8],
        (len, memory_len): (usize, usize),
    ) -> Result<()> {
        self.emit_all(builder, false)?;
        let child = self.child(id, key, may_be_lone(key, memory_len));
        self.last_key = Some(Bytes::copy_from_slice(key));
        self.out.nodes.push(child);
        self.out.bytes += len as u64;
        Ok(())
    }

    /// Takes entries of a node unchanged.
    pub fn extend(
        &mut self,
        builder: &mut VersionBuilder<'_>,
        node: &Node,
        entries: Range<usize>,
    ) -> Result<()> {
        let before = self.pending.len();
        self.pending.extend(node, entries);
        self.see(before);
        self.emit_full(builder)
    }

    /// Gives up a leaf of the run: its id may be reused. Leaf by leaf; repeated calls for the same leaf have
    /// no effect.
    pub fn give_up(&mut self, id: NodeId) {
        if self.given_up.replace(id) != Some(id) {
            self.ids.push_back(id);
        }
    }

    /// The parent's entry for the next node, whose first key is `first`. A lone leaf's separator is its whole
    /// key, so that the leaf need not be read to know which key it has.
    fn child(&self, id: NodeId, first: &[u8], may_be_lone: bool) -> Child {
        let whole = || Bytes::copy_from_slice(first);
        let separator = match &self.last_key {
            None if !(may_be_lone && self.may_rise) => self.first_separator.clone(),
            Some(before) if self.level == 0 && !may_be_lone => shortest_separator(before, first),
            _ => whole(),
        };
        let is_lone = may_be_lone && separator[..] == *first;
        Child { separator, id, is_lone }
    }

    /// Writes one node with at most `limit` bytes of entries, but with at least the fewest entries that a
    /// node must have.
    fn emit(&mut self, builder: &mut VersionBuilder<'_>, limit: usize) -> Result<()> {
        let mut count = self.entries_min().min(self.pending.len());
        while count < self.pending.len() && self.pending.node_bytes(0, count + 1) <= limit {
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        let id = self.ids.pop_front().unwrap_or_else(|| builder.allocate());
        let (first, len) = (self.pending.key(0), HEADER + self.pending.node_bytes(0, 1));
        let may_be_lone = self.level == 0 && count == 1 && self.is_long(len) && may_be_lone(first, len);
        let child = self.child(id, first, may_be_lone);
        self.last_key = Some(Bytes::copy_from_slice(self.pending.key(count - 1)));
        if self.level > 0 {
            self.pending.clear_first_key();
        }
        self.out.bytes += builder.write(id, self.level, self.keyspace, &self.pending, count)?;
        self.resize(builder);
        self.out.nodes.push(child);
        self.pending.drop_front(count);
        Ok(())
    }

    /// Writes all pending entries. With `brim` only the last node may be short; otherwise the last two share
    /// evenly.
    fn emit_all(&mut self, builder: &mut VersionBuilder<'_>, brim: bool) -> Result<()> {
        while !self.pending.is_empty() {
            let capacity = self.capacity();
            let limit = if brim || self.pending_bytes() <= capacity {
                capacity
            } else {
                (self.pending_bytes() / 2).min(capacity)
            };
            self.emit(builder, limit)?;
        }
        Ok(())
    }

    /// Writes the rest, to the brim or not, and returns the run's new nodes. Frees the ids that are left
    /// over.
    pub fn finish(mut self, builder: &mut VersionBuilder<'_>, brim: bool) -> Result<Packed> {
        self.emit_all(builder, brim)?;
        for id in self.ids {
            builder.free(id);
        }
        Ok(self.out)
    }
}

/// The shortest key that is above `before` and not above `first`: a prefix of `first`. It is copied, because
/// a slice would keep the whole leaf in memory until the parent is written.
fn shortest_separator(before: &[u8], first: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&first[..separator_len(before, first)])
}

/// Length of the shortest separator, a prefix of `first`.
pub(crate) fn separator_len(before: &[u8], first: &[u8]) -> usize {
    let common = before.iter().zip(first).take_while(|(a, b)| a == b).count();
    (common + 1).min(first.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn separators_separate(mut keys in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 1..6), 2)) {
            let (low, high) = (keys.pop_first().unwrap(), keys.pop_first().unwrap());
            let separator = shortest_separator(&low, &high);
            prop_assert!(low[..] < separator[..] && separator[..] <= high[..]);
        }
    }
}
