//! The common suite: random operations against a `BTreeMap`, with flushes, checks and clean reopenings in between.
//!
//! Three moods take turns, so that trees grow, shrink to nothing, and see runs of ascending keys.

use psync::{Backend, Disk, DiskOptions, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use trees::{Counters, Index};

/// Operations of each tree all together, divided among the option sets and devices of its test; more with
/// `MODEL_OPS`.
pub fn operations() -> u64 {
    std::env::var("MODEL_OPS").map_or(400_000, |text| text.parse().expect("a number"))
}

/// A device that only this process knows.
pub fn simulated() -> Arc<dyn Volume> {
    Arc::new(Simulated::new(1).with_alignment(128))
}

/// A directory of the disk that holds the build. It goes with the first of the pair.
pub fn disk() -> (tempfile::TempDir, Arc<dyn Volume>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let options = DiskOptions { backend: Backend::Auto, ..DiskOptions::default() };
    let disk = Disk::open(dir.path(), options).expect("a disk");
    (dir, Arc::new(disk))
}

#[derive(Clone, Copy, Debug)]
enum Mood {
    Grow,
    Shrink,
    Ascend,
}

/// Runs `count` operations on a new tree. Keys come from `0..keys`; a small range makes trees shrink to nothing.
/// `reopens`: closes it cleanly now and then, and recovers it. Adds up what the tree says it has done.
pub fn run<T: Index>(
    ground: &T::Ground,
    options: &T::Options,
    seed: u64,
    count: u64,
    keys: u64,
    reopens: bool,
) -> Counters {
    run_watched::<T>(ground, options, seed, count, keys, reopens, &mut |_| ())
}

/// As [`run`]; shows the tree to `watch` before it is closed, each time.
pub fn run_watched<T: Index>(
    ground: &T::Ground,
    options: &T::Options,
    seed: u64,
    count: u64,
    keys: u64,
    reopens: bool,
    watch: &mut dyn FnMut(&T),
) -> Counters {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tree = T::create(ground.clone(), options).expect("created");
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut mood = Mood::Grow;
    let mut ascending = 0;
    let mut total = Counters::default();
    let story = |step: u64| format!("seed {seed}, step {step}");
    for step in 0..count {
        if step % 1024 == 0 {
            mood = [Mood::Grow, Mood::Shrink, Mood::Ascend][rng.random_range(0..3)];
            ascending = rng.random_range(0..keys);
        }
        let key = rng.random_range(0..keys);
        let value = rng.random();
        let deletes = match mood {
            Mood::Grow => 10,
            Mood::Shrink => 60,
            Mood::Ascend => 0,
        };
        match rng.random_range(0..100) {
            chance if chance < deletes => {
                tree.delete(key).expect("deleted");
                model.remove(&key);
            }
            chance if chance < 75 => {
                let key = if matches!(mood, Mood::Ascend) {
                    ascending = (ascending + 1) % keys;
                    ascending
                } else {
                    key
                };
                if model.contains_key(&key) {
                    tree.update(key, value).expect("updated");
                } else {
                    tree.insert(key, value).expect("inserted");
                }
                model.insert(key, value);
            }
            chance if chance < 94 => {
                assert_eq!(tree.search(key).expect("searched"), model.get(&key).copied(), "{}", story(step));
            }
            chance if chance < 97 => {
                let many: Vec<u64> =
                    (0..rng.random_range(1..20)).map(|_| rng.random_range(0..keys)).collect();
                let expected: Vec<_> = many.iter().map(|key| model.get(key).copied()).collect();
                assert_eq!(tree.search_many(&many).expect("searched"), expected, "{}", story(step));
            }
            _ => {
                let end = rng.random_range(key..=keys.min(key + keys / 8));
                let expected: Vec<_> = model.range(key..end).map(|(key, value)| (*key, *value)).collect();
                assert_eq!(tree.range(key..end).expect("scanned"), expected, "{}", story(step));
            }
        }
        if step % 4096 == 4095 || step + 1 == count {
            tree.flush().unwrap_or_else(|error| panic!("{}: {error}", story(step)));
            let checked = tree.check().unwrap_or_else(|error| panic!("{}: {error}", story(step)));
            assert_eq!(checked.records, model.len() as u64, "{}", story(step));
            let all: Vec<_> = model.iter().map(|(key, value)| (*key, *value)).collect();
            assert_eq!(tree.range(0..u64::MAX).expect("scanned"), all, "{}", story(step));
            if reopens && rng.random_bool(0.2) {
                total = sum(total, tree.stats());
                watch(&tree);
                drop(tree);
                tree = T::recover(ground.clone(), options)
                    .unwrap_or_else(|error| panic!("{}: {error}", story(step)));
            }
        }
    }
    watch(&tree);
    sum(total, tree.stats())
}

/// Adds up what can be added, and keeps the largest of the rest.
pub fn sum(one: Counters, two: Counters) -> Counters {
    Counters {
        pages_read: one.pages_read + two.pages_read,
        pages_written: one.pages_written + two.pages_written,
        hits: one.hits + two.hits,
        splits: one.splits + two.splits,
        merges: one.merges + two.merges,
        redistributions: one.redistributions + two.redistributions,
        flushes: one.flushes + two.flushes,
        height: one.height.max(two.height),
        memory: one.memory.max(two.memory),
        space: one.space.max(two.space),
    }
}

/// Bulk loads of many sizes and fills are whole and hold what they were given, also after a reopening; then the tree
/// can be changed like any other.
pub fn bulk_loads<T: Index<Ground = Arc<dyn Volume>>>(options: &T::Options) {
    bulk_loads_on::<T>(&simulated, options);
}

/// The same, each on a ground of its own.
pub fn bulk_loads_on<T: Index>(fresh: &dyn Fn() -> T::Ground, options: &T::Options) {
    for count in [0, 1, 2, 5, 17, 100, 1000, 5000] {
        for fill in [0.5, 0.69, 1.0] {
            let ground = fresh();
            let records: Vec<_> = (0..count).map(|index| (3 * index, index)).collect();
            let tree =
                T::bulk_load(ground.clone(), options, fill, &mut records.iter().copied()).expect("loaded");
            drop(tree);
            let mut tree = T::recover(ground, options).expect("recovered");
            let story = format!("{count} records, filled to {fill}");
            assert_eq!(tree.check().expect(&story).records, count, "{story}");
            assert_eq!(tree.range(0..u64::MAX).expect(&story), records, "{story}");
            for index in 0..count.min(300) {
                tree.insert(3 * index + 1, 7).expect("inserted");
                tree.delete(3 * index).expect("deleted");
            }
            tree.flush().expect("flushed");
            assert_eq!(tree.check().expect(&story).records, count, "{story}");
        }
    }
    let unordered = &mut [(3, 0), (2, 0)].into_iter();
    assert!(T::bulk_load(fresh(), options, 1.0, unordered).is_err(), "out of order");
    assert!(T::bulk_load(fresh(), options, 0.3, &mut std::iter::empty()).is_err(), "too empty");
}
