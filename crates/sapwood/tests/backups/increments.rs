//! Backups on top of others: what the target has is neither read nor written again, unless it is another database's.

use crate::ground::{Load, Watched, directory, hash, open, options};
use psync::{Access, Fault, Filter, PassThrough, Repeat, Simulated, Volume, Write};
use sapwood::backup::{self, Directory, Restore, Target};
use sapwood::{Database, EncryptionKey, Error};
use std::io;
use std::sync::Arc;

fn restored(target: &Simulated, number: u64) -> (u64, usize) {
    let copy = Simulated::new(77);
    Restore::from(&directory(target)).number(number).onto(Arc::new(copy.clone())).expect("restores");
    hash(&open(&copy).expect("opens"))
}

/// A database of some segments.
fn filled(source: &Simulated) -> Database {
    let db = open(source).expect("opens");
    fill(&db);
    db
}

fn fill(db: &Database) {
    let rows = db.keyspace("many").expect("a keyspace");
    for part in 0..20u32 {
        rows.ingest((part * 1000..part * 1000 + 1000).map(|row| (row.to_be_bytes(), [part as u8; 120])))
            .expect("ingests");
    }
}

#[test]
fn what_the_target_has_is_neither_read_nor_written_again() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let db = filled(&source);
    let first = db.backup().run(&directory(&target)).expect("a backup");
    assert!(first.copied > 2_000_000, "{first:?}");
    let (read, written) = (source.operations(), target.used());
    let second = db.backup().run(&directory(&target)).expect("a backup");
    assert_eq!((second.copied, second.bytes.abs_diff(first.bytes) < 100), (0, true), "{second:?}");
    let (read, written) = (source.operations() - read, target.used() - written);
    // The version is written anew: of nodes of 512 bytes it takes a thirtieth.
    assert!(read < 20 && written < first.copied / 20, "{read} operations, {written} bytes");
    // A little more: a part of the open segment.
    db.keyspace("few").and_then(|few| few.insert("key", "value")).expect("inserts");
    db.flush().expect("flushes");
    let third = db.backup().run(&directory(&target)).expect("a backup");
    assert!((1..100_000).contains(&third.copied), "{third:?}");
    assert_eq!(restored(&target, 3), hash(&db));
    assert_eq!(backup::list(&directory(&target)).expect("lists"), [first, second, third]);
}

/// The version of the backup before is encrypted, and was taken for damaged.
#[test]
fn an_encrypted_database_is_copied_once_as_well() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let key = EncryptionKey::from_bytes([7; 32]);
    let encrypted = || options().encryption_key(key.clone());
    let db = encrypted().open_on(Arc::new(source)).expect("opens");
    fill(&db);
    let stopped = Watched::new(directory(&target), |name, piece| {
        if name.starts_with("backup-") && piece == 0 { Err(io::Error::other("killed")) } else { Ok(()) }
    });
    db.backup().run(&stopped).expect_err("it is killed");
    drop(stopped);
    // What the attempt has copied counts, and so does what a backup has, also with another key.
    assert_eq!(db.backup().run(&directory(&target)).expect("a backup").copied, 0);
    db.change_encryption_key(&EncryptionKey::from_bytes([8; 32])).expect("another key");
    assert_eq!(db.backup().run(&directory(&target)).expect("a backup").copied, 0);
    // Another database, which is not encrypted, in the same target.
    let other = filled(&Simulated::new(3));
    assert!(other.backup().run(&directory(&target)).expect("a backup").copied > 2_000_000);
    let copy = Simulated::new(77);
    let (target, key) = (directory(&target), EncryptionKey::from_bytes([8; 32]));
    let restore = Restore::from(&target).number(3).encryption_key(key.clone());
    restore.onto(Arc::new(copy.clone())).expect("restores");
    let copy = options().encryption_key(key).open_on(Arc::new(copy));
    assert_eq!(hash(&copy.expect("opens")), hash(&db));
}

/// An open segment that grows with every backup is copied anew, as one, before it has too many parts.
#[test]
fn segments_of_many_parts_become_one_again() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let db = open(&source).expect("opens");
    let few = db.keyspace("few").expect("a keyspace");
    let mut longest = 0;
    for round in 0..40u32 {
        few.insert(round.to_be_bytes(), [1; 50]).expect("inserts");
        db.flush().expect("flushes");
        db.backup().run(&directory(&target)).expect("a backup");
        if round > 0 {
            backup::remove(&directory(&target), u64::from(round)).expect("removes");
        }
        let names = directory(&target).list().expect("lists");
        longest = longest.max(names.iter().filter(|(name, _)| name.starts_with("segment-")).count());
    }
    assert_eq!(restored(&target, 40), hash(&db));
    assert!((4..=20).contains(&longest), "{longest} parts");
}

/// A backup that was interrupted again and again gets done at last, although each attempt copies a part only.
#[test]
fn attempts_that_came_to_no_end_add_up() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let db = filled(&source);
    let mut copied = Vec::new();
    loop {
        let mut segments = 0;
        let watched = Watched::new(directory(&target), |name, piece| {
            segments += usize::from(name.starts_with("segment") && piece == 0);
            if segments > 3 { Err(io::Error::other("killed")) } else { Ok(()) }
        });
        let taken = db.backup().run(&watched);
        drop(watched);
        match taken {
            Ok(info) => break copied.push(info.copied),
            Err(error) => assert!(matches!(error, Error::BackupTarget { .. }), "{error}"),
        }
        copied.push(0);
        // Other segments come, and some go, meanwhile.
        db.keyspace("few").and_then(|few| few.insert(copied.len().to_be_bytes(), [1; 50])).expect("inserts");
        db.flush().expect("flushes");
        assert!(copied.len() < 30, "it never gets done");
    }
    assert!(copied.len() > 2, "{copied:?}");
    let last = backup::list(&directory(&target)).expect("lists").remove(0);
    assert_eq!(restored(&target, last.number), hash(&db));
    // Nothing is left of the attempts.
    let bytes: u64 = directory(&target)
        .list()
        .expect("lists")
        .iter()
        .filter(|(name, _)| name != "LOCK")
        .map(|(_, len)| len)
        .sum();
    assert_eq!(bytes, last.bytes);
}

/// Two databases that were one (a copied directory, a disk image that was set back) write other nodes under the same numbers.
#[test]
fn a_database_that_was_set_back_takes_nothing_over_that_is_not_its_own() {
    for seed in 0..20 {
        let (source, target) = (Simulated::new(seed), Simulated::new(2));
        let db = open(&source).expect("opens");
        let mut load = Load::new(&db, seed).expect("keyspaces");
        load.run(&db, 150).expect("writes");
        db.flush().expect("flushes");
        db.backup().run(&directory(&target)).expect("a backup");
        let image = source.crash();
        load.run(&db, 150).expect("writes");
        db.flush().expect("flushes");
        db.backup().run(&directory(&target)).expect("a backup");
        let (ahead, back) = (hash(&db), open(&image).expect("opens"));
        let mut load = Load::new(&back, seed + 100).expect("keyspaces");
        load.run(&back, 150).expect("writes");
        back.flush().expect("flushes");
        let third = back.backup().run(&directory(&target)).expect("a backup");
        assert_eq!(restored(&target, third.number), hash(&back), "seed {seed}");
        assert_eq!(restored(&target, 2), ahead, "seed {seed}");
    }
}

/// A restored database goes on with the same target, and need not copy what it was made of.
#[test]
fn a_restored_database_goes_on_with_its_target() {
    let (source, target, copy) = (Simulated::new(1), Simulated::new(2), Simulated::new(3));
    let db = filled(&source);
    let first = db.backup().run(&directory(&target)).expect("a backup");
    drop(db);
    Restore::from(&directory(&target)).onto(Arc::new(copy.clone())).expect("restores");
    let db = open(&copy).expect("opens");
    db.keyspace("few").and_then(|few| few.insert("key", "value")).expect("inserts");
    let second = db.backup().run(&directory(&target)).expect("a backup");
    assert_ne!(second.database, first.database, "it is another one");
    assert!(second.copied < 100_000, "{second:?}");
    assert_eq!(restored(&target, 2), hash(&db));
}

#[test]
fn what_no_backup_needs_any_more_is_removed() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let db = open(&source).expect("opens");
    let mut load = Load::new(&db, 1).expect("keyspaces");
    let mut hashes = Vec::new();
    for _ in 0..6 {
        load.run(&db, 120).expect("writes");
        db.backup().run(&directory(&target)).expect("a backup");
        hashes.push(hash(&db));
    }
    let of_target = |target: &Simulated| -> u64 {
        let blobs = directory(target).list().expect("lists");
        blobs.iter().filter(|(name, _)| name != "LOCK").map(|(_, len)| len).sum()
    };
    for number in [2, 1, 5] {
        let before = of_target(&target);
        let removed = backup::remove(&directory(&target), number).expect("removes");
        assert_eq!(before - of_target(&target), removed.bytes);
        assert!(removed.blobs >= 3, "{removed:?}");
        for left in backup::list(&directory(&target)).expect("lists") {
            assert_eq!(restored(&target, left.number), hashes[left.number as usize - 1], "{left:?}");
        }
    }
    assert!(matches!(backup::remove(&directory(&target), 2), Err(Error::NoBackup { .. })));
    // Interrupted at any operation, it harms none, and the next one goes on with it.
    for nth in 1.. {
        let image = target.crash();
        image.fail_nth(Filter::any(), nth, Fault::PowerOff, Repeat::Once);
        let removed = backup::remove(&directory(&image), 4);
        let after = image.power_loss(nth);
        for left in backup::list(&directory(&after)).expect("lists") {
            assert_eq!(restored(&after, left.number), hashes[left.number as usize - 1], "{nth}: {left:?}");
        }
        if removed.is_ok() {
            assert!(nth > 5);
            break;
        }
        backup::remove(&directory(&after), 6).expect("removes");
        let last = backup::list(&directory(&after)).expect("lists");
        assert!(last.iter().all(|info| info.number == 3 || info.number == 4));
    }
    for left in [3, 4, 6] {
        backup::remove(&directory(&target), left).expect("removes");
    }
    assert_eq!(of_target(&target), 0);
    // Nothing was there of strangers' files.
    let strangers = directory(&target);
    let names = ["readme", "notes.tmp", "backup-1.tmp"];
    names
        .iter()
        .try_for_each(|name| strangers.put(name, &mut |out| out.write_all(b"hello")))
        .and_then(|()| strangers.sync())
        .expect("puts");
    let taken = db.backup().run(&directory(&target)).expect("a backup");
    backup::remove(&directory(&target), taken.number).expect("removes");
    for name in names {
        assert_eq!(target.read_file(name).expect("it is left alone"), b"hello");
    }
}

/// Another handle of the directory.
struct Other(Simulated);

impl PassThrough for Other {
    fn inner(&self) -> &dyn Volume {
        &self.0
    }
}

#[test]
fn one_process_writes_to_a_directory_at_a_time() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let db = filled(&source);
    let other = directory(&target);
    let held = other.lock().expect("locks");
    let refused = db.backup().run(&Directory::on(Arc::new(Other(target.clone()))));
    match refused {
        Err(Error::BackupTarget { operation: "lock", source, .. }) => {
            assert_eq!(source.kind(), io::ErrorKind::ResourceBusy);
        }
        other => panic!("{other:?}"),
    }
    drop(held);
    db.backup().run(&directory(&target)).expect("a backup");
    // What is unfinished is removed by the next one.
    let access = Access { write: true, create: true, ..Access::default() };
    let file = target.open("segment-0000000001-0-9-000009.tmp", access).expect("creates");
    psync::Device::write(&target, &[Write { file, offset: 0, data: b"half" }]).expect("writes");
    db.backup().run(&directory(&target)).expect("a backup");
    assert!(directory(&target).list().expect("lists").iter().all(|(name, _)| !name.ends_with(".tmp")));
}

/// Each of two damaged manifests kept the other, and so all blobs, for ever.
#[test]
fn backups_with_damaged_manifests_are_removed_one_by_one() {
    let (source, target) = (Simulated::new(1), Simulated::new(2));
    let db = filled(&source);
    for _ in 0..3 {
        db.backup().run(&directory(&target)).expect("a backup");
    }
    for number in 1..3 {
        target.truncate_file(&format!("backup-{number:06}"), 70).expect("cuts");
    }
    let has = |name: &str| directory(&target).list().expect("lists").iter().any(|(found, _)| found == name);
    // Nobody knows what the damaged ones need.
    let refused = backup::remove(&directory(&target), 3);
    assert!(matches!(refused, Err(Error::BackupDamaged { .. })), "{refused:?}");
    let version = target.read_file("version-000001").expect("a version").len() as u64;
    let removed = backup::remove(&directory(&target), 1).expect("removes a damaged one beside another");
    assert_eq!((removed.blobs, removed.bytes), (2, 70 + version));
    assert!(!has("backup-000001") && has("log-000001"));
    let removed = backup::remove(&directory(&target), 2).expect("removes the other one");
    assert!(removed.blobs >= 4, "{removed:?}");
    assert!(!has("log-000001") && !has("version-000002"));
    assert_eq!(restored(&target, 3), hash(&db));
}

/// Only the newest backup of all was looked at, which was the other's.
#[test]
fn two_databases_with_one_target_copy_what_is_new() {
    let target = Simulated::new(2);
    let (one, other) = (open(&Simulated::new(1)).expect("opens"), filled(&Simulated::new(3)));
    one.keyspace("first").and_then(|first| first.insert("it", "differs")).expect("inserts");
    one.flush().expect("flushes");
    fill(&one);
    for db in [&one, &other] {
        assert!(db.backup().run(&directory(&target)).expect("a backup").copied > 2_000_000);
    }
    for db in [&one, &other] {
        assert_eq!(db.backup().run(&directory(&target)).expect("a backup").copied, 0);
    }
    assert_eq!(restored(&target, 3), hash(&one));
    assert_eq!(restored(&target, 4), hash(&other));
}

/// Where all was dead, nothing told the other's blob from the own one.
#[test]
fn nothing_dead_is_taken_over_from_another_database() {
    let target = Simulated::new(2);
    let (one, other) = (open(&Simulated::new(1)).expect("opens"), open(&Simulated::new(3)).expect("opens"));
    let put = |db: &Database, value: u8| {
        let few = db.keyspace("few").expect("a keyspace");
        (0..30u8).for_each(|key| few.insert([key], [value; 100]).expect("inserts"));
        db.flush().expect("flushes");
    };
    put(&other, 1);
    other.backup().run(&directory(&target)).expect("a backup");
    // What it has written first is dead.
    (1..20).for_each(|round| put(&one, round));
    let taken = one.backup().run(&directory(&target)).expect("a backup");
    assert!(taken.copied > 0, "{taken:?}");
    backup::remove(&directory(&target), 1).expect("removes");
    let names = directory(&target).list().expect("lists");
    assert!(names.iter().all(|(name, _)| !name.ends_with("-000001")), "{names:?}");
    assert_eq!(restored(&target, 2), hash(&one));
}
