//! The B+-tree, the baseline of all papers: sorted nodes in place, one page each, behind an LRU buffer pool that writes
//! dirty frames when it evicts them; a range search walks from leaf to leaf.
//!
//! With 0 frames it is the unbuffered B+-tree of the CB-tree paper. The [tree in place](crate::InPlaceTree) with this pool.

use crate::Result;
use crate::buffer::frames::Eviction;
use crate::buffer::lru_pool::LruPool;
use crate::page::node::Shape;
use crate::sound::Sound;
use crate::store::in_place::InPlaceStore;
use crate::system::in_place_tree::{InPlaceOptions, InPlaceTree};

/// What a B+-tree is built with.
#[derive(Clone, Debug)]
pub struct BTreeOptions {
    /// Bytes of a node, a power of two from 128 on.
    pub page_len: usize,
    /// M: nodes that the buffer pool holds; 0 for none.
    pub frames: usize,
    /// Most keys in a node, if less than a page holds: for tests, and for the papers' node sizes.
    pub keys_max: Option<usize>,
    /// PioMax for [`Index::search_many`](crate::Index::search_many); 1 searches key by key, as the published one does.
    pub pio_max: usize,
    /// What the buffer pool evicts first.
    pub eviction: Eviction,
}

impl Default for BTreeOptions {
    fn default() -> Self {
        Self { page_len: 4096, frames: 4096, keys_max: None, pio_max: 1, eviction: Eviction::Lru }
    }
}

impl InPlaceOptions for BTreeOptions {
    const NAME: &'static str = "B+-tree";
    const FILE: &'static str = "btree";

    type Pool = LruPool;

    fn node(&self) -> (usize, Option<usize>) {
        (self.page_len, self.keys_max)
    }

    fn pio_max(&self) -> usize {
        self.pio_max
    }

    fn pool(&self, store: InPlaceStore, shape: Shape) -> Result<LruPool> {
        Ok(LruPool::with_eviction(store, shape, self.frames, self.eviction))
    }

    fn store(pool: &mut LruPool) -> &mut InPlaceStore {
        pool.store_mut()
    }

    fn sound(pool: &LruPool) -> Sound {
        pool.sound()
    }
}

/// See the module.
pub type BTree = InPlaceTree<BTreeOptions>;
