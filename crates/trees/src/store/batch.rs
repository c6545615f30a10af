//! A batch on the device: nodes that were written together and count together or not at all.
//!
//! Every page ends in a tail that says which batch it is a member of:
//! ```text
//! offset size
//!      0    8  number of the batch, counted from 1
//!      8    2  index of this page in it
//!     10    2  pages of the batch
//!     12    1  level of the root
//!     13    1  freed ids in this tail
//!     14    2  zero
//!     16    8  root of the tree after this batch, or 0 while it has none
//!     24    8  all batches up to this one were durable when this one was written
//!     32   40  ids of nodes that this batch frees
//!     72    8  digest of the mapping table after this batch
//!     80    4  CRC-32C of the page's header and of the tail before here
//!     84    4  zero
//! ```
//! Little-endian. The AS B-tree paper has no such thing (section 3.3 reads all nodes, and cannot tell a copy from a newer
//! one, nor half a split from a whole one).
//!
//! Invariants:
//! 1. A tail belongs to the node before it: it is of no use behind another one.
//! 2. The last batch on the device is an operation's end: half of a split never is one.

use crate::page::NodeId;
use crate::page::header::{HEADER, bytes_at};
use crate::page::node::Node;
use crate::store::Root;
use crate::store::mapping_table::IDS;
use crate::{Error, Result};
use std::sync::Arc;

/// Bytes at the end of a page that are not the node's.
pub(crate) const TAIL: usize = 88;
/// Freed ids in a tail.
const FREED_MAX: usize = 5;
const CRC_AT: usize = 80;

/// What the tails of a batch say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub batch: u64,
    pub index: u16,
    pub size: u16,
    pub root: Option<Root>,
    pub durable: u64,
    pub digest: u64,
    pub freed: Vec<NodeId>,
}

impl Tail {
    fn encode(&self, page: &mut [u8]) {
        let (node, tail) = page.split_at_mut(page.len() - TAIL);
        tail.fill(0);
        tail[..8].copy_from_slice(&self.batch.to_le_bytes());
        tail[8..10].copy_from_slice(&self.index.to_le_bytes());
        tail[10..12].copy_from_slice(&self.size.to_le_bytes());
        tail[12] = self.root.map_or(0, |root| root.level);
        tail[13] = self.freed.len() as u8;
        tail[16..24].copy_from_slice(&self.root.map_or(0, |root| root.id.0).to_le_bytes());
        tail[24..32].copy_from_slice(&self.durable.to_le_bytes());
        tail[72..CRC_AT].copy_from_slice(&self.digest.to_le_bytes());
        for (at, id) in self.freed.iter().enumerate() {
            tail[32 + 8 * at..40 + 8 * at].copy_from_slice(&id.0.to_le_bytes());
        }
        let crc = checksum(node, tail);
        tail[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// What the end of a page says, if it is whole.
    pub fn decode(page: &[u8]) -> Option<Self> {
        let (node, tail) = page.split_at_checked(page.len().checked_sub(TAIL)?)?;
        let freed = usize::from(tail[13]);
        if node.len() < HEADER
            || checksum(node, tail) != u32::from_le_bytes(bytes_at(tail, CRC_AT))
            || freed > FREED_MAX
        {
            return None;
        }
        let word = |at| u64::from_le_bytes(bytes_at(tail, at));
        Some(Self {
            batch: word(0),
            index: u16::from_le_bytes(bytes_at(tail, 8)),
            size: u16::from_le_bytes(bytes_at(tail, 10)),
            root: Some(Root { id: NodeId(word(16)), level: tail[12] }).filter(|root| root.id.0 != 0),
            durable: word(24),
            digest: word(72),
            freed: (0..freed).map(|at| NodeId(word(32 + 8 * at))).collect(),
        })
    }
}

/// The page's own checksum stands in its header, so that this covers the whole page.
fn checksum(node: &[u8], tail: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&node[..HEADER.min(node.len())]), &tail[..CRC_AT])
}

/// What a batch says of the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub batch: u64,
    pub root: Option<Root>,
    pub durable: u64,
    pub digest: u64,
    pub freed: &'a [NodeId],
}

/// Fills `pages` with nodes of `page_len` bytes each.
pub(crate) fn encode(
    nodes: &[(NodeId, Arc<Node>)],
    facts: Facts<'_>,
    page_len: usize,
    pages: &mut [u8],
) -> Result<()> {
    let Ok(size) = u16::try_from(nodes.len()) else {
        return Err(Error::Invalid(format!("a batch of {} nodes: at most {}", nodes.len(), u16::MAX)));
    };
    if facts.freed.len() > nodes.len() * FREED_MAX {
        return Err(Error::broken(format!("a batch of {size} nodes frees {} others", facts.freed.len())));
    }
    let mut freed = facts.freed.chunks(FREED_MAX);
    for (index, ((id, node), page)) in nodes.iter().zip(pages.chunks_exact_mut(page_len)).enumerate() {
        node.encode(*id, facts.batch, &mut page[..page_len - TAIL]);
        let freed = freed.next().unwrap_or_default().to_vec();
        let Facts { batch, root, durable, digest, .. } = facts;
        Tail { batch, index: index as u16, size, root, durable, digest, freed }.encode(page);
    }
    Ok(())
}

/// Takes the node `id` off a page, whatever batch it is of.
pub(crate) fn decode_node(page: &[u8], file: &str, offset: u64, id: NodeId) -> Result<Node> {
    Ok(Node::decode(&page[..page.len() - TAIL], file, offset, id)?.0)
}

/// A whole page of whatever node.
pub(crate) fn member(page: &[u8]) -> Option<(NodeId, Node, Tail)> {
    let tail = Tail::decode(page)?;
    let id = NodeId(u64::from_le_bytes(bytes_at(page, 8)));
    let node = decode_node(page, "", 0, id).ok()?;
    (1..IDS).contains(&id.0).then_some((id, node, tail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::node::Leaf;

    #[test]
    fn a_tail_is_read_back_and_every_flipped_bit_of_the_page_is_noticed() {
        let leaf = |keys: u64| {
            let entries = (0..keys).map(|key| (key, key)).collect();
            Arc::new(Node::Leaf(Leaf { entries, next: None }))
        };
        let nodes = [(NodeId(4), leaf(2)), (NodeId(9), leaf(5))];
        let freed: Vec<_> = (20..27).map(NodeId).collect();
        let root = Some(Root { id: NodeId(3), level: 2 });
        let mut pages = vec![0; 512];
        let facts = Facts { batch: 8, root, durable: 6, digest: 77, freed: &freed };
        encode(&nodes, facts, 256, &mut pages).unwrap();
        for (index, page) in pages.chunks_exact(256).enumerate() {
            let (id, node, tail) = member(page).unwrap();
            assert_eq!((id, &node), (nodes[index].0, &*nodes[index].1));
            let freed = freed.chunks(5).nth(index).unwrap().to_vec();
            assert_eq!(
                tail,
                Tail { batch: 8, index: index as u16, size: 2, root, durable: 6, digest: 77, freed }
            );
        }
        for bit in 0..8 * (256 - 4) {
            pages[bit / 8] ^= 1 << (bit % 8);
            assert!(member(&pages[..256]).is_none(), "bit {bit}");
            pages[bit / 8] ^= 1 << (bit % 8);
        }
        // The tail of another page is not this one's.
        let mut mixed = pages[..256].to_vec();
        mixed[256 - TAIL..].copy_from_slice(&pages[512 - TAIL..]);
        assert!(member(&mixed).is_none());
        let many: Vec<_> = (20..31).map(NodeId).collect();
        assert!(encode(&nodes, Facts { freed: &many, ..facts }, 256, &mut pages).is_err());
    }
}
