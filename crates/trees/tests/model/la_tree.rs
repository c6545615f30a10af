//! The LA-tree under the common suite, and its costs by count.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use trees::{Error, Index, LaTree, LaTreeDetails, LaTreeOptions};

fn options() -> [LaTreeOptions; 4] {
    let tiny = LaTreeOptions {
        page_len: 512,
        subtree_levels: 2,
        buffer_pages: 2,
        staged: 30,
        adaptive: true,
        write_cost: 2,
        frames: 3,
        keys_max: Some(4),
    };
    [
        tiny.clone(),
        LaTreeOptions { subtree_levels: 1, buffer_pages: 1, keys_max: Some(5), frames: 0, ..tiny.clone() },
        LaTreeOptions { subtree_levels: 3, buffer_pages: 4, staged: 500, keys_max: Some(9), ..tiny },
        LaTreeOptions { buffer_pages: 5, frames: 20, ..LaTreeOptions::default() },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    for (seed, options) in (0..).zip(options()) {
        let count = operations() * 6 / 25;
        total = sum(total, run::<LaTree>(&simulated(), &options, seed, count, 400 << (4 * (seed % 3)), true));
    }
    println!("{total:?}");
    for rare in [total.splits, total.merges, total.redistributions, total.hits, total.flushes] {
        assert!(rare > 1000, "{total:?}");
    }
    assert!(total.height >= 5, "{total:?}");
}

/// The suite's counters do not tell what happened to the buffers.
#[test]
fn buffers_are_emptied_for_every_reason_and_follow_their_nodes() {
    let mut total = LaTreeDetails::default();
    for (options, keys) in options().into_iter().zip([2000, 2000, 200]) {
        let options = LaTreeOptions { keys_max: Some(4), ..options };
        let mut rng = StdRng::seed_from_u64(6);
        let mut tree = LaTree::create(simulated(), &options).unwrap();
        let mut there = vec![false; keys];
        for round in 0..80u64 {
            for _ in 0..500 {
                let key = rng.random_range(0..keys as u64);
                if rng.random_bool(if round % 16 < 8 { 0.1 } else { 0.95 }) {
                    tree.delete(key).unwrap();
                    there[key as usize] = false;
                } else {
                    tree.insert(key, round).unwrap();
                    there[key as usize] = true;
                }
                let key = rng.random_range(0..keys as u64);
                assert_eq!(tree.search(key).unwrap().is_some(), there[key as usize]);
            }
            assert_eq!(tree.check().unwrap().records, there.iter().filter(|there| **there).count() as u64);
        }
        let details = tree.details();
        println!("{details:?}");
        total.emptied_full += details.emptied_full;
        total.emptied_adaptive += details.emptied_adaptive;
        total.emptied_former += details.emptied_former;
        total.buffers_rewritten += details.buffers_rewritten;
        total.adopted += details.adopted;
    }
    assert!(total.emptied_full > 1000 && total.emptied_adaptive > 100, "{total:?}");
    assert!(total.emptied_former > 10 && total.adopted > 10 && total.buffers_rewritten > 100, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = LaTreeOptions { page_len: options.page_len.max(4096), ..options };
        run::<LaTree>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<LaTree>);
}

/// 19 units fit on a page: a tree of three levels, with every record's key even.
fn loaded(options: &LaTreeOptions) -> LaTree {
    let records = &mut (0..300).map(|key| (2 * key, key));
    let tree = LaTree::bulk_load(simulated(), options, 1.0, records).expect("loaded");
    assert_eq!(tree.stats().height, 3);
    tree
}

#[test]
fn a_lookup_reads_its_nodes_and_scans_the_buffers_on_its_way() {
    let options = LaTreeOptions {
        frames: 0,
        buffer_pages: 10,
        staged: 19,
        adaptive: false,
        keys_max: Some(9),
        ..options()[0].clone()
    };
    let mut tree = loaded(&options);
    let written = tree.stats().pages_written;
    for pages in 0..=10 {
        let before = tree.stats().pages_read;
        assert_eq!(tree.search(5).unwrap(), None);
        assert_eq!(tree.stats().pages_read - before, 3 + pages, "one a level, and the root's buffer");
        if pages < 10 {
            (0..19).for_each(|index| tree.insert(600 + index, pages).expect("inserted"));
        }
    }
    assert_eq!(tree.details().applied, 0, "appending is all");
    assert_eq!(tree.stats().pages_written - written, 10);
}

#[test]
fn lookups_empty_a_buffer_once_they_have_paid_for_it() {
    let options = LaTreeOptions {
        frames: 0,
        buffer_pages: 10,
        staged: 19,
        keys_max: Some(9),
        write_cost: 5,
        ..options()[0].clone()
    };
    let mut tree = loaded(&options);
    (0..38).for_each(|index| tree.insert(2 * index, 7).expect("inserted"));
    // Two pages to read, and as many writes as the root has children at most: nine.
    let lookups = (0..100).take_while(|_| {
        assert_eq!(tree.search(501).unwrap(), None);
        tree.details().emptied_adaptive == 0
    });
    assert_eq!(lookups.count(), (2 + 9 * 5_usize).div_ceil(2) - 1);
    assert_eq!(tree.details().passed_on, 38 + 38);
    assert_eq!(tree.search(4).unwrap(), Some(7));
}

#[test]
fn larger_buffers_bring_more_updates_to_a_leaf() {
    let per_leaf = |buffer_pages| {
        let options = LaTreeOptions {
            buffer_pages,
            adaptive: false,
            staged: 200,
            keys_max: None,
            ..options()[0].clone()
        };
        let mut tree = LaTree::create(simulated(), &options).unwrap();
        let mut rng = StdRng::seed_from_u64(5);
        (0..40_000).for_each(|_| tree.insert(rng.random_range(0..20_000), 1).expect("inserted"));
        let details = tree.details();
        assert!(details.buffer_pages_written > 0 && details.buffer_pages_read > 0);
        details.applied as f64 / details.leaves as f64
    };
    let [small, large] = [2, 32].map(per_leaf);
    println!("{small} and {large} updates a leaf");
    assert!(large > 2.0 * small, "{small} {large}");
}

#[test]
fn foreign_and_damaged_files_are_refused() {
    let volume = Simulated::new(1).with_alignment(128);
    let options = LaTreeOptions { adaptive: false, ..options()[0].clone() };
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let mut tree = LaTree::create(shared, &options).unwrap();
    (0..1000).for_each(|key| tree.insert(key * 7919 % 1000, key).expect("inserted"));
    tree.flush().unwrap();
    assert!(tree.details().buffers > 3, "{:?}", tree.details());
    drop(tree);
    let recover = |volume: Simulated, options: &LaTreeOptions| {
        LaTree::recover(Arc::new(volume), options)?.check().map(|checked| checked.records)
    };
    assert_eq!(recover(volume.crash(), &options).unwrap(), 1000);
    for wrong in [
        LaTreeOptions { page_len: 1024, ..options.clone() },
        LaTreeOptions { subtree_levels: 0, ..options.clone() },
        LaTreeOptions { staged: 0, ..options.clone() },
        LaTreeOptions { buffer_pages: 0, ..options.clone() },
    ] {
        assert!(recover(volume.crash(), &wrong).is_err(), "{wrong:?}");
    }
    for file in ["latree", "latree-buffers"] {
        let mut refused = 0;
        for page in 0..volume.read_file(file).unwrap().len() / 512 {
            let image = volume.crash();
            image.flip_bit(file, page as u64 * 512 + 77, 3).unwrap();
            match recover(image, &options) {
                Ok(records) => assert!(records == 1000 || page < 2, "{file}, page {page}: {records} records"),
                Err(Error::Corrupt { .. } | Error::Broken(_)) => refused += 1,
                Err(other) => panic!("{file}, page {page}: {other}"),
            }
        }
        assert!(refused > 5, "{file}: {refused}");
        for len in [0, 100, 512, 1024, 1536, 5000] {
            let image = volume.crash();
            image.truncate_file(file, len).unwrap();
            assert!(recover(image, &options).is_err(), "{file}: {len} bytes");
        }
        let image = volume.crash();
        image.remove_file(file).unwrap();
        assert!(recover(image, &options).is_err(), "{file} is gone");
    }
    let mut rng = StdRng::seed_from_u64(3);
    for _ in 0..100 {
        let image = volume.crash();
        let garbage: Vec<u8> = (0..rng.random_range(0..5000)).map(|_| rng.random()).collect();
        image.write_file("latree-buffers", &garbage).unwrap();
        assert!(recover(image, &options).is_err());
    }
}
