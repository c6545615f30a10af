//! The PIO B-tree under the common suite.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use psync::Simulated;
use std::sync::Arc;
use trees::{Error, Eviction, Index, LogMode, PioOptions, PioTree};

fn options() -> [PioOptions; 5] {
    let tiny = PioOptions {
        page_len: 128,
        segments: 4,
        pio_max: 4,
        queue_pages: 5,
        frames: 6,
        speriod: 7,
        bcnt: 12,
        fanout_max: Some(4),
        log: LogMode::Off,
        eviction: Eviction::Lru,
        last_segment_map: true,
    };
    [
        tiny.clone(),
        PioOptions { segments: 1, bcnt: 1000, pio_max: 1, log: LogMode::Buffered, ..tiny.clone() },
        PioOptions {
            segments: 2,
            pio_max: 64,
            queue_pages: 40,
            fanout_max: None,
            eviction: Eviction::LowestLevel,
            ..tiny.clone()
        },
        PioOptions {
            segments: 8,
            last_segment_map: false,
            frames: 0,
            queue_pages: 1,
            bcnt: 3,
            log: LogMode::Each,
            ..tiny
        },
        PioOptions { queue_pages: 2, frames: 20, eviction: Eviction::LowestLevel, ..PioOptions::default() },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    for (seed, options) in (0..).zip(options()) {
        let count = operations() / 5;
        total =
            sum(total, run::<PioTree>(&simulated(), &options, seed, count, 400 << (4 * (seed % 3)), true));
    }
    println!("{total:?}");
    for rare in [total.splits, total.merges, total.redistributions, total.hits, total.flushes] {
        assert!(rare > 100, "{total:?}");
    }
    assert!(total.height >= 5, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = PioOptions { page_len: options.page_len.max(4096), ..options };
        run::<PioTree>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<PioTree>);
}

/// A tree may be opened with another log than it was written with, and then with another again.
#[test]
fn the_log_may_change_with_each_opening() {
    const MODES: [LogMode; 3] = [LogMode::Off, LogMode::Buffered, LogMode::Each];
    for (first, second, third) in
        MODES.into_iter().flat_map(|a| MODES.into_iter().flat_map(move |b| MODES.map(|c| (a, b, c))))
    {
        let story = format!("{first:?}, {second:?}, {third:?}");
        let volume = Arc::new(Simulated::new(1).with_alignment(128));
        let options = |log| PioOptions { log, ..options()[0].clone() };
        let mut tree = PioTree::create(volume.clone(), &options(first)).expect("created");
        let mut expected = Vec::new();
        for (begin, mode, next) in [(0, first, second), (1000, second, third), (2000, third, first)] {
            let mut insert = |tree: &mut PioTree, key| {
                tree.insert(key, key + 1).expect("inserted");
                expected.push((key, key + 1));
            };
            (begin..begin + 300).for_each(|key| insert(&mut tree, key));
            tree.flush().expect("flushed");
            if mode == LogMode::Each {
                // What waits is in the log alone.
                (begin + 300..begin + 310).for_each(|key| insert(&mut tree, key));
            }
            drop(tree);
            tree = PioTree::recover(volume.clone(), &options(next))
                .unwrap_or_else(|error| panic!("{story}: {error}"));
            assert_eq!(tree.range(0..u64::MAX).expect("scanned"), expected, "{story}");
            // Also what waited in a log that the next opening does not have.
            drop(tree);
            tree = PioTree::recover(volume.clone(), &options(next))
                .unwrap_or_else(|error| panic!("{story}: {error}"));
            assert_eq!(tree.range(0..u64::MAX).expect("scanned"), expected, "{story}");
            tree.check().unwrap_or_else(|error| panic!("{story}: {error}"));
        }
        // With a log, a log that is not there is damage; without, it is none.
        tree.flush().expect("flushed");
        drop(tree);
        for entry in psync::Volume::list(&*volume).expect("listed") {
            if entry.name.starts_with("pio-wal") {
                psync::Volume::remove(&*volume, &entry.name).expect("removed");
            }
        }
        let found = PioTree::recover(volume, &options(first));
        assert_eq!(found.is_ok(), first == LogMode::Off, "{story}");
    }
}

/// It returned `Ok`, and the operation was in memory alone.
#[test]
fn a_flush_without_log_tells_what_a_transaction_keeps_from_the_tree() {
    let volume = Arc::new(Simulated::new(1).with_alignment(128));
    let options = PioOptions { log: LogMode::Off, ..options()[0].clone() };
    let mut tree = PioTree::create(volume.clone(), &options).expect("created");
    tree.insert(1, 10).expect("inserted");
    let transaction = tree.begin();
    tree.update_in(&transaction, 1, 11).expect("updated");
    tree.insert(2, 20).expect("inserted");
    assert!(matches!(tree.flush(), Err(Error::Invalid(_))));
    tree.abort(transaction).expect("aborted");
    tree.flush().expect("flushed");
    drop(tree);
    let tree = PioTree::recover(volume, &options).expect("recovered");
    assert_eq!(tree.range(0..9).expect("scanned"), [(1, 10), (2, 20)]);
}
