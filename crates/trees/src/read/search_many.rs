//! Many keys at once, by MPSearch: level by level, at most PioMax nodes in one psync. (PIO B-tree, VLDB 2011, section 3.1.1,
//! Algorithm 1.)

use crate::page::node::Node;
use crate::page::{Key, NodeId, Value};
use crate::store::NodeStore;
use crate::{Error, Result};
use mpsearch::{Tree, Visit, fan_out};
use std::sync::Arc;

struct Search<'a, S> {
    store: &'a S,
    keys: &'a [Key],
    found: Vec<Option<Value>>,
}

impl<S: NodeStore> Tree for Search<'_, S> {
    type Place = NodeId;
    type Node = Arc<Node>;
    type Error = Error;

    fn read(&mut self, _: usize, group: &[Visit<NodeId>]) -> Result<Vec<Arc<Node>>> {
        let ids: Vec<_> = group.iter().map(|visit| visit.place).collect();
        self.store.read_many(&ids)
    }

    fn descend(
        &mut self,
        _: usize,
        node: Arc<Node>,
        visit: Visit<NodeId>,
        below: &mut Vec<Visit<NodeId>>,
    ) -> Result<()> {
        let inner = node.as_inner()?;
        fan_out(
            visit.keys,
            |index| self.keys[index],
            |key| inner.child_of(*key),
            |child| inner.fence_above(child),
            |child, keys| below.push(Visit { place: inner.children[child], keys }),
        );
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<NodeId>, Arc<Node>)>) -> Result<()> {
        for (visit, node) in group {
            let leaf = node.as_leaf()?;
            self.found.extend(self.keys[visit.keys].iter().map(|key| leaf.get(*key)));
        }
        Ok(())
    }
}

/// The values of many keys, in the order asked.
pub(crate) fn search_many(
    store: &impl NodeStore,
    keys: &[Key],
    pio_max: usize,
) -> Result<Vec<Option<Value>>> {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let root = store.root();
    let mut search = Search { store, keys: &sorted, found: Vec::with_capacity(sorted.len()) };
    mpsearch::mpsearch(&mut search, root.id, usize::from(root.level), 0..sorted.len(), pio_max)?;
    let found = search.found;
    Ok(keys
        .iter()
        .map(|key| sorted.binary_search(key).ok().and_then(|index| found.get(index).copied().flatten()))
        .collect())
}
