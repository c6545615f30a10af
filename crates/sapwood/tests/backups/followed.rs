//! Backups that a follower takes: what the writer does meanwhile, and what it has not made durable yet.

use crate::ground::{hash, open, options};
use psync::{Simulated, Volume};
use sapwood::backup::{Restore, StreamWriter};
use sapwood::{Builder, Database, Durability, EncryptionKey, Error};
use std::io::{self, Write};
use std::sync::Arc;

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
