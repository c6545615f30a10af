//! Cleansing for the [reserve](crate::reserve) after a flush with removals: these take space in log areas, and free none before
//! their blocks are cleansed. So blocks are, until the reserve is whole again, or that does not help.
//!
//! ```text
//! one block ──there was space──▶ portions ─▶ … ─▶ whole ─▶ end
//!     ▲                              │           └─ a part of the reserve's length brought nothing ─▶ left to the next flush
//!     └── full, or cannot be read ───┘
//!     ├── full ─▶ left to the next flush
//!     └── cannot be read ─▶ stepped over
//! ```
//! Portions are of several blocks because each has its syncs, of which one a block were thousands. The next flush goes on where this one
//! has ended, and comes round.
//!
//! Invariant: what a flush writes in vain is bounded by a part of the reserve, which it may use up. Blocks from which few records were
//! removed are as long as before; what dies fills up segments until the collector comes; and what snapshots hold does not die.

use super::Cleanser;
use crate::cache::prefetch_buffer::KeyPosition;
use crate::error::Result;
use crate::lock_order::{RankedMutex, rank};
use crate::operation::KeyspaceId;
use crate::storage::slots::GRANULE;
use crate::tree_writer::WriterAtWork;

/// Granules (1 MiB) that may have died and be held: readers hold some for a moment.
const HELD_MAX: usize = 16;
/// The part of the whole reserve's length that is written at most without bringing it anything (divisor).
const IN_VAIN: u64 = 4;

/// Where the next flush goes on.
#[derive(Default)]
pub(crate) struct ReserveWalk {
    next: RankedMutex<rank::ReserveWalk, KeyPosition>,
}

impl Cleanser {
    /// See the module documentation.
    pub fn cleanse_for_reserve(&self, at_work: &mut WriterAtWork<'_>) -> Result<()> {
        let (writer, work) = at_work.parts()?;
        let begin = std::mem::take(&mut *self.for_reserve.next.lock());
        let (mut from, mut is_careful, mut is_round) = (begin.clone(), true, false);
        let written = || self.ctx.writer.bytes_written();
        let (mut least, mut brought) = (self.missing(), written());
        while self.helps_the_reserve() && !(is_round && from >= begin) {
            let in_vain = self.ctx.space.reserve.needs().whole() / IN_VAIN;
            let left = in_vain.saturating_sub(written() - brought);
            if left == 0 {
                break;
            }
            let most = if is_careful { 1 } else { left };
            work.needs(self.cleansing_max());
            let cleanse = || self.cleanse_from(writer, from.clone(), KeyspaceId::LAST, most);
            let next = match self.ctx.space.with_reserve(cleanse) {
                Err(error) if !is_careful && (error.is_disk_full() || error.is_of_reading()) => {
                    is_careful = true;
                    continue;
                }
                Err(error) if error.is_disk_full() => break,
                Err(error) if error.is_of_reading() => {
                    tracing::error!(%error, path = %self.ctx.health.path(), "a block is not cleansed");
                    self.behind_next(from)
                }
                cleansed => {
                    is_careful = false;
                    cleansed?
                }
            };
            let is_end = next.is_none();
            from = next.unwrap_or_default();
            if is_end && is_round {
                break;
            }
            is_round |= is_end;
            let missing = self.missing();
            if missing < least {
                (least, brought) = (missing, written());
            }
        }
        *self.for_reserve.next.lock() = from;
        Ok(())
    }

    /// Bytes that the reserve lacks and that are not free in the data file either; with the opposite sign, what is free beyond it.
    fn missing(&self) -> i64 {
        self.ctx.space.reserve.lacks() as i64 - (self.ctx.space.slots.dirty_count() as u64 * GRANULE) as i64
    }

    fn areas(&self) -> u64 {
        self.ctx.state.load().version.logs.totals().areas
    }

    /// Whether the reserve needs space, and cleansing may free some.
    fn helps_the_reserve(&self) -> bool {
        let state = self.ctx.state.load();
        let held = self.ctx.space.slots.used().saturating_sub(state.version.segments.granules());
        let is_last = self.ctx.flush.stops() && state.frozen.is_none() && state.active.is_empty();
        !self.ctx.space.reserve.is_whole() && self.areas() > 0 && held <= HELD_MAX && !is_last
    }
}

#[cfg(test)]
mod tests {
    use crate::background::cleanse::tests::{damage, with_due};
    use crate::flow::memory::Need;
    use crate::tree::view::TreeView;
    use crate::{Database, Keyspace};
    use bytes::Bytes;
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated};
    use std::sync::Arc;

    /// Records of which few are removed in each block, so that none becomes shorter.
    fn with_removals(volume: &Simulated, keyspaces: usize, records: u32) -> (Database, Vec<Keyspace>) {
        let options = Database::builder().memory(64 << 20).background_threads(0);
        let db = options.open_on(Arc::new(volume.clone())).unwrap();
        let keyspaces: Vec<_> =
            (0..keyspaces).map(|number| db.keyspace(&format!("k{number}")).unwrap()).collect();
        for keyspace in &keyspaces {
            keyspace.ingest((0..records).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
        }
        remove_few(&db, &keyspaces, 0..records);
        (db, keyspaces)
    }

    /// Removes few records of each block, and flushes.
    fn remove_few(db: &Database, keyspaces: &[Keyspace], records: std::ops::Range<u32>) {
        let mut batch = db.batch();
        for keyspace in keyspaces {
            records.clone().step_by(105).for_each(|number| _ = batch.remove(keyspace, number.to_be_bytes()));
        }
        batch.commit().unwrap();
        db.flush().unwrap();
    }

    /// Whether the keyspace's first block has a log area.
    fn is_first_due(db: &Database, keyspace: &Keyspace) -> bool {
        let engine = &db.handle.engine;
        let version = engine.state.version();
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
        version.logs.get(view.block_at(b"").unwrap().unwrap().id).is_some()
    }

    /// The next flush goes on there.
    fn go_on_at(db: &Database, keyspace: &Keyspace, number: u32) {
        let place = (keyspace.id(), Bytes::copy_from_slice(&number.to_be_bytes()));
        *db.handle.engine.background.cleanser.for_reserve.next.lock() = place;
    }

    fn areas(db: &Database) -> u64 {
        db.handle.engine.state.load().version.logs.totals().areas
    }

    /// Gives the reserve up, and lets it have no space again.
    fn use_the_reserve(volume: &Simulated, db: &Database) {
        let none = Filter::kinds([OperationKind::Allocate]).file("reserve");
        volume.fail_nth(none, 1, Fault::NoSpace, Repeat::Sticky);
        assert!(db.handle.engine.space.reserve.user().gets_space());
        assert!(!db.handle.engine.space.reserve.is_whole());
    }

    fn cleanse(db: &Database) -> u64 {
        let engine = &db.handle.engine;
        let before = areas(db);
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        engine.background.cleanser.cleanse_for_reserve(&mut guard).unwrap();
        before - areas(db)
    }

    /// Each block had a portion, and its syncs, of its own: thousands for each flush. And where that brought nothing, all blocks
    /// were cleansed with each flush.
    #[test]
    fn for_the_reserve_portions_are_bounded_and_end_where_they_bring_nothing() {
        let volume = Simulated::new(1);
        let (db, keyspaces) = with_removals(&volume, 1, 1_000_000);
        use_the_reserve(&volume, &db);
        let (before, syncs) = (areas(&db), db.stats().device.syncs);
        let cleansed = cleanse(&db);
        let syncs = db.stats().device.syncs - syncs;
        assert!(
            (4..before / 10).contains(&cleansed) && syncs < 16,
            "{syncs} syncs for {cleansed} blocks of {before}"
        );
        // The next flush goes on behind them.
        remove_few(&db, &keyspaces, 1..1_000_000);
        assert!(is_first_due(&db, &keyspaces[0]) && areas(&db) < before);
        volume.clear_faults();
        db.check().unwrap();
    }

    /// A flush that began behind the beginning ended at the end, and left dead what is before it.
    #[test]
    fn for_the_reserve_a_flush_comes_round() {
        let volume = Simulated::new(1);
        let (db, keyspaces) = with_removals(&volume, 1, 100_000);
        use_the_reserve(&volume, &db);
        go_on_at(&db, &keyspaces[0], 99_000);
        assert!(is_first_due(&db, &keyspaces[0]));
        assert!(cleanse(&db) > 1 && !is_first_due(&db, &keyspaces[0]));
        volume.clear_faults();
        db.check().unwrap();
    }

    /// It went round for ever, since it came to the end again before it came to where it had begun.
    #[test]
    fn for_the_reserve_a_flush_comes_round_once() {
        let volume = Simulated::new(1);
        let (db, keyspaces) = with_removals(&volume, 2, 500);
        use_the_reserve(&volume, &db);
        go_on_at(&db, &keyspaces[0], 400);
        // The log area stays until the tree is taken apart.
        db.drop_keyspace("k1").unwrap();
        assert!(areas(&db) > 0);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(cleanse(&db)));
        told.recv_timeout(std::time::Duration::from_secs(120)).expect("it ends");
    }

    /// A block of each keyspace was a portion of its own, and the reserve was tried anew for each keyspace.
    #[test]
    fn for_the_reserve_keyspaces_share_portions() {
        let volume = Simulated::new(1);
        let (db, _) = with_removals(&volume, 300, 500);
        use_the_reserve(&volume, &db);
        let (before, syncs, fired) = (areas(&db), db.stats().device.syncs, volume.fired());
        let cleansed = cleanse(&db);
        let (syncs, fired) = (db.stats().device.syncs - syncs, volume.fired() - fired);
        assert!(cleansed >= 16 && syncs < cleansed, "{syncs} syncs for {cleansed} blocks of {before}");
        assert!(fired < 50, "the reserve was tried {fired} times");
        volume.clear_faults();
        cleanse(&db);
        let fired = volume.fired();
        db.flush().unwrap();
        assert!(db.handle.engine.space.reserve.is_whole() && volume.fired() == fired);
    }

    /// The first block that could not be read ended it, with each flush.
    #[test]
    fn for_the_reserve_what_cannot_be_read_is_stepped_over() {
        let volume = Simulated::new(1);
        let (db, keyspace, due) = with_due(&volume, 0, 80_000);
        let engine = &db.handle.engine;
        let version = engine.state.version();
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
        let damaged = view.block_at(&due[0].low).unwrap().unwrap().id;
        let (_, leaf) = view.leaves_of(&view.node(damaged, 1).unwrap()).next().unwrap();
        drop(version);
        damage(&volume, &db, leaf);
        use_the_reserve(&volume, &db);
        let before = areas(&db);
        let cleansed = cleanse(&db);
        assert!(cleansed > 1 && areas(&db) > 0, "{cleansed} of {before}");
        volume.clear_faults();
        // The same of a compaction, which tells what it could not do.
        assert!(db.compact().unwrap_err().is_damage());
        let version = &engine.state.load().version;
        assert_eq!(version.logs.iter().map(|(block, _)| block).collect::<Vec<_>>(), [damaged]);
    }

    /// The reserve was used up for copies of what a snapshot held.
    #[test]
    fn for_the_reserve_little_is_copied_that_a_snapshot_holds() {
        let volume = Simulated::new(1);
        let (db, keyspaces) = with_removals(&volume, 1, 1_000_000);
        let reserve = &db.handle.engine.space.reserve;
        let whole = reserve.needs().whole();
        // A disk on which it is not whole, however much it gets.
        assert!(reserve.user().gets_space());
        volume.set_capacity(volume.used() + whole - (64 << 10));
        db.handle.engine.space.restore_reserve();
        assert!(!reserve.is_whole() && reserve.lacks() < 1 << 20);
        let snapshot = db.snapshot();
        let before = areas(&db);
        let cleansed = cleanse(&db);
        assert!(
            cleansed * 10 < before && reserve.lacks() < 3 << 20,
            "{cleansed} of {before}: {}",
            reserve.lacks()
        );
        // And nothing once it holds much.
        volume.set_capacity(u64::MAX);
        db.compact().unwrap();
        remove_few(&db, &keyspaces, 1..1_000_000);
        assert!(reserve.is_whole() && areas(&db) > 0);
        use_the_reserve(&volume, &db);
        assert_eq!(cleanse(&db), 0);
        drop(snapshot);
        assert!(cleanse(&db) > 0);
        volume.clear_faults();
        db.check().unwrap();
    }

    /// Closing waited until all blocks were cleansed, behind the last flush as well.
    #[test]
    fn for_the_reserve_nothing_is_cleansed_behind_the_last_flush() {
        let volume = Simulated::new(1);
        let (db, _) = with_removals(&volume, 1, 100_000);
        use_the_reserve(&volume, &db);
        db.handle.engine.flush.stop();
        assert_eq!(cleanse(&db), 0);
    }
}
