//! The LSM-tree under the common suite; what filters and many keys at once save, by count.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use psync::{Simulated, Volume};
use std::sync::Arc;
use trees::{Error, Index, LsmTree, LsmTreeOptions};

fn options() -> [LsmTreeOptions; 4] {
    let tiny = LsmTreeOptions {
        page_len: 512,
        memtable_pages: 3,
        ratio: 2,
        bits_per_key: 10,
        entries_max: Some(5),
        frames: 4,
        pio_max: 7,
    };
    [
        tiny.clone(),
        // A block is a record, and filters are so weak that they hardly deny anything.
        LsmTreeOptions { entries_max: Some(1), bits_per_key: 1, frames: 0, pio_max: 1, ..tiny.clone() },
        LsmTreeOptions { bits_per_key: 0, ratio: 3, entries_max: None, ..tiny },
        LsmTreeOptions { memtable_pages: 2, frames: 64, ..LsmTreeOptions::default() },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    for (seed, options) in (0..).zip(options()) {
        let count = operations() / 16;
        total =
            sum(total, run::<LsmTree>(&simulated(), &options, seed, count, 400 << (4 * (seed % 3)), true));
    }
    for rare in [total.merges, total.hits, total.flushes] {
        assert!(rare > 1000, "{total:?}");
    }
    assert!(total.height >= 6, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = LsmTreeOptions { page_len: options.page_len.max(4096), ..options };
        run::<LsmTree>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<LsmTree>);
}

/// Two hundred even keys in the last run, some of them with newer values in two runs above, and some removed.
fn three_runs(bits_per_key: usize, frames: usize) -> LsmTree {
    let options = LsmTreeOptions { bits_per_key, frames, pio_max: 64, ..options()[0].clone() };
    let records = &mut (0..200).map(|key| (2 * key, key));
    let mut tree = LsmTree::bulk_load(simulated(), &options, 1.0, records).expect("done");
    (0..40).for_each(|index| tree.insert(10 * index, 1000).expect("inserted"));
    tree.flush().expect("done");
    (0..10).for_each(|index| tree.delete(30 * index).expect("deleted"));
    tree.flush().expect("done");
    let runs = tree.details().runs;
    assert_eq!(runs.iter().filter(|entries| **entries > 0).count(), 3, "{runs:?}");
    assert!(tree.check().expect("sound").records < 200);
    tree
}

fn expected(key: u64) -> Option<u64> {
    let is_newer = key.is_multiple_of(10) && key < 400;
    match key {
        _ if key.is_multiple_of(30) && key < 300 => None,
        _ if is_newer => Some(1000),
        _ if key.is_multiple_of(2) && key < 400 => Some(key / 2),
        _ => None,
    }
}

#[test]
fn the_newest_run_tells_and_many_keys_take_two_parallel_reads() {
    let volume = Simulated::new(1).with_alignment(128).with_pio_max(1024);
    for pio_max in [1, 4, 1024] {
        let volume: Arc<dyn Volume> = Arc::new(volume.power_loss(pio_max as u64));
        let options = LsmTreeOptions { frames: 0, pio_max, ..options()[0].clone() };
        let records = &mut (0..2000).map(|key| (2 * key, key));
        let mut tree = LsmTree::bulk_load(Arc::clone(&volume), &options, 1.0, records).unwrap();
        for key in 0..200 {
            if key % 3 == 0 { tree.delete(10 * key).unwrap() } else { tree.insert(10 * key, 7).unwrap() }
        }
        tree.flush().unwrap();
        (0..20).for_each(|key| tree.insert(100 * key, 8).expect("inserted"));
        let keys: Vec<u64> = (0..4100).rev().collect();
        let expected: Vec<_> = keys.iter().map(|key| tree.search(*key).unwrap()).collect();
        let before = volume.counters();
        assert_eq!(tree.search_many(&keys).unwrap(), expected);
        let did = volume.counters() - before;
        if pio_max == 1024 {
            assert_eq!(did.read_sets, 2, "filter pages, and blocks");
        }
        assert!(did.reads > 400 && did.reads / did.read_sets <= pio_max as u64);
    }
}

#[test]
fn filters_keep_blocks_from_being_read() {
    for frames in [0, 100] {
        let [without, with] = [0, 10].map(|bits| {
            let tree = three_runs(bits, frames);
            let before = tree.stats().pages_read;
            for key in 0..410 {
                assert_eq!(tree.search(key).unwrap(), expected(key), "{key}");
            }
            let many: Vec<u64> = (0..410).rev().collect();
            let told: Vec<_> = many.iter().map(|key| expected(*key)).collect();
            assert_eq!(tree.search_many(&many).unwrap(), told);
            (tree.details(), tree.stats().pages_read - before)
        });
        assert!(without.0.false_positives > 400 && with.0.false_positives < 20, "{without:?} {with:?}");
        assert!(with.0.denied > 400 && with.1 < without.1, "{without:?} {with:?}");
    }
}

#[test]
fn foreign_and_damaged_files_are_refused() {
    let volume = Simulated::new(1).with_alignment(128);
    let options = options()[0].clone();
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let mut tree = LsmTree::create(shared, &options).unwrap();
    (0..1000).for_each(|key| tree.insert(key * 7919 % 1000, key).expect("inserted"));
    tree.flush().unwrap();
    drop(tree);
    let recover = |volume: Simulated, options: &LsmTreeOptions| {
        LsmTree::recover(Arc::new(volume), options)?.check().map(|checked| checked.records)
    };
    assert_eq!(recover(volume.crash(), &options).unwrap(), 1000);
    for wrong in [
        LsmTreeOptions { page_len: 1024, ..options.clone() },
        LsmTreeOptions { ratio: 1, ..options.clone() },
        LsmTreeOptions { memtable_pages: 0, ..options.clone() },
        LsmTreeOptions { entries_max: Some(0), ..options.clone() },
        LsmTreeOptions { bits_per_key: 65, ..options.clone() },
    ] {
        assert!(recover(volume.crash(), &wrong).is_err(), "{wrong:?}");
    }
    let mut refused = 0;
    // The anchors come first: of those the older one is taken then.
    for page in 2..volume.read_file("lsmtree").unwrap().len() / 512 {
        let damaged = volume.crash();
        let mut bytes = damaged.read_file("lsmtree").unwrap();
        bytes[page * 512 + 100] ^= 4;
        damaged.write_file("lsmtree", &bytes).unwrap();
        match recover(damaged, &options) {
            Ok(records) => assert_eq!(records, 1000, "page {page} is not in use"),
            Err(Error::Corrupt { .. }) => refused += 1,
            Err(error) => panic!("page {page}: {error}"),
        }
    }
    assert!(refused > 200, "{refused}");
}
