//! The wandering tree of JFFS3: a B+-tree on raw flash that never overwrites. An update writes the leaf and all nodes above it
//! to fresh pages; the new root makes it so. (Bityuckiy, "JFFS3 Design Issues", 2005; compared with in the CB-tree paper,
//! Applied Sciences 2020, sections 2.4 and 5.2.)
//!
//! | part | |
//! |---|---|
//! | pages | sorted nodes (`page/node.rs`), one a page |
//! | placement, collection, recovery | copy-on-write to the root (`store/copy_on_write.rs`) over a log (`store/flash_log.rs`) |
//! | updates | path copying (`update/path_rewrite.rs`, `store/path_copy.rs`) |
//!
//! Nothing is kept in memory but which pages live: every operation reads its path, root included.
//!
//! Contract: an operation that returned is durable. What the power cut is as if it had not begun.

use crate::index::{Checked, Contract, Index};
use crate::read::subtree_scan::subtree_scan;
use crate::read::walk::{Allow, walk};
use crate::store::copy_on_write::CopyOnWriteStore;
use crate::store::flash_log::LogCounts;
use crate::store::nodes::Nodes;
use crate::store::path_copy::Planning;
use crate::update::load_levels::{load_levels, plant};
use crate::update::path_rewrite::{self, Split};
use crate::update::single::{Events, search};
use crate::{Counters, Key, PageUse, Result, Value};
use flash::RawFlash;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Leaves are not chained: a neighbour's address would have to be written with every copy.
const ALLOW: Allow = Allow { underfull: false, unchained: true };

/// What a wandering tree is built with.
#[derive(Clone, Debug)]
pub struct WanderingOptions {
    /// Bytes of a page that are used, a power of two from 128 to what the flash has.
    pub page_len: usize,
    /// Most keys in a node, from 4 on; `None` for as many as a page holds. The CB-tree paper's experiments have 128.
    pub keys_max: Option<usize>,
    /// How full nodes are divided.
    pub split: Split,
}

impl Default for WanderingOptions {
    fn default() -> Self {
        Self { page_len: 4096, keys_max: Some(128), split: Split::Even }
    }
}

/// What trees on raw flash count besides [`Counters`], since created or recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashStats {
    /// Pages that hold something of the tree now.
    pub live_pages: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Blocks that were emptied for their space.
    pub collected: u64,
    /// Pages copied unchanged for that; trees that copy paths write those anew, and count none here.
    pub moved: u64,
}

impl FlashStats {
    pub(crate) fn of(counts: LogCounts, live_pages: u64) -> Self {
        let LogCounts { erases, collected, moved, .. } = counts;
        Self { live_pages, erases, collected, moved }
    }
}

/// See the module.
pub struct WanderingTree {
    store: CopyOnWriteStore,
    split: Split,
    events: Events,
}

impl WanderingTree {
    fn over(store: CopyOnWriteStore, options: &WanderingOptions) -> Self {
        Self { store, split: options.split, events: Events::default() }
    }

    fn change(
        &mut self,
        plan: impl FnOnce(&mut Planning<'_, CopyOnWriteStore>, &mut Events) -> Result<()>,
    ) -> Result<()> {
        self.store.make_room()?;
        let limits = |level, height| self.store.limits(level, height);
        let mut planning = Planning::new(&self.store, &limits);
        plan(&mut planning, &mut self.events)?;
        if let Some(plan) = planning.finish() {
            self.store.write(&plan)?;
        }
        Ok(())
    }

    /// What is peculiar to raw flash.
    pub fn details(&self) -> FlashStats {
        FlashStats::of(self.store.log().counts(), self.store.log().live_pages())
    }
}

impl Index for WanderingTree {
    type Options = WanderingOptions;
    type Ground = Arc<RawFlash>;

    fn create(flash: Arc<RawFlash>, options: &WanderingOptions) -> Result<Self> {
        let mut tree =
            Self::over(CopyOnWriteStore::create(flash, options.page_len, options.keys_max)?, options);
        tree.change(|planning, _| plant(planning))?;
        Ok(tree)
    }

    fn recover(flash: Arc<RawFlash>, options: &WanderingOptions) -> Result<Self> {
        Ok(Self::over(CopyOnWriteStore::open(flash, options.page_len, options.keys_max)?, options))
    }

    fn bulk_load(
        flash: Arc<RawFlash>,
        options: &WanderingOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree =
            Self::over(CopyOnWriteStore::create(flash, options.page_len, options.keys_max)?, options);
        tree.change(|planning, _| load_levels(planning, fill, records))?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "wandering tree"
    }

    fn contract(&self) -> Contract {
        Contract::EachOperation
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        let split = self.split;
        self.change(|planning, events| path_rewrite::insert(planning, key, value, split, events))
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.change(|planning, events| path_rewrite::delete(planning, key, events).map(|_| ()))
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        search(&self.store, key)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        subtree_scan(&self.store, range)
    }

    fn flush(&mut self) -> Result<()> {
        // Nothing waits.
        Ok(())
    }

    fn check(&self) -> Result<Checked> {
        let mut nodes = HashMap::new();
        let checked = walk(&self.store, ALLOW, &mut |id, node| {
            nodes.insert(id, node.level());
        })?;
        self.store.check(&nodes)?;
        Ok(checked)
    }

    fn stats(&self) -> Counters {
        Counters {
            splits: self.events.splits,
            merges: self.events.merges,
            redistributions: self.events.redistributions,
            height: u32::from(self.store.root().level) + 1,
            ..self.store.counters()
        }
    }

    fn page_use(&self) -> PageUse {
        self.store.log().page_use()
    }
}
