//! Measures what updates cost beyond memory, and what they leave behind for readers: uniform overwrites until the database
//! was written anew several times, bytes written and read a byte of update, space, then gets, multi_gets and scans on it.
//! Prints a table; asserts nothing.
//!
//! `cargo bench -p sapwood --bench write_path -- --help`

mod ground;
mod records;
mod users;

use clap::Parser;
use ground::Ground;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use records::{BATCH, VALUE_LEN};
use sapwood::{Database, Keyspace};
use std::time::Instant;
use users::key;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What updates cost beyond memory, and what they leave behind for readers
///
/// Loads records of 16 bytes of key and random values, overwrites them at uniform keys until the database was written anew several
/// times, then gets, multi_gets of 64 and scans. Told for each part: records a second, bytes that went to files and to the device for a
/// byte of records, space, and the longest that one commit of 1000 records took. For exact counts of bytes it makes no difference
/// what else the machine does; for rates it does.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench write_path --", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    ground: Ground<6_000_000, 128>,
    /// Bytes of each value
    #[arg(long, value_name = "BYTES", default_value_t = VALUE_LEN)]
    value_len: usize,
    /// How often as many records as there are get overwritten
    #[arg(long, value_name = "N", default_value_t = 3)]
    times: u64,
    /// Load in an order that looks like chance, not in that of the keys
    #[arg(long)]
    random_load: bool,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench write_path -- --dir /mnt/disk
  cargo bench -p sapwood --bench write_path -- --random-load --times 1
  cargo bench -p sapwood --bench write_path -- --value-len 1000 --records 700000";

/// Commits `count` batches of records with values of `value_len` bytes that `next` names; says how many records a second, how long the slowest commit
/// took in milliseconds, and how many bytes of space the database took at most.
fn write(
    db: &Database,
    keyspace: &Keyspace,
    count: u64,
    value_len: usize,
    rng: &mut StdRng,
    mut next: impl FnMut(&mut StdRng) -> u64,
) -> Outcome<(f64, f64, u64)> {
    let (began, mut slowest, mut most) = (Instant::now(), 0f64, 0);
    let key = |rng: &mut StdRng| key(next(rng));
    records::write(db, keyspace, count, value_len, rng, key, |number, took| {
        slowest = slowest.max(took.as_secs_f64() * 1e3);
        if number % 50 == 0 {
            most = most.max(db.stats().space.used);
        }
    })?;
    Ok(((count * BATCH) as f64 / began.elapsed().as_secs_f64(), slowest, most))
}

/// Bytes that this process has given to the device or will, without those of files that were removed before they were written. Linux only.
fn given_to_device() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    let field = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    field("write_bytes:")?.checked_sub(field("cancelled_write_bytes:")?)
}

/// The memory that this process has had resident since the last call: the most, beside what the database says it uses.
fn tell_memory(db: &Database) {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    let (Some(peak), Some(anon)) = (field("VmHWM:"), field("RssAnon:")) else { return };
    let memory = db.stats().memory;
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    println!(
        "            peak memory {:.1} MiB, now {:.1} MiB in heaps; told: queues {:.1}, cached nodes {:.1}, records {:.1}, tables {:.1}, buffers {:.1}",
        peak / 1024.0,
        anon / 1024.0,
        mib(memory.queues),
        mib(memory.cache),
        mib(memory.records),
        mib(memory.mapping_table + memory.log_areas),
        mib(memory.buffers),
    );
    // From here on the most is counted anew. Not everybody may ask for that.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn main() -> Outcome {
    let options = Options::parse();
    let (ground, value_len) = (&options.ground, options.value_len);
    let dir = ground.scratch()?;
    let db = Database::builder().memory(ground.memory()).open(dir.path().join("db"))?;
    let keyspace = db.keyspace("bench")?;
    let mut rng = StdRng::seed_from_u64(1);
    let (records, batches) = (ground.records, ground.records / BATCH);
    let record = key(0).len() as u64 + value_len as u64;
    println!(
        "{records} records of {record} bytes = {:.1} x memory ({} MiB), in {}",
        (records * record) as f64 / ground.memory() as f64,
        ground.memory_mib,
        ground.dir.display()
    );
    let (rate, slowest, _) = if options.random_load {
        // By chance: a sequence that is spread evenly leaves each block with as many changes, and that is kinder than any load is.
        let mut order: Vec<u32> = (0..u32::try_from(records)?).collect();
        order.shuffle(&mut rng);
        let mut order = order.into_iter();
        write(&db, &keyspace, batches, value_len, &mut rng, |_| order.next().map_or(0, u64::from))?
    } else {
        let mut at = 0;
        write(&db, &keyspace, batches, value_len, &mut rng, |_| {
            at += 1;
            at - 1
        })?
    };
    db.flush()?;
    let loaded = (records * record) as f64;
    let (written, given) = (db.stats().device.bytes_written as f64 / loaded, given_to_device());
    tell_memory(&db);
    println!(
        "load        {rate:>9.0} records/s, {written:.2} B written a byte ({:.2} for the device), slowest commit {slowest:.0} ms",
        given.map_or(f64::NAN, |given| given as f64 / loaded)
    );
    println!("            space {:.2} x records", db.stats().space.used as f64 / loaded);
    for time in 1..=options.times {
        let (before, given) = (db.stats(), given_to_device());
        let (rate, slowest, most) =
            write(&db, &keyspace, batches, value_len, &mut rng, |rng| rng.random_range(0..records))?;
        let after = db.stats();
        let bytes = (records * record) as f64;
        let given =
            given_to_device().zip(given).map_or(f64::NAN, |(after, before)| (after - before) as f64 / bytes);
        let per_byte = |after: u64, before: u64| (after - before) as f64 / bytes;
        println!(
            "overwrite {time} {rate:>9.0} records/s, a byte: {:.2} B written, {given:.2} for the device (log {:.2}, data {:.2}, of it collector {:.2}, manifest {:.2}), {:.2} B read; slowest {slowest:.0} ms",
            per_byte(after.device.bytes_written, before.device.bytes_written),
            per_byte(after.writes.log_bytes, before.writes.log_bytes),
            per_byte(after.writes.data_bytes, before.writes.data_bytes),
            per_byte(after.writes.collected_bytes, before.writes.collected_bytes),
            per_byte(after.writes.manifest_bytes, before.writes.manifest_bytes),
            per_byte(after.device.bytes_read, before.device.bytes_read),
        );
        println!(
            "            space {:.2} x records, at most {:.2}; {:.2} x live; logged {:.2} of live in {} pieces",
            after.space.used as f64 / bytes,
            most as f64 / bytes,
            after.space.amplification,
            after.space.logged as f64 / after.space.live as f64,
            after.space.log_pieces,
        );
        tell_memory(&db);
    }
    db.flush()?;
    let gets = 40_000;
    let before = db.stats();
    let began = Instant::now();
    for _ in 0..gets {
        keyspace.get(key(rng.random_range(0..records)))?.ok_or("a record is missing")?;
    }
    let reads = db.stats().device.reads - before.device.reads;
    println!(
        "get         {:>9.0}/s, {:.2} reads each",
        f64::from(gets) / began.elapsed().as_secs_f64(),
        reads as f64 / f64::from(gets)
    );
    let began = Instant::now();
    for _ in 0..gets / 16 {
        keyspace.multi_get((0..64).map(|_| key(rng.random_range(0..records))))?;
    }
    tell_memory(&db);
    println!("multi_get   {:>9.0} keys/s", f64::from(gets) * 4.0 / began.elapsed().as_secs_f64());
    for len in [100, 10_000] {
        let (began, before) = (Instant::now(), db.stats().device.reads);
        let scans = 400_000 / len;
        for _ in 0..scans {
            let from = key(rng.random_range(0..records - len as u64));
            if keyspace.range(&from[..]..).take(len).count() < len {
                return Err("a scan was cut short".into());
            }
        }
        println!(
            "scan {len:<6} {:>9.1}/s, {:.1} reads each",
            scans as f64 / began.elapsed().as_secs_f64(),
            (db.stats().device.reads - before) as f64 / scans as f64
        );
        tell_memory(&db);
    }
    Ok(())
}
