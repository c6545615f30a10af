//! Reads of one kind at a time, to be counted: gets of a record that is cached, of one whose leaf is, and beyond memory; `multi_get`s
//! beyond memory; scans in memory. What is measured is one function, `measured`, so that `valgrind --tool=callgrind` can be told to count
//! nothing else. Prints a line; asserts that all was found.
//!
//! `cargo bench -p sapwood --bench reads -- --help`

mod ground;
mod records;
mod users;

use clap::{Parser, ValueEnum};
use ground::Ground;
use rand::rngs::StdRng;
use rand::seq::index;
use rand::{Rng, SeedableRng};
use records::VALUE_LEN;
use sapwood::{Database, Durability, Keyspace};
use std::hint::black_box;
use std::panic::resume_unwind;
use std::time::Instant;
use users::key;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Records of a short scan.
const SHORT: usize = 100;

/// What a read costs, one kind of reads at a time
///
/// Loads records of 16 + 100 bytes in order, and opens the database again, so that nothing is in memory but what the kind of reads wants
/// there. Nothing works in the background, so counts of instructions are nearly the same in each run.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench reads --", after_help = EXAMPLES)]
struct Options {
    /// What is read
    kind: Kind,
    #[command(flatten)]
    ground: Ground<100_000, 64>,
    /// Calls that are measured
    #[arg(long, value_name = "N", default_value_t = 2000)]
    times: usize,
    /// Records of a scan, keys of a multi_get
    #[arg(long, value_name = "RECORDS", default_value_t = 64)]
    len: usize,
    /// Records that wait in the operation queue meanwhile, other than those that are read
    #[arg(long, value_name = "N", default_value_t = 0)]
    queued: u64,
    /// Threads that read, each its part of the calls
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
    /// Sleep while the disk reads, without looking for a while whether it is done: to compare, and to count instructions
    #[arg(long)]
    asleep: bool,
    /// Record how long the calls take, as `Builder::latencies`: to see what that costs
    #[arg(long)]
    latencies: bool,
}

const EXAMPLES: &str = "\\
Examples:
  cargo bench -p sapwood --bench reads -- record --times 2000000 --threads 2
  cargo bench -p sapwood --bench reads -- record --times 2000000 --latencies
  cargo bench -p sapwood --bench reads -- multi --records 1000000 --memory-mib 8
  cargo bench -p sapwood --bench reads -- cold --records 3000000 --memory-mib 40 --times 100000 --asleep
  valgrind --tool=callgrind --toggle-collect='reads::measured' target/release/deps/reads-* scan --len 100
  callgrind_annotate --inclusive=yes callgrind.out.*";

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Kind {
    /// Gets of records that were asked for before: all of them are in the cache of records
    Record,
    /// Gets of records that nobody has asked for, in leaves that scans have brought to memory; each record once
    Leaf,
    /// Gets at uniform keys; for more records than memory: one read each
    Cold,
    /// multi_gets of --len uniform keys; likewise
    Multi,
    /// Scans of --len records from uniform starts, all of it in memory
    Scan,
}

/// Says how many records were found.
fn read(keyspace: &Keyspace, kind: Kind, len: usize, keys: &[[u8; 16]]) -> sapwood::Result<usize> {
    let mut found = 0;
    match kind {
        Kind::Record | Kind::Leaf | Kind::Cold => {
            for key in keys {
                found += usize::from(black_box(keyspace.get(key)?).is_some());
            }
        }
        Kind::Multi => {
            for keys in keys.chunks(len) {
                found += black_box(keyspace.multi_get(keys)?).iter().flatten().count();
            }
        }
        Kind::Scan => {
            for from in keys {
                for item in keyspace.range(&from[..]..).take(len) {
                    black_box(item?);
                    found += 1;
                }
            }
        }
    }
    Ok(found)
}

/// All that is to be counted.
#[inline(never)]
fn measured(keyspace: &Keyspace, kind: Kind, len: usize, keys: &[[u8; 16]]) -> sapwood::Result<usize> {
    black_box(read(keyspace, kind, len, keys))
}

/// The calls of all threads.
fn by_threads(
    threads: usize,
    keyspace: &Keyspace,
    kind: Kind,
    len: usize,
    keys: &[[u8; 16]],
) -> sapwood::Result<usize> {
    if threads == 1 {
        return measured(keyspace, kind, len, keys);
    }
    let part = keys.len().div_ceil(threads).next_multiple_of(len);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            keys.chunks(part).map(|keys| scope.spawn(move || measured(keyspace, kind, len, keys))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).sum()
    })
}

fn main() -> Outcome {
    let Options { kind, ground, times, len, queued, threads, asleep, latencies } = Options::parse();
    let dir = ground.scratch()?;
    let open = || {
        let builder = Database::builder().memory(ground.memory()).background_threads(0);
        builder.busy_wait(!asleep).latencies(latencies).open(dir.path().join("db"))
    };
    let mut rng = StdRng::seed_from_u64(1);
    let db = open()?;
    let ingested = (0..ground.records).map(|number| (key(number), records::value(&mut rng)));
    db.keyspace("bench")?.ingest(ingested)?;
    db.close()?;

    let (db, records) = (open()?, ground.records as usize);
    let keyspace = db.keyspace("bench")?;
    let uniform = |rng: &mut StdRng, count: usize, below: usize| -> Vec<_> {
        (0..count).map(|_| key(rng.random_range(0..below) as u64)).collect()
    };
    let keys = match kind {
        Kind::Record => uniform(&mut rng, times.min(1000), records).into_iter().cycle().take(times).collect(),
        Kind::Leaf => index::sample(&mut rng, records, times.min(records))
            .into_iter()
            .map(|at| key(at as u64))
            .collect(),
        Kind::Cold => uniform(&mut rng, times, records),
        Kind::Multi => uniform(&mut rng, times * len, records),
        Kind::Scan => uniform(&mut rng, times, records.saturating_sub(len).max(1)),
    };
    // What is to be in memory comes there; of what is not, inner nodes.
    match kind {
        Kind::Record => drop(read(&keyspace, kind, len, &keys)?),
        Kind::Leaf | Kind::Scan => {
            // By short scans: long ones leave the cache alone.
            let starts: Vec<_> = (0..ground.records).step_by(SHORT / 2).map(key).collect();
            (0..2).try_for_each(|_| read(&keyspace, Kind::Scan, SHORT, &starts).map(drop))?;
        }
        Kind::Cold | Kind::Multi => {
            read(&keyspace, Kind::Cold, len, &uniform(&mut rng, 1000, records))?;
        }
    }
    let mut batch = db.batch();
    for _ in 0..queued {
        // Between two that are there.
        let above = [&key(rng.random_range(0..ground.records))[..], b"+"].concat();
        batch.insert(&keyspace, above, [0; VALUE_LEN]);
    }
    batch.durability(Durability::Buffered).commit()?;

    let (before, began) = (db.stats(), Instant::now());
    let found = by_threads(threads.into(), &keyspace, kind, len, &keys)?;
    let (micros, after) = (began.elapsed().as_secs_f64() * 1e6, db.stats());
    let calls = if kind == Kind::Multi { keys.len().div_ceil(len) } else { keys.len() };
    let wanted = if kind == Kind::Scan { calls * len } else { keys.len() };
    if found < wanted {
        return Err(format!("{found} of {wanted} records were found").into());
    }
    let each = |after: u64, before: u64| (after - before) as f64 / calls as f64;
    println!(
        "{calls} calls, {:.2} us each; {:.3} records and {:.3} nodes from the cache, {:.3} nodes from the device with {:.3} requests",
        micros / calls as f64,
        each(after.reads.record_hits, before.reads.record_hits),
        each(after.reads.cache_hits, before.reads.cache_hits),
        each(after.reads.cache_misses, before.reads.cache_misses),
        each(after.reads.requests, before.reads.requests),
    );
    Ok(())
}
