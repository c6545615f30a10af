//! The engine against a `BTreeMap`: random operations with reopenings, flushes and collections in between, on tiny nodes
//! and little memory, so that splits, joins, collections and rotations of the log happen all the time.

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::merge::Append;
use sapwood::{Compression, Database, Durability, Keyspace, KeyspaceOptions};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(rng: &mut StdRng, space: u32) -> Vec<u8> {
    let number = rng.random_range(0..space);
    match rng.random_range(0..10) {
        0 => vec![number as u8],
        1 => format!("{number}-{}", "long".repeat(rng.random_range(1..60))).into_bytes(),
        _ => format!("key{number:08}").into_bytes(),
    }
}

fn value(rng: &mut StdRng) -> Vec<u8> {
    let len = match rng.random_range(0..100) {
        0 => rng.random_range(0..20_000),
        1..10 => 0,
        _ => rng.random_range(0..120),
    };
    let byte: u8 = rng.random();
    let words = [byte; 3].map(|byte| format!("{byte} of {}", byte % 16)).concat();
    if rng.random_bool(0.5) {
        vec![byte; len]
    } else {
        words.into_bytes().into_iter().cycle().take(len).collect()
    }
}

fn pairs(range: sapwood::Range) -> Vec<(Vec<u8>, Vec<u8>)> {
    range.map(|item| item.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("a sound database")).collect()
}

fn compare_range(rng: &mut StdRng, keyspace: &Keyspace, model: &Model, space: u32) {
    let (mut low, mut high) = (key(rng, space), key(rng, space));
    if low > high {
        std::mem::swap(&mut low, &mut high);
    }
    let bounds = match rng.random_range(0..4) {
        0 => (Bound::Included(low), Bound::Excluded(high)),
        1 => (
            Bound::Excluded(low.clone()),
            Bound::Included(if high == low { [&low[..], &[0]].concat() } else { high }),
        ),
        2 => (Bound::Unbounded, Bound::Included(high)),
        _ => (Bound::Included(low), Bound::Unbounded),
    };
    let limit = if rng.random_bool(0.1) { usize::MAX } else { rng.random_range(1..300) };
    let expected = model.range(bounds.clone()).map(|(k, v)| (k.clone(), v.clone()));
    let mut range = keyspace.range(bounds);
    match rng.random_range(0..3) {
        0 => assert!(std::iter::from_fn(|| step(rng, &mut range, true)).take(limit).eq(expected.take(limit))),
        1 => {
            let found = std::iter::from_fn(|| step(rng, &mut range, false)).take(limit);
            assert!(found.eq(expected.rev().take(limit)));
        }
        _ => {
            // From both ends in turn, until they meet.
            let (mut front, mut back) = (Vec::new(), Vec::new());
            loop {
                let from_front = rng.random_bool(0.5);
                let Some(record) = step(rng, &mut range, from_front) else { break };
                if from_front { &mut front } else { &mut back }.push(record);
            }
            back.reverse();
            front.extend(back);
            assert!(front.into_iter().eq(expected));
        }
    }
}

/// The next record from one end, shared or lent.
fn step(rng: &mut StdRng, range: &mut sapwood::Range, from_front: bool) -> Option<(Vec<u8>, Vec<u8>)> {
    if rng.random_bool(0.5) {
        let record = if from_front { range.next() } else { range.next_back() };
        let (key, value) = record?.expect("sound");
        return Some((key.to_vec(), value.to_vec()));
    }
    let record = if from_front { range.next_ref() } else { range.next_back_ref() };
    let (key, value) = record?.expect("sound");
    Some((key.to_vec(), value.to_vec()))
}

struct Shape {
    operations: u32,
    space: u32,
    leaf_len: usize,
    background_threads: usize,
    pio_max: usize,
    removes_ranges: bool,
    merges: bool,
    /// On a real disk, or on a simulated one, which is faster.
    on_disk: bool,
}

/// Runs one random history and returns the database's last stats.
fn history(seed: u64, shape: &Shape) {
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let volume: Arc<dyn psync::Volume> = if shape.on_disk {
        let options = psync::DiskOptions { pio_max: shape.pio_max, ..psync::DiskOptions::default() };
        Arc::new(psync::Disk::open(dir.path(), options).expect("opens"))
    } else {
        Arc::new(psync::Simulated::new(seed).with_pio_max(shape.pio_max))
    };
    let open = || {
        Database::builder()
            .memory(4 << 20)
            .leaf_len(shape.leaf_len)
            .segment_span(1 << 20)
            .background_threads(shape.background_threads)
            .open_on(Arc::clone(&volume))
            .expect("opens")
    };
    let mut db = open();
    let names = ["first", "second"];
    let mut models = [Model::new(), Model::new()];
    let compressions = [Compression::None, Compression::Lz4, Compression::ZstdDictionary { level: 1 }];
    let compressed = |which: u64| {
        KeyspaceOptions::new().compression(compressions[((seed % 9) / (2 * which + 1)) as usize % 3])
    };
    // What is merged into records of the first one is appended.
    let keyspace_of = |db: &Database, name: &str| match name {
        "first" if shape.merges => db.keyspace_with(name, compressed(0).merge(Append)),
        "first" => db.keyspace_with(name, compressed(0)),
        _ => db.keyspace_with(name, compressed(1)),
    };
    let mut keyspaces = names.map(|name| keyspace_of(&db, name).expect("a keyspace"));
    let mut snapshots: Vec<(sapwood::Snapshot, usize, Model)> = Vec::new();
    let mut done = 0;
    while done < shape.operations {
        let which = usize::from(rng.random_bool(0.3));
        match rng.random_range(0..1000) {
            820..835 if !shape.removes_ranges => {}
            0..700 => {
                let mut batch = db.batch();
                let sequential = rng.random_bool(0.2);
                let start = rng.random_range(0..shape.space);
                let removes = if rng.random_bool(0.2) { 0.9 } else { 0.25 };
                for i in 0..rng.random_range(1..60) {
                    let k = if sequential {
                        format!("key{:08}", start.wrapping_add(i) % (2 * shape.space)).into_bytes()
                    } else {
                        key(&mut rng, shape.space)
                    };
                    if rng.random_bool(removes) {
                        batch.remove(&keyspaces[which], &k);
                        models[which].remove(&k);
                    } else if shape.merges
                        && which == 0
                        && rng.random_bool(0.6)
                        && models[0].get(&k).is_none_or(|old| old.len() < 2000)
                    {
                        let operand = value(&mut rng);
                        batch.merge(&keyspaces[which], &k, &operand);
                        models[which].entry(k).or_default().extend(operand);
                    } else {
                        let v = value(&mut rng);
                        batch.insert(&keyspaces[which], &k, &v);
                        models[which].insert(k, v);
                    }
                    done += 1;
                }
                let durability =
                    [Durability::None, Durability::Buffered, Durability::Buffered, Durability::Immediate]
                        [rng.random_range(0..4)];
                batch.durability(durability).commit().expect("commits");
            }
            700..820 => {
                let k = key(&mut rng, shape.space);
                let found = keyspaces[which].get(&k).expect("sound");
                assert_eq!(found.as_deref(), models[which].get(&k).map(Vec::as_slice), "seed {seed}");
            }
            820..835 => {
                let (low, high) = (key(&mut rng, shape.space), key(&mut rng, shape.space));
                let (keyspace, model) = (&keyspaces[which], &mut models[which]);
                let mut batch = db.batch();
                match rng.random_range(0..40) {
                    0 => {
                        batch.clear(keyspace);
                        model.clear();
                    }
                    1..5 => {
                        let prefix = &low[..rng.random_range(1..=low.len())];
                        batch.remove_prefix(keyspace, prefix);
                        model.retain(|key, _| !key.starts_with(prefix));
                    }
                    5..15 => {
                        batch.remove_range(keyspace, &low..&high);
                        model.retain(|key, _| *key < low || *key >= high);
                    }
                    // Short ones.
                    _ => {
                        let end = [&low[..low.len() - 1], &[low[low.len() - 1].saturating_add(3)]].concat();
                        batch.remove_range(keyspace, &low..=&end);
                        model.retain(|key, _| *key < low || *key > end);
                    }
                }
                if rng.random_bool(0.5) {
                    // In the range, and newer.
                    batch.insert(keyspace, &low, "again");
                    model.insert(low, b"again".to_vec());
                }
                batch.durability(Durability::Buffered).commit().expect("commits");
                done += 1;
            }
            835..900 => {
                let keys: Vec<_> =
                    (0..rng.random_range(1..100)).map(|_| key(&mut rng, shape.space)).collect();
                let found = keyspaces[which].multi_get(&keys).expect("sound");
                for (k, v) in keys.iter().zip(found) {
                    assert_eq!(v.as_deref(), models[which].get(k).map(Vec::as_slice), "seed {seed}");
                }
            }
            900..970 => compare_range(&mut rng, &keyspaces[which], &models[which], shape.space),
            970..980 => db.flush().expect("flushes"),
            980..985 => {
                db.check().expect("sound");
            }
            985..992 => {
                snapshots.push((db.snapshot(), which, models[which].clone()));
                if snapshots.len() > 2 {
                    let (snapshot, which, model) = snapshots.remove(rng.random_range(0..3));
                    assert!(pairs(snapshot.iter(&keyspaces[which])).into_iter().eq(model), "seed {seed}");
                }
            }
            _ => {
                snapshots.clear();
                keyspaces = {
                    drop(keyspaces);
                    db.close().expect("closes");
                    db = open();
                    names.map(|name| keyspace_of(&db, name).expect("a keyspace"))
                };
            }
        }
    }
    for (keyspace, model) in keyspaces.iter().zip(&models) {
        assert!(pairs(keyspace.iter()).into_iter().eq(model.clone()), "seed {seed}");
        assert!(pairs(keyspace.iter()).into_iter().rev().eq(model.clone().into_iter().rev()), "seed {seed}");
    }
    db.flush().expect("flushes");
    db.check().expect("sound");
    for (keyspace, model) in keyspaces.iter().zip(&models) {
        assert!(pairs(keyspace.iter()).into_iter().eq(model.clone()), "seed {seed}");
    }
    db.compact().expect("compacts");
    assert_eq!(db.check().expect("sound").log_pieces, 0, "seed {seed}");
    for (keyspace, model) in keyspaces.iter().zip(&models) {
        if !shape.removes_ranges {
            assert_eq!(keyspace.len_estimate(), model.len() as u64, "exact after a compaction, seed {seed}");
        }
        assert!(pairs(keyspace.iter()).into_iter().eq(model.clone()), "seed {seed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Many short histories: what goes wrong shrinks to a seed and a shape.
    #[test]
    fn short_histories(seed: u64, space in 1u32..5000, leaf_len in 256usize..2000, pio_max in prop::sample::select(vec![1usize, 3, 64]), background_threads in 0usize..2, removes_ranges: bool, merges: bool) {
        history(seed, &Shape { operations: 3000, space, leaf_len, background_threads, pio_max, removes_ranges, merges, on_disk: false });
    }
}

/// Half a million operations, in histories of different shapes; five times as many as `MODEL_OPERATIONS` says.
#[test]
fn long_histories() {
    let operations =
        std::env::var("MODEL_OPERATIONS").map_or(100_000, |count| count.parse().expect("a number"));
    let shapes = [
        (1, 60_000, 256, 0, 64, false, true),
        (2, 200, 512, 1, 64, false, false),
        (3, 20_000, 1024, 1, 8, true, true),
        (4, 100_000, 4096, 1, 64, false, false),
        (5, 5_000, 300, 0, 2, false, true),
    ];
    std::thread::scope(|scope| {
        for (seed, space, leaf_len, background_threads, pio_max, on_disk, removes_ranges) in shapes {
            let shape = Shape {
                operations,
                space,
                leaf_len,
                background_threads,
                pio_max,
                removes_ranges,
                merges: removes_ranges || seed == 2,
                on_disk,
            };
            scope.spawn(move || history(seed, &shape));
        }
    });
}
