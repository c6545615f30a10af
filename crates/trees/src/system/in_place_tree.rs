//! A B+-tree in place that is changed record by record: the [B+-tree](crate::BTree) and the
//! [one with a write buffer](crate::BatchedBTree) are this with other nodes between it and the file.
//!
//! ```text
//! a pool of nodes, store/in_place
//! update/single
//! ```
//! Invariant: pages that the tree does not reach are free once it is recovered.

use crate::index::{Checked, Contract, Index};
use crate::page::node::{Node, Shape};
use crate::read::walk::{Allow, walk};
use crate::read::{scan, search_many};
use crate::sound::Sound;
use crate::store::NodeStore;
use crate::store::in_place::InPlaceStore;
use crate::update::bulk_load::bulk_load;
use crate::update::single::{self, Events};
use crate::{Counters, Key, Result, Value};
use psync::Volume;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// What distinguishes the systems of this kind, by what they are built with.
pub(crate) trait InPlaceOptions: Clone {
    /// The system's name, as in the papers.
    const NAME: &'static str;
    /// The name of its file.
    const FILE: &'static str;

    /// Where nodes are kept between the tree and its file.
    type Pool: NodeStore;

    /// Bytes of a node, and most keys in one, if less than that holds.
    fn node(&self) -> (usize, Option<usize>);

    /// PioMax for [`Index::search_many`].
    fn pio_max(&self) -> usize;

    fn pool(&self, store: InPlaceStore, shape: Shape) -> Result<Self::Pool>;

    fn store(pool: &mut Self::Pool) -> &mut InPlaceStore;

    /// That of the pool, if reads may write what it evicts.
    fn sound(_: &Self::Pool) -> Sound {
        Sound::default()
    }
}

/// A B+-tree in place. `O`, what it is built with, says which: see [`BTree`](crate::BTree) and
/// [`BatchedBTree`](crate::BatchedBTree).
#[expect(private_bounds, reason = "which trees of this kind there are is this crate's own affair")]
pub struct InPlaceTree<O: InPlaceOptions> {
    pub(super) nodes: O::Pool,
    pio_max: usize,
    events: Events,
    sound: Sound,
}

#[expect(private_bounds, reason = "which trees of this kind there are is this crate's own affair")]
impl<O: InPlaceOptions> InPlaceTree<O> {
    fn over(options: &O, store: impl FnOnce(&'static str, usize) -> Result<InPlaceStore>) -> Result<Self> {
        let (page_len, keys_max) = options.node();
        let store = store(O::FILE, page_len)?;
        let nodes = options.pool(store, Shape::of_page(page_len).limited(keys_max))?;
        let (events, sound) = (Events::default(), O::sound(&nodes));
        Ok(Self { nodes, pio_max: options.pio_max().max(1), events, sound })
    }

    fn empty(volume: Arc<dyn Volume>, options: &O) -> Result<Self> {
        Self::over(options, |file, page_len| InPlaceStore::create(volume, file, page_len))
    }
}

impl<O: InPlaceOptions> Index for InPlaceTree<O> {
    type Options = O;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &O) -> Result<Self> {
        let mut tree = Self::empty(volume, options)?;
        single::plant(&mut tree.nodes)?;
        tree.flush()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &O) -> Result<Self> {
        let mut tree = Self::over(options, |file, page_len| InPlaceStore::open(volume, file, page_len))?;
        let mut used = HashSet::new();
        walk(&tree.nodes, Allow::default(), &mut |id, _: &Node| {
            used.insert(id);
        })?;
        O::store(&mut tree.nodes).keep_only(&used);
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &O,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::empty(volume, options)?;
        bulk_load(&mut tree.nodes, fill, records)?;
        tree.flush()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        O::NAME
    }

    fn contract(&self) -> Contract {
        Contract::Never
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
        walk(&self.nodes, Allow::default(), &mut |_, _| ())
    }

    fn stats(&self) -> Counters {
        Counters {
            splits: self.events.splits,
            merges: self.events.merges,
            redistributions: self.events.redistributions,
            height: u32::from(NodeStore::root(&self.nodes).level) + 1,
            ..self.nodes.counters()
        }
    }
}
