//! Queues on top of the store, and other long runs of removed records: what is there is found, what was removed is not,
//! by readers of any time, whatever a scan has noted about ranges without records.

use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace, Snapshot};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(volume: &Arc<dyn Volume>) -> Database {
    let builder = Database::builder().memory(4 << 20).leaf_len(1024).background_threads(0);
    builder.open_on(Arc::clone(volume)).expect("opens")
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn check(keyspace: &Keyspace, model: &Model, snapshot: Option<&Snapshot>, rng: &mut StdRng, span: u64) {
    let (low, high) = (key(rng.random_range(0..span)), key(rng.random_range(0..span)));
    if low >= high {
        return;
    }
    let low = match rng.random_range(0..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(low),
        _ => Bound::Excluded(low),
    };
    let high = match rng.random_range(0..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(high),
        _ => Bound::Excluded(high),
    };
    let range = |bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)| match snapshot {
        Some(snapshot) => snapshot.range(keyspace, bounds),
        None => keyspace.range(bounds),
    };
    let bounds = (low, high);
    let most = if rng.random_range(0..4) == 0 { usize::MAX } else { 3 };
    let expected: Vec<_> = model.range(bounds.clone()).take(most).map(|(key, _)| key.clone()).collect();
    let plain = |item: sapwood::Result<(sapwood::Key, sapwood::Value)>| item.expect("reads").0.to_vec();
    let found: Vec<_> = range(bounds.clone()).take(most).map(plain).collect();
    assert_eq!(found, expected, "{bounds:?}");
    let expected: Vec<_> = model.range(bounds.clone()).rev().take(most).map(|(key, _)| key.clone()).collect();
    let found: Vec<_> = range(bounds.clone()).rev().take(most).map(plain).collect();
    assert_eq!(found, expected, "{bounds:?} downwards");
    // From both ends at once.
    let (mut both, mut left, mut right) = (range(bounds.clone()), Vec::new(), Vec::new());
    loop {
        match both.next() {
            Some(item) => left.push(plain(item)),
            None => break,
        }
        match both.next_back() {
            Some(item) => right.push(plain(item)),
            None => break,
        }
        if most < usize::MAX && left.len() > 40 {
            return;
        }
    }
    left.extend(right.into_iter().rev());
    assert_eq!(
        left,
        model.range(bounds.clone()).map(|(key, _)| key.clone()).collect::<Vec<_>>(),
        "{bounds:?} from both ends"
    );
}

/// Runs of records come and go, in queues, log areas and leaves; old snapshots are asked too.
#[test]
fn runs_of_removals_hide_nothing_but_what_was_removed() {
    const SPAN: u64 = 6000;
    for seed in 0..8 {
        let mut rng = StdRng::seed_from_u64(seed);
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(seed));
        let mut db = open(&volume);
        let mut keyspace = db.keyspace("runs").expect("a keyspace");
        let (mut model, mut snapshots) = (Model::new(), Vec::<(Snapshot, Model)>::new());
        for _ in 0..80 {
            let (first, len) = (rng.random_range(0..SPAN), rng.random_range(1..800));
            let mut batch = db.batch();
            match rng.random_range(0..10) {
                0..3 => {
                    for number in first..first + len {
                        batch.insert(&keyspace, key(number), [first as u8; 20]);
                        model.insert(key(number), vec![first as u8; 20]);
                    }
                }
                3..7 => {
                    for number in first..first + 2 * len {
                        batch.remove(&keyspace, key(number));
                        model.remove(&key(number));
                    }
                }
                7 => {
                    for _ in 0..5 {
                        let number = rng.random_range(0..SPAN);
                        batch.insert(&keyspace, key(number), [1; 20]);
                        model.insert(key(number), vec![1; 20]);
                    }
                }
                8 => {
                    // Pops.
                    for turn in 0..200 {
                        let popped = if turn % 2 == 0 { keyspace.first() } else { keyspace.last() };
                        let expected = if turn % 2 == 0 { model.pop_first() } else { model.pop_last() };
                        let popped =
                            popped.expect("reads").map(|(key, value)| (key.to_vec(), value.to_vec()));
                        assert_eq!(popped, expected);
                        if let Some((key, _)) = popped {
                            let mut batch = db.batch();
                            batch.remove(&keyspace, key);
                            batch.durability(Durability::Buffered).commit().expect("commits");
                        }
                    }
                }
                _ => match rng.random_range(0..3) {
                    0 => {
                        snapshots.clear();
                        drop(std::mem::replace(&mut batch, db.batch()));
                        drop(keyspace);
                        drop(batch);
                        db.close().expect("closes");
                        db = open(&volume);
                        keyspace = db.keyspace("runs").expect("a keyspace");
                        batch = db.batch();
                    }
                    1 if model.last_key_value().is_none_or(|(last, _)| *last < key(2 * SPAN)) => {
                        let last = model
                            .last_key_value()
                            .map_or(0, |(last, _)| u64::from_be_bytes(last[..].try_into().expect("8 bytes")));
                        let records = (last + 1..last + 200).map(|number| (key(number), vec![3; 20]));
                        keyspace.ingest(records.clone()).expect("ingests");
                        model.extend(records);
                    }
                    _ => db.flush().expect("flushes"),
                },
            }
            batch.durability(Durability::Buffered).commit().expect("commits");
            if rng.random_range(0..8) == 0 {
                snapshots.push((db.snapshot(), model.clone()));
            }
            if snapshots.len() > 3 {
                snapshots.remove(rng.random_range(0..3));
            }
            for _ in 0..6 {
                check(&keyspace, &model, None, &mut rng, SPAN + 1000);
                for (snapshot, model) in &snapshots {
                    check(&keyspace, model, Some(snapshot), &mut rng, SPAN + 1000);
                }
            }
        }
    }
}

/// One thread inserts at the tail, another takes from the head, a third polls: nothing is lost, doubled or out of order.
#[test]
fn a_queue_between_threads_loses_nothing() {
    const RECORDS: u64 = 60_000;
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(4 << 20).leaf_len(1024).open_on(volume).expect("opens");
    let queue = db.keyspace("queue").expect("a keyspace");
    let (pushed, popped) = (AtomicU64::new(0), AtomicU64::new(0));
    let commit = |change: &dyn Fn(&mut sapwood::Batch)| {
        let mut batch = db.batch();
        change(&mut batch);
        batch.durability(Durability::None).commit().expect("commits");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..RECORDS {
                commit(&|batch| _ = batch.insert(&queue, key(number), [7; 50]));
                pushed.store(number + 1, Ordering::SeqCst);
            }
        });
        scope.spawn(|| {
            while popped.load(Ordering::SeqCst) < RECORDS {
                let (taken, there) = (popped.load(Ordering::SeqCst), pushed.load(Ordering::SeqCst));
                let last = queue.last().expect("reads");
                let taken_since = popped.load(Ordering::SeqCst);
                // Whatever was pushed before and not taken until now is there.
                assert!(
                    last.is_some() || taken_since + 1 >= there,
                    "{there} pushed, {taken} to {taken_since} taken"
                );
                if let Some((last, _)) = last {
                    assert!(last[..] >= key(there.max(1) - 1)[..]);
                }
            }
        });
        let mut number = 0;
        while number < RECORDS {
            let there = pushed.load(Ordering::SeqCst);
            match queue.first().expect("reads") {
                Some((first, _)) => {
                    assert_eq!(first[..], key(number)[..]);
                    commit(&|batch| _ = batch.remove(&queue, key(number)));
                    number += 1;
                    popped.store(number, Ordering::SeqCst);
                }
                None => assert!(there <= number, "{there} were pushed, {number} taken"),
            }
        }
    });
    assert!(queue.first().expect("reads").is_none());
}

/// A value that came and went since is there for readers of the time between.
#[test]
fn a_range_that_an_older_reader_finds_empty_hides_no_value_that_came_later() {
    for removes_range in [false, true] {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = open(&volume);
        let keyspace = db.keyspace("main").expect("a keyspace");
        (0..10u8).for_each(|number| keyspace.remove([number]).expect("commits"));
        let before = db.snapshot();
        keyspace.insert([20], "value").expect("commits");
        let between = db.snapshot();
        let removed = if removes_range { keyspace.remove_range([15]..[25]) } else { keyspace.remove([20]) };
        removed.expect("commits");
        // The range is noted.
        assert_eq!(before.iter(&keyspace).count(), 0);
        assert_eq!(between.iter(&keyspace).count(), 1);
        assert_eq!(between.iter(&keyspace).rev().count(), 1);
        assert_eq!(keyspace.iter().count(), 0);
    }
}
