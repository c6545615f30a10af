//! Nodes as trees write them to the data area of a flash block. As `page/node.rs`, but packed so that a node of 8 KiB holds what
//! the d-IPL paper says: 510 records, or 840 children. Leaves are not chained, children are named by 32 bits, and fences are
//! written as distances from the first.
//!
//! ```text
//! leaf body               inner body
//! offset  size            offset         size
//!      0  16 n  key,           0            8  first fence, or 0
//!               value          8          4 c  children
//!                        8 + 4 c  w × (c - 1)  fences less the first one, w bytes each
//! ```
//! `c` and `n` are the header's count, `w` is its extra word: 1 to 8.
//!
//! Invariant: what is decoded obeys the rules of `page/node.rs`; anything else is an error.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::node::{Inner, Leaf, Node, Shape};
use super::{Key, NodeId};
use crate::{Error, Result};

/// Bytes of the widest distance.
const WIDTH_MAX: usize = 8;

/// How much goes into a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlashShape {
    pub fanout: usize,
    pub records: usize,
    body: usize,
}

impl FlashShape {
    /// What fits into `node_len` bytes, but not more than asked for. Inner nodes of wide fences hold less than `fanout`.
    pub fn new(node_len: usize, fanout: usize, records: usize) -> Result<Self> {
        let body = node_len.saturating_sub(HEADER);
        let shape = Self { fanout: fanout.min(body / 5), records: records.min(body / 16), body };
        if shape.fanout < 4 || shape.records < 4 || inner_len(5, WIDTH_MAX) > body {
            return Err(Error::Invalid(format!(
                "nodes of {node_len} bytes with {fanout} children or {records} records: at least 4 of each, in 128 bytes or more"
            )));
        }
        Ok(shape)
    }

    /// What fits whatever the fences are.
    pub fn narrowest(&self) -> Shape {
        Shape { fanout: self.fanout.min(self.body / 12), records: self.records }
    }

    pub fn max(&self, node: &Node) -> usize {
        match node {
            Node::Inner(_) => self.fanout,
            Node::Leaf(_) => self.records,
        }
    }

    /// Whether it is more than goes into a node.
    pub fn overflows(&self, node: &Node) -> bool {
        let too_long = match node {
            Node::Inner(inner) => inner_len(inner.children.len(), width(&inner.fences)) > self.body,
            Node::Leaf(_) => false,
        };
        too_long || node.count() > self.max(node)
    }

    /// Below half.
    pub fn underflows(&self, node: &Node) -> bool {
        node.count() < self.max(node).div_ceil(2)
    }
}

fn inner_len(children: usize, width: usize) -> usize {
    8 + 4 * children + width * children.saturating_sub(1)
}

/// Bytes that the widest distance of these fences needs.
fn width(fences: &[Key]) -> usize {
    let widest = fences.first().zip(fences.last()).map_or(0, |(first, last)| last.saturating_sub(*first));
    (64 - widest.leading_zeros() as usize).div_ceil(8).max(1)
}

/// Fills a page. The node must fit: see [`FlashShape`].
pub(crate) fn encode(node: &Node, id: NodeId, sequence: u64, page: &mut [u8]) {
    page[HEADER..].fill(0);
    let (kind, extra) = match node {
        Node::Leaf(leaf) => {
            for (entry, bytes) in leaf.entries.iter().zip(page[HEADER..].chunks_exact_mut(16)) {
                bytes[..8].copy_from_slice(&entry.0.to_le_bytes());
                bytes[8..].copy_from_slice(&entry.1.to_le_bytes());
            }
            (Kind::FlashLeaf, 0)
        }
        Node::Inner(inner) => {
            let width = width(&inner.fences);
            let first = inner.fences.first().copied().unwrap_or(0);
            page[HEADER..HEADER + 8].copy_from_slice(&first.to_le_bytes());
            let (children, fences) = page[HEADER + 8..].split_at_mut(4 * inner.children.len());
            for (child, bytes) in inner.children.iter().zip(children.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&(child.0 as u32).to_le_bytes());
            }
            for (fence, bytes) in inner.fences.iter().zip(fences.chunks_exact_mut(width)) {
                bytes.copy_from_slice(&(fence - first).to_le_bytes()[..width]);
            }
            (Kind::FlashInner, width as u32)
        }
    };
    let count = node.count() as u16;
    seal(page, &Header { kind, level: node.level(), count, id, sequence, extra });
}

/// Takes a node off a page that was read from `offset` of `place`.
pub(crate) fn decode(page: &[u8], place: &str, offset: u64, id: NodeId) -> Result<Node> {
    let header = open(page, place, offset, id)?;
    let count = usize::from(header.count);
    let wrong = |what: &str, found: usize| Error::corrupt(place, offset, what, "a node that fits", found);
    let body = &page[HEADER..];
    match header.kind {
        Kind::FlashLeaf => {
            if 16 * count > body.len() || header.level != 0 {
                return Err(wrong("records of a leaf", count));
            }
            let word = |at: usize| u64::from_le_bytes(bytes_at(body, at));
            let entries: Vec<_> = (0..count).map(|index| (word(16 * index), word(16 * index + 8))).collect();
            if !entries.is_sorted_by(|one, two| one.0 < two.0) {
                return Err(wrong("order of a leaf", count));
            }
            Ok(Node::Leaf(Leaf { entries, next: None }))
        }
        Kind::FlashInner => {
            let width = header.extra as usize;
            let fits = (1..=WIDTH_MAX).contains(&width) && inner_len(count, width) <= body.len();
            if !fits || count == 0 || header.level == 0 {
                return Err(wrong("children of an inner node", count));
            }
            let first = u64::from_le_bytes(bytes_at(body, 0));
            let child = |index: usize| NodeId(u64::from(u32::from_le_bytes(bytes_at(body, 8 + 4 * index))));
            let distances = body[8 + 4 * count..].chunks_exact(width).take(count - 1);
            let fences: Option<Vec<Key>> = distances
                .map(|bytes| {
                    let mut word = [0; 8];
                    word[..width].copy_from_slice(bytes);
                    first.checked_add(u64::from_le_bytes(word))
                })
                .collect();
            let fences = fences.filter(|fences| fences.is_sorted_by(|one, two| one < two));
            let fences = fences.ok_or_else(|| wrong("fences of an inner node", count))?;
            Ok(Node::Inner(Inner { level: header.level, fences, children: (0..count).map(child).collect() }))
        }
        other => Err(Error::corrupt(place, offset, "kind of a page", "a node", format!("{other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inner(fences: Vec<Key>) -> Node {
        let children = (0..=fences.len() as u64).map(NodeId).collect();
        Node::Inner(Inner { level: 1, fences, children })
    }

    #[test]
    fn a_node_of_8_kib_holds_what_the_paper_says() {
        let shape = FlashShape::new(8192, 840, 510).unwrap();
        assert_eq!((shape.fanout, shape.records), (840, 510));
        let leaf = Node::Leaf(Leaf { entries: (0..510).map(|key| (key, !key)).collect(), next: None });
        let narrow = inner((1..840).map(|key| (key << 30) + 7).collect());
        let wide = inner((1..680).map(|key| key * (u64::MAX / 700)).collect());
        for node in [leaf, narrow, wide, inner(Vec::new())] {
            assert!(!shape.overflows(&node), "{}", node.count());
            let mut page = vec![0xff; 8192];
            encode(&node, NodeId(12), 7, &mut page);
            assert_eq!(decode(&page, "f", 0, NodeId(12)).unwrap(), node);
            assert!(decode(&page, "f", 0, NodeId(13)).is_err());
        }
        assert!(shape.overflows(&inner((1..682).map(|key| key * (u64::MAX / 700)).collect())), "too wide");
        assert!(shape.overflows(&inner((0..840).collect())), "too many");
        assert!(FlashShape::new(64, 840, 510).is_err());
        assert!(FlashShape::new(8192, 3, 510).is_err());
    }

    proptest! {
        /// Behind a sound checksum, too, anything is decoded or refused.
        #[test]
        fn any_page_is_decoded_or_refused(
            leaf: bool, level in 0u8..3, count in 0u16..40, extra in 0u32..10,
            body in prop::collection::vec(any::<u8>(), 96),
        ) {
            let mut page = vec![0; HEADER];
            page.extend(body);
            let kind = if leaf { Kind::FlashLeaf } else { Kind::FlashInner };
            seal(&mut page, &Header { kind, level, count, id: NodeId(1), sequence: 0, extra });
            let _ = decode(&page, "f", 0, NodeId(1));
        }
    }
}
