//! The CB-tree on raw flash, where it manages pages and blocks itself: as `system/cb_tree.rs`, which tells what a CB-tree is.
//! (Applied Sciences 2020, sections 3 and 5.2: "CB-tree" and "CB(log)".)
//!
//! | part | |
//! |---|---|
//! | memory nodes | the cascade (`buffer/cascade.rs`), changed by `update/cascaded.rs` |
//! | pages | sorted nodes (`page/node.rs`), not split in sequence |
//! | placement, commits, collection, recovery | nodes by id (`store/flash_nodes.rs`) over a log (`store/flash_log.rs`) |
//! | log | a page of operations (`store/log_page.rs`), programmed anew with each |
//!
//! Contract: with [`CbPersistence::LogPage`] each operation that returned is durable; with [`CbPersistence::RootGrowth`] all up
//! to the last flush or growth of the root, and nothing later.
//!
//! Invariant: after an error nothing is read or written any more, since memory may lack nodes that were on their way to flash.

use crate::buffer::cascade::Cascade;
use crate::index::{Checked, Contract, Index};
use crate::page::NodeId;
use crate::page::node::Shape;
use crate::read::subtree_scan::subtree_scan;
use crate::read::walk::{Allow, walk};
use crate::sound::Sound;
use crate::store::NodeStore;
use crate::store::flash_nodes::FlashNodes;
use crate::store::log_page::{self, Operation};
use crate::store::placement::Placement;
use crate::system::cb_tree::{CbPersistence, CbStats};
use crate::system::wandering::FlashStats;
use crate::update::bulk_load::bulk_load;
use crate::update::cascaded::{Policy, Sequential, Switches, Update, plant};
use crate::update::deferred_underflow::{Underfull, load};
use crate::update::single::{self, Events};
use crate::{Counters, Error, Key, PageUse, Result, Value};
use flash::RawFlash;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

const ALLOW: Allow = Allow { underfull: true, unchained: true };

/// What a CB-tree on raw flash is built with.
#[derive(Clone, Debug)]
pub struct CbFlashOptions {
    /// Bytes of a page that are used, a power of two from 128 to what the flash has.
    pub page_len: usize,
    /// Most keys in a node, from 4 on; `None` for as many as a page holds. The paper's experiments have 128.
    pub keys_max: Option<usize>,
    /// When a full leaf is not split.
    pub sequential: Sequential,
    /// When updates become durable by themselves.
    pub persistence: CbPersistence,
    /// Operations in the log page, if less than a page holds.
    pub log_max: Option<usize>,
}

impl Default for CbFlashOptions {
    fn default() -> Self {
        Self {
            page_len: 4096,
            keys_max: Some(128),
            sequential: Sequential::Strict,
            persistence: CbPersistence::RootGrowth,
            log_max: None,
        }
    }
}

/// Pages that an update and the commit after it write at most, for each level: two for a node that gives way and is mended, one
/// for its parent that gains a sibling, one for a half of it that was divided, and the memory node at the commit.
const UPDATE_PAGES: usize = 5;
/// Pages beside: the operation's, the commit's, and the memory node of a new root.
const COMMIT_PAGES: usize = 3;

/// The page of operations since the last commit, in memory.
struct OperationLog {
    page: Vec<u8>,
    records: usize,
    records_max: usize,
    written: u64,
}

impl OperationLog {
    fn new(options: &CbFlashOptions) -> Option<Self> {
        let room = log_page::room(options.page_len);
        let records_max = options.log_max.unwrap_or(room).clamp(1, room);
        let page = vec![0; options.page_len];
        let is_wanted = options.persistence == CbPersistence::LogPage;
        is_wanted.then_some(Self { page, records: 0, records_max, written: 0 })
    }

    fn start(&mut self) {
        self.page.fill(0);
        self.records = 0;
    }
}

/// See the module.
pub struct CbFlashTree {
    cascade: Cascade,
    log: Option<OperationLog>,
    policy: Policy,
    events: Events,
    switches: Switches,
    replayed: u64,
    sound: Sound,
}

impl CbFlashTree {
    fn over(nodes: FlashNodes, options: &CbFlashOptions) -> Self {
        let shape = Shape::of_page(options.page_len).limited(options.keys_max);
        Self {
            cascade: Cascade::new(Placement::Flash(nodes), shape),
            log: OperationLog::new(options),
            policy: Policy {
                sequential: options.sequential,
                commit_before_growth: options.persistence == CbPersistence::RootGrowth,
            },
            events: Events::default(),
            switches: Switches::default(),
            replayed: 0,
            sound: Sound::default(),
        }
    }

    /// Does something that may write.
    fn work(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.sound.check()?;
        let done = work(self);
        self.sound.after(done)
    }

    fn nodes(&self) -> Result<&FlashNodes> {
        match self.cascade.store() {
            Placement::Flash(nodes) => Ok(nodes),
            Placement::InPlace(_) | Placement::OutOfPlace(_) => {
                Err(Error::broken("a CB-tree of another device"))
            }
        }
    }

    fn nodes_mut(&mut self) -> Result<&mut FlashNodes> {
        match self.cascade.store_mut() {
            Placement::Flash(nodes) => Ok(nodes),
            Placement::InPlace(_) | Placement::OutOfPlace(_) => {
                Err(Error::broken("a CB-tree of another device"))
            }
        }
    }

    /// Writes an operation to the log page, if there is one; a full one is emptied by a commit.
    fn log(&mut self, operation: Operation) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let pages = UPDATE_PAGES * (self.cascade.height() + 1) + COMMIT_PAGES;
        if log.records >= log.records_max || !self.nodes()?.has_room(pages) {
            self.commit()?;
        }
        // What is in the log page is done again after power loss: it is not to fail then.
        let nodes = self.nodes()?;
        if !nodes.has_room(pages) {
            return Err(nodes.log().full(pages));
        }
        let Some(mut log) = self.log.take() else { return Ok(()) };
        let nodes = self.nodes_mut()?;
        log_page::put(&mut log.page, log.records, operation);
        log.records += 1;
        log.written += 1;
        log_page::seal(&mut log.page, log.records, nodes.version(), log.written);
        let written = nodes.write_operations(&log.page);
        self.log = Some(log);
        written
    }

    fn commit(&mut self) -> Result<()> {
        self.cascade.commit()?;
        self.log.iter_mut().for_each(OperationLog::start);
        Ok(())
    }

    fn apply(&mut self, (key, value): Operation) -> Result<()> {
        let policy = self.policy;
        let Self { cascade, events, switches, .. } = self;
        let mut update = Update { cascade, events, switches };
        match value {
            Some(value) => update.insert(key, value, policy),
            None => update.delete(key).map(|_| ()),
        }
    }

    fn walk(&self, nodes: &mut HashSet<NodeId>) -> Result<(Checked, Underfull)> {
        let (shape, level) = (self.cascade.shape(), NodeStore::root(&self.cascade).level);
        let mut underfull = Underfull::default();
        let checked = walk(&self.cascade, ALLOW, &mut |id, node| {
            nodes.insert(id);
            underfull.visit(level, shape, id, node);
        })?;
        Ok((checked, underfull.without_last()))
    }

    /// What is peculiar to a CB-tree.
    pub fn details(&self) -> CbStats {
        let Switches { nodes, written, unsplit, deferred, unlinked, growths } = self.switches;
        CbStats {
            switches: nodes,
            switches_written: written,
            unsplit,
            deferred,
            unlinked,
            commits: self.cascade.commits(),
            growths,
            log_pages: self.log.as_ref().map_or(0, |log| log.written),
            replayed: self.replayed,
        }
    }

    /// What is peculiar to raw flash. Live pages are those of nodes; the commit record and the log page come on top.
    pub fn flash(&self) -> FlashStats {
        self.nodes()
            .map(|nodes| FlashStats::of(nodes.log().counts(), nodes.ids().count() as u64))
            .unwrap_or_default()
    }
}

impl Index for CbFlashTree {
    type Options = CbFlashOptions;
    type Ground = Arc<RawFlash>;

    fn create(flash: Arc<RawFlash>, options: &CbFlashOptions) -> Result<Self> {
        let mut tree = Self::over(FlashNodes::create(flash, options.page_len)?, options);
        plant(&mut tree.cascade);
        tree.commit()?;
        Ok(tree)
    }

    fn recover(flash: Arc<RawFlash>, options: &CbFlashOptions) -> Result<Self> {
        let mut tree = Self::over(FlashNodes::open(flash, options.page_len)?, options);
        let mut nodes = HashSet::new();
        let (_, underfull) = tree.walk(&mut nodes)?;
        tree.cascade.store_mut().keep_only(&nodes)?;
        load(&mut tree.cascade, &underfull.lowest().unwrap_or_default())?;
        let operations = match tree.nodes()?.read_operations()? {
            Some((page, offset)) => log_page::decode(&page, "flash", offset as usize)?.operations,
            None => Vec::new(),
        };
        tree.replayed = operations.len() as u64;
        for operation in operations {
            tree.apply(operation)?;
        }
        if tree.replayed > 0 {
            tree.commit()?;
        }
        Ok(tree)
    }

    fn bulk_load(
        flash: Arc<RawFlash>,
        options: &CbFlashOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::over(FlashNodes::create(flash, options.page_len)?, options);
        bulk_load(&mut tree.cascade, fill, records)?;
        load(&mut tree.cascade, &[])?;
        tree.commit()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "CB-tree"
    }

    fn contract(&self) -> Contract {
        if self.log.is_some() { Contract::EachOperation } else { Contract::Flush }
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.work(|tree| {
            tree.log((key, Some(value)))?;
            tree.apply((key, Some(value)))
        })
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.work(|tree| {
            tree.log((key, None))?;
            tree.apply((key, None))
        })
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.sound.check()?;
        single::search(&self.cascade, key)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        subtree_scan(&self.cascade, range)
    }

    fn flush(&mut self) -> Result<()> {
        self.work(Self::commit)
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        let mut nodes = HashSet::new();
        let (checked, underfull) = self.walk(&mut nodes)?;
        for way in underfull.leaves.iter().chain(&underfull.inner) {
            let in_memory = |id| self.cascade.path.iter().any(|memory| memory.id == id);
            if let Some(id) = way.last().filter(|id| !in_memory(**id)) {
                return Err(Error::broken(format!("{id} is less than half full, and not in memory")));
            }
        }
        self.cascade.check()?;
        let store = self.nodes()?;
        store.check()?;
        if let Some(id) = store.ids().find(|id| !nodes.contains(id)) {
            return Err(Error::broken(format!("{id} has a page, and is not in the tree")));
        }
        Ok(checked)
    }

    fn stats(&self) -> Counters {
        let counters = self.cascade.counters();
        Counters {
            splits: self.events.splits,
            merges: self.events.merges,
            redistributions: self.events.redistributions,
            height: self.cascade.height() as u32,
            memory: counters.memory + self.log.as_ref().map_or(0, |log| log.page.len() as u64),
            ..counters
        }
    }

    fn page_use(&self) -> PageUse {
        self.cascade.store().page_use()
    }
}
