//! A node of a Bε-tree: a leaf of records, or an inner node with a buffer of messages for what is below it.
//!
//! ```text
//! body of a leaf: n = count of the header
//!  offset size
//!       0 16 n  key, value
//!
//! body of an inner node: c = count, m = extra
//!       0  8 c  pages of the children
//!     8 c  8 (c - 1)  fences: the least key of each child but the first
//!         16 m  messages: key, value (0 where it is removed)
//!          m/8  one bit a message, the first in the lowest: whether the key is removed; rounded up to bytes
//! ```
//! The header's id is the number of the page in its file.
//!
//! Invariants:
//! 1. Records, fences and messages ascend by key; of a key there is one message at most.
//! 2. What is decoded obeys 1; anything else is an error.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::{Change, Key, NodeId, Value};
use crate::{Error, Result};

/// Children and messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferedInner {
    pub fences: Vec<Key>,
    /// Pages.
    pub children: Vec<u64>,
    /// What waits for the nodes below.
    pub messages: Vec<(Key, Change)>,
}

impl BufferedInner {
    /// The child whose keys hold `key`.
    pub fn child_of(&self, key: Key) -> usize {
        self.fences.partition_point(|fence| *fence <= key)
    }

    /// The message for a key.
    pub fn message(&self, key: Key) -> Option<Change> {
        let at = self.messages.binary_search_by_key(&key, |message| message.0).ok()?;
        Some(self.messages[at].1)
    }

    /// Positions of the messages for a child.
    pub fn messages_for(&self, child: usize) -> std::ops::Range<usize> {
        let at = |fence: Key| self.messages.partition_point(|message| message.0 < fence);
        let start = child.checked_sub(1).map_or(0, |before| at(self.fences[before]));
        start..self.fences.get(child).map_or(self.messages.len(), |fence| at(*fence))
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BufferedNode {
    Leaf(Vec<(Key, Value)>),
    Inner(BufferedInner),
}

/// How much nodes may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferedShape {
    /// Records of a leaf.
    pub records: usize,
    /// Children of an inner node.
    pub fanout: usize,
    /// Messages of an inner node.
    pub messages: usize,
}

impl BufferedShape {
    /// Of a page, with so many children; none if no message has room besides.
    pub fn of(page_len: usize, fanout: usize) -> Option<Self> {
        let body = page_len - HEADER;
        let left = body.checked_sub(16 * fanout - 8)?;
        // 16 bytes and a bit for each message; bits are rounded up to bytes.
        let messages = (8 * left).saturating_sub(7) / 129;
        (messages > 0).then_some(Self { records: body / 16, fanout, messages })
    }
}

fn word(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(page, at))
}

impl BufferedNode {
    pub fn encode(&self, level: u8, id: NodeId, sequence: u64, page: &mut [u8]) {
        page[HEADER..].fill(0);
        let (count, extra) = match self {
            Self::Leaf(records) => (records.len(), 0),
            Self::Inner(inner) => (inner.children.len(), inner.messages.len()),
        };
        let mut at = HEADER;
        let mut put = |word: u64| {
            page[at..at + 8].copy_from_slice(&word.to_le_bytes());
            at += 8;
        };
        match self {
            Self::Leaf(records) => records.iter().flat_map(|record| [record.0, record.1]).for_each(put),
            Self::Inner(inner) => {
                inner.children.iter().chain(&inner.fences).for_each(|word| put(*word));
                for (key, change) in &inner.messages {
                    put(*key);
                    put(change.value().unwrap_or(0));
                }
                for (index, (_, change)) in inner.messages.iter().enumerate() {
                    page[at + index / 8] |= u8::from(*change == Change::Remove) << (index % 8);
                }
            }
        }
        let (count, extra) = (count as u16, extra as u32);
        seal(page, &Header { kind: Kind::Buffered, level, count, id, sequence, extra });
    }

    /// Takes a node of `level` off a page that was read from `offset` of `file`.
    pub fn decode(page: &[u8], file: &str, offset: u64, id: NodeId, level: u8) -> Result<Self> {
        let header = open(page, file, offset, id)?;
        let (count, messages) = (usize::from(header.count), header.extra as usize);
        let body = page.len() - HEADER;
        let fits = if level == 0 {
            messages == 0 && 16 * count <= body
        } else {
            let len = (16 * count).checked_sub(8).zip(messages.checked_mul(16));
            len.is_some_and(|(pointers, each)| pointers + each + messages.div_ceil(8) <= body)
        };
        let wrong = |expected: String, found: String| {
            Err(Error::corrupt(file, offset, "node of a Bε-tree", expected, found))
        };
        if header.kind != Kind::Buffered || header.level != level || !fits {
            let expected = format!("a node of level {level} that fits its page");
            let found = format!(
                "{:?} of level {} with {count} entries and {messages} messages",
                header.kind, header.level
            );
            return wrong(expected, found);
        }
        let pair = |at: usize| (word(page, at), word(page, at + 8));
        let node = if level == 0 {
            Self::Leaf((0..count).map(|index| pair(HEADER + 16 * index)).collect())
        } else {
            let words = |from: usize, to: usize| (from..to).map(|index| word(page, HEADER + 8 * index));
            let (children, fences) = (words(0, count).collect(), words(count, 2 * count - 1).collect());
            let at = HEADER + 8 * (2 * count - 1);
            let message = |index: usize| {
                let (key, value) = pair(at + 16 * index);
                let removed = page[at + 16 * messages + index / 8] >> (index % 8) & 1 == 1;
                (key, if removed { Change::Remove } else { Change::Put(value) })
            };
            Self::Inner(BufferedInner { fences, children, messages: (0..messages).map(message).collect() })
        };
        let ascends = match &node {
            Self::Leaf(records) => records.is_sorted_by(|one, two| one.0 < two.0),
            Self::Inner(inner) => {
                inner.fences.is_sorted_by(|one, two| one < two)
                    && inner.messages.is_sorted_by(|one, two| one.0 < two.0)
            }
        };
        if ascends { Ok(node) } else { wrong("ascending keys".into(), "others".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inner(shape: BufferedShape) -> BufferedNode {
        let messages = (0..shape.messages as u64)
            .map(|key| (3 * key, if key % 3 == 1 { Change::Remove } else { Change::Put(key) }));
        BufferedNode::Inner(BufferedInner {
            fences: (1..shape.fanout as u64).map(|key| 10 * key).collect(),
            children: (0..shape.fanout as u64).rev().collect(),
            messages: messages.collect(),
        })
    }

    #[test]
    fn nodes_as_full_as_they_may_be_come_back() {
        for (page_len, fanout) in [(4096, 16), (512, 5), (512, 2)] {
            let shape = BufferedShape::of(page_len, fanout).unwrap();
            let leaf = BufferedNode::Leaf((0..shape.records as u64).map(|key| (key, 7 * key)).collect());
            for (level, node) in [(0, leaf), (3, inner(shape))] {
                let mut page = vec![0xff; page_len];
                node.encode(level, NodeId(9), 5, &mut page);
                let decode = |level| BufferedNode::decode(&page, "f", 0, NodeId(9), level);
                assert_eq!(decode(level).unwrap(), node);
                assert!(decode(level + 1).is_err());
            }
        }
        assert_eq!(
            BufferedShape::of(4096, 16),
            Some(BufferedShape { records: 254, fanout: 16, messages: 236 })
        );
        assert_eq!(BufferedShape::of(512, 30), None);
    }

    #[test]
    fn disorder_and_what_does_not_fit_are_refused() {
        let ordered = |fences: [Key; 2], messages: [Key; 2]| {
            let mut page = vec![0; 512];
            let node = BufferedNode::Inner(BufferedInner {
                fences: fences.into(),
                children: vec![4, 5, 6],
                messages: messages.map(|key| (key, Change::Remove)).into(),
            });
            node.encode(1, NodeId(9), 5, &mut page);
            BufferedNode::decode(&page, "f", 0, NodeId(9), 1).is_ok()
        };
        assert!(ordered([3, 4], [1, 7]));
        assert!(!ordered([4, 4], [1, 7]) && !ordered([3, 4], [7, 7]));
        let sized = |level: u8, count: u16, extra: u32| {
            let mut page: Vec<u8> = (0..512).map(|at| if at % 8 == 0 { (at / 8) as u8 } else { 0 }).collect();
            seal(
                &mut page,
                &Header { kind: Kind::Buffered, level, count, id: NodeId(9), sequence: 1, extra },
            );
            BufferedNode::decode(&page, "f", 0, NodeId(9), level).is_ok()
        };
        assert!(sized(0, 30, 0) && sized(1, 5, 3));
        assert!(!sized(0, 31, 0) && !sized(0, 3, 1) && !sized(1, 0, 0));
        assert!(!sized(1, 31, 0) && !sized(1, 5, 30) && !sized(1, 5, u32::MAX));
    }

    #[test]
    fn messages_are_those_of_the_child_that_holds_their_key() {
        let messages = [1, 10, 11, 20, 25].map(|key| (key, Change::Put(key))).into();
        let inner = BufferedInner { fences: vec![10, 20, 30], children: vec![1, 2, 3, 4], messages };
        assert_eq!([0, 1, 2, 3].map(|child| inner.messages_for(child)), [0..1, 1..3, 3..5, 5..5]);
        assert_eq!([9, 10, 30].map(|key| inner.child_of(key)), [0, 1, 3]);
        assert_eq!((inner.message(11), inner.message(12)), (Some(Change::Put(11)), None));
    }
}
