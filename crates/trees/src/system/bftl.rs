//! BFTL (Wu, Kuo and Chang, ACM TECS 2007; a comparator of the PIO and AS B-trees): a B+-tree whose nodes are scattered over
//! sectors that many nodes share, so that one write brings many small updates, and a search reads several sectors for one
//! node.
//!
//! ```text
//! page/unit_page, store/extents, store/unit_store (reservation buffer, node translation table, compaction)
//! update/single, read/{scan, search_many, walk}
//! ```
//!
//! Where it differs from the published one: the flush writes an anchor, so that it is known up to where the scan that
//! builds the table may believe what it finds.

use crate::index::{Checked, Contract, Index};
use crate::page::node::Node;
use crate::read::walk::{Allow, walk};
use crate::read::{scan, search_many};
use crate::sound::Sound;
use crate::store::NodeStore;
use crate::store::unit_store::{Scatter, UnitStore};
use crate::update::bulk_load::bulk_load;
use crate::update::single::{self, Events};
use crate::{Counters, Key, PageUse, Result, Value};
use psync::Volume;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

const FILE: &str = "bftl";

/// What a BFTL is built with.
#[derive(Clone, Debug)]
pub struct BftlOptions {
    /// Bytes of a sector, a power of two from 512 on.
    pub sector_len: usize,
    /// Index units that the reservation buffer holds (25 bytes each on the device).
    pub units: usize,
    /// C: most sectors that a node may be scattered over, 2 or more. (The AS B-tree paper's 1.49 sectors a node at its C of
    /// 3 come about if a list of three is compacted at once, so that no reader meets it: that is 2 here.)
    pub chain_max: usize,
    /// Most keys of a node, so that it fits C - 1 sectors; as many as fit into one if not given.
    pub keys_max: Option<usize>,
    /// Use sectors again that no node needs. The published one leaves that to the translation layer below.
    pub reclaim: bool,
    /// Read all sectors of a node with one psync; the published one reads one after the other.
    pub parallel: bool,
    /// Sectors that are kept in memory; the published one keeps none.
    pub frames: usize,
    /// PioMax for [`Index::search_many`]; 1 searches key by key, as the published one does.
    pub pio_max: usize,
}

impl Default for BftlOptions {
    fn default() -> Self {
        Self {
            sector_len: 4096,
            units: 60,
            chain_max: 4,
            keys_max: None,
            reclaim: false,
            parallel: false,
            frames: 0,
            pio_max: 1,
        }
    }
}

/// What a [`Bftl`] has done and what its table looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BftlDetails {
    /// Nodes in the translation table.
    pub nodes: u64,
    /// Sectors of all lists; divided by `nodes`: sectors per node.
    pub listed: u64,
    /// Sectors that some list names.
    pub sectors_live: u64,
    /// Nodes that were put together.
    pub nodes_read: u64,
    /// Sectors that they were put together from, those in memory included; divided by `nodes_read`: reads per node.
    pub sectors_visited: u64,
    /// Index units that were written.
    pub units_committed: u64,
    /// Sectors that they were packed into.
    pub sectors_committed: u64,
    /// Nodes that were written anew because their list was too long.
    pub compactions: u64,
    /// Sectors that these had.
    pub compaction_reads: u64,
}

/// See the module.
pub struct Bftl {
    nodes: UnitStore,
    pio_max: usize,
    events: Events,
    sound: Sound,
}

impl Bftl {
    fn over(nodes: UnitStore, options: &BftlOptions) -> Self {
        let (events, sound) = (Events::default(), Sound::default());
        Self { nodes, pio_max: options.pio_max.max(1), events, sound }
    }

    fn scatter(options: &BftlOptions) -> Scatter {
        Scatter {
            sector_len: options.sector_len,
            units: options.units,
            chain_max: options.chain_max,
            keys_max: options.keys_max,
            reclaim: options.reclaim,
            parallel: options.parallel,
            frames: options.frames,
        }
    }

    /// The nodes, for an operation that begins.
    fn begin(&self) -> &UnitStore {
        self.nodes.begin();
        &self.nodes
    }

    /// What it has done besides [`Index::stats`].
    pub fn details(&self) -> BftlDetails {
        let done = self.nodes.done();
        let (nodes, listed, sectors_live) = self.nodes.table_size();
        BftlDetails {
            nodes,
            listed,
            sectors_live,
            nodes_read: done.nodes_read,
            sectors_visited: done.sectors_visited,
            units_committed: done.units_committed,
            sectors_committed: done.sectors_committed,
            compactions: done.compactions,
            compaction_reads: done.compaction_reads,
        }
    }
}

impl Index for Bftl {
    type Options = BftlOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &BftlOptions) -> Result<Self> {
        let mut tree = Self::over(UnitStore::create(volume, FILE, Self::scatter(options))?, options);
        single::plant(&mut tree.nodes)?;
        tree.flush()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &BftlOptions) -> Result<Self> {
        let mut tree = Self::over(UnitStore::open(volume, FILE, Self::scatter(options))?, options);
        let mut used = HashSet::new();
        walk(&tree.nodes, Allow::default(), &mut |id, _: &Node| {
            used.insert(id);
        })?;
        tree.nodes.begin();
        tree.nodes.keep_only(&used)?;
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &BftlOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::over(UnitStore::create(volume, FILE, Self::scatter(options))?, options);
        bulk_load(&mut tree.nodes, fill, records)?;
        tree.flush()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "BFTL"
    }

    fn contract(&self) -> Contract {
        Contract::Flush
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.nodes.begin();
        single::insert(&mut self.nodes, &self.sound, key, value, &mut self.events)
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.nodes.begin();
        single::delete(&mut self.nodes, &self.sound, key, &mut self.events)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.sound.check()?;
        single::search(self.begin(), key)
    }

    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.sound.check()?;
        if self.pio_max > 1 {
            search_many::search_many(self.begin(), keys, self.pio_max)
        } else {
            keys.iter().map(|key| self.search(*key)).collect()
        }
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        scan::scan(self.begin(), range)
    }

    fn flush(&mut self) -> Result<()> {
        self.nodes.begin();
        self.sound.work(|| self.nodes.sync())
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        self.nodes.check()?;
        let checked = walk(self.begin(), Allow::default(), &mut |_, _| ());
        self.nodes.begin();
        checked
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

    fn page_use(&self) -> PageUse {
        PageUse::Unused(self.nodes.unused())
    }
}
