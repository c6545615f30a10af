//! Blocks that have log areas, and which of them have their turn: because scans have paid for it, or because all have.
//!
//! Invariant: blocks of a tree come in key order, each once.

use crate::error::Result;
use crate::node::NodeId;
use crate::operation::KeyspaceId;
use crate::store::log_area::LogArea;
use crate::store::pager::Pager;
use crate::store::rent::Next;
use crate::store::version::Version;
use crate::tree::sweep::Due;
use crate::tree::view::{Block, TreeView};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A block that has a log area.
pub(crate) struct Logged {
    pub block: NodeId,
    pub area: Arc<LogArea>,
}

/// A log area for which range searches have paid the price of its cleansing, or of merging its layers.
#[derive(Debug)]
pub(crate) struct Paid {
    pub area: Arc<LogArea>,
    /// What it costs: see [`Next`].
    pub price: u64,
}

/// Blocks of one tree that have their turn together, in key order, each beside what was paid for it.
#[derive(Default)]
pub(crate) struct PaidBlocks {
    pub cleansed: Turn,
    pub merged: Turn,
}

/// See [`PaidBlocks`].
#[derive(Default)]
pub(crate) struct Turn {
    pub blocks: Vec<Logged>,
    pub paid: Vec<Paid>,
}

impl Turn {
    fn push(&mut self, block: NodeId, paid: Paid) {
        self.blocks.push(Logged { block, area: Arc::clone(&paid.area) });
        self.paid.push(paid);
    }
}

/// Takes blocks from the front of `listed`, as long as they come to no more than `write` bytes and `hold` bytes of pieces, and says which of them are to be cleansed, and which
/// merged: those that have a log area and have paid their price for it. The others had it since, or are no more. One that is listed
/// twice has one turn.
pub(crate) fn paid(
    pager: &Pager,
    version: &Version,
    listed: &mut impl Iterator<Item = NodeId>,
    write: u64,
    hold: u64,
) -> Result<BTreeMap<KeyspaceId, PaidBlocks>> {
    let mut sorted: BTreeMap<(KeyspaceId, Bytes), (NodeId, Arc<LogArea>, Next)> = BTreeMap::new();
    let (mut written, mut held) = (0, 0);
    while written < write
        && held < hold
        && let Some(id) = listed.next()
    {
        let Some((area, address)) = version.logs.get(id).zip(version.table.address(id)) else { continue };
        let block = pager.fetch_one(&version.segments, id, address)?;
        let view = TreeView { pager, version, keyspace: block.name().keyspace };
        let (leaves, pieces) = (view.leaf_bytes(&block), area.bytes());
        let next = Next::of(leaves, pieces, area.layer_count());
        // In key order, by a separator inside of the block: the first one is empty. A block of one leaf has no other, and is left to
        // the sweep.
        let last = block.count().saturating_sub(1);
        if last > 0 && area.rent().has_reached(next.price()) {
            written += match next {
                Next::Merging(_) => pieces,
                Next::Cleansing(_) => leaves + pieces,
            };
            held += pieces;
            sorted.insert((view.keyspace, block.key_bytes(last)), (id, Arc::clone(area), next));
        }
    }
    let mut blocks = BTreeMap::<_, PaidBlocks>::new();
    for ((keyspace, _), (id, area, next)) in sorted {
        let PaidBlocks { cleansed, merged } = blocks.entry(keyspace).or_default();
        let turn = match next {
            Next::Merging(_) => merged,
            Next::Cleansing(_) => cleansed,
        };
        turn.push(id, Paid { area, price: next.price() });
    }
    Ok(blocks)
}

/// Of the next blocks at and above `from`, so many at most, those that have new records in their log areas for `percent` of their leaves at least. Says as well where to
/// go on, if there is more of the tree.
pub(crate) fn grown(
    view: TreeView<'_>,
    mut from: Bytes,
    percent: u64,
    most: usize,
) -> Result<(Vec<Due>, Option<Bytes>)> {
    let mut due = Vec::new();
    for _ in 0..most {
        let Some(Block { id, fence }) = view.block_at(&from)? else { return Ok((due, None)) };
        if let Some(area) = view.log(id) {
            let leaves = view.leaf_bytes(&view.node(id, 1)?);
            if area.fresh() * 100 >= leaves * percent {
                due.push(Due::new(view.keyspace, from.clone(), leaves, false));
            }
        }
        match fence {
            None => return Ok((due, None)),
            Some(fence) => from = fence,
        }
    }
    Ok((due, Some(from)))
}

/// The blocks at and above `from` that have log areas, until so many bytes of leaves and log pieces are concerned. Says as well where to go on, if there is more
/// of the tree.
pub(crate) fn next(view: TreeView<'_>, mut from: Bytes, budget: u64) -> Result<(Vec<Logged>, Option<Bytes>)> {
    let mut bytes = 0;
    let mut blocks = Vec::new();
    loop {
        let Some(Block { id, fence }) = view.block_at(&from)? else { return Ok((blocks, None)) };
        if let Some(area) = view.log(id) {
            let block = view.node(id, 1)?;
            let leaves = view.leaf_bytes(&block);
            blocks.push(Logged { block: id, area: Arc::clone(area) });
            bytes += leaves + area.bytes();
        }
        match fence {
            None => return Ok((blocks, None)),
            Some(fence) if bytes >= budget => return Ok((blocks, Some(fence))),
            Some(fence) => from = fence,
        }
    }
}
