//! The µ-tree and the µ*-tree under the common suite, and their costs to the page.

use crate::raw_flash::raw_flash;
use crate::suite::{bulk_loads_on, operations, run_watched, sum};
use flash::{Faults, RawFlash};
use std::sync::Arc;
use trees::{Error, FlashStats, Index, MuLayout, MuTree, MuTreeOptions, Split};

fn options() -> [MuTreeOptions; 4] {
    let fixed =
        MuTreeOptions { page_len: 512, entries_max: Some(16), layout: MuLayout::Fixed, split: Split::Halve };
    [
        fixed.clone(),
        MuTreeOptions { layout: MuLayout::Adaptive, split: Split::Even, ..fixed.clone() },
        MuTreeOptions { entries_max: None, split: Split::Even, ..fixed.clone() },
        MuTreeOptions { entries_max: None, layout: MuLayout::Adaptive, ..fixed },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let (mut total, mut details) = (Default::default(), FlashStats::default());
    for (seed, options) in (80..).zip(options()) {
        // A page has room for so many levels only.
        let (keys, blocks) = [(40, 6), (40, 6), (150, 8), (150, 8)][seed as usize - 80];
        let mut enlarged = 0;
        let counters = run_watched::<MuTree>(
            &raw_flash(blocks),
            &options,
            seed,
            operations() / 4,
            keys,
            true,
            &mut |tree| {
                let one = tree.details();
                details.erases += one.erases;
                details.collected += one.collected;
                enlarged += tree.enlarged();
            },
        );
        println!("{counters:?}, {enlarged} enlarged");
        assert_eq!(enlarged > 10_000, options.layout == MuLayout::Adaptive, "{enlarged}");
        total = sum(total, counters);
    }
    println!("{details:?}");
    for rare in [total.splits, total.merges, total.redistributions, details.erases, details.collected] {
        assert!(rare > 1000, "{total:?} {details:?}");
    }
    assert!(total.height >= 3, "{total:?}");
}

#[test]
fn larger_trees_do_too() {
    for (seed, layout) in [(90, MuLayout::Fixed), (91, MuLayout::Adaptive)] {
        let options = MuTreeOptions { page_len: 2048, entries_max: None, layout, split: Split::Even };
        let flash = Arc::new(RawFlash::new(large(), 1).unwrap());
        let counters = crate::suite::run::<MuTree>(&flash, &options, seed, operations() / 50, 20_000, true);
        println!("{counters:?}");
        assert!(counters.height >= 3 && counters.splits > 50, "{counters:?}");
    }
}

fn large() -> flash::Profile {
    let profile = flash::Profile::mlc_2010();
    let geometry = flash::Geometry { blocks_per_plane: 1, ..profile.geometry };
    flash::Profile { geometry, ..profile }
}

#[test]
fn bulk_loads_are_whole() {
    for layout in [MuLayout::Fixed, MuLayout::Adaptive] {
        let options = MuTreeOptions { page_len: 4096, entries_max: None, layout, split: Split::Even };
        bulk_loads_on::<MuTree>(&|| Arc::new(RawFlash::new(large(), 1).unwrap()), &options);
    }
}

/// The paper's figures: H reads at most, and one write; two with a split, whatever the levels that it goes up to.
#[test]
fn an_insertion_writes_one_page() {
    let options = MuTreeOptions { page_len: 4096, entries_max: Some(128), ..MuTreeOptions::default() };
    let flash = Arc::new(RawFlash::new(large(), 1).unwrap());
    let mut tree = MuTree::create(Arc::clone(&flash), &options).unwrap();
    let mut written = [0; 4];
    for index in 0..5000_u64 {
        let key = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let (before, told) = (flash.counters(), tree.stats());
        tree.insert(key, index).unwrap();
        let (after, now) = (flash.counters(), tree.stats());
        assert!(after.reads - before.reads <= u64::from(told.height), "reads of key {key}");
        let pages = (after.programs - before.programs) as usize;
        assert_eq!(pages > 1, now.splits > told.splits, "{pages} writes of key {key}");
        written[pages] += 1;
    }
    // Three where a leaf alone was a whole page, or the root took more than it may as an inner node.
    println!("{written:?}, height {}", tree.stats().height);
    assert!(written[2] > 80 && written[3] <= 4, "{written:?}");
    tree.check().unwrap();
    let before = flash.counters().reads;
    assert_eq!(tree.search(0).unwrap(), Some(0));
    assert!(flash.counters().reads - before <= u64::from(tree.stats().height));
}

#[test]
fn failing_blocks_are_left() {
    let options =
        MuTreeOptions { page_len: 512, entries_max: None, layout: MuLayout::Adaptive, split: Split::Even };
    let flash = raw_flash(60);
    let mut tree = MuTree::create(Arc::clone(&flash), &options).unwrap();
    flash.set_faults(Faults { program: 0.001, erase: 0.01, ..Faults::default() });
    for round in 0..20 {
        for key in 0..100 {
            tree.insert(key * 7 % 101, round).unwrap();
        }
        tree.check().unwrap();
        tree = MuTree::recover(Arc::clone(&flash), &options).unwrap();
    }
    assert_eq!(tree.range(0..u64::MAX).unwrap().len(), 100);
    assert!(flash.wear().bad > 0, "{:?}", flash.wear());
}

/// The root's partition halves with each level: at some height there is no room for another, and that is told.
#[test]
fn too_tall_a_tree_is_an_error_and_what_is_there_stays() {
    let options =
        MuTreeOptions { page_len: 512, entries_max: Some(16), layout: MuLayout::Fixed, split: Split::Halve };
    let flash = raw_flash(100);
    let mut tree = MuTree::create(Arc::clone(&flash), &options).unwrap();
    let refused = (0..500).find(|key| match tree.insert(*key, *key) {
        Ok(()) => false,
        Err(Error::Full(what)) => {
            assert!(what.contains("3 levels"), "{what}");
            true
        }
        Err(error) => panic!("{error}"),
    });
    let refused = refused.expect("some time");
    assert_eq!(tree.check().unwrap().records, refused);
    tree.delete(3).unwrap();
    assert_eq!(MuTree::recover(flash, &options).unwrap().check().unwrap().records, refused - 1);
    let tiny = MuTreeOptions { entries_max: Some(15), ..options };
    assert!(matches!(MuTree::create(raw_flash(10), &tiny), Err(Error::Invalid(_))));
}
