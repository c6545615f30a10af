//! Reading ahead of the sweep: while a flush cleanses, another thread brings the log pieces and leaves of the blocks that are
//! next to the [`Stage`], many with one psync. So the device reads while the flush merges and waits for its
//! syncs, and nodes are checked on another core.
//!
//! Invariant: no version is kept from dying for longer than one batch of reads.

use crate::error::Result;
use crate::store::pager::{Gather, Pager};
use crate::store::stage::{Stage, Wanted};
use crate::store::version::Version;
use crate::tree::sweep::{Due, beyond};
use crate::tree::view::{Block, TreeView};
use std::sync::Arc;

/// Reads about `batch` bytes at a time until the stage is closed, all is read, or a read fails: then the flush meets the same failure, and
/// tells of it.
pub(crate) fn sweep_ahead(
    stage: &Stage,
    pager: &Pager,
    mut due: &[Due],
    version: impl Fn() -> Arc<Version>,
    batch: u64,
) {
    while !due.is_empty() && stage.has_room(batch) {
        let version = version();
        let Ok(wanted) = next_batch(pager, &version, &mut due, batch) else { return };
        let coming = stage.begin(wanted);
        let Ok(read) = pager.fetch(&version.segments, &coming.nodes, Gather::Ahead) else { return };
        coming.arrived(read);
    }
}

/// What the next blocks consist of.
fn next_batch(pager: &Pager, version: &Version, due: &mut &[Due], batch: u64) -> Result<Vec<Wanted>> {
    let (mut wanted, mut bytes) = (Vec::new(), 0);
    while let Some((Due { keyspace, low, .. }, rest)) = due.split_first()
        && bytes < batch
    {
        *due = rest;
        let view = TreeView { pager, version, keyspace: *keyspace };
        let Some(Block { id, fence }) = view.block_at(low)? else { continue };
        let Some(area) = view.log(id) else { continue };
        let block = view.node(id, 1)?;
        let table = &version.table;
        let len = view.leaf_bytes(&block) + area.bytes();
        // One that is too large for the stage is left to the flush, which may need only a few of its leaves.
        if len <= 2 * batch {
            let pieces = area.pieces().filter_map(|piece| Some((piece, table.address(piece)?)));
            let nodes = pieces.chain(view.leaves_of(&block)).collect();
            wanted.push(Wanted { end: beyond(*keyspace, fence), nodes });
            bytes += len;
        }
    }
    Ok(wanted)
}
