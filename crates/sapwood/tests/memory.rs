//! The memory budget is kept: what the process has resident at most, while records are loaded, overwritten, read and scanned by
//! threads that come and go. And it is used: by the cache, when nobody writes.
#![cfg(target_os = "linux")]

mod resident;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use resident::{peak_while, resident};
use sapwood::{Database, Durability, Keyspace};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const BUDGET: u64 = 32 << 20;
/// A tenth more, for the allocator.
const MOST: u64 = BUDGET / 10 * 11;
/// Three times the budget.
const RECORDS: u64 = 800_000;
const READERS: u64 = 4;
const BATCH: u64 = 500;

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    key[4..].copy_from_slice(format!("{number:012}").as_bytes());
    key
}

fn write(
    db: &Database,
    keyspace: &Keyspace,
    batches: u64,
    rng: &mut StdRng,
    mut next: impl FnMut(&mut StdRng) -> u64,
) {
    for _ in 0..batches {
        let mut batch = db.batch();
        for _ in 0..BATCH {
            let number = next(rng);
            let mut value = [0; 100];
            rng.fill(&mut value[..]);
            batch.insert(keyspace, key(number), value);
        }
        batch.durability(Durability::Buffered).commit().expect("a commit");
    }
}

fn read_64(keyspace: &Keyspace, rng: &mut StdRng) {
    let keys: Vec<_> = (0..64).map(|_| key(rng.random_range(0..RECORDS))).collect();
    assert!(keyspace.multi_get(keys).expect("reads").iter().all(Option::is_some));
}

/// What a reader does.
fn read(keyspace: &Keyspace, seed: u64, turns: u32) {
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..turns {
        let from = rng.random_range(0..RECORDS - 100);
        assert!(keyspace.get(key(from)).expect("reads").is_some());
        read_64(keyspace, &mut rng);
        assert_eq!(keyspace.range(&key(from)[..]..).take(100).count(), 100);
    }
}

fn load(db: &Database, keyspace: &Keyspace, rng: &mut StdRng) {
    let mut number = 0;
    write(db, keyspace, RECORDS / BATCH, rng, |_| {
        number += 1;
        number - 1
    });
}

fn overwrite(db: &Database, keyspace: &Keyspace, records: u64, rng: &mut StdRng) {
    write(db, keyspace, records / BATCH, rng, |rng| rng.random_range(0..RECORDS));
}

fn open(path: &Path) -> (Database, Keyspace) {
    let db = Database::builder().memory(BUDGET).open(path).expect("opens");
    let keyspace = db.keyspace("records").expect("a keyspace");
    (db, keyspace)
}

/// All in one process: what the threads of one part leave behind in the allocator, those of the next do not always take up.
#[test]
fn the_process_stays_within_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let before = resident();
    let mut rng = StdRng::seed_from_u64(1);
    loading_reading_and_durable_puts(&path, before, &mut rng);
    writing_and_reading_in_turn(&path, before, &mut rng);
    readers_beside_a_writer(&path, before, &mut rng);
}

/// What a thread keeps in its own arena of the allocator shows when many have come and gone.
fn loading_reading_and_durable_puts(path: &Path, before: u64, rng: &mut StdRng) {
    let (peak, ()) = peak_while(before, || {
        let (db, keyspace) = open(path);
        load(&db, &keyspace, rng);
        db.flush().expect("a flush");
        drop((keyspace, db));
        for seed in 0..3 {
            let (_db, keyspace) = open(path);
            read(&keyspace, seed, 100);
        }
        let (_db, keyspace) = open(path);
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let keyspace = &keyspace;
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(thread);
                    for _ in 0..500 {
                        keyspace.insert(key(rng.random_range(0..RECORDS)), [0; 100]).expect("commits");
                    }
                });
            }
        });
    });
    assert!(peak <= MOST, "{peak} bytes with a budget of {BUDGET}");
}

/// The cache has the memory of queues and flush while nobody writes, and gives it back in time, to and fro.
fn writing_and_reading_in_turn(path: &Path, before: u64, rng: &mut StdRng) {
    let (db, keyspace) = open(path);
    for round in 0..3 {
        let (peak, stats) = peak_while(before, || {
            overwrite(&db, &keyspace, RECORDS / 4, rng);
            db.flush().expect("a flush");
            read(&keyspace, round, 200);
            // When the background is done: what the scans have come across may be on its way to the leaves, for long on a slow disk.
            let began = Instant::now();
            let cached = || {
                let memory = db.stats().memory;
                memory.cache + memory.records
            };
            while cached() < BUDGET / 100 * 75 && began.elapsed() < Duration::from_secs(300) {
                read_64(&keyspace, rng);
            }
            db.stats()
        });
        assert!(peak <= MOST, "round {round}: {peak} bytes with a budget of {BUDGET}:\n{stats}");
        let cache = stats.memory.cache + stats.memory.records;
        assert!(cache >= BUDGET / 100 * 75, "round {round}: a cache of {cache} of {BUDGET} bytes:\n{stats}");
    }
}

fn readers_beside_a_writer(path: &Path, before: u64, rng: &mut StdRng) {
    let (db, keyspace) = open(path);
    let (peak, stats) = peak_while(before, || {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut generation = 0;
                while !done.load(Relaxed) {
                    generation += 1;
                    std::thread::scope(|scope| {
                        for reader in 0..READERS {
                            let keyspace = &keyspace;
                            scope.spawn(move || read(keyspace, READERS * generation + reader, 10));
                        }
                    });
                }
            });
            overwrite(&db, &keyspace, RECORDS, rng);
            db.flush().expect("a flush");
            done.store(true, Relaxed);
        });
        // Nobody writes any more, and the cache has the queues' memory.
        (0..10).for_each(|turn| read(&keyspace, turn, 50));
        db.stats()
    });
    assert!(stats.writes.flushes > 5, "hardly anything happened:\n{stats}");
    // On top comes what readers have in their hands: 64 leaves, the buffers that they were read into, and the like again that
    // the allocator keeps for their threads.
    let most = MOST + READERS * (1 << 20);
    assert!(peak <= most, "{peak} bytes with a budget of {BUDGET}:\n{stats}");
    // And it is used: a cache that is never filled would keep any budget.
    assert!(peak >= BUDGET / 4 * 3, "{peak} bytes with a budget of {BUDGET}:\n{stats}");
}
