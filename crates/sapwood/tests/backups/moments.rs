//! A backup is the database at one moment: it equals a snapshot of that moment, whatever is written while it is taken, and whichever
//! side is killed.

use crate::ground::{Load, Watched, directory, hash, open};
use psync::Simulated;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::backup::{self, Restore, StreamWriter};
use sapwood::{Compression, Durability, KeyspaceOptions};
use std::io;
use std::sync::{Arc, Mutex};

/// Restores the newest backup and compares it with the snapshot of its moment.
fn compare(target: &Simulated, expected: (u64, usize), seed: u64) {
    let copy = Simulated::new(seed);
    Restore::from(&directory(target)).verify().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    Restore::from(&directory(target)).onto(Arc::new(copy.clone())).expect("restores");
    let db = open(&copy).expect("opens");
    assert_eq!(hash(&db), expected, "seed {seed}");
    db.check().expect("sound");
    // It goes on as any database.
    let mut load = Load::new(&db, seed).expect("keyspaces");
    load.run(&db, 50).expect("writes");
    let before = hash(&db);
    drop((load, db));
    let db = open(&copy).expect("opens again");
    assert_eq!(hash(&db), before, "seed {seed}");
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Seen {
    target_killed: usize,
    source_killed: usize,
    reused: u64,
    changes_beside: usize,
}

/// Takes backups, one after the other, while a load goes on between any two pieces of a blob. Each may be killed at any piece.
fn run(seed: u64, seen: &mut Seen) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut source = Simulated::new(seed);
    let target = Simulated::new(seed + 1000);
    let mut db = open(&source).expect("opens");
    Load::new(&db, seed).and_then(|mut load| load.run(&db, rng.random_range(0..200))).expect("writes");
    for round in 0..4u64 {
        let load = Mutex::new(Load::new(&db, seed * 10 + round).expect("keyspaces"));
        load.lock().expect("alone").run(&db, rng.random_range(0..100)).expect("writes");
        let (dies_at, is_target) = (rng.random_range(1..150), rng.random_bool(0.5));
        let dies = round < 3 && rng.random_bool(0.7);
        let (mut pieces, mut moment, mut beside) = (0, None, 0);
        let watched = Watched::new(directory(&target), |name, piece| {
            if name.starts_with("log-") && piece == 0 {
                // Nothing was written since the moment of the backup: it was this thread's.
                moment = Some(hash(&db));
            }
            pieces += 1;
            if dies && pieces == dies_at {
                return Err(io::Error::other("killed"));
            }
            if pieces % 3 == 0 {
                beside += 1;
                load.lock().expect("alone").step(&db).expect("writes");
            }
            Ok(())
        });
        let mut reused = 0;
        let taken = db
            .backup()
            .on_progress(|progress| {
                reused = progress.reused;
                std::ops::ControlFlow::Continue(())
            })
            .run(&watched);
        drop(watched);
        drop(load);
        seen.changes_beside += beside;
        seen.reused += reused;
        match taken {
            Ok(info) => {
                compare(&target, moment.expect("it has a log"), seed * 10 + round);
                assert_eq!(backup::list(&directory(&target)).expect("lists").last(), Some(&info));
            }
            Err(error) => {
                assert!(dies, "seed {seed}, round {round}: {error}");
                if is_target {
                    seen.target_killed += 1;
                } else {
                    // The process of the database dies with it, and is another one from here on.
                    seen.source_killed += 1;
                    let image = source.crash();
                    drop(db);
                    source = image;
                    db = open(&source).expect("opens after a kill");
                }
            }
        }
    }
}

#[test]
fn a_backup_equals_a_snapshot_of_its_moment_under_load_and_kills() {
    let mut seen = Seen::default();
    (0..100).for_each(|seed| run(seed, &mut seen));
    assert!(seen.target_killed > 20 && seen.source_killed > 20, "{seen:?}");
    assert!(seen.reused > 1 << 20 && seen.changes_beside > 1000, "{seen:?}");
}

/// The stream has all of it, also where nothing was flushed, and where the log is empty.
#[test]
fn a_stream_is_a_backup() {
    for (seed, steps) in [(1, 0), (2, 3), (3, 400), (4, 400)] {
        let source = Simulated::new(seed);
        let db = open(&source).expect("opens");
        let mut load = Load::new(&db, seed).expect("keyspaces");
        load.run(&db, steps).expect("writes");
        if seed == 4 {
            db.flush().expect("flushes");
        }
        let stream = StreamWriter::new(Vec::new());
        let taken = db.backup().run(&stream).expect("a backup");
        let bytes = stream.into_inner();
        assert_eq!(bytes.len() as u64, taken.bytes);
        assert_eq!(Restore::from_stream(&bytes[..]).verify().expect("whole"), taken);
        let copy = Simulated::new(9);
        Restore::from_stream(&bytes[..]).onto(Arc::new(copy.clone())).expect("restores");
        assert_eq!(hash(&open(&copy).expect("opens")), hash(&db), "seed {seed}");
    }
}

/// A database that is open read-only has its log in the files alone.
#[test]
fn a_database_that_is_open_read_only_is_backed_up() {
    let source = Simulated::new(1);
    let db = open(&source).expect("opens");
    Load::new(&db, 1).and_then(|mut load| load.run(&db, 300)).expect("writes");
    db.sync().expect("syncs");
    let expected = hash(&db);
    db.close().expect("closes");
    let before = source.operations();
    let reader = crate::ground::options().read_only(true);
    let db = reader.open_on(Arc::new(source.clone())).expect("opens");
    let target = Simulated::new(2);
    db.backup().run(&directory(&target)).expect("a backup");
    assert!(source.operations() > before);
    compare(&target, expected, 1);
}

/// The dictionary of a keyspace, without which its leaves cannot be read, comes along.
#[test]
fn what_is_compressed_with_a_dictionary_is_read_in_the_copy() {
    let [plain, with_dictionary] = [Compression::Zstd { level: 3 }, Compression::ZstdDictionary { level: 3 }]
        .map(|compression| {
            let db = open(&Simulated::new(1)).expect("opens");
            let options = KeyspaceOptions::new().compression(compression);
            let ships = db.keyspace_with("ships", options).expect("a keyspace");
            for number in 0..30_000u32 {
                let words = [
                    "schooner",
                    "brigantine",
                    "whaler",
                    "Bergen",
                    "Valparaíso",
                    "launched",
                    "refitted",
                    "lost at sea",
                ];
                let word = |turn: u32| words[(number.wrapping_mul(2_654_435_761) >> (3 * turn)) as usize % 8];
                let value: Vec<_> = (0..9).map(word).collect();
                let value =
                    format!("{{\"logbook of the ship\":{number},\"notes\":\"{}\"}}", value.join(", "));
                ships
                    .with_durability(Durability::Buffered)
                    .insert(number.to_be_bytes(), value)
                    .expect("inserts");
            }
            db.compact().expect("compacts");
            let target = Simulated::new(2);
            let taken = db.backup().run(&directory(&target)).expect("a backup");
            compare(&target, hash(&db), 1);
            taken.bytes
        });
    assert!(with_dictionary < plain / 100 * 97, "{with_dictionary} bytes, {plain} without a dictionary");
}
