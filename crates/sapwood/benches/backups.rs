//! Measures what a backup copies in a second while nobody writes, against what the device gives: to a target that keeps nothing, to a
//! directory, the next one on top of it, and the restore. Compares the copy with the database. Then what keeping changes costs a writer, and how
//! fast the log is archived and a moment restored.
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
use sapwood::backup::{Directory, Point, Restore, StreamWriter};
use sapwood::{Database, Durability};
use std::path::Path;
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
    drop((one, other, copy, records));
    db.close()?;
    for turn in 0..4 {
        puts(ground, &dir.path().join(format!("puts {turn}")), turn % 2 == 1)?;
    }
    archive(ground, dir.path())
}

/// Single buffered puts a second, with changes kept and without.
fn puts(ground: &Ground<10_000_000, 128>, path: &Path, keeps: bool) -> Outcome {
    let kept = if keeps { 8 << 30 } else { 0 };
    let db = Database::builder().memory(ground.memory()).keep_changes(kept).open(path)?;
    let records = db.keyspace("records")?.with_durability(Durability::Buffered);
    let count = ground.records / 5;
    let began = Instant::now();
    (0..count).try_for_each(|number| records.insert(key(number * 7919 % count), [number as u8; 100]))?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    println!("puts {:29} {rate:>8.0} a second", if keeps { "with changes kept" } else { "without" });
    drop(records);
    db.close()?;
    Ok(std::fs::remove_dir_all(path)?)
}

/// What is written between two backups: how fast it is archived, and how fast a moment of it comes back.
fn archive(ground: &Ground<10_000_000, 128>, dir: &Path) -> Outcome {
    let count = ground.records / 5;
    let open = |path: &Path| Database::builder().memory(ground.memory()).keep_changes(8 << 30).open(path);
    let db = open(&dir.join("archived"))?;
    let target = Directory::open(dir.join("archives"))?;
    db.backup().archive_log().run(&target)?;
    let records = db.keyspace("records")?.with_durability(Durability::Buffered);
    (0..count).try_for_each(|number| records.insert(key(number), [number as u8; 100]))?;
    let began = Instant::now();
    let plain = db.backup().run(&Directory::open(dir.join("plain"))?)?;
    let plain = (plain.copied, began.elapsed().as_secs_f64());
    let began = Instant::now();
    let taken = db.backup().archive_log().run(&target)?;
    let took = began.elapsed().as_secs_f64();
    let archive = taken.archive.filter(|archive| archive.gap.is_none()).ok_or("a whole archive")?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("a backup {:.2} s; with an archive of {:.0} MiB {took:.2} s", plain.1, mib(archive.bytes));
    let began = Instant::now();
    let half = Restore::from(&target).to(Point::Sequence(count / 2)).into_directory(dir.join("half"))?;
    let restored = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let copy = open(&dir.join("half"))?;
    let opened = began.elapsed().as_secs_f64();
    assert_eq!((half.sequence, copy.keyspace("records")?.iter().count() as u64), (count / 2, count / 2));
    println!("half of it restored in {restored:.2} s, and opened in {opened:.2} s");
    Ok(())
}
