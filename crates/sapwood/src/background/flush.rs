//! The flush: applies the frozen operation queue to the trees, portion by portion, each as an edit of its own;
//! then keeps the space within its target. One thread flushes at a time: the flush thread, or the thread whose
//! commit made the flush due.
//!
//! ```text
//! idle ──freeze──▶ begin_flush: ( attempt: route, bupdate ─▶ sync data ─▶ publish ─▶ collect )+ ─▶ log removed ─▶ steps ─▶ end_flush ─▶ idle
//!                       │            batches.rs                                        commit/queue_log.rs     │
//!                       │                                    run.rs: cleanse a portion of what is due, or append the next queue ahead
//!                       │ disk full: give space back, tell waiting writers, try again later
//!                       └ any other error in applying the queue, or in writing: poison
//! ```
//! This module begins and ends a flush; [`crate::background::pick`] says which step comes between, and [`run`] does it.
//! [`batches`] applies a queue to the trees, and [`leaves_ahead`] reads for it what many small trees have. [`append_ahead`] applies part of the next queue beside the end of a flush;
//! [`carry_over`] holds what is kept for it. [`event`] reports each flush as a trace event. [`crate::commit::queue_log`] has the queue's log, [`crate::commit::waiting`] the threads that
//! wait, [`crate::flow::flush_control`] what they share with the flush, [`crate::flow::low_space`] how a full disk is met.

mod append_ahead;
mod batches;
mod carry_over;
mod event;
mod leaves_ahead;
mod run;

#[cfg(test)]
pub(crate) use append_ahead::Ahead;
#[cfg(test)]
pub(crate) use append_ahead::goes_elsewhere;
pub(crate) use carry_over::CarryOver;
pub(crate) use run::FlushRun;

use crate::background::cleanse::Cleanser;
use crate::background::collect::Collector;
use crate::background::context::WorkContext;
use crate::background::garbage_collection::GcUrgency;
use crate::background::pick::{FlushStep, pick_in_flush};
use crate::background::portions::WITH_LOG;
use crate::commit::CommitPipeline;
use crate::current_state::Frozen;
use crate::error::{Error, Result};
use crate::flow::flush_control::FlushInCaller;
use crate::flow::log_area_tuning::{LogAreaTuning, new_max};
use crate::flow::memory::Need;
use crate::latency::Timed;
use crate::lock_order::{RankedMutex, rank};
use crate::log_area::Lengths;
use crate::operation::{OperationRef, SeqNo};
use crate::opq::Opq;
use crate::pool::Task;
use crate::spans::span;
use crate::tree::cleanse::ON_THE_WAY;
use crate::tree::cleansing_cursor::{CleansingCursor, LogBytes};
use crate::tree_writer::WriterAtWork;
use batches::SyncLog;
use event::FlushEvent;
use run::{Applied, NextQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// See the module documentation.
pub(crate) struct Flusher {
    pub ctx: Arc<WorkContext>,
    pub commits: Arc<CommitPipeline>,
    pub collector: Arc<Collector>,
    pub cleanser: Arc<Cleanser>,
    /// Which blocks are cleansed next, and when.
    cursor: RankedMutex<rank::CleansingCursor, CleansingCursor>,
    /// How long log areas become.
    tuning: RankedMutex<rank::Tuning, LogAreaTuning>,
    /// Whether the last flush had several portions. Then the next one is expected to as well.
    in_portions: AtomicBool,
}

impl FlushInCaller for Flusher {
    fn flush_now(self: Arc<Self>) -> Result<()> {
        self.flush_to_the_end(&mut CarryOver::default())
    }
}

impl Flusher {
    pub fn new(
        (ctx, commits): (Arc<WorkContext>, Arc<CommitPipeline>),
        (cleanser, collector): (Arc<Cleanser>, Arc<Collector>),
    ) -> Self {
        Self {
            ctx,
            commits,
            collector,
            cleanser,
            cursor: RankedMutex::default(),
            tuning: RankedMutex::default(),
            in_portions: AtomicBool::new(false),
        }
    }

    #[cfg(test)]
    pub fn tuning_for_test(&self) -> &RankedMutex<rank::Tuning, LogAreaTuning> {
        &self.tuning
    }

    /// Flushes the frozen queue, if there is one, in this thread, and cleanses what is due.
    pub fn flush_to_the_end(self: &Arc<Self>, carry_over: &mut CarryOver) -> Result<()> {
        let mut run = self.begin_flush(carry_over)?;
        loop {
            let step = pick_in_flush(&self.look(&run));
            if !self.takes_step(step, &mut run) {
                return self.end_flush(run, carry_over);
            }
        }
    }

    /// Does a step of a flush; false if it is to end.
    pub fn takes_step(self: &Arc<Self>, step: FlushStep, run: &mut FlushRun<'_>) -> bool {
        match step {
            FlushStep::AppendAhead => self.append_next(run),
            FlushStep::CleanseDue => self.cleanse_some(run),
            FlushStep::End => return false,
        }
        true
    }

    /// Applies the frozen queue, if there is one, to the trees. Uses what the previous flush has left in `carry_over`, if it
    /// is still valid. A failure is that of [`Flusher::end_flush`].
    ///
    /// # Errors
    /// [`Error::Closed`], and nothing has begun.
    pub fn begin_flush<'f>(self: &'f Arc<Self>, carry_over: &mut CarryOver) -> Result<FlushRun<'f>> {
        let mut at_work = self.ctx.writer.lock(Need::default())?;
        self.ctx.flush.begin();
        let has_removals =
            self.ctx.state.load().frozen.as_ref().is_some_and(|frozen| frozen.queue.removals() > 0);
        let mut reserve = self.ctx.space.reserve.user();
        let apply = |at_work: &mut WriterAtWork<'f>, carry_over: &mut CarryOver| {
            self.ctx.health.check_writable().and_then(|()| self.apply_frozen(at_work, carry_over))
        };
        let mut applied = apply(&mut at_work, carry_over);
        let mut is_collected = false;
        while applied.as_ref().is_err_and(Error::is_disk_full) {
            self.ctx.space.reclaim_space();
            self.ctx.flush.low_space.failed(self.ctx.state.load().active.fill());
            if !reserve.gets_space() {
                // The last resort: what is dead in segments that are still in use.
                if std::mem::replace(&mut is_collected, true) {
                    break;
                }
                match at_work.get().and_then(|writer| self.collector.tidy_up(writer, GcUrgency::AtRest)) {
                    Err(error) if !error.is_disk_full() => {
                        applied = Err(error);
                        break;
                    }
                    _ => self.ctx.space.reclaim_space(),
                }
            }
            applied = apply(&mut at_work, carry_over);
        }
        let mut run = FlushRun {
            result: Ok(()),
            cleansing: None,
            next: NextQueue::NotBegun,
            reserve,
            has_removals,
            at_work,
        };
        match applied {
            Ok(None) => {}
            Ok(Some(applied)) => self.begin_cleansing(&mut run, applied, carry_over),
            Err(error) => run.result = Err(error),
        }
        Ok(run)
    }

    /// Applies the frozen queue to the trees, and gives its log and its memory back. `None` if there is none.
    fn apply_frozen(
        self: &Arc<Self>,
        at_work: &mut WriterAtWork<'_>,
        carry_over: &mut CarryOver,
    ) -> Result<Option<Applied>> {
        let of_this = carry_over.ahead.take();
        let Some(frozen) = self.ctx.state.load().frozen.clone() else { return Ok(None) };
        span!("flush", bytes = frozen.queue.bytes());
        let began = self.ctx.pager.latencies.begin(Timed::Flush);
        let of_this = of_this.filter(|ahead| Arc::ptr_eq(&ahead.frozen, &frozen));
        self.ctx.space.slots.begin_round();
        let mut event = FlushEvent::begin(&self.ctx);
        let mut cursor = self.cursor.lock();
        let lengths =
            if of_this.is_some() { cursor.lengths() } else { self.begin_cursor(&mut cursor, &frozen) };
        // No version is held beyond this: what a portion frees is for the next one.
        frozen.queue.fold_operands(&|keyspace| self.ctx.state.load().version.merging(keyspace));
        let wal_low = frozen.wal_low;
        self.ctx.progress.begin(self.newest_bytes(&frozen) + cursor.expected());
        self.ctx.progress.wrote(of_this.as_ref().map_or(0, |ahead| ahead.builder.bytes()));
        let before = self.ctx.flush.counters.change_bytes.load(Relaxed);
        let is_whole = frozen.is_whole();
        // Beside the first portion, if more will follow, or the next durable commit would wait for it.
        let is_early = || self.in_portions.load(Relaxed) || self.commits.has_durable_commits(wal_low);
        let sync_log = if self.ctx.pool.has_threads() && is_early() {
            SyncLog::Begun(self.begin(move |flusher| flusher.commits.sync_log_below(wal_low)))
        } else {
            SyncLog::IfNeeded
        };
        let begun = self.begin(move |flusher| flusher.commits.begin_log(wal_low));
        let queue = Arc::clone(&frozen.queue);
        let renewed = self.begin(move |flusher| flusher.renew_records(&queue));
        let is_ready = Box::new(move || begun.wait().and_then(|()| renewed.wait()));
        self.flush_portions(at_work, &frozen, of_this, &mut cursor, sync_log, is_ready)?;
        self.ctx.flush.counters.flushes.fetch_add(1, Relaxed);
        let newest = (self.ctx.flush.counters.change_bytes.load(Relaxed) - before) * 1000;
        let newest = newest.checked_div(frozen.queue.bytes()).unwrap_or(1000).clamp(1, 1000);
        if is_whole {
            self.tuning.lock().note_newest(newest);
        }
        event.in_trees();
        self.ctx.pager.latencies.end(Timed::Flush, began);
        let queue = Arc::downgrade(&frozen.queue);
        drop(frozen);
        self.ctx.memory.balance_without(queue);
        // Wake the threads that waited for the queue before the log is removed: on a busy disk, writing its
        // pages may take long.
        self.ctx.flush.notify();
        self.commits.shorten_log(wal_low);
        Ok(Some(Applied { due: cursor.take_due(), lengths, event }))
    }

    /// Ends a flush: waits for the append-ahead of the next queue, whose result goes to `carry_over`, gives the reserve back,
    /// and tells the threads that wait.
    ///
    /// # Errors
    /// The flush's first failure. A full disk is tried again later; any other poisons the database.
    pub fn end_flush(self: &Arc<Self>, run: FlushRun<'_>, carry_over: &mut CarryOver) -> Result<()> {
        let FlushRun { mut result, cleansing, next, reserve, has_removals, mut at_work } = run;
        if let Some(cleansing) = cleansing {
            result = self.end_cleansing(result, cleansing, next, carry_over);
        }
        drop(reserve);
        self.ctx.space.restore_reserve();
        // There is no thread to do it later.
        while result.is_ok() && !self.ctx.pool.has_threads() && self.ctx.has_dropped_trees() {
            let taken = || at_work.get().and_then(|writer| self.ctx.take_some_apart(writer));
            match self.ctx.space.with_reserve(taken) {
                // The next flush tries again, or `compact`.
                Err(error) if error.is_disk_full() => break,
                taken => result = taken,
            }
        }
        if has_removals && result.is_ok() {
            result = self.cleanser.cleanse_for_reserve(&mut at_work);
        }
        self.ctx.progress.end();
        match &result {
            Err(error) if error.is_disk_full() => {
                self.ctx.space.reclaim_space();
                self.ctx.flush.low_space.failed(self.ctx.state.load().active.fill());
            }
            // Even if it only could not be read: without this flush there is no next.
            Err(error) => self.ctx.health.poison(error),
            Ok(()) => {}
        }
        self.ctx.flush.end(result.as_ref().err());
        drop(at_work);
        self.ctx.flush.notify();
        result
    }

    /// Begins work beside the first portion; without a free thread it is done when it is waited for.
    fn begin(self: &Arc<Self>, work: impl FnOnce(&Self) -> Result<()> + Send + 'static) -> Task<()> {
        let flusher = Arc::clone(self);
        self.ctx.pool.submit("the flush", move || work(&flusher))
    }

    /// Estimates how many bytes of a queue come to the trees: only the newest version of each key does.
    fn newest_bytes(&self, frozen: &Frozen) -> u64 {
        frozen.queue.bytes() / 1000 * self.tuning.lock().newest()
    }

    /// Starts the next round of the cleansing cursor, for this queue. Returns the target lengths of log areas.
    fn begin_cursor(&self, cursor: &mut CleansingCursor, frozen: &Frozen) -> Lengths {
        let bytes = self.newest_bytes(frozen);
        let read_cost = self.ctx.pager.read_costs.outstanding();
        let new_max = new_max(&self.ctx.state.load().version, self.ctx.memory.shares.memory);
        let mut tuning = self.tuning.lock();
        let lengths = *frozen.lengths.get_or_init(|| tuning.lengths(bytes, read_cost, new_max));
        cursor.begin(LogBytes { bytes, fresh: bytes / 100 * tuning.fresh(), removed: 0 }, lengths);
        lengths
    }

    /// Memory needed to apply a queue of `bytes` to the trees. A block that overflows its log area has got at
    /// most as many bytes from this queue as from all earlier ones, or the last flush would have found it due.
    /// Densely changed leaves are several times as long as their changes.
    fn flushing(&self, bytes: u64) -> Need {
        self.ctx.memory.shares.work(2 * bytes, 10 * bytes)
    }

    /// Memory needed after a flush that found `leaves` bytes of leaves due, for cleansing and for the
    /// collector. Logs have less than four times the bytes of their leaves ([`WITH_LOG`]).
    fn tidying(&self, leaves: u64) -> Need {
        let written =
            if self.collector.has_to_collect(GcUrgency::AtWork) { u64::MAX } else { WITH_LOG * leaves };
        self.ctx.memory.shares.work(leaves.min(ON_THE_WAY), written)
    }

    /// Updates the record cache with everything that comes to the trees, before readers look for it there.
    fn renew_records(&self, queue: &Opq) -> Result<()> {
        let records = self.ctx.pager.cache.records();
        records.note_flush();
        if records.is_used() {
            // First, since records that were inserted again later are renewed.
            let removals = queue.range_removals();
            if !removals.is_empty() {
                records.remove_all(|keyspace, key| removals.newest(keyspace, key, SeqNo::MAX).is_some());
            }
            let version = self.ctx.state.version();
            for (OperationRef { keyspace, key, value }, is_asked) in queue.newest_and_asked(None) {
                // Nothing of it is remembered.
                if version.merging_of(keyspace).is_some() {
                    continue;
                }
                records.renew(keyspace, key, value, is_asked);
            }
        }
        Ok(())
    }
}
