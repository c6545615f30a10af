//! The PIO B-tree loses power while transactions are open, commit and abort: what is there afterwards is what some number
//! of them had committed, whole, and nothing else. So does the one for many threads, by each thread.

use psync::{Fault, Filter, Repeat, Simulated};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use trees::{Eviction, Index, LogMode, PioOptions, PioTree, SharedPioTree, Transaction};

/// Transactions open at a time.
const OPEN: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// An operation by itself: the key's value, or its removal.
    Alone(u64, Option<u64>),
    /// One of a transaction, which begins with its first.
    Within(usize, u64, Option<u64>),
    Commit(usize),
    Abort(usize),
    Flush,
}

fn workload(seed: u64, count: usize, keys: u64) -> Vec<Step> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut step = |_| {
        let key = rng.random_range(0..keys);
        let value = rng.random_bool(0.8).then(|| rng.random());
        let which = rng.random_range(0..OPEN);
        match rng.random_range(0..100) {
            0..40 => Step::Alone(key, value),
            40..85 => Step::Within(which, key, value),
            85..93 => Step::Commit(which),
            93..98 => Step::Abort(which),
            _ => Step::Flush,
        }
    };
    (0..count).map(&mut step).collect()
}

fn options(log: LogMode) -> PioOptions {
    PioOptions {
        page_len: 128,
        segments: 4,
        pio_max: 4,
        queue_pages: 6,
        frames: 8,
        speriod: 10,
        bcnt: 15,
        fanout_max: Some(4),
        log,
        eviction: Eviction::LowestLevel,
        ..PioOptions::default()
    }
}

type Changes = BTreeMap<u64, Option<u64>>;

/// A run of a workload.
struct Ran {
    volume: Simulated,
    /// What was committed, in order; the last may be the one that failed.
    committed: Vec<Changes>,
    /// How many of them must have survived.
    promised: usize,
    failed: bool,
    refused: u64,
}

fn run(options: &PioOptions, seed: u64, nth: u64, steps: &[Step]) -> Ran {
    let volume = Simulated::new(seed).with_alignment(128);
    let mut tree = PioTree::create(Arc::new(volume.clone()), options).expect("created");
    if nth > 0 {
        volume.fail_nth(Filter::any(), nth, Fault::PowerOff, Repeat::Once);
    }
    let mut ran = Ran { volume, committed: Vec::new(), promised: 0, failed: false, refused: 0 };
    let mut open: [Option<(Transaction, Changes)>; OPEN] = Default::default();
    let mut state = Changes::new();
    for step in steps {
        let is_free = |key: u64, own: Option<usize>| {
            let mut others = open.iter().enumerate().filter(|(which, _)| Some(*which) != own);
            !others.any(|(_, open)| open.as_ref().is_some_and(|(_, changes)| changes.contains_key(&key)))
        };
        let done = match *step {
            Step::Alone(key, value) => {
                let free = is_free(key, None);
                let done = match value {
                    Some(value) => tree.insert(key, value),
                    None => tree.delete(key),
                };
                if !free && matches!(done, Err(trees::Error::Invalid(_))) {
                    ran.refused += 1;
                    continue;
                }
                // A power loss during the batch update that it caused may find it committed.
                ran.committed.push(Changes::from([(key, value)]));
                assert!(free || done.is_err(), "key {key} has another writer");
                state.insert(key, value);
                done
            }
            Step::Within(which, key, value) => {
                let free = is_free(key, Some(which));
                let slot = &mut open[which];
                let (transaction, changes) = slot.get_or_insert_with(|| (tree.begin(), Changes::new()));
                let done = match value {
                    Some(value) => tree.update_in(transaction, key, value),
                    None => tree.delete_in(transaction, key),
                };
                match done {
                    Ok(()) => {
                        assert!(free, "key {key} has another writer");
                        changes.insert(key, value);
                        // Nobody else sees it.
                        let seen = tree.search_in(transaction, key);
                        let by_others = tree.search(key);
                        if let (Ok(seen), Ok(by_others)) = (seen, by_others) {
                            assert_eq!(seen, value);
                            assert_eq!(by_others, state.get(&key).copied().flatten());
                        }
                        Ok(())
                    }
                    Err(trees::Error::Invalid(why)) if !free || why.contains("queue") => {
                        ran.refused += 1;
                        continue;
                    }
                    Err(error) => Err(error),
                }
            }
            Step::Commit(which) => {
                let Some((transaction, changes)) = open[which].take() else { continue };
                ran.committed.push(changes.clone());
                state.extend(changes);
                tree.commit(transaction)
            }
            Step::Abort(which) => {
                let Some((transaction, changes)) = open[which].take() else { continue };
                let done = tree.abort(transaction);
                for key in changes.keys() {
                    if let Ok(found) = tree.search(*key) {
                        assert_eq!(found, state.get(key).copied().flatten(), "aborted");
                    }
                }
                done
            }
            Step::Flush => tree.flush(),
        };
        if done.is_err() {
            ran.failed = true;
            return ran;
        }
        if matches!(step, Step::Flush) || tree.contract() == trees::Contract::EachOperation {
            ran.promised = ran.committed.len();
        }
    }
    ran
}

fn verify(options: &PioOptions, ran: &Ran, image: Simulated, story: &str) {
    let tree = PioTree::recover(Arc::new(image), options).unwrap_or_else(|error| panic!("{story}: {error}"));
    tree.check().unwrap_or_else(|error| panic!("{story}: {error}"));
    let found: BTreeMap<u64, u64> = tree.range(0..u64::MAX).expect("scanned").into_iter().collect();
    let mut state = BTreeMap::new();
    let mut matched = ran.promised == 0 && found == state;
    for (at, changes) in ran.committed.iter().enumerate() {
        for (key, value) in changes {
            match value {
                Some(value) => state.insert(*key, *value),
                None => state.remove(key),
            };
        }
        matched |= at + 1 >= ran.promised && found == state;
    }
    assert!(
        matched,
        "{story}: {} records are there, which is no state from commit {} to {}",
        found.len(),
        ran.promised,
        ran.committed.len()
    );
}

#[test]
fn at_every_operation_of_transactions() {
    for (seed, log) in [(1, LogMode::Each), (2, LogMode::Buffered)] {
        let steps = workload(seed, 700, 120);
        let mut images = 0;
        for nth in 1.. {
            let ran = run(&options(log), seed, nth, &steps);
            let story = format!("{log:?}, power off at operation {nth}");
            verify(&options(log), &ran, ran.volume.power_loss(nth), &story);
            images += 1;
            if !ran.failed {
                let tree =
                    PioTree::recover(Arc::new(ran.volume.power_loss(0)), &options(log)).expect("recovered");
                assert!(ran.refused > 0 && ran.committed.len() > 100, "{log:?}: the rare paths were met");
                assert!(tree.stats().height >= 3);
                break;
            }
        }
        println!("{log:?}: {images} images");
    }
}

#[test]
fn at_random_points_of_transactions() {
    let mut count = 0;
    for log in [LogMode::Each, LogMode::Buffered] {
        for seed in 0..100 {
            let steps = workload(seed, 250, 60);
            let operations = run(&options(log), seed, 0, &steps).volume.operations();
            let mut rng = StdRng::seed_from_u64(seed);
            for _ in 0..10 {
                let nth = rng.random_range(1..=operations);
                let ran = run(&options(log), seed, nth, &steps);
                let image = ran.volume.power_loss(rng.random());
                verify(
                    &options(log),
                    &ran,
                    image,
                    &format!("{log:?}, seed {seed}, power off at operation {nth}"),
                );
                count += 1;
            }
        }
    }
    println!("{count} images");
}

/// A transaction that fills the queue is refused, and can be ended; then there is room again.
#[test]
fn a_transaction_larger_than_the_queue_is_refused() {
    let mut tree = PioTree::create(Arc::new(Simulated::new(1).with_alignment(128)), &options(LogMode::Each))
        .expect("created");
    let transaction = tree.begin();
    let refused = (0..1000).find_map(|key| tree.insert_in(&transaction, key, key).err());
    let told = refused.expect("a queue of 6 small pages cannot hold 1000").to_string();
    assert!(told.contains("full of operations that are not committed"), "{told}");
    tree.insert(5000, 1).expect("one by itself goes through the queue");
    tree.abort(transaction).expect("aborted");
    assert_eq!(tree.range(0..u64::MAX).expect("scanned"), [(5000, 1)]);
    (0..1000).for_each(|key| tree.insert(key, key).expect("inserted"));
    assert_eq!(tree.check().expect("sound").records, 1001);
}

/// Threads of the crash tests, each with keys of its own.
const THREADS: u64 = 3;

/// What a thread has committed, in order, and how many of these had returned.
struct Thread {
    committed: Vec<Changes>,
    returned: usize,
}

/// Transactions of a few changes until the power goes, some of them aborted.
fn work(tree: &SharedPioTree, thread: u64, seed: u64) -> Thread {
    let mut rng = StdRng::seed_from_u64(seed * THREADS + thread);
    let mut done = Thread { committed: Vec::new(), returned: 0 };
    for _ in 0..200 {
        let transaction = tree.begin();
        let mut changes = Changes::new();
        for _ in 0..rng.random_range(1..6) {
            let key = rng.random_range(0..40) * THREADS + thread;
            let value = rng.random_bool(0.8).then(|| rng.random());
            let changed = match value {
                Some(value) => tree.insert_in(&transaction, key, value),
                None => tree.delete_in(&transaction, key),
            };
            match changed {
                Ok(()) => drop(changes.insert(key, value)),
                // Others fill the queue with what they have not committed.
                Err(trees::Error::Invalid(why)) if why.contains("queue") => break,
                Err(_) => return done,
            }
        }
        let ended = if rng.random_bool(0.2) {
            tree.abort(transaction)
        } else {
            done.committed.push(changes);
            let committed = tree.commit(transaction);
            done.returned = done.committed.len() - usize::from(committed.is_err());
            committed
        };
        if ended.is_err() {
            return done;
        }
    }
    done
}

#[test]
fn at_random_points_of_transactions_of_many_threads() {
    let (mut off, mut beyond) = (0, 0);
    for log in [LogMode::Each, LogMode::Buffered] {
        for seed in 0..100 {
            let volume = Simulated::new(seed).with_alignment(128);
            let options = options(log);
            let tree = PioTree::create(Arc::new(volume.clone()), &options).expect("created");
            let tree = SharedPioTree::new(tree);
            let mut rng = StdRng::seed_from_u64(seed);
            volume.fail_nth(Filter::any(), rng.random_range(1..2000), Fault::PowerOff, Repeat::Once);
            let threads: Vec<Thread> = std::thread::scope(|scope| {
                let tree = &tree;
                let threads: Vec<_> =
                    (0..THREADS).map(|thread| scope.spawn(move || work(tree, thread, seed))).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            off += usize::from(volume.is_off());
            let story = format!("{log:?}, seed {seed}");
            let tree = PioTree::recover(Arc::new(volume.power_loss(rng.random())), &options)
                .unwrap_or_else(|error| panic!("{story}: {error}"));
            tree.check().unwrap_or_else(|error| panic!("{story}: {error}"));
            let found = tree.range(0..u64::MAX).expect("scanned");
            for (thread, done) in (0..THREADS).zip(threads) {
                let promised = if log == LogMode::Each { done.returned } else { 0 };
                let own = |record: &&(u64, u64)| record.0 % THREADS == thread;
                let found: BTreeMap<u64, u64> = found.iter().filter(own).copied().collect();
                let mut state = BTreeMap::new();
                let mut matched = promised == 0 && found == state;
                for (at, changes) in done.committed.iter().enumerate() {
                    for (key, value) in changes {
                        match value {
                            Some(value) => state.insert(*key, *value),
                            None => state.remove(key),
                        };
                    }
                    matched |= at + 1 >= promised && found == state;
                }
                assert!(
                    matched,
                    "{story}, thread {thread}: no state from its commit {promised} on: {found:?}"
                );
                beyond += done.committed.len();
            }
        }
    }
    assert!(off > 100 && beyond > 2000, "power off {off} times, {beyond} commits: the rare paths were met");
}
