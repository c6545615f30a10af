//! Builds the inner nodes of a tree from below, of nodes that come in key order.

use crate::db::repair::output::Output;
use crate::error::Result;
use crate::operation::KeyspaceId;
use crate::storage::entries::Entries;
use crate::storage::node::{ChildPayload, NodeId};
use crate::version::Tree;

/// An inner node is made when its entries have so many bytes: a page, as others.
const INNER_LEN: usize = 4000;
/// Children (count) of a node of level 1 at most: of a block of some 190 KiB.
const BLOCK: usize = 48;

/// A level of the tree that is being built.
#[derive(Default)]
struct Level {
    entries: Entries,
    /// The smallest key that may be below the first entry.
    low: Vec<u8>,
    /// The last child, which is the root if it is the only one.
    child: Option<NodeId>,
    is_cut: bool,
}

/// See the module.
pub(super) struct TreeBuilder {
    keyspace: KeyspaceId,
    tree: Tree,
    /// Level of the nodes that are pushed.
    base: u8,
    levels: Vec<Level>,
}

impl TreeBuilder {
    pub fn new(keyspace: KeyspaceId, tree: &Tree, base: u8) -> Self {
        Self { keyspace, tree: tree.clone(), base, levels: Vec::new() }
    }

    /// Adds a node whose keys are at least `low`, and behind those of all before.
    pub fn push(&mut self, out: &mut Output, low: &[u8], id: NodeId) -> Result<()> {
        self.push_at(out, 0, low, id)
    }

    fn push_at(&mut self, out: &mut Output, index: usize, low: &[u8], id: NodeId) -> Result<()> {
        if self.levels.len() <= index {
            self.levels.push(Level::default());
        }
        let level = &mut self.levels[index];
        let is_block = self.base == 0 && index == 0;
        let is_full = level.entries.node_bytes(0, level.entries.len()) >= INNER_LEN
            || (is_block && level.entries.len() >= BLOCK);
        if is_full && level.entries.len() > 1 {
            self.cut(out, index)?;
        }
        let level = &mut self.levels[index];
        let is_first = level.entries.is_empty();
        if is_first {
            level.low = low.to_vec();
        }
        level.child = Some(id);
        level.entries.push(if is_first { &[] } else { low }, &[ChildPayload::of(id, false).bytes()]);
        Ok(())
    }

    /// Makes a node of what is there of a level.
    fn cut(&mut self, out: &mut Output, index: usize) -> Result<()> {
        let Level { entries, low, .. } = std::mem::take(&mut self.levels[index]);
        self.levels[index].is_cut = true;
        let id = out.new_id();
        out.make(id, self.base + index as u8 + 1, (self.keyspace, &self.tree), &entries)?;
        self.push_at(out, index + 1, &low, id)
    }

    /// Ends the tree. Returns its root and height; `None` if no node came.
    pub fn finish(mut self, out: &mut Output) -> Result<Option<(NodeId, u8)>> {
        let mut index = 0;
        while let Some(level) = self.levels.get(index) {
            if let (false, 1, Some(root)) = (level.is_cut, level.entries.len(), level.child) {
                return Ok(Some((root, self.base + index as u8)));
            }
            self.cut(out, index)?;
            index += 1;
        }
        Ok(None)
    }
}
