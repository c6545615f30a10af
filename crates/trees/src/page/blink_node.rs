//! A node of a B-link tree (Lehman and Yao, TODS 6(4), 1981): it knows where its range ends and who goes on there, so that a
//! reader who comes too late for a split finds its key one node further right.
//!
//! ```text
//! body (kind 5; count = records or children)
//! offset size
//!      0    8  right neighbour, or 0
//!      8    8  high key: the first that is not here; meaningless without a right neighbour
//!     16       leaf: 16 × count: key, value
//!              inner: 8 × count children, 8 × (count - 1) fences
//! ```
//!
//! Invariant: the rightmost node of a level has no right neighbour and no high key; every other has both.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::node::{Inner, Leaf, Node};
use super::{Key, NodeId};
use crate::store::in_place::PageCodec;
use crate::{Error, Result};

/// A node, and what lies to its right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlinkNode {
    /// Where the keys from `.0` on are.
    pub right: Option<(Key, NodeId)>,
    pub node: Node,
}

impl BlinkNode {
    /// Where a key is that lies beyond this node.
    pub fn beyond(&self, key: Key) -> Option<NodeId> {
        self.right.filter(|(high, _)| key >= *high).map(|(_, right)| right)
    }
}

/// Records or children that fit on a page.
pub(crate) fn capacity(page_len: usize) -> (usize, usize) {
    let words = (page_len - HEADER) / 8 - 2;
    (words / 2, words.div_ceil(2))
}

impl PageCodec for BlinkNode {
    fn encode(&self, id: NodeId, sequence: u64, page: &mut [u8]) {
        let mut at = HEADER;
        let mut put = |word: u64| {
            page[at..at + 8].copy_from_slice(&word.to_le_bytes());
            at += 8;
        };
        put(self.right.map_or(0, |(_, right)| right.0));
        put(self.right.map_or(0, |(high, _)| high));
        match &self.node {
            Node::Leaf(leaf) => leaf.entries.iter().for_each(|(key, value)| {
                put(*key);
                put(*value);
            }),
            Node::Inner(inner) => {
                inner.children.iter().for_each(|child| put(child.0));
                inner.fences.iter().copied().for_each(put);
            }
        }
        page[at..].fill(0);
        let (level, count) = (self.node.level(), self.node.count() as u16);
        seal(page, &Header { kind: Kind::Blink, level, count, id, sequence, extra: 0 });
    }

    fn decode(page: &[u8], file: &str, offset: u64, id: NodeId) -> Result<(Self, Header)> {
        let header = open(page, file, offset, id)?;
        let count = usize::from(header.count);
        let wrong = |what: &str| {
            Err(Error::corrupt(file, offset, what, "a node of a B-link tree", format!("{header:?}")))
        };
        let (records, children) = capacity(page.len());
        let fits = if header.level == 0 { count <= records } else { (1..=children).contains(&count) };
        if header.kind != Kind::Blink || !fits {
            return wrong("kind or count of a page");
        }
        let word = |index: usize| u64::from_le_bytes(bytes_at(page, HEADER + 8 * index));
        let right = Some(NodeId(word(0))).filter(|right| right.0 != 0).map(|right| (word(1), right));
        let node = if header.level == 0 {
            let entries: Vec<_> =
                (0..count).map(|index| (word(2 + 2 * index), word(3 + 2 * index))).collect();
            if !entries.is_sorted_by(|one, two| one.0 < two.0) {
                return wrong("order of a leaf");
            }
            Node::Leaf(Leaf { entries, next: None })
        } else {
            let children = (0..count).map(|index| NodeId(word(2 + index))).collect();
            let fences: Vec<Key> = (count..2 * count - 1).map(|index| word(2 + index)).collect();
            if !fences.is_sorted_by(|one, two| one < two) {
                return wrong("order of an inner node");
            }
            Node::Inner(Inner { level: header.level, fences, children })
        };
        Ok((Self { right, node }, header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_page_comes_back() {
        let (records, children) = capacity(256);
        let leaf = Leaf { entries: (0..records as u64).map(|key| (key, key)).collect(), next: None };
        let fences = (1..children as u64).collect();
        let inner = Inner { level: 2, fences, children: (0..children as u64).map(NodeId).collect() };
        for (right, node) in [(None, Node::Leaf(leaf)), (Some((99, NodeId(7))), Node::Inner(inner))] {
            let node = BlinkNode { right, node };
            let mut page = vec![0xff; 256];
            node.encode(NodeId(3), 1, &mut page);
            assert_eq!(BlinkNode::decode(&page, "f", 0, NodeId(3)).unwrap().0, node);
        }
    }

    proptest! {
        #[test]
        fn any_page_is_decoded_or_refused(
            level in 0u8..3, count in 0u16..40, body in prop::collection::vec(any::<u8>(), 96),
        ) {
            let mut page = vec![0; HEADER];
            page.extend(body);
            seal(&mut page, &Header { kind: Kind::Blink, level, count, id: NodeId(1), sequence: 1, extra: 0 });
            let _ = BlinkNode::decode(&page, "f", 0, NodeId(1));
        }
    }
}
