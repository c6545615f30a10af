//! The device fails a write-back, works again, and the database is opened again: what it promises from then on is there
//! when the page cache is gone.

use crate::ground::{BTRFS, EXT4, EXT4_AT_ONCE, Kind, Mount, XFS, ground};
use sapwood::{Database, Durability};
use std::io::Write;
use std::path::Path;

const BUFFERED: u32 = 300;

/// A file system in a file in memory, where writes fail as soon as that memory is full.
fn survives(kind: Kind) {
    let Some(dir) = ground(kind) else { return };
    let (pool_at, at) = (dir.path().join("pool"), dir.path().join("mounted"));
    let pool = Mount::in_memory(100, &pool_at).expect("a pool");
    let image = pool_at.join("disk.img");
    let mounted = Mount::make(kind, &image, 400, &at).expect("a file system");
    go_around_the_journal(&at);
    let path = at.join("db");
    let (was_durable, refused) = fail(&path, &mounted, &pool_at.join("fill"));
    println!("{kind:?}: {refused} refused, second durable: {was_durable}");
    assert!(!was_durable || refused > 0, "{kind:?}: nothing has failed");
    std::fs::remove_file(pool_at.join("fill")).expect("there");
    pool.resize(600);
    // Some file systems give up until they are mounted again.
    let (db, mounted) = match Database::open(&path) {
        Ok(db) => (db, mounted),
        Err(error) => {
            println!("{kind:?} is mounted again: {error}");
            assert!(kind.make[0] != "mkfs.ext4", "it goes on, or this would not be the case that is meant");
            drop(mounted);
            let mounted = Mount::of(&image, kind.options, &at).expect("mounts");
            let opened = Database::open(&path);
            (opened.unwrap_or_else(|error| panic!("{kind:?}, mounted again: {error}")), mounted)
        }
    };
    let keyspace = db.keyspace("main").expect("a keyspace");
    // What was not promised may be there or not.
    let has_second = keyspace.get("second").expect("sound").is_some();
    assert!(has_second || !was_durable, "{kind:?}");
    keyspace.insert("after", "4").expect("is durable");
    db.check().unwrap_or_else(|error| panic!("{kind:?}: {error:?}"));
    let seen = buffered(&keyspace);
    drop(keyspace);
    db.close().expect("closes");
    // The page cache goes.
    drop(mounted);
    let _mounted = Mount::of(&image, kind.options, &at).expect("mounts");
    let db = Database::open(&path).unwrap_or_else(|error| panic!("{kind:?}, without page cache: {error}"));
    let keyspace = db.keyspace("main").expect("a keyspace");
    for (key, is_there) in [("first", true), ("second", has_second), ("after", true)] {
        assert_eq!(keyspace.get(key).expect("sound").is_some(), is_there, "{kind:?}: {key}");
    }
    assert_eq!(buffered(&keyspace), seen, "{kind:?}: what was seen is there");
    db.check().unwrap_or_else(|error| panic!("{kind:?}: {error:?}"));
}

/// Has all of the journal written once, so that it has its memory before there is none: a file system whose journal
/// cannot be written gives up.
fn go_around_the_journal(at: &Path) {
    let path = at.join("file");
    for _ in 0..1000 {
        let file = std::fs::File::create(&path).expect("a file");
        file.sync_all().expect("there is space");
        std::fs::remove_file(&path).expect("there");
    }
}

/// Commits durably, fills the memory behind the device, and commits on. Says whether the last commit is durable, and how many before it were refused.
fn fail(path: &Path, mounted: &Mount, fill: &Path) -> (bool, usize) {
    let db = Database::open(path).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.insert("first", "1").expect("is durable");
    mounted.bring_metadata_to_its_place();
    let mut file = std::fs::File::create(fill).expect("a file");
    while file.write_all(&[1; 4096]).is_ok() {}
    let mut refused = 0;
    for number in 0..BUFFERED {
        let mut batch = db.batch();
        batch.insert(&keyspace, number.to_be_bytes(), [7; 200]);
        // A file system that has noticed refuses it.
        refused += usize::from(batch.durability(Durability::Buffered).commit().is_err());
    }
    (keyspace.insert("second", "2").is_ok(), refused)
}

fn buffered(keyspace: &sapwood::Keyspace) -> usize {
    let keys: Vec<_> = (0..BUFFERED).map(u32::to_be_bytes).collect();
    keyspace.multi_get(&keys).expect("sound").iter().filter(|value| value.is_some()).count()
}

#[test]
#[ignore = "needs root: make test-root"]
fn ext4_with_its_default_options() {
    survives(EXT4);
}

#[test]
#[ignore = "needs root: make test-root"]
fn ext4_without_delayed_allocation() {
    survives(EXT4_AT_ONCE);
}

#[test]
#[ignore = "needs root: make test-root"]
fn xfs() {
    survives(XFS);
}

#[test]
#[ignore = "needs root: make test-root"]
fn btrfs() {
    survives(BTRFS);
}
