//! What is refused, and how it is told.

use crate::ground::{Load, directory, hash, open, options};
use psync::{Access, Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use sapwood::backup::{Restore, StreamWriter};
use sapwood::{Compression, Database, Error, Expiry};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_database_is_restored_into_an_empty_directory_only() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let db = open(&source).expect("opens");
    db.backup().run(&directory(&target)).expect("a backup");
    for name in ["data", "CURRENT", "notes.txt", "wal-0000000001"] {
        let copy = Simulated::new(3);
        let file =
            copy.open(name, Access { write: true, create: true, ..Access::default() }).expect("creates");
        copy.close(file).expect("closes");
        let refused = Restore::from(&directory(&target)).onto(Arc::new(copy.clone()));
        assert!(matches!(refused, Err(Error::NotEmpty { .. })), "{name}: {refused:?}");
        let left: Vec<_> = copy.list().expect("lists").into_iter().map(|entry| entry.name).collect();
        assert!(left.iter().all(|left| left == name || left == "LOCK"), "{left:?}");
    }
    let refused = Restore::from(&directory(&target)).onto(Arc::new(source));
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
}

#[test]
fn the_backup_asked_for_must_be_there() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let none = Restore::from(&directory(&target)).verify();
    assert!(none.is_err_and(|error| error.to_string().contains("it has: none")));
    let db = open(&source).expect("opens");
    db.backup().run(&directory(&target)).expect("a backup");
    let other = Restore::from(&directory(&target)).number(7).verify().expect_err("there is one");
    assert!(other.to_string().contains("no backup 7; it has: 1"), "{other}");
    assert!(matches!(Restore::from_stream(&b""[..]).verify(), Err(error) if error.is_damage()));
    assert!(
        matches!(Restore::from_stream(&b"hello, this is no backup at all, and it is long enough for a header"[..]).verify(), Err(error) if error.is_damage())
    );
}

#[test]
fn the_function_that_is_told_of_progress_ends_the_work() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let db = open(&source).expect("opens");
    Load::new(&db, 1).and_then(|mut load| load.run(&db, 300)).expect("writes");
    db.flush().expect("flushes");
    let stopped = db.backup().on_progress(|_| ControlFlow::Break(())).run(&directory(&target));
    assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
    let (mut last, mut calls) = (None, 0);
    let taken = db
        .backup()
        .on_progress(|progress| {
            calls += 1;
            last = Some(*progress);
            ControlFlow::Continue(())
        })
        .run(&directory(&target))
        .expect("a backup");
    let last = last.expect("there was progress");
    assert_eq!((last.done, taken.copied), (last.total, last.total));
    assert!(calls > 1, "{calls} calls");
    let copy = Simulated::new(3);
    let target = directory(&target);
    let restore = Restore::from(&target).on_progress(|_| ControlFlow::Break(()));
    assert!(matches!(restore.onto(Arc::new(copy.clone())), Err(Error::Stopped)));
    match options().open_on(Arc::new(copy.clone())) {
        Err(Error::NotADatabase { reason, .. }) => assert!(reason.contains("a restore"), "{reason}"),
        other => panic!("it is made one: {other:?}"),
    }
    Restore::from(&target).onto(Arc::new(copy.clone())).expect("restores");
    assert_eq!(hash(&open(&copy).expect("opens")), hash(&db));
}

#[test]
fn a_closed_database_is_not_backed_up() {
    let db = open(&Simulated::new(1)).expect("opens");
    Load::new(&db, 1).and_then(|mut load| load.run(&db, 300)).expect("writes");
    db.flush().expect("flushes");
    // Closed before it begins, and while it runs.
    let backup = db.backup().on_progress(|_| {
        let _ = db.clone().close();
        ControlFlow::Continue(())
    });
    let stream = StreamWriter::new(Vec::new());
    assert!(matches!(backup.run(&stream), Err(Error::Closed)));
    assert!(Restore::from_stream(&stream.into_inner()[..]).verify().is_err());
    assert!(matches!(db.backup().run(&StreamWriter::new(Vec::new())), Err(Error::Closed)));
}

/// A stream that the first program with backups has written, of a database of format 11 with 300 records in the trees and one in the log.
const FIRST: &[u8] = include_bytes!("format_1.stream");

#[test]
fn a_stream_of_the_first_format_is_restored() {
    let copy = Simulated::new(3);
    let info = Restore::from_stream(FIRST).onto(Arc::new(copy.clone())).expect("restores");
    assert_eq!((info.number, info.sequence, info.bytes), (1, 301, FIRST.len() as u64));
    let db = open(&copy).expect("opens");
    let keyspace = db.keyspace("default").expect("a keyspace");
    assert_eq!(keyspace.iter().count(), 300);
    assert_eq!(keyspace.get("key00123").expect("reads").as_deref(), Some(&b"value of 123"[..]));
    assert_eq!(keyspace.get("key00007").expect("reads").as_deref(), Some(&b"changed"[..]));
    db.check().expect("sound");
}

/// A program's own merge operator is not needed to copy what it has made.
#[test]
fn the_copy_has_the_keyspaces_as_they_were() {
    let db = open(&Simulated::new(1)).expect("opens");
    let mut load = Load::new(&db, 1).expect("keyspaces");
    load.run(&db, 100).expect("writes");
    let stream = StreamWriter::new(Vec::new());
    db.backup().run(&stream).expect("a backup");
    let copy = Simulated::new(3);
    Restore::from_stream(&stream.into_inner()[..]).onto(Arc::new(copy.clone())).expect("restores");
    let copied: Database = open(&copy).expect("opens");
    assert_eq!(copied.keyspaces(), db.keyspaces());
    let merged = copied.keyspace("merged").expect("a keyspace");
    merged.insert("key", "a").and_then(|()| merged.merge("key", "b")).expect("it merges");
    assert_eq!(merged.get("key").expect("a value").as_deref(), Some(&b"ab"[..]));
    assert_eq!(merged.options().expect("options").is_compressed_by(), Compression::Lz4);
    let expiring = copied.keyspace("expiring").expect("a keyspace");
    expiring
        .insert_expiring("key", "value", Expiry::After(Duration::from_secs(5)))
        .expect("its records expire");
}

/// If `CURRENT` was lost later, opening told to repeat the restore, which would have removed the database.
#[test]
fn the_sign_of_a_restore_that_was_killed_at_its_end_is_removed() {
    let (source, target, copy) = (Simulated::new(1), Simulated::new(2), Simulated::new(3));
    let db = open(&source).expect("opens");
    db.backup().run(&directory(&target)).expect("a backup");
    Restore::from(&directory(&target)).onto(Arc::new(copy.clone())).expect("restores");
    copy.write_file("RESTORING", b"").expect("writes");
    let has_sign = || copy.list().expect("lists").iter().any(|entry| entry.name == "RESTORING");
    drop(options().read_only(true).open_on(Arc::new(copy.clone())).expect("opens"));
    assert!(has_sign(), "who only reads removes nothing");
    drop(open(&copy).expect("opens"));
    assert!(!has_sign());
}

/// It was told to have failed, and could not be repeated: there was a whole database.
#[test]
fn what_fails_behind_the_last_step_of_a_restore_does_not_fail_it() {
    let target = Simulated::new(2);
    let db = open(&Simulated::new(1)).expect("opens");
    Load::new(&db, 1).and_then(|mut load| load.run(&db, 100)).expect("runs");
    db.backup().run(&directory(&target)).expect("a backup");
    let of = |kind: OperationKind, file: &str| Filter::kinds([kind]).file(file);
    let restored = |copy: &Simulated| Restore::from(&directory(&target)).onto(Arc::new(copy.clone()));
    // Syncs of the directory: the last ones are those of the mark in `CURRENT`, and of the removal.
    let syncs = (1..).find(|nth| {
        let copy = Simulated::new(3);
        copy.fail_nth(OperationKind::SyncDirectory, *nth, Fault::Error, Repeat::Once);
        _ = restored(&copy);
        copy.fired() == 0
    });
    let last = syncs.expect("there are some") - 1;
    for (filter, nth) in [
        (of(OperationKind::Write, "CURRENT"), 2),
        (of(OperationKind::Rename, "CURRENT"), 2),
        (of(OperationKind::Remove, "RESTORING"), 1),
        (OperationKind::SyncDirectory.into(), last - 1),
        (OperationKind::SyncDirectory.into(), last),
    ] {
        for fault in [Fault::NoSpace, Fault::Error] {
            let copy = Simulated::new(3);
            copy.fail_nth(filter.clone(), nth, fault, Repeat::Once);
            let told = restored(&copy).map(drop).map_err(|error| error.to_string());
            assert_eq!((told, copy.fired()), (Ok(()), 1), "{filter:?}");
            copy.clear_faults();
            for volume in [copy.power_loss(7), copy.crash()] {
                let copied = open(&volume).expect("opens");
                assert_eq!(hash(&copied), hash(&db));
                assert!(!volume.list().expect("lists").iter().any(|entry| entry.name == "RESTORING"));
            }
        }
    }
}

/// It was told to have failed, and there was a database, so that it could not be repeated.
#[test]
fn a_restore_whose_database_may_not_last_can_be_repeated() {
    let target = Simulated::new(2);
    let db = open(&Simulated::new(1)).expect("opens");
    Load::new(&db, 1).and_then(|mut load| load.run(&db, 100)).expect("runs");
    db.backup().run(&directory(&target)).expect("a backup");
    let restored = |copy: &Simulated| Restore::from(&directory(&target)).onto(Arc::new(copy.clone()));
    let mut repeated = 0;
    for nth in 1.. {
        let copy = Simulated::new(3);
        copy.fail_nth(OperationKind::SyncDirectory, nth, Fault::Error, Repeat::Once);
        let told = restored(&copy);
        if copy.fired() == 0 {
            break;
        }
        copy.clear_faults();
        let Err(error) = told else { continue };
        let words = error.to_string();
        assert!(matches!(error, Error::Io(_)) && !words.contains("reopen"), "sync {nth}: {words}");
        // A power failure may bring back what was there: all of it.
        let lost = [copy.power_loss(7), copy.power_loss(8)];
        restored(&copy).unwrap_or_else(|error| panic!("sync {nth}: {error}"));
        for volume in [copy].into_iter().chain(lost) {
            if !volume.list().expect("lists").iter().any(|entry| entry.name == "CURRENT") {
                restored(&volume).expect("restores");
            }
            assert_eq!(hash(&open(&volume).expect("opens")), hash(&db), "sync {nth}");
        }
        repeated += 1;
    }
    assert!(repeated >= 3, "{repeated} repeated");
}

/// Where it cannot be taken away, who reads the error knows what is there.
#[test]
fn a_database_that_may_not_last_and_stays_is_told_of() {
    let (target, copy) = (Simulated::new(2), Simulated::new(3));
    let db = open(&Simulated::new(1)).expect("opens");
    db.backup().run(&directory(&target)).expect("a backup");
    copy.fail_nth(Filter::kinds([OperationKind::Rename]).file("CURRENT"), 1, Fault::Error, Repeat::Once);
    copy.fail_nth(Filter::kinds([OperationKind::Remove]).file("CURRENT"), 1, Fault::Error, Repeat::Once);
    let told =
        Restore::from(&directory(&target)).onto(Arc::new(copy.clone())).map_err(|error| error.to_string());
    assert_eq!(copy.fired(), 2);
    assert!(told.as_ref().is_err_and(|words| words.contains("open the database, or empty")), "{told:?}");
}

/// What the repetition removes went before it was durable that `CURRENT`, which needs it, is gone: that came back alone.
#[test]
fn a_power_failure_in_a_restore_that_is_repeated_leaves_none_or_all_of_a_database() {
    let target = Simulated::new(2);
    let db = open(&Simulated::new(1)).expect("opens");
    Load::new(&db, 1).and_then(|mut load| load.run(&db, 20)).expect("runs");
    db.backup().run(&directory(&target)).expect("a backup");
    let restored = |copy: &Simulated| Restore::from(&directory(&target)).onto(Arc::new(copy.clone()));
    let (mut whole, mut none) = (0, 0);
    for (nth, off, seed) in
        (4..8).flat_map(|nth| (1..8).flat_map(move |off| (0..4).map(move |seed| (nth, off, seed))))
    {
        let copy = Simulated::new(seed);
        copy.fail_nth(OperationKind::SyncDirectory, nth, Fault::Error, Repeat::Once);
        if restored(&copy).is_ok() {
            continue;
        }
        copy.clear_faults();
        copy.fail_nth(Filter::changes(), off, Fault::PowerOff, Repeat::Once);
        restored(&copy).expect_err("the power fails");
        for loss in 0..30 {
            let what =
                format!("sync {nth} failed, power failed at change {off} of the repetition, {seed}, {loss}");
            let copy = copy.power_loss(loss);
            let is_there = copy.list().expect("lists").iter().any(|entry| entry.name == "CURRENT");
            if is_there {
                whole += 1;
            } else if loss % 10 == 0 {
                restored(&copy).unwrap_or_else(|error| panic!("{what}: {error}"));
                none += 1;
            } else {
                continue;
            }
            let opened = open(&copy).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(hash(&opened), hash(&db), "{what}");
        }
    }
    assert!(whole > 0 && none > 0, "{whole} whole, {none} not");
}
