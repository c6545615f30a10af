//! The LSB-tree ("log-structured B-tree"): what is inserted goes to a log node of the leaf, written anew as one page, and the
//! nodes above stay as they are. A full log node whose keys all follow the leaf's becomes a leaf, without a split; else leaf
//! and log node are merged. (Kim and Lee, "LSB-Tree: A Log-Structured B-Tree Index Structure for NAND Flash SSDs", Des. Autom.
//! Embed. Syst. 19, 2015. Built from what the CB-tree paper, Applied Sciences 2020, sections 2.4 and 5.2, says of it.)
//!
//! | part | |
//! |---|---|
//! | pages | sorted nodes (`page/node.rs`), log nodes (`page/log_node.rs`) |
//! | placement, collection | nodes by id (`store/flash_nodes.rs`) over a log (`store/flash_log.rs`) |
//! | leaf → log node, recovery by scanning | `store/leaf_logs.rs` |
//! | merges and splits | `update/path_rewrite.rs`, with ids that stay |
//!
//! An insertion reads the nodes above the leaf and the leaf's log node, unless that was the last one written, which is kept in
//! memory; it does not read the leaf. A deletion is a note in the log node. A search reads the log node first, and the leaf
//! only if that says nothing of the key.
//!
//! Contract: an operation that returned is durable.

use crate::index::{Checked, Contract, Index};
use crate::page::NodeId;
use crate::page::log_node::LogNode;
use crate::page::node::{Leaf, Node, Shape};
use crate::read::subtree_scan::subtree_scan;
use crate::read::walk::{Allow, walk};
use crate::store::Root;
use crate::store::flash_nodes::FlashNodes;
use crate::store::leaf_logs::LeafLogStore;
use crate::store::nodes::{Limits, Nodes};
use crate::system::wandering::FlashStats;
use crate::update::load_levels::{load_levels, plant};
use crate::update::path_rewrite::{Split, add_sibling, rewrite, way};
use crate::update::single::Events;
use crate::{Counters, Error, Key, PageUse, Result, Value};
use flash::RawFlash;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

const ALLOW: Allow = Allow { underfull: false, unchained: true };

/// What an LSB-tree is built with.
#[derive(Clone, Debug)]
pub struct LsbTreeOptions {
    /// Bytes of a page that are used, a power of two from 256 to what the flash has.
    pub page_len: usize,
    /// Most keys in a node or log node, from 4 on; `None` for as many as a page holds. The CB-tree paper's experiments have
    /// 128.
    pub keys_max: Option<usize>,
    /// How full nodes are divided. Merged leaves are divided evenly in any case.
    pub split: Split,
}

impl Default for LsbTreeOptions {
    fn default() -> Self {
        Self { page_len: 4096, keys_max: Some(128), split: Split::Even }
    }
}

/// What is peculiar to an LSB-tree, since it was created or recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LsbStats {
    /// What all trees on raw flash count.
    pub flash: FlashStats,
    /// Log nodes that became leaves.
    pub promoted: u64,
    /// Log nodes that were merged with their leaves.
    pub merged: u64,
    /// Log nodes that there are now.
    pub logs: u64,
}

/// See the module.
pub struct LsbTree {
    store: LeafLogStore,
    log_max: usize,
    split: Split,
    events: Events,
    promoted: u64,
    merged: u64,
}

/// Leaves as their pages have them, for the walk.
struct Bare<'a>(&'a LeafLogStore);

impl Nodes for Bare<'_> {
    fn root(&self) -> Root {
        self.0.root()
    }

    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        if self.0.logs().contains_key(&id) {
            return Ok(Arc::new(Node::Leaf(self.0.bare_leaf(id)?)));
        }
        self.0.read(id)
    }

    /// Leaves may be less than half full: see `update/path_rewrite.rs`.
    fn limits(&self, level: u8, height: u8) -> Limits {
        let limits = self.0.limits(level, height);
        if level == 0 { Limits { min: 0, ..limits } } else { limits }
    }
}

impl LsbTree {
    fn over(nodes: FlashNodes, options: &LsbTreeOptions) -> Result<Self> {
        let shape = Shape::of_page(options.page_len).limited(options.keys_max);
        let log_max = LogNode::capacity(options.page_len).min(shape.records);
        if log_max < shape.records.div_ceil(2) {
            return Err(Error::Invalid(format!(
                "pages of {} bytes: a log node of {log_max} entries could not become a leaf; take 256 bytes or more",
                options.page_len
            )));
        }
        let store = LeafLogStore::new(nodes, shape);
        Ok(Self { store, log_max, split: options.split, events: Events::default(), promoted: 0, merged: 0 })
    }

    fn empty(flash: Arc<RawFlash>, options: &LsbTreeOptions) -> Result<Self> {
        Self::over(FlashNodes::create(flash, options.page_len)?, options)
    }

    /// Notes what became of a key. A failure leaves the tree as it was before, but for leaves that were changed to make room.
    fn note(&mut self, key: Key, value: Option<Value>) -> Result<()> {
        let noted = self.note_in_log(key, value);
        if noted.is_err() {
            self.store.abandon();
        }
        noted
    }

    /// Notes what became of a key, in the log node of its leaf.
    fn note_in_log(&mut self, key: Key, value: Option<Value>) -> Result<()> {
        loop {
            let (path, leaf) = way(&self.store, key, 0)?;
            let (id, mut log) = match self.store.log_of(leaf)? {
                Some(found) => found,
                None => (self.store.allocate(), LogNode { leaf, entries: Vec::new() }),
            };
            if log.entries.len() < self.log_max || log.get(key).is_some() {
                log.put(key, value);
                return self.store.write_log(id, log);
            }
            let bare = self.store.bare_leaf(leaf)?;
            let fits = bare.entries.len() + log.entries.len() <= self.store.limits(0, 1).max;
            match log.entries.first() {
                Some((first, _)) if log.follows(&bare) && !fits => {
                    self.promoted += 1;
                    self.store.promote(leaf);
                    add_sibling(&mut self.store, path, (leaf, *first, id), self.split, &mut self.events)?;
                }
                _ => {
                    self.merged += 1;
                    let merged: Leaf = log.applied(&bare);
                    rewrite(&mut self.store, path, leaf, Node::Leaf(merged), None, &mut self.events)?;
                }
            }
            // The leaf that the key belongs to has no log node now.
            self.store.commit()?;
        }
    }

    /// What is peculiar to this system.
    pub fn details(&self) -> LsbStats {
        let log = self.store.nodes().log();
        LsbStats {
            flash: FlashStats::of(log.counts(), log.live_pages()),
            promoted: self.promoted,
            merged: self.merged,
            logs: self.store.logs().len() as u64,
        }
    }
}

impl Index for LsbTree {
    type Options = LsbTreeOptions;
    type Ground = Arc<RawFlash>;

    fn create(flash: Arc<RawFlash>, options: &LsbTreeOptions) -> Result<Self> {
        let mut tree = Self::empty(flash, options)?;
        plant(&mut tree.store)?;
        tree.store.commit()?;
        Ok(tree)
    }

    fn recover(flash: Arc<RawFlash>, options: &LsbTreeOptions) -> Result<Self> {
        let mut tree = Self::over(FlashNodes::open(flash, options.page_len)?, options)?;
        tree.store.find()?;
        Ok(tree)
    }

    fn bulk_load(
        flash: Arc<RawFlash>,
        options: &LsbTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::empty(flash, options)?;
        load_levels(&mut tree.store, fill, records)?;
        tree.store.commit()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "LSB-tree"
    }

    fn contract(&self) -> Contract {
        Contract::EachOperation
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.note(key, Some(value))
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.note(key, None)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        let (_, leaf) = way(&self.store, key, 0)?;
        if let Some(noted) = self.store.log_of(leaf)?.and_then(|(_, log)| log.get(key)) {
            return Ok(noted);
        }
        Ok(self.store.bare_leaf(leaf)?.get(key))
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        subtree_scan(&self.store, range)
    }

    fn flush(&mut self) -> Result<()> {
        // Nothing waits.
        Ok(())
    }

    fn check(&self) -> Result<Checked> {
        let mut nodes = HashSet::new();
        let mut leaves = Vec::new();
        let mut checked = walk(&Bare(&self.store), ALLOW, &mut |id, node| {
            nodes.insert(id);
            leaves.extend((node.level() == 0).then_some(id));
        })?;
        checked.records = 0;
        for leaf in leaves {
            checked.records += self.store.read(leaf)?.count() as u64;
        }
        for (leaf, log) in self.store.logs() {
            let Some((id, found)) = self.store.log_of(*leaf)? else { continue };
            if !nodes.contains(leaf) || !nodes.insert(id) || found.entries.len() > self.log_max {
                return Err(Error::broken(format!("{log} is no log of a leaf of the tree, or too large")));
            }
            for (key, _) in [found.entries.first(), found.entries.last()].into_iter().flatten() {
                if way(&self.store, *key, 0)?.1 != *leaf {
                    return Err(Error::broken(format!("{log} has key {key}, which is not its leaf's")));
                }
            }
        }
        self.store.nodes().check()?;
        if let Some(id) = self.store.nodes().ids().find(|id| !nodes.contains(id)) {
            return Err(Error::broken(format!("{id} has a page, and is not in the tree")));
        }
        Ok(checked)
    }

    fn stats(&self) -> Counters {
        let counters = self.store.nodes().counters();
        Counters {
            splits: self.events.splits,
            merges: self.events.merges,
            redistributions: self.events.redistributions,
            flushes: self.merged + self.promoted,
            height: u32::from(self.store.root().level) + 1,
            // The table of log nodes, and the one that is kept.
            memory: counters.memory + 16 * (self.store.logs().len() + self.log_max) as u64,
            ..counters
        }
    }

    fn page_use(&self) -> PageUse {
        self.store.nodes().log().page_use()
    }
}
