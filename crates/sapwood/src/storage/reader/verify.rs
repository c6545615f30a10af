//! Whether a node that was read is the one that the mapping table points to.
//!
//! Invariant: a flipped bit, another node's bytes and an older version of the same node are errors that name the place.

use super::FILE;
use crate::error::{Error, Result};
use crate::storage::compressed::StoredNode;
use crate::storage::mapping_table::Address;
use crate::storage::node::{Name, Node, NodeId, Refusal};
use bytes::Bytes;

/// What a node is known by as it is stored.
pub(super) trait Stored {
    fn name(&self) -> Name;
    fn crc(&self) -> u32;
}

impl Stored for Node {
    fn name(&self) -> Name {
        self.name()
    }

    fn crc(&self) -> u32 {
        self.crc()
    }
}

impl Stored for StoredNode {
    fn name(&self) -> Name {
        self.name()
    }

    fn crc(&self) -> u32 {
        self.crc()
    }
}

/// Checks that the bytes at `offset` of the data file are the expected node.
pub(super) fn verify(bytes: Bytes, offset: u64, id: NodeId, address: Address) -> Result<Node> {
    verify_node(Node::decode(bytes), offset, id, address)
}

/// Checks that the bytes at `offset` of the data file are the expected node, as it is stored: its entries are not looked at.
pub(crate) fn verify_stored(bytes: Bytes, offset: u64, id: NodeId, address: Address) -> Result<StoredNode> {
    verify_node(StoredNode::decode(bytes), offset, id, address)
}

/// Checks that what was decoded from `offset` of the data file is the expected node.
pub(super) fn verify_node<N: Stored>(
    decoded: std::result::Result<N, Refusal>,
    offset: u64,
    id: NodeId,
    address: Address,
) -> Result<N> {
    let node = decoded.map_err(|refusal| refusal.of_node(FILE, offset, id))?;
    if node.name().id != id {
        return Err(Error::corrupt(FILE, offset + 8, "node id", id, node.name().id));
    }
    if node.crc() != address.crc {
        let what = format!("{id} is an older version than the mapping table points to");
        return Err(Error::corrupt(
            FILE,
            offset + 36,
            what,
            format!("checksum {:08x}", address.crc),
            format!("{:08x}", node.crc()),
        ));
    }
    Ok(node)
}
