//! The µ-tree and the µ*-tree: a page of flash holds a whole path, so that an update writes one page where the wandering tree
//! writes one for each level. (Kang, Jung, Kang, Kim, "µ-Tree: An Ordered Index Structure for NAND Flash Memory", EMSOFT 2007;
//! Ahn, Kang, Jung, Kim, Maeng, "µ*-Tree: An Ordered Index Structure for NAND Flash Memory with Adaptive Page Layout Scheme",
//! IEEE Transactions on Computers 62 (4), 2013. Built from what the CB-tree paper, Applied Sciences 2020, section 2.4, says of
//! both; the µ*-tree's rule for the layout is ours.)
//!
//! | part | |
//! |---|---|
//! | pages | partitioned by level (`page/path_page.rs`) |
//! | placement, collection, recovery | `store/path_pages.rs` over a log (`store/flash_log.rs`) |
//! | updates | path copying (`update/path_rewrite.rs`, `store/path_copy.rs`) |
//!
//! The µ*-tree's leaf gets as much of the page, of 4, 5, 6 and 7 eighths, as the nodes above it leave at that moment; these
//! are divided when they need more than the µ-tree gives them. A leaf that was written when they were small is divided when it
//! is next changed after they have grown.
//!
//! Contract: an operation that returned is durable. What the power cut is as if it had not begun.

use crate::index::{Checked, Contract, Index};
use crate::page::path_page::HALF;
use crate::read::subtree_scan::subtree_scan;
use crate::read::walk::{Allow, walk};
use crate::store::nodes::Nodes;
use crate::store::path_pages::PathPageStore;
use crate::system::wandering::FlashStats;
use crate::update::load_levels::{load_levels, plant};
use crate::update::path_rewrite::{self, Split};
use crate::update::single::{Events, search};
use crate::{Counters, Key, PageUse, Result, Value};
use flash::RawFlash;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

const ALLOW: Allow = Allow { underfull: false, unchained: true };
const FIXED: &[u8] = &[HALF];
const ADAPTIVE: &[u8] = &[7, 6, 5, HALF];

/// What a leaf gets of its page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MuLayout {
    /// Half: the µ-tree.
    #[default]
    Fixed,
    /// From half to seven eighths, as the nodes above allow: the µ*-tree.
    Adaptive,
}

/// What a µ-tree is built with.
#[derive(Clone, Debug)]
pub struct MuTreeOptions {
    /// Bytes of a page that are used, a power of two from 512 to what the flash has.
    pub page_len: usize,
    /// Most entries of all nodes of a page together, from 16 on; `None` for as many as a page holds. The CB-tree paper's
    /// experiments have 128.
    pub entries_max: Option<usize>,
    /// What a leaf gets of them.
    pub layout: MuLayout,
    /// How full nodes are divided.
    pub split: Split,
}

impl Default for MuTreeOptions {
    fn default() -> Self {
        Self { page_len: 4096, entries_max: Some(128), layout: MuLayout::Fixed, split: Split::Even }
    }
}

impl MuTreeOptions {
    fn choices(&self) -> &'static [u8] {
        match self.layout {
            MuLayout::Fixed => FIXED,
            MuLayout::Adaptive => ADAPTIVE,
        }
    }
}

/// See the module.
pub struct MuTree {
    store: PathPageStore,
    options: MuTreeOptions,
    events: Events,
}

impl MuTree {
    fn empty(flash: Arc<RawFlash>, options: &MuTreeOptions) -> Result<Self> {
        let store = PathPageStore::create(flash, options.page_len, options.entries_max, options.choices())?;
        Ok(Self { store, options: options.clone(), events: Events::default() })
    }

    /// What is peculiar to raw flash.
    pub fn details(&self) -> FlashStats {
        FlashStats::of(self.store.log().counts(), self.store.log().live_pages())
    }

    /// Pages that were written with a leaf of more than half of them, since created or recovered.
    pub fn enlarged(&self) -> u64 {
        self.store.enlarged()
    }
}

impl Index for MuTree {
    type Options = MuTreeOptions;
    type Ground = Arc<RawFlash>;

    fn create(flash: Arc<RawFlash>, options: &MuTreeOptions) -> Result<Self> {
        let mut tree = Self::empty(flash, options)?;
        tree.store.change(&mut tree.events, &|planning, _| plant(planning))?;
        Ok(tree)
    }

    fn recover(flash: Arc<RawFlash>, options: &MuTreeOptions) -> Result<Self> {
        let store = PathPageStore::open(flash, options.page_len, options.entries_max, options.choices())?;
        Ok(Self { store, options: options.clone(), events: Events::default() })
    }

    fn bulk_load(
        flash: Arc<RawFlash>,
        options: &MuTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::empty(flash, options)?;
        tree.store.load(&mut |planning| load_levels(planning, fill, records))?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        match self.options.layout {
            MuLayout::Fixed => "µ-tree",
            MuLayout::Adaptive => "µ*-tree",
        }
    }

    fn contract(&self) -> Contract {
        Contract::EachOperation
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        let split = self.options.split;
        self.store.change(&mut self.events, &|planning, events| {
            path_rewrite::insert(planning, key, value, split, events)
        })
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.store.change(&mut self.events, &|planning, events| {
            path_rewrite::delete(planning, key, events).map(|_| ())
        })
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.store.begin();
        search(&self.store, key)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.store.begin();
        subtree_scan(&self.store, range)
    }

    fn flush(&mut self) -> Result<()> {
        // Nothing waits.
        Ok(())
    }

    fn check(&self) -> Result<Checked> {
        self.store.begin();
        let mut nodes = HashSet::new();
        let checked = walk(&self.store, ALLOW, &mut |id, _| {
            nodes.insert(id);
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
