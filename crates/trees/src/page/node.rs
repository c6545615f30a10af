//! Nodes of sorted records: inner nodes and plain leaves.
//!
//! ```text
//! inner body                          leaf body
//! offset      size                    offset  size
//!      0        8 × c  children            0     8  next leaf, or 0
//!  8 × c  8 × (c - 1)  fences              8  16 n  key, value
//! ```
//! `c` and `n` are the header's count.
//!
//! Invariants:
//! 1. Child `i` holds the keys `k` with `fences[i-1] ≤ k < fences[i]`; fences ascend strictly. A node has one fence less
//!    than children.
//! 2. Keys of a leaf ascend strictly.
//! 3. What is decoded obeys 1 and 2; anything else is an error.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::{Key, NodeId, Value};
use crate::{Error, Result};

/// An inner node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inner {
    /// 1 right above the leaves.
    pub level: u8,
    pub fences: Vec<Key>,
    pub children: Vec<NodeId>,
}

impl Inner {
    /// Which child holds a key.
    pub fn child_of(&self, key: Key) -> usize {
        self.fences.partition_point(|fence| *fence <= key)
    }

    /// The smallest key that is beyond a child's range.
    pub fn fence_above(&self, child: usize) -> Option<Key> {
        self.fences.get(child).copied()
    }
}

/// A leaf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub entries: Vec<(Key, Value)>,
    /// Its right sibling. Only trees that walk from leaf to leaf keep it.
    pub next: Option<NodeId>,
}

impl Leaf {
    pub fn get(&self, key: Key) -> Option<Value> {
        let index = self.entries.binary_search_by_key(&key, |entry| entry.0).ok()?;
        Some(self.entries[index].1)
    }

    /// Sets a key's value; whether it is new.
    pub fn insert(&mut self, key: Key, value: Value) -> bool {
        match self.entries.binary_search_by_key(&key, |entry| entry.0) {
            Ok(index) => {
                self.entries[index].1 = value;
                false
            }
            Err(index) => {
                self.entries.insert(index, (key, value));
                true
            }
        }
    }

    /// Removes a key; whether it was there.
    pub fn remove(&mut self, key: Key) -> bool {
        let found = self.entries.binary_search_by_key(&key, |entry| entry.0);
        found.is_ok_and(|index| {
            self.entries.remove(index);
            true
        })
    }
}

/// A node in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Inner(Inner),
    Leaf(Leaf),
}

impl Node {
    pub fn level(&self) -> u8 {
        match self {
            Self::Inner(inner) => inner.level,
            Self::Leaf(_) => 0,
        }
    }

    /// Children or records.
    pub fn count(&self) -> usize {
        match self {
            Self::Inner(inner) => inner.children.len(),
            Self::Leaf(leaf) => leaf.entries.len(),
        }
    }

    /// The node as a leaf, which one level above promised.
    pub fn as_leaf(&self) -> Result<&Leaf> {
        match self {
            Self::Leaf(leaf) => Ok(leaf),
            Self::Inner(inner) => Err(Error::broken(format!("a node of level {} for a leaf", inner.level))),
        }
    }

    /// The node as an inner one.
    pub fn as_inner(&self) -> Result<&Inner> {
        match self {
            Self::Inner(inner) => Ok(inner),
            Self::Leaf(_) => Err(Error::broken("a leaf for an inner node")),
        }
    }

    /// Fills a page. The node must fit: see [`Shape`].
    pub fn encode(&self, id: NodeId, sequence: u64, page: &mut [u8]) {
        let mut at = HEADER;
        let mut put = |word: u64| {
            page[at..at + 8].copy_from_slice(&word.to_le_bytes());
            at += 8;
        };
        let kind = match self {
            Self::Inner(inner) => {
                inner.children.iter().for_each(|child| put(child.0));
                inner.fences.iter().copied().for_each(put);
                Kind::Inner
            }
            Self::Leaf(leaf) => {
                put(leaf.next.map_or(0, |next| next.0));
                leaf.entries.iter().for_each(|(key, value)| {
                    put(*key);
                    put(*value);
                });
                Kind::Leaf
            }
        };
        page[at..].fill(0);
        let count = self.count() as u16;
        seal(page, &Header { kind, level: self.level(), count, id, sequence, extra: 0 });
    }

    /// Takes a node off a page that was read from `offset` of `file`.
    pub fn decode(page: &[u8], file: &str, offset: u64, id: NodeId) -> Result<(Self, Header)> {
        let header = open(page, file, offset, id)?;
        let count = usize::from(header.count);
        let wrong = |what: &str, found: usize| Error::corrupt(file, offset, what, "a node that fits", found);
        let word = |index: usize| u64::from_le_bytes(bytes_at(page, HEADER + 8 * index));
        let words = (page.len() - HEADER) / 8;
        let node = match header.kind {
            Kind::Inner => {
                if count == 0 || 2 * count - 1 > words {
                    return Err(wrong("children of an inner node", count));
                }
                let children = (0..count).map(|index| NodeId(word(index))).collect();
                let fences: Vec<Key> = (count..2 * count - 1).map(word).collect();
                if header.level == 0 || !fences.is_sorted_by(|one, two| one < two) {
                    return Err(wrong("fences or level of an inner node", usize::from(header.level)));
                }
                Self::Inner(Inner { level: header.level, fences, children })
            }
            Kind::Leaf => {
                if 2 * count + 1 > words {
                    return Err(wrong("records of a leaf", count));
                }
                let next = Some(NodeId(word(0))).filter(|next| next.0 != 0);
                let entries: Vec<_> =
                    (0..count).map(|index| (word(1 + 2 * index), word(2 + 2 * index))).collect();
                if header.level != 0 || !entries.is_sorted_by(|one, two| one.0 < two.0) {
                    return Err(wrong("order of a leaf", count));
                }
                Self::Leaf(Leaf { entries, next })
            }
            other => {
                return Err(Error::corrupt(file, offset, "kind of a page", "a node", format!("{other:?}")));
            }
        };
        Ok((node, header))
    }
}

/// How much goes into a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// F: children of an inner node.
    pub fanout: usize,
    /// Records of a leaf.
    pub records: usize,
}

impl Shape {
    /// What fits on a page.
    pub fn of_page(page_len: usize) -> Self {
        let words = (page_len - HEADER) / 8;
        Self { fanout: words.div_ceil(2), records: (words - 1) / 2 }
    }

    /// Smaller nodes than the page would hold, if asked for.
    pub fn limited(self, keys_max: Option<usize>) -> Self {
        keys_max.map_or(self, |keys| Self {
            fanout: self.fanout.min(keys.max(4)),
            records: self.records.min(keys.max(4)),
        })
    }

    pub fn max(&self, node: &Node) -> usize {
        match node {
            Node::Inner(_) => self.fanout,
            Node::Leaf(_) => self.records,
        }
    }

    pub fn overflows(&self, node: &Node) -> bool {
        node.count() > self.max(node)
    }

    /// Below half.
    pub fn underflows(&self, node: &Node) -> bool {
        node.count() < self.max(node).div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_of_4_kib_holds_254_children_or_253_records() {
        let shape = Shape::of_page(4096);
        assert_eq!(shape, Shape { fanout: 254, records: 253 });
        let leaf = Leaf { entries: (0..253).map(|key| (key, key)).collect(), next: Some(NodeId(3)) };
        let inner = Inner { level: 2, fences: (1..254).collect(), children: (0..254).map(NodeId).collect() };
        for node in [Node::Leaf(leaf), Node::Inner(inner)] {
            let mut page = vec![0xff; 4096];
            node.encode(NodeId(12), 7, &mut page);
            let (found, header) = Node::decode(&page, "f", 0, NodeId(12)).unwrap();
            assert_eq!((found, header.sequence), (node, 7));
        }
    }

    proptest! {
        /// Behind a sound checksum, too, anything is decoded or refused.
        #[test]
        fn any_page_is_decoded_or_refused(
            kind in 0u8..5, level in 0u8..3, count in 0u16..40, body in prop::collection::vec(any::<u8>(), 96),
        ) {
            let mut page = vec![0; HEADER];
            page.extend(body);
            let kind = [Kind::Superblock, Kind::Inner, Kind::Leaf][usize::from(kind) % 3];
            seal(&mut page, &Header { kind, level, count, id: NodeId(1), sequence: 1, extra: 0 });
            if let Ok((node, header)) = Node::decode(&page, "f", 0, NodeId(1)) {
                let mut again = vec![0; page.len()];
                node.encode(NodeId(1), header.sequence, &mut again);
                prop_assert_eq!(Node::decode(&again, "f", 0, NodeId(1)).unwrap().0, node);
            }
        }
    }
}
