//! Whose turn it is: what the background thread does until it is told to stop, and how long others wait for a flush.
//!
//! Invariant: without a background thread whoever waits flushes.

use super::control::Control;
use super::handed_on::HandedOn;
use crate::commit::Log;
use crate::engine::{Engine, Panicked};
use crate::error::{Error, Result};
use crate::idle::Idle;
use parking_lot::MutexGuard;
use std::time::{Duration, Instant};

impl Engine {
    /// What the background thread does until it is told to stop.
    pub fn flush_loop(&self) {
        let _panicked = Panicked::watch(self, "the flushing thread");
        let mut idle = Idle::default();
        let mut handed_on = HandedOn::default();
        loop {
            {
                let mut control = self.flush.inner.lock();
                while !control.stop && (self.state.load().frozen.is_none() || self.check_writable().is_err())
                {
                    if handed_on.is_some() {
                        MutexGuard::unlocked(&mut control, || handed_on = HandedOn::default());
                        continue;
                    }
                    // However often it is woken in between.
                    let left = idle.left(self.keeps_something());
                    if left.is_zero() {
                        MutexGuard::unlocked(&mut control, || self.idle(&mut idle));
                    } else {
                        self.flush.changed.wait_for(&mut control, left);
                    }
                }
                if control.stop {
                    return;
                }
            }
            if let Err(error) = self.flush_and_hand_on(&mut handed_on) {
                handed_on = HandedOn::default();
                if error.is_disk_full() {
                    // Until there is space there may be no next queue.
                    self.give_back_spare(Duration::ZERO);
                    self.pause_for_space();
                }
            }
            idle.flushed(self.visible());
        }
    }

    /// Waits after a flush that found the disk full, unless somebody asks for another.
    fn pause_for_space(&self) {
        let until = Instant::now() + self.flush.shortage.pause();
        let mut control = self.flush.inner.lock();
        while !control.stop && !control.asked && Instant::now() < until {
            self.flush.changed.wait_until(&mut control, until);
        }
    }

    /// Waits until no queue is frozen. An error if the flush failed since.
    pub fn wait_for_flush(&self) -> Result<()> {
        self.wait_until(|_| self.state.load().frozen.is_none())
    }

    /// Waits until there is room in the active queue, or may be. Not until no queue is frozen: that may be another one when whoever waits has his turn, which somebody
    /// who did not wait has filled.
    pub fn wait_for_a_queue(&self) -> Result<()> {
        self.wait_until(|_| {
            let state = self.state.load();
            state.frozen.is_none() || state.active.fill() < self.queue_max(&state)
        })
    }

    fn wait_until(&self, is_done: impl Fn(&Control) -> bool) -> Result<()> {
        if !self.flush.in_background() {
            return self.flush_now();
        }
        let _waits = self.flush.waits();
        let mut control = self.flush.inner.lock();
        let failures = control.failures;
        loop {
            if is_done(&control) {
                return Ok(());
            }
            self.check_writable()?;
            if control.stop {
                return Err(Error::Closed);
            }
            if control.failures != failures
                && let Some(error) = &control.failure
            {
                return Err(error.clone());
            }
            self.flush.changed.wait(&mut control);
        }
    }

    /// Takes everything that was committed to the trees.
    pub fn flush_all(&self) -> Result<()> {
        self.check_writable()?;
        loop {
            self.flush.ask();
            self.wait_for_flush()?;
            let guard = self.log.lock();
            let state = self.state.load();
            if state.frozen.is_some() {
                continue;
            }
            if state.active.is_empty() {
                drop(guard);
                let end = self.flush.begun();
                self.wait_until(|control| control.ended >= end)?;
                return self.sync();
            }
            drop(state);
            return self.freeze_and_wait(guard);
        }
    }

    /// Freezes the active queue, and waits until it is in the trees and what is due is cleansed.
    fn freeze_and_wait(&self, mut guard: MutexGuard<'_, Option<Log>>) -> Result<()> {
        let log = guard.as_mut().ok_or(Error::Closed)?;
        // No queue is frozen, and nobody else can freeze one: the next flush that begins is that of this queue.
        let end = self.flush.begun() + 1;
        self.freeze(log)?;
        drop(guard);
        self.wait_until(|control| control.ended >= end)
    }
}
