//! What the system refuses before anything has happened is refused to the caller, and can be tried again: a moment
//! without file descriptors, a file at its largest.

use crate::{builder, count, is_alone, key, open, put, scratch, value};
use psync::{Fault, OperationKind, Repeat, Simulated};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sapwood::{Database, Error, Keyspace, Result};
use std::path::Path;
use std::sync::Arc;

/// Runs `work` with a limit of so much.
fn limited<T>(resource: Resource, most: u64, work: impl FnOnce() -> T) -> T {
    let before = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some(most), ..before }).expect("a lower limit");
    let done = work();
    setrlimit(resource, before).expect("the limit before");
    done
}

/// Writes, now and then durably, until something is refused, and returns the number of records and the refusal.
fn write(db: &Database, keyspace: &Keyspace, numbers: std::ops::Range<u64>) -> (u64, Option<Error>) {
    for number in numbers.clone() {
        if let Err(error) = write_one(db, keyspace, number) {
            return (number, Some(error));
        }
    }
    (numbers.end, None)
}

fn write_one(db: &Database, keyspace: &Keyspace, number: u64) -> Result<()> {
    match number % 100 {
        0 => put(db, keyspace, number),
        _ => keyspace.insert(key(number), value(number)),
    }
}

/// It was poisoned until it was opened again, although nothing had been written.
#[test]
fn a_moment_without_descriptors_poisons_nothing() {
    if !is_alone("refused::a_moment_without_descriptors_poisons_nothing") {
        return;
    }
    for threads in [0, 1] {
        let dir = scratch();
        let path = dir.path().join("d");
        let db = builder().background_threads(threads).open(&path).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        put(&db, &keyspace, 0).unwrap();
        let (end, refused) = limited(Resource::Nofile, 0, || {
            let written = write(&db, &keyspace, 1..1_000_000);
            // Existing files go on, and with them durable commits as long as there is room, syncs and reads.
            assert!(keyspace.get(key(0)).unwrap().is_some());
            db.sync().unwrap();
            assert!(matches!(db.flush(), Err(Error::Exhausted(_))));
            written
        });
        assert!(matches!(refused, Some(Error::Exhausted(_))), "{refused:?}");
        assert!(end > 1_000, "{end}");
        let (end, refused) = write(&db, &keyspace, end..end + 3_000);
        assert!(refused.is_none(), "{refused:?}");
        put(&db, &keyspace, end).unwrap();
        db.flush().unwrap();
        // The same while it is closed: complete, but without the mark of a proper end.
        drop(keyspace);
        limited(Resource::Nofile, 0, || db.close()).unwrap();
        assert_eq!(count(&path, 0), end + 1);
    }
}

/// Opening needs descriptors, and says so; the next attempt finds everything.
#[test]
fn opening_without_descriptors_can_be_tried_again() {
    if !is_alone("refused::opening_without_descriptors_can_be_tried_again") {
        return;
    }
    let dir = scratch();
    let path = dir.path().join("d");
    let (db, keyspace) = open(&path);
    let (end, _) = write(&db, &keyspace, 0..5_000);
    drop(keyspace);
    db.close().unwrap();
    let open_files = || std::fs::read_dir("/proc/self/fd").expect("a list").count() as u64;
    let mut refused = 0;
    loop {
        let most = open_files() + refused;
        match limited(Resource::Nofile, most, || builder().background_threads(0).open(&path)) {
            Err(error) => {
                let is_refusal = matches!(&error, Error::Exhausted(_))
                    || matches!(&error, Error::Io(error) if error.to_string().contains("os error 24"));
                assert!(is_refusal, "{most} files: {error:?}");
                refused += 1;
            }
            Ok(db) => {
                db.close().unwrap();
                break;
            }
        }
        assert!(refused < 100, "it never opens");
    }
    assert!(refused > 3, "{refused}");
    assert_eq!(count(&path, 0), end);
}

/// `EFBIG` poisoned it; it is a disk that is full for this file.
#[test]
fn a_file_at_its_largest_is_a_full_disk() {
    if !is_alone("refused::a_file_at_its_largest_is_a_full_disk") {
        return;
    }
    for most in [700 << 10, 3 << 20] {
        let dir = scratch();
        let path = dir.path().join("d");
        let (db, keyspace) = open(&path);
        let (end, refused) = limited(Resource::Fsize, most, || {
            let written = write(&db, &keyspace, 0..1_000_000);
            assert!(keyspace.get(key(17)).unwrap().is_some());
            written
        });
        assert!(refused.as_ref().is_some_and(Error::is_disk_full), "{most}: {refused:?}");
        let (end, refused) = write(&db, &keyspace, end..end + 3_000);
        assert!(refused.is_none(), "{most}: {refused:?}");
        put(&db, &keyspace, end).unwrap();
        drop(keyspace);
        db.close().unwrap();
        assert_eq!(count(&path, 0), end + 1, "{most}");
    }
}

/// At each open of any file, one after the other: what is refused succeeds at the next attempt.
#[test]
fn each_open_can_be_refused_once() {
    let (mut nth, mut refusals) = (0, [0, 0]);
    loop {
        nth += 1;
        let volume = Simulated::new(nth);
        volume.fail_nth(OperationKind::Open, nth, Fault::Exhausted, Repeat::Once);
        let mut again = |is_opening: bool, error: Error| {
            assert!(matches!(error, Error::Exhausted(_)), "open {nth}: {error:?}");
            refusals[usize::from(is_opening)] += 1;
        };
        let opened = open_on(&volume);
        let (db, keyspace) = opened
            .or_else(|error| {
                again(true, error);
                open_on(&volume)
            })
            .unwrap();
        for number in 0..3_000 {
            write_one(&db, &keyspace, number)
                .or_else(|error| {
                    again(false, error);
                    write_one(&db, &keyspace, number)
                })
                .unwrap();
            if number % 500 == 0 {
                db.flush()
                    .or_else(|error| {
                        again(false, error);
                        db.flush()
                    })
                    .unwrap();
            }
        }
        drop(keyspace);
        db.close().unwrap();
        let fired = volume.fired();
        volume.clear_faults();
        let (db, keyspace) = open_on(&volume.power_loss(nth)).unwrap();
        assert_eq!(keyspace.iter().count(), 3_000, "open {nth}");
        db.check().unwrap();
        if fired == 0 {
            break;
        }
    }
    assert!(nth > 15 && refusals.iter().all(|refusals| *refusals > 3), "{nth}: {refusals:?}");
}

fn open_on(volume: &Simulated) -> Result<(Database, Keyspace)> {
    let db = builder().background_threads(0).open_on(Arc::new(volume.clone()))?;
    let keyspace = db.keyspace("main")?;
    Ok((db, keyspace))
}

/// A disk quota, and a directory that cannot be read, are no reasons to poison either.
#[test]
fn a_directory_is_synced_without_a_new_descriptor() {
    if !is_alone("refused::a_directory_is_synced_without_a_new_descriptor") {
        return;
    }
    use psync::Volume;
    let dir = scratch();
    let disk = psync::Disk::open(dir.path(), psync::DiskOptions::default()).unwrap();
    limited(Resource::Nofile, 0, || disk.sync_directory()).unwrap();
    assert!(Path::new(dir.path()).is_dir());
}
