//! Commits. Many threads submit batches. One batch at a time, or a group of them, is appended to the log, inserted into the
//! active operation queue, and made visible in one step.
//!
//! Batches that need no sync are committed by their own threads, one at a time ([`commit_lock`]). Of those that ask for durability, a
//! leader commits all that wait as a group, with one sync (group commit):
//!
//! ```text
//! durable commit ──(no leader)──────▶ leader: log, sync, OPQ, visible ──▶ passes leadership on ──▶ answers
//!            └─────(leader there)───▶ waiting: sleeps until answered, or told to lead all that wait
//! ```
//! A thread that finds no leader is alone: it commits its own batch at once, without waiting, sharing or
//! allocating. The leader does not hold the log while the device syncs it, so commits without a sync pass it by:
//!
//! ```text
//! durable   log, write │······ sync, without the log ······│ OPQ, visible
//! others               │ log, OPQ, visible  │ log, OPQ, …  │
//! ```
//! What passes by becomes visible first, though behind in the log. This makes a difference if both change the
//! same key, and for operands, which carry their number in the log to the trees ([`crate::merging`]): these wait. No queue is frozen meanwhile, so each queue has exactly the operations of
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

mod commit_lock;
mod durable_waits;
mod freeze;
mod group;
mod ingestion;
pub(crate) mod log;
pub(crate) mod queue;
pub(crate) mod queue_log;
mod room;
pub(crate) mod turn;
pub(crate) mod validate;
pub(crate) mod waiting;

use crate::conflict::history::History;
use crate::conflict::validation::Validation;
use crate::durability::Durability;
use crate::spans::span;

use crate::commit::durable_waits::DurableWaits;
use crate::commit::log::{CommitQueues, Log, SharedLog};
use crate::commit::queue::{Answer, CommitQueue, Leadership, PendingBatch, Queued};
use crate::error::{Error, Result};
use crate::flow::memory::Reservation;
use crate::latency::Timed;
use crate::lock_order::{RankedGuard, rank};
use crate::parts::Parts;
use crate::wal;
use std::ops::Deref;
use std::sync::Arc;

/// How often removals are tried on a full disk: as they are, and after a flush, between which others may take the
/// space that it freed.
const TRIES_REMOVALS: usize = 4;
/// How often puts are tried whose reserve became too short after they were admitted. Each portion of a flush that is published may
/// need more of it, and on a disk that is full they are refused when it is to be extended.
const TRIES_PUTS: usize = 256;

/// Brings batches to the log and to the active queue, and freezes that queue. See the module documentation.
pub(crate) struct CommitPipeline {
    /// `None` during replay, if the database is read-only, and once it is closed.
    pub log: SharedLog,
    pub queues: CommitQueues,
    pub durable_waits: DurableWaits,
    /// What was changed since the oldest open transaction began.
    pub history: Arc<History>,
    pub parts: Parts,
}

impl Deref for CommitPipeline {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
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
            if is_frozen && self.flush.low_space.is_worth_a_try(fill, most) {
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
                // Not once more with others' puts, for which there may be no space.
                Ok(_large) if tried > 1 && !pending.adds() => self.commit_alone(pending),
                Ok(_large) => self.try_commit(pending),
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
        let count = pending.count as usize;
        let large = if self.shares.is_large(len, count) {
            Some(self.make_room_for_large(len, count)?)
        } else {
            self.wait_for_room(len)?;
            None
        };
        pending.admitted = 0;
        if pending.adds() {
            let bytes = wal::record_len(len);
            while !self.space.reserve.admit(bytes) {
                self.provide_reserve(bytes)?;
                // Behind the end there is no reserve.
                self.health.check_writable()?;
            }
            pending.admitted = bytes;
        }
        Ok(large)
    }

    /// Tries to commit a batch. Returns it if the disk was full.
    fn try_commit(&self, pending: PendingBatch) -> (Result<()>, Option<PendingBatch>) {
        if self.queues.turn.is_mine() {
            // Leaders may be waiting for the turn to end.
            return self.commit_alone(pending);
        }
        if !pending.is_durable() {
            let others = self.queues.without_sync.lock();
            let result = self.commit_group(std::iter::once(&pending), Some(others));
            return (pending.answer(result), Some(pending));
        }
        let queue = &self.queues.durable;
        match queue.wait_or_lead(pending, &self.queues.turn) {
            Queued::Leads(pending) => {
                let _leadership = Leadership::new(queue, Vec::new());
                self.commit_alone(pending)
            }
            Queued::Alone(pending) => self.commit_alone(pending),
            Queued::Waits(waiter) => {
                span!(commit, "wait for the group");
                let result = loop {
                    match waiter.wait() {
                        Answer::Leadership => self.lead_waiting(queue, waiter.pending.is_sync()),
                        Answer::Alone => return self.commit_alone(waiter.pending.clone()),
                        Answer::Done(result) => break result,
                    }
                };
                match result {
                    Err(error) if error.is_disk_full() => (Err(error), Some(waiter.pending.clone())),
                    result => (result, None),
                }
            }
        }
    }

    /// Commits a batch as a group of its own. Returns it as well, for a disk that was full.
    fn commit_alone(&self, pending: PendingBatch) -> (Result<()>, Option<PendingBatch>) {
        (pending.answer(self.commit_group(std::iter::once(&pending), None)), Some(pending))
    }

    /// Commits the waiting batches as one group, then passes leadership on. Its own batch may not be among them: so this thread may have to lead again.
    /// A thread that syncs commits the syncs only, which no turn holds up.
    fn lead_waiting(&self, queue: &CommitQueue, syncs: bool) {
        let group = if syncs {
            queue.take_syncs()
        } else {
            queue.take_group(!self.space.reserve.is_whole(), self.shares.batch)
        };
        let mut lead = Leadership::new(queue, group);
        lead.result = self.commit_group(lead.group.iter().map(|waiter| &waiter.pending), None);
    }
}

impl CommitPipeline {
    /// Locks the log when no commit waits for the device, as beginning another queue and ending the log require.
    pub fn log_at_rest(&self) -> RankedGuard<'_, rank::Log, Option<Log>> {
        self.queues.wait(self.log.lock(), Log::is_syncing)
    }

    /// Makes all commits so far durable. Threads that want this, or commit durably, at the same time share a sync.
    pub fn sync(&self) -> Result<()> {
        self.sync_as(PendingBatch::new(Vec::new(), 0, Durability::Immediate))
    }

    fn sync_as(&self, pending: PendingBatch) -> Result<()> {
        self.health.check_process()?;
        match self.try_commit(pending) {
            // That may have been for want of space for others' puts.
            (Err(error), Some(again)) if error.is_disk_full() => self.commit_alone(again.retried()).0?,
            (result, _) => result?,
        }
        // There may have been nothing to sync.
        self.volume.verify().map_err(Error::from).inspect_err(|error| self.health.poison(error))
    }
}

#[cfg(test)]
mod tests {
    use crate::commit::queue::{CommitQueue, Leadership, PendingBatch, Queued};
    use crate::commit::turn::TurnHolder;
    use crate::operation::put_insert;
    use crate::{Database, Durability, Error};
    use psync::{Device, Fault, Filter, OperationKind, Repeat, Simulated, Volume};
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
            while !engine.commits.queues.durable.inner.lock().has_leader && !sync.is_finished() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
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
            engine.commits.commit_group(std::iter::once(&pending), None).unwrap();
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
            engine.commits.commit_group(std::iter::once(&pending), None).unwrap();
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

    /// It was in the group of a leader that the turn held up.
    #[cfg(feature = "async")]
    #[test]
    fn a_sync_that_waits_when_the_turn_begins_does_not_wait_for_its_end() {
        let (_volume, db, keyspace) = with_syncer();
        let commits = &db.handle.engine.commits;
        let queue = &commits.queues.durable;
        let lead = led_by_this_thread(queue);
        std::thread::scope(|scope| {
            let put = scope.spawn(|| keyspace.insert("k", "1"));
            wait_for(queue, 1);
            let sync = scope.spawn(|| db.sync());
            wait_for(queue, 2);
            let turn = commits.take_turn().unwrap();
            drop(lead);
            let began = std::time::Instant::now();
            while !sync.is_finished() && began.elapsed().as_secs() < 10 {
                std::thread::yield_now();
            }
            let is_synced = sync.is_finished();
            assert!(!put.is_finished());
            drop(turn);
            sync.join().unwrap().unwrap();
            put.join().unwrap().unwrap();
            assert!(is_synced, "it waits for the turn");
        });
    }

    /// What was said to have had no effect was visible, and became durable later.
    #[cfg(feature = "async")]
    #[test]
    fn what_is_visible_or_only_a_sync_is_not_refused_with_the_puts_of_its_group() {
        let (volume, db, keyspace) = with_syncer();
        let queue = &db.handle.engine.commits.queues.durable;
        let lead = led_by_this_thread(queue);
        std::thread::scope(|scope| {
            let put = scope.spawn(|| keyspace.insert("refused", [1; 1000]));
            wait_for(queue, 1);
            let removal = scope.spawn(|| keyspace.remove("first"));
            wait_for(queue, 2);
            let commit = scope.spawn(|| {
                let mut batch = db.batch();
                batch.insert(&keyspace, "visible", "1");
                futures_executor::block_on(batch.commit_async())
            });
            // Its syncer.
            wait_for(queue, 3);
            assert!(keyspace.contains("visible").unwrap());
            let sync = scope.spawn(|| db.sync());
            wait_for(queue, 4);
            // The first may be of zeros ahead.
            for nth in 1..=2 {
                let writes = Filter::kinds([OperationKind::Write]).file("wal-");
                volume.fail_nth(writes, nth, Fault::NoSpace, Repeat::Once);
            }
            drop(lead);
            sync.join().unwrap().unwrap();
            commit.join().unwrap().unwrap();
            assert!(put.join().unwrap().unwrap_err().is_disk_full());
            removal.join().unwrap().unwrap();
        });
        let db = Database::builder().memory(4 << 20).open_on(Arc::new(volume.power_loss(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        assert!(keyspace.contains("visible").unwrap() && !keyspace.contains("first").unwrap());
        assert!(!keyspace.contains("refused").unwrap());
    }

    /// There is no space for what other commits without durability have left in memory, nor for a flush.
    #[cfg(feature = "async")]
    #[test]
    fn what_is_visible_and_cannot_be_made_durable_is_no_refusal() {
        let (volume, db, keyspace) = with_syncer();
        let queue = &db.handle.engine.commits.queues.durable;
        let lead = led_by_this_thread(queue);
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| {
                let mut batch = db.batch();
                batch.insert(&keyspace, "visible", "1");
                futures_executor::block_on(batch.commit_async())
            });
            wait_for(queue, 1);
            keyspace.with_durability(Durability::None).insert("in memory", "1").unwrap();
            volume.fail_nth(
                Filter::kinds([OperationKind::Write]).file("wal-"),
                1,
                Fault::NoSpace,
                Repeat::Sticky,
            );
            drop(lead);
            let told = commit.join().unwrap();
            assert!(matches!(told, Err(Error::Io(_))), "{told:?}");
        });
        assert!(keyspace.contains("visible").unwrap());
        volume.clear_faults();
        db.sync().unwrap();
    }

    #[cfg(feature = "async")]
    fn with_syncer() -> (Simulated, Database, crate::Keyspace) {
        let volume = Simulated::new(1);
        let builder = Database::builder().memory(4 << 20).background_threads(2);
        let db = builder.open_on(Arc::new(volume.clone())).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.insert("first", "1").unwrap();
        (volume, db, keyspace)
    }

    /// Durable commits wait until the result is dropped.
    #[cfg(feature = "async")]
    fn led_by_this_thread(queue: &CommitQueue) -> Leadership<'_> {
        let sync = PendingBatch::new(Vec::new(), 0, Durability::Immediate);
        let turn = TurnHolder::default();
        assert!(matches!(queue.wait_or_lead(sync, &turn), Queued::Leads(_)), "nobody else leads");
        Leadership::new(queue, Vec::new())
    }

    #[cfg(feature = "async")]
    fn wait_for(queue: &CommitQueue, waiters: usize) {
        while queue.inner.lock().waiters.len() < waiters {
            std::thread::yield_now();
        }
    }
}
