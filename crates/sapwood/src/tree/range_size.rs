//! The size of a range, estimated from inner nodes: how many bytes of leaves lie in it, and how many records these have on
//! average.
//!
//! ```text
//! range           [────────────────────────────────)
//! inner nodes   ·······································   all that the range meets down to level 2
//! blocks        │░░░▒▒▒│▒▒▒▒▒▒│▒▒▒▒▒▒│ … │▒▒▒▒▒▒│▒▒░░░░│   those at the ends are read, and a sample of the others
//! ```
//!
//! Invariants:
//! 1. Exact in bytes but for two leaves at the ends, while no more than [`BLOCKS`] blocks lie wholly in the range.
//! 2. No leaf is read, unless the ends are to be exact.

use crate::cache::pager::ReadMode;
use crate::error::Result;
use crate::even_sample::EvenSample;
use crate::operation::KeyRange;
use crate::storage::node::{Node, NodeId};
use crate::tree::fan::fence_of;
use crate::tree::view::TreeView;
use bytes::Bytes;

/// Blocks that are read of those that lie wholly in the range (count): with these, the bytes of a million leaves are known within
/// two percent if the fill of blocks varies by a sixth.
const BLOCKS: usize = 64;

/// Bytes and records of leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RangeSize {
    pub bytes: f64,
    pub records: f64,
}

/// How exact the ends of a range are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Of a leaf at an end that lies partly in the range half is counted.
    Halves,
    /// The records of such a leaf are counted.
    Counted,
}

/// Estimates the size of what a tree's leaves have in a range.
pub(crate) fn range_size(view: TreeView<'_>, range: KeyRange<'_>, ends: Ends) -> Result<RangeSize> {
    let Some((root, height)) = view.root() else { return Ok(RangeSize::default()) };
    let Some(tree) = view.version.trees.get(&view.keyspace) else { return Ok(RangeSize::default()) };
    if range.from.is_empty() && range.to.is_none() {
        return Ok(RangeSize { bytes: tree.bytes as f64, records: tree.len as f64 });
    }
    let per_byte = tree.len as f64 / tree.bytes.max(1) as f64;
    let blocks = EvenSample::default();
    let mut pass = Pass { view, range, ends, per_byte, size: RangeSize::default(), blocks, blocks_count: 0 };
    pass.visit(&[Place { id: root, level: height, low: Bytes::new(), fence: None }])?;
    let sampled: Vec<_> = pass.blocks.kept().to_vec();
    let bytes: u64 = view
        .nodes(sampled.iter().copied(), 1, ReadMode::Inner)?
        .iter()
        .map(|block| view.leaves_of(block).map(|(_, leaf)| u64::from(leaf.len)).sum::<u64>())
        .sum();
    let whole = bytes as f64 * pass.blocks_count as f64 / sampled.len().max(1) as f64;
    pass.add(whole);
    Ok(pass.size)
}

struct Place {
    id: NodeId,
    level: u8,
    low: Bytes,
    /// The smallest key beyond the node's; `None` at the right end of the tree.
    fence: Option<Bytes>,
}

struct Pass<'a> {
    view: TreeView<'a>,
    range: KeyRange<'a>,
    ends: Ends,
    /// Records of a byte of leaves.
    per_byte: f64,
    size: RangeSize,
    /// Of the blocks that lie wholly in the range.
    blocks: EvenSample<NodeId, BLOCKS>,
    blocks_count: u64,
}

impl Pass<'_> {
    fn add(&mut self, bytes: f64) {
        self.size.bytes += bytes;
        self.size.records += bytes * self.per_byte;
    }

    /// Whether any key below a node may be in the range, and whether all are.
    fn relation(&self, Place { low, fence, .. }: &Place) -> (bool, bool) {
        let KeyRange { from, to, .. } = self.range;
        let is_met =
            to.is_none_or(|to| &low[..] < to) && fence.as_ref().is_none_or(|fence| from < &fence[..]);
        let reaches_end = to.is_none_or(|to| fence.as_ref().is_some_and(|fence| &fence[..] <= to));
        (is_met, is_met && from <= &low[..] && reaches_end)
    }

    /// Counts what lies below nodes of one level, which are read together.
    fn visit(&mut self, places: &[Place]) -> Result<()> {
        let mut wanted = Vec::new();
        for place in places {
            match (place.level, self.relation(place)) {
                (_, (false, _)) => {}
                (0, (_, true)) => self.add(self.view.len_of(place.id) as f64),
                (0, _) if self.ends == Ends::Halves => self.add(self.view.len_of(place.id) as f64 / 2.0),
                (1, (_, true)) => {
                    self.blocks_count += 1;
                    self.blocks.see(|| place.id);
                }
                _ => wanted.push(place),
            }
        }
        for group in wanted.chunks(self.view.pager.pio_max()) {
            let level = group.first().map_or(0, |place| place.level);
            let mode = if level == 0 { ReadMode::Single } else { ReadMode::Inner };
            let nodes = self.view.nodes(group.iter().map(|place| place.id), level, mode)?;
            for (place, node) in group.iter().zip(nodes) {
                if level == 0 {
                    self.count(&node);
                    continue;
                }
                let below: Vec<_> = (0..node.count()).map(|index| place.child(&node, index)).collect();
                self.visit(&below)?;
            }
        }
        Ok(())
    }

    /// Counts the records of a leaf that are in the range.
    fn count(&mut self, leaf: &Node) {
        let keyspace = self.range.keyspace;
        let count = (0..leaf.count()).filter(|index| self.range.contains(keyspace, leaf.key(*index))).count();
        self.size.records += count as f64;
        self.size.bytes += leaf.bytes().len() as f64 * count as f64 / leaf.count().max(1) as f64;
    }
}

impl Place {
    fn child(&self, node: &Node, index: usize) -> Self {
        Self {
            id: node.child(index),
            level: self.level - 1,
            low: if index == 0 { self.low.clone() } else { node.key_bytes(index) },
            fence: fence_of(node, index, self.fence.as_ref()),
        }
    }
}
