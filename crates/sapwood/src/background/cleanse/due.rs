//! Cleanses blocks that are due, portion by portion. [`crate::background::pick`] says when the next portion of a flush's
//! blocks comes.
//!
//! While there are hardly any writes, this takes its time: the next flush is far away, and readers, if any, use the
//! device too.
//!
//! Invariants:
//! 1. A portion is an edit of its own, so a thread that waits for this waits for at most one.
//! 2. What reads ahead of the cleansing has ended when the [`DueBlocks`] are dropped.

use super::Cleanser;
use crate::background::garbage_collection::GcUrgency;
use crate::background::pacing::rest_after;
use crate::background::portions::{PORTION, WITH_LOG};
use crate::cache::prefetch_buffer::OpenBuffer;
use crate::error::Result;
use crate::flow::memory::{Need, Reservation};
use crate::log_area::Charged;
use crate::log_area::read_cost::price;
use crate::pool::Task;
use crate::publish::TreesChange;
use crate::storage::writer::Writer;
use crate::tree::candidates::Logged;
use crate::tree::cleanse::to_leaves;
use crate::tree::cleansing_cursor::CleansingTask;
use crate::tree::cleansing_prefetch::prefetch_for_cleansing;
use crate::tree::view::{Block, TreeView};
use crate::version::builder::VersionBuilder;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// While hardly any thread writes, but some read or write, rest this many times as long as a portion took before the
/// next one, so that they have four fifths of the device.
const RESTS: u32 = 4;

/// So many blocks are cleansed one by one after a portion that could not be read: about as many as it had.
const ALONE: usize = 64;

/// Blocks that are due, and how far they are cleansed.
pub(crate) struct DueBlocks<'c> {
    due: Vec<CleansingTask>,
    /// Number of blocks that are cleansed, or were stepped over.
    done: usize,
    /// Bytes that a portion may write, and may write now: less while there is little space.
    most: u64,
    limit: u64,
    /// So many are cleansed one by one.
    alone: usize,
    /// Number of nodes that readers had waited for, and the newest visible operation, after the last portion.
    seen: (u64, u64),
    // Closed before its reader is waited for.
    _prefetch: Option<(OpenBuffer<'c>, Option<Task<()>>)>,
}

impl DueBlocks<'_> {
    /// The blocks that are left.
    pub fn left(&self) -> &[CleansingTask] {
        &self.due[self.done..]
    }

    /// Number of blocks that were due.
    pub fn count(&self) -> usize {
        self.due.len()
    }
}

impl Cleanser {
    /// Begins to cleanse `due`, with portions of `most` bytes, and reads ahead if a thread is free for it. The memory for
    /// that stays in `buffers`.
    pub fn begin_due(
        &self,
        due: Vec<CleansingTask>,
        most: u64,
        buffers: &mut Option<Reservation>,
    ) -> DueBlocks<'_> {
        let leaves = due.iter().map(|due| due.leaves).sum();
        self.ctx.progress.expect(leaves);
        let reads_ahead = self.ctx.pool.has_threads() && !due.is_empty();
        let prefetch = reads_ahead.then(|| {
            let buffers = buffers.get_or_insert_with(|| self.ctx.memory.work(Need::default()));
            buffers.needs(self.ctx.memory.shares.read_ahead(WITH_LOG * leaves));
            self.prefetch_due(due.clone())
        });
        DueBlocks { due, done: 0, most, limit: most, alone: 0, seen: self.seen(), _prefetch: prefetch }
    }

    fn prefetch_due(&self, due: Vec<CleansingTask>) -> (OpenBuffer<'_>, Option<Task<()>>) {
        let limit = self.ctx.memory.shares.prefetch;
        let open = self.ctx.pager.prefetch.open(limit);
        let ctx = Arc::clone(&self.ctx);
        let reader = self.ctx.pool.try_submit("reads ahead of the cleansing", move || {
            let version = || ctx.state.version();
            prefetch_for_cleansing(&ctx.pager.prefetch, &ctx.pager, &due, version, limit);
            Ok(())
        });
        (open, reader)
    }

    fn seen(&self) -> (u64, u64) {
        (self.ctx.pager.waited_for(), self.ctx.state.visible())
    }

    /// Cleanses all of `due`, until a queue is frozen or the database is closed. On return, also with an error, `due` holds
    /// the blocks that are left. Steps over those that cannot be read; the cleansing cursor finds them due again.
    pub fn cleanse_due(&self, writer: &mut Writer, due: &mut &[CleansingTask]) -> Result<()> {
        let mut buffers = None;
        let mut blocks = self.begin_due(due.to_vec(), *PORTION.end(), &mut buffers);
        let mut result = Ok(());
        while result.is_ok() && !blocks.left().is_empty() && !self.ctx.is_wanted() {
            result = self.cleanse_next(writer, &mut blocks);
        }
        *due = &due[blocks.done..];
        result
    }

    /// Cleanses the next portion, collects what is dead after it, and rests if readers use the device. After an error that
    /// a smaller portion may avoid, nothing is cleansed, and the next portion is smaller.
    pub fn cleanse_next(&self, writer: &mut Writer, due: &mut DueBlocks<'_>) -> Result<()> {
        self.ctx.health.check_writable()?;
        let began = Instant::now();
        let left = due.left();
        let tried = if due.alone > 0 { &left[..1] } else { left };
        let cleansed = self.cleanse_portion(writer, tried, due.limit).map(|left| tried.len() - left.len());
        let path = self.ctx.health.path();
        due.done += match cleansed {
            // What dies with a small portion makes room for the next.
            Err(error) if error.is_disk_full() && due.limit > *PORTION.start() => {
                self.ctx.space.reclaim_space();
                due.limit = *PORTION.start();
                return Ok(());
            }
            // All but the block that cannot be read.
            Err(error) if error.is_of_reading() && due.alone == 0 => {
                tracing::error!(%error, %path, "blocks are cleansed one by one");
                due.alone = ALONE;
                return Ok(());
            }
            Err(error) if error.is_of_reading() => {
                tracing::error!(%error, %path, "a block is not cleansed");
                1
            }
            done => done?,
        };
        due.alone = due.alone.saturating_sub(1);
        due.limit = due.limit.saturating_mul(2).min(due.most);
        if let Some(next) = due.left().first() {
            self.ctx.pager.prefetch.pass((next.keyspace, next.low.clone()));
        }
        let took = began.elapsed();
        self.collector.tidy_up(writer, GcUrgency::AtWork)?;
        let is_in_use = std::mem::replace(&mut due.seen, self.seen()) != due.seen;
        if self.ctx.pool.has_threads() && is_in_use && !due.left().is_empty() {
            self.ctx.rest_beside_readers(rest_after(RESTS, took));
        }
        Ok(())
    }

    /// Cleanses the first of the due blocks, writing at most about `limit` bytes. Returns the blocks that are
    /// left.
    pub fn cleanse_portion<'d>(
        &self,
        writer: &mut Writer,
        mut due: &'d [CleansingTask],
        limit: u64,
    ) -> Result<&'d [CleansingTask]> {
        let base = self.ctx.state.version();
        let budget = self.ctx.cleansing_portion_of(base.live_bytes(), limit);
        let report = |bytes| self.ctx.progress.wrote(bytes);
        let mut builder =
            VersionBuilder::begin(Arc::clone(&base), &self.ctx.pager, writer).reporting(&report);
        let (mut charged, mut bytes, mut count) = (Vec::new(), 0, 0);
        // The blocks of one keyspace after the other.
        while let Some(keyspace) = due.first().map(|first| first.keyspace)
            && bytes < budget
        {
            let view = TreeView { pager: &self.ctx.pager, version: &base, keyspace };
            let mut blocks: Vec<Logged> = Vec::new();
            while let Some((next, rest)) = due.split_first()
                && next.keyspace == keyspace
                && bytes < budget
            {
                due = rest;
                // The block may have been cleansed meanwhile.
                if let Some(Block { id, .. }) = view.block_at(&next.low)?
                    && let Some(area) = view.log(id)
                    && blocks.last().is_none_or(|last| last.block != id)
                {
                    bytes += next.leaves + area.bytes();
                    let price = price(next.leaves, area.bytes(), area.run_count());
                    if next.is_wanted && area.read_cost().has_reached(price) {
                        charged.push(Charged { area: Arc::clone(area), price });
                    }
                    blocks.push(Logged { block: id, area: Arc::clone(area) });
                }
            }
            count += blocks.len() as u64;
            if !blocks.is_empty() {
                to_leaves(view, &mut builder, blocks, self.ctx.memory.shares.node_len)?;
            }
        }
        if count == 0 {
            return Ok(due);
        }
        self.ctx.publisher.commit_version(builder, TreesChange::Same)?;
        self.ctx.flush.counters.blocks_cleansed.fetch_add(count, Relaxed);
        self.ctx.flush.counters.cleansed_for_scans(&self.ctx.pager.read_costs, &charged);
        self.ctx.flush.counters.portions.fetch_add(1, Relaxed);
        Ok(due)
    }
}
