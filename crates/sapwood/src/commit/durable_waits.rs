//! Commits that are visible before they are durable ([`Pending`](crate::Pending)): how far the log is durable, and what is
//! called when it is.
//!
//! ```text
//! visible commit ──▶ free thread of the pool, the syncer: sync (joins the group commit) ──▶ calls, in the order of the log
//!      └─ wait ────▶ this thread: the same sync
//! ```
//! The syncer goes on while commits come, so each sync covers those that came during the one before.
//!
//! Invariants:
//! 1. `durable` never exceeds what a successful sync of the log has covered. It counts operations in the order of the log.
//! 2. While anything is registered, a thread has begun the syncer. Where none is free, the caller syncs.
//! 3. Callbacks are called without a lock.
//! 4. A future that a callback of the syncer begins and waits for does not wait for the syncer: it is done in its thread.

use crate::commit::CommitPipeline;
use crate::commit::queue::PendingBatch;
use crate::error::{Error, Result};
use crate::health::quietly;
use crate::lock_order::{RankedMutex, rank};
use crate::operation::SeqNo;
use crate::pool::Begun;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar};
use std::time::Duration;

/// Told when a commit is durable, or why it is not.
pub(crate) type Callback = Box<dyn FnOnce(Result<()>) + Send>;

thread_local! {
    /// The pipeline whose callbacks this thread calls as its syncer.
    static CALLS_FOR: Cell<*const CommitPipeline> = const { Cell::new(std::ptr::null()) };
}

/// See the module.
#[derive(Default)]
pub(crate) struct DurableWaits {
    /// The last operation in the log.
    logged: AtomicU64,
    durable: AtomicU64,
    waits: RankedMutex<rank::DurableWaits, Waits>,
    watch: Watch,
}

/// What wakes readers of the change feed. It costs one load where there are none.
#[derive(Default)]
struct Watch {
    /// How many wait.
    watchers: AtomicUsize,
    /// How often the durable part of the log has grown while some waited.
    times: RankedMutex<rank::ChangesWatch, u64>,
    grown: Condvar,
}

#[derive(Default)]
struct Waits {
    syncer: Syncer,
    /// The last operation that was asked to become durable.
    wanted: SeqNo,
    /// By operation, then by number.
    callbacks: BTreeMap<(SeqNo, u64), Callback>,
    number: u64,
}

#[derive(Default, PartialEq, Eq)]
enum Syncer {
    #[default]
    None,
    /// It waits for a thread of the pool, perhaps for long.
    Queued,
    Begun,
}

struct Watcher<'w>(&'w Watch);

impl<'w> Watcher<'w> {
    fn new(watch: &'w Watch) -> Self {
        watch.watchers.fetch_add(1, Ordering::SeqCst);
        Self(watch)
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl DurableWaits {
    /// Operations up to this one are in the log. The caller holds the log.
    pub fn note_logged(&self, seq: SeqNo) {
        self.logged.store(seq, Ordering::Release);
    }

    /// Operations up to this one are durable. The caller holds the log.
    pub fn note_durable(&self, seq: SeqNo) {
        self.durable.fetch_max(seq, Ordering::AcqRel);
        self.tell_watchers();
    }

    /// The log is durable further on than before. The caller holds the log, or a watcher that has just looked could miss it.
    pub fn tell_watchers(&self) {
        if self.watch.watchers.load(Ordering::SeqCst) > 0 {
            *self.watch.times.lock() += 1;
            self.watch.grown.notify_all();
        }
    }

    /// Waits until the log is durable further on, at most for `time`, unless `is_there` says that there is something already: that
    /// looks at the log.
    pub fn watch(&self, time: Duration, is_there: impl FnOnce() -> Result<bool>) -> Result<()> {
        let watcher = Watcher::new(&self.watch);
        let seen = *self.watch.times.lock();
        if !is_there()? {
            let times = self.watch.times.lock();
            if *times == seen {
                times.wait_for(&self.watch.grown, time);
            }
        }
        drop(watcher);
        Ok(())
    }

    /// Up to which operation the log is durable.
    #[cfg(test)]
    pub fn durable(&self) -> SeqNo {
        self.durable.load(Ordering::Acquire)
    }

    /// Whether an operation is durable.
    pub fn is_durable(&self, seq: SeqNo) -> bool {
        seq <= self.durable.load(Ordering::Acquire)
    }
}

impl CommitPipeline {
    /// Operations up to this one are durable. The caller holds the log.
    pub fn note_durable(&self, seq: SeqNo) {
        self.durable_waits.note_durable(seq);
        self.followers.note_durable(seq);
    }

    /// Commits, and returns as soon as the commit is visible and with the operating system. Returns an operation with which it is durable.
    pub fn commit_visible(self: &Arc<Self>, commit: impl FnOnce(&Self) -> Result<()>) -> Result<SeqNo> {
        commit(self)?;
        // At least the commit's own: that of another which came since is covered by the same sync.
        let seq = self.durable_waits.logged.load(Ordering::Acquire);
        self.begin_syncer(&mut self.durable_waits.waits.lock(), seq);
        Ok(seq)
    }

    /// Makes operations up to this one durable.
    pub fn sync_until(&self, seq: SeqNo) -> Result<()> {
        if self.durable_waits.is_durable(seq) { Ok(()) } else { self.sync_as(PendingBatch::sync_until(seq)) }
    }

    /// Calls `callback` once an operation is durable or could not be made so: now if it is, and if no thread is free to
    /// sync.
    pub fn on_durable(self: &Arc<Self>, seq: SeqNo, callback: Callback) {
        // In a child that was forked there is no thread that syncs, whatever the state says.
        if let Err(error) = self.health.check_process() {
            return callback(Err(error));
        }
        if self.queues.turn.is_mine() {
            // The thread that syncs may sleep behind a leader who waits for the turn to end.
            return callback(self.sync_until(seq));
        }
        let mut waits = self.durable_waits.waits.lock();
        if !self.durable_waits.is_durable(seq) {
            self.begin_syncer(&mut waits, seq);
            if waits.syncer == Syncer::Begun {
                waits.number += 1;
                let key = (seq, waits.number);
                waits.callbacks.insert(key, callback);
                return;
            }
        }
        drop(waits);
        callback(self.sync_until(seq));
    }

    /// Whether what this thread waits for has to happen in it: other threads wait for its turn, the one that syncs perhaps behind their
    /// leader; or it is the one that syncs, in a callback.
    pub fn is_waited_for(&self) -> bool {
        self.queues.turn.is_mine() || CALLS_FOR.get() == std::ptr::from_ref(self)
    }

    /// Calls `callback` once what was committed visibly is durable. A refusal comes too late for it: if there is no space for a sync, or no
    /// descriptor, a flush makes it durable.
    #[cfg(feature = "async")]
    pub fn on_durable_or_flushed(self: &Arc<Self>, seq: SeqNo, callback: Callback) {
        let pipeline = Arc::clone(self);
        self.on_durable(
            seq,
            Box::new(move |synced| match synced {
                // One that was called before it may have flushed for all.
                Err(error) if error.is_refusal() && !pipeline.durable_waits.is_durable(seq) => {
                    let flushed = pipeline.flush_all().and_then(|()| pipeline.sync_until(seq));
                    callback(flushed.map_err(Error::of_visible));
                }
                Err(error) if error.is_refusal() => callback(Ok(())),
                synced => callback(synced),
            }),
        );
    }

    fn begin_syncer(self: &Arc<Self>, waits: &mut Waits, seq: SeqNo) {
        waits.wanted = waits.wanted.max(seq);
        if waits.syncer != Syncer::None {
            return;
        }
        let pipeline = Arc::clone(self);
        waits.syncer = match self.pool.submit_detached(move || pipeline.run_syncer()) {
            Begun::Now => Syncer::Begun,
            Begun::Later => Syncer::Queued,
            Begun::Never => Syncer::None,
        };
    }

    fn run_syncer(&self) {
        let mut waits = self.durable_waits.waits.lock();
        waits.syncer = Syncer::Begun;
        loop {
            let wanted = waits.wanted;
            drop(waits);
            let synced = catch_unwind(AssertUnwindSafe(|| self.sync_until(wanted)))
                .unwrap_or_else(|_| Err(Error::panicked("a sync of visible commits")));
            let mut found = self.durable_waits.waits.lock();
            let first_after = (self.durable_waits.durable.load(Ordering::Acquire) + 1, 0);
            let later = found.callbacks.split_off(&first_after);
            let durable = std::mem::replace(&mut found.callbacks, later);
            // What came meanwhile was not tried.
            let mut failed = BTreeMap::new();
            if synced.is_err() {
                let untried = found.callbacks.split_off(&(wanted + 1, 0));
                failed = std::mem::replace(&mut found.callbacks, untried);
            }
            drop(found);
            CALLS_FOR.set(self);
            call(durable, &Ok(()));
            call(failed, &synced);
            CALLS_FOR.set(std::ptr::null());
            waits = self.durable_waits.waits.lock();
            // What failed is not tried again unless it is asked for.
            if waits.callbacks.is_empty()
                && (waits.wanted == wanted || self.durable_waits.is_durable(waits.wanted))
            {
                waits.syncer = Syncer::None;
                return;
            }
        }
    }
}

fn call(callbacks: BTreeMap<(SeqNo, u64), Callback>, result: &Result<()>) {
    for callback in callbacks.into_values() {
        if catch_unwind(AssertUnwindSafe(|| callback(result.clone()))).is_err() {
            quietly(|| tracing::error!("a callback of a durable commit panicked"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_watcher_is_woken_when_the_log_is_durable_further_on() {
        let waits = DurableWaits::default();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| waits.watch(Duration::from_secs(100), || Ok(false)).unwrap());
            while !watcher.is_finished() {
                waits.note_durable(1);
                std::thread::yield_now();
            }
        });
        assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
        // What comes between the look and the sleep is not slept over.
        let look = || {
            waits.note_durable(2);
            Ok(false)
        };
        waits.watch(Duration::from_secs(100), look).unwrap();
        assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
        assert_eq!((waits.durable(), waits.watch.watchers.load(Ordering::SeqCst)), (2, 0));
    }
}
