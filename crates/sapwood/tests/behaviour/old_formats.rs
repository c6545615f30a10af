//! Databases of older formats open, and are of the present one as soon as they are opened for writing.

use sapwood::backup::{Restore, StreamWriter};
use sapwood::repair::Repair;
use sapwood::{Database, Durability};
use std::path::{Path, PathBuf};

/// Written by the program of format 6: 300 records loaded, and one of them put once more, which is in the log.
const FORMAT_6: [(&str, &[u8]); 5] = [
    ("CURRENT", include_bytes!("format_6/CURRENT")),
    ("data", include_bytes!("format_6/data")),
    ("manifest-000002", include_bytes!("format_6/manifest-000002")),
    ("wal-0000000002", include_bytes!("format_6/wal-0000000002")),
    ("wal-0000000003", include_bytes!("format_6/wal-0000000003")),
];

/// The same, written by the last program of format 7.
const FORMAT_7: [(&str, &[u8]); 5] = [
    ("CURRENT", include_bytes!("format_7/CURRENT")),
    ("data", include_bytes!("format_7/data")),
    ("manifest-000002", include_bytes!("format_7/manifest-000002")),
    ("wal-0000000002", include_bytes!("format_7/wal-0000000002")),
    ("wal-0000000003", include_bytes!("format_7/wal-0000000003")),
];

/// The same, written by the last program of format 8.
const FORMAT_8: [(&str, &[u8]); 5] = [
    ("CURRENT", include_bytes!("format_8/CURRENT")),
    ("data", include_bytes!("format_8/data")),
    ("manifest-000002", include_bytes!("format_8/manifest-000002")),
    ("wal-0000000002", include_bytes!("format_8/wal-0000000002")),
    ("wal-0000000003", include_bytes!("format_8/wal-0000000003")),
];

/// The same, written by the last program of format 9.
const FORMAT_9: [(&str, &[u8]); 5] = [
    ("CURRENT", include_bytes!("format_9/CURRENT")),
    ("data", include_bytes!("format_9/data")),
    ("manifest-000002", include_bytes!("format_9/manifest-000002")),
    ("wal-0000000002", include_bytes!("format_9/wal-0000000002")),
    ("wal-0000000003", include_bytes!("format_9/wal-0000000003")),
];

/// The same, written by the last program of format 10.
const FORMAT_10: [(&str, &[u8]); 4] = [
    ("CURRENT", include_bytes!("format_10/CURRENT")),
    ("data", include_bytes!("format_10/data")),
    ("manifest-000002", include_bytes!("format_10/manifest-000002")),
    ("wal-0000000001", include_bytes!("format_10/wal-0000000001")),
];

/// The same, written by the last program of format 11.
const FORMAT_11: [(&str, &[u8]); 5] = [
    ("CURRENT", include_bytes!("format_11/CURRENT")),
    ("data", include_bytes!("format_11/data")),
    ("manifest-000002", include_bytes!("format_11/manifest-000002")),
    ("wal-0000000002", include_bytes!("format_11/wal-0000000002")),
    ("wal-0000000003", include_bytes!("format_11/wal-0000000003")),
];

/// The same, written by the last program of format 12.
const FORMAT_12: [(&str, &[u8]); 5] = [
    ("CURRENT", include_bytes!("format_12/CURRENT")),
    ("data", include_bytes!("format_12/data")),
    ("manifest-000002", include_bytes!("format_12/manifest-000002")),
    ("wal-0000000002", include_bytes!("format_12/wal-0000000002")),
    ("wal-0000000003", include_bytes!("format_12/wal-0000000003")),
];

/// The same, written by the last program of format 13, and the changes were kept: the creation of the keyspace is an event.
const FORMAT_13: [(&str, &[u8]); 6] = [
    ("CURRENT", include_bytes!("format_13/CURRENT")),
    ("data", include_bytes!("format_13/data")),
    ("manifest-000002", include_bytes!("format_13/manifest-000002")),
    ("wal-0000000001", include_bytes!("format_13/wal-0000000001")),
    ("wal-0000000002", include_bytes!("format_13/wal-0000000002")),
    ("wal-0000000003", include_bytes!("format_13/wal-0000000003")),
];

fn written(dir: &Path, files: &[(&str, &[u8])]) -> PathBuf {
    let path = dir.join("db");
    std::fs::create_dir(&path).expect("a directory");
    for (name, bytes) in files {
        std::fs::write(path.join(name), bytes).expect("a file");
    }
    path
}

fn holds(db: &Database, keyspace: &str, records: usize) {
    let keyspace = db.keyspace(keyspace).expect("a keyspace");
    assert_eq!(keyspace.iter().filter(Result::is_ok).count(), records);
    let get = |key: &str| keyspace.get(key).expect("reads").map(|value| value.to_vec());
    assert_eq!(get("key00007").as_deref(), Some(&b"changed"[..]));
    assert_eq!(get("key00123").as_deref(), Some(&b"value of 123"[..]));
    db.check().expect("sound");
}

#[test]
fn databases_of_older_formats_are_read_and_written() {
    for files in
        [&FORMAT_6[..], &FORMAT_7, &FORMAT_8, &FORMAT_9, &FORMAT_10, &FORMAT_11, &FORMAT_12, &FORMAT_13]
    {
        goes_on(files);
    }
}

fn goes_on(files: &[(&str, &[u8])]) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), files);
    let current = || std::fs::read(path.join("CURRENT")).expect("CURRENT");
    let read_only = Database::builder().read_only(true).open(&path).expect("opens for reading");
    let name = read_only.keyspaces().into_iter().next().expect("a keyspace");
    holds(&read_only, &name, 300);
    // A backup of it has nodes and commits of the older format, and is restored as a database of the present one.
    let stream = StreamWriter::new(Vec::new());
    read_only.backup().run(&stream).expect("a backup");
    let copy = dir.path().join("copy");
    Restore::from_stream(&stream.into_inner()[..]).into_directory(&copy).expect("restores");
    holds(&Database::open(&copy).expect("opens"), &name, 300);
    // So has a repair, also if CURRENT is lost, which tells how long segments are.
    for new in ["repaired", "recovered"] {
        let new = dir.path().join(new);
        let report = Repair::of(&path).into_directory(&new).expect("repairs");
        assert!(!report.has_losses(), "{report:?}");
        holds(&Database::open(&new).expect("opens"), &name, 300);
        drop(std::fs::rename(path.join("CURRENT"), path.join("CURRENT.away")));
    }
    std::fs::rename(path.join("CURRENT.away"), path.join("CURRENT")).expect("back");
    drop(read_only);
    assert_eq!(current(), files[0].1, "who only reads changes nothing");
    let db = Database::open(&path).expect("opens");
    assert_eq!(current()[8], 14);
    holds(&db, &name, 300);
    let keyspace = db.keyspace(&name).expect("a keyspace").with_durability(Durability::Buffered);
    for number in 0..20_000u32 {
        keyspace.insert(format!("more{number}"), [7; 100]).expect("commits");
    }
    db.flush().expect("flushes");
    holds(&db, &name, 20_300);
    drop(keyspace);
    db.close().expect("closes");
    holds(&Database::open(&path).expect("opens again"), &name, 20_300);
}
