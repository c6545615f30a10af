//! A flush that has begun, until it ends: its queue is in the trees, or it has failed. Meanwhile the blocks that it found due
//! are cleansed, and the next queue is appended ahead. [`crate::background::pick`] says which of the steps comes next.
//!
//! Invariants:
//! 1. The flush has the writer from its beginning to its end. What is appended ahead beside it has a writer of its own.
//! 2. The first failure ends the flush. A full disk while cleansing is none: the queue is in the trees, and the rest can
//!    wait.

use super::Flusher;
use super::append_ahead::Ahead;
use super::carry_over::CarryOver;
use super::event::FlushEvent;
use crate::background::cleanse::DueBlocks;
use crate::background::garbage_collection::GcUrgency;
use crate::background::pick::{AppendAhead, FlushLoad};
use crate::background::portions::DUE_MAX;
use crate::error::Result;
use crate::log_area::Lengths;
use crate::pool::Task;
use crate::space::ReserveUser;
use crate::spans::span;
use crate::tree::cleansing_cursor::CleansingTask;
use crate::tree_writer::WriterAtWork;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module documentation.
pub(crate) struct FlushRun<'f> {
    pub(super) result: Result<()>,
    /// `None` if no queue came to the trees.
    pub(super) cleansing: Option<Cleansing<'f>>,
    pub(super) next: NextQueue,
    pub(super) reserve: ReserveUser<'f>,
    pub(super) has_removals: bool,
    // Dropped last.
    pub(super) at_work: WriterAtWork<'f>,
}

/// A queue that has come to the trees.
pub(super) struct Applied {
    pub due: Vec<CleansingTask>,
    pub lengths: Lengths,
    pub event: FlushEvent,
}

/// The cleansing of the blocks that a flush found due.
pub(super) struct Cleansing<'f> {
    pub blocks: DueBlocks<'f>,
    /// Whether the disk was full, so the rest is left to the next flush.
    pub is_given_up: bool,
    pub lengths: Lengths,
    pub event: FlushEvent,
}

/// The next queue, while this one's blocks are cleansed.
pub(super) enum NextQueue {
    NotBegun,
    Begun(Task<Option<Ahead>>),
    /// No thread is free to append it ahead.
    Refused,
}

impl Flusher {
    /// What there is to do before the flush can end.
    pub fn look(&self, run: &FlushRun<'_>) -> FlushLoad {
        FlushLoad {
            is_over: run.result.is_err() || self.ctx.flush.stops(),
            has_due: run
                .cleansing
                .as_ref()
                .is_some_and(|cleansing| !cleansing.is_given_up && !cleansing.blocks.left().is_empty()),
            has_next: self.ctx.state.load().frozen.is_some(),
            append_ahead: match &run.next {
                NextQueue::NotBegun => AppendAhead::NotBegun,
                NextQueue::Begun(task) if !task.has_ended() => AppendAhead::Running,
                NextQueue::Begun(_) | NextQueue::Refused => AppendAhead::Over,
            },
        }
    }

    /// The queue is in the trees: what is dead is collected, and what is due is read ahead.
    pub(super) fn begin_cleansing<'f>(
        self: &'f Arc<Self>,
        run: &mut FlushRun<'f>,
        Applied { due, lengths, event }: Applied,
        carry_over: &mut CarryOver,
    ) {
        let tidied = run.at_work.parts().and_then(|(writer, work)| {
            work.needs(self.tidying(due.iter().map(|due| due.leaves).sum()));
            self.collector.tidy_up(writer, GcUrgency::AtWork)
        });
        let blocks = self.cleanser.begin_due(due, DUE_MAX, &mut carry_over.buffers);
        run.cleansing = Some(Cleansing { blocks, is_given_up: false, lengths, event });
        self.note(run, tidied);
    }

    /// Begins to append the next queue ahead, if a thread is free for it.
    pub fn append_next(self: &Arc<Self>, run: &mut FlushRun<'_>) {
        let (Some(cleansing), Ok(writer)) = (&run.cleansing, run.at_work.get()) else { return };
        let (flusher, left, writer) = (Arc::clone(self), cleansing.blocks.left().to_vec(), writer.beside());
        let work = move || flusher.append_ahead(&mut flusher.cursor.lock(), &left, writer);
        let begun = self.ctx.pool.try_submit("the next queue's changes", work);
        run.next = begun.map_or(NextQueue::Refused, NextQueue::Begun);
    }

    /// Cleanses the next portion of the blocks that are due.
    pub fn cleanse_some(&self, run: &mut FlushRun<'_>) {
        let Some(cleansing) = &mut run.cleansing else { return };
        span!("cleanse");
        let blocks = &mut cleansing.blocks;
        let cleansed = run.at_work.get().and_then(|writer| self.cleanser.cleanse_next(writer, blocks));
        self.note(run, cleansed);
    }

    /// Notes what has become of a step.
    fn note(&self, run: &mut FlushRun<'_>, done: Result<()>) {
        match done {
            Err(error) if error.is_disk_full() => {
                self.ctx.space.reclaim_space();
                if !run.reserve.gets_space()
                    && let Some(cleansing) = &mut run.cleansing
                {
                    cleansing.is_given_up = true;
                }
            }
            Err(error) => run.result = Err(error),
            Ok(()) => {}
        }
    }

    /// Waits for the next queue, leaves what is still due to the next flush, and learns from this one.
    pub(super) fn end_cleansing(
        &self,
        cleansed: Result<()>,
        Cleansing { blocks, is_given_up, lengths, event }: Cleansing<'_>,
        next: NextQueue,
        carry_over: &mut CarryOver,
    ) -> Result<()> {
        let began = Instant::now();
        let (ahead, waited) = match next {
            NextQueue::Begun(task) => (task.wait(), began.elapsed()),
            NextQueue::NotBegun | NextQueue::Refused => (Ok(None), Duration::ZERO),
        };
        let (count, undone) = (blocks.count(), blocks.left().len());
        self.cursor.lock().leave(blocks.left());
        // Ends the reads ahead.
        drop(blocks);
        cleansed?;
        if is_given_up {
            self.ctx.flush.low_space.eased();
        } else {
            self.ctx.flush.low_space.over();
        }
        carry_over.ahead = match ahead {
            // The next flush will find out itself.
            Err(error) if error.is_of_reading() => None,
            ahead => ahead?,
        };
        event.end(&self.ctx, lengths, count, undone);
        // Readers that held the queue when it came to the trees may be done by now.
        self.ctx.memory.recount_old_queues();
        let state = self.ctx.state.load();
        let (used, capacity) = (state.active.fill(), self.ctx.memory.queue_max(&state));
        // With a frozen queue, the bytes in the active one come on top of a full capacity.
        let used = if state.frozen.is_some() { capacity } else { used };
        self.ctx.progress.learn((used, capacity), (undone, count), waited);
        Ok(())
    }
}
