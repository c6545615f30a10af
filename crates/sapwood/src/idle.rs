//! What the background thread does between two flushes: it makes the database better for those who read.
//!
//! ```text
//! the last flush is no longer just over ─▶ give back the memory of its queue, as far as the next one has not taken it
//! nobody writes, or a flush is long ago ─▶ give back the space that the next one would write to, some slots at a time
//! nobody writes ─▶ collect what flushes have left, for which writers would have waited
//! nobody writes ── readers miss the cache, and much waits in the queue ─▶ flush: the queue's memory becomes cache
//! nobody writes ── the database has grown ─▶ cleanse the blocks whose log areas have become long with it
//! scans paid the price of blocks with log pieces ─▶ merge their layers, or cleanse these blocks, whoever writes meanwhile
//! ```
//! What a block pays, and when that is enough, is in [`crate::store::rent`]: cleansing costs at most as much again as not doing it.
//!
//! Invariant: a queue that is full ends all of it, at the next portion at the latest.

use crate::budget::Need;
use crate::cleansing::Growth;
use crate::engine::Engine;
use crate::error::Result;
use crate::operation::SeqNo;
use crate::space::SLOTS;
use crate::store::garbage_collection::Patience;

use std::time::{Duration, Instant};

/// How often the thread looks, when something happens, and when nothing does.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// How long nobody is to have written before the space is given back that is kept for the next flush; and how long memory is kept for the next queue.
pub(crate) const STILL: Duration = Duration::from_millis(250);
/// How long after a flush it is given back whoever writes, since the next is far away.
const LONG: Duration = Duration::from_secs(10);
/// Reads from the device in a pause that are worth a flush.
const MISSES: u64 = 100;
/// Between two portions it rests for so many times as long as one took, since those for whom it works use the device too; no longer,
/// since until it is through they pay.
const RESTS: u32 = 2;
/// Where it works for nobody yet, and somebody reads.
const RESTS_OF_A_WALK: u32 = 4;

/// What the thread saw when it looked last.
pub(crate) struct Idle {
    pause: Duration,
    looked: Instant,
    flushed: Instant,
    /// When it looked whether anybody writes, and what was visible then.
    still: (Instant, SeqNo),
    visible: SeqNo,
    misses: u64,
    growth: Growth,
}

impl Default for Idle {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            pause: PAUSE,
            looked: now,
            flushed: now,
            still: (now, 0),
            visible: 0,
            misses: 0,
            growth: Growth::default(),
        }
    }
}

impl Idle {
    /// How long there is nothing to look for in an engine that keeps something to give back or does not.
    pub fn left(&self, keeps_something: bool) -> Duration {
        let left = self.pause.saturating_sub(self.looked.elapsed());
        if keeps_something { left.min(STILL.saturating_sub(self.still.0.elapsed())) } else { left }
    }

    /// A flush is over.
    pub fn flushed(&mut self, visible: SeqNo) {
        self.flushed = Instant::now();
        self.pause = PAUSE;
        self.still = (self.flushed, visible);
    }
}

impl Engine {
    /// Whether there is something to give back when nobody needs it for a moment.
    pub fn keeps_something(&self) -> bool {
        self.spare.is_open() || self.keeps_space()
    }

    /// After a pause in which no queue was frozen. Errors have been noted where they happened.
    pub fn idle(&self, idle: &mut Idle) {
        self.recount_old_queues();
        if idle.still.0.elapsed() >= STILL {
            self.give_back_spare(STILL);
            let (_, before) = std::mem::replace(&mut idle.still, (Instant::now(), self.visible()));
            if idle.still.1 == before || idle.flushed.elapsed() >= LONG {
                self.give_back_space();
            }
        }
        if idle.looked.elapsed() < idle.pause {
            return;
        }
        idle.looked = Instant::now();
        let (visible, misses) = (self.visible(), self.pager.waited_for());
        let quiet = std::mem::replace(&mut idle.visible, visible) == visible;
        let missed = misses - std::mem::replace(&mut idle.misses, misses);
        idle.pause = if quiet && missed == 0 && !self.pager.rents.has_listed() {
            (2 * idle.pause).min(PAUSE_MAX)
        } else {
            PAUSE
        };
        if self.check_writable().is_err() {
            return;
        }
        if quiet {
            let _ = self.collect_the_rest();
        }
        if quiet && missed >= MISSES && self.state.load().active.memory() >= self.shares.queue / 8 {
            self.freeze_if_nobody_writes(visible);
            return;
        }
        // What it cannot do for an error is told to whoever writes next.
        let _ = self.cleanse_for_scans();
        if quiet {
            let _ = self.cleanse_what_grew(&mut idle.growth, visible);
        }
    }

    /// Gives back what space is kept for the next flush, until there is one. Who compacts or ingests takes it all the time.
    fn give_back_space(&self) {
        while self.keeps_space()
            && self.state.load().frozen.is_none()
            && !self.flush.stops()
            && !self.works()
            && self.reclaim_some(self.slots_to_keep(true), SLOTS) > 0
        {}
    }

    /// Collects what flushes have left because writers were pressed.
    fn collect_the_rest(&self) -> Result<()> {
        if !self.has_to_collect(Patience::AtRest) || self.state.load().frozen.is_some() || self.flush.stops()
        {
            return Ok(());
        }
        let mut guard = self.writer(self.collecting_max())?;
        self.or_poison(|| self.tidy_up(guard.get()?, Patience::AtRest))
    }

    /// Cleanses what has become long while the database grew, until somebody writes.
    fn cleanse_what_grew(&self, growth: &mut Growth, visible: SeqNo) -> Result<()> {
        // From the first portion to the last, as for scans.
        let mut work = None;
        let is_wanted = || self.state.load().frozen.is_some() || self.flush.stops();
        while self.visible() == visible && !is_wanted() {
            let (began, read) = (Instant::now(), self.pager.waited_for());
            if !self.cleanse_grown(growth, &mut work)? {
                break;
            }
            let took = began.elapsed();
            self.cleanse_for_scans()?;
            // It may be at this for long.
            self.recount_old_queues();
            self.give_back_spare(STILL);
            if self.pager.waited_for() != read {
                self.rest_beside_readers(Self::rest_after(RESTS_OF_A_WALK, took));
            }
        }
        Ok(())
    }

    fn freeze_if_nobody_writes(&self, visible: SeqNo) {
        let mut guard = self.log.lock();
        let Some(log) = guard.as_mut() else { return };
        if self.visible() != visible || self.state.load().frozen.is_some() {
            return;
        }
        // What fails for want of space is tried again by the next commit.
        let _ = self.freeze(log);
    }

    /// Cleanses the blocks that scans have paid for, and those that they pay for meanwhile.
    fn cleanse_for_scans(&self) -> Result<()> {
        // From the first portion to the last: a cache that shrinks and grows with each would read its nodes again and again.
        let mut work = None;
        loop {
            let listed = self.pager.rents.take_listed();
            if listed.is_empty() {
                return Ok(());
            }
            let mut listed = listed.into_iter().peekable();
            while listed.peek().is_some() {
                if self.state.load().frozen.is_some() || self.flush.stops() {
                    self.pager.rents.put_back(listed);
                    return Ok(());
                }
                work.get_or_insert_with(|| self.work(self.cleansing_max()));
                let mut guard = self.writer(Need::default())?;
                let began = Instant::now();
                let cleansed = self.cleanse_listed_or_poison(guard.get()?, &mut listed);
                drop(guard);
                if cleansed.is_err() {
                    self.pager.rents.put_back(listed);
                    return cleansed;
                }
                self.rest(Self::rest_after(RESTS, began.elapsed()));
                // It may be at this for long.
                self.give_back_spare(STILL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleansing::tests::{cleansed, with_long_areas};
    use crate::node::NodeId;
    use crate::store::mapping_table::Position;
    use crate::{Database, Keyspace};
    use psync::{Simulated, Volume};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    fn ago(time: Duration) -> Instant {
        Instant::now().checked_sub(time).unwrap()
    }

    fn overwrite(db: &Database, keyspace: &Keyspace) {
        let mut batch = db.batch();
        for number in 0..4000u32 {
            batch.insert(keyspace, number.to_be_bytes(), [0; 200]);
        }
        batch.commit().unwrap();
        db.flush().unwrap();
    }

    /// Without a background thread, whose part the test plays, and with the space that only a snapshot needed.
    fn keeping_space(volume: &Simulated) -> (Database, Keyspace) {
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let options = Database::builder().memory(4 << 20).segment_span(1 << 20).background_threads(0);
        let db = options.open_on(shared).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        overwrite(&db, &keyspace);
        let snapshot = db.snapshot();
        overwrite(&db, &keyspace);
        drop(snapshot);
        (db, keyspace)
    }

    #[test]
    fn kept_space_goes_back_when_nobody_writes_or_the_last_flush_is_long_ago() {
        for (writes, flushed, goes_back) in [
            (false, Duration::ZERO, true),
            (true, Duration::ZERO, false),
            (true, LONG / 2, false),
            (true, LONG, true),
        ] {
            let volume = Simulated::new(1);
            let (db, keyspace) = keeping_space(&volume);
            let engine = &db.handle.engine;
            let (used, visible) = (volume.used(), engine.visible());
            assert!(engine.keeps_space());
            if writes {
                keyspace.insert([1], [1]).unwrap();
            }
            let mut idle =
                Idle { flushed: ago(flushed), still: (ago(STILL / 2), visible), ..Idle::default() };
            engine.idle(&mut idle);
            assert!(engine.keeps_space(), "it is too early to tell whether anybody writes");
            idle.still = (ago(STILL), visible);
            engine.idle(&mut idle);
            assert_eq!(engine.keeps_space(), !goes_back, "writes: {writes}, {flushed:?} after a flush");
            assert_eq!(volume.used() + (500 << 10) < used, goes_back, "{} of {used} bytes", volume.used());
        }
    }

    #[test]
    fn a_store_that_refuses_writes_does_not_look_for_space_again_and_again() {
        let volume = Simulated::new(1);
        let (db, _) = keeping_space(&volume);
        let (engine, used) = (&db.handle.engine, volume.used());
        assert!(engine.keeps_space());
        engine.poison(&crate::Error::Closed);
        assert!(!engine.keeps_space());
        engine.reclaim(0);
        assert_eq!(volume.used(), used);
    }

    #[test]
    fn whoever_keeps_space_looks_soon() {
        let mut idle = Idle { pause: PAUSE_MAX, ..Idle::default() };
        assert!(idle.left(true) <= STILL && idle.left(false) > PAUSE);
        idle.still.0 = idle.still.0.checked_sub(STILL).unwrap();
        assert!(idle.left(true).is_zero() && idle.left(false) > PAUSE);
        idle.flushed(7);
        assert!(!idle.left(true).is_zero(), "after a flush it begins anew");
        assert_eq!(idle.still.1, 7);
    }

    /// A flush leaves dead bytes to the next while writers are pressed, and there may be no next.
    #[test]
    fn what_flushes_left_is_collected_when_nobody_writes() {
        for writes in [true, false] {
            let db = cleansed(80_000);
            let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
            let mut idle = Idle { looked: ago(PAUSE), visible: engine.visible(), ..Idle::default() };
            if writes {
                keyspace.insert("key", "value").unwrap();
            }
            engine.idle(&mut idle);
            assert_eq!(engine.has_to_collect(Patience::AtRest), writes);
            db.check().unwrap();
        }
    }

    #[test]
    fn what_has_grown_is_cleansed_when_nobody_writes() {
        for writes in [true, false] {
            let (db, keyspace) = with_long_areas(true);
            let engine = &db.handle.engine;
            let fresh = || engine.state.load().version.logs.totals().fresh;
            let before = fresh();
            let mut idle = Idle { looked: ago(PAUSE), visible: engine.visible(), ..Idle::default() };
            if writes {
                keyspace.insert("key", "value").unwrap();
            }
            engine.idle(&mut idle);
            assert_eq!(fresh() == before, writes);
        }
    }

    /// Also where it only looks for what is due, which may be long.
    #[test]
    fn a_walk_ends_when_a_queue_is_frozen_or_the_database_closes() {
        for closes in [false, true] {
            let (db, keyspace) = with_long_areas(true);
            let engine = &db.handle.engine;
            keyspace.insert("key", "value").unwrap();
            if closes {
                engine.flush.stop();
            } else {
                engine.freeze(engine.log.lock().as_mut().unwrap()).unwrap();
            }
            let mut growth = Growth::default();
            engine.cleanse_what_grew(&mut growth, engine.visible()).unwrap();
            assert!(!growth.is_begun());
        }
    }

    const RECORDS: u32 = 16_000;

    /// Scans everywhere until blocks have paid, and gives them what they have paid for. Says how many were merged until now, and how many cleansed.
    fn scan_until_paid(db: &Database, keyspace: &Keyspace) -> (u64, u64) {
        let engine = &db.handle.engine;
        while !engine.pager.rents.has_listed() {
            for from in (0..RECORDS).step_by(100) {
                assert_eq!(keyspace.range(from.to_be_bytes()..).take(20).count(), 20);
            }
        }
        let mut listed = engine.pager.rents.take_listed().into_iter().peekable();
        while listed.peek().is_some() {
            let mut guard = engine.writer(Need::default()).unwrap();
            engine.cleanse_listed_or_poison(guard.get().unwrap(), &mut listed).unwrap();
        }
        let writes = db.stats().writes;
        (writes.blocks_merged_for_scans, writes.blocks_cleansed_for_scans)
    }

    fn assert_holds(keyspace: &Keyspace, records: &BTreeMap<u32, u8>) {
        let found = keyspace.iter().map(|item| {
            let (key, value) = item.unwrap();
            assert!(value.iter().all(|byte| *byte == value[0]));
            (u32::from_be_bytes(key[..].try_into().unwrap()), value[0])
        });
        assert_eq!(found.collect::<BTreeMap<_, _>>(), *records);
        for number in (0..RECORDS).step_by(7) {
            let found = keyspace.get(number.to_be_bytes()).unwrap();
            assert_eq!(found.map(|value| value[0]), records.get(&number).copied(), "{number}");
        }
    }

    /// The layers say the same when they are one, to those who open it again too; and what scans go on to pay buys the cleansing.
    #[test]
    fn layers_that_scans_have_paid_for_are_merged_first_and_cleansed_later() {
        let volume = Simulated::new(1);
        let shared: Arc<dyn Volume> = Arc::new(volume);
        let open = || {
            let options = Database::builder().memory(16 << 20).background_threads(0);
            let db = options.open_on(Arc::clone(&shared)).unwrap();
            let keyspace = db.keyspace("main").unwrap();
            (db, keyspace)
        };
        let (db, keyspace) = open();
        let mut records = BTreeMap::new();
        let mut change = |numbers: &mut dyn Iterator<Item = u32>, layer: u8| {
            for number in numbers {
                if (number + u32::from(layer)).is_multiple_of(9) {
                    keyspace.remove(number.to_be_bytes()).unwrap();
                    records.remove(&number);
                } else {
                    keyspace.insert(number.to_be_bytes(), [layer; 200]).unwrap();
                    records.insert(number, layer);
                }
            }
            db.flush().unwrap();
        };
        change(&mut (0..RECORDS), 0);
        // Some have the same keys.
        (1..=6).for_each(|layer| change(&mut (u32::from(layer) / 2..RECORDS).step_by(91), layer));
        let snapshot = db.snapshot();
        let before = db.stats();
        let live = |db: &Database| Arc::clone(&db.handle.engine.state.load().version).logs.totals();
        assert!(live(&db).areas > 1 && live(&db).layers >= 4 * live(&db).areas, "{before}");
        let (merged, cleansed) = scan_until_paid(&db, &keyspace);
        let after = db.stats();
        assert!(merged > cleansed, "{cleansed}: {after}");
        assert!(before.space.log_layers - after.space.log_layers >= 3 * merged, "{before}\n{after}");
        assert!(after.space.logged_changes < before.space.logged_changes, "each key once");
        let written = after.writes.data_bytes - before.writes.data_bytes;
        assert!(written <= 2 * before.space.logged, "hardly a leaf is written: {written} bytes");
        assert_holds(&keyspace, &records);
        db.check().unwrap();
        drop((snapshot, keyspace, db));
        let (db, keyspace) = open();
        assert_holds(&keyspace, &records);
        let areas = live(&db).areas;
        while scan_until_paid(&db, &keyspace).1 == 0 {}
        assert!(live(&db).areas < areas, "what is cleansed has no log area");
        assert_holds(&keyspace, &records);
        db.check().unwrap();
    }

    /// It may be at that for long, and meanwhile nobody else gives back what a queue has left.
    #[test]
    fn what_a_queue_has_left_goes_back_while_scans_pay() {
        let (db, _) = keeping_space(&Simulated::new(1));
        let engine = &db.handle.engine;
        engine.spare.open(engine.shares.queue);
        std::thread::sleep(STILL);
        // A portion of which nothing is left to be done.
        engine.pager.rents.put_back([(Position(0), NodeId(u64::MAX))].into_iter());
        engine.cleanse_for_scans().unwrap();
        assert!(!engine.spare.is_open() && !engine.pager.rents.has_listed());
    }

    #[test]
    fn who_closes_waits_for_nothing_that_is_done_while_nobody_writes() {
        // What is dead is more than bearable.
        let db = cleansed(200_000);
        let engine = &db.handle.engine;
        engine.pager.rents.put_back([(Position(0), NodeId(u64::MAX))].into_iter());
        engine.flush.stop();
        let mut idle = Idle { looked: ago(PAUSE), visible: engine.visible(), ..Idle::default() };
        engine.idle(&mut idle);
        assert_eq!(engine.flush.counters.collected_bytes.load(Relaxed), 0);
        assert!(engine.pager.rents.has_listed(), "what is not done is not forgotten");
    }
}
