//! `sapwood tour`: the store at work, in about a minute: the disk's depth curve, a real data set, cold reads alone and in
//! parallel, and a kill in the middle of writing. Everything that it says it has just measured.

mod kill;
mod real_data;

use crate::arguments::Tour;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::print;
use crate::progress::{Progress, human_bytes};
use disk_profile::ProfileOptions;
use psync::Backend;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace};
use std::path::Path;
use std::time::{Duration, Instant};

/// Memory of the databases of the tour.
const MEMORY: u64 = 32 << 20;
/// Records of the synthetic keyspace: nine times the memory.
const RECORDS: u64 = 2_600_000;
const RECORD_BYTES: u64 = 116;
const GROUP: usize = 64;
const ROUNDS: usize = 60;
const SCANNED: u64 = 1_000_000;
/// Records of a scan between two looks for Ctrl-C (count): some milliseconds.
const LOOK_EVERY: u64 = 1 << 12;

pub(crate) fn run(options: &Tour) -> Result<()> {
    if options.write_until_killed {
        return kill::write(&options.dir);
    }
    interrupt::watch_leaving("its directory sapwood-tour-... may be there still: remove it");
    let cannot = |error: std::io::Error| Failure::Other(format!("{}: {error}", options.dir.display()));
    let scratch =
        tempfile::Builder::new().prefix("sapwood-tour-").tempdir_in(&options.dir).map_err(cannot)?;
    let mut table = Vec::new();
    heading(1, "The disk: what it gives for how many requests at a time")?;
    let probe = ProfileOptions {
        backend: Backend::Auto,
        file_bytes: 512 << 20,
        time_per_point: Duration::from_millis(60),
    };
    let profile = super::probe::measure(scratch.path(), &probe)?;
    print(format_args!("{profile}\n"))?;
    print(format_args!(
        "One request at a time leaves most of it idle: 64 at a time are {:.1} times as many a second.",
        profile.iops_read(64) / profile.iops_read(1).max(1.0)
    ))?;
    let path = scratch.path().join("tour.db");
    heading(2, "A real data set")?;
    load_real(&path)?;
    heading(3, "More than fits into memory")?;
    load_synthetic(&path, &mut table)?;
    heading(4, "Cold reads: one key after the other, and 64 at a time")?;
    compare_gets(&path, &profile, &mut table)?;
    heading(5, "A range of a million records: leaf by leaf, and in parallel")?;
    compare_scans(&path, &mut table)?;
    heading(6, "SIGKILL in the middle of writing")?;
    kill::show(scratch.path(), &mut table)?;
    print(format_args!("\nIn short"))?;
    let width = table.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    for (what, figure) in &table {
        print(format_args!("  {what:<width$}  {figure}"))?;
    }
    print(format_args!(
        "\nRead on: README.md for the library, ARCHITECTURE.md for how it works, `sapwood --help` for your own data."
    ))?;
    Ok(())
}

fn heading(number: u32, text: &str) -> Result<()> {
    print(format_args!("\n[{number}/6] {text}\n"))
}

fn open(path: &Path, pio_max: usize) -> Result<Database> {
    Ok(Database::builder().memory(MEMORY).pio_max(pio_max).open(path)?)
}

fn load_real(path: &Path) -> Result<()> {
    let data = real_data::find();
    print(format_args!("{}: {} records, {}", data.what, data.records.len(), human_bytes(data.bytes)))?;
    let db = open(path, GROUP)?;
    let keyspace = db.keyspace("real")?;
    let began = Instant::now();
    let mut progress = Progress::bytes("loading", Some(data.bytes));
    let mut loaded = 0;
    for records in data.records.chunks(500) {
        interrupt::go_on()?;
        let mut batch = db.batch();
        for (key, value) in records {
            batch.insert(&keyspace, key, value);
            loaded += (key.len() + value.len()) as u64;
        }
        batch.durability(Durability::Buffered).commit()?;
        progress.at(loaded, &format!("{} loaded", human_bytes(loaded)));
    }
    db.flush()?;
    progress.finish();
    let seconds = began.elapsed().as_secs_f64();
    print(format_args!(
        "loaded and durable in {seconds:.2} s ({} a second)",
        human_bytes((loaded as f64 / seconds) as u64)
    ))?;
    if let Some((key, _)) = data.records.get(data.records.len() / 2) {
        let shown = keyspace.get(key)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&shown);
        let first: String = text.lines().next().unwrap_or_default().chars().take(70).collect();
        print(format_args!("get {:?}: {first} ...", String::from_utf8_lossy(key)))?;
        let prefix = &key[..key.len().min(4)];
        let count = keyspace.prefix(prefix).count();
        print(format_args!("prefix {:?}: {count} records", String::from_utf8_lossy(prefix)))?;
    }
    Ok(())
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"tour000000000000";
    key[4..].copy_from_slice(format!("{number:012}").as_bytes());
    key
}

fn load_synthetic(path: &Path, table: &mut Vec<(String, String)>) -> Result<()> {
    let total = RECORDS * RECORD_BYTES;
    print(format_args!(
        "{RECORDS} records of {RECORD_BYTES} bytes, {}, into a database with {} of memory",
        human_bytes(total),
        human_bytes(MEMORY)
    ))?;
    let db = open(path, GROUP)?;
    let keyspace = db.keyspace("synthetic")?;
    let mut rng = StdRng::seed_from_u64(1);
    let mut progress = Progress::bytes("loading", Some(total));
    let before = db.stats();
    let began = Instant::now();
    let mut value = [0; 100];
    for start in (0..RECORDS).step_by(1000) {
        interrupt::go_on()?;
        let mut batch = db.batch();
        for number in start..(start + 1000).min(RECORDS) {
            rng.fill(&mut value[..]);
            batch.insert(&keyspace, key(number), value);
        }
        batch.durability(Durability::Buffered).commit()?;
        progress.at(start * RECORD_BYTES, &format!("{start} records"));
    }
    db.flush()?;
    progress.finish();
    let rate = RECORDS as f64 / began.elapsed().as_secs_f64();
    let written = (db.stats().device.bytes_written - before.device.bytes_written) as f64 / total as f64;
    print(format_args!(
        "{rate:.0} records a second; {written:.2} bytes written for each byte loaded, log included"
    ))?;
    table.push(("sorted load".into(), format!("{rate:.0} records/s, {written:.2} bytes written a byte")));
    db.close()?;
    Ok(())
}

/// What some reads cost.
struct Cost {
    seconds: f64,
    requests: u64,
    groups: u64,
}

fn measured(db: &Database, work: impl FnOnce() -> Result<()>) -> Result<Cost> {
    let before = db.stats().reads;
    let began = Instant::now();
    work()?;
    let seconds = began.elapsed().as_secs_f64();
    let after = db.stats().reads;
    Ok(Cost {
        seconds,
        requests: after.requests - before.requests,
        groups: after.psync_groups - before.psync_groups,
    })
}

/// Brings the inner nodes into memory, as they are in any database that is in use.
fn warm(keyspace: &Keyspace, rng: &mut StdRng) -> Result<()> {
    for _ in 0..1000 {
        interrupt::go_on()?;
        keyspace.get(key(rng.random_range(0..RECORDS)))?;
    }
    Ok(())
}

fn compare_gets(
    path: &Path,
    profile: &disk_profile::Profile,
    table: &mut Vec<(String, String)>,
) -> Result<()> {
    let db = open(path, GROUP)?;
    let keyspace = db.keyspace("synthetic")?;
    let mut rng = StdRng::seed_from_u64(2);
    warm(&keyspace, &mut rng)?;
    let (mut single, mut multi) =
        (Cost { seconds: 0.0, requests: 0, groups: 0 }, Cost { seconds: 0.0, requests: 0, groups: 0 });
    // In turn, so that whoever else uses the machine disturbs both alike.
    for _ in 0..ROUNDS {
        interrupt::go_on()?;
        let mut keys = || -> Vec<_> { (0..GROUP).map(|_| key(rng.random_range(0..RECORDS))).collect() };
        let (ones, many) = (keys(), keys());
        let cost = measured(&db, || {
            for key in &ones {
                keyspace.get(key)?;
            }
            Ok(())
        })?;
        single = add(single, &cost);
        let cost = measured(&db, || {
            keyspace.multi_get(&many)?;
            Ok(())
        })?;
        multi = add(multi, &cost);
    }
    let rounds = ROUNDS as f64;
    let line = |what: &str, cost: &Cost| {
        print(format_args!(
            "  {what:<24} {:>6.2} ms  {:>5.1} reads in {:>4.1} psync groups  {:>7.0} keys/s",
            cost.seconds / rounds * 1e3,
            cost.requests as f64 / rounds,
            cost.groups as f64 / rounds,
            GROUP as f64 * rounds / cost.seconds
        ))
    };
    print(format_args!("64 random keys, mean of {ROUNDS} rounds:"))?;
    line("64 single gets", &single)?;
    line("one multi_get of 64", &multi)?;
    let ratio = single.seconds / multi.seconds;
    let rate = multi.requests as f64 / multi.seconds;
    print(format_args!(
        "{ratio:.1} times faster; {rate:.0} reads a second, while the disk gave {:.0} of 4 KiB at depth 64 a minute ago",
        profile.iops_read(64)
    ))?;
    table.push((
        "multi_get of 64".into(),
        format!("{:.0} keys/s, {ratio:.1} x single gets", GROUP as f64 * rounds / multi.seconds),
    ));
    Ok(())
}

fn add(sum: Cost, cost: &Cost) -> Cost {
    Cost {
        seconds: sum.seconds + cost.seconds,
        requests: sum.requests + cost.requests,
        groups: sum.groups + cost.groups,
    }
}

fn compare_scans(path: &Path, table: &mut Vec<(String, String)>) -> Result<()> {
    let mut rates = Vec::new();
    for (what, pio_max) in [("leaf by leaf (PioMax 1)", 1), ("prange (PioMax 64)", GROUP)] {
        let db = open(path, pio_max)?;
        let keyspace = db.keyspace("synthetic")?;
        let mut count = 0u64;
        let cost = measured(&db, || {
            for item in keyspace.range(key(RECORDS / 4)..).take(SCANNED as usize) {
                item?;
                count += 1;
                if count.is_multiple_of(LOOK_EVERY) {
                    interrupt::go_on()?;
                }
            }
            Ok(())
        })?;
        let rate = count as f64 / cost.seconds;
        print(format_args!(
            "  {what:<24} {:>6.2} s   {:>6} reads in {:>6} psync groups  {rate:>9.0} records/s",
            cost.seconds, cost.requests, cost.groups
        ))?;
        rates.push(rate);
    }
    if let [slow, fast] = rates[..] {
        print(format_args!("{:.1} times faster", fast / slow))?;
        table.push((
            "scan of a million".into(),
            format!("{fast:.0} records/s, {:.1} x leaf by leaf", fast / slow),
        ));
    }
    Ok(())
}
