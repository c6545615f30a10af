//! BFTL under the common suite, and its costs by count.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use psync::{Device, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use trees::{Bftl, BftlOptions, Error, Index};

fn options() -> [BftlOptions; 4] {
    let tiny = BftlOptions {
        sector_len: 512,
        units: 1,
        chain_max: 2,
        keys_max: Some(4),
        reclaim: true,
        parallel: false,
        frames: 0,
        pio_max: 1,
    };
    [
        tiny.clone(),
        BftlOptions {
            units: 30,
            chain_max: 3,
            keys_max: Some(30),
            parallel: true,
            pio_max: 4,
            ..tiny.clone()
        },
        BftlOptions { units: 60, chain_max: 4, keys_max: None, reclaim: false, frames: 9, ..tiny },
        BftlOptions { reclaim: true, frames: 20, pio_max: 64, ..BftlOptions::default() },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    for (seed, options) in (0..).zip(options()) {
        // A third of what the others do: it reads several sectors for every node.
        let count = operations() * 2 / 25;
        total = sum(total, run::<Bftl>(&simulated(), &options, seed, count, 400 << (4 * (seed % 3)), true));
    }
    println!("{total:?}");
    for rare in [total.splits, total.merges, total.redistributions, total.hits, total.flushes] {
        assert!(rare > 400, "{total:?}");
    }
    assert!(total.height >= 4, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = BftlOptions { sector_len: options.sector_len.max(4096), ..options };
        run::<Bftl>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<Bftl>);
}

fn inserted(options: &BftlOptions, count: u64) -> (Simulated, Bftl) {
    let volume = Simulated::new(1).with_alignment(512);
    let mut rng = StdRng::seed_from_u64(7);
    let mut tree = Bftl::create(Arc::new(volume.clone()), options).expect("created");
    for _ in 0..count {
        tree.insert(rng.random(), 1).expect("inserted");
    }
    (volume, tree)
}

#[test]
fn a_search_reads_the_sectors_of_its_nodes_and_c_each_at_most() {
    for chain_max in [2, 3, 5] {
        let options = BftlOptions { chain_max, frames: 0, ..options()[2].clone() };
        let (volume, tree) = inserted(&options, 20_000);
        let height = u64::from(tree.stats().height);
        let mut rng = StdRng::seed_from_u64(8);
        let (before, device) = (tree.details(), volume.counters());
        for _ in 0..1000 {
            let reads = volume.counters().reads;
            tree.search(rng.random()).unwrap();
            let reads = volume.counters().reads - reads;
            assert!(reads <= chain_max as u64 * height, "{reads}");
        }
        let (after, device) = (tree.details(), volume.counters() - device);
        assert_eq!(after.nodes_read - before.nodes_read, 1000 * height, "every node of the path once");
        assert_eq!(after.sectors_visited - before.sectors_visited, device.reads);
        assert_eq!(device.read_sets, device.reads, "one after the other");
        let per_node = device.reads as f64 / (1000 * height) as f64;
        println!("C = {chain_max}: {per_node} sectors a node");
        assert!(per_node > 1.2 && per_node < chain_max as f64);
    }
}

#[test]
fn many_updates_share_a_sector_and_compaction_is_paid_for() {
    let (_, tree) = inserted(&options()[2], 20_000);
    let (details, done) = (tree.details(), tree.stats());
    // 19 units fit; what first fit leaves empty is little.
    let filled = details.units_committed as f64 / (19 * details.sectors_committed) as f64;
    assert!(filled > 0.8, "{filled}");
    assert!(details.compactions > 1000, "{details:?}");
    // The list that is read had C sectors; splits free some earlier.
    let reads = details.compaction_reads as f64 / details.compactions as f64;
    assert!(reads > 3.5 && reads <= 4.0, "{reads}");
    assert_eq!(done.pages_written, details.sectors_committed + 1, "the anchor of its creation");
}

#[test]
fn space_is_used_again_if_asked() {
    let space = |reclaim| {
        let (_, tree) = inserted(&BftlOptions { reclaim, ..options()[2].clone() }, 20_000);
        (tree.stats().space, tree.details().sectors_live * 512)
    };
    let ((with, live), (without, _)) = (space(true), space(false));
    assert!(without > 2 * with, "{with} and {without} bytes");
    assert!(with < 2 * live + 512 * 300, "{with} of which {live} live");
}

#[test]
fn parallel_reads_take_one_set_a_node() {
    let (volume, tree) = inserted(&BftlOptions { parallel: true, frames: 0, ..options()[2].clone() }, 5000);
    let before = volume.counters();
    (0..100).for_each(|key| assert_eq!(tree.search(key << 56).expect("searched"), None));
    let done = volume.counters() - before;
    assert_eq!(done.read_sets, 100 * u64::from(tree.stats().height));
    assert!(done.reads > done.read_sets);
}

#[test]
fn foreign_and_damaged_files_are_refused() {
    let options = options()[2].clone();
    let (volume, mut tree) = inserted(&options, 1000);
    tree.flush().unwrap();
    drop(tree);
    let recover = |volume: Simulated, options: &BftlOptions| {
        let tree = Bftl::recover(Arc::new(volume) as Arc<dyn Volume>, options)?;
        tree.check().map(|checked| checked.records)
    };
    assert_eq!(recover(volume.crash(), &options).unwrap(), 1000);
    for wrong in [
        BftlOptions { sector_len: 1024, ..options.clone() },
        BftlOptions { chain_max: 1, ..options.clone() },
        BftlOptions { units: 0, ..options.clone() },
        BftlOptions { keys_max: Some(100), ..options.clone() },
    ] {
        assert!(recover(volume.crash(), &wrong).is_err(), "{wrong:?}");
    }
    let (mut refused, mut dead) = (0, 0);
    for sector in 2..volume.read_file("bftl").unwrap().len() / 512 {
        let image = volume.crash();
        image.flip_bit("bftl", sector as u64 * 512 + 300, 3).unwrap();
        match recover(image, &options) {
            Ok(records) => {
                assert_eq!(records, 1000, "nobody needs sector {sector}");
                dead += 1;
            }
            Err(Error::Corrupt { .. } | Error::Broken(_)) => refused += 1,
            Err(other) => panic!("sector {sector}: {other}"),
        }
    }
    assert!(refused > 50 && dead > 50, "{refused} {dead}");
    let mut rng = StdRng::seed_from_u64(3);
    for round in 0..100 {
        let image = volume.crash();
        if round % 2 == 0 {
            let garbage: Vec<u8> = (0..rng.random_range(0..5000)).map(|_| rng.random()).collect();
            image.write_file("bftl", &garbage).unwrap();
        } else {
            image.truncate_file("bftl", rng.random_range(0..20_000)).unwrap();
        }
        assert!(recover(image, &options).is_err());
    }
}
