//! Measures what short scans of a database that was updated read and have written, in exact counts: leaves, log pieces, requests, and what is cleansed
//! for them. After a load in random order, zipfian updates and gets (as YCSB's workload A): scans from zipfian starts with few inserts among them (as workload
//! E), or from uniform starts. Prints a row for each so many scans; asserts nothing.
//!
//! `cargo bench -p sapwood --bench short_scans -- --help`

mod coprime;
mod ground;
mod numbered;
mod records;
mod workload_e;
mod zipfian;

use clap::Parser;
use ground::Ground;
use numbered::key;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Keyspace, Stats};
use workload_e::{GAP, scan, scan_or_insert};
use zipfian::Zipfian;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What short scans of a database that was updated read and have written
///
/// Loads records in random order, updates and gets keys by Zipf's law, and scans: for each so many scans, psyncs, requests, nodes, log pieces from
/// the device and from the cache, KiB read and written for each of them, and blocks that were cleansed for them.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench short_scans --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<1_120_000, 24>,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = records::VALUE_LEN)]
    value_len: usize,
    /// Updates after the load, and as many gets: whole thousands
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    updates: u64,
    /// Scans of a row
    #[arg(long, value_name = "N", default_value_t = 4000)]
    scans: u64,
    /// Rows
    #[arg(long, value_name = "N", default_value_t = 10)]
    rows: u64,
    /// Scans of so many records from uniform starts, in place of up to 100 from zipfian ones
    #[arg(long, value_name = "RECORDS")]
    uniform: Option<usize>,
    /// Threads that scan
    #[arg(long, value_name = "N", default_value_t = 4)]
    threads: u64,
    /// Nothing is flushed or cleansed while it scans: with one thread, counts are the same in each run
    #[arg(long)]
    still: bool,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench short_scans -- --dir /mnt/disk
  cargo bench -p sapwood --bench short_scans -- --still --threads 1 --value-len 16 --records 4000000 --updates 0 --uniform 100";

/// One scan from a uniform start, if the options say so, and otherwise a call of workload E. Says whether it was a scan.
fn call(db: &Database, keyspace: &Keyspace, options: &Options, zipfian: &Zipfian, rng: &mut StdRng) -> bool {
    let Some(len) = options.uniform else {
        return scan_or_insert(db, keyspace, zipfian, options.value_len, rng);
    };
    scan(keyspace, rng.random_range(0..options.ground.records), len);
    true
}

fn print_row(scans: u64, before: &Stats, after: &Stats, each_of: f64) {
    let (was, now) = (&before.reads, &after.reads);
    let each = |now: u64, was: u64| (now - was) as f64 / each_of;
    let kib = |now: u64, was: u64| each(now, was) / 1024.0;
    println!(
        "{scans:>7} scans, each {:.2} psyncs, {:.2} requests, {:.2} nodes, {:.2} pieces read and {:.2} cached, {:.1} KiB read, {:.1} KiB written (collector {:.1}); {} blocks cleansed for them and {} merged, spent {:.1} KiB a scan; {} pieces of {} layers, nodes {:.1} MiB, records {:.1} MiB",
        each(now.psync_groups, was.psync_groups),
        each(now.requests, was.requests),
        each(now.cache_misses, was.cache_misses),
        each(now.pieces_scanned, was.pieces_scanned),
        each(now.pieces_cached, was.pieces_cached),
        kib(now.bytes, was.bytes),
        kib(after.writes.data_bytes, before.writes.data_bytes),
        kib(after.writes.collected_bytes, before.writes.collected_bytes),
        after.writes.blocks_cleansed_for_scans - before.writes.blocks_cleansed_for_scans,
        after.writes.blocks_merged_for_scans - before.writes.blocks_merged_for_scans,
        kib(after.writes.price_for_scans, before.writes.price_for_scans),
        after.space.log_pieces,
        after.space.log_runs,
        after.memory.cache as f64 / 1048576.0,
        after.memory.records as f64 / 1048576.0,
    );
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
    let (records, zipfian) = (ground.records, Zipfian::new(ground.records));
    let step = coprime::step((records as f64 * 0.618) as u128, records).map_or(1, |step| step as u64);
    let mut at = 0;
    let in_turn = |_: &mut StdRng| {
        at = (at + step) % records;
        key(at * GAP)
    };
    let batches = records / records::BATCH;
    records::write(&db, &keyspace, batches, options.value_len, &mut rng, in_turn, |_, _| {})?;
    db.flush()?;
    let loaded = db.stats();
    let bytes = (records * (16 + options.value_len as u64)) as f64;
    println!(
        "{records} records of 16 + {} bytes, {} MiB of memory; loaded with {:.2} bytes of data written and {:.2} read a byte; {} pieces of {} layers, logged {:.2} of live",
        options.value_len,
        ground.memory_mib,
        loaded.writes.data_bytes as f64 / bytes,
        loaded.reads.bytes as f64 / bytes,
        loaded.space.log_pieces,
        loaded.space.log_runs,
        loaded.space.logged as f64 / loaded.space.live as f64,
    );
    drop((keyspace, db));
    let db = open(usize::from(!options.still))?;
    let keyspace = db.keyspace("bench")?;
    let batches = options.updates / records::BATCH;
    let zipfian_key = |rng: &mut StdRng| key(zipfian.number(rng) * GAP);
    records::write(&db, &keyspace, batches, options.value_len, &mut rng, zipfian_key, |_, _| {})?;
    for _ in 0..options.updates {
        keyspace.get(zipfian_key(&mut rng))?;
    }
    let first = db.stats();
    if options.updates > 0 {
        println!(
            "{} updates: {:.2} bytes of data written a byte; {} pieces of {} layers, logged {:.2} of live",
            options.updates,
            first.writes.data_bytes as f64 / (options.updates * (16 + options.value_len as u64)) as f64,
            first.space.log_pieces,
            first.space.log_runs,
            first.space.logged as f64 / first.space.live as f64,
        );
    }
    let mut before = first.clone();
    let share = options.scans / options.threads;
    for row in 0..options.rows {
        std::thread::scope(|scope| {
            for thread in 0..options.threads {
                let (db, keyspace, options, zipfian) = (&db, &keyspace, &options, &zipfian);
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(1000 * row + thread);
                    let mut scans = 0;
                    while scans < share {
                        scans += u64::from(call(db, keyspace, options, zipfian, &mut rng));
                    }
                });
            }
        });
        let after = db.stats();
        print_row((row + 1) * options.scans, &before, &after, options.scans as f64);
        before = after;
    }
    print_row(0, &first, &before, (options.rows * options.scans) as f64);
    Ok(())
}
