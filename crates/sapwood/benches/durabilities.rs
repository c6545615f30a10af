//! Measures commits of different durability beside one another: many threads that commit durably, or commit buffered and then ask
//! for a sync; and one thread whose commits need no sync, alone and beside one that commits durably. Prints a table; asserts nothing.
//!
//! `cargo bench -p sapwood --bench durabilities -- --help`

mod ground;
mod numbered;
mod records;

use clap::Parser;
use ground::Ground;
use numbered::key;
use sapwood::{Database, Durability, Keyspace};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What commits of different durability cost one another
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench durabilities --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<1_000_000, 64>,
    /// Threads that commit durably, or sync
    #[arg(long, value_name = "N", default_value_t = 32)]
    threads: u64,
    /// Seconds of each part
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    seconds: u64,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench durabilities -- --dir /mnt/disk";

fn put(db: &Database, keyspace: &Keyspace, number: u64, durability: Durability) -> sapwood::Result<()> {
    let mut batch = db.batch();
    batch.insert(keyspace, key(number), [7; 100]);
    batch.durability(durability).commit()
}

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let db = Database::builder().memory(ground.memory()).open(dir.path().join("db"))?;
    let keyspace = db.keyspace("bench")?;
    for turn in 0..3 {
        for durability in [None, Some(Durability::None), Some(Durability::Buffered)] {
            let (over, began) = (AtomicBool::new(false), Instant::now());
            let commits = std::thread::scope(|scope| {
                let threads = (0..options.threads).map(|thread| {
                    let (db, keyspace, over) = (&db, &keyspace, &over);
                    scope.spawn(move || {
                        let mut commits = 0;
                        while !over.load(Relaxed) {
                            let number = thread * 1_000_000 + commits % 10_000;
                            match durability {
                                None => put(db, keyspace, number, Durability::Immediate)?,
                                Some(weaker) => {
                                    put(db, keyspace, number, weaker)?;
                                    db.sync()?;
                                }
                            }
                            commits += 1;
                        }
                        sapwood::Result::Ok(commits)
                    })
                });
                let threads: Vec<_> = threads.collect();
                std::thread::sleep(Duration::from_secs(options.seconds));
                over.store(true, Relaxed);
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<Result<u64, _>>()
            })?;
            let what = durability.map_or("durable".into(), |weaker| format!("{weaker:?}, then sync"));
            println!(
                "{turn}: {} threads, {what}: {:.0}/s",
                options.threads,
                commits as f64 / began.elapsed().as_secs_f64()
            );
        }
        for is_beside in [false, true] {
            let over = AtomicBool::new(false);
            let mut took = std::thread::scope(|scope| {
                if is_beside {
                    scope.spawn(|| {
                        let mut number = 0;
                        while !over.load(Relaxed)
                            && put(&db, &keyspace, number, Durability::Immediate).is_ok()
                        {
                            number += 1;
                        }
                    });
                }
                let (began, mut took) = (Instant::now(), Vec::new());
                while began.elapsed() < Duration::from_secs(options.seconds) {
                    let at = Instant::now();
                    put(&db, &keyspace, 1 << 40 | (took.len() as u64 % 10_000), Durability::None)?;
                    took.push(at.elapsed());
                    // Not as fast as it can, which would be a matter of flushes.
                    std::thread::sleep(Duration::from_micros(20));
                }
                over.store(true, Relaxed);
                sapwood::Result::Ok(took)
            })?;
            took.sort();
            let at = |part: usize| took[took.len() * part / 1000];
            let beside = if is_beside { "beside a durable writer" } else { "alone" };
            println!(
                "{turn}: a commit without sync, {beside}: p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}",
                at(500),
                at(990),
                at(999)
            );
        }
    }
    Ok(())
}
