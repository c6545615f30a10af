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
//! 2. No leaf is read, unless the ends are to be exact, or records of different sizes are to be told.

use crate::cache::pager::ReadMode;
use crate::error::Result;
use crate::even_sample::EvenSample;
use crate::operation::KeyRange;
use crate::storage::node::{Node, NodeId};
use crate::tree::subtree::{Overlap, Subtree};
use crate::tree::view::TreeView;

/// Blocks that are read of those that lie wholly in the range (count): with these, the bytes of a million leaves are known within
/// two percent if the fill of blocks varies by a sixth.
const BLOCKS: usize = 64;
/// Leaves that are read for the size of the range's records (count): as many as go to the device together. They lie at even
/// distances, so that a part of the range with other records has its share of them.
const LEAVES: usize = 64;

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
    /// The same, and records have the size of those in a sample of the range's leaves, not that of the whole tree's.
    CountedBySample,
}

/// Estimates the size of what a tree's leaves have in a range.
pub(crate) fn range_size(view: TreeView<'_>, range: KeyRange<'_>, ends: Ends) -> Result<RangeSize> {
    let Some((root, height)) = view.root() else { return Ok(RangeSize::default()) };
    let Some(tree) = view.version.trees.get(&view.keyspace) else { return Ok(RangeSize::default()) };
    if range.from.is_empty() && range.to.is_none() {
        return Ok(RangeSize { bytes: tree.bytes as f64, records: tree.len as f64 });
    }
    let per_byte = tree.len as f64 / tree.bytes.max(1) as f64;
    let (blocks, leaves) = (EvenSample::default(), EvenSample::default());
    let size = RangeSize::default();
    let mut pass = Pass { view, range, ends, per_byte, size, in_ends: size, blocks, blocks_count: 0, leaves };
    pass.visit(&[Subtree::of_root(root, height)])?;
    let sampled: Vec<_> = pass.blocks.kept().to_vec();
    let mut bytes = 0;
    for block in view.nodes(sampled.iter().copied(), 1, ReadMode::Inner)? {
        for (id, leaf) in view.leaves_of(&block) {
            bytes += u64::from(leaf.len());
            pass.leaves.see(|| id);
        }
    }
    let whole = bytes as f64 * pass.blocks_count as f64 / sampled.len().max(1) as f64;
    pass.add(whole);
    if ends == Ends::CountedBySample {
        pass.sample_leaves()?;
    }
    let RangeSize { bytes, records } = pass.in_ends;
    Ok(RangeSize { bytes: pass.size.bytes + bytes, records: pass.size.records + records })
}

struct Pass<'a> {
    view: TreeView<'a>,
    range: KeyRange<'a>,
    ends: Ends,
    /// Records of a byte of leaves.
    per_byte: f64,
    /// Of what is estimated by the bytes of leaves.
    size: RangeSize,
    /// Of leaves whose records were counted.
    in_ends: RangeSize,
    /// Of the blocks that lie wholly in the range.
    blocks: EvenSample<NodeId, BLOCKS>,
    blocks_count: u64,
    /// Of the leaves that lie wholly in the range.
    leaves: EvenSample<NodeId, LEAVES>,
}

impl Pass<'_> {
    fn add(&mut self, bytes: f64) {
        self.size.bytes += bytes;
        self.size.records += bytes * self.per_byte;
    }

    /// Counts what lies below nodes of one level, which are read together.
    fn visit(&mut self, subtrees: &[Subtree]) -> Result<()> {
        let mut wanted = Vec::new();
        for subtree in subtrees {
            match (subtree.level, subtree.overlap(self.range)) {
                (_, Overlap::None) => {}
                (0, Overlap::Whole) => {
                    self.add(self.view.len_of(subtree.id) as f64);
                    self.leaves.see(|| subtree.id);
                }
                (0, Overlap::Part) if self.ends == Ends::Halves => {
                    self.add(self.view.len_of(subtree.id) as f64 / 2.0);
                }
                (1, Overlap::Whole) => {
                    self.blocks_count += 1;
                    self.blocks.see(|| subtree.id);
                }
                _ => wanted.push(subtree),
            }
        }
        for group in wanted.chunks(self.view.pager.pio_max()) {
            let level = group.first().map_or(0, |subtree| subtree.level);
            let mode = if level == 0 { ReadMode::Single } else { ReadMode::Inner };
            let nodes = self.view.nodes(group.iter().map(|subtree| subtree.id), level, mode)?;
            for (subtree, node) in group.iter().zip(nodes) {
                if level == 0 {
                    self.count(&node);
                    continue;
                }
                self.visit(&subtree.children(&node))?;
            }
        }
        Ok(())
    }

    /// Reads a sample of leaves, for the size of their records.
    fn sample_leaves(&mut self) -> Result<()> {
        let (mut bytes, mut records) = (0, 0);
        let sampled: Vec<_> = self.leaves.kept().to_vec();
        for group in sampled.chunks(self.view.pager.pio_max()) {
            for leaf in self.view.nodes(group.iter().copied(), 0, ReadMode::Single)? {
                bytes += leaf.stored_len();
                records += leaf.count();
            }
        }
        if bytes > 0 {
            self.size.records = self.size.bytes * records as f64 / bytes as f64;
        }
        Ok(())
    }

    /// Counts the records of a leaf that are in the range.
    fn count(&mut self, leaf: &Node) {
        let keyspace = self.range.keyspace;
        let count = (0..leaf.count()).filter(|index| self.range.contains(keyspace, leaf.key(*index))).count();
        self.in_ends.records += count as f64;
        self.in_ends.bytes += leaf.stored_len() as f64 * count as f64 / leaf.count().max(1) as f64;
    }
}
