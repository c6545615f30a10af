//! What calls take, and calls that the model has not.

use crate::schemas::open;
use crate::types::{Berth, Place};
use psync::Simulated;
use sapwood::{Database, Durability, Error, Expiry, KeyspaceOptions, psync};
use sapwood_typed::{DatabaseExt, Fixed, Raw, Schema, StartsWith, TransactionExt};
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

fn new() -> Database {
    open(&Arc::new(Simulated::new(1)))
}

#[test]
fn prefixes_are_of_first_parts_and_of_the_start_of_a_string() {
    let db = new();
    let ships = db.typed::<(String, Reverse<u8>, String), ()>("ships").unwrap();
    let keys = [("a", 1, "x"), ("a", 2, "xy"), ("a", 2, "y"), ("a\0", 1, "x"), ("ab", 1, "x"), ("b", 1, "")];
    keys.iter().for_each(|(a, b, c)| ships.insert((*a, Reverse(*b), *c), ()).unwrap());
    let count = |range: sapwood_typed::TypedRange<_, ()>| range.map(Result::unwrap).count();
    assert_eq!(count(ships.prefix(("a",))), 3);
    assert_eq!(count(ships.prefix((StartsWith("a"),))), 5);
    assert_eq!(count(ships.prefix((StartsWith(""),))), 6);
    assert_eq!(count(ships.prefix(("a", Reverse(2)))), 2);
    assert_eq!(count(ships.prefix(("a", Reverse(2), StartsWith("x")))), 1);
    assert_eq!(count(ships.prefix(("a", Reverse(2), "x"))), 0);
    assert_eq!(count(ships.prefix(("a", Reverse(2), "xy"))), 1);
    // Reversed: the larger number comes first.
    assert_eq!(ships.prefix(("a",)).next().unwrap().unwrap().0, ("a".into(), Reverse(2), "xy".into()));

    let names = db.typed::<String, ()>("names").unwrap();
    ["", "f", "fr", "fram", "g"].iter().for_each(|name| names.insert(name, ()).unwrap());
    assert_eq!((names.prefix(StartsWith("fr")).count(), names.prefix(StartsWith("")).count()), (2, 5));
    let bytes = db.typed::<Vec<u8>, ()>("bytes").unwrap();
    [&[0u8][..], &[0, 0], &[0, 1], &[1]].iter().for_each(|key| bytes.insert(*key, ()).unwrap());
    assert_eq!(bytes.prefix(StartsWith([0])).count(), 3);
    assert!(bytes.contains([0, 1]).unwrap() && !bytes.contains([2]).unwrap());

    let berths = db.typed::<Berth, ()>("berths").unwrap();
    [("a", 1), ("a", 2), ("ab", 1)].iter().for_each(|(harbour, number)| {
        berths.insert(Berth { harbour: (*harbour).into(), number: *number }, ()).unwrap();
    });
    assert_eq!((berths.prefix(("a",)).count(), berths.prefix((StartsWith("a"),)).count()), (2, 3));
    assert_eq!(berths.prefix(("a", 2)).count(), 1);
}

#[test]
fn keys_only_are_read_without_values() {
    let db = new();
    let ships = db.typed::<u8, u16>("ships").unwrap();
    ships.keyspace().insert([1], [0x80]).unwrap();
    assert!(ships.get(1).is_err());
    assert_eq!(ships.iter().keys().map(Result::unwrap).collect::<Vec<_>>(), [1]);
}

#[test]
fn fixed_values_are_what_was_stored_and_of_their_length() {
    use zerocopy::byteorder::little_endian::U32;
    let db = new();
    let numbers = db.typed::<u8, Fixed<[U32; 2]>>("numbers").unwrap();
    numbers.insert(1, Fixed::new(&[7.into(), 8.into()])).unwrap();
    assert_eq!(numbers.get(1).unwrap().unwrap()[1].get(), 8);
    assert_eq!(numbers.keyspace().get([1]).unwrap().unwrap(), [7, 0, 0, 0, 8, 0, 0, 0]);
    for len in [0, 7, 9] {
        numbers.keyspace().insert([2], vec![1; len]).unwrap();
        assert!(matches!(numbers.get(2), Err(Error::Decode { .. })), "{len}");
    }
    // A long value is lent by the node that has it, at any address.
    let long = db.typed::<u8, Fixed<[[U32; 16]; 40]>>("long").unwrap();
    long.insert(1, Fixed::new(&[[9.into(); 16]; 40])).unwrap();
    db.flush().unwrap();
    for item in &long {
        assert_eq!(item.unwrap().1[39][15].get(), 9);
    }
}

#[test]
fn a_handle_is_as_durable_as_it_says() {
    let db = new();
    let ships = db.typed::<u8, Raw>("ships").unwrap().with_durability(Durability::None);
    let syncs = || db.stats().writes.log_syncs;
    let before = syncs();
    ships.insert(1, Raw::from("a")).unwrap();
    ships.update(1, |_| Some(Raw::from("b"))).unwrap();
    ships.take(1).unwrap();
    assert_eq!(syncs(), before);
    ships.with_durability(Durability::Immediate).update(1, |_| Some(Raw::from("c"))).unwrap();
    assert!(syncs() > before);
}

#[test]
fn records_expire_by_default_or_each_at_its_time() {
    let now = Arc::new(AtomicU64::new(1000));
    let clock = Arc::clone(&now);
    let time = move || UNIX_EPOCH + Duration::from_secs(clock.load(Ordering::Relaxed));
    let builder = Database::builder().memory(4 << 20).background_threads(0).clock(time);
    let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
    let options = KeyspaceOptions::new().time_to_live(Duration::from_secs(10));
    let ships = db.typed_with("ships", Schema::<u8, u8>::new().options(options)).unwrap();
    ships.insert(1, 1).unwrap();
    ships.insert_expiring(2, 2, Expiry::After(Duration::from_secs(20))).unwrap();
    db.transact(|tx| tx.typed(&ships).insert_expiring(3, 3, Expiry::Never)).unwrap();
    assert!(ships.set_expiry(1, Expiry::After(Duration::from_secs(30))).unwrap());
    now.fetch_add(25, Ordering::Relaxed);
    let there: Vec<u8> = ships.iter().keys().map(Result::unwrap).collect();
    assert_eq!(there, [1, 3]);
    assert_eq!(ships.expiry(3).unwrap(), Some(Expiry::Never));
}

#[test]
fn transactions_of_types_conflict_and_are_repeated() {
    let db = new();
    let ships = db.typed::<Place, u64>("ships").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    ships.update(Place::AtSea, |count| Some(count.map_or(1, |count| count + 1))).unwrap();
                }
            });
        }
    });
    assert_eq!(ships.get(Place::AtSea).unwrap(), Some(400));
    let mut tx = db.transaction().unwrap();
    tx.typed(&ships).get(Place::AtSea).unwrap();
    tx.typed(&ships).insert(Place::AtSea, 0).unwrap();
    ships.insert(Place::AtSea, 7).unwrap();
    assert!(tx.commit().unwrap_err().is_conflict());
}

#[test]
fn ingestion_is_typed_and_ordered() {
    let db = new();
    let ships = db.typed::<(i32, String), u16>("ships").unwrap();
    assert_eq!(ships.ingest((-50..50).map(|port| ((port, "fram"), 7))).unwrap(), 100);
    assert_eq!(ships.first().unwrap().unwrap().0.0, -50);
    assert!(matches!(ships.ingest([((49, "a"), 1)]), Err(Error::NotSorted { record: 0 })));
}
