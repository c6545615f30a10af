//! Measures two aims: what an uncached get reads while others update without pause, and how long puts take with flushing all the time
//! beside what they take when nothing is flushed. Data beyond memory, loaded at random and overwritten once. Prints tables and
//! says which aims are met; asserts nothing.
//!
//! `cargo bench -p sapwood --bench under_load -- --help`

mod ground;
mod loaded;
mod numbered;
mod records;

use clap::{Parser, ValueEnum};
use ground::Ground;
use loaded::gets::{self, Updates};
use loaded::puts::{self, KINDS, Measured};
use loaded::requests::Counted;
use numbered::key;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use records::{BATCH, VALUE_LEN};
use sapwood::{Database, Keyspace};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Gets and puts under full load, beside the aims for them
///
/// Loads records of 16 + 100 bytes at random and overwrites as many at uniform keys. Then
///
/// gets: one thread gets uniform keys while others update single records, buffered: without pause, then at a fixed rate, and not at all after
/// the database was closed and opened. Told for each second: how many gets asked the device for anything (the others were answered by
/// queues and caches), how many of these more than once, and requests each; and how much of its time it stood in long calls. Aim: at most 1.15, whatever is read.
///
/// puts: single ones by one thread and by four, and batches of 1000 by one, buffered; durable ones by one thread and by 16. Each into an empty
/// database whose queue is never full, so that there is no more than the log and the queue ("log alone"), then into the loaded one ("full load"; durable
/// ones beside a thread that puts batches of 1000, buffered, without pause, since they alone hardly make a flush due, and with the log alone once
/// more beside as many of these a second: "log, load"). Each thread makes one put after
/// the other, so that a stall is one slow put, whatever would have come meanwhile: the share of the time in long puts tells of it. Aims: p99.9 under full
/// load at most 5 times that of the log alone under the same, and no put above 100 ms.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench under_load --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<5_800_000, 128>,
    /// One half of it only
    #[arg(long, value_name = "WHAT")]
    only: Option<Half>,
    /// Seconds of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seconds: u64,
    /// Seconds before each measurement in which the same is done and not counted
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    warm_up: u64,
    /// Threads that update without pause while one gets; several numbers: one after the other
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u64).range(1..=1000))]
    updaters: Vec<u64>,
    /// Updates a second at the fixed rate
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Memory budget of the database that nothing is flushed from, in MiB; puts with the log alone end when a seventh of it is full
    #[arg(long, value_name = "MIB", default_value_t = 8192, value_parser = clap::value_parser!(u64).range(64..=16384))]
    alone_mib: u64,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench under_load -- --dir /mnt/disk
  cargo bench -p sapwood --bench under_load -- --only gets --updaters 1 --seconds 60
  cargo bench -p sapwood --bench under_load -- --records 350000 --memory-mib 8 --seconds 1 --warm-up 1 --alone-mib 512";

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Half {
    /// What gets read
    Gets,
    /// How long puts take
    Puts,
}

/// How long the same is done, in all measurements.
#[derive(Clone, Copy)]
struct Times {
    warm_up: Duration,
    seconds: u64,
}

fn open(path: &Path, options: &Options) -> Outcome<(Database, Keyspace)> {
    let db = Database::builder().memory(options.ground.memory()).open_on(Arc::new(Counted::open(path)?))?;
    let keyspace = db.keyspace("bench")?;
    Ok((db, keyspace))
}

/// Loads all records at random, and overwrites as many.
fn prepare(db: &Database, keyspace: &Keyspace, records: u64) -> Outcome {
    let mut rng = StdRng::seed_from_u64(1);
    let mut order: Vec<u32> = (0..u32::try_from(records)?).collect();
    order.shuffle(&mut rng);
    let mut order = order.into_iter();
    let batches = records / BATCH;
    let began = Instant::now();
    let next = |_: &mut StdRng| key(order.next().map_or(0, u64::from));
    records::write(db, keyspace, batches, VALUE_LEN, &mut rng, next, |_, _| {})?;
    println!("loaded at random in {:.1} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    let next = |rng: &mut StdRng| key(rng.random_range(0..records));
    records::write(db, keyspace, batches, VALUE_LEN, &mut rng, next, |_, _| {})?;
    let space = db.stats().space;
    println!(
        "overwritten once in {:.1} s; {:.2} of what lives are log pieces",
        began.elapsed().as_secs_f64(),
        space.logged as f64 / space.live as f64
    );
    Ok(())
}

/// Says whether a figure is at most what is wanted.
fn verdict(figure: f64, most: f64) -> &'static str {
    if figure <= most { "met" } else { "missed" }
}

fn measure_gets(path: &Path, options: &Options, times: Times) -> Outcome<Vec<String>> {
    let records = options.ground.records;
    let (mut db, mut keyspace) = open(path, options)?;
    let steady = options.updaters.iter().map(|threads| Updates::Steady(*threads));
    let mut verdicts = Vec::new();
    for updates in steady.chain([Updates::Paced(options.rate), Updates::None]) {
        if matches!(updates, Updates::None) {
            // Nothing is to be flushed when it is opened again.
            db.flush()?;
            drop(keyspace);
            db.close()?;
            (db, keyspace) = open(path, options)?;
        }
        let count = gets::measure(&db, &keyspace, records, updates, times)?;
        verdicts.push(match count.reads() {
            Some(reads) => format!(
                "{reads:.3} reads an uncached get, {updates}; aim: {} or less: {}",
                gets::AIM,
                verdict(reads, gets::AIM)
            ),
            None => format!("no get was uncached, {updates}: more records, or less memory"),
        });
    }
    drop(keyspace);
    db.close()?;
    Ok(verdicts)
}

fn measure_puts(dir: &Path, path: &Path, options: &Options, times: Times) -> Outcome<Vec<String>> {
    let (records, memory) = (options.ground.records, options.alone_mib << 20);
    let mut verdicts = Vec::new();
    Measured::head();
    for kind in KINDS {
        let alone = |beside| -> Outcome<Measured> {
            // As everybody opens one.
            let empty = dir.join("alone");
            let db = Database::builder().memory(memory).open(&empty)?;
            let alone = puts::alone(&db, memory, (kind, beside), records, times)?;
            db.close()?;
            std::fs::remove_dir_all(&empty)?;
            Ok(alone)
        };
        let single = alone(None)?;
        single.tell(kind.name, "log alone");
        let db = Database::builder().memory(options.ground.memory()).open(path)?;
        let keyspace = db.keyspace("bench")?;
        let loaded = puts::loaded(&db, &keyspace, kind, records, times)?;
        drop(keyspace);
        db.close()?;
        // As many beside them as under full load, since without a flush they would be many more.
        let same = kind.beside().map(|beside| alone(Some((beside, loaded.beside)))).transpose()?;
        if let Some(same) = &same {
            same.tell(kind.name, "log, load");
        }
        loaded.tell(kind.name, "full load");
        let alone = same.as_ref().unwrap_or(&single);
        let (ratio, longest) = (loaded.p999() / alone.p999(), loaded.longest_ms());
        let under = same.as_ref().map_or(String::new(), |_| {
            format!(" under the same load ({:.1} x without it)", loaded.p999() / single.p999())
        });
        let note = match (alone.flushes.max(single.flushes), loaded.flushes) {
            (1.., _) => " (says nothing: something was flushed beside the log alone; more --alone-mib)",
            (0, 0) => " (says nothing: nothing was flushed, so this was no full load; more --seconds)",
            (0, 1..) => "",
        };
        verdicts.push(format!(
            "{}: p99.9 {ratio:.1} x that of the log alone{under}; aim: {} or less: {}; longest {longest:.1} ms; aim: {} or less: {}{note}",
            kind.name,
            puts::AIM,
            verdict(ratio, puts::AIM),
            puts::STALL_AIM_MS,
            verdict(longest, puts::STALL_AIM_MS),
        ));
    }
    Ok(verdicts)
}

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let times = Times { warm_up: Duration::from_secs(options.warm_up), seconds: options.seconds };
    let dir = ground.scratch()?;
    let path = dir.path().join("db");
    println!(
        "{} records of 116 bytes = {:.1} x memory ({} MiB), in {}",
        ground.records,
        (ground.records * 116) as f64 / ground.memory() as f64,
        ground.memory_mib,
        ground.dir.display()
    );
    let (db, keyspace) = open(&path, &options)?;
    prepare(&db, &keyspace, ground.records)?;
    drop(keyspace);
    db.close()?;
    let mut verdicts = Vec::new();
    if options.only != Some(Half::Puts) {
        verdicts.extend(measure_gets(&path, &options, times)?);
    }
    if options.only != Some(Half::Gets) {
        verdicts.extend(measure_puts(dir.path(), &path, &options, times)?);
    }
    println!("\n{}", verdicts.join("\n"));
    Ok(())
}
