//! Measures how long it takes to create many keyspaces: in one call, and one a call by several threads; and how long
//! a database with all of them takes to open. Prints a table; asserts nothing.
//!
//! `cargo bench -p sapwood --bench keyspaces -- --help`

mod ground;
mod records;

use clap::Parser;
use ground::Ground;
use sapwood::{Database, Keyspace};
use std::time::Instant;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What keyspaces cost
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench keyspaces --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<1_000_000, 64>,
    /// Keyspaces in one call
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keyspaces: u64,
    /// Threads that then create one keyspace a call
    #[arg(long, value_name = "N", default_value_t = 16)]
    threads: u64,
    /// Keyspaces of each thread
    #[arg(long, value_name = "N", default_value_t = 250)]
    each: u64,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench keyspaces -- --dir /mnt/disk --keyspaces 10000";

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let open = || Database::builder().memory(ground.memory()).open(dir.path().join("db"));
    let db = open()?;
    let began = Instant::now();
    let made = db.create_keyspaces((0..options.keyspaces).map(|number| format!("tenant {number}")))?;
    let took = began.elapsed();
    println!("{} in one call: {took:.1?}, {:.0}/s", made.len(), made.len() as f64 / took.as_secs_f64());
    made.iter().try_for_each(|keyspace: &Keyspace| keyspace.insert("name", "value"))?;
    let began = Instant::now();
    std::thread::scope(|scope| -> Outcome {
        let create = |thread: u64| {
            let db = &db;
            move || {
                (0..options.each)
                    .try_for_each(|number| db.keyspace(&format!("of {thread}, {number}")).map(drop))
            }
        };
        let threads: Vec<_> = (0..options.threads).map(|thread| scope.spawn(create(thread))).collect();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })?;
    let (took, count) = (began.elapsed(), options.threads * options.each);
    println!(
        "{count} by {} threads: {took:.1?}, {:.0}/s",
        options.threads,
        count as f64 / took.as_secs_f64()
    );
    drop(made);
    db.close()?;
    for _ in 0..3 {
        let began = Instant::now();
        let db = open()?;
        println!("open with {}: {:.1?}", db.keyspaces().len(), began.elapsed());
        db.close()?;
    }
    Ok(())
}
