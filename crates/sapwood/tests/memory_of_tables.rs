//! The memory budget is kept where the data is much larger: tables are then a fifth of the budget, and every flush changes all
//! of them. Their parts live long among much that does not. When each portion's tables came from a thread of its own, such a
//! process took 54 MiB, and not 32. A process of its own: what another test has left in the allocator would count here.
#![cfg(target_os = "linux")]

mod resident;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use resident::{peak_while, resident};
use sapwood::{Database, Durability};

const BUDGET: u64 = 32 << 20;
/// A tenth more, for the allocator.
const MOST: u64 = BUDGET / 10 * 11;
/// Of 116 bytes each: twenty times the budget.
const RECORDS: u64 = 5_600_000;
const BATCH: u64 = 500;
/// Has no divisor in common with the number of records, so records are loaded in an order that is as good as random.
const STEP: u64 = 3_399_997;

#[test]
fn twenty_times_the_budget_takes_no_more_than_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let before = resident();
    let mut rng = StdRng::seed_from_u64(2);
    let (peak, stats) = peak_while(before, || {
        let db = Database::builder().memory(BUDGET).open(dir.path().join("db")).expect("opens");
        let keyspace = db.keyspace("records").expect("a keyspace");
        let mut number = 0;
        // All of them once, and then some again.
        for _ in 0..(RECORDS + RECORDS / 10) / BATCH {
            let mut batch = db.batch();
            for _ in 0..BATCH {
                number = (number + STEP) % RECORDS;
                let mut value = [0; 100];
                rng.fill(&mut value[..]);
                batch.insert(&keyspace, [number, number ^ STEP].map(u64::to_be_bytes).concat(), value);
            }
            batch.durability(Durability::Buffered).commit().expect("a commit");
        }
        db.stats()
    });
    let tables = stats.memory.mapping_table + stats.memory.log_areas;
    assert!(tables > BUDGET / 8, "tables of {tables} bytes:\n{stats}");
    assert!(peak <= MOST, "{peak} bytes with a budget of {BUDGET}:\n{stats}");
}
