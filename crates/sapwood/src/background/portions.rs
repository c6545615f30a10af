//! How much a portion of background work may write before the old copies die, and whether writers are so pressed that
//! work which can wait has to.

use crate::background::context::WorkContext;
use crate::space::GRANULES;
use crate::version::edit::NODE_IN_EDIT;
use crate::version::manifest::EDIT_MAX;

/// Bytes per portion, except in flushes: an eighth of the live bytes, within these limits.
pub(crate) const PORTION: std::ops::RangeInclusive<u64> = (256 << 10)..=(8 << 20);
/// The maximum per portion for cleansing what a flush found due. Each portion copies a good part of a large
/// mapping table, so fewer are better. The next queue hardly waits for a portion, since it is appended ahead
/// beside it.
pub(crate) const DUE_MAX: u64 = 16 << 20;

/// Most bytes of leaves and log of a block that is due, per byte of leaves. Where all records are new a log area
/// should have twice as much as the leaves ([`crate::flow::log_area_tuning`]), and may have 1.8 times as much as it should
/// before its block is due ([`crate::tree::cleansing_cursor`]). A block that has become longer with its last flush has more; the
/// prefetch buffer's limit then bounds what is read ahead.
pub(crate) const WITH_LOG: u64 = 5;

/// Bytes of memory that a new node takes until it is published: its entries in lists and in the edit, which a job must
/// reserve.
const NODE_LISTED: u64 = 300;

/// Fraction of the active queue's capacity from which work is urgent, because writers will soon stop and wait for the
/// flush.
const NEARLY_FULL: (usize, usize) = (7, 8);

/// Bytes that a portion writes in a database with `live` bytes.
pub(crate) fn portion(live: u64) -> u64 {
    (live / 8).clamp(*PORTION.start(), *PORTION.end())
}

/// The same for a flush. A flush in a single portion needs no sync of the log, so a large database spends up to
/// four percent of its space on it. If that space is not available, the flush uses smaller portions.
pub(crate) fn flush_portion(live: u64) -> u64 {
    portion(live).max(live / 24)
}

impl WorkContext {
    /// The number of nodes that a version builder may write. Their list is held in memory, and must fit into one edit.
    pub fn nodes_max(&self) -> u64 {
        (self.memory.shares.memory / 32 / NODE_LISTED).min(EDIT_MAX as u64 / 4 / NODE_IN_EDIT)
    }

    /// Bytes that a portion of cleansing writes in a database with `live` bytes.
    pub fn cleansing_portion(&self, live: u64) -> u64 {
        self.cleansing_portion_of(live, *PORTION.end())
    }

    /// Like `cleansing_portion`, with the limit `most`. Also limited so that the list of nodes and the data on
    /// its way fit into memory, and by the limit of low space while the disk is full.
    pub fn cleansing_portion_of(&self, live: u64, most: u64) -> u64 {
        let listed = self.nodes_max() * self.memory.shares.node_len.leaf as u64;
        let buffered = (4 * self.memory.shares.hold).max(*PORTION.start());
        let portion = (live / 8).clamp(*PORTION.start(), most.max(*PORTION.start()));
        portion.min(listed).min(buffered).min(self.flush.low_space.limit())
    }

    /// Whether writers wait for the flush thread, or soon will: a queue is frozen that the flush has not begun,
    /// or the active queue is nearly full. False while disk space is short, since the collector is then needed
    /// to make progress.
    pub fn are_writers_pressed(&self) -> bool {
        let is_short = self.flush.low_space.limit() != u64::MAX || !self.space.reserve.is_whole();
        if !self.pool.has_threads() || is_short {
            return false;
        }
        let state = self.state.load();
        let has_next = state.frozen.as_ref().is_some_and(|frozen| frozen.is_whole());
        has_next || state.active.fill() >= self.memory.queue_max(&state) / NEARLY_FULL.1 * NEARLY_FULL.0
    }

    /// Gives back free space, some at a time, but for what is [to keep](WorkContext::granules_to_keep). Stops while writers are
    /// pressed.
    pub fn reclaim_by_steps(&self, is_idle: bool) {
        while !self.are_writers_pressed()
            && self.space.reclaim_some(self.space.granules_to_keep(is_idle), GRANULES) > 0
        {}
        self.space.cut_data();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_area::RUNS_MAX;
    use crate::storage::writer::PAGE;
    use crate::version::manifest;
    use crate::{Database, Keyspace};
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
    use std::collections::HashSet;
    use std::sync::Arc;

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
        engine.space.reserve.close();
        volume.set_capacity(volume.used() + (12 << 20));
        assert!(db.flush().unwrap_err().is_disk_full());
        assert!(portions() > before, "one of 8 MiB had space");
        let wal_low = engine.state.load().frozen.as_ref().unwrap().wal_low;
        let unsynced = engine.commits.log.lock_for_test().as_ref().unwrap().wal.unsynced();
        assert!(unsynced.iter().all(|old| old.generation() >= wal_low), "it is not all of the queue");
        assert!(engine.flush.low_space.is_careful());
        volume.set_capacity(u64::MAX);
        db.flush().unwrap();
        assert_eq!(db.check().unwrap().records, 24_000);
    }

    /// The version that the flush began with was held to its end, and with it all space that its portions had freed.
    #[test]
    fn a_portion_writes_where_one_before_it_has_freed_space() {
        let volume = Simulated::new(1);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let builder = Database::builder().memory(128 << 20).segment_span(1 << 20).background_threads(0);
        let db = builder.open_on(shared).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        let value = |byte| vec![byte; 16 << 10];
        keyspace.ingest((0..4000u32).map(|number| (number.to_be_bytes(), value(7)))).unwrap();
        db.compact().unwrap();
        let engine = &db.handle.engine;
        for number in 0..1200u32 {
            keyspace.insert(number.to_be_bytes(), value(8)).unwrap();
        }
        let before = db.stats();
        assert!(engine.state.load().frozen.is_none() && before.writes.flushes == 0);
        let len_of_data = || engine.volume.len(engine.data).unwrap();
        let len = len_of_data();
        db.flush().unwrap();
        let portions = db.stats().writes.portions - before.writes.portions;
        assert!(portions >= 3 && len_of_data() < len + (14 << 20), "{portions}: {len} to {}", len_of_data());
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
                let manifest = engine.publisher.manifest_for_test();
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
            assert_eq!(engine.flush.low_space.is_careful(), flush >= 52);
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
            let version = db.handle.engine.state.version();
            let pieces: HashSet<_> = version.logs.iter().flat_map(|(_, area)| area.pieces()).collect();
            let (mut leaves, mut across) = (0, 0);
            for (_, address) in version.table.iter().filter(|(id, _)| !pieces.contains(id)) {
                leaves += 1;
                across += u64::from(address.position.0 % PAGE + u64::from(address.len()) > PAGE);
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
        let version = db.handle.engine.state.version();
        // What is dead aside: the newest segments are as they were written.
        let whole = version.segments.iter().filter(|entry| entry.live * 10 > entry.used * 9);
        let (used, live) = whole.fold((0, 0), |(used, live), entry| (used + entry.used, live + entry.live));
        assert!(live > 2 << 20 && used - live < live / 20, "{used} bytes for {live}");
    }
}
