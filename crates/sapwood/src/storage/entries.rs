//! Entries on their way to a node, already in the node's format. A record that a batch update only passes
//! through is copied once from leaf to leaf, together with its neighbours.
//!
//! ```text
//! bytes   klen key payload  klen key payload  …        as in a node, see [`crate::storage::node`]
//! starts  ▲                 ▲
//! ```
//!
//! Invariant: `starts` ascends from 0, and every entry is complete.

use crate::bytecode::put_varint;
use crate::storage::node;
use crate::storage::node::Node;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Entries {
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Bytes that the entries `from..to` take in a node.
    pub fn node_bytes(&self, from: usize, to: usize) -> usize {
        self.start(to) - self.start(from) + 4 * (to - from)
    }

    /// Where an entry begins; for an index past the end, where the last one ends.
    fn start(&self, index: usize) -> usize {
        self.starts.get(index).copied().unwrap_or(self.bytes.len())
    }

    pub fn key(&self, index: usize) -> &[u8] {
        node::key_of(&self.bytes[self.start(index)..self.start(index + 1)])
    }

    /// Keys and payloads of the first `count` entries.
    pub fn records(&self, count: usize) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
        (0..count).map(|index| {
            let entry = &self.bytes[self.start(index)..self.start(index + 1)];
            (node::key_of(entry), node::payload_of(entry))
        })
    }

    /// Appends an entry with the given key. Its payload is the concatenation of `payload`.
    pub fn push(&mut self, key: &[u8], payload: &[&[u8]]) {
        self.starts.push(self.bytes.len());
        put_varint(&mut self.bytes, key.len() as u64);
        self.bytes.extend_from_slice(key);
        payload.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }

    /// Appends entries of a node.
    pub fn extend(&mut self, node: &Node, entries: std::ops::Range<usize>) {
        let at = self.bytes.len();
        let (bytes, from) = node.raw(entries.clone());
        self.starts.extend(entries.map(|index| at + node.offset(index) - from));
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends all of `others`.
    pub fn append(&mut self, others: &Self) {
        let at = self.bytes.len();
        self.starts.extend(others.starts.iter().map(|start| at + start));
        self.bytes.extend_from_slice(&others.bytes);
    }

    /// Makes the first key empty, as in an inner node's first entry. That entry's child cannot be marked as
    /// lone.
    pub fn clear_first_key(&mut self) {
        let mut first = Self::default();
        let entry = &self.bytes[..self.start(1)];
        first.push(&[], &[node::first_child(node::payload_of(entry))]);
        let cut = entry.len() - first.bytes.len();
        let end = entry.len();
        self.bytes.splice(..end, first.bytes);
        self.starts.iter_mut().skip(1).for_each(|start| *start -= cut);
    }

    /// Drops the first `count` entries.
    pub fn drop_front(&mut self, count: usize) {
        let end = self.start(count);
        self.bytes.drain(..end);
        self.starts.drain(..count);
        self.starts.iter_mut().for_each(|start| *start -= end);
    }

    /// The first `count` entries in node format, and where each begins.
    pub fn front(&self, count: usize) -> (&[u8], &[usize]) {
        (&self.bytes[..self.start(count)], &self.starts[..count])
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
    }
}
