//! The CB-tree under the common suite, and its promises in the paper's units.

use crate::suite::{bulk_loads, disk, operations, run, run_watched, simulated, sum};
use psync::{Access, Device, Simulated, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use trees::{
    BTree, BTreeOptions, CbPersistence, CbPlacement, CbStats, CbTree, CbTreeOptions, Checked, Error, Index,
    Sequential,
};

fn tiny() -> CbTreeOptions {
    CbTreeOptions {
        page_len: 256,
        keys_max: Some(4),
        sequential: Sequential::Strict,
        placement: CbPlacement::OutOfPlace,
        persistence: CbPersistence::RootGrowth,
        log_max: None,
        search_loads: false,
    }
}

fn options() -> [CbTreeOptions; 5] {
    let logged = CbTreeOptions { persistence: CbPersistence::LogPage, ..tiny() };
    [
        tiny(),
        CbTreeOptions {
            keys_max: Some(5),
            sequential: Sequential::Relaxed,
            log_max: Some(7),
            ..logged.clone()
        },
        CbTreeOptions {
            sequential: Sequential::Last,
            placement: CbPlacement::InPlace,
            search_loads: true,
            ..tiny()
        },
        CbTreeOptions { page_len: 512, keys_max: Some(9), search_loads: true, ..logged.clone() },
        CbTreeOptions {
            keys_max: Some(6),
            sequential: Sequential::Last,
            placement: CbPlacement::InPlace,
            ..logged
        },
    ]
}

fn add(total: &mut CbStats, one: CbStats) {
    total.switches += one.switches;
    total.switches_written += one.switches_written;
    total.unsplit += one.unsplit;
    total.deferred += one.deferred;
    total.unlinked += one.unlinked;
    total.commits += one.commits;
    total.growths += one.growths;
    total.log_pages += one.log_pages;
}

#[test]
fn does_what_a_btreemap_does() {
    let (mut total, mut details) = (Default::default(), CbStats::default());
    for (seed, options) in (20..).zip(options()) {
        let keys = [400, 3000, 30_000, 6000, 300][seed as usize - 20];
        let mut one = CbStats::default();
        let counters =
            run_watched::<CbTree>(&simulated(), &options, seed, operations() / 5, keys, true, &mut |tree| {
                add(&mut one, tree.details())
            });
        println!("{counters:?} {one:?}");
        assert!(one.unsplit > 50 && one.switches_written > 1000, "{options:?}: {one:?}");
        total = sum(total, counters);
        add(&mut details, one);
    }
    for rare in [total.splits, total.merges, total.redistributions, total.hits, details.unsplit] {
        assert!(rare > 1000, "{total:?} {details:?}");
    }
    assert!(details.switches > details.switches_written + 1000, "clean ones are dropped: {details:?}");
    for rare in [details.deferred, details.commits, details.log_pages] {
        assert!(rare > 1000, "{details:?}");
    }
    assert!(details.growths > 10 && details.unlinked > 20, "{details:?}");
    assert!(total.height >= 5, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = CbTreeOptions { page_len: 4096, ..options };
        run::<CbTree>(&volume, &options, seed, operations() / 1000, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<CbTree>);
}

/// Closed without a flush, again and again: the log page has every operation.
#[test]
fn the_log_page_is_replayed() {
    let options = CbTreeOptions { page_len: 1024, persistence: CbPersistence::LogPage, ..tiny() };
    let volume = Simulated::new(1).with_alignment(128);
    let mut tree = CbTree::create(Arc::new(volume.clone()), &options).unwrap();
    let mut model = BTreeMap::new();
    let mut rng = StdRng::seed_from_u64(3);
    let mut replayed = 0;
    for round in 0..400 {
        for _ in 0..rng.random_range(0..150) {
            let key = rng.random_range(0..500);
            if rng.random_bool(0.45) {
                tree.delete(key).unwrap();
                model.remove(&key);
            } else {
                tree.insert(key, round).unwrap();
                model.insert(key, round);
            }
        }
        drop(tree);
        tree = CbTree::recover(Arc::new(volume.clone()), &options).unwrap();
        replayed += tree.details().replayed;
        assert_eq!(tree.check().unwrap().records, model.len() as u64);
        assert!(tree.range(0..u64::MAX).unwrap().into_iter().eq(model.clone()), "round {round}");
    }
    assert!(replayed > 5000, "{replayed}");
}

/// What the paper's experiments use: 128 entries in a node.
fn published() -> CbTreeOptions {
    CbTreeOptions { placement: CbPlacement::InPlace, ..CbTreeOptions::default() }
}

fn grown(options: &CbTreeOptions, keys: impl Iterator<Item = u64>) -> CbTree {
    let mut tree = CbTree::create(simulated(), options).expect("created");
    keys.for_each(|key| tree.insert(key, key).expect("inserted"));
    tree
}

/// Leaves of a B+-tree of 128 keys a leaf that splits every full leaf in halves, as the paper's wandering tree does.
fn leaves_if_split(keys: &[u64]) -> u64 {
    let mut leaves: Vec<Vec<u64>> = vec![Vec::new()];
    for key in keys {
        let mut at = leaves.partition_point(|leaf| leaf.first().is_some_and(|first| first <= key)).max(1) - 1;
        if leaves[at].len() == 128 {
            let right = leaves[at].split_off(64);
            at += usize::from(right[0] <= *key);
            leaves.insert(at + usize::from(right[0] > *key), right);
        }
        let place = leaves[at].partition_point(|other| other < key);
        leaves[at].insert(place, *key);
    }
    leaves.len() as u64
}

/// Experiment E31 (Table 6): live pages after 50,000 inserts, by the share of random ones. At 0%, 391 full leaves, six nodes
/// above them and a root.
#[test]
fn live_pages_are_those_of_table_6() {
    let ascending: Vec<u64> = (0..50_000).collect();
    assert_eq!(leaves_if_split(&ascending), 781, "of 794 pages");
    let mut rng = StdRng::seed_from_u64(5);
    let mut random: Vec<u64> = (0..50_000).map(|_| rng.random_range(0..1 << 62)).collect();
    let split_100 = leaves_if_split(&random);
    let all = random.clone();
    random.truncate(25_000);
    // Half of them random, then half ascending above those.
    let two_phases: Vec<u64> = random.into_iter().chain((0..25_000).map(|key| (1 << 62) + key)).collect();
    let split_50 = leaves_if_split(&two_phases);
    for sequential in [Sequential::Strict, Sequential::Relaxed, Sequential::Last] {
        let options = CbTreeOptions { sequential, ..published() };
        let count = |keys: &[u64]| grown(&options, keys.iter().copied()).check().expect("whole");
        let (at_0, at_50, at_100) = (count(&ascending), count(&two_phases), count(&all));
        println!("{sequential:?}: {at_0:?} {at_50:?} {at_100:?}; if split {split_50} {split_100}");
        assert_eq!((at_0.leaves, at_0.inner, at_0.height), (391, 7, 3), "398 pages, {sequential:?}");
        let pages = |checked: Checked| checked.leaves + checked.inner;
        assert!((470..520).contains(&pages(at_50)) && (540..590).contains(&pages(at_100)));
        // The paper has 198 pages less, inner nodes included.
        assert!((split_50 - at_50.leaves).abs_diff(195) <= 3, "{sequential:?}: {split_50} {at_50:?}");
        assert!(split_100.abs_diff(at_100.leaves) <= 8, "{sequential:?}: {split_100} {at_100:?}");
        if sequential == Sequential::Strict {
            assert_eq!(split_100, at_100.leaves, "no keys in sequence, no difference");
        }
    }
}

/// Formula (7): n / m writes, no reads, for keys in sequence.
#[test]
fn a_sequence_costs_a_write_a_leaf() {
    for placement in [CbPlacement::InPlace, CbPlacement::OutOfPlace] {
        let options = CbTreeOptions { placement, ..published() };
        let mut tree = CbTree::create(simulated(), &options).unwrap();
        let before = tree.stats();
        (0..50_000).for_each(|key| tree.insert(key, key).unwrap());
        let (after, details) = (tree.stats(), tree.details());
        assert_eq!(after.pages_read - before.pages_read, 0);
        // 390 full leaves; five halves of nodes above them; the root once before it grew.
        let written = after.pages_written - before.pages_written;
        assert_eq!(written, 390 + 5 + 1);
        assert!((written as f64 - 50_000.0 / 128.0).abs() < 0.03 * 50_000.0 / 128.0);
        assert_eq!((details.unsplit, details.growths, details.switches, after.splits), (390, 2, 0, 5));
    }
}

/// Formula (8): with a log page, n writes of it, and the memory nodes whenever it is full.
#[test]
fn a_sequence_with_a_log_costs_a_write_more_each() {
    let (n, m) = (50_000, 128);
    let options =
        CbTreeOptions { persistence: CbPersistence::LogPage, log_max: Some(m as usize), ..published() };
    let mut tree = CbTree::create(simulated(), &options).unwrap();
    let (before, log) = (tree.stats(), tree.details().log_pages);
    (0..n).for_each(|key| tree.insert(key, key).unwrap());
    let (after, details) = (tree.stats(), tree.details());
    assert_eq!(after.pages_read - before.pages_read, 0);
    assert_eq!(details.log_pages - log, n);
    assert_eq!(details.commits - 1, (n - 1) / m);
    let nodes = after.pages_written - before.pages_written - n;
    let height = u64::from(after.height);
    // The formula has all H levels change each time; the root seldom does.
    assert!((n / m..=n / m * height).contains(&nodes), "{nodes}");
    let formula = (n / m * height + n) as f64;
    assert!((nodes + n) as f64 > 0.97 * formula, "{nodes}");
}

/// Formulas (1), (2) and (4): searches and single updates.
#[test]
fn a_search_spares_the_root_and_an_update_costs_no_more_than_the_formula() {
    let mut rng = StdRng::seed_from_u64(9);
    let mut tree = grown(&published(), (0..40_000).map(|_| rng.random()));
    let height = u64::from(tree.stats().height);
    assert_eq!(height, 3);
    for _ in 0..2000 {
        let key = rng.random();
        let before = tree.stats();
        tree.search(key).unwrap();
        assert!(tree.stats().pages_read - before.pages_read < height);
        let before = tree.stats();
        tree.insert(key, 1).unwrap();
        let after = tree.stats();
        if after.splits == before.splits {
            assert!(after.pages_read - before.pages_read < height);
            assert!(after.pages_written - before.pages_written < height);
        }
    }
    let mut plain = BTree::create(
        simulated(),
        &BTreeOptions { frames: 0, keys_max: Some(128), ..BTreeOptions::default() },
    )
    .unwrap();
    (0..40_000).for_each(|_| plain.insert(rng.random(), 1).unwrap());
    let before = plain.stats();
    for _ in 0..1000 {
        plain.search(rng.random()).unwrap();
    }
    assert_eq!(plain.stats().pages_read - before.pages_read, 1000 * u64::from(before.height));
}

/// Searches may bring nodes into memory: a walk over neighbouring keys then reads each leaf once.
#[test]
fn searches_load_if_they_are_asked_to() {
    let reads = |search_loads| {
        let mut tree = grown(&CbTreeOptions { search_loads, ..published() }, 0..20_000);
        tree.flush().unwrap();
        let before = tree.stats().pages_read;
        for key in 0..20_000 {
            assert_eq!(tree.search(key).unwrap(), Some(key));
        }
        let read = tree.stats().pages_read - before;
        tree.check().unwrap();
        read
    };
    let leaves = 20_000_u64.div_ceil(128);
    assert!(reads(false) > 19_000 && reads(true) <= leaves + 60, "{} {}", reads(false), reads(true));
}

/// Deletions from one leaf cost nothing until the leaf leaves memory, and then one merge.
#[test]
fn deletions_are_mended_once() {
    let mut rng = StdRng::seed_from_u64(2);
    let options = CbTreeOptions { page_len: 512, keys_max: Some(8), ..tiny() };
    let mut tree = grown(&options, (0..400).map(|_| rng.random_range(0..1000)));
    let keys: Vec<u64> = tree.range(0..500).unwrap().into_iter().map(|record| record.0).collect();
    let mut mended = 0;
    for group in keys[..keys.len() - 10].chunks(4) {
        tree.delete(group[0]).unwrap();
        let before = tree.stats();
        let switches = tree.details().switches;
        for key in &group[1..] {
            tree.delete(*key).unwrap();
        }
        let after = tree.stats();
        if tree.details().switches == switches {
            assert_eq!(
                (after.pages_written, after.pages_read, after.merges),
                (before.pages_written, before.pages_read, before.merges)
            );
        }
        tree.check().unwrap();
        // A leaf far away: the other leaves memory.
        tree.insert(999, 0).unwrap();
        tree.check().unwrap();
        let now = tree.stats();
        mended += now.merges + now.redistributions - after.merges - after.redistributions;
    }
    let details = tree.details();
    assert!(mended > 10 && details.deferred > mended, "{mended} {details:?}");
}

/// Every step is checked: deletions that stay in one place until hardly a sibling is left, searches, commits and openings
/// while memory nodes are less than half full.
#[test]
fn small_steps_are_whole() {
    for (seed, options) in (40..).zip(options()) {
        let volume = simulated();
        let mut tree = CbTree::create(Arc::clone(&volume), &options).unwrap();
        let mut model = BTreeMap::new();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut centre = 0;
        for step in 0..8000 {
            let story = format!("seed {seed}, step {step}");
            if step % 80 == 0 {
                centre = rng.random_range(0..286);
            }
            match rng.random_range(0..100) {
                // As much is inserted anywhere as is deleted in one place.
                0..90 if step % 80 < 30 => {
                    let key = rng.random_range(0..300);
                    tree.insert(key, step).expect(&story);
                    model.insert(key, step);
                }
                0..90 => {
                    let key = centre + rng.random_range(0..14);
                    tree.delete(key).expect(&story);
                    model.remove(&key);
                }
                90..96 => {
                    let key = rng.random_range(0..300);
                    assert_eq!(tree.search(key).expect(&story), model.get(&key).copied(), "{story}");
                }
                96..98 => tree.flush().expect(&story),
                _ => {
                    tree.flush().expect(&story);
                    drop(tree);
                    tree = CbTree::recover(Arc::clone(&volume), &options).expect(&story);
                }
            }
            let checked = tree.check().unwrap_or_else(|error| panic!("{story}: {error}"));
            assert_eq!(checked.records, model.len() as u64, "{story}");
        }
        assert!(tree.range(0..u64::MAX).unwrap().into_iter().eq(model));
    }
}

/// Deletions in order empty one leaf after the other: each is taken out of its parent, and its siblings are not read.
#[test]
fn empty_leaves_are_unlinked() {
    let options = CbTreeOptions { page_len: 512, keys_max: Some(8), ..tiny() };
    let mut tree = grown(&options, 0..2000);
    let leaves = tree.check().unwrap().leaves;
    let before = tree.stats();
    (0..1999).for_each(|key| tree.delete(key).unwrap());
    assert_eq!(tree.range(0..u64::MAX).unwrap(), [(1999, 1999)]);
    let (after, details) = (tree.stats(), tree.details());
    tree.check().unwrap();
    assert!(details.unlinked >= leaves - 2, "{details:?}");
    assert!(after.pages_read - before.pages_read < leaves * 3 / 2 + 20, "{} {leaves}", after.pages_read);
    tree.delete(1999).unwrap();
    assert_eq!(tree.check().unwrap().records, 0);
    tree.insert(1, 1).unwrap();
    assert_eq!(tree.check().unwrap().height, 1);
}

#[test]
fn damage_and_foreign_files_are_told() {
    let options = CbTreeOptions { persistence: CbPersistence::LogPage, page_len: 512, ..tiny() };
    let volume = Simulated::new(1).with_alignment(128);
    let mut tree = CbTree::create(Arc::new(volume.clone()), &options).unwrap();
    (0..300).for_each(|key| tree.insert(key * 7 % 300, key).unwrap());
    tree.flush().unwrap();
    let all = tree.range(0..u64::MAX).unwrap();
    let pages = tree.stats().space / 512 - 4;
    drop(tree);
    let damaged = |places: &[(&str, u64)]| {
        let volume = volume.crash();
        for (name, offset) in places {
            let file = volume.open(name, Access { write: true, ..Access::default() }).unwrap();
            volume.write(&[Write { file, offset: *offset, data: b"?" }]).unwrap();
        }
        let tree = CbTree::recover(Arc::new(volume), &options)?;
        tree.check()?;
        tree.range(0..u64::MAX)
    };
    let corrupt = |found: trees::Result<_>| matches!(found, Err(Error::Corrupt { .. }));
    let mut noticed = 0;
    for page in 2..pages {
        match damaged(&[("cbtree", page * 512 + 50)]) {
            Ok(found) => assert_eq!(found, all, "page {page} was free"),
            Err(Error::Corrupt { .. }) => noticed += 1,
            Err(error) => panic!("page {page}: {error}"),
        }
    }
    assert!(noticed > 50, "{noticed}");
    assert!(corrupt(damaged(&[("cbtree", 0), ("cbtree", 512)])));
    assert!(corrupt(damaged(&[("cbtree-log", 0), ("cbtree-log", 512)])));
    assert_eq!(damaged(&[("cbtree-log", 0)]).unwrap(), all, "the other is whole");
    let recover = |volume: &Simulated, options: &CbTreeOptions| {
        CbTree::recover(Arc::new(volume.clone()), options).and_then(|tree| tree.range(0..1))
    };
    for page_len in [256, 1024, 4096] {
        let found = recover(&volume.crash(), &CbTreeOptions { page_len, ..options.clone() });
        assert!(corrupt(found), "{page_len}");
    }
    let in_place = CbTreeOptions { placement: CbPlacement::InPlace, ..options.clone() };
    assert!(recover(&volume.crash(), &in_place).is_err());
    let empty = Simulated::new(3).with_alignment(128);
    assert!(matches!(recover(&empty, &options), Err(Error::Device(_))));
    assert!(matches!(CbTree::create(Arc::new(volume.crash()), &options).err(), Some(Error::Device(_))));
    for page_len in [100, 64, 2 << 20] {
        for placement in [CbPlacement::InPlace, CbPlacement::OutOfPlace] {
            let options = CbTreeOptions { page_len, placement, ..options.clone() };
            assert!(
                matches!(CbTree::create(simulated(), &options).err(), Some(Error::Invalid(_))),
                "{page_len}"
            );
        }
    }
}

/// Operations that the log page had were passed over in silence.
#[test]
fn the_log_page_is_there_as_it_was_created() {
    for persistence in [CbPersistence::RootGrowth, CbPersistence::LogPage] {
        let options = |persistence| CbTreeOptions { persistence, ..tiny() };
        let volume = simulated();
        let mut tree = CbTree::create(volume.clone(), &options(persistence)).expect("created");
        (0..3).for_each(|key| tree.insert(key, key).expect("inserted"));
        if persistence == CbPersistence::RootGrowth {
            tree.flush().expect("flushed");
        }
        drop(tree);
        let other = match persistence {
            CbPersistence::RootGrowth => CbPersistence::LogPage,
            CbPersistence::LogPage => CbPersistence::RootGrowth,
        };
        assert!(matches!(CbTree::recover(volume.clone(), &options(other)), Err(Error::Invalid(_))));
        let tree = CbTree::recover(volume, &options(persistence)).expect("recovered");
        assert_eq!(tree.range(0..9).expect("scanned"), [(0, 0), (1, 1), (2, 2)]);
    }
}
