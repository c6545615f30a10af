//! Leaves with log nodes: what was done to a leaf since it was written stands on a page of its own, and a table says which.
//! (LSB-tree: Kim and Lee, Des. Autom. Embed. Syst. 19, 2015.)
//!
//! Invariants:
//! 1. A leaf is what its page and its log node say together. It has one log node or none.
//! 2. A log node may be a leaf itself: if the tree has its id as a child. Then nothing in it is deleted.
//! 3. Of the log nodes on flash that name a leaf, the leaf's is the newest that is not in the tree, was written after the leaf,
//!    and has keys of the leaf's range alone. (One that became a leaf and was merged away later has keys beyond that range,
//!    which only shrinks as long as the leaf is not written again.)
//! 4. Everything is committed operation by operation: what waits in memory is nothing but the copy of one log node. An
//!    operation that is refused, since the flash is full, has changed nothing.

use crate::page::log_node::LogNode;
use crate::page::node::{Leaf, Node, Shape};
use crate::page::{Key, NodeId};
use crate::store::Root;
use crate::store::flash_nodes::{Body, FlashNodes, Stored};
use crate::store::nodes::{Limits, Nodes, Rewrite};
use crate::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

/// See the module.
pub(crate) struct LeafLogStore {
    nodes: FlashNodes,
    shape: Shape,
    root: Root,
    logs: HashMap<NodeId, NodeId>,
    change: Change,
    /// The log node that was written last, with its id.
    staged: Option<(NodeId, LogNode)>,
}

/// What an operation has changed so far, to be done when it ends, or forgotten.
#[derive(Default)]
struct Change {
    /// Nodes to be written, children before parents.
    pending: Vec<(NodeId, Node)>,
    /// Their ids, if they are new.
    allocated: Vec<NodeId>,
    /// Nodes that are not needed any more.
    freed: Vec<NodeId>,
    /// Leaves that have no log node any more.
    unlogged: Vec<NodeId>,
    /// Whether leaves are among what is written: then the copy of a log node is given up.
    has_leaves: bool,
}

impl LeafLogStore {
    /// Over a store with nothing in it, or as it was opened; then [`Self::find`] has to follow.
    pub fn new(nodes: FlashNodes, shape: Shape) -> Self {
        let root = nodes.durable_root();
        Self { nodes, shape, root, logs: HashMap::new(), change: Change::default(), staged: None }
    }

    /// After opening: finds the tree and the log nodes of its leaves.
    pub fn find(&mut self) -> Result<()> {
        let mut leaves = HashMap::new();
        let mut kept = HashSet::new();
        self.visit(self.root, (Bound::Unbounded, Bound::Unbounded), &mut kept, &mut leaves)?;
        let mut newest: HashMap<NodeId, (u64, NodeId)> = HashMap::new();
        let others: Vec<NodeId> = self.nodes.ids().filter(|id| !kept.contains(id)).collect();
        for id in others {
            // A page that cannot be read is of no node that counts, or the digest will not agree.
            let Ok(Stored::Log(log)) = self.nodes.read(id) else { continue };
            let (written, of_leaf) = (self.nodes.written(id), self.nodes.written(log.leaf));
            let Some(range) = leaves.get(&log.leaf) else { continue };
            let inside = log.entries.iter().all(|entry| std::ops::RangeBounds::contains(range, &entry.0));
            if let Some(written) = written.filter(|_| inside && written > of_leaf) {
                let known = newest.entry(log.leaf).or_insert((written, id));
                *known = (*known).max((written, id));
            }
        }
        self.logs = newest.into_iter().map(|(leaf, (_, log))| (leaf, log)).collect();
        kept.extend(self.logs.values());
        self.nodes.keep(&kept)
    }

    fn visit(
        &self,
        at: Root,
        range: (Bound<Key>, Bound<Key>),
        kept: &mut HashSet<NodeId>,
        leaves: &mut HashMap<NodeId, (Bound<Key>, Bound<Key>)>,
    ) -> Result<()> {
        if !kept.insert(at.id) {
            return Err(Error::broken(format!("{} has two parents", at.id)));
        }
        if at.level == 0 {
            leaves.insert(at.id, range);
            return Ok(());
        }
        let node = self.nodes.read_node(at.id)?;
        let inner = node.as_inner()?;
        if inner.level != at.level {
            return Err(Error::broken(format!("{} is of level {}, not {}", at.id, inner.level, at.level)));
        }
        for (index, child) in inner.children.iter().enumerate() {
            let low = index.checked_sub(1).map_or(range.0, |before| Bound::Included(inner.fences[before]));
            let high = inner.fence_above(index).map_or(range.1, Bound::Excluded);
            self.visit(Root { id: *child, level: at.level - 1 }, (low, high), kept, leaves)?;
        }
        Ok(())
    }

    pub fn nodes(&self) -> &FlashNodes {
        &self.nodes
    }

    /// The log nodes of leaves.
    pub fn logs(&self) -> &HashMap<NodeId, NodeId> {
        &self.logs
    }

    /// A leaf as its page alone has it.
    pub fn bare_leaf(&self, id: NodeId) -> Result<Leaf> {
        match self.nodes.read(id)? {
            Stored::Node(node) => Ok(node.as_leaf()?.clone()),
            Stored::Log(log) => log.as_leaf(),
        }
    }

    /// The log node of a leaf, and its id, if there is one.
    pub fn log_of(&self, leaf: NodeId) -> Result<Option<(NodeId, LogNode)>> {
        let Some(id) = self.logs.get(&leaf).copied() else { return Ok(None) };
        if let Some(staged) = self.staged.as_ref().filter(|staged| staged.0 == id) {
            return Ok(Some(staged.clone()));
        }
        match self.nodes.read(id)? {
            Stored::Log(log) if log.leaf == leaf => Ok(Some((id, log))),
            _ => Err(Error::broken(format!("{id} is not the log of leaf {}", leaf.0))),
        }
    }

    pub fn allocate(&mut self) -> NodeId {
        self.nodes.allocate()
    }

    /// Writes a log node: one page. Its id is the one that the leaf's log node has, or a new one.
    pub fn write_log(&mut self, id: NodeId, log: LogNode) -> Result<()> {
        let written = self.nodes.write(&[(id, Body::Log(&log))], Some(self.root));
        if written.is_ok() {
            self.logs.insert(log.leaf, id);
            self.staged = Some((id, log));
        } else if self.logs.get(&log.leaf) != Some(&id) {
            self.nodes.free(id);
        }
        written
    }

    /// The log node of a leaf becomes a leaf of its own, once that is committed. The parent is still to be told.
    pub fn promote(&mut self, leaf: NodeId) {
        self.change.unlogged.push(leaf);
    }

    /// Writes what was rewritten, and commits it.
    pub fn commit(&mut self) -> Result<()> {
        let Change { pending, freed, .. } = &self.change;
        let bodies: Vec<_> = pending.iter().map(|(id, node)| (*id, Body::Node(node))).collect();
        self.nodes.write_and_free(&bodies, freed, Some(self.root))?;
        let Change { unlogged, has_leaves, .. } = std::mem::take(&mut self.change);
        for leaf in unlogged {
            let log = self.logs.remove(&leaf);
            self.staged.take_if(|staged| has_leaves || Some(staged.0) == log);
        }
        Ok(())
    }

    /// Forgets what was changed since the last commit.
    pub fn abandon(&mut self) {
        let change = std::mem::take(&mut self.change);
        change.allocated.into_iter().for_each(|id| self.nodes.free(id));
        self.root = self.nodes.durable_root();
    }
}

impl Nodes for LeafLogStore {
    fn root(&self) -> Root {
        self.root
    }

    /// Leaves with what their log nodes say.
    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        let log = self.log_of(id)?;
        let node = match self.nodes.read(id)? {
            Stored::Node(node) => node,
            Stored::Log(log) => Node::Leaf(log.as_leaf()?),
        };
        Ok(Arc::new(match log {
            Some((_, log)) => Node::Leaf(log.applied(node.as_leaf()?)),
            None => node,
        }))
    }

    fn limits(&self, level: u8, _: u8) -> Limits {
        Limits::of(if level == 0 { self.shape.records } else { self.shape.fanout })
    }
}

impl Rewrite for LeafLogStore {
    /// Ids stay as long as there are nodes for them. Log nodes of leaves that are replaced are used up.
    fn replace(&mut self, level: u8, old: &[NodeId], new: Vec<Node>) -> Result<Vec<NodeId>> {
        if level == 0 {
            self.change.freed.extend(old.iter().filter_map(|leaf| self.logs.get(leaf)));
            self.change.unlogged.extend(old);
            self.change.has_leaves = true;
        }
        self.change.freed.extend(old.iter().skip(new.len()));
        let mut reused = old.iter().copied();
        let mut ids = Vec::with_capacity(new.len());
        for node in new {
            let id = reused.next().unwrap_or_else(|| {
                let id = self.nodes.allocate();
                self.change.allocated.push(id);
                id
            });
            ids.push(id);
            self.change.pending.push((id, node));
        }
        Ok(ids)
    }

    fn set_root(&mut self, root: Root) {
        self.root = root;
    }
}
