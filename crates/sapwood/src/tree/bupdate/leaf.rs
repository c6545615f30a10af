//! A leaf in a batch update: either read, or a lone leaf, about which the block's node says all that is
//! needed. So replacing a long record, or inserting one beside it, reads no leaf. (The first leaf of a block is seldom a
//! lone one: its separator is the block's.)
//!
//! Invariant: a lone leaf has exactly one record, with the key that the block's node has for it.

use crate::error::Result;
use crate::storage::node::{Node, NodeId};
use crate::tree::view::TreeView;
use bytes::Bytes;

/// See the module.
pub(super) enum Leaf {
    Read(Node),
    /// `len` and `memory_len`: bytes on the device and, at most, in memory.
    Lone {
        key: Bytes,
        len: usize,
        memory_len: usize,
    },
}

impl Leaf {
    /// Number of records.
    pub fn count(&self) -> usize {
        match self {
            Self::Read(node) => node.count(),
            Self::Lone { .. } => 1,
        }
    }

    pub fn key(&self, index: usize) -> &[u8] {
        match self {
            Self::Read(node) => node.key(index),
            Self::Lone { key, .. } => key,
        }
    }

    /// Bytes of the node on the device.
    pub fn len(&self) -> usize {
        match self {
            Self::Read(node) => node.stored_len(),
            Self::Lone { len, .. } => *len,
        }
    }

    /// Bytes of the node in memory.
    pub fn memory_len(&self) -> usize {
        match self {
            Self::Read(node) => node.bytes().len(),
            Self::Lone { memory_len, .. } => *memory_len,
        }
    }

    /// The leaf's node, with this id; a lone leaf is read now.
    pub fn node(&self, id: NodeId, view: TreeView<'_>) -> Result<Node> {
        match self {
            Self::Read(node) => Ok(node.clone()),
            Self::Lone { .. } => view.node_to_replace(id, 0),
        }
    }
}
