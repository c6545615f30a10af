//! Copy-on-write to the root: a page a node, parents hold the addresses of their children, and every update writes a new root.
//! (The wandering tree; JFFS3 Design Issues, Bityuckiy 2005.)
//!
//! Invariants:
//! 1. The id of a node is the number of its page; the page says the same.
//! 2. The pages of an update are appended children first. The root is the last one, and alone is marked so: the newest page
//!    with that mark begins a whole tree, whatever was appended after it.
//! 3. A page lives if the newest root leads to it.

use crate::page::NodeId;
use crate::page::node::{Node, Shape};
use crate::store::Root;
use crate::store::flash_log::{FlashLog, NewPage};
use crate::store::flash_tag::Tag;
use crate::store::nodes::{Limits, Nodes};
use crate::store::path_copy::{Plan, Planning, resolved};
use crate::{Counters, Error, Result};
use flash::RawFlash;
use std::collections::HashMap;
use std::sync::Arc;

/// Pages that an update may write, for each level.
const PAGES_A_LEVEL: usize = 4;
const LIVE: u16 = 1;

/// See the module.
pub(crate) struct CopyOnWriteStore {
    log: FlashLog,
    shape: Shape,
    root: Root,
}

impl CopyOnWriteStore {
    /// On erased flash; there is no root yet.
    pub fn create(flash: Arc<RawFlash>, page_len: usize, keys_max: Option<usize>) -> Result<Self> {
        let shape = Shape::of_page(page_len).limited(keys_max);
        let log = FlashLog::create(flash, page_len)?;
        Ok(Self { log, shape, root: Root { id: NodeId(0), level: 0 } })
    }

    /// The tree of the newest root.
    pub fn open(flash: Arc<RawFlash>, page_len: usize, keys_max: Option<usize>) -> Result<Self> {
        let shape = Shape::of_page(page_len).limited(keys_max);
        let (log, found) = FlashLog::open(flash, page_len)?;
        let newest = found.iter().filter(|found| found.tag.last).max_by_key(|found| found.tag.sequence);
        let newest = newest.ok_or_else(|| {
            Error::corrupt("flash", 0, "root of a wandering tree", "one", "none on all of the flash")
        })?;
        let root = Root { id: NodeId(newest.page), level: newest.tag.root_level };
        let mut store = Self { log, shape, root };
        let mut next = vec![(root.id, root.level)];
        while let Some((id, level)) = next.pop() {
            let node = store.read(id)?;
            if node.level() != level {
                return Err(Error::broken(format!("{id} is of level {}, not {level}", node.level())));
            }
            if store.log.parts(id.0) != 0 {
                return Err(Error::broken(format!("{id} has two parents")));
            }
            store.log.mark(id.0, LIVE);
            if let Node::Inner(inner) = &*node {
                next.extend(inner.children.iter().map(|child| (*child, level - 1)));
            }
        }
        store.log.settle();
        Ok(store)
    }

    pub fn log(&self) -> &FlashLog {
        &self.log
    }

    /// Writes what was planned; the last page makes it so.
    pub fn write(&mut self, plan: &Plan) -> Result<()> {
        let Self { log, root, .. } = self;
        let page_len = log.page_len();
        let count = plan.levels.iter().map(Vec::len).sum();
        let height = plan.height();
        let pages = log.append(count, &mut |addresses, first| {
            let mut pages = Vec::with_capacity(count);
            let (mut below, mut rest): (Vec<NodeId>, _) = (Vec::new(), addresses);
            for nodes in &plan.levels {
                let (own, others) = rest.split_at(nodes.len());
                for (node, page) in nodes.iter().zip(own) {
                    let mut data = vec![0; page_len];
                    let sequence = first + pages.len() as u64;
                    resolved(node, &below).encode(NodeId(*page), sequence, &mut data);
                    let last = pages.len() + 1 == count;
                    let tag = Tag { last, root_level: height - 1, ..Tag::node(*page) };
                    pages.push(NewPage { data, tag, live: LIVE });
                }
                (below, rest) = (own.iter().copied().map(NodeId).collect(), others);
            }
            pages
        })?;
        let last = pages.last().copied().unwrap_or_default();
        *root = Root { id: NodeId(last), level: height - 1 };
        plan.dead.iter().for_each(|dead| log.kill(dead.0, LIVE));
        Ok(())
    }

    /// Empties blocks until the next update surely has room.
    pub fn make_room(&mut self) -> Result<()> {
        let operation = PAGES_A_LEVEL * (usize::from(self.root.level) + 2);
        let mut left = 4 * self.log.memory();
        while self.log.room() < self.log.reserve(operation) {
            let pages = self.log.victim()?;
            left = left.checked_sub(1).ok_or_else(|| self.log.full(operation))?;
            let mut targets = Vec::with_capacity(pages.len());
            for page in pages {
                let node = self.read(NodeId(page))?;
                // An empty leaf is the root, and every way leads through the root.
                let key = match &*node {
                    Node::Leaf(leaf) => leaf.entries.first().map_or(0, |entry| entry.0),
                    Node::Inner(inner) => inner.fences.first().copied().unwrap_or_default(),
                };
                targets.push((key, node.level()));
            }
            targets.sort_unstable();
            let limits = |level, height| self.limits(level, height);
            let mut planning = Planning::new(self, &limits);
            planning.copy(&targets)?;
            if let Some(plan) = planning.finish() {
                self.write(&plan)?;
            }
        }
        Ok(())
    }

    /// Verifies that just these nodes live.
    pub fn check(&self, nodes: &HashMap<NodeId, u8>) -> Result<()> {
        self.log.check()?;
        let live = self.log.live_pages();
        if live != nodes.len() as u64 || nodes.keys().any(|id| self.log.parts(id.0) == 0) {
            return Err(Error::broken(format!("{live} pages live, of a tree of {} nodes", nodes.len())));
        }
        Ok(())
    }

    pub fn counters(&self) -> Counters {
        let counts = self.log.counts();
        Counters {
            pages_read: counts.reads,
            pages_written: counts.programs,
            memory: self.log.memory(),
            space: self.log.space(),
            ..Counters::default()
        }
    }
}

impl Nodes for CopyOnWriteStore {
    fn root(&self) -> Root {
        self.root
    }

    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        let page = self.log.read(id.0)?;
        Ok(Arc::new(Node::decode(&page, "flash", self.log.offset(id.0), id)?.0))
    }

    fn limits(&self, level: u8, _: u8) -> Limits {
        Limits::of(if level == 0 { self.shape.records } else { self.shape.fanout })
    }
}
