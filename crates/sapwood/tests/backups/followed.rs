//! Backups that a follower takes: what the writer does meanwhile, and what it has not made durable yet.

use crate::ground::{Watched, directory, hash, open, open_kept, options};
use psync::{Access, FileId, PassThrough, Simulated, Volume};
use sapwood::backup::{Point, Restore, StreamWriter};
use sapwood::{Builder, Database, Durability, EncryptionKey, Error, Keyspace};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn follow(builder: Builder, volume: impl Volume + 'static) -> Database {
    builder.follow(true).open_on(Arc::new(volume)).expect("it can be followed")
}

/// Calls a function before its first byte.
struct Watcher<F> {
    before: Option<F>,
    bytes: Vec<u8>,
}

impl<F: FnOnce()> Write for Watcher<F> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if let Some(before) = self.before.take() {
            before();
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a follower's backup, as a stream, comes to if the writer flushes as soon as the first byte of it is written.
fn streamed(writer: &Database, follower: &Database) -> (Result<u64, Error>, Vec<u8>) {
    let flush = || {
        let flushed = std::thread::scope(|scope| scope.spawn(|| writer.flush()).join());
        flushed.expect("no panic").expect("flushes");
    };
    let stream = StreamWriter::new(Watcher { before: Some(flush), bytes: Vec::new() });
    let taken = follower.backup().run(&stream);
    (taken.map(|info| info.sequence), stream.into_inner().bytes)
}

/// The stream had the beginning of a log that was gone, and then another one: no restore took it, and the backup was told to be there.
#[test]
fn a_stream_has_the_log_once_although_a_flush_removes_it_meanwhile() {
    for key in [None, Some(EncryptionKey::from_bytes([7; 32]))] {
        let with_key = |builder: Builder| match &key {
            Some(key) => builder.encryption_key(key.clone()),
            None => builder,
        };
        let volume = Simulated::new(1).with_windows();
        let db = with_key(options()).open_on(Arc::new(volume.clone())).expect("opens");
        let ships = db.keyspace("ships").expect("a keyspace");
        for number in 0..100u32 {
            ships.insert(number.to_be_bytes(), [7; 100]).expect("writes");
        }
        let follower = follow(with_key(options()), volume);
        let (taken, bytes) = streamed(&db, &follower);
        assert_eq!(taken.expect("a backup"), 100);
        let copy = Simulated::new(2);
        let restore = Restore::from_stream(&bytes[..]);
        let restore = key.iter().fold(restore, |restore, key| restore.encryption_key(key.clone()));
        restore.onto(Arc::new(copy.clone())).expect("a whole stream");
        let copy = with_key(options()).open_on(Arc::new(copy)).expect("opens");
        assert_eq!(hash(&copy), hash(&db));
    }
}

/// A follower of little memory does not gather the log of a writer of much. What it cannot take back it does not begin anew.
#[test]
fn a_log_that_is_too_long_to_be_gathered_is_written_once_or_not_at_all() {
    let volume = Simulated::new(1).with_windows();
    let db = options().memory(64 << 20).open_on(Arc::new(volume.clone())).expect("opens");
    let ships = db.keyspace("ships").expect("a keyspace").with_durability(Durability::Buffered);
    for number in 0..20_000u32 {
        ships.insert(number.to_be_bytes(), [7; 100]).expect("writes");
    }
    db.sync().expect("syncs");
    let follower = follow(options(), volume);
    let quiet = StreamWriter::new(Vec::new());
    assert_eq!(follower.backup().run(&quiet).expect("a backup").sequence, 20_000);
    let quiet = quiet.into_inner();
    assert!(quiet.len() > 2_000_000, "{} bytes", quiet.len());
    let copy = Simulated::new(2);
    Restore::from_stream(&quiet[..]).onto(Arc::new(copy.clone())).expect("a whole stream");
    assert_eq!(hash(&open(&copy).expect("opens")), hash(&db));
    let (taken, _) = streamed(&db, &follower);
    assert!(matches!(taken, Err(Error::SnapshotTooOld { .. })), "{taken:?}");
    // The log of the next one is short.
    assert!(streamed(&db, &follower).0.is_ok());
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A follower does not see what is not durable: its archive of the log does not reach to its own time.
#[test]
fn an_archive_of_a_follower_reaches_to_what_it_has() {
    let (volume, target) = (Simulated::new(1).with_windows(), Simulated::new(2));
    let now = Arc::new(AtomicU64::new(100));
    let by_clock = || {
        let now = Arc::clone(&now);
        options().clock(move || at(now.load(Relaxed)))
    };
    let db = by_clock().keep_changes(16 << 20).open_on(Arc::new(volume.clone())).expect("opens");
    let ships = db.keyspace("ships").expect("a keyspace");
    db.keyspace("boats").expect("a keyspace");
    ships.insert("a", "").expect("writes");
    let follower = follow(by_clock(), volume);
    let back_up_at = |seconds: u64| {
        now.store(seconds, Relaxed);
        follower.backup().archive_log().run(&directory(&target)).expect("a backup")
    };
    let restored = |seconds: u64| {
        let copy = Simulated::new(3);
        Restore::from(&directory(&target)).to(Point::Time(at(seconds))).onto(Arc::new(copy.clone()))?;
        let copy = open(&copy).expect("opens");
        let ships = copy.keyspace("ships").expect("a keyspace");
        let keys: Vec<_> = ships.iter().map(|item| item.expect("a record").0.to_vec()).collect();
        Ok::<_, Error>((String::from_utf8(keys.concat()).expect("text"), copy.keyspaces().len()))
    };
    back_up_at(100);
    now.store(110, Relaxed);
    ships.with_durability(Durability::Buffered).insert("b", "").expect("writes");
    assert_eq!(back_up_at(120).sequence, 1);
    now.store(130, Relaxed);
    db.sync().expect("syncs");
    assert_eq!(back_up_at(130).sequence, 2);
    // What else was not durable then is not known.
    match restored(115) {
        Err(Error::NotArchived { existing, .. }) => {
            assert!(existing.contains("00:01:40.000Z to 1970-01-01T00:01:50.000Z"), "{existing}");
        }
        other => panic!("{other:?}"),
    }
    now.store(140, Relaxed);
    ships.insert("c", "").expect("writes");
    back_up_at(150);
    assert_eq!(restored(105).expect("restores"), ("a".to_owned(), 2));
    for seconds in [115, 125, 139] {
        assert_eq!(restored(seconds).expect("restores"), ("ab".to_owned(), 2), "{seconds} s");
    }
    assert!(matches!(restored(145), Err(Error::NotArchived { .. })));
    assert_eq!(restored(150).expect("the last backup"), ("abc".to_owned(), 2));
    // What happens to a keyspace is durable, and so is all before it.
    now.store(160, Relaxed);
    db.drop_keyspace("boats").expect("drops");
    back_up_at(170);
    for seconds in [145, 155] {
        assert_eq!(restored(seconds).expect("restores"), ("abc".to_owned(), 2), "{seconds} s");
    }
    assert_eq!(restored(170).expect("the last backup"), ("abc".to_owned(), 1));
}

/// It was refused for what the follower had seen before, each time, and never looked again.
#[test]
fn an_archive_of_a_follower_is_taken_once_its_writer_keeps_changes() {
    let (volume, target) = (Simulated::new(1).with_windows(), Simulated::new(2));
    let db = open(&volume).expect("opens");
    db.keyspace("ships").and_then(|ships| ships.insert("fram", "1892")).expect("writes");
    let follower = follow(options(), volume.clone());
    let taken = || follower.backup().archive_log().run(&directory(&target));
    assert!(matches!(taken(), Err(Error::NoChanges { .. })));
    db.close().expect("closes");
    let db = open_kept(&volume);
    assert!(taken().expect("a backup").archive.is_some_and(|archive| archive.gap.is_none()));
    db.keyspace("ships").and_then(|ships| ships.insert("maud", "1917")).expect("writes");
    assert!(taken().expect("a backup").archive.is_some_and(|archive| archive.since_sequence == 1));
}

/// A volume on which a follower cannot say what it needs.
struct Unwritable(Simulated);

impl PassThrough for Unwritable {
    fn inner(&self) -> &dyn Volume {
        &self.0
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        if name.starts_with("follower-") && access.write {
            let refused = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
            return Err(psync::Error::from_io("open", name, None, refused));
        }
        self.0.open(name, access)
    }
}

fn fill(db: &Database, ships: &Keyspace, round: u8) {
    for number in 0..3000u32 {
        ships.insert(number.to_be_bytes(), [round; 150]).expect("writes");
    }
    db.compact().expect("compacts");
}

/// Places are used again, or the data file has been cut off before them.
#[test]
fn a_backup_that_comes_too_late_is_told_as_that() {
    for is_cut in [false, true] {
        let volume = Simulated::new(1).with_windows();
        let db = open(&volume).expect("opens");
        let ships = db.keyspace("ships").expect("a keyspace").with_durability(Durability::Buffered);
        fill(&db, &ships, 0);
        let follower = follow(options(), Unwritable(volume.clone()));
        let target = Simulated::new(2);
        let cut = || {
            let data = volume.open("data", Access { write: true, ..Access::default() }).expect("it is there");
            psync::Device::resize(&volume, data, 4096).and_then(|()| volume.close(data)).expect("cuts");
        };
        let mut is_first = true;
        let watched = Watched::new(directory(&target), |name, piece| {
            if name.starts_with("segment-") && piece == 0 && std::mem::take(&mut is_first) {
                if is_cut {
                    cut();
                } else {
                    (1..6u8).for_each(|round| fill(&db, &ships, round));
                }
            }
            Ok(())
        });
        let taken = follower.backup().run(&watched);
        drop(watched);
        assert!(matches!(taken, Err(Error::SnapshotTooOld { .. })), "{taken:?}");
        if is_cut {
            continue;
        }
        follower.backup().run(&directory(&target)).expect("a backup");
        let copy = Simulated::new(3);
        Restore::from(&directory(&target)).onto(Arc::new(copy.clone())).expect("restores");
        assert_eq!(hash(&open(&copy).expect("opens")), hash(&db));
    }
}

/// Nothing is read of segments that the target has all of, so nothing shows that the writer has cut the data file meanwhile; and the backup
/// said that the file ends before its segments do.
#[test]
fn a_backup_of_what_the_target_has_is_restored_although_the_file_was_cut() {
    let (volume, target) = (Simulated::new(1).with_windows(), Simulated::new(2));
    let db = open(&volume).expect("opens");
    let ships = db.keyspace("ships").expect("a keyspace");
    fill(&db, &ships.with_durability(Durability::Buffered), 0);
    let follower = follow(options(), Unwritable(volume.clone()));
    follower.backup().run(&directory(&target)).expect("a backup");
    let watched = Watched::new(directory(&target), |name, piece| {
        if name.starts_with("log-") && piece == 0 {
            volume.truncate_file("data", 4096).expect("cuts");
        }
        Ok(())
    });
    let taken = follower.backup().run(&watched).expect("a backup");
    drop(watched);
    assert_eq!(taken.copied, 0);
    let restored = |number: u64| {
        let copy = Simulated::new(3);
        Restore::from(&directory(&target)).number(number).onto(Arc::new(copy.clone())).expect("restores");
        hash(&open(&copy).expect("opens"))
    };
    assert_eq!(restored(2), restored(1));
}
