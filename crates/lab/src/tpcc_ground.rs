//! What the experiments with the synthetic TPC-C index trace share: its size by scale, how the memory is divided among its eight
//! indexes, and how their trees get their records.
//!
//! Invariant: all trees of one comparison have the same memory together.

use crate::experiment::{Device, Parameter, Scale};
use crate::failure::{Failure, Result};
use crate::laboratory::Laboratory;
use crate::named_volume::NamedVolume;
use crate::quantity::Clock;
use crate::trace::account::Account;
use crate::trace::replay::{Forest, Plant, Records, divide};
use crate::trace::tpcc::{INDEXES, TARGET, Tpcc, TpccOptions};
use crate::tree_ground::{FILL, TreeGround};
use psync::Volume;
use std::sync::Arc;
use trees::{BTreeOptions, LogMode, PioOptions};

/// Pages of memory and of operation queue of the published experiment, for 100 warehouses.
const MEMORY: usize = 1024;
const QUEUE: usize = 20;

/// How the published 20 pages of operation queue are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queues {
    /// For all indexes together.
    ForAll,
    /// For each.
    ForEach,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TpccSize {
    pub warehouses: u32,
    pub operations: u64,
}

impl TpccSize {
    /// A tenth of the published size at scale std, and the whole in full. A disk at scale ci, where each operation takes its
    /// time, gets fewer operations.
    pub fn of(scale: Scale, device: Device) -> Self {
        let (warehouses, operations) = match scale {
            Scale::Trial => (1, 2000),
            Scale::Ci if device == Device::Disk => (10, 20_000),
            Scale::Ci => (10, 60_000),
            Scale::Std => (10, 1_000_000),
            Scale::Full => (100, 10_000_000),
        };
        Self { warehouses, operations }
    }

    /// As [`Self::of`], but with indexes of the published size from scale std on. With a tenth of them a page of queue for each
    /// of the eight indexes, which is the least that a tree takes, is four times the published share of the memory.
    pub fn with_published_queue(scale: Scale, device: Device) -> Self {
        let warehouses = if scale >= Scale::Std { 100 } else { Self::of(scale, device).warehouses };
        Self { warehouses, ..Self::of(scale, device) }
    }

    /// Pages of memory for all indexes together: as much for a warehouse as published, and two for each index at least.
    pub fn memory(self) -> usize {
        (MEMORY * self.warehouses as usize / 100).max(2 * INDEXES.len())
    }

    pub fn tpcc(self, seed: u64) -> Result<Tpcc> {
        let options = TpccOptions {
            warehouses: self.warehouses,
            operations: self.operations,
            seed,
            ..TpccOptions::default()
        };
        Tpcc::new(options).map_err(Failure::CannotRun)
    }

    pub fn parameters(self) -> Vec<Parameter> {
        let bytes = |tpcc: &Tpcc| (0..8).map(|tree| tpcc.records(tree)).sum::<u64>() as f64 * 16.0 / FILL;
        // Sizes do not depend on the operations.
        let index = match (Self { operations: 0, ..self }).tpcc(0) {
            Ok(tpcc) => {
                let sizes: Vec<String> = (0..8).map(|tree| tpcc.records(tree).to_string()).collect();
                format!("{} records, about {:.0} MB", sizes.join(" + "), bytes(&tpcc) / 1e6)
            }
            Err(_) => "?".to_owned(),
        };
        vec![
            Parameter::new(
                "trace",
                "TPC-C in PostgreSQL, 100 warehouses, 100 clients, 10^7 operations",
                format!(
                    "synthetic TPC-C index trace, {} warehouses, 100 clients, {} operations",
                    self.warehouses, self.operations
                ),
            ),
            Parameter::new("indexes", "8, about 1 GB", index),
            Parameter::new(
                "memory",
                "4 MB; for all indexes as one pool or divided is not told",
                format!("{} pages of 4 KiB, divided by size for good", self.memory()),
            ),
            Parameter::new("page", "4 KB, L = 1", "4 KiB, L = 1"),
            Parameter::new("PioMax, speriod, bcnt", "64, 5000, 5000", "64, 5000, 5000"),
        ]
    }
}

fn sizes(tpcc: &Tpcc) -> Vec<u64> {
    (0..INDEXES.len() as u8).map(|tree| tpcc.records(tree)).collect()
}

/// The options of the PIO B-trees, by index.
pub(crate) fn pio_options(size: TpccSize, tpcc: &Tpcc, queues: Queues) -> Vec<PioOptions> {
    let (memory, sizes) = (size.memory(), sizes(tpcc));
    let published = (QUEUE * memory).div_ceil(MEMORY);
    let queues = match queues {
        Queues::ForAll => divide(published.max(sizes.len()), &sizes),
        Queues::ForEach => vec![published; sizes.len()],
    };
    let left = memory.saturating_sub(queues.iter().sum()).max(sizes.len());
    let frames = divide(left, &sizes);
    let options = |(queue_pages, frames)| PioOptions {
        segments: 1,
        queue_pages,
        frames,
        log: LogMode::Off,
        ..PioOptions::default()
    };
    queues.into_iter().zip(frames).map(options).collect()
}

/// Frames of the trees that have no queue, by index.
pub(crate) fn frames(size: TpccSize, tpcc: &Tpcc) -> Vec<usize> {
    divide(size.memory(), &sizes(tpcc))
}

/// The options of the B+-trees, by index.
pub(crate) fn btree_options(size: TpccSize, tpcc: &Tpcc) -> Vec<BTreeOptions> {
    frames(size, tpcc).into_iter().map(|frames| BTreeOptions { frames, ..BTreeOptions::default() }).collect()
}

/// Plants the eight trees with their records.
pub(crate) fn plant_all<C: Clock>(ground: &TreeGround<C>, tpcc: &Tpcc, plant: Plant<'_>) -> Result<Forest> {
    let mut forest = Forest::bare();
    for tree in 0..INDEXES.len() as u8 {
        forest.plant(ground, plant, tree, &mut tpcc.load(tree))?;
    }
    Ok(forest)
}

/// Writes into the record what the trace of a run is.
pub(crate) fn publish(laboratory: &Laboratory, tpcc: &Tpcc, run: u32) {
    let mut account = Account::default();
    tpcc.steps().for_each(|step| account.add(step));
    let (told, hash) = (account.told(&TARGET), account.sha256());
    laboratory.note(match run {
        0 => format!("{}: {told}, SHA-256 of the operations {hash}", tpcc.describe()),
        _ => format!("the same with seed {}: SHA-256 {hash}", tpcc.options().seed),
    });
}

/// The eight trees with their records, for many threads.
pub(crate) fn plant_shared<T>(
    volume: &Arc<dyn Volume>,
    tpcc: &Tpcc,
    mut plant: impl FnMut(u8, Arc<dyn Volume>, Records<'_>) -> trees::Result<T>,
) -> Result<Vec<T>> {
    let one = |tree: u8| {
        let volume = NamedVolume::new(Arc::clone(volume), format!("index-{tree}-"));
        Ok(plant(tree, Arc::new(volume), &mut tpcc.load(tree))?)
    };
    (0..INDEXES.len() as u8).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_same_for_all_and_queues_are_as_meant() {
        for scale in [Scale::Ci, Scale::Std, Scale::Full] {
            let size = TpccSize::with_published_queue(scale, Device::Ssdsim);
            // Sizes do not depend on the operations.
            let tpcc = TpccSize { operations: 100, ..size }.tpcc(1).unwrap();
            let sum = |parts: Vec<usize>| parts.iter().sum::<usize>();
            assert_eq!(sum(frames(size, &tpcc)), size.memory());
            for queues in [Queues::ForAll, Queues::ForEach] {
                let options = pio_options(size, &tpcc, queues);
                let pages = options.iter().map(|options| options.frames + options.queue_pages).collect();
                assert_eq!(sum(pages), size.memory(), "{scale} {queues:?}");
            }
            let queue = |queues| -> Vec<usize> {
                pio_options(size, &tpcc, queues).iter().map(|options| options.queue_pages).collect()
            };
            // At ci more than the published share, so that "for all" is not judged there (labels.rs).
            let expected = if scale == Scale::Ci { (8, 2) } else { (20, 20) };
            assert_eq!(sum(queue(Queues::ForAll)), expected.0);
            assert_eq!(queue(Queues::ForEach), [expected.1; 8]);
        }
    }
}
