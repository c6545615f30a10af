//! The background thread's work between flushes: it improves the database for readers. What is picked when stands in
//! [`crate::background::pick`]; this looks at the load, and does the jobs, a portion each time one is picked.
//!
//! [`crate::log_area::read_cost`] defines what a scan charges, and when that is enough: cleansing at most doubles the cost
//! of not cleansing.
//!
//! Invariant: a job decides nothing but whether there is more of it. So a full queue, which is picked first, waits for at most
//! one portion.

#[cfg(test)]
pub(crate) mod tests;

use crate::background::cleanse::{Cleanser, Growth};
use crate::background::collect::Collector;
use crate::background::context::WorkContext;
use crate::background::garbage_collection::GcUrgency;
use crate::background::pacing::rest_after;
use crate::background::pick::{Choice, INTERVAL, Interval, Job, LONG_AGO, Load, STILL, next_interval};
use crate::background::removals;
use crate::commit::CommitPipeline;
use crate::space::GRANULES;

use crate::error::Result;
use crate::flow::memory::{Need, Reservation};
use crate::operation::SeqNo;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After a portion for scans, rest this many times as long as it took, because the readers that benefit use the device
/// too. No longer, because they charge until the work is done.
const RESTS: u32 = 2;
/// The same for the walk over grown blocks, from which no reader gains yet, while others read. At most a minute. The
/// thread is not told when reads stop, so it checks at the interval `LOOK`.
const RESTS_OF_A_WALK: u32 = 64;
const REST_OF_A_WALK_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(250);

/// What the background thread saw when it looked last, and how far its jobs are.
pub(crate) struct Idle {
    /// The length of this interval, and when it began.
    length: Duration,
    began: Instant,
    /// What was seen in it, once it is over.
    over: Option<Interval>,
    flushed: Instant,
    /// When the thread last checked for writes, and the newest visible operation then.
    still: (Instant, SeqNo),
    /// The newest visible operation, and the reads that readers had waited for, at the end of the last interval.
    visible: SeqNo,
    misses: u64,
    growth: Growth,
    walk: Option<Walk>,
    /// The last job, and the memory that it has reserved: from its first portion to its last, since a cache that shrank and
    /// grew with each portion would read its nodes again and again.
    job: Option<Job>,
    work: Option<Reservation>,
    /// Bytes that the collector's next portion may write.
    collects: u64,
}

/// A walk over grown blocks that is under way; [`Growth`] has how far it is.
#[derive(Clone, Copy)]
struct Walk {
    /// The newest visible operation when it began.
    visible: SeqNo,
    /// When it goes on while there are reads.
    until: Instant,
    /// When it is checked next whether there are, and the reads counted when it was checked last.
    looks: Instant,
    read: u64,
}

impl Default for Idle {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            length: INTERVAL,
            began: now,
            over: None,
            flushed: now,
            still: (now, 0),
            visible: 0,
            misses: 0,
            growth: Growth::default(),
            walk: None,
            job: None,
            work: None,
            collects: u64::MAX,
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
    }

    /// Something was picked. Unless it is more of the last job, that job's memory goes back.
    pub fn picked(&mut self, choice: &Choice) {
        let job = match choice {
            // Between two portions of another.
            Choice::Job(Job::GiveBack) => return,
            Choice::Job(job) => Some(*job),
            _ => None,
        };
        if std::mem::replace(&mut self.job, job) != job {
            self.work = None;
            self.collects = u64::MAX;
        }
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
        self.ctx.memory.free_list.is_open() || self.ctx.space.keeps_space()
    }

    /// The same for a thread that has just looked, and has a lock that commits want: no file is read.
    pub fn keeps_something_as_known(&self) -> bool {
        self.ctx.memory.free_list.is_open() || self.ctx.space.keeps_space_as_known()
    }

    /// Looks at what there is to do.
    pub fn look(&self, idle: &mut Idle, has_carry_over: bool) -> Load {
        self.ctx.memory.recount_old_queues();
        self.ctx.pager.cache.look_again();
        if idle.over.is_none() && idle.began.elapsed() >= idle.length {
            self.end_interval(idle);
        }
        Load {
            flush: None,
            stops: self.ctx.flush.stops(),
            is_writable: self.ctx.health.check_writable().is_ok(),
            has_frozen: self.ctx.state.load().frozen.is_some(),
            has_carry_over,
            keeps_something: self.keeps_something(),
            still: idle.still.0.elapsed(),
            interval: idle.over.clone(),
            left: idle.length.saturating_sub(idle.began.elapsed()),
            walk: self.look_at_walk(&mut idle.walk),
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
            is_much_queued: self.ctx.state.load().active.memory() >= self.ctx.memory.shares.queue / 8,
            is_much_removed: is_quiet && removals::waits_for_space(&self.ctx.state, &self.ctx.pager),
            has_charged: self.ctx.pager.read_costs.has_listed(),
            done: None,
        };
        idle.length = next_interval(idle.length, &seen);
        idle.began = Instant::now();
        idle.over = Some(seen);
    }

    /// The time until the walk over grown blocks goes on, or has to be looked at again. Without reads it goes on at once, and
    /// a write ends it.
    fn look_at_walk(&self, under_way: &mut Option<Walk>) -> Option<Duration> {
        let visible = self.ctx.state.visible();
        *under_way = under_way.filter(|walk| walk.visible == visible);
        let walk = under_way.as_mut()?;
        let now = Instant::now();
        if walk.looks <= now {
            let read = self.ctx.pager.waited_for();
            if std::mem::replace(&mut walk.read, read) == read {
                walk.until = now;
            }
            walk.looks = now + LOOK;
        }
        Some(walk.until.min(walk.looks).saturating_duration_since(now))
    }

    /// Does a portion of a job of those that are not a flush's. Errors have been recorded where they occurred; whatever refuses
    /// writes is reported to the next writer.
    pub fn run(&self, job: Job, idle: &mut Idle) {
        let has_more = match job {
            Job::GiveBack => {
                self.give_back(idle);
                return;
            }
            Job::RestoreReserve => {
                self.ctx.space.restore_reserve();
                Ok(false)
            }
            Job::Collect => self.collect(idle),
            Job::FinishManifest => self.ctx.or_poison(|| self.ctx.publisher.go_on_with_next()),
            Job::TakeApart => self.take_apart(),
            Job::Freeze => {
                self.commits.freeze_if_quiet(idle.visible);
                Ok(false)
            }
            Job::CleanseForScans => self.cleanse_for_scans(idle),
            Job::CleanseGrown => self.cleanse_grown(idle),
            Job::InFlush(_) | Job::Flush | Job::DropCarryOver => Ok(false),
        };
        let has_more = has_more.unwrap_or_else(|error| {
            tracing::debug!(%error, ?job, path = %self.ctx.health.path(), "work between flushes was given up");
            false
        });
        if let Some(interval) = &mut idle.over
            && !has_more
        {
            interval.done = Some(job);
        }
    }

    /// Gives back the memory kept for the next queue; and the space, if no writes come, or the last flush is long ago.
    fn give_back(&self, idle: &mut Idle) {
        self.ctx.memory.give_back_free_list(STILL);
        let visible = self.ctx.state.visible();
        let (_, before) = std::mem::replace(&mut idle.still, (Instant::now(), visible));
        if visible == before || idle.flushed.elapsed() >= LONG_AGO {
            self.give_back_space();
        }
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

    /// Collects garbage that flushes left behind because writers were pressed. It does not rest beside readers: they would
    /// wait longer for what is done for them next.
    fn collect(&self, idle: &mut Idle) -> Result<bool> {
        if !self.collector.has_to_collect(GcUrgency::AtRest) {
            return Ok(false);
        }
        idle.work.get_or_insert_with(|| self.ctx.memory.work(self.collector.collecting_max()));
        let mut guard = self.ctx.writer.lock(Need::default())?;
        let most = &mut idle.collects;
        self.ctx.or_poison(|| self.collector.collect_some(guard.get()?, GcUrgency::AtRest, most))
    }

    /// Takes some of a dropped tree apart.
    fn take_apart(&self) -> Result<bool> {
        self.ctx.take_portion_apart()?;
        Ok(self.ctx.has_dropped_trees())
    }

    /// Cleanses blocks that scans have charged enough, and rests.
    fn cleanse_for_scans(&self, idle: &mut Idle) -> Result<bool> {
        let mut listed = self.ctx.pager.read_costs.take_listed().into_iter().peekable();
        if listed.peek().is_none() {
            return Ok(false);
        }
        idle.work.get_or_insert_with(|| self.ctx.memory.work(self.cleanser.cleansing_max()));
        let began = Instant::now();
        let cleansed = self
            .ctx
            .writer
            .lock(Need::default())
            .and_then(|mut guard| self.cleanser.cleanse_listed_or_poison(guard.get()?, &mut listed));
        self.ctx.pager.read_costs.put_back(listed);
        cleansed?;
        // Including those that were charged enough meanwhile.
        let has_more = self.ctx.pager.read_costs.has_listed();
        if has_more {
            self.ctx.rest(rest_after(RESTS, began.elapsed()));
        }
        Ok(has_more)
    }

    /// Cleanses some log areas that became long while the database grew. From then on a walk is under way, which no longer
    /// belongs to the interval.
    fn cleanse_grown(&self, idle: &mut Idle) -> Result<bool> {
        let visible = idle.walk.take().map_or(idle.visible, |walk| walk.visible);
        let read = self.ctx.pager.waited_for();
        if self.ctx.state.visible() == visible
            && self.cleanser.cleanse_grown(&mut idle.growth, &mut idle.work)?
        {
            let rest = (RESTS_OF_A_WALK * idle.growth.took()).min(REST_OF_A_WALK_MAX);
            let now = Instant::now();
            idle.walk = Some(Walk { visible, until: now + rest, looks: now, read });
        }
        Ok(false)
    }
}
