//! Reads the inner nodes above many keys into the cache, each level with one parallel read, as MPSearch does (PIO B-tree, VLDB
//! 2011, section 3.1). Walks that begin at these keys then find their way without a read.

use crate::cache::pager::ReadMode;
use crate::error::{Error, Result};
use crate::storage::node::{Node, NodeId};
use crate::tree::fan::divide;
use crate::tree::view::TreeView;
use mpsearch::{Visit, mpsearch};

/// Reads all inner nodes above these keys, which ascend.
pub(crate) fn read_paths(view: TreeView<'_>, keys: &[&[u8]]) -> Result<()> {
    let Some((root, height)) = view.root().filter(|(_, height)| *height > 0 && !keys.is_empty()) else {
        return Ok(());
    };
    let mut paths = Paths { view, keys };
    mpsearch(&mut paths, root, usize::from(height - 1), 0..keys.len(), view.pager.pio_max())
}

/// Its heights are counted from the nodes of level 1.
struct Paths<'a> {
    view: TreeView<'a>,
    keys: &'a [&'a [u8]],
}

impl mpsearch::Tree for Paths<'_> {
    type Place = NodeId;
    type Node = Node;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<NodeId>]) -> Result<Vec<Node>> {
        self.view.nodes(group.iter().map(|visit| visit.place), height as u8 + 1, ReadMode::Single)
    }

    fn fits(&self, _: usize, visits: &[Visit<NodeId>]) -> usize {
        self.view.fits(visits.iter().map(|visit| visit.place))
    }

    fn descend(
        &mut self,
        _: usize,
        node: Node,
        visit: Visit<NodeId>,
        below: &mut Vec<Visit<NodeId>>,
    ) -> Result<()> {
        divide(
            &node,
            visit.keys,
            |index| self.keys[index],
            |child, keys| below.push(Visit { place: node.child(child), keys }),
        );
        Ok(())
    }

    fn deliver(&mut self, _: Vec<(Visit<NodeId>, Node)>) -> Result<()> {
        Ok(())
    }
}
