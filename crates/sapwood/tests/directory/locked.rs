//! Two writers are impossible, whatever is done to the file `LOCK` and to the names of the others.

use crate::{builder, count, open, put, scratch};
use sapwood::Error;
use std::fs;
use std::path::Path;

fn assert_locked(path: &Path, what: &str) {
    for is_reader in [false, true] {
        let opened = builder().read_only(is_reader).open(path);
        assert!(matches!(opened, Err(Error::Locked { .. })), "{what}: {opened:?}");
    }
}

/// The second writer came in, and the database was destroyed.
#[test]
fn whatever_is_done_to_the_file_lock_no_other_process_comes_in() {
    let dir = scratch();
    let path = dir.path().join("d");
    let lock = path.join("LOCK");
    let (db, keyspace) = open(&path);
    assert_locked(&path, "untouched");
    fs::remove_file(&lock).unwrap();
    assert_locked(&path, "removed");
    fs::write(&lock, "somebody").unwrap();
    assert_locked(&path, "created anew");
    fs::copy(&lock, path.join("copy")).unwrap();
    fs::rename(path.join("copy"), &lock).unwrap();
    assert_locked(&path, "copied back");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    assert_locked(&path, "a folder");
    fs::remove_dir(&lock).unwrap();
    std::os::unix::fs::symlink("/dev/null", &lock).unwrap();
    assert_locked(&path, "a link");
    (0..100).for_each(|number| put(&db, &keyspace, number).unwrap());
    drop(keyspace);
    db.close().unwrap();
    fs::remove_file(&lock).unwrap();
    assert_eq!(count(&path, 0), 100);
}

#[test]
fn readers_keep_a_writer_out_without_the_file_lock() {
    let dir = scratch();
    let path = dir.path().join("d");
    let (db, keyspace) = open(&path);
    put(&db, &keyspace, 0).unwrap();
    drop(keyspace);
    db.close().unwrap();
    let readers = [(); 2].map(|()| builder().read_only(true).open(&path).unwrap());
    fs::remove_file(path.join("LOCK")).unwrap();
    let opened = builder().open(&path);
    let Err(Error::Locked { holder, .. }) = &opened else { panic!("{opened:?}") };
    assert!(holder.contains("reader"), "{holder}");
    drop(readers);
    assert_eq!(count(&path, 0), 1);
}

/// The same `data` by way of another directory: names that are linked, or moved while it is open.
#[test]
fn no_process_comes_in_through_another_directory() {
    let dir = scratch();
    let [path, linked, moved] = ["d", "linked", "moved"].map(|name| dir.path().join(name));
    let (db, keyspace) = open(&path);
    put(&db, &keyspace, 0).unwrap();
    fs::create_dir(&linked).unwrap();
    fs::create_dir(&moved).unwrap();
    let names = || fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
    for name in names().filter(|name| name != "LOCK") {
        fs::hard_link(path.join(&name), linked.join(&name)).unwrap();
    }
    assert_locked(&linked, "linked");
    for name in names().filter(|name| name != "LOCK").collect::<Vec<_>>() {
        fs::rename(path.join(&name), moved.join(&name)).unwrap();
    }
    assert_locked(&moved, "moved");
    assert!(matches!(put(&db, &keyspace, 1), Err(Error::Gone { .. })));
    drop(keyspace);
    db.close().unwrap_err();
    // The refused commit had reached the log.
    assert!([1, 2].contains(&count(&moved, 0)));
}

/// Programs that know of no other lock than the file `LOCK`.
#[test]
fn a_holder_of_the_file_lock_alone_is_respected_and_kept_out() {
    let dir = scratch();
    let path = dir.path().join("d");
    let (db, keyspace) = open(&path);
    let old = fs::File::open(path.join("LOCK")).unwrap();
    assert!(old.try_lock().is_err() && old.try_lock_shared().is_err(), "kept out");
    drop(keyspace);
    db.close().unwrap();
    old.lock().unwrap();
    assert_locked(&path, "an old program");
    old.unlock().unwrap();
    assert_eq!(count(&path, 0), 0);
}
