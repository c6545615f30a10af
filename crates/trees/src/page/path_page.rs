//! A page that holds a whole path of a tree, from a leaf to the root, each level in a partition of its own. (µ-tree: Kang,
//! Jung, Kang, Kim, EMSOFT 2007; µ*-tree: Ahn, Kang, Jung, Kim, Maeng, IEEE Trans. Comput. 62 (4), 2013.)
//!
//! The leaf has half of the page, in the µ*-tree up to seven eighths; its parent half of the rest, and so on; the root as much
//! as its child. In a tree of one level, the leaf has all.
//! ```text
//! header of a page: kind 43, level = height of the tree, id = number of the page, extra = eighths of the leaf; then
//! offset   size
//!      0     32  16 × entries of a level, leaves first; 0xffff if this page has no node of that level
//!     32  16 c0  leaf: key, value
//!  32 + 16 (c0 + … + c(l-1))
//!         16 cl  node of level l: fence (0 for the first child), page of the child
//! ```
//! `cl`: room of the level, which [`Partition::capacity`] computes from height and eighths. Little-endian.
//!
//! Invariants:
//! 1. The id of a node is the number of its page, and its level in the lowest four bits.
//! 2. What is decoded has fences and keys that ascend, and as many as there is room for; anything else is an error.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::node::{Inner, Leaf, Node};
use super::{Key, NodeId};
use crate::{Error, Result};
use std::sync::Arc;

/// Most levels of a tree.
pub(crate) const LEVELS_MAX: usize = 16;
const LEVEL_BITS: u32 = 4;
const ABSENT: u16 = u16::MAX;
const DIRECTORY: usize = 2 * LEVELS_MAX;
const SLOT: usize = 16;
/// What the leaf has of a page of the µ-tree, in eighths; the least of the µ*-tree.
pub(crate) const HALF: u8 = 4;

const _: () = assert!(LEVELS_MAX == 1 << LEVEL_BITS, "the level is a part of the id");

/// The node of a level on a page.
pub(crate) fn id_of(page: u64, level: u8) -> NodeId {
    NodeId(page << LEVEL_BITS | u64::from(level))
}

/// Page and level of a node.
pub(crate) fn place_of(id: NodeId) -> (u64, u8) {
    (id.0 >> LEVEL_BITS, (id.0 & (LEVELS_MAX as u64 - 1)) as u8)
}

/// How a page is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Entries of all levels together.
    slots: usize,
}

impl Partition {
    /// Of a page, with fewer entries than it holds, if asked for.
    pub fn of_page(page_len: usize, slots_max: Option<usize>) -> Self {
        let slots = page_len.saturating_sub(HEADER + DIRECTORY) / SLOT;
        Self { slots: slots_max.map_or(slots, |most| slots.min(most)) }
    }

    /// Entries of all levels together.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Entries of a node of `level`, if the leaf has so many eighths.
    pub fn capacity(&self, level: u8, height: u8, eighths: u8) -> usize {
        let top = height.saturating_sub(1);
        if top == 0 {
            return if level == 0 { self.slots } else { 0 };
        }
        let leaf = self.slots * usize::from(eighths) / 8;
        let halvings = level.min(top - 1);
        match level {
            0 => leaf,
            _ if level > top => 0,
            // The root has what its child has; alone above the leaves it has all that they leave.
            _ => (self.slots - leaf) >> halvings,
        }
    }

    /// The most eighths among `choices` with which nodes of so many entries fit on one page.
    pub fn eighths_for(&self, counts: &[Option<usize>], height: u8, choices: &[u8]) -> Option<u8> {
        let fits = |eighths: &u8| {
            (0..).zip(counts).all(|(level, count)| {
                count.is_none_or(|count| count <= self.capacity(level, height, *eighths))
            })
        };
        choices.iter().copied().filter(fits).max()
    }
}

/// A page in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathPage {
    /// Levels of the tree when it was written.
    pub height: u8,
    pub eighths: u8,
    /// By level, leaves first.
    pub nodes: Vec<Option<Arc<Node>>>,
}

impl PathPage {
    /// Fills a page. The nodes must fit.
    pub fn encode(&self, partition: &Partition, number: u64, sequence: u64, page: &mut [u8]) {
        page.fill(0);
        page[HEADER..HEADER + DIRECTORY].fill(0xff);
        let mut at = HEADER + DIRECTORY;
        for (level, node) in (0..self.height).zip(&self.nodes) {
            if let Some(node) = node {
                let entry = HEADER + 2 * usize::from(level);
                page[entry..entry + 2].copy_from_slice(&(node.count() as u16).to_le_bytes());
                let mut slots = page[at..].chunks_exact_mut(SLOT);
                let mut put = |one: u64, two: u64| {
                    if let Some(slot) = slots.next() {
                        slot[..8].copy_from_slice(&one.to_le_bytes());
                        slot[8..].copy_from_slice(&two.to_le_bytes());
                    }
                };
                match &**node {
                    Node::Leaf(leaf) => leaf.entries.iter().for_each(|(key, value)| put(*key, *value)),
                    Node::Inner(inner) => {
                        let fences = std::iter::once(0).chain(inner.fences.iter().copied());
                        fences.zip(&inner.children).for_each(|(fence, child)| put(fence, place_of(*child).0));
                    }
                }
            }
            at += SLOT * partition.capacity(level, self.height, self.eighths);
        }
        let id = NodeId(number);
        let extra = u32::from(self.eighths);
        seal(page, &Header { kind: Kind::Path, level: self.height, count: 0, id, sequence, extra });
    }

    /// Takes the nodes off a page that was read from byte `offset` of the flash.
    pub fn decode(page: &[u8], partition: &Partition, offset: u64, number: u64) -> Result<Self> {
        let header = open(page, "flash", offset, NodeId(number))?;
        let wrong =
            |what: &str, found: String| Error::corrupt("flash", offset, what, "a path that fits", found);
        let (height, eighths) = (header.level, header.extra as u8);
        if header.kind != Kind::Path
            || !(1..=LEVELS_MAX).contains(&usize::from(height))
            || !(u32::from(HALF)..8).contains(&header.extra)
            || page.len() < HEADER + DIRECTORY + SLOT * partition.slots
        {
            return Err(wrong(
                "kind, height or eighths of a page",
                format!("{:?}, {height}, {}", header.kind, header.extra),
            ));
        }
        let mut nodes = Vec::with_capacity(usize::from(height));
        let mut at = HEADER + DIRECTORY;
        for level in 0..height {
            let room = partition.capacity(level, height, eighths);
            let count = u16::from_le_bytes(bytes_at(page, HEADER + 2 * usize::from(level)));
            let slots = page[at..at + SLOT * room].chunks_exact(SLOT);
            let entries = slots
                .map(|slot| (u64::from_le_bytes(bytes_at(slot, 0)), u64::from_le_bytes(bytes_at(slot, 8))));
            at += SLOT * room;
            if count == ABSENT {
                nodes.push(None);
                continue;
            }
            let count = usize::from(count);
            if count > room || (level > 0 && count == 0) {
                return Err(wrong("entries of a level", format!("{count} of {room} at level {level}")));
            }
            let entries: Vec<(u64, u64)> = entries.take(count).collect();
            let node = if level == 0 {
                Node::Leaf(Leaf { entries, next: None })
            } else {
                if entries.iter().any(|entry| entry.1 >> (63 - LEVEL_BITS) != 0) {
                    return Err(wrong("page of a child", "one beyond all flash".into()));
                }
                let fences: Vec<Key> = entries[1..].iter().map(|entry| entry.0).collect();
                let children = entries.iter().map(|entry| id_of(entry.1, level - 1)).collect();
                Node::Inner(Inner { level, fences, children })
            };
            let ascends = match &node {
                Node::Leaf(leaf) => leaf.entries.is_sorted_by(|one, two| one.0 < two.0),
                Node::Inner(inner) => inner.fences.is_sorted_by(|one, two| one < two),
            };
            if !ascends {
                return Err(wrong("keys or fences", format!("out of order at level {level}")));
            }
            nodes.push(Some(Arc::new(node)));
        }
        Ok(Self { height, eighths, nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leaf(keys: std::ops::Range<u64>) -> Option<Arc<Node>> {
        let entries = keys.map(|key| (key, key + 1)).collect();
        Some(Arc::new(Node::Leaf(Leaf { entries, next: None })))
    }

    fn inner(level: u8, children: std::ops::Range<u64>) -> Option<Arc<Node>> {
        let fences = (children.start + 1..children.end).collect();
        let children = children.map(|page| id_of(page, level - 1)).collect();
        Some(Arc::new(Node::Inner(Inner { level, fences, children })))
    }

    #[test]
    fn the_page_is_divided_as_published() {
        let partition = Partition::of_page(4096, Some(128));
        let of = |height: u8, eighths| -> Vec<usize> {
            (0..height).map(|level| partition.capacity(level, height, eighths)).collect()
        };
        assert_eq!(of(1, 4), [128]);
        assert_eq!(of(2, 4), [64, 64]);
        assert_eq!(of(3, 4), [64, 32, 32]);
        assert_eq!(of(5, 4), [64, 32, 16, 8, 8]);
        assert_eq!(of(4, 7), [112, 8, 4, 4]);
        for height in 1..10 {
            for eighths in 4..8 {
                assert!(of(height, eighths).iter().sum::<usize>() <= 128);
            }
        }
        assert_eq!(partition.eighths_for(&[Some(90), Some(9), Some(3)], 3, &[7, 6, 5, 4]), Some(6));
        assert_eq!(partition.eighths_for(&[Some(90), Some(30), None], 3, &[7, 6, 5, 4]), None);
        assert_eq!(partition.eighths_for(&[None, Some(32), None], 3, &[7, 6, 5, 4]), Some(4));
    }

    #[test]
    fn a_page_reads_back_and_damage_is_told() {
        let partition = Partition::of_page(1024, None);
        assert_eq!(partition.slots(), 60);
        let path = PathPage {
            height: 4,
            eighths: 4,
            nodes: vec![leaf(3..33), None, inner(2, 4..11), inner(3, 8..10)],
        };
        let mut page = vec![0xaa; 1024];
        path.encode(&partition, 77, 5, &mut page);
        assert_eq!(PathPage::decode(&page, &partition, 0, 77).unwrap(), path);
        assert!(PathPage::decode(&page, &partition, 0, 78).is_err(), "another page");
        let smaller = Partition::of_page(1024, Some(16));
        assert!(PathPage::decode(&page, &smaller, 0, 77).is_err(), "other options");
        for byte in [2, 6, 40, 90, 700] {
            page[byte] ^= 4;
            assert!(PathPage::decode(&page, &partition, 0, 77).is_err(), "byte {byte}");
            page[byte] ^= 4;
        }
    }

    proptest! {
        /// Behind a sound checksum, too, anything is decoded or refused.
        #[test]
        fn any_page_is_decoded_or_refused(
            level in 0u8..18, extra in 0u32..9, body in prop::collection::vec(0u8..5, 480),
        ) {
            let partition = Partition::of_page(512, None);
            let mut page = vec![0; HEADER];
            page.extend(body);
            for entry in 1..LEVELS_MAX {
                page[HEADER + 2 * entry + 1] = 0;
            }
            page[HEADER + 1] = 0;
            seal(&mut page, &Header { kind: Kind::Path, level, count: 0, id: NodeId(1), sequence: 1, extra });
            if let Ok(path) = PathPage::decode(&page, &partition, 0, 1) {
                let mut again = vec![0; page.len()];
                path.encode(&partition, 1, 1, &mut again);
                prop_assert_eq!(PathPage::decode(&again, &partition, 0, 1).unwrap(), path);
            }
        }
    }
}
