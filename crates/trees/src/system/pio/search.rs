//! Point search, and many keys by MPSearch (VLDB 2011, sections 3.1 and 3.3).

use super::PioTree;
use crate::page::NodeId;
use crate::page::leaf_segments::Entry;
use crate::page::node::Node;
use crate::queue::opq::COMMITTED;
use crate::store::leaf_extents::SegmentedLeaf;
use crate::{Error, Key, Result, Value};
use mpsearch::{Tree, Visit, fan_out};
use std::sync::Arc;

/// What a leaf says of a key: the last operation on it.
fn last(leaf: &SegmentedLeaf, key: Key) -> Option<Value> {
    leaf.entries.iter().rev().find(|entry| entry.key == key).and_then(Entry::outcome)
}

impl PioTree {
    /// The value of a key, as a transaction sees it: the OPQ decides if it can, else one read for each level that is not buffered.
    pub(super) fn search_one(&self, key: Key, transaction: u64) -> Result<Option<Value>> {
        if let Some(entry) = self.queue.read().newest(key, transaction) {
            return Ok(entry.outcome());
        }
        let mut id = self.root.id;
        for _ in 0..self.root.level {
            let node = self.pages.read_inner(&[id])?.remove(0);
            let inner = node.as_inner()?;
            id = inner.children[inner.child_of(key)];
        }
        let leaf = self.pages.read_leaves(&[id])?.remove(0);
        Ok(last(&leaf, key))
    }

    /// The values of many keys, in the order asked.
    pub(super) fn mpsearch(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let mut answers: Vec<Option<Value>> = vec![None; keys.len()];
        let mut left = Vec::with_capacity(keys.len());
        let queue = self.queue.read();
        for (index, key) in keys.iter().enumerate() {
            match queue.newest(*key, COMMITTED) {
                Some(entry) => answers[index] = entry.outcome(),
                None => left.push((*key, index)),
            }
        }
        drop(queue);
        left.sort_unstable();
        let range = 0..left.len();
        let mut search = Search { tree: self, keys: &left, answers: &mut answers };
        mpsearch::mpsearch(
            &mut search,
            self.root.id,
            usize::from(self.root.level),
            range,
            self.options.pio_max,
        )?;
        Ok(answers)
    }
}

enum Read {
    Inner(Arc<Node>),
    Leaf(Arc<SegmentedLeaf>),
}

struct Search<'a> {
    tree: &'a PioTree,
    /// Sorted, each with where its answer goes.
    keys: &'a [(Key, usize)],
    answers: &'a mut [Option<Value>],
}

impl Tree for Search<'_> {
    type Place = NodeId;
    type Node = Read;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<NodeId>]) -> Result<Vec<Read>> {
        let ids: Vec<_> = group.iter().map(|visit| visit.place).collect();
        let pages = &self.tree.pages;
        Ok(if height == 0 {
            pages.read_leaves(&ids)?.into_iter().map(Read::Leaf).collect()
        } else {
            pages.read_inner(&ids)?.into_iter().map(Read::Inner).collect()
        })
    }

    fn descend(
        &mut self,
        _: usize,
        node: Read,
        visit: Visit<NodeId>,
        below: &mut Vec<Visit<NodeId>>,
    ) -> Result<()> {
        let Read::Inner(node) = node else { return Err(Error::broken("a leaf for an inner node")) };
        let inner = node.as_inner()?;
        fan_out(
            visit.keys,
            |index| self.keys[index].0,
            |key| inner.child_of(*key),
            |child| inner.fence_above(child),
            |child, keys| below.push(Visit { place: inner.children[child], keys }),
        );
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<NodeId>, Read)>) -> Result<()> {
        for (visit, node) in group {
            let Read::Leaf(leaf) = node else { return Err(Error::broken("an inner node for a leaf")) };
            for (key, index) in &self.keys[visit.keys] {
                self.answers[*index] = last(&leaf, *key);
            }
        }
        Ok(())
    }
}
