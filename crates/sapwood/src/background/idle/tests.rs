//! What is done between flushes, by a thread whose part the test plays.

use super::{Idle, LOOK, REST_OF_A_WALK_MAX, Walk};
use crate::background::cleanse::Growth;
use crate::background::cleanse::tests::{cleansed, with_long_areas};
use crate::background::garbage_collection::GcUrgency;
use crate::background::pick::{Choice, INTERVAL, INTERVAL_MAX, Job, LONG_AGO, STILL, pick};
use crate::db::engine::Engine;
use crate::flow::memory::Need;
use crate::storage::mapping_table::Position;
use crate::storage::node::NodeId;
use crate::{Database, Keyspace};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

fn ago(time: Duration) -> Instant {
    Instant::now().checked_sub(time).unwrap()
}

/// Does what is picked now unless it is a flush, as the background thread would.
fn step(engine: &Engine, idle: &mut Idle) -> Choice {
    let work = &engine.background.idle_work;
    let choice = pick(&work.look(idle, false));
    idle.picked(&choice);
    if let Choice::Job(job) = choice
        && job != Job::Flush
    {
        work.run(job, idle);
    }
    choice
}

/// Does all that is picked now but flushes.
fn all_jobs(engine: &Engine, idle: &mut Idle) {
    while matches!(step(engine, idle), Choice::Job(job) if job != Job::Flush) {}
}

/// After an interval without writes.
fn quiet(engine: &Engine) -> Idle {
    Idle { began: ago(INTERVAL), visible: engine.state.visible(), ..Idle::default() }
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

/// As the change-over to the next manifest, which opens a file. Nothing has happened, and the next interval tries again.
#[test]
fn a_moment_without_descriptors_poisons_nothing_while_the_database_is_idle() {
    let volume = Simulated::new(1);
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let db = Database::builder().memory(4 << 20).background_threads(0).open_on(shared).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let engine = &db.handle.engine;
    volume.fail_nth(Filter::kinds([OperationKind::Open]), 1, Fault::Exhausted, Repeat::Once);
    let renewed = engine.background.ctx.or_poison(|| engine.publisher.renew_manifest());
    assert!(matches!(renewed, Err(crate::Error::Exhausted(_))), "{renewed:?}");
    keyspace.insert("k", "v").unwrap();
    engine.background.ctx.or_poison(|| engine.publisher.renew_manifest()).unwrap();
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
        // However long this thread sleeps here.
        let still = (Instant::now() + LONG_AGO, visible);
        let mut idle = Idle { flushed: ago(flushed), still, ..Idle::default() };
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
    // However long this thread sleeps here.
    let still = (Instant::now() + LONG_AGO, visible);
    let mut idle = Idle { length: INTERVAL_MAX, still, ..Idle::default() };
    let next = |idle: &mut Idle| pick(&engine.background.idle_work.look(idle, false));
    assert!(matches!(next(&mut idle), Choice::Wait(time) if time <= STILL));
    idle.still.0 = ago(STILL);
    assert_eq!(next(&mut idle), Choice::Job(Job::GiveBack));
    let began = Instant::now();
    idle.flushed(7);
    assert!(idle.still.0 >= began && idle.still.1 == 7, "after a flush it begins anew");
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
        let mut idle = quiet(engine);
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
        let mut idle = quiet(engine);
        if writes {
            keyspace.insert("key", "value").unwrap();
        }
        all_jobs(engine, &mut idle);
        assert_eq!(fresh() == before, writes);
    }
}

#[test]
fn a_walk_waits_when_a_queue_is_frozen_and_ends_when_the_database_closes() {
    for closes in [false, true] {
        let (db, keyspace) = with_long_areas(true);
        let engine = &db.handle.engine;
        let mut idle = quiet(engine);
        while idle.walk.is_none() {
            assert!(matches!(step(engine, &mut idle), Choice::Job(_)));
        }
        if closes {
            engine.flush.stop();
            assert_eq!(step(engine, &mut idle), Choice::Stop);
        } else {
            keyspace.insert("key", "value").unwrap();
            engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
            assert_eq!(step(engine, &mut idle), Choice::Job(Job::Flush));
        }
        assert!(idle.growth.is_begun(), "what is left comes later");
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

fn reads(engine: &Engine) {
    engine.pager.counters.mine().waited_for.fetch_add(1, Relaxed);
}

/// The next look at whether reads go on comes now.
fn looks_now(idle: &mut Idle) {
    idle.walk.as_mut().unwrap().looks = Instant::now();
}

/// A walk of which the first portion is done.
fn walking(engine: &Engine) -> Idle {
    let mut idle = quiet(engine);
    while idle.walk.is_none() {
        assert!(matches!(step(engine, &mut idle), Choice::Job(_)));
    }
    assert!(engine.memory.works());
    idle.begin_interval();
    (idle.began, idle.length) = (Instant::now(), INTERVAL_MAX);
    idle
}

#[test]
fn a_walk_rests_without_memory_as_long_as_reads_come() {
    let (db, _) = with_long_areas(true);
    let engine = &db.handle.engine;
    let mut idle = walking(engine);
    assert_eq!(step(engine, &mut idle), Choice::Job(Job::CleanseGrown), "no reads");
    assert!(engine.memory.works(), "and more comes at once");
    // There may be no third portion.
    let (visible, later) = (engine.state.visible(), Instant::now() + REST_OF_A_WALK_MAX);
    let walk = Walk { visible, until: later, looks: later, read: engine.pager.waited_for() };
    idle.walk = Some(walk);
    for _ in 0..3 {
        looks_now(&mut idle);
        reads(engine);
        let choice = step(engine, &mut idle);
        assert!(matches!(choice, Choice::Wait(time) if !time.is_zero() && time <= LOOK), "{choice:?}");
        assert!(!engine.memory.works(), "it is for readers");
        reads(engine);
        assert!(matches!(step(engine, &mut idle), Choice::Wait(_)), "the next look is not yet");
    }
    reads(engine);
    looks_now(&mut idle);
    assert!(matches!(step(engine, &mut idle), Choice::Wait(_)), "one came since the last look");
    looks_now(&mut idle);
    assert_eq!(step(engine, &mut idle), Choice::Job(Job::CleanseGrown), "no reads any more");
    // Or when it has rested for long enough.
    idle.walk = Some(Walk { until: Instant::now(), ..walk });
    reads(engine);
    assert_eq!(step(engine, &mut idle), Choice::Job(Job::CleanseGrown));
}

/// The first reads may come beside its portion.
#[test]
fn a_walk_rests_from_reads_that_came_beside_it() {
    let (db, _) = with_long_areas(true);
    let engine = &db.handle.engine;
    let mut idle = walking(engine);
    idle.walk.as_mut().unwrap().until += REST_OF_A_WALK_MAX;
    reads(engine);
    assert!(matches!(step(engine, &mut idle), Choice::Wait(time) if time <= LOOK));
}

#[test]
fn a_write_ends_a_walk() {
    let (db, keyspace) = with_long_areas(true);
    let engine = &db.handle.engine;
    let mut idle = walking(engine);
    keyspace.insert("key", "value").unwrap();
    assert!(matches!(step(engine, &mut idle), Choice::Wait(_)));
    assert!(idle.walk.is_none() && idle.growth.is_begun());
}

/// A walk may go on for hours beside readers.
#[test]
fn kept_space_goes_back_while_a_walk_rests() {
    let (db, _) = keeping_space(&Simulated::new(1));
    let engine = &db.handle.engine;
    assert!(engine.space.keeps_space());
    let (visible, later) = (engine.state.visible(), Instant::now() + REST_OF_A_WALK_MAX);
    let walk = Walk { visible, until: later, looks: later, read: 0 };
    let mut idle = Idle { walk: Some(walk), still: (ago(STILL), visible), ..Idle::default() };
    assert_eq!(step(engine, &mut idle), Choice::Job(Job::GiveBack));
    assert!(!engine.space.keeps_space() && idle.walk.is_some());
}

const RECORDS: u32 = 16_000;

/// Scans everywhere until blocks are charged enough, and cleanses or merges them. Says how many were merged until now, and how many cleansed.
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

/// The runs say the same when they are one, also to the next opening; and what scans go on to charge buys the cleansing.
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
    let live = |db: &Database| db.handle.engine.state.version().logs.totals();
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

/// A drop waits for no work. What scans have charged goes with the tree.
#[test]
fn blocks_of_a_dropped_keyspace_are_not_cleansed_for_scans() {
    let shared: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(16 << 20).background_threads(0).open_on(shared).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let change = |numbers: std::iter::StepBy<std::ops::Range<u32>>| {
        numbers.for_each(|number| keyspace.insert(number.to_be_bytes(), [7; 200]).unwrap());
        db.flush().unwrap();
    };
    change((0..RECORDS).step_by(1));
    (0..6).for_each(|from| change((from..RECORDS).step_by(91)));
    let engine = &db.handle.engine;
    while !engine.pager.read_costs.has_listed() {
        for from in (0..RECORDS).step_by(100) {
            assert_eq!(keyspace.range(from.to_be_bytes()..).take(20).count(), 20);
        }
    }
    let mut listed = engine.pager.read_costs.take_listed().into_iter().peekable();
    assert!(db.drop_keyspace("main").unwrap());
    while listed.peek().is_some() {
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        engine.background.cleanser.cleanse_listed_or_poison(guard.get().unwrap(), &mut listed).unwrap();
    }
    let other = db.keyspace("other").unwrap();
    other.insert("k", "v").unwrap();
    db.compact().unwrap();
    assert!(other.contains("k").unwrap());
}

/// It may be at that for long, and meanwhile no other work gives back what a queue has left.
#[test]
fn what_a_queue_has_left_goes_back_while_scans_pay() {
    let (db, _) = keeping_space(&Simulated::new(1));
    let engine = &db.handle.engine;
    engine.memory.free_list.open(engine.shares.queue);
    std::thread::sleep(STILL);
    // A portion of which nothing is left to be done.
    engine.pager.read_costs.put_back([(Position(0), NodeId(u64::MAX))].into_iter());
    let mut idle = Idle { still: (ago(STILL), engine.state.visible()), ..quiet(engine) };
    assert_eq!(step(engine, &mut idle), Choice::Job(Job::GiveBack));
    all_jobs(engine, &mut idle);
    assert!(!engine.memory.free_list.is_open() && !engine.pager.read_costs.has_listed());
}

/// A cache that shrank and grew with each portion would read its nodes again and again.
#[test]
fn the_memory_of_a_job_stays_from_its_first_portion_to_its_last() {
    let db = cleansed(200_000);
    let engine = &db.handle.engine;
    let mut idle = quiet(engine);
    let mut portions = 0;
    loop {
        let choice = step(engine, &mut idle);
        assert_eq!(engine.memory.works(), choice == Choice::Job(Job::Collect), "{choice:?}");
        match choice {
            Choice::Job(Job::Collect) => portions += 1,
            Choice::Job(_) if portions == 0 => {}
            _ => break,
        }
        engine.memory.free_list.open(engine.shares.queue);
        idle.still.0 = ago(STILL);
        assert_eq!(step(engine, &mut idle), Choice::Job(Job::GiveBack), "between two portions");
    }
    assert!(portions > 2, "{portions}");
}

#[test]
fn closing_waits_for_no_work_that_is_done_while_no_writes_come() {
    // What is dead is more than bearable.
    let db = cleansed(200_000);
    let engine = &db.handle.engine;
    engine.pager.read_costs.put_back([(Position(0), NodeId(u64::MAX))].into_iter());
    engine.flush.stop();
    let mut idle = quiet(engine);
    all_jobs(engine, &mut idle);
    assert_eq!(engine.flush.counters.collected_bytes.load(Relaxed), 0);
    assert!(engine.pager.read_costs.has_listed(), "what is not done is not forgotten");
}
