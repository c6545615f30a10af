//! The memory budget is kept for every shape of record: keys and values from some bytes to the longest, and whatever is done
//! with them. Each shape has a process of its own, which is this test once more: what one leaves in the allocator is
//! not counted for the next.
#![cfg(target_os = "linux")]

mod resident;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use resident::{peak_while, resident};
use sapwood::{Compression, Database, Durability, EncryptionKey, Keyspace, Result};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const MIB: u64 = 1 << 20;
/// Processes that are measured at the same time.
const AT_ONCE: usize = 2;

/// What a process may have resident at most: the budget, an allowance for the allocator, and what the caller and the
/// store hold of a record at a time. Keys of several KiB take a little more, and each iterator has its place, a key.
fn most(shape: &Shape, part: &str) -> u64 {
    let of_keys = if shape.key > 2048 { shape.budget / 8 } else { 0 };
    let of_iterators = if part == "iterators" { 2 * iterator_count(shape) * shape.key } else { 0 };
    let record = shape.key + shape.value;
    shape.budget / 100 * 115 + 4 * MIB + of_keys + (of_iterators + 4 * record) as u64
}

/// As many as were seen to break it; fewer of the longest, each of which is read.
fn iterator_count(shape: &Shape) -> usize {
    ((256 << 20) / (shape.key + shape.value)).min(10_000)
}

/// Records of one kind.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    key: usize,
    value: usize,
    /// Of records, in bytes.
    data: u64,
    budget: u64,
}

impl Shape {
    fn count(&self) -> u64 {
        self.data / (self.key + self.value) as u64
    }

    fn compression(&self) -> Compression {
        if self.name.contains("compressed") { Compression::Zstd { level: 3 } } else { Compression::None }
    }

    /// The number at the front tells keys apart early, or late.
    fn key(&self, number: u64) -> Vec<u8> {
        let mut key = vec![b'k'; self.key];
        let number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        let at = if self.key > 64 && self.name.contains("late") { self.key - 8 } else { 0 };
        key[at..at + 8].copy_from_slice(&number);
        key
    }
}

const fn shape(name: &'static str, key: usize, value: usize, data: u64, budget: u64) -> Shape {
    Shape { name, key, value, data: data * MIB, budget: budget * MIB }
}

const SHAPES: [Shape; 9] = [
    shape("records of 16 B", 8, 8, 16, 32),
    shape("encrypted, 1 KiB", 16, 1008, 36, 32),
    // Ten times as long in memory as on the device.
    shape("compressed, 100 B", 16, 100, 48, 32),
    shape("compressed, 60 KiB", 16, 60 << 10, 64, 32),
    shape("values of 60 KiB", 16, 60 << 10, 64, 32),
    shape("encrypted, 1 MiB", 16, 1 << 20, 64, 32),
    shape("values of 16 MiB", 16, 16 << 20, 320, 288),
    shape("keys of 1 KiB", 1 << 10, 20, 48, 32),
    shape("keys of 4 KiB, late", 4 << 10, 20, 64, 32),
];

fn open(path: &Path, shape: &Shape) -> Result<(Database, Keyspace)> {
    let builder = Database::builder().memory(shape.budget).compression(shape.compression());
    let key = shape.name.contains("encrypted").then(|| EncryptionKey::from_bytes([7; 32]));
    let db = key.into_iter().fold(builder, |builder, key| builder.encryption_key(key)).open(path)?;
    let keyspace = db.keyspace("records")?;
    Ok((db, keyspace))
}

fn write(
    db: &Database,
    keyspace: &Keyspace,
    shape: &Shape,
    numbers: impl Iterator<Item = u64>,
) -> Result<()> {
    let each = (256 << 10) / (shape.key + shape.value) + 1;
    let mut value = vec![0; shape.value];
    let mut rng = StdRng::seed_from_u64(1);
    let mut numbers = numbers.peekable();
    while numbers.peek().is_some() {
        let mut batch = db.batch();
        for number in numbers.by_ref().take(each) {
            let random =
                if shape.compression() == Compression::None { shape.value } else { shape.value / 12 };
            rng.fill(&mut value[..random]);
            batch.insert(keyspace, shape.key(number), &value);
        }
        batch.durability(Durability::Buffered).commit()?;
    }
    Ok(())
}

/// A part of the work, by name.
type Part = (&'static str, fn(&Database, &Keyspace, &Shape) -> Result<()>);

const PARTS: [Part; 13] = [
    ("load", |db, keyspace, shape| {
        write(db, keyspace, shape, 0..shape.count())?;
        db.flush()
    }),
    ("update", |db, keyspace, shape| {
        let mut rng = StdRng::seed_from_u64(2);
        let count = shape.count();
        write(db, keyspace, shape, (0..count / 2).map(|_| rng.random_range(0..count)))
    }),
    ("get", |_, keyspace, shape| {
        for number in (0..shape.count()).step_by((shape.count() / 2000 + 1) as usize) {
            assert!(keyspace.get(shape.key(number))?.is_some());
        }
        Ok(())
    }),
    ("multi_get", |_, keyspace, shape| {
        // As many as may be held in the caller's hands.
        let most = (shape.budget / 16 / (shape.key + shape.value) as u64).clamp(1, 256);
        for first in (0..shape.count() - most).step_by((shape.count() / 20 + 1) as usize) {
            let keys: Vec<_> = (first..first + most).map(|number| shape.key(number)).collect();
            assert!(keyspace.multi_get(keys)?.iter().all(Option::is_some));
        }
        Ok(())
    }),
    ("scan", |db, keyspace, shape| {
        // As for a backup.
        let snapshot = db.snapshot();
        let found = snapshot.iter(keyspace).map(|record| record.map(|_| ())).collect::<Result<Vec<()>>>()?;
        assert_eq!(found.len() as u64, shape.count());
        Ok(())
    }),
    ("large batches", |db, keyspace, shape| {
        // Of a sixth of the budget: larger than one that is added to what is in the queue, with a full cache.
        let each = (shape.budget as usize / 6 / (shape.key + shape.value + 80)).max(1) as u64;
        for first in (0..shape.count()).step_by(each as usize).take(4) {
            for number in (0..shape.count()).step_by((shape.count() / 2000 + 1) as usize) {
                keyspace.get(shape.key(number))?;
            }
            write(db, keyspace, shape, 0..each / 2)?;
            let mut batch = db.batch();
            for number in first..(first + each).min(shape.count()) {
                batch.insert(keyspace, shape.key(number), vec![1; shape.value]);
            }
            batch.durability(Durability::Buffered).commit()?;
        }
        Ok(())
    }),
    ("standing", |db, keyspace, shape| {
        // While queues are full.
        write(db, keyspace, shape, 0..shape.count() / 8)?;
        let mut scans: Vec<_> =
            (0..40).map(|scan| keyspace.range(shape.key(scan * shape.count() / 40)..)).collect();
        for scan in &mut scans {
            scan.next().transpose()?;
        }
        write(db, keyspace, shape, 0..shape.count() / 8)
    }),
    ("snapshots", |db, keyspace, shape| {
        let mut snapshots = std::collections::VecDeque::new();
        for round in 0..40 {
            write(db, keyspace, shape, (0..shape.count() / 40).map(|number| number * 40 + round))?;
            snapshots.push_back(db.snapshot());
            if snapshots.len() > 2 {
                snapshots.pop_front();
            }
        }
        Ok(())
    }),
    ("large in", |db, _, shape| {
        if !has_large_values(shape) {
            return Ok(());
        }
        let values = db.large_values("large")?;
        std::thread::scope(|scope| {
            for key in ["one", "other"] {
                let values = values.clone();
                scope.spawn(move || values.insert_from(key, std::io::repeat(7).take(LARGE)).expect("writes"));
            }
        });
        Ok(())
    }),
    ("large out", |db, _, shape| {
        if !has_large_values(shape) {
            return Ok(());
        }
        let values = db.large_values("large")?;
        for key in ["one", "other"] {
            let mut reader = values.get_reader(key)?.expect("it is there");
            assert_eq!(std::io::copy(&mut reader, &mut std::io::sink()).expect("reads"), LARGE);
        }
        Ok(())
    }),
    ("check", |db, _, _| db.check().map(drop)),
    ("compact", |db, _, _| db.compact().map(drop)),
    ("iterators", |db, keyspace, shape| {
        write(db, keyspace, shape, 0..shape.count() / 8)?;
        let mut rng = StdRng::seed_from_u64(3);
        let mut iterators: Vec<_> = Vec::new();
        for _ in 0..iterator_count(shape) {
            let mut iterator = keyspace.range(shape.key(rng.random_range(0..shape.count()))..);
            iterator.next().transpose()?;
            iterators.push(iterator);
        }
        Ok(())
    }),
];

/// Bytes of a large value: as many as some budgets.
const LARGE: u64 = 64 * MIB;

fn has_large_values(shape: &Shape) -> bool {
    shape.name == "values of 60 KiB"
}

/// Bytes: blocks of this length and more go back to the system when they are freed.
const GIVEN_BACK_AT_ONCE: &str = "524288";

const CHILD: &str = "SAPWOOD_SHAPE";

#[test]
fn the_budget_is_kept_for_every_shape_of_record() {
    if let Ok(child) = std::env::var(CHILD) {
        let number: usize = child.parse().expect("a number");
        of_shape(&SHAPES[number]);
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let wanted = std::env::var("SAPWOOD_SHAPES").unwrap_or_default();
    println!("{:22}{:>8}{}", "MiB", "budget", PARTS.map(|(name, _)| format!("{name:>11}")).concat());
    let chosen: Vec<usize> =
        (0..SHAPES.len()).filter(|number| SHAPES[*number].name.contains(&wanted)).collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let run = || {
        while let Some(number) = chosen.get(next.fetch_add(1, Relaxed)) {
            let child = Command::new(&program)
                .args(["--exact", "the_budget_is_kept_for_every_shape_of_record", "--nocapture"])
                .env(CHILD, number.to_string())
                // Or glibc keeps freed values of some MiB in its arenas, from 20 to 200 MiB from run to run: not the store's.
                .env("MALLOC_MMAP_THRESHOLD_", GIVEN_BACK_AT_ONCE)
                .output()
                .expect("a child");
            let text = String::from_utf8_lossy(&child.stdout);
            println!("{}", text.lines().find(|line| line.contains("MiB:")).unwrap_or("no row"));
            if !child.status.success() {
                let told = String::from_utf8_lossy(&child.stderr).into_owned();
                failed.lock().expect("no panic").push(format!("{}: {told}", SHAPES[*number].name));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(run);
        }
    });
    let failed = failed.into_inner().expect("no panic");
    assert!(failed.is_empty(), "{failed:#?}");
}

fn of_shape(shape: &Shape) {
    let dir = std::env::var("SAPWOOD_DIR").map_or_else(|_| tempfile::tempdir(), tempfile::tempdir_in);
    let dir = dir.expect("a directory");
    let path = dir.path().join("db");
    let before = resident();
    let (mut row, mut over) = (String::new(), Vec::new());
    let only = std::env::var("SAPWOOD_PARTS").unwrap_or_default();
    for (name, part) in PARTS {
        if name != "load" && !name.contains(&only) {
            continue;
        }
        let (db, keyspace) = open(&path, shape).expect("opens");
        let began = std::time::Instant::now();
        let (peak, done) = peak_while(before, || part(&db, &keyspace, shape));
        done.unwrap_or_else(|error| panic!("{} {name}: {error}", shape.name));
        row += &format!("{:>6}/{:<4.1}", peak / MIB, began.elapsed().as_secs_f64());
        if peak > most(shape, name) {
            over.push(format!("{name}: {} MiB\n{}", peak / MIB, db.stats()));
        }
    }
    println!("\n{:22}{:>4} MiB:{row}", shape.name, shape.budget / MIB);
    assert!(over.is_empty(), "beyond the budget: {}", over.join("\n"));
}
