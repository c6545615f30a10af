//! The FD-tree under the common suite, and its costs by count.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use trees::{FdTree, FdTreeOptions, HeadLog, Index};

fn options() -> [FdTreeOptions; 4] {
    let tiny = FdTreeOptions {
        page_len: 512,
        head_pages: 2,
        ratio: 2,
        entries_max: Some(4),
        frames: 0,
        pio_max: 3,
        log: HeadLog::Off,
    };
    [
        tiny.clone(),
        FdTreeOptions { head_pages: 8, ratio: 4, entries_max: Some(9), pio_max: 1, ..tiny.clone() },
        FdTreeOptions {
            head_pages: 4,
            ratio: 14,
            entries_max: None,
            frames: 5,
            log: HeadLog::AtFlush,
            ..tiny
        },
        FdTreeOptions { head_pages: 2, pio_max: 64, log: HeadLog::EachOperation, ..FdTreeOptions::default() },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    for (seed, options) in (0..).zip(options()) {
        let count = operations() * 6 / 25;
        total = sum(total, run::<FdTree>(&simulated(), &options, seed, count, 400 << (4 * (seed % 3)), true));
    }
    println!("{total:?}");
    assert!(total.flushes > 1000 && total.merges > total.flushes + 1000, "{total:?}");
    assert!(total.height >= 7, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = FdTreeOptions { page_len: options.page_len.max(4096), ..options };
        run::<FdTree>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<FdTree>);
}

/// What merges come to does not depend on how many pages they move at a time; how many requests they take does.
#[test]
fn merges_by_the_page_make_the_same_tree_with_more_requests() {
    let options = FdTreeOptions { page_len: 512, head_pages: 2, ratio: 6, ..FdTreeOptions::default() };
    let of = |pages| {
        let volume = simulated();
        let mut tree = FdTree::create(Arc::clone(&volume), &options).expect("done");
        tree.merge_by(pages);
        let mut rng = StdRng::seed_from_u64(5);
        for value in 0..3000 {
            tree.insert(rng.random_range(0..1 << 40), value).expect("done");
        }
        let records = tree.range(0..u64::MAX).expect("done");
        let details = tree.details();
        let sets = volume.counters();
        (records, details.merge_pages_written, sets.read_sets + sets.write_sets)
    };
    let (many, one) = (of(64), of(1));
    assert_eq!((&many.0, many.1), (&one.0, one.1));
    assert!(one.2 > many.2, "{} and {}", one.2, many.2);
}

/// With a pool that holds all pages a second search reads nothing; with fewer frames no more pages are held than there are.
#[test]
fn a_pool_holds_pages_of_runs_for_searches() {
    let of = |frames| {
        let options = FdTreeOptions { frames, ..options()[0].clone() };
        let tree = grown(&options, 400);
        let search = || (0..200u64).for_each(|key| _ = tree.search(key << 32).expect("done"));
        search();
        let (before, hits) = (tree.stats().pages_read, tree.stats().hits);
        search();
        (tree.stats().pages_read - before, tree.stats().hits - hits)
    };
    let (none, some, all) = (of(0), of(6), of(1 << 20));
    assert_eq!(none.1, 0);
    assert!(some.0 < none.0 && some.0 > 0, "{some:?} of {none:?}");
    assert_eq!(some.0 + some.1, none.0);
    assert_eq!((all.0, all.1), (0, none.0));
}

/// A tree of `count` random insertions, some of them overwritten or deleted again.
fn grown(options: &FdTreeOptions, count: u64) -> FdTree {
    let mut rng = StdRng::seed_from_u64(7);
    let mut tree = FdTree::create(simulated(), options).expect("done");
    for _ in 0..count {
        let key = rng.random_range(0..1 << 40);
        tree.insert(key, 1).expect("done");
        if rng.random_bool(0.2) {
            tree.insert(key, 2).expect("done");
        } else if rng.random_bool(0.1) {
            tree.delete(key).expect("done");
        }
    }
    tree
}

#[test]
fn a_search_reads_one_page_of_every_run_and_many_share_them() {
    let options = FdTreeOptions { pio_max: 64, ..options()[1].clone() };
    let tree = grown(&options, 30_000);
    let details = tree.details();
    assert!(details.levels.len() >= 4, "{details:?}");
    assert!(
        details.levels_added >= 3 && details.filters_dropped > 0 && details.superseded > 0,
        "{details:?}"
    );
    let mut rng = StdRng::seed_from_u64(8);
    let keys: Vec<u64> = (0..64).map(|_| rng.random_range(1 << 40..1 << 41)).collect();
    let pages = |tree: &FdTree| tree.stats().pages_read;
    for key in &keys {
        let before = pages(&tree);
        assert_eq!(tree.search(*key).unwrap(), None);
        assert_eq!(pages(&tree) - before, details.levels.len() as u64, "key {key}: one page a level");
    }
    let before = pages(&tree);
    assert_eq!(tree.search_many(&keys).unwrap(), vec![None; 64]);
    assert_eq!(pages(&tree) - before, details.levels.len() as u64, "all of them go to the last page of each");
}

#[test]
fn mpsearch_takes_one_parallel_read_a_run() {
    let volume = Simulated::new(1).with_alignment(512).with_pio_max(1024);
    let options = FdTreeOptions { pio_max: 1024, ..options()[1].clone() };
    let records = &mut (0..20_000).map(|key| (key, key));
    let tree = FdTree::bulk_load(Arc::new(volume.clone()), &options, 1.0, records).unwrap();
    let keys: Vec<u64> = (0..200).map(|key| 97 * key).collect();
    let before = psync::Device::counters(&volume);
    assert_eq!(tree.search_many(&keys).unwrap(), keys.iter().map(|key| Some(*key)).collect::<Vec<_>>());
    let done = psync::Device::counters(&volume) - before;
    assert_eq!(done.read_sets, tree.details().levels.len() as u64, "{done:?}");
    assert!(done.reads < 200 * tree.details().levels.len() as u64, "{done:?}");
}

/// An entry is rewritten k times or less in each run, f - 1 entries a page, and read as often: c × k / (f - k) a level
/// with c = 2. The anchor's page comes on top.
#[test]
fn insertions_cost_what_the_merges_cost() {
    let options = FdTreeOptions { head_pages: 16, ratio: 4, entries_max: Some(16), ..options()[1].clone() };
    let mut tree = FdTree::create(simulated(), &options).unwrap();
    let mut rng = StdRng::seed_from_u64(9);
    let count = 60_000;
    for _ in 0..count {
        tree.insert(rng.random(), 1).unwrap();
    }
    let details = tree.details();
    let pages = (details.merge_pages_read + details.merge_pages_written - details.cascades) as f64;
    let measured = pages / f64::from(count) / details.levels.len() as f64;
    let bound = 2.0 * 4.0 / (16.0 - 4.0);
    assert!(
        measured < bound && measured > bound / 4.0,
        "{measured} pages an insertion and level, not {bound}"
    );
}

#[test]
fn foreign_and_damaged_files_are_refused() {
    let volume = Simulated::new(1).with_alignment(128);
    let options = options()[1].clone();
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let records = &mut (0..2000).map(|key| (key, key));
    drop(FdTree::bulk_load(Arc::clone(&shared), &options, 1.0, records).unwrap());
    let recover = |volume: Simulated, options: &FdTreeOptions| {
        let tree = FdTree::recover(Arc::new(volume), options)?;
        tree.check().map(|checked| checked.records)
    };
    assert_eq!(recover(volume.crash(), &options).unwrap(), 2000);
    for wrong in [
        FdTreeOptions { page_len: 1024, ..options.clone() },
        FdTreeOptions { log: HeadLog::AtFlush, ..options.clone() },
        FdTreeOptions { ratio: 5, ..options.clone() },
        FdTreeOptions { entries_max: Some(400), ..options.clone() },
        FdTreeOptions { head_pages: 0, ..options.clone() },
    ] {
        assert!(recover(volume.crash(), &wrong).is_err(), "{wrong:?}");
    }
    let bytes = volume.read_file("fdtree").unwrap();
    // What a fence run did not need of its extent is still empty.
    let used = |page: &usize| bytes[page * 512..page * 512 + 512].iter().any(|byte| *byte != 0);
    for page in (2..bytes.len() / 512).filter(used) {
        let image = volume.crash();
        image.flip_bit("fdtree", page as u64 * 512 + 77, 3).unwrap();
        assert!(matches!(recover(image, &options), Err(trees::Error::Corrupt { .. })), "page {page}");
    }
    for len in [0, 100, 512, 1024, 5000] {
        let image = volume.crash();
        image.truncate_file("fdtree", len).unwrap();
        assert!(recover(image, &options).is_err(), "{len} bytes");
    }
    let mut rng = StdRng::seed_from_u64(3);
    for _ in 0..100 {
        let image = volume.crash();
        let garbage: Vec<u8> = (0..rng.random_range(0..5000)).map(|_| rng.random()).collect();
        image.write_file("fdtree", &garbage).unwrap();
        assert!(recover(image, &options).is_err());
    }
}
