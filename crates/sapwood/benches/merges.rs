//! Measures operands that are merged into cold records (`merge`) beside reading, changing and writing each (`update`) and beside blind
//! insertions, by turns in one run, on data that is far larger than memory. Asserts that no operand is lost.
//!
//! `cargo bench -p sapwood --bench merges -- --help`

mod ground;
mod numbered;
mod records;

use clap::Parser;
use ground::Ground;
use numbered::key;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, KeyspaceOptions, merge};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What merging saves
///
/// Counters at random places of a database that does not fit into memory, counted up by merging and by reading and writing. All are buffered,
/// and each turn ends with what is in the trees.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench merges --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<5_000_000, 32>,
    /// Changes of a turn
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    changes: u64,
    /// Turns of each kind
    #[arg(long, value_name = "N", default_value_t = 3)]
    turns: u64,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench merges -- --dir /mnt/disk
  cargo bench -p sapwood --bench merges -- --records 50000000 --memory-mib 256";

const KINDS: [&str; 3] = ["merge", "update", "insert"];

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let open = || {
        Database::builder()
            .memory(ground.memory())
            .durability(Durability::Buffered)
            .open(dir.path().join("db"))
    };
    let db = open()?;
    let zero = 0u64.to_be_bytes();
    let merging = || KeyspaceOptions::new().merge(merge::AddU64Wrapping);
    // Values of 100 bytes would not be counters; keys are longer in their place.
    let long = |number| [&key(number)[..], &[b'.'; 80]].concat();
    db.keyspace_with("counters", merging())?
        .ingest((0..ground.records).map(|number| (long(number), zero)))?;
    db.close()?;
    let db = open()?;
    let counters = db.keyspace_with("counters", merging())?;
    let mut rng = StdRng::seed_from_u64(1);
    let mut took = [Duration::ZERO; 3];
    let one = 1u64.to_be_bytes();
    for turn in 0..3 * options.turns {
        let kind = (turn % 3) as usize;
        let began = Instant::now();
        for _ in 0..options.changes {
            let at = long(rng.random_range(0..ground.records));
            match kind {
                0 => counters.merge(at, one)?,
                1 => {
                    let add = |old: Option<&[u8]>| {
                        let old = old.and_then(|old| old.try_into().ok()).map_or(0, u64::from_be_bytes);
                        Some((old + 1).to_be_bytes().to_vec())
                    };
                    counters.update(at, add)?;
                }
                _ => counters.insert([&at[..], b"!"].concat(), one)?,
            }
        }
        db.flush()?;
        took[kind] += began.elapsed();
    }
    let sum: u64 = counters.iter().try_fold(0, |sum, item| {
        let (key, value) = item?;
        let is_counted = !key.ends_with(b"!");
        let count = value.as_ref().try_into().map_or(0, u64::from_be_bytes);
        Ok::<_, sapwood::Error>(sum + if is_counted { count } else { 0 })
    })?;
    assert_eq!(sum, 2 * options.turns * options.changes, "each operand counts once");
    let rate = |kind: usize| (options.turns * options.changes) as f64 / took[kind].as_secs_f64();
    for (kind, name) in KINDS.iter().enumerate() {
        println!("{name:8} {:>10.0} /s", rate(kind));
    }
    println!("merge is {:.2} x update, {:.2} x insert", rate(0) / rate(1), rate(0) / rate(2));
    Ok(())
}
