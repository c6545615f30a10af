//! Nodes in memory, level by level: for bulk loads that have to know all nodes before they write the first.

use crate::page::node::{Node, Shape};
use crate::page::{Key, NodeId};
use crate::store::{NodeStore, Root};
use crate::{Counters, Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// See the module.
pub(crate) struct Collected {
    pub root: Root,
    pub next_id: u64,
    /// Nodes of each level from left to right, and the lowest key of each.
    pub levels: Vec<Vec<(Key, NodeId, Arc<Node>)>>,
    lows: HashMap<NodeId, Key>,
    shape: Shape,
}

impl Collected {
    pub fn new(shape: Shape) -> Self {
        Self {
            root: Root { id: NodeId(0), level: 0 },
            next_id: 1,
            levels: Vec::new(),
            lows: HashMap::new(),
            shape,
        }
    }
}

impl NodeStore for Collected {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn root(&self) -> Root {
        self.root
    }

    fn set_root(&mut self, root: Root) {
        self.root = root;
    }

    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        let mut all = self.levels.iter().flatten();
        let found = all.find(|(_, found, _)| *found == id).map(|(.., node)| Arc::clone(node));
        found.ok_or_else(|| Error::broken(format!("{id} was not collected")))
    }

    fn read_many(&self, ids: &[NodeId]) -> Result<Vec<Arc<Node>>> {
        ids.iter().map(|id| self.read(*id)).collect()
    }

    /// Nodes come in order of key, those of a level below first.
    fn write(&mut self, id: NodeId, node: Node) -> Result<()> {
        let level = usize::from(node.level());
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        let low = match &node {
            // The first of a level is for all keys below the next one's.
            _ if self.levels[level].is_empty() => 0,
            Node::Leaf(leaf) => leaf.entries.first().map_or(0, |entry| entry.0),
            Node::Inner(inner) => self.lows.get(&inner.children[0]).copied().unwrap_or(0),
        };
        self.lows.insert(id, low);
        self.levels[level].push((low, id, Arc::new(node)));
        Ok(())
    }

    fn allocate(&mut self) -> NodeId {
        self.next_id += 1;
        NodeId(self.next_id - 1)
    }

    fn free(&mut self, _: NodeId) -> Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
