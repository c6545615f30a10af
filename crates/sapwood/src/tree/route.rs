//! Routing: decides for each block that a flush has changes for whether to append them to the block's log
//! area, or to *cleanse* the block: its log pieces and the new changes go to the leaves together, and its log
//! area is empty again.
//!
//! ```text
//! changes ─MPSearch─▶ blocks ─┬─ sparse ──────────▶ one more run, in short pieces; noted as due if the log is long
//!                             └─ dense, or overdue ▶ pieces + changes ─▶ bupdate of the leaves
//! ```
//!
//! Rewriting B bytes of leaves for L bytes of changes costs B/L bytes written a byte, so a block waits until
//! L is a good share of B. B counts only the leaves that would be touched, so dense changes, as those of a
//! sorted load, go to the leaves at once. Blocks are cleansed in key order, one after the other across all
//! flushes ([`CleansingCursor`]). So they leave segments behind in which everything dies together, and the collector
//! has little to copy. (d-IPL B+-tree: log area, cleansing. The cleansing cursor is ours.)
//!
//! The flush cleanses due blocks only after its queue is published. That costs one more piece written and
//! read for each due block, some eighth of the changes. But as long as nothing is rewritten nothing dies, and
//! the whole queue is one edit: the queue's log is never synced, and writers get the queue's memory back
//! before the long part of the work begins.
//!
//! While other threads change the trees, a flush can go ahead with the changes that it only appends, to
//! blocks that the others leave alone. The changes that it leaves [deferred] go to the trees when it is alone,
//! in the same attempt.
//!
//! Invariants:
//! 1. A block is either appended to or cleansed in one attempt, and only once.
//! 2. All changes that [`Routed::rewrite`] has for a block come with its log area emptied: nothing older
//!    stays above the leaves.
//! 3. The changes that wait in memory for the leaves exceed the budget by one block at most.
//! 4. A routing that goes ahead writes nothing but new log pieces.

pub(super) mod cut;
pub(crate) mod deferred;

use crate::cache::pager::ReadMode;
use crate::error::{Error, Result};
use crate::log_area::RUNS_MAX;
use crate::log_area::read_cost::price;
use crate::operation::{KeyspaceId, OperationRef};
use crate::storage::node::{Node, NodeId};
use crate::tree::bupdate::BCNT;
use crate::tree::change_buffer::LeafChangeBuffer;
use crate::tree::cleanse::{Cleansing, cleanse};
use crate::tree::cleansing_cursor::{CleansingCursor, CleansingTask, LogBytes, Urgency};
use crate::tree::fan::{Touched, divide, fence_of};
use crate::tree::sample::Sample;
use crate::tree::view::TreeView;
use crate::version::Tree;
use crate::version::builder::VersionBuilder;
use bytes::Bytes;
use cut::{cut, logged_len};
use deferred::DeferredRanges;
use mpsearch::{Visit, mpsearch};
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

/// With this many runs, 46 to 61, a block is noted as due, before it has as many as it may have. The number
/// depends on the block, so that blocks that were loaded at the same time, and so get their runs at the
/// same time, are not all due at once.
fn runs_enough(block: NodeId) -> usize {
    RUNS_MAX - 18 + (block.0 % 16) as usize
}

/// Long records are a leaf of their own if no more bytes of leaves than so many times their own have to be written for
/// them.
const OF_LONG: u64 = 4;

/// The result of routing.
pub(crate) struct Routed<'q> {
    /// Changes that have to go to the leaves.
    pub rewrite: LeafChangeBuffer<'q>,
    /// Changes taken, including those in `rewrite`, and the bytes of their keys and values.
    pub changes: u64,
    pub bytes: u64,
    /// Blocks that got log pieces, and blocks that were cleansed.
    pub appended: u64,
    pub cleansed: u64,
    /// Bytes that the rewriting will write.
    pub promised: u64,
    /// Key of the first change that was looked at but not taken, because the budget did not reach for its
    /// block.
    pub left: Option<Bytes>,
    /// The remaining changes for the keyspace, none of which was taken, all go to the tree's last block,
    /// which has no log area, or to its only leaf. So they can go to the leaves one by one; however many they
    /// are, nothing else dies for them.
    pub is_tail: bool,
}

/// Limits of one attempt, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Written in place of nodes that die for it.
    pub rewrite: u64,
    /// Written in all by this attempt.
    pub write: u64,
    /// Held in memory for the leaves: copied keys and values, and lists of lent ones.
    pub hold: u64,
    /// Nodes written by the version builder, including log pieces (count): the version builder lists them in memory, and in
    /// one edit.
    pub nodes: usize,
}

/// What the routing decisions are based on.
pub(crate) struct Grounds<'a> {
    pub cursor: &'a mut CleansingCursor,
    /// Sees the changes that are routed, but for those of the last block.
    pub sample: &'a mut Sample,
    /// Percentage of the changes to the keyspace that insert new records, as far as known beforehand.
    pub fresh: u64,
    /// Target length of leaves, in bytes.
    pub leaf_len: usize,
    /// Set if the routing goes ahead while others change the trees.
    pub ahead: Option<&'a mut DeferredRanges>,
}

/// Routes changes for `keyspace` from the front of `changes` to their blocks, as far as the budget reaches.
pub(crate) fn route<'q, I: Iterator<Item = OperationRef<'q>>>(
    builder: &mut VersionBuilder<'_>,
    keyspace: KeyspaceId,
    changes: &mut Peekable<I>,
    grounds: Grounds<'_>,
    budget: Budget,
) -> Result<Routed<'q>> {
    let base = Arc::clone(builder.base());
    let pager = Arc::clone(builder.pager());
    let view = TreeView { pager: &pager, version: &base, keyspace };
    let mut router = Router {
        view,
        builder,
        changes,
        grounds,
        budget,
        record_bytes: base.trees.get(&keyspace).map_or(0, Tree::record_bytes),
        chunk: Vec::new(),
        buffered: 0,
        routed: Routed {
            rewrite: LeafChangeBuffer::new(view.pager.reader.buffers().clone()),
            changes: 0,
            bytes: 0,
            appended: 0,
            cleansed: 0,
            promised: 0,
            left: None,
            is_tail: false,
        },
    };
    match view.root().filter(|(_, height)| *height > 0) {
        Some((root, height)) => router.by_blocks(root, height)?,
        None => {
            router.routed.is_tail = true;
            if let Some(ahead) = &mut router.grounds.ahead {
                ahead.pass(keyspace, Bytes::new(), None);
            }
        }
    }
    Ok(router.routed)
}

/// A block on the way down.
#[derive(Clone)]
struct NodeRange {
    id: NodeId,
    /// The smallest key that may be in the block.
    low: Bytes,
    /// The smallest key beyond the block; `None` at the right end of the tree.
    fence: Option<Bytes>,
}

struct Router<'a, 'b, 'q, I: Iterator<Item = OperationRef<'q>>> {
    view: TreeView<'b>,
    builder: &'b mut VersionBuilder<'a>,
    changes: &'b mut Peekable<I>,
    grounds: Grounds<'b>,
    budget: Budget,
    /// Average bytes of a record in a leaf of this tree.
    record_bytes: u64,
    /// The changes that go down the tree now.
    chunk: Vec<OperationRef<'q>>,
    /// Bytes held for the leaves.
    buffered: u64,
    routed: Routed<'q>,
}

pub(crate) fn bytes_of(change: &OperationRef<'_>) -> u64 {
    (change.key.len() + change.value.map_or(0, <[u8]>::len)) as u64
}

/// Whether a change is for this keyspace and below `fence`.
fn is_below(change: &OperationRef<'_>, keyspace: KeyspaceId, fence: Option<&Bytes>) -> bool {
    change.keyspace == keyspace && fence.is_none_or(|fence| change.key < fence)
}

impl<'q, I: Iterator<Item = OperationRef<'q>>> Router<'_, '_, 'q, I> {
    fn has_budget(&self) -> bool {
        self.routed.left.is_none()
            && !self.routed.is_tail
            && self.routed.promised < self.budget.rewrite
            && self.buffered < self.budget.hold
            && self.builder.nodes() < self.budget.nodes
            && !self.builder.is_long()
            && self.builder.bytes() < self.budget.write
            && self.grounds.ahead.as_ref().is_none_or(|ahead| ahead.chunks > 0)
    }

    /// The next change if it is for this tree and below `fence`.
    fn next_change(&mut self, fence: Option<&Bytes>) -> Option<OperationRef<'q>> {
        let keyspace = self.view.keyspace;
        let change = self.changes.next_if(|change| is_below(change, keyspace, fence))?;
        self.routed.changes += 1;
        self.routed.bytes += bytes_of(&change);
        Some(change)
    }

    fn by_blocks(&mut self, root: NodeId, height: u8) -> Result<()> {
        while self.has_budget() {
            let mut chunk = std::mem::take(&mut self.chunk);
            chunk.clear();
            // The budget is checked between chunks, so a chunk of long changes must not use more than is
            // left.
            let left = self.budget.rewrite.min(self.budget.write).saturating_sub(self.routed.promised);
            let mut bytes = 0;
            while chunk.len() < BCNT
                && bytes <= left
                && let Some(change) = self.next_change(None)
            {
                bytes += bytes_of(&change);
                chunk.push(change);
            }
            let end = chunk.len();
            self.chunk = chunk;
            if end == 0 {
                break;
            }
            if let Some(ahead) = &mut self.grounds.ahead {
                ahead.chunks -= 1;
            }
            let place = NodeRange { id: root, low: Bytes::new(), fence: None };
            mpsearch(self, place, usize::from(height - 1), 0..end, self.view.pager.pio_max())?;
        }
        Ok(())
    }

    /// Leaves the changes of the chunk from index `from` on to another attempt.
    fn leave(&mut self, from: usize) {
        self.uncount(from..self.chunk.len());
        self.routed.left = self.chunk.get(from).map(|change| Bytes::copy_from_slice(change.key));
    }

    /// Takes these changes of the chunk out of the counts.
    fn uncount(&mut self, keys: Range<usize>) {
        let changes = &self.chunk[keys];
        self.routed.changes -= changes.len() as u64;
        self.routed.bytes -= changes.iter().map(bytes_of).sum::<u64>();
    }

    /// Takes the changes for a block.
    fn take(&mut self, visit: &Visit<NodeRange>) -> Vec<OperationRef<'q>> {
        let mut changes = self.chunk[visit.keys.clone()].to_vec();
        // The last block of a chunk takes everything below its fence, so that the next chunk begins at
        // another block.
        if visit.keys.end == self.chunk.len() {
            let mut bytes = 0;
            while self.buffered + bytes < self.budget.hold.min(self.budget.write)
                && let Some(change) = self.next_change(visit.place.fence.as_ref())
            {
                // The list of them takes memory as well.
                bytes += bytes_of(&change) + size_of_val(&change) as u64;
                changes.push(change);
            }
            // What the budget leaves of a block goes with another attempt: a block is handled only once in
            // this one.
            let fence = visit.place.fence.as_ref();
            let rest = self.changes.peek().filter(|next| next.keyspace == self.view.keyspace);
            let left = rest.filter(|next| fence.is_none_or(|fence| next.key < fence));
            self.routed.left = left.map(|next| Bytes::copy_from_slice(next.key));
        }
        changes
    }

    /// When going ahead: leaves the changes for a block aside if others may change the block, if it is the
    /// tree's last, or if it was appended to already. Returns whether it did.
    fn passes_by(&mut self, visit: &Visit<NodeRange>) -> bool {
        let NodeRange { id, low, fence } = &visit.place;
        let Some(ahead) = &mut self.grounds.ahead else { return false };
        // A block that was appended to in an older version may have taken over its neighbour's range since.
        if fence.is_some() && !ahead.claimed.contains(id) && !self.builder.has_appended_to(*id) {
            return false;
        }
        ahead.pass(self.view.keyspace, low.clone(), fence.clone());
        self.uncount(visit.keys.clone());
        if visit.keys.end == self.chunk.len() {
            // How many changes the tree's last block has need not be counted.
            self.routed.is_tail = fence.is_none();
            while fence.is_some()
                && self.changes.next_if(|next| is_below(next, self.view.keyspace, fence.as_ref())).is_some()
            {
            }
        }
        true
    }

    /// Bytes of leaves that a cleansing would rewrite, without those that a change replaces as a whole.
    /// `has_pieces`: the block has log pieces.
    fn bytes_to_write(&self, block: &Node, changes: &[OperationRef<'_>], has_pieces: bool) -> u64 {
        if has_pieces {
            return self.view.leaf_bytes(block);
        }
        Touched::by(block, 0..changes.len(), |index| changes[index].key)
            .rewritten()
            .filter(|(child, _)| !block.is_lone(*child))
            .map(|(child, _)| self.view.len_of(block.child(child)))
            .sum()
    }

    /// Appends the changes to the block's log area, or returns what is needed to cleanse the block.
    fn append_or_cleanse(&mut self, visit: Visit<NodeRange>, block: &Node) -> Result<Option<Cleansing<'q>>> {
        let changes = self.take(&visit);
        let NodeRange { id, low, fence } = visit.place;
        let is_last = fence.is_none();
        let keyspace = self.view.keyspace;
        let area = self.view.log(id).cloned();
        let (logged, runs) = area.as_ref().map_or((0, 0), |area| (area.bytes(), area.run_count()));
        let bytes = logged + changes.iter().map(logged_len).sum::<u64>();
        let fresh =
            area.as_ref().map_or(0, |area| area.fresh()) + (bytes - logged) * self.grounds.fresh / 100;
        // A removal is short, but it stands for the space of a record.
        let removals = area.as_ref().map_or(0, |area| area.removals())
            + changes.iter().filter(|change| change.value.is_none()).count() as u64;
        let log = LogBytes { bytes, fresh, removed: removals * self.record_bytes };
        let leaves = self.bytes_to_write(block, &changes, logged > 0);
        // Long records will each be a leaf of their own. Without a log area in between they are written once,
        // with one twice.
        // (Of long keys a leaf has several: `Packer::capacity`.)
        let are_long = 2 * (log.bytes + log.removed) >= changes.len() as u64 * self.grounds.leaf_len as u64
            && leaves <= OF_LONG * (log.bytes + log.removed);
        let is_dense = logged == 0 && (are_long || self.grounds.cursor.is_dense(log, leaves));
        let urgency = if is_dense || runs == RUNS_MAX {
            Urgency::Overdue
        } else {
            let is_paid =
                area.as_ref().is_some_and(|area| area.read_cost().has_reached(price(leaves, logged, runs)));
            let is_wanted = is_paid || runs >= runs_enough(id);
            self.grounds.cursor.at_block(
                CleansingTask::new(keyspace, low.clone(), leaves, is_wanted),
                fence.clone(),
                log,
            )
        };
        if urgency == Urgency::Overdue
            && let Some(ahead) = &mut self.grounds.ahead
        {
            ahead.pass(keyspace, low, fence);
            self.routed.changes -= changes.len() as u64;
            self.routed.bytes -= changes.iter().map(bytes_of).sum::<u64>();
            return Ok(None);
        }
        if !is_last {
            changes.iter().for_each(|change| self.grounds.sample.see(change));
        }
        if urgency == Urgency::Overdue {
            self.routed.cleansed += 1;
            // Without a log area the changes stay in the queue, and only a list of them is held.
            self.buffered += match &area {
                Some(_) => changes.iter().map(bytes_of).sum::<u64>() + logged,
                None => size_of_val(&changes[..]) as u64,
            };
            self.routed.promised += leaves + bytes;
            // A log area may hold keys above the next changes.
            if is_last && area.is_none() && self.routed.left.take().is_some() {
                self.routed.is_tail = true;
            }
            return Ok(Some(Cleansing { block: id, area, changes }));
        }
        self.routed.appended += 1;
        self.builder.append_run(id, keyspace, &changes, &cut(&changes))?;
        Ok(None)
    }
}

impl<'q, I: Iterator<Item = OperationRef<'q>>> mpsearch::Tree for Router<'_, '_, 'q, I> {
    type Place = NodeRange;
    type Node = Node;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<NodeRange>]) -> Result<Vec<Node>> {
        self.view.nodes(group.iter().map(|visit| visit.place.id), height as u8 + 1, ReadMode::Inner)
    }

    fn fits(&self, _: usize, visits: &[Visit<NodeRange>]) -> usize {
        self.view.fits(visits.iter().map(|visit| visit.place.id))
    }

    fn descend(
        &mut self,
        _: usize,
        node: Node,
        visit: Visit<NodeRange>,
        below: &mut Vec<Visit<NodeRange>>,
    ) -> Result<()> {
        let NodeRange { low, fence, .. } = &visit.place;
        divide(
            &node,
            visit.keys,
            |index| self.chunk[index].key,
            |child, keys| {
                let low = if child == 0 { low.clone() } else { node.key_bytes(child) };
                let fence = fence_of(&node, child, fence.as_ref());
                below.push(Visit { place: NodeRange { id: node.child(child), low, fence }, keys });
            },
        );
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<NodeRange>, Node)>) -> Result<()> {
        let mut cleansed = Vec::new();
        for (visit, block) in group {
            let is_used_up = self.buffered >= self.budget.hold
                || self.routed.promised >= self.budget.rewrite
                || self.builder.bytes() >= self.budget.write;
            if self.routed.left.is_none() && is_used_up {
                self.leave(visit.keys.start);
            }
            if self.routed.left.is_none() && !self.passes_by(&visit) {
                cleansed.extend(self.append_or_cleanse(visit, &block)?);
            }
        }
        cleanse(self.view, self.builder, cleansed, &mut self.routed.rewrite)
    }
}
