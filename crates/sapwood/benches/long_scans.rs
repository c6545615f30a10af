//! Measures what a range scan costs, by its length: time, CPU of the thread that scans, what is read and how much of it for
//! nothing. Records of 116 bytes from uniform starts, one thread, more data than memory; over cleansed leaves, over log pieces too, or as
//! a load in random order left them. Prints a table; asserts nothing.
//!
//! `cargo bench -p sapwood --bench long_scans -- --help`

mod coprime;
mod ground;
mod numbered;
mod processor;
mod records;

use clap::Parser;
use ground::Ground;
use numbered::key;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Keyspace};
use std::hint::black_box;
use std::time::Instant;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What a range scan costs, by its length
///
/// Scans of 10 to 100000 records of 16 + 100 bytes from uniform starts, one thread: microseconds, nanoseconds of processor a record,
/// and what a scan reads: parallel reads (psyncs), requests, nodes, KiB, log pieces. The cache is cold when they begin.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench long_scans --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<3_000_000, 40>,
    /// Updates at uniform keys before the scans: whole thousands; they leave log pieces
    #[arg(long, value_name = "N", default_value_t = 0)]
    updates: u64,
    /// Load in an order that looks like chance, which leaves log pieces too
    #[arg(long)]
    random: bool,
    /// Seconds for each length
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Scans of each length, in place of a time
    #[arg(long, value_name = "N")]
    scans: Option<u64>,
    /// Nothing is cleansed meanwhile: with --scans, counts are the same in each run
    #[arg(long)]
    still: bool,
    /// Begin within the first N records only; few of them are in memory after a while
    #[arg(long, value_name = "N")]
    within: Option<u64>,
    /// From the upper end down
    #[arg(long)]
    down: bool,
    /// This length only
    #[arg(long, value_name = "RECORDS")]
    len: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench long_scans -- --dir /mnt/disk --random
  cargo bench -p sapwood --bench long_scans -- --records 700000 --memory-mib 16 --still --scans 3000 --len 100";

/// Reads `len` records and returns how many there were.
fn scan(keyspace: &Keyspace, from: u64, len: u64, down: bool) -> u64 {
    let from = key(from);
    let mut found = 0;
    let mut range = if down { keyspace.range(..&from[..]) } else { keyspace.range(&from[..]..) };
    while found < len
        && let Some(record) = if down { range.next_back_ref() } else { range.next_ref() }
    {
        black_box(record.expect("reads"));
        found += 1;
    }
    found
}

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let open = |threads| {
        let builder = Database::builder().memory(ground.memory()).background_threads(threads);
        builder.open(dir.path().join("db"))
    };
    let db = open(1)?;
    let keyspace = db.keyspace("bench")?;
    let mut rng = StdRng::seed_from_u64(1);
    let records = ground.records;
    if options.random {
        // Each number once: a step that has no divisor in common with them.
        let step = coprime::step((records as f64 * 0.618) as u128, records).map_or(1, |step| step as u64);
        let mut at = 0;
        records::write(
            &db,
            &keyspace,
            records / records::BATCH,
            records::VALUE_LEN,
            &mut rng,
            |_| {
                at = (at + step) % records;
                key(at)
            },
            |_, _| {},
        )?;
    } else {
        keyspace.ingest((0..records).map(|number| (key(number), records::value(&mut rng))))?;
    }
    let mut rng = StdRng::seed_from_u64(2);
    let batches = options.updates / records::BATCH;
    records::write(
        &db,
        &keyspace,
        batches,
        records::VALUE_LEN,
        &mut rng,
        |rng| key(rng.random_range(0..records)),
        |_, _| {},
    )?;
    db.flush()?;
    // So that the cache is cold.
    drop((keyspace, db));
    let db = open(usize::from(!options.still))?;
    let keyspace = db.keyspace("bench")?;
    let space = db.stats().space;
    println!(
        "{records} records, {} MiB of memory, {} pieces of {:.1} KiB, {:.2} of what lives",
        ground.memory_mib,
        space.log_pieces,
        space.logged as f64 / 1024.0 / space.log_pieces.max(1) as f64,
        space.logged as f64 / space.live as f64
    );
    let lens = [10, 100, 300, 1000, 3000, 10_000, 30_000, 100_000];
    for len in options.len.map_or(lens.to_vec(), |len| vec![len]) {
        let mut rng = StdRng::seed_from_u64(len);
        let mut next =
            || scan(&keyspace, rng.random_range(0..options.within.unwrap_or(records)), len, options.down);
        next();
        let (began, cpu, before) = (Instant::now(), processor::nanos().unwrap_or(0), db.stats().reads);
        let (mut scans, mut found) = (0_u64, 0);
        while options
            .scans
            .map_or_else(|| began.elapsed().as_secs_f64() < options.seconds, |most| scans < most)
        {
            found += next();
            scans += 1;
        }
        let (micros, cpu, after) =
            (began.elapsed().as_secs_f64() * 1e6, processor::nanos().unwrap_or(0) - cpu, db.stats().reads);
        let each = |after: u64, before: u64| (after - before) as f64 / scans as f64;
        println!(
            "{len:>7} records: {:>9.1} us a scan, {:>6.1} ns of CPU a record; {:.2} psyncs, {:.2} requests, {:.2} nodes, {:.1} KiB, {:.2} pieces",
            micros / scans as f64,
            cpu as f64 / found as f64,
            each(after.psync_groups, before.psync_groups),
            each(after.requests, before.requests),
            each(after.cache_misses, before.cache_misses),
            each(after.bytes, before.bytes) / 1024.0,
            each(after.pieces_scanned, before.pieces_scanned),
        );
    }
    Ok(())
}
