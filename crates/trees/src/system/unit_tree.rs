//! A B+-tree in place behind a buffer of updates: when that is full, all units of a victim leaf go to the leaf at once.
//! IBSF and the lazy-update tree are this with different victims.
//!
//! ```text
//! buffer/unit_buffer, buffer/lru_pool, store/in_place
//! update/batch
//! ```
//! Invariant: what the buffer has for a key is newer than what the tree has.

use crate::buffer::lru_pool::LruPool;
use crate::buffer::unit_buffer::{UnitBuffer, Victim};
use crate::index::{Checked, Contract, Index};
use crate::page::node::{Node, Shape};
use crate::page::{Change, Key, Value};
use crate::read::reach::reach;
use crate::read::walk::{Allow, walk};
use crate::read::{scan, search_many};
use crate::sound::Sound;
use crate::store::NodeStore;
use crate::store::in_place::InPlaceStore;
use crate::update::batch::{Nothing, merged, update_leaf};
use crate::update::bulk_load::bulk_load;
use crate::update::single::{self, Events};
use crate::{Counters, Error, Result};
use psync::Volume;
use std::collections::HashSet;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// What distinguishes the systems of this kind: whose updates are committed when the buffer is full.
pub trait VictimChoice: Copy + Default {
    /// The system's name, as in the papers.
    const NAME: &'static str;
    /// The name of its file.
    const FILE: &'static str;

    /// The victim, as the buffer takes it.
    fn victim(self) -> Victim;
}

/// What a tree behind a buffer of updates is built with.
#[derive(Clone, Debug)]
pub struct UnitTreeOptions<V> {
    /// Bytes of a node, a power of two from 128 on.
    pub page_len: usize,
    /// Updates that the buffer holds, 1 or more. The CB-tree paper has 8 pages of 128.
    pub units: usize,
    /// Nodes that a pool keeps besides; 0 for none, as the published ones.
    pub frames: usize,
    /// Most keys in a node, if less than a page holds.
    pub keys_max: Option<usize>,
    /// PioMax for [`Index::search_many`]; 1 searches key by key, as the published ones do.
    pub pio_max: usize,
    /// Whose updates are committed when the buffer is full.
    pub policy: V,
    /// Whether each update goes down to its leaf before it waits, as BFTL's do; the papers do not tell.
    pub descends: bool,
}

impl<V: Default> Default for UnitTreeOptions<V> {
    fn default() -> Self {
        Self {
            page_len: 4096,
            units: 1024,
            frames: 0,
            keys_max: None,
            pio_max: 1,
            policy: V::default(),
            descends: false,
        }
    }
}

/// What the buffer of a [`UnitTree`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitBufferDetails {
    /// Leaves that were committed because the buffer was full. Divide `units` by it: g, units per victim.
    pub victims: u64,
    /// Units that they had.
    pub units: u64,
    /// Leaves that were committed by [`Index::flush`](crate::Index::flush).
    pub flushed: u64,
    /// Updates that replaced a waiting one of the same key.
    pub redundant: u64,
    /// Times that a leaf's range was looked up to open a group.
    pub groups_opened: u64,
}

/// See the module.
pub struct UnitTree<V> {
    nodes: LruPool,
    buffer: UnitBuffer,
    pio_max: usize,
    descends: bool,
    events: Events,
    details: UnitBufferDetails,
    sound: Sound,
    choice: PhantomData<V>,
}

impl<V: VictimChoice> UnitTree<V> {
    fn over(store: InPlaceStore, options: &UnitTreeOptions<V>) -> Result<Self> {
        let shape = Shape::of_page(options.page_len).limited(options.keys_max);
        let nodes = LruPool::new(store, shape, options.frames);
        let sound = nodes.sound();
        Ok(Self {
            nodes,
            buffer: UnitBuffer::new(options.policy.victim(), options.units)?,
            pio_max: options.pio_max.max(1),
            descends: options.descends,
            events: Events::default(),
            details: UnitBufferDetails::default(),
            sound,
            choice: PhantomData,
        })
    }

    fn change(&mut self, key: Key, change: Change) -> Result<()> {
        self.sound.check()?;
        if self.descends {
            single::search(&self.nodes, key)?;
        }
        let mut range = None;
        if self.buffer.asks_for_range(key) {
            self.details.groups_opened += 1;
            range = Some(reach(&self.nodes, key, 0)?.range);
        }
        self.buffer.put(key, change, range);
        while self.buffer.is_overfull() {
            let victim =
                self.buffer.victim().ok_or_else(|| Error::broken("a full buffer without a victim"))?;
            // Only a key that did not wait makes it too full. What fails leaves it as it was.
            let units = self.commit(victim);
            if units.is_err() {
                self.buffer.take_back(key);
            }
            self.details.units += units?;
            self.details.victims += 1;
        }
        Ok(())
    }

    /// Brings all units of the leaf that holds a key to it. Returns how many they were.
    fn commit(&mut self, key: Key) -> Result<u64> {
        let reach = reach(&self.nodes, key, 0)?;
        let leaf = self.nodes.read(reach.id)?;
        let changes = self.buffer.take(reach.range);
        self.sound
            .work(|| update_leaf(&mut self.nodes, reach, &leaf, &changes, &mut Nothing, &mut self.events))?;
        Ok(changes.len() as u64)
    }

    /// What its buffer has done besides [`Index::stats`].
    pub fn details(&self) -> UnitBufferDetails {
        UnitBufferDetails { redundant: self.buffer.redundant(), ..self.details }
    }
}

impl<V: VictimChoice> Index for UnitTree<V> {
    type Options = UnitTreeOptions<V>;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &UnitTreeOptions<V>) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::create(volume, V::FILE, options.page_len)?, options)?;
        single::plant(&mut tree.nodes)?;
        tree.flush()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &UnitTreeOptions<V>) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::open(volume, V::FILE, options.page_len)?, options)?;
        let mut used = HashSet::new();
        walk(&tree.nodes, Allow::default(), &mut |id, _: &Node| {
            used.insert(id);
        })?;
        tree.nodes.store_mut().keep_only(&used);
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,

        options: &UnitTreeOptions<V>,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::create(volume, V::FILE, options.page_len)?, options)?;
        bulk_load(&mut tree.nodes, fill, records)?;
        tree.flush()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        V::NAME
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
        match self.buffer.get(key) {
            Some(change) => Ok(change.value()),
            None => single::search(&self.nodes, key),
        }
    }

    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.sound.check()?;
        let beyond: Vec<Key> = keys.iter().copied().filter(|key| self.buffer.get(*key).is_none()).collect();
        let mut found = search_many::search_many(&self.nodes, &beyond, self.pio_max)?.into_iter();
        let value = |key: &Key| match self.buffer.get(*key) {
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
        let waiting: Vec<_> = self.buffer.range(range.clone()).collect();
        let stored = scan::scan(&self.nodes, range)?;
        Ok(if waiting.is_empty() { stored } else { merged(&stored, &waiting) })
    }

    fn flush(&mut self) -> Result<()> {
        self.sound.check()?;
        while let Some(key) = self.buffer.first_key() {
            self.commit(key)?;
            self.details.flushed += 1;
        }
        self.sound.work(|| self.nodes.sync())
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        self.buffer.check()?;
        let checked = walk(&self.nodes, Allow::default(), &mut |_, _| ())?;
        let all = self.range(0..Key::MAX)?.len() as u64 + u64::from(self.search(Key::MAX)?.is_some());
        Ok(Checked { records: all, ..checked })
    }

    fn stats(&self) -> Counters {
        let nodes = self.nodes.counters();
        Counters {
            splits: self.events.splits,
            merges: self.events.merges,
            redistributions: self.events.redistributions,
            flushes: self.details.victims + self.details.flushed,
            height: u32::from(self.nodes.root().level) + 1,
            memory: nodes.memory + self.buffer.memory(),
            ..nodes
        }
    }
}
