//! The AS B-tree's long runs: sub-files fill, lose their valid nodes and are recycled. What comes of that depends on the sizes
//! only in proportion, so a smaller run has all of them smaller: records, operations, sub-files, buffers.
//!
//! Invariant: nodes keep their size, since a device's times depend on it.

use crate::as_suite::{SPACING, node_len};
use crate::experiment::{Device, Parameter, Scale};
use crate::failure::Result;
use crate::quantity::Clock;
use crate::tree_ground::{FILL, TreeGround};
use psync::Volume;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use trees::{AsTree, AsTreeOptions, Index};

/// One over which share of the published sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proportion(pub u64);

impl Proportion {
    /// The published sizes where there is time for them.
    pub fn of(scale: Scale, device: Device) -> Self {
        match (scale, device) {
            (Scale::Trial, _) => Self(32),
            (Scale::Ci, Device::Disk) => Self(16),
            (Scale::Ci, _) => Self(4),
            (Scale::Std, Device::Disk) => Self(2),
            _ => Self(1),
        }
    }

    /// Records at first.
    pub fn records(self) -> u64 {
        400_000 / self.0
    }

    /// What is published as 100,000 operations.
    pub fn operations(self) -> u64 {
        100_000 / self.0
    }

    /// Bytes of a sub-file, published as 64 MB.
    pub fn sub_file_len(self) -> u64 {
        (64 << 20) / self.0
    }

    /// Nodes in the write buffer.
    pub fn slots(self) -> usize {
        (32 / self.0 as usize).max(1)
    }

    /// Units in BFTL's reservation buffer.
    pub fn units(self) -> usize {
        256 / self.0 as usize
    }

    /// An AS B-tree as published, without checkpoints.
    pub fn options(self) -> AsTreeOptions {
        AsTreeOptions {
            node_len: node_len(256),
            slots: self.slots(),
            sub_file_len: self.sub_file_len(),
            checkpoint_every: 0,
            ..AsTreeOptions::default()
        }
    }

    /// Builds a tree with the first records, [`SPACING`] apart.
    pub fn build<T: Index<Ground = Arc<dyn Volume>>, C: Clock>(
        self,
        place: &TreeGround<C>,
        options: &T::Options,
    ) -> Result<T> {
        let mut records = (0..self.records()).map(|index| (index * SPACING, index));
        Ok(T::bulk_load(Arc::clone(&place.volume), options, FILL, &mut records)?)
    }

    /// Inserts the first records, which are otherwise loaded, in an order at random.
    pub fn insert_first(self, tree: &mut dyn Index, rng: &mut StdRng) -> Result<()> {
        let mut order: Vec<u64> = (0..self.records()).collect();
        order.shuffle(rng);
        order.into_iter().try_for_each(|index| Ok(tree.insert(index * SPACING, index)?))
    }

    /// Inserts `count` records of random keys.
    pub fn insert(self, tree: &mut dyn Index, rng: &mut StdRng, count: u64) -> Result<()> {
        let keys = self.records() * SPACING;
        (0..count).try_for_each(|index| Ok(tree.insert(rng.random_range(0..keys), index)?))
    }

    /// Changes the values of `count` records at random.
    pub fn update(self, tree: &mut dyn Index, rng: &mut StdRng, count: u64) -> Result<()> {
        let records = self.records();
        (0..count).try_for_each(|index| Ok(tree.update(rng.random_range(0..records) * SPACING, index)?))
    }

    /// What all of them have. `source` says of the sizes where they are told, if not with the figure itself.
    pub fn parameters(self, source: &str) -> Vec<Parameter> {
        let told = |what: &str| format!("{what}{source}");
        vec![
            Parameter::new("records at first", &told("400,000"), self.records().to_string()),
            Parameter::new("first records", "not told", "loaded in bulk, nodes 69 % full alike"),
            Parameter::new("sub-files", "64 MB", format!("{} MiB", self.sub_file_len() >> 20)),
            Parameter::new("write buffer", &told("32 nodes"), format!("{} nodes", self.slots())),
            Parameter::new("node", &told("8 KB, F = 256"), "8 KiB, F = 256"),
        ]
    }
}

/// The stream of random numbers of a run.
pub(crate) fn random(run: u32) -> StdRng {
    StdRng::seed_from_u64(crate::laboratory::Laboratory::seed(run, 0))
}

/// Nodes written and nodes copied so far, and nodes that all sub-files have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub nodes: u64,
    pub copies: u64,
    pub held: u64,
}

impl Written {
    pub fn of(tree: &AsTree) -> Self {
        let details = tree.details();
        Self {
            nodes: tree.stats().pages_written,
            copies: details.copies,
            held: details.sub_files.iter().map(|file| u64::from(file.nodes)).sum(),
        }
    }
}
