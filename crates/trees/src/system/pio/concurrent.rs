//! The concurrent PIO B-tree, with the paper's simple locks (VLDB 2011, section 4): searches run side by side; a batch update has the
//! whole tree to itself; an arrival takes the queue for a moment.
//!
//! Invariants:
//! 1. While a batch update runs, no search does: what a search reads of queue and tree belongs together.
//! 2. Whoever fills the queue brings it to the tree.

use super::PioTree;
use crate::index::Index;
use crate::page::leaf_segments::Op;
use crate::queue::opq::COMMITTED;
use crate::{Counters, Key, Result, Value};
use parking_lot::RwLock;
use std::ops::Range;

/// A PIO B-tree for many threads.
pub struct SharedPioTree {
    tree: RwLock<PioTree>,
}

impl SharedPioTree {
    /// Shares a tree.
    pub fn new(tree: PioTree) -> Self {
        Self { tree: RwLock::new(tree) }
    }

    /// The tree, for one thread again.
    pub fn into_inner(self) -> PioTree {
        self.tree.into_inner()
    }

    fn change(&self, key: Key, value: Value, op: Op) -> Result<()> {
        let is_full = self.tree.read().queue_up(COMMITTED, key, value, op)?;
        if is_full {
            let mut tree = self.tree.write();
            // Somebody else may have been faster.
            if tree.queue.get_mut().is_full() {
                let result = tree.bupdate();
                tree.noted(result)?;
            }
        }
        Ok(())
    }

    /// See [`Index::insert`].
    pub fn insert(&self, key: Key, value: Value) -> Result<()> {
        self.change(key, value, Op::Insert)
    }

    /// See [`Index::update`].
    pub fn update(&self, key: Key, value: Value) -> Result<()> {
        self.change(key, value, Op::Update)
    }

    /// See [`Index::delete`].
    pub fn delete(&self, key: Key) -> Result<()> {
        self.change(key, 0, Op::Delete)
    }

    /// See [`Index::search`].
    pub fn search(&self, key: Key) -> Result<Option<Value>> {
        self.tree.read().search(key)
    }

    /// See [`Index::search_many`].
    pub fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.tree.read().search_many(keys)
    }

    /// See [`Index::range`].
    pub fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.tree.read().range(range)
    }

    /// See [`Index::flush`].
    pub fn flush(&self) -> Result<()> {
        self.tree.write().flush()
    }

    /// See [`Index::stats`].
    pub fn stats(&self) -> Counters {
        self.tree.read().stats()
    }
}
