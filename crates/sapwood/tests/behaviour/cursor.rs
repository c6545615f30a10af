//! Cursors and counts, compared with a sorted map; and what ranges do at their edges.

use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Error, Keyspace};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open() -> (Database, Keyspace) {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let builder = Database::builder()
        .compression(sapwood::Compression::None)
        .memory(4 << 20)
        .leaf_len(512)
        .background_threads(0);
    let db = builder.open_on(volume).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    (db, keyspace)
}

fn key(rng: &mut StdRng) -> Vec<u8> {
    let number = rng.random_range(0..3000u16);
    number.to_be_bytes()[..if number % 50 == 0 { 1 } else { 2 }].to_vec()
}

/// Changes in leaves, log areas and the queue.
fn change(db: &Database, keyspace: &Keyspace, model: &mut Model, rng: &mut StdRng) {
    for part in 0..3 {
        let mut batch = db.batch();
        for _ in 0..400 {
            let key = key(rng);
            if rng.random_bool(0.3) {
                batch.remove(keyspace, &key);
                model.remove(&key);
            } else {
                let value = vec![part; rng.random_range(0..200)];
                batch.insert(keyspace, &key, &value);
                model.insert(key, value);
            }
        }
        batch.commit().expect("commits");
        if part < 2 {
            db.flush().expect("flushes");
        }
    }
}

/// Where a cursor over a map is.
#[derive(Clone, Debug)]
enum Place {
    Before,
    At(Vec<u8>),
    Behind,
}

impl Place {
    fn of(found: Option<&Vec<u8>>, otherwise: Self) -> Self {
        found.map_or(otherwise, |key| Self::At(key.clone()))
    }

    fn next(&self, model: &Model) -> Self {
        let from = match self {
            Self::Before => Bound::Unbounded,
            Self::At(key) => Bound::Excluded(key.clone()),
            Self::Behind => return Self::Behind,
        };
        Self::of(model.range((from, Bound::Unbounded)).next().map(|(key, _)| key), Self::Behind)
    }

    fn prev(&self, model: &Model) -> Self {
        let to = match self {
            Self::Before => return Self::Before,
            Self::At(key) => Bound::Excluded(key.clone()),
            Self::Behind => Bound::Unbounded,
        };
        Self::of(model.range((Bound::Unbounded, to)).next_back().map(|(key, _)| key), Self::Before)
    }
}

#[test]
fn a_cursor_goes_as_in_a_sorted_map() {
    for seed in 0..8 {
        let (mut rng, mut model) = (StdRng::seed_from_u64(seed), Model::new());
        let (db, keyspace) = open();
        if seed > 0 {
            change(&db, &keyspace, &mut model, &mut rng);
        }
        let mut cursor = keyspace.cursor();
        // The cursor's view is that of its beginning.
        if seed % 2 == 1 {
            change(&db, &keyspace, &mut model.clone(), &mut rng);
        }
        let mut place = Place::Before;
        for step in 0..4000 {
            let at = key(&mut rng);
            let found = match rng.random_range(0..40) {
                0 => {
                    place = Place::of(model.range(at.clone()..).next().map(|(key, _)| key), Place::Behind);
                    cursor.seek(&at)
                }
                1 => {
                    let found = model.range(..=at.clone()).next_back().map(|(key, _)| key);
                    place = Place::of(found, Place::Before);
                    cursor.seek_for_prev(&at)
                }
                2 => {
                    place = Place::Before.next(&model);
                    cursor.seek_to_first()
                }
                3 => {
                    place = Place::Behind.prev(&model);
                    cursor.seek_to_last()
                }
                4..22 => {
                    place = place.next(&model);
                    cursor.next()
                }
                _ => {
                    place = place.prev(&model);
                    cursor.prev()
                }
            };
            let found = found.expect("reads").map(|(key, value)| (key.to_vec(), value.to_vec()));
            let expected = match &place {
                Place::At(key) => Some((key.clone(), model[key].clone())),
                Place::Before | Place::Behind => None,
            };
            assert_eq!(found, expected, "seed {seed}, step {step}, {place:?}");
            assert_eq!(cursor.record().map(|(key, _)| key.to_vec()), expected.map(|(key, _)| key));
        }
    }
}

#[test]
fn counts_and_keys_are_those_of_a_sorted_map() {
    let (mut rng, mut model) = (StdRng::seed_from_u64(1), Model::new());
    let (db, keyspace) = open();
    change(&db, &keyspace, &mut model, &mut rng);
    let snapshot = db.snapshot();
    assert_eq!(keyspace.count(..).expect("counts"), model.len() as u64);
    for _ in 0..200 {
        let (low, high) = (key(&mut rng), key(&mut rng));
        let expected = model.keys().filter(|key| (&low..&high).contains(key)).count() as u64;
        assert_eq!(keyspace.count(&low..&high).expect("counts"), expected);
    }
    let found = keyspace.iter().keys().collect::<sapwood::Result<Vec<_>>>().expect("reads");
    assert!(found.iter().eq(model.keys()));
    let found = keyspace.iter().keys().rev().collect::<sapwood::Result<Vec<_>>>().expect("reads");
    assert!(found.iter().eq(model.keys().rev()));
    keyspace.clear().expect("clears");
    assert_eq!(keyspace.count(..).expect("counts"), 0);
    assert_eq!(snapshot.count(&keyspace, ..).expect("counts"), model.len() as u64);
}

/// As `Keyspace::range`, `prefix` and `Batch::insert` say.
#[test]
fn ranges_and_batches_at_their_edges_are_as_documented() {
    let (db, keyspace) = open();
    let mut batch = db.batch();
    batch.insert(&keyspace, "b", "1").remove(&keyspace, "b").insert(&keyspace, "b", "2");
    batch.insert(&keyspace, "c", "1").remove(&keyspace, "c");
    assert_eq!(batch.len(), 5);
    batch.commit().expect("commits");
    keyspace.insert([0xff, 0xff], "3").expect("commits");
    let found = |range: sapwood::Range| range.map(|item| item.expect("reads").1).collect::<Vec<_>>();
    assert_eq!(found(keyspace.iter()), ["2", "3"]);
    // Inverted, and empty.
    assert!(found(keyspace.range("c".."a")).is_empty() && found(keyspace.range("c"..="a")).is_empty());
    assert!(found(keyspace.range("b".."b")).is_empty());
    assert!(found(keyspace.range((Bound::Excluded("b"), Bound::Excluded("b")))).is_empty());
    assert_eq!(found(keyspace.range("b"..="b")), ["2"]);
    // Bounds that no key can be.
    assert_eq!(found(keyspace.range(""..)), ["2", "3"]);
    assert!(found(keyspace.range(..="")).is_empty());
    assert_eq!(found(keyspace.prefix("")), ["2", "3"]);
    assert_eq!(
        (found(keyspace.prefix([0xff])), found(keyspace.prefix([0xff; 3]))),
        (vec!["3".into()], vec![])
    );
}

#[test]
fn iterators_and_cursors_outlive_their_handles_and_their_keyspace_but_not_the_database() {
    let (db, keyspace) = open();
    for number in 0..2000u16 {
        keyspace.insert(number.to_be_bytes(), [1; 100]).expect("commits");
    }
    db.flush().expect("flushes");
    let (mut dropped, mut cursor) = (keyspace.iter(), keyspace.cursor());
    dropped.next().expect("there are some").expect("reads");
    db.drop_keyspace("main").expect("drops");
    assert!(matches!(keyspace.get("k"), Err(Error::KeyspaceDropped { .. })));
    drop(keyspace);
    assert_eq!(dropped.by_ref().filter(Result::is_ok).count(), 1999);
    assert!(cursor.seek_to_last().expect("reads").is_some());
    let other = db.keyspace("other").expect("a keyspace");
    other.ingest((0..2000u16).map(|number| (number.to_be_bytes(), [1; 100]))).expect("ingests");
    let (mut kept, mut closed) = (other.iter(), other.iter());
    kept.next().expect("there are some").expect("reads");
    closed.next().expect("there are some").expect("reads");
    drop((other, dropped, cursor));
    let again = db.clone();
    drop(db);
    assert_eq!(kept.by_ref().filter(Result::is_ok).count(), 1999, "the iterator keeps it open");
    again.close().expect("closes");
    assert!(matches!(closed.find(Result::is_err), Some(Err(Error::Closed))));
    assert!(closed.next().is_none(), "it ends after an error");
}

/// What [ADR 35](../../../../docs/adr/0035-counting.md) rests on.
#[test]
fn a_count_reads_many_leaves_with_each_request() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let open = || {
        let builder = Database::builder()
            .compression(sapwood::Compression::None)
            .memory(16 << 20)
            .background_threads(0);
        builder.open_on(Arc::clone(&volume)).expect("opens")
    };
    let (db, records) = (open(), 200_000u32);
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.ingest((0..records).map(|number| (number.to_be_bytes(), [7; 100]))).expect("ingests");
    drop(keyspace);
    db.close().expect("closes");
    let db = open();
    let keyspace = db.keyspace("main").expect("a keyspace");
    assert_eq!(keyspace.count(..).expect("counts"), u64::from(records));
    let reads = db.stats().reads;
    println!("{} nodes, {} bytes, {} requests", reads.cache_misses, reads.bytes, reads.requests);
    assert!(reads.cache_misses > 5000 && reads.requests < reads.cache_misses / 15, "{reads:?}");
}
