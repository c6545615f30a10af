//! A disk that is full to the last block is emptied by removals alone, also after the database was opened again. Not on btrfs:
//! what is allocated in one file there promises nothing to others.

use crate::ground::{EXT4, Kind, Mount, XFS, ground};
use sapwood::{Database, Durability, Keyspace};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

fn key(number: u64) -> String {
    format!("{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn open(path: &Path, memory: u64) -> (Database, Keyspace) {
    let builder = Database::builder().memory(memory).compression(sapwood::Compression::None);
    let db = builder.open(path).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    (db, keyspace)
}

/// A file that is there before the disk is full: its name takes space, too.
fn create(path: &Path) -> File {
    File::create(path).expect("a file")
}

/// Takes all that is left.
fn fill(file: &mut File) {
    for len in [1 << 20, 4096] {
        while file.write_all(&vec![1; len]).is_ok() {}
    }
    file.sync_all().expect("syncs");
}

fn empties(at: &Path, memory: u64, mib: u64) {
    let path = at.join(format!("db-{memory}"));
    for is_reopened in [false, true] {
        let story = format!("{}: {memory} bytes of memory, opened again: {is_reopened}", path.display());
        let (mut another, mut more) = (create(&at.join("fill")), create(&at.join("more")));
        let (mut db, mut keyspace) = open(&path, memory);
        let mut count = 0;
        loop {
            let mut batch = db.batch();
            (count..count + 100).for_each(|number| _ = batch.insert(&keyspace, key(number), [7; 300]));
            match batch.durability(Durability::Buffered).commit() {
                Ok(()) => count += 100,
                Err(error) if error.is_disk_full() => break,
                Err(other) => panic!("{story}: a full disk is no {other}"),
            }
            assert!(count * 300 < mib << 20, "{story}: it never runs full");
        }
        fill(&mut another);
        if is_reopened {
            drop(keyspace);
            db.close().unwrap_or_else(|error| panic!("{story}: {error}"));
            fill(&mut more);
            (db, keyspace) = open(&path, memory);
        }
        let (began, before) = (Instant::now(), db.stats());
        for start in (0..count).step_by(100) {
            let mut batch = db.batch();
            (start..start + 100).for_each(|number| _ = batch.remove(&keyspace, key(number)));
            let removed = batch.durability(Durability::Buffered).commit();
            removed.unwrap_or_else(|error| {
                panic!("{story}: removal {start} of {count}: {error}: {:?}", db.stats().space)
            });
        }
        let after = db.stats();
        let flushes = after.writes.flushes - before.writes.flushes;
        let log_syncs = after.writes.log_syncs - before.writes.log_syncs;
        println!(
            "{story}: {count} records removed in {:?}: {flushes} flushes, {log_syncs} syncs of the log of {}",
            began.elapsed(),
            after.device.syncs - before.device.syncs
        );
        // On a busy disk it takes its time, and where space comes back late blocks are cleansed for each flush; what must
        // not be is a flush, or a sync of the log, for each batch.
        assert!(
            flushes <= count / 1000 && log_syncs <= count / 200,
            "{story}: {flushes} flushes, {log_syncs} syncs of the log"
        );
        db.flush().unwrap_or_else(|error| panic!("{story}: {error}"));
        db.compact().unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_eq!(keyspace.iter().count(), 0, "{story}");
        for name in ["fill", "more"] {
            let _ = std::fs::remove_file(at.join(name));
        }
        keyspace.insert("again", [7; 300]).unwrap_or_else(|error| panic!("{story}: {error}"));
        keyspace.remove("again").expect("a removal");
        db.check().unwrap_or_else(|error| panic!("{story}: {error}"));
    }
    std::fs::remove_dir_all(path).expect("there");
}

fn on(kind: Kind) {
    let Some(dir) = ground(kind) else { return };
    let at = dir.path().join("mounted");
    let _mounted = Mount::make(kind, &dir.path().join("disk.img"), 320, &at).expect("a file system");
    empties(&at, 8 << 20, 320);
}

#[test]
#[ignore = "needs root: make test-root"]
fn tmpfs() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = dir.path().join("mounted");
    let _mounted = match Mount::in_memory(48, &at) {
        Ok(mounted) => mounted,
        Err(why) => return println!("skipped: tmpfs cannot be had here ({why})"),
    };
    for memory in [4 << 20, 32 << 20, 256 << 20] {
        empties(&at, memory, 48);
    }
}

#[test]
#[ignore = "needs root: make test-root"]
fn ext4() {
    on(EXT4);
}

#[test]
#[ignore = "needs root: make test-root"]
fn xfs() {
    on(XFS);
}
