//! Backups in the back ends of `object_store` that need no network: what a directory does, they do.

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use sapwood::backup::{self, Restore, Target};
use sapwood::{Compression, Database, Error, KeyspaceOptions};
use sapwood_object_store::ObjectStoreTarget;
use std::io;
use std::path::Path;
use std::sync::Arc;

fn target(store: &Arc<dyn ObjectStore>) -> ObjectStoreTarget {
    ObjectStoreTarget::new(Arc::clone(store), "backups/ships").expect("a runtime")
}

fn records(db: &Database) -> Vec<(Vec<u8>, Vec<u8>)> {
    let keyspace = db.keyspace("ships").expect("a keyspace");
    let records = keyspace.iter().map(|item| item.expect("a record"));
    records.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

fn restored(target: &ObjectStoreTarget, dir: &Path, number: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let path = dir.join(format!("copy{number}"));
    Restore::from(target).number(number).into_directory(&path).expect("restores");
    let db = Database::open(&path).expect("opens");
    db.check().expect("sound");
    records(&db)
}

/// Two backups, the second on top of the first; then the first is removed.
fn story(store: Arc<dyn ObjectStore>) {
    let dir = tempfile::tempdir().expect("a directory");
    let db = Database::open(dir.path().join("ships.db")).expect("opens");
    let uncompressed = KeyspaceOptions::new().compression(Compression::None);
    let ships = db.keyspace_with("ships", uncompressed).expect("a keyspace");
    // Segments of 64 MiB at most: more than a part of an upload.
    let row = |number: u32| (number.to_be_bytes(), [number as u8; 900]);
    ships.ingest((0..30_000).map(row)).expect("ingests");
    let target = target(&store);
    let first = db.backup().run(&target).expect("a backup");
    let old = records(&db);
    ships.insert("fram", "1892").expect("inserts");
    let second = db.backup().run(&target).expect("a backup");
    assert!(first.copied > 25_000_000 && second.copied < 1_000_000, "{first:?}, {second:?}");
    assert_eq!(backup::list(&target).expect("lists"), [first.clone(), second.clone()]);
    Restore::from(&target).verify().expect("whole");
    assert_eq!(restored(&target, dir.path(), 1), old);
    assert_eq!(restored(&target, dir.path(), 2), records(&db));
    backup::remove(&target, 1).expect("removes");
    Restore::from(&target).verify().expect("whole without the first");
    assert_eq!(backup::list(&target).expect("lists"), [second]);
    backup::remove(&target, 2).expect("removes");
    // Its number is not given again.
    assert_eq!(target.list().expect("lists"), [("given-000002".to_owned(), 0)]);
}

#[test]
fn in_memory() {
    story(Arc::new(InMemory::new()));
}

#[test]
fn in_local_files() {
    let dir = tempfile::tempdir().expect("a directory");
    story(Arc::new(LocalFileSystem::new_with_prefix(dir.path()).expect("a store").with_fsync(true)));
}

/// What fails in the middle leaves no object, short or long.
#[test]
fn a_blob_is_whole_or_not_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let stores: [Arc<dyn ObjectStore>; 2] = [
        Arc::new(InMemory::new()),
        Arc::new(LocalFileSystem::new_with_prefix(dir.path()).expect("a store").with_fsync(true)),
    ];
    for store in stores {
        let target = target(&store);
        for len in [0, 1, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 20 << 20] {
            let bytes: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
            let failed = target.put("blob", &mut |out| {
                out.write_all(&bytes)?;
                Err(io::Error::other("on purpose"))
            });
            assert!(failed.is_err() && target.list().expect("lists").is_empty(), "{len} bytes");
            target
                .put("blob", &mut |out| bytes.chunks(70_001).try_for_each(|part| out.write_all(part)))
                .expect("puts");
            assert_eq!(target.list().expect("lists"), [("blob".to_owned(), len as u64)]);
            let mut found = vec![0; len + 10];
            assert_eq!(target.get("blob", 0, &mut found).expect("gets"), len);
            assert_eq!(found[..len], bytes);
            assert_eq!(target.get("blob", len as u64, &mut [0; 5]).expect("gets"), 0);
            assert_eq!(
                target.get("blob", (len / 2) as u64, &mut found[..1]).expect("gets"),
                usize::from(len > 0)
            );
            target.delete(&["blob".to_owned(), "none".to_owned()]).expect("deletes");
        }
        let missing = target.get("blob", 0, &mut [0; 5]).expect_err("it is gone");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}

/// Objects of others, beside the prefix and below it, are left alone.
#[test]
fn objects_of_others_are_left_alone() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let others = ["backups/ships2/log-000001", "backups/ships/deep/log-000001", "backups/ships/readme"];
    for other in others {
        runtime.block_on(store.put(&other.into(), "hello".into())).expect("puts");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let db = Database::open(dir.path().join("ships.db")).expect("opens");
    let target = target(&store);
    db.backup().run(&target).expect("a backup");
    backup::remove(&target, 1).expect("removes");
    for other in others {
        assert!(runtime.block_on(store.head(&other.into())).is_ok(), "{other}");
    }
    assert!(matches!(Restore::from(&target).verify(), Err(Error::NoBackup { .. })));
}

/// A runtime that was dropped in a task panicked.
#[test]
fn a_task_may_make_and_drop_what_a_thread_uses() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let target = Arc::new(target(&store));
        let used = Arc::clone(&target);
        let names = tokio::task::spawn_blocking(move || used.list()).await.expect("no panic").expect("lists");
        assert!(names.is_empty());
        assert_eq!(Arc::strong_count(&target), 1, "it is dropped here");
    });
}
