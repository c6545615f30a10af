//! Nodes in place whose writes wait in the AS B-tree's write buffer: a full one goes to the device, each node to its own
//! page. What the AS B-tree paper compares its tree with (JISE 2014, section 4.1, table 2), so that the only difference is
//! where the nodes go.
//!
//! Invariants:
//! 1. The write buffer is written when an operation has ended, never in the middle of one.
//! 2. A node is in the write buffer or in the cache, not in both; what [`NodeStore::read`] returns is what was last written.

use crate::buffer::write_buffer::WriteBuffer;
use crate::page::NodeId;
use crate::page::node::{Node, Shape};
use crate::store::in_place::InPlaceStore;
use crate::store::{NodeStore, Root};
use crate::{Counters, Result};
use lru::LruCache;
use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Buffered {
    pub reads: u64,
    pub read_hits: u64,
    pub cache_hits: u64,
    pub writes: u64,
    pub write_hits: u64,
    pub flushes: u64,
}

/// See the module.
pub(crate) struct InPlaceBatches {
    store: InPlaceStore,
    shape: Shape,
    root: Root,
    slots: WriteBuffer,
    slots_max: usize,
    /// Write a full buffer with one psync, not node by node.
    parallel: bool,
    reads: Mutex<Reads>,
    done: Buffered,
}

struct Reads {
    cache: Option<LruCache<NodeId, Arc<Node>>>,
    reads: u64,
    read_hits: u64,
    cache_hits: u64,
}

impl InPlaceBatches {
    /// A write buffer of `slots` nodes and a cache of `cached` in front of `store`.
    pub fn new(store: InPlaceStore, shape: Shape, slots: usize, cached: usize, parallel: bool) -> Self {
        let cache = NonZeroUsize::new(cached).map(LruCache::new);
        Self {
            root: store.durable_root(),
            store,
            shape,
            slots: WriteBuffer::default(),
            slots_max: slots,
            parallel,
            reads: Mutex::new(Reads { cache, reads: 0, read_hits: 0, cache_hits: 0 }),
            done: Buffered::default(),
        }
    }

    pub fn store_mut(&mut self) -> &mut InPlaceStore {
        &mut self.store
    }

    pub fn done(&self) -> Buffered {
        let Reads { reads, read_hits, cache_hits, .. } = *self.reads.lock();
        Buffered { reads, read_hits, cache_hits, ..self.done }
    }

    fn flush(&mut self) -> Result<()> {
        // Freed pages are known to be free as soon as they are freed.
        let (nodes, _) = self.slots.take();
        if self.parallel {
            self.store.write_pages(nodes.iter().map(|(id, node)| (*id, &**node)))?;
        } else {
            for (id, node) in &nodes {
                self.store.write_pages([(*id, &**node)])?;
            }
        }
        self.done.flushes += 1;
        if let Some(cache) = &mut self.reads.lock().cache {
            nodes.into_iter().for_each(|(id, node)| {
                cache.put(id, node);
            });
        }
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
        let mut reads = self.reads.lock();
        let mut missing = Vec::new();
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            reads.reads += 1;
            let node = if let Some(node) = self.slots.get(*id) {
                reads.read_hits += 1;
                Some(Arc::clone(node))
            } else if let Some(node) = reads.cache.as_mut().and_then(|cache| cache.get(id)).map(Arc::clone) {
                reads.cache_hits += 1;
                Some(node)
            } else {
                missing.push(*id);
                None
            };
            found.push(node);
        }
        let mut read =
            if missing.is_empty() { Vec::new() } else { self.store.read_pages(&missing)? }.into_iter();
        for (id, found) in ids.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            *found = read.next().map(Arc::new);
            if let (Some(cache), Some(node)) = (&mut reads.cache, &found) {
                cache.put(*id, Arc::clone(node));
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn write(&mut self, id: NodeId, node: Node) -> Result<()> {
        if let Some(cache) = &mut self.reads.lock().cache {
            cache.pop(&id);
        }
        self.done.writes += 1;
        self.done.write_hits += u64::from(self.slots.put(id, Arc::new(node)));
        Ok(())
    }

    fn write_many(&mut self, nodes: Vec<(NodeId, Node)>) -> Result<()> {
        self.store.write_pages(nodes.iter().map(|(id, node)| (*id, node)))
    }

    fn allocate(&mut self) -> NodeId {
        self.store.allocate()
    }

    fn free(&mut self, id: NodeId) -> Result<()> {
        if let Some(cache) = &mut self.reads.lock().cache {
            cache.pop(&id);
        }
        self.slots.free(id, false);
        self.store.free(id);
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if self.slots.len() >= self.slots_max { self.flush() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<()> {
        if self.slots.len() > 0 {
            self.flush()?;
        }
        self.store.sync(self.root)
    }

    fn counters(&self) -> Counters {
        let reads = self.reads.lock();
        let held = self.slots.len() + reads.cache.as_ref().map_or(0, LruCache::len);
        Counters {
            hits: reads.read_hits + reads.cache_hits,
            flushes: self.done.flushes,
            memory: (held * self.store.page_len()) as u64,
            ..self.store.counters()
        }
    }
}
