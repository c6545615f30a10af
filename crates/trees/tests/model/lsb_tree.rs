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
    let mut whole = [0_u32; 2];
    // Of each size, flash that is full at another moment: when a log node is written, becomes a leaf, or is merged.
    for (blocks, stride) in (10..16).flat_map(|blocks| [1, 7, 11, 13, 37].map(|stride| (blocks, stride))) {
        let flash: Arc<RawFlash> = raw_flash(blocks);
        let mut tree = LsbTree::create(Arc::clone(&flash), &options).unwrap();
        // An odd factor: each key once.
        let keys: Vec<u64> = (0..10_000).map(|at: u64| at * stride % 16_384).collect();
        let mut held = Vec::new();
        let mut refused = 0;
        for key in keys {
            let flushes = tree.stats().flushes;
            match tree.insert(key, key + 1) {
                Ok(()) => held.push((key, key + 1)),
                Err(Error::Full(_)) => {
                    refused += 1;
                    whole[usize::from(tree.stats().flushes > flushes)] += 1;
                    // It holds what it held, at once.
                    assert_eq!(tree.check().unwrap().records, held.len() as u64, "{blocks} {stride}");
                    for (key, value) in held.iter().rev().take(50).chain(held.first()) {
                        assert_eq!(tree.search(*key).unwrap(), Some(*value), "{blocks} {stride}");
                    }
                    assert_eq!(tree.search(key).unwrap(), None);
                    if refused == 40 {
                        break;
                    }
                }
                Err(error) => panic!("{blocks} {stride}: {error}"),
            }
        }
        assert_eq!(refused, 40, "it is full some time");
        held.sort_unstable();
        assert_eq!(tree.range(0..u64::MAX).unwrap(), held, "{blocks} {stride}");
        let tree = LsbTree::recover(Arc::clone(&flash), &options).unwrap();
        assert_eq!(tree.range(0..u64::MAX).unwrap(), held, "{blocks} {stride}");
        tree.check().unwrap();
        flash.set_faults(Faults { bits: 1.0, ..Faults::default() });
        assert!(matches!(tree.search(5), Err(Error::Corrupt { .. })));
        assert!(matches!(LsbTree::recover(flash, &options), Err(Error::Corrupt { .. })));
    }
    assert!(whole.iter().all(|times| *times > 10), "refused while {whole:?} began to change leaves");
}
