//! Finds the blocks with log areas that are to be cleansed or merged: those that scans have charged enough for, those
//! that have grown, or all of them.
//!
//! Invariant: blocks of a tree come in key order, each once.

use crate::cache::pager::{Keep, Pager};
use crate::error::Result;
use crate::log_area::read_cost::Remedy;
use crate::log_area::{Charged, LogArea};
use crate::operation::KeyspaceId;
use crate::storage::node::NodeId;
use crate::tree::cleansing_cursor::CleansingTask;
use crate::tree::view::{Block, TreeView};
use crate::version::Version;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A block that has a log area.
pub(crate) struct Logged {
    pub block: NodeId,
    pub area: Arc<LogArea>,
}

/// Blocks of one tree to be cleansed or merged together, in key order, each with its payment.
#[derive(Default)]
pub(crate) struct ChargedBlocks {
    pub cleansed: Chosen,
    pub merged: Chosen,
}

/// See [`ChargedBlocks`].
#[derive(Default)]
pub(crate) struct Chosen {
    pub blocks: Vec<Logged>,
    pub charged: Vec<Charged>,
}

impl Chosen {
    fn push(&mut self, block: NodeId, charged: Charged) {
        self.blocks.push(Logged { block, area: Arc::clone(&charged.area) });
        self.charged.push(charged);
    }
}

/// Takes blocks from the front of `listed` until they would write `write` bytes or hold `hold` bytes of
/// pieces. Returns those that have a log area that has reached its price, to be cleansed or merged. The
/// others have been handled since, or no longer exist. A block that is listed twice is returned once.
pub(crate) fn charged(
    pager: &Pager,
    version: &Version,
    listed: &mut impl Iterator<Item = NodeId>,
    write: u64,
    hold: u64,
) -> Result<BTreeMap<KeyspaceId, ChargedBlocks>> {
    let mut sorted: BTreeMap<(KeyspaceId, Bytes), (NodeId, Arc<LogArea>, Remedy)> = BTreeMap::new();
    let (mut written, mut buffered) = (0, 0);
    while written < write
        && buffered < hold
        && let Some(id) = listed.next()
    {
        let Some((area, address)) = version.logs.get(id).zip(version.table.address(id)) else { continue };
        let block = pager.fetch_one(&version.segments, id, address, Keep::Long)?;
        let view = TreeView { pager, version, keyspace: block.name().keyspace };
        // What is dropped is taken apart as it is.
        if !version.trees.contains(&view.keyspace) {
            continue;
        }
        let (leaves, pieces) = (view.leaf_bytes(&block), area.bytes());
        let next = Remedy::of(leaves, pieces, area.run_count());
        // Sorted by a separator inside the block, since the first one is empty. A block of one leaf has no
        // other separator, and is left to the cleansing cursor.
        let last = block.count().saturating_sub(1);
        if last > 0 && area.read_cost().has_reached(next.price()) {
            written += match next {
                Remedy::Merging(_) => pieces,
                Remedy::Cleansing(_) => leaves + pieces,
            };
            buffered += pieces;
            sorted.insert((view.keyspace, block.key_bytes(last)), (id, Arc::clone(area), next));
        }
    }
    let mut blocks = BTreeMap::<_, ChargedBlocks>::new();
    for ((keyspace, _), (id, area, next)) in sorted {
        let ChargedBlocks { cleansed, merged } = blocks.entry(keyspace).or_default();
        let chosen = match next {
            Remedy::Merging(_) => merged,
            Remedy::Cleansing(_) => cleansed,
        };
        chosen.push(id, Charged { area, price: next.price() });
    }
    Ok(blocks)
}

/// Looks at the next blocks from `from` on, `most` of them at most. Returns those whose log areas hold new
/// records of at least `percent` percent of the leaves' bytes, and where to go on if there is more of the
/// tree.
pub(crate) fn grown(
    view: TreeView<'_>,
    mut from: Bytes,
    percent: u64,
    most: usize,
) -> Result<(Vec<CleansingTask>, Option<Bytes>)> {
    let mut due = Vec::new();
    for _ in 0..most {
        let Some(Block { id, fence }) = view.block_at(&from)? else { return Ok((due, None)) };
        if let Some(area) = view.log(id) {
            let leaves = view.leaf_bytes(&view.node(id, 1)?);
            if area.fresh() * 100 >= leaves * percent {
                due.push(CleansingTask::new(view.keyspace, from.clone(), leaves, false));
            }
        }
        match fence {
            None => return Ok((due, None)),
            Some(fence) => from = fence,
        }
    }
    Ok((due, Some(from)))
}

/// How much may be taken still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of leaves and log pieces.
    pub bytes: u64,
    /// Blocks that are looked at (count): most may have no log area.
    pub blocks: usize,
}

impl Limits {
    #[cfg(test)]
    pub fn none() -> Self {
        Self { bytes: u64::MAX, blocks: usize::MAX }
    }

    pub fn are_reached(self) -> bool {
        self.bytes == 0 || self.blocks == 0
    }
}

/// Returns the blocks from `from` on that have log areas, until a limit is reached, and where to go on if there is more of the tree. What was
/// taken is subtracted from the limits, for the next tree.
pub(crate) fn next(
    view: TreeView<'_>,
    mut from: Bytes,
    left: &mut Limits,
) -> Result<(Vec<Logged>, Option<Bytes>)> {
    let mut blocks = Vec::new();
    loop {
        left.blocks = left.blocks.saturating_sub(1);
        let Some(Block { id, fence }) = view.block_at(&from)? else { return Ok((blocks, None)) };
        if let Some(area) = view.log(id) {
            let block = view.node(id, 1)?;
            let leaves = view.leaf_bytes(&block);
            blocks.push(Logged { block: id, area: Arc::clone(area) });
            left.bytes = left.bytes.saturating_sub(leaves + area.bytes());
        }
        match fence {
            None => return Ok((blocks, None)),
            Some(fence) if left.are_reached() => return Ok((blocks, Some(fence))),
            Some(fence) => from = fence,
        }
    }
}
