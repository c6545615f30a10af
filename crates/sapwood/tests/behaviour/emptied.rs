//! A full disk can be emptied by whoever fills it: removals, `flush`, `compact` and opening have a reserve.

use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Compression, Database, Durability, Keyspace};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How a process comes to its end on the full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It does not: it removes the records itself.
    None,
    Closed,
    Killed,
    PowerLoss,
}

/// How records are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    OneByOne,
    /// In eight ranges.
    Ranges,
    /// All of them with one.
    Clear,
    /// With the keyspace.
    Drop,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    capacity: u64,
    memory: u64,
    value: usize,
    background: usize,
    durability: Durability,
    end: End,
    compression: Compression,
}

fn open(volume: &Simulated, case: &Case) -> sapwood::Result<(Database, Keyspace)> {
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let options = Database::builder()
        .compression(case.compression)
        .memory(case.memory)
        .background_threads(case.background);
    let db = options.open_on(shared)?;
    let keyspace = db.keyspace("main")?;
    Ok((db, keyspace))
}

fn key(number: u64) -> [u8; 8] {
    // Scattered.
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

/// Puts records until they are refused for good. Returns how many there are.
fn fill(db: &Database, keyspace: &Keyspace, case: &Case) -> u64 {
    let (mut number, mut refused) = (0, 0);
    while refused < 5 {
        let count = if refused == 0 { (4096 / case.value as u64).max(1) } else { 1 };
        let mut batch = db.batch();
        for next in number..number + count {
            let mut value: Vec<u8> = (0..case.value).map(|at| (next as usize * 31 + at * 7) as u8).collect();
            value[0] = next as u8;
            if case.compression != Compression::None {
                // A quarter of it does not compress.
                StdRng::seed_from_u64(next).fill(&mut value[..case.value.div_ceil(4)]);
            }
            batch.insert(keyspace, key(next), value);
        }
        match batch.durability(case.durability).commit() {
            Ok(()) => number += count,
            Err(error) if error.is_disk_full() => refused += 1,
            Err(other) => panic!("{case:?}: a full disk is no {other}"),
        }
        let most = if case.compression == Compression::None { 4 } else { 12 } * case.capacity;
        assert!(number * (case.value as u64) < most, "{case:?}: it never runs full");
    }
    number
}

fn empties(case: Case, how: How) {
    let mut volume = Simulated::new(case.capacity).with_capacity(case.capacity);
    let (mut db, mut keyspace) = open(&volume, &case).expect("opens");
    let count = fill(&db, &keyspace, &case);
    let held = count * case.value as u64;
    assert!(count > 0, "{case:?}");
    if case.end != End::None {
        let image = match case.end {
            End::Killed => Some(volume.crash()),
            // The file system has the space of what was lost, also if other files come back.
            End::PowerLoss => {
                let (found, reserve) = (volume.power_loss(count), db.stats().space.reserve);
                found.set_capacity(case.capacity.max(found.used() + reserve));
                Some(found)
            }
            End::None | End::Closed => None,
        };
        drop(keyspace);
        drop(db);
        volume = image.unwrap_or(volume);
        (db, keyspace) = open(&volume, &case).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        db.check().unwrap_or_else(|error| panic!("{case:?}: {error}"));
        if case.end != End::PowerLoss || case.durability == Durability::Immediate {
            let found = keyspace.iter().filter(Result::is_ok).count() as u64;
            assert_eq!(found, count, "{case:?}");
        }
    }
    for start in (0..count).step_by(200).filter(|_| how == How::OneByOne) {
        let mut batch = db.batch();
        (start..count.min(start + 200)).for_each(|number| _ = batch.remove(&keyspace, key(number)));
        let removed = batch.durability(case.durability).commit();
        let space = || (volume.used(), db.stats().space);
        removed
            .unwrap_or_else(|error| panic!("{case:?}: removal {start} of {count}: {error}: {:?}", space()));
    }
    match how {
        How::OneByOne => {}
        How::Ranges => {
            for part in 0..8u8 {
                let (from, to) =
                    ([part * 32], part.checked_add(1).filter(|next| *next < 8).map(|next| [next * 32]));
                let removed = match to {
                    Some(to) => keyspace.remove_range(from..to),
                    None => keyspace.remove_range(from..),
                };
                removed.unwrap_or_else(|error| panic!("{case:?}: range {part}: {error}"));
            }
        }
        How::Clear => keyspace.clear().unwrap_or_else(|error| panic!("{case:?}: clear: {error}")),
        How::Drop => {
            let dropped = db.drop_keyspace("main").unwrap_or_else(|error| panic!("{case:?}: drop: {error}"));
            assert!(dropped);
        }
    }
    db.flush().unwrap_or_else(|error| panic!("{case:?}: flush: {error}"));
    db.compact().unwrap_or_else(|error| panic!("{case:?}: compact: {error}"));
    keyspace = db.keyspace("main").unwrap_or_else(|error| panic!("{case:?}: {error}"));
    assert_eq!(keyspace.iter().count(), 0, "{case:?}");
    // The background thread gives back what it keeps for a flush as soon as nobody writes.
    let began = Instant::now();
    while volume.used() >= case.capacity / 2
        && case.background > 0
        && began.elapsed() < Duration::from_secs(20)
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    let used = volume.used();
    assert!(
        used < case.capacity / 2,
        "{case:?}: {used} bytes are in use after {held} were removed: {:?}",
        db.stats().space
    );
    for number in 0..count / 4 {
        let mut batch = db.batch();
        batch.insert(&keyspace, key(number), vec![1; case.value]);
        let put = batch.durability(case.durability).commit();
        put.unwrap_or_else(|error| panic!("{case:?}: put {number} again: {error}"));
    }
    db.flush().unwrap_or_else(|error| panic!("{case:?}: flush again: {error}"));
    assert_eq!(keyspace.iter().count() as u64, count / 4, "{case:?}");
    db.check().unwrap_or_else(|error| panic!("{case:?}: {error}"));
}

const SHAPES: [(u64, usize, Durability); 4] = [
    (4 << 20, 20, Durability::Buffered),
    (16 << 20, 100, Durability::Immediate),
    (64 << 20, 1000, Durability::Buffered),
    (16 << 20, 60_000, Durability::Buffered),
];

const LEVELS: u64 = 24;

fn empties_at_every_level(background: usize, end: End) {
    empties_by(background, end, How::OneByOne, 0..LEVELS);
}

/// Half of the levels with a background thread, and half without: each shape has both.
fn empties_in_either_way(end: End) {
    for level in 0..LEVELS {
        let background = (level as usize / SHAPES.len()) % 2;
        empties_by(background, end, How::OneByOne, level..level + 1);
    }
}

fn empties_by(background: usize, end: End, how: How, levels: std::ops::Range<u64>) {
    for level in levels {
        let (memory, value, durability) = SHAPES[level as usize % SHAPES.len()];
        // Ends of blocks, portions and queues come everywhere.
        let capacity = (3 << 20) + level * 437_333;
        let compression = Compression::None;
        empties(Case { capacity, memory, value, background, durability, end, compression }, how);
    }
}

#[test]
fn a_full_disk_can_be_emptied() {
    empties_at_every_level(0, End::None);
}

/// The log, which is not compressed, is most of what fills it.
#[test]
fn a_full_disk_of_compressed_records_can_be_emptied() {
    let ends = [End::None, End::Closed, End::Killed, End::PowerLoss];
    for level in 0..LEVELS {
        let (memory, value, durability) = SHAPES[level as usize % SHAPES.len()];
        let capacity = (3 << 20) + level * 437_333;
        let (background, end) = ((level as usize / SHAPES.len()) % 2, ends[level as usize % 5 % ends.len()]);
        let compression = Compression::Lz4;
        empties(Case { capacity, memory, value, background, durability, end, compression }, How::OneByOne);
    }
}

#[test]
fn a_full_disk_can_be_emptied_by_ranges_and_keyspaces() {
    // Each way at a third of the levels: what differs between them is how the records go.
    for (part, how) in (0..).zip([How::Ranges, How::Clear, How::Drop]) {
        let levels = LEVELS / 3 * part..LEVELS / 3 * (part + 1);
        empties_by(0, End::None, how, levels.clone());
        empties_by(1, End::Closed, how, levels.start..levels.start + 4);
    }
}

#[test]
fn a_full_disk_can_be_emptied_beside_a_background_thread() {
    empties_at_every_level(1, End::None);
}

#[test]
fn a_full_disk_can_be_emptied_after_closing() {
    empties_in_either_way(End::Closed);
}

#[test]
fn a_full_disk_can_be_emptied_after_a_kill() {
    empties_in_either_way(End::Killed);
}

#[test]
fn a_full_disk_can_be_emptied_after_a_power_loss() {
    empties_at_every_level(0, End::PowerLoss);
}

/// What is overwritten takes no space but the log's, which a flush frees.
#[test]
fn a_record_is_overwritten_for_ever_on_a_disk_that_was_full() {
    for (background, level) in (0..16).map(|number| (number % 2, number as u64 / 2)) {
        let (memory, value, durability) = SHAPES[0];
        let capacity = (3 << 20) + level * 87_333;
        let case = Case {
            capacity,
            memory,
            value,
            background,
            durability,
            end: End::None,
            compression: Compression::None,
        };
        let volume = Simulated::new(level).with_capacity(capacity);
        let (db, keyspace) = open(&volume, &case).expect("opens");
        let count = fill(&db, &keyspace, &case);
        for start in (count / 4..count).step_by(200) {
            let mut batch = db.batch();
            (start..count.min(start + 200)).for_each(|number| _ = batch.remove(&keyspace, key(number)));
            batch
                .durability(durability)
                .commit()
                .unwrap_or_else(|error| panic!("{case:?}: removal: {error}"));
        }
        db.compact().unwrap_or_else(|error| panic!("{case:?}: {error}"));
        for number in 0..30_000 {
            let mut batch = db.batch();
            batch.insert(&keyspace, key(number % (count / 4)), [number as u8; 20]);
            let put = batch.durability(durability).commit();
            put.unwrap_or_else(|error| panic!("{case:?}: put {number}: {error}: {:?}", db.stats().space));
        }
    }
}

/// Puts that are refused share their commits with removals that are not.
#[test]
fn removals_go_on_beside_puts_that_are_refused() {
    let case = Case {
        compression: Compression::None,
        capacity: 6 << 20,
        memory: 8 << 20,
        value: 100,
        background: 1,
        durability: Durability::Immediate,
        end: End::None,
    };
    let volume = Simulated::new(1).with_capacity(case.capacity);
    let (db, keyspace) = open(&volume, &case).expect("opens");
    let count = fill(&db, &keyspace, &case);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (keyspace, is_over) = (&keyspace, &is_over);
            scope.spawn(move || {
                let mut number = 0;
                while !is_over.load(Relaxed) {
                    match keyspace.insert(format!("{thread} {number}"), [1; 2000]) {
                        Ok(()) => number += 1,
                        Err(error) if error.is_disk_full() => std::thread::yield_now(),
                        Err(other) => panic!("a full disk is no {other}"),
                    }
                }
            });
        }
        let removers: Vec<_> = (0..3)
            .map(|part| {
                let keyspace = &keyspace;
                scope.spawn(move || {
                    let numbers = (part..count.min(3000)).step_by(3);
                    numbers.map(|number| keyspace.remove(key(number))).find(Result::is_err)
                })
            })
            .collect();
        let failed: Vec<_> =
            removers.into_iter().filter_map(|remover| remover.join().expect("ends")).collect();
        is_over.store(true, Relaxed);
        assert!(failed.is_empty(), "{failed:?}: {:?}", db.stats().space);
    });
    assert!((0..count.min(3000)).all(|number| keyspace.get(key(number)).expect("sound").is_none()));
    db.check().expect("sound");
}
