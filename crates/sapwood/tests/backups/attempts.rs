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

/// Gives the database's records other values, all at other places.
fn rewrite(db: &Database, byte: u8) {
    let rows = db.keyspace("many").expect("a keyspace");
    for part in 0..20u32 {
        let mut batch = db.batch();
        for row in part * 1000..part * 1000 + 1000 {
            batch.insert(&rows, row.to_be_bytes(), [byte; 120]);
        }
        batch.commit().expect("commits");
    }
    db.flush().and_then(|()| db.compact()).expect("compacts");
}

/// The target's blobs, and their bytes.
fn blobs(target: &Simulated) -> Vec<(String, u64)> {
    let mut blobs = directory(target).list().expect("lists");
    blobs.retain(|(name, _)| name != "LOCK");
    blobs
}

fn bytes(target: &Simulated) -> u64 {
    blobs(target).iter().map(|(_, len)| len).sum()
}

/// The blobs that were written for this backup or attempt.
fn written_for(target: &Simulated, number: u64) -> Vec<(String, u64)> {
    let mut blobs = blobs(target);
    blobs.retain(|(name, _)| name.ends_with(&format!("-{number:06}")));
    blobs
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

/// Segments that no later attempt needs, and the tables that tell of them, stayed until one was done; and if another database had a backup in
/// the target between two attempts, they stayed as well.
#[test]
fn attempts_in_which_everything_is_new_do_not_pile_up() {
    for is_shared in [false, true] {
        let target = Simulated::new(2);
        let (db, other) = (filled(&Simulated::new(1), 0), filled(&Simulated::new(3), 100));
        db.backup().run(&directory(&target)).expect("a backup");
        for round in 0..5u8 {
            rewrite(&db, round);
            interrupted(&db, &target, 2);
            if is_shared {
                other.backup().run(&directory(&target)).expect("a backup");
            }
            let backups: Vec<_> = backup::list(&directory(&target)).expect("lists");
            let backups: Vec<_> = backups.iter().map(|backup| format!("-{:06}", backup.number)).collect();
            let mut left = blobs(&target);
            left.retain(|(name, _)| !backups.iter().any(|backup| name.ends_with(backup)));
            let versions = left.iter().filter(|(name, _)| name.starts_with("version-")).count();
            // Two segments, and perhaps one of the attempt before that has lived.
            let bytes: u64 = left.iter().map(|(_, len)| len).sum();
            assert!(
                bytes > 400 << 10 && bytes < 1 << 20 && versions <= 2,
                "{bytes} bytes in round {round} (shared: {is_shared}), {left:?}"
            );
        }
        let taken = db.backup().run(&directory(&target)).expect("a backup");
        is_restored(&target, taken.number, &db);
        assert!(!is_shared || backup::list(&directory(&target)).expect("lists").len() == 7);
    }
}

/// An attempt, and a backup that takes over its segments and cannot remove its version, so that it looks as if it could be gone on with.
fn an_attempt_below_its_backup(db: &Database, target: &Simulated) {
    interrupted(db, target, 3);
    let version = Filter::kinds([OperationKind::Remove]).file("version-000001");
    target.fail_nth(version, 1, Fault::Error, Repeat::Sticky);
    assert_eq!(db.backup().run(&directory(target)).expect("a backup").number, 2);
    assert!(target.fired() > 0 && written_for(target, 1).len() == 4, "{:?}", blobs(target));
}

/// The next attempt, of which nothing could be said to be named by a backup that it could not read.
#[test]
fn what_a_backup_may_need_that_cannot_be_read_stays() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let db = filled(&source, 0);
    an_attempt_below_its_backup(&db, &target);
    target.clear_faults();
    let (before, manifest) = (hash(&db), target.read_file("backup-000002").expect("a manifest"));
    target.truncate_file("backup-000002", 70).expect("cuts");
    rewrite(&db, 50);
    interrupted(&db, &target, 2);
    assert_eq!(written_for(&target, 3).len(), 4, "it came behind what it removes");
    target.write_file("backup-000002", &manifest).expect("mends");
    let copy = Simulated::new(77);
    Restore::from(&directory(&target)).number(2).onto(Arc::new(copy.clone())).expect("restores");
    assert_eq!(hash(&open(&copy).expect("opens")), before);
}

/// The original's attempt is named by the backup of a copy alone.
#[test]
fn what_the_backup_of_a_copy_needs_stays() {
    let target = Simulated::new(2);
    let db = filled(&Simulated::new(1), 0);
    an_attempt_below_its_backup(&db, &target);
    let copy = Simulated::new(7);
    Restore::from(&directory(&target)).number(2).onto(Arc::new(copy.clone())).expect("restores");
    let copy = open(&copy).expect("opens");
    let taken = copy.backup().run(&directory(&target)).expect("a backup");
    assert_eq!((taken.number, taken.copied), (3, 0));
    target.clear_faults();
    backup::remove(&directory(&target), 2).expect("removes");
    assert_eq!(written_for(&target, 1).len(), 4, "{:?}", blobs(&target));
    rewrite(&db, 50);
    interrupted(&db, &target, 2);
    // The version has gone, the segments have not.
    assert_eq!(written_for(&target, 1).len(), 3, "{:?}", blobs(&target));
    is_restored(&target, 3, &copy);
}

/// It was none that a removal knew once its manifest and version were gone, and its other blobs stayed; or it was taken for an attempt.
#[test]
fn a_removal_that_was_cut_off_is_repeated() {
    let ground = Simulated::new(2);
    let one = filled(&Simulated::new(1), 0).backup().run(&directory(&ground)).expect("a backup");
    filled(&Simulated::new(3), 100).backup().run(&directory(&ground)).expect("a backup");
    let all = written_for(&ground, 2).len() as u64;
    assert!(all > 10);
    let remove = |target: &Simulated| backup::remove(&directory(target), 2);
    for nth in 1..=all {
        let target = ground.crash();
        let removals = Filter::kinds([OperationKind::Remove]);
        target.fail_nth(removals, nth, Fault::Error, Repeat::Once);
        let cut_off = remove(&target);
        assert!(matches!(cut_off, Err(Error::BackupTarget { .. })), "removal {nth}: {cut_off:?}");
        assert!(bytes(&target) > one.bytes && target.fired() == 1, "removal {nth}");
        let removed = remove(&target).unwrap_or_else(|error| panic!("removal {nth}: {error}"));
        assert_eq!((removed.blobs, bytes(&target)), (all + 1 - nth, one.bytes), "removal {nth}");
        assert!(matches!(remove(&target), Err(Error::NoBackup { .. })));
    }
    // What was removed may be there again after a power failure.
    for nth in 1..=all + 3 {
        let target = ground.crash();
        let changes = Filter::kinds([OperationKind::Remove, OperationKind::SyncDirectory]);
        target.fail_nth(changes, nth, Fault::PowerOff, Repeat::Once);
        _ = remove(&target);
        let target = target.power_loss(nth);
        let again = remove(&target);
        assert!(again.is_ok() || matches!(again, Err(Error::NoBackup { .. })), "operation {nth}: {again:?}");
        assert_eq!(bytes(&target), one.bytes, "operation {nth}");
    }
}

/// What is left of it others need, and that is nothing to be removed.
#[test]
fn a_removed_backup_of_which_others_need_segments_is_none() {
    let target = Simulated::new(2);
    let db = filled(&Simulated::new(1), 0);
    for _ in 0..2 {
        db.backup().run(&directory(&target)).expect("a backup");
    }
    backup::remove(&directory(&target), 1).expect("removes");
    let left = written_for(&target, 1);
    assert!(left.len() > 5 && left.iter().all(|(name, _)| name.starts_with("segment-")), "{left:?}");
    assert!(matches!(backup::remove(&directory(&target), 1), Err(Error::NoBackup { .. })));
    assert_eq!(written_for(&target, 1), left);
    is_restored(&target, 2, &db);
}

/// Of which database an attempt was came last: if it could not be read, the backup was gone and its blobs were not.
#[test]
fn what_a_removal_has_to_know_is_asked_before_anything_goes() {
    let target = Simulated::new(2);
    filled(&Simulated::new(1), 0).backup().run(&directory(&target)).expect("a backup");
    interrupted(&filled(&Simulated::new(3), 100), &target, 2);
    let version = Filter::kinds([OperationKind::Read]).file("version-000002");
    target.fail_nth(version, 1, Fault::Error, Repeat::Once);
    let before = blobs(&target);
    let cut_off = backup::remove(&directory(&target), 1);
    assert!(matches!(cut_off, Err(Error::BackupTarget { .. })), "{cut_off:?}");
    assert_eq!(blobs(&target), before);
    backup::remove(&directory(&target), 1).expect("removes");
    let mut left = blobs(&target);
    left.retain(|(name, _)| name != "given-000001");
    assert_eq!(left, written_for(&target, 2));
}

/// A target that is no directory may show a blob of which only a part has come. Its attempt ended every later backup; if zeros or other bytes
/// stood where its end is looked for, they were taken for its checksum.
#[test]
fn of_an_attempt_no_segment_is_taken_over_that_is_cut_off() {
    type Change = fn(&mut Vec<u8>);
    let changes: [Change; 4] = [
        Vec::clear,
        |bytes| bytes.truncate(70),
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes.iter_mut().rev().take(100).for_each(|byte| *byte = 0),
    ];
    for change in changes {
        let target = Simulated::new(2);
        let db = filled(&Simulated::new(1), 0);
        interrupted(&db, &target, 3);
        let mut segments = written_for(&target, 1);
        segments.retain(|(name, _)| name.starts_with("segment-"));
        let (cut_off, len) = &segments[1];
        let mut bytes = vec![0; *len as usize];
        let mut change_it = || {
            let to = directory(&target);
            to.get(cut_off, 0, &mut bytes)?;
            change(&mut bytes);
            to.delete(std::slice::from_ref(cut_off))?;
            to.put(cut_off, &mut |out| out.write_all(&bytes))?;
            to.sync()
        };
        change_it().expect("is cut off");
        assert!(written_for(&target, 1).iter().any(|(name, _)| name == cut_off));
        let taken = db.backup().run(&directory(&target)).expect("a backup");
        let others: Vec<_> = written_for(&target, 1).into_iter().map(|(name, _)| name).collect();
        assert!(!others.contains(cut_off) && others.contains(&segments[0].0), "{others:?}");
        is_restored(&target, taken.number, &db);
    }
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

/// The second damaged manifest was in its way for ever.
#[test]
fn a_removal_that_was_cut_off_is_repeated_beside_another_damaged_manifest() {
    for fails in ["version-000001", "backup-000001"] {
        let target = Simulated::new(2);
        let db = filled(&Simulated::new(1), 0);
        (0..2).for_each(|_| _ = db.backup().run(&directory(&target)).expect("a backup"));
        for number in 1..3 {
            target.truncate_file(&format!("backup-{number:06}"), 70).expect("cuts");
        }
        target.fail_nth(Filter::kinds([OperationKind::Remove]).file(fails), 1, Fault::Error, Repeat::Once);
        backup::remove(&directory(&target), 1).expect_err("it fails");
        assert_eq!(target.fired(), 1);
        for number in 1..3 {
            backup::remove(&directory(&target), number)
                .unwrap_or_else(|error| panic!("{number} behind {fails}: {error}"));
        }
        assert_eq!(bytes(&target), 0);
    }
}

/// The number was given anew, and who repeated the removal removed what had it then.
#[test]
fn a_removal_that_is_repeated_removes_no_backup_that_was_taken_meanwhile() {
    let db = filled(&Simulated::new(1), 0);
    let kinds = [OperationKind::Remove, OperationKind::Rename, OperationKind::SyncDirectory];
    let mut failed = 0;
    for nth in 1.. {
        let target = Simulated::new(2);
        (0..2).for_each(|_| _ = db.backup().run(&directory(&target)).expect("a backup"));
        target.fail_nth(Filter::kinds(kinds), nth, Fault::Error, Repeat::Once);
        let removed = backup::remove(&directory(&target), 2);
        if target.fired() == 0 {
            break;
        }
        failed += u64::from(removed.is_err());
        let taken = db.backup().run(&directory(&target)).expect("a backup");
        let again = backup::remove(&directory(&target), 2);
        assert!(matches!(again, Ok(_) | Err(Error::NoBackup { .. })), "operation {nth}: {again:?}");
        let left = backup::list(&directory(&target)).expect("lists");
        assert!(taken.number == 3 && left.last() == Some(&taken), "operation {nth}: {left:?}");
    }
    assert!(failed > 4, "{failed} failed");
    // Nor if an attempt has left something above it that goes with it.
    let target = Simulated::new(2);
    (0..2).for_each(|_| _ = db.backup().run(&directory(&target)).expect("a backup"));
    let watched = Watched::new(directory(&target), |name, _| match name == "backup-000003" {
        true => Err(io::Error::other("killed")),
        false => Ok(()),
    });
    assert!(db.backup().run(&watched).is_err());
    assert!(blobs(&target).iter().any(|(name, _)| name == "version-000003"), "{:?}", blobs(&target));
    backup::remove(&directory(&target), 2).expect("removes");
    assert_eq!(db.backup().run(&directory(&target)).expect("a backup").number, 3);
    // Nor if nothing is left; and one mark is enough.
    let target = Simulated::new(2);
    for number in 1..4 {
        assert_eq!(db.backup().run(&directory(&target)).expect("a backup").number, number);
        backup::remove(&directory(&target), number).expect("removes");
        assert_eq!(blobs(&target), [(format!("given-{number:06}"), 0)]);
    }
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
