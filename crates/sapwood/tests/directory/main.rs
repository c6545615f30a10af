//! What others do to the directory of an open database, and what the system does not give: the database is the one
//! that was opened, or says that it is not; nobody else's is touched; what was refused can be tried again.

#[cfg(unix)]
mod forked;
#[cfg(unix)]
mod locked;
#[cfg(unix)]
mod moved;
#[cfg(unix)]
mod refused;
mod same_volume;
mod words;

use sapwood::{Builder, Compression, Database, Durability, Keyspace, Result};
use std::path::Path;
use tempfile::TempDir;

/// On the disk that holds the build, since the system's temporary directory may be in memory.
fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory")
}

/// Small, so that there are new files after a few thousand records. Only those that ask for it are durable at once: a sync for each would take
/// hours on a slow disk.
fn builder() -> Builder {
    // The values would compress to a tenth, and files grow that much more slowly.
    Database::builder()
        .compression(Compression::None)
        .memory(4 << 20)
        .segment_span(1 << 20)
        .durability(Durability::Buffered)
}

/// Runs a test in a process of its own; returns true there, and false when it is done. Limits are those of a process, and a child that is
/// forked while threads of other tests hold locks would wait for these for ever. The signal of a file at its largest ends a process
/// that does not ignore it.
#[cfg(unix)]
fn is_alone(test: &str) -> bool {
    const MARK: &str = "SAPWOOD_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let ignoring = "trap '' XFSZ; exec \"$0\" \"$@\"";
    let binary = std::env::current_exe().expect("this program");
    let status = std::process::Command::new("sh")
        .args(["-c", ignoring])
        .arg(binary)
        .args(["--exact", test, "--nocapture"])
        .env(MARK, "yes")
        .status()
        .expect("a child");
    assert!(status.success(), "{test}: {status}");
    false
}

fn open(path: &Path) -> (Database, Keyspace) {
    let db = builder().open(path).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    (db, keyspace)
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Commits this record durably.
fn put(db: &Database, keyspace: &Keyspace, number: u64) -> Result<()> {
    let mut batch = db.batch();
    batch.insert(keyspace, key(number), value(number));
    batch.durability(Durability::Immediate).commit()
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(12)
}

/// Opens the database there, and counts its records, which are those from `first` on.
fn count(path: &Path, first: u64) -> u64 {
    let (db, keyspace) = open(path);
    db.check().expect("sound");
    let mut count = 0;
    for (record, number) in keyspace.iter().zip(first..) {
        let (found, content) = record.expect("readable");
        assert!(found[..] == key(number) && content[..] == value(number)[..], "record {number}");
        count += 1;
    }
    drop(keyspace);
    db.close().expect("closes");
    count
}
