//! What is no directory of a database, or cannot be used as one, is called what it is, with what to do.

use crate::{builder, count, open, put, scratch};
use psync::{Lock, LockKind, PassThrough, Simulated, Volume};
use sapwood::{Database, Durability, Error};
use std::error::Error as _;
use std::fs;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn a_path_that_is_no_directory_is_not_a_database() {
    let dir = scratch();
    let file = dir.path().join("file");
    fs::write(&file, "hello").unwrap();
    for path in [file.clone(), file.join("below"), "".into()] {
        for (name, builder) in [("open", builder()), ("existing", builder().create(false))] {
            match builder.open(&path) {
                Err(Error::NotADatabase { reason, .. }) => {
                    let says = if path.as_os_str().is_empty() { "name a directory" } else { "it is a file" };
                    assert!(reason.contains(says), "{name} {path:?}: {reason}");
                }
                Err(Error::Missing { .. }) if name == "existing" && !path.exists() => {}
                other => panic!("{name} {path:?}: {other:?}"),
            }
        }
    }
    assert_eq!(fs::read(&file).unwrap(), b"hello");
}

#[cfg(unix)]
#[test]
fn links_are_followed_to_directories_and_not_to_files() {
    use std::os::unix::fs::symlink;
    let dir = scratch();
    let [path, link, nowhere, data] = ["d", "link", "nowhere", "elsewhere"].map(|name| dir.path().join(name));
    let (db, keyspace) = open(&path);
    put(&db, &keyspace, 0).unwrap();
    drop(keyspace);
    db.close().unwrap();
    symlink(&path, &link).unwrap();
    assert_eq!(count(&link, 0), 1);
    symlink(dir.path().join("missing"), &nowhere).unwrap();
    let opened = builder().open(&nowhere);
    assert!(
        matches!(&opened, Err(Error::NotADatabase { reason, .. }) if reason.contains("link")),
        "{opened:?}"
    );
    for name in ["data", "CURRENT"] {
        fs::rename(path.join(name), &data).unwrap();
        symlink(&data, path.join(name)).unwrap();
        for is_reader in [false, true] {
            let error = builder().read_only(is_reader).open(&path).expect_err("a link").to_string();
            assert!(error.contains(name) && error.contains("symbolic link"), "{error}");
        }
        fs::rename(&data, path.join(name)).unwrap();
    }
    assert_eq!(count(&path, 0), 1);
}

/// What file managers and version control leave is nothing.
#[test]
fn a_directory_with_litter_is_as_good_as_empty() {
    let dir = scratch();
    let path = dir.path().join("d");
    fs::create_dir_all(path.join("lost+found")).unwrap();
    let litter = [".DS_Store", ".gitkeep", ".gitignore", "._data", "Thumbs.db", ".nfs0000000000000001"];
    litter.iter().for_each(|name| fs::write(path.join(name), [7; 10_000]).unwrap());
    let opened = builder().read_only(true).open(&path);
    assert!(matches!(opened, Err(Error::Missing { .. })), "{opened:?}");
    let (db, keyspace) = open(&path);
    put(&db, &keyspace, 0).unwrap();
    drop(keyspace);
    db.close().unwrap();
    assert_eq!(count(&path, 0), 1);
    for name in litter {
        assert_eq!(fs::read(path.join(name)).unwrap(), [7; 10_000], "{name} is left alone");
    }
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join(".bashrc"), "").unwrap();
    let opened = builder().open(&other);
    assert!(matches!(opened, Err(Error::NotADatabase { .. })), "a home is none: {opened:?}");
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
}

/// Takes root.
#[cfg(target_os = "linux")]
#[test]
fn a_read_only_mount_is_told_and_can_be_read() {
    use std::process::Command;
    let dir = scratch();
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "sapwood-test"]).arg(dir.path());
        command.status().is_ok_and(|status| status.success())
    };
    if !mount("size=64m") {
        return eprintln!("SKIPPED: no file system can be mounted here (this takes root)");
    }
    let path = dir.path().join("d");
    let (db, keyspace) = open(&path);
    put(&db, &keyspace, 0).unwrap();
    drop(keyspace);
    db.close().unwrap();
    assert!(mount("remount,ro"));
    let opened = builder().open(&path).map(drop);
    let created = builder().open(dir.path().join("new")).map(drop);
    let read = builder().read_only(true).open(&path).and_then(|db| db.keyspace("main")?.get(crate::key(0)));
    Command::new("umount").arg("-l").arg(dir.path()).status().unwrap();
    for refused in [opened, created] {
        let told = refused.expect_err("it cannot be written").to_string();
        assert!(told.contains("the file system is read-only"), "{told}");
    }
    assert!(read.unwrap().is_some());
}

/// Says of everything what it is told.
struct Refusing(Simulated, fn() -> psync::Error, bool);

impl PassThrough for Refusing {
    fn inner(&self) -> &dyn Volume {
        &self.0
    }

    fn lock(&self, kind: LockKind, holder: &str) -> psync::Result<Lock> {
        if self.2 { Err(self.1()) } else { self.inner().lock(kind, holder) }
    }

    fn sync_directory(&self) -> psync::Result<()> {
        if self.2 { self.inner().sync_directory() } else { Err(self.1()) }
    }
}

fn refused() -> io::Error {
    io::Error::from(io::ErrorKind::Unsupported)
}

#[test]
fn a_file_system_without_locks_can_be_used_on_ones_own_responsibility() {
    let no_locks = || psync::Error::NoLocks { volume: "here".into(), source: refused() };
    let inner = Simulated::new(1);
    let volume = || Arc::new(Refusing(inner.clone(), no_locks, true));
    let error = builder().open_on(volume()).expect_err("no locks");
    assert!(matches!(&error, Error::NoLocks { .. }) && error.to_string().contains("require_lock"), "{error}");
    let db = builder().require_lock(false).open_on(volume()).unwrap();
    db.keyspace("main").unwrap().insert("key", "value").unwrap();
    db.close().unwrap();
    // Where there are locks, they count.
    let db = builder().open_on(Arc::new(inner.clone())).unwrap();
    let second = builder().require_lock(false).open_on(Arc::new(inner));
    assert!(matches!(second, Err(Error::Locked { .. })), "{second:?}");
    drop(db);
}

#[test]
fn a_directory_that_cannot_be_synced_is_called_so() {
    let not_synced = || psync::Error::NotSynced { directory: "there".into(), source: refused() };
    let volume = Arc::new(Refusing(Simulated::new(1), not_synced, false));
    let error = builder().open_on(volume).expect_err("it cannot be synced").to_string();
    assert!(error.contains("refuses to sync the directory there"), "{error}");
}

#[test]
fn the_source_of_an_io_error_is_the_systems() {
    let of = |kind: io::ErrorKind| {
        let error = psync::Error::from_io("open", "data", None, kind.into());
        (Error::from(error), kind)
    };
    for (error, kind) in [of(io::ErrorKind::PermissionDenied), of(io::ErrorKind::StorageFull)] {
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.map(io::Error::kind), Some(kind), "{error:?}");
    }
    assert!(
        Error::from(psync::Error::from_io("write", "wal", None, io::ErrorKind::FileTooLarge.into()))
            .is_disk_full()
    );
    assert!(
        Error::from(psync::Error::from_io("write", "wal", None, io::ErrorKind::QuotaExceeded.into()))
            .is_disk_full()
    );
}

#[test]
fn bounds_of_keys_need_no_type() {
    let db = builder().open_on(Arc::new(Simulated::new(1))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let mut batch = db.batch();
    ["a", "b", "c", "d"].into_iter().for_each(|key| _ = batch.insert(&keyspace, key, key));
    batch.durability(Durability::Buffered).commit().unwrap();
    let count = |range: sapwood::Range| range.count();
    assert_eq!(count(keyspace.range((Bound::Excluded("a"), Bound::Included("c")))), 2);
    assert_eq!(count(keyspace.range((Bound::Included("b".to_owned()), Bound::Unbounded))), 3);
    assert_eq!(count(keyspace.range(..)), 4);
    assert_eq!(count(keyspace.range("b"..)), 3);
    assert_eq!(count(keyspace.range(.."c")), 2);
    assert_eq!(count(keyspace.range("b"..="c")), 2);
    assert_eq!(count(keyspace.range(..=&b"c"[..])), 3);
    assert_eq!(count(keyspace.range([b'b']..[b'd'])), 2);
    assert_eq!(count(db.snapshot().range(&keyspace, (Bound::Excluded("a"), Bound::Excluded("b")))), 0);
}

#[test]
fn a_process_that_waits_for_the_lock_gets_it() {
    let dir = scratch();
    let path = dir.path().join("d");
    let (db, keyspace) = open(&path);
    let began = Instant::now();
    let refused = builder().wait_for_lock(Duration::from_millis(200)).open(&path);
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    assert!(began.elapsed() >= Duration::from_millis(200));
    drop(keyspace);
    std::thread::scope(|scope| {
        let waiting = scope
            .spawn(|| builder().wait_for_lock(Duration::from_secs(600)).open(&path).map(Database::close));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        db.close().unwrap();
        waiting.join().expect("no panic").unwrap().unwrap();
    });
}
