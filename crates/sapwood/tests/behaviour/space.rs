//! What the store takes, counted on a simulated volume: bytes written by a sorted load, space under overwriting, and that
//! trees shrink when records go.

use psync::{Device, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Compression, Database, Durability, Keyspace};
use std::sync::Arc;

fn open(volume: &Simulated) -> Database {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    Database::builder()
        .memory(8 << 20)
        .segment_span(16 << 20)
        .background_threads(0)
        .open_on(volume)
        .expect("opens")
}

fn key(number: u32) -> Vec<u8> {
    format!("user{number:012}").into_bytes()
}

fn commit(db: &Database, keyspace: &Keyspace, numbers: impl Iterator<Item = u32>, rng: &mut StdRng) {
    let mut batch = db.batch();
    for number in numbers {
        let value: [u8; 100] = std::array::from_fn(|_| rng.random());
        batch.insert(keyspace, key(number), value);
    }
    batch.durability(Durability::Buffered).commit().expect("commits");
}

const RECORDS: u32 = 100_000;
const BYTES: u64 = RECORDS as u64 * 116;

/// The last snapshot went when its database had been closed, and what only that had held stayed in the file.
#[test]
fn what_a_snapshot_held_goes_with_it_at_closing() {
    let used = |drops_last: bool| {
        let volume = Simulated::new(1);
        let builder =
            Database::builder().memory(4 << 20).background_threads(0).compression(Compression::None);
        let db = builder.open_on(Arc::new(volume.clone())).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        let records = (0..20_000u32).map(|number| (number.to_be_bytes(), number.to_le_bytes().repeat(100)));
        keyspace.ingest(records).expect("ingests");
        let (snapshot, range) = (db.snapshot(), keyspace.iter());
        keyspace.remove_range(..).expect("removes");
        db.flush().expect("flushes");
        db.compact().expect("compacts");
        if drops_last {
            drop((keyspace, db));
            drop(snapshot);
            drop(range);
        } else {
            drop((snapshot, range));
            drop((keyspace, db));
        }
        volume.used()
    };
    let (last, first) = (used(true), used(false));
    assert!(last < first + (1 << 20), "{last} bytes used, not {first}");
}

#[test]
fn a_sorted_load_writes_each_byte_little_more_than_twice_and_fills_its_leaves() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let keyspace = db.keyspace("main").expect("a keyspace");
    let mut rng = StdRng::seed_from_u64(1);
    for start in (0..RECORDS).step_by(1000) {
        commit(&db, &keyspace, start..start + 1000, &mut rng);
    }
    db.flush().expect("flushes");
    let written = volume.counters().bytes_written as f64 / BYTES as f64;
    // By this count; what the log has is mostly removed before a disk would have it.
    assert!(written <= 2.3, "{written:.2} bytes written for a byte, log and manifest included");
    let checked = db.check().expect("sound");
    assert!(checked.leaf_fill_percent >= 95.0, "{checked}");
    assert_eq!(checked.records, u64::from(RECORDS));
}

#[test]
fn space_stays_within_its_target_under_overwriting() {
    let volume = Simulated::new(2);
    let db = open(&volume);
    let keyspace = db.keyspace("main").expect("a keyspace");
    let mut rng = StdRng::seed_from_u64(2);
    for start in (0..RECORDS).step_by(1000) {
        commit(&db, &keyspace, start..start + 1000, &mut rng);
    }
    let mut worst: f64 = 0.0;
    for round in 0..10 * RECORDS / 4000 {
        let numbers: Vec<u32> = (0..4000).map(|_| rng.random_range(0..RECORDS)).collect();
        commit(&db, &keyspace, numbers.into_iter(), &mut rng);
        let space = db.stats().space;
        worst = worst.max(space.amplification);
        assert!(space.amplification <= 1.4, "round {round}: {:.2} x what lives", space.amplification);
    }
    db.flush().expect("flushes");
    let space = db.stats().space;
    let (live, taken) = (space.live, volume.used() - space.reserve);
    // An eighth and a block, for a manifest, and no queue is in the log.
    let reserve = live / 8 + (4 << 20) + space.manifest + (2 << 20);
    assert!(space.reserve <= reserve, "{} bytes in reserve, of at most {reserve}", space.reserve);
    let ratio = taken as f64 / live as f64;
    assert!(ratio <= 1.4, "{ratio:.2} x on the device, log and manifest included (worst inside: {worst:.2})");
    db.check().expect("sound");
}

/// Every session goes on in the segment that the last one left. It must not grow to the segment's full span only because a
/// small database is opened often.
#[test]
fn a_small_database_that_is_opened_often_stays_small() {
    let volume = Simulated::new(3);
    let mut rng = StdRng::seed_from_u64(3);
    for session in 0..30 {
        let db = open(&volume);
        let keyspace = db.keyspace("main").expect("a keyspace");
        commit(&db, &keyspace, 0..3000, &mut rng);
        db.flush().expect("flushes");
        let space = db.stats().space;
        // A megabyte is the least that a segment takes, and two of dead bytes are not worth a collection.
        assert!(space.used <= space.live + (4 << 20), "session {session}: {space:?}");
    }
}

#[test]
fn trees_shrink_when_records_go() {
    let volume = Simulated::new(3);
    let db = open(&volume);
    let keyspace = db.keyspace("main").expect("a keyspace");
    let mut rng = StdRng::seed_from_u64(3);
    for start in (0..RECORDS).step_by(1000) {
        commit(&db, &keyspace, start..start + 1000, &mut rng);
    }
    db.flush().expect("flushes");
    let before = db.stats();
    let remove = |every: u32| {
        let mut left = 0u64;
        for start in (0..RECORDS).step_by(1000) {
            let mut batch = db.batch();
            for number in start..start + 1000 {
                if number % every == 0 {
                    left += 1;
                } else {
                    batch.remove(&keyspace, key(number));
                }
            }
            batch.durability(Durability::Buffered).commit().expect("commits");
        }
        db.flush().expect("flushes");
        left
    };
    let left = remove(50);
    let after = db.stats();
    assert_eq!(keyspace.len_estimate(), left);
    assert_eq!(keyspace.iter().count() as u64, left);
    assert!(after.space.live < before.space.live / 10, "{} of {} live", after.space.live, before.space.live);
    assert!(
        after.space.nodes < before.space.nodes / 10,
        "{} of {} nodes",
        after.space.nodes,
        before.space.nodes
    );
    db.check().expect("sound");
    // Down to one leaf, and to none at all.
    assert_eq!(remove(RECORDS), 1);
    assert_eq!(db.stats().space.nodes, 1, "{}", db.stats());
    keyspace.remove(key(0)).expect("commits");
    db.flush().expect("flushes");
    assert_eq!((db.stats().space.nodes, db.stats().space.live), (0, 0));
    assert!(keyspace.iter().next().is_none());
    // And up again.
    commit(&db, &keyspace, 0..5000, &mut rng);
    db.flush().expect("flushes");
    assert_eq!(db.check().expect("sound").records, 5000);
}

/// While a database grows its log areas may be longer, since new records take no space twice in them; when it is overwritten
/// afterwards they become short again before their space is felt.
#[test]
fn a_database_that_grows_at_random_writes_less_and_takes_no_more_space_later() {
    let volume = Simulated::new(4);
    let db = open(&volume);
    let keyspace = db.keyspace("main").expect("a keyspace");
    let mut rng = StdRng::seed_from_u64(4);
    let records = 2 * RECORDS;
    // A permutation: 7919 is a prime and no factor of the number of records.
    let at = |number: u32| (u64::from(number) * 7919 % u64::from(records)) as u32;
    for start in (0..records).step_by(1000) {
        commit(&db, &keyspace, (start..start + 1000).map(at), &mut rng);
    }
    db.flush().expect("flushes");
    let written = db.stats().writes.data_bytes as f64 / (2 * BYTES) as f64;
    assert!(written < 4.9, "{written:.2} bytes of data written for a byte");
    let mut worst: f64 = 0.0;
    for _ in 0..2 * records / 1000 {
        let numbers: Vec<u32> = (0..1000).map(|_| rng.random_range(0..records)).collect();
        commit(&db, &keyspace, numbers.into_iter(), &mut rng);
        worst = worst.max(db.stats().space.used as f64 / (2 * BYTES) as f64);
    }
    assert!(worst <= 1.4, "{worst:.2} bytes of space for a byte of records");
}

/// A slot of 64 MiB for each segment, of 256 KiB in a small database, made the file 300 times as long.
#[test]
fn the_data_file_is_hardly_longer_than_what_it_has_on_disk() {
    let volume = Simulated::new(5);
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let db = Database::builder().memory(8 << 20).background_threads(0).open_on(shared).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    let mut rng = StdRng::seed_from_u64(5);
    let mut most = 0;
    let mut look = |what: &str| {
        let entries = Volume::list(&volume).expect("a list");
        let len = entries.iter().find(|entry| entry.name == "data").expect("the data").len;
        most = volume.used().max(most);
        assert!(len <= most / 2 * 3 + (4 << 20), "{what}: {len} bytes, {most} on disk");
    };
    for start in (0..RECORDS).step_by(1000) {
        commit(&db, &keyspace, start..start + 1000, &mut rng);
        if start % 7000 == 0 {
            db.flush().expect("flushes");
            look("loading in small flushes");
        }
    }
    for round in 0..100 {
        let numbers: Vec<_> = (0..3000).map(|_| rng.random_range(0..RECORDS)).collect();
        commit(&db, &keyspace, numbers.into_iter(), &mut rng);
        if round % 9 == 0 {
            db.flush().expect("flushes");
        }
        look("overwriting");
    }
    for len in [300 << 10, 900 << 10, 100, 420_000] {
        for number in 0..20u32 {
            // No value is longer than the batch may be.
            let value = vec![len as u8; len.min(400 << 10)];
            keyspace.insert(key(rng.random_range(0..RECORDS) + number), value).expect("commits");
        }
        db.flush().expect("flushes");
        look("long values");
    }
    db.compact().expect("compacts");
    look("compacted");
    db.check().expect("sound");
}

/// The records that stay when most are removed: one in fifty, scattered, or the first or the last of the keys.
#[derive(Clone, Copy, Debug)]
enum Left {
    Scattered,
    First,
    Last,
    None,
}

/// What had been 300 MB stayed so in `ls -l`, whatever was removed.
#[test]
fn the_data_file_becomes_shorter_when_records_go() {
    for (seed, left) in [Left::Scattered, Left::First, Left::Last, Left::None].into_iter().enumerate() {
        let volume = Simulated::new(seed as u64);
        let mut db = open(&volume);
        let mut keyspace = db.keyspace("main").expect("a keyspace");
        let mut rng = StdRng::seed_from_u64(seed as u64);
        let lens = || {
            let entries = Volume::list(&volume).expect("a list");
            let len = entries.iter().find(|entry| entry.name == "data").expect("the data").len;
            (len, volume.used())
        };
        let records = 3 * RECORDS;
        for start in (0..records).step_by(1000) {
            let numbers =
                (start..start + 1000).map(|number| (u64::from(number) * 7919 % u64::from(records)) as u32);
            commit(&db, &keyspace, numbers, &mut rng);
        }
        db.flush().expect("flushes");
        let before = lens();
        let stays = |number: u32| match left {
            Left::Scattered => number.is_multiple_of(50),
            Left::First => number < records / 50,
            Left::Last => number >= records - records / 50,
            Left::None => false,
        };
        for start in (0..records).step_by(1000) {
            let mut batch = db.batch();
            (start..start + 1000).filter(|number| !stays(*number)).for_each(|number| {
                batch.remove(&keyspace, key(number));
            });
            if !batch.is_empty() {
                batch.durability(Durability::Buffered).commit().expect("commits");
            }
        }
        db.flush().expect("flushes");
        let flushed = lens();
        db.compact().expect("compacts");
        let compacted = lens();
        drop((keyspace, db));
        let closed = lens();
        db = open(&volume);
        keyspace = db.keyspace("main").expect("a keyspace");
        assert_eq!(
            keyspace.iter().count() as u32,
            (0..records).filter(|number| stays(*number)).count() as u32
        );
        db.check().expect("sound");
        for (len, used) in [flushed, compacted, closed, lens()] {
            assert!(
                len <= used / 2 * 3 + (4 << 20),
                "{left:?}: {len} bytes, {used} on disk; {before:?} before"
            );
        }
    }
}
