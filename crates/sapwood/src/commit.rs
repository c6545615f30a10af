//! Commits. Many threads submit batches. One of them, the leader, commits all waiting batches as a group: it
//! appends them to the log with one write or store and, if any batch asks for durability, one sync (group
//! commit); inserts them into the active operation queue; and makes them visible in one step.
//!
//! ```text
//! commit ──(nobody leads)──▶ leader: log, sync, OPQ, visible ──▶ hands the lead on ──▶ answers
//!    └─────(somebody leads)─▶ waiting: sleeps until answered, or told to lead all that wait
//! ```
//! A thread that finds no leader is alone: it commits its own batch at once, without waiting, sharing or
//! allocating.
//!
//! Invariants:
//! 1. A batch is in the log, with its durability, before any reader can see it and before its commit returns.
//! 2. Batches become visible in log order, each wholly within one operation queue.
//! 3. A failed commit is not visible, and never becomes visible. If it failed only for lack of space, it is not
//!    in the log either.

use crate::batch::Durability;
use crate::engine::{Engine, Frozen, Panicked, State};
use crate::error::{Error, Result};
use crate::operation::{Operations, SeqNo};
use crate::publish::With;
use crate::queue::opq::Opq;
use crate::store::edit::Edit;
use crate::wal::WalWriter;
use crate::watchdog;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The log and the sequence number of the next operation.
pub(crate) struct Log {
    pub wal: WalWriter,
    pub next_seq: SeqNo,
}

/// A submitted batch.
struct Parcel {
    body: Vec<u8>,
    count: u32,
    durability: Durability,
}

/// A waiting batch.
struct Ticket {
    parcel: Parcel,
    /// Whether it was the only one when it came.
    is_first: bool,
    has_answer: AtomicBool,
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

enum Answer {
    Done(Result<()>),
    /// The previous leader has finished; this thread is the leader now.
    Lead,
}

impl Ticket {
    fn give(&self, answer: Answer) {
        let mut place = self.answer.lock();
        *place = Some(answer);
        self.has_answer.store(true, Release);
        drop(place);
        self.answered.notify_one();
    }

    fn wait(&self) -> Answer {
        // A leader that writes to memory only is done sooner than this thread would be asleep. And if it was woken to
        // lead, nobody would commit until it is awake.
        if self.is_first && self.parcel.durability < Durability::Immediate {
            let began = Instant::now();
            while !self.has_answer.load(Acquire) && began.elapsed() < SPIN {
                std::hint::spin_loop();
            }
        }
        let mut answer = self.answer.lock();
        loop {
            if let Some(answer) = answer.take() {
                self.has_answer.store(false, Relaxed);
                return answer;
            }
            watchdog::wait(&self.answered, &mut answer, "the leader of the group commit");
        }
    }
}

/// The queue of batches that wait for the leader.
#[derive(Default)]
pub(crate) struct CommitQueue {
    inner: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    tickets: Vec<Arc<Ticket>>,
    has_leader: bool,
}

/// The leadership, and the group that the leader commits. On drop, leadership is handed on and the whole group
/// is answered, whatever happens to the leader. Otherwise all other threads would sleep forever behind a leader
/// that panicked.
struct Lead<'e> {
    engine: &'e Engine,
    group: Vec<Arc<Ticket>>,
    result: Result<()>,
}

impl<'e> Lead<'e> {
    fn new(engine: &'e Engine, group: Vec<Arc<Ticket>>) -> Self {
        let cause = "the leader of a group of commits panicked".into();
        Self { engine, group, result: Err(Error::Poisoned { cause }) }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.engine.hand_on();
        for ticket in &self.group {
            ticket.give(Answer::Done(self.result.clone()));
        }
    }
}

/// How long who waits first for another's commit looks for the answer before it sleeps.
const SPIN: Duration = Duration::from_micros(3);
/// The maximum bytes of batches in one group, unless a single batch is larger.
const GROUP_MAX: usize = 4 << 20;
/// No group is added to a queue with this many times the size that a queue may have at most. The check precedes the log write,
/// because whatever is in the log must find room in memory.
const QUEUE_SHARES_MAX: usize = 2;
/// The maximum bytes of commits without durability that may wait in memory.
const UNWRITTEN_MAX: usize = 64 << 10;

impl Engine {
    /// Commits one batch, and returns when it is as durable as requested.
    pub fn commit(&self, body: Vec<u8>, count: u32, durability: Durability) -> Result<()> {
        self.check_writable()?;
        self.wait_for_room(body.len())?;
        let parcel = Parcel { body, count, durability };
        let result = match self.wait_or_lead(parcel) {
            Err(parcel) => {
                let _lead = Lead::new(self, Vec::new());
                self.commit_group(std::iter::once(&parcel))
            }
            Ok(ticket) => {
                let answer = match ticket.wait() {
                    Answer::Lead => {
                        self.lead_waiting();
                        ticket.wait()
                    }
                    done => done,
                };
                match answer {
                    Answer::Done(result) => result,
                    Answer::Lead => Err(Error::Closed),
                }
            }
        };
        if !self.flush.in_background() {
            let state = self.state.load();
            let (is_frozen, fill, most) =
                (state.frozen.is_some(), state.active.fill(), self.queue_max(&state));
            drop(state);
            if is_frozen && self.flush.shortage.is_worth_a_try(fill, most) {
                // A full disk is reported to the writer that finds no room in the queue.
                let _ = self.flush_now();
            }
        }
        result
    }

    /// Returns a ticket if another thread leads. Otherwise the caller becomes the leader, and gets its batch
    /// back.
    fn wait_or_lead(&self, parcel: Parcel) -> std::result::Result<Arc<Ticket>, Parcel> {
        let mut waiting = self.commits.inner.lock();
        if !std::mem::replace(&mut waiting.has_leader, true) {
            return Err(parcel);
        }
        let is_first = waiting.tickets.is_empty();
        let (has_answer, answer) = (AtomicBool::new(false), Mutex::new(None));
        let ticket = Arc::new(Ticket { parcel, is_first, has_answer, answer, answered: Condvar::new() });
        waiting.tickets.push(Arc::clone(&ticket));
        Ok(ticket)
    }

    /// Commits the waiting batches as one group, then hands the lead on.
    fn lead_waiting(&self) {
        let group = {
            let mut waiting = self.commits.inner.lock();
            let mut bytes = 0;
            let end = waiting
                .tickets
                .iter()
                .position(|ticket| {
                    bytes += ticket.parcel.body.len();
                    bytes > GROUP_MAX
                })
                .unwrap_or(waiting.tickets.len())
                .max(1)
                .min(waiting.tickets.len());
            waiting.tickets.drain(..end).collect::<Vec<_>>()
        };
        let mut lead = Lead::new(self, group);
        lead.result = self.commit_group(lead.group.iter().map(|ticket| &ticket.parcel));
    }

    /// Hands the lead on. The next leader starts while this one still answers its group.
    fn hand_on(&self) {
        let mut waiting = self.commits.inner.lock();
        match waiting.tickets.first() {
            Some(next) => next.give(Answer::Lead),
            None => waiting.has_leader = false,
        }
    }

    fn commit_group<'a>(&self, group: impl Iterator<Item = &'a Parcel> + Clone) -> Result<()> {
        // Only a holder of the log lock replaces the active queue. Hold no more of the state than the queue
        // while the batches are inserted: if a flush ended meanwhile, this thread would free that flush's
        // queue, with all writers waiting for the log. (No test: it would have to stop this thread between two
        // lines.)
        let (mut guard, queue) = loop {
            let guard = self.log.lock();
            let queue = Arc::clone(&self.state.load().active);
            // Any number of threads may have found room at the same time.
            if queue.fill() < QUEUE_SHARES_MAX * self.shares.queue {
                break (guard, queue);
            }
            drop((guard, queue));
            self.wait_for_room(0)?;
        };
        self.check_writable()?;
        let log = guard.as_mut().ok_or(Error::Closed)?;
        // Dropped before the log lock is released, so that nobody sees what a panic left in the log.
        let _panicked = Panicked::watch(self, "a commit");
        self.commit_to(log, queue, group)
    }

    /// Commits a group to the log and the active queue. The caller holds the log lock.
    fn commit_to<'a>(
        &self,
        log: &mut Log,
        queue: Arc<Opq>,
        group: impl Iterator<Item = &'a Parcel> + Clone,
    ) -> Result<()> {
        let first_seq = log.next_seq;
        let mut seq = first_seq;
        let durability = group.clone().map(|parcel| parcel.durability).max().unwrap_or(Durability::None);
        if durability == Durability::Immediate {
            self.begin_for_promise(log)?;
        }
        let mut records = 0;
        for parcel in group.clone() {
            log.wal.append(seq, parcel.count, &parcel.body);
            seq += SeqNo::from(parcel.count);
            records += 1;
        }
        if durability == Durability::Immediate {
            log.wal.reserve().inspect_err(|error| self.poison(error))?;
        }
        if (durability >= Durability::Buffered || log.wal.pending() > UNWRITTEN_MAX)
            && let Err(error) = self.with_kept_space(|| match durability {
                Durability::Immediate => log.wal.write(),
                _ => log.wal.store(),
            })
        {
            if error.is_disk_full() {
                log.wal.retract(records);
            } else {
                self.poison(&error);
            }
            return Err(error);
        }
        if durability == Durability::Immediate
            && let Err(error) = log.wal.sync()
        {
            self.poison(&error);
            return Err(error);
        }
        if durability == Durability::Immediate {
            self.note_log(log);
        }
        log.next_seq = seq;
        let memory = queue.memory();
        let (mut changed, mut count) = (None, 0);
        let inserted = group.clone();
        let operations = group.flat_map(|parcel| Operations::new(&parcel.body));
        let sound = operations
            .map_while(|operation| operation.map_err(|what| changed = Some(what)).ok())
            .inspect(|_| count += 1);
        queue.insert_all(sound, first_seq);
        if changed.is_some() || first_seq + count != seq {
            // Operations already in the queue would become visible with the next commit, and the log may hold
            // what recovery refuses.
            let event = "a batch changed while it was committed";
            let what = changed.unwrap_or("another number of operations");
            let error = Error::corrupt("memory", 0, event, "its operations", what);
            self.poison(&error);
            return Err(error);
        }
        if !self.empty_ranges.is_empty_still() {
            let operations = inserted
                .flat_map(|parcel| Operations::new(&parcel.body))
                .map_while(|operation| operation.ok());
            self.empty_ranges.inserted(operations);
        }
        self.set_visible(seq - 1);
        if queue.memory() > memory {
            self.note_log(log);
            self.try_balance_memory();
        }
        drop(queue);
        // Load the state again: it may have changed.
        let state = self.state.load();
        let is_full = state.frozen.is_none() && {
            let (fill, most) = self.fill(&state);
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
    /// the log lock. No queue may be frozen already. Any error other than a refusal poisons the engine.
    pub fn freeze(&self, log: &mut Log) -> Result<()> {
        self.with_kept_space(|| {
            // If the log is empty, an earlier attempt has already rotated it.
            if log.wal.is_empty() { Ok(()) } else { log.wal.rotate() }
        })
        .inspect_err(|error| {
            if !error.is_refusal() {
                self.poison(error);
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
        match self.with_kept_space(|| self.begin_generation(log)) {
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
        log.wal.begin().inspect_err(|error| self.poison(error))?;
        // With this note, recovery notices if the file is lost.
        self.publish(Edit { wal_high: Some(generation), ..Edit::default() }, With::default())
    }

    /// Freezes the active queue and installs a new one, without touching the log.
    pub fn freeze_queue(&self, wal_low: u64, last_seq: SeqNo) {
        self.keep_spare();
        let fresh = Arc::new(Opq::new(&self.spare));
        self.state.rcu(|state| {
            // Before any thread can flush the queue: from now on no reader may cache what it read from older
            // trees.
            let number = state.number + 1;
            self.pager.cache.records().serve(number);
            let queue = Arc::clone(&state.active);
            let is_full = queue.fill() >= self.queue_max(state);
            let frozen = Frozen {
                queue,
                wal_low,
                last_seq,
                is_full,
                resume: Mutex::default(),
                lengths: OnceLock::new(),
            };
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

    /// Makes all commits so far durable.
    pub fn sync(&self) -> Result<()> {
        self.process.check()?;
        let mut guard = self.log.lock();
        // Check only with the log locked: the holder this thread waited for may be the one that failed.
        self.check_writable()?;
        let log = guard.as_mut().ok_or(Error::Closed)?;
        // Only a write can be undone. So a full disk is told apart from a failed sync here.
        match self.with_kept_space(|| log.wal.write()) {
            Err(error) if error.is_disk_full() => return Err(error),
            Err(error) => {
                self.poison(&error);
                return Err(error);
            }
            Ok(()) => {}
        }
        self.begin_for_promise(log)?;
        log.wal.sync().inspect_err(|error| self.poison(error))?;
        self.note_log(log);
        // There may have been nothing to sync.
        self.volume.verify().map_err(Error::from).inspect_err(|error| self.poison(error))
    }
}

#[cfg(test)]
mod tests {
    use super::Parcel;
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
        engine.freeze(engine.log.lock().as_mut().unwrap()).unwrap();
        let low = engine.state.load().version.wal_low;
        let log = engine.log.lock().take();
        assert!(matches!(engine.flush_now(), Err(Error::Closed)));
        assert!(engine.state.load().frozen.is_some());
        assert_eq!(engine.state.load().version.wal_low, low);
        drop(log);
    }

    /// Whoever waited for the log while it failed was told that all is durable.
    #[test]
    fn a_sync_that_waits_for_the_log_sees_that_writes_are_refused_meanwhile() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
        let engine = &db.handle.engine;
        std::thread::scope(|scope| {
            let log = engine.log.lock();
            let sync = scope.spawn(|| engine.sync());
            std::thread::sleep(Duration::from_millis(100));
            engine.poison(&Error::Poisoned { cause: "a sync failed".into() });
            drop(log);
            assert!(matches!(sync.join().unwrap(), Err(Error::Poisoned { .. })));
        });
    }

    /// Writers who had found room before others filled the queue.
    #[test]
    fn batches_that_found_room_at_the_same_time_do_not_fill_the_queue_without_end() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(8 << 20).background_threads(0).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        let share = engine.shares.queue;
        for number in 0..20u8 {
            let mut body = Vec::new();
            put_insert(&mut body, keyspace.id(), &[number], &vec![number; share / 4]);
            let parcel = Parcel { body, count: 1, durability: Durability::Buffered };
            engine.commit_group(std::iter::once(&parcel)).unwrap();
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
        let none = || engine.commit(Vec::new(), 0, Durability::Buffered);
        assert!(catch_unwind(AssertUnwindSafe(none)).is_err(), "a record has an operation");
        assert!(matches!(keyspace.insert("key", "value"), Err(Error::Poisoned { .. })));
        assert!(!engine.commits.inner.lock().has_leader);
        // The same where others wait.
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume_of(2)).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        std::thread::scope(|scope| {
            let log = engine.log.lock();
            let first = scope.spawn(|| keyspace.insert("first", "value"));
            let wait = |tickets: usize| {
                while !engine.commits.inner.lock().has_leader
                    || engine.commits.inner.lock().tickets.len() < tickets
                {
                    std::thread::yield_now();
                }
            };
            wait(0);
            let bad = scope.spawn(|| engine.commit(Vec::new(), 0, Durability::Buffered));
            wait(1);
            let beside = scope.spawn(|| keyspace.insert("beside", "value"));
            wait(2);
            drop(log);
            assert!(first.join().unwrap().is_ok());
            assert!(bad.join().is_err());
            assert!(matches!(beside.join().unwrap(), Err(Error::Poisoned { .. })));
        });
        assert!(!engine.commits.inner.lock().has_leader);
    }

    /// Whoever freezes a queue has the log, and everybody waits for it. The manifest need not know of the new generation before anything in
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
        engine.freeze(engine.log.lock().as_mut().unwrap()).unwrap();
        assert_eq!(volume.counters().syncs, syncs);
        let commit = |key: &[u8], durability| {
            let mut body = Vec::new();
            put_insert(&mut body, keyspace.id(), key, b"1");
            let parcel = Parcel { body, count: 1, durability };
            engine.commit_group(std::iter::once(&parcel)).unwrap();
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
            let failed = db.handle.engine.commit(body, 2, Durability::Buffered);
            assert!(matches!(&failed, Err(Error::Corrupt { .. })), "{failed:?}");
            let after = keyspace.insert("after", "1");
            assert!(keyspace.get("half").unwrap().is_none(), "half a batch is seen");
            assert!(matches!(after, Err(Error::Poisoned { .. })));
            assert!(db.flush().is_err());
            assert!(keyspace.get("before").unwrap().is_some());
        }
    }
}
