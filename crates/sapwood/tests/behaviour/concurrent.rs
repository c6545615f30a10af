//! Readers among writers, flushes and collections: every snapshot shows whole batches only, all of one moment.

use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: u64 = 3;
const ACCOUNTS: u64 = 300;
const START: u64 = 1000;

fn account(writer: u64, number: u64) -> Vec<u8> {
    format!("{writer}-{number:05}").into_bytes()
}

fn balance(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("8 bytes"))
}

/// A balance with so much padding that the accounts fill many leaves and flushes are frequent.
fn value(balance: u64) -> Vec<u8> {
    let mut value = balance.to_le_bytes().to_vec();
    value.resize(300, balance as u8);
    value
}

#[test]
fn money_is_neither_made_nor_lost_in_any_snapshot() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder()
        .memory(4 << 20)
        .leaf_len(1024)
        .segment_span(1 << 20)
        .open_on(volume)
        .expect("opens");
    let keyspace = db.keyspace("accounts").expect("a keyspace");
    let mut batch = db.batch();
    for writer in 0..WRITERS {
        for number in 0..ACCOUNTS {
            batch.insert(&keyspace, account(writer, number), value(START));
        }
    }
    batch.commit().expect("commits");
    let total = WRITERS * ACCOUNTS * START;
    let over = AtomicBool::new(false);
    let (commits, snapshots) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, keyspace, over, commits) = (&db, &keyspace, &over, &commits);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(writer);
                let mut balances = vec![START; ACCOUNTS as usize];
                while !over.load(Ordering::Relaxed) {
                    let (from, to) = (rng.random_range(0..ACCOUNTS), rng.random_range(0..ACCOUNTS));
                    if from == to || balances[from as usize] == 0 {
                        continue;
                    }
                    let amount = rng.random_range(1..=balances[from as usize]);
                    balances[from as usize] -= amount;
                    balances[to as usize] += amount;
                    let mut batch = db.batch();
                    batch.insert(keyspace, account(writer, from), value(balances[from as usize]));
                    batch.insert(keyspace, account(writer, to), value(balances[to as usize]));
                    let durability = [Durability::None, Durability::Buffered, Durability::Immediate]
                        [rng.random_range(0..3)];
                    batch.durability(durability).commit().expect("commits");
                    commits.fetch_add(1, Ordering::Relaxed);
                    // What one has written, one reads.
                    let found = keyspace.get(account(writer, to)).expect("sound").expect("is there");
                    assert_eq!(balance(&found), balances[to as usize]);
                }
            });
        }
        for reader in 0..3u64 {
            let (db, keyspace, over, snapshots) = (&db, &keyspace, &over, &snapshots);
            scope.spawn(move || {
                let keys: Vec<_> = (0..WRITERS)
                    .flat_map(|writer| (0..ACCOUNTS).map(move |number| account(writer, number)))
                    .collect();
                while !over.load(Ordering::Relaxed) {
                    let sum: u64 = match reader {
                        0 => keyspace.iter().map(|item| balance(&item.expect("sound").1)).sum(),
                        1 => keyspace.iter().rev().map(|item| balance(&item.expect("sound").1)).sum(),
                        _ => {
                            let snapshot = db.snapshot();
                            let many = snapshot.multi_get(keyspace, &keys).expect("sound");
                            let sum = many.iter().flatten().map(|value| balance(value)).sum();
                            let again: u64 =
                                snapshot.iter(keyspace).map(|item| balance(&item.expect("sound").1)).sum();
                            assert_eq!(sum, again, "two readings of one snapshot");
                            sum
                        }
                    };
                    assert_eq!(sum, total, "a batch was seen half");
                    snapshots.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let began = Instant::now();
        let is_enough = || commits.load(Ordering::Relaxed) > 1000 && snapshots.load(Ordering::Relaxed) > 100;
        while began.elapsed() < Duration::from_secs(8)
            || (!is_enough() && began.elapsed() < Duration::from_secs(60))
        {
            std::thread::sleep(Duration::from_millis(100));
            db.check().expect("sound while others write");
        }
        over.store(true, Ordering::Relaxed);
    });
    let stats = db.stats();
    assert!(stats.writes.flushes > 3, "flushes ran meanwhile: {}", stats.writes.flushes);
    assert!(commits.into_inner() > 1000 && snapshots.into_inner() > 100);
    db.check().expect("sound");
}
