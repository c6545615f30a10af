//! Bulk ingestion: all of it or nothing, whatever fails in its middle, behind what is there, and one write a byte.

use crate::scenario::{Contents, open};
use psync::{Fault, Filter, Repeat, Simulated};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Error};

fn key(number: u32) -> Vec<u8> {
    format!("key{number:07}").into_bytes()
}

fn records(from: u32, to: u32) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (from..to).map(|number| (key(number), vec![number as u8; 20 + number as usize % 90]))
}

fn contents(db: &Database) -> Contents {
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.iter().map(|item| item.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("reads")).collect()
}

/// Ingested, changed, removed at the end, and ingested again, with log areas everywhere.
#[test]
fn what_is_ingested_lies_behind_what_is_there() {
    for seed in 0..6 {
        let volume = Simulated::new(seed);
        let db = open(&volume).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        let (mut model, mut rng, mut next) = (Contents::new(), StdRng::seed_from_u64(seed), 0);
        for round in 0..12 {
            let count = rng.random_range(1..4000);
            assert_eq!(keyspace.ingest(records(next, next + count)).expect("ingests"), u64::from(count));
            model.extend(records(next, next + count));
            next += count;
            let mut batch = db.batch();
            for _ in 0..rng.random_range(0..300) {
                let number = rng.random_range(0..next);
                batch.insert(&keyspace, key(number), b"changed");
                model.insert(key(number), b"changed".to_vec());
            }
            if rng.random_bool(0.4) {
                // The next ones lie among what was removed.
                let from = rng.random_range(next.saturating_sub(700)..next);
                (from..next).for_each(|number| {
                    batch.remove(&keyspace, key(number));
                    model.remove(&key(number));
                });
                next = from;
            }
            batch.commit().expect("commits");
            if rng.random_bool(0.5) {
                db.flush().expect("flushes");
            }
            assert!(contents(&db) == model, "seed {seed}, round {round}");
            db.check().unwrap_or_else(|damage| panic!("seed {seed}, round {round}: {damage}"));
        }
        drop(keyspace);
        drop(db);
        let db = open(&volume.power_loss(seed)).expect("opens");
        assert!(contents(&db) == model, "seed {seed}: durable when it returns, as the commits are");
    }
}

#[test]
fn what_is_out_of_order_is_refused_as_a_whole() {
    let volume = Simulated::new(1);
    let db = open(&volume).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.ingest(records(100, 5000)).expect("ingests");
    let before = contents(&db);
    let twice = records(6000, 9000).chain(records(8999, 9100));
    assert!(matches!(keyspace.ingest(twice), Err(Error::NotSorted { record: 3000 })));
    let mut taken = 0;
    let counted =
        records(6000, 7000).chain(records(6500, 6600)).chain(records(6500, 6600)).inspect(|_| taken += 1);
    assert!(matches!(keyspace.ingest(counted), Err(Error::NotSorted { record: 1000 })));
    assert_eq!(taken, 1001, "what comes behind is not even looked at");
    assert!(matches!(keyspace.ingest(records(4999, 5100)), Err(Error::NotSorted { record: 0 })));
    assert!(matches!(keyspace.ingest(records(50, 60)), Err(Error::NotSorted { record: 0 })));
    assert!(matches!(keyspace.ingest([("", "x")]), Err(Error::KeyEmpty)));
    keyspace.insert(key(7000), b"in the queue").expect("commits");
    assert!(matches!(keyspace.ingest(records(6000, 6100)), Err(Error::NotSorted { record: 0 })));
    keyspace.remove(key(7000)).expect("commits");
    assert_eq!(keyspace.ingest(std::iter::empty::<(&[u8], &[u8])>()).expect("nothing to do"), 0);
    assert!(contents(&db) == before);
    keyspace.ingest(records(5000, 5010)).expect("goes on after all that");
    db.check().expect("sound");
}

#[test]
fn a_failure_or_power_loss_in_its_middle_leaves_nothing_of_it() {
    for fault in [Fault::Error, Fault::NoSpace, Fault::PowerOff] {
        leaves_nothing_of_it(fault);
    }
}

/// The fault at each operation of an ingestion.
fn leaves_nothing_of_it(fault: Fault) {
    let mut points = 0;
    for nth in 1.. {
        let volume = Simulated::new(nth);
        let db = open(&volume).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        keyspace.ingest(records(0, 500)).expect("ingests");
        volume.fail_nth(Filter::any(), nth, fault, Repeat::Once);
        let result = keyspace.ingest(records(500, 9000));
        let fired = volume.fired() > 0;
        drop(keyspace);
        drop(db);
        for seed in 0..3 {
            let db =
                open(&volume.power_loss(seed)).unwrap_or_else(|error| panic!("operation {nth}: {error}"));
            let found = contents(&db).len();
            let whole = found == 9000;
            assert!(whole || found == 500, "operation {nth}, {fault:?}: {found} records");
            assert!(whole || result.is_err(), "operation {nth}, {fault:?}: it was told that all is there");
            db.check().unwrap_or_else(|damage| panic!("operation {nth}: {damage}"));
            points += 1;
        }
        if !fired {
            result.expect("nothing failed");
            break;
        }
    }
    assert!(points > 20, "{points} points");
}

#[test]
fn each_byte_is_written_once() {
    let volume = Simulated::new(1);
    let db = open(&volume).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    let before = db.stats().device.bytes_written;
    let bytes: usize = records(0, 40_000).map(|(key, value)| key.len() + value.len()).sum();
    keyspace.ingest(records(0, 40_000)).expect("ingests");
    let written = db.stats().device.bytes_written - before;
    // Leaves of 512 bytes have heads of 40, each record one of 5, and an address takes its place in the manifest.
    assert!(written as f64 <= 1.35 * bytes as f64, "{written} bytes for {bytes}");
    assert!(db.stats().space.segments < 40, "{}", db.stats());
}
