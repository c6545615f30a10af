//! Every byte of a small backup is flipped once: that is found, or it is harmless.

use crate::ground::{Load, directory, open, open_kept};
use psync::{Access, Read, Simulated, Volume, Write};
use sapwood::backup::{self, BackupInfo, Restore, StreamWriter, Target};
use sapwood::{Database, Error};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A database with a little of everything.
fn small() -> Database {
    let db = open_kept(&Simulated::new(3));
    let mut load = Load::new(&db, 3).expect("keyspaces");
    load.run(&db, 6).expect("writes");
    db.flush().expect("flushes");
    load.run(&db, 2).expect("writes");
    db
}

pub(crate) fn flip(volume: &Simulated, name: &str, at: u64, bits: u8) {
    let file = volume.open(name, Access { write: true, ..Access::default() }).expect("it is there");
    let mut byte = [0];
    psync::Device::read(volume, &mut [Read { file, offset: at, buffer: &mut byte }]).expect("a byte");
    byte[0] ^= bits;
    psync::Device::write(volume, &[Write { file, offset: at, data: &byte }]).expect("a byte");
    volume.close(file).expect("closes");
}

#[test]
fn a_flipped_byte_of_a_directory_is_found() {
    let db = small();
    let target = Simulated::new(4);
    db.backup().archive_log().run(&directory(&target)).expect("a backup");
    db.keyspace("plain").and_then(|plain| plain.insert("archived", "by the next backup")).expect("writes");
    let second = db.backup().archive_log().run(&directory(&target)).expect("a backup");
    assert!(second.archive.is_some_and(|archive| archive.bytes > 0 && archive.gap.is_none()));
    backup::remove(&directory(&target), 1).expect("the second needs all that is left");
    let blobs = directory(&target).list().expect("lists");
    let mut flipped = 0;
    for (name, len) in blobs.iter().filter(|(name, _)| name != "LOCK") {
        // Long blobs are the same throughout.
        for at in (0..*len).filter(|at| *len < 20_000 || *at < 300 || at + 300 > *len || at % 97 == 0) {
            flip(&target, name, at, 1 << (at % 8));
            let found = Restore::from(&directory(&target)).verify();
            let is_found = matches!(&found, Err(error) if error.is_damage());
            assert!(is_found, "byte {at} of {name}: {found:?}");
            flip(&target, name, at, 1 << (at % 8));
            flipped += 1;
        }
    }
    assert!(flipped > 5000, "{flipped}");
    Restore::from(&directory(&target)).verify().expect("it is as it was");
}

#[test]
fn a_flipped_byte_of_a_stream_is_found_and_so_is_every_cut() {
    let db = small();
    let stream = StreamWriter::new(Vec::new());
    db.backup().run(&stream).expect("a backup");
    let mut bytes = stream.into_inner();
    let len = bytes.len();
    for at in (0..len).filter(|at| *at < 3000 || at + 3000 > len || at % 97 == 0) {
        bytes[at] ^= 1 << (at % 8);
        let found = Restore::from_stream(&bytes[..]).verify();
        bytes[at] ^= 1 << (at % 8);
        assert!(matches!(&found, Err(error) if error.is_damage()), "byte {at}: {found:?}");
        let cut = Restore::from_stream(&bytes[..at]).verify();
        assert!(matches!(&cut, Err(error) if error.is_damage()), "cut at {at}: {cut:?}");
    }
}

/// Each blob is sound by itself.
#[test]
fn blobs_of_another_backup_are_found() {
    let db = small();
    let target = Simulated::new(4);
    db.backup().run(&directory(&target)).expect("a backup");
    db.keyspace("plain").expect("a keyspace").insert("key", "another").expect("inserts");
    db.flush().expect("flushes");
    db.backup().run(&directory(&target)).expect("a backup");
    for kind in ["log", "version", "backup"] {
        let image = target.crash();
        let bytes = image.read_file(&format!("{kind}-000001")).expect("a blob");
        let changed = directory(&image);
        let name = format!("{kind}-000002");
        changed.put(&name, &mut |out| out.write_all(&bytes)).and_then(|()| changed.sync()).expect("puts");
        let found = Restore::from(&directory(&image)).number(2).verify();
        assert!(matches!(found, Err(Error::BackupDamaged { .. })), "{kind}: {found:?}");
    }
    // A missing blob is found too.
    for (name, _) in directory(&target).list().expect("lists") {
        if name == "LOCK" || name.ends_with("-000001") && !name.starts_with("segment") {
            continue;
        }
        let image = target.crash();
        directory(&image).delete(std::slice::from_ref(&name)).expect("deletes");
        let is_manifest = name.starts_with("backup");
        let is_told = |result: sapwood::Result<BackupInfo>| match result {
            Err(Error::NoBackup { .. }) => is_manifest,
            Err(Error::BackupDamaged { blob, what, .. }) => blob.contains(&name) && what.contains("missing"),
            _ => false,
        };
        assert!(is_told(Restore::from(&directory(&image)).number(2).verify()), "without {name}");
        let copy = Simulated::new(1);
        let restored = Restore::from(&directory(&image)).number(2).onto(Arc::new(copy));
        assert!(is_told(restored), "without {name}");
    }
}

/// What is missing then was not lost.
#[test]
fn a_backup_that_is_removed_while_it_is_read_is_not_damaged() {
    let target = Simulated::new(2);
    let db = open(&Simulated::new(1)).expect("opens");
    let rows = db.keyspace("rows").expect("a keyspace");
    // Of several segments.
    rows.ingest((0..20_000u32).map(|row| (row.to_be_bytes(), [1; 120]))).expect("ingests");
    db.backup().run(&directory(&target)).expect("a backup");
    let (target, remover) = (directory(&target), directory(&target));
    let mut removed = false;
    let restore = Restore::from(&target).on_progress(|_| {
        removed = removed || backup::remove(&remover, 1).is_ok();
        ControlFlow::Continue(())
    });
    let read = restore.verify();
    assert!(matches!(read, Err(Error::BackupTarget { .. })), "{read:?}");
    assert!(removed);
}

/// No backup could be taken any more.
#[test]
fn a_version_that_is_missing_keeps_nobody_from_the_next_backup() {
    let target = Simulated::new(2);
    let db = open(&Simulated::new(1)).expect("opens");
    let rows = db.keyspace("rows").expect("a keyspace");
    rows.ingest((0..20_000u32).map(|row| (row.to_be_bytes(), [1; 120]))).expect("ingests");
    db.backup().run(&directory(&target)).expect("a backup");
    directory(&target).delete(&["version-000001".to_owned()]).expect("deletes");
    db.backup().run(&directory(&target)).expect("a backup");
    Restore::from(&directory(&target)).verify().expect("whole");
}

/// What is damaged in the database does not become a backup.
#[test]
fn a_damaged_database_is_no_backup() {
    let source = Simulated::new(3);
    let db = open(&source).expect("opens");
    let mut load = Load::new(&db, 3).expect("keyspaces");
    load.run(&db, 40).expect("writes");
    db.compact().expect("compacts");
    drop((load, db));
    let len = source.read_file("data").expect("a file").len() as u64;
    let (mut found, mut passed) = (0, 0);
    for at in (0..len).step_by(1031) {
        let image = source.crash();
        flip(&image, "data", at, 0x10);
        let Ok(db) = open(&image) else { continue };
        let target = Simulated::new(4);
        let (taken, checked) = (db.backup().run(&directory(&target)), db.check());
        match (&taken, &checked) {
            (Err(error), _) => {
                assert!(error.is_damage() && checked.is_err(), "byte {at}: {error}, {checked:?}");
                found += 1;
            }
            (Ok(_), Ok(_)) => passed += 1,
            (Ok(_), Err(error)) => panic!("byte {at}: {error}"),
        }
    }
    assert!(found > 20, "{found} found, {passed} in what is dead");
}
