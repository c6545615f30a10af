//! The removal of ranges from a tree: blocks that lie wholly in one are dropped with their leaves and log areas, without reading
//! any leaf. What is left of the ranges, in blocks that lie only partly in one, [`Remainder`] lists, for a flush to remove it key
//! by key.
//!
//! ```text
//! range               [──────────────────────────)
//! blocks    │    ▒▒▒▒▒│▒▒▒▒▒▒▒▒▒│▒▒▒▒▒▒▒▒▒│▒▒▒▒▒    │
//!              keys     dropped   dropped   keys
//! ```
//!
//! Invariants:
//! 1. A node that keeps some of its children keeps its id and its separator; one that keeps none is dropped.
//! 2. A block's range may grow, over that of neighbours that are dropped; it never shrinks.
//! 3. One version builder drops [`DROPPED_MAX`] nodes and the rest of a block at most, so that its edit stays short.
//! 4. After an error the version builder is not committed: nodes may be dropped to which the root still leads.

use crate::cache::pager::{Pager, ReadMode};
use crate::error::Result;
use crate::operation::{KeyRange, KeyspaceId};
use crate::storage::node::NodeLen;
use crate::storage::node::{Node, NodeId};
use crate::tree::keys::Keys;
use crate::tree::pack::{Child, Packer};
use crate::tree::subtree::{Overlap, Subtree};
use crate::tree::view::TreeView;
use crate::version::builder::VersionBuilder;
use crate::version::{Tree, Version};
use bytes::Bytes;
use std::sync::Arc;

/// Nodes that one version builder drops (count): a megabyte in the edit, and two gigabytes of leaves.
pub(crate) const DROPPED_MAX: usize = 1 << 18;

/// What becomes of a node.
enum Outcome {
    /// It stays as it was.
    Kept,
    Dropped,
    /// It was rewritten as these nodes.
    Rewritten(Vec<Child>),
}

/// Drops the blocks of a tree of the base version that lie wholly in one of these ranges of its keyspace, which are disjoint and in
/// order. Returns whether there may be more of them, since the version builder has dropped as many as it may.
pub(crate) fn drop_blocks(
    builder: &mut VersionBuilder<'_>,
    tree: &Tree,
    ranges: &[KeyRange<'_>],
    node_len: NodeLen,
) -> Result<bool> {
    let (base, pager) = (Arc::clone(builder.base()), Arc::clone(builder.pager()));
    let Some(keyspace) = ranges.first().map(|range| range.keyspace) else { return Ok(false) };
    if builder.edit_mut().freed.len() >= DROPPED_MAX {
        return Ok(true);
    }
    let view = TreeView { pager: &pager, version: &base, keyspace };
    let (Some(root), height) = (tree.root, tree.height) else { return Ok(false) };
    let (dropped, leaf_bytes, is_cut) = (builder.edit_mut().freed.len(), 0, false);
    let mut pass = Pass { view, builder, ranges, node_len, root_level: height, dropped, leaf_bytes, is_cut };
    let node = if height == 0 { None } else { Some(view.node(root, height)?) };
    let whole = Subtree::of_root(root, height);
    let (root, height) = match pass.visit(&whole, node)? {
        Outcome::Kept => return Ok(pass.is_cut),
        Outcome::Dropped => (None, 0),
        Outcome::Rewritten(nodes) => pass.new_root(nodes)?,
    };
    let (leaf_bytes, is_cut) = (pass.leaf_bytes, pass.is_cut);
    let bytes = tree.bytes.saturating_sub(leaf_bytes);
    // How many records the dropped leaves had is known only where no others are left.
    let (len, is_estimated) = match root {
        None => (0, false),
        Some(_) => ((u128::from(tree.len) * u128::from(bytes) / u128::from(tree.bytes.max(1))) as u64, true),
    };
    let bytes = if root.is_none() { 0 } else { bytes };
    builder.set_tree(keyspace, Tree { root, height, len, bytes, is_estimated, ..tree.clone() });
    Ok(is_cut)
}

struct Pass<'a, 'b> {
    view: TreeView<'b>,
    builder: &'b mut VersionBuilder<'a>,
    ranges: &'b [KeyRange<'b>],
    node_len: NodeLen,
    /// The level of the node or nodes that take the root's place.
    root_level: u8,
    /// Nodes that the version builder has dropped.
    dropped: usize,
    /// Bytes of the leaves that were dropped.
    leaf_bytes: u64,
    /// Whether it has dropped as many nodes as it may.
    is_cut: bool,
}

impl Pass<'_, '_> {
    /// How many of the keys below a node are in a range.
    fn overlap(&self, subtree: &Subtree) -> Overlap {
        let is_before = |range: &KeyRange<'_>| range.to.is_some_and(|to| to <= &subtree.low[..]);
        let first = self.ranges.get(self.ranges.partition_point(is_before));
        first.map_or(Overlap::None, |range| subtree.overlap(*range))
    }

    fn is_within(&self, subtree: &Subtree) -> bool {
        self.overlap(subtree) == Overlap::Whole
    }

    /// Drops what is to be dropped at and below a node. `node` is there unless it is a leaf.
    fn visit(&mut self, subtree: &Subtree, node: Option<Node>) -> Result<Outcome> {
        let Some(node) = node else {
            // A tree of one leaf.
            if !self.is_within(subtree) {
                return Ok(Outcome::Kept);
            }
            self.leaf_bytes += self.view.len_of(subtree.id);
            self.drop_node(subtree.id);
            return Ok(Outcome::Dropped);
        };
        if subtree.level == 1 {
            if !self.is_within(subtree) {
                return Ok(Outcome::Kept);
            }
            self.leaf_bytes += self.view.leaves_of(&node).map(|(_, leaf)| u64::from(leaf.len())).sum::<u64>();
            (0..node.count()).for_each(|child| self.drop_node(node.child(child)));
            self.builder.empty_log(subtree.id);
            self.drop_node(subtree.id);
            return Ok(Outcome::Dropped);
        }
        let below = subtree.children(&node);
        // A block that is not dropped need not be read.
        let is_wanted = |below: &Subtree| match self.overlap(below) {
            Overlap::None => false,
            Overlap::Part => below.level > 1,
            Overlap::Whole => true,
        };
        let met: Vec<_> = (0..below.len()).filter(|index| is_wanted(&below[*index])).collect();
        let mut changed: Vec<(usize, Vec<Child>)> = Vec::new();
        let mut next = 0;
        while next < met.len() && !self.is_cut {
            let level = subtree.level - 1;
            let most = (met.len() - next).min(self.view.pager.pio_max());
            let lens = met[next..next + most].iter().map(|index| self.view.memory_len_of(below[*index].id));
            let group = &met[next..next + self.view.pager.reader.fits(lens)];
            next += group.len();
            let ids = group.iter().map(|index| below[*index].id);
            let nodes = self.view.nodes(ids, level, ReadMode::Inner)?;
            for (index, node) in group.iter().zip(nodes) {
                if self.dropped >= DROPPED_MAX {
                    self.is_cut = true;
                    break;
                }
                match self.visit(&below[*index], Some(node))? {
                    Outcome::Kept => {}
                    Outcome::Dropped => changed.push((*index, Vec::new())),
                    Outcome::Rewritten(nodes) => changed.push((*index, nodes)),
                }
            }
        }
        if changed.is_empty() {
            return Ok(Outcome::Kept);
        }
        self.rewrite(subtree, &below, changed)
    }

    /// Rewrites an inner node some of whose children were replaced.
    fn rewrite(
        &mut self,
        subtree: &Subtree,
        below: &[Subtree],
        changed: Vec<(usize, Vec<Child>)>,
    ) -> Result<Outcome> {
        let mut changed = changed.into_iter().peekable();
        let mut children: Vec<Child> = Vec::with_capacity(below.len());
        for (index, child) in below.iter().enumerate() {
            match changed.next_if(|(of, _)| *of == index) {
                Some((_, nodes)) => children.extend(nodes),
                None => children.push(Child { separator: child.low.clone(), id: child.id, is_lone: false }),
            }
        }
        if children.is_empty() {
            self.drop_node(subtree.id);
            return Ok(Outcome::Dropped);
        }
        if children.len() == 1 && subtree.level == self.root_level && subtree.is_whole_tree() {
            self.drop_node(subtree.id);
            self.root_level -= 1;
            return Ok(Outcome::Rewritten(children));
        }
        // The first takes over the range of those that were dropped before it.
        children[0].separator = subtree.low.clone();
        Ok(Outcome::Rewritten(self.pack(subtree.level, &children, Some(subtree.id), subtree.low.clone())?))
    }

    fn pack(
        &mut self,
        level: u8,
        children: &[Child],
        id: Option<NodeId>,
        separator: Bytes,
    ) -> Result<Vec<Child>> {
        let mut packer = Packer::new(level, self.view.keyspace, self.node_len.inner, id, separator);
        for child in children {
            packer.push(self.builder, &child.separator, child.payload().bytes())?;
        }
        Ok(packer.finish(self.builder, false)?.nodes)
    }

    /// The root above the nodes that take its place, and its level.
    fn new_root(&mut self, mut nodes: Vec<Child>) -> Result<(Option<NodeId>, u8)> {
        while nodes.len() > 1 {
            self.root_level += 1;
            nodes = self.pack(self.root_level, &nodes, None, Bytes::new())?;
        }
        Ok((nodes.first().map(|root| root.id), self.root_level))
    }

    fn drop_node(&mut self, id: NodeId) {
        self.builder.free(id);
        self.dropped += 1;
    }
}

/// Keys of records that are still in removed ranges, in order: as many as are worked on, and each listed once.
#[derive(Default)]
pub(crate) struct Remainder {
    pub keys: Vec<(KeyspaceId, Bytes)>,
    /// Where the listing goes on, if there may be more.
    pub next: Option<(KeyspaceId, Bytes)>,
}

/// Memory of a listed key, with its place in the list, of which there may be another copy while it grows.
pub(crate) fn listed_len((_, key): &(KeyspaceId, Bytes)) -> usize {
    key.len() + 2 * size_of::<(KeyspaceId, Bytes)>()
}

impl Remainder {
    /// Nothing is listed yet.
    pub fn of(ranges: &[(KeyspaceId, Bytes, Option<Bytes>)]) -> Self {
        let next = ranges.first().map(|(keyspace, start, _)| (*keyspace, start.clone()));
        Self { keys: Vec::new(), next }
    }

    /// Forgets the keys below a position, and lists more keys of a tree in these ranges, which are disjoint and in order, until the
    /// list takes `bytes_max` bytes. Between two calls nothing may come into the ranges.
    pub fn list(
        &mut self,
        (pager, version): (&Arc<Pager>, &Arc<Version>),
        ranges: &[(KeyspaceId, Bytes, Option<Bytes>)],
        from: &(KeyspaceId, Bytes),
        bytes_max: usize,
    ) -> Result<()> {
        self.keys.drain(..self.keys.partition_point(|key| key < from));
        let Some(next) = self.next.take() else { return Ok(()) };
        let from = next.max(from.clone());
        let mut bytes: usize = self.keys.iter().map(listed_len).sum();
        for (keyspace, start, end) in ranges {
            if *keyspace < from.0 {
                continue;
            }
            let start = if *keyspace == from.0 { start.max(&from.1) } else { start };
            if end.as_ref().is_some_and(|end| start >= end) {
                continue;
            }
            if bytes >= bytes_max {
                self.next = Some((*keyspace, start.clone()));
                return Ok(());
            }
            let mut keys = Keys::new((pager, version), *keyspace, start, end.as_ref());
            while let Some(key) = keys.next()? {
                let key = (*keyspace, key);
                if bytes >= bytes_max {
                    self.next = Some(key);
                    return Ok(());
                }
                bytes += listed_len(&key);
                self.keys.push(key);
            }
        }
        Ok(())
    }
}
