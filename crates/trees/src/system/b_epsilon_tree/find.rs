//! How a Bε-tree is read: from the root down, until a message or a leaf tells of the key.
//!
//! `search_many` takes many keys down at once, with MPSearch (Roh, Park, Shin and Lee, IEEE Data Engineering Bulletin 2014,
//! section 3); a key that a message tells of goes no further. The children of a Bε-tree are few and its levels many, which makes
//! single searches slow and parallel reads worth more.

use super::BEpsilonTree;
use crate::page::buffered_node::{BufferedInner, BufferedNode};
use crate::page::{Change, Key, Value};
use crate::{Error, Result};
use mpsearch::{Tree, Visit, fan_out};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub(super) fn inner(node: &BufferedNode) -> Result<&BufferedInner> {
    match node {
        BufferedNode::Inner(inner) => Ok(inner),
        BufferedNode::Leaf(_) => Err(Error::broken("a leaf for an inner node")),
    }
}

pub(super) fn leaf(node: &BufferedNode) -> Result<&[(Key, Value)]> {
    match node {
        BufferedNode::Leaf(records) => Ok(records),
        BufferedNode::Inner(_) => Err(Error::broken("an inner node for a leaf")),
    }
}

fn value_of(records: &[(Key, Value)], key: Key) -> Option<Value> {
    records.binary_search_by_key(&key, |record| record.0).ok().map(|at| records[at].1)
}

impl BEpsilonTree {
    pub(super) fn find(&self, key: Key) -> Result<Option<Value>> {
        let mut node = Arc::clone(&self.root);
        for level in (0..self.level).rev() {
            let inner = inner(&node)?;
            if let Some(change) = inner.message(key) {
                return Ok(change.value());
            }
            node = self.nodes.read(inner.children[inner.child_of(key)], level)?;
        }
        Ok(value_of(leaf(&node)?, key))
    }

    pub(super) fn find_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut search = Many { tree: self, keys: &sorted, found: vec![None; sorted.len()] };
        mpsearch::mpsearch(&mut search, None, usize::from(self.level), 0..sorted.len(), self.pio_max)?;
        let found = search.found;
        let value = |key| sorted.binary_search(key).ok().and_then(|index| found[index]).flatten();
        Ok(keys.iter().map(value).collect())
    }

    /// All records with keys in `range`: all nodes that have some, level by level.
    pub(super) fn scan(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        // Messages of the levels above are newer: they were there first.
        let mut changes: BTreeMap<Key, Change> = BTreeMap::new();
        let mut nodes = vec![Arc::clone(&self.root)];
        for level in (0..self.level).rev() {
            let mut pages = Vec::new();
            for node in &nodes {
                let inner = inner(node)?;
                for (key, change) in inner.messages.iter().filter(|message| range.contains(&message.0)) {
                    changes.entry(*key).or_insert(*change);
                }
                pages.extend_from_slice(
                    &inner.children[inner.child_of(range.start)..=inner.child_of(range.end - 1)],
                );
            }
            nodes.clear();
            for pages in pages.chunks(self.pio_max) {
                nodes.extend(self.nodes.read_many(pages, level)?);
            }
        }
        for node in &nodes {
            for (key, value) in leaf(node)?.iter().filter(|record| range.contains(&record.0)) {
                changes.entry(*key).or_insert(Change::Put(*value));
            }
        }
        Ok(changes.into_iter().filter_map(|(key, change)| Some((key, change.value()?))).collect())
    }
}

struct Many<'a> {
    tree: &'a BEpsilonTree,
    keys: &'a [Key],
    /// The value of each key that something is known of.
    found: Vec<Option<Option<Value>>>,
}

impl Tree for Many<'_> {
    /// A page; none for the root, which is in memory.
    type Place = Option<u64>;
    type Node = Arc<BufferedNode>;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<Option<u64>>]) -> Result<Vec<Arc<BufferedNode>>> {
        let pages: Option<Vec<u64>> = group.iter().map(|visit| visit.place).collect();
        match pages {
            Some(pages) => self.tree.nodes.read_many(&pages, height as u8),
            None => Ok(vec![Arc::clone(&self.tree.root)]),
        }
    }

    fn descend(
        &mut self,
        _: usize,
        node: Arc<BufferedNode>,
        visit: Visit<Option<u64>>,
        below: &mut Vec<Visit<Option<u64>>>,
    ) -> Result<()> {
        let inner = inner(&node)?;
        for index in visit.keys.clone() {
            if self.found[index].is_none() {
                self.found[index] = inner.message(self.keys[index]).map(Change::value);
            }
        }
        let (keys, found) = (self.keys, &self.found);
        fan_out(
            visit.keys,
            |index| keys[index],
            |key| inner.child_of(*key),
            |child| inner.fences.get(child).copied(),
            |child, keys| {
                if keys.clone().any(|index| found[index].is_none()) {
                    below.push(Visit { place: Some(inner.children[child]), keys });
                }
            },
        );
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<Option<u64>>, Arc<BufferedNode>)>) -> Result<()> {
        for (visit, node) in group {
            let records = leaf(&node)?;
            for index in visit.keys {
                let known = self.found[index].unwrap_or_else(|| value_of(records, self.keys[index]));
                self.found[index] = Some(known);
            }
        }
        Ok(())
    }
}
