//! The AS B-tree under the common suite, and what is peculiar to it.

use crate::suite::{bulk_loads, disk, operations, run, run_watched, simulated, sum};
use psync::{Access, Simulated, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use trees::{AsRecovery, AsStats, AsTree, AsTreeOptions, Error, Index};

/// Nodes of four keys, sub-files of a few batches.
fn tiny() -> AsTreeOptions {
    AsTreeOptions {
        node_len: 256,
        keys_max: Some(4),
        slots: 5,
        cached: 0,
        sub_file_len: 256 * 32,
        threshold: 0.3,
        checkpoint_every: 7,
        recovery: AsRecovery::Checkpoint,
        pio_max: 4,
    }
}

fn options() -> [AsTreeOptions; 5] {
    [
        tiny(),
        AsTreeOptions { slots: 1, cached: 8, checkpoint_every: 40, ..tiny() },
        AsTreeOptions { slots: 32, checkpoint_every: 0, recovery: AsRecovery::ReadAll, ..tiny() },
        AsTreeOptions {
            node_len: 512,
            keys_max: Some(9),
            slots: 8,
            cached: 30,
            sub_file_len: 512 * 100,
            threshold: 0.5,
            checkpoint_every: 3,
            pio_max: 1,
            ..tiny()
        },
        AsTreeOptions { slots: 3, sub_file_len: 256 * 3, checkpoint_every: 2, threshold: 0.8, ..tiny() },
    ]
}

fn add(total: &mut AsStats, one: &AsStats) {
    total.read_hits += one.read_hits;
    total.cache_hits += one.cache_hits;
    total.write_hits += one.write_hits;
    total.batches += one.batches;
    total.copies += one.copies;
    total.recycled += one.recycled;
    total.checkpoints += one.checkpoints;
    total.freed += one.freed;
}

#[test]
fn does_what_a_btreemap_does() {
    let (mut total, mut details) = (Default::default(), AsStats::default());
    for (seed, options) in (0..).zip(options()) {
        let count = operations() / 5;
        let keys = [400, 3000, 30_000, 3000, 300][seed as usize];
        let counters = run_watched::<AsTree>(&simulated(), &options, seed, count, keys, true, &mut |tree| {
            let one = tree.details();
            let height = u64::from(tree.stats().height);
            assert!(one.slots_max <= options.slots as u64 + 2 * (height + 3), "{one:?}");
            add(&mut details, &one);
        });
        total = sum(total, counters);
    }
    println!("{total:?} {details:?}");
    for rare in [total.splits, total.merges, total.redistributions, details.freed, details.recycled] {
        assert!(rare > 1000, "{total:?} {details:?}");
    }
    for rare in
        [details.copies, details.checkpoints, details.write_hits, details.read_hits, details.cache_hits]
    {
        assert!(rare > 1000, "{details:?}");
    }
    assert!(total.height >= 5, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = AsTreeOptions { node_len: 4096, sub_file_len: options.sub_file_len * 16, ..options };
        run::<AsTree>(&volume, &options, seed, operations() / 500, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<AsTree>);
}

/// A tree of `count` random inserts, and its volume.
fn grown(options: &AsTreeOptions, count: u64) -> (Simulated, AsTree) {
    let volume = Simulated::new(1).with_alignment(128);
    let mut tree = AsTree::create(Arc::new(volume.clone()), options).expect("done");
    let mut rng = StdRng::seed_from_u64(7);
    for index in 0..count {
        tree.insert(rng.random_range(0..2 * count), index).expect("done");
    }
    (volume, tree)
}

/// Experiments E19 and E26 in small: the newest sub-files hold most of the valid nodes, recycling keeps the space in
/// bounds, and without it the files grow with every batch.
#[test]
fn young_sub_files_are_valid_and_old_ones_recycled() {
    let options = AsTreeOptions {
        keys_max: Some(8),
        threshold: 0.1,
        sub_file_len: 256 * 128,
        checkpoint_every: 0,
        ..tiny()
    };
    let (_, tree) = grown(&options, 8000);
    let (_, unmanaged) = grown(&AsTreeOptions { threshold: 0.0, ..options.clone() }, 8000);
    let (stats, details) = (tree.stats(), tree.details());
    let checked = tree.check().unwrap();
    assert_eq!(checked, unmanaged.check().unwrap());
    let live = (checked.leaves + checked.inner) * 256;
    assert!(stats.space < live * 5 + 4 * 256 * 128, "{} bytes for {live}", stats.space);
    assert!(unmanaged.stats().space > 3 * stats.space, "{} {}", unmanaged.stats().space, stats.space);
    assert_eq!(unmanaged.details().copies + unmanaged.details().recycled, 0);
    let share = |number: usize| {
        let file = details.sub_files[number];
        f64::from(file.valid) / f64::from(file.nodes)
    };
    let last = details.sub_files.len() - 1;
    assert!(last > 10 && share(last) > 0.8 && share(last) > 2.0 * share(last / 2), "{details:?}");
    assert!(share(last / 2) > share(0), "{details:?}");
    assert!(
        details.sub_files[..last].iter().all(|file| f64::from(file.valid) >= 0.1 * f64::from(file.nodes))
    );
    // A victim has less than T valid nodes, so copies are less than T / (1 - T) of what is written otherwise.
    let others = stats.pages_written - details.copies;
    assert!(details.copies > 0 && details.copies as f64 <= 0.12 * others as f64, "{details:?}");
}

/// Experiment E21 in small: hits in the write buffer are about what its share of the leaves is, so the gain is not theirs;
/// and a batch is one request to the device.
#[test]
fn hits_are_few_and_a_batch_is_one_write() {
    let options = AsTreeOptions {
        node_len: 512,
        keys_max: Some(16),
        slots: 16,
        sub_file_len: 1 << 20,
        threshold: 0.05,
        ..tiny()
    };
    let (volume, tree) = grown(&options, 20_000);
    let (details, stats) = (tree.details(), tree.stats());
    let leaves = tree.check().unwrap().leaves as f64;
    let ratio = details.write_hits as f64 / details.writes as f64;
    // On average the buffer is half full; while the tree was small it held more of it.
    let expected = options.slots as f64 / 2.0 / leaves;
    assert!((0.5 * expected..8.0 * expected).contains(&ratio), "{ratio} for {expected}");
    use psync::Device;
    let counters = volume.counters();
    // Beside the batches: the descriptor, and a checkpoint each.
    assert_eq!(counters.writes, details.batches + 1 + details.checkpoints);
    assert!(stats.pages_written >= (details.batches - 1) * 16);
}

/// Experiment E28 in small: from a checkpoint a tree is opened with a fraction of the reads.
#[test]
fn a_checkpoint_spares_most_of_the_reads() {
    let options = AsTreeOptions { threshold: 0.0, checkpoint_every: 50, ..tiny() };
    let (volume, mut tree) = grown(&options, 5000);
    tree.flush().unwrap();
    let all = tree.range(0..u64::MAX).unwrap();
    let pages = tree.stats().pages_written;
    drop(tree);
    let open = |recovery| {
        let options = AsTreeOptions { recovery, ..options.clone() };
        let tree = AsTree::recover(Arc::new(volume.crash()), &options).unwrap();
        tree.check().unwrap();
        assert_eq!(tree.range(0..u64::MAX).unwrap(), all);
        tree.details().recovery_reads
    };
    assert_eq!(open(AsRecovery::ReadAll), pages);
    assert!(open(AsRecovery::Checkpoint) <= 50 * 16);
    // Whatever is in the way of a checkpoint, the sub-files have everything.
    let broken = volume.crash();
    for entry in broken.list().unwrap().iter().filter(|entry| entry.name.contains("map")) {
        let file = broken.open(&entry.name, Access { write: true, ..Access::default() }).unwrap();
        use psync::Device;
        broken.write(&[Write { file, offset: 100, data: b"not an entry" }]).unwrap();
    }
    let tree = AsTree::recover(Arc::new(broken), &options).unwrap();
    assert_eq!((tree.details().recovery_reads, tree.range(0..u64::MAX).unwrap()), (pages, all));
}

/// A tree may be opened with and without checkpoints in turn, and with other sizes of buffers and sub-files.
#[test]
fn options_may_change() {
    let mut rng = StdRng::seed_from_u64(11);
    let mut model = std::collections::BTreeMap::new();
    let (volume, mut tree) = grown(&tiny(), 0);
    for round in 0..200 {
        for step in 0..rng.random_range(0..300) {
            let key = rng.random_range(0..600);
            tree.insert(key, step).unwrap();
            model.insert(key, step);
        }
        tree.flush().unwrap();
        drop(tree);
        let options = AsTreeOptions {
            slots: rng.random_range(1..20),
            cached: rng.random_range(0..30),
            sub_file_len: 256 * rng.random_range(20..60),
            checkpoint_every: rng.random_range(0..5),
            threshold: 0.4,
            recovery: [AsRecovery::Checkpoint, AsRecovery::Checkpoint, AsRecovery::ReadAll][round % 3],
            ..tiny()
        };
        tree = AsTree::recover(Arc::new(volume.clone()), &options).unwrap();
        assert_eq!(tree.check().unwrap().records, model.len() as u64);
        assert!(tree.range(0..u64::MAX).unwrap().into_iter().eq(model.clone()), "round {round}");
    }
}

#[test]
fn damage_and_foreign_files_are_told() {
    use psync::Device;
    let options = AsTreeOptions { threshold: 0.0, checkpoint_every: 0, ..tiny() };
    let (volume, mut tree) = grown(&options, 2000);
    tree.flush().unwrap();
    let all = tree.range(0..u64::MAX).unwrap();
    let files = tree.details().sub_files;
    drop(tree);
    let damaged = |name: &str, offset: u64| {
        let volume = volume.crash();
        let file = volume.open(name, Access { write: true, ..Access::default() }).unwrap();
        volume.write(&[Write { file, offset, data: b"?" }]).unwrap();
        AsTree::recover(Arc::new(volume), &options).err()
    };
    let corrupt = |error: Option<Error>| matches!(error, Some(Error::Corrupt { .. }));
    let name = |number: u32| format!("asbtree-{number:010}");
    assert!(corrupt(damaged("asbtree", 3)) && corrupt(damaged("asbtree", 9)));
    for number in [1, files.len() as u32 / 2, files.len() as u32 - 1] {
        for offset in [0, 100, 256 * 13 + 200] {
            assert!(corrupt(damaged(&name(number), offset)), "file {number}, byte {offset}");
        }
    }
    // A file in the middle is gone.
    let hole = volume.crash();
    let needed = files[..files.len() - 5].iter().rev().find(|file| file.valid > 0).expect("one in use");
    hole.remove(&name(needed.number)).unwrap();
    assert!(corrupt(AsTree::recover(Arc::new(hole), &options).err()), "nodes are missing");
    // Other options than it was made with, other files, none at all: nothing is harmed.
    let other = AsTreeOptions { node_len: 512, ..options.clone() };
    assert!(corrupt(AsTree::recover(Arc::new(volume.crash()), &other).err()));
    let empty = Simulated::new(3).with_alignment(128);
    assert!(matches!(AsTree::recover(Arc::new(empty), &options).err(), Some(Error::Device(_))));
    assert!(matches!(AsTree::create(Arc::new(volume.crash()), &options).err(), Some(Error::Device(_))));
    for name in ["asbtree-12", "asbtree-map-", "other"] {
        let file = volume.open(name, Access { write: true, create: true, ..Access::default() }).unwrap();
        volume.write(&[Write { file, offset: 0, data: b"foreign" }]).unwrap();
    }
    let tree = AsTree::recover(Arc::new(volume.crash()), &options).unwrap();
    assert_eq!(tree.range(0..u64::MAX).unwrap(), all);
    for wrong in [
        AsTreeOptions { node_len: 100, ..options.clone() },
        AsTreeOptions { slots: 0, ..options.clone() },
        AsTreeOptions { threshold: 1.0, ..options.clone() },
        AsTreeOptions { sub_file_len: 256, ..options.clone() },
    ] {
        assert!(matches!(AsTree::create(simulated(), &wrong).err(), Some(Error::Invalid(_))), "{wrong:?}");
    }
}

/// Node by node, a batch takes as many requests as it has nodes; what is written is the same, and is found again.
#[test]
fn batches_written_singly_are_the_same_with_more_requests() {
    let of = |singly| {
        let volume = simulated();
        let options =
            AsTreeOptions { node_len: 256, keys_max: Some(4), slots: 8, ..AsTreeOptions::default() };
        let mut tree = AsTree::create(Arc::clone(&volume), &options).expect("created");
        if singly {
            tree.write_singly();
        }
        let before = volume.counters();
        (0..500u64).for_each(|key| tree.insert(key * 7919 % 1000, key).expect("done"));
        tree.flush().expect("flushed");
        let did = volume.counters() - before;
        let records = tree.range(0..u64::MAX).expect("done");
        drop(tree);
        let again = AsTree::recover(volume, &options).expect("recovered");
        assert_eq!(again.range(0..u64::MAX).expect("done"), records);
        (records, did.bytes_written, did.writes)
    };
    let (whole, singly) = (of(false), of(true));
    assert_eq!((&whole.0, whole.1), (&singly.0, singly.1));
    assert!(singly.2 > 4 * whole.2, "{} and {}", singly.2, whole.2);
}
