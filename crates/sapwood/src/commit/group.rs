//! The commit of a group, by its leader, or of one batch by its own thread: to the log, to the device if it asks for that, into the queue, and then visible.
//!
//! Invariants:
//! 1. While the device syncs the log, the log is not locked; what else commits meanwhile has no key in common with the group
//!    ([`Syncing`]).
//! 2. Whatever the leader panics at, writes are refused from then on, and no thread waits for it.

use super::CommitPipeline;
use crate::commit::commit_lock::Held;
use crate::commit::log::{Log, Syncing, operations};
use crate::commit::queue::PendingBatch;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::health::Panicked;
use crate::latency::Timed;
use crate::lock_order::{Guard, RankedGuard, rank};
use crate::operation::{Operations, SeqNo};
use crate::opq::Opq;
use crate::reserve::Work;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// No group is added to a queue with this many times the size that a queue may have at most. The check precedes the log write,
/// because whatever is in the log must find room in memory.
const QUEUE_SHARES_MAX: usize = 2;

/// The maximum bytes of commits without durability that wait in memory: a write of this length costs little more than a
/// short one, and what is lost in a crash is as little.
const UNWRITTEN_MAX: usize = 64 << 10;

/// Commits that wait for the device. If this thread panics there, no thread waits for them any longer.
struct AtDevice<'e>(&'e CommitPipeline);

impl<'e> AtDevice<'e> {
    /// Takes the log again, and lets others know.
    fn leave(self) -> RankedGuard<'e, rank::Log, Option<Log>> {
        let pipeline = self.0;
        std::mem::forget(self);
        pipeline.end_sync()
    }
}

impl Drop for AtDevice<'_> {
    fn drop(&mut self) {
        drop(self.0.end_sync());
    }
}

impl CommitPipeline {
    fn end_sync(&self) -> RankedGuard<'_, rank::Log, Option<Log>> {
        let mut guard = self.log.lock();
        if let Some(log) = guard.as_mut() {
            log.syncing = None;
        }
        self.queues.blocker_ended.notify_all();
        guard
    }

    /// `others`: what those wait for that need no sync either. It is let go of if the group has to wait: they may pass by.
    pub(super) fn commit_group<'a>(
        &self,
        group: impl Iterator<Item = &'a PendingBatch> + Clone,
        mut others: Option<Guard<rank::CommitLock, Held<'_>>>,
    ) -> Result<()> {
        let admitted = self.space.reserve.leaves(group.clone().map(|pending| pending.admitted).sum());
        let is_done = |pending: &PendingBatch| {
            pending.sync_until.is_some_and(|until| self.durable_waits.is_durable(until))
        };
        // Only a holder of the log lock replaces the active queue. Hold no more of the state than the queue
        // while the batches are inserted: if a flush ended meanwhile, this thread would free that flush's
        // queue, with all writers waiting for the log. (No test: it would have to stop this thread between two
        // lines.)
        let (mut guard, queue) = loop {
            let has_to_wait =
                |log: &Log| log.holds_up(group.clone()) || self.queues.are_held_up(group.clone());
            let mut guard = self.log.lock();
            if group.clone().any(PendingBatch::is_durable) && !group.clone().all(is_done) {
                guard = self.queues.give_way(guard);
            }
            if guard.as_ref().is_some_and(has_to_wait) {
                drop(others.take());
                guard = self.queues.wait(guard, has_to_wait);
            }
            let queue = Arc::clone(&self.state.load().active);
            // Any number of threads may have found room at the same time.
            if group.clone().all(PendingBatch::is_sync) || queue.fill() < QUEUE_SHARES_MAX * self.shares.queue
            {
                break (guard, queue);
            }
            drop((guard, queue, others.take()));
            self.wait_for_room(0)?;
        };
        if group.clone().all(is_done) {
            return Ok(());
        }
        // Check only with the log locked: the holder this thread waited for may be the one that failed.
        self.health.check_writable()?;
        let log = guard.as_mut().ok_or(Error::Closed)?;
        // Dropped before the log lock is released, so that no thread sees what a panic left in the log.
        let panicked = Panicked::watch(&self.health, "a commit");
        self.validate_group(log, group.clone());
        if let Err(error) =
            self.space.reserve.check_group(group.clone().map(|pending| pending.admitted).sum())
        {
            // Removals and syncs of the group need no more reserve.
            group
                .clone()
                .filter(|pending| pending.admitted > 0)
                .for_each(|pending| pending.reject(error.clone()));
        }
        let group = group.filter(|pending| !pending.is_rejected());
        self.log_group(log, group.clone())?;
        drop(admitted);
        if !group.clone().any(PendingBatch::is_durable) {
            return self.show_group(log, queue, group);
        }
        let is_wanted = self.queues.wanted.load(Relaxed) > 0;
        if is_wanted {
            self.queues.go_before();
        }
        let Some(unsynced) = log.wal.unsynced_current().filter(|_| !is_wanted) else {
            // Also with older parts of the log, whose files may be removed meanwhile: the first commit after a freeze.
            let synced = self.pager.latencies.timed(Timed::LogSync, || log.wal.sync());
            synced.inspect_err(|error| self.health.poison(error))?;
            self.note_durable(log.next_seq - 1);
            self.memory.note_log(log.wal.unsynced_bytes());
            return self.show_group(log, queue, group);
        };
        let logged = log.next_seq - 1;
        let syncing = Syncing::of(group.clone());
        #[cfg(test)]
        let syncing =
            if self.history.ignores_syncing.load(Relaxed) { syncing.without_reads() } else { syncing };
        log.syncing = Some(syncing);
        drop(panicked);
        drop(guard);
        let at_device = AtDevice(self);
        let panicked = Panicked::watch(&self.health, "a commit");
        let synced = self.pager.latencies.timed(Timed::LogSync, || unsynced.sync());
        drop(panicked);
        let mut guard = at_device.leave();
        let log = guard.as_mut().ok_or(Error::Closed)?;
        let _panicked = Panicked::watch(&self.health, "a commit");
        log.wal.synced(&unsynced, synced).inspect_err(|error| self.health.poison(error))?;
        self.note_durable(logged);
        self.memory.note_log(log.wal.unsynced_bytes());
        self.health.check_writable()?;
        self.show_group(log, queue, group)
    }

    /// Brings a group to the log, as far as it must be before a sync.
    fn log_group<'a>(
        &self,
        log: &mut Log,
        group: impl Iterator<Item = &'a PendingBatch> + Clone,
    ) -> Result<()> {
        let mut seq = log.next_seq;
        let durability = group.clone().map(|pending| pending.durability).max().unwrap_or(Durability::None);
        if durability == Durability::Immediate {
            self.begin_for_promise(log)?;
        }
        let mut records = 0;
        for pending in group.clone().filter(|pending| !pending.is_sync()) {
            log.wal.append(seq, pending.count, &pending.body);
            seq += SeqNo::from(pending.count);
            records += 1;
        }
        // Without the reserve, no space is taken ahead of the records.
        let is_short = !self.space.reserve.is_whole();
        if durability == Durability::Immediate && !is_short {
            log.wal.reserve().inspect_err(|error| self.health.poison(error))?;
        }
        if (durability >= Durability::Buffered || log.wal.pending() > UNWRITTEN_MAX)
            && let Err(error) = self.space.with_space_for(
                Work::Removals,
                || match durability {
                    Durability::Immediate => log.wal.write(),
                    _ if is_short => log.wal.write(),
                    _ => log.wal.store(),
                },
                || !group.clone().any(PendingBatch::adds),
            )
        {
            // Only a write can be undone, not a sync.
            if error.is_disk_full() {
                log.wal.retract(records);
            } else {
                self.health.poison(&error);
            }
            return Err(error);
        }
        log.next_seq = seq;
        self.durable_waits.note_logged(seq - 1);
        self.space.reserve.note_log(log.wal.longest());
        Ok(())
    }

    /// Inserts a group into the active queue, and makes it visible. The caller holds the log lock.
    fn show_group<'a>(
        &self,
        log: &mut Log,
        queue: Arc<Opq>,
        group: impl Iterator<Item = &'a PendingBatch> + Clone,
    ) -> Result<()> {
        let first_seq = self.state.visible() + 1;
        let seq = first_seq + group.clone().map(|pending| SeqNo::from(pending.count)).sum::<SeqNo>();
        if seq == first_seq {
            return Ok(());
        }
        let (memory, fill) = (queue.memory(), queue.fill());
        let (mut changed, mut count) = (None, 0);
        let inserted = group.clone();
        let (mut bodies, mut of_body) = (group.map(|pending| &pending.body), Operations::new(&[]));
        let sound = std::iter::from_fn(|| {
            loop {
                match of_body.next() {
                    Some(Ok(operation)) => {
                        count += 1;
                        return Some(operation);
                    }
                    Some(Err(what)) => {
                        changed = Some(what);
                        return None;
                    }
                    None => of_body = Operations::new(bodies.next()?),
                }
            }
        });
        queue.insert_all(sound, first_seq, &|keyspace| self.state.load().version.merging(keyspace));
        if changed.is_some() || first_seq + count != seq {
            // Operations already in the queue would become visible with the next commit, and the log may hold
            // what recovery refuses.
            let told = "a batch changed while it was committed";
            let what = changed.unwrap_or("another number of operations");
            let error = Error::corrupt("memory", 0, told, "its operations", what);
            self.health.poison(&error);
            return Err(error);
        }
        if !self.state.empty_ranges.is_empty_still() {
            self.state.empty_ranges.inserted(operations(inserted.clone()));
        }
        if log.is_recorded {
            log.is_recorded = self.history.record(first_seq, operations(inserted));
        }
        self.state.set_visible(seq - 1);
        if queue.memory() > memory {
            self.memory.note_log(log.wal.unsynced_bytes());
            self.memory.try_balance_memory();
        }
        let is_as_full = queue.fill() == fill;
        drop(queue);
        if is_as_full {
            // Nor was it full before, or a sync was under way: the next commit freezes it before it looks for room.
            return Ok(());
        }
        // Load the state again: it may have changed.
        let state = self.state.load();
        let is_full = state.frozen.is_none() && !log.is_syncing() && {
            let (fill, most) = self.memory.fill(&state);
            fill >= most
        };
        drop(state);
        if is_full {
            // If this fails for lack of space, the next commit tries again.
            let _ = self.freeze(log);
        }
        Ok(())
    }
}
