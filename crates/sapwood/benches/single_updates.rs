//! Measures what single updates cost the threads that make them: threads that overwrite one record a commit, buffered, at uniform
//! keys, on a database that was loaded in order. Prints a table; asserts nothing. It is also what to count system calls of.
//!
//! `cargo bench -p sapwood --bench single_updates -- --help`

mod ground;
mod numbered;
mod processor;
mod records;

use clap::Parser;
use ground::Ground;
use numbered::key;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What single updates cost the threads that make them
///
/// Loads records of 16 + 100 bytes in order; then threads overwrite one record a commit, buffered, at uniform keys. Told: updates a
/// second, nanoseconds of processor an update in these threads, writes and bytes of log an
/// update, and how much of their time the threads spent in calls of more than a millisecond.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench single_updates --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<1_000_000, 128>,
    /// Threads that update
    #[arg(long, value_name = "N", default_value_t = 4)]
    threads: u64,
    /// Updates of each thread
    #[arg(long, value_name = "N", default_value_t = 500_000)]
    updates: u64,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench single_updates -- --dir /mnt/disk --threads 1
  strace -f -c target/release/deps/single_updates-* --updates 100000
System calls of the updates alone are the difference of two counts with different --updates.";

/// Calls that took more than a millisecond.
#[derive(Default)]
struct Stalls {
    total: Duration,
    longest: Duration,
}

impl Stalls {
    fn note(&mut self, took: Duration) {
        if took > Duration::from_millis(1) {
            self.total += took;
        }
        self.longest = self.longest.max(took);
    }
}

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let db = Database::builder().memory(ground.memory()).open(dir.path().join("db"))?;
    let keyspace = db.keyspace("bench")?;
    let mut rng = StdRng::seed_from_u64(1);
    let mut at = 0;
    let mut next = |_: &mut StdRng| {
        at += 1;
        key(at - 1)
    };
    records::write(
        &db,
        &keyspace,
        ground.records / records::BATCH,
        records::VALUE_LEN,
        &mut rng,
        &mut next,
        |_, _| {},
    )?;
    db.flush()?;
    let (before, began) = (db.stats(), Instant::now());
    let spent = std::thread::scope(|scope| {
        let updaters = (0..options.threads).map(|thread| {
            let (keyspace, options) = (keyspace.clone(), &options);
            let db = db.clone();
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(2 + thread);
                let before = processor::nanos();
                let mut stalls = Stalls::default();
                for _ in 0..options.updates {
                    let began = Instant::now();
                    let mut batch = db.batch();
                    let number = rng.random_range(0..ground.records);
                    batch.insert(&keyspace, key(number), records::value(&mut rng));
                    batch.durability(Durability::Buffered).commit()?;
                    stalls.note(began.elapsed());
                }
                let spent = processor::nanos().zip(before).map(|(after, before)| after - before);
                sapwood::Result::Ok((spent, stalls))
            })
        });
        let updaters: Vec<_> = updaters.collect();
        updaters.into_iter().map(|updater| updater.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    })?;
    let (took, after) = (began.elapsed().as_secs_f64(), db.stats());
    let updates = (options.threads * options.updates) as f64;
    let (spent, stalls): (Vec<_>, Vec<Stalls>) = spent.into_iter().unzip();
    let spent = spent.into_iter().flatten().sum::<u64>() as f64;
    let stalled: f64 = stalls.iter().map(|stalls| stalls.total.as_secs_f64()).sum();
    let longest = stalls.iter().map(|stalls| stalls.longest).max().unwrap_or_default();
    println!(
        "{} threads, {} updates each: {:.0}/s, {:.0} ns of processor each in these threads; {:.3} writes each, {:.0} B of log each; {:.2} % of the time in calls of more than 1 ms, the longest {:.1} ms",
        options.threads,
        options.updates,
        updates / took,
        spent / updates,
        (after.device.writes - before.device.writes) as f64 / updates,
        (after.writes.log_bytes - before.writes.log_bytes) as f64 / updates,
        100.0 * stalled / (took * options.threads as f64),
        longest.as_secs_f64() * 1e3,
    );
    Ok(())
}
