//! The B+-tree that the AS B-tree paper compares itself with (JISE 30, 2014, section 4.1): in place, with the same write
//! buffer as the AS B-tree and the same cache, so that they differ in nothing but where a full buffer goes: each node to its
//! own page here, one after the other. The [tree in place](crate::InPlaceTree) with this buffer.

use crate::buffer::in_place_batches::InPlaceBatches;
use crate::page::node::Shape;
use crate::store::in_place::InPlaceStore;
use crate::system::in_place_tree::{InPlaceOptions, InPlaceTree};
use crate::{Error, Result};

/// What a [`BatchedBTree`] is built with.
#[derive(Clone, Debug)]
pub struct BatchedBTreeOptions {
    /// Bytes of a node, a power of two from 128 on.
    pub page_len: usize,
    /// F: most keys in a node, from 4 on; `None` for as many as a node holds.
    pub keys_max: Option<usize>,
    /// Nodes in the write buffer, 1 to 16384.
    pub slots: usize,
    /// Nodes in the cache of nodes that were read or written; 0 for none.
    pub cached: usize,
    /// Write a full buffer as one set; the published one writes node after node.
    pub parallel: bool,
}

impl Default for BatchedBTreeOptions {
    fn default() -> Self {
        Self { page_len: 8192, keys_max: Some(256), slots: 32, cached: 0, parallel: false }
    }
}

/// What a [`BatchedBTree`] has done besides [`Index::stats`](crate::Index::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchedBTreeDetails {
    /// Nodes that were asked for.
    pub reads: u64,
    /// Of them, those found in the write buffer.
    pub read_hits: u64,
    /// Of them, those found in the cache.
    pub cache_hits: u64,
    /// Nodes that were changed.
    pub writes: u64,
    /// Of them, those that were in the write buffer already.
    pub write_hits: u64,
}

impl InPlaceOptions for BatchedBTreeOptions {
    const NAME: &'static str = "B+-tree with a write buffer";
    const FILE: &'static str = "batched-btree";

    type Pool = InPlaceBatches;

    fn node(&self) -> (usize, Option<usize>) {
        (self.page_len, self.keys_max)
    }

    /// Key by key, as the published one.
    fn pio_max(&self) -> usize {
        1
    }

    fn pool(&self, store: InPlaceStore, shape: Shape) -> Result<InPlaceBatches> {
        let slots = self.slots;
        if !(1..=1 << 14).contains(&slots) {
            return Err(Error::Invalid(format!("a write buffer of {slots} nodes: 1 to 16384")));
        }
        Ok(InPlaceBatches::new(store, shape, slots, self.cached, self.parallel))
    }

    fn store(pool: &mut InPlaceBatches) -> &mut InPlaceStore {
        pool.store_mut()
    }
}

/// See the module.
pub type BatchedBTree = InPlaceTree<BatchedBTreeOptions>;

impl BatchedBTree {
    /// What it has done besides [`Index::stats`](crate::Index::stats).
    pub fn details(&self) -> BatchedBTreeDetails {
        let asked = self.nodes.asked();
        BatchedBTreeDetails {
            reads: asked.reads,
            read_hits: asked.read_hits,
            cache_hits: asked.cache_hits,
            writes: asked.writes,
            write_hits: asked.write_hits,
        }
    }
}
