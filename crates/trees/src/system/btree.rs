//! The B+-tree, the baseline of all papers: sorted nodes in place, one page each, behind an LRU buffer pool that writes
//! dirty frames when it evicts them; a range search walks from leaf to leaf.
//!
//! With 0 frames it is the unbuffered B+-tree of the CB-tree paper.

use crate::buffer::frames::Eviction;
use crate::buffer::lru_pool::LruPool;
use crate::index::{Checked, Contract, Index};
use crate::page::node::{Node, Shape};
use crate::read::walk::{Allow, walk};
use crate::read::{scan, search_many};
use crate::store::NodeStore;
use crate::store::in_place::InPlaceStore;
use crate::update::bulk_load::bulk_load;
use crate::update::single::{self, Events};
use crate::{Counters, Key, Result, Value};
use psync::Volume;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

const FILE: &str = "btree";

/// What a B+-tree is built with.
#[derive(Clone, Debug)]
pub struct BTreeOptions {
    /// Bytes of a node, a power of two from 128 on.
    pub page_len: usize,
    /// M: nodes that the buffer pool holds; 0 for none.
    pub frames: usize,
    /// Most keys in a node, if less than a page holds: for tests, and for the papers' node sizes.
    pub keys_max: Option<usize>,
    /// PioMax for [`Index::search_many`]; 1 searches key by key, as the published one does.
    pub pio_max: usize,
    /// What the buffer pool evicts first.
    pub eviction: Eviction,
}

impl Default for BTreeOptions {
    fn default() -> Self {
        Self { page_len: 4096, frames: 4096, keys_max: None, pio_max: 1, eviction: Eviction::Lru }
    }
}

/// See the module.
pub struct BTree {
    nodes: LruPool,
    pio_max: usize,
    events: Events,
}

impl BTree {
    fn over(store: InPlaceStore, options: &BTreeOptions) -> Self {
        let shape = Shape::of_page(options.page_len).limited(options.keys_max);
        let nodes = LruPool::with_eviction(store, shape, options.frames, options.eviction);
        Self { nodes, pio_max: options.pio_max.max(1), events: Events::default() }
    }
}

impl Index for BTree {
    type Options = BTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &BTreeOptions) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::create(volume, FILE, options.page_len)?, options);
        single::plant(&mut tree.nodes)?;
        tree.flush()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &BTreeOptions) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::open(volume, FILE, options.page_len)?, options);
        let mut used = HashSet::new();
        walk(&tree.nodes, Allow::default(), &mut |id, _: &Node| {
            used.insert(id);
        })?;
        tree.nodes.store_mut().keep_only(&used);
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &BTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::create(volume, FILE, options.page_len)?, options);
        bulk_load(&mut tree.nodes, fill, records)?;
        tree.flush()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "B+-tree"
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
        search_many::search_many(&self.nodes, keys, self.pio_max)
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
