//! The LSB-tree under the common suite, and its costs to the page.

use crate::raw_flash::raw_flash;
use crate::suite::{bulk_loads_on, operations, run_watched, sum};
use flash::{Faults, RawFlash};
use std::sync::Arc;
use trees::{Error, Index, LsbStats, LsbTree, LsbTreeOptions, Split};

fn options() -> [LsbTreeOptions; 3] {
    [
        LsbTreeOptions { page_len: 256, keys_max: Some(4), split: Split::Halve },
        LsbTreeOptions { page_len: 512, keys_max: Some(7), split: Split::Even },
        LsbTreeOptions { page_len: 512, keys_max: None, split: Split::Halve },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let (mut total, mut details) = (Default::default(), LsbStats::default());
    // Many young trees: an old one has leaves for no more keys than a log node holds, and merges nothing any more.
    for seed in 0..21 {
        let which = seed as usize % 3;
        let (keys, blocks) = [(6000, 800), (12_000, 800), (60_000, 800)][which];
        let counters = run_watched::<LsbTree>(
            &raw_flash(blocks),
            &options()[which],
            100 + seed,
            operations() / 21 + 1,
            keys,
            true,
            &mut |tree| {
                let one = tree.details();
                details.promoted += one.promoted;
                details.merged += one.merged;
                details.flash.collected += one.flash.collected;
                details.flash.moved += one.flash.moved;
            },
        );
        total = sum(total, counters);
    }
    println!("{total:?}");
    println!("{details:?}");
    let flash = details.flash;
    for rare in [total.splits, details.merged, flash.collected, flash.moved] {
        assert!(rare > 100, "{total:?} {details:?}");
    }
    // Rarer: a leaf takes as many siblings as it needs at once, and stays less than half full where they have too little to give.
    for rare in [total.merges, total.redistributions] {
        assert!(rare > 100, "{total:?} {details:?}");
    }
    assert!(details.promoted > 100 && total.height >= 5, "{total:?} {details:?}");
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(|options| bulk_loads_on::<LsbTree>(&|| raw_flash(500), options));
}

/// The paper's figures: one write, and the nodes above the leaf are read, and the log node if it is not the last one written.
#[test]
fn an_insertion_writes_one_page() {
    let options = LsbTreeOptions { page_len: 512, keys_max: Some(16), split: Split::Halve };
    let flash = raw_flash(300);
    let mut tree = LsbTree::create(Arc::clone(&flash), &options).unwrap();
    let mut merges = 0;
    for key in 0..3000 {
        let (before, told) = (flash.counters(), (tree.stats(), tree.details()));
        tree.insert(key, key).unwrap();
        let (after, now) = (flash.counters(), (tree.stats(), tree.details()));
        let pages = after.programs - before.programs;
        if now.0.flushes == told.0.flushes {
            assert_eq!(pages, 1, "key {key}");
            assert_eq!(after.reads - before.reads, u64::from(told.0.height) - 1, "key {key}");
        } else {
            merges += 1;
        }
    }
    let details = tree.details();
    println!("{details:?}");
    // The first log node is merged into the empty leaf, each further one becomes a leaf when the next key comes.
    assert_eq!((details.merged, merges, tree.stats().splits - tree.stats().merges > 0), (1, 187, true));
    assert_eq!((details.promoted, details.logs, tree.check().unwrap().leaves), (186, 1, 187));
    let reads = |tree: &LsbTree, key| {
        let before = flash.counters().reads;
        assert_eq!(tree.search(key).unwrap(), Some(key));
        flash.counters().reads - before
    };
    assert_eq!(reads(&tree, 5), u64::from(tree.stats().height), "a leaf without a log node");
    let tree = LsbTree::recover(Arc::clone(&flash), &options).unwrap();
    let last = tree.range(0..u64::MAX).unwrap().last().unwrap().0;
    assert_eq!((last, reads(&tree, last)), (2999, u64::from(tree.stats().height)), "the log node says it");
    assert_eq!(
        reads(&tree, 187 * 16 - 3),
        u64::from(tree.stats().height) + 1,
        "the leaf, after the log node"
    );
}

#[test]
fn failing_blocks_are_left() {
    let options = LsbTreeOptions { page_len: 512, keys_max: Some(8), split: Split::Even };
    let flash = raw_flash(150);
    let mut tree = LsbTree::create(Arc::clone(&flash), &options).unwrap();
    flash.set_faults(Faults { program: 0.001, erase: 0.01, ..Faults::default() });
    for round in 0..20 {
        for key in 0..500 {
            tree.insert(key * 7 % 501, round).unwrap();
        }
        tree.check().unwrap();
        tree = LsbTree::recover(Arc::clone(&flash), &options).unwrap();
    }
    assert_eq!(tree.range(0..u64::MAX).unwrap().len(), 500);
    assert!(flash.wear().bad > 3, "{:?}", flash.wear());
}

#[test]
fn full_flash_and_damage_are_told() {
    let options = LsbTreeOptions { page_len: 512, keys_max: Some(8), split: Split::Even };
    let flash: Arc<RawFlash> = raw_flash(12);
    let mut tree = LsbTree::create(Arc::clone(&flash), &options).unwrap();
    let full = (0..10_000).find(|key| match tree.insert(*key, 1) {
        Ok(()) => false,
        Err(Error::Full(_)) => true,
        Err(error) => panic!("{error}"),
    });
    let full = full.expect("it is full some time");
    let tree = LsbTree::recover(Arc::clone(&flash), &options).unwrap();
    assert_eq!(tree.range(0..u64::MAX).unwrap().len() as u64, full);
    flash.set_faults(Faults { bits: 1.0, ..Faults::default() });
    assert!(matches!(tree.search(5), Err(Error::Corrupt { .. })));
    assert!(matches!(LsbTree::recover(flash, &options), Err(Error::Corrupt { .. })));
}
