//! Beside threads that write as fast as they can.

use sapwood::backup::{Directory, Restore};
use sapwood::{Database, Durability, Keyspace};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const WRITERS: u64 = 3;
/// Changes of a batch: a counter, and records that say by which batch they were written.
const CHANGES: u64 = 20;

fn write(keyspaces: &[Keyspace; 2], db: &Database, writer: u64, number: u64) -> sapwood::Result<()> {
    let mut batch = db.batch();
    batch.insert(&keyspaces[0], writer.to_be_bytes(), number.to_be_bytes());
    for index in 1..CHANGES {
        let record = (number * 7919 + index * 131) % 5000;
        let key = [writer.to_be_bytes(), record.to_be_bytes()].concat();
        batch.insert(&keyspaces[1], key, [&number.to_be_bytes()[..], &[7; 80]].concat());
    }
    let durability = [Durability::None, Durability::Buffered, Durability::Immediate][number as usize % 3];
    batch.durability(durability).commit()
}

/// What a writer's records are after so many batches.
fn expected(writer: u64, batches: u64) -> std::collections::BTreeMap<Vec<u8>, u64> {
    let mut records = std::collections::BTreeMap::new();
    for number in 1..=batches {
        for index in 1..CHANGES {
            let record = (number * 7919 + index * 131) % 5000;
            records.insert([writer.to_be_bytes(), record.to_be_bytes()].concat(), number);
        }
    }
    records
}

/// Ends the writers, also when the thread that compares panics.
struct Done<'d>(&'d AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The copy has some first batches of each writer, each wholly, and in all as many changes as the database had had at the
/// moment: commits are in one order, and it is cut at one place.
#[test]
fn a_backup_beside_threads_that_write_is_cut_at_one_commit() {
    let dir = tempfile::tempdir().expect("a directory");
    let db = Database::builder().memory(8 << 20).open(dir.path().join("db")).expect("opens");
    let keyspaces =
        [db.keyspace("counters").expect("a keyspace"), db.keyspace("records").expect("a keyspace")];
    let (done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let target = Directory::open(dir.path().join("backups")).expect("opens");
    let mut compared = 0;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, keyspaces, done, written) = (&db, &keyspaces, &done, &written);
            scope.spawn(move || {
                for number in 1.. {
                    if done.load(Relaxed) {
                        break;
                    }
                    write(keyspaces, db, writer, number).expect("commits");
                    written.fetch_add(1, Relaxed);
                }
            });
        }
        let _done = Done(&done);
        let began = Instant::now();
        let mut beside = 0;
        while compared < 8 || (beside < 2000 && began.elapsed() < Duration::from_secs(60)) {
            let before = written.load(Relaxed);
            let info = db.backup().run(&target).expect("a backup");
            beside += written.load(Relaxed) - before;
            let path = dir.path().join(format!("copy{compared}"));
            Restore::from(&target).into_directory(&path).expect("restores");
            let copy = Database::builder().memory(8 << 20).open(&path).expect("opens");
            let [counters, records] =
                ["counters", "records"].map(|name| copy.keyspace(name).expect("a keyspace"));
            let mut changes = 0;
            for writer in 0..WRITERS {
                let counter = counters.get(writer.to_be_bytes()).expect("reads");
                let batches = counter
                    .map_or(0, |value| u64::from_be_bytes(value[..8].try_into().expect("eight bytes")));
                changes += batches * CHANGES;
                let found: Vec<_> =
                    records.prefix(writer.to_be_bytes()).map(|item| item.expect("a record")).collect();
                let numbers = found.iter().map(|(key, value)| {
                    (key.to_vec(), u64::from_be_bytes(value[..8].try_into().expect("eight bytes")))
                });
                assert!(
                    numbers.eq(expected(writer, batches)),
                    "backup {compared}, writer {writer}, {batches} batches"
                );
            }
            assert_eq!(changes, info.sequence, "backup {compared}");
            copy.check().expect("sound");
            drop((counters, records, copy));
            std::fs::remove_dir_all(&path).expect("removes");
            compared += 1;
        }
        assert!(beside > 100, "{beside} commits beside {compared} backups");
    });
}
