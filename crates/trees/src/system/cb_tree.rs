//! The CB-tree ("cascade memory nodes"): a B+-tree that keeps one node of each level in memory, the path of the last update.
//! Updates happen there; a node is written when another of its level is needed, unless it did not change; a full leaf of
//! keys in sequence is not split. (Kim, Kim, Lee, "A Novel B-Tree Index with Cascade Memory Nodes for Improving Sequential
//! Write Performance on Flash Storage Devices", Applied Sciences 10, 2020.)
//!
//! What survives power loss:
//!
//! | | [`CbPlacement::OutOfPlace`] | [`CbPlacement::InPlace`] |
//! |---|---|---|
//! | [`CbPersistence::RootGrowth`] | all up to the last [`Index::flush`] or growth of the root, and nothing later | nothing |
//! | [`CbPersistence::LogPage`] | every operation that returned | nothing |
//!
//! In place is as published, over a translation layer. Between two moments at which all memory nodes are written, leaves that
//! left memory have been overwritten while their parents on the device are old, so half of a split may be found; and a page
//! may be torn. Nothing in the paper mends that, and replaying the log into such a tree does not either.
//!
//! The paper's tree remembers nothing of who is underfull. Here recovery brings the path with the underfull nodes, which were
//! memory nodes at the last commit, back into memory.

use crate::buffer::cascade::Cascade;
use crate::index::{Checked, Contract, Index};
use crate::page::node::Shape;
use crate::read::subtree_scan::subtree_scan;
use crate::read::walk::{Allow, walk};
use crate::sound::Sound;
use crate::store::NodeStore;
use crate::store::in_place::InPlaceStore;
use crate::store::log_page::LogPage;
use crate::store::out_of_place::OutOfPlaceStore;
use crate::store::placement::Placement;
use crate::update::bulk_load::bulk_load;
pub use crate::update::cascaded::Sequential;
use crate::update::cascaded::{Policy, Switches, Update, load_if_clean, plant};
use crate::update::deferred_underflow::{Underfull, load};
use crate::update::single::{self, Events};
use crate::{Counters, Error, Key, PageUse, Result, Value};
use parking_lot::Mutex;
use psync::Volume;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

const FILE: &str = "cbtree";
const LOG: &str = "cbtree-log";
const ALLOW: Allow = Allow { underfull: true, unchained: true };

/// Where pages go when they are written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CbPlacement {
    /// Where they were: for a device with a translation layer, as published. Promises nothing after power loss.
    InPlace,
    /// Elsewhere, as on raw flash: the last commit stays whole.
    OutOfPlace,
}

/// When updates become durable by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CbPersistence {
    /// All of them, when the root is about to grow: the paper's server.
    RootGrowth,
    /// Each, by writing the log page; all memory nodes are written when it is full: the paper's embedded system.
    LogPage,
}

/// What a CB-tree is built with.
#[derive(Clone, Debug)]
pub struct CbTreeOptions {
    /// Bytes of a node, a power of two from 128 to 2^20.
    pub page_len: usize,
    /// Most keys in a node, from 4 on; `None` for as many as a page holds. The paper's experiments have 128.
    pub keys_max: Option<usize>,
    /// When a full leaf is not split.
    pub sequential: Sequential,
    /// Where pages go.
    pub placement: CbPlacement,
    /// When updates become durable by themselves.
    pub persistence: CbPersistence,
    /// Operations in the log page, if less than a page holds.
    pub log_max: Option<usize>,
    /// Whether a search makes the nodes on its path the memory nodes, if those that give way need not be written. The
    /// paper's does not.
    pub search_loads: bool,
}

impl Default for CbTreeOptions {
    fn default() -> Self {
        Self {
            page_len: 4096,
            keys_max: Some(128),
            sequential: Sequential::Strict,
            placement: CbPlacement::OutOfPlace,
            persistence: CbPersistence::RootGrowth,
            log_max: None,
            search_loads: false,
        }
    }
}

/// What is peculiar to a CB-tree, since it was created or recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CbStats {
    /// Memory nodes that gave way to others of their level.
    pub switches: u64,
    /// Of them, those that had to be written.
    pub switches_written: u64,
    /// Full leaves that were not split.
    pub unsplit: u64,
    /// Deletions that left a memory node less than half full, to be mended later.
    pub deferred: u64,
    /// Empty leaves that were taken out of their parents.
    pub unlinked: u64,
    /// Commits: moments at which all memory nodes were written.
    pub commits: u64,
    /// Of them, those because the root was about to grow.
    pub growths: u64,
    /// Log pages that were written.
    pub log_pages: u64,
    /// Operations that recovery found in the log page.
    pub replayed: u64,
}

/// See the module.
pub struct CbTree {
    cascade: Mutex<Cascade>,
    log: Option<LogPage>,
    policy: Policy,
    contract: Contract,
    search_loads: bool,
    events: Events,
    switches: Switches,
    replayed: u64,
    sound: Sound,
}

fn create_store(volume: Arc<dyn Volume>, options: &CbTreeOptions) -> Result<Placement> {
    Ok(match options.placement {
        CbPlacement::InPlace => Placement::InPlace(InPlaceStore::create(volume, FILE, options.page_len)?),
        CbPlacement::OutOfPlace => {
            Placement::OutOfPlace(OutOfPlaceStore::create(volume, FILE, options.page_len)?)
        }
    })
}

fn open_store(volume: Arc<dyn Volume>, options: &CbTreeOptions) -> Result<Placement> {
    Ok(match options.placement {
        CbPlacement::InPlace => Placement::InPlace(InPlaceStore::open(volume, FILE, options.page_len)?),
        CbPlacement::OutOfPlace => {
            Placement::OutOfPlace(OutOfPlaceStore::open(volume, FILE, options.page_len)?)
        }
    })
}

impl CbTree {
    fn over(cascade: Cascade, log: Option<LogPage>, options: &CbTreeOptions) -> Self {
        let contract = match (options.placement, options.persistence) {
            (CbPlacement::InPlace, _) => Contract::Never,
            (CbPlacement::OutOfPlace, CbPersistence::RootGrowth) => Contract::Flush,
            (CbPlacement::OutOfPlace, CbPersistence::LogPage) => Contract::EachOperation,
        };
        Self {
            cascade: Mutex::new(cascade),
            log,
            policy: Policy {
                sequential: options.sequential,
                commit_before_growth: options.persistence == CbPersistence::RootGrowth,
            },
            contract,
            search_loads: options.search_loads,
            events: Events::default(),
            switches: Switches::default(),
            replayed: 0,
            sound: Sound::default(),
        }
    }

    fn empty(volume: &Arc<dyn Volume>, options: &CbTreeOptions) -> Result<Self> {
        let shape = Shape::of_page(options.page_len).limited(options.keys_max);
        let cascade = Cascade::new(create_store(Arc::clone(volume), options)?, shape);
        let log = match options.persistence {
            CbPersistence::RootGrowth => None,
            CbPersistence::LogPage => {
                Some(LogPage::create(Arc::clone(volume), LOG, options.page_len, options.log_max)?)
            }
        };
        Ok(Self::over(cascade, log, options))
    }

    fn update(&mut self) -> Update<'_> {
        let (events, switches) = (&mut self.events, &mut self.switches);
        Update { cascade: self.cascade.get_mut(), events, switches }
    }

    /// Logs an operation and does it.
    fn change(&mut self, key: Key, value: Option<Value>) -> Result<()> {
        self.sound.check()?;
        let done = self.log(key, value).and_then(|()| self.apply(key, value));
        self.sound.after(done)
    }

    /// Writes an operation to the log page, if there is one; a full one is emptied by a commit.
    fn log(&mut self, key: Key, value: Option<Value>) -> Result<()> {
        if self.log.as_ref().is_some_and(LogPage::is_full) {
            self.commit()?;
        }
        self.log.as_mut().map_or(Ok(()), |log| log.append((key, value)))
    }

    fn commit(&mut self) -> Result<()> {
        let cascade = self.cascade.get_mut();
        cascade.commit()?;
        if let Some(log) = &mut self.log {
            log.start(cascade.store().version());
        }
        Ok(())
    }

    fn apply(&mut self, key: Key, value: Option<Value>) -> Result<()> {
        let policy = self.policy;
        match value {
            Some(value) => self.update().insert(key, value, policy),
            None => self.update().delete(key).map(|_| ()),
        }
    }

    /// What is peculiar to this system.
    pub fn details(&self) -> CbStats {
        let Switches { nodes, written, unsplit, deferred, unlinked, growths } = self.switches;
        CbStats {
            switches: nodes,
            switches_written: written,
            unsplit,
            deferred,
            unlinked,
            commits: self.cascade.lock().commits(),
            growths,
            log_pages: self.log.as_ref().map_or(0, LogPage::written),
            replayed: self.replayed,
        }
    }
}

impl Index for CbTree {
    type Options = CbTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &CbTreeOptions) -> Result<Self> {
        let mut tree = Self::empty(&volume, options)?;
        plant(tree.cascade.get_mut());
        tree.commit()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &CbTreeOptions) -> Result<Self> {
        let shape = Shape::of_page(options.page_len).limited(options.keys_max);
        let mut cascade = Cascade::new(open_store(Arc::clone(&volume), options)?, shape);
        let is_logged = volume.list()?.iter().any(|entry| entry.name == LOG);
        if is_logged != (options.persistence == CbPersistence::LogPage) {
            let (is, asked) = if is_logged { ("a", "none") } else { ("no", "one") };
            return Err(Error::Invalid(format!(
                "the CB-tree was created with {is} log page, but {asked} is asked for"
            )));
        }
        let version = cascade.store().version();
        let (log, operations) = match options.persistence {
            CbPersistence::RootGrowth => (None, Vec::new()),
            CbPersistence::LogPage => {
                let opened = LogPage::open(volume, LOG, options.page_len, options.log_max, version)?;
                (Some(opened.0), opened.1)
            }
        };
        let (mut used, mut underfull) = (HashSet::new(), Underfull::default());
        let level = cascade.root().level;
        walk(&cascade, ALLOW, &mut |id, node| {
            used.insert(id);
            underfull.visit(level, shape, id, node);
        })?;
        cascade.store_mut().keep_only(&used)?;
        load(&mut cascade, &underfull.without_last().lowest().unwrap_or_default())?;
        let mut tree = Self::over(cascade, log, options);
        tree.replayed = operations.len() as u64;
        for (key, value) in operations {
            tree.apply(key, value)?;
        }
        if tree.replayed > 0 {
            tree.commit()?;
        }
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &CbTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::empty(&volume, options)?;
        let cascade = tree.cascade.get_mut();
        bulk_load(cascade, fill, records)?;
        load(cascade, &[])?;
        tree.commit()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "CB-tree"
    }

    fn contract(&self) -> Contract {
        self.contract
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.change(key, Some(value))
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.change(key, None)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.sound.check()?;
        let mut cascade = self.cascade.lock();
        if self.search_loads && load_if_clean(&mut cascade, key)? {
            let leaf = cascade.path.last().map(|memory| memory.node.as_leaf());
            return Ok(leaf.transpose()?.and_then(|leaf| leaf.get(key)));
        }
        single::search(&*cascade, key)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        subtree_scan(&*self.cascade.lock(), range)
    }

    fn flush(&mut self) -> Result<()> {
        self.sound.check()?;
        let done = self.commit();
        self.sound.after(done)
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        let cascade = self.cascade.lock();
        let shape = cascade.shape();
        let level = cascade.root().level;
        let (mut nodes, mut underfull) = (HashSet::new(), Underfull::default());
        let checked = walk(&*cascade, ALLOW, &mut |id, node| {
            nodes.insert(id);
            underfull.visit(level, shape, id, node);
        })?;
        let underfull = underfull.without_last();
        for way in underfull.leaves.iter().chain(&underfull.inner) {
            let in_memory = |id| cascade.path.iter().any(|memory| memory.id == id);
            if let Some(id) = way.last().filter(|id| !in_memory(**id)) {
                return Err(Error::broken(format!("{id} is less than half full, and not in memory")));
            }
        }
        cascade.check()?;
        if let Placement::OutOfPlace(store) = cascade.store() {
            store.check()?;
            if let Some(id) = store.nodes().find(|id| !nodes.contains(id)) {
                return Err(Error::broken(format!("{id} has a page, and is not in the tree")));
            }
        }
        Ok(checked)
    }

    fn stats(&self) -> Counters {
        let cascade = self.cascade.lock();
        let counters = cascade.counters();
        let log = self.log.as_ref().map_or(0, LogPage::len);
        Counters {
            pages_written: counters.pages_written + self.log.as_ref().map_or(0, LogPage::written),
            splits: self.events.splits,
            merges: self.events.merges,
            redistributions: self.events.redistributions,
            height: cascade.height() as u32,
            memory: counters.memory + log,
            space: counters.space + 2 * log,
            ..counters
        }
    }

    fn page_use(&self) -> PageUse {
        self.cascade.lock().store().page_use()
    }
}
