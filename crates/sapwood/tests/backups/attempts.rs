//! Attempts that came to no end: what they leave, who goes on with it, and what it costs others.

use crate::ground::{Watched, directory, hash, open, open_kept};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated};
use sapwood::backup::{self, Content, Directory, Restore, Target};
use sapwood::{Database, Error};
use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A database of some segments, whose records have this byte.
fn filled(source: &Simulated, byte: u8) -> Database {
    let db = open(source).expect("opens");
    let rows = db.keyspace("many").expect("a keyspace");
    for part in 0..20u32 {
        let values =
            (part * 1000..part * 1000 + 1000).map(|row| (row.to_be_bytes(), [byte + part as u8; 120]));
        rows.ingest(values).expect("ingests");
    }
    db
}

/// Takes a backup that is killed behind so many segments.
fn interrupted(db: &Database, target: &Simulated, most: usize) {
    let mut segments = 0;
    let watched = Watched::new(directory(target), |name, piece| {
        segments += usize::from(name.starts_with("segment") && piece == 0);
        if segments > most { Err(io::Error::other("killed")) } else { Ok(()) }
    });
    let taken = db.backup().run(&watched);
    assert!(matches!(taken, Err(Error::BackupTarget { .. })), "{taken:?}");
}

/// Bytes of the target's blobs.
fn bytes(target: &Simulated) -> u64 {
    let blobs = directory(target).list().expect("lists");
    blobs.iter().filter(|(name, _)| name != "LOCK").map(|(_, len)| len).sum()
}

fn is_restored(target: &Simulated, number: u64, db: &Database) {
    let copy = Simulated::new(77);
    Restore::from(&directory(target)).number(number).onto(Arc::new(copy.clone())).expect("restores");
    assert_eq!(hash(&open(&copy).expect("opens")), hash(db));
}

/// Each left a log, a version and an archive, until one was done.
#[test]
fn attempts_that_fail_do_not_pile_up() {
    let target = Simulated::new(2);
    let db = open_kept(&Simulated::new(1));
    let rows = db.keyspace("rows").expect("a keyspace");
    db.backup().archive_log().run(&directory(&target)).expect("a backup");
    for round in 0..5u32 {
        for row in 0..500u32 {
            rows.insert([round.to_be_bytes(), row.to_be_bytes()].concat(), [7; 100]).expect("inserts");
        }
        db.flush().expect("flushes");
        let stopped = db.backup().archive_log().on_progress(|_| ControlFlow::Break(()));
        assert!(matches!(stopped.run(&directory(&target)), Err(Error::Stopped)));
        let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
        for (name, _) in directory(&target).list().expect("lists") {
            *kinds.entry(name.split('-').next().expect("a word").to_owned()).or_default() += 1;
        }
        assert!(kinds["log"] <= 2 && kinds["version"] <= 2, "{kinds:?}");
        assert!(kinds.get("archive").is_none_or(|count| *count == 1), "{kinds:?}");
    }
    let taken = db.backup().archive_log().run(&directory(&target)).expect("a backup");
    assert!(taken.archive.is_some_and(|archive| archive.gap.is_none()));
    is_restored(&target, taken.number, &db);
}

/// Segments that no later attempt needs, and the tables that tell of them, stayed until one was done.
#[test]
fn attempts_in_which_everything_is_new_do_not_pile_up() {
    let target = Simulated::new(2);
    let db = filled(&Simulated::new(1), 0);
    let rows = db.keyspace("many").expect("a keyspace");
    db.backup().run(&directory(&target)).expect("a backup");
    let before = bytes(&target);
    for round in 0..5u8 {
        for part in 0..20u32 {
            let mut batch = db.batch();
            for row in part * 1000..part * 1000 + 1000 {
                batch.insert(&rows, row.to_be_bytes(), [round; 120]);
            }
            batch.commit().expect("commits");
        }
        db.flush().and_then(|()| db.compact()).expect("compacts");
        interrupted(&db, &target, 2);
        let blobs = directory(&target).list().expect("lists");
        let versions = blobs.iter().filter(|(name, _)| name.starts_with("version-")).count();
        // Two segments, and perhaps one of the attempt before that has lived.
        let left = bytes(&target) - before;
        assert!(
            left > 400 << 10 && left < 1 << 20 && versions <= 3,
            "{left} bytes in round {round}, {blobs:?}"
        );
    }
    let taken = db.backup().run(&directory(&target)).expect("a backup");
    is_restored(&target, taken.number, &db);
}

/// It was none that a removal knew, and its blobs were taken for those of an attempt.
#[test]
fn a_removal_that_was_cut_off_is_repeated() {
    let target = Simulated::new(2);
    let one = filled(&Simulated::new(1), 0).backup().run(&directory(&target)).expect("a backup");
    filled(&Simulated::new(3), 100).backup().run(&directory(&target)).expect("a backup");
    let version = Filter::kinds([OperationKind::Remove]).file("version-000002");
    target.fail_nth(version, 1, Fault::Error, Repeat::Once);
    let remove = |number| backup::remove(&directory(&target), number);
    assert!(matches!(remove(2), Err(Error::BackupTarget { .. })));
    assert_eq!(backup::list(&directory(&target)).expect("lists").len(), 1);
    assert!(bytes(&target) > one.bytes);
    remove(2).expect("removes");
    assert_eq!(bytes(&target), one.bytes);
    assert!(matches!(remove(2), Err(Error::NoBackup { .. })));
}

/// There was no way but to delete blobs by hand.
#[test]
fn an_attempt_of_a_database_that_is_gone_is_removed_by_its_number() {
    let target = Simulated::new(2);
    let one = filled(&Simulated::new(1), 0);
    interrupted(&filled(&Simulated::new(3), 100), &target, 3);
    let kept = one.backup().run(&directory(&target)).expect("a backup");
    assert!(bytes(&target) > kept.bytes);
    let removed = backup::remove(&directory(&target), 1).expect("removes");
    assert_eq!((removed.blobs, bytes(&target)), (4, kept.bytes));
    is_restored(&target, kept.number, &one);
}

/// All that it had copied was removed with the other's backup, and was passed over behind one.
#[test]
fn an_attempt_is_gone_on_with_behind_a_backup_of_another_database() {
    let target = Simulated::new(2);
    let (one, other) = (filled(&Simulated::new(1), 0), filled(&Simulated::new(3), 100));
    interrupted(&one, &target, 3);
    let old = other.backup().run(&directory(&target)).expect("a backup");
    interrupted(&one, &target, 2);
    let kept = other.backup().run(&directory(&target)).expect("a backup");
    let left = bytes(&target);
    backup::remove(&directory(&target), old.number).expect("removes");
    assert!(left - bytes(&target) < old.bytes, "what others were doing stays");
    let mut reused = 0;
    let taken = one.backup().on_progress(|progress| {
        reused = progress.reused;
        ControlFlow::Continue(())
    });
    let taken = taken.run(&directory(&target)).expect("a backup");
    // Five of them are whole.
    assert!(reused > 4 * (200 << 10), "{reused} bytes of {}", taken.copied);
    is_restored(&target, taken.number, &one);
    is_restored(&target, kept.number, &other);
    // Nothing is left of the attempts.
    assert_eq!(bytes(&target), taken.bytes + kept.bytes);
}

/// An attempt of a database that has no backups any more is no reason to keep what a removal has left.
#[test]
fn no_removed_backup_is_taken_for_an_attempt() {
    let target = Simulated::new(2);
    let (one, other) = (filled(&Simulated::new(1), 0), filled(&Simulated::new(3), 100));
    one.backup().run(&directory(&target)).expect("a backup");
    one.backup().run(&directory(&target)).expect("a backup");
    let kept = other.backup().run(&directory(&target)).expect("a backup");
    for number in 1..3 {
        target.truncate_file(&format!("backup-{number:06}"), 70).expect("cuts");
    }
    for number in 1..3 {
        backup::remove(&directory(&target), number).expect("removes");
    }
    assert_eq!(bytes(&target), kept.bytes);
}

/// Only the newest backup of all was compared, which was the other's.
#[test]
fn a_restored_copy_takes_over_what_it_was_made_of_among_backups_of_others() {
    let target = Simulated::new(2);
    let (one, other) = (filled(&Simulated::new(1), 0), filled(&Simulated::new(3), 100));
    for db in [&one, &other, &one, &other] {
        db.backup().run(&directory(&target)).expect("a backup");
    }
    let copy = Simulated::new(7);
    Restore::from(&directory(&target)).number(3).onto(Arc::new(copy.clone())).expect("restores");
    let copy = open(&copy).expect("opens");
    let taken = copy.backup().run(&directory(&target)).expect("a backup");
    assert_eq!(taken.copied, 0);
    is_restored(&target, taken.number, &one);
}

/// Counts how often manifests are read.
struct Counting {
    inner: Directory,
    manifests: AtomicU64,
}

impl Target for Counting {
    fn put(&self, name: &str, content: &mut Content<'_>) -> io::Result<()> {
        self.inner.put(name, content)
    }

    fn get(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.manifests.fetch_add(u64::from(name.starts_with("backup-") && offset == 0), Relaxed);
        self.inner.get(name, offset, buffer)
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.inner.list()
    }

    fn delete(&self, names: &[String]) -> io::Result<()> {
        self.inner.delete(names)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn lock(&self) -> io::Result<Box<dyn Send>> {
        self.inner.lock()
    }
}

/// Each backup read the manifests of all, although there was nothing to be removed.
#[test]
fn a_backup_among_many_reads_few_manifests() {
    let db = open_kept(&Simulated::new(1));
    let volume = Simulated::new(2);
    let target = Counting { inner: directory(&volume), manifests: AtomicU64::new(0) };
    for _ in 0..20 {
        db.keyspace("few").and_then(|few| few.insert("key", "value")).expect("inserts");
        target.manifests.store(0, Relaxed);
        db.backup().archive_log().run(&target).expect("a backup");
    }
    let read = target.manifests.load(Relaxed);
    assert!(read <= 2, "{read} manifests");
    // What is left of those that were removed, others need; and older backups say nothing of another database's attempt.
    for number in [10, 19] {
        backup::remove(&target, number).expect("removes");
    }
    interrupted(&filled(&Simulated::new(3), 100), &volume, 2);
    let left = |blobs: Vec<(String, u64)>| blobs.iter().filter(|(name, _)| name.ends_with("-000021")).count();
    for _ in 0..3 {
        db.keyspace("few").and_then(|few| few.insert("key", "value")).expect("inserts");
        target.manifests.store(0, Relaxed);
        db.backup().archive_log().run(&target).expect("a backup");
        let read = target.manifests.load(Relaxed);
        assert!(read <= 4, "{read} manifests");
        assert_eq!(left(target.list().expect("lists")), 3, "a version and two segments");
    }
}
