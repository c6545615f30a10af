//! What is done between flushes, by a thread whose part the test plays.

use super::{Idle, LOOK};
use crate::background::cleanse::Growth;
use crate::background::cleanse::tests::{cleansed, with_long_areas};
use crate::background::garbage_collection::GcUrgency;
use crate::background::pick::{Choice, INTERVAL, INTERVAL_MAX, Job, LONG_AGO, STILL, pick};
use crate::db::engine::Engine;
use crate::flow::memory::Need;
use crate::storage::mapping_table::Position;
use crate::storage::node::NodeId;
use crate::{Database, Keyspace};
use psync::{Simulated, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

fn ago(time: Duration) -> Instant {
    Instant::now().checked_sub(time).unwrap()
}

/// Does all that is picked now but flushes, as the background thread would.
pub(crate) fn all_jobs(engine: &Engine, idle: &mut Idle) {
    let work = &engine.background.idle_work;
    while let Choice::Job(job) = pick(&work.look(idle, false)) {
        if job == Job::Flush {
            return;
        }
        work.run(job, idle);
    }
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
fn kept_space_goes_back_without_writes_or_when_the_last_flush_is_long_ago() {
    for (writes, flushed, goes_back) in [
        (false, Duration::ZERO, true),
        (true, Duration::ZERO, false),
        (true, LONG_AGO / 2, false),
        (true, LONG_AGO, true),
    ] {
        let volume = Simulated::new(1);
        let (db, keyspace) = keeping_space(&volume);
        let engine = &db.handle.engine;
        let (used, visible) = (volume.used(), engine.state.visible());
        assert!(engine.space.keeps_space());
        if writes {
            keyspace.insert([1], [1]).unwrap();
        }
        let mut idle = Idle { flushed: ago(flushed), still: (ago(STILL / 2), visible), ..Idle::default() };
        all_jobs(engine, &mut idle);
        assert!(engine.space.keeps_space(), "it is too early to tell whether writes come");
        idle.still = (ago(STILL), visible);
        all_jobs(engine, &mut idle);
        assert_eq!(engine.space.keeps_space(), !goes_back, "writes: {writes}, {flushed:?} after a flush");
        assert_eq!(volume.used() + (500 << 10) < used, goes_back, "{} of {used} bytes", volume.used());
    }
}

#[test]
fn a_store_that_refuses_writes_does_not_look_for_space_again_and_again() {
    let volume = Simulated::new(1);
    let (db, _) = keeping_space(&volume);
    let (engine, used) = (&db.handle.engine, volume.used());
    assert!(engine.space.keeps_space());
    engine.health.poison(&crate::Error::Closed);
    assert!(!engine.space.keeps_space());
    engine.space.reclaim(0);
    assert_eq!(volume.used(), used);
}

#[test]
fn kept_space_is_looked_after_soon() {
    let (db, _) = keeping_space(&Simulated::new(1));
    let (engine, visible) = (&db.handle.engine, db.handle.engine.state.visible());
    let mut idle = Idle { length: INTERVAL_MAX, still: (Instant::now(), visible), ..Idle::default() };
    let next = |idle: &mut Idle| pick(&engine.background.idle_work.look(idle, false));
    assert!(matches!(next(&mut idle), Choice::Wait(time) if time <= STILL));
    idle.still.0 = idle.still.0.checked_sub(STILL).unwrap();
    assert_eq!(next(&mut idle), Choice::Job(Job::GiveBack));
    idle.flushed(7);
    assert!(matches!(next(&mut idle), Choice::Wait(time) if !time.is_zero()), "after a flush it begins anew");
    assert_eq!(idle.still.1, 7);
    engine.space.reclaim(0);
    idle.length = INTERVAL_MAX;
    assert!(matches!(next(&mut idle), Choice::Wait(time) if time > INTERVAL), "it keeps nothing");
}

/// A flush leaves dead bytes to the next while writers are pressed, and there may be no next.
#[test]
fn what_flushes_left_is_collected_when_no_writes_come() {
    for writes in [true, false] {
        let db = cleansed(80_000);
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        let mut idle = Idle { began: ago(INTERVAL), visible: engine.state.visible(), ..Idle::default() };
        if writes {
            keyspace.insert("key", "value").unwrap();
        }
        all_jobs(engine, &mut idle);
        assert_eq!(engine.background.cleanser.collector.has_to_collect(GcUrgency::AtRest), writes);
        db.check().unwrap();
    }
}

#[test]
fn what_has_grown_is_cleansed_when_no_writes_come() {
    for writes in [true, false] {
        let (db, keyspace) = with_long_areas(true);
        let engine = &db.handle.engine;
        let fresh = || engine.state.load().version.logs.totals().fresh;
        let before = fresh();
        let mut idle = Idle { began: ago(INTERVAL), visible: engine.state.visible(), ..Idle::default() };
        if writes {
            keyspace.insert("key", "value").unwrap();
        }
        all_jobs(engine, &mut idle);
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
            engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
        }
        let mut growth = Growth::default();
        engine.background.idle_work.cleanse_what_grew(&mut growth, engine.state.visible()).unwrap();
        assert!(!growth.is_begun());
    }
}

/// What it waits for, and rests, is no work that it would have to rest from.
#[test]
fn a_walk_rests_from_its_work_alone() {
    const WAITS: Duration = Duration::from_millis(300);
    for rests in [Duration::ZERO, Duration::from_secs(3600)] {
        let (db, _) = with_long_areas(true);
        let engine = &db.handle.engine;
        let (mut growth, began) = (Growth::default(), Instant::now());
        std::thread::scope(|scope| {
            let guard = engine.writer().lock(Need::default()).unwrap();
            let walk =
                scope.spawn(|| engine.background.cleanser.cleanse_grown(&mut growth, &mut None).unwrap());
            while engine.flush.has_time() {
                std::thread::yield_now();
            }
            std::thread::sleep(WAITS);
            engine.flush.rested(rests);
            drop(guard);
            walk.join().unwrap();
        });
        assert!(growth.took() + WAITS <= began.elapsed(), "{:?}", growth.took());
        assert_eq!(growth.took().is_zero(), rests > Duration::ZERO);
    }
}

/// And what it works with is meanwhile for readers.
#[test]
fn a_walk_holds_no_memory_while_it_rests_beside_readers() {
    let (db, _) = with_long_areas(true);
    let engine = &db.handle.engine;
    let portions = || engine.flush.counters.portions.load(Relaxed);
    let before = portions();
    std::thread::scope(|scope| {
        let walk = scope.spawn(|| {
            engine.background.idle_work.cleanse_what_grew(&mut Growth::default(), engine.state.visible())
        });
        let reads = || engine.pager.counters.mine().waited_for.fetch_add(1, Relaxed);
        while portions() == before || engine.memory.works() {
            reads();
            assert!(!walk.is_finished(), "it does not rest, or not without memory");
            std::thread::yield_now();
        }
        for _ in 0..20 {
            reads();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!walk.is_finished() && !engine.memory.works(), "it rests");
        engine.flush.stop();
        walk.join().unwrap().unwrap();
    });
}

/// Also if the first of them came when the portion was done already, while scans had what they have paid for.
#[test]
fn a_walk_keeps_its_memory_only_until_a_read_comes() {
    let (db, _) = with_long_areas(true);
    let engine = &db.handle.engine;
    let mut work = Some(engine.memory.work(engine.background.cleanser.cleansing_max()));
    let read = engine.pager.waited_for();
    engine
        .background
        .idle_work
        .rest_from_a_walk(Instant::now(), read, engine.state.visible(), &mut work)
        .unwrap();
    assert!(work.is_some(), "no reads: it goes on");
    engine.pager.counters.mine().waited_for.fetch_add(1, Relaxed);
    engine
        .background
        .idle_work
        .rest_from_a_walk(Instant::now(), read, engine.state.visible(), &mut work)
        .unwrap();
    assert!(work.is_none() && !engine.memory.works());
}

/// A walk may go on for hours beside readers.
#[test]
fn kept_space_goes_back_while_a_walk_rests() {
    let (db, _) = keeping_space(&Simulated::new(1));
    let engine = &db.handle.engine;
    assert!(engine.space.keeps_space());
    let read = engine.pager.waited_for();
    engine.pager.counters.mine().waited_for.fetch_add(1, Relaxed);
    engine
        .background
        .idle_work
        .rest_from_a_walk(
            Instant::now(),
            read,
            engine.state.visible(),
            &mut Some(engine.memory.work(Need::default())),
        )
        .unwrap();
    assert!(!engine.space.keeps_space());
}

#[test]
fn a_walk_rests_as_long_as_reads_come_and_no_writes() {
    const LONG: Duration = Duration::from_secs(20);
    let (db, keyspace) = with_long_areas(true);
    let engine = &db.handle.engine;
    let rests = |time| {
        let (began, read) = (Instant::now(), engine.pager.waited_for());
        // As if a reader had read beside the portion.
        engine.pager.counters.mine().waited_for.fetch_add(u64::from(time > Duration::ZERO), Relaxed);
        engine
            .background
            .idle_work
            .rest_from_a_walk(began + time, read, engine.state.visible(), &mut None)
            .unwrap();
        began.elapsed()
    };
    assert!(rests(Duration::ZERO) < LONG / 2);
    assert!(rests(LONG) < LONG / 2, "no reads any more");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Relaxed) {
                engine.pager.counters.mine().waited_for.fetch_add(1, Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let time = 3 * LOOK;
        let rested = rests(time);
        scope.spawn(|| {
            std::thread::sleep(LOOK);
            keyspace.insert("key", "value").unwrap();
        });
        let until_written = rests(LONG);
        done.store(true, Relaxed);
        reader.join().unwrap();
        assert!(rested >= time, "{rested:?}");
        assert!(until_written < LONG / 2, "a write came");
    });
}

const RECORDS: u32 = 16_000;

/// Scans everywhere until blocks have paid, and gives them what they have paid for. Says how many were merged until now, and how many cleansed.
fn scan_until_paid(db: &Database, keyspace: &Keyspace) -> (u64, u64) {
    let engine = &db.handle.engine;
    while !engine.pager.read_costs.has_listed() {
        for from in (0..RECORDS).step_by(100) {
            assert_eq!(keyspace.range(from.to_be_bytes()..).take(20).count(), 20);
        }
    }
    let mut listed = engine.pager.read_costs.take_listed().into_iter().peekable();
    while listed.peek().is_some() {
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        engine.background.cleanser.cleanse_listed_or_poison(guard.get().unwrap(), &mut listed).unwrap();
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

/// The runs say the same when they are one, also to the next opening; and what scans go on to pay buys the cleansing.
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
    let mut change = |numbers: &mut dyn Iterator<Item = u32>, run: u8| {
        for number in numbers {
            if (number + u32::from(run)).is_multiple_of(9) {
                keyspace.remove(number.to_be_bytes()).unwrap();
                records.remove(&number);
            } else {
                keyspace.insert(number.to_be_bytes(), [run; 200]).unwrap();
                records.insert(number, run);
            }
        }
        db.flush().unwrap();
    };
    change(&mut (0..RECORDS), 0);
    // Some have the same keys.
    (1..=6).for_each(|run| change(&mut (u32::from(run) / 2..RECORDS).step_by(91), run));
    let snapshot = db.snapshot();
    let before = db.stats();
    let live = |db: &Database| Arc::clone(&db.handle.engine.state.load().version).logs.totals();
    assert!(live(&db).areas > 1 && live(&db).runs >= 4 * live(&db).areas, "{before}");
    let (merged, cleansed) = scan_until_paid(&db, &keyspace);
    let after = db.stats();
    assert!(merged > cleansed, "{cleansed}: {after}");
    assert!(before.space.log_runs - after.space.log_runs >= 3 * merged, "{before}\n{after}");
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

/// It may be at that for long, and meanwhile no other work gives back what a queue has left.
#[test]
fn what_a_queue_has_left_goes_back_while_scans_pay() {
    let (db, _) = keeping_space(&Simulated::new(1));
    let engine = &db.handle.engine;
    engine.memory.spare.open(engine.shares.queue);
    std::thread::sleep(STILL);
    // A portion of which nothing is left to be done.
    engine.pager.read_costs.put_back([(Position(0), NodeId(u64::MAX))].into_iter());
    engine.background.idle_work.cleanse_for_scans().unwrap();
    assert!(!engine.memory.spare.is_open() && !engine.pager.read_costs.has_listed());
}

#[test]
fn closing_waits_for_no_work_that_is_done_while_no_writes_come() {
    // What is dead is more than bearable.
    let db = cleansed(200_000);
    let engine = &db.handle.engine;
    engine.pager.read_costs.put_back([(Position(0), NodeId(u64::MAX))].into_iter());
    engine.flush.stop();
    let mut idle = Idle { began: ago(INTERVAL), visible: engine.state.visible(), ..Idle::default() };
    all_jobs(engine, &mut idle);
    assert_eq!(engine.flush.counters.collected_bytes.load(Relaxed), 0);
    assert!(engine.pager.read_costs.has_listed(), "what is not done is not forgotten");
}
