//! The AS B-tree ("always sequential"): a B+-tree whose children are named by id. Changed nodes wait in a write buffer; a
//! full one goes to the end of the newest sub-file with one contiguous write; a table in memory says where each node is;
//! sub-files with few valid nodes are recycled. (Roh, Kim, Lee, Park, "AS B-tree: A study of an efficient B+-tree for SSDs",
//! JISE 30, 2014.)
//!
//! Update algorithms are those of the plain B+-tree: parents change on splits and merges only, since ids stay.
//!
//! What survives power loss: everything up to the last [`Index::flush`], and perhaps later operations, always up to the end
//! of one ([`Contract::Flush`]). The paper's own recovery, which takes the last copy of every node that it can read, promises
//! nothing: see [`AsRecovery::AsPublished`].

use crate::buffer::always_sequential::{AlwaysSequential, Setup};
use crate::index::{Checked, Contract, Index};
use crate::read::walk::{Allow, walk};
use crate::read::{scan, search_many};
use crate::sound::Sound;
use crate::store::NodeStore;
use crate::store::log_recovery::Rule;
use crate::update::bulk_load::bulk_load;
use crate::update::single::{self, Events};
use crate::{Counters, Key, PageUse, Result, Value};
use psync::Volume;
use std::ops::Range;
use std::sync::Arc;

const NAME: &str = "asbtree";

/// How an AS B-tree finds its nodes when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsRecovery {
    /// From the last checkpoint of the mapping table and the batches after it; without a checkpoint, as `ReadAll`.
    Checkpoint,
    /// From all batches of all sub-files: the paper's start-up cost, with this crate's safety.
    ReadAll,
    /// From all pages, the last copy of a node counts, whole batch or not. Unsafe after power loss: half of a split may be
    /// taken for the whole.
    AsPublished,
}

/// What an AS B-tree is built with. The defaults are the paper's.
#[derive(Clone, Debug)]
pub struct AsTreeOptions {
    /// Bytes of a node, a power of two from 256 to 2^20.
    pub node_len: usize,
    /// F: most keys in a node, from 4 on; `None` for as many as a node holds.
    pub keys_max: Option<usize>,
    /// MS: nodes in the write buffer, 1 to 16384.
    pub slots: usize,
    /// Nodes in the cache of nodes that were read or written; 0 for none.
    pub cached: usize,
    /// Bytes of a sub-file; a batch that is longer makes a longer one.
    pub sub_file_len: u64,
    /// T: a sub-file with a smaller share of valid nodes is recycled; 0 (never) to 0.8.
    pub threshold: f64,
    /// K: batches from one checkpoint of the mapping table to the next; 0 for none.
    pub checkpoint_every: u64,
    /// How it is opened.
    pub recovery: AsRecovery,
    /// PioMax for [`Index::search_many`]; 1 searches key by key, as the published one does.
    pub pio_max: usize,
}

impl Default for AsTreeOptions {
    fn default() -> Self {
        Self {
            node_len: 8192,
            keys_max: Some(256),
            slots: 32,
            cached: 0,
            sub_file_len: 64 << 20,
            threshold: 0.05,
            checkpoint_every: 256,
            recovery: AsRecovery::Checkpoint,
            pio_max: 1,
        }
    }
}

/// One sub-file of an AS B-tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubFile {
    /// Its number: higher is newer.
    pub number: u32,
    /// Nodes that were written to it.
    pub nodes: u32,
    /// Of them, those that are still the newest copy.
    pub valid: u32,
}

/// What is peculiar to an AS B-tree, since it was created or recovered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsStats {
    /// Sub-files, oldest first.
    pub sub_files: Vec<SubFile>,
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
    /// Most nodes that were in the write buffer at the end of an operation.
    pub slots_max: u64,
    /// Batches that were written, those of moved nodes included.
    pub batches: u64,
    /// Nodes that were moved to recycle a sub-file.
    pub copies: u64,
    /// Sub-files that were recycled.
    pub recycled: u64,
    /// Checkpoints of the mapping table.
    pub checkpoints: u64,
    /// Nodes on the device that were freed.
    pub freed: u64,
    /// Pages that the recovery read.
    pub recovery_reads: u64,
    /// Bytes of the mapping table in memory.
    pub table_memory: u64,
}

/// See the module.
pub struct AsTree {
    nodes: AlwaysSequential,
    pio_max: usize,
    contract: Contract,
    events: Events,
    sound: Sound,
}

fn setup(options: &AsTreeOptions) -> Result<Setup> {
    let AsTreeOptions { node_len, slots, cached, sub_file_len, threshold, checkpoint_every, .. } = *options;
    Setup::new(node_len, options.keys_max, slots, cached, sub_file_len, threshold, checkpoint_every)
}

impl AsTree {
    fn empty(volume: &Arc<dyn Volume>, options: &AsTreeOptions) -> Result<Self> {
        Ok(Self::over(AlwaysSequential::create(volume, NAME, setup(options)?)?, options))
    }

    fn over(nodes: AlwaysSequential, options: &AsTreeOptions) -> Self {
        let contract = match options.recovery {
            AsRecovery::Checkpoint | AsRecovery::ReadAll => Contract::Flush,
            AsRecovery::AsPublished => Contract::Never,
        };
        let (events, sound) = (Events::default(), Sound::default());
        Self { nodes, pio_max: options.pio_max.max(1), contract, events, sound }
    }

    /// Writes the nodes of a full buffer one after the other from now on, each with a request of its own, as the loop of the
    /// paper's algorithm 2 does; else a batch is one request.
    pub fn write_singly(&mut self) {
        self.nodes.write_singly();
    }

    /// What is peculiar to this system.
    pub fn details(&self) -> AsStats {
        let (happened, asked) = (self.nodes.happened(), self.nodes.asked());
        let sub_files = self.nodes.shares().map(|(number, share)| SubFile {
            number,
            nodes: share.pages,
            valid: share.valid,
        });
        AsStats {
            sub_files: sub_files.collect(),
            reads: asked.reads,
            read_hits: asked.read_hits,
            cache_hits: asked.cache_hits,
            writes: asked.writes,
            write_hits: asked.write_hits,
            slots_max: happened.slots_max,
            batches: happened.batches,
            copies: happened.copies,
            recycled: happened.recycled,
            checkpoints: happened.checkpoints,
            freed: happened.freed,
            recovery_reads: happened.recovery_reads,
            table_memory: self.nodes.table_memory(),
        }
    }
}

impl Index for AsTree {
    type Options = AsTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &AsTreeOptions) -> Result<Self> {
        let mut tree = Self::empty(&volume, options)?;
        single::plant(&mut tree.nodes)?;
        tree.flush()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &AsTreeOptions) -> Result<Self> {
        let (use_checkpoint, rule) = match options.recovery {
            AsRecovery::Checkpoint => (true, Rule::Batches),
            AsRecovery::ReadAll => (false, Rule::Batches),
            AsRecovery::AsPublished => (false, Rule::AsPublished),
        };
        Ok(Self::over(AlwaysSequential::open(&volume, NAME, setup(options)?, use_checkpoint, rule)?, options))
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &AsTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::empty(&volume, options)?;
        bulk_load(&mut tree.nodes, fill, records)?;
        tree.flush()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "AS B-tree"
    }

    fn contract(&self) -> Contract {
        self.contract
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        single::insert(&mut self.nodes, &self.sound, key, value, &mut self.events)
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        single::delete(&mut self.nodes, &self.sound, key, &mut self.events)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.sound.check()?;
        single::search(&self.nodes, key)
    }

    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.sound.check()?;
        search_many::search_many(&self.nodes, keys, self.pio_max)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        scan::scan(&self.nodes, range)
    }

    fn flush(&mut self) -> Result<()> {
        self.sound.work(|| self.nodes.sync())
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        let checked = walk(&self.nodes, Allow::default(), &mut |_, _| ())?;
        self.nodes.check(checked.leaves + checked.inner)?;
        Ok(checked)
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
        self.nodes.page_use()
    }
}
