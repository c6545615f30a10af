//! Cleanses what a flush found due, after its queue is in the trees. If the next queue is frozen meanwhile, it
//! is appended ahead on another thread.
//!
//! While there are hardly any writes, this takes its time: the next flush is far away, and readers, if any, use the
//! device too.
//!
//! Invariants:
//! 1. The next frozen queue, once it has been appended ahead as far as possible, and closing wait for at most
//!    one portion.
//! 2. Everything that was started beside the cleansing has ended when it ends.

use super::Cleanser;
use crate::background::garbage_collection::GcUrgency;
use crate::background::pacing::rest_after;
use crate::background::portions::{DUE_MAX, PORTION};
use crate::background::prefetch_memory::PrefetchMemory;
use crate::error::Result;
use crate::log_area::read_cost::price;
use crate::pool::Task;
use crate::publish::TreesChange;
use crate::storage::writer::Writer;
use crate::tree::candidates::{Logged, Paid};
use crate::tree::cleanse::to_leaves;
use crate::tree::cleansing_cursor::CleansingTask;
use crate::tree::cleansing_prefetch::prefetch_for_cleansing;
use crate::tree::view::{Block, TreeView};
use crate::version::builder::VersionBuilder;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// While hardly any thread writes, but some read or write, rest this many times as long as a portion took before the
/// next one, so that they have four fifths of the device.
const RESTS: u32 = 4;

/// So many blocks are cleansed one by one after a portion that could not be read: about as many as it had.
const ALONE: usize = 64;

/// Starts the work on the next queue, with the blocks that are left to cleanse and a writer of its own, if a thread is
/// free for it.
pub(crate) type GoesAhead<T> = fn(&[CleansingTask], Writer) -> Option<Task<T>>;

impl Cleanser {
    /// Cleanses what a flush found due, until the next queue is frozen or the database is closed. On return,
    /// also with an error, `due` holds the blocks that are left. Steps over those that cannot be read; the cleansing cursor
    /// finds them due again.
    pub fn cleanse_due(&self, writer: &mut Writer, due: &mut &[CleansingTask]) -> Result<()> {
        self.cleanse_due_beside(writer, due, &mut None, None::<GoesAhead<()>>).0
    }

    /// Like `cleanse_due`. But when the next queue is frozen, it starts `goes_ahead` with a writer of its own
    /// and the blocks left then, and continues cleansing until that ends. Returns the result of `goes_ahead`,
    /// if it was started and did not panic, and how long this thread waited for it with nothing left to
    /// cleanse. Data read ahead into `buffers` is dropped at the end; their memory stays with the owner.
    pub fn cleanse_due_beside<T: Send>(
        &self,
        writer: &mut Writer,
        due: &mut &[CleansingTask],
        buffers: &mut Option<PrefetchMemory>,
        mut goes_ahead: Option<impl FnOnce(&[CleansingTask], Writer) -> Option<Task<T>>>,
    ) -> (Result<()>, Option<(T, Duration)>) {
        // During a flush other work waits, so portions may be large. Other callers have time.
        let most = if goes_ahead.is_some() { DUE_MAX } else { *PORTION.end() };
        if !self.ctx.flush.in_background() || due.is_empty() {
            return (self.cleanse_in_turn(writer, due, most, |_, _| true), None);
        }
        let limit = self.ctx.shares.prefetch;
        let kept = buffers.get_or_insert_with(|| self.ctx.prefetch_memory());
        kept.keep_for(due.iter().map(|due| due.leaves).sum());
        let open = self.ctx.pager.prefetch.open(limit);
        // If no thread is free, nothing is read ahead.
        let (ctx, all) = (Arc::clone(&self.ctx), due.to_vec());
        let reader = self.ctx.pool.begin_if_free("reads ahead of the cleansing", move || {
            let version = || Arc::clone(&ctx.state.load().version);
            prefetch_for_cleansing(&ctx.pager.prefetch, &ctx.pager, &all, version, limit);
            Ok(())
        });
        let mut begun: Option<Task<T>> = None;
        let result = self.cleanse_in_turn(writer, due, most, |writer, left| {
            if let Some(goes_ahead) = goes_ahead.take() {
                // If no thread is free, this is done later.
                begun = goes_ahead(left, writer.beside());
            }
            begun.as_ref().is_none_or(Task::has_ended)
        });
        let began = Instant::now();
        let end = begun.and_then(|begun| begun.wait().ok());
        let waited = began.elapsed();
        drop(open);
        // Ends soon, now that there is nothing to read for. If it panicked, nothing was read ahead.
        drop(reader);
        (result, end.map(|end| (end, waited)))
    }

    /// Cleanses portion by portion. Once a queue is frozen, asks before each portion whether to stop for it.
    fn cleanse_in_turn<'d>(
        &self,
        writer: &mut Writer,
        due: &mut &'d [CleansingTask],
        most: u64,
        mut comes_first: impl FnMut(&Writer, &'d [CleansingTask]) -> bool,
    ) -> Result<()> {
        self.ctx.progress.expect(due.iter().map(|due| due.leaves).sum());
        // Per portion; less while there is little space.
        let mut limit = most;
        // So many are cleansed one by one.
        let mut alone = 0;
        let seen = || (self.ctx.pager.waited_for(), self.ctx.state.visible());
        let mut before = seen();
        while !due.is_empty()
            && !self.ctx.flush.stops()
            && (self.ctx.state.load().frozen.is_none() || !comes_first(writer, due))
        {
            self.ctx.health.check_writable()?;
            let began = Instant::now();
            let undone = *due;
            let tried = if alone > 0 { &undone[..1] } else { undone };
            let cleansed = self.cleanse_portion(writer, tried, limit).map(|left| tried.len() - left.len());
            *due = match cleansed {
                // What dies with a small portion makes room for the next.
                Err(error) if error.is_disk_full() && limit > *PORTION.start() => {
                    self.ctx.space.reclaim_space();
                    limit = *PORTION.start();
                    continue;
                }
                // All but the block that cannot be read.
                Err(error) if error.is_of_reading() && alone == 0 => {
                    tracing::error!(%error, path = %self.ctx.health.path(), "blocks are cleansed one by one");
                    alone = ALONE;
                    continue;
                }
                Err(error) if error.is_of_reading() => {
                    tracing::error!(%error, path = %self.ctx.health.path(), "a block is not cleansed");
                    &undone[1..]
                }
                done => &undone[done?..],
            };
            alone = alone.saturating_sub(1);
            limit = limit.saturating_mul(2).min(most);
            if let Some(next) = due.first() {
                self.ctx.pager.prefetch.pass((next.keyspace, next.low.clone()));
            }
            let took = began.elapsed();
            self.collector.tidy_up(writer, GcUrgency::AtWork)?;
            let is_in_use = std::mem::replace(&mut before, seen()) != before;
            if self.ctx.flush.in_background() && is_in_use && !due.is_empty() {
                self.ctx.rest_beside_readers(rest_after(RESTS, took));
            }
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
        let Some(keyspace) = due.first().map(|first| first.keyspace) else { return Ok(due) };
        let base = Arc::clone(&self.ctx.state.load().version);
        let budget = self.ctx.cleansing_portion_of(base.live_bytes(), limit);
        let view = TreeView { pager: &self.ctx.pager, version: &base, keyspace };
        let (mut blocks, mut paid): (Vec<Logged>, Vec<_>) = Default::default();
        let mut bytes = 0;
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
                    paid.push(Paid { area: Arc::clone(area), price });
                }
                blocks.push(Logged { block: id, area: Arc::clone(area) });
            }
        }
        let count = blocks.len() as u64;
        if count == 0 {
            return Ok(due);
        }
        let report = |bytes| self.ctx.progress.wrote(bytes);
        let mut builder =
            VersionBuilder::begin(Arc::clone(&base), &self.ctx.pager, writer).reporting(&report);
        to_leaves(view, &mut builder, blocks, self.ctx.shares.node_len)?;
        self.ctx.publisher.commit_version(builder, TreesChange::Same)?;
        self.ctx.flush.counters.blocks_cleansed.fetch_add(count, Relaxed);
        self.ctx.flush.counters.cleansed_for_scans(&self.ctx.pager.read_costs, &paid);
        self.ctx.flush.counters.portions.fetch_add(1, Relaxed);
        Ok(due)
    }
}
