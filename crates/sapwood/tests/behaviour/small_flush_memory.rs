//! A small flush takes little memory, and leaves the cache to those who read.

use psync::{Simulated, Volume};
use sapwood::{Database, Keyspace};
use std::sync::Arc;

const RECORDS: u64 = 100_000;

fn key(number: u64) -> [u8; 8] {
    (number * 7919 % RECORDS).to_be_bytes()
}

/// Reads all records, and says how many nodes came from the device.
fn misses_of_a_round(db: &Database, keyspace: &Keyspace) -> u64 {
    let before = db.stats().reads.cache_misses;
    for number in 0..RECORDS {
        assert!(keyspace.get(key(number)).expect("reads").is_some());
    }
    db.stats().reads.cache_misses - before
}

#[test]
fn what_is_cached_stays_through_small_flushes() {
    for background in [0, 1] {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let options = Database::builder()
            .compression(sapwood::Compression::None)
            .memory(23 << 20)
            .background_threads(background);
        let db = options.open_on(volume).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        let value = |number: u64| [number as u8; 100];
        let mut sorted: Vec<_> = (0..RECORDS).collect();
        sorted.sort_by_key(|number| key(*number));
        keyspace.ingest(sorted.into_iter().map(|number| (key(number), value(number)))).expect("ingests");
        misses_of_a_round(&db, &keyspace);
        assert_eq!(misses_of_a_round(&db, &keyspace), 0, "all of it is in memory");
        let held = || db.stats().memory.cache + db.stats().memory.records;
        let before = held();
        for number in 0..5 {
            keyspace.insert(key(number), value(number)).expect("commits");
            db.flush().expect("flushes");
        }
        let (lost, missed) = (before.saturating_sub(held()), misses_of_a_round(&db, &keyspace));
        // The log pieces that the flushes wrote are read.
        assert!(lost < 1 << 20 && missed < 20, "{lost} bytes lost, {missed} nodes read again");
    }
}
