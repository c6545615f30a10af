//! Measures the removal of ranges and of a keyspace: how long the calls take, what readers find right afterwards, what the flush
//! reads and writes, and what removing the same records one by one takes. Asserts that what is found is right.
//!
//! `cargo bench -p sapwood --bench range_removals -- --help`

mod ground;
mod numbered;
mod records;

use clap::Parser;
use ground::Ground;
use numbered::key;
use sapwood::{Database, Durability};
use std::time::Instant;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What removing many records at once costs
///
/// Of the records of a keyspace all but a hundredth are removed with one range, and all that is left with the keyspace.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench range_removals --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<10_000_000, 256>,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench range_removals -- --dir /mnt/disk
  cargo bench -p sapwood --bench range_removals -- --records 100000000 --memory-mib 1024";

/// Records of one call of `ingest`, which takes 8 GiB at most.
const INGESTED: usize = 10_000_000;

/// Of so many records one is removed by itself, to compare.
const ONE_OF: u64 = 100;

fn timed<T>(what: &str, work: impl FnOnce() -> sapwood::Result<T>) -> Outcome<T> {
    let began = Instant::now();
    let result = work()?;
    println!("{what:<58}{:>12.3} ms", began.elapsed().as_secs_f64() * 1e3);
    Ok(result)
}

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let db = Database::builder().memory(ground.memory()).open(dir.path().join("db"))?;
    let (one, other) = (db.keyspace("ranges")?, db.keyspace("one by one")?);
    let records = ground.records;
    for keyspace in [&one, &other] {
        for start in (0..records).step_by(INGESTED) {
            let end = records.min(start + INGESTED as u64);
            keyspace.ingest((start..end).map(|number| (key(number), [0; 100])))?;
        }
    }
    let alive = |db: &Database| db.stats().space.live as f64 / 1e6;
    println!("{records} records of 116 bytes in each of two keyspaces, {:.0} MB", alive(&db));

    let (low, high) = (records / 200, records - records / 200);
    for _ in 0..3 {
        timed("a durable put, to compare", || one.insert(key(records / 2), [1; 100]))?;
    }
    timed("remove_range of 99 of 100 records, durable", || one.remove_range(key(low)..key(high)))?;
    let found = timed("a get in the range", || one.get(key(records / 3)))?;
    assert!(found.is_none());
    let next = timed("the first record at the range's start or behind it", || {
        one.range(key(low)..).next().transpose()
    })?;
    assert!(next.is_some_and(|(found, _)| found[..] == key(high)[..]));
    let before = db.stats();
    timed("the flush that drops the blocks", || db.flush())?;
    let after = db.stats();
    let read = (after.reads.bytes - before.reads.bytes) as f64 / 1e6;
    let written = (after.writes.data_bytes - before.writes.data_bytes) as f64 / 1e6;
    println!("  it read {read:.1} MB and wrote {written:.1} MB; {:.0} MB are alive", alive(&db));
    let estimate = one.len_estimate();
    assert_eq!(one.iter().count() as u64, records - (high - low));
    println!("  len_estimate: {estimate} of {} records", records - (high - low));

    let mut batch = db.batch();
    batch.durability(Durability::Buffered);
    timed("removing a hundredth of as many one by one, buffered", || {
        let mut number = low;
        while number < low + (high - low) / ONE_OF {
            batch.remove(&other, key(number));
            if batch.len() == 1000 {
                batch.commit()?;
            }
            number += 1;
        }
        batch.commit()
    })?;
    timed("10,000 ranges of ten records, buffered, each by itself", || {
        for number in 0..10_000 {
            let from = records / 2 + number * (records / 30_000);
            batch.remove_range(&other, key(from)..key(from + 10)).commit()?;
        }
        Ok(())
    })?;
    timed("the first record behind the first of them", || {
        other.range(key(records / 2)..).next().transpose()
    })?;
    timed("the flush that removes them key by key", || db.flush())?;
    timed("drop_keyspace of all records", || db.drop_keyspace("one by one"))?;
    timed("compact, which takes its tree apart", || db.compact())?;
    println!("  {:.1} MB are alive", alive(&db));
    db.check()?;
    Ok(())
}
