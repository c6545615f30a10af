//! Reading ahead of the sweep: while a flush cleanses, another thread brings the log pieces and leaves of the blocks that are
//! next to the [`Stage`], many with one psync, and begins with the next batch before it takes in the last. So the device reads while the flush merges and waits for its
//! syncs, and nodes are checked on another core.
//!
//! ```text
//! due ─▶ begin batch 2 ─▶ bring batch 1 ─▶ stage      as long as there is room; what is in flight is brought before room is waited for
//!
//! pieces of blocks 1..8 │ leaves of 1..3 │ leaves of 4..6 │ leaves of 7, 8 │ pieces of 9..15 │ …        a batch each
//! ```
//! Log pieces are read for many blocks at a time: what a flush has appended to neighbours lies side by side, so that there is one request for each flush, and not for each
//! flush and block. Leaves of a block lie side by side as they are, and are read for as few blocks as fill a batch.
//!
//! Invariants:
//! 1. No version is kept from dying for longer than it takes to read two batches, and begin with a third.
//! 2. What is in flight is two batches and two blocks at most (buffers that lay idle may be larger than what is read into them), and does not count among what scans may have there.
//! 3. Nobody who waits for what is in flight is waited for.

use crate::error::Result;
use crate::node::NodeId;
use crate::operation::KeyspaceId;
use crate::store::node_reader::Leave;
use crate::store::pager::{self, Gather, Pager};
use crate::store::stage::{self, Admission, Mark, Stage, Wanted};
use crate::store::version::Version;
use crate::tree::sweep::{Due, beyond};
use crate::tree::view::{Block, TreeView};
use std::collections::VecDeque;
use std::sync::Arc;

/// Batches that the stage has room for.
const BATCHES: u64 = 4;
/// Batches that one block may be as long as.
const LARGEST: u64 = 2;
/// Batches in flight at a time: while the nodes of one are checked the device is at the next.
const FLYING: usize = 2;

/// Reads until the stage, which has room for `limit` bytes, is closed, all is read, or a read fails: then the flush meets the same failure, and
/// tells of it.
pub(crate) fn sweep_ahead(
    stage: &Stage,
    pager: &Pager,
    due: &[Due],
    version: impl Fn() -> Arc<Version>,
    limit: u64,
) {
    let batch = limit / BATCHES;
    let mut order = Order { pager, batch, due, blocks: VecDeque::new() };
    let mut flying = VecDeque::new();
    let mut is_in_flight = false;
    loop {
        // Of long batches one is enough; and where the device cannot read ahead, what was read is not to wait for the next.
        let aloft = flying.iter().map(|Batch { reads, .. }| reads.aloft() as u64).sum::<u64>();
        let is_begun_beside = is_in_flight && flying.len() < FLYING && aloft <= FLYING as u64 * batch;
        let has_more = order.has_more() && (flying.is_empty() || is_begun_beside);
        if flying.is_empty() && has_more {
            stage.wait_for_room(batch);
        }
        match stage.admits(batch) {
            Admission::Never => return,
            Admission::Now if has_more => {
                let version = version();
                let Ok(wanted) = order.next(&version) else { return };
                let coming = stage.begin(wanted);
                let nodes = coming.nodes.clone();
                let Ok(mut reads) = pager.ask(&version.segments, nodes, Gather::Ahead) else { return };
                is_in_flight = pager.begin(&mut reads, &mut Vec::new(), Leave::Own);
                flying.push_back(Batch { coming, reads, _version: version });
            }
            _ => {
                let Some(Batch { coming, reads, _version }) = flying.pop_front() else { return };
                let Ok(read) = pager.bring(reads, &mut Vec::new()) else { return };
                coming.arrived(read);
            }
        }
    }
}

/// What is read together.
struct Batch<'a> {
    coming: stage::Coming<'a>,
    reads: pager::Coming,
    /// As long as it lives, nothing else is written where its nodes are.
    _version: Arc<Version>,
}

/// The order in which blocks are read.
struct Order<'d> {
    pager: &'d Pager,
    /// Bytes that are read together.
    batch: u64,
    /// Blocks whose log pieces are still to be read.
    due: &'d [Due],
    /// Those whose pieces were asked for, and whose leaves were not; and where they end.
    blocks: VecDeque<(KeyspaceId, NodeId, Mark)>,
}

impl Order<'_> {
    fn has_more(&self) -> bool {
        !self.due.is_empty() || !self.blocks.is_empty()
    }

    /// What is read next.
    fn next(&mut self, version: &Version) -> Result<Vec<Wanted>> {
        if self.blocks.is_empty() { self.pieces(version) } else { self.leaves(version) }
    }

    /// Log pieces of the next blocks.
    fn pieces(&mut self, version: &Version) -> Result<Vec<Wanted>> {
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        while let Some((Due { keyspace, low, .. }, rest)) = self.due.split_first()
            && bytes < self.batch
        {
            self.due = rest;
            let view = TreeView { pager: self.pager, version, keyspace: *keyspace };
            let Some(Block { id, fence }) = view.block_at(low)? else { continue };
            let Some(area) = view.log(id) else { continue };
            // One that is too large for the stage is left to the flush, which may need only a few of its leaves.
            if view.leaf_bytes(&view.node(id, 1)?) + area.bytes() <= LARGEST * self.batch {
                let end = beyond(*keyspace, fence);
                let address = |piece| Some((piece, version.table.address(piece)?));
                wanted.push(Wanted { end: end.clone(), nodes: area.pieces().filter_map(address).collect() });
                bytes += area.bytes();
                self.blocks.push_back((*keyspace, id, end));
            }
        }
        Ok(wanted)
    }

    /// Leaves of the first of the blocks whose pieces were asked for.
    fn leaves(&mut self, version: &Version) -> Result<Vec<Wanted>> {
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        while bytes < self.batch
            && let Some((keyspace, id, end)) = self.blocks.pop_front()
        {
            let view = TreeView { pager: self.pager, version, keyspace };
            // The flush may have come to it first, and it may be no more.
            if view.log(id).is_none() {
                continue;
            }
            let nodes: Vec<_> = view.leaves_of(&view.node(id, 1)?).collect();
            bytes += nodes.iter().map(|(_, leaf)| u64::from(leaf.len)).sum::<u64>();
            wanted.push(Wanted { end, nodes });
        }
        Ok(wanted)
    }
}
