//! Records of which each is a leaf of its own: they go to the leaves without a log area between, what lies beside them stays where it is, and no leaf is read for it.

use proptest::prelude::*;
use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Keyspace};
use std::collections::BTreeMap;
use std::sync::Arc;

fn open() -> (Database, Keyspace) {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let builder = Database::builder()
        .compression(sapwood::Compression::None)
        .memory(8 << 20)
        .segment_span(16 << 20)
        .background_threads(0);
    let db = builder.open_on(volume).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    (db, keyspace)
}

fn key(number: u64) -> [u8; 24] {
    let mut key = [7; 24];
    // Scattered.
    key[..8].copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key
}

const LONG: usize = 4096;

/// Puts records with such numbers, all long, and flushes. Says how many bytes of data that wrote, and how many of them were copied by the collector.
fn put(db: &Database, keyspace: &Keyspace, numbers: impl Iterator<Item = u64>, byte: u8) -> (f64, f64) {
    let of = || {
        let writes = db.stats().writes;
        (writes.data_bytes, writes.collected_bytes)
    };
    let before = of();
    let mut count = 0;
    for number in numbers {
        keyspace.insert(key(number), vec![byte; LONG]).expect("inserts");
        count += 1;
    }
    db.flush().expect("flushes");
    let (after, put) = (of(), (count * (LONG + 24)) as f64);
    ((after.0 - before.0) as f64 / put, (after.1 - before.1) as f64 / put)
}

#[test]
fn each_is_written_once_on_its_way_to_its_leaf() {
    const RECORDS: u64 = 4000;
    let (db, keyspace) = open();
    for portion in 0..8 {
        let (written, _) = put(&db, &keyspace, (0..RECORDS).skip(portion).step_by(8), 1);
        assert!(written < 1.3, "loading: {written:.2} bytes for a byte");
    }
    assert_eq!(db.stats().space.log_pieces, 0);
    // Some are the first of their blocks, and samples are taken of what comes.
    let requests = db.stats().reads.requests;
    assert!(requests < RECORDS / 10, "{requests} requests");
    let missing =
        (RECORDS..RECORDS + 500).filter(|number| keyspace.get(key(*number)).expect("reads").is_none());
    assert_eq!(missing.count(), 500);
    let keys: Vec<_> = (RECORDS..RECORDS + 500).map(key).collect();
    assert!(keyspace.multi_get(&keys).expect("reads").iter().all(Option::is_none));
    let more = db.stats().reads.requests - requests;
    assert!(more < 100, "{more} requests for 500 that are not there, twice");
    // And to remove what is not there.
    let before = db.stats();
    (RECORDS..RECORDS + 500).for_each(|number| keyspace.remove(key(number)).expect("removes"));
    db.flush().expect("flushes");
    let (reads, writes) = (db.stats().reads, db.stats().writes);
    let (requests, bytes) =
        (reads.requests - before.reads.requests, writes.data_bytes - before.writes.data_bytes);
    assert!(
        requests < 100 && bytes < 500 << 10,
        "{requests} requests, {bytes} bytes for 500 that are not there"
    );
    let mut rng = StdRng::seed_from_u64(3);
    for round in 0..20 {
        let numbers: Vec<_> = (0..400).map(|_| rng.random_range(0..RECORDS)).collect();
        let (written, collected) = put(&db, &keyspace, numbers.into_iter(), 2);
        let once = written - collected;
        assert!(once < 1.3, "round {round}: {once:.2} bytes for a byte, and {collected:.2} copied");
        let space = db.stats().space;
        assert!(
            space.log_pieces == 0 && space.amplification < 1.26,
            "round {round}: {}",
            space.amplification
        );
    }
    // Some go again, and their leaves with them.
    (0..RECORDS / 2).for_each(|number| keyspace.remove(key(number)).expect("removes"));
    db.flush().expect("flushes");
    let checked = db.check().expect("sound");
    assert_eq!(checked.records, RECORDS / 2);
    assert!(db.stats().space.live < (RECORDS / 2) * 4400);
}

/// A removal is to free space, on a disk that may be nearly full.
#[test]
fn making_some_shorter_neither_reads_nor_writes_their_neighbours() {
    const RECORDS: u64 = 1000;
    for (len, becomes) in [(3000, None), (9000, None), (9000, Some("short"))] {
        let (db, keyspace) = open();
        (0..RECORDS).for_each(|number| keyspace.insert(key(number), vec![1; len]).expect("inserts"));
        db.flush().expect("flushes");
        let before = db.stats();
        for number in (0..RECORDS).step_by(3) {
            match becomes {
                Some(value) => keyspace.insert(key(number), value).expect("inserts"),
                None => keyspace.remove(key(number)).expect("removes"),
            }
        }
        db.flush().expect("flushes");
        let after = db.stats();
        let collected = after.writes.collected_bytes - before.writes.collected_bytes;
        let written = after.writes.data_bytes - before.writes.data_bytes - collected;
        assert!(written < 500 << 10, "{len} to {becomes:?}: {written} bytes written");
        let read = after.reads.bytes - before.reads.bytes;
        assert!(read < collected + (700 << 10), "{len} to {becomes:?}: {read} bytes read");
        db.check().expect("sound");
    }
}

#[test]
fn removals_of_short_ones_weigh_what_short_ones_do_beside_a_keyspace_of_long_ones() {
    let (db, long) = open();
    put(&db, &long, 0..4000, 1);
    let short = db.keyspace("short").expect("a keyspace");
    let numbers = 0..200_000;
    numbers.clone().for_each(|number| short.insert(key(number), b"short").expect("inserts"));
    db.flush().expect("flushes");
    db.compact().expect("compacts");
    let before = db.stats().writes.data_bytes;
    let few = numbers.step_by(50);
    let removed = few.clone().count() as u64;
    few.for_each(|number| short.remove(key(number)).expect("removes"));
    db.flush().expect("flushes");
    let each = (db.stats().writes.data_bytes - before) / removed;
    assert!(each < 400, "{each} bytes written for each removal");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Whatever their neighbours are.
    #[test]
    fn long_and_short_ones_lie_beside_one_another(seed: u64, long in 0u32..=100, space in 20u64..1500, long_keys: bool) {
        let (db, keyspace) = open();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut model = BTreeMap::new();
        for _ in 0..8 {
            for _ in 0..rng.random_range(1..space) {
                let number = rng.random_range(0..space);
                let mut key = key(number).to_vec();
                if long_keys && number % 7 == 0 {
                    key.resize(3000, 1);
                }
                if rng.random_ratio(1, 8) {
                    model.remove(&key);
                    keyspace.remove(&key).expect("removes");
                    continue;
                }
                // Some of the length from which they are long.
                let len = match rng.random_range(0..100) < long {
                    true => [1900, 2010, 4000, 4096, 9000][rng.random_range(0..5)] + rng.random_range(0..60),
                    false => rng.random_range(0..200),
                };
                let value = vec![rng.random::<u8>(); len];
                keyspace.insert(&key, &value).expect("inserts");
                model.insert(key, value);
            }
            db.flush().expect("flushes");
            if rng.random_ratio(1, 4) {
                db.compact().expect("compacts");
            }
            db.check().expect("sound");
            let found = keyspace.iter().map(|item| item.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("sound"));
            prop_assert!(found.eq(model.clone()));
        }
    }
}
