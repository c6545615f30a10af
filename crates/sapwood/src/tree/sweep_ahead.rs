//! Reading ahead of the sweep: while a flush is at work, another thread brings the log pieces and leaves of the blocks that it
//! is about to cleanse to the [`Stage`], many with one psync. So the device reads while the flush merges and waits for its
//! syncs, and nodes are checked on another core.
//!
//! It guesses which blocks these are: those from the sweep's cursor on that have changes in the queue and a log that the sweep
//! does not pass by. A wrong guess costs a read, never a wrong result.
//!
//! Invariant: no version is kept from dying for longer than one batch of reads.

use crate::error::Result;
use crate::node::NodeId;
use crate::queue::opq::Opq;
use crate::store::mapping_table::Address;
use crate::store::pager::{Gather, Pager};
use crate::store::stage::{Mark, Stage};
use crate::store::version::Version;
use crate::tree::sweep::Cursor;
use crate::tree::view::{Block, TreeView};
use std::sync::Arc;

/// Reads about `batch` bytes at a time until the stage is closed, the sweep's quota is used up, or a read fails: then the flush meets the same failure, and
/// tells of it.
pub(crate) fn sweep_ahead(
    stage: &Stage,
    pager: &Pager,
    queue: &Opq,
    version: impl Fn() -> Arc<Version>,
    batch: u64,
    mut ahead: Cursor,
) {
    while ahead.quota > 0 && stage.has_room(batch) {
        let version = version();
        let Ok((mark, nodes)) = next_batch(pager, queue, &version, &mut ahead, batch) else { return };
        if nodes.is_empty() {
            return;
        }
        let coming = stage.begin(mark, nodes);
        let Ok(read) = pager.fetch(&version.segments, &coming.nodes, Gather::Ahead) else { return };
        coming.arrived(read);
    }
}

/// What the next blocks consist of, and the beginning of the last of them.
fn next_batch(
    pager: &Pager,
    queue: &Opq,
    version: &Version,
    ahead: &mut Cursor,
    batch: u64,
) -> Result<(Mark, Vec<(NodeId, Address)>)> {
    let (mut mark, mut nodes, mut bytes) = (Mark::default(), Vec::new(), 0);
    while ahead.quota > 0 && bytes < batch {
        // Blocks without changes are not looked at by the flush.
        let (keyspace, from) = &ahead.at;
        let Some(change) = queue.first_at_or_after(*keyspace, from) else { break };
        let view = TreeView { pager, version, keyspace: change.0 };
        let Some(Block { id, fence }) = view.block_at(&change.1)? else {
            ahead.pass(change.0, None, 0);
            continue;
        };
        let mut leaf_bytes = 0;
        if let Some(area) = view.log(id) {
            let block = view.node(id, 1)?;
            let table = &version.table;
            let leaves: Vec<_> = view.leaves_of(&block).collect();
            let len: u64 = leaves.iter().map(|(_, address)| u64::from(address.len)).sum();
            // One that is too large for the stage is left to the flush, which may need only a few of its leaves.
            if ahead.is_due(area.bytes(), len, true) && len + area.bytes() <= 2 * batch {
                let pieces =
                    area.pieces().iter().filter_map(|piece| Some((piece.id, table.address(piece.id)?)));
                nodes.extend(pieces.chain(leaves));
                leaf_bytes = len;
                bytes += len + area.bytes();
            }
        }
        mark = (change.0, change.1);
        ahead.pass(mark.0, fence, leaf_bytes);
    }
    Ok((mark, nodes))
}
