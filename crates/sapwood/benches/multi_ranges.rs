//! Measures many short ranges at once (`multi_range`) beside the same ranges one after the other, by turns in one run, on data that
//! is far larger than memory. Asserts that both find the same.
//!
//! `cargo bench -p sapwood --bench multi_ranges -- --help`

mod ground;
mod numbered;
mod records;

use clap::Parser;
use ground::Ground;
use numbered::key;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::Database;
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What beginning many short ranges together saves
///
/// Ranges of a few records each, at random places of a database that does not fit into memory: as many at a time as said,
/// with `multi_range`, and one after the other.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench multi_ranges --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<5_000_000, 32>,
    /// Ranges at a time
    #[arg(long, value_name = "N", default_value_t = 64)]
    ranges: usize,
    /// Records of a range
    #[arg(long, value_name = "N", default_value_t = 10)]
    len: u64,
    /// Turns of either kind
    #[arg(long, value_name = "N", default_value_t = 200)]
    turns: u64,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench multi_ranges -- --dir /mnt/disk
  cargo bench -p sapwood --bench multi_ranges -- --ranges 8 --len 100";

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let dir = ground.scratch()?;
    let open = || Database::builder().memory(ground.memory()).open(dir.path().join("db"));
    let db = open()?;
    db.keyspace("main")?.ingest((0..ground.records).map(|number| (key(number), [7; 100])))?;
    db.close()?;
    let db = open()?;
    let keyspace = db.keyspace("main")?;
    let mut rng = StdRng::seed_from_u64(1);
    let (mut together, mut single) = (Duration::ZERO, Duration::ZERO);
    for turn in 0..2 * options.turns {
        let starts: Vec<u64> =
            (0..options.ranges).map(|_| rng.random_range(0..ground.records - options.len)).collect();
        let bounds = starts.iter().map(|start| key(*start)..key(start + options.len));
        let began = Instant::now();
        let found = if turn % 2 == 0 {
            let ranges = keyspace.multi_range(bounds);
            ranges.into_iter().flatten().filter(Result::is_ok).count()
        } else {
            bounds.map(|bounds| keyspace.range(bounds).filter(Result::is_ok).count()).sum()
        };
        *(if turn % 2 == 0 { &mut together } else { &mut single }) += began.elapsed();
        assert_eq!(found as u64, options.ranges as u64 * options.len);
    }
    let rate = |time: Duration| (options.turns as usize * options.ranges) as f64 / time.as_secs_f64();
    println!(
        "{} ranges of {} records at a time: {:.0} a second together, {:.0} one after the other, ratio {:.2}",
        options.ranges,
        options.len,
        rate(together),
        rate(single),
        rate(together) / rate(single)
    );
    Ok(())
}
