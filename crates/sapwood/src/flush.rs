//! Flush: takes the frozen operation queue to the trees, portion by portion, each portion an edit of its own; then keeps
//! the space within its target. One thread at a time, in the background or within the commit that made it due.
//!
//! ```text
//! idle ──freeze──▶ flush_frozen: ( attempt: route, bupdate ─▶ sync data ─▶ publish ─▶ collect )+ ─▶ log shortened ─▶ cleanse_due ─▶ idle
//!                       │ disk full: give space back, tell waiting writers, try again later
//!                       └ any other error: poison
//! ```
//! Portions bound how much space the new copies take before the old ones die, and tell waiting writers how far the flush has come. Nothing is undone after a crash: a portion
//! is published or it never happened, and the log still holds all of it.
//!
//! Invariant: a portion that is not the whole queue is published only when the queue's log is durable. Otherwise a power loss could leave a
//! part of a batch in the trees whose other part the log has lost. A queue that goes to the trees with one edit needs no such thing: the edit
//! is there after a crash, and then all of the queue is, or it is not, and then the log ends where it ends, as if nothing had been flushed. The
//! log's file is removed then, mostly before the operating system has written any of it: such a load writes each byte once.

use crate::advisor::Advisor;
use crate::beside::{Wait, beside};
use crate::commit::Log;
use crate::engine::{Engine, Frozen};
use crate::error::{Error, Result};
use crate::idle::Idle;
use crate::node::entry_len;
use crate::operation::OperationRef;
use crate::publish::{Trees, With};
use crate::queue::opq::Opq;
use crate::store::attempt::{Attempt, Sealed};
use crate::store::garbage_collection;
use crate::store::manifest::EDIT_MAX;
use crate::store::rent::Rents;
use crate::store::writer::{Writer, segment_capacity};
use crate::tree::bupdate::bupdate;
use crate::tree::cleanse::Paid;
use crate::tree::held::Copies;
use crate::tree::route::{Budget, bytes_of, route};
use crate::tree::sample::Sample;
use crate::tree::sweep::Sweep;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Bytes that a portion writes: an eighth of what lives, within these.
pub(crate) const PORTION: std::ops::RangeInclusive<u64> = (256 << 10)..=(8 << 20);
/// Bytes of memory that a new node takes until it is published, and what it takes in an edit at most.
const NODE_LISTED: u64 = 300;
pub(crate) const NODE_IN_EDIT: u64 = 24;
/// How often a flush says how far it has come, in bytes of keys and values.
const STEP: u64 = 256 << 10;
/// How long to wait before a flush that found the disk full is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// Wakes the flushing thread, and those who wait for it.
pub(crate) struct FlushControl {
    in_background: bool,
    inner: Mutex<Control>,
    changed: Condvar,
    /// Which blocks are cleansed next, and when.
    sweep: Mutex<Sweep>,
    advisor: Mutex<Advisor>,
    /// Whether the last flush had several portions, as the next one will have then.
    in_portions: AtomicBool,
    /// Thousandths of the last queue's bytes that came to the trees: the newest version of each key.
    newest: AtomicU64,
    pub flushes: AtomicU64,
    pub portions: AtomicU64,
    pub data_bytes: AtomicU64,
    pub collected_bytes: AtomicU64,
    pub changes: AtomicU64,
    pub change_bytes: AtomicU64,
    pub blocks_appended: AtomicU64,
    pub blocks_cleansed: AtomicU64,
    pub blocks_cleansed_for_scans: AtomicU64,
    pub moved_for_scans: AtomicU64,
}

#[derive(Default)]
struct Control {
    stop: bool,
    /// A flush is at work, perhaps when its queue is in the trees already.
    at_work: bool,
    /// Counts flushes that are over with all that belongs to them, and have succeeded.
    ended: u64,
    /// Counts failed tries, so that whoever waits sees a new one.
    failures: u64,
    failure: Option<Error>,
}

impl FlushControl {
    pub fn new(in_background: bool) -> Self {
        Self {
            in_background,
            inner: Mutex::default(),
            changed: Condvar::new(),
            sweep: Mutex::default(),
            advisor: Mutex::default(),
            in_portions: AtomicBool::new(false),
            newest: AtomicU64::new(1000),
            flushes: AtomicU64::new(0),
            portions: AtomicU64::new(0),
            data_bytes: AtomicU64::new(0),
            collected_bytes: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            change_bytes: AtomicU64::new(0),
            blocks_appended: AtomicU64::new(0),
            blocks_cleansed: AtomicU64::new(0),
            blocks_cleansed_for_scans: AtomicU64::new(0),
            moved_for_scans: AtomicU64::new(0),
        }
    }

    /// These blocks are cleansed because of the rent that was paid for them.
    pub fn cleansed_for_scans(&self, rents: &Rents, paid: &[Paid]) {
        self.blocks_cleansed_for_scans.fetch_add(paid.len() as u64, Relaxed);
        for Paid { area, price } in paid {
            self.moved_for_scans.fetch_add(*price, Relaxed);
            rents.settle(area.rent());
        }
    }

    pub fn in_background(&self) -> bool {
        self.in_background
    }

    pub fn notify(&self) {
        let _guard = self.inner.lock();
        self.changed.notify_all();
    }

    /// Whether the background thread has been told to stop.
    pub fn stops(&self) -> bool {
        self.inner.lock().stop
    }

    pub fn stop(&self) {
        self.inner.lock().stop = true;
        self.changed.notify_all();
    }
}

/// The sync of the log that a frozen queue came from.
enum SyncLog<'a> {
    /// On its way, and to be waited for.
    Begun(Wait<'a>),
    /// Only before a portion that is not all.
    IfNeeded,
    Done,
}

impl Engine {
    /// What the background thread does until it is told to stop.
    pub fn flush_loop(&self) {
        let mut idle = Idle::default();
        loop {
            {
                let mut control = self.flush.inner.lock();
                while !control.stop && (self.state.load().frozen.is_none() || self.check_writable().is_err())
                {
                    // However often it is woken in between.
                    let left = idle.left();
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
            if let Err(error) = self.flush_now()
                && error.is_disk_full()
            {
                let mut control = self.flush.inner.lock();
                if !control.stop {
                    self.flush.changed.wait_for(&mut control, RETRY);
                }
            }
            idle.flushed(self.visible());
        }
    }

    /// Waits for so long, or until there is something to flush.
    pub fn rest(&self, time: Duration) {
        let mut control = self.flush.inner.lock();
        // Whoever freezes a queue takes this lock to tell of it, afterwards.
        if !control.stop && self.state.load().frozen.is_none() {
            self.flush.changed.wait_for(&mut control, time);
        }
    }

    /// Flushes the frozen queue, if there is one, in this thread.
    pub fn flush_now(&self) -> Result<()> {
        let mut guard = self.writer()?;
        let writer = guard.get()?;
        self.flush.inner.lock().at_work = true;
        let result = self.check_writable().and_then(|()| self.flush_frozen(writer));
        self.pace.end();
        {
            let mut control = self.flush.inner.lock();
            control.at_work = false;
            control.ended += u64::from(result.is_ok());
        }
        self.flush.data_bytes.store(writer.bytes_written(), Relaxed);
        if let Err(error) = &result {
            self.yield_to(error);
            let mut control = self.flush.inner.lock();
            control.failures += 1;
            control.failure = Some(error.clone());
        }
        drop(guard);
        self.flush.notify();
        result
    }

    /// Waits until no queue is frozen. An error if the flush failed since.
    pub fn wait_for_flush(&self) -> Result<()> {
        self.wait_until(|_| self.state.load().frozen.is_none())
    }

    /// How many flushes will have ended when the one that is at work is over.
    fn flushes_begun(&self) -> u64 {
        let control = self.flush.inner.lock();
        control.ended + u64::from(control.at_work)
    }

    fn wait_until(&self, is_done: impl Fn(&Control) -> bool) -> Result<()> {
        if !self.flush.in_background {
            return self.flush_now();
        }
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
            self.wait_for_flush()?;
            let guard = self.log.lock();
            let state = self.state.load();
            if state.frozen.is_some() {
                continue;
            }
            if state.active.is_empty() {
                drop(guard);
                let end = self.flushes_begun();
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
        let end = self.flushes_begun() + 1;
        self.freeze(log)?;
        drop(guard);
        self.wait_until(|control| control.ended >= end)
    }

    fn flush_frozen(&self, writer: &mut Writer) -> Result<()> {
        let Some(frozen) = self.state.load().frozen.clone() else { return Ok(()) };
        self.pace.begin();
        self.slots.begin_round();
        let mut sweep = self.flush.sweep.lock();
        let rent = self.pager.rents.unsettled();
        // Of a key that was changed several times only the newest version comes to the trees.
        let bytes = frozen.queue.bytes() / 1000 * self.flush.newest.load(Relaxed);
        let share = self.flush.advisor.lock().share(bytes, rent);
        sweep.begin(bytes, share);
        let wal_low = frozen.wal_low;
        let expected = bytes + sweep.expected();
        let before = self.flush.change_bytes.load(Relaxed);
        let is_whole = frozen.resume.lock().is_none();
        // In the foreground everything happens in one order, always the same.
        let sync = || self.sync_log_below(wal_low);
        let renew = || self.renew_records(&frozen.queue);
        let written = if self.flush.in_background {
            std::thread::scope(|scope| {
                let is_early = self.is_log_synced_early(wal_low);
                let sync_log = if is_early {
                    SyncLog::Begun(beside(scope, "sapwood-sync", sync))
                } else {
                    SyncLog::IfNeeded
                };
                let renewal = beside(scope, "sapwood-records", renew);
                self.flush_portions(writer, &frozen, &mut sweep, sync_log, renewal, expected)
            })?
        } else {
            let renewal = Box::new(renew);
            self.flush_portions(writer, &frozen, &mut sweep, SyncLog::IfNeeded, renewal, expected)?
        };
        self.flush.flushes.fetch_add(1, Relaxed);
        let newest = (self.flush.change_bytes.load(Relaxed) - before) * 1000;
        let newest = newest.checked_div(frozen.queue.bytes()).unwrap_or(1000).clamp(1, 1000);
        if is_whole {
            self.flush.newest.store(newest, Relaxed);
        }
        drop(frozen);
        self.balance_memory();
        self.shorten_log(wal_low);
        // Whoever has waited for the queue goes on.
        self.flush.notify();
        let due = sweep.take_due();
        let collected = self.collect(writer).map(|()| self.reclaim(self.slots_to_keep(false)));
        let left = match collected.and_then(|()| self.cleanse_due(writer, &due, written)) {
            // The queue is in the trees; the rest has time.
            Err(error) if error.is_disk_full() => {
                self.reclaim(0);
                0
            }
            left => left?,
        };
        sweep.end(&due[due.len() - left..]);
        self.pace.learn((self.state.load().active.fill(), self.shares.queue), (left, due.len()));
        Ok(())
    }

    /// Takes the queue to the trees. Says how many bytes of nodes it wrote.
    fn flush_portions(
        &self,
        writer: &mut Writer,
        frozen: &Frozen,
        sweep: &mut Sweep,
        mut sync_log: SyncLog<'_>,
        renewal: Wait<'_>,
        expected: u64,
    ) -> Result<u64> {
        // A flush that was interrupted has published something.
        self.flush.in_portions.store(frozen.resume.lock().is_some(), Relaxed);
        let (mut written, mut renewal) = (0, Some(renewal));
        let mut sample = Some(Sample::of(frozen.queue.count()));
        loop {
            let taken = Cell::new(0);
            let tell = |change: &OperationRef<'_>| {
                if let Some(sample) = &mut sample {
                    sample.see(change);
                }
                let before = taken.get();
                taken.set(before + bytes_of(change));
                if before / STEP < taken.get() / STEP {
                    self.pace.report(written + taken.get(), expected);
                }
            };
            let changes = frozen.queue.newest(frozen.resume.lock().clone());
            let mut changes = changes.inspect(tell).peekable();
            let base = Arc::clone(&self.state.load().version);
            let budget = (base.live_bytes() / 8).clamp(*PORTION.start(), *PORTION.end());
            let mut attempt = Attempt::begin(base, &self.pager, writer);
            let (mut portion_changes, mut portion_bytes) = (0, 0);
            let nodes = self.nodes_max();
            let (mut tail_left, mut rewrite) = (nodes * self.shares.node_len.leaf as u64, budget);
            let mut last_keyspace = None;
            let mut next = None;
            // A tree is touched once in an attempt.
            while next.is_none()
                && let Some(keyspace) = changes.peek().map(|next| next.keyspace)
                && last_keyspace.replace(keyspace) != Some(keyspace)
            {
                let limits = Budget { rewrite, hold: self.shares.hold, nodes: nodes as usize };
                let routed = route(&mut attempt, keyspace, &mut changes, sweep, limits)?;
                portion_changes += routed.changes;
                portion_bytes += routed.bytes;
                rewrite = rewrite.saturating_sub(routed.promised);
                self.flush.blocks_appended.fetch_add(routed.appended, Relaxed);
                self.flush.blocks_cleansed.fetch_add(routed.cleansed, Relaxed);
                next = routed.left.map(|key| (keyspace, key));
                let (mut tail_changes, mut copies) = (0, Copies::default());
                let tail = std::iter::from_fn(|| {
                    let is_next = |next: &OperationRef<'_>| next.keyspace == keyspace && tail_left > 0;
                    let change = changes.next_if(|next| routed.is_tail && is_next(next))?;
                    let value = change.value.map_or(0, <[u8]>::len);
                    tail_left = tail_left.saturating_sub(entry_len(change.key.len(), value) as u64);
                    tail_changes += 1;
                    portion_bytes += bytes_of(&change);
                    Some(copies.copy(change))
                });
                let mut to_leaves = routed.rewrite.into_iter().chain(tail).peekable();
                if to_leaves.peek().is_some() {
                    bupdate(&mut attempt, keyspace, &mut to_leaves, self.shares.node_len)?;
                }
                drop(to_leaves);
                portion_changes += tail_changes;
            }
            let rest = || changes.peek().map(|next| (next.keyspace, Bytes::copy_from_slice(next.key)));
            let next = next.or_else(rest);
            drop(changes);
            let base = attempt.base();
            if let Some(sample) = sample.take().filter(|_| base.logs.totals().bytes > 0)
                && let Ok(Some(percent)) = sample.new_percent(&self.pager, base)
            {
                self.flush.advisor.lock().note_new(percent);
            }
            if next.is_none() {
                renewal.take().map_or(Ok(()), |wait| wait())?;
                let edit = attempt.edit_mut();
                edit.flushed_seq = Some(frozen.last_seq);
                edit.wal_low = Some(frozen.wal_low);
            }
            written += attempt.bytes();
            if next.is_some() {
                self.flush.in_portions.store(true, Relaxed);
            }
            match std::mem::replace(&mut sync_log, SyncLog::Done) {
                SyncLog::Begun(wait) => wait()?,
                SyncLog::IfNeeded if next.is_some() => self.sync_log_below(frozen.wal_low)?,
                SyncLog::IfNeeded | SyncLog::Done => {}
            }
            let trees = if next.is_none() { Trees::Flushed } else { Trees::Same };
            self.commit_attempt(attempt, trees)?;
            self.pace.report(written, expected);
            self.flush.portions.fetch_add(1, Relaxed);
            self.flush.changes.fetch_add(portion_changes, Relaxed);
            self.flush.change_bytes.fetch_add(portion_bytes, Relaxed);
            if next.is_none() {
                return Ok(written);
            }
            *frozen.resume.lock() = next;
            self.collect(writer)?;
            self.reclaim(self.slots_to_keep(false));
        }
    }

    /// Tells the record cache of all that comes to the trees, before readers look there for it.
    fn renew_records(&self, queue: &Opq) -> Result<()> {
        let records = self.pager.cache.records();
        if records.is_used() {
            for OperationRef { keyspace, key, value } in queue.newest(None) {
                records.renew(keyspace, key, value);
            }
        }
        Ok(())
    }

    /// Nodes that an attempt writes (count). The list of them waits in memory, and has to fit into one edit.
    fn nodes_max(&self) -> u64 {
        (self.shares.memory / 32 / NODE_LISTED).min(EDIT_MAX as u64 / 4 / NODE_IN_EDIT)
    }

    /// Whether the log of the frozen queue is to be synced beside the first portion: others will follow, or commits are durable one by one,
    /// and the next of them would have to wait for it.
    fn is_log_synced_early(&self, wal_low: u64) -> bool {
        let has_durable = |log: &Log| log.wal.has_synced_below(wal_low);
        self.flush.in_portions.load(Relaxed) || self.log.lock().as_ref().is_some_and(has_durable)
    }

    /// Makes the log durable that the frozen queue came from.
    fn sync_log_below(&self, wal_low: u64) -> Result<()> {
        let unsynced = self.log.lock().as_ref().map(|log| log.wal.unsynced()).unwrap_or_default();
        for (generation, file) in unsynced.into_iter().filter(|(generation, _)| *generation < wal_low) {
            self.volume.sync(file).map_err(|error| {
                let error = Error::undecided(error);
                // Whatever becomes of the flush: another sync of the file would not tell of this any more.
                self.poison(&error);
                error
            })?;
            if let Some(log) = self.log.lock().as_mut() {
                log.wal.mark_synced(generation);
            }
        }
        Ok(())
    }

    /// Makes an attempt durable and visible.
    pub fn commit_attempt(&self, mut attempt: Attempt<'_>, trees: Trees) -> Result<()> {
        let Sealed { edit, begun, maplets } = attempt.seal()?;
        if !edit.set.is_empty() {
            self.volume.sync(self.data).map_err(|error| {
                let error = Error::undecided(error);
                self.poison(&error);
                error
            })?;
        }
        self.publish(edit, With { begun: &begun, maplets: &maplets, trees })?;
        attempt.committed();
        Ok(())
    }

    /// Copies what lives out of the poorest segments until the space is within its target.
    pub fn collect(&self, writer: &mut Writer) -> Result<()> {
        loop {
            let base = Arc::clone(&self.state.load().version);
            let budget = (base.live_bytes() / 8).clamp(*PORTION.start(), *PORTION.end());
            let victims = garbage_collection::choose(&base, budget);
            if victims.is_empty() {
                return Ok(());
            }
            let mut attempt = Attempt::begin(base, &self.pager, writer);
            garbage_collection::evacuate(&mut attempt, &victims)?;
            self.flush.collected_bytes.fetch_add(attempt.bytes(), Relaxed);
            self.commit_attempt(attempt, Trees::Same)?;
            self.reclaim(self.slots_to_keep(false));
        }
    }

    /// Free slots whose space is kept for the writer, so that it need not be given back and asked for again, for which both the
    /// collector and the writer would wait: a 128th of what lives, since a segment has a 1024th of it; and, unless nobody writes, as many
    /// as this flush or the one before had in use at some time.
    pub fn slots_to_keep(&self, is_idle: bool) -> usize {
        let version = &self.state.load().version;
        let live = version.live_bytes();
        let again = if is_idle || !self.flush.in_background { 0 } else { self.slots.below_peak() };
        (live / 128 / segment_capacity(live, version.span)) as usize + again
    }

    /// After work in the background failed: a full disk gets all space back that can be spared, after anything else writes are
    /// refused.
    pub fn yield_to(&self, error: &Error) {
        if error.is_disk_full() {
            self.reclaim(0);
        } else {
            self.poison(error);
        }
    }

    /// Gives the space of free slots back to the file system, all but `keep`.
    pub fn reclaim(&self, keep: usize) {
        let span = self.state.load().version.span;
        let slots = self.slots.take_dirty(keep);
        for slot in &slots {
            let start = u64::from(*slot) * span;
            if let Err(error) = self.volume.release(self.data, start..start + span) {
                tracing::warn!(%error, slot, "the space of a free slot was not given back");
            }
        }
        self.slots.cleaned(slots);
    }

    /// Removes generations of the log that are no longer needed.
    fn shorten_log(&self, low: u64) {
        let Some(old) = self.log.lock().as_mut().map(|log| log.wal.take_below(low)) else { return };
        // Nobody waits for the log meanwhile: what goes may have many pages that are not written.
        let (left, result) = old.remove(&*self.volume);
        if let Some(log) = self.log.lock().as_mut() {
            log.wal.put_back(left);
        }
        if let Err(error) = result {
            tracing::warn!(%error, "an old part of the log was not removed; the next open does it");
        }
    }
}
