//! The lazy-update B+-tree (On, Hu, Li and Xu, "Lazy-Update B+-Tree for Flash Devices", MDM 2009; a comparator of the
//! CB-tree): updates wait in a buffer, in groups by the leaf that they are for; when it is full, one group is committed.
//!
//! ```text
//! buffer/unit_buffer (groups; which one goes: see `VictimPolicy`), buffer/lru_pool, store/in_place
//! update/buffered, update/batch
//! ```
//! To know the group of a new key it reads the inner nodes on the way to its leaf, unless a group is there for it already.

use crate::buffer::unit_buffer::VictimPolicy;
use crate::index::{Checked, Contract, Index};
use crate::page::{Change, Key, Value};
use crate::update::buffered::{Buffered, BufferedOptions, UnitBufferDetails};
use crate::{Counters, Result};
use psync::Volume;
use std::ops::Range;
use std::sync::Arc;

const FILE: &str = "lutree";

/// What a lazy-update tree is built with.
#[derive(Clone, Debug)]
pub struct LuTreeOptions {
    /// Bytes of a node, a power of two from 128 on.
    pub page_len: usize,
    /// Updates that the buffer holds, 1 or more. The CB-tree paper has 8 pages of 128.
    pub units: usize,
    /// Nodes that a pool keeps besides; 0 for none, as the published one.
    pub frames: usize,
    /// Most keys in a node, if less than a page holds.
    pub keys_max: Option<usize>,
    /// PioMax for [`Index::search_many`]; 1 searches key by key, as the published one does.
    pub pio_max: usize,
    /// Which group is committed when the buffer is full.
    pub policy: VictimPolicy,
}

impl Default for LuTreeOptions {
    fn default() -> Self {
        Self { page_len: 4096, units: 1024, frames: 0, keys_max: None, pio_max: 1, policy: VictimPolicy::Lru }
    }
}

impl LuTreeOptions {
    fn buffered(&self) -> BufferedOptions {
        BufferedOptions {
            page_len: self.page_len,
            units: self.units,
            frames: self.frames,
            keys_max: self.keys_max,
            pio_max: self.pio_max,
            policy: self.policy,
        }
    }
}

/// See the module.
pub struct LuTree {
    tree: Buffered,
}

impl LuTree {
    /// What its buffer has done besides [`Index::stats`].
    pub fn details(&self) -> UnitBufferDetails {
        self.tree.details()
    }
}

impl Index for LuTree {
    type Options = LuTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &LuTreeOptions) -> Result<Self> {
        Ok(Self { tree: Buffered::create(volume, FILE, &options.buffered())? })
    }

    fn recover(volume: Arc<dyn Volume>, options: &LuTreeOptions) -> Result<Self> {
        Ok(Self { tree: Buffered::recover(volume, FILE, &options.buffered())? })
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &LuTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        Ok(Self { tree: Buffered::bulk_load(volume, FILE, &options.buffered(), fill, records)? })
    }

    fn name(&self) -> &'static str {
        "LU-tree"
    }

    fn contract(&self) -> Contract {
        Contract::Never
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.tree.change(key, Change::Put(value))
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.tree.change(key, Change::Remove)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.tree.search(key)
    }

    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.tree.search_many(keys)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.tree.range(range)
    }

    fn flush(&mut self) -> Result<()> {
        self.tree.flush()
    }

    fn check(&self) -> Result<Checked> {
        self.tree.check()
    }

    fn stats(&self) -> Counters {
        self.tree.stats()
    }
}
