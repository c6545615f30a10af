//! Reads ahead of the cleansing cursor: while a flush cleanses, another thread reads the log pieces and leaves of the
//! next due blocks into the [`PrefetchBuffer`], many with one psync, and begins the next batch before it takes in the
//! last. So the device reads while the flush thread merges and waits for its syncs, and nodes are checked on
//! another core.
//!
//! ```text
//! due ─▶ begin batch 2 ─▶ bring batch 1 ─▶ stage      while there is room, else reads in flight are finished first
//!
//! pieces of blocks 1..8 │ leaves of 1..3 │ leaves of 4..6 │ leaves of 7, 8 │ pieces of 9..15 │ …        a batch each
//! ```
//! Log pieces are read for many blocks at a time: the pieces that one flush appended to neighbouring blocks
//! are adjacent, so this takes one request for each flush instead of one for each flush and block. The leaves
//! of a block are adjacent anyway, and are read for as few blocks as fill a batch.
//!
//! Invariants:
//! 1. A version is kept alive no longer than it takes to read two batches and begin a third.
//! 2. At most two batches and two blocks are in flight (reused buffers may be larger than what is read into
//!    them). They do not count against the memory that scans may have in flight.
//! 3. The thread never waits for room while it has reads in flight: the flush may be waiting for those.

use crate::cache::pager::{AskedNodes, Pager, ReadMode};
use crate::cache::prefetch_buffer::{Admission, Coming, KeyPosition, PrefetchBuffer, WantedNodes};
use crate::error::Result;
use crate::operation::KeyspaceId;
use crate::storage::node::NodeId;
use crate::storage::reader::InFlightLimit;
use crate::tree::cleansing_cursor::{CleansingTask, beyond};
use crate::tree::view::{Block, TreeView};
use crate::version::Version;
use std::collections::VecDeque;
use std::sync::Arc;

/// Batches that fit the prefetch buffer.
const BATCHES: u64 = 4;
/// Greatest length of one block, in batches: a longer one would leave no room for the next batch, and is read when its
/// turn comes.
const LARGEST: u64 = 2;
/// Batches in flight: while the nodes of one are checked the device reads the next.
const BEGUN: usize = 2;

/// Reads ahead until the prefetch buffer, which has room for `limit` bytes, is closed, everything is read, or a read
/// fails. The flush then meets the same failure and reports it.
pub(crate) fn prefetch_for_cleansing(
    prefetch: &PrefetchBuffer,
    pager: &Pager,
    due: &[CleansingTask],
    version: impl Fn() -> Arc<Version>,
    limit: u64,
) {
    let batch = limit / BATCHES;
    let mut order = Order { pager, batch, due, blocks: VecDeque::new() };
    let mut begun = VecDeque::new();
    let mut is_in_flight = false;
    loop {
        // One batch is enough if it is long. If the device cannot read ahead, a batch that was read must not
        // wait for the next.
        let bytes = begun.iter().map(|Batch { reads, .. }| reads.bytes_in_flight() as u64).sum::<u64>();
        let is_begun_beside = is_in_flight && begun.len() < BEGUN && bytes <= BEGUN as u64 * batch;
        let has_more = order.has_more() && (begun.is_empty() || is_begun_beside);
        if begun.is_empty() && has_more {
            prefetch.wait_for_room(batch);
        }
        match prefetch.admits(batch) {
            Admission::Never => return,
            Admission::Now if has_more => {
                let version = version();
                let Ok(wanted) = order.next(&version) else { return };
                let coming = prefetch.begin(wanted);
                let nodes = coming.nodes.clone();
                let Ok(mut reads) = pager.ask(&version.segments, nodes, ReadMode::Ahead) else { return };
                is_in_flight = pager.begin(&mut reads, &mut Vec::new(), InFlightLimit::Own);
                begun.push_back(Batch { coming, reads, _version: version });
            }
            _ => {
                let Some(Batch { coming, reads, _version }) = begun.pop_front() else { return };
                let Ok(read) = pager.bring(reads, &mut Vec::new()) else { return };
                coming.arrived(read);
            }
        }
    }
}

/// Nodes that are read together.
struct Batch<'a> {
    coming: Coming<'a>,
    reads: AskedNodes,
    /// Keeps the space of the nodes from being overwritten.
    _version: Arc<Version>,
}

/// The order in which blocks are read.
struct Order<'d> {
    pager: &'d Pager,
    /// Bytes of a batch.
    batch: u64,
    /// Blocks whose log pieces are still to be read.
    due: &'d [CleansingTask],
    /// Blocks whose pieces were asked for but not yet their leaves, with the positions where they end.
    blocks: VecDeque<(KeyspaceId, NodeId, KeyPosition)>,
}

impl Order<'_> {
    fn has_more(&self) -> bool {
        !self.due.is_empty() || !self.blocks.is_empty()
    }

    /// The nodes of the next batch.
    fn next(&mut self, version: &Version) -> Result<Vec<WantedNodes>> {
        if self.blocks.is_empty() { self.pieces(version) } else { self.leaves(version) }
    }

    /// Log pieces of the next blocks.
    fn pieces(&mut self, version: &Version) -> Result<Vec<WantedNodes>> {
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        while let Some((CleansingTask { keyspace, low, .. }, rest)) = self.due.split_first()
            && bytes < self.batch
        {
            self.due = rest;
            let view = TreeView { pager: self.pager, version, keyspace: *keyspace };
            let Some(Block { id, fence }) = view.block_at(low)? else { continue };
            let Some(area) = view.log(id) else { continue };
            // A block that is too large for the prefetch buffer is left to the flush, which may need only a few of its
            // leaves.
            if view.leaf_bytes(&view.node(id, 1)?) + area.bytes() <= LARGEST * self.batch {
                let end = beyond(*keyspace, fence);
                let address = |piece| Some((piece, version.table.address(piece)?));
                wanted.push(WantedNodes {
                    end: end.clone(),
                    nodes: area.pieces().filter_map(address).collect(),
                });
                bytes += area.bytes();
                self.blocks.push_back((*keyspace, id, end));
            }
        }
        Ok(wanted)
    }

    /// Leaves of the first blocks whose pieces were asked for.
    fn leaves(&mut self, version: &Version) -> Result<Vec<WantedNodes>> {
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        while bytes < self.batch
            && let Some((keyspace, id, end)) = self.blocks.pop_front()
        {
            let view = TreeView { pager: self.pager, version, keyspace };
            // The flush may have cleansed the block already, or it may no longer exist.
            if view.log(id).is_none() {
                continue;
            }
            let nodes: Vec<_> = view.leaves_of(&view.node(id, 1)?).collect();
            bytes += nodes.iter().map(|(_, leaf)| leaf.memory_len() as u64).sum::<u64>();
            wanted.push(WantedNodes { end, nodes });
        }
        Ok(wanted)
    }
}
