//! Cleansing: the log pieces of a block and the newest changes become one sorted batch for its leaves, and its log area is
//! emptied. (d-IPL B+-tree: block cleansing, and eager cleansing in [`paid`].)
//!
//! Invariant: whoever cleanses a block brings all that comes out of it to the leaves in the same attempt.

use crate::error::Result;
use crate::node::{NodeId, PIECE};
use crate::operation::{KeyspaceId, OperationRef};
use crate::store::attempt::Attempt;
use crate::store::log_area::LogArea;
use crate::store::pager::{Gather, Pager};
use crate::store::rent::price;
use crate::store::version::Version;
use crate::tree::held::Held;
use crate::tree::overlay;
use crate::tree::view::{Block, TreeView};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A block to be cleansed.
pub(crate) struct Cleansing<'q> {
    pub block: NodeId,
    pub area: Option<Arc<LogArea>>,
    /// Changes that are newer than the log area, in key order.
    pub changes: Vec<OperationRef<'q>>,
}

/// A log area for which range searches have paid the price of its cleansing.
#[derive(Debug)]
pub(crate) struct Paid {
    pub area: Arc<LogArea>,
    /// Bytes of leaves and pieces that its cleansing reads and writes.
    pub price: u64,
}

/// Empties the log areas of `blocks`, which are in key order, and appends to `out` what has to go to the leaves.
pub(crate) fn cleanse(
    view: TreeView<'_>,
    attempt: &mut Attempt<'_>,
    blocks: Vec<Cleansing<'_>>,
    out: &mut Held,
) -> Result<()> {
    let areas = blocks.iter().filter_map(|block| block.area.as_ref());
    let ids = areas.flat_map(|area| area.pieces());
    let nodes = view.nodes(ids, PIECE, Gather::Staged)?;
    let mut rest = &nodes[..];
    for Cleansing { block, area, changes } in blocks {
        let (pieces, others) = rest.split_at(area.map_or(0, |area| area.piece_count()));
        rest = others;
        let logged = overlay::merge(pieces);
        attempt.empty_log(block);
        let mut logged = logged.into_iter().peekable();
        for change in changes {
            while let Some(before) = logged.next_if(|(key, _)| &key[..] < change.key) {
                out.push(&before.0, before.1.as_deref());
            }
            logged.next_if(|(key, _)| &key[..] == change.key);
            out.push(change.key, change.value);
        }
        logged.for_each(|(key, value)| out.push(&key, value.as_deref()));
    }
    Ok(())
}

/// Blocks of one tree that are cleansed together, in key order, each beside what was paid for it.
#[derive(Default)]
pub(crate) struct PaidBlocks {
    pub cleansings: Vec<Cleansing<'static>>,
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
        let leaves: u64 = view.leaves_of(&block).map(|(_, leaf)| u64::from(leaf.len)).sum();
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
        let area = Some(Arc::clone(&paid.area));
        of_tree.cleansings.push(Cleansing { block: id, area, changes: Vec::new() });
        of_tree.paid.push(paid);
    }
    Ok(blocks)
}

/// Cleanses the blocks at and above `from` until so many bytes of leaves and log pieces are concerned. Says what goes to the leaves, and where to go on, if there is more of the tree.
pub(crate) fn next(
    view: TreeView<'_>,
    attempt: &mut Attempt<'_>,
    mut from: Bytes,
    budget: u64,
) -> Result<(Held, Option<Bytes>)> {
    let mut out = Held::new(view.keyspace, view.pager.buffers().clone());
    let mut bytes = 0;
    let mut blocks = Vec::new();
    let end = loop {
        let Some(Block { id, fence }) = view.block_at(&from)? else { return Ok((out, None)) };
        if let Some(area) = view.log(id) {
            let block = view.node(id, 1)?;
            let leaves: u64 = view.leaves_of(&block).map(|(_, leaf)| u64::from(leaf.len)).sum();
            blocks.push(Cleansing { block: id, area: Some(Arc::clone(area)), changes: Vec::new() });
            bytes += leaves + area.bytes();
        }
        match fence {
            None => break None,
            Some(fence) if bytes >= budget => break Some(fence),
            Some(fence) => from = fence,
        }
    };
    cleanse(view, attempt, blocks, &mut out)?;
    Ok((out, end))
}
