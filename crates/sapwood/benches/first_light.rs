//! Measures what the README claims: one multi_get against single gets and against the device itself, parallel range scan
//! against leaf by leaf, bytes written by a sorted load, durable puts, space after overwriting. Prints a table; asserts nothing.
//!
//! `cargo bench -p sapwood --bench first_light -- --help`

mod ground;
mod records;
mod users;

use clap::Parser;
use ground::Ground;
use psync::{Access, AlignedBuffer, Device, Disk, DiskOptions, Read, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use records::{BATCH, VALUE_LEN, value};
use sapwood::Database;
use std::path::Path;
use std::time::Instant;
use users::key;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What the README claims
///
/// Records of 16 + 100 bytes: a sorted load, cold gets and multi_gets of 64 beside the device itself at the same depths, a scan of a
/// million records in parallel and leaf by leaf, three rounds of each; then durable puts by one thread and by 16, and space while all is
/// overwritten ten times.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench first_light --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<3_000_000, 32>,
    /// Neither durable puts nor overwriting
    #[arg(long)]
    reads_only: bool,
    /// Nothing but durable puts, N times each
    #[arg(long, value_name = "N", conflicts_with = "reads_only")]
    puts_only: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench first_light -- --dir /mnt/disk
  cargo bench -p sapwood --bench first_light -- --dir /mnt/disk --puts-only 12";

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let path = dir.path().join("db");
    println!(
        "{} records of 116 bytes, memory {} MiB, in {}",
        ground.records,
        ground.memory_mib,
        ground.dir.display()
    );
    if let Some(rounds) = options.puts_only {
        return (0..rounds).try_for_each(|n| durable_puts(&dir.path().join(format!("puts-{n}")), &options));
    }
    sorted_load(&path, &options)?;
    point_reads(dir.path(), &path, &options)?;
    range_scans(&path, &options)?;
    if !options.reads_only {
        durable_puts(&dir.path().join("puts"), &options)?;
        overwrites(&dir.path().join("overwritten"), &options)?;
    }
    if let Some(peak) = peak_memory() {
        println!(
            "peak memory      {} MiB of a process with a budget of {} MiB",
            peak >> 20,
            ground.memory_mib
        );
    }
    Ok(())
}

/// The most memory that this process had resident, in bytes.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

fn open(path: &Path, memory: u64, pio_max: usize) -> sapwood::Result<Database> {
    Database::builder().memory(memory).pio_max(pio_max).open(path)
}

fn sorted_load(path: &Path, options: &Options) -> Outcome {
    let db = open(path, options.ground.memory(), 64)?;
    let keyspace = db.keyspace("bench")?;
    let mut rng = StdRng::seed_from_u64(1);
    let began = Instant::now();
    let mut numbers = 0..;
    let next = |_: &mut StdRng| key(numbers.next().expect("there is always one more"));
    records::write(&db, &keyspace, options.ground.records / BATCH, VALUE_LEN, &mut rng, next, |_, _| {})?;
    db.flush()?;
    let seconds = began.elapsed().as_secs_f64();
    let user = options.ground.records as f64 * 116.0;
    let checked = db.check()?;
    let stats = db.stats();
    println!(
        "sorted load      {:>9.0} records/s; {:.2} bytes written a byte loaded (log {:.2}, data {:.2}), leaves {:.1} % full",
        options.ground.records as f64 / seconds,
        stats.device.bytes_written as f64 / user,
        stats.writes.log_bytes as f64 / user,
        stats.writes.data_bytes as f64 / user,
        checked.leaf_fill_percent
    );
    db.close()?;
    Ok(())
}

/// A gibibyte to measure the device itself with: the database's own file has holes.
fn make_scratch(dir: &Path) -> Outcome {
    let disk = Disk::open(dir, DiskOptions::default())?;
    let file = disk.open(SCRATCH, Access { write: true, create: true, direct: true, ..Access::default() })?;
    let mut buffer = AlignedBuffer::new(4 << 20);
    StdRng::seed_from_u64(8).fill(&mut buffer[..]);
    for index in 0..256u64 {
        disk.write(&[Write { file, offset: index * (4 << 20), data: &buffer }])?;
    }
    disk.sync(file)?;
    Ok(())
}

const SCRATCH: &str = "scratch";

/// Random reads a second at a depth.
fn device_rate(dir: &Path, depth: usize, len: usize, rounds: usize) -> Outcome<f64> {
    let disk = Disk::open(dir, DiskOptions::default())?;
    let file = disk.open(SCRATCH, Access { direct: true, ..Access::default() })?;
    let size = disk.len(file)?;
    let mut rng = StdRng::seed_from_u64(9);
    let mut buffers: Vec<_> = (0..depth).map(|_| AlignedBuffer::new(len)).collect();
    let began = Instant::now();
    for _ in 0..rounds {
        let mut set: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| {
                let step = if len.is_multiple_of(4096) { 4096 } else { 512 };
                let offset = rng.random_range(0..(size - len as u64) / step) * step;
                Read { file, offset, buffer }
            })
            .collect();
        disk.read(&mut set)?;
    }
    Ok((rounds * depth) as f64 / began.elapsed().as_secs_f64())
}

fn point_reads(dir: &Path, path: &Path, options: &Options) -> Outcome {
    make_scratch(dir)?;
    let mut rng = StdRng::seed_from_u64(2);
    let keys: Vec<_> = (0..64 * 400).map(|_| key(rng.random_range(0..options.ground.records))).collect();
    // In turn, so that a noisy neighbour hits all alike.
    for round in 1..=3 {
        let part = &keys[(round - 1) * 64 * 100..round * 64 * 100];
        let db = open(path, options.ground.memory(), 64)?;
        let keyspace = db.keyspace("bench")?;
        // Inner nodes into memory, by way of other keys: this is about leaves.
        for _ in 0..1000 {
            keyspace.get(key(rng.random_range(0..options.ground.records)))?;
        }
        let before = db.stats();
        let began = Instant::now();
        for key in part {
            assert!(keyspace.get(key)?.is_some());
        }
        let single = part.len() as f64 / began.elapsed().as_secs_f64();
        let between = db.stats();
        let began = Instant::now();
        for group in keys[round * 64 * 100..][..64 * 100].chunks(64) {
            assert!(keyspace.multi_get(group)?.iter().all(Option::is_some));
        }
        let multi = (64 * 100) as f64 / began.elapsed().as_secs_f64();
        let after = db.stats();
        drop((keyspace, db));
        let (one, many, pages) = (
            device_rate(dir, 1, 4096, 3000)?,
            device_rate(dir, 64, 4608, 100)?,
            device_rate(dir, 64, 4096, 100)?,
        );
        println!(
            "point reads {round}    get {single:>7.0}/s ({:.3} reads each), multi_get of 64 {multi:>7.0}/s ({:.3} reads a key): {:.2} x; \
             device: {one:.0}/s at depth 1, at depth 64 {pages:.0}/s for whole pages and {many:.0}/s for 4.5 KiB anywhere; \
             multi_get at {:.0} % and {:.0} % of these",
            (between.reads.requests - before.reads.requests) as f64 / part.len() as f64,
            (after.reads.requests - between.reads.requests) as f64 / (64.0 * 100.0),
            multi / single,
            100.0 * multi / pages,
            100.0 * multi / many
        );
    }
    Ok(())
}

fn range_scans(path: &Path, options: &Options) -> Outcome {
    let wanted = 1_000_000.min(options.ground.records);
    let scan = |pio_max| -> Outcome<(f64, u64, u64)> {
        let db = open(path, options.ground.memory(), pio_max)?;
        let keyspace = db.keyspace("bench")?;
        let before = db.stats();
        let began = Instant::now();
        let mut count = 0;
        for item in keyspace.range(key(options.ground.records / 10)..).take(wanted as usize) {
            let (found, _) = item?;
            assert_eq!(&found[..], key(options.ground.records / 10 + count));
            count += 1;
        }
        let seconds = began.elapsed().as_secs_f64();
        let after = db.stats();
        Ok((
            count as f64 / seconds,
            after.reads.requests - before.reads.requests,
            after.reads.psync_groups - before.reads.psync_groups,
        ))
    };
    for round in 1..=3 {
        let (leaf_by_leaf, single_reads, _) = scan(1)?;
        let (parallel, reads, groups) = scan(64)?;
        println!(
            "range scan {round}     leaf by leaf {leaf_by_leaf:>9.0} records/s ({single_reads} reads), prange {parallel:>9.0} records/s \
             ({reads} reads in {groups} groups): {:.2} x",
            parallel / leaf_by_leaf
        );
    }
    Ok(())
}

/// Single puts, each on the device before it returns.
fn durable_puts(path: &Path, options: &Options) -> Outcome {
    let db = open(path, options.ground.memory(), 64)?;
    let keyspace = db.keyspace("bench")?;
    for threads in [1u64, 16] {
        let before = db.stats().writes.log_syncs;
        let began = Instant::now();
        let each = 4000;
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let keyspace = &keyspace;
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(thread);
                    for _ in 0..each {
                        keyspace.insert(key(rng.random_range(0..1 << 30)), value(&mut rng)).expect("commits");
                    }
                });
            }
        });
        let puts = (each * threads) as f64;
        println!(
            "durable puts     {:>9.0}/s with {threads} thread(s), {:.1} puts a sync",
            puts / began.elapsed().as_secs_f64(),
            puts / (db.stats().writes.log_syncs - before) as f64
        );
    }
    Ok(())
}

/// How often all records are overwritten, of a load of a quarter of the records: enough that the collector is at work.
const ROUNDS: u32 = 10;

fn overwrites(path: &Path, options: &Options) -> Outcome {
    let records = options.ground.records / 4 / BATCH * BATCH;
    let db = open(path, options.ground.memory(), 64)?;
    let keyspace = db.keyspace("bench")?;
    let mut rng = StdRng::seed_from_u64(3);
    let mut worst: f64 = 0.0;
    // Of the updates alone: what the load writes is behind it before they begin.
    let mut loaded = 0;
    for round in 0..=ROUNDS {
        let began = Instant::now();
        let mut numbers = 0..;
        let next = |rng: &mut StdRng| {
            key(if round == 0 {
                numbers.next().expect("there is always one more")
            } else {
                rng.random_range(0..records)
            })
        };
        records::write(&db, &keyspace, records / BATCH, VALUE_LEN, &mut rng, next, |_, _| {
            let space = db.stats().space;
            if round > 0 {
                worst = worst.max(space.used as f64 / space.live as f64);
            }
        })?;
        if round == 0 {
            db.flush()?;
            loaded = db.stats().device.bytes_written;
        }
        if round % 5 == 0 {
            println!(
                "{records} records overwritten {round:>2} x, the last time {:>9.0} records/s; space {:.2} x what lives (at worst {worst:.2} x)",
                records as f64 / began.elapsed().as_secs_f64(),
                db.stats().space.amplification
            );
        }
    }
    db.flush()?;
    let on_disk: u64 = allocated(path)?;
    let live = db.stats().space.live;
    println!(
        "overwritten {ROUNDS} x: {:.2} x on disk, log and manifest included; {:.1} bytes written a byte of update",
        on_disk as f64 / live as f64,
        (db.stats().device.bytes_written - loaded) as f64 / (records as f64 * f64::from(ROUNDS) * 116.0)
    );
    Ok(())
}

#[cfg(unix)]
fn allocated(path: &Path) -> Outcome<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(path)? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

#[cfg(not(unix))]
fn allocated(path: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(path)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}
