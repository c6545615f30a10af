//! The memory budget is kept: what the process has resident at most, while records are loaded, overwritten, read and scanned by
//! threads that come and go.
#![cfg(target_os = "linux")]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const BUDGET: u64 = 32 << 20;
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

/// Bytes of memory that this process has of its own.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("RssAnon");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// What a reader does.
fn read(keyspace: &Keyspace, seed: u64, turns: u32) {
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..turns {
        let from = rng.random_range(0..RECORDS - 100);
        assert!(keyspace.get(key(from)).expect("reads").is_some());
        let keys: Vec<_> = (0..64).map(|_| key(rng.random_range(0..RECORDS))).collect();
        assert!(keyspace.multi_get(keys).expect("reads").iter().all(Option::is_some));
        assert_eq!(keyspace.range(&key(from)[..]..).take(100).count(), 100);
    }
}

#[test]
fn the_process_stays_within_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let before = resident();
    let db = Database::builder().memory(BUDGET).open(dir.path().join("db")).unwrap();
    let keyspace = db.keyspace("records").unwrap();
    let mut rng = StdRng::seed_from_u64(1);
    let mut number = 0;
    write(&db, &keyspace, RECORDS / BATCH, &mut rng, |_| {
        number += 1;
        number - 1
    });
    let done = AtomicBool::new(false);
    let mut peak = std::thread::scope(|scope| {
        let readers = scope.spawn(|| {
            let (mut peak, mut generation) = (0, 0);
            while !done.load(Relaxed) {
                generation += 1;
                std::thread::scope(|scope| {
                    for reader in 0..READERS {
                        let keyspace = &keyspace;
                        scope.spawn(move || read(keyspace, READERS * generation + reader, 10));
                    }
                });
                peak = peak.max(resident());
            }
            peak
        });
        write(&db, &keyspace, RECORDS / BATCH, &mut rng, |rng| rng.random_range(0..RECORDS));
        db.flush().unwrap();
        done.store(true, Relaxed);
        readers.join().unwrap()
    });
    // Nobody writes any more, and the cache has the queues' memory.
    for turn in 0..10 {
        read(&keyspace, turn, 50);
        peak = peak.max(resident());
    }
    let peak = peak - before;
    let stats = db.stats();
    assert!(stats.writes.flushes > 5, "hardly anything happened:\n{stats}");
    // On top come an eighth for the allocator, and what a reader has in its hands: 64 leaves, the buffers that they were read
    // into, and the like again that the allocator keeps for its thread.
    let most = BUDGET / 8 * 9 + READERS * (1 << 20);
    assert!(peak <= most, "{peak} bytes with a budget of {BUDGET}:\n{stats}");
    // And it is used: a cache that is never filled would keep any budget.
    assert!(peak >= BUDGET / 4 * 3, "{peak} bytes with a budget of {BUDGET}:\n{stats}");
}
