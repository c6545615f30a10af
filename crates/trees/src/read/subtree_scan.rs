//! A range search through the inner nodes, for trees whose leaves are not chained.

use crate::page::node::Node;
use crate::page::{Key, NodeId, Value};
use crate::store::nodes::Nodes;
use crate::{Error, Result};
use std::ops::Range;

/// All records with keys in `range`, in order.
pub(crate) fn subtree_scan(store: &impl Nodes, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
    let mut found = Vec::new();
    if !range.is_empty() {
        let root = store.root();
        visit(store, root.id, root.level, &range, &mut found)?;
    }
    Ok(found)
}

fn visit(
    store: &impl Nodes,
    id: NodeId,
    level: u8,
    range: &Range<Key>,
    found: &mut Vec<(Key, Value)>,
) -> Result<()> {
    let node = store.read(id)?;
    match &*node {
        Node::Leaf(leaf) if level == 0 => {
            let start = leaf.entries.partition_point(|entry| entry.0 < range.start);
            let end = leaf.entries.partition_point(|entry| entry.0 < range.end);
            found.extend_from_slice(&leaf.entries[start..end]);
            Ok(())
        }
        Node::Inner(inner) if level > 0 => {
            let children = inner.child_of(range.start)..=inner.child_of(range.end - 1);
            inner.children[children]
                .iter()
                .try_for_each(|child| visit(store, *child, level - 1, range, found))
        }
        other => Err(Error::broken(format!("{id} is of level {}, not {level}", other.level()))),
    }
}
