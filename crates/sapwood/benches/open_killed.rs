//! Measures how long a database takes to open after its process was killed in the middle of writing: until the first record is read.
//! A process of its own loads records and has threads overwrite one a commit, buffered; it is killed when so many changes wait. Each round opens a
//! copy of what it left, from the page cache or from the disk. Prints a table; asserts only that what was read is there.
//!
//! `cargo bench -p sapwood --bench open_killed -- --help`

mod ground;
mod numbered;
mod records;

use clap::Parser;
use ground::Ground;
use numbered::key;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// How long opening takes after a kill
///
/// Loads records of 16 + 100 bytes in a random order; then threads overwrite one record a commit, buffered, at uniform keys, until so many changes
/// wait, and the process is killed. Told: milliseconds until the database is open, and until a record is read.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench open_killed --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<1_300_000, 30>,
    /// Threads that update
    #[arg(long, value_name = "N", default_value_t = 4)]
    threads: u64,
    /// Updates before the kill is due
    #[arg(long, value_name = "N", default_value_t = 400_000)]
    updates: u64,
    /// Changes that are to wait when the process is killed: half as many as memory has room for unless told
    #[arg(long, value_name = "N")]
    waiting: Option<u64>,
    /// Times that a copy is opened
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// Leave the files in the page cache
    #[arg(long)]
    warm: bool,
    /// Where the killed process leaves the database; a second call finds it there, and only opens copies of it
    #[arg(long, value_name = "DIR")]
    at: Option<PathBuf>,
    /// Be the process that is killed, in this directory
    #[arg(long, hide = true)]
    fill: Option<PathBuf>,
    /// Open this directory, once, and nothing else
    #[arg(long, hide = true)]
    open: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench open_killed -- --dir /mnt/disk
  cargo bench -p sapwood --bench open_killed -- --memory-mib 120 --records 5200000 --at /mnt/disk/killed
  chrt -f 20 taskset -c 1 target/release/deps/open_killed-* --at /mnt/disk/killed --warm";

/// What a waiting change takes in memory, about.
const CHANGE: u64 = 150;

fn main() -> Outcome {
    let options = Options::parse();
    if let Some(dir) = &options.fill {
        return fill(&options, dir);
    }
    if let Some(dir) = &options.open {
        return open(&options, dir);
    }
    let scratch = options.ground.scratch()?;
    let killed = options.at.clone().unwrap_or_else(|| scratch.path().join("killed"));
    if !killed.exists() {
        kill(&options, &killed)?;
    }
    let log = files(&killed)?.filter(|file| is_log(file)).map(|file| Ok(file.metadata()?.len()));
    let log: Vec<u64> = log.collect::<std::io::Result<_>>()?;
    println!("{} files of log, {:.1} MiB", log.len(), log.iter().sum::<u64>() as f64 / (1 << 20) as f64);
    for _ in 0..options.rounds {
        let copy = scratch.path().join("copy");
        // The data file has holes where space was given back: copied as zeros they would fill the disk.
        let copied =
            Command::new("cp").args(["-r", "--sparse=always"]).arg(&killed).arg(&copy).status()?.success();
        assert!(copied, "the database is copied");
        for file in files(&copy)? {
            std::fs::File::open(&file)?.sync_all()?;
            if !options.warm {
                forget(&file)?;
            }
        }
        let done = again(&options).arg("--open").arg(&copy).status()?;
        assert!(done.success(), "the database opens");
        std::fs::remove_dir_all(&copy)?;
    }
    Ok(())
}

/// This program once more, with the same records and memory.
fn again(options: &Options) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    let Ground { records, memory_mib, .. } = &options.ground;
    command.args(["--records", &records.to_string(), "--memory-mib", &memory_mib.to_string()]);
    command
}

fn files(dir: &Path) -> std::io::Result<impl Iterator<Item = PathBuf>> {
    Ok(std::fs::read_dir(dir)?.filter_map(Result::ok).map(|entry| entry.path()))
}

fn is_log(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("wal-"))
}

/// The page cache forgets a file.
fn forget(file: &Path) -> Outcome {
    let mut input = std::ffi::OsString::from("if=");
    input.push(file);
    let done =
        Command::new("dd").arg(input).args(["iflag=nocache", "count=0"]).stderr(Stdio::null()).status()?;
    if done.success() { Ok(()) } else { Err("dd does not know iflag=nocache; try --warm".into()) }
}

/// Has a process fill the database, and kills it when it says so.
fn kill(options: &Options, dir: &Path) -> Outcome {
    let mut command = again(options);
    command.args(["--updates", &options.updates.to_string(), "--threads", &options.threads.to_string()]);
    if let Some(waiting) = options.waiting {
        command.args(["--waiting", &waiting.to_string()]);
    }
    let mut child = command.arg("--fill").arg(dir).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    let line = BufReader::new(output).lines().next();
    child.kill()?;
    child.wait()?;
    println!("killed when {} changes waited", line.ok_or("it died")??);
    Ok(())
}

fn fill(options: &Options, dir: &Path) -> Outcome {
    let ground = &options.ground;
    let db = Database::builder().memory(ground.memory()).open(dir)?;
    let keyspace = db.keyspace("bench")?;
    let mut rng = StdRng::seed_from_u64(1);
    let mut at = 0;
    // A step that has no divisor in common with the number of records: each comes once.
    let step = (ground.records / 13 * 8..).find(|step| gcd(*step, ground.records) == 1).unwrap_or(1);
    let mut next = |_: &mut StdRng| {
        at = (at + step) % ground.records;
        key(at)
    };
    let batches = ground.records / records::BATCH;
    records::write(&db, &keyspace, batches, records::VALUE_LEN, &mut rng, &mut next, |_, _| {})?;
    db.flush()?;
    let waiting = options.waiting.unwrap_or(ground.memory() / 6 * 3 / 2 / CHANGE);
    let is_due = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..options.threads {
            let (keyspace, options, is_due, db) = (keyspace.clone(), &options, &is_due, db.clone());
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(2 + thread);
                for update in 0u64.. {
                    let mut batch = db.batch();
                    let number = rng.random_range(0..options.ground.records);
                    batch.insert(&keyspace, key(number), records::value(&mut rng));
                    batch.durability(Durability::Buffered).commit().expect("a commit");
                    if update == options.updates / options.threads {
                        is_due.store(true, Relaxed);
                    }
                }
            });
        }
        loop {
            let queued = db.stats().writes.changes_queued;
            if is_due.load(Relaxed) && queued >= waiting {
                println!("{queued}");
                std::thread::sleep(Duration::from_secs(60));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn open(options: &Options, dir: &Path) -> Outcome {
    let began = Instant::now();
    let db = Database::builder().memory(options.ground.memory()).create(false).open(dir)?;
    let keyspace = db.keyspace("bench")?;
    let opened = began.elapsed();
    assert!(keyspace.get(key(options.ground.records / 3))?.is_some(), "the record is there");
    let read = began.elapsed();
    let waiting = db.stats().writes.changes_queued;
    println!(
        "open after {:.1} ms, a record read after {:.1} ms, {waiting} changes wait",
        opened.as_secs_f64() * 1e3,
        read.as_secs_f64() * 1e3
    );
    // Closing is not measured.
    std::process::exit(0)
}
