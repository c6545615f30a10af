//! The CB-tree on raw flash under the common suite, and its costs to the page.

use crate::raw_flash::raw_flash;
use crate::suite::{bulk_loads_on, operations, run_watched, sum};
use flash::{Faults, RawFlash};
use std::sync::Arc;
use trees::{CbFlashOptions, CbFlashTree, CbPersistence, CbStats, Error, FlashStats, Index, Sequential};

fn options() -> [CbFlashOptions; 4] {
    let server = CbFlashOptions {
        page_len: 256,
        keys_max: Some(4),
        sequential: Sequential::Last,
        persistence: CbPersistence::RootGrowth,
        log_max: None,
    };
    let logged = CbFlashOptions { persistence: CbPersistence::LogPage, ..server.clone() };
    [
        server.clone(),
        CbFlashOptions { page_len: 512, keys_max: Some(7), log_max: Some(9), ..logged.clone() },
        CbFlashOptions { page_len: 512, keys_max: None, sequential: Sequential::Strict, ..server },
        CbFlashOptions { page_len: 512, keys_max: None, sequential: Sequential::Relaxed, ..logged },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let (mut total, mut flash, mut details) = (Default::default(), FlashStats::default(), CbStats::default());
    for (seed, options) in (110..).zip(options()) {
        let (keys, blocks) = [(400, 80), (2000, 160), (8000, 160), (8000, 160)][seed as usize - 110];
        let counters = run_watched::<CbFlashTree>(
            &raw_flash(blocks),
            &options,
            seed,
            operations() / 4,
            keys,
            true,
            &mut |tree| {
                flash.collected += tree.flash().collected;
                flash.moved += tree.flash().moved;
                details.unsplit += tree.details().unsplit;
                details.unlinked += tree.details().unlinked;
                details.log_pages += tree.details().log_pages;
                details.switches_written += tree.details().switches_written;
                details.commits += tree.details().commits;
                details.growths += tree.details().growths;
            },
        );
        println!("{counters:?}");
        total = sum(total, counters);
    }
    println!("{flash:?} {details:?}");
    let commits = details.commits;
    for rare in [total.splits, total.merges, total.redistributions, flash.collected, flash.moved, commits] {
        assert!(rare > 1000, "{total:?} {flash:?} {details:?}");
    }
    assert!(details.unsplit > 100 && details.unlinked > 10 && details.growths > 5, "{details:?}");
    assert!(details.log_pages > 10_000 && details.switches_written > 10_000, "{details:?}");
    assert!(total.height >= 5, "{total:?}");
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(|options| bulk_loads_on::<CbFlashTree>(&|| raw_flash(500), options));
}

/// The paper's figures: keys in sequence read nothing and write each full leaf once; with a log, one page more for each.
#[test]
fn keys_in_sequence_write_each_full_leaf_once() {
    for persistence in [CbPersistence::RootGrowth, CbPersistence::LogPage] {
        let options =
            CbFlashOptions { page_len: 512, keys_max: Some(16), persistence, ..CbFlashOptions::default() };
        let flash = raw_flash(400);
        let mut tree = CbFlashTree::create(Arc::clone(&flash), &options).unwrap();
        let before = flash.counters();
        for key in 0..3200 {
            tree.insert(key, key).unwrap();
        }
        tree.flush().unwrap();
        let (after, details) = (flash.counters(), tree.details());
        let checked = tree.check().unwrap();
        let nodes = checked.leaves + checked.inner;
        let commits = details.commits - 1;
        let written = after.programs - before.programs - details.log_pages;
        println!("{nodes} nodes, {written} pages, {details:?}");
        // A commit writes a record, and the memory nodes as they are, which are written again when they leave.
        let height = u64::from(checked.height);
        assert!((nodes + commits..=nodes + commits * (1 + height)).contains(&written));
        assert_eq!((checked.leaves, details.unsplit), (200, 199));
        match persistence {
            CbPersistence::RootGrowth => {
                assert_eq!((after.reads, after.erases), (before.reads, 0));
                assert!(commits <= height, "{commits}");
            }
            CbPersistence::LogPage => assert_eq!(details.log_pages, 3200),
        }
    }
}

/// Closed without a flush, again and again: the log page has every operation, wherever collection has moved it.
#[test]
fn the_log_page_is_replayed() {
    let options = CbFlashOptions {
        page_len: 512,
        keys_max: Some(8),
        persistence: CbPersistence::LogPage,
        ..CbFlashOptions::default()
    };
    let flash = raw_flash(40);
    let mut replayed = 0;
    let mut tree = CbFlashTree::create(Arc::clone(&flash), &options).unwrap();
    for round in 0..200_u64 {
        for index in 0..round % 37 {
            tree.insert((round * 31 + index * 17) % 500, round).unwrap();
        }
        let expected = tree.range(0..u64::MAX).unwrap();
        drop(tree);
        tree = CbFlashTree::recover(Arc::clone(&flash), &options).unwrap();
        assert_eq!(tree.range(0..u64::MAX).unwrap(), expected, "round {round}");
        tree.check().unwrap();
        replayed += tree.details().replayed;
    }
    assert!(replayed > 1000, "{replayed}");
}

#[test]
fn failing_blocks_are_left_and_damage_is_told() {
    let options = CbFlashOptions { page_len: 512, keys_max: Some(8), ..CbFlashOptions::default() };
    let flash: Arc<RawFlash> = raw_flash(150);
    let mut tree = CbFlashTree::create(Arc::clone(&flash), &options).unwrap();
    flash.set_faults(Faults { program: 0.001, erase: 0.01, ..Faults::default() });
    for round in 0..20 {
        for key in 0..500 {
            tree.insert(key * 7 % 501, round).unwrap();
        }
        tree.flush().unwrap();
        tree.check().unwrap();
        tree = CbFlashTree::recover(Arc::clone(&flash), &options).unwrap();
    }
    assert_eq!(tree.range(0..u64::MAX).unwrap().len(), 500);
    assert!(flash.wear().bad > 3, "{:?}", flash.wear());
    flash.set_faults(Faults { bits: 1.0, ..Faults::default() });
    assert!(matches!(CbFlashTree::recover(flash, &options), Err(Error::Corrupt { .. })));
}

/// Once it was full, the tree does nothing more: memory lacks what could not be written. Recovery finds what was promised.
#[test]
fn full_flash_is_told_until_the_tree_is_recovered() {
    for persistence in [CbPersistence::RootGrowth, CbPersistence::LogPage] {
        for blocks in 10..26 {
            let options =
                CbFlashOptions { page_len: 512, keys_max: Some(8), persistence, ..CbFlashOptions::default() };
            let flash: Arc<RawFlash> = raw_flash(blocks);
            let mut tree = CbFlashTree::create(Arc::clone(&flash), &options).unwrap();
            let (mut held, mut flushed) = (Vec::new(), 0);
            let refused = (0..10_000_u64).map(|at| at * 6_007 % 16_384).find(|key| {
                if held.len() % 200 == 199 && tree.flush().is_ok() {
                    flushed = held.len();
                }
                match tree.insert(*key, key + 1) {
                    Ok(()) => {
                        held.push((*key, key + 1));
                        false
                    }
                    Err(Error::Full(_)) => true,
                    Err(error) => panic!("{blocks} blocks: {error}"),
                }
            });
            let refused = refused.expect("it is full some time");
            assert!(tree.flush().is_err(), "{blocks} blocks: what could not be written is not durable");
            assert!(tree.insert(refused, 1).is_err() && tree.delete(refused).is_err());
            assert!(
                matches!(tree.check(), Err(Error::Invalid(_))),
                "it does not vouch for what memory lacks"
            );
            drop(tree);
            let tree = CbFlashTree::recover(Arc::clone(&flash), &options).unwrap();
            tree.check().unwrap();
            let found = tree.range(0..u64::MAX).unwrap();
            let promised = if persistence == CbPersistence::LogPage { held.len() } else { flushed };
            for (nth, record) in held.iter().enumerate() {
                let is_there = found.binary_search(record).is_ok();
                assert!(is_there || nth >= promised, "{blocks} blocks, {persistence:?}: {record:?} is lost");
            }
        }
    }
}
