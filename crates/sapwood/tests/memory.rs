//! The memory budget is kept: what the heap holds at most, counted by the allocator, while records are loaded, overwritten,
//! read and scanned at the same time.

use peak_alloc::PeakAlloc;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const BUDGET: u64 = 16 << 20;
/// Four times the budget.
const RECORDS: u64 = 600_000;
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

#[test]
fn the_heap_stays_within_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let before = HEAP.current_usage();
    let db = Database::builder().memory(BUDGET).open(dir.path().join("db")).unwrap();
    let keyspace = db.keyspace("records").unwrap();
    let mut rng = StdRng::seed_from_u64(1);
    let mut number = 0;
    write(&db, &keyspace, RECORDS / BATCH, &mut rng, |_| {
        number += 1;
        number - 1
    });
    let done = AtomicBool::new(false);
    let mut peak = 0;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rng = StdRng::seed_from_u64(2);
            let mut peak = 0;
            let until = |left: &mut u32| {
                *left -= u32::from(done.load(Relaxed));
                *left > 0
            };
            // Some more reading when nobody writes any more, and the cache has more room.
            let mut left = 500;
            while until(&mut left) {
                let from = rng.random_range(0..RECORDS - 100);
                assert!(keyspace.get(key(from)).unwrap().is_some());
                let keys: Vec<_> = (0..64).map(|_| key(rng.random_range(0..RECORDS))).collect();
                assert!(keyspace.multi_get(keys).unwrap().iter().all(Option::is_some));
                assert_eq!(keyspace.range(&key(from)[..]..).take(100).count(), 100);
                // Queues take their memory from the operating system, everything else from the heap.
                peak = peak.max(HEAP.current_usage() - before + db.stats().memory.queues as usize);
            }
            peak
        });
        write(&db, &keyspace, RECORDS / BATCH, &mut rng, |rng| rng.random_range(0..RECORDS));
        db.flush().unwrap();
        done.store(true, Relaxed);
        peak = reader.join().unwrap();
    });
    let stats = db.stats();
    assert!(stats.writes.flushes > 5, "hardly anything happened:\n{stats}");
    // The batches and answers of the caller are not the store's: half a MiB.
    let most = BUDGET as usize + (512 << 10);
    assert!(peak <= most, "{peak} bytes with a budget of {BUDGET}:\n{stats}");
    // And it is used: a cache that is never filled would keep any budget.
    assert!(peak >= BUDGET as usize * 3 / 4, "{peak} bytes with a budget of {BUDGET}:\n{stats}");
}
