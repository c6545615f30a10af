//! The Bε-tree, which TokuDB called fractal tree (Brodal and Fagerberg, "Lower Bounds for External Memory Dictionaries", SODA
//! 2003; Bender et al., "An Introduction to Bε-trees and Write-Optimization", ;login: 40(5), 2015). The MPSearch paper names it
//! as a tree to search many keys in (IEEE Data Engineering Bulletin 2014, section 3).
//!
//! ```text
//! page/buffered_node, buffer/frames (a pool of nodes), store/extents (fresh pages, one anchor for the root)
//! b_epsilon_tree/{node_file, flush, find, check}
//!
//! insert, delete ─▶ message in the root's buffer ─full─▶ all messages for the child with the most of them go down to its
//!                   buffer ─full─▶ ... ─▶ leaf
//! ```
//! An inner node has about as many children as the square root of what a leaf holds (ε = 1/2); the rest of its page is buffer.
//!
//! Invariants:
//! 1. Of one key the message nearest to the root is the newest; a record in a leaf is older than all.
//! 2. The root is in memory. All other nodes are on pages as they are: nothing else is dirty.
//! 3. After an update that failed nothing is known of the tree in memory: it refuses all until it is recovered.
//! 4. What the durable anchor leads to is not overwritten: a node that changes goes to another page, and so do the nodes
//!    above it, up to the root.

mod check;
mod find;
mod flush;
mod node_file;

use crate::index::{Checked, Contract, Index};
use crate::page::buffered_node::{BufferedInner, BufferedNode, BufferedShape};
use crate::page::{Change, Key, Value};
use crate::sound::Sound;
use crate::update::in_order::{InOrder, check_fill};
use crate::{Counters, Error, PageUse, Result};
use node_file::NodeFile;
use psync::Volume;
use std::ops::Range;
use std::sync::Arc;

/// What a [`BEpsilonTree`] is built with.
#[derive(Clone, Debug)]
pub struct BEpsilonTreeOptions {
    /// Bytes of a node: a power of two from 512 on.
    pub page_len: usize,
    /// Most children of an inner node, 4 or more; the square root of the records of a leaf if none is given.
    pub fanout: Option<usize>,
    /// Most records of a leaf, and messages of an inner node, if fewer than they hold, 4 or more: for tests.
    pub entries_max: Option<usize>,
    /// Pages that may be overwritten by nothing, since the last durable state needs them, until there is a new one.
    pub retired_max: u64,
    /// Nodes that a pool in memory holds, upper levels first; the root is in memory besides.
    pub frames: usize,
    /// PioMax for [`Index::search_many`] and [`Index::range`].
    pub pio_max: usize,
}

impl Default for BEpsilonTreeOptions {
    fn default() -> Self {
        Self { page_len: 4096, fanout: None, entries_max: None, retired_max: 1024, frames: 64, pio_max: 64 }
    }
}

impl BEpsilonTreeOptions {
    fn shape(&self) -> Result<BufferedShape> {
        let wrong = |what: String| Err(Error::Invalid(what));
        let root = |records: usize| (records as f64).sqrt().ceil() as usize;
        let Some(leaf) = BufferedShape::of(self.page_len.max(512), 4) else {
            return wrong(format!("nodes of {} bytes", self.page_len));
        };
        let fanout = self.fanout.unwrap_or_else(|| root(leaf.records)).max(4);
        let Some(shape) =
            BufferedShape::of(self.page_len.max(512), fanout).filter(|shape| shape.messages >= 4)
        else {
            return wrong(format!("{fanout} children leave no room for messages in {} bytes", self.page_len));
        };
        match self.entries_max {
            Some(max) if max < 4 => wrong(format!("{max} entries of a node: 4 or more")),
            Some(max) => Ok(BufferedShape {
                records: shape.records.min(max),
                messages: shape.messages.min(max),
                fanout,
            }),
            None => Ok(shape),
        }
    }
}

/// See the module.
pub struct BEpsilonTree {
    nodes: NodeFile,
    shape: BufferedShape,
    root: Arc<BufferedNode>,
    level: u8,
    /// Whether the root has changed since the anchor was written.
    is_dirty: bool,
    sound: Sound,
    retired_max: u64,
    pio_max: usize,
    counted: Counted,
}

/// What it has done.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    splits: u64,
    merges: u64,
    redistributions: u64,
    flushes: u64,
}

impl BEpsilonTree {
    fn over(nodes: NodeFile, options: &BEpsilonTreeOptions) -> Result<Self> {
        Ok(Self {
            nodes,
            shape: options.shape()?,
            root: Arc::new(BufferedNode::Leaf(Vec::new())),
            level: 0,
            is_dirty: true,
            sound: Sound::default(),
            retired_max: options.retired_max,
            pio_max: options.pio_max.max(1),
            counted: Counted::default(),
        })
    }

    fn new(volume: Arc<dyn Volume>, options: &BEpsilonTreeOptions) -> Result<Self> {
        Self::over(NodeFile::create(volume, options.page_len, options.frames)?, options)
    }

    /// Makes the tree as it is now what [`Index::recover`] finds.
    fn save(&mut self) -> Result<()> {
        self.nodes.commit(&self.root, self.level)?;
        self.is_dirty = false;
        Ok(())
    }

    fn change(&mut self, key: Key, change: Change) -> Result<()> {
        self.sound.check()?;
        self.is_dirty = true;
        let done = self
            .apply(key, change)
            .and_then(|()| if self.nodes.retired() > self.retired_max { self.save() } else { Ok(()) });
        self.sound.after(done)
    }

    /// Builds the levels above nodes of `level`, each with its least key, until one node is left.
    fn build(&mut self, mut below: Vec<(Key, u64)>, per_node: usize) -> Result<()> {
        while below.len() > 1 {
            self.level += 1;
            let count = below.len().div_ceil(per_node);
            let mut above = Vec::with_capacity(count);
            let mut nodes = Vec::with_capacity(count);
            // As even as may be: no node of one child, if there are two.
            for index in 0..count {
                let children = &below[below.len() * index / count..below.len() * (index + 1) / count];
                let first = children.first().map_or(0, |child| child.0);
                nodes.push((
                    first,
                    BufferedNode::Inner(BufferedInner {
                        fences: children.iter().skip(1).map(|child| child.0).collect(),
                        children: children.iter().map(|child| child.1).collect(),
                        messages: Vec::new(),
                    }),
                ));
            }
            if count == 1 {
                self.root = Arc::new(nodes.remove(0).1);
                return Ok(());
            }
            for nodes in nodes.chunks(self.pio_max) {
                let pages = self.nodes.write_new(nodes.iter().map(|node| &node.1), self.level)?;
                above.extend(nodes.iter().map(|node| node.0).zip(pages));
            }
            below = above;
        }
        if let Some((_, page)) = below.pop() {
            self.root = self.nodes.read(page, self.level)?;
            self.nodes.free(page);
        }
        Ok(())
    }
}

impl Index for BEpsilonTree {
    type Options = BEpsilonTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &BEpsilonTreeOptions) -> Result<Self> {
        let mut tree = Self::new(volume, options)?;
        tree.save()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &BEpsilonTreeOptions) -> Result<Self> {
        let (nodes, root, level) = NodeFile::open(volume, options.page_len, options.frames)?;
        let mut tree = Self::over(nodes, options)?;
        (tree.root, tree.level, tree.is_dirty) = (root, level, false);
        tree.occupy()?;
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &BEpsilonTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        check_fill(fill)?;
        let mut tree = Self::new(volume, options)?;
        let per = |max: usize| ((max as f64 * fill) as usize).max(2);
        let (mut leaves, mut full) = (Vec::new(), Vec::new());
        let mut records = InOrder::new(records);
        loop {
            let leaf: Vec<_> = records.by_ref().take(per(tree.shape.records)).collect();
            let is_last = leaf.is_empty();
            if let Some((first, _)) = leaf.first() {
                full.push((*first, BufferedNode::Leaf(leaf)));
            }
            if full.len() >= tree.pio_max || is_last && !full.is_empty() {
                let pages = tree.nodes.write_new(full.iter().map(|leaf| &leaf.1), 0)?;
                leaves.extend(full.drain(..).map(|leaf| leaf.0).zip(pages));
            }
            if is_last {
                break;
            }
        }
        records.finish()?;
        let fanout = per(tree.shape.fanout);
        tree.build(leaves, fanout)?;
        tree.save()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "Bε-tree"
    }

    fn contract(&self) -> Contract {
        Contract::Flush
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.change(key, Change::Put(value))
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.change(key, Change::Remove)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.sound.check()?;
        self.find(key)
    }

    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.sound.check()?;
        self.find_many(keys)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        self.scan(range)
    }

    fn flush(&mut self) -> Result<()> {
        self.sound.check()?;
        let done = if self.is_dirty { self.save() } else { Ok(()) };
        self.sound.after(done)
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        self.verify()
    }

    fn stats(&self) -> Counters {
        let Counted { splits, merges, redistributions, flushes } = self.counted;
        let height = u32::from(self.level) + 1;
        Counters { splits, merges, redistributions, flushes, height, ..self.nodes.counters() }
    }

    fn page_use(&self) -> PageUse {
        PageUse::Unused(self.nodes.unused())
    }
}
