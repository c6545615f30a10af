//! Checks nodes while their segments are copied: what is damaged in the database shall not be taken for a backup.
//!
//! Invariant: every node of the version that lies in a part that was fed from its first byte to its last was found right.

use crate::error::Result;
use crate::storage::mapping_table::Address;
use crate::storage::node::NodeId;
use crate::storage::reader::verify_stored;
use bytes::Bytes;

/// A node and where it begins in its segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeAt {
    pub offset: u64,
    pub id: NodeId,
    pub address: Address,
}

/// The nodes of a part of a segment, in the order of their offsets.
pub(super) struct NodeCheck<'n> {
    nodes: &'n [NodeAt],
    /// Where the segment begins in the data file, for messages.
    begin: u64,
    /// The beginning of the first of the nodes, whose end has not come yet.
    partial: Vec<u8>,
}

impl<'n> NodeCheck<'n> {
    pub fn new(nodes: &'n [NodeAt], begin: u64) -> Self {
        Self { nodes, begin, partial: Vec::new() }
    }

    /// Takes the next bytes of the part, which lie at this offset of the segment.
    pub fn feed(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        while let Some((first, rest)) = self.nodes.split_first()
            && first.offset < end
        {
            let node_end = first.offset + u64::from(first.address.len());
            let skipped = first.offset.saturating_sub(offset) as usize;
            let upto = (node_end.min(end) - offset) as usize;
            if node_end > end {
                self.partial.extend_from_slice(&bytes[skipped..upto]);
                return Ok(());
            }
            let node = if self.partial.is_empty() {
                Bytes::copy_from_slice(&bytes[skipped..upto])
            } else {
                self.partial.extend_from_slice(&bytes[skipped..upto]);
                std::mem::take(&mut self.partial).into()
            };
            verify_stored(node, self.begin + first.offset, first.id, first.address)?;
            self.nodes = rest;
        }
        Ok(())
    }

    /// Whether all nodes have come.
    pub fn is_done(&self) -> bool {
        self.nodes.is_empty()
    }
}
