//! A write buffer of nodes with a cache of clean ones beside it, in front of any store: what nodes that go to the end of a
//! file and nodes in place have in common, so that the two differ in nothing but where a full buffer goes.
//!
//! Invariants:
//! 1. A node is in the write buffer or in the cache, not in both.
//! 2. What is read is what was last written.

use crate::Result;
use crate::buffer::write_buffer::WriteBuffer;
use crate::page::NodeId;
use crate::page::node::Node;
use lru::LruCache;
use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// What was asked of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub reads: u64,
    /// Of the reads, those of nodes in the write buffer.
    pub read_hits: u64,
    /// Of the reads, those of nodes in the cache.
    pub cache_hits: u64,
    pub writes: u64,
    /// Of the writes, those of nodes that were in the write buffer.
    pub write_hits: u64,
}

/// See the module.
pub(crate) struct BufferedNodes {
    slots: WriteBuffer,
    clean: Mutex<Clean>,
}

struct Clean {
    cache: Option<LruCache<NodeId, Arc<Node>>>,
    asked: Asked,
}

impl BufferedNodes {
    /// Empty, with a cache of so many nodes.
    pub fn new(cached: usize) -> Self {
        let cache = NonZeroUsize::new(cached).map(LruCache::new);
        Self { slots: WriteBuffer::default(), clean: Mutex::new(Clean { cache, asked: Asked::default() }) }
    }

    /// Nodes in the order asked; those that are not here are read at once by `read`.
    pub fn read_many(
        &self,
        ids: &[NodeId],
        read: impl FnOnce(&[NodeId]) -> Result<Vec<Node>>,
    ) -> Result<Vec<Arc<Node>>> {
        let mut clean = self.clean.lock();
        let Clean { cache, asked } = &mut *clean;
        let mut missing = Vec::new();
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            asked.reads += 1;
            let node = if let Some(node) = self.slots.get(*id) {
                asked.read_hits += 1;
                Some(Arc::clone(node))
            } else if let Some(node) = cache.as_mut().and_then(|cache| cache.get(id)).map(Arc::clone) {
                asked.cache_hits += 1;
                Some(node)
            } else {
                missing.push(*id);
                None
            };
            found.push(node);
        }
        let mut read = if missing.is_empty() { Vec::new() } else { read(&missing)? }.into_iter();
        for (id, found) in ids.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            *found = read.next().map(Arc::new);
            if let (Some(cache), Some(node)) = (&mut *cache, &found) {
                cache.put(*id, Arc::clone(node));
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Puts a changed node into its slot, or a new one. It leaves the cache, whose room is better used: slots are asked first.
    pub fn write(&mut self, id: NodeId, node: Node) {
        let clean = self.clean.get_mut();
        if let Some(cache) = &mut clean.cache {
            cache.pop(&id);
        }
        clean.asked.writes += 1;
        clean.asked.write_hits += u64::from(self.slots.put(id, Arc::new(node)));
    }

    /// Forgets a node. `on_device`: a copy is there, and the device must be told.
    pub fn free(&mut self, id: NodeId, on_device: bool) {
        if let Some(cache) = &mut self.clean.get_mut().cache {
            cache.pop(&id);
        }
        self.slots.free(id, on_device);
    }

    /// Empties the write buffer: nodes in the order in which they came, and freed ids.
    pub fn take(&mut self) -> (Vec<(NodeId, Arc<Node>)>, Vec<NodeId>) {
        self.slots.take()
    }

    /// What was taken is on the device now.
    pub fn written(&mut self, nodes: Vec<(NodeId, Arc<Node>)>) {
        if let Some(cache) = &mut self.clean.get_mut().cache {
            nodes.into_iter().for_each(|(id, node)| {
                cache.put(id, node);
            });
        }
    }

    /// The write buffer.
    pub fn slots(&self) -> &WriteBuffer {
        &self.slots
    }

    /// Nodes in memory.
    pub fn held(&self) -> usize {
        self.slots.len() + self.clean.lock().cache.as_ref().map_or(0, LruCache::len)
    }

    pub fn asked(&self) -> Asked {
        self.clean.lock().asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::node::Leaf;

    fn leaf(key: u64) -> Node {
        Node::Leaf(Leaf { entries: vec![(key, key)], next: None })
    }

    #[test]
    fn a_changed_node_is_read_from_its_slot_and_a_clean_one_from_the_cache() {
        let mut nodes = BufferedNodes::new(2);
        let ids = [1, 2, 3].map(NodeId);
        let from_device = |ids: &[NodeId]| Ok(ids.iter().map(|id| leaf(id.0)).collect());
        let never = |ids: &[NodeId]| panic!("{ids:?} are here");
        // The cache has room for the last two.
        nodes.read_many(&ids, from_device).unwrap();
        assert_eq!(*nodes.read_many(&ids[1..], never).unwrap()[1], leaf(3));
        nodes.write(ids[1], leaf(20));
        nodes.write(ids[1], leaf(21));
        assert_eq!((nodes.held(), nodes.slots().len()), (2, 1));
        let missing = |missing: &[NodeId]| {
            assert_eq!(missing, &ids[..1]);
            from_device(missing)
        };
        let found = nodes.read_many(&[ids[1], ids[0], ids[2]], missing).unwrap();
        assert_eq!(
            found.iter().map(|node| (**node).clone()).collect::<Vec<_>>(),
            [leaf(21), leaf(1), leaf(3)]
        );
        let Asked { reads, read_hits, cache_hits, writes, write_hits } = nodes.asked();
        assert_eq!((reads, read_hits, cache_hits, writes, write_hits), (8, 1, 3, 2, 1));
        let (taken, freed) = nodes.take();
        assert_eq!((taken.len(), freed), (1, Vec::new()));
        nodes.written(taken);
        assert_eq!(*nodes.read_many(&ids[1..2], never).unwrap()[0], leaf(21));
        nodes.free(ids[1], true);
        assert_eq!((nodes.held(), nodes.take().1), (1, vec![ids[1]]));
    }
}
