//! The trees of the d-IPL paper, each on flash of its own: in-page logging on raw flash, and a B+-tree over two translation
//! layers on the same flash.
//!
//! Invariant: what is counted are operations of the flash, whoever asked for them, so that all approaches are counted alike.

use crate::experiment::{Parameter, Scale};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::quantity::{Lapse, Simulated};
use crate::row::Row;
use flash::ftl::fast::Fast;
use flash::ftl::fmax::Fmax;
use flash::{FtlOptions, Geometry, NandCounters, Profile, RawFlash, Ssd};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use trees::{
    BTree, BTreeOptions, BlockDetails, DiplTree, InPageLoggingOptions, Index, IplTree, LogDetails, LogReads,
};

/// How a tree is put on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Approach {
    /// A B+-tree over FAST, with so many per cent log blocks.
    Fast { log: u32 },
    /// A B+-tree over FMAX, one replacement block.
    Fmax,
    /// The same on less flash: the index fills it, so that replacement blocks are few.
    FmaxTight,
    /// A log of fixed size in every block.
    Ipl { units: u32, reads: LogReads },
    /// A log of whatever size is left, and ghosts.
    Dipl { units: u32, reads: LogReads },
}

pub(crate) const FAST: &str = "B+-tree over FAST";
pub(crate) const FAST_5: &str = "B+-tree over FAST, 5 % log blocks";
pub(crate) const FAST_10: &str = "B+-tree over FAST, 10 % log blocks";
pub(crate) const FMAX: &str = "B+-tree over FMAX";
pub(crate) const FMAX_TIGHT: &str = "B+-tree over FMAX, flash nearly full";
pub(crate) const IPL: &str = "IPL";
pub(crate) const DIPL: &str = "d-IPL";
pub(crate) const IPL_ALL: &str = "IPL, all logs read";
pub(crate) const DIPL_ALL: &str = "d-IPL, all logs read";
pub(crate) const IPL_PAGES: &str = "IPL, log pages";
pub(crate) const DIPL_PAGES: &str = "d-IPL, log pages";
pub(crate) const IPL_SECTORS_PAGES: &str = "IPL, sectors of 512 B, log pages";
pub(crate) const DIPL_SECTORS_PAGES: &str = "d-IPL, sectors of 512 B, log pages";
pub(crate) const IPL_SECTORS: &str = "IPL, sectors of 512 B";
pub(crate) const DIPL_SECTORS: &str = "d-IPL, sectors of 512 B";
pub(crate) const IPL_SECTORS_ALL: &str = "IPL, sectors of 512 B, all logs read";
pub(crate) const DIPL_SECTORS_ALL: &str = "d-IPL, sectors of 512 B, all logs read";

impl Approach {
    pub const FAST: Self = Self::Fast { log: 3 };
    pub const IPL: Self = Self::Ipl { units: 1, reads: LogReads::Relevant };
    pub const DIPL: Self = Self::Dipl { units: 1, reads: LogReads::Relevant };
    pub const IPL_SECTORS: Self = Self::Ipl { units: 4, reads: LogReads::Relevant };
    pub const DIPL_SECTORS: Self = Self::Dipl { units: 4, reads: LogReads::Relevant };

    /// The same, and this is read of a block's log with a node.
    pub fn reading(self, reads: LogReads) -> Self {
        match self {
            Self::Ipl { units, .. } => Self::Ipl { units, reads },
            Self::Dipl { units, .. } => Self::Dipl { units, reads },
            other => other,
        }
    }

    /// Its line's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast { log: 5 } => FAST_5,
            Self::Fast { log: 10 } => FAST_10,
            Self::Fast { .. } => FAST,
            Self::Fmax => FMAX,
            Self::FmaxTight => FMAX_TIGHT,
            Self::Ipl { units: 1, reads: LogReads::Relevant } => IPL,
            Self::Ipl { units: 1, reads: LogReads::All } => IPL_ALL,
            Self::Ipl { units: 1, .. } => IPL_PAGES,
            Self::Ipl { reads: LogReads::Relevant, .. } => IPL_SECTORS,
            Self::Ipl { reads: LogReads::LogPages, .. } => IPL_SECTORS_PAGES,
            Self::Ipl { .. } => IPL_SECTORS_ALL,
            Self::Dipl { units: 1, reads: LogReads::Relevant } => DIPL,
            Self::Dipl { units: 1, reads: LogReads::All } => DIPL_ALL,
            Self::Dipl { units: 1, .. } => DIPL_PAGES,
            Self::Dipl { reads: LogReads::Relevant, .. } => DIPL_SECTORS,
            Self::Dipl { reads: LogReads::LogPages, .. } => DIPL_SECTORS_PAGES,
            Self::Dipl { .. } => DIPL_SECTORS_ALL,
        }
    }
}

/// How large an experiment is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Records, and operations of each point.
    pub records: u64,
    /// Blocks of 128 KiB.
    pub blocks: u32,
    /// As few as the index takes, and what a translation layer wants to have to spare.
    tight: u32,
    /// What translation layers keep for themselves: as many blocks as they want, and hardly more. The index fills half of the
    /// device, so that more blocks are free than these, but for the tight one.
    over_provision: f64,
    /// A hundred of the paper's frames.
    pub step: usize,
}

impl Size {
    /// As published, or a tenth of all of it.
    pub fn of(scale: Scale) -> Self {
        match scale {
            Scale::Trial => Self { records: 3_000, blocks: 38, tight: 30, over_provision: 0.2, step: 1 },
            Scale::Ci => Self { records: 100_000, blocks: 38, tight: 30, over_provision: 0.2, step: 10 },
            Scale::Std | Scale::Full => {
                Self { records: 1_000_000, blocks: 384, tight: 200, over_provision: 0.07, step: 100 }
            }
        }
    }

    /// The frames of each point.
    pub fn frames(self) -> [usize; 5] {
        [1, 2, 3, 4, 5].map(|times| times * self.step)
    }

    /// What parameters say of it.
    pub fn parameters(self) -> Vec<Parameter> {
        vec![
            Parameter::new("records", "1,000,000 in random order", self.records.to_string()),
            Parameter::new(
                "buffer",
                "100 to 500 frames of 8 KB",
                format!("{:?} frames of 8 KiB", self.frames()),
            ),
            Parameter::new(
                "nodes",
                "8 KB, 510 records of 16 B, 840 entries",
                "8 KiB; in-page logging 510 records, 840 children; over translation layers 509 and 511 (their pages' headers)",
            ),
            Parameter::new(
                "flash",
                "not told",
                format!("slc_2007: {} blocks of 64 pages of 2 KiB, {} MiB", self.blocks, self.blocks / 8),
            ),
            Parameter::new("log units", "not told", "a flash page of 2 KiB, and 512 B"),
            Parameter::new(
                "translation layers",
                "not told",
                format!(
                    "FAST with 3 % log blocks (E35: 5 and 10 % too), FMAX with one replacement block a block; {} % over-provision, half full",
                    100.0 * self.over_provision
                ),
            ),
            Parameter::new("runs", "not told", "one: operations are counted, by seed"),
        ]
    }
}

enum Tree {
    B(BTree),
    Ipl(IplTree),
    Dipl(DiplTree),
}

#[derive(Clone)]
enum Ground {
    Raw(Arc<RawFlash>),
    Drive(Ssd),
}

/// A tree on flash of its own.
pub(crate) struct FlashTree {
    approach: Approach,
    ground: Ground,
    tree: Tree,
}

/// What was counted at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    flash: NandCounters,
    now: Duration,
}

fn btree(frames: usize) -> BTreeOptions {
    BTreeOptions { page_len: 8192, frames, ..BTreeOptions::default() }
}

fn logging(frames: usize, units_per_page: u32, log_reads: LogReads) -> InPageLoggingOptions {
    InPageLoggingOptions { frames, units_per_page, log_reads, ..InPageLoggingOptions::default() }
}

impl FlashTree {
    /// An empty one.
    pub fn new(approach: Approach, size: Size, frames: usize) -> Result<Self> {
        let profile = Profile::slc_2007();
        let blocks_per_plane = if approach == Approach::FmaxTight { size.tight } else { size.blocks };
        let geometry = Geometry { blocks_per_plane, ..profile.geometry };
        let profile = Profile { geometry, ..profile };
        let fails = |error: flash::Error| Failure::CannotRun(format!("the simulated flash: {error}"));
        let raw = || Ok::<_, Failure>(Arc::new(RawFlash::new(profile.clone(), 1).map_err(fails)?));
        // More log blocks come from more flash that is kept for them.
        let more = if let Approach::Fast { log } = approach {
            f64::from(log.saturating_sub(3)) / 100.0
        } else {
            0.0
        };
        let options = FtlOptions { over_provision: size.over_provision + more, ..FtlOptions::default() };
        let drive = |log: Option<u32>| {
            let drive = Ssd::with_ftl(profile.clone(), 1, |flash| {
                Ok(if let Some(log) = log {
                    Box::new(Fast::new(flash, options, f64::from(log) / 100.0)?) as Box<dyn flash::Ftl>
                } else {
                    Box::new(Fmax::new(flash, options, 1)?)
                })
            });
            drive.map_err(fails)
        };
        let (ground, tree) = match approach {
            Approach::Fast { .. } | Approach::Fmax | Approach::FmaxTight => {
                let drive = drive(if let Approach::Fast { log } = approach { Some(log) } else { None })?;
                let tree = BTree::create(Arc::new(drive.clone()), &btree(frames))?;
                (Ground::Drive(drive), Tree::B(tree))
            }
            Approach::Ipl { units, reads } => {
                let flash = raw()?;
                let tree = IplTree::create(Arc::clone(&flash), &logging(frames, units, reads))?;
                (Ground::Raw(flash), Tree::Ipl(tree))
            }
            Approach::Dipl { units, reads } => {
                let flash = raw()?;
                let tree = DiplTree::create(Arc::clone(&flash), &logging(frames, units, reads))?;
                (Ground::Raw(flash), Tree::Dipl(tree))
            }
        };
        Ok(Self { approach, ground, tree })
    }

    /// Closed, and opened again with another buffer and another way to read logs.
    pub fn reopened(self, approach: Approach, frames: usize) -> Result<Self> {
        let Self { ground, tree, .. } = self;
        drop(tree);
        let tree = match (&ground, approach) {
            (Ground::Drive(drive), Approach::Fast { .. } | Approach::Fmax | Approach::FmaxTight) => {
                Tree::B(BTree::recover(Arc::new(drive.clone()), &btree(frames))?)
            }
            (Ground::Raw(flash), Approach::Ipl { units, reads }) => {
                Tree::Ipl(IplTree::recover(Arc::clone(flash), &logging(frames, units, reads))?)
            }
            (Ground::Raw(flash), Approach::Dipl { units, reads }) => {
                Tree::Dipl(DiplTree::recover(Arc::clone(flash), &logging(frames, units, reads))?)
            }
            _ => return Err(Failure::CannotRun("a tree is not opened as another".to_owned())),
        };
        Ok(Self { approach, ground, tree })
    }

    fn index(&mut self) -> &mut dyn Index {
        match &mut self.tree {
            Tree::B(tree) => tree,
            Tree::Ipl(tree) => tree,
            Tree::Dipl(tree) => tree,
        }
    }

    /// Inserts the keys from 1 to `records` in random order, and flushes.
    pub fn fill(&mut self, records: u64) -> Result<()> {
        let mut keys: Vec<u64> = (1..=records).collect();
        keys.shuffle(&mut StdRng::seed_from_u64(0x1b1));
        for (at, key) in keys.into_iter().enumerate() {
            if at % 1024 == 0 && interrupt::pressed() {
                return Err(Failure::Interrupted);
            }
            self.index().insert(key, key)?;
        }
        Ok(self.index().flush()?)
    }

    /// Searches `count` random keys of `records`, all of which are there.
    pub fn search(&mut self, records: u64, count: u64) -> Result<()> {
        for (at, key) in drawn(records, count).enumerate() {
            if at % 1024 == 0 && interrupt::pressed() {
                return Err(Failure::Interrupted);
            }
            if self.index().search(key)? != Some(key) {
                return Err(Failure::CannotRun(format!("{} has lost key {key}", self.approach.name())));
            }
        }
        Ok(())
    }

    /// Writes every block of a d-IPL tree anew.
    pub fn cleanse(&mut self) -> Result<()> {
        match &mut self.tree {
            Tree::Dipl(tree) => Ok(tree.cleanse()?),
            Tree::B(_) | Tree::Ipl(_) => Err(Failure::CannotRun("only d-IPL trees are cleansed".to_owned())),
        }
    }

    /// What the trees with logs know of themselves.
    pub fn details(&self) -> Result<(LogDetails, BlockDetails)> {
        Ok(match &self.tree {
            Tree::B(_) => Default::default(),
            Tree::Ipl(tree) => (tree.details(), tree.block_details()?),
            Tree::Dipl(tree) => (tree.details(), tree.block_details()?),
        })
    }

    pub fn counted(&self) -> Counted {
        match &self.ground {
            Ground::Raw(flash) => Counted { flash: flash.counters(), now: flash.now() },
            Ground::Drive(drive) => Counted { flash: drive.nand_counters(), now: drive.now() },
        }
    }

    /// What was done since `before`, as a row.
    pub fn row(&mut self, frames: usize, operations: u64, before: Counted) -> Result<Row<Simulated>> {
        let after = self.counted();
        let (reads, writes, erases) = (
            after.flash.reads - before.flash.reads,
            after.flash.programs - before.flash.programs,
            after.flash.erases - before.flash.erases,
        );
        let (log, blocks) = self.details()?;
        let stats = self.index().stats();
        let mut counts = BTreeMap::new();
        let mut put = |name: &str, count: u64| counts.insert(name.to_owned(), count as f64);
        for (name, count) in [(READS, reads), (WRITES, writes), (ERASES, erases), (SPLITS, stats.splits)] {
            put(name, count);
        }
        if !matches!(self.tree, Tree::B(_)) {
            for (name, count) in [
                ("log units", log.units),
                (SPLIT_UNITS, log.split_units),
                (EVAPORATED, log.evaporated + blocks.evaporated),
                (BLOCKS, blocks.blocks),
                ("blocks less than half full", blocks.underfull),
                ("nodes in data areas", blocks.regular),
                ("nodes in logs alone", blocks.ghosts),
                ("blocks written anew", log.cleansings),
                ("blocks split", log.block_splits),
            ] {
                put(name, count);
            }
        }
        Ok(Row {
            series: self.approach.name().to_owned(),
            at: frames as f64,
            run: 0,
            requests: operations,
            bytes: (reads + writes) * 2048,
            elapsed_us: Lapse::from(after.now - before.now),
            counts,
        })
    }
}

/// Pages read.
pub(crate) const READS: &str = "pages read";
/// Pages programmed; a part of a page counts as one.
pub(crate) const WRITES: &str = "pages written";
/// Blocks erased.
pub(crate) const ERASES: &str = "blocks erased";
/// Nodes split.
pub(crate) const SPLITS: &str = "nodes split";
/// Log units written because of splits.
pub(crate) const SPLIT_UNITS: &str = "log units of splits";
/// Free pages that could not be programmed any more, of all blocks until they were erased, and of those that are there.
pub(crate) const EVAPORATED: &str = "free pages lost";
/// Blocks in use.
pub(crate) const BLOCKS: &str = "blocks";

/// Keys to search: `count` random ones of those from 1 to `records`.
fn drawn(records: u64, count: u64) -> impl Iterator<Item = u64> {
    let mut random = StdRng::seed_from_u64(0x5ea);
    (0..count).map(move |_| random.random_range(1..=records))
}

/// Does all jobs, on as many threads as the machine has processors; what comes of them is in the order of the jobs.
pub(crate) fn side_by_side<T: Send, J: Sync>(
    jobs: &[J],
    work: impl Fn(&J) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let mut done: Vec<(usize, Result<T>)> = std::thread::scope(|scope| {
        let worker = || {
            let mut mine = Vec::new();
            while let at = next.fetch_add(1, Ordering::Relaxed)
                && let Some(job) = jobs.get(at)
            {
                mine.push((at, work(job)));
            }
            mine
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    if done.len() < jobs.len() {
        return Err(Failure::CannotRun("a worker thread ended early".to_owned()));
    }
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_are_for_all_keys_however_few_they_are() {
        let keys: Vec<u64> = drawn(10_000, 1000).collect();
        assert!(keys.len() == 1000 && keys.iter().all(|key| (1..=10_000).contains(key)));
        let high = keys.iter().filter(|key| **key > 5000).count();
        assert!((400..600).contains(&high), "{high} of the upper half");
    }
}
