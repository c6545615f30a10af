//! psync calls and pages of an operation are what the papers' formulas say, to the last one.

use psync::{Counters, Device, Simulated};
use std::sync::Arc;
use trees::{BTree, BTreeOptions, Index, LogMode, PioOptions, PioTree};

const PAGE: usize = 256;

fn volume() -> Simulated {
    Simulated::new(1).with_alignment(128).with_pio_max(4096)
}

/// What the device did meanwhile.
fn counted<T>(volume: &Simulated, work: impl FnOnce() -> T) -> (T, Counters) {
    let before = volume.counters();
    let result = work();
    (result, volume.counters() - before)
}

fn pio(volume: &Simulated, records: u64, options: PioOptions) -> PioTree {
    let records = &mut (0..records).map(|index| (index * 10, index));
    PioTree::bulk_load(Arc::new(volume.clone()), &options, 0.7, records).expect("loaded")
}

fn options() -> PioOptions {
    PioOptions {
        page_len: PAGE,
        segments: 2,
        pio_max: 64,
        queue_pages: 1000,
        frames: 0,
        speriod: 1000,
        bcnt: 100_000,
        fanout_max: None,
        log: LogMode::Off,
        ..PioOptions::default()
    }
}

/// A point search reads one page a level, and the leaf with one request.
#[test]
fn a_point_search_reads_a_node_a_level() {
    let volume = volume();
    let tree = pio(&volume, 3000, options());
    let height = u64::from(tree.check().expect("sound").height);
    assert!(height >= 3);
    let (found, did) = counted(&volume, || tree.search(1230).expect("searched"));
    assert_eq!(found, Some(123));
    assert_eq!((did.read_sets, did.reads), (height, height));
    assert_eq!(did.bytes_read, (height + 1) * PAGE as u64, "L = 2");

    let btree =
        BTreeOptions { page_len: PAGE, frames: 0, keys_max: None, pio_max: 1, ..BTreeOptions::default() };
    let records = &mut (0..3000).map(|index| (index * 10, index));
    let mut tree = BTree::bulk_load(Arc::new(self::volume()), &btree, 0.7, records).expect("loaded");
    let before = tree.stats();
    tree.search(1230).expect("searched");
    tree.insert(1235, 1).expect("inserted");
    let after = tree.stats();
    let height = u64::from(after.height);
    assert_eq!(after.pages_read - before.pages_read, 2 * height, "H R, and H R + W");
    assert_eq!(after.pages_written - before.pages_written, 1);
}

/// MPSearch over a set of at most PioMax keys: one psync a level. (The papers do not count the root, which they buffer.)
#[test]
fn mpsearch_takes_one_psync_a_level() {
    let volume = volume();
    let tree = pio(&volume, 3000, options());
    let height = u64::from(tree.check().expect("sound").height);
    let keys: Vec<u64> = (0..64).map(|index| index * 460).collect();
    let (found, did) = counted(&volume, || tree.search_many(&keys).expect("searched"));
    assert!(found.iter().all(Option::is_some));
    assert_eq!(did.read_sets, height);
    // Never more nodes of a level than keys.
    assert!(did.reads <= 1 + (height - 1) * 64);
}

/// With PioMax = n, groups go depth first, each of at most n; with PioMax = 1 it is a plain descent.
#[test]
fn groups_are_never_larger_than_pio_max() {
    for pio_max in [1, 2, 3, 7] {
        let volume = volume();
        let tree = pio(&volume, 3000, PioOptions { pio_max, ..options() });
        let keys: Vec<u64> = (0..64).map(|index| index * 460).collect();
        let (_, did) = counted(&volume, || tree.search_many(&keys).expect("searched"));
        assert!(did.reads <= did.read_sets * pio_max as u64, "PioMax {pio_max}: {did:?}");
        let (_, did) = counted(&volume, || tree.range(0..u64::MAX).expect("scanned"));
        assert!(did.reads <= did.read_sets * pio_max as u64, "PioMax {pio_max}: {did:?}");
    }
}

/// A batch of n operations on m leaves reads one segment and writes one segment of each, in ⌈m / PioMax⌉ psyncs each, and
/// reads every inner node on the way once. A bulk load has filled the leaves to 0.7, so one more entry always fits.
#[test]
fn a_batch_update_reads_and_writes_one_segment_a_leaf() {
    let volume = volume();
    let mut tree = pio(&volume, 3000, options());
    let checked = tree.check().expect("sound");
    for index in 0..3000 / 9 {
        tree.insert(index * 90 + 1, 7).expect("queued");
    }
    let touched = checked.leaves.min(3000 / 9);
    let before = tree.stats();
    let (_, did) = counted(&volume, || tree.flush().expect("flushed"));
    let after = tree.stats();
    assert_eq!(after.splits, before.splits, "the shape stays");
    assert_eq!(after.pages_read - before.pages_read, touched + checked.inner);
    assert_eq!(after.pages_written - before.pages_written, touched);
    // And the superblock.
    assert_eq!(did.writes, touched + 1);
    assert_eq!(did.write_sets, touched.div_ceil(64) + 1);
}

/// The example of both papers (Figures 6 and 4): five keys in a tree of three levels come with two psyncs below the root,
/// and each delivers exactly the nodes that single searches would visit.
#[test]
fn the_papers_example() {
    let volume = volume();
    let options = PioOptions { segments: 1, fanout_max: Some(4), frames: 1, ..options() };
    let records = &mut (1..70).map(|key| (key, key));
    let tree = PioTree::bulk_load(Arc::new(volume.clone()), &options, 0.5, records).expect("loaded");
    let keys = [1, 2, 42, 65, 67];
    let height = u64::from(tree.check().expect("sound").height);
    let mut leaves_and_inner = 0;
    for key in keys {
        let (_, did) = counted(&volume, || tree.search(key).expect("searched"));
        leaves_and_inner += did.reads;
    }
    let (found, did) = counted(&volume, || tree.search_many(&keys).expect("searched"));
    assert_eq!(found, keys.map(Some));
    assert_eq!(did.read_sets, height);
    assert!(did.reads < leaves_and_inner, "shared nodes are read once");
}
