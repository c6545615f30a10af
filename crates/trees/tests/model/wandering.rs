//! The wandering tree under the common suite, and its costs to the page.

use crate::raw_flash::{raw_flash, small};
use crate::suite::{bulk_loads_on, operations, run_watched, sum};
use flash::{BlockId, Faults, PageProgram, RawFlash};
use std::sync::Arc;
use trees::{Error, FlashStats, Index, Split, WanderingOptions, WanderingTree};

fn options() -> [WanderingOptions; 3] {
    [
        WanderingOptions { page_len: 256, keys_max: Some(4), split: Split::Halve },
        WanderingOptions { page_len: 512, keys_max: Some(7), split: Split::Even },
        WanderingOptions { page_len: 512, keys_max: None, split: Split::Halve },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let (mut total, mut details) = (Default::default(), FlashStats::default());
    for (seed, options) in (70..).zip(options()) {
        let (keys, blocks) = [(300, 40), (1200, 80), (8000, 160)][seed as usize - 70];
        let counters = run_watched::<WanderingTree>(
            &raw_flash(blocks),
            &options,
            seed,
            operations() / 3,
            keys,
            true,
            &mut |tree| {
                let one = tree.details();
                details.erases += one.erases;
                details.collected += one.collected;
            },
        );
        println!("{counters:?}");
        total = sum(total, counters);
    }
    println!("{details:?}");
    for rare in [total.splits, total.merges, total.redistributions, details.erases, details.collected] {
        assert!(rare > 1000, "{total:?} {details:?}");
    }
    assert!(total.height >= 5, "{total:?}");
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(|options| bulk_loads_on::<WanderingTree>(&|| raw_flash(400), options));
}

/// The paper's figures: H reads, and H writes; a split one more for each level that it goes up.
#[test]
fn an_insertion_reads_and_writes_its_path() {
    let options = WanderingOptions { page_len: 512, keys_max: Some(16), split: Split::Halve };
    let flash = raw_flash(400);
    let mut tree = WanderingTree::create(Arc::clone(&flash), &options).unwrap();
    let counts = |flash: &RawFlash| (flash.counters().reads, flash.counters().programs);
    for key in 0..3000 {
        let (before, told) = (counts(&flash), tree.stats());
        tree.insert(key, key).unwrap();
        let (after, now) = (counts(&flash), tree.stats());
        let (height, splits) = (u64::from(told.height), now.splits - told.splits);
        assert_eq!(after.0 - before.0, height, "reads of key {key}");
        let grown = u64::from(now.height) - height;
        assert_eq!(after.1 - before.1, height + splits + grown, "writes of key {key}");
        assert_eq!(now.pages_written - told.pages_written, after.1 - before.1);
    }
    // Halves of 8, in order: 374 of them and the last leaf.
    assert_eq!(tree.check().unwrap().leaves, 374);
    let before = counts(&flash);
    assert_eq!(tree.search(77).unwrap(), Some(77));
    assert_eq!(counts(&flash).0 - before.0, u64::from(tree.stats().height));
}

/// Blocks fail when they are programmed and when they are erased: what the tree holds stays whole, also over recoveries.
#[test]
fn failing_blocks_are_left() {
    let options = WanderingOptions { page_len: 512, keys_max: Some(8), split: Split::Even };
    let flash = raw_flash(200);
    let mut tree = WanderingTree::create(Arc::clone(&flash), &options).unwrap();
    flash.set_faults(Faults { program: 0.0005, erase: 0.01, ..Faults::default() });
    for round in 0..10 {
        for key in 0..500 {
            tree.insert(key * 7 % 501, round).unwrap();
        }
        tree.check().unwrap();
        tree = WanderingTree::recover(Arc::clone(&flash), &options).unwrap();
    }
    assert_eq!(tree.range(0..u64::MAX).unwrap().len(), 500);
    assert!(flash.wear().bad > 3, "{:?}", flash.wear());
}

#[test]
fn full_flash_is_an_error_and_what_is_there_stays() {
    let options = WanderingOptions { page_len: 512, keys_max: Some(8), split: Split::Even };
    let flash = raw_flash(12);
    let mut tree = WanderingTree::create(Arc::clone(&flash), &options).unwrap();
    let key = (0..10_000).find(|key| match tree.insert(*key, 1) {
        Ok(()) => false,
        Err(Error::Full(what)) => {
            assert!(what.contains("take a flash with more blocks"), "{what}");
            true
        }
        Err(error) => panic!("{error}"),
    });
    let key = key.expect("it is full some time");
    assert!(key > 200, "{key}");
    let tree = WanderingTree::recover(flash, &options).unwrap();
    assert_eq!(tree.range(0..u64::MAX).unwrap().len() as u64, key);
}

/// A page that says it is another one, a flipped bit, flash of another kind: told, with the place.
#[test]
fn damage_is_told() {
    let options = WanderingOptions { page_len: 512, keys_max: Some(8), split: Split::Even };
    let flash = raw_flash(40);
    let mut tree = WanderingTree::create(Arc::clone(&flash), &options).unwrap();
    (0..300).for_each(|key| tree.insert(key, key).unwrap());
    flash.set_faults(Faults { bits: 1.0, ..Faults::default() });
    let Err(Error::Corrupt { what, .. }) = tree.search(5) else { panic!("a flipped bit is noticed") };
    assert!(what.contains("checksum") || what.contains("magic"), "{what}");
    let blank = Arc::new(RawFlash::new(small(4), 1).unwrap());
    let Err(Error::Corrupt { what, .. }) = WanderingTree::recover(Arc::clone(&blank), &options) else {
        panic!("there is no tree")
    };
    assert!(what.contains("root"), "{what}");
    // Somebody else's pages are erased by `create`, and are no tree to `recover`.
    let page = blank.geometry().page(BlockId(1), 0);
    let noise = [7; 512];
    blank
        .program(&[PageProgram { page, offset: 0, data: &noise, spare: &noise[..64], spare_offset: 0 }])
        .unwrap();
    assert!(WanderingTree::recover(Arc::clone(&blank), &options).is_err());
    let before = blank.counters().erases;
    WanderingTree::create(Arc::clone(&blank), &options).unwrap();
    assert_eq!(blank.counters().erases - before, 1);
    for page_len in [100, 64, 1024] {
        let wrong = WanderingOptions { page_len, ..options.clone() };
        assert!(matches!(WanderingTree::create(Arc::clone(&blank), &wrong), Err(Error::Invalid(_))));
    }
}
