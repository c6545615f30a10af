//! How threads wait for a flush.
//!
//! Invariant: without a background thread, the thread that waits runs the flush itself.

use super::CommitPipeline;
use crate::commit::log::Log;
use crate::error::{Error, Result};
use crate::flow::flush_control::Control;
use crate::lock_order::{RankedGuard, rank};

impl CommitPipeline {
    /// Waits until there is, or may be, room in the active queue. It does not wait until no queue is frozen: by
    /// the time the waiter runs, other writers may have filled and frozen another one.
    pub fn wait_for_a_queue(&self) -> Result<()> {
        self.wait_until(|_| {
            let state = self.state.load();
            state.frozen.is_none() || state.active.fill() < self.memory.queue_max(&state)
        })
    }

    /// Waits. Returns an error if an attempt to flush fails meanwhile, also one that is running already.
    fn wait_until(&self, is_done: impl Fn(&Control) -> bool) -> Result<()> {
        let (over, _) = self.flush.progress();
        self.wait_after(over, is_done)
    }

    /// Waits. Returns an error if one of the attempts after so many fails, and not because of earlier ones.
    fn wait_after(&self, attempts: u64, is_done: impl Fn(&Control) -> bool) -> Result<()> {
        if !self.pool.has_threads() {
            return self.flush.flush_now();
        }
        self.flush.wait_after(attempts, || self.health.check_writable(), is_done)
    }

    /// Waits until the attempt of this number is over. Returns an error if it fails, or another after `earlier`.
    fn wait_for_builder(&self, earlier: u64, number: u64) -> Result<()> {
        self.wait_after(earlier, |now| now.over() >= number && now.failure_after(earlier).is_none())
    }

    /// Waits for the attempt that is running, if there is one.
    pub fn wait_for_running_attempt(&self) -> Result<()> {
        let (over, begun) = self.flush.progress();
        self.wait_for_builder(over, begun)
    }

    /// Applies all commits so far to the trees.
    pub fn flush_all(&self) -> Result<()> {
        self.health.check_writable()?;
        loop {
            let before = self.flush.ask();
            self.wait_after(before, |_| self.state.load().frozen.is_none())?;
            let guard = self.log_at_rest();
            let state = self.state.load();
            if state.frozen.is_some() {
                continue;
            }
            if state.active.is_empty() {
                drop(guard);
                self.wait_for_running_attempt()?;
                // Without a leader: the caller may hold a lock that the thread wants for whose turn leaders wait.
                return self.durable_seq().map(drop);
            }
            drop(state);
            return self.freeze_and_wait(guard);
        }
    }

    /// Freezes the active queue, and waits until it is in the trees and what is due has been cleansed.
    fn freeze_and_wait(&self, mut guard: RankedGuard<'_, rank::Log, Option<Log>>) -> Result<()> {
        let log = guard.as_mut().ok_or(Error::Closed)?;
        // No queue is frozen, and no other thread can freeze one, so the next flush to begin is that of this queue.
        let (_, before) = self.flush.progress();
        self.freeze(log)?;
        drop(guard);
        self.wait_for_builder(before, before + 1)
    }
}
