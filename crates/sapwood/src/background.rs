//! Work that no caller requested: the flush of frozen queues, cleansing of log areas, garbage collection, and what is
//! done while the database is idle.
//!
//! Invariants:
//! 1. All of it leaves the records as they are: each piece of work is an edit that readers do not notice.
//! 2. One thread looks, [picks](pick::pick) and does what it picked. The next queue is appended ahead of its flush on another,
//!    beside the cleansing that follows the last flush.

pub(crate) mod cleanse;
pub(crate) mod collect;
pub(crate) mod context;
pub(crate) mod dropped;
pub(crate) mod expire;
pub(crate) mod flush;
pub(crate) mod garbage_collection;
pub(crate) mod idle;
pub(crate) mod live_nodes;
pub(crate) mod pacing;
pub(crate) mod pick;
pub(crate) mod portions;
pub(crate) mod removals;
pub(crate) mod unreadable;

use crate::commit::CommitPipeline;
use crate::health::Panicked;
use cleanse::Cleanser;
use collect::Collector;
use context::WorkContext;
use flush::{CarryOver, FlushRun, Flusher};
use idle::{Idle, IdleWork};
use pick::{Choice, FlushStep, Job, Load, pick};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The background work of a database. See the module documentation.
pub(crate) struct Background {
    pub ctx: Arc<WorkContext>,
    pub cleanser: Arc<Cleanser>,
    pub flusher: Arc<Flusher>,
    pub idle_work: IdleWork,
}

impl Background {
    pub fn new(ctx: WorkContext, commits: &Arc<CommitPipeline>) -> Self {
        let ctx = Arc::new(ctx);
        let collector = Arc::new(Collector::new(Arc::clone(&ctx)));
        let cleanser = Arc::new(Cleanser::new(Arc::clone(&ctx), Arc::clone(&collector)));
        let flusher = Arc::new(Flusher::new(
            (Arc::clone(&ctx), Arc::clone(commits)),
            (Arc::clone(&cleanser), Arc::clone(&collector)),
        ));
        let idle_work = IdleWork {
            ctx: Arc::clone(&ctx),
            commits: Arc::clone(commits),
            collector,
            cleanser: Arc::clone(&cleanser),
        };
        let in_caller: std::sync::Weak<Flusher> = Arc::downgrade(&flusher);
        ctx.flush.set_in_caller(in_caller);
        Self { ctx, cleanser, flusher, idle_work }
    }

    /// What the background thread does until the database is closed: it looks, picks, and does what it picked.
    pub fn run(&self) {
        let _panicked = Panicked::watch(&self.ctx.health, "the background work");
        let mut idle = Idle::default();
        let mut carry_over = CarryOver::default();
        let mut run = None;
        loop {
            let load = match &run {
                Some(run) => Load { flush: Some(self.flusher.look(run)), ..Load::default() },
                None => self.idle_work.look(&mut idle, carry_over.is_some()),
            };
            let choice = pick(&load);
            idle.picked(&choice);
            match choice {
                Choice::Job(Job::Flush) => run = self.flusher.begin_flush(&mut carry_over).ok(),
                Choice::Job(Job::InFlush(step)) => {
                    self.go_on(step, &mut run, &mut carry_over);
                    if run.is_none() {
                        idle.flushed(self.ctx.state.visible());
                    }
                }
                Choice::Job(Job::DropCarryOver) => carry_over = CarryOver::default(),
                Choice::Job(job) => self.idle_work.run(job, &mut idle),
                Choice::EndInterval => idle.begin_interval(),
                Choice::Wait(time) => self.ctx.flush.sleep(time, || {
                    // What came since this thread looked.
                    let has_flush = self.ctx.state.load().frozen.is_some() && load.is_writable;
                    has_flush || (!load.keeps_something && self.idle_work.keeps_something_as_known())
                }),
                Choice::Stop => return,
            }
        }
    }

    /// Does a step of the flush that is under way.
    fn go_on(&self, step: FlushStep, under_way: &mut Option<FlushRun<'_>>, carry_over: &mut CarryOver) {
        let Some(mut run) = under_way.take() else { return };
        if self.flusher.takes_step(step, &mut run) {
            *under_way = Some(run);
        } else {
            self.end_flush(run, carry_over);
        }
    }

    fn end_flush(&self, run: FlushRun<'_>, carry_over: &mut CarryOver) {
        if let Err(error) = self.flusher.end_flush(run, carry_over) {
            *carry_over = CarryOver::default();
            if error.is_disk_full() {
                // There may be no next queue until there is space.
                self.ctx.memory.give_back_free_list(Duration::ZERO);
                self.pause_for_space();
            }
        }
    }

    /// Waits after a flush that found the disk full. Ends early if a flush is requested.
    fn pause_for_space(&self) {
        self.ctx.flush.pause(Instant::now() + self.ctx.flush.low_space.pause());
    }
}
