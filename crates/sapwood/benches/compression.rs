//! Measures what compression saves and costs, and what encryption costs: space, loading, cold gets, scans and updates of each kind of values with each codec, by
//! turns in one run.
//!
//! `cargo bench -p sapwood --bench compression -- --help`

mod ground;
mod records;

use clap::Parser;
use ground::Ground;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Compression, Database, Durability, EncryptionKey, KeyspaceOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What compression saves, and what it costs
///
/// The same records with each codec: loaded in order, then overwritten at random, read cold one by one and many at once, and scanned.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench compression --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<1_000_000, 64>,
    /// A text whose parts between empty lines are values too, one after the other (Debian: apt-cache dumpavail)
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// In place of all codecs: without compression and with LZ4, each also encrypted
    #[arg(long)]
    encryption: bool,
    /// Reads and overwrites of a turn
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    operations: u64,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench compression -- --dir /mnt/disk
  apt-cache dumpavail > packages.txt; cargo bench -p sapwood --bench compression -- --text packages.txt";

/// A name, a compression, and whether the database is encrypted.
type Codec = (&'static str, Compression, bool);

const CODECS: [Codec; 5] = [
    ("none", Compression::None, false),
    ("lz4", Compression::Lz4, false),
    ("zstd 1", Compression::Zstd { level: 1 }, false),
    ("zstd 3", Compression::Zstd { level: 3 }, false),
    ("dict 3", Compression::ZstdDictionary { level: 3 }, false),
];

const ENCRYPTED: [Codec; 4] = [
    ("none", Compression::None, false),
    ("none+e", Compression::None, true),
    ("lz4", Compression::Lz4, false),
    ("lz4+e", Compression::Lz4, true),
];

/// The values of a kind, by number.
type Values = Box<dyn Fn(u64) -> Vec<u8>>;

fn rng_of(number: u64) -> StdRng {
    StdRng::seed_from_u64(number)
}

/// 100 bytes, half of them random.
fn half(number: u64) -> Vec<u8> {
    let mut value = vec![b'.'; 100];
    rng_of(number).fill(&mut value[..50]);
    value
}

fn random(number: u64) -> Vec<u8> {
    let mut value = vec![0; 100];
    rng_of(number).fill(&mut value[..]);
    value
}

fn json(number: u64) -> Vec<u8> {
    let mut rng = rng_of(number);
    let kind = ["page_view", "click", "add_to_cart", "purchase", "sign_in"][rng.random_range(0..5)];
    let country = ["NO", "DE", "FR", "JP", "BR", "US", "IN"][rng.random_range(0..7)];
    format!(
        r#"{{"event":"{kind}","at":"2026-11-{:02}T{:02}:{:02}:{:02}Z","user":{},"session":"{:016x}","country":"{country}","path":"/products/{}","ms":{}}}"#,
        rng.random_range(1..31),
        rng.random_range(0..24),
        rng.random_range(0..60),
        rng.random_range(0..60),
        rng.random_range(0..1_000_000),
        rng.random::<u64>(),
        rng.random_range(0..5000),
        rng.random_range(1..2000),
    )
    .into_bytes()
}

fn main() -> Outcome {
    let options = Options::parse();
    let ground = &options.ground;
    let mut kinds: Vec<(&str, Values)> =
        vec![("half random", Box::new(half)), ("JSON events", Box::new(json)), ("random", Box::new(random))];
    if let Some(file) = &options.text {
        let text = std::fs::read_to_string(file)?;
        let parts: Vec<Vec<u8>> = text.split("\n\n").map(|part| part.as_bytes().to_vec()).collect();
        kinds.push(("text", Box::new(move |number| parts[number as usize % parts.len()].clone())));
    }
    println!(
        "{:<12} {:<7} {:>9} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "values", "codec", "bytes", "load", "gets", "multi_get", "scan", "overwrite"
    );
    println!(
        "{:<20} {:>9} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "", "a byte", "MB/s", "/s", "/s", "MB/s", "/s"
    );
    let codecs = if options.encryption { &ENCRYPTED[..] } else { &CODECS };
    for (kind, value) in &kinds {
        // Whoever comes first is not always the same.
        for turn in 0..codecs.len() {
            measure(kind, value, codecs[(turn + kind.len()) % codecs.len()], &options, ground)?;
        }
    }
    Ok(())
}

fn measure(
    kind: &str,
    value: &Values,
    (codec, compression, is_encrypted): Codec,
    options: &Options,
    ground: &Ground<1_000_000, 64>,
) -> Outcome {
    let dir = ground.scratch()?;
    let open = || {
        let builder = Database::builder().memory(ground.memory()).durability(Durability::Buffered);
        let key = is_encrypted.then(|| EncryptionKey::from_bytes([7; 32]));
        let builder = key.into_iter().fold(builder, |builder, key| builder.encryption_key(key));
        builder.open(dir.path().join("db"))
    };
    let mean: u64 = (0..1000).map(|number| value(number).len() as u64 + 8).sum::<u64>() / 1000;
    let records = ground.records * 108 / mean;
    // Made before: making them is not what is measured.
    let values: Vec<_> = (0..records).map(value).collect();
    let value = |number: u64| &values[number as usize];
    let bytes = values.iter().map(|value| value.len() as u64 + 8).sum::<u64>();
    let db = open()?;
    let keyspace = db.keyspace_with("records", KeyspaceOptions::new().compression(compression))?;
    // A third is loaded in order; the rest comes at random.
    let began = Instant::now();
    keyspace.ingest((0..records).step_by(3).map(|number| (number.to_be_bytes(), value(number))))?;
    for number in (0..records).filter(|number| number % 3 > 0) {
        keyspace.insert(number.to_be_bytes(), value(number))?;
    }
    db.flush()?;
    let load = began.elapsed();
    let mut rng = StdRng::seed_from_u64(1);
    let began = Instant::now();
    for _ in 0..options.operations {
        let number = rng.random_range(0..records);
        keyspace.insert(number.to_be_bytes(), value(number))?;
    }
    db.flush()?;
    let overwrite = began.elapsed();
    drop(keyspace);
    db.compact()?;
    let space = db.stats().space;
    db.close()?;
    let db = open()?;
    let keyspace = db.keyspace("records")?;
    let began = Instant::now();
    for _ in 0..options.operations / 10 {
        let number = rng.random_range(0..records);
        let found = keyspace.get(number.to_be_bytes())?;
        assert!(found.is_some_and(|found| found[..] == value(number)[..]), "a record is lost");
    }
    let gets = began.elapsed();
    let began = Instant::now();
    for _ in 0..options.operations / 64 {
        let keys: Vec<_> = (0..64).map(|_| rng.random_range(0..records).to_be_bytes()).collect();
        assert!(keyspace.multi_get(&keys)?.iter().all(Option::is_some), "a record is lost");
    }
    let multi_gets = began.elapsed();
    let began = Instant::now();
    let scanned: u64 =
        keyspace.iter().map(|item| item.map_or(0, |(key, value)| (key.len() + value.len()) as u64)).sum();
    assert_eq!(scanned, bytes);
    let scan = began.elapsed();
    let rate = |count: u64, time: Duration| count as f64 / time.as_secs_f64();
    println!(
        "{kind:<12} {codec:<7} {:>9.3} {:>11.1} {:>11.0} {:>11.0} {:>11.0} {:>11.0}",
        space.used as f64 / bytes as f64,
        rate(bytes, load) / 1e6,
        rate(options.operations / 10, gets),
        rate(options.operations / 64 * 64, multi_gets),
        rate(bytes, scan) / 1e6,
        rate(options.operations, overwrite),
    );
    Ok(())
}
