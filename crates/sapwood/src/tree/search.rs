//! Search for one key, and for many at once by MPSearch. (PIO B-tree, VLDB 2011, section 3.1.)

use crate::error::{Error, Result};
use crate::node::{Node, NodeId};
use crate::store::pager::Gather;
use crate::tree::view::TreeView;
use bytes::Bytes;
use mpsearch::{Visit, fan_out, mpsearch};

/// The value of a key.
pub(crate) fn get(view: TreeView<'_>, key: &[u8]) -> Result<Option<Bytes>> {
    let Some((mut id, height)) = view.root() else { return Ok(None) };
    for level in (1..=height).rev() {
        let node = view.node(id, level)?;
        id = node.child(node.child_for(key));
    }
    let leaf = view.node(id, 0)?;
    Ok(leaf.search(key).ok().map(|index| leaf.payload(index)))
}

/// The values of `keys`, which ascend strictly: `found(i, value)` is called for each that exists.
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    view: TreeView<'_>,
    keys: &[K],
    found: &mut dyn FnMut(usize, Bytes),
) -> Result<()> {
    let Some((root, height)) = view.root() else { return Ok(()) };
    let mut search = Search { view, keys, found };
    mpsearch(&mut search, root, usize::from(height), 0..keys.len(), view.pager.pio_max())
}

struct Search<'a, K> {
    view: TreeView<'a>,
    keys: &'a [K],
    found: &'a mut dyn FnMut(usize, Bytes),
}

impl<K: AsRef<[u8]>> mpsearch::Tree for Search<'_, K> {
    type Place = NodeId;
    type Node = Node;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<NodeId>]) -> Result<Vec<Node>> {
        self.view.nodes(group.iter().map(|visit| visit.place), height as u8, Gather::Single)
    }

    fn descend(
        &mut self,
        _: usize,
        node: Node,
        visit: Visit<NodeId>,
        below: &mut Vec<Visit<NodeId>>,
    ) -> Result<()> {
        fan_out::<[u8], _, _>(
            visit.keys,
            |index| self.keys[index].as_ref(),
            |key| node.child_for(key),
            |child| (child + 1 < node.count()).then(|| node.key(child + 1)),
            |child, keys| below.push(Visit { place: node.child(child), keys }),
        );
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<NodeId>, Node)>) -> Result<()> {
        for (visit, leaf) in group {
            for index in visit.keys {
                if let Ok(at) = leaf.search(self.keys[index].as_ref()) {
                    (self.found)(index, leaf.payload(at));
                }
            }
        }
        Ok(())
    }
}
