//! The background thread's work between flushes: it improves the database for readers. What is picked when stands in
//! [`crate::background::pick`]; this looks at the load, and does the jobs.
//!
//! [`crate::log_area::read_cost`] defines what a scan pays, and when that is enough: cleansing at most doubles the cost
//! of not cleansing.
//!
//! Invariant: a full queue ends all idle work, at the latest after the current portion.

#[cfg(test)]
pub(crate) mod tests;

use crate::background::cleanse::{Cleanser, Growth};
use crate::background::collect::Collector;
use crate::background::context::WorkContext;
use crate::background::garbage_collection::GcUrgency;
use crate::background::pacing::rest_after;
use crate::background::pick::{INTERVAL, Interval, Job, LONG_AGO, Load, STILL, next_interval};
use crate::background::removals;
use crate::commit::CommitPipeline;
use crate::space::GRANULES;

use crate::error::Result;
use crate::flow::memory::{Need, Reservation};
use crate::operation::SeqNo;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After a portion for scans, rest this many times as long as it took, because the readers that benefit use the device
/// too. No longer, because they pay until the work is done.
const RESTS: u32 = 2;
/// The same for the walk over grown blocks, from which no reader gains yet, while others read. At most a minute. The
/// thread is not told when reads stop, so it checks at the interval `LOOK`.
const RESTS_OF_A_WALK: u32 = 64;
const REST_OF_A_WALK_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(250);

/// What the background thread saw when it looked last.
pub(crate) struct Idle {
    /// The length of this interval, and when it began.
    length: Duration,
    began: Instant,
    /// What was seen in it, once it is over, and the last job done since.
    over: Option<Interval>,
    done: Option<Job>,
    flushed: Instant,
    /// When the thread last checked for writes, and the newest visible operation then.
    still: (Instant, SeqNo),
    /// The newest visible operation, and the reads that readers had waited for, at the end of the last interval.
    visible: SeqNo,
    misses: u64,
    growth: Growth,
}

impl Default for Idle {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            length: INTERVAL,
            began: now,
            over: None,
            done: None,
            flushed: now,
            still: (now, 0),
            visible: 0,
            misses: 0,
            growth: Growth::default(),
        }
    }
}

impl Idle {
    /// A flush has ended.
    pub fn flushed(&mut self, visible: SeqNo) {
        self.flushed = Instant::now();
        self.length = INTERVAL;
        self.still = (self.flushed, visible);
    }

    /// All is done that was to do after this interval.
    pub fn begin_interval(&mut self) {
        self.over = None;
        self.done = None;
    }
}

/// See the module documentation.
pub(crate) struct IdleWork {
    pub ctx: Arc<WorkContext>,
    pub commits: Arc<CommitPipeline>,
    pub collector: Arc<Collector>,
    pub cleanser: Arc<Cleanser>,
}

impl IdleWork {
    /// Whether memory or space is kept to give back when it is not needed for a moment.
    pub fn keeps_something(&self) -> bool {
        self.ctx.memory.spare.is_open() || self.ctx.space.keeps_space()
    }

    /// Looks at what there is to do.
    pub fn look(&self, idle: &mut Idle, has_carry_over: bool) -> Load {
        self.ctx.memory.recount_old_queues();
        self.ctx.pager.cache.look_again();
        if idle.over.is_none() && idle.began.elapsed() >= idle.length {
            self.end_interval(idle);
        }
        Load {
            is_writable: self.ctx.health.check_writable().is_ok(),
            has_frozen: self.ctx.state.load().frozen.is_some(),
            has_carry_over,
            keeps_something: self.keeps_something(),
            still: idle.still.0.elapsed(),
            interval: idle.over.clone(),
            left: idle.length.saturating_sub(idle.began.elapsed()),
            done: idle.done,
            ..Load::default()
        }
    }

    /// The interval is over: notes what was seen in it.
    fn end_interval(&self, idle: &mut Idle) {
        let (visible, misses) = (self.ctx.state.visible(), self.ctx.pager.waited_for());
        let is_quiet = std::mem::replace(&mut idle.visible, visible) == visible;
        let seen = Interval {
            is_quiet,
            missed: misses - std::mem::replace(&mut idle.misses, misses),
            is_reserve_whole: self.ctx.space.reserve.is_whole(),
            has_to_collect: is_quiet && self.collector.has_to_collect(GcUrgency::AtRest),
            has_next_manifest: is_quiet && self.ctx.publisher.has_next_manifest(),
            has_dropped_trees: self.ctx.has_dropped_trees(),
            is_much_queued: self.ctx.state.load().active.memory() >= self.ctx.shares.queue / 8,
            is_much_removed: is_quiet && removals::waits_for_space(&self.ctx.state, &self.ctx.pager),
            has_paid: self.ctx.pager.read_costs.has_listed(),
        };
        idle.length = next_interval(idle.length, &seen);
        idle.began = Instant::now();
        idle.over = Some(seen);
    }

    /// Does a job of those that are not a flush's. Errors have been recorded where they occurred; whatever refuses writes
    /// is reported to the next writer.
    pub fn run(&self, job: Job, idle: &mut Idle) {
        if job > Job::GiveBack {
            idle.done = Some(job);
        }
        let visible = idle.visible;
        let done = match job {
            Job::GiveBack => {
                self.give_back(idle);
                Ok(())
            }
            Job::RestoreReserve => {
                self.ctx.space.restore_reserve();
                Ok(())
            }
            Job::Collect => self.collect_the_rest(),
            Job::FinishManifest => self.finish_manifest(),
            Job::TakeApart => self.ctx.take_dropped_apart(|| self.ctx.is_wanted()),
            Job::Freeze => {
                self.commits.freeze_if_quiet(visible);
                Ok(())
            }
            Job::CleanseForScans => self.cleanse_for_scans(),
            Job::CleanseGrown => self.cleanse_what_grew(&mut idle.growth, visible),
            Job::InFlush(_) | Job::Flush | Job::DropCarryOver => Ok(()),
        };
        if let Err(error) = done {
            tracing::debug!(%error, ?job, path = %self.ctx.health.path(), "work between flushes was given up");
        }
    }

    /// Gives back the memory kept for the next queue; and the space, if no writes come, or the last flush is long ago.
    fn give_back(&self, idle: &mut Idle) {
        self.ctx.memory.give_back_spare(STILL);
        let visible = self.ctx.state.visible();
        let (_, before) = std::mem::replace(&mut idle.still, (Instant::now(), visible));
        if visible == before || idle.flushed.elapsed() >= LONG_AGO {
            self.give_back_space();
        }
    }

    /// What is done with memory meanwhile by work that may go on for a long time.
    fn look_after_memory(&self) {
        self.ctx.memory.recount_old_queues();
        self.ctx.pager.cache.look_again();
        self.ctx.memory.give_back_spare(STILL);
    }

    /// Gives back the space kept for the next flush, until a queue is frozen. Compaction and ingestion need it
    /// all the time.
    pub fn give_back_space(&self) {
        self.ctx.space.reserve.shrink();
        while self.ctx.space.keeps_space()
            && !self.ctx.is_wanted()
            && !self.ctx.memory.works()
            && self.ctx.space.reclaim_some(self.ctx.space.granules_to_keep(true), GRANULES) > 0
        {}
        self.ctx.space.cut_data();
    }

    /// Collects garbage that flushes left behind because writers were pressed, portion by portion. It does not rest beside
    /// readers: they would wait longer for what is done for them next.
    fn collect_the_rest(&self) -> Result<()> {
        let (mut work, mut most, mut has_more) = (None, u64::MAX, true);
        while has_more && self.collector.has_to_collect(GcUrgency::AtRest) && !self.ctx.is_wanted() {
            work.get_or_insert_with(|| self.ctx.memory.work(self.collector.collecting_max()));
            let mut guard = self.ctx.writer.lock(Need::default())?;
            has_more = self
                .ctx
                .or_poison(|| self.collector.collect_some(guard.get()?, GcUrgency::AtRest, &mut most))?;
            drop(guard);
            self.look_after_memory();
        }
        Ok(())
    }

    /// Cleanses log areas that became long while the database grew, until a write comes.
    fn cleanse_what_grew(&self, growth: &mut Growth, visible: SeqNo) -> Result<()> {
        let mut work = None;
        while self.ctx.state.visible() == visible && !self.ctx.is_wanted() {
            let read = self.ctx.pager.waited_for();
            if !self.cleanser.cleanse_grown(growth, &mut work)? {
                break;
            }
            let rest = (RESTS_OF_A_WALK * growth.took()).min(REST_OF_A_WALK_MAX);
            self.rest_from_a_walk(Instant::now() + rest, read, visible, &mut work)?;
        }
        Ok(())
    }

    /// Rests until `until` while there are reads (`read`: the reads counted so far), and ends early when reads
    /// stop or a write comes. The memory of `work` goes back to the readers meanwhile, since the thread rests
    /// most of the time.
    fn rest_from_a_walk(
        &self,
        until: Instant,
        mut read: u64,
        visible: SeqNo,
        work: &mut Option<Reservation>,
    ) -> Result<()> {
        loop {
            self.cleanse_for_scans()?;
            self.look_after_memory();
            let before = std::mem::replace(&mut read, self.ctx.pager.waited_for());
            if read == before {
                return Ok(());
            }
            *work = None;
            self.give_back_space();
            // Edits made by the cleansing may have begun a new manifest.
            self.finish_manifest()?;
            let left = until.saturating_duration_since(Instant::now());
            if !self.ctx.rest_while(left.min(LOOK), || self.ctx.state.visible() == visible) || left.is_zero()
            {
                return Ok(());
            }
        }
    }

    /// Finishes the next manifest if one has been begun: until then it takes memory and space.
    fn finish_manifest(&self) -> Result<()> {
        self.ctx.or_poison(|| {
            while !self.ctx.is_wanted() && self.ctx.publisher.go_on_with_next()? {}
            Ok(())
        })
    }

    /// Cleanses the blocks that scans have paid for, including those that become paid meanwhile.
    fn cleanse_for_scans(&self) -> Result<()> {
        // Reserve memory from the first portion to the last. A cache that shrank and grew with each portion
        // would read its nodes again and again.
        let mut work = None;
        loop {
            let listed = self.ctx.pager.read_costs.take_listed();
            if listed.is_empty() {
                return Ok(());
            }
            let mut listed = listed.into_iter().peekable();
            while listed.peek().is_some() {
                if self.ctx.is_wanted() {
                    self.ctx.pager.read_costs.put_back(listed);
                    return Ok(());
                }
                work.get_or_insert_with(|| self.ctx.memory.work(self.cleanser.cleansing_max()));
                let mut guard = self.ctx.writer.lock(Need::default())?;
                let began = Instant::now();
                let cleansed = self.cleanser.cleanse_listed_or_poison(guard.get()?, &mut listed);
                drop(guard);
                if cleansed.is_err() {
                    self.ctx.pager.read_costs.put_back(listed);
                    return cleansed;
                }
                self.ctx.rest(rest_after(RESTS, began.elapsed()));
                self.look_after_memory();
            }
        }
    }
}
