//! Commits. Many threads submit batches. One of them, the leader, commits all waiting batches as a group: it
//! appends them to the log with one write or store and, if they ask for durability, one sync (group
//! commit); inserts them into the active operation queue; and makes them visible in one step.
//!
//! ```text
//! commit ──(no leader)──────▶ leader: log, sync, OPQ, visible ──▶ hands the lead on ──▶ answers
//!    └─────(leader there)───▶ waiting: sleeps until answered, or told to lead all that wait
//! ```
//! A thread that finds no leader is alone: it commits its own batch at once, without waiting, sharing or
//! allocating.
//!
//! Commits that ask for durability and others queue up separately, each kind with a leader of its own. The leader of
//! durable ones does not hold the log while the device syncs it, so others pass it by:
//!
//! ```text
//! durable   log, write │······ sync, without the log ······│ OPQ, visible
//! others               │ log, OPQ, visible  │ log, OPQ, …  │
//! ```
//! What passes by becomes visible first, though behind in the log. This makes a difference only if both change the
//! same key, and then the later one waits. No queue is frozen meanwhile, so each queue has exactly the operations of
//! its part of the log, if not in the same order. `sync` is a durable commit without operations.
//!
//! A transaction is a batch with what it has read. The leader validates it before it goes to the log ([`validate`]).
//!
//! Invariants:
//! 1. A batch is in the log, with its durability, before any reader can see it and before its commit returns.
//! 2. Batches become visible in log order, or in another if they have no key in common; each wholly within one
//!    operation queue.
//! 3. A failed commit is not visible, and never becomes visible. If it failed only for lack of space, it is not
//!    in the log either.

mod durable_waits;
mod ingestion;
pub(crate) mod log;
pub(crate) mod queue;
pub(crate) mod queue_log;
mod room;
mod turn;
pub(crate) mod validate;
pub(crate) mod waiting;

use crate::conflict::history::History;
use crate::conflict::validation::Validation;
use crate::current_state::{CurrentState, Frozen, State};
use crate::durability::Durability;
use crate::spans::span;

use crate::cache::pager::Pager;
use crate::commit::durable_waits::DurableWaits;
use crate::commit::log::{CommitQueues, Log, SharedLog, Syncing, operations};
use crate::commit::queue::{Answer, CommitQueue, Lead, PendingBatch};
use crate::error::{Error, Result};
use crate::flow::flush_control::FlushControl;
use crate::flow::flush_progress::FlushProgress;
use crate::flow::memory::{MemoryBudget, Reservation};
use crate::flow::shares::Shares;
use crate::followers::Followers;
use crate::health::{Health, Panicked};
use crate::latency::Timed;
use crate::lock_order::{RankedGuard, rank};
use crate::operation::{Operations, SeqNo};
use crate::opq::Opq;
use crate::pool::Pool;
use crate::publish::PublishContext;
use crate::publish::Publisher;
use crate::reserve::Work;
use crate::space::Space;
use crate::version::edit::Edit;
use crate::wal;
use psync::Volume;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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

/// No group is added to a queue with this many times the size that a queue may have at most. The check precedes the log write,
/// because whatever is in the log must find room in memory.
const QUEUE_SHARES_MAX: usize = 2;
/// How often removals are tried on a full disk: as they are, and after a flush, between which others may take the
/// space that it freed.
const TRIES_REMOVALS: usize = 4;
/// How often puts are tried whose reserve became too short after they were admitted. Each portion of a flush that is published may
/// need more of it, and on a disk that is full they are refused when it is to be extended.
const TRIES_PUTS: usize = 256;
/// The maximum bytes of commits without durability that wait in memory: a write of this length costs little more than a
/// short one, and what is lost in a crash is as little.
const UNWRITTEN_MAX: usize = 64 << 10;

/// Brings batches to the log and to the active queue, and freezes that queue. See the module documentation.
pub(crate) struct CommitPipeline {
    /// `None` during replay, if the database is read-only, and once it is closed.
    pub log: SharedLog,
    pub queues: CommitQueues,
    pub durable_waits: DurableWaits,
    /// What was changed since the oldest open transaction began.
    pub history: Arc<History>,
    pub volume: Arc<dyn Volume>,
    pub health: Arc<Health>,
    pub state: Arc<CurrentState>,
    pub pager: Arc<Pager>,
    pub shares: Shares,
    pub memory: Arc<MemoryBudget>,
    pub publisher: Arc<Publisher>,
    pub space: Arc<Space>,
    pub followers: Arc<Followers>,
    pub flush: Arc<FlushControl>,
    pub progress: Arc<FlushProgress>,
    pub pool: Arc<Pool>,
}

impl CommitPipeline {
    /// Commits one batch, and returns when it is as durable as requested.
    pub fn commit(&self, body: Vec<u8>, count: u32, durability: Durability) -> Result<()> {
        self.commit_pending(PendingBatch::new(body, count, durability))
    }

    /// Commits a transaction, if nothing that it has read was changed since.
    pub fn commit_validated(
        &self,
        body: Vec<u8>,
        count: u32,
        durability: Durability,
        validation: Validation,
    ) -> Result<()> {
        let mut pending = PendingBatch::new(body, count, durability);
        if !validation.reads.is_empty() {
            pending.validation = Some(Arc::new(self.validate_ahead(validation)?));
        }
        self.commit_pending(pending)
    }

    fn commit_pending(&self, pending: PendingBatch) -> Result<()> {
        span!(commit, "commit", durability = ?pending.durability);
        self.health.check_writable()?;
        let timed = Timed::commit(pending.durability);
        let result = self.pager.latencies.timed(timed, || self.commit_with_space(pending));
        if !self.pool.has_threads() {
            let state = self.state.load();
            let (is_frozen, fill, most) =
                (state.frozen.is_some(), state.active.fill(), self.memory.queue_max(&state));
            drop(state);
            if is_frozen && self.flush.shortage.is_worth_a_try(fill, most) {
                // A full disk is reported to the writer that finds no room in the queue.
                let _ = self.flush.flush_now();
            }
        }
        result
    }

    /// Commits a batch for which there is room in memory and disk space. Removals that find the disk full flush: that
    /// has the reserve, and frees space for them. Puts do so if that makes a long log short.
    fn commit_with_space(&self, mut pending: PendingBatch) -> Result<()> {
        for tried in 1.. {
            let refusals = self.space.reserve.refusals();
            let (result, refused) = match self.admit(&mut pending) {
                Ok(_large) => self.commit_in_turn(pending),
                Err(error) if pending.adds() => return Err(error),
                Err(error) => (Err(error), Some(pending)),
            };
            match (result, refused) {
                (Err(error), Some(again)) if tried < TRIES_PUTS && error.is_disk_full() => {
                    pending = again.retried();
                    if !pending.adds() {
                        if tried >= TRIES_REMOVALS {
                            return Err(error);
                        }
                        match self.flush_all() {
                            Err(error) if !error.is_disk_full() => return Err(error),
                            _ => {}
                        }
                    } else if self.space.reserve.refusals() == refusals && !self.flush_for_log()? {
                        return Err(error);
                    }
                }
                (result, _) => return result,
            }
        }
        Ok(())
    }

    /// Waits for room in the queue. Puts are admitted only if the reserve is enough for the log that results.
    /// A large batch has memory until the result is dropped.
    fn admit(&self, pending: &mut PendingBatch) -> Result<Option<Reservation>> {
        let len = pending.body.len();
        let large = if len > self.shares.batch {
            Some(self.make_room_for_large(len, pending.count as usize)?)
        } else {
            self.wait_for_room(len)?;
            None
        };
        pending.admitted = 0;
        if pending.adds() {
            let bytes = wal::record_len(len);
            while !self.space.reserve.admit(bytes) {
                self.provide_reserve(bytes)?;
            }
            pending.admitted = bytes;
        }
        Ok(large)
    }

    /// Commits a batch. Returns it if the disk was full.
    fn commit_in_turn(&self, pending: PendingBatch) -> (Result<()>, Option<PendingBatch>) {
        if self.queues.turn.is_mine() {
            // Leaders may be waiting for the turn to end.
            return (pending.answer(self.commit_group(std::iter::once(&pending))), Some(pending));
        }
        let queue = self.queues.queue_for(&pending);
        match queue.wait_or_lead(pending) {
            Err(pending) => {
                let _lead = Lead::new(queue, Vec::new());
                (pending.answer(self.commit_group(std::iter::once(&pending))), Some(pending))
            }
            Ok(waiter) => {
                span!(commit, "wait for the group");
                let answer = match waiter.wait() {
                    Answer::Lead => {
                        self.lead_waiting(queue);
                        waiter.wait()
                    }
                    done => done,
                };
                match answer {
                    Answer::Done(Err(error)) if error.is_disk_full() => {
                        (Err(error), Some(waiter.pending.clone()))
                    }
                    Answer::Done(result) => (result, None),
                    Answer::Lead => (Err(Error::Closed), None),
                }
            }
        }
    }

    /// Commits the waiting batches as one group, then hands the lead on.
    fn lead_waiting(&self, queue: &CommitQueue) {
        let mut lead = Lead::new(queue, queue.take_group(!self.space.reserve.is_whole()));
        lead.result = self.commit_group(lead.group.iter().map(|waiter| &waiter.pending));
    }
}

impl CommitPipeline {
    /// Locks the log when no commit waits for the device, as beginning another queue and ending the log require.
    pub fn log_at_rest(&self) -> RankedGuard<'_, rank::Log, Option<Log>> {
        let mut guard = self.log.lock();
        self.queues.wait(&mut guard, Log::is_syncing);
        guard
    }

    fn end_sync(&self) -> RankedGuard<'_, rank::Log, Option<Log>> {
        let mut guard = self.log.lock();
        if let Some(log) = guard.as_mut() {
            log.syncing = None;
        }
        self.queues.blocker_ended.notify_all();
        guard
    }

    fn commit_group<'a>(&self, group: impl Iterator<Item = &'a PendingBatch> + Clone) -> Result<()> {
        let admitted = self.space.reserve.leaves(group.clone().map(|pending| pending.admitted).sum());
        // Only a holder of the log lock replaces the active queue. Hold no more of the state than the queue
        // while the batches are inserted: if a flush ended meanwhile, this thread would free that flush's
        // queue, with all writers waiting for the log. (No test: it would have to stop this thread between two
        // lines.)
        let (mut guard, queue) = loop {
            let mut guard = self.log.lock();
            self.queues.wait(&mut guard, |log| {
                log.holds_up(group.clone()) || self.queues.are_held_up(group.clone())
            });
            let queue = Arc::clone(&self.state.load().active);
            // Any number of threads may have found room at the same time.
            if group.clone().all(PendingBatch::is_sync) || queue.fill() < QUEUE_SHARES_MAX * self.shares.queue
            {
                break (guard, queue);
            }
            drop((guard, queue));
            self.wait_for_room(0)?;
        };
        let is_done = |pending: &PendingBatch| {
            pending.sync_until.is_some_and(|until| self.durable_waits.is_durable(until))
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
        let memory = queue.memory();
        let (mut changed, mut count) = (None, 0);
        let inserted = group.clone();
        let found = group.flat_map(|pending| Operations::new(&pending.body));
        let sound = found
            .map_while(|operation| operation.map_err(|what| changed = Some(what)).ok())
            .inspect(|_| count += 1);
        let state = self.state.load();
        queue.insert_all(sound, first_seq, &|keyspace| state.version.merging(keyspace));
        drop(state);
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
        drop(queue);
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

    /// Freezes the active queue and starts a new log generation. It does not sync, since all writers wait for
    /// the log lock. No queue may be frozen already, and no commit may wait for the device. Any error other than a
    /// refusal poisons the engine.
    pub fn freeze(&self, log: &mut Log) -> Result<()> {
        // If the log is empty, an earlier attempt has already rotated it.
        let next = || if log.wal.is_empty() { Ok(()) } else { log.wal.rotate() };
        self.space.with_space_for(Work::NextLog, next, || true).inspect_err(|error| {
            if !error.is_refusal() {
                self.health.poison(error);
            }
        })?;
        self.freeze_queue(log.wal.generation(), log.next_seq - 1);
        Ok(())
    }

    /// Starts a new log generation, durably.
    pub fn seal_log(&self, log: &mut Log) -> Result<()> {
        self.begin_generation(log)?;
        // If the log is empty, an earlier attempt may have rotated it already.
        if !log.wal.is_empty() {
            log.wal.rotate()?;
        }
        self.begin_generation(log)
    }

    /// Begins the newest log generation, and notes it in the manifest if there is space. Recovery finds synced
    /// records even without the note; but then it would not notice if the file were lost.
    fn begin_for_promise(&self, log: &mut Log) -> Result<()> {
        match self.space.with_kept_space(|| self.begin_generation(log)) {
            Err(error) if error.is_disk_full() => Ok(()),
            begun => begun,
        }
    }

    /// Begins the newest log generation and notes it in the manifest, before any record in it is promised to be
    /// durable. A flush does so as well; where commits are durable one by one, the first after each freeze does.
    fn begin_generation(&self, log: &mut Log) -> Result<()> {
        let generation = log.wal.generation();
        if self.state.load().version.wal_high == generation {
            return Ok(());
        }
        log.wal.begin().inspect_err(|error| self.health.poison(error))?;
        // With this note, recovery notices if the file is lost.
        self.publisher
            .publish(Edit { wal_high: Some(generation), ..Edit::default() }, PublishContext::default())
    }

    /// Freezes the active queue and installs a new one, without touching the log.
    pub fn freeze_queue(&self, wal_low: u64, last_seq: SeqNo) {
        self.memory.keep_free_list();
        let fresh = Arc::new(Opq::new(&self.memory.free_list, &self.state.load().version.begun_flushes));
        self.state.replace(|state| {
            // Before any thread can flush the queue: from now on no reader may cache what it read from older
            // trees.
            let number = state.number + 1;
            self.pager.cache.records().serve(number);
            let queue = Arc::clone(&state.active);
            let frozen = Frozen::new(queue, wal_low, last_seq);
            State {
                number,
                ingested: state.ingested,
                active: Arc::clone(&fresh),
                frozen: Some(Arc::new(frozen)),
                version: Arc::clone(&state.version),
            }
        });
        self.flush.notify();
    }

    /// Makes all commits so far durable. Threads that want this, or commit durably, at the same time share a sync.
    pub fn sync(&self) -> Result<()> {
        self.sync_as(PendingBatch::new(Vec::new(), 0, Durability::Immediate))
    }

    fn sync_as(&self, pending: PendingBatch) -> Result<()> {
        self.health.check_process()?;
        self.commit_in_turn(pending).0?;
        // There may have been nothing to sync.
        self.volume.verify().map_err(Error::from).inspect_err(|error| self.health.poison(error))
    }
}

#[cfg(test)]
mod tests {
    use crate::commit::queue::PendingBatch;
    use crate::operation::put_insert;
    use crate::{Database, Durability, Error};
    use psync::{Device, Simulated, Volume};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::time::Duration;

    /// A flush in one thread, while another closes the database and has the log already: it said that the log begins where nothing was durable.
    #[test]
    fn a_queue_whose_next_log_may_not_have_begun_does_not_come_to_the_trees() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        keyspace.insert("key", "value").unwrap();
        engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
        let low = engine.state.load().version.wal_low;
        let log = engine.commits.log.lock_for_test().take();
        assert!(matches!(engine.flush.flush_now(), Err(Error::Closed)));
        assert!(engine.state.load().frozen.is_some());
        assert_eq!(engine.state.load().version.wal_low, low);
        drop(log);
    }

    /// A thread that waited for the log while it failed got the answer that all is durable.
    #[test]
    fn a_sync_that_waits_for_the_log_sees_that_writes_are_refused_meanwhile() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
        let engine = &db.handle.engine;
        std::thread::scope(|scope| {
            let log = engine.commits.log.lock_for_test();
            let sync = scope.spawn(|| engine.commits.sync());
            std::thread::sleep(Duration::from_millis(100));
            engine.health.poison(&Error::Poisoned { cause: "a sync failed".into() });
            drop(log);
            assert!(matches!(sync.join().unwrap(), Err(Error::Poisoned { .. })));
        });
    }

    /// Writers that had found room before others filled the queue.
    #[test]
    fn batches_that_found_room_at_the_same_time_do_not_fill_the_queue_without_end() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(8 << 20).background_threads(0).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        let share = engine.shares.queue;
        for number in 0..20u8 {
            let mut body = Vec::new();
            put_insert(&mut body, keyspace.id(), &[number], &vec![number; share / 4]);
            let pending = PendingBatch::new(body, 1, Durability::Buffered);
            engine.commits.commit_group(std::iter::once(&pending)).unwrap();
            let fill = engine.state.load().active.fill();
            assert!(fill <= 5 * share / 2, "{fill} bytes where {share} are its share");
        }
        for number in 0..20u8 {
            assert_eq!(keyspace.get([number]).unwrap().unwrap().len(), share / 4);
        }
    }

    /// All commits behind it slept for ever.
    #[test]
    fn a_leader_that_panics_hands_the_lead_on_and_writes_are_refused() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        let none = || engine.commits.commit(vec![0], 0, Durability::Immediate);
        assert!(catch_unwind(AssertUnwindSafe(none)).is_err(), "a record has an operation");
        assert!(matches!(keyspace.insert("key", "value"), Err(Error::Poisoned { .. })));
        assert!(!engine.commits.queues.durable.inner.lock().has_leader);
        // The same where others wait.
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume_of(2)).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        std::thread::scope(|scope| {
            let log = engine.commits.log.lock_for_test();
            let first = scope.spawn(|| keyspace.insert("first", "value"));
            let wait = |waiters: usize| {
                while !engine.commits.queues.durable.inner.lock().has_leader
                    || engine.commits.queues.durable.inner.lock().waiters.len() < waiters
                {
                    std::thread::yield_now();
                }
            };
            wait(0);
            let bad = scope.spawn(|| engine.commits.commit(vec![0], 0, Durability::Immediate));
            wait(1);
            let beside = scope.spawn(|| keyspace.insert("beside", "value"));
            wait(2);
            drop(log);
            assert!(first.join().unwrap().is_ok());
            assert!(bad.join().is_err());
            assert!(matches!(beside.join().unwrap(), Err(Error::Poisoned { .. })));
        });
        assert!(!engine.commits.queues.durable.inner.lock().has_leader);
    }

    /// The thread that freezes a queue has the log, and all writers wait for it. The manifest need not know of the new generation before anything in
    /// it is promised; then it does, or a lost file would not be missed.
    #[test]
    fn freezing_a_queue_waits_for_no_device_and_a_durable_commit_is_noted() {
        let volume = Simulated::new(1);
        let db = Database::builder()
            .memory(4 << 20)
            .background_threads(0)
            .open_on(Arc::new(volume.clone()))
            .unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        keyspace.insert("before", "1").unwrap();
        let (syncs, high) = (volume.counters().syncs, engine.state.load().version.wal_high);
        engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
        assert_eq!(volume.counters().syncs, syncs);
        let commit = |key: &[u8], durability| {
            let mut body = Vec::new();
            put_insert(&mut body, keyspace.id(), key, b"1");
            let pending = PendingBatch::new(body, 1, durability);
            engine.commits.commit_group(std::iter::once(&pending)).unwrap();
        };
        commit(b"buffered", Durability::Buffered);
        assert_eq!((volume.counters().syncs, engine.state.load().version.wal_high), (syncs, high));
        commit(b"durable", Durability::Immediate);
        assert_eq!(engine.state.load().version.wal_high, high + 1);
        for seed in 0..20 {
            let found = volume.power_loss(seed);
            let open = |volume: Simulated| Database::builder().memory(4 << 20).open_on(Arc::new(volume));
            let keyspace = open(found.power_loss(0)).unwrap().keyspace("main").unwrap();
            for key in ["before", "buffered", "durable"] {
                assert!(keyspace.get(key).unwrap().is_some(), "{key}");
            }
            found.remove_file(&crate::wal::file_name(high + 1)).unwrap();
            assert!(open(found).is_err_and(|error| error.is_damage()), "the file is missed");
        }
    }

    fn volume_of(seed: u64) -> Arc<dyn Volume> {
        Arc::new(Simulated::new(seed))
    }

    /// Memory that changed between a batch's making and its commit: the operations before the bad one were in the queue, and the
    /// next commit used to show them.
    #[test]
    fn a_batch_that_changed_is_not_seen_after_later_commits() {
        for is_cut in [false, true] {
            let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
            let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
            let keyspace = db.keyspace("main").unwrap();
            keyspace.insert("before", "1").unwrap();
            let mut body = Vec::new();
            put_insert(&mut body, keyspace.id(), b"half", b"1");
            if !is_cut {
                body.push(0xff);
            }
            let failed = db.handle.engine.commits.commit(body, 2, Durability::Buffered);
            assert!(matches!(&failed, Err(Error::Corrupt { .. })), "{failed:?}");
            let after = keyspace.insert("after", "1");
            assert!(keyspace.get("half").unwrap().is_none(), "half a batch is seen");
            assert!(matches!(after, Err(Error::Poisoned { .. })));
            assert!(db.flush().is_err());
            assert!(keyspace.get("before").unwrap().is_some());
        }
    }
}
