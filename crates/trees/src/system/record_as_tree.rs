//! The AS-tree as the CB-tree paper describes and measures it (Kim, Kim, Lee, Applied Sciences 10, 2020, section 2.3): unlike the
//! [AS B-tree](crate::AsTree), which gathers changed nodes, it gathers *records*. A full buffer is brought to the tree as a whole,
//! in order of key and so leaf by leaf; the images of all nodes that changed go to the end of the newest sub-file, in
//! sequence, and sub-files with few valid nodes are recycled.
//!
//! ```text
//! buffer/always_sequential (write buffer, mapping table, validation, recycling)
//! update/batch
//! ```
//! What survives power loss: what was there at the last [`Index::flush`], if the power does not fail before the next one. Whole
//! batches of nodes keep the tree sound, but they hold the records of one buffer in order of key, not of arrival.
//!
//! Invariant: what the buffer has for a key is newer than what the tree has.

use crate::buffer::always_sequential::{AlwaysSequential, Setup};
use crate::index::{Checked, Contract, Index};
use crate::page::Change;
use crate::read::reach::reach;
use crate::read::walk::{Allow, walk};
use crate::read::{scan, search_many};
use crate::sound::Sound;
use crate::store::NodeStore;
use crate::store::log_recovery::Rule;
use crate::update::batch::{Nothing, merged, update_leaf};
use crate::update::bulk_load::bulk_load;
use crate::update::single::{self, Events};
use crate::{Counters, Error, Key, PageUse, Result, Value};
use psync::Volume;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const NAME: &str = "astree";

/// What an AS-tree with a buffer of records is built with.
#[derive(Clone, Debug)]
pub struct RecordAsTreeOptions {
    /// Bytes of a node, a power of two from 256 to 2^20.
    pub node_len: usize,
    /// Most keys in a node, from 4 on; `None` for as many as a node holds. The CB-tree paper has 128.
    pub keys_max: Option<usize>,
    /// Records that the buffer holds, 1 or more. The CB-tree paper has 8 pages of 128.
    pub records: usize,
    /// Nodes that wait to be written as one batch, 1 to 16384; they are written at the latest when the buffer of records is
    /// empty.
    pub slots: usize,
    /// Bytes of a sub-file; a batch that is longer makes a longer one.
    pub sub_file_len: u64,
    /// A sub-file with a smaller share of valid nodes is recycled; 0 (never) to 0.8.
    pub threshold: f64,
    /// Batches from one checkpoint of the mapping table to the next; 0 for none.
    pub checkpoint_every: u64,
    /// PioMax for [`Index::search_many`]; 1 searches key by key, as the published one does.
    pub pio_max: usize,
    /// Whether each update goes down to its leaf before it waits, as BFTL's do; the paper does not tell.
    pub descends: bool,
}

impl Default for RecordAsTreeOptions {
    fn default() -> Self {
        Self {
            node_len: 4096,
            keys_max: Some(128),
            records: 1024,
            slots: 32,
            sub_file_len: 8 << 20,
            threshold: 0.3,
            checkpoint_every: 256,
            pio_max: 1,
            descends: false,
        }
    }
}

/// See the module.
pub struct RecordAsTree {
    nodes: AlwaysSequential,
    /// The newest change of each key that has not come to the tree.
    waiting: BTreeMap<Key, Change>,
    records: usize,
    pio_max: usize,
    descends: bool,
    events: Events,
    flushes: u64,
    sound: Sound,
}

fn setup(options: &RecordAsTreeOptions) -> Result<Setup> {
    let RecordAsTreeOptions { node_len, slots, sub_file_len, threshold, checkpoint_every, .. } = *options;
    if options.records == 0 {
        return Err(Error::Invalid("a buffer of 0 records: 1 at least".into()));
    }
    Setup::new(node_len, options.keys_max, slots, 0, sub_file_len, threshold, checkpoint_every)
}

impl RecordAsTree {
    fn over(nodes: AlwaysSequential, options: &RecordAsTreeOptions) -> Self {
        Self {
            nodes,
            waiting: BTreeMap::new(),
            records: options.records,
            pio_max: options.pio_max.max(1),
            descends: options.descends,
            events: Events::default(),
            flushes: 0,
            sound: Sound::default(),
        }
    }

    fn empty(volume: &Arc<dyn Volume>, options: &RecordAsTreeOptions) -> Result<Self> {
        Ok(Self::over(AlwaysSequential::create(volume, NAME, setup(options)?)?, options))
    }

    fn change(&mut self, key: Key, change: Change) -> Result<()> {
        self.sound.check()?;
        if self.descends {
            single::search(&self.nodes, key)?;
        }
        self.waiting.insert(key, change);
        if self.waiting.len() <= self.records {
            return Ok(());
        }
        let brought = self.bring_all();
        if brought.is_err() && self.sound.check().is_ok() {
            // A read has failed. Only a key that did not wait makes it too full: if it waits still, it is as if it had not come. Otherwise its leaf
            // has it, and there is room: what could not be read is met by the next update.
            return if self.waiting.remove(&key).is_some() { brought } else { Ok(()) };
        }
        brought
    }

    /// Brings everything that waits to the tree, leaf by leaf.
    fn bring_all(&mut self) -> Result<()> {
        while let Some(key) = self.waiting.first_key_value().map(|(key, _)| *key) {
            let reach = reach(&self.nodes, key, 0)?;
            let changes: Vec<(Key, Change)> =
                self.waiting.range(reach.range.bounds()).map(|(key, change)| (*key, *change)).collect();
            let leaf = self.nodes.read(reach.id)?;
            let Self { nodes, events, sound, .. } = self;
            sound.work(|| update_leaf(nodes, reach, &leaf, &changes, &mut Nothing, events))?;
            changes.iter().for_each(|(key, _)| {
                self.waiting.remove(key);
            });
        }
        self.flushes += 1;
        self.sound.work(|| self.nodes.write_batch())
    }

    /// Sub-files that were recycled.
    pub fn recycled(&self) -> u64 {
        self.nodes.happened().recycled
    }
}

impl Index for RecordAsTree {
    type Options = RecordAsTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &RecordAsTreeOptions) -> Result<Self> {
        let mut tree = Self::empty(&volume, options)?;
        single::plant(&mut tree.nodes)?;
        tree.flush()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &RecordAsTreeOptions) -> Result<Self> {
        let setup = setup(options)?;
        let nodes = AlwaysSequential::open(&volume, NAME, setup, setup.checkpoint_every > 0, Rule::Batches)?;
        Ok(Self::over(nodes, options))
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &RecordAsTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::empty(&volume, options)?;
        bulk_load(&mut tree.nodes, fill, records)?;
        tree.flush()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "AS-tree"
    }

    fn contract(&self) -> Contract {
        Contract::Never
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.change(key, Change::Put(value))
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.change(key, Change::Remove)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.sound.check()?;
        match self.waiting.get(&key) {
            Some(change) => Ok(change.value()),
            None => single::search(&self.nodes, key),
        }
    }

    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.sound.check()?;
        let beyond: Vec<Key> = keys.iter().copied().filter(|key| !self.waiting.contains_key(key)).collect();
        let mut found = search_many::search_many(&self.nodes, &beyond, self.pio_max)?.into_iter();
        let value = |key: &Key| match self.waiting.get(key) {
            Some(change) => change.value(),
            None => found.next().flatten(),
        };
        Ok(keys.iter().map(value).collect())
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let waiting: Vec<_> =
            self.waiting.range(range.clone()).map(|(key, change)| (*key, *change)).collect();
        let stored = scan::scan(&self.nodes, range)?;
        Ok(if waiting.is_empty() { stored } else { merged(&stored, &waiting) })
    }

    fn flush(&mut self) -> Result<()> {
        self.sound.check()?;
        self.bring_all()?;
        self.sound.work(|| self.nodes.sync())
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        let checked = walk(&self.nodes, Allow::default(), &mut |_, _| ())?;
        self.nodes.check(checked.leaves + checked.inner)?;
        if self.waiting.len() > self.records {
            return Err(Error::broken(format!(
                "{} records wait, {} are allowed",
                self.waiting.len(),
                self.records
            )));
        }
        let all = self.range(0..Key::MAX)?.len() as u64 + u64::from(self.search(Key::MAX)?.is_some());
        Ok(Checked { records: all, ..checked })
    }

    fn stats(&self) -> Counters {
        let nodes = self.nodes.counters();
        Counters {
            splits: self.events.splits,
            merges: self.events.merges,
            redistributions: self.events.redistributions,
            flushes: self.flushes,
            height: u32::from(self.nodes.root().level) + 1,
            memory: nodes.memory + (self.waiting.len() * size_of::<(Key, Change)>()) as u64,
            ..nodes
        }
    }

    fn page_use(&self) -> PageUse {
        self.nodes.page_use()
    }
}
