//! The B+-tree with a write buffer under the common suite, and what it writes when.

use crate::suite::{bulk_loads, disk, operations, run_watched, simulated, sum};
use std::sync::Arc;
use trees::{BatchedBTree, BatchedBTreeOptions, Index};

fn options() -> [BatchedBTreeOptions; 3] {
    let tiny = BatchedBTreeOptions { page_len: 256, keys_max: Some(4), slots: 1, cached: 0, parallel: false };
    [
        tiny.clone(),
        BatchedBTreeOptions { keys_max: Some(5), slots: 7, cached: 5, ..tiny.clone() },
        BatchedBTreeOptions { page_len: 512, keys_max: Some(9), slots: 32, cached: 40, parallel: true },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    let mut hits = [0; 3];
    for (seed, options) in (0..).zip(options()) {
        let count = operations() / 3;
        let keys = 400 << (4 * (seed % 3));
        let counted =
            run_watched::<BatchedBTree>(&simulated(), &options, seed, count, keys, true, &mut |tree| {
                let details = tree.details();
                for (sum, more) in
                    hits.iter_mut().zip([details.read_hits, details.cache_hits, details.write_hits])
                {
                    *sum += more;
                }
            });
        total = sum(total, counted);
    }
    println!("{total:?} {hits:?}");
    for rare in [total.splits, total.merges, total.redistributions, total.flushes, hits[0], hits[1], hits[2]]
    {
        assert!(rare > 1000, "{total:?} {hits:?}");
    }
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = BatchedBTreeOptions { page_len: 4096, ..options };
        run_watched::<BatchedBTree>(&volume, &options, seed, operations() / 400, 3000, true, &mut |_| ());
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<BatchedBTree>);
}

#[test]
fn a_full_buffer_is_written_node_by_node_or_as_one_set() {
    for (parallel, sets) in [(false, 16), (true, 2)] {
        let volume = simulated();
        let options = BatchedBTreeOptions { page_len: 256, keys_max: Some(9), slots: 8, cached: 0, parallel };
        let mut records = (0..600).map(|key| (key * 100, key));
        let mut tree =
            BatchedBTree::bulk_load(Arc::clone(&volume), &options, 0.5, &mut records).expect("loaded");
        let before = volume.counters();
        // Sixteen leaves far from each other, none of them full; each change of one that waits costs nothing more.
        for leaf in 0..16 {
            tree.insert(leaf * 3000 + 1, 1).expect("inserted");
            if leaf % 8 != 7 {
                tree.insert(leaf * 3000 + 2, 1).expect("inserted");
            }
        }
        let did = volume.counters() - before;
        assert_eq!((did.write_sets, did.writes), (sets, 16), "parallel: {parallel}");
        assert_eq!((tree.details().writes, tree.details().write_hits), (30, 14));
    }
}

#[test]
fn a_buffer_without_slots_is_refused() {
    let options = BatchedBTreeOptions { slots: 0, page_len: 256, ..BatchedBTreeOptions::default() };
    let told = BatchedBTree::create(simulated(), &options).err().expect("refused").to_string();
    assert!(told.contains("a write buffer of 0 nodes: 1 to 16384"), "{told}");
}
