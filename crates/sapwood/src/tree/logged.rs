//! Blocks that have log areas, and which of them have their turn: because scans have paid for it, or because all have.
//!
//! Invariant: blocks of a tree come in key order, each once.

use crate::error::Result;
use crate::node::NodeId;
use crate::operation::KeyspaceId;
use crate::store::log_area::LogArea;
use crate::store::pager::Pager;
use crate::store::rent::price;
use crate::store::version::Version;
use crate::tree::view::{Block, TreeView};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A block that has a log area.
pub(crate) struct Logged {
    pub block: NodeId,
    pub area: Arc<LogArea>,
}

/// A log area for which range searches have paid the price of its cleansing.
#[derive(Debug)]
pub(crate) struct Paid {
    pub area: Arc<LogArea>,
    /// Bytes of leaves and pieces that its cleansing reads and writes.
    pub price: u64,
}

/// Blocks of one tree that are cleansed together, in key order, each beside what was paid for it.
#[derive(Default)]
pub(crate) struct PaidBlocks {
    pub blocks: Vec<Logged>,
    pub paid: Vec<Paid>,
}

/// Takes blocks from the front of `listed`, as long as they come to no more than `write` bytes of leaves and `hold` bytes of pieces, and says which of them are to be cleansed: those
/// that have a log area and have paid their price for it. The others were cleansed since, or are no more. One that is listed
/// twice has one turn.
pub(crate) fn paid(
    pager: &Pager,
    version: &Version,
    listed: &mut impl Iterator<Item = NodeId>,
    write: u64,
    hold: u64,
) -> Result<BTreeMap<KeyspaceId, PaidBlocks>> {
    let mut sorted: BTreeMap<(KeyspaceId, Bytes), (NodeId, Paid)> = BTreeMap::new();
    let (mut written, mut held) = (0, 0);
    while written < write
        && held < hold
        && let Some(id) = listed.next()
    {
        let Some((area, address)) = version.logs.get(id).zip(version.table.address(id)) else { continue };
        let block = pager.fetch_one(&version.segments, id, address)?;
        let view = TreeView { pager, version, keyspace: block.name().keyspace };
        let leaves = view.leaf_bytes(&block);
        let price = price(leaves, area.bytes());
        // In key order, by a separator inside of the block: the first one is empty. A block of one leaf has no other, and is left to
        // the sweep.
        let last = block.count().saturating_sub(1);
        if last > 0 && area.rent().has_reached(price) {
            written += leaves + area.bytes();
            held += area.bytes();
            let paid = Paid { area: Arc::clone(area), price };
            sorted.insert((view.keyspace, block.key_bytes(last)), (id, paid));
        }
    }
    let mut blocks = BTreeMap::<_, PaidBlocks>::new();
    for ((keyspace, _), (id, paid)) in sorted {
        let of_tree = blocks.entry(keyspace).or_default();
        of_tree.blocks.push(Logged { block: id, area: Arc::clone(&paid.area) });
        of_tree.paid.push(paid);
    }
    Ok(blocks)
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
