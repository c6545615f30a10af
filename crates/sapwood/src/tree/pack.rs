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
use crate::node::{HEADER, Node, NodeId};
use crate::operation::KeyspaceId;
use crate::store::attempt::Attempt;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;

/// Children that an inner node takes however long their separators are.
const FAN_OUT_MIN: usize = 4;

/// A node and the smallest key that may be below it: what its parent has to know.
pub(crate) type Child = (Bytes, NodeId);

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
    /// Separator of the first node: what it was before, since the parent's other children are unchanged.
    first_separator: Bytes,
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
    pub fn join_left(&mut self, id: NodeId, separator: Bytes, mut entries: Entries) {
        debug_assert!(self.out.is_empty(), "nodes came out already");
        entries.append(&self.pending);
        self.pending = entries;
        self.ids.push_front(id);
        self.first_separator = separator;
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

    /// Whether the leaf may stay where it is: it is of one long record, and neither what waits nor what comes next, so many bytes, would join it.
    fn may_stay(&self, leaf: &Node, next: Option<usize>) -> bool {
        let waits = self.pending_bytes();
        leaf.count() == 1
            && self.is_long(leaf.bytes().len())
            && (waits == 0 || self.is_long(waits))
            && next.is_none_or(|next| self.is_long(next))
    }

    /// Takes entries of a leaf as they are, or leaves the leaf where it is. `next` bytes come behind them, if anything new does before the next leaf.
    pub fn pass(
        &mut self,
        attempt: &mut Attempt<'_>,
        (id, leaf): (NodeId, &Node),
        entries: Range<usize>,
        next: Option<usize>,
    ) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        if !self.may_stay(leaf, next) {
            self.give_up(id);
            self.pending.extend(leaf, entries);
            return self.emit_full(attempt);
        }
        self.emit_all(attempt, false)?;
        let separator = self.separator(leaf.key(0));
        self.last_key = Some(Bytes::copy_from_slice(leaf.key(0)));
        self.out.push((separator, id));
        Ok(())
    }

    /// A leaf of the run is not to stay: its id is another's. One leaf after the other, each as often as one likes.
    pub fn give_up(&mut self, id: NodeId) {
        if self.given_up.replace(id) != Some(id) {
            self.ids.push_back(id);
        }
    }

    /// What the next node, whose first key is this one, is told from the one before by.
    fn separator(&self, first: &[u8]) -> Bytes {
        match &self.last_key {
            None => self.first_separator.clone(),
            Some(before) if self.level == 0 => shortest_separator(before, first),
            Some(_) => Bytes::copy_from_slice(first),
        }
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
        let separator = self.separator(self.pending.key(0));
        self.last_key = Some(Bytes::copy_from_slice(self.pending.key(count - 1)));
        let id = self.ids.pop_front().unwrap_or_else(|| attempt.allocate());
        if self.level > 0 {
            self.pending.clear_first_key();
        }
        attempt.write(id, self.level, self.keyspace, &self.pending, count)?;
        self.pending.drop_front(count);
        self.out.push((separator, id));
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
