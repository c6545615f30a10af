//! Read access to one tree of a version: looks up ids, fetches nodes, and checks that each node belongs where
//! it was found: at the expected level above the leaves, and in this keyspace.
//!
//! Invariant: levels go down by one from node to child, so that no descent can go in a circle, whatever the
//! disk says.

use crate::cache::pager::{AskedNodes, Keep, Pager, ReadMode};
use crate::error::{Error, Result};
use crate::log_area::LogArea;
use crate::merging::Merging;
use crate::operation::KeyspaceId;
use crate::storage::mapping_table::Address;
use crate::storage::node::{Node, NodeId, PIECE};
use crate::version::Version;
use bytes::Bytes;
use psync::AlignedBuffer;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct TreeView<'a> {
    pub pager: &'a Pager,
    pub version: &'a Version,
    pub keyspace: KeyspaceId,
}

/// A node of level 1.
pub(crate) struct Block {
    pub id: NodeId,
    /// The smallest key beyond its range; `None` at the right end of the tree.
    pub fence: Option<Bytes>,
}

impl TreeView<'_> {
    /// Id and level of the root; `None` if the tree is empty.
    pub fn root(&self) -> Option<(NodeId, u8)> {
        let tree = self.version.trees.get(&self.keyspace)?;
        tree.root.map(|root| (root, tree.height))
    }

    /// How the values of its keyspace are merged, if they are.
    pub fn merging(&self) -> Option<&Merging> {
        self.version.merging_of(self.keyspace)
    }

    fn address(&self, id: NodeId) -> Result<Address> {
        self.version.table.address(id).ok_or_else(|| {
            Error::corrupt("manifest", 0, format!("the mapping table has no {id}"), "an address", "none")
        })
    }

    fn check(&self, node: Node, level: u8) -> Result<Node> {
        let name = node.name();
        if name.level != level || name.keyspace != self.keyspace {
            let at = self.version.table.address(name.id).map_or(0, |address| address.position.0);
            // The node is as it was written: what leads to it is wrong.
            return Err(Error::corrupt(
                "manifest",
                at,
                format!("{} is not where it belongs in the tree", name.id),
                format!("level {level} of keyspace {}", self.keyspace.0),
                format!("level {} of keyspace {}", name.level, name.keyspace.0),
            ));
        }
        Ok(node)
    }

    /// One node.
    pub fn node(&self, id: NodeId, level: u8) -> Result<Node> {
        self.fetch(id, level, Keep::Long)
    }

    /// One node, to look something up in it: see [`Keep::Briefly`].
    pub fn glance(&self, id: NodeId, level: u8) -> Result<Node> {
        self.fetch(id, level, Keep::Briefly)
    }

    /// One node, for a writer that will replace it: a leaf may have been read ahead, and is not worth caching.
    pub fn node_to_replace(&self, id: NodeId, level: u8) -> Result<Node> {
        let mode = if level == 0 { ReadMode::Prefetched } else { ReadMode::Inner };
        let node = self.nodes(std::iter::once(id), level, mode)?.pop();
        node.map_or_else(|| self.node(id, level), Ok)
    }

    fn fetch(&self, id: NodeId, level: u8, keep: Keep) -> Result<Node> {
        let node = self.pager.fetch_one(&self.version.segments, id, self.address(id)?, keep)?;
        self.check(node, level)
    }

    /// One node, if it is in the cache.
    pub fn cached(&self, id: NodeId, level: u8) -> Result<Option<Node>> {
        let node = self.pager.look_up(self.address(id)?);
        node.map(|node| self.check(node, level)).transpose()
    }

    /// Several nodes of one level with one parallel read, in the order asked.
    pub fn nodes(&self, ids: impl Iterator<Item = NodeId>, level: u8, mode: ReadMode) -> Result<Vec<Node>> {
        self.mixed(ids.map(|id| (id, level)), mode)
    }

    /// Several nodes of given levels, log pieces among them, with one parallel read, in the order asked.
    pub fn mixed(&self, wanted: impl Iterator<Item = (NodeId, u8)>, mode: ReadMode) -> Result<Vec<Node>> {
        let (addresses, levels): (Vec<_>, Vec<_>) = wanted
            .map(|(id, level)| Ok(((id, self.address(id)?), level)))
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .unzip();
        let nodes = self.pager.fetch(&self.version.segments, &addresses, mode)?;
        nodes.into_iter().zip(levels).map(|(node, level)| self.check(node, level)).collect()
    }

    /// Asks for leaves and then log pieces, as [`TreeView::mixed`] with [`ReadMode::Runs`], but does not read
    /// yet.
    pub fn ask(&self, leaves: &[NodeId], pieces: impl Iterator<Item = NodeId>) -> Result<AskedNodes> {
        let wanted = leaves.iter().copied().chain(pieces).map(|id| Ok((id, self.address(id)?)));
        self.pager.ask(&self.version.segments, wanted.collect::<Result<_>>()?, ReadMode::Runs)
    }

    /// Completes a [`TreeView::ask`] for so many leaves: returns the leaves, and the pieces.
    pub fn bring(
        &self,
        asked: AskedNodes,
        spare: &mut Vec<AlignedBuffer>,
        leaves: usize,
    ) -> Result<(Vec<Node>, Vec<Node>)> {
        let mut nodes = self.pager.bring(asked, spare)?.into_iter();
        let of_level = |level| move |node| self.check(node, level);
        let leaves = nodes.by_ref().take(leaves).map(of_level(0)).collect::<Result<_>>()?;
        Ok((leaves, nodes.map(of_level(PIECE)).collect::<Result<_>>()?))
    }

    /// Remembers a record that was found in a node, in the cache of single records, for readers of the state
    /// with this number. Without a number nothing is remembered.
    pub fn remember(&self, number: Option<u64>, key: &[u8], value: &[u8], node: &Node) {
        if let Some(number) = number
            && let Some(address) = self.version.table.address(node.name().id)
        {
            self.pager.cache.remember(number, key, value, (address.position, node));
        }
    }

    /// The block whose range holds the key; `None` if the tree has no blocks.
    pub fn block_at(&self, key: &[u8]) -> Result<Option<Block>> {
        let Some((mut id, height)) = self.root().filter(|(_, height)| *height > 0) else { return Ok(None) };
        let mut fence = None;
        for level in (2..=height).rev() {
            let node = self.node(id, level)?;
            let child = node.child_for(key);
            if child + 1 < node.count() {
                fence = Some(node.key_bytes(child + 1));
            }
            id = node.child(child);
        }
        Ok(Some(Block { id, fence }))
    }

    /// The leaves of a node of level 1, with their addresses.
    pub fn leaves_of(&self, block: &Node) -> impl Iterator<Item = (NodeId, Address)> {
        let ids = (0..block.count()).map(|child| block.child(child));
        ids.filter_map(|id| Some((id, self.version.table.address(id)?)))
    }

    /// Bytes of all leaves of a node of level 1. The block's log area keeps the sum: looking up each leaf in
    /// the mapping table took a third of the time of a flush's append to a block.
    pub fn leaf_bytes(&self, block: &Node) -> u64 {
        let count = || self.leaves_of(block).map(|(_, leaf)| u64::from(leaf.len())).sum();
        match self.log(block.name().id) {
            Some(area) => area.leaf_bytes(count),
            None => count(),
        }
    }

    /// Bytes of one node; 0 if it has no address, which is reported when the node is fetched.
    pub fn len_of(&self, id: NodeId) -> u64 {
        self.version.table.address(id).map_or(0, |address| address.len().into())
    }

    /// Bytes of one node in memory, at most; 0 if it has no address.
    pub fn memory_len_of(&self, id: NodeId) -> usize {
        self.version.table.address(id).map_or(0, |address| address.memory_len())
    }

    /// How many of the next nodes may be in memory together: at least one.
    pub fn fits(&self, ids: impl Iterator<Item = NodeId>) -> usize {
        self.pager.reader.fits(ids.map(|id| self.memory_len_of(id)))
    }

    /// The log area of a node of level 1, if it has one.
    pub fn log(&self, block: NodeId) -> Option<&Arc<LogArea>> {
        self.version.logs.get(block)
    }
}
