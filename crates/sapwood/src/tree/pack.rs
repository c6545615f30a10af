//! Cuts a stream of entries into nodes: the k-way split of bupdate (PIO B-tree, VLDB 2011, section 3.2.2), and the
//! filling to the brim of the CB-tree when keys only come at the end.
//!
//! Invariants:
//! 1. Nodes come out in key order and together hold exactly what was put in.
//! 2. A node is longer than the target only if it has no more than the fewest entries that make sense: one in a leaf,
//!    [`FAN_OUT_MIN`] in an inner node, without which a tree of very long separators would never end in one root.
//! 3. At most a little more than three nodes' worth of entries waits here, however long the stream is.

use crate::entries::Entries;
use crate::error::Result;
use crate::node::{ChildPayload, HEADER, Node, NodeId};
use crate::operation::KeyspaceId;
use crate::store::attempt::Attempt;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;

/// Children that an inner node takes however long their separators are.
const FAN_OUT_MIN: usize = 4;

/// The share of a lone leaf that its key may be: the blocks' nodes have all of it, and are to stay small beside the leaves.
const KEY_SHARE: usize = 32;

/// Whether the key of a leaf's only record is short enough to be told by the parent.
fn may_be_lone(key: &[u8], len: usize) -> bool {
    key.len() * KEY_SHARE <= len
}

/// What a node's parent has to know of it.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    /// The smallest key that may be below it.
    pub separator: Bytes,
    pub id: NodeId,
    /// Whether it is a leaf of one record, whose key the separator is.
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
    /// Bytes of entries that a node takes.
    capacity: usize,
    pending: Entries,
    /// Ids of the nodes that the run had, to be used again.
    ids: VecDeque<NodeId>,
    /// The leaf that was given up last.
    given_up: Option<NodeId>,
    /// Separator of the first node: what it was before, since the parent's other children are unchanged,
    first_separator: Bytes,
    /// ... but it may be a greater one, for what it leaves out belongs to another child of the same parent.
    may_rise: bool,
    last_key: Option<Bytes>,
    out: Vec<Child>,
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
            capacity: node_len.saturating_sub(HEADER).max(1),
            pending: Entries::default(),
            ids: ids.into_iter().collect(),
            given_up: None,
            first_separator,
            may_rise: false,
            last_key: None,
            out: Vec::new(),
        }
    }

    pub fn push(&mut self, attempt: &mut Attempt<'_>, key: &[u8], payload: &[u8]) -> Result<()> {
        self.pending.push(key, &[payload]);
        self.emit_full(attempt)
    }

    fn emit_full(&mut self, attempt: &mut Attempt<'_>) -> Result<()> {
        while self.pending_bytes() > 2 * self.capacity && self.pending.len() > self.entries_min() {
            self.emit(attempt, self.capacity)?;
        }
        Ok(())
    }

    fn pending_bytes(&self) -> usize {
        self.pending.node_bytes(0, self.pending.len())
    }

    fn entries_min(&self) -> usize {
        if self.level == 0 { 1 } else { FAN_OUT_MIN }
    }

    /// Whether what the run holds is too little for a node of its own, so that it should join a neighbour.
    pub fn is_underfull(&self) -> bool {
        self.out.is_empty() && self.pending_bytes() < self.capacity / 4
    }

    /// Puts the entries of the left neighbour in front. Only while nothing came out yet.
    pub fn join_left(&mut self, id: NodeId, separator: Bytes, mut entries: Entries, may_rise: bool) {
        debug_assert!(self.out.is_empty(), "nodes came out already");
        entries.append(&self.pending);
        self.pending = entries;
        self.ids.push_front(id);
        self.first_separator = separator;
        self.may_rise = may_rise;
    }

    /// Takes the right neighbour into the run.
    pub fn join_right(&mut self, attempt: &mut Attempt<'_>, id: NodeId, entries: &Entries) -> Result<()> {
        self.ids.push_back(id);
        self.pending.append(entries);
        self.emit_full(attempt)
    }

    /// Whether so many bytes make a leaf of their own.
    fn is_long(&self, bytes: usize) -> bool {
        2 * bytes >= self.capacity
    }

    /// The first node need not begin where it did: it is not its parent's first child.
    pub fn may_rise(mut self, may_rise: bool) -> Self {
        self.may_rise = may_rise;
        self
    }

    /// Whether a leaf may stay where it is: it is of one long record, and neither what waits nor what comes next, so many bytes, would join it.
    pub fn may_stay(&self, records: usize, len: usize, next: Option<usize>) -> bool {
        let waits = self.pending_bytes();
        let joins = |bytes: usize| bytes > 0 && !self.is_long(bytes) && len < self.capacity + HEADER;
        records == 1 && self.is_long(len) && !joins(waits) && !next.is_some_and(joins)
    }

    /// Leaves a leaf of so many bytes where it is, which [may](Packer::may_stay) stay there.
    pub fn leave(&mut self, attempt: &mut Attempt<'_>, id: NodeId, key: &[u8], len: usize) -> Result<()> {
        self.emit_all(attempt, false)?;
        let child = self.child(id, key, may_be_lone(key, len));
        self.last_key = Some(Bytes::copy_from_slice(key));
        self.out.push(child);
        Ok(())
    }

    /// Takes entries of a node as they are.
    pub fn extend(&mut self, attempt: &mut Attempt<'_>, node: &Node, entries: Range<usize>) -> Result<()> {
        self.pending.extend(node, entries);
        self.emit_full(attempt)
    }

    /// A leaf of the run is not to stay: its id is another's. One leaf after the other, each as often as one likes.
    pub fn give_up(&mut self, id: NodeId) {
        if self.given_up.replace(id) != Some(id) {
            self.ids.push_back(id);
        }
    }

    /// What the parent is told of the next node, whose first key is this one. That of a long record is its separator, so that nobody has to read the leaf to know what it has.
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

    /// Writes one node of at most `limit` bytes of entries (but as many entries as it must have).
    fn emit(&mut self, attempt: &mut Attempt<'_>, limit: usize) -> Result<()> {
        let mut count = self.entries_min().min(self.pending.len());
        while count < self.pending.len() && self.pending.node_bytes(0, count + 1) <= limit {
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        let id = self.ids.pop_front().unwrap_or_else(|| attempt.allocate());
        let (first, len) = (self.pending.key(0), HEADER + self.pending.node_bytes(0, 1));
        let may_be_lone = self.level == 0 && count == 1 && self.is_long(len) && may_be_lone(first, len);
        let child = self.child(id, first, may_be_lone);
        self.last_key = Some(Bytes::copy_from_slice(self.pending.key(count - 1)));
        if self.level > 0 {
            self.pending.clear_first_key();
        }
        attempt.write(id, self.level, self.keyspace, &self.pending, count)?;
        self.pending.drop_front(count);
        self.out.push(child);
        Ok(())
    }

    /// Writes what waits. To the brim (only the last node may be short) if `brim`, else the last two share evenly.
    fn emit_all(&mut self, attempt: &mut Attempt<'_>, brim: bool) -> Result<()> {
        while !self.pending.is_empty() {
            let limit = if brim || self.pending_bytes() <= self.capacity {
                self.capacity
            } else {
                (self.pending_bytes() / 2).min(self.capacity)
            };
            self.emit(attempt, limit)?;
        }
        Ok(())
    }

    /// Writes the rest, to the brim or not, and says which nodes the run has now. Ids that are not needed any more are set free.
    pub fn finish(mut self, attempt: &mut Attempt<'_>, brim: bool) -> Result<Vec<Child>> {
        self.emit_all(attempt, brim)?;
        for id in self.ids {
            attempt.free(id);
        }
        Ok(self.out)
    }
}

/// The shortest key that is above `before` and not above `first`: a prefix of `first`. A copy: it waits for its parent, and
/// a slice would keep the whole leaf in memory until then.
fn shortest_separator(before: &[u8], first: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&first[..separator_len(before, first)])
}

/// How long a prefix of `first` the shortest separator is.
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
