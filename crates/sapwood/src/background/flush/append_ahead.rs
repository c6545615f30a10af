//! Appending ahead: while the previous flush still cleanses what was due and the device is busy, another thread
//! with its own writer routes the next frozen queue to its blocks. Changes that only need log pieces, which are
//! nearly all, are written at once. Changes to blocks claimed by the cleansing, or that go to leaves, follow in
//! the same version builder when the cleansing has stopped.
//!
//! ```text
//! flush N     … portion │ portion │ portion │ over
//! queue N+1      ╰ appended to blocks that are not due ╯╰ the rest, sync, publish │ portion …
//!                                                        flush N+1
//! ```
//! Edits published meanwhile and this one do not conflict, for two reasons. (1) Ids, slots and segment
//! numbers come from one place ([`crate::storage::data_file`]). (2) A block's key range does
//! not shrink as long as it is not rewritten, and grows only by that of a neighbour that is given up; cleansing
//! rewrites and gives up only blocks that are due, and perhaps a neighbour. So before the
//! builder goes on, it is enough to check that all blocks that got log pieces are still as they were, and
//! that no skipped change now belongs to one of them. If the check fails, the builder is dropped and the
//! flush starts over.
//!
//! Invariants:
//! 1. Work done ahead is invisible, and nothing that it writes gets in the way of others, until the flush of
//!    its queue publishes it.
//! 2. Only one queue is appended ahead at a time, and only one of which nothing is in the trees yet.

#[cfg(test)]
mod tests;

use super::Flusher;
use crate::current_state::Frozen;
use crate::error::Result;
use crate::flow::memory::Reservation;
use crate::health::Panicked;
use crate::operation::OperationRef;
use crate::opq::Opq;
use crate::storage::writer::Writer;
use crate::tree::cleansing_cursor::{CleansingCursor, CleansingTask, CursorPosition};
use crate::tree::route::deferred::{DeferredRanges, KeyInterval};
use crate::tree::route::{Budget, Grounds, Routed, route};
use crate::tree::sample::Sample;
use crate::tree::view::{Block, TreeView};
use crate::version::Version;
use crate::version::builder::VersionBuilder;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Chunks of changes that are routed with the same version (count). While a version is held, it keeps in memory
/// what others replace meanwhile: a good part of the mapping table with each portion.
const CHUNKS: usize = 1;

/// Number of changes after which the thread checks whether to give up: rare enough to cost nothing beside them.
const LOOKS: u64 = 1024;

/// See the module documentation.
pub(crate) struct Ahead {
    pub frozen: Arc<Frozen>,
    pub builder: VersionBuilder<'static>,
    /// The parts of the queue that were skipped and must still be routed.
    pub passed: Vec<KeyInterval>,
    pub sample: Sample,
    /// Changes in log pieces, the bytes of their keys and values, and the number of blocks that got some.
    pub changes: u64,
    pub bytes: u64,
    pub appended: u64,
    /// For when the builder is dropped: the flush then visits the same blocks.
    pub cursor_before: CursorPosition,
    /// The memory reserved for it.
    pub work: Reservation,
}

impl Flusher {
    /// Routes the next frozen queue, beside a flush that still has the blocks `left` to cleanse. Returns `None`
    /// if it is better done later. If the reason is lack of space, the flush will find out itself.
    pub fn append_ahead(
        &self,
        cursor: &mut CleansingCursor,
        left: &[CleansingTask],
        writer: Writer,
    ) -> Result<Option<Ahead>> {
        let state = self.ctx.state.load();
        let (frozen, base) = (state.frozen.clone(), Arc::clone(&state.version));
        drop(state);
        // What lies in removed ranges is removed first.
        let frozen = frozen.filter(|frozen| frozen.queue.range_removals().is_empty());
        let is_short = self.ctx.flush.low_space.limit() != u64::MAX || self.ctx.flush.low_space.is_careful();
        let Some(frozen) = frozen.filter(|frozen| frozen.is_whole() && !is_short) else {
            return Ok(None);
        };
        // A queue that needs several portions must go to the trees in order; no part of it may come before the
        // rest.
        if self.in_portions.load(Relaxed) {
            return Ok(None);
        }
        let _panicked = Panicked::watch(&self.ctx.health, "appending ahead");
        let before = cursor.position();
        self.begin_cursor(cursor, &frozen);
        let cursor_before = cursor.position();
        match self.route_ahead(cursor, left, writer, base, frozen, cursor_before) {
            Ok(Some(ahead)) => Ok(Some(ahead)),
            failed => {
                cursor.back_to(before);
                match failed {
                    Err(error) if !error.is_disk_full() => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    fn route_ahead(
        &self,
        cursor: &mut CleansingCursor,
        left: &[CleansingTask],
        writer: Writer,
        base: Arc<Version>,
        frozen: Arc<Frozen>,
        cursor_before: CursorPosition,
    ) -> Result<Option<Ahead>> {
        let mut deferred = DeferredRanges::default();
        for CleansingTask { keyspace, low, .. } in left {
            let view = TreeView { pager: &self.ctx.pager, version: &base, keyspace: *keyspace };
            deferred.claimed.extend(view.block_at(low)?.map(|Block { id, .. }| id));
        }
        // Nothing is held back for leaves, so no memory is needed for that.
        let work = self.ctx.memory.work(self.ctx.memory.shares.work(0, 10 * frozen.queue.bytes()));
        let mut sample = Sample::default();
        frozen.queue.fold_operands(&|keyspace| base.merging(keyspace));
        let mut builder = VersionBuilder::begin(base, &self.ctx.pager, Box::new(writer));
        let (mut changes, mut bytes, mut appended) = (0, 0, 0);
        let (mut seen, is_given_up) = (0, Cell::new(false));
        let goes_on = |_: &OperationRef<'_>| {
            seen += 1;
            let looks = seen % LOOKS == 0;
            is_given_up.set(looks && (self.ctx.flush.stops() || self.ctx.health.check_writable().is_err()));
            !is_given_up.get()
        };
        let mut rest = frozen.queue.newest(None).take_while(goes_on).peekable();
        while let Some(keyspace) = rest.peek().map(|next| next.keyspace) {
            if !builder.base().trees.contains(&keyspace) {
                // It was dropped.
                while rest.next_if(|next| next.keyspace == keyspace).is_some() {}
                continue;
            }
            let limits = Budget {
                rewrite: u64::MAX,
                write: u64::MAX,
                hold: self.ctx.memory.shares.hold,
                nodes: self.ctx.nodes_max() as usize,
            };
            deferred.chunks = CHUNKS;
            let grounds = Grounds {
                cursor,
                sample: &mut sample,
                fresh: self.tuning.lock().fresh_of(keyspace),
                leaf_len: self.ctx.memory.shares.node_len.leaf,
                ahead: Some(&mut deferred),
            };
            let Routed { left, changes: count, bytes: len, appended: blocks, is_tail, .. } =
                route(&mut builder, keyspace, &mut rest, grounds, limits)?;
            changes += count;
            bytes += len;
            appended += blocks;
            if is_tail {
                while rest.next_if(|next| next.keyspace == keyspace).is_some() {}
            }
            let has_more = rest.peek().is_some_and(|next| next.keyspace == keyspace);
            // It does not fit into one edit.
            if left.is_some() || (has_more && deferred.chunks > 0) {
                return Ok(None);
            }
            builder.go_on_at(self.ctx.state.version());
        }
        drop(rest);
        if is_given_up.get() {
            return Ok(None);
        }
        // Done now, so that no thread has to wait for it when everything else is ready.
        self.commits.begin_log(frozen.wal_low)?;
        let passed = deferred.passed;
        Ok(Some(Ahead { frozen, builder, passed, sample, changes, bytes, appended, cursor_before, work }))
    }
}

impl Ahead {
    /// Whether the builder still fits this version, and the skipped changes go to other blocks.
    pub fn still_fits(&self, version: &Version) -> Result<bool> {
        Ok(self.builder.still_fits(version) && goes_elsewhere(&self.builder, &self.passed, version)?)
    }
}

/// Whether all skipped changes go to blocks that the builder has not appended to.
pub(crate) fn goes_elsewhere(
    builder: &VersionBuilder<'_>,
    passed: &[KeyInterval],
    version: &Version,
) -> Result<bool> {
    for KeyInterval { from: (keyspace, from), to } in passed {
        let view = TreeView { pager: builder.pager(), version, keyspace: *keyspace };
        let mut next = Some(from.clone());
        while let Some(low) = next.take()
            && let Some(Block { id, fence }) = view.block_at(&low)?
        {
            if builder.has_appended_to(id) {
                return Ok(false);
            }
            next = fence.filter(|fence| to.as_ref().is_none_or(|to| (*keyspace, fence) < (to.0, &to.1)));
        }
    }
    Ok(true)
}

/// The newest version of each key in these parts of a queue.
pub(super) fn changes_in<'q>(
    queue: &'q Opq,
    parts: Vec<KeyInterval>,
) -> impl Iterator<Item = OperationRef<'q>> {
    let follow = |parts: &[KeyInterval]| parts[0].to.as_ref().is_some_and(|to| *to <= parts[1].from);
    debug_assert!(parts.windows(2).all(follow), "no key comes twice: {parts:?}");
    let mut parts = parts.into_iter().map(|KeyInterval { from, to }| (queue.newest(Some(from)), to));
    let mut part = parts.next();
    std::iter::from_fn(move || {
        loop {
            let (changes, to) = part.as_mut()?;
            let is_within = |next: &OperationRef<'_>| {
                to.as_ref().is_none_or(|to| (next.keyspace, next.key) < (to.0, &to.1[..]))
            };
            if let Some(next) = changes.next().filter(is_within) {
                return Some(next);
            }
            part = parts.next();
        }
    })
}
