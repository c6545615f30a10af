//! Whole ranges removed at once: what readers see at once and after flushes, what older snapshots see, and what becomes of the
//! space.

use psync::Simulated;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Change, CommittedOperation, Database, Error, Keyspace};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Records 0 to `count`, in a tree with four levels of inner nodes, some of them in log areas.
fn of_short_leaves(count: u32) -> (Database, Keyspace) {
    let options = Database::builder()
        .compression(sapwood::Compression::None)
        .memory(8 << 20)
        .leaf_len(256)
        .background_threads(0);
    let db = options.open_on(Arc::new(Simulated::new(1))).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.ingest((0..count).map(|number| (key(number), [0; 40]))).expect("ingests");
    let mut batch = db.batch();
    (0..count).step_by(97).for_each(|number| _ = batch.insert(&keyspace, key(number), [1; 40]));
    batch.commit().expect("commits");
    db.flush().expect("flushes");
    (db, keyspace)
}

fn numbers(range: impl Iterator<Item = sapwood::Result<(sapwood::Key, sapwood::Value)>>) -> Vec<u32> {
    range
        .map(|record| u32::from_be_bytes(record.expect("sound").0[..].try_into().expect("four bytes")))
        .collect()
}

fn holds(keyspace: &Keyspace, model: &BTreeSet<u32>, story: &str) {
    assert!(numbers(keyspace.iter()).iter().eq(model), "{story}, upwards");
    assert!(numbers(keyspace.iter().rev()).iter().eq(model.iter().rev()), "{story}, downwards");
    let first = keyspace.first().expect("reads").map(|(key, _)| key.to_vec());
    assert_eq!(first, model.first().map(|number| key(*number).to_vec()), "{story}");
    let last = keyspace.last().expect("reads").map(|(key, _)| key.to_vec());
    assert_eq!(last, model.last().map(|number| key(*number).to_vec()), "{story}");
}

#[test]
fn what_is_removed_is_gone_before_and_after_flushes_and_snapshots_still_have_it() {
    const COUNT: u32 = 60_000;
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (db, keyspace) = of_short_leaves(COUNT);
        let mut model: BTreeSet<u32> = (0..COUNT).collect();
        for round in 0..6 {
            let (snapshot, before) = (db.snapshot(), model.clone());
            let mut standing = keyspace.iter();
            assert_eq!(standing.next().is_some(), !before.is_empty());
            for _ in 0..rng.random_range(1..4) {
                let width = [3, 300, 9_000, COUNT][rng.random_range(0..4)];
                let from = rng.random_range(0..COUNT);
                let to = (from + rng.random_range(1..=width)).min(COUNT + 5);
                keyspace.remove_range(key(from)..key(to)).expect("removes");
                model.retain(|number| *number < from || *number >= to);
                for number in [from, (from + to) / 2] {
                    assert!(!keyspace.contains(key(number)).expect("reads"));
                    let found = keyspace.multi_get([key(number), key(COUNT + 9)]).expect("reads");
                    assert!(found.iter().all(Option::is_none));
                }
                // Newer records within it stay.
                let mut batch = db.batch();
                for number in [from + 1, to - 1] {
                    if rng.random_bool(0.7) {
                        batch.insert(&keyspace, key(number), "newer");
                        model.insert(number);
                    }
                }
                batch.commit().expect("commits");
            }
            let story = format!("seed {seed}, round {round}");
            holds(&keyspace, &model, &story);
            db.flush().expect("flushes");
            holds(&keyspace, &model, &format!("{story}, flushed"));
            assert!(numbers(snapshot.iter(&keyspace)).iter().eq(&before), "{story}: the snapshot");
            assert_eq!(numbers(standing).len() + 1, before.len().max(1), "{story}: the iterator");
            drop(snapshot);
            db.check().expect("sound");
            let (estimate, exact) = (keyspace.len_estimate() as f64, model.len() as f64);
            assert!((estimate - exact).abs() <= exact / 20.0 + 20.0, "{story}: {estimate} for {exact}");
        }
        keyspace.clear().expect("clears");
        holds(&keyspace, &BTreeSet::new(), "cleared");
        assert_eq!(keyspace.len_estimate(), 0);
        db.compact().expect("compacts");
        holds(&keyspace, &BTreeSet::new(), "cleared and compacted");
        assert_eq!(db.stats().space.live, 0, "a keyspace without records takes no space");
        keyspace.insert(key(7), "after that").expect("inserts");
        holds(&keyspace, &BTreeSet::from([7]), "after that");
        // What is ingested behind what was removed a moment ago stays.
        keyspace.clear().expect("clears");
        keyspace.ingest((3..500).map(|number| (key(number), "ingested"))).expect("ingests");
        holds(&keyspace, &(3..500).collect(), "ingested");
        db.flush().expect("flushes");
        holds(&keyspace, &(3..500).collect(), "ingested and flushed");
        db.check().expect("sound");
    }
}

/// A flush drops whole blocks without reading their leaves; what survives beside them is not written again.
#[test]
fn a_large_range_costs_little_and_gives_its_space_back() {
    const COUNT: u32 = 300_000;
    let options =
        Database::builder().compression(sapwood::Compression::None).memory(32 << 20).background_threads(0);
    let db = options.open_on(Arc::new(Simulated::new(1))).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.ingest((0..COUNT).map(|number| (key(number), [0; 200]))).expect("ingests");
    let before = db.stats();
    let log = before.writes.log_bytes;
    keyspace.remove_range(key(1000)..key(COUNT - 1000)).expect("removes");
    assert!(db.stats().writes.log_bytes - log < 200, "{} bytes of log", db.stats().writes.log_bytes - log);
    db.flush().expect("flushes");
    let after = db.stats();
    let (read, written) =
        (after.reads.bytes - before.reads.bytes, after.writes.data_bytes - before.writes.data_bytes);
    let all = before.space.live;
    assert!(read < all / 20 && written < all / 20, "{read} bytes read, {written} written, of {all}");
    assert!(after.space.live < all / 20, "{} bytes are alive", after.space.live);
    assert_eq!(keyspace.iter().count(), 2000);
    db.check().expect("sound");
}

#[test]
fn many_small_ranges_are_as_cheap_as_removals() {
    let (db, keyspace) = of_short_leaves(50_000);
    let begun = Instant::now();
    let mut batch = db.batch();
    for number in (0..50_000).step_by(10) {
        batch.remove_range(&keyspace, key(number)..key(number + 3));
    }
    batch.commit().expect("commits");
    assert_eq!(keyspace.iter().count(), 35_000);
    assert_eq!(keyspace.iter().rev().count(), 35_000);
    db.flush().expect("flushes");
    assert_eq!(keyspace.iter().count(), 35_000);
    assert!(begun.elapsed().as_secs() < 60);
    db.check().expect("sound");
}

#[test]
fn bounds_are_checked_and_nothing_between_them_is_nothing() {
    let (db, keyspace) = of_short_leaves(100);
    keyspace.remove_range(key(50)..key(50)).expect("nothing");
    keyspace.remove_range(key(60)..key(50)).expect("nothing, inverted");
    keyspace.remove_range(key(60)..=key(50)).expect("nothing, inverted");
    assert_eq!(keyspace.iter().count(), 100);
    let long = vec![7; sapwood::KEY_LEN_MAX + 1];
    assert!(matches!(keyspace.remove_range(&long[..]..), Err(Error::KeyTooLong { .. })));
    keyspace.remove_range(&long[1..]..=&long[1..]).expect("the longest key");
    let (_other_db, foreign) = of_short_leaves(1);
    assert!(matches!(db.batch().clear(&foreign).commit(), Err(Error::Foreign { .. })));
    keyspace
        .remove_range((std::ops::Bound::Excluded(key(10)), std::ops::Bound::Included(key(12))))
        .expect("two");
    assert_eq!(keyspace.iter().count(), 98);
    assert!(keyspace.contains(key(10)).expect("reads") && !keyspace.contains(key(12)).expect("reads"));
    keyspace.remove_prefix([0, 0, 0]).expect("all that are left");
    assert!(keyspace.is_empty().expect("reads"));
}

/// They end a byte behind what a key may have: a replica could not remove them, and stood for ever.
#[test]
fn what_the_change_feed_tells_of_the_longest_keys_can_be_removed() {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let builder = Database::builder().memory(16 << 20).background_threads(0).keep_changes(16 << 20);
    let db = builder.open_on(Arc::new(Simulated::new(1))).expect("opens");
    let (original, copies) = (db.keyspace("main").expect("one"), ["batch", "transaction"]);
    let copies = copies.map(|name| db.keyspace(name).expect("one"));
    let longest = vec![7; sapwood::KEY_LEN_MAX];
    let behind = [&longest[..], &[0]].concat();
    for keyspace in copies.iter().chain([&original]) {
        [&[7][..], &longest, &[8]].iter().for_each(|key| keyspace.insert(key, "there").expect("inserts"));
    }
    let left =
        |keyspace: &Keyspace| keyspace.iter().keys().map(|key| key.expect("reads").len()).collect::<Vec<_>>();
    let removals: [&dyn Fn(); 2] =
        [&|| original.remove_range(..=&longest[..]).expect("up to the longest"), &|| {
            original.remove_range((Excluded(&longest[..]), Unbounded)).expect("behind it")
        }];
    for (removal, expected) in removals.into_iter().zip([vec![1], Vec::new()]) {
        let (_, position) = db.snapshot_for_changes().expect("changes are kept");
        removal();
        assert_eq!(left(&original), expected);
        let Some(Ok(Change::Commit(commit))) = db.changes(&position).expect("they are there").next() else {
            panic!("a commit")
        };
        let operations: Vec<_> = commit.operations().collect();
        let [CommittedOperation::RemoveRange { from, to, .. }] = operations[..] else {
            panic!("{operations:?}")
        };
        assert!(from == behind || to == Some(&behind));
        let bounds = (Included(from), to.map_or(Unbounded, Excluded));
        copies[0].remove_range(bounds).expect("what is told can be done");
        db.transact(|tx| tx.remove_range(&copies[1], bounds)).expect("what is told can be done");
        assert!(copies.iter().all(|copy| left(copy) == expected));
    }
    for other in [(Excluded(&behind[..]), Unbounded), (Unbounded, Included(&behind[..]))] {
        assert!(matches!(original.remove_range(other), Err(Error::KeyTooLong { .. })));
    }
}
