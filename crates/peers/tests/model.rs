//! Every store does what a `BTreeMap` does, through the arena's eyes, over closings and at both levels of durability.

use arena::{Change, Disk, Engine, Kind, Level, Session, Settings};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 600;

fn settings(dir: &Path, level: Level, values: Kind, disk: Disk) -> Settings {
    Settings {
        dir: dir.to_owned(),
        memory: 64 << 20,
        bytes: 1 << 20,
        key_len: 16,
        value_len: 100,
        level,
        values,
        codec: arena::Codec::Lz4,
        disk,
        transactions: false,
    }
}

fn key(number: u64) -> Vec<u8> {
    ((u128::from(number) << 64) | (u128::from(number) * 77)).to_be_bytes().to_vec()
}

fn get(session: &mut dyn Session, key: &[u8]) -> Option<Vec<u8>> {
    let mut found = None;
    session.get(key, &mut |value| found = Some(value.to_vec())).expect("get");
    found
}

fn compare(session: &mut dyn Session, model: &Model, random: &mut StdRng) {
    let asked: Vec<Vec<u8>> = (0..64).map(|_| key(random.random_range(0..KEYS + 20))).collect();
    let mut found: Vec<Option<Vec<u8>>> = vec![None; asked.len()];
    session.multi_get(&asked, &mut |at, value| found[at] = Some(value.to_vec())).expect("multi_get");
    for (asked, found) in asked.iter().zip(&found) {
        assert_eq!(found.as_ref(), model.get(asked));
        assert_eq!(get(session, asked).as_ref(), model.get(asked));
    }
    for limit in [1, 10, 100_000] {
        let from = key(random.random_range(0..KEYS + 20));
        let bounds = (Bound::Included(from.clone()), Bound::Unbounded);
        let wanted: Vec<_> =
            model.range(bounds).take(limit).map(|(key, value)| (key.clone(), value.clone())).collect();
        let mut seen = Vec::new();
        session
            .scan(&from, limit as u64, &mut |key, value| {
                seen.push((key.to_vec(), value.to_vec()));
                seen.len() < limit
            })
            .expect("scan");
        // Where they part, not all of both.
        let apart = seen.iter().zip(&wanted).position(|(seen, wanted)| seen != wanted);
        let keys = apart.map(|at| (&seen[at].0, &wanted[at].0));
        let again = apart.map(|at| get(session, &seen[at].0).is_some());
        assert_eq!(apart, None, "from {from:?}, at most {limit}: {keys:?}, get finds it: {again:?}");
        assert_eq!(seen.len(), wanted.len(), "from {from:?}, at most {limit}");
    }
}

fn write(session: &mut dyn Session, model: &mut Model, random: &mut StdRng) {
    let count = if random.random_bool(0.5) { 1 } else { random.random_range(2..50) };
    let changes: Vec<(Vec<u8>, Option<Vec<u8>>)> = (0..count)
        .map(|_| {
            let value: Vec<u8> = (0..100).map(|_| random.random()).collect();
            (key(random.random_range(0..KEYS)), random.random_bool(0.7).then_some(value))
        })
        .collect();
    let borrowed: Vec<Change<'_>> = changes
        .iter()
        .map(|(key, value)| match value {
            Some(value) => Change::Put(key, value),
            None => Change::Remove(key),
        })
        .collect();
    session.write(&borrowed).expect("write");
    for (key, value) in changes {
        match value {
            Some(value) => model.insert(key, value),
            None => model.remove(&key),
        };
    }
}

fn run(store: &str, levels: &[Level]) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut random = StdRng::seed_from_u64(17);
    let mut model = Model::new();
    let mut reopens = true;
    for life in 0..4 {
        let level = levels[life % levels.len()];
        let disk = if life % 2 == 0 { Disk::Best } else { Disk::Second };
        let settings = settings(&dir.path().join("store"), level, Kind::Half, disk);
        let engine: Box<dyn Engine> = match peers::open(store, &settings) {
            Ok(engine) => engine,
            Err(_) if life > 0 && !reopens => break,
            Err(error) => panic!("it does not open: {error}"),
        };
        assert!(life == 0 || reopens, "what says that it cannot be opened again can");
        reopens = engine.reopens();
        let steps = if level == Level::Durable { 30 } else { 120 };
        {
            let mut session = engine.session().expect("a session");
            compare(&mut *session, &model, &mut random);
            for step in 0..steps {
                write(&mut *session, &mut model, &mut random);
                if step % 10 == 0 {
                    compare(&mut *session, &model, &mut random);
                    // What one session wrote another one reads.
                    compare(&mut *engine.session().expect("another session"), &model, &mut random);
                }
            }
            engine.sync().expect("sync");
            compare(&mut *session, &model, &mut random);
        }
        engine.close().expect("it closes");
    }
    assert!(model.len() > 100, "there was something to compare");
}

/// Four threads write to keys of their own; nothing is lost.
fn threads(store: &str, level: Level) {
    let dir = tempfile::tempdir().expect("a directory");
    let settings = settings(&dir.path().join("store"), level, Kind::Incompressible, Disk::Second);
    let engine = peers::open(store, &settings).expect("it opens");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let engine = &*engine;
            scope.spawn(move || {
                let mut session = engine.session().expect("a session");
                for number in 0..50 {
                    let key = key(number * 4 + thread);
                    session.write(&[Change::Put(&key, &[7; 100])]).expect("write");
                    assert_eq!(get(&mut *session, &key).as_deref(), Some(&[7; 100][..]));
                }
            });
        }
    });
    let mut seen = 0;
    let mut session = engine.session().expect("a session");
    session
        .scan(&key(0), 1000, &mut |_, _| {
            seen += 1;
            true
        })
        .expect("scan");
    assert_eq!(seen, 200);
    drop(session);
    engine.close().expect("it closes");
}

/// Four threads add one to four of eight numbers, again and again; nothing is lost, and nothing half done.
fn transactions(store: &str, level: Level) {
    const ROUNDS: u64 = 60;
    let dir = tempfile::tempdir().expect("a directory");
    let settings = settings(&dir.path().join("store"), level, Kind::Incompressible, Disk::Best);
    let settings = Settings { transactions: true, ..settings };
    let engine = peers::open(store, &settings).expect("it opens");
    let number = |value: &[u8]| u64::from_be_bytes(value.try_into().expect("eight bytes"));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let engine = &*engine;
            scope.spawn(move || {
                let mut session = engine.session().expect("a session");
                for round in 0..ROUNDS {
                    let keys: Vec<_> = (0..4).map(|at| key((thread + round + at) % 8)).collect();
                    let add = &mut |_: usize, value: Option<&[u8]>| {
                        Ok((value.map_or(0, number) + 1).to_be_bytes().to_vec())
                    };
                    session.modify(&keys, add).expect("modify");
                }
            });
        }
    });
    let mut session = engine.session().expect("a session");
    let sum: u64 = (0..8).map(|at| get(&mut *session, &key(at)).as_deref().map_or(0, number)).sum();
    assert_eq!(sum, 4 * ROUNDS * 4);
    // A refusal changes nothing, and what comes after it is as if it had not been.
    let before = get(&mut *session, &key(0));
    let refused = session.modify(&[key(0), key(1)], &mut |at, value| match at {
        0 => Ok([value.expect("it is there"), b"more"].concat()),
        _ => Err(arena::Failed::new("change", "refused")),
    });
    assert_eq!(refused.expect_err("a refusal").reason, "refused");
    assert_eq!(get(&mut *session, &key(0)), before);
    session.write(&[Change::Put(&key(9), b"others")]).expect("write");
    assert_eq!(
        session.modify(&[key(9)], &mut |_, value| Ok(value.expect("it is there").to_vec())).ok(),
        Some(0)
    );
    drop(session);
    engine.close().expect("it closes");
}

macro_rules! stores {
    ($($test:ident $name:literal ($built_in:meta) $levels:expr;)*) => {
        $(
            #[test]
            #[cfg_attr(not($built_in), ignore = "not built in")]
            fn $test() {
                run($name, &$levels);
                for level in $levels {
                    threads($name, level);
                    // It has none.
                    if $name != "bf-tree" {
                        transactions($name, level);
                    }
                }
            }
        )*

        #[test]
        fn every_store_has_a_test() {
            let tested = [$($name),*];
            assert!(peers::names().iter().all(|name| tested.contains(name)));
        }
    };
}

stores! {
    sapwood "sapwood" (all()) [Level::Buffered, Level::Durable];
    rocksdb "rocksdb" (feature = "rocksdb") [Level::Buffered, Level::Durable];
    lmdb "lmdb" (feature = "lmdb") [Level::Buffered, Level::Durable];
    redb "redb" (feature = "redb") [Level::Buffered, Level::Durable];
    fjall "fjall" (feature = "fjall") [Level::Buffered, Level::Durable];
    sqlite "sqlite" (feature = "sqlite") [Level::Buffered, Level::Durable];
    bf_tree "bf-tree" (feature = "bf-tree") [Level::Buffered];
}

#[test]
fn what_cannot_be_had_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let settings = settings(dir.path(), Level::Durable, Kind::Half, Disk::Best);
    let refused = |name: &str| peers::open(name, &settings).err().expect("a refusal").to_string();
    assert!(refused("no-such-store").contains("sapwood"));
    if peers::names().contains(&"bf-tree") {
        assert!(refused("bf-tree").contains("durable"));
    }
}
