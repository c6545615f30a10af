//! Nodes in place whose writes wait in the AS B-tree's write buffer: a full one goes to the device, each node to its own
//! page. What the AS B-tree paper compares its tree with (JISE 2014, section 4.1, table 2), so that the only difference is
//! where the nodes go.
//!
//! Invariants:
//! 1. The write buffer is written when an operation has ended, never in the middle of one.
//! 2. A node is in the write buffer or in the cache, not in both; what [`NodeStore::read`] returns is what was last written.

use crate::buffer::buffered_nodes::{Asked, BufferedNodes};
use crate::page::NodeId;
use crate::page::node::{Node, Shape};
use crate::store::in_place::InPlaceStore;
use crate::store::{NodeStore, Root};
use crate::{Counters, Result};
use std::sync::Arc;

/// See the module.
pub(crate) struct InPlaceBatches {
    store: InPlaceStore,
    shape: Shape,
    root: Root,
    nodes: BufferedNodes,
    slots_max: usize,
    /// Write a full buffer with one psync, not node by node.
    parallel: bool,
    flushes: u64,
}

impl InPlaceBatches {
    /// A write buffer of `slots` nodes and a cache of `cached` in front of `store`.
    pub fn new(store: InPlaceStore, shape: Shape, slots: usize, cached: usize, parallel: bool) -> Self {
        Self {
            root: store.durable_root(),
            store,
            shape,
            nodes: BufferedNodes::new(cached),
            slots_max: slots,
            parallel,
            flushes: 0,
        }
    }

    pub fn store_mut(&mut self) -> &mut InPlaceStore {
        &mut self.store
    }

    pub fn asked(&self) -> Asked {
        self.nodes.asked()
    }

    fn flush(&mut self) -> Result<()> {
        // Freed pages are known to be free as soon as they are freed.
        let (nodes, _) = self.nodes.take();
        if self.parallel {
            self.store.write_pages(nodes.iter().map(|(id, node)| (*id, &**node)))?;
        } else {
            for (id, node) in &nodes {
                self.store.write_pages([(*id, &**node)])?;
            }
        }
        self.flushes += 1;
        self.nodes.written(nodes);
        Ok(())
    }
}

impl NodeStore for InPlaceBatches {
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
        Ok(self.read_many(&[id])?.remove(0))
    }

    fn read_many(&self, ids: &[NodeId]) -> Result<Vec<Arc<Node>>> {
        self.nodes.read_many(ids, |missing| self.store.read_pages(missing))
    }

    fn write(&mut self, id: NodeId, node: Node) -> Result<()> {
        self.nodes.write(id, node);
        Ok(())
    }

    fn write_many(&mut self, nodes: Vec<(NodeId, Node)>) -> Result<()> {
        self.store.write_pages(nodes.iter().map(|(id, node)| (*id, node)))
    }

    fn allocate(&mut self) -> NodeId {
        self.store.allocate()
    }

    fn free(&mut self, id: NodeId) -> Result<()> {
        self.nodes.free(id, false);
        self.store.free(id);
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if self.nodes.slots().len() >= self.slots_max { self.flush() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<()> {
        if self.nodes.slots().len() > 0 {
            self.flush()?;
        }
        self.store.sync(self.root)
    }

    fn counters(&self) -> Counters {
        let asked = self.asked();
        Counters {
            hits: asked.read_hits + asked.cache_hits,
            flushes: self.flushes,
            memory: (self.nodes.held() * self.store.page_len()) as u64,
            ..self.store.counters()
        }
    }
}
