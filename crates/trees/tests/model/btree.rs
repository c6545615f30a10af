//! The B+-tree under the common suite.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use psync::Simulated;
use std::sync::Arc;
use trees::{BTree, BTreeOptions, Eviction, Index};

fn options() -> [BTreeOptions; 4] {
    let tiny =
        BTreeOptions { page_len: 256, frames: 3, keys_max: Some(4), pio_max: 4, eviction: Eviction::Lru };
    [
        tiny.clone(),
        BTreeOptions { frames: 0, keys_max: Some(5), pio_max: 1, ..tiny.clone() },
        BTreeOptions { page_len: 512, frames: 40, keys_max: Some(9), ..tiny },
        BTreeOptions { frames: 20, pio_max: 64, eviction: Eviction::LowestLevel, ..BTreeOptions::default() },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    for (seed, options) in (0..).zip(options()) {
        let count = operations() * 6 / 25;
        total = sum(total, run::<BTree>(&simulated(), &options, seed, count, 400 << (4 * (seed % 3)), true));
    }
    println!("{total:?}");
    for rare in [total.splits, total.merges, total.redistributions, total.hits, total.pages_read] {
        assert!(rare > 1000, "{total:?}");
    }
    assert!(total.height >= 5, "{total:?}");
}

/// Frames count as other trees' do: by the page, however few keys a node may have.
#[test]
fn memory_is_that_of_the_frames() {
    let options = &options()[2];
    let mut tree = BTree::create(Arc::new(Simulated::new(1).with_alignment(128)), options).expect("created");
    (0..1000).for_each(|key| tree.insert(key, key).expect("inserted"));
    assert_eq!(tree.stats().memory, 40 * 512);
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = BTreeOptions { page_len: options.page_len.max(4096), ..options };
        run::<BTree>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<BTree>);
}
