//! What the background thread does between two flushes: it makes the database better for those who read.
//!
//! ```text
//! the last flush is no longer just over ─▶ give back the memory of its queue, as far as the next one has not taken it
//! nobody writes, or a flush is long ago ─▶ give back the space that the next one would write to, some slots at a time
//! nobody writes ─▶ collect what flushes have left, for which writers would have waited; write the next manifest to its end
//! nobody writes ── readers miss the cache, and much waits in the queue ─▶ flush: the queue's memory becomes cache
//! nobody writes ── the database has grown ─▶ cleanse the blocks whose log areas have become long with it
//! scans paid the price of blocks with log pieces ─▶ merge their layers, or cleanse these blocks, whoever writes meanwhile
//! ```
//! What a block pays, and when that is enough, is in [`crate::store::rent`]: cleansing costs at most as much again as not doing it.
//!
//! Invariant: a queue that is full ends all of it, at the next portion at the latest.

#[cfg(test)]
mod tests;

use crate::budget::{Need, Work};
use crate::cleansing::Growth;
use crate::engine::Engine;
use crate::error::Result;
use crate::operation::SeqNo;
use crate::space::SLOTS;
use crate::store::garbage_collection::Patience;
use std::time::{Duration, Instant};

/// How often the thread looks, when something happens, and when nothing does.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// How long nobody is to have written before the space is given back that is kept for the next flush; and how long memory is kept for the next queue.
pub(crate) const STILL: Duration = Duration::from_millis(250);
/// How long after a flush it is given back whoever writes, since the next is far away.
const LONG: Duration = Duration::from_secs(10);
/// Reads from the device in a pause that are worth a flush.
const MISSES: u64 = 100;
/// Between two portions it rests for so many times as long as one took, since those for whom it works use the device too; no longer,
/// since until it is through they pay.
const RESTS: u32 = 2;
/// Where it works for nobody yet, and somebody reads, but no longer than a minute. It is not told when nobody reads any more, so it looks, that often.
const RESTS_OF_A_WALK: u32 = 64;
const REST_OF_A_WALK_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(250);

/// What the thread saw when it looked last.
pub(crate) struct Idle {
    pause: Duration,
    looked: Instant,
    flushed: Instant,
    /// When it looked whether anybody writes, and what was visible then.
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
    /// How long there is nothing to look for in an engine that keeps something to give back or does not.
    pub fn left(&self, keeps_something: bool) -> Duration {
        let left = self.pause.saturating_sub(self.looked.elapsed());
        if keeps_something { left.min(STILL.saturating_sub(self.still.0.elapsed())) } else { left }
    }

    /// A flush is over.
    pub fn flushed(&mut self, visible: SeqNo) {
        self.flushed = Instant::now();
        self.pause = PAUSE;
        self.still = (self.flushed, visible);
    }
}

impl Engine {
    /// Whether there is something to give back when nobody needs it for a moment.
    pub fn keeps_something(&self) -> bool {
        self.spare.is_open() || self.keeps_space()
    }

    /// After a pause in which no queue was frozen. Errors have been noted where they happened.
    pub fn idle(&self, idle: &mut Idle) {
        self.recount_old_queues();
        if idle.still.0.elapsed() >= STILL {
            self.give_back_spare(STILL);
            let (_, before) = std::mem::replace(&mut idle.still, (Instant::now(), self.visible()));
            if idle.still.1 == before || idle.flushed.elapsed() >= LONG {
                self.give_back_space();
            }
        }
        if idle.looked.elapsed() < idle.pause {
            return;
        }
        idle.looked = Instant::now();
        let (visible, misses) = (self.visible(), self.pager.waited_for());
        let quiet = std::mem::replace(&mut idle.visible, visible) == visible;
        let missed = misses - std::mem::replace(&mut idle.misses, misses);
        idle.pause = if quiet && missed == 0 && !self.pager.rents.has_listed() {
            (2 * idle.pause).min(PAUSE_MAX)
        } else {
            PAUSE
        };
        if self.check_writable().is_err() {
            return;
        }
        if quiet {
            let _ = self.collect_the_rest();
            let _ = self.finish_manifest();
        }
        if quiet && missed >= MISSES && self.state.load().active.memory() >= self.shares.queue / 8 {
            self.freeze_if_nobody_writes(visible);
            return;
        }
        // What it cannot do for an error is told to whoever writes next.
        let _ = self.cleanse_for_scans();
        if quiet {
            let _ = self.cleanse_what_grew(&mut idle.growth, visible);
        }
    }

    /// Gives back what space is kept for the next flush, until there is one. Who compacts or ingests takes it all the time.
    fn give_back_space(&self) {
        while self.keeps_space()
            && self.state.load().frozen.is_none()
            && !self.flush.stops()
            && !self.works()
            && self.reclaim_some(self.slots_to_keep(true), SLOTS) > 0
        {}
    }

    /// Collects what flushes have left because writers were pressed.
    fn collect_the_rest(&self) -> Result<()> {
        if !self.has_to_collect(Patience::AtRest) || self.state.load().frozen.is_some() || self.flush.stops()
        {
            return Ok(());
        }
        let mut guard = self.writer(self.collecting_max())?;
        self.or_poison(|| self.tidy_up(guard.get()?, Patience::AtRest))
    }

    /// Cleanses what has become long while the database grew, until somebody writes.
    fn cleanse_what_grew(&self, growth: &mut Growth, visible: SeqNo) -> Result<()> {
        let mut work = None;
        let is_wanted = || self.state.load().frozen.is_some() || self.flush.stops();
        while self.visible() == visible && !is_wanted() {
            let read = self.pager.waited_for();
            if !self.cleanse_grown(growth, &mut work)? {
                break;
            }
            let rest = (RESTS_OF_A_WALK * growth.took()).min(REST_OF_A_WALK_MAX);
            self.rest_from_a_walk(Instant::now() + rest, read, visible, &mut work)?;
        }
        Ok(())
    }

    /// Rests until then if somebody reads, and has read since that many reads: no longer than that, and not when anybody writes. Those for whom it rests have
    /// the memory of the `work` meanwhile, since it rests nearly all of the time.
    fn rest_from_a_walk<'e>(
        &'e self,
        until: Instant,
        mut read: u64,
        visible: SeqNo,
        work: &mut Option<Work<'e>>,
    ) -> Result<()> {
        loop {
            self.cleanse_for_scans()?;
            // It may be at this for long.
            self.recount_old_queues();
            self.give_back_spare(STILL);
            let before = std::mem::replace(&mut read, self.pager.waited_for());
            if read == before {
                return Ok(());
            }
            *work = None;
            // Its edits may have begun one.
            self.finish_manifest()?;
            let left = until.saturating_duration_since(Instant::now());
            if !self.rest_while(left.min(LOOK), || self.visible() == visible) || left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Writes the next manifest to its end, if one was begun: it takes memory and space as long as it is not there.
    fn finish_manifest(&self) -> Result<()> {
        self.or_poison(|| {
            while self.state.load().frozen.is_none() && !self.flush.stops() {
                let mut guard = self.manifest.lock();
                let Some(manifest) = guard.as_mut().filter(|manifest| manifest.has_next()) else { break };
                manifest.go_on_with_next(&self.state.load().version)?;
            }
            Ok(())
        })
    }

    fn freeze_if_nobody_writes(&self, visible: SeqNo) {
        let mut guard = self.log.lock();
        let Some(log) = guard.as_mut() else { return };
        if self.visible() != visible || self.state.load().frozen.is_some() {
            return;
        }
        // What fails for want of space is tried again by the next commit.
        let _ = self.freeze(log);
    }

    /// Cleanses the blocks that scans have paid for, and those that they pay for meanwhile.
    fn cleanse_for_scans(&self) -> Result<()> {
        // From the first portion to the last: a cache that shrinks and grows with each would read its nodes again and again.
        let mut work = None;
        loop {
            let listed = self.pager.rents.take_listed();
            if listed.is_empty() {
                return Ok(());
            }
            let mut listed = listed.into_iter().peekable();
            while listed.peek().is_some() {
                if self.state.load().frozen.is_some() || self.flush.stops() {
                    self.pager.rents.put_back(listed);
                    return Ok(());
                }
                work.get_or_insert_with(|| self.work(self.cleansing_max()));
                let mut guard = self.writer(Need::default())?;
                let began = Instant::now();
                let cleansed = self.cleanse_listed_or_poison(guard.get()?, &mut listed);
                drop(guard);
                if cleansed.is_err() {
                    self.pager.rents.put_back(listed);
                    return cleansed;
                }
                self.rest(Self::rest_after(RESTS, began.elapsed()));
                // It may be at this for long.
                self.give_back_spare(STILL);
            }
        }
    }
}
