//! Between two flushes the background thread works for those who read: what waits goes to the trees, and the log pieces
//! that scans come across go to the leaves, when the scans have charged for it; and it stops as soon as the reading does.

use psync::Simulated;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace, Stats};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RECORDS: u64 = 200_000;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A database of several times its memory, with log pieces in most blocks and changes that wait. On a simulated volume: how soon the background
/// thread is done is its own time then, and not the disk's.
fn overwritten() -> (Database, Keyspace) {
    let db = Database::builder()
        .compression(sapwood::Compression::None)
        .memory(4 << 20)
        .open_on(Arc::new(Simulated::new(1)))
        .expect("a database");
    let keyspace = db.keyspace("records").expect("a keyspace");
    let mut rng = StdRng::seed_from_u64(1);
    for turn in 0..2 * RECORDS / 500 {
        let mut batch = db.batch();
        for at in 0..500 {
            let in_order = turn * 500 + at;
            let number = if in_order < RECORDS { in_order } else { rng.random_range(0..RECORDS) };
            batch.insert(&keyspace, key(number), [turn as u8; 100]);
        }
        batch.durability(Durability::Buffered).commit().expect("a commit");
    }
    (db, keyspace)
}

/// Reads until `is_done`.
fn read_until(db: &Database, mut read: impl FnMut(u64), is_done: impl Fn(&Stats) -> bool) {
    let mut rng = StdRng::seed_from_u64(2);
    let began = Instant::now();
    while !is_done(&db.stats()) {
        for _ in 0..200 {
            read(rng.random_range(0..RECORDS - 100));
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nothing comes of reading:\n{}", db.stats());
    }
}

#[test]
fn scans_are_worth_cleansing_and_gets_are_worth_the_queues_memory() {
    let (db, keyspace) = overwritten();
    let before = db.stats();
    assert!(before.space.log_pieces > 100, "{before}");

    let get = |number| assert!(keyspace.get(key(number)).expect("reads").is_some());
    let cache = |stats: &Stats| stats.memory.cache + stats.memory.records;
    // The cache has the memory a moment before what is read has filled it.
    read_until(&db, get, |stats| stats.memory.queues == 0 && cache(stats) > cache(&before));
    let flushed = db.stats();
    assert!(flushed.space.log_pieces * 2 > before.space.log_pieces, "gets need no cleansing:\n{flushed}");

    let scan = |number| assert_eq!(keyspace.range(&key(number)[..]..).take(100).count(), 100);
    read_until(&db, scan, |stats| stats.space.log_pieces < before.space.log_pieces / 10);

    // Soon nothing is left to do, and nothing is done.
    let began = Instant::now();
    let is_still = || {
        let written = db.stats().device.bytes_written;
        std::thread::sleep(Duration::from_millis(2500));
        db.stats().device.bytes_written == written
    };
    while !is_still() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never ends:\n{}", db.stats());
    }
    db.check().unwrap();
}

/// Bytes that a device could have moved while it read a log piece by itself, and while one from the cache was merged.
const CHARGE: (u64, u64) = (14 << 10, 1 << 10);

#[test]
fn blocks_that_scans_come_to_are_cleansed_beside_writes_and_no_dearer_than_the_scans() {
    // Where the machine is so busy that nobody writes for a second, the queue is flushed, or the database is taken for one that has grown, and cleansed
    // before.
    assert!(
        (0..5).any(|_| scans_beside_inserts()),
        "there are never pieces in the way, or a flush has to help"
    );
}

/// Whether there were pieces in the way, and no flush took them away.
fn scans_beside_inserts() -> bool {
    let (db, keyspace) = overwritten();
    db.flush().expect("flushes");
    let mut rng = StdRng::seed_from_u64(3);
    let begin = db.stats();
    let mut pieces = Vec::new();
    // One insert in twenty scans, as YCSB's workload E; the scans begin at few places.
    while pieces.len() < 3 || pieces[pieces.len() - 3..].iter().any(|each| *each > 0.3) {
        let before = db.stats().reads;
        for _ in 0..400 {
            if rng.random_range(0..20) == 0 {
                let key = [key(rng.random_range(0..RECORDS)), key(1)].concat();
                let mut batch = db.batch();
                batch.insert(&keyspace, key, [7; 100]);
                batch.durability(Durability::Buffered).commit().expect("commits");
            } else {
                let from = key(rng.random_range(0..30) * RECORDS / 31 + rng.random_range(0..50));
                assert_eq!(keyspace.range(&from[..]..).take(100).count(), 100);
            }
        }
        // On a fast machine the queue would be full before the thread has looked twice.
        std::thread::sleep(Duration::from_millis(25));
        let after = db.stats().reads;
        let read = after.pieces_scanned + after.pieces_cached - before.pieces_scanned - before.pieces_cached;
        pieces.push(read as f64 / 380.0);
        if db.stats().writes.flushes > begin.writes.flushes {
            println!("a flush has helped: {pieces:.2?}");
            return false;
        }
    }
    if pieces[0] <= 1.0 {
        return false;
    }
    let stats = db.stats();
    let charged = stats.reads.pieces_scanned * CHARGE.0 + stats.reads.pieces_cached * CHARGE.1;
    let price = stats.writes.price_for_scans;
    assert!(price > 0 && price <= charged, "{price} of {charged} bytes charged");
    assert!(
        stats.space.log_pieces > begin.space.log_pieces / 4,
        "where nobody scans they stay: {begin}\n{stats}"
    );
    db.check().expect("sound");
    true
}
