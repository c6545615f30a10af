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
