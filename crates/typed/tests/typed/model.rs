//! A typed keyspace does what a `BTreeMap` does: plain calls, batches, transactions, snapshots, reopenings.

use crate::schemas::open;
use crate::types::Place;
use psync::Simulated;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::psync;
use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

type Key = (i16, Place);

fn key(rng: &mut StdRng) -> Key {
    let place = match rng.random_range(0..3) {
        0 => Place::AtSea,
        1 => Place::Position { latitude: rng.random_range(-2..2), longitude: rng.random_range(-2..2) },
        _ => Place::Dock(["", "a", "a\0", "b"][rng.random_range(0..4)].into(), rng.random_range(0..2)),
    };
    (rng.random_range(-3..3), place)
}

fn bound(rng: &mut StdRng) -> Bound<Key> {
    match rng.random_range(0..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(rng)),
        _ => Bound::Excluded(key(rng)),
    }
}

/// Whether a `BTreeMap` takes these bounds; others are those of no record.
fn is_range((low, high): &(Bound<Key>, Bound<Key>)) -> bool {
    match (low, high) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        (Bound::Excluded(low), Bound::Excluded(high)) => low < high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low <= high
        }
    }
}

fn run(seed: u64, steps: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let volume = Arc::new(Simulated::new(seed));
    let mut model: BTreeMap<Key, u64> = BTreeMap::new();
    let mut db = open(&volume);
    let mut ships = db.typed::<Key, u64>("ships").unwrap();
    let mut older = (db.snapshot(), model.clone());
    for step in 0..steps {
        let (key, value) = (key(&mut rng), rng.random::<u64>() >> rng.random_range(0..64));
        match rng.random_range(0..22) {
            0..3 => {
                ships.insert(&key, value).unwrap();
                model.insert(key, value);
            }
            3 => {
                ships.remove(&key).unwrap();
                model.remove(&key);
            }
            4 => assert_eq!(ships.replace(&key, value).unwrap(), model.insert(key, value)),
            5 => assert_eq!(ships.take(&key).unwrap(), model.remove(&key)),
            6 => {
                let there = model.get(&key).copied();
                assert_eq!(ships.insert_if_absent(&key, value).unwrap(), there);
                model.entry(key).or_insert(value);
            }
            7 => {
                let change = |old: Option<&u64>| old.map_or(Some(1), |old| old.checked_mul(2));
                let new = change(model.get(&key));
                assert_eq!(ships.update(&key, change).unwrap(), model.get(&key).copied());
                match new {
                    Some(new) => _ = model.insert(key, new),
                    None => _ = model.remove(&key),
                }
            }
            8 => {
                let expected = if rng.random() { model.get(&key).copied() } else { Some(1) };
                let swapped = ships.compare_and_swap(&key, expected, Some(value)).unwrap();
                if expected == model.get(&key).copied() {
                    assert_eq!(swapped, Ok(()));
                    model.insert(key, value);
                } else {
                    assert_eq!(swapped, Err(model.get(&key).copied()));
                }
            }
            9 => assert_eq!(ships.pop_first().unwrap(), model.pop_first()),
            10 => assert_eq!(ships.pop_last().unwrap(), model.pop_last()),
            11 => {
                let bounds = (bound(&mut rng), bound(&mut rng));
                if rng.random_bool(0.2) {
                    ships.remove_range(bounds.clone()).unwrap();
                    if is_range(&bounds) {
                        let keys: Vec<_> = model.range(bounds).map(|(key, _)| key.clone()).collect();
                        keys.iter().for_each(|key| _ = model.remove(key));
                    }
                }
            }
            12 => {
                let mut batch = db.batch();
                let mut changes = batch.typed(&ships);
                changes.insert(&key, value).unwrap().remove((key.0, Place::AtSea));
                changes.remove_prefix((key.0 + 1,));
                batch.commit().unwrap();
                model.insert(key.clone(), value);
                model.remove(&(key.0, Place::AtSea));
                model.retain(|other, _| other.0 != key.0 + 1);
            }
            13 => {
                let mut tx = db.transaction().unwrap();
                let mut changed = model.clone();
                for _ in 0..rng.random_range(1..6) {
                    let (key, value) = (self::key(&mut rng), rng.random_range(0..100));
                    let mut ships = tx.typed(&ships);
                    assert_eq!(ships.get(&key).unwrap(), changed.get(&key).copied());
                    ships.insert(&key, value).unwrap();
                    changed.insert(key, value);
                    let all: Vec<_> = ships.iter().map(Result::unwrap).collect();
                    assert!(all.iter().map(|(key, value)| (key, value)).eq(&changed));
                }
                if rng.random() {
                    tx.commit().unwrap();
                    model = changed;
                }
            }
            14 => db.flush().unwrap(),
            15 => older = (db.snapshot(), model.clone()),
            16 => {
                let then = older.0.typed(&ships);
                assert_eq!(then.get(&key).unwrap(), older.1.get(&key).copied());
                assert!(then.iter().map(Result::unwrap).eq(older.1.clone()));
            }
            17 if rng.random_bool(0.1) => {
                drop((ships, older));
                db.close().unwrap();
                db = open(&volume);
                ships = db.typed("ships").unwrap();
                older = (db.snapshot(), model.clone());
            }
            _ => {
                let bounds = (bound(&mut rng), bound(&mut rng));
                let expected: Vec<_> = match is_range(&bounds) {
                    true => model.range(bounds.clone()).map(|(key, value)| (key.clone(), *value)).collect(),
                    false => Vec::new(),
                };
                let found: Vec<_> = ships.range(bounds.clone()).map(Result::unwrap).collect();
                assert_eq!(found, expected, "{bounds:?}");
                let mut back: Vec<_> = ships.range(bounds.clone()).rev().map(Result::unwrap).collect();
                back.reverse();
                assert_eq!(back, expected, "{bounds:?}");
                assert_eq!(ships.count(bounds).unwrap(), expected.len() as u64);
                assert_eq!(ships.prefix((key.0,)).map(Result::unwrap).collect::<Vec<_>>(), {
                    let of_it = |(other, _): &(&Key, &u64)| other.0 == key.0;
                    model.iter().filter(of_it).map(|(key, value)| (key.clone(), *value)).collect::<Vec<_>>()
                });
                assert_eq!(ships.get(&key).unwrap(), model.get(&key).copied(), "step {step}");
                let first = model.first_key_value().map(|(key, value)| (key.clone(), *value));
                assert_eq!(ships.first().unwrap(), first);
            }
        }
    }
}

#[test]
fn a_typed_keyspace_does_what_a_map_does() {
    (0..6).for_each(|seed| run(seed, 2500));
}
