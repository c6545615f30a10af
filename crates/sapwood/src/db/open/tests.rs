//! What opens after what was killed, failed or was damaged, and what is then there.

use crate::cache::pager;
use crate::db::options::Builder;
use crate::error::Error;
use crate::operation::put_insert;
use crate::version::current;
use crate::version::current::Current;
use crate::version::manifest;
use crate::{Database, Durability, wal};
use psync::{Access, Device, Fault, Filter, OperationKind, Repeat, Simulated, Volume, Write};
use std::sync::Arc;

#[test]
fn a_log_that_is_too_long_to_be_replayed_for_reading_only_is_an_error() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let builder = Database::builder().memory(768 << 20).background_threads(0);
    let open = |read_only| builder.clone().read_only(read_only).open_on(Arc::clone(&volume));
    let value = vec![1; 15 << 20];
    let write = |numbers: std::ops::Range<u8>| {
        let keyspace = open(false).unwrap().keyspace("main").unwrap();
        numbers.for_each(|number| keyspace.insert([number], &value).unwrap());
    };
    write(0..5);
    assert!(open(true).is_ok());
    // The last one finds 75 MiB of others.
    write(5..6);
    assert!(matches!(open(true), Err(Error::BadOption { option: "read_only", .. })));
    let db = open(false).unwrap();
    db.flush().unwrap();
    drop(db);
    let keyspace = open(true).unwrap().keyspace("main").unwrap();
    assert_eq!(keyspace.get([5]).unwrap().unwrap().len(), value.len());
}

fn options(memory: u64, background: usize) -> Builder {
    Database::builder().memory(memory).segment_span(1 << 20).background_threads(background)
}

fn name(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// What a process leaves that was killed while its first queue could not be flushed; how many records there are, all of them in the log
/// only; and the generation that follows the first queue's.
fn killed_with_two_queues(memory: u64, durability: Durability) -> (Simulated, u32, u64) {
    let volume = Simulated::new(1);
    let db = options(memory, 0).open_on(Arc::new(volume.clone())).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let to_data = Filter::kinds([OperationKind::Write]).file(pager::FILE);
    volume.fail_nth(to_data, 1, Fault::NoSpace, Repeat::Sticky);
    let put = |number: &u32| {
        let mut batch = db.batch();
        batch.insert(&keyspace, name(*number), [7; 500]);
        batch.durability(durability).commit()
    };
    let count = (0..).find(|number| put(number).is_err()).unwrap();
    let state = db.handle.engine.state.load_full();
    assert!(state.frozen.is_some() && state.version.flushed_seq == 0);
    volume.clear_faults();
    let generation = state.frozen.as_ref().unwrap().wal_low;
    (volume.crash(), count, generation)
}

/// How many records there are, from the first on; and there is none behind a gap.
fn held(db: &Database, most: u32) -> u32 {
    let keyspace = db.keyspace("main").unwrap();
    let is_there = |number: &u32| keyspace.get(name(*number)).unwrap().is_some();
    let held = (0..most).find(|number| !is_there(number)).unwrap_or(most);
    assert!(!(held..most).any(|number| is_there(&number)), "a gap at {held} of {most}");
    held
}

#[test]
fn no_opening_waits_for_the_flush_of_a_queue_that_was_frozen_when_the_process_was_killed() {
    let (found, count, generation) = killed_with_two_queues(8 << 20, Durability::Buffered);
    let volume = found.crash();
    let db = options(8 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
    let state = db.handle.engine.state.load_full();
    let frozen = state.frozen.clone().expect("the first queue is as it was");
    assert_eq!((frozen.wal_low, state.version.flushed_seq), (generation, 0));
    assert!(!state.active.is_empty());
    assert_eq!((held(&db, count), db.stats().writes.data_bytes), (count, 0));
    // What was read is durable.
    for seed in 0..5 {
        let lost = options(8 << 20, 0).open_on(Arc::new(volume.power_loss(seed))).unwrap();
        assert_eq!(held(&lost, count), count);
    }
    // It is flushed as always, and its log goes; the other queue's does not.
    db.handle.engine.flush.flush_now().unwrap();
    let state = db.handle.engine.state.load_full();
    assert!(state.frozen.is_none() && state.version.flushed_seq == frozen.last_seq);
    assert_eq!(state.version.wal_low, generation);
    let oldest = volume.list().unwrap().iter().filter_map(|entry| wal::generation_of(&entry.name)).min();
    assert_eq!(oldest, Some(generation));
    for seed in 0..5 {
        let lost = options(8 << 20, 1).open_on(Arc::new(volume.power_loss(seed))).unwrap();
        assert_eq!(held(&lost, count), count);
    }
    let db = options(8 << 20, 1).open_on(Arc::new(found.crash())).unwrap();
    db.flush().unwrap();
    assert_eq!((held(&db, count), db.stats().writes.changes_queued), (count, 0));
}

#[test]
fn a_log_that_has_no_room_in_two_queues_is_flushed_when_all_of_it_is_found_sound() {
    let (found, count, _) = killed_with_two_queues(32 << 20, Durability::Buffered);
    for background in [0, 1] {
        let volume = found.crash();
        let db = options(4 << 20, background).open_on(Arc::new(volume.clone())).unwrap();
        assert_eq!(held(&db, count), count);
        assert!(db.stats().memory.queues <= 2 << 20, "{}", db.stats().memory.queues);
        for seed in 0..3 {
            let lost = options(4 << 20, 0).open_on(Arc::new(volume.power_loss(seed))).unwrap();
            assert_eq!(held(&lost, count), count);
        }
    }
}

#[test]
fn nothing_is_changed_before_all_of_a_long_log_is_found_sound() {
    let (found, _, generation) = killed_with_two_queues(12 << 20, Durability::Immediate);
    let last = wal::file_name(generation);
    let middle = found.read_file(&last).unwrap().len() as u64 / 2;
    found.flip_bit(&last, middle, 3).unwrap();
    for background in [0, 1] {
        let volume = found.crash();
        volume.fail_nth(Filter::kinds([OperationKind::Write]), 1, Fault::Error, Repeat::Sticky);
        let opened = options(4 << 20, background).open_on(Arc::new(volume.clone()));
        assert!(opened.is_err_and(|error| error.is_damage()));
        assert_eq!(volume.fired(), 0, "something was written");
    }
}

/// With a thread in the background the log is rewritten while the manifest is written.
#[test]
fn whatever_fails_while_a_killed_database_is_opened_it_opens_again() {
    let (found, count, _) = killed_with_two_queues(4 << 20, Durability::Buffered);
    let (mut failures, mut nth) = (0, 0);
    loop {
        nth += 1;
        let mut fired = 0;
        for fault in [Fault::PowerOff, Fault::Error, Fault::NoSpace] {
            let volume = found.crash();
            volume.fail_nth(Filter::changes(), nth, fault, Repeat::Once);
            let opened = options(4 << 20, 1).open_on(Arc::new(volume.clone()));
            let is_open = opened.is_ok();
            failures += u32::from(!is_open);
            drop(opened);
            fired += volume.fired();
            volume.clear_faults();
            for seed in 0..3 {
                let db = options(4 << 20, 1).open_on(Arc::new(volume.power_loss(seed)));
                let held = held(&db.unwrap_or_else(|error| panic!("{fault:?} at {nth}: {error}")), count);
                assert!(!is_open || held == count, "{held} of {count}: {fault:?} at {nth}");
            }
        }
        if fired == 0 || nth > 40 {
            break;
        }
    }
    assert!(failures > 10, "{failures}");
}

/// What a process leaves whose flush has written its edit and could not sync it; and how many records there are, all of them buffered. The edit can be
/// read, unless a power loss comes first.
fn killed_with_an_edit_that_is_not_durable(seed: u64) -> (Simulated, u32) {
    let volume = Simulated::new(seed);
    let db = options(4 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let put = |number: u32| {
        let mut batch = db.batch();
        batch.insert(&keyspace, name(number), [7; 500]);
        batch.durability(Durability::Buffered).commit()
    };
    (0..60).for_each(|number| put(number).unwrap());
    let engine = &db.handle.engine;
    engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
    volume.fail_nth(Filter::kinds([OperationKind::Sync]).file("manifest"), 1, Fault::Error, Repeat::Once);
    // It comes to the log behind the queue's, and then the flush has its turn.
    put(60).unwrap();
    assert!(volume.fired() == 1 && put(61).is_err());
    (volume.crash(), 61)
}

/// The log's next file said that the one was durable whose records only that edit had made needless.
#[test]
fn the_next_log_vouches_for_nothing_before_the_manifest_is_durable() {
    for seed in 0..4 {
        let (found, count) = killed_with_an_edit_that_is_not_durable(seed);
        // What fails is the manifest's way, so that the log's has come as far as it can.
        let plans = ["manifest", "CURRENT"].into_iter().flat_map(|file| (1..6).map(move |nth| (file, nth)));
        for (file, nth) in plans {
            let volume = found.crash();
            volume.fail_nth(Filter::changes().file(file), nth, Fault::Error, Repeat::Once);
            let is_open = options(4 << 20, 1).open_on(Arc::new(volume.clone())).is_ok();
            for loss in 0..6 {
                let db = options(4 << 20, 0).open_on(Arc::new(volume.power_loss(loss)));
                let held = held(&db.unwrap_or_else(|error| panic!("{seed} {nth} {loss}: {error}")), count);
                assert!(!is_open || held == count, "{held} of {count}: {seed} {nth} {loss}");
            }
            if is_open {
                break;
            }
        }
    }
}

/// Opening publishes before leftovers are removed, and may begin with the next manifest then.
#[test]
fn the_next_manifest_is_no_leftover_while_it_is_written() {
    let volume = Simulated::new(1);
    // Many short leaves, so that the mapping table is long beside an edit.
    let builder = || options(8 << 20, 0).leaf_len(256);
    let open = |volume: &Simulated| builder().open_on(Arc::new(volume.clone())).unwrap();
    let put = |db: &Database, round: u32| {
        let keyspace = db.keyspace("main").unwrap();
        let mut batch = db.batch();
        (0..40_000)
            .step_by(7)
            .for_each(|number| _ = batch.insert(&keyspace, name(number + round % 7), [7; 20]));
        batch.commit().unwrap();
    };
    let has_next =
        |db: &Database| db.handle.engine.publisher.manifest_for_test().as_ref().unwrap().has_next();
    let number =
        |db: &Database| db.handle.engine.publisher.manifest_for_test().as_ref().unwrap().current().manifest;
    let db = open(&volume);
    db.keyspace("main").unwrap().ingest((0..60_000).map(|number| (name(number), [7; 60]))).unwrap();
    let mut rounds = 0..1000;
    for round in rounds.by_ref() {
        put(&db, round);
        db.flush().unwrap();
        if has_next(&db) {
            break;
        }
    }
    assert!(has_next(&db));
    db.close().unwrap();
    // That changes are kept from now on is an edit.
    let db = builder().keep_changes(1 << 20).open_on(Arc::new(volume.clone())).unwrap();
    assert!(has_next(&db), "opening has published something");
    let before = number(&db);
    for round in rounds.by_ref() {
        put(&db, round);
        db.flush().unwrap();
        if number(&db) > before {
            break;
        }
    }
    assert!(number(&db) > before);
    let held = db.keyspace("main").unwrap().iter().count();
    drop(db);
    let volume = volume.crash();
    let db = open(&volume);
    assert_eq!(db.keyspace("main").unwrap().iter().count(), held);
    db.check().unwrap();
}

/// An attempt that came to no end leaves slots behind all that the manifest knows. They were never given back, and the next
/// open found the disk full of them.
#[test]
fn what_an_unfinished_attempt_has_left_goes_back() {
    for is_full in [false, true] {
        let volume = Simulated::new(1);
        let db = options(4 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..5000).map(|number| (name(number), [7; 100]))).unwrap();
        let off = Filter::kinds([OperationKind::Sync]).file(pager::FILE);
        volume.fail_nth(off, 1, Fault::PowerOff, Repeat::Once);
        keyspace.ingest((5000..100_000).map(|number| (name(number), [7; 100]))).unwrap_err();
        // The process dies, not the machine.
        let found = volume.crash();
        let left = found.used();
        assert!(left > 8 << 20, "{left}");
        if is_full {
            found.set_capacity(left);
        }
        let db = options(4 << 20, 0).open_on(Arc::new(found.clone())).unwrap();
        let engine = &db.handle.engine;
        assert!(engine.space.keeps_space());
        engine.space.reclaim(0);
        assert!(found.used() < 2 << 20, "{} of {left}", found.used());
        assert_eq!(db.check().unwrap().records, 5000);
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((5000..6000).map(|number| (name(number), [7; 100]))).unwrap();
        db.check().unwrap();
    }
}

/// Opening flushes now and then, so that logs do not pile up. On a full disk that can wait.
#[test]
fn a_full_disk_does_not_prevent_opening_what_was_closed() {
    let volume = Simulated::new(1);
    let open = || options(4 << 20, 0).open_on(Arc::new(volume.clone()));
    let writes = Filter::kinds([OperationKind::Write]).file(pager::FILE);
    volume.fail_nth(writes, 1, Fault::NoSpace, Repeat::Sticky);
    let sessions = 3 * super::GENERATIONS_MAX as u32;
    for session in 0..sessions {
        let db = open().unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.insert(name(session), [7; 100]).unwrap();
        assert_eq!(keyspace.iter().count() as u32, session + 1);
        db.close().unwrap();
    }
    assert!(volume.fired() > 1);
    volume.clear_faults();
    let db = open().unwrap();
    assert_eq!(db.check().unwrap().records, u64::from(sessions));
}

/// Files of two times that came together, or a disk that lied about a sync. A gap was believed, and with a log that
/// ends too early the first commit panicked.
#[test]
fn a_log_that_does_not_continue_the_trees_is_damage() {
    let volume = Simulated::new(1);
    let db = options(4 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    (1..6).for_each(|number| keyspace.insert(name(number), "before").unwrap());
    db.flush().unwrap();
    let (id, low) = (keyspace.id(), db.handle.engine.state.load().version.wal_low);
    let found = volume.crash();
    let database = Current::decode(&found.read_file(current::FILE).unwrap(), "").unwrap().database;
    let with_log = |first_seq, records| {
        let mut body = Vec::new();
        put_insert(&mut body, id, b"key", b"value");
        let log = wal::sealed(database, low, first_seq, std::iter::repeat_n((1, &body[..]), records));
        let volume = found.crash();
        let file = volume.open(&wal::file_name(low), Access { write: true, ..Access::default() }).unwrap();
        volume.resize(file, 0).unwrap();
        volume.write(&[Write { file, offset: 0, data: &log }]).unwrap();
        volume
    };
    for (first_seq, records, is_sound) in [
        (6, 0, true),
        (6, 3, true),
        (1, 5, true),
        (1, 7, true),
        (7, 0, false),
        (7, 3, false),
        (1, 0, false),
        (1, 4, false),
        (u64::MAX, 0, false),
    ] {
        for read_only in [true, false] {
            let opened =
                options(4 << 20, 0).read_only(read_only).open_on(Arc::new(with_log(first_seq, records)));
            match opened {
                Ok(db) if is_sound => {
                    let is_there = db.keyspace("main").unwrap().get("key").unwrap().is_some();
                    assert_eq!(is_there, first_seq + records as u64 > 6, "{records} from {first_seq}");
                    if !read_only {
                        db.keyspace("main").unwrap().insert("new", "value").unwrap();
                    }
                }
                Err(error) if !is_sound => {
                    assert!(
                        error.is_damage() && error.to_string().contains("continues what is in the trees"),
                        "{error}"
                    );
                }
                other => panic!("{records} from {first_seq}: {:?}", other.map(drop)),
            }
        }
    }
}

/// What a process leaves that was killed when an edit could not be synced: the `nth` of those that write what lies at the end of the data file anew,
/// at its beginning.
fn killed_while_the_end_was_moved(nth: u64) -> Option<Simulated> {
    let volume = Simulated::new(nth);
    let db = options(4 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
    let ingest = |keyspace: &str, count| {
        let records = (0..count).map(|number| (name(number), [7; 100]));
        db.keyspace(keyspace).unwrap().ingest(records).unwrap();
    };
    for (keyspace, count) in [("first", 80_000), ("last", 5000), ("open", 100)] {
        ingest(keyspace, count);
    }
    db.drop_keyspace("first").unwrap();
    db.compact().unwrap();
    volume.fail_nth(Filter::kinds([OperationKind::Sync]).file("manifest"), nth, Fault::Error, Repeat::Once);
    let rewrite = || {
        let mut batch = db.batch();
        for (keyspace, count) in [("last", 5000), ("open", 100)] {
            let keyspace = db.keyspace(keyspace)?;
            let numbers = (0..count).filter(|number| number % 4 > 0);
            numbers.for_each(|number| _ = batch.insert(&keyspace, name(number), [8; 100]));
        }
        batch.commit()?;
        db.flush()
    };
    let _ = (0..2).try_for_each(|_| rewrite());
    (volume.fired() == 1).then(|| volume.crash())
}

/// The space behind the segments of the version that was read was given back on a full disk, before that version was durable.
#[test]
fn nothing_is_given_back_that_an_edit_has_dropped_that_may_be_lost() {
    let is_whole = |volume: &Simulated, what: &str| {
        let db = options(4 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
        db.check().unwrap_or_else(|error| panic!("{what}: {error}"));
        let count = |name| db.keyspace(name).unwrap().iter().map(Result::unwrap).count();
        assert_eq!(["last", "open"].map(count), [5000, 100], "{what}");
    };
    let (mut count, mut reached) = (0, 0);
    for nth in 1.. {
        let Some(found) = killed_while_the_end_was_moved(nth) else { break };
        count += 1;
        let volume = found.crash();
        volume.set_capacity(volume.used());
        volume.fail_nth(Filter::changes().file("CURRENT.tmp"), 1, Fault::PowerOff, Repeat::Once);
        assert!(options(4 << 20, 0).open_on(Arc::new(volume.clone())).is_err());
        reached += volume.fired();
        for seed in 0..4 {
            let lost = volume.power_loss(seed);
            lost.set_capacity(u64::MAX);
            is_whole(&lost, &format!("edit {nth}, seed {seed}"));
        }
        let volume = found.crash();
        volume.set_capacity(volume.used());
        is_whole(&volume, &format!("edit {nth}"));
    }
    assert!(count > 2 && reached > 2, "{reached} of {count}");
}

/// Each left one more, and then the disk was full of them.
#[test]
fn openings_that_fail_leave_no_manifest_each() {
    let volume = Simulated::new(1);
    let open = |volume: &Simulated| options(8 << 20, 1).leaf_len(256).open_on(Arc::new(volume.clone()));
    let db = open(&volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..40_000).map(|number| (name(number), [7; 60]))).unwrap();
    keyspace.insert("key", "value").unwrap();
    let found = volume.crash();
    drop(db);
    let manifests = |volume: &Simulated| {
        let entries = volume.list().unwrap().into_iter();
        let lens: Vec<_> =
            entries.filter(|entry| entry.name.starts_with("manifest-")).map(|entry| entry.len).collect();
        (lens.len(), lens.into_iter().sum::<u64>())
    };
    // The copy of the log is made beside the manifest.
    let volume = found.crash();
    volume.fail_nth(Filter::kinds([OperationKind::Write]).file("wal-"), 1, Fault::NoSpace, Repeat::Sticky);
    for attempt in 1..=5 {
        assert!(open(&volume).is_err_and(|error| error.is_disk_full()));
        assert_eq!(manifests(&volume).0, 1, "after {attempt}");
    }
    assert!(manifests(&volume).1 > 100 << 10, "{:?}", manifests(&volume));
    volume.clear_faults();
    // What openings of before have left makes room for one.
    let current = Current::read(&volume).unwrap().manifest;
    for number in 1..current {
        volume.copy_file(&manifest::file_name(current), &manifest::file_name(number)).unwrap();
    }
    volume.remove_file(crate::reserve::FILE).ok();
    volume.set_capacity(volume.used());
    let db = open(&volume).unwrap();
    assert_eq!((db.check().unwrap().records, manifests(&volume).0), (40_000, 1));
    assert!(db.keyspace("main").unwrap().get("key").unwrap().is_some());
}

/// What had been left was given back for the copy of the log, which is written at the same time, and the manifest was refused.
#[test]
fn space_that_others_got_at_opening_is_tried_for() {
    for (file, nth) in [("manifest-", 1), ("wal-", 1)] {
        let volume = Simulated::new(1);
        let db = options(8 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
        db.keyspace("main").unwrap().insert("key", "value").unwrap();
        let found = volume.crash();
        drop(db);
        found.remove_file(crate::reserve::FILE).ok();
        found.fail_nth(Filter::kinds([OperationKind::Write]).file(file), nth, Fault::NoSpace, Repeat::Once);
        let db = options(8 << 20, 0).open_on(Arc::new(found)).unwrap();
        assert!(db.keyspace("main").unwrap().get("key").unwrap().is_some(), "{file}");
    }
}

/// They were counted for as long as the database was open, and a full disk looked for each.
#[test]
fn what_was_kept_of_the_log_is_forgotten_with_its_files() {
    let volume = Simulated::new(1);
    let open = |bytes| {
        let builder = options(4 << 20, 0).keep_changes(bytes);
        builder.open_on(Arc::new(volume.clone())).unwrap()
    };
    let db = open(1 << 30);
    let keyspace = db.keyspace("main").unwrap();
    for number in 0..5 {
        keyspace.insert(name(number), [7; 10_000]).unwrap();
        db.flush().unwrap();
    }
    assert!(db.stats().space.kept_log > 40_000);
    db.close().unwrap();
    let is_old = |files: Vec<psync::Entry>, low| {
        files.iter().filter_map(|entry| wal::generation_of(&entry.name)).filter(|it| *it < low).count()
    };
    let db = open(0);
    let engine = &db.handle.engine;
    assert_eq!(is_old(volume.list().unwrap(), engine.state.load().version.wal_low), 0);
    assert_eq!(db.stats().space.kept_log, 0);
    assert!(!engine.space.kept_log.give_up_oldest(&volume));
}

/// A file system that is full may have no space to note a hole.
#[test]
fn space_that_cannot_be_given_back_keeps_nobody_from_opening() {
    for direct in [true, false] {
        let volume = if direct { Simulated::new(1) } else { Simulated::new(1).without_direct() };
        let db = options(4 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..5000).map(|number| (name(number), [7; 100]))).unwrap();
        let off = Filter::kinds([OperationKind::Sync]).file(pager::FILE);
        volume.fail_nth(off, 1, Fault::PowerOff, Repeat::Once);
        keyspace.ingest((5000..50_000).map(|number| (name(number), [7; 100]))).unwrap_err();
        let found = volume.crash();
        found.set_capacity(found.used());
        found.fail_nth(OperationKind::Release, 1, Fault::NoSpace, Repeat::Once);
        let db = options(4 << 20, 0).open_on(Arc::new(found.clone())).unwrap();
        assert_eq!((db.check().unwrap().records, found.fired()), (5000, 1));
    }
}

/// The version that was opened was held while the log was flushed, and with it all space that the flushes freed.
#[test]
fn flushes_of_an_opening_write_where_those_before_have_freed_space() {
    let volume = Simulated::new(1);
    let db = options(128 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let value = |byte| vec![byte; 16 << 10];
    keyspace.ingest((0..1200).map(|number| (name(number), value(7)))).unwrap();
    db.compact().unwrap();
    let live = db.handle.engine.state.load().version.live_bytes();
    (0..1200).for_each(|number| keyspace.insert(name(number), value(8)).unwrap());
    assert_eq!(db.stats().writes.flushes, 0, "all are in the log");
    let volume = volume.crash();
    let db = options(4 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
    assert!(db.stats().writes.flushes > 3);
    let engine = &db.handle.engine;
    let len = engine.volume.len(engine.data).unwrap();
    assert!(len < live * 3 / 2, "{len} bytes for {live}");
    let keyspace = db.keyspace("main").unwrap();
    assert!(keyspace.iter().all(|record| record.unwrap().1 == value(8)));
    assert_eq!(keyspace.iter().count(), 1200);
}

/// It advised to remove records where there was no database yet: at the lock.
#[test]
fn a_full_disk_on_which_no_database_is_yet_asks_for_no_records() {
    let mut told = 0;
    let lock = (Filter::from(OperationKind::Lock), 1);
    for (filter, nth) in [lock].into_iter().chain((1..).map(|nth| (Filter::changes(), nth))) {
        let volume = Simulated::new(1);
        volume.fail_nth(filter, nth, Fault::NoSpace, Repeat::Once);
        let opened = options(4 << 20, 0).open_on(Arc::new(volume.clone())).map(drop);
        if volume.fired() == 0 {
            break;
        }
        let is_there = volume.list().unwrap().iter().any(|entry| entry.name == current::FILE);
        if let Err(error) = opened
            && error.is_disk_full()
            && !is_there
        {
            assert!(error.to_string().contains("there is no database yet"), "operation {nth}: {error}");
            told += 1;
        }
    }
    assert!(told > 5, "{told} told");
}
