//! Blocks with log areas: whatever the log pieces and the leaves hold between them, gets, multi_gets and ranges in both
//! directions find what was written, snapshots keep what they saw, and reopening and power loss change nothing.

use crate::scenario::{Contents, open_plain as open};
use psync::Simulated;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace, Snapshot};
use std::ops::Bound;

const RECORDS: u32 = 4000;

fn key(number: u32) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Everything that can be asked, against the model.
fn compare(snapshot: &Snapshot, keyspace: &Keyspace, model: &Contents, rng: &mut StdRng, story: &str) {
    let keys: Vec<_> = (0..300).map(|_| key(rng.random_range(0..RECORDS + 100))).collect();
    for key in &keys[..100] {
        let found = snapshot.get(keyspace, key).unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_eq!(found.as_deref(), model.get(key).map(Vec::as_slice), "{story}: {key:?}");
    }
    let found = snapshot.multi_get(keyspace, &keys).unwrap_or_else(|error| panic!("{story}: {error}"));
    for (key, found) in keys.iter().zip(found) {
        assert_eq!(found.as_deref(), model.get(key).map(Vec::as_slice), "{story}: multi_get of {key:?}");
    }
    for _ in 0..10 {
        let low = key(rng.random_range(0..RECORDS));
        let high = key(rng.random_range(0..RECORDS) + 1);
        let bounds = match rng.random_range(0..4) {
            0 => (Bound::Included(low), Bound::Unbounded),
            1 => (Bound::Excluded(low), Bound::Unbounded),
            2 => (Bound::Unbounded, Bound::Excluded(high)),
            _ => (Bound::Included(low.clone().min(high.clone())), Bound::Included(low.max(high))),
        };
        let expected: Vec<_> = model.range(bounds.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
        let taken = rng.random_range(1..200);
        let range = snapshot.range(keyspace, bounds.clone());
        let up: Vec<_> = range.take(taken).map(|item| item.expect("reads")).collect();
        assert!(
            up.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).eq(expected.iter().take(taken).cloned()),
            "{story}: {bounds:?} upwards"
        );
        let range = snapshot.range(keyspace, bounds.clone());
        let down: Vec<_> = range.rev().take(taken).map(|item| item.expect("reads")).collect();
        assert!(
            down.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).eq(expected.iter().rev().take(taken).cloned()),
            "{story}: {bounds:?} downwards"
        );
    }
    let all = snapshot.iter(keyspace).map(|item| item.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("reads"));
    assert!(all.eq(model.clone()), "{story}: everything");
}

/// One flush's worth of changes: uniform, or around a hot place, or a removal of a stretch.
fn change(db: &Database, keyspace: &Keyspace, model: &mut Contents, rng: &mut StdRng) {
    change_some(db, keyspace, model, rng, (150, 120));
}

/// The same, with so many changes and bytes of a value at most.
fn change_some(
    db: &Database,
    keyspace: &Keyspace,
    model: &mut Contents,
    rng: &mut StdRng,
    (changes, value): (u32, usize),
) {
    let mut batch = db.batch();
    let (from, to) = match rng.random_range(0..4) {
        0 => {
            let from = rng.random_range(0..RECORDS);
            (from, (from + 200).min(RECORDS + 50))
        }
        _ => (0, RECORDS + 50),
    };
    let removes = if rng.random_bool(0.2) { 0.9 } else { 0.2 };
    for _ in 0..rng.random_range(1..changes) {
        let key = key(rng.random_range(from..to));
        if rng.random_bool(removes) {
            batch.remove(keyspace, &key);
            model.remove(&key);
        } else {
            let value = vec![rng.random(); rng.random_range(0..value)];
            batch.insert(keyspace, &key, &value);
            model.insert(key, value);
        }
    }
    batch.durability(Durability::Buffered).commit().expect("commits");
}

#[test]
fn whatever_lies_in_pieces_and_leaves_is_found() {
    let (mut appended, mut cleansed, mut most) = (0, 0, 0);
    for seed in 0..12 {
        let volume = Simulated::new(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut db = open(&volume).expect("opens");
        let mut keyspace = db.keyspace("main").expect("a keyspace");
        let mut model = Contents::new();
        let mut batch = db.batch();
        for number in 0..RECORDS {
            let value = vec![rng.random(); 60];
            batch.insert(&keyspace, key(number), &value);
            model.insert(key(number), value);
        }
        batch.commit().expect("commits");
        db.flush().expect("flushes");
        let mut kept: Option<(Snapshot, Contents)> = None;
        for round in 0..40 {
            let story = format!("seed {seed}, round {round}");
            change(&db, &keyspace, &mut model, &mut rng);
            db.flush().expect("flushes");
            let stats = db.stats();
            most = most.max(stats.space.log_pieces);
            compare(&db.snapshot(), &keyspace, &model, &mut rng, &story);
            if let Some((snapshot, then)) = &kept {
                compare(snapshot, &keyspace, then, &mut rng, &format!("{story}, an older snapshot"));
            }
            let checked = db.check().unwrap_or_else(|error| panic!("{story}: {error}"));
            assert_eq!(checked.log_pieces, stats.space.log_pieces, "{story}");
            assert_eq!(checked.logged_changes, stats.space.logged_changes, "{story}");
            match round % 10 {
                3 => kept = Some((db.snapshot(), model.clone())),
                6 => kept = None,
                9 => {
                    // Everything about the pieces is what the manifest says.
                    appended += db.stats().writes.blocks_appended;
                    cleansed += db.stats().writes.blocks_cleansed;
                    kept = None;
                    drop(keyspace);
                    db.close().expect("closes");
                    db = open(&volume).expect("opens again");
                    keyspace = db.keyspace("main").expect("a keyspace");
                    compare(&db.snapshot(), &keyspace, &model, &mut rng, &format!("{story}, opened again"));
                }
                _ => {}
            }
        }
        db.compact().expect("compacts");
        assert_eq!(db.stats().space.log_pieces, 0);
        assert_eq!(keyspace.len_estimate(), model.len() as u64);
        compare(&db.snapshot(), &keyspace, &model, &mut rng, &format!("seed {seed}, compacted"));
        db.check().expect("sound");
    }
    println!("{appended} log areas grew, {cleansed} blocks were cleansed, at most {most} pieces");
    // The comparisons are scans, for which log areas are kept short.
    assert!(appended > 1000 && cleansed > 100 && most > 20, "{appended}, {cleansed}, {most}");
}

/// Large blocks, to which each flush appends layers of several pieces: each of them is found, and no more of them is read than is needed.
#[test]
fn layers_of_several_short_pieces_are_searched_piece_by_piece() {
    let (mut several, mut scanned, mut expected) = (0, 0, [0.0, 0.0]);
    for seed in 0..5 {
        let volume = Simulated::new(seed);
        let reopen = |volume: &Simulated| {
            let shared: std::sync::Arc<dyn psync::Volume> = std::sync::Arc::new(volume.clone());
            let db = Database::builder()
                .compression(sapwood::Compression::None)
                .memory(16 << 20)
                .background_threads(0)
                .open_on(shared)
                .expect("opens");
            let keyspace = db.keyspace("main").expect("a keyspace");
            (db, keyspace)
        };
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut db, mut keyspace) = reopen(&volume);
        let mut model: Contents = (0..RECORDS).map(|number| (key(number), vec![7; 350])).collect();
        for first in (0..RECORDS).step_by(1000) {
            let mut batch = db.batch();
            (first..first + 1000).for_each(|number| _ = batch.insert(&keyspace, key(number), [7; 350]));
            batch.commit().expect("commits");
        }
        db.flush().expect("flushes");
        let mut kept = None;
        for round in 0..14 {
            let story = format!("seed {seed}, round {round}");
            change_some(&db, &keyspace, &mut model, &mut rng, (400, 500));
            db.flush().expect("flushes");
            let space = db.stats().space;
            several += u64::from(space.log_pieces * 2 > space.log_runs * 3);
            compare(&db.snapshot(), &keyspace, &model, &mut rng, &story);
            if let Some((snapshot, then)) = &kept {
                compare(snapshot, &keyspace, then, &mut rng, &format!("{story}, an older snapshot"));
            }
            let checked = db.check().unwrap_or_else(|error| panic!("{story}: {error}"));
            assert_eq!(checked.log_pieces, space.log_pieces, "{story}");
            match round {
                4 => kept = Some((db.snapshot(), model.clone())),
                7 => kept = None,
                9 => {
                    drop(keyspace);
                    db.close().expect("closes");
                    (db, keyspace) = reopen(&volume);
                    compare(&db.snapshot(), &keyspace, &model, &mut rng, &format!("{story}, opened again"));
                }
                _ => {}
            }
        }
        // Of five records: a piece of each layer, sometimes two, and not all of them.
        let blocks = (db.check().expect("sound").inner_nodes - 1) as f64;
        let space = db.stats().space;
        drop(keyspace);
        db.close().expect("closes");
        for _ in 0..10 {
            let (db, keyspace) = reopen(&volume);
            let from = key(rng.random_range(0..RECORDS - 100));
            assert_eq!(keyspace.range(from..).take(5).count(), 5);
            scanned += db.stats().reads.pieces_scanned;
            expected[0] += space.log_runs as f64 / blocks;
            expected[1] += space.log_pieces as f64 / blocks;
        }
    }
    let [layers, pieces] = expected;
    println!("{scanned} pieces read, where {layers:.0} layers had {pieces:.0}");
    assert!(several > 30, "{several} of 70 rounds with several pieces a layer");
    assert!((scanned as f64) < 1.4 * layers && (scanned as f64) < 0.8 * pieces);
}

/// A block gets more changes than one attempt may hold back: the rest has to wait for the next one. They were appended
/// in the same attempt once, and the maplet did not know of them, so that gets found what had been before.
#[test]
fn a_block_that_gets_more_than_fits_is_appended_to_once_an_attempt() {
    const RECORDS: u64 = 120_000;
    let volume = Simulated::new(1);
    let shared: std::sync::Arc<dyn psync::Volume> = std::sync::Arc::new(volume);
    let db = Database::builder()
        .compression(sapwood::Compression::None)
        .memory(8 << 20)
        .leaf_len(64 << 10)
        .background_threads(0)
        .open_on(shared);
    let db = db.expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    let write = |step: usize, fill: u8| {
        for numbers in (0..RECORDS).step_by(step).collect::<Vec<_>>().chunks(1000) {
            let mut batch = db.batch();
            numbers.iter().for_each(|number| {
                batch.insert(&keyspace, number.to_be_bytes(), [fill; 100]);
            });
            batch.durability(Durability::Buffered).commit().expect("commits");
        }
        db.flush().expect("flushes");
    };
    write(1, 1);
    write(12, 2);
    assert!(db.stats().space.log_pieces > 0, "changes went to log areas");
    for number in 0..RECORDS {
        let expected = if number % 12 == 0 { 2 } else { 1 };
        let found = keyspace.get(number.to_be_bytes()).expect("reads").expect("is there");
        assert_eq!(found[0], expected, "record {number}");
    }
}

/// What is in which piece is known from the manifest: whoever opens a database need not read all pieces of a block for the first
/// key in it, whether it was closed or not.
#[test]
fn the_first_gets_after_opening_read_one_leaf_or_one_piece_each() {
    const RECORDS: u64 = 40_000;
    let volume = Simulated::new(1);
    let options = || {
        Database::builder()
            .compression(sapwood::Compression::None)
            .memory(4 << 20)
            .leaf_len(1024)
            .background_threads(0)
    };
    let reopen = |volume: &Simulated| {
        let shared: std::sync::Arc<dyn psync::Volume> = std::sync::Arc::new(volume.clone());
        options().open_on(shared).expect("opens")
    };
    let db = reopen(&volume);
    let keyspace = db.keyspace("main").expect("a keyspace");
    let write = |numbers: &mut dyn Iterator<Item = u64>, fill: u8| {
        let mut batch = db.batch();
        numbers.for_each(|number| {
            batch.insert(&keyspace, number.to_be_bytes(), [fill; 100]);
        });
        batch.commit().expect("commits");
        db.flush().expect("flushes");
    };
    for first in (0..RECORDS).step_by(5000) {
        write(&mut (first..first + 5000), 0);
    }
    for turn in 1..=8 {
        write(&mut (u64::from(turn)..RECORDS).step_by(80), turn);
    }
    let pieces = db.stats().space.log_pieces;
    assert!(pieces > 200, "{pieces}");
    let crashed = volume.power_loss(7);
    drop(keyspace);
    db.close().expect("closes");
    for volume in [volume, crashed] {
        let db = reopen(&volume);
        let keyspace = db.keyspace("main").expect("a keyspace");
        let mut gets = 0;
        for number in (0..RECORDS).step_by(37) {
            let found = keyspace.get(number.to_be_bytes()).expect("reads").expect("is there");
            let turn = number % 80;
            assert_eq!(u64::from(found[0]), if turn <= 8 { turn } else { 0 }, "record {number}");
            gets += 1;
        }
        let (reads, inner) = (db.stats().reads, db.check().expect("sound").inner_nodes);
        assert!(
            reads.requests <= gets + inner,
            "{} requests, {gets} gets, {inner} inner nodes",
            reads.requests
        );
        assert!(reads.requests > gets / 2, "they are read from the device");
    }
}

/// One power loss after another in the middle of appending and cleansing.
#[test]
fn log_areas_survive_power_loss() {
    use psync::{Fault, Filter, Repeat};
    let mut pieces = 0;
    for seed in 0..300u64 {
        let mut rng = StdRng::seed_from_u64(seed ^ 0xb10c);
        let volume = Simulated::new(seed);
        let mut model = Contents::new();
        {
            let db = open(&volume).expect("opens");
            let keyspace = db.keyspace("main").expect("a keyspace");
            let mut batch = db.batch();
            for number in 0..RECORDS / 4 {
                batch.insert(&keyspace, key(number), [7; 60]);
                model.insert(key(number), vec![7; 60]);
            }
            batch.commit().expect("commits");
            db.flush().expect("flushes");
            for _ in 0..rng.random_range(0..8) {
                change(&db, &keyspace, &mut model, &mut rng);
                db.flush().expect("flushes");
            }
            db.close().expect("closes");
        }
        let db = open(&volume).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        volume.fail_nth(Filter::any(), rng.random_range(1..40), Fault::PowerOff, Repeat::Once);
        // What is in one batch is there as a whole or not at all, so either model may be the true one.
        let mut models = vec![model];
        for _ in 0..6 {
            let mut next = models.last().expect("one at least").clone();
            let mut batch = db.batch();
            for _ in 0..60 {
                let key = key(rng.random_range(0..RECORDS / 4));
                let value = vec![rng.random(); 50];
                batch.insert(&keyspace, &key, &value);
                next.insert(key, value);
            }
            models.push(next);
            if batch.commit().and_then(|()| db.flush()).is_err() {
                break;
            }
        }
        drop(keyspace);
        drop(db);
        let found = volume.power_loss(seed);
        let db = open(&found).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let checked = db.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        pieces += checked.log_pieces;
        let keyspace = db.keyspace("main").expect("a keyspace");
        let contents: Contents =
            keyspace.iter().map(|item| item.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("reads")).collect();
        let at = models.iter().rposition(|model| *model == contents);
        assert!(at.is_some_and(|at| at + 2 >= models.len()), "seed {seed}: found {at:?} of {}", models.len());
        compare(&db.snapshot(), &keyspace, &contents, &mut rng, &format!("seed {seed}"));
    }
    println!("{pieces} log pieces in what was found");
    assert!(pieces > 300);
}

/// Leaves of four records of a kilobyte.
const LEAVES: u32 = 1500;
const A_LEAF: u32 = 4;

fn with_short_leaves(pio_max: usize) -> (Simulated, Database, Keyspace) {
    let volume = Simulated::new(1).with_pio_max(pio_max);
    let (db, keyspace) = open_short_leaves(&volume, pio_max);
    let records = (0..LEAVES * A_LEAF).map(|number| (number.to_be_bytes(), [0; 1000]));
    keyspace.ingest(records).expect("ingests");
    (volume, db, keyspace)
}

fn open_short_leaves(volume: &Simulated, pio_max: usize) -> (Database, Keyspace) {
    let options = Database::builder()
        .compression(sapwood::Compression::None)
        .memory(16 << 20)
        .pio_max(pio_max)
        .background_threads(0);
    let db = options.open_on(std::sync::Arc::new(volume.clone())).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    (db, keyspace)
}

/// Changes a record in each of these leaves and brings the changes there. Says how many bytes of data that wrote.
fn change_leaves(db: &Database, keyspace: &Keyspace, leaves: impl Iterator<Item = u32>) -> u64 {
    let before = db.stats().writes.data_bytes;
    let mut batch = db.batch();
    for leaf in leaves {
        batch.insert(keyspace, (leaf * A_LEAF + 1).to_be_bytes(), [1; 1000]);
    }
    batch.commit().expect("commits");
    db.compact().expect("compacts");
    db.check().expect("sound");
    db.stats().writes.data_bytes - before
}

#[test]
fn leaves_between_many_changed_ones_are_rewritten_with_them_and_few_are_left_alone() {
    let (volume, db, keyspace) = with_short_leaves(64);
    change_leaves(&db, &keyspace, (0..LEAVES).step_by(2));
    drop(keyspace);
    db.close().expect("closes");
    // Nothing is cached, and what lies between scattered leaves is read with them.
    let (db, keyspace) = open_short_leaves(&volume, 64);
    let before = db.stats().reads.bytes;
    assert_eq!(keyspace.iter().count(), (LEAVES * A_LEAF) as usize);
    let (read, records) = (db.stats().reads.bytes - before, u64::from(LEAVES * A_LEAF * 1004));
    assert!(read < records * 6 / 5, "{read} bytes read of {records}");
    let few = change_leaves(&db, &keyspace, (0..LEAVES).step_by(10));
    assert!(few < u64::from(LEAVES / 10) * 12_000, "{few} bytes written for one leaf of ten");
}

/// A run of leaves that has become short may take in its right neighbour, but not one that is on its way to be rewritten itself.
#[test]
fn a_leaf_on_its_way_to_be_rewritten_is_not_joined_to_its_neighbour() {
    for pio_max in [1, 2, 3, 5] {
        let (_, db, keyspace) = with_short_leaves(pio_max);
        let mut left = (LEAVES * A_LEAF) as usize;
        let mut batch = db.batch();
        for leaf in 0..LEAVES {
            let records = leaf * A_LEAF..(leaf + 1) * A_LEAF;
            // Two leaves that are emptied, but for one record; one that is left alone; one with a change.
            let removed = match leaf % 4 {
                0 => records.clone(),
                1 => records.start + 1..records.end,
                _ => 0..0,
            };
            left -= removed.len();
            for number in removed {
                batch.remove(&keyspace, number.to_be_bytes());
            }
            if leaf % 4 == 3 {
                batch.insert(&keyspace, records.start.to_be_bytes(), [7; 1]);
            }
        }
        batch.commit().expect("commits");
        db.compact().expect("compacts");
        db.check().unwrap_or_else(|error| panic!("pio_max {pio_max}: {error}"));
        for (count, record) in keyspace.iter().enumerate() {
            let (key, value) = record.expect("reads");
            let number = u32::from_be_bytes(key[..].try_into().expect("four bytes"));
            let is_changed = number % (4 * A_LEAF) == 3 * A_LEAF;
            assert_eq!(value.len(), if is_changed { 1 } else { 1000 }, "pio_max {pio_max}, record {number}");
            assert!(count < left, "pio_max {pio_max}");
        }
        assert_eq!(keyspace.iter().count(), left, "pio_max {pio_max}");
        assert_eq!(keyspace.len_estimate(), left as u64, "pio_max {pio_max}");
    }
}

/// A block of which two leaves in five have changes is written as a whole, and so it is due by what all of that costs.
#[test]
fn a_few_changes_in_many_leaves_wait_in_the_log_area() {
    let (_, db, keyspace) = with_short_leaves(64);
    let mut batch = db.batch();
    // A record in nine of twenty leaves: a ninth of the records of these.
    let changed = (0..LEAVES).filter(|leaf| leaf * 9 % 20 < 9);
    for leaf in changed.clone() {
        batch.insert(&keyspace, (leaf * A_LEAF + 1).to_be_bytes(), [1; 1000]);
    }
    batch.commit().expect("commits");
    let before = db.stats().writes;
    db.flush().expect("flushes");
    let after = db.stats().writes;
    let (written, changes) = (after.data_bytes - before.data_bytes, changed.count() as u64 * 1004);
    // 11 % of what the blocks have, though a quarter of what the leaves have that are changed.
    assert!(after.blocks_appended > before.blocks_appended, "log areas gather them");
    assert!(written < 6 * changes, "{written} bytes for {changes}");
}
