//! Tests of the reserve: how long it is, what is admitted, and what happens without it.

use super::*;
use crate::{Database, Durability};
use psync::{Device, Fault, Filter, OperationKind, Repeat, Simulated, Write};

const MIB: u64 = 1 << 20;

#[test]
fn a_small_database_has_a_small_reserve_and_a_large_one_no_huge_one() {
    let whole = |live, manifest, log| Needs { live, manifest, log }.whole();
    assert_eq!(whole(0, 0, 0), BASE);
    assert_eq!(whole(20_000, 400, 6_000), 160 << 10, "a few records");
    assert_eq!(whole(MIB, 0, 0), BASE + MIB + MIB / 8);
    assert_eq!(whole(1 << 40, 8 << 30, 0), BASE + BLOCK_MAX + PORTIONS_MAX + (8 << 30));
    assert_eq!(whole(0, 0, 40 * MIB), BASE + 50 * MIB, "a queue in the log, and as much in the trees");
}

#[test]
fn removals_leave_what_the_flush_after_them_needs() {
    let needs = Needs { live: 8 * MIB, manifest: MIB, log: 4 * MIB };
    let whole = needs.whole();
    for work in [Work::Frees, Work::NextLog] {
        assert_eq!(may_take(work, whole, needs), whole);
    }
    let part = may_take(Work::Removals, whole, needs);
    assert!(part >= 2 * MIB && whole - part >= 5 * MIB + BLOCK_MAX / 2, "{part} of {whole}");
    // Each removal makes the log longer.
    let left = |len, log| may_take(Work::Removals, len, Needs { log, ..needs });
    let (mut len, mut log, mut taken) = (whole, needs.log, 0);
    while left(len, log) >= STEP {
        (len, log, taken) = (len - STEP, log + STEP, taken + STEP);
    }
    assert!(taken >= MIB && len >= Needs { log, ..needs }.of_log() + BASE / 2, "{taken}");
    assert_eq!(may_take(Work::Removals, 0, needs), 0);
}

fn open(volume: &Simulated) -> Database {
    let builder = Database::builder().memory(4 << 20).background_threads(0);
    builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap()
}

#[test]
fn it_grows_before_the_log_and_shrinks_when_the_log_is_gone() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let (reserve, keyspace) = (&db.handle.engine.space.reserve, db.keyspace("main").unwrap());
    assert_eq!(db.stats().space.reserve, reserve.len());
    assert!((BASE..=2 * BASE + STEP).contains(&reserve.len()), "{}", reserve.len());
    for number in 0..300u32 {
        keyspace.insert(number.to_be_bytes(), [7; 1000]).unwrap();
        let log = db.handle.engine.commits.log.lock_for_test().as_ref().unwrap().wal.longest();
        assert!(reserve.len() >= Needs { log, ..Needs::default() }.whole());
    }
    for number in 0..300u32 {
        keyspace.remove(number.to_be_bytes()).unwrap();
    }
    db.compact().unwrap();
    assert!(reserve.len() < 3 * BASE, "{}", reserve.len());
    let len = reserve.len();
    drop((keyspace, db));
    assert_eq!(volume.read_file(FILE).unwrap(), vec![0; len as usize]);
}

#[test]
fn without_the_file_or_with_another_one_the_database_opens_and_writes() {
    let volume = Simulated::new(1);
    drop(open(&volume));
    for is_foreign in [false, true] {
        volume.remove_file(FILE).unwrap();
        if is_foreign {
            let access = Access { write: true, create: true, ..Access::default() };
            let file = Volume::open(&volume, FILE, access).unwrap();
            volume.write(&[Write { file, offset: 0, data: b"keep me" }]).unwrap();
            Volume::close(&volume, file).unwrap();
        }
        let db = open(&volume);
        let keyspace = db.keyspace("main").unwrap();
        (0..2000u32).for_each(|number| keyspace.insert(number.to_be_bytes(), [7; 1000]).unwrap());
        db.flush().unwrap();
        assert_eq!(db.handle.engine.space.reserve.is_absent.load(SeqCst), is_foreign);
        drop((keyspace, db));
        let content = volume.read_file(FILE).unwrap();
        assert_eq!(content == b"keep me", is_foreign);
    }
}

#[test]
fn a_failure_to_allocate_it_fails_nothing_else() {
    for fault in [Fault::Error, Fault::Exhausted] {
        for kind in [OperationKind::Open, OperationKind::Allocate, OperationKind::Len, OperationKind::Resize]
        {
            let volume = Simulated::new(1);
            volume.fail_nth(Filter::kinds([kind]).file(FILE), 1, fault, Repeat::Sticky);
            let db = open(&volume);
            let keyspace = db.keyspace("main").unwrap();
            (0..2000u32).for_each(|number| keyspace.insert(number.to_be_bytes(), [7; 1000]).unwrap());
            db.compact().unwrap();
            db.close().unwrap();
        }
    }
}

/// Puts would be refused, though there is space.
#[test]
fn it_is_whole_again_as_soon_as_there_is_space() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let keyspace = db.keyspace("main").unwrap();
    keyspace.insert("first", [1; 1000]).unwrap();
    let engine = &db.handle.engine;
    volume.set_capacity(volume.used());
    assert!(engine.space.reserve.give(Work::Frees, u64::MAX) && !engine.space.reserve.is_whole());
    volume.set_capacity(volume.used());
    let refused = keyspace.insert("second", [1; 1000]).unwrap_err();
    assert!(refused.is_disk_full() && refused.to_string().contains("removing records"), "{refused}");
    keyspace.get("first").unwrap().unwrap();
    volume.set_capacity(u64::MAX);
    keyspace.insert("second", [1; 1000]).unwrap();
    assert!(engine.space.reserve.is_whole());
}

/// Each found the reserve long enough, and together they made a log that it was not enough for.
#[test]
fn writers_at_the_same_time_do_not_count_on_the_same_bytes_of_the_reserve() {
    const WRITERS: usize = 32;
    for durability in [Durability::Buffered, Durability::Immediate] {
        let volume = Simulated::new(1);
        let db = open(&volume);
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        keyspace.insert("first", [1; 1000]).unwrap();
        // There is space for the log, but not for a longer reserve.
        volume.fail_nth(
            Filter::kinds([OperationKind::Allocate]).file(FILE),
            1,
            Fault::NoSpace,
            Repeat::Sticky,
        );
        volume.set_capacity(u64::MAX);
        let put = |number: usize| {
            let mut batch = db.batch();
            batch.insert(&keyspace, number.to_be_bytes(), vec![7; 20_000]);
            batch.durability(durability).commit()
        };
        let log = engine.commits.log.lock_for_test();
        let done = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    scope.spawn({
                        let put = &put;
                        move || put(number)
                    })
                })
                .collect();
            // Until each has been refused, or waits for the log, for the leader or for the lock of commits without a sync.
            let mut waiting = 0;
            while waiting < WRITERS {
                waiting = match durability {
                    Durability::Immediate => {
                        let queue = engine.commits.queues.durable.inner.lock();
                        queue.waiters.len() + usize::from(queue.has_leader)
                    }
                    _ => engine.commits.queues.without_sync.threads(),
                };
                waiting += writers.iter().filter(|writer| writer.is_finished()).count();
            }
            drop(log);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        let accepted = done.iter().filter(|result| result.is_ok()).count();
        assert!(done.iter().all(|result| result.as_ref().err().is_none_or(Error::is_disk_full)));
        assert!((1..WRITERS).contains(&accepted), "{accepted} were accepted");
        assert!(reserve_is_enough(engine), "{} bytes after {accepted} puts", engine.space.reserve.len());
        for (number, result) in done.iter().enumerate() {
            assert_eq!(keyspace.get(number.to_be_bytes()).unwrap().is_some(), result.is_ok());
        }
    }
}

/// Work gave it up between a put's admission and the log.
#[test]
fn a_put_that_was_admitted_does_not_come_to_the_log_after_the_reserve_was_given_up() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
    keyspace.insert("first", [1; 1000]).unwrap();
    let log = engine.commits.log.lock_for_test();
    std::thread::scope(|scope| {
        let put = scope.spawn(|| keyspace.insert("second", [7; 20_000]));
        while !engine.commits.queues.durable.inner.lock().has_leader {
            std::thread::yield_now();
        }
        volume.set_capacity(volume.used() + (1 << 20));
        assert!(engine.space.reserve.give(Work::Frees, u64::MAX));
        volume.fail_nth(
            Filter::kinds([OperationKind::Allocate]).file(FILE),
            1,
            Fault::NoSpace,
            Repeat::Sticky,
        );
        drop(log);
        assert!(put.join().unwrap().unwrap_err().is_disk_full());
    });
    assert!(keyspace.get("second").unwrap().is_none());
    // Other puts are as before when there is space.
    volume.clear_faults();
    volume.set_capacity(u64::MAX);
    keyspace.insert("second", [7; 20_000]).unwrap();
    assert!(reserve_is_enough(engine));
}

/// It asked for more of a reserve that was closed for ever.
#[test]
fn a_put_beside_closing_ends() {
    let db = open(&Simulated::new(1));
    let keyspace = db.keyspace("main").unwrap();
    let engine = Arc::clone(&db.handle.engine);
    engine.space.reserve.close();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(keyspace.insert("key", vec![7; 300 << 10])));
    let early = told.recv_timeout(std::time::Duration::from_millis(100));
    assert!(early.is_err(), "there is no reserve for it: {early:?}");
    engine.health.poison(&Error::Closed);
    let ended = told.recv_timeout(std::time::Duration::from_secs(60)).expect("it ends");
    assert!(ended.is_err());
}

/// Each portion that a flush publishes may need more reserve: a put that met four of them reported a full disk.
#[test]
fn a_put_is_not_refused_while_a_reserve_that_became_too_short_can_be_extended() {
    let db = open(&Simulated::new(1));
    let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
    keyspace.insert("before", [1; 100]).unwrap();
    engine.space.reserve.published_for_test.store(20, SeqCst);
    keyspace.insert("key", [1; 1000]).unwrap();
    assert_eq!(engine.space.reserve.refusals(), 20);
    assert!(reserve_is_enough(engine));
}

/// The whole group was refused, and the sync reported a full disk.
#[test]
fn a_sync_is_not_refused_with_the_puts_of_its_group() {
    let db = open(&Simulated::new(1));
    let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
    let commits = &engine.commits;
    keyspace.insert("first", [1; 100]).unwrap();
    keyspace.with_durability(Durability::Buffered).insert("buffered", [1; 100]).unwrap();
    std::thread::scope(|scope| {
        let log = commits.log.lock_for_test();
        let wait = |waiters: usize| {
            let is_there = || {
                let queue = commits.queues.durable.inner.lock();
                queue.has_leader && queue.waiters.len() >= waiters
            };
            while !is_there() {
                std::thread::yield_now();
            }
        };
        let leader = scope.spawn(|| commits.sync());
        wait(0);
        let put = scope.spawn(|| keyspace.insert("put", [1; 1000]));
        wait(1);
        let sync = scope.spawn(|| commits.sync());
        wait(2);
        engine.space.reserve.published_for_test.store(1, SeqCst);
        drop(log);
        leader.join().unwrap().unwrap();
        put.join().unwrap().unwrap();
        sync.join().unwrap().unwrap();
    });
    assert_eq!(engine.space.reserve.refusals(), 1);
    assert_eq!(keyspace.iter().count(), 3);
}

fn reserve_is_enough(engine: &crate::db::engine::Engine) -> bool {
    let log = engine.commits.log.lock_for_test().as_ref().unwrap().wal.longest();
    let needs = Needs { log, ..engine.space.reserve.needs() };
    engine.space.reserve.len() >= needs.whole()
}

/// A copy of a closed database may have it as a hole, which frees nothing on a full disk.
#[test]
fn a_reserve_that_was_copied_as_a_hole_is_given_space() {
    let volume = Simulated::new(1);
    let open = || {
        Database::builder()
            .memory(4 << 20)
            .background_threads(0)
            .open_on(Arc::new(volume.clone()) as Arc<dyn Volume>)
            .unwrap()
    };
    let db = open();
    let keyspace = db.keyspace("main").unwrap();
    (0..100u32).for_each(|number| keyspace.insert(number.to_be_bytes(), [7; 100]).unwrap());
    drop(keyspace);
    db.close().unwrap();
    let file = volume.open(FILE, Access { write: true, ..Access::default() }).unwrap();
    let len = volume.len(file).unwrap();
    volume.release(file, 0..len).unwrap();
    volume.sync(file).unwrap();
    volume.close(file).unwrap();
    let before = volume.used();
    let db = open();
    assert!(volume.used() >= before + len, "{} of {len} bytes", volume.used() - before);
    assert!(db.handle.engine.space.reserve.is_whole());
    let has = db.handle.engine.space.reserve.len();
    db.close().unwrap();
    // It does not grow with each opening.
    for _ in 0..5 {
        open().close().unwrap();
    }
    assert!(open().handle.engine.space.reserve.len() <= has);
}

/// Tells how short a file of this name was made.
struct Shortened {
    inner: Simulated,
    shortest: AtomicU64,
}

impl psync::PassThrough for Shortened {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn resize(&self, file: FileId, len: u64) -> psync::Result<()> {
        self.shortest.fetch_min(len, SeqCst);
        self.inner().resize(file, len)
    }
}

/// Another program would take the space.
#[test]
fn on_a_full_disk_a_reserve_that_has_its_space_keeps_it() {
    let inner = Simulated::new(1);
    let volume = Arc::new(Shortened { inner: inner.clone(), shortest: AtomicU64::new(u64::MAX) });
    let reserve = Reserve::new(Arc::clone(&volume) as Arc<dyn Volume>);
    reserve.grow(0).unwrap();
    let len = reserve.len();
    reserve.close();
    let reserve = Reserve::new(Arc::clone(&volume) as Arc<dyn Volume>);
    reserve.find();
    assert_eq!(reserve.len(), len);
    inner.set_capacity(inner.used());
    reserve.note_version(0, len);
    assert!(matches!(reserve.grow(0), Err(Error::DiskFull(_))));
    assert_eq!(reserve.len(), len);
    assert!(volume.shortest.load(SeqCst) >= len, "it was cut");
}
