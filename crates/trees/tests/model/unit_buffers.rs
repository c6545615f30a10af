//! IBSF and the lazy-update tree under the common suite, and their costs by count.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use trees::{
    Counters, Error, Ibsf, IbsfOptions, Index, LuTree, LuTreeOptions, UnitBufferDetails, VictimPolicy,
};

const POLICIES: [VictimPolicy; 3] = [VictimPolicy::Lru, VictimPolicy::Biggest, VictimPolicy::Cost];

fn ibsf_options() -> [IbsfOptions; 4] {
    let tiny = IbsfOptions {
        page_len: 256,
        units: 3,
        frames: 2,
        keys_max: Some(4),
        pio_max: 4,
        ..IbsfOptions::default()
    };
    [
        tiny.clone(),
        IbsfOptions { units: 40, frames: 0, keys_max: Some(5), pio_max: 1, descends: true, ..tiny.clone() },
        IbsfOptions { page_len: 512, units: 300, frames: 40, keys_max: Some(9), ..tiny.clone() },
        IbsfOptions { frames: 20, pio_max: 64, ..IbsfOptions::default() },
    ]
}

fn lu_options() -> [LuTreeOptions; 4] {
    let mut policies = POLICIES.into_iter().cycle();
    ibsf_options().map(|ibsf| LuTreeOptions {
        page_len: ibsf.page_len,
        units: ibsf.units,
        frames: ibsf.frames,
        keys_max: ibsf.keys_max,
        pio_max: ibsf.pio_max,
        descends: ibsf.descends,
        policy: policies.next().expect("endless"),
    })
}

fn model<T: Index<Ground = Arc<dyn Volume>>>(options: impl IntoIterator<Item = T::Options>) {
    let mut total = Counters::default();
    for (seed, options) in (0..).zip(options) {
        let count = operations() * 6 / 25;
        total = sum(total, run::<T>(&simulated(), &options, seed, count, 400 << (4 * (seed % 3)), true));
    }
    println!("{total:?}");
    for rare in [total.splits, total.merges, total.redistributions, total.hits, total.flushes] {
        assert!(rare > 1000, "{total:?}");
    }
    assert!(total.height >= 5, "{total:?}");
}

#[test]
fn ibsf_does_what_a_btreemap_does() {
    model::<Ibsf>(ibsf_options());
}

#[test]
fn lu_tree_does_what_a_btreemap_does() {
    model::<LuTree>(lu_options());
}

#[test]
fn they_do_so_on_a_disk() {
    for (seed, (ibsf, lu)) in (10..).zip(ibsf_options().into_iter().zip(lu_options())) {
        let (_dir, volume) = disk();
        let options = IbsfOptions { page_len: 4096, ..ibsf };
        run::<Ibsf>(&volume, &options, seed, operations() / 400, 3000, true);
        let options = LuTreeOptions { page_len: 4096, ..lu };
        run::<LuTree>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    ibsf_options().iter().for_each(bulk_loads::<Ibsf>);
    lu_options().iter().for_each(bulk_loads::<LuTree>);
}

/// Updates `count` keys of a tree that was loaded with 10,000, so that no node changes its size; half of them one of a few,
/// if `skewed`. What that took.
fn updates<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    skewed: bool,
    count: u64,
    details: impl Fn(&T) -> UnitBufferDetails,
) -> Cost {
    let records = &mut (0..10_000).map(|key| (key, key));
    let mut tree = T::bulk_load(simulated(), options, 0.7, records).expect("loaded");
    let before = tree.stats();
    let mut rng = StdRng::seed_from_u64(5);
    for index in 0..count {
        let keys = if skewed && index % 2 == 0 { 300 } else { 10_000 };
        tree.update(rng.random_range(0..keys), count + index).expect("updated");
    }
    let after = tree.stats();
    Cost {
        read: after.pages_read - before.pages_read,
        written: after.pages_written - before.pages_written,
        height: u64::from(after.height),
        details: details(&tree),
    }
}

#[derive(Debug)]
struct Cost {
    read: u64,
    written: u64,
    height: u64,
    details: UnitBufferDetails,
}

impl Cost {
    fn units_per_victim(&self) -> f64 {
        self.details.units as f64 / self.details.victims as f64
    }
}

#[test]
fn a_victim_costs_h_reads_and_one_write() {
    for skewed in [false, true] {
        let options = IbsfOptions { frames: 0, units: 500, ..ibsf_options()[2].clone() };
        let fifo = updates::<Ibsf>(&options, skewed, 20_000, Ibsf::details);
        println!(
            "skewed: {skewed}; first in first out: {} units a victim, {fifo:?}",
            fifo.units_per_victim()
        );
        assert!(fifo.height >= 4 && fifo.details.redundant > 500, "{fifo:?}");
        assert_eq!(fifo.read, fifo.height * fifo.details.victims, "{fifo:?}");
        assert_eq!(fifo.written, fifo.details.victims, "{fifo:?}");
        for policy in POLICIES {
            let options = LuTreeOptions { policy, frames: 0, units: 500, ..lu_options()[2].clone() };
            let lazy = updates::<LuTree>(&options, skewed, 20_000, LuTree::details);
            println!("{policy:?}: {} units a victim, {lazy:?}", lazy.units_per_victim());
            let down = (lazy.height - 1) * lazy.details.groups_opened;
            assert_eq!(lazy.read, lazy.height * lazy.details.victims + down, "{policy:?}");
            assert_eq!(lazy.written, lazy.details.victims, "{policy:?}");
            // The largest group has more than the oldest only as long as no leaf is hot: single units of cold leaves are
            // never the largest, so they fill the buffer, and hot leaves are written again and again.
            if policy == VictimPolicy::Biggest {
                assert_eq!(lazy.units_per_victim() > fifo.units_per_victim(), !skewed);
            }
        }
    }
}

#[test]
fn what_waits_in_memory_is_lost_and_the_rest_is_not() {
    let volume = Simulated::new(1).with_alignment(128);
    let options = ibsf_options()[1].clone();
    let mut tree = Ibsf::create(Arc::new(volume.clone()), &options).unwrap();
    (0..30).for_each(|key| tree.insert(key, key).expect("inserted"));
    tree.flush().unwrap();
    (30..60).for_each(|key| tree.insert(key, key).expect("inserted"));
    assert_eq!(tree.check().unwrap().records, 60);
    let again = Ibsf::recover(Arc::new(volume.crash()), &options).unwrap();
    assert_eq!(again.check().unwrap().records, 30);
}

#[test]
fn foreign_and_damaged_files_are_refused() {
    let volume = Simulated::new(1).with_alignment(128);
    let options = lu_options()[1].clone();
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let records = &mut (0..500).map(|key| (key, key));
    drop(LuTree::bulk_load(shared, &options, 1.0, records).unwrap());
    let recover = |volume: Simulated, options: &LuTreeOptions| {
        LuTree::recover(Arc::new(volume), options)?.check().map(|checked| checked.records)
    };
    assert_eq!(recover(volume.crash(), &options).unwrap(), 500);
    assert!(recover(volume.crash(), &LuTreeOptions { page_len: 512, ..options.clone() }).is_err());
    assert!(recover(volume.crash(), &LuTreeOptions { units: 0, ..options.clone() }).is_err());
    for page in 2..volume.read_file("lutree").unwrap().len() / 256 {
        let image = volume.crash();
        image.flip_bit("lutree", page as u64 * 256 + 77, 3).unwrap();
        assert!(matches!(recover(image, &options), Err(Error::Corrupt { .. })), "page {page}");
    }
}

/// A buffer that does not ask for leaves reads nothing until it is full; one that descends reads a node a level for each update.
#[test]
fn an_update_that_descends_reads_its_way_down() {
    let reads = |descends| {
        let options = IbsfOptions { units: 1000, keys_max: Some(4), descends, ..ibsf_options()[0].clone() };
        let records = &mut (0..200).map(|key| (2 * key, key));
        let options = IbsfOptions { frames: 0, ..options };
        let mut tree = Ibsf::bulk_load(simulated(), &options, 0.7, records).expect("loaded");
        let before = tree.stats();
        (0..50).for_each(|key| tree.insert(2 * key + 1, key).expect("done"));
        let after = tree.stats();
        (after.pages_read - before.pages_read, u64::from(after.height))
    };
    assert_eq!(reads(false).0, 0);
    let (read, height) = reads(true);
    assert!(height > 2);
    assert_eq!(read, 50 * height);
}
