//! Gets of many tasks on one thread beside `multi_get`s of as many keys, beyond memory: by turns, at uniform keys. Prints a table;
//! asserts that all was found.
//!
//! `cargo bench -p sapwood --features async --bench tasks -- --help`

mod ground;
mod records;
mod users;

use clap::Parser;
use futures_executor::block_on;
use futures_util::future::try_join_all;
use ground::Ground;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Keyspace};
use std::panic::resume_unwind;
use std::time::{Duration, Instant};
use users::key;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What gets of tasks cost beside multi_get
///
/// Loads records of 16 + 100 bytes in order and opens the database again. Then by turns: multi_gets of --tasks keys; --tasks tasks on one
/// thread that get one key after the other; 1,000 such tasks; threads that get; one thread.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --features async --bench tasks --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<5_600_000, 64>,
    /// Tasks, and keys of a multi_get
    #[arg(long, value_name = "N", default_value_t = 64)]
    tasks: usize,
    /// Threads that get
    #[arg(long, value_name = "N", default_value_t = 16)]
    threads: usize,
    /// Seconds of each way in each turn
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Turns
    #[arg(long, value_name = "N", default_value_t = 3)]
    turns: usize,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --features async --bench tasks -- --dir /mnt/disk
  cargo bench -p sapwood --features async --bench tasks -- --records 1000000 --memory-mib 12 --seconds 1";

/// Until when keys are asked for, which ones, and how many were.
struct Asker {
    until: Instant,
    rng: StdRng,
    records: u64,
    count: u64,
}

impl Asker {
    fn new(time: Duration, seed: u64, records: u64) -> Self {
        Self { until: Instant::now() + time, rng: StdRng::seed_from_u64(seed), records, count: 0 }
    }

    fn next(&mut self) -> Option<[u8; 16]> {
        (Instant::now() < self.until).then(|| {
            self.count += 1;
            key(self.rng.random_range(0..self.records))
        })
    }
}

fn multi(keyspace: &Keyspace, asker: &mut Asker, len: usize) -> Outcome {
    while let Some(first) = asker.next() {
        let keys: Vec<_> = std::iter::once(first).chain((1..len).map_while(|_| asker.next())).collect();
        assert!(keyspace.multi_get(keys)?.iter().all(Option::is_some));
    }
    Ok(())
}

fn tasks(keyspace: &Keyspace, asker: &mut Asker, count: usize) -> Outcome {
    let asker = std::cell::RefCell::new(asker);
    let task = async || -> sapwood::Result<()> {
        loop {
            let Some(key) = asker.borrow_mut().next() else { return Ok(()) };
            assert!(keyspace.get_async(key).await?.is_some());
        }
    };
    block_on(try_join_all((0..count).map(|_| task())))?;
    Ok(())
}

fn threads(keyspace: &Keyspace, time: Duration, count: usize, records: u64) -> sapwood::Result<u64> {
    std::thread::scope(|scope| {
        let get = |seed| {
            move || {
                let mut asker = Asker::new(time, seed, records);
                while let Some(key) = asker.next() {
                    assert!(keyspace.get(key)?.is_some());
                }
                Ok(asker.count)
            }
        };
        let all: Vec<_> = (0..count as u64).map(|seed| scope.spawn(get(1000 + seed))).collect();
        all.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).sum()
    })
}

fn main() -> Outcome {
    let options = Options::parse();
    let (ground, records) = (&options.ground, options.ground.records);
    let dir = ground.scratch()?;
    let open = || Database::builder().memory(ground.memory()).open(dir.path().join("db"));
    let mut rng = StdRng::seed_from_u64(1);
    let db = open()?;
    db.keyspace("bench")?.ingest((0..records).map(|number| (key(number), records::value(&mut rng))))?;
    db.close()?;
    let db = open()?;
    let keyspace = db.keyspace("bench")?;
    let time = Duration::from_secs_f64(options.seconds);
    // Inner nodes come to memory.
    multi(&keyspace, &mut Asker::new(time, 0, records), options.tasks)?;

    println!("gets a second of {records} records, {} MiB of memory", ground.memory_mib);
    let names = [
        format!("multi_get of {}", options.tasks),
        format!("{} tasks", options.tasks),
        "1000 tasks".to_owned(),
        format!("{} threads", options.threads),
        "one thread".to_owned(),
    ];
    let mut rates = vec![Vec::new(); names.len()];
    for turn in 0..options.turns as u64 {
        for (way, rates) in rates.iter_mut().enumerate() {
            let mut asker = Asker::new(time, turn * 10 + way as u64, records);
            let began = Instant::now();
            match way {
                0 => multi(&keyspace, &mut asker, options.tasks)?,
                1 => tasks(&keyspace, &mut asker, options.tasks)?,
                2 => tasks(&keyspace, &mut asker, 1000)?,
                3 => asker.count = threads(&keyspace, time, options.threads, records)?,
                _ => asker.count = threads(&keyspace, time, 1, records)?,
            }
            rates.push(asker.count as f64 / began.elapsed().as_secs_f64());
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let base = median(&mut rates[0]);
    for (name, rates) in names.iter().zip(&mut rates) {
        let rate = median(rates);
        println!("{name:20} {rate:>10.0}   {:.2} of multi_get", rate / base);
    }
    Ok(())
}
