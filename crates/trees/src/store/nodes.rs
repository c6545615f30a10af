//! Nodes to be read, by whoever only reads: what search, range search and the checking walk need of a store; and nodes to be
//! replaced, where an update may change ids.

use crate::Result;
use crate::page::NodeId;
use crate::page::node::Node;
use crate::store::{NodeStore, Root};
use std::sync::Arc;

/// How many children or records a node may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub max: usize,
    /// Half full, for all but the root.
    pub min: usize,
}

impl Limits {
    pub fn of(max: usize) -> Self {
        Self { max, min: max.div_ceil(2) }
    }
}

/// See the module.
pub(crate) trait Nodes {
    fn root(&self) -> Root;

    fn read(&self, id: NodeId) -> Result<Arc<Node>>;

    /// Of a node of `level` in a tree of `height` levels.
    fn limits(&self, level: u8, height: u8) -> Limits;
}

/// A store whose nodes are replaced.
pub(crate) trait Rewrite: Nodes {
    /// Puts nodes of a level into the place of others; their ids.
    fn replace(&mut self, level: u8, old: &[NodeId], new: Vec<Node>) -> Result<Vec<NodeId>>;

    fn set_root(&mut self, root: Root);
}

impl<S: NodeStore> Nodes for S {
    fn root(&self) -> Root {
        NodeStore::root(self)
    }

    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        NodeStore::read(self, id)
    }

    fn limits(&self, level: u8, _: u8) -> Limits {
        let shape = self.shape();
        Limits::of(if level == 0 { shape.records } else { shape.fanout })
    }
}
