//! The flush thread's work between flushes: it improves the database for readers.
//!
//! ```text
//! no flush has come for some seconds ────▶ give records their share of the cache's memory that flushes took in turn
//! the last flush is no longer just over ─▶ give back the memory of its queue, as far as the next one has not taken it
//! nobody writes, or a flush is long ago ─▶ give back the space that the next one would write to, some slots at a time
//! nobody writes ─▶ collect what flushes have left, for which writers would have waited; write the next manifest to its end
//! nobody writes ── readers miss the cache, and much waits in the queue ─▶ flush: the queue's memory becomes cache
//! nobody writes ── what was removed in the queue holds much space ─▶ flush (crate::background::removals)
//! nobody writes ── the database has grown ─▶ cleanse the blocks whose log areas have become long with it
//! scans paid the price of blocks with log pieces ─▶ merge their runs, or cleanse these blocks, whoever writes meanwhile
//! ```
//! [`crate::log_area::read_cost`] defines what a scan pays, and when that is enough: cleansing at most doubles the cost
//! of not cleansing.
//!
//! Invariant: a full queue ends all idle work, at the latest after the current portion.

#[cfg(test)]
mod tests;

use crate::background::cleanse::{Cleanser, Growth};
use crate::background::collect::Collector;
use crate::background::context::WorkContext;
use crate::background::garbage_collection::GcUrgency;
use crate::background::pacing::rest_after;
use crate::background::removals;
use crate::commit::CommitPipeline;
use crate::space::GRANULES;

use crate::error::Result;
use crate::flow::memory::{Need, Reservation};
use crate::operation::SeqNo;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval between checks: when something happens, and when nothing does.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// How long nobody may have written before space kept for the next flush is given back; also how long memory is
/// kept for the next queue.
pub(crate) const STILL: Duration = Duration::from_millis(250);
/// After this time since the last flush, space is given back even while others write: the next flush is far
/// away.
const LONG: Duration = Duration::from_secs(10);
/// This many device reads per interval make a flush worthwhile.
const MISSES: u64 = 100;
/// After a portion for scans, rest this many times as long as it took, because the readers that benefit use the device
/// too. No longer, because they pay until the work is done.
const RESTS: u32 = 2;
/// The same for the walk over grown blocks, which benefits nobody yet, while others read. At most a minute. The
/// thread is not told when reads stop, so it checks at the interval `LOOK`.
const RESTS_OF_A_WALK: u32 = 64;
const REST_OF_A_WALK_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(250);

/// What the flush thread saw at its last check.
pub(crate) struct Idle {
    pause: Duration,
    looked: Instant,
    flushed: Instant,
    /// When the thread last checked for writes, and the newest visible operation then.
    still: (Instant, SeqNo),
    visible: SeqNo,
    misses: u64,
    growth: Growth,
}

impl Default for Idle {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            pause: PAUSE,
            looked: now,
            flushed: now,
            still: (now, 0),
            visible: 0,
            misses: 0,
            growth: Growth::default(),
        }
    }
}

impl Idle {
    /// How long the thread can sleep. `keeps_something`: whether the engine keeps something to give back.
    pub fn left(&self, keeps_something: bool) -> Duration {
        let left = self.pause.saturating_sub(self.looked.elapsed());
        if keeps_something { left.min(STILL.saturating_sub(self.still.0.elapsed())) } else { left }
    }

    /// A flush has ended.
    pub fn flushed(&mut self, visible: SeqNo) {
        self.flushed = Instant::now();
        self.pause = PAUSE;
        self.still = (self.flushed, visible);
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
    /// Whether the engine keeps memory or space to give back when nobody needs it for a moment.
    pub fn keeps_something(&self) -> bool {
        self.ctx.memory.spare.is_open() || self.ctx.space.keeps_space()
    }

    /// One round of idle work, after a pause without a frozen queue. Errors have been recorded where they
    /// occurred.
    pub fn idle(&self, idle: &mut Idle) {
        self.ctx.memory.recount_old_queues();
        self.ctx.pager.cache.look_again();
        if idle.still.0.elapsed() >= STILL {
            self.ctx.memory.give_back_spare(STILL);
            let (_, before) = std::mem::replace(&mut idle.still, (Instant::now(), self.ctx.state.visible()));
            if idle.still.1 == before || idle.flushed.elapsed() >= LONG {
                self.give_back_space();
            }
        }
        if idle.looked.elapsed() < idle.pause {
            return;
        }
        idle.looked = Instant::now();
        let (visible, misses) = (self.ctx.state.visible(), self.ctx.pager.waited_for());
        let quiet = std::mem::replace(&mut idle.visible, visible) == visible;
        let missed = misses - std::mem::replace(&mut idle.misses, misses);
        idle.pause = if quiet && missed == 0 && !self.ctx.pager.read_costs.has_listed() {
            (2 * idle.pause).min(PAUSE_MAX)
        } else {
            PAUSE
        };
        if self.ctx.health.check_writable().is_err() {
            return;
        }
        self.ctx.space.restore_reserve();
        if quiet {
            let _ = self.collect_the_rest();
            let _ = self.finish_manifest();
        }
        let is_much_queued = || self.ctx.state.load().active.memory() >= self.ctx.shares.queue / 8;
        if quiet
            && ((missed >= MISSES && is_much_queued())
                || removals::waits_for_space(&self.ctx.state, &self.ctx.pager))
        {
            self.freeze_if_nobody_writes(visible);
            return;
        }
        // Whatever poisons the engine is reported to the next writer.
        let _ = self.cleanse_for_scans();
        if quiet {
            let _ = self.cleanse_what_grew(&mut idle.growth, visible);
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
    fn give_back_space(&self) {
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

    /// Cleanses log areas that became long while the database grew, until anyone writes.
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

    /// Rests until `until` while anyone reads (`read`: the reads counted so far), and ends early when reads
    /// stop or anyone writes. The memory of `work` goes back to the readers meanwhile, since the thread rests
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
            while !self.ctx.is_wanted() {
                let mut guard = self.ctx.publisher.manifest.lock();
                let Some(manifest) = guard.as_mut().filter(|manifest| manifest.has_next()) else { break };
                manifest.go_on_with_next(&self.ctx.state.load().version)?;
            }
            Ok(())
        })
    }

    fn freeze_if_nobody_writes(&self, visible: SeqNo) {
        let mut guard = self.commits.log.lock();
        let Some(log) = guard.as_mut() else { return };
        if log.is_syncing() || self.ctx.state.visible() != visible || self.ctx.state.load().frozen.is_some() {
            return;
        }
        // If this fails for lack of space, the next commit tries again.
        let _ = self.commits.freeze(log);
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
