//! The range search of the baselines: descend once, then walk from leaf to leaf, one read after the other.

use crate::Result;
use crate::page::{Key, Value};
use crate::store::NodeStore;
use std::ops::Range;

/// All records with keys in `range`, in order.
pub(crate) fn scan(store: &impl NodeStore, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
    let mut found = Vec::new();
    if range.is_empty() {
        return Ok(found);
    }
    let root = store.root();
    let mut node = store.read(root.id)?;
    for _ in 0..root.level {
        let inner = node.as_inner()?;
        node = store.read(inner.children[inner.child_of(range.start)])?;
    }
    loop {
        let leaf = node.as_leaf()?;
        let start = leaf.entries.partition_point(|entry| entry.0 < range.start);
        let end = leaf.entries.partition_point(|entry| entry.0 < range.end);
        found.extend_from_slice(&leaf.entries[start..end]);
        match leaf.next {
            Some(next) if end == leaf.entries.len() => node = store.read(next)?,
            _ => return Ok(found),
        }
    }
}
