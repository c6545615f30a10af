//! Room in the active queue: a writer is delayed while a flush lags behind ([`crate::flow::flush_progress`]), and stopped
//! while the active queue is full and the frozen one is not in the trees yet.
//!
//! Invariant: a thread that waits here holds no lock and no part of the log.

use super::CommitPipeline;
use crate::error::{Error, Result};
use crate::flow::memory::{Need, Reservation};
use crate::flow::shares::{BATCH_MAX, QUEUE_ENTRY};
use crate::wal;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// A log of so many bytes is flushed before a put is refused, since the reserve need then be shorter by as much. After
/// less the next put would be refused as well.
const LOG_WORTH_A_FLUSH: u64 = 64 << 10;

const _: () = assert!(BATCH_MAX < wal::BODY_LEN_MAX as u64, "a batch is one record of the log");

/// How often (count) a large batch has the queue flushed at most: after the first time only what came meanwhile is in it, and no more
/// than a few, because others could fill it for ever.
const FLUSHES_FOR_LARGE: usize = 3;

impl CommitPipeline {
    /// Freezes the active queue if it is still full and no queue is frozen. The commit that filled it could
    /// not.
    fn freeze_full(&self) -> Result<()> {
        let mut guard = self.log_at_rest();
        self.health.check_writable()?;
        let state = self.state.load();
        let (used, capacity) = self.memory.fill(&state);
        if state.frozen.is_some() || used < capacity {
            return Ok(());
        }
        drop(state);
        self.freeze(guard.as_mut().ok_or(Error::Closed)?)
    }

    /// Delays a writer of `bytes` to match the flush, and stops it while there is no room at all. Returns an
    /// error if there is no disk space for the log that a new queue needs.
    pub fn wait_for_room(&self, bytes: usize) -> Result<()> {
        let state = self.state.load();
        let (used, capacity) = self.memory.fill(&state);
        let is_frozen = state.frozen.is_some();
        drop(state);
        if used >= capacity && is_frozen {
            let began = Instant::now();
            // It is as full as before, and commits freeze the queue that they fill.
            let result = self.wait_for_a_queue().and_then(|()| self.freeze_full());
            self.progress.stopped_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
            return result;
        }
        if used >= capacity {
            return self.freeze_full();
        }
        let delay = self.progress.delay_ns(bytes, used, capacity, is_frozen);
        if delay > 0 {
            self.progress.throttle.delay(delay);
        }
        Ok(())
    }

    /// Makes room for a batch that is too large to be added to what is in the queue: the queue is flushed first, and while the
    /// result is there, the cache leaves the memory that the commit takes. Others may go on filling the queue meanwhile, so it is
    /// flushed a few times, and what they have added then is less than a queue.
    pub fn make_room_for_large(&self, bytes: usize, count: usize) -> Result<Reservation> {
        let queued = bytes + count * QUEUE_ENTRY;
        for _ in 0..FLUSHES_FOR_LARGE {
            let state = self.state.load();
            if state.frozen.is_none() && state.active.fill() + queued <= self.shares.queue {
                break;
            }
            drop(state);
            self.flush_all()?;
        }
        self.wait_for_room(bytes)?;
        Ok(self.memory.work(Need::rest((2 * bytes + queued) as u64)))
    }

    /// Extends the reserve for a put of `bytes`, or for what there is. Where there is no space for as much reserve as the
    /// log needs, a flush makes the log short.
    pub fn provide_reserve(&self, bytes: u64) -> Result<()> {
        if self.space.reserve.is_in_use() && self.pool.has_threads() {
            // It may be whole again when the flush ends.
            let _ = self.wait_for_running_attempt();
        }
        match self.space.with_kept_space(|| self.space.reserve.grow(bytes)) {
            Err(error) if error.is_disk_full() && self.flush_for_log()? => {
                self.space.with_kept_space(|| self.space.reserve.grow(bytes))
            }
            grown => grown,
        }
    }

    /// Flushes, if the log that becomes free with it is worth that to a put on a full disk. Returns whether it did.
    pub fn flush_for_log(&self) -> Result<bool> {
        if self.space.reserve.needs().log < LOG_WORTH_A_FLUSH {
            return Ok(false);
        }
        self.flush_all()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::current_state::State;
    use crate::db::engine::Engine;
    use crate::flow::memory::Need;
    use crate::operation::OperationRef;
    use crate::opq::Opq;
    use crate::{Database, Keyspace};
    use psync::{Simulated, Volume};
    use std::sync::Arc;
    use std::time::Duration;

    /// Fills the active queue, and returns it.
    fn fill(engine: &Engine, keyspace: &Keyspace) -> Arc<Opq> {
        let value = vec![1; engine.shares.queue];
        let change = OperationRef { keyspace: keyspace.id(), key: b"key", value: Some(&value) };
        let active = Arc::clone(&engine.state.load().active);
        active.insert_all([change], engine.state.visible() + 1, &|_| None);
        active
    }

    /// Beside the flushing thread another waits for the flush.
    fn until_it_waits(engine: &Engine) {
        while engine.flush.waiting_for_test() < 2 {
            std::thread::yield_now();
        }
    }

    /// Another has frozen the full queue before a thread that waited for the flush of the one before went on, and there is room.
    #[test]
    fn a_wait_for_a_full_queue_ends_though_the_next_one_is_frozen() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(4 << 20).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        // The flushing thread waits for the writer.
        let guard = engine.writer().lock(Need::default()).unwrap();
        keyspace.insert("key", "value").unwrap();
        engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
        fill(engine, &keyspace);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| engine.commits.wait_for_room(100));
            until_it_waits(engine);
            engine.state.replace(|state| State {
                active: Arc::new(Opq::new(&engine.memory.free_list, &[])),
                ..(**state).clone()
            });
            engine.flush.notify();
            let began = Instant::now();
            while !waits.is_finished() && began.elapsed() < Duration::from_secs(10) {
                std::thread::yield_now();
            }
            let is_through = waits.is_finished();
            drop(guard);
            assert!(is_through, "there is room, and a queue is frozen");
        });
    }

    /// The flush had nothing to do until the next commit.
    #[test]
    fn a_wait_for_a_full_queue_freezes_it() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(4 << 20).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        // The flushing thread waits for the writer.
        let guard = engine.writer().lock(Need::default()).unwrap();
        keyspace.insert("key", "value").unwrap();
        engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
        let full = fill(engine, &keyspace);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| engine.commits.wait_for_room(100));
            until_it_waits(engine);
            drop(guard);
            waits.join().unwrap().unwrap();
            assert!(!Arc::ptr_eq(&engine.state.load().active, &full), "it is frozen, or flushed already");
        });
    }

    #[test]
    fn a_full_queue_is_not_frozen_after_writes_are_refused() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        keyspace.insert("key", "value").unwrap();
        fill(engine, &keyspace);
        let generation = || engine.commits.log.lock_for_test().as_ref().unwrap().wal.generation();
        let before = generation();
        engine.health.poison(&Error::Poisoned { cause: "a sync failed".into() });
        assert!(matches!(engine.commits.freeze_full(), Err(Error::Poisoned { .. })));
        assert_eq!(generation(), before);
        assert!(engine.state.load().frozen.is_none());
    }

    /// This share of the largest batch that an open database takes, of records of 16 bytes and a value.
    fn large(db: &Database, keyspace: &crate::Keyspace, value: &[u8], percent: usize) -> crate::Batch {
        let (each, mut batch) = (16 + value.len() + 16, db.batch());
        for number in 0u128.. {
            let next = batch.len() + 1;
            if batch.byte_len() + each > db.handle.engine.shares.batch_max(next) / 100 * percent {
                break;
            }
            batch.insert(keyspace, number.to_be_bytes(), value);
        }
        batch
    }

    #[test]
    fn a_large_batch_has_the_queue_to_itself() {
        for (value, threads) in [(0, 0), (1, 1), (100, 0), (100, 2), (1000, 1)] {
            let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
            let builder = Database::builder().memory(48 << 20).background_threads(threads);
            let db = builder.open_on(volume).unwrap();
            let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
            keyspace.insert("before", vec![7; 1 << 20]).unwrap();
            let mut batch = large(&db, &keyspace, &vec![1; value], 100);
            let (len, count) = (batch.byte_len(), batch.len());
            assert!(len > engine.shares.batch || value <= 1, "{len} bytes");
            batch.durability(crate::Durability::Buffered).commit().unwrap();
            if len > engine.shares.batch {
                assert_eq!(db.stats().writes.changes_flushed, 1, "what was in the queue before");
            }
            let state = engine.state.load();
            let queues = [Some(&state.active), state.frozen.as_ref().map(|frozen| &frozen.queue)];
            let queued: usize = queues.into_iter().flatten().map(|queue| queue.fill()).sum();
            // A queue takes its memory by chunks.
            assert!(
                queued <= len + count * QUEUE_ENTRY + (64 << 10),
                "{queued} bytes for {count} changes of {len} bytes"
            );
            assert!(threads > 0 || !engine.memory.works(), "the memory went back");
            drop(state);
            assert_eq!(keyspace.iter().count(), count + 1);
            let mut more = large(&db, &keyspace, &vec![1; value], 100);
            let number = more.len() as u128;
            more.insert(&keyspace, (number).to_be_bytes(), vec![1; 10_000]);
            assert!(matches!(more.commit(), Err(Error::BatchTooLarge { len, max }) if len > max));
        }
    }

    /// A process that dies, or power that fails, leaves all of a large batch or nothing.
    #[test]
    fn a_large_batch_is_whole_or_absent_after_a_crash() {
        let (mut whole, mut absent) = (0, 0);
        for seed in 0..16 {
            let simulated = Simulated::new(seed);
            let builder = Database::builder().memory(16 << 20).background_threads(0);
            let db = builder.clone().open_on(Arc::new(simulated.clone())).unwrap();
            let keyspace = db.keyspace("main").unwrap();
            let mut batch = large(&db, &keyspace, &[1; 1000], 75);
            assert!(batch.byte_len() > db.handle.engine.shares.batch);
            let count = batch.len();
            let is_durable = seed % 4 == 0;
            let durability =
                if is_durable { crate::Durability::Immediate } else { crate::Durability::Buffered };
            batch.durability(durability).commit().unwrap();
            let db = builder.open_on(Arc::new(simulated.power_loss(seed))).unwrap();
            // One that fills the queue would be flushed at once, which makes its log durable.
            let found = db.keyspace("main").unwrap().iter().count();
            assert!(found == count || (found == 0 && !is_durable), "{found} of {count}");
            if found == 0 { absent += 1 } else { whole += 1 }
        }
        assert!(whole > 0 && absent > 0, "{whole} whole, {absent} absent");
    }
}
