//! Trees for many threads: every thread finds what it has written, at once, and nothing is lost.

use psync::Simulated;
use std::collections::BTreeMap;
use std::sync::Arc;
use trees::{BlinkOptions, BlinkTree, Index, LogMode, PioOptions, PioTree, SharedPioTree};

const THREADS: u64 = 4;
const STEPS: u64 = 20_000;

#[test]
fn pio_threads_find_what_they_wrote() {
    let volume = Arc::new(Simulated::new(1).with_alignment(128));
    let options = PioOptions {
        page_len: 256,
        segments: 2,
        pio_max: 8,
        queue_pages: 10,
        frames: 20,
        speriod: 20,
        bcnt: 100,
        fanout_max: Some(6),
        log: LogMode::Buffered,
        ..PioOptions::default()
    };
    let tree = SharedPioTree::new(PioTree::create(volume.clone(), &options).expect("created"));
    let models: Vec<BTreeMap<u64, u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let tree = &tree;
                    move || work(tree, thread)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let expected: Vec<_> = models.into_iter().flatten().collect::<BTreeMap<_, _>>().into_iter().collect();
    tree.flush().expect("flushed");
    assert!(tree.stats().flushes > 100 && tree.stats().splits > 100, "{:?}", tree.stats());
    drop(tree);
    let tree = PioTree::recover(volume, &options).expect("recovered");
    assert_eq!(tree.check().expect("sound").records, expected.len() as u64);
    assert_eq!(tree.range(0..u64::MAX).expect("scanned"), expected);
}

/// Keys that all threads count up, and how far the second key of a pair lies behind the first.
const COUNTERS: u64 = 5;
const APART: u64 = 1 << 40;
/// First key of the pairs.
const PAIRS: u64 = 1000;

/// Transactions of many threads: a reader sees both keys of a pair or neither, counters lose no step, and what was aborted is
/// gone. The queue is small, so that it fills with what is not committed, and batch updates come while transactions are open.
#[test]
fn pio_transactions_of_many_threads() {
    let volume = Arc::new(Simulated::new(1).with_alignment(128));
    let options = PioOptions {
        page_len: 256,
        segments: 2,
        pio_max: 8,
        queue_pages: 2,
        frames: 20,
        speriod: 7,
        bcnt: 12,
        fanout_max: Some(6),
        log: LogMode::Each,
        ..PioOptions::default()
    };
    let tree = SharedPioTree::new(PioTree::create(volume.clone(), &options).expect("created"));
    let over = std::sync::atomic::AtomicBool::new(false);
    let met = std::sync::atomic::AtomicU64::new(0);
    let done: Vec<Transacted> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (tree, met) = (&tree, &met);
                scope.spawn(move || transact(tree, thread, met))
            })
            .collect();
        let reader = scope.spawn({
            let (tree, over) = (&tree, &over);
            move || {
                let mut seen = 0;
                loop {
                    // Once more when all is written: on a busy machine it may not have come to look before.
                    let is_last = over.load(std::sync::atomic::Ordering::Relaxed);
                    seen += see_pairs(tree);
                    if is_last {
                        return seen;
                    }
                }
            }
        });
        let done = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reader.join().expect("no panic") > 0, "pairs were seen");
        done
    });
    let counted: u64 = done.iter().map(|done| done.counted).sum();
    let refused: u64 = done.iter().map(|done| done.refused).sum();
    assert!(refused > 0 && counted > 100, "{refused} refused, {counted} counted: the rare paths were met");
    assert!(tree.stats().flushes > 100, "{:?}", tree.stats());
    drop(tree);
    // All was synced with its commit.
    let tree = PioTree::recover(Arc::new(volume.power_loss(1)), &options).expect("recovered");
    let total: u64 = tree.range(0..COUNTERS).expect("scanned").iter().map(|(_, count)| count).sum();
    assert_eq!(total, counted, "no step is lost, and none counted twice");
    let expected: BTreeMap<u64, u64> = done
        .into_iter()
        .flat_map(|done| done.pairs)
        .flat_map(|(key, value)| [(key, value), (key + APART, value)])
        .collect();
    assert_eq!(tree.range(PAIRS..u64::MAX).expect("scanned"), expected.into_iter().collect::<Vec<_>>());
    tree.check().expect("sound");
}

/// What a thread has committed.
#[derive(Default)]
struct Transacted {
    pairs: BTreeMap<u64, u64>,
    counted: u64,
    refused: u64,
}

/// `met`: what was refused in any thread. Where threads have a processor one after the other, that may take long.
fn transact(tree: &SharedPioTree, thread: u64, met: &std::sync::atomic::AtomicU64) -> Transacted {
    use std::sync::atomic::Ordering::Relaxed;
    let mut done = Transacted::default();
    let mut chance = thread + 1;
    for step in (1..300_000).take_while(|step| *step < 3000 || met.load(Relaxed) == 0) {
        chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let key = PAIRS + (chance >> 33) % 60 * THREADS + thread;
        let counter = (chance >> 12) % COUNTERS;
        let transaction = tree.begin();
        let way = (chance >> 20) % 10;
        let worked = (|| {
            match way {
                0..3 => {
                    // The first write keeps others from the counter until this one has ended.
                    tree.insert_in(&transaction, counter, 0)?;
                    let count = tree.search(counter)?.unwrap_or(0);
                    tree.insert_in(&transaction, counter, count + 1)?;
                }
                3..4 => {
                    tree.delete_in(&transaction, key)?;
                    tree.delete_in(&transaction, key + APART)?;
                }
                _ => {
                    tree.update_in(&transaction, key, step)?;
                    tree.insert_in(&transaction, key + APART, step)?;
                    assert_eq!(tree.search_in(&transaction, key)?, Some(step), "its own");
                }
            }
            Ok::<(), trees::Error>(())
        })();
        match worked {
            Err(trees::Error::Invalid(_)) => {
                done.refused += 1;
                met.fetch_add(1, Relaxed);
                tree.abort(transaction).expect("aborted");
            }
            Err(error) => panic!("{error}"),
            Ok(()) if way == 9 => tree.abort(transaction).expect("aborted"),
            Ok(()) => {
                tree.commit(transaction).expect("committed");
                match way {
                    0..3 => done.counted += 1,
                    3..4 => drop(done.pairs.remove(&key)),
                    _ => drop(done.pairs.insert(key, step)),
                }
            }
        }
        if way > 3 {
            assert_eq!(tree.search(key).expect("searched"), done.pairs.get(&key).copied(), "key {key}");
        }
    }
    done
}

/// How many pairs are there; each as a whole.
fn see_pairs(tree: &SharedPioTree) -> usize {
    let first = (0..60 * THREADS).map(|at| PAIRS + at);
    let keys: Vec<u64> = first.flat_map(|key| [key, key + APART]).collect();
    let found = tree.search_many(&keys).expect("searched");
    for (key, pair) in keys.chunks(2).zip(found.chunks(2)) {
        assert_eq!(pair[0], pair[1], "half of a transaction is seen at {}", key[0]);
    }
    found.iter().flatten().count()
}

#[test]
fn blink_threads_find_what_they_wrote() {
    for frames in [4, 1000] {
        let volume = Arc::new(Simulated::new(1).with_alignment(128));
        let options = BlinkOptions { page_len: 256, frames, keys_max: Some(4) };
        let mut tree = BlinkTree::create(volume.clone(), &options).expect("created");
        let models: Vec<BTreeMap<u64, u64>> = std::thread::scope(|scope| {
            let tree = &tree;
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || work(tree, thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let expected: Vec<_> = models.into_iter().flatten().collect::<BTreeMap<_, _>>().into_iter().collect();
        println!("{frames} frames: {:?}, {} moves to the right", tree.stats(), tree.moves_right());
        tree.flush().expect("flushed");
        drop(tree);
        let tree = BlinkTree::recover(volume, &options).expect("recovered");
        assert_eq!(tree.check().expect("sound").records, expected.len() as u64);
        assert_eq!(Index::range(&tree, 0..u64::MAX).expect("scanned"), expected);
    }
}

/// What the threads use of a tree.
trait Many: Sync {
    fn insert(&self, key: u64, value: u64) -> trees::Result<()>;
    fn delete(&self, key: u64) -> trees::Result<()>;
    fn search(&self, key: u64) -> trees::Result<Option<u64>>;
    fn range(&self, range: std::ops::Range<u64>) -> trees::Result<Vec<(u64, u64)>>;
}

impl Many for SharedPioTree {
    fn insert(&self, key: u64, value: u64) -> trees::Result<()> {
        SharedPioTree::insert(self, key, value)
    }

    fn delete(&self, key: u64) -> trees::Result<()> {
        SharedPioTree::delete(self, key)
    }

    fn search(&self, key: u64) -> trees::Result<Option<u64>> {
        SharedPioTree::search(self, key)
    }

    fn range(&self, range: std::ops::Range<u64>) -> trees::Result<Vec<(u64, u64)>> {
        SharedPioTree::range(self, range)
    }
}

impl Many for BlinkTree {
    fn insert(&self, key: u64, value: u64) -> trees::Result<()> {
        BlinkTree::insert(self, key, value)
    }

    fn delete(&self, key: u64) -> trees::Result<()> {
        BlinkTree::delete(self, key)
    }

    fn search(&self, key: u64) -> trees::Result<Option<u64>> {
        Index::search(self, key)
    }

    fn range(&self, range: std::ops::Range<u64>) -> trees::Result<Vec<(u64, u64)>> {
        Index::range(self, range)
    }
}

/// Each thread has keys of its own, among those of the others.
fn work(tree: &impl Many, thread: u64) -> BTreeMap<u64, u64> {
    let mut model = BTreeMap::new();
    let mut chance = thread + 1;
    for step in 0..STEPS {
        chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let key = (chance >> 33) % 2000 * THREADS + thread;
        match (chance >> 20) % 10 {
            0..5 => {
                tree.insert(key, step).expect("inserted");
                model.insert(key, step);
            }
            5..7 => {
                tree.delete(key).expect("deleted");
                model.remove(&key);
            }
            7..9 => assert_eq!(tree.search(key).expect("searched"), model.get(&key).copied(), "key {key}"),
            _ => {
                let found = tree.range(key..key + 40).expect("scanned");
                let mine: Vec<_> = found.into_iter().filter(|(key, _)| key % THREADS == thread).collect();
                let expected: Vec<_> =
                    model.range(key..key + 40).map(|(key, value)| (*key, *value)).collect();
                assert_eq!(mine, expected);
            }
        }
    }
    model
}
