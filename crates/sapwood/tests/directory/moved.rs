//! The directory of an open database is moved, removed, emptied, filled with another database, or hidden.

use crate::{builder, count, key, open, put, scratch, value};
use sapwood::{Database, Error, Keyspace};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Records of the other database, which nobody may touch.
const OTHERS: std::ops::Range<u64> = 1_000_000..1_002_000;

/// Creates the other database.
fn make_other(path: &Path) {
    let (db, keyspace) = open(path);
    OTHERS.for_each(|number| keyspace.insert(key(number), value(number)).expect("written"));
    drop(keyspace);
    db.close().expect("closes");
}

fn assert_other(path: &Path) {
    assert_eq!(count(path, OTHERS.start), OTHERS.end - OTHERS.start, "all of the other database");
}

/// Writes until there are new files of every kind.
fn go_on(db: &Database, keyspace: &Keyspace, numbers: std::ops::Range<u64>) {
    for number in numbers {
        if number % 1000 == 0 {
            put(db, keyspace, number).expect("durable");
        } else {
            keyspace.insert(key(number), value(number)).expect("written");
        }
        if number % 4000 == 0 {
            db.flush().expect("flushed");
        }
    }
}

fn assert_gone<T: std::fmt::Debug>(answer: sapwood::Result<T>, what: &str) {
    assert!(matches!(answer, Err(Error::Gone { .. })), "{what}: {answer:?}");
}

/// The names in a directory and what the files hold.
fn content(path: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let entries = fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry"));
    let mut all: Vec<_> = entries
        .filter(|entry| entry.file_name() != "LOCK")
        .map(|entry| (entry.file_name(), fs::read(entry.path()).expect("a file")))
        .collect();
    all.sort();
    all
}

/// Removes what is in a directory, and not the directory.
fn empty(path: &Path) {
    for entry in fs::read_dir(path).expect("a directory") {
        fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
}

/// Copies the files of a closed database, as somebody does who restores a backup.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// The first handle created its next files in the other database, and neither opened again.
#[test]
fn a_moved_database_goes_on_at_its_new_place() {
    for ends_at_once in [false, true] {
        let dir = scratch();
        let [path, elsewhere] = ["d", "e"].map(|name| dir.path().join(name));
        let (db, keyspace) = open(&path);
        go_on(&db, &keyspace, 0..5_000);
        fs::rename(&path, &elsewhere).unwrap();
        make_other(&path);
        let before = content(&path);
        let last = if ends_at_once { 5_000 } else { 15_000 };
        go_on(&db, &keyspace, 5_000..last);
        drop(keyspace);
        db.close().unwrap();
        assert!(content(&path) == before, "another database was touched");
        assert_eq!(count(&elsewhere, 0), last);
        assert_other(&path);
    }
}

#[test]
fn a_link_that_leads_elsewhere_now_changes_nothing() {
    let dir = scratch();
    let [link, first, second] = ["link", "first", "second"].map(|name| dir.path().join(name));
    make_other(&second);
    fs::create_dir(&first).unwrap();
    symlink(&first, &link).unwrap();
    let (db, keyspace) = open(&link);
    go_on(&db, &keyspace, 0..5_000);
    fs::remove_file(&link).unwrap();
    symlink(&second, &link).unwrap();
    let before = content(&second);
    go_on(&db, &keyspace, 5_000..15_000);
    drop(keyspace);
    db.close().unwrap();
    assert!(content(&second) == before, "another database was touched");
    assert_eq!(count(&first, 0), 15_000);
    assert_other(&link);
}

/// Thousands of commits were acknowledged before anything was said.
#[test]
fn the_first_durable_commit_tells_that_the_directory_was_removed() {
    let dir = scratch();
    let path = dir.path().join("d");
    let (db, keyspace) = open(&path);
    go_on(&db, &keyspace, 0..5_000);
    fs::remove_dir_all(&path).unwrap();
    assert_gone(put(&db, &keyspace, 5_000), "the first durable commit");
    assert_gone(put(&db, &keyspace, 5_001), "the second");
    assert_gone(keyspace.insert("key", "value"), "one that is not");
    assert_gone(db.flush(), "a flush");
    assert!(keyspace.get(key(17)).unwrap().is_some(), "reading goes on");
    make_other(&path);
    let before = content(&path);
    drop(keyspace);
    assert_gone(db.close(), "closing");
    assert!(content(&path) == before, "another database was touched");
    assert_other(&path);
}

/// What is not durable is told of by the next call that would make it so.
#[test]
fn syncing_and_closing_tell_that_the_directory_was_removed() {
    for closes in [false, true] {
        for (writes, threads) in [(false, 1), (true, 0), (true, 1)] {
            let dir = scratch();
            let path = dir.path().join("d");
            let db = builder().background_threads(threads).open(&path).unwrap();
            let keyspace = db.keyspace("main").unwrap();
            go_on(&db, &keyspace, 0..1_000);
            db.sync().unwrap();
            fs::remove_dir_all(&path).unwrap();
            if writes && let Err(error) = keyspace.insert("key", "value") {
                // The background thread was there first.
                assert!(threads > 0 && matches!(error, Error::Gone { .. }), "{error}");
            }
            drop(keyspace);
            if closes {
                assert_gone(db.close(), "closing");
            } else {
                assert_gone(db.sync(), "syncing");
            }
        }
    }
}

/// A thousand acknowledged commits were lost, and nobody said so.
#[test]
fn a_directory_that_was_emptied_and_filled_is_not_touched() {
    for writes in [false, true] {
        let dir = scratch();
        let [path, backup] = ["d", "backup"].map(|name| dir.path().join(name));
        make_other(&backup);
        let (db, keyspace) = open(&path);
        (0..100).for_each(|number| put(&db, &keyspace, number).unwrap());
        empty(&path);
        assert!(matches!(builder().open(&path), Err(Error::Locked { .. })), "nobody else comes in meanwhile");
        copy(&backup, &path);
        let before = content(&path);
        if writes {
            let written = (100..60_000).try_for_each(|number| keyspace.insert(key(number), value(number)));
            assert_gone(written, "writing until there is a new file");
        }
        drop(keyspace);
        assert_gone(db.close(), "closing");
        assert!(content(&path) == before, "another database was touched");
        assert_other(&path);
    }
}

/// Each of the files alone: none is missed, or it is there again when the database is closed.
#[test]
fn a_file_that_was_removed_is_missed_or_made_anew() {
    for name in ["data", "CURRENT", "manifest-", "wal-"] {
        let dir = scratch();
        let path = dir.path().join("d");
        let (db, keyspace) = open(&path);
        go_on(&db, &keyspace, 0..6_000);
        for entry in fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_str().unwrap().starts_with(name) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        let written = put(&db, &keyspace, 6_000).and_then(|()| db.flush());
        drop(keyspace);
        let closed = db.close();
        match (written, closed) {
            (Ok(()), Ok(())) => assert_eq!(count(&path, 0), 6_001, "{name}"),
            (written, closed) => {
                assert_gone(closed, name);
                assert!(written.is_err(), "{name}");
            }
        }
    }
}

/// The files go on in the directory below, and are there when the other volume has gone. Takes root.
#[cfg(target_os = "linux")]
#[test]
fn a_volume_mounted_over_the_directory_is_not_touched() {
    let dir = scratch();
    let path = dir.path().join("d");
    let (db, keyspace) = open(&path);
    go_on(&db, &keyspace, 0..5_000);
    let mounted = Command::new("mount").args(["-t", "tmpfs", "sapwood-test"]).arg(&path).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return eprintln!("SKIPPED: no file system can be mounted here (this takes root)");
    }
    make_other(&path);
    let before = content(&path);
    go_on(&db, &keyspace, 5_000..15_000);
    drop(keyspace);
    let closed = db.close();
    let is_untouched = content(&path) == before;
    let unmounted = Command::new("umount").arg(&path).status();
    closed.unwrap();
    assert!(is_untouched, "another database was touched");
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert_eq!(count(&path, 0), 15_000);
}

/// Its own files come and go, and that is no reason to say that somebody else has removed them.
#[test]
fn files_that_the_database_removes_itself_are_not_missed() {
    let dir = scratch();
    let path = dir.path().join("d");
    let (db, keyspace) = open(&path);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (db, keyspace) = (&db, &keyspace);
            scope.spawn(move || {
                for number in (thread..40_000).step_by(4) {
                    if number % 35 == 0 {
                        put(db, keyspace, number).expect("durable");
                    } else {
                        keyspace.insert(key(number), value(number)).expect("written");
                    }
                }
            });
        }
    });
    drop(keyspace);
    db.close().unwrap();
    assert_eq!(count(&path, 0), 40_000);
}
