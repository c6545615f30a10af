//! Measures a queue on top of the store: one thread inserts a record behind the last key, asks for the first record, and removes it,
//! again and again, buffered. Then what `first`, `last` and a bounded range cost at once, after all that was removed, and after
//! opening again. Prints a table; asserts nothing.
//!
//! `cargo bench -p sapwood --bench pops -- --help`

mod ground;
mod numbered;
mod records;

use clap::Parser;
use ground::Ground;
use numbered::key;
use sapwood::{Database, Durability, Keyspace};
use std::time::Instant;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What a queue on top of the store costs
///
/// Records of 16 + 100 bytes: a backlog, then pops. Each inserts a record at the tail, asks for the first, and removes it. Then a
/// number of records is removed one after the other without asking, and the next readers are timed, also after opening again.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench pops --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<1_000_000, 64>,
    /// Pops
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pops: u64,
    /// Records that wait in the queue
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    backlog: u64,
    /// Asks for the last record and inserts below the first, instead
    #[arg(long)]
    down: bool,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench pops -- --dir /mnt/disk
  cargo bench -p sapwood --bench pops -- --pops 100000 --records 100000 --down";

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let open = || Database::builder().memory(ground.memory()).open(dir.path().join("db"));
    let mut db = open()?;
    let queue = db.keyspace("queue")?;
    let at = |number: u64| key(if options.down { u64::MAX / 2 - number } else { number });
    let end = |queue: &Keyspace| if options.down { queue.last() } else { queue.first() };
    let value = [7; 100];
    let push = |db: &Database, queue: &Keyspace, number: u64| {
        let mut batch = db.batch();
        batch.insert(queue, at(number), value);
        batch.durability(Durability::Buffered).commit()
    };
    for number in 0..options.backlog {
        push(&db, &queue, number)?;
    }
    let (mut began, step) = (Instant::now(), (options.pops / 10).max(1));
    for number in 0..options.pops {
        push(&db, &queue, number + options.backlog)?;
        let Some((first, _)) = end(&queue)? else { return Err("the queue is empty".into()) };
        if first[..] != at(number)[..] {
            return Err(format!("pop {number} found {first:?}").into());
        }
        let mut batch = db.batch();
        batch.remove(&queue, first);
        batch.durability(Durability::Buffered).commit()?;
        if (number + 1) % step == 0 {
            println!("{} pops: {:.0}/s", number + 1, step as f64 / began.elapsed().as_secs_f64());
            began = Instant::now();
        }
    }
    let ask = |db: &Database, when: &str| -> Outcome {
        for name in ["queue", "table"] {
            let keyspace = db.keyspace(name)?;
            let mut line = format!("{when}, {name}:");
            for turn in ["at once", "again"] {
                let began = Instant::now();
                let first = keyspace.first()?.is_some();
                let first_took = began.elapsed();
                let began = Instant::now();
                let last = keyspace.last()?.is_some();
                let last_took = began.elapsed();
                let began = Instant::now();
                let found = keyspace.range(key(1000)..key(ground.records / 2)).take(10).count();
                let took = began.elapsed();
                line += &format!(
                    " {turn}: first {first_took:.1?} ({first}), last {last_took:.1?} ({last}), range {took:.1?} ({found});"
                );
            }
            println!("{line}");
        }
        Ok(())
    };
    ask(&db, "after the pops")?;
    drop(queue);
    db.close()?;
    db = open()?;
    ask(&db, "opened again")?;
    let table = db.keyspace("table")?;
    for first in (0..ground.records).step_by(1000) {
        let mut batch = db.batch();
        (first..first + 1000).for_each(|number| _ = batch.insert(&table, key(number), value));
        batch.durability(Durability::Buffered).commit()?;
    }
    db.flush()?;
    let began = Instant::now();
    for first in (0..ground.records - 1000).step_by(1000) {
        let mut batch = db.batch();
        (first..first + 1000).for_each(|number| _ = batch.remove(&table, key(number)));
        batch.durability(Durability::Buffered).commit()?;
    }
    println!("{} removals: {:.1?}", ground.records - 1000, began.elapsed());
    ask(&db, "after the removals")?;
    drop(table);
    db.close()?;
    db = open()?;
    ask(&db, "opened again")?;
    Ok(())
}
