//! The AS-tree with a buffer of records under the common suite, and what a full buffer costs.

use crate::suite::{bulk_loads, disk, operations, run_watched, simulated, sum};
use psync::{Device, Simulated};
use std::sync::Arc;
use trees::{Counters, Index, RecordAsTree, RecordAsTreeOptions};

fn options() -> [RecordAsTreeOptions; 4] {
    let tiny = RecordAsTreeOptions {
        node_len: 256,
        keys_max: Some(4),
        records: 7,
        slots: 5,
        sub_file_len: 256 * 32,
        threshold: 0.3,
        checkpoint_every: 7,
        pio_max: 4,
        descends: false,
    };
    [
        tiny.clone(),
        RecordAsTreeOptions {
            records: 1,
            slots: 1,
            checkpoint_every: 0,
            pio_max: 1,
            descends: true,
            ..tiny.clone()
        },
        RecordAsTreeOptions {
            records: 200,
            slots: 64,
            sub_file_len: 256 * 100,
            threshold: 0.6,
            ..tiny.clone()
        },
        RecordAsTreeOptions { node_len: 512, keys_max: Some(9), records: 60, ..tiny },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let (mut total, mut recycled) = (Counters::default(), 0);
    for (seed, options) in (0..).zip(options()) {
        let (count, keys) = (operations() * 6 / 25, 400 << (3 * (seed % 3)));
        let counters =
            run_watched::<RecordAsTree>(&simulated(), &options, seed, count, keys, true, &mut |tree| {
                recycled += tree.recycled();
            });
        total = sum(total, counters);
    }
    println!("{total:?}, {recycled} recycled");
    for rare in [total.splits, total.merges, total.redistributions, total.flushes, total.hits, recycled] {
        assert!(rare > 1000, "{total:?}, {recycled} recycled");
    }
    assert!(total.height >= 5, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options =
            RecordAsTreeOptions { node_len: 4096, sub_file_len: options.sub_file_len * 16, ..options };
        run_watched::<RecordAsTree>(&volume, &options, seed, operations() / 400, 3000, true, &mut |_| ());
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<RecordAsTree>);
}

/// A full buffer goes through the tree once: each leaf that has records in it is read and written once, however many they
/// are, and all images go out in a few writes.
#[test]
fn a_full_buffer_costs_each_leaf_once() {
    let volume = Arc::new(Simulated::new(1).with_alignment(128));
    let options = RecordAsTreeOptions {
        records: 300,
        slots: 200,
        keys_max: Some(9),
        node_len: 512,
        sub_file_len: 1 << 20,
        threshold: 0.0,
        checkpoint_every: 0,
        ..RecordAsTreeOptions::default()
    };
    let records = &mut (0..10_000).map(|key| (key, key));
    let mut tree = RecordAsTree::bulk_load(volume.clone(), &options, 0.7, records).unwrap();
    let leaves_of = |keys: &[u64]| {
        let mut leaves: Vec<u64> = keys.iter().map(|key| key / 6).collect();
        leaves.sort_unstable();
        leaves.dedup();
        leaves.len() as u64
    };
    let height = u64::from(tree.stats().height);
    let (before, sets) = (tree.stats(), volume.counters().write_sets);
    // Updates of 301 keys, three to a leaf and more, so that no node changes its size.
    let keys: Vec<u64> = (0..301).map(|index| index * 7919 % 600).collect();
    for key in &keys {
        tree.update(*key, 7).unwrap();
    }
    let (after, leaves) = (tree.stats(), leaves_of(&keys));
    assert_eq!(leaves, 100);
    assert_eq!(after.pages_written - before.pages_written, leaves);
    // The batch is not full before the last leaf, so inner nodes do not change and are read once a leaf.
    assert_eq!(after.pages_read - before.pages_read, leaves * height);
    assert_eq!(volume.counters().write_sets - sets, 1);
    assert_eq!(after.flushes - before.flushes, 1);
}
