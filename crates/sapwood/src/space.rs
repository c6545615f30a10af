//! Disk space: how much a portion of work may take before the old copies die, the collector that keeps space
//! within its target, and giving free space back to the file system.

use crate::budget::Need;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::publish::Trees;
use crate::store::attempt::Attempt;
use crate::store::edit::NODE_IN_EDIT;
use crate::store::garbage_collection::{self, Patience};
use crate::store::manifest::EDIT_MAX;
use crate::store::writer::{Writer, segment_capacity};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes per portion, except in flushes: an eighth of the live bytes, within these limits.
pub(crate) const PORTION: std::ops::RangeInclusive<u64> = (256 << 10)..=(8 << 20);
/// The maximum per portion for cleansing what a flush found due. Each portion copies a good part of a large
/// mapping table, so fewer are better. The next queue hardly waits for a portion, since it is appended ahead
/// beside it.
pub(crate) const DUE_MAX: u64 = 16 << 20;

/// Bytes of memory that a new node takes until it is published.
const NODE_LISTED: u64 = 300;

/// Number of slots whose space is given back before checking again whether more is needed, or other work is
/// due.
pub(crate) const SLOTS: usize = 16;
/// Fraction of the active queue's capacity at which writers will soon stop and wait for the flush thread.
const NEARLY_FULL: (usize, usize) = (7, 8);
/// Slots that a running flush keeps when the log runs out of space: for a small portion, and what the collector
/// copies of it.
const SLOTS_OF_A_FLUSH: usize = 4;

/// Bytes that a portion writes in a database with `live` bytes.
pub(crate) fn portion(live: u64) -> u64 {
    (live / 8).clamp(*PORTION.start(), *PORTION.end())
}

/// The same for a flush. A flush in a single portion needs no sync of the log, so a large database spends up to
/// four percent of its space on it. If that space is not available, the flush uses smaller portions.
pub(crate) fn flush_portion(live: u64) -> u64 {
    portion(live).max(live / 24)
}

impl Engine {
    /// The number of nodes that an attempt may write. Their list is held in memory, and must fit into one edit.
    pub fn nodes_max(&self) -> u64 {
        (self.shares.memory / 32 / NODE_LISTED).min(EDIT_MAX as u64 / 4 / NODE_IN_EDIT)
    }

    /// Bytes that a portion of cleansing writes in a database with `live` bytes.
    pub fn cleansing_portion(&self, live: u64) -> u64 {
        self.cleansing_portion_of(live, *PORTION.end())
    }

    /// Like `cleansing_portion`, with the limit `most`. Also limited so that the list of nodes and the data on
    /// its way fit into memory, and by the shortage limit while the disk is full.
    pub fn cleansing_portion_of(&self, live: u64, most: u64) -> u64 {
        let listed = self.nodes_max() * self.shares.node_len.leaf as u64;
        let held = (4 * self.shares.hold).max(*PORTION.start());
        let portion = (live / 8).clamp(*PORTION.start(), most.max(*PORTION.start()));
        portion.min(listed).min(held).min(self.flush.shortage.limit())
    }

    /// Whether there is more dead space than `patience` tolerates.
    pub fn has_to_collect(&self, patience: Patience) -> bool {
        garbage_collection::excess(&self.state.load().version, patience) > 0
    }

    /// The maximum memory that the collector takes.
    pub fn collecting_max(&self) -> Need {
        self.shares.work(0, u64::MAX)
    }

    /// Whether anyone waits for the collector: a writer, or the thread that closes the database.
    fn is_hurried(&self) -> bool {
        self.flush.stops() || self.are_writers_pressed()
    }

    /// Copies live nodes out of the segments with the least live data until space is within its target, or
    /// within a looser bound while anyone waits.
    fn collect(&self, writer: &mut Writer, patience: Patience) -> Result<()> {
        loop {
            let base = Arc::clone(&self.state.load().version);
            let budget = portion(base.live_bytes()).min(self.flush.shortage.limit());
            let patience = if self.is_hurried() { Patience::InAHurry } else { patience };
            let victims = garbage_collection::choose(&base, patience, budget);
            if victims.is_empty() {
                return Ok(());
            }
            let tell = |bytes| self.pace.copied(bytes);
            let mut attempt = Attempt::begin(base, &self.pager, &mut *writer).telling(&tell);
            garbage_collection::evacuate(&mut attempt, &victims)?;
            self.flush.counters.collected_bytes.fetch_add(attempt.bytes(), Relaxed);
            self.commit_attempt(attempt, Trees::Same)?;
            self.reclaim_by_steps(false);
        }
    }

    /// Whether writers wait for the flush thread, or soon will: a queue is frozen that the flush has not begun,
    /// or the active queue is nearly full. False while disk space is short, since the collector is then needed
    /// to make progress.
    pub fn are_writers_pressed(&self) -> bool {
        if !self.flush.in_background() || self.flush.shortage.limit() != u64::MAX {
            return false;
        }
        let state = self.state.load();
        let has_next = state.frozen.as_ref().is_some_and(|frozen| frozen.resume.lock().is_none());
        has_next || state.active.fill() >= self.queue_max(&state) / NEARLY_FULL.1 * NEARLY_FULL.0
    }

    /// Gives back free slots, some at a time, but for those [to keep](Engine::slots_to_keep). Stops while writers are
    /// pressed.
    pub fn reclaim_by_steps(&self, is_idle: bool) {
        while !self.are_writers_pressed() && self.reclaim_some(self.slots_to_keep(is_idle), SLOTS) > 0 {}
    }

    /// Number of free slots whose space is kept for the writer. Giving space back and allocating it again would
    /// delay both the collector and the writer. Keeps a 128th of the live bytes (a segment has a 1024th of
    /// them) and, unless idle, as many more slots as are missing to the peak use during this flush or the
    /// previous one.
    pub fn slots_to_keep(&self, is_idle: bool) -> usize {
        let version = &self.state.load().version;
        let live = version.live_bytes();
        let again = if is_idle || !self.flush.in_background() { 0 } else { self.slots.below_peak() };
        (live / 128 / segment_capacity(live, version.span)) as usize + again
    }

    /// Handles a failure of background work: on a full disk, gives back all space that can be spared; any other
    /// error poisons the engine.
    pub fn yield_to(&self, error: &Error) {
        if error.is_disk_full() {
            self.make_room();
        } else {
            self.poison(error);
        }
    }

    /// Runs `work`, which is refused if writes are. If it fails, other than for a full disk, the engine is
    /// poisoned.
    pub fn or_poison<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_writable().and_then(|()| work()).inspect_err(|error| self.yield_to(error))
    }

    /// The disk is full: gives back all space that can be spared.
    pub fn make_room(&self) {
        self.give_up_next_manifest();
        self.reclaim(0);
    }

    /// Abandons the next manifest, and returns whether there was one. Skips if the manifest is locked: the
    /// thread that is publishing will find out itself that there is no space.
    fn give_up_next_manifest(&self) -> bool {
        let Some(mut guard) = self.manifest.try_lock() else { return false };
        let Some(manifest) = guard.as_mut().filter(|manifest| manifest.has_next()) else { return false };
        manifest.give_up_for_space();
        true
    }

    /// Gives the space of all free slots but `keep` back to the file system, with one call of some milliseconds
    /// per slot. Only for a full disk and for closing, where waiting threads could not go on without it.
    /// Elsewhere, space is given back in steps.
    pub fn reclaim(&self, keep: usize) {
        self.reclaim_some(keep, usize::MAX);
    }

    /// Gives back at most `most` slots. Returns how many were given back.
    pub fn reclaim_some(&self, keep: usize, most: usize) -> usize {
        loop {
            let slots = self.slots.take_dirty(keep, most);
            // After a failed manifest write it is unknown whether the next open will see an edit that needs
            // these slots. A failing thread poisons the engine before it returns its slots, so this check is
            // not too early.
            if self.check_writable().is_err() {
                self.slots.still_dirty(slots);
                return 0;
            }
            if slots.is_empty() {
                return 0;
            }
            let given_back = slots.iter().filter(|slot| self.release(**slot)).count();
            // Those that keep their space as well, or they would be tried again and again: it serves whoever
            // takes the slot next.
            self.slots.cleaned(slots);
            if given_back > 0 {
                return given_back;
            }
        }
    }

    /// Gives a slot's space back. Returns whether that was possible.
    fn release(&self, slot: u32) -> bool {
        let span = self.state.load().version.span;
        let start = u64::from(slot) * span;
        let released = self.volume.release(self.data, start..start + span);
        released
            .inspect_err(|error| tracing::warn!(%error, slot, "the space of a free slot was not given back"))
            .is_ok()
    }

    /// Runs work on the log. If the disk is full, gives the log the space that is kept for the trees, a little
    /// at a time, and tries again. Keeps what a running flush needs to finish, since only flushes shorten the
    /// log.
    pub fn with_kept_space<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match work() {
                Err(error) if error.is_disk_full() => {
                    let is_frozen = self.state.load().frozen.is_some();
                    let keep = if is_frozen { self.slots_to_keep(true).max(SLOTS_OF_A_FLUSH) } else { 0 };
                    if self.reclaim_some(keep, SLOTS) == 0 && !self.give_up_next_manifest() {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Whether more space is kept than an idle database needs, and it may be given back.
    pub fn keeps_space(&self) -> bool {
        self.slots.dirty_count() > self.slots_to_keep(true) && self.check_writable().is_ok()
    }

    /// Cleans up after an attempt has made nodes dead: collects, and gives space back. Both stop early while
    /// writers are pressed.
    pub fn tidy_up(&self, writer: &mut Writer, patience: Patience) -> Result<()> {
        self.collect(writer, patience)?;
        self.reclaim_by_steps(false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleansing::tests::{cleansed, with_due};
    use crate::store::garbage_collection::allowance_of;
    use crate::store::log_area::LAYERS_MAX;
    use crate::store::manifest;
    use crate::store::pager::Gather;
    use crate::store::writer::PAGE;
    use crate::{Database, Keyspace};
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
    use std::collections::HashSet;

    #[test]
    fn space_that_was_not_given_back_does_not_count() {
        let volume = Simulated::new(1);
        let (db, _keyspace, _) = with_due(&volume, 0, 80_000);
        db.compact().unwrap();
        let engine = &db.handle.engine;
        let slots = engine.slots.take_dirty(0, usize::MAX).len() as u32;
        let dirty = |more: std::ops::Range<u32>| engine.slots.still_dirty((100..110).chain(more).collect());
        let fail = |nth, repeat| {
            volume.fail_nth(Filter::kinds([OperationKind::Release]), nth, Fault::Error, repeat);
        };
        dirty(200..210);
        fail(1, Repeat::Sticky);
        assert_eq!(engine.reclaim_some(10, usize::MAX), 0, "of {slots} slots");
        assert_eq!(engine.slots.dirty_count(), 10, "they are not tried again");
        volume.clear_faults();
        dirty(0..0);
        fail(1, Repeat::Once);
        assert_eq!(engine.reclaim_some(0, 1), 1, "the next one");
        assert!(engine.slots.dirty_count() < 10);
    }

    #[test]
    fn while_writers_are_pressed_nothing_is_collected_or_given_back_that_is_bearable() {
        for (records, is_bearable) in [(80_000, true), (200_000, false)] {
            let (db, keyspace, due) = with_due(&Simulated::new(1), 1, records);
            let engine = &db.handle.engine;
            // The flushing thread waits for the writer as long as this thread has it.
            let mut guard = engine.writer(Need::default()).unwrap();
            let writer = guard.get().unwrap();
            let mut left = &due[..];
            while !left.is_empty() {
                left = engine.cleanse_portion(writer, left, u64::MAX).unwrap();
            }
            let is_within = |patience| {
                let version = &engine.state.load().version;
                version.used_bytes() <= allowance_of(version, patience)
            };
            let collected = || engine.flush.counters.collected_bytes.load(Relaxed);
            assert!(!is_within(Patience::AtRest));
            assert_eq!(is_within(Patience::InAHurry), is_bearable);
            keyspace.insert("key", "value").unwrap();
            assert!(!engine.are_writers_pressed());
            engine.freeze(engine.log.lock().as_mut().unwrap()).unwrap();
            assert!(engine.are_writers_pressed());
            let (before, dirty) = (collected(), engine.slots.dirty_count());
            engine.tidy_up(writer, Patience::AtRest).unwrap();
            // What is more than bearable is collected nevertheless, and no more.
            assert_eq!(collected() == before && engine.slots.dirty_count() == dirty, is_bearable);
            assert!(is_within(Patience::InAHurry) && !is_within(Patience::AtRest));
            // And the rest when nobody is pressed any more.
            drop(guard);
            db.flush().unwrap();
            assert!(is_within(Patience::AtWork));
        }
    }

    #[test]
    fn who_closes_does_not_wait_for_the_collector_where_the_space_is_bearable() {
        for stops in [true, false] {
            let db = cleansed(80_000);
            let engine = &db.handle.engine;
            if stops {
                engine.flush.stop();
            }
            let mut guard = engine.writer(Need::default()).unwrap();
            engine.tidy_up(guard.get().unwrap(), Patience::AtRest).unwrap();
            drop(guard);
            assert_eq!(engine.has_to_collect(Patience::AtRest), stops);
        }
    }

    /// Readers would have to read it once more only because it lies elsewhere.
    #[test]
    fn what_is_cached_stays_so_when_the_collector_moves_it() {
        let db = cleansed(80_000);
        let engine = &db.handle.engine;
        let version = || Arc::clone(&engine.state.load().version);
        let (before, pager) = (version(), &engine.pager);
        let mut nodes: Vec<_> = before.table.iter().collect();
        nodes.sort_unstable_by_key(|(_, address)| address.position);
        let leaves: Vec<_> = nodes.iter().copied().step_by(20).collect();
        for ((_, address), leaf) in
            leaves.iter().zip(pager.fetch(&before.segments, &leaves, Gather::Runs).unwrap())
        {
            pager.admit(address.position, leaf);
        }
        let is_cached: Vec<_> = nodes.iter().map(|(_, old)| pager.cached(*old).is_some()).collect();
        let cached = is_cached.iter().filter(|is_cached| **is_cached).count();
        assert!(cached >= leaves.len() && cached * 2 < nodes.len(), "{cached} of {}", nodes.len());
        let all: Vec<_> = before.segments.iter().map(|entry| entry.segment.number).collect();
        let mut guard = engine.writer(Need::default()).unwrap();
        let bytes = pager.cache.bytes();
        for succeeds in [false, true] {
            let mut attempt = Attempt::begin(version(), pager, guard.get().unwrap());
            garbage_collection::evacuate(&mut attempt, &all).unwrap();
            if succeeds {
                engine.commit_attempt(attempt, Trees::Same).unwrap();
            } else {
                drop(attempt);
            }
            assert_eq!(pager.cache.bytes(), bytes);
        }
        let after = version();
        for ((id, old), is_cached) in nodes.into_iter().zip(is_cached) {
            let new = after.table.address(id).unwrap();
            assert!(new.position != old.position && pager.cached(old).is_none());
            assert_eq!(pager.cached(new).is_some(), is_cached);
        }
    }

    /// A flush takes four percent of a large database at a time; where that does not fit, it takes as little as of a small one.
    #[test]
    fn there_may_be_space_for_a_small_portion_where_there_is_none_for_a_large_one() {
        let volume = Simulated::new(1);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = Database::builder().memory(128 << 20).background_threads(0).open_on(shared).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..24_000u32).map(|number| (number.to_be_bytes(), vec![7; 16 << 10]))).unwrap();
        for number in (0..24_000u32).step_by(26) {
            keyspace.insert(number.to_be_bytes(), vec![8; 16 << 10]).unwrap();
        }
        let engine = &db.handle.engine;
        assert!(flush_portion(engine.state.load().version.live_bytes()) > 15 << 20);
        let portions = || db.stats().writes.portions;
        let before = portions();
        volume.set_capacity(volume.used() + (12 << 20));
        assert!(db.flush().unwrap_err().is_disk_full());
        assert_eq!(portions(), before + 1, "one of 8 MiB had space");
        let wal_low = engine.state.load().frozen.as_ref().unwrap().wal_low;
        let unsynced = engine.log.lock().as_ref().unwrap().wal.unsynced();
        assert!(unsynced.iter().all(|old| old.generation() >= wal_low), "it is not all of the queue");
        assert!(engine.flush.shortage.is_careful());
        volume.set_capacity(u64::MAX);
        db.flush().unwrap();
        assert_eq!(db.check().unwrap().records, 24_000);
    }

    /// What the large portion had noted as due was there a second time, and was to be cleansed twice.
    #[test]
    fn what_is_due_is_so_once_if_a_portion_is_tried_again() {
        let volume = Simulated::new(1);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = Database::builder().memory(64 << 20).background_threads(0).open_on(shared).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..230_000u32).map(|number| (number.to_be_bytes(), vec![7; 1000]))).unwrap();
        let engine = &db.handle.engine;
        let live = engine.state.load().version.live_bytes();
        assert!(flush_portion(live) > portion(live));
        let mut cleansed = 0;
        for flush in 0..LAYERS_MAX as u32 {
            // A layer for each block, which is due when it has many.
            let mut batch = db.batch();
            for number in (flush..230_000).step_by(300) {
                batch.insert(&keyspace, number.to_be_bytes(), vec![8; 1000]);
            }
            batch.commit().unwrap();
            if flush == 52 {
                // When all of them are noted.
                let manifest = engine.manifest.lock();
                let manifest = manifest.as_ref().unwrap();
                let name = manifest::file_name(manifest.current().manifest);
                // Once more if a next one can be given up for it.
                for nth in 1..=1 + u64::from(manifest.has_next()) {
                    let writes = Filter::kinds([OperationKind::Write]).file(name.clone());
                    volume.fail_nth(writes, nth, Fault::NoSpace, Repeat::Once);
                }
            }
            let before = db.stats().writes;
            db.flush().unwrap();
            let after = db.stats().writes;
            if flush == 52 {
                cleansed = after.blocks_cleansed - before.blocks_cleansed;
            }
            assert_eq!(engine.flush.shortage.is_careful(), flush >= 52);
        }
        assert!(cleansed > 20, "{cleansed}");
        assert_eq!(db.check().unwrap().records, 230_000);
    }

    const RECORDS: u64 = 100_000;

    fn put(db: &Database, keyspace: &Keyspace, numbers: impl Iterator<Item = u64>) {
        let mut batch = db.batch();
        // Scattered.
        numbers.for_each(|number| {
            batch.insert(keyspace, number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes(), [7; 108]);
        });
        batch.commit().unwrap();
    }

    /// Each run of leaves that is written together ends with two that are not full, and behind these all lay across two pages for long.
    #[test]
    fn leaves_lie_within_pages_and_little_is_wasted_for_it() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(6 << 20).background_threads(0).open_on(volume).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        let look = |what: &str| {
            let version = Arc::clone(&db.handle.engine.state.load().version);
            let pieces: HashSet<_> = version.logs.iter().flat_map(|(_, area)| area.pieces()).collect();
            let (mut leaves, mut across) = (0, 0);
            for (_, address) in version.table.iter().filter(|(id, _)| !pieces.contains(id)) {
                leaves += 1;
                across += u64::from(address.position.0 % PAGE + u64::from(address.len) > PAGE);
            }
            assert!(leaves > 1500 && across * 20 < leaves, "{what}: {across} of {leaves}");
        };
        (0..RECORDS / 500).for_each(|batch| put(&db, &keyspace, batch * 500..(batch + 1) * 500));
        db.flush().unwrap();
        look("loaded");
        for batch in 0..RECORDS / 500 {
            put(&db, &keyspace, (0..500).map(|number| (batch * 500 + number) * 7919 % RECORDS));
        }
        db.flush().unwrap();
        look("updated");
        db.compact().unwrap();
        look("compacted");
        let version = Arc::clone(&db.handle.engine.state.load().version);
        // What is dead aside: the newest segments are as they were written.
        let whole = version.segments.iter().filter(|entry| entry.live * 10 > entry.used * 9);
        let (used, live) = whole.fold((0, 0), |(used, live), entry| (used + entry.used, live + entry.live));
        assert!(live > 2 << 20 && used - live < live / 20, "{used} bytes for {live}");
    }
}
