//! A leaf on its way through a batch update: one that was read, or a lone one, of which the block's node says all that is needed. A change to a long record, or a
//! new one beside it, reads no leaf.
//!
//! Invariant: a lone leaf has one record, whose key is what it says.

use crate::error::Result;
use crate::node::{Node, NodeId};
use crate::tree::view::TreeView;
use bytes::Bytes;

/// See the module.
pub(super) enum Leaf {
    Read(Node),
    Lone { key: Bytes, len: usize },
}

impl Leaf {
    /// Records in it.
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

    /// Bytes of the node.
    pub fn len(&self) -> usize {
        match self {
            Self::Read(node) => node.bytes().len(),
            Self::Lone { len, .. } => *len,
        }
    }

    /// The node with this id, which is read now if it was not.
    pub fn node(&self, id: NodeId, view: TreeView<'_>) -> Result<Node> {
        match self {
            Self::Read(node) => Ok(node.clone()),
            Self::Lone { .. } => view.node(id, 0),
        }
    }
}
