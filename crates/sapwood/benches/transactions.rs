//! Measures transactions that read and write four records: by 1, 4 and 16 threads, at uniform keys and by Zipf's law, buffered
//! and durable; beside the same by threads that take a lock of their own around reads and a batch. Prints a table; asserts
//! that no update is lost.
//!
//! `cargo bench -p sapwood --bench transactions -- --help`

mod ground;
mod numbered;
mod records;
mod zipfian;

use clap::Parser;
use ground::Ground;
use numbered::key;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use zipfian::Zipfian;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What transactions cost
///
/// Each reads four records, adds one to the number in each, and writes them. Told: transactions a second, and how many had to
/// run again. "lock" is the same with a mutex of the program around four gets and a batch.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench transactions --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<1_000_000, 128>,
    /// Seconds of each part, of which there are two for each figure
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    seconds: u64,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench transactions -- --dir /mnt/disk";

/// Records in a transaction.
const KEYS: usize = 4;

fn raised(value: Option<&[u8]>) -> Vec<u8> {
    let mut value = value.map_or_else(|| vec![0; 100], <[u8]>::to_vec);
    let number = u64::from_le_bytes(value[..8].try_into().expect("eight bytes"));
    value[..8].copy_from_slice(&(number + 1).to_le_bytes());
    value
}

fn transact(db: &Database, ks: &Keyspace, keys: &[u64; KEYS], how: Durability, runs: &AtomicU64) -> Outcome {
    loop {
        runs.fetch_add(1, Relaxed);
        let mut tx = db.transaction()?;
        for number in keys {
            let value = raised(tx.get(ks, key(*number))?.as_deref());
            tx.insert(ks, key(*number), value)?;
        }
        tx.durability(how);
        match tx.commit() {
            Err(sapwood::Error::Conflict { .. }) => {}
            done => return Ok(done?),
        }
    }
}

/// More than there are threads: no two have the same seed.
const THREADS_MAX: u64 = 100;

fn with_lock(db: &Database, ks: &Keyspace, keys: &[u64; KEYS], how: Durability, lock: &Mutex<()>) -> Outcome {
    let _guard = lock.lock().expect("no panic");
    let mut batch = db.batch();
    for number in keys {
        batch.insert(ks, key(*number), raised(ks.get(key(*number))?.as_deref()));
    }
    Ok(batch.durability(how).commit()?)
}

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let db = Database::builder().memory(ground.memory()).open(dir.path().join("db"))?;
    let keyspace = db.keyspace("bench")?;
    keyspace.ingest((0..ground.records).map(|number| (key(number), [0; 100])))?;
    // So that the first part is like the others.
    keyspace.iter().try_for_each(|item| item.map(drop))?;
    let zipfian = Zipfian::new(ground.records);
    let (mut done_in_all, lock) = (0, Mutex::new(()));
    println!("durability  keys     threads  transactions/s  run again  with a lock/s");
    for how in [Durability::Buffered, Durability::Immediate] {
        for is_zipfian in [false, true] {
            for threads in [1, 4, 16] {
                // By turns, since the cache becomes warmer, once in each order; each with keys of its own, so that none reads
                // what the one before has brought into the cache.
                let rates = [(0, true), (1, false), (2, false), (3, true)].map(
                    |(part, by_transaction)| -> Result<(f64, f64), String> {
                        let (over, runs, began) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
                        let done: u64 = std::thread::scope(|scope| {
                            let all: Vec<_> = (0..threads)
                                .map(|thread| {
                                    let (db, ks, over, runs, lock) = (&db, &keyspace, &over, &runs, &lock);
                                    scope.spawn(move || {
                                        let mut rng = StdRng::seed_from_u64(part * THREADS_MAX + thread);
                                        let mut done = 0;
                                        while !over.load(Relaxed) {
                                            let mut keys = [0; KEYS];
                                            for index in 0..KEYS {
                                                keys[index] = loop {
                                                    let number = match is_zipfian {
                                                        true => zipfian.number(&mut rng),
                                                        false => rng.random_range(0..zipfian.records()),
                                                    };
                                                    if !keys[..index].contains(&number) {
                                                        break number;
                                                    }
                                                };
                                            }
                                            let outcome = match by_transaction {
                                                true => transact(db, ks, &keys, how, runs),
                                                false => with_lock(db, ks, &keys, how, lock),
                                            };
                                            outcome.map_err(|error| error.to_string())?;
                                            done += 1;
                                        }
                                        Ok::<u64, String>(done)
                                    })
                                })
                                .collect();
                            std::thread::sleep(Duration::from_secs(options.seconds));
                            over.store(true, Relaxed);
                            all.into_iter()
                                .map(|thread| thread.join().expect("no panic"))
                                .sum::<Result<u64, _>>()
                        })?;
                        done_in_all += done;
                        let again = runs.load(Relaxed).saturating_sub(done) as f64 / (done as f64).max(1.0);
                        Ok((done as f64 / began.elapsed().as_secs_f64(), again))
                    },
                );
                let [tx, locked, locked_again, tx_again] = rates;
                let ((tx, again), (locked, _)) = (tx?, locked?);
                let (tx, again) = tx_again.map(|(rate, more)| ((tx + rate) / 2.0, (again + more) / 2.0))?;
                let locked = locked_again.map(|(rate, _)| (locked + rate) / 2.0)?;
                println!(
                    "{:<11} {:<8} {threads:>7} {tx:>15.0} {:>8.2} % {locked:>14.0}",
                    format!("{how:?}"),
                    if is_zipfian { "zipfian" } else { "uniform" },
                    100.0 * again,
                );
            }
        }
    }
    let mut raised = 0;
    for item in keyspace.iter() {
        raised += u64::from_le_bytes(item?.1[..8].try_into()?);
    }
    assert_eq!(raised, done_in_all * KEYS as u64, "no update is lost");
    println!("{done_in_all} in all, no update lost");
    Ok(())
}
