//! Nodes that are less than half full, because mending them waits until they leave memory (CB-tree): who they are, and how they
//! come back into memory when the tree is opened.

use crate::Result;
use crate::buffer::cascade::Cascade;
use crate::page::NodeId;
use crate::page::node::{Node, Shape};
use crate::store::NodeStore;

/// What a walk finds out about the nodes that are less than half full.
#[derive(Default)]
pub(crate) struct Underfull {
    /// The way to the node that is visited.
    way: Vec<NodeId>,
    /// The way to each.
    pub leaves: Vec<Vec<NodeId>>,
    pub inner: Vec<Vec<NodeId>>,
    last_leaf: Option<NodeId>,
}

impl Underfull {
    /// Visits a node, parents before children, in order of key.
    pub fn visit(&mut self, root_level: u8, shape: Shape, id: NodeId, node: &Node) {
        self.way.truncate(usize::from(root_level - node.level()));
        self.way.push(id);
        let is_underfull = self.way.len() > 1 && shape.underflows(node);
        match node {
            Node::Leaf(_) => {
                self.last_leaf = Some(id);
                self.leaves.extend(is_underfull.then(|| self.way.clone()));
            }
            Node::Inner(_) => self.inner.extend(is_underfull.then(|| self.way.clone())),
        }
    }

    /// Forgets the last leaf, which may be less than half full.
    pub fn without_last(mut self) -> Self {
        self.leaves.retain(|way| way.last() != self.last_leaf.as_ref());
        self
    }

    /// The lowest one.
    pub fn lowest(self) -> Option<Vec<NodeId>> {
        let inner = self.inner.into_iter().max_by_key(Vec::len);
        self.leaves.into_iter().next().or(inner)
    }
}

/// Makes the path to a node, and on to the last leaf below it, the memory nodes.
pub(crate) fn load(cascade: &mut Cascade, way: &[NodeId]) -> Result<()> {
    // The way begins with the root.
    let mut way = way.iter().copied().skip(1);
    let mut next = Some(cascade.root().id);
    while cascade.path.len() < cascade.height() {
        let Some(id) = next else { break };
        cascade.load(id)?;
        let last = match cascade.path.last().map(|memory| &*memory.node) {
            Some(Node::Inner(inner)) => inner.children.last().copied(),
            _ => None,
        };
        next = way.next().or(last);
    }
    Ok(())
}
