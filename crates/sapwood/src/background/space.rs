//! Disk space: how much a portion of work may take before the old copies die, and giving free space back to the file
//! system. ([`crate::background::collect`] keeps space within its target.)

use crate::engine::Engine;
use crate::engine::reserve::Work;
use crate::error::{Error, Result};
use crate::storage::segment::{Extent, granules};
use crate::storage::writer::segment_capacity;
use crate::version::edit::NODE_IN_EDIT;
use crate::version::manifest::EDIT_MAX;

/// Bytes per portion, except in flushes: an eighth of the live bytes, within these limits.
pub(crate) const PORTION: std::ops::RangeInclusive<u64> = (256 << 10)..=(8 << 20);
/// The maximum per portion for cleansing what a flush found due. Each portion copies a good part of a large
/// mapping table, so fewer are better. The next queue hardly waits for a portion, since it is appended ahead
/// beside it.
pub(crate) const DUE_MAX: u64 = 16 << 20;

/// Bytes of memory that a new node takes until it is published.
const NODE_LISTED: u64 = 300;

/// Number of granules (64 MiB) whose space is given back before checking again whether more is needed, or other work
/// is due.
pub(crate) const GRANULES: usize = 1024;
/// Fraction of the active queue's capacity at which writers will soon stop and wait for the flush thread.
const NEARLY_FULL: (usize, usize) = (7, 8);
/// Segments whose space a running flush keeps when the log runs out of space: for a small portion, and what the
/// collector copies of it.
const SEGMENTS_OF_A_FLUSH: u64 = 4;

/// A log of so many bytes is flushed before a put is refused, since the reserve need then be shorter by as much. After
/// less the next put would be refused as well.
const LOG_WORTH_A_FLUSH: u64 = 64 << 10;

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
        let buffered = (4 * self.shares.hold).max(*PORTION.start());
        let portion = (live / 8).clamp(*PORTION.start(), most.max(*PORTION.start()));
        portion.min(listed).min(buffered).min(self.flush.shortage.limit())
    }

    /// Whether writers wait for the flush thread, or soon will: a queue is frozen that the flush has not begun,
    /// or the active queue is nearly full. False while disk space is short, since the collector is then needed
    /// to make progress.
    pub fn are_writers_pressed(&self) -> bool {
        let is_short = self.flush.shortage.limit() != u64::MAX || !self.reserve.is_whole();
        if !self.flush.in_background() || is_short {
            return false;
        }
        let state = self.state.load();
        let has_next = state.frozen.as_ref().is_some_and(|frozen| frozen.resume.lock().is_none());
        has_next || state.active.fill() >= self.memory.queue_max(&state) / NEARLY_FULL.1 * NEARLY_FULL.0
    }

    /// Gives back free space, some at a time, but for what is [to keep](Engine::granules_to_keep). Stops while writers are
    /// pressed.
    pub fn reclaim_by_steps(&self, is_idle: bool) {
        while !self.are_writers_pressed() && self.reclaim_some(self.granules_to_keep(is_idle), GRANULES) > 0 {
        }
    }

    /// Number of free granules whose space is kept for the writer. Giving space back and allocating it again would
    /// delay both the collector and the writer. Keeps a 128th of the live bytes and, unless idle, as many
    /// more granules as are missing to the peak use during this flush or the
    /// previous one.
    pub fn granules_to_keep(&self, is_idle: bool) -> usize {
        let version = &self.state.load().version;
        let live = version.live_bytes();
        let again = if is_idle || !self.flush.in_background() { 0 } else { self.slots.below_peak() };
        // In whole segments: a small database keeps none.
        let capacity = segment_capacity(live, version.span);
        granules(live / 128 / capacity * capacity) as usize + again
    }

    /// Handles a failure of background work. On a full disk, gives back all space that can be spared. A node that could
    /// not be read leaves nothing unknown: its work is given up. Any other error poisons the engine.
    pub fn yield_to(&self, error: &Error) {
        if error.is_disk_full() {
            self.reclaim_space();
        } else if error.is_of_reading() {
            tracing::error!(%error, path = %self.health.path(), "work on the trees was given up");
        } else {
            self.health.poison(error);
        }
    }

    /// Runs `work`, which is refused if writes are. If it fails, other than for a full disk or in reading, the engine
    /// is poisoned.
    pub fn or_poison<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.health.check_writable().and_then(|()| work()).inspect_err(|error| self.yield_to(error))
    }

    /// The disk is full: gives back all space that can be spared.
    pub fn reclaim_space(&self) {
        self.give_up_next_manifest();
        self.reclaim(0);
    }

    /// Abandons the next manifest, and returns whether there was one. Skips if the manifest is locked: the
    /// thread that is publishing will find out itself that there is no space.
    fn give_up_next_manifest(&self) -> bool {
        let Some(mut guard) = self.publisher.manifest.try_lock() else { return false };
        let Some(manifest) = guard.as_mut().filter(|manifest| manifest.has_next()) else { return false };
        manifest.give_up_for_space();
        true
    }

    /// Gives the space of all free granules but `keep` back to the file system, with one call of some milliseconds
    /// for 16 MiB. Only for a full disk and for closing, where waiting threads could not go on without it.
    /// Elsewhere, space is given back in steps.
    pub fn reclaim(&self, keep: usize) {
        self.reclaim_some(keep, usize::MAX);
    }

    /// Gives back at most `most` granules. Returns in how many places.
    pub fn reclaim_some(&self, keep: usize, most: usize) -> usize {
        loop {
            let slots = self.slots.take_dirty(keep, most);
            // After a failed manifest write it is unknown whether the next open will see an edit that needs
            // these slots. A failing thread poisons the engine before it returns its slots, so this check is
            // not too early.
            if self.health.check_writable().is_err() {
                self.slots.still_dirty(slots);
                return 0;
            }
            if slots.is_empty() {
                return 0;
            }
            let given_back = slots.iter().filter(|place| self.release(**place)).count();
            // Those that keep their space as well, or they would be tried again and again: it serves whoever
            // takes the slot next.
            self.slots.cleaned(slots);
            if given_back > 0 {
                return given_back;
            }
        }
    }

    /// Gives a place's space back. Returns whether that was possible.
    fn release(&self, place: Extent) -> bool {
        let at = place.bytes().start;
        let released = self.volume.release(self.data, place.bytes());
        released.inspect_err(|error| tracing::warn!(%error, at, "free space was not given back")).is_ok()
    }

    /// Runs work on the log. If the disk is full, gives the log the space that is kept for the trees, a little
    /// at a time, and tries again. Keeps what a running flush needs to finish, since only flushes shorten the
    /// log.
    pub fn with_kept_space<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match work() {
                Err(error) if error.is_disk_full() => {
                    let is_frozen = self.state.load().frozen.is_some();
                    let version = &self.state.load().version;
                    let capacity = segment_capacity(version.live_bytes(), version.span);
                    let of_a_flush = granules(SEGMENTS_OF_A_FLUSH * capacity) as usize;
                    let keep = if is_frozen { self.granules_to_keep(true).max(of_a_flush) } else { 0 };
                    if self.reclaim_some(keep, GRANULES) == 0 && !self.give_up_next_manifest() {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Runs work on the log. If the disk is full, gives it the space that is kept for the trees, then a part of the
    /// reserve, if it is such `work`.
    pub fn with_space_for<T>(
        &self,
        work: Work,
        mut run: impl FnMut() -> Result<T>,
        is_it: impl Fn() -> bool,
    ) -> Result<T> {
        loop {
            match self.with_kept_space(&mut run) {
                Err(error) if error.is_disk_full() && is_it() && self.reserve.give_some(work) => {}
                result => return result,
            }
        }
    }

    /// Extends the reserve for a put of `bytes`, or for what there is. Where there is no space for as much reserve as the
    /// log needs, a flush makes the log short.
    pub fn provide_reserve(&self, bytes: u64) -> Result<()> {
        if self.reserve.is_in_use() && self.flush.in_background() {
            // It may be whole again when the flush ends.
            let _ = self.wait_for_running_attempt();
        }
        match self.with_kept_space(|| self.reserve.grow(bytes)) {
            Err(error) if error.is_disk_full() && self.reserve.needs().log >= LOG_WORTH_A_FLUSH => {
                self.flush_all()?;
                self.with_kept_space(|| self.reserve.grow(bytes))
            }
            grown => grown,
        }
    }

    /// Makes the reserve whole if there is space for it.
    pub fn restore_reserve(&self) {
        if !self.reserve.is_whole()
            && let Err(error) = self.reserve.grow(0)
        {
            tracing::debug!(%error, path = %self.health.path(), "puts are refused until there is space for the reserve");
        }
    }

    /// Runs work that frees space and can be begun again, if the disk is full with the space of the reserve.
    pub fn with_reserve<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut user = self.reserve.user();
        loop {
            match work() {
                Err(error) if error.is_disk_full() && user.gets_space() => self.reclaim_space(),
                result => {
                    drop(user);
                    self.restore_reserve();
                    return result;
                }
            }
        }
    }

    /// Whether more space is kept than an idle database needs, and it may be given back.
    pub fn keeps_space(&self) -> bool {
        self.slots.dirty_count() > self.granules_to_keep(true) && self.health.check_writable().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::cleanse::tests::with_due;
    use crate::log_area::RUNS_MAX;
    use crate::storage::writer::PAGE;
    use crate::version::manifest;
    use crate::{Database, Keyspace};
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
    use std::collections::HashSet;
    use std::sync::Arc;

    #[test]
    fn space_that_was_not_given_back_does_not_count() {
        let volume = Simulated::new(1);
        let (db, _keyspace, _) = with_due(&volume, 0, 80_000);
        db.compact().unwrap();
        let engine = &db.handle.engine;
        let places = engine.slots.take_dirty(0, usize::MAX).len();
        let place = |start: u32| Extent { start: 10 * start, len: 1 };
        let fail = |nth, repeat| {
            volume.fail_nth(Filter::kinds([OperationKind::Release]), nth, Fault::Error, repeat);
        };
        engine.slots.still_dirty((1000..1010).chain(2000..2010).map(place).collect());
        fail(1, Repeat::Sticky);
        assert_eq!(engine.reclaim_some(10, usize::MAX), 0, "of {places} places");
        assert_eq!(engine.slots.dirty_count(), 10, "they are not tried again");
        volume.clear_faults();
        fail(1, Repeat::Once);
        assert_eq!(engine.reclaim_some(0, 1), 1, "the next one");
        assert!(engine.slots.dirty_count() < 10);
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
        // It has no more than this.
        engine.reserve.close();
        volume.set_capacity(volume.used() + (12 << 20));
        assert!(db.flush().unwrap_err().is_disk_full());
        assert!(portions() > before, "one of 8 MiB had space");
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
        for flush in 0..RUNS_MAX as u32 {
            // A run for each block, which is due when it has many.
            let mut batch = db.batch();
            for number in (flush..230_000).step_by(300) {
                batch.insert(&keyspace, number.to_be_bytes(), vec![8; 1000]);
            }
            batch.commit().unwrap();
            if flush == 52 {
                // When all of them are noted.
                let manifest = engine.publisher.manifest.lock();
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
