//! Measures what scans pay for log pieces, and how long: after zipfian and uniform updates beyond memory, short scans from
//! zipfian starts with few inserts among them (as YCSB's workload E), then scans of 100 from uniform starts, slice by slice of time; and
//! what scans cost whose nodes are all in memory, before and after `compact`. Prints a table; asserts nothing.
//!
//! `cargo bench -p sapwood --bench scans -- --help`

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
use sapwood::{Database, Keyspace};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use workload_e::{GAP, scan, scan_or_insert};
use zipfian::Zipfian;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What scans pay for log pieces, and how long
///
/// Loads records of 16 + 100 bytes in order, and overwrites as many at keys by Zipf's law and as many at uniform keys. Then short scans
/// with few inserts among them (as YCSB's workload E), and scans of 100 from uniform starts: in each slice of time, reads and log
/// pieces a scan. Scans whose nodes are all in memory come before that, and once more at the end, when all is in the leaves.
#[derive(Parser)]
#[command(
    bin_name = "cargo bench -p sapwood --bench scans --",
    after_help = "Example:\n  cargo bench -p sapwood --bench scans -- --dir /mnt/disk --seconds 60"
)]
struct Options {
    #[command(flatten)]
    ground: Ground<3_000_000, 40>,
    /// Seconds for each of the two kinds of scans
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    seconds: u64,
    /// Threads that scan and insert as YCSB's workload E
    #[arg(long, value_name = "N", default_value_t = 4)]
    threads: u64,
}

/// Writes `count` records, whose numbers `next` says.
fn write(
    db: &Database,
    keyspace: &Keyspace,
    count: u64,
    rng: &mut StdRng,
    mut next: impl FnMut(&mut StdRng) -> u64,
) -> Outcome {
    records::write(
        db,
        keyspace,
        count / records::BATCH,
        records::VALUE_LEN,
        rng,
        |rng| key(next(rng) * GAP),
        |_, _| {},
    )?;
    Ok(())
}

/// Runs `work` on some threads for so many seconds and prints what each slice of time came to. `work` says whether it
/// was a scan.
fn measure(
    what: &str,
    db: &Database,
    options: &Options,
    threads: u64,
    work: impl Fn(&mut StdRng) -> bool + Sync,
) {
    let (scans, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (scans, stop, work) = (&scans, &stop, &work);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(100 + thread);
                while !stop.load(Relaxed) {
                    scans.fetch_add(u64::from(work(&mut rng)), Relaxed);
                }
            });
        }
        let slice = (options.seconds / 8).max(1);
        for time in 1..=options.seconds / slice {
            let (began, before, scans_before) = (Instant::now(), db.stats(), scans.load(Relaxed));
            std::thread::sleep(Duration::from_secs(slice));
            let (after, count) = (db.stats(), (scans.load(Relaxed) - scans_before) as f64);
            let mib = |after: u64, before: u64| (after - before) as f64 / 1048576.0;
            println!(
                "{what} {:>3} s {:>7.0} scans/s, each {:.2} psyncs, {:.2} requests, {:.2} pieces, {:.1} KiB; written {:.1} MiB, of it collector {:.1}; {} pieces, space {:.2} x live",
                time * slice,
                count / began.elapsed().as_secs_f64(),
                (after.reads.psync_groups - before.reads.psync_groups) as f64 / count,
                (after.device.reads - before.device.reads) as f64 / count,
                (after.reads.pieces_scanned - before.reads.pieces_scanned) as f64 / count,
                mib(after.reads.bytes, before.reads.bytes) * 1024.0 / count,
                mib(after.writes.data_bytes, before.writes.data_bytes),
                mib(after.writes.collected_bytes, before.writes.collected_bytes),
                after.space.log_pieces,
                after.space.amplification,
            );
        }
        stop.store(true, Relaxed);
    });
}

/// Scans of 100 whose nodes are all in memory, by one thread.
fn in_memory(what: &str, keyspace: &Keyspace, records: u64) {
    let mut rng = StdRng::seed_from_u64(7);
    let mut next = || scan(keyspace, records / 2 + rng.random_range(0..5000), 100);
    (0..2000).for_each(|_| next());
    let began = Instant::now();
    (0..20_000).for_each(|_| next());
    let micros = began.elapsed().as_secs_f64() * 1e6 / 20_000.0;
    println!("in memory, {what}: {micros:.1} us a scan of 100");
}

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let db = Database::builder().memory(ground.memory()).open(dir.path().join("db"))?;
    let keyspace = db.keyspace("bench")?;
    let mut rng = StdRng::seed_from_u64(1);
    let (records, zipfian) = (ground.records, Zipfian::new(ground.records));
    let mut at = 0;
    write(&db, &keyspace, records, &mut rng, |_| {
        at += 1;
        at - 1
    })?;
    write(&db, &keyspace, records, &mut rng, |rng| zipfian.number(rng))?;
    write(&db, &keyspace, records, &mut rng, |rng| rng.random_range(0..records))?;
    db.flush()?;
    let space = db.stats().space;
    println!(
        "{records} records of 116 bytes, {} MiB of memory; {} pieces, logged {:.2} of live, space {:.2} x live",
        ground.memory_mib,
        space.log_pieces,
        space.logged as f64 / space.live as f64,
        space.amplification
    );
    in_memory("with log pieces", &keyspace, records);
    measure("zipfian", &db, &options, options.threads, |rng| {
        scan_or_insert(&db, &keyspace, &zipfian, records::VALUE_LEN, rng)
    });
    measure("uniform", &db, &options, 1, |rng| {
        scan(&keyspace, rng.random_range(0..records), 100);
        true
    });
    db.compact()?;
    in_memory("cleansed", &keyspace, records);
    Ok(())
}
