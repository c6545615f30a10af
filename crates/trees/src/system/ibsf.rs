//! IBSF (Lee and Lee, "An Efficient Index Buffer Management Scheme for Implementing a B-tree on NAND Flash Memory", Data &
//! Knowledge Engineering 2010; a comparator of the CB-tree): updates wait in a buffer, of each key the last one only; when
//! it is full, all that wait for the leaf of the *oldest* update are written with that leaf as one page.
//!
//! ```text
//! buffer/unit_buffer (first in, first out), buffer/lru_pool, store/in_place
//! update/buffered, update/batch
//! ```

use crate::buffer::unit_buffer::VictimPolicy;
use crate::index::{Checked, Contract, Index};
use crate::page::{Change, Key, Value};
use crate::update::buffered::{Buffered, BufferedOptions, UnitBufferDetails};
use crate::{Counters, Result};
use psync::Volume;
use std::ops::Range;
use std::sync::Arc;

const FILE: &str = "ibsf";

/// What an IBSF tree is built with.
#[derive(Clone, Debug)]
pub struct IbsfOptions {
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
}

impl Default for IbsfOptions {
    fn default() -> Self {
        Self { page_len: 4096, units: 1024, frames: 0, keys_max: None, pio_max: 1 }
    }
}

impl IbsfOptions {
    fn buffered(&self) -> BufferedOptions {
        BufferedOptions {
            page_len: self.page_len,
            units: self.units,
            frames: self.frames,
            keys_max: self.keys_max,
            pio_max: self.pio_max,
            policy: VictimPolicy::Fifo,
        }
    }
}

/// See the module.
pub struct Ibsf {
    tree: Buffered,
}

impl Ibsf {
    /// What its buffer has done besides [`Index::stats`].
    pub fn details(&self) -> UnitBufferDetails {
        self.tree.details()
    }
}

impl Index for Ibsf {
    type Options = IbsfOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &IbsfOptions) -> Result<Self> {
        Ok(Self { tree: Buffered::create(volume, FILE, &options.buffered())? })
    }

    fn recover(volume: Arc<dyn Volume>, options: &IbsfOptions) -> Result<Self> {
        Ok(Self { tree: Buffered::recover(volume, FILE, &options.buffered())? })
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &IbsfOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        Ok(Self { tree: Buffered::bulk_load(volume, FILE, &options.buffered(), fill, records)? })
    }

    fn name(&self) -> &'static str {
        "IBSF"
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
