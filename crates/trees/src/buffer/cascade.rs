//! The cascade: one node of each level in memory, on the path of the last update. (CB-tree, Applied Sciences 2020, sections
//! 3.1 and 3.5.)
//!
//! Invariants:
//! 1. The memory nodes are a chain from the root down: each is a child of the one before it. Between operations it reaches a
//!    leaf.
//! 2. A memory node that is not dirty is what the device has.
//! 3. What [`NodeStore::read`] returns is the memory node, if there is one.

use crate::page::NodeId;
use crate::page::node::{Inner, Leaf, Node, Shape};
use crate::store::placement::Placement;
use crate::store::{NodeStore, Root};
use crate::{Counters, Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A node of the cascade.
#[derive(Clone, Debug)]
pub(crate) struct MemoryNode {
    pub id: NodeId,
    pub node: Arc<Node>,
    /// The device does not have it like this.
    pub dirty: bool,
    /// A leaf that was filled in ascending order only, since it was begun in memory.
    pub ascending: bool,
}

impl MemoryNode {
    /// A node that the device does not have.
    pub fn new(id: NodeId, node: Node) -> Self {
        Self { id, node: Arc::new(node), dirty: true, ascending: false }
    }

    /// The leaf, to be changed.
    pub fn leaf_mut(&mut self) -> Result<&mut Leaf> {
        self.dirty = true;
        match Arc::make_mut(&mut self.node) {
            Node::Leaf(leaf) => Ok(leaf),
            Node::Inner(_) => Err(Error::broken(format!("{} is no leaf", self.id))),
        }
    }

    /// The inner node, to be changed.
    pub fn inner_mut(&mut self) -> Result<&mut Inner> {
        self.dirty = true;
        match Arc::make_mut(&mut self.node) {
            Node::Inner(inner) => Ok(inner),
            Node::Leaf(_) => Err(Error::broken(format!("{} is a leaf", self.id))),
        }
    }
}

/// See the module.
pub(crate) struct Cascade {
    store: Placement,
    shape: Shape,
    root: Root,
    /// The root first.
    pub path: Vec<MemoryNode>,
    hits: AtomicU64,
    commits: u64,
}

impl Cascade {
    /// Nothing in memory yet.
    pub fn new(store: Placement, shape: Shape) -> Self {
        let root = store.durable_root();
        Self { store, shape, root, path: Vec::new(), hits: AtomicU64::new(0), commits: 0 }
    }

    pub fn store(&self) -> &Placement {
        &self.store
    }

    pub fn store_mut(&mut self) -> &mut Placement {
        &mut self.store
    }

    /// Levels of the tree.
    pub fn height(&self) -> usize {
        usize::from(self.root.level) + 1
    }

    /// Memory nodes that were used for an update, in place of reads.
    pub fn hit(&self, nodes: usize) {
        self.hits.fetch_add(nodes as u64, Relaxed);
    }

    /// Reads a node from the device, as the next of the chain.
    pub fn load(&mut self, id: NodeId) -> Result<()> {
        let level = self.height() - 1 - self.path.len();
        let node = self.read_flash(id)?;
        if usize::from(node.level()) != level {
            return Err(Error::broken(format!("{id} is of level {}, not {level}", node.level())));
        }
        self.path.push(MemoryNode { id, node: Arc::new(node), dirty: false, ascending: false });
        Ok(())
    }

    /// Reads a node from the device.
    pub fn read_flash(&self, id: NodeId) -> Result<Node> {
        Ok(self.store.read_pages(&[id])?.remove(0))
    }

    /// Writes nodes to the device with one psync.
    pub fn write_flash(&mut self, nodes: &[(NodeId, &Node)]) -> Result<()> {
        self.store.write_pages(nodes)
    }

    /// Writes all dirty memory nodes with one psync, and makes the tree as it is now durable.
    pub fn commit(&mut self) -> Result<()> {
        let dirty: Vec<_> =
            self.path.iter().rev().filter(|node| node.dirty).map(|node| (node.id, &*node.node)).collect();
        if !dirty.is_empty() {
            self.store.write_pages(&dirty)?;
        }
        self.store.commit(self.root)?;
        self.path.iter_mut().for_each(|node| node.dirty = false);
        self.commits += 1;
        Ok(())
    }

    /// Verifies the chain, and that what is not dirty is on the device.
    pub fn check(&self) -> Result<()> {
        let broken = |what: String| Err(Error::broken(what));
        if self.path.len() != self.height() {
            return broken(format!("{} memory nodes of {} levels", self.path.len(), self.height()));
        }
        if self.path[0].id != self.root.id {
            return broken(format!(
                "the root is {}, the first memory node {}",
                self.root.id, self.path[0].id
            ));
        }
        for pair in self.path.windows(2) {
            if !pair[0].node.as_inner()?.children.contains(&pair[1].id) {
                return broken(format!("{} is no child of {}", pair[1].id, pair[0].id));
            }
        }
        for memory in self.path.iter().filter(|memory| !memory.dirty) {
            if self.read_flash(memory.id)? != *memory.node {
                return broken(format!("{} is not dirty, and not what the device has", memory.id));
            }
        }
        Ok(())
    }

    pub fn commits(&self) -> u64 {
        self.commits
    }
}

impl NodeStore for Cascade {
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
        if let Some(memory) = self.path.iter().find(|memory| memory.id == id) {
            self.hit(1);
            return Ok(Arc::clone(&memory.node));
        }
        Ok(Arc::new(self.read_flash(id)?))
    }

    fn read_many(&self, ids: &[NodeId]) -> Result<Vec<Arc<Node>>> {
        ids.iter().map(|id| self.read(*id)).collect()
    }

    fn write(&mut self, id: NodeId, node: Node) -> Result<()> {
        match self.path.iter_mut().find(|memory| memory.id == id) {
            Some(memory) => {
                (memory.node, memory.dirty) = (Arc::new(node), true);
                Ok(())
            }
            None => self.store.write_pages(&[(id, &node)]),
        }
    }

    fn write_many(&mut self, nodes: Vec<(NodeId, Node)>) -> Result<()> {
        let nodes: Vec<_> = nodes.iter().map(|(id, node)| (*id, node)).collect();
        self.store.write_pages(&nodes)
    }

    fn allocate(&mut self) -> NodeId {
        self.store.allocate()
    }

    fn free(&mut self, id: NodeId) -> Result<()> {
        self.store.free(id);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.commit()
    }

    fn counters(&self) -> Counters {
        let entries: usize = self.path.iter().map(|memory| memory.node.count()).sum();
        let counters = self.store.counters();
        Counters {
            hits: self.hits.load(Relaxed),
            flushes: self.commits,
            memory: counters.memory + 16 * entries as u64,
            ..counters
        }
    }
}
