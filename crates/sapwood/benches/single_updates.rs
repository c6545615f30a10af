//! Measures what single updates cost the threads that make them: threads that overwrite one record a commit, buffered, at uniform
//! keys, on a database that was loaded in order. Prints a table; asserts nothing. It is also what to count system calls of:
//! `strace -f -c` shows all of it, the difference of two counts of `--updates` that of the updates.
//!
//! `cargo bench -p sapwood --bench single_updates -- [--dir DIR] [--records N] [--memory-mib M] [--threads T] [--updates N]`

mod numbered;
mod processor;
mod records;

use numbered::key;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability};
use std::path::PathBuf;
use std::time::Instant;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

struct Options {
    dir: PathBuf,
    records: u64,
    memory: u64,
    threads: u64,
    /// Of each thread.
    updates: u64,
}

fn options() -> Options {
    let mut options = Options {
        dir: std::env::temp_dir(),
        records: 1_000_000,
        memory: 128 << 20,
        threads: 4,
        updates: 500_000,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.next()) {
            ("--dir", Some(dir)) => options.dir = dir.into(),
            ("--records", Some(n)) => options.records = n.parse().expect("a number"),
            ("--memory-mib", Some(n)) => options.memory = n.parse::<u64>().expect("a number") << 20,
            ("--threads", Some(n)) => options.threads = n.parse().expect("a number"),
            ("--updates", Some(n)) => options.updates = n.parse().expect("a number"),
            _ => {}
        }
    }
    options
}

fn main() -> Outcome {
    let options = options();
    let dir = tempfile::Builder::new().prefix("sapwood-bench").tempdir_in(&options.dir)?;
    let db = Database::builder().memory(options.memory).open(dir.path().join("db"))?;
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
        options.records / records::BATCH,
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
                for _ in 0..options.updates {
                    let mut batch = db.batch();
                    let number = rng.random_range(0..options.records);
                    batch.insert(&keyspace, key(number), records::value(&mut rng));
                    batch.durability(Durability::Buffered).commit()?;
                }
                sapwood::Result::Ok(processor::nanos().zip(before).map(|(after, before)| after - before))
            })
        });
        let updaters: Vec<_> = updaters.collect();
        updaters.into_iter().map(|updater| updater.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    })?;
    let (took, after) = (began.elapsed().as_secs_f64(), db.stats());
    let updates = (options.threads * options.updates) as f64;
    let spent = spent.into_iter().flatten().sum::<u64>() as f64;
    println!(
        "{} threads, {} updates each: {:.0}/s, {:.0} ns of processor each in these threads; {:.3} writes each, {:.0} B of log each",
        options.threads,
        options.updates,
        updates / took,
        spent / updates,
        (after.device.writes - before.device.writes) as f64 / updates,
        (after.writes.log_bytes - before.writes.log_bytes) as f64 / updates,
    );
    Ok(())
}
