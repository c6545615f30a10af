//! The B+-tree that the AS B-tree paper compares itself with (JISE 30, 2014, section 4.1): in place, with the same write
//! buffer as the AS B-tree and the same cache, so that they differ in nothing but where a full buffer goes: each node to its
//! own page here, one after the other.

use crate::buffer::in_place_batches::InPlaceBatches;
use crate::index::{Checked, Contract, Index};
use crate::page::node::{Node, Shape};
use crate::read::walk::{Allow, walk};
use crate::read::{scan, search_many};
use crate::store::NodeStore;
use crate::store::in_place::InPlaceStore;
use crate::update::bulk_load::bulk_load;
use crate::update::single::{self, Events};
use crate::{Counters, Error, Key, Result, Value};
use psync::Volume;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

const FILE: &str = "batched-btree";

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

/// What a [`BatchedBTree`] has done besides [`Index::stats`].
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

/// See the module.
pub struct BatchedBTree {
    nodes: InPlaceBatches,
    events: Events,
}

impl BatchedBTree {
    fn over(store: InPlaceStore, options: &BatchedBTreeOptions) -> Result<Self> {
        let BatchedBTreeOptions { slots, cached, parallel, .. } = *options;
        if !(1..=1 << 14).contains(&slots) {
            return Err(Error::Invalid(format!("a write buffer of {slots} nodes: 1 to 16384")));
        }
        let shape = Shape::of_page(options.page_len).limited(options.keys_max);
        let nodes = InPlaceBatches::new(store, shape, slots, cached, parallel);
        Ok(Self { nodes, events: Events::default() })
    }

    /// What it has done besides [`Index::stats`].
    pub fn details(&self) -> BatchedBTreeDetails {
        let done = self.nodes.done();
        BatchedBTreeDetails {
            reads: done.reads,
            read_hits: done.read_hits,
            cache_hits: done.cache_hits,
            writes: done.writes,
            write_hits: done.write_hits,
        }
    }
}

impl Index for BatchedBTree {
    type Options = BatchedBTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &BatchedBTreeOptions) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::create(volume, FILE, options.page_len)?, options)?;
        single::plant(&mut tree.nodes)?;
        tree.flush()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &BatchedBTreeOptions) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::open(volume, FILE, options.page_len)?, options)?;
        let mut used = HashSet::new();
        walk(&tree.nodes, Allow::default(), &mut |id, _: &Node| {
            used.insert(id);
        })?;
        tree.nodes.store_mut().keep_only(&used);
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &BatchedBTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::create(volume, FILE, options.page_len)?, options)?;
        bulk_load(&mut tree.nodes, fill, records)?;
        tree.flush()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "B+-tree with a write buffer"
    }

    fn contract(&self) -> Contract {
        Contract::Never
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        single::insert(&mut self.nodes, key, value, &mut self.events)
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        single::delete(&mut self.nodes, key, &mut self.events).map(|_| ())
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        single::search(&self.nodes, key)
    }

    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        search_many::search_many(&self.nodes, keys, 1)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        scan::scan(&self.nodes, range)
    }

    fn flush(&mut self) -> Result<()> {
        self.nodes.sync()
    }

    fn check(&self) -> Result<Checked> {
        walk(&self.nodes, Allow::default(), &mut |_, _| ())
    }

    fn stats(&self) -> Counters {
        Counters {
            splits: self.events.splits,
            merges: self.events.merges,
            redistributions: self.events.redistributions,
            height: u32::from(self.nodes.root().level) + 1,
            ..self.nodes.counters()
        }
    }
}
