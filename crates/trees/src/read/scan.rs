//! The range search of the baselines: descend once, then walk from leaf to leaf, one read after the other.
//!
//! Invariant: keys ascend from leaf to leaf. Leaves that are chained to a ring, as power loss can leave those of a tree that
//! promises nothing, are refused, and not walked for ever.

use crate::page::{Key, Value};
use crate::store::NodeStore;
use crate::{Error, Result};
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
    let mut last = None;
    loop {
        let leaf = node.as_leaf()?;
        if let Some((first, _)) = leaf.entries.first()
            && last >= Some(*first)
        {
            return Err(Error::broken(format!(
                "a leaf that begins with key {first} follows one with {last:?}"
            )));
        }
        last = leaf.entries.last().map(|entry| entry.0).or(last);
        let start = leaf.entries.partition_point(|entry| entry.0 < range.start);
        let end = leaf.entries.partition_point(|entry| entry.0 < range.end);
        found.extend_from_slice(&leaf.entries[start..end]);
        match leaf.next {
            Some(next) if end == leaf.entries.len() => node = store.read(next)?,
            _ => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counters;
    use crate::page::NodeId;
    use crate::page::node::{Leaf, Node, Shape};
    use crate::store::Root;
    use std::sync::Arc;

    /// Leaves of two keys each; which follows which is told.
    struct Chain(Vec<Option<u64>>);

    impl NodeStore for Chain {
        fn shape(&self) -> Shape {
            Shape { fanout: 4, records: 4 }
        }

        fn root(&self) -> Root {
            Root { id: NodeId(0), level: 0 }
        }

        fn set_root(&mut self, _: Root) {}

        fn read(&self, id: NodeId) -> Result<Arc<Node>> {
            let entries = vec![(10 * id.0, 1), (10 * id.0 + 1, 1)];
            Ok(Arc::new(Node::Leaf(Leaf { entries, next: self.0[id.0 as usize].map(NodeId) })))
        }

        fn read_many(&self, ids: &[NodeId]) -> Result<Vec<Arc<Node>>> {
            ids.iter().map(|id| self.read(*id)).collect()
        }

        fn write(&mut self, _: NodeId, _: Node) -> Result<()> {
            Ok(())
        }

        fn allocate(&mut self) -> NodeId {
            NodeId(0)
        }

        fn free(&mut self, _: NodeId) -> Result<()> {
            Ok(())
        }

        fn sync(&mut self) -> Result<()> {
            Ok(())
        }

        fn counters(&self) -> Counters {
            Counters::default()
        }
    }

    #[test]
    fn leaves_are_walked_in_order_and_a_ring_is_refused() {
        let found = scan(&Chain(vec![Some(2), None, Some(3), None]), 1..31).unwrap();
        assert_eq!(found, [(1, 1), (20, 1), (21, 1), (30, 1)]);
        let told = scan(&Chain(vec![Some(1), Some(2), Some(1)]), 0..99).unwrap_err().to_string();
        assert!(told.contains("begins with key 10 follows one with Some(21)"), "{told}");
    }
}
