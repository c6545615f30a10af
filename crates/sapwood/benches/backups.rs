//! Measures what a backup copies in a second while nobody writes, against what the device gives: to a target that keeps nothing, to a
//! directory, the next one on top of it, and the restore. Compares the copy with the database.
//!
//! `cargo bench -p sapwood --bench backups -- --help`

mod alone;
mod ground;
mod numbered;
mod records;

use alone::read_alone;
use clap::Parser;
use ground::Ground;
use numbered::key;
use sapwood::Database;
use sapwood::backup::{Directory, Restore, StreamWriter};
use std::time::Instant;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What a backup gives of the device
///
/// Rates in bytes of segments a second. The device is read alone as a backup reads it, with requests of 1 MiB, two at a time, past the page
/// cache.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench backups --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<10_000_000, 128>,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench backups -- --dir /mnt/disk
  cargo bench -p sapwood --bench backups -- --records 50000000 --memory-mib 256";

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let path = dir.path().join("db");
    let db = Database::builder().memory(ground.memory()).open(&path)?;
    let records = db.keyspace("records")?;
    records.ingest((0..ground.records).map(|number| (key(number), [number as u8; 100])))?;
    db.close()?;
    let device = read_alone(&path, "data")?;
    let tell = |what: &str, rate: f64| {
        println!("{what:34} {:>8.0} MiB/s  {:.2} of the device", rate / f64::from(1 << 20), rate / device);
    };
    tell("the device, read alone", device);
    let db = Database::builder().memory(ground.memory()).open(&path)?;
    let began = Instant::now();
    let taken = db.backup().run(&StreamWriter::new(std::io::sink()))?;
    tell("a backup that goes nowhere", taken.copied as f64 / began.elapsed().as_secs_f64());
    let target = Directory::open(dir.path().join("backups"))?;
    let began = Instant::now();
    let first = db.backup().run(&target)?;
    tell("a backup to a directory there", first.copied as f64 / began.elapsed().as_secs_f64());
    let began = Instant::now();
    let second = db.backup().run(&target)?;
    println!("the next one copies {} bytes in {:.2} s", second.copied, began.elapsed().as_secs_f64());
    let began = Instant::now();
    Restore::from(&target).into_directory(dir.path().join("copy"))?;
    tell("its restore", first.copied as f64 / began.elapsed().as_secs_f64());
    let copy = Database::builder().memory(ground.memory()).open(dir.path().join("copy"))?;
    let (one, other) = (db.keyspace("records")?, copy.keyspace("records")?);
    let is_same = one
        .iter()
        .zip(other.iter())
        .try_fold(0, |count, (one, other)| Ok::<_, sapwood::Error>(count + u64::from(one? == other?)))?;
    assert_eq!(is_same, ground.records, "the copy is the database");
    Ok(())
}
