//! The log node of a leaf: what was done to it since it was written. (LSB-tree: Kim and Lee, Des. Autom. Embed. Syst. 19, 2015.)
//!
//! ```text
//! header of a page: kind 44, count = n; then
//! offset      size
//!      0         8  the leaf
//!      8      16 n  key, value (0 if it is deleted)
//! 8 + 16 n   n / 8  a bit for each entry, the first in the lowest: 1 if it is deleted (rounded up to bytes)
//! ```
//! Little-endian.
//!
//! Invariant: keys ascend strictly; of a key there is the newest state alone. Whatever is decoded is so; anything else is an
//! error.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::node::Leaf;
use super::{Key, NodeId, Value};
use crate::{Error, Result};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogNode {
    pub leaf: NodeId,
    /// The value of each key, or none if it is deleted.
    pub entries: Vec<(Key, Option<Value>)>,
}

impl LogNode {
    /// Entries that a page holds.
    pub fn capacity(page_len: usize) -> usize {
        let bytes = page_len.saturating_sub(HEADER + 8);
        (8 * bytes) / (8 * 16 + 1)
    }

    /// What it says of a key, if anything.
    pub fn get(&self, key: Key) -> Option<Option<Value>> {
        let index = self.entries.binary_search_by_key(&key, |entry| entry.0).ok()?;
        Some(self.entries[index].1)
    }

    /// Notes what became of a key.
    pub fn put(&mut self, key: Key, value: Option<Value>) {
        match self.entries.binary_search_by_key(&key, |entry| entry.0) {
            Ok(index) => self.entries[index].1 = value,
            Err(index) => self.entries.insert(index, (key, value)),
        }
    }

    /// The leaf as it is with all that.
    pub fn applied(&self, leaf: &Leaf) -> Leaf {
        let mut entries = Vec::with_capacity(leaf.entries.len() + self.entries.len());
        let mut old = leaf.entries.iter().copied().peekable();
        for (key, value) in &self.entries {
            while let Some(entry) = old.next_if(|entry| entry.0 < *key) {
                entries.push(entry);
            }
            old.next_if(|entry| entry.0 == *key);
            entries.extend(value.map(|value| (*key, value)));
        }
        entries.extend(old);
        Leaf { entries, next: None }
    }

    /// Whether it can become a leaf behind this one: all its keys are greater, and none is deleted.
    pub fn follows(&self, leaf: &Leaf) -> bool {
        let first = self.entries.first().map(|entry| entry.0);
        let behind = leaf.entries.last().is_none_or(|last| first.is_some_and(|first| last.0 < first));
        behind && first.is_some() && self.entries.iter().all(|entry| entry.1.is_some())
    }

    /// It, as a leaf. An error if something in it is deleted.
    pub fn as_leaf(&self) -> Result<Leaf> {
        let entry = |entry: &(Key, Option<Value>)| entry.1.map(|value| (entry.0, value));
        let entries = self.entries.iter().map(entry).collect::<Option<Vec<_>>>();
        let entries = entries.ok_or_else(|| {
            Error::broken(format!("a log of leaf {} is a leaf, with a deletion", self.leaf.0))
        })?;
        Ok(Leaf { entries, next: None })
    }

    /// Fills a page. The entries must fit: see [`Self::capacity`].
    pub fn encode(&self, id: NodeId, sequence: u64, page: &mut [u8]) {
        page.fill(0);
        let body = &mut page[HEADER..];
        body[..8].copy_from_slice(&self.leaf.0.to_le_bytes());
        let bits = 8 + 16 * self.entries.len();
        for (index, (key, value)) in self.entries.iter().enumerate() {
            let at = 8 + 16 * index;
            body[at..at + 8].copy_from_slice(&key.to_le_bytes());
            body[at + 8..at + 16].copy_from_slice(&value.unwrap_or_default().to_le_bytes());
            body[bits + index / 8] |= u8::from(value.is_none()) << (index % 8);
        }
        let count = self.entries.len() as u16;
        seal(page, &Header { kind: Kind::LogNode, level: 0, count, id, sequence, extra: 0 });
    }

    /// Takes it off a page that was read from byte `offset` of the flash.
    pub fn decode(page: &[u8], offset: u64, id: NodeId) -> Result<(Self, Header)> {
        let header = open(page, "flash", offset, id)?;
        let count = usize::from(header.count);
        let wrong = |what: &str, found: String| Error::corrupt("flash", offset, what, "a log node", found);
        if header.kind != Kind::LogNode || count > Self::capacity(page.len()) {
            return Err(wrong("kind or entries of a page", format!("{:?} with {count}", header.kind)));
        }
        let body = &page[HEADER..];
        let word = |at: usize| u64::from_le_bytes(bytes_at(body, at));
        let bits = 8 + 16 * count;
        let entry = |index: usize| {
            let at = 8 + 16 * index;
            let is_deleted = body[bits + index / 8] >> (index % 8) & 1 == 1;
            (word(at), (!is_deleted).then(|| word(at + 8)))
        };
        let entries: Vec<_> = (0..count).map(entry).collect();
        if !entries.is_sorted_by(|one, two| one.0 < two.0) {
            return Err(wrong("keys of a log node", "out of order".into()));
        }
        Ok((Self { leaf: NodeId(word(0)), entries }, header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_page_reads_back_and_damage_is_told() {
        let count = LogNode::capacity(512);
        assert_eq!(count, 29);
        let entries = (0..count as u64).map(|key| (key * 3, (key % 4 != 1).then_some(key))).collect();
        let log = LogNode { leaf: NodeId(7), entries };
        let mut page = vec![0xff; 512];
        log.encode(NodeId(9), 4, &mut page);
        let (found, header) = LogNode::decode(&page, 0, NodeId(9)).unwrap();
        assert_eq!((found, header.sequence), (log.clone(), 4));
        for byte in [0, 6, 35, 50, 510] {
            page[byte] ^= 1;
            assert!(LogNode::decode(&page, 0, NodeId(9)).is_err(), "byte {byte}");
            page[byte] ^= 1;
        }
        let mut reversed = log;
        reversed.entries.reverse();
        reversed.encode(NodeId(9), 4, &mut page);
        assert!(LogNode::decode(&page, 0, NodeId(9)).is_err());
        seal(
            &mut page,
            &Header { kind: Kind::LogNode, level: 0, count: 30, id: NodeId(9), sequence: 1, extra: 0 },
        );
        assert!(LogNode::decode(&page, 0, NodeId(9)).is_err());
    }

    #[test]
    fn a_leaf_and_its_log_are_one() {
        let leaf = Leaf { entries: vec![(2, 20), (4, 40), (6, 60)], next: None };
        let mut log = LogNode { leaf: NodeId(1), entries: Vec::new() };
        assert!(!log.follows(&leaf), "there is nothing to follow");
        log.put(7, Some(70));
        assert!(log.follows(&leaf));
        assert_eq!(log.as_leaf().unwrap().entries, [(7, 70)]);
        log.put(4, None);
        log.put(1, Some(10));
        log.put(9, None);
        log.put(2, Some(21));
        assert_eq!(log.applied(&leaf).entries, [(1, 10), (2, 21), (6, 60), (7, 70)]);
        assert_eq!((log.get(4), log.get(1), log.get(6)), (Some(None), Some(Some(10)), None));
        assert!(!log.follows(&leaf) && log.as_leaf().is_err());
    }
}
