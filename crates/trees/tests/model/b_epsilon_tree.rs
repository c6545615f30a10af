//! The Bε-tree under the common suite; how far messages go, and what many keys at once save, by count.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use psync::{Fault, Filter, Repeat, Simulated, Volume};
use std::sync::Arc;
use trees::{BEpsilonTree, BEpsilonTreeOptions, Error, Index};

fn options() -> [BEpsilonTreeOptions; 4] {
    let tiny = BEpsilonTreeOptions {
        page_len: 512,
        fanout: Some(4),
        entries_max: Some(4),
        retired_max: 20,
        frames: 5,
        pio_max: 7,
    };
    [
        tiny.clone(),
        BEpsilonTreeOptions { fanout: Some(9), frames: 0, pio_max: 1, ..tiny.clone() },
        BEpsilonTreeOptions { fanout: None, entries_max: None, retired_max: 1 << 20, ..tiny },
        BEpsilonTreeOptions { frames: 16, ..BEpsilonTreeOptions::default() },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    for (seed, options) in (0..).zip(options()) {
        let (count, keys) = (operations() / 16, 400 << (4 * (seed % 3)));
        total = sum(total, run::<BEpsilonTree>(&simulated(), &options, seed, count, keys, true));
    }
    for rare in [total.splits, total.merges, total.redistributions, total.hits, total.flushes] {
        assert!(rare > 100, "{total:?}");
    }
    assert!(total.height >= 6, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = BEpsilonTreeOptions { page_len: options.page_len.max(4096), ..options };
        run::<BEpsilonTree>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<BEpsilonTree>);
}

#[test]
fn messages_wait_in_the_buffers_and_many_keys_take_a_parallel_read_a_level() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1).with_alignment(128).with_pio_max(1024));
    let options = BEpsilonTreeOptions { frames: 0, pio_max: 1024, ..options()[2].clone() };
    let records = &mut (0..20_000).map(|key| (2 * key, key));
    let mut tree = BEpsilonTree::bulk_load(Arc::clone(&volume), &options, 0.69, records).unwrap();
    let levels = u64::from(tree.stats().height);
    assert!(levels >= 5);
    // A search below the root reads a node a level; one of a key whose message waits in the root reads nothing.
    let reads = |tree: &BEpsilonTree, key, expected| {
        let before = volume.counters();
        assert_eq!(tree.search(key).unwrap(), expected);
        (volume.counters() - before).reads
    };
    assert_eq!(reads(&tree, 14_000, Some(7000)), levels - 1);
    tree.insert(14_000, 1).unwrap();
    tree.delete(14_002).unwrap();
    assert_eq!([reads(&tree, 14_000, Some(1)), reads(&tree, 14_002, None)], [0, 0]);
    for key in 0..3000u64 {
        let key = key.wrapping_mul(7919) % 40_000;
        if key % 3 == 0 { tree.delete(key).unwrap() } else { tree.insert(key, 9).unwrap() }
    }
    tree.check().unwrap();
    let keys: Vec<u64> = (0..975).rev().map(|key| 41 * key).collect();
    let expected: Vec<_> = keys.iter().map(|key| tree.search(*key).unwrap()).collect();
    let before = volume.counters();
    assert_eq!(tree.search_many(&keys).unwrap(), expected);
    assert_eq!((volume.counters() - before).read_sets, levels - 1);
}

/// An insertion costs a small part of a write: a batch of messages takes one.
#[test]
fn insertions_share_their_writes() {
    let options = BEpsilonTreeOptions { frames: 0, ..BEpsilonTreeOptions::default() };
    let records = &mut (0..200_000).map(|key| (2 * key, key));
    let mut tree = BEpsilonTree::bulk_load(simulated(), &options, 0.69, records).unwrap();
    let before = tree.stats();
    (0..20_000u64).for_each(|key| tree.insert(key.wrapping_mul(104_729) % 400_000, 1).expect("inserted"));
    let after = tree.stats();
    let writes = (after.pages_written - before.pages_written) as f64 / 20_000.0;
    assert!(writes > 0.02 && writes < 0.1, "{writes}");
    tree.check().unwrap();
}

#[test]
fn after_a_failure_it_refuses_until_it_is_recovered() {
    let volume = Simulated::new(1).with_alignment(128);
    let options = options()[0].clone();
    let mut tree = BEpsilonTree::create(Arc::new(volume.clone()), &options).unwrap();
    (0..100).for_each(|key| tree.insert(key, key).expect("inserted"));
    tree.flush().unwrap();
    volume.fail_nth(Filter::changes(), 1, Fault::Error, Repeat::Once);
    assert!((100..200).any(|key| tree.insert(key, key).is_err()));
    for refused in [tree.search(1).err(), tree.flush().err(), tree.insert(1, 1).err()] {
        assert!(matches!(refused, Some(Error::Invalid(_))), "{refused:?}");
    }
    drop(tree);
    let tree = BEpsilonTree::recover(Arc::new(volume), &options).unwrap();
    assert!(tree.check().unwrap().records >= 100);
}

#[test]
fn foreign_and_damaged_files_are_refused() {
    let volume = Simulated::new(1).with_alignment(128);
    let options = BEpsilonTreeOptions { retired_max: 1 << 20, ..options()[0].clone() };
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let mut tree = BEpsilonTree::create(shared, &options).unwrap();
    (0..1000).for_each(|key| tree.insert(key * 7919 % 1000, key).expect("inserted"));
    tree.flush().unwrap();
    drop(tree);
    let recover = |volume: Simulated, options: &BEpsilonTreeOptions| {
        BEpsilonTree::recover(Arc::new(volume), options)?.check().map(|checked| checked.records)
    };
    assert_eq!(recover(volume.crash(), &options).unwrap(), 1000);
    for wrong in [
        BEpsilonTreeOptions { page_len: 1024, ..options.clone() },
        BEpsilonTreeOptions { fanout: Some(40), ..options.clone() },
        BEpsilonTreeOptions { entries_max: Some(3), ..options.clone() },
    ] {
        assert!(recover(volume.crash(), &wrong).is_err(), "{wrong:?}");
    }
    let mut refused = 0;
    // The anchors come first: of those the older one is taken then.
    for page in 2..volume.read_file("bepsilontree").unwrap().len() / 512 {
        let damaged = volume.crash();
        let mut bytes = damaged.read_file("bepsilontree").unwrap();
        bytes[page * 512 + 100] ^= 4;
        damaged.write_file("bepsilontree", &bytes).unwrap();
        match recover(damaged, &options) {
            Ok(records) => assert_eq!(records, 1000, "page {page} is not in use"),
            Err(Error::Corrupt { .. }) => refused += 1,
            Err(error) => panic!("page {page}: {error}"),
        }
    }
    assert!(refused > 200, "{refused}");
}
