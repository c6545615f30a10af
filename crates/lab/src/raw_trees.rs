//! The trees that manage raw flash, side by side as in the CB-tree paper's section 5.2: the same keys, the same flash, nodes of
//! 128 entries, each update durable when it returns but for the CB-tree without log.
//!
//! Invariants:
//! 1. Times are the simulated flash's own.
//! 2. Each tree gets flash of its own, erased, and far larger than what it writes in sequence.

use crate::experiment::Scale;
use crate::failure::{Failure, Result};
use crate::laboratory::Laboratory;
use crate::quantity::{Lapse, Simulated};
use crate::row::Row;
use flash::{Geometry, Profile, RawFlash, Timing};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use trees::{
    CbFlashOptions, CbFlashTree, CbPersistence, DiplTree, InPageLoggingOptions, Index, LogCommit, LogReads,
    LsbTree, LsbTreeOptions, MuLayout, MuTree, MuTreeOptions, Split, WanderingOptions, WanderingTree,
};

/// Entries of a node, as in the paper.
pub(crate) const ENTRIES: usize = 128;
/// Bytes of a page that hold a node.
const PAGE: usize = 4096;
/// Log units in a page: the d-IPL paper's 512 bytes each. It takes flash that programs a page in parts, which that of the board
/// did not; with whole pages for log units the tree would fall behind by far more.
pub(crate) const LOG_UNITS: u32 = 8;
/// Shares of random keys that the paper has, in per cent.
pub(crate) const RATIOS: [u64; 3] = [0, 50, 100];
/// Log pages in the blocks of a tree with in-page logging that hold anything.
pub(crate) const LOG_PAGES: &str = "block_log_pages";
/// Where ascending keys begin that follow random ones.
const ABOVE: u64 = 1 << 62;

/// Records inserted.
pub(crate) fn inserts(scale: Scale) -> u64 {
    if scale == Scale::Trial { 3_000 } else { 50_000 }
}

/// The keys of a ratio: ascending; or half random, then half ascending above them; or random.
pub(crate) fn keys(ratio: u64, run: u32, count: u64) -> Vec<u64> {
    let mut random = StdRng::seed_from_u64(Laboratory::seed(run, 0));
    let first = count * ratio / 100;
    let start = if ratio == 0 { 0 } else { ABOVE };
    (0..first)
        .map(|_| random.random_range(0..ABOVE))
        .chain((0..count - first).map(|key| start + key))
        .collect()
}

/// The OpenSSD board with 64 pages of 4 KiB in a block, 16,384 of them in all: what a node takes of its pages of 32 KiB, and what
/// a tree with in-page logging can have in a block. No tree here fills more than a seventh of it.
pub(crate) fn board() -> Profile {
    let board = Profile::open_ssd();
    let geometry = Geometry {
        blocks_per_plane: 32,
        pages_per_block: 64,
        page_bytes: PAGE as u32,
        spare_bytes: 128,
        ..board.geometry
    };
    Profile { geometry, ..board }
}

/// The board if programming took no time: a write costs its transfer alone, as a read does without the sensing.
pub(crate) fn board_of_free_programs() -> Profile {
    let board = board();
    let timing = Timing { program: Duration::ZERO, ..board.timing };
    Profile { timing, ..board }
}

/// A tree of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rival {
    Wandering,
    Dipl,
    /// The same where a block has 16 pages, which share a log.
    Dipl16,
    /// The same with [`MANY_FRAMES`] frames.
    DiplFrames,
    /// The same on flash that programs a page once: each log unit is a page.
    DiplWhole,
    /// The same with its own paper's rules, by which an update may wait in memory.
    DiplRules,
    Mu,
    MuStar,
    Lsb,
    Cb,
    CbLog,
}

/// Frames in a variant of the d-IPL tree: a tenth of the nodes that there are at the end, or less.
const MANY_FRAMES: usize = 64;
/// Pages of a block in a variant of the d-IPL tree.
const SMALL_BLOCK: u32 = 16;

impl Rival {
    /// As in the paper's legends.
    pub fn name(self) -> &'static str {
        match self {
            Rival::Wandering => "wandering tree",
            Rival::Dipl => "d-IPL B+-tree",
            Rival::Dipl16 => "by variant: d-IPL B+-tree, blocks of 16 pages",
            Rival::DiplFrames => "by variant: d-IPL B+-tree, 64 frames",
            Rival::DiplWhole => "by variant: d-IPL B+-tree, log units of a page",
            Rival::DiplRules => "by variant: d-IPL B+-tree, updates wait in memory",
            Rival::Mu => "µ-tree",
            Rival::MuStar => "µ*-tree",
            Rival::Lsb => "LSB-tree",
            Rival::Cb => "CB-tree",
            Rival::CbLog => "CB-tree (log)",
        }
    }

    /// An empty one.
    pub fn plant(self, run: u32) -> Result<RawTree> {
        self.plant_on(board(), run)
    }

    /// An empty one on flash of this kind.
    pub fn plant_on(self, mut profile: Profile, run: u32) -> Result<RawTree> {
        if matches!(self, Rival::Dipl | Rival::Dipl16 | Rival::DiplFrames | Rival::DiplRules) {
            profile.rules.programs_max = LOG_UNITS as u8;
        }
        if self == Rival::Dipl16 {
            profile.geometry.blocks_per_plane *= profile.geometry.pages_per_block / SMALL_BLOCK;
            profile.geometry.pages_per_block = SMALL_BLOCK;
        }
        let flash = RawFlash::new(profile, u64::from(run));
        let flash =
            Arc::new(flash.map_err(|error| Failure::CannotRun(format!("the simulated flash: {error}")))?);
        let ground = Arc::clone(&flash);
        let mu = |layout| MuTreeOptions {
            page_len: PAGE,
            entries_max: Some(ENTRIES),
            layout,
            split: Split::Halve,
        };
        let cb = |persistence| CbFlashOptions { page_len: PAGE, persistence, ..CbFlashOptions::default() };
        let keys_max = Some(ENTRIES);
        let tree = match self {
            Rival::Wandering => {
                let options = WanderingOptions { page_len: PAGE, keys_max, split: Split::Halve };
                Kind::Wandering(WanderingTree::create(ground, &options)?)
            }
            Rival::Dipl | Rival::Dipl16 | Rival::DiplFrames | Rival::DiplWhole | Rival::DiplRules => {
                let options = InPageLoggingOptions {
                    node_len: PAGE,
                    fanout_max: ENTRIES,
                    records_max: ENTRIES,
                    frames: if self == Rival::DiplFrames { MANY_FRAMES } else { 4 },
                    units_per_page: if self == Rival::DiplWhole { 1 } else { LOG_UNITS },
                    log_reads: LogReads::Relevant,
                    commit: if self == Rival::DiplRules {
                        LogCommit::Rules
                    } else {
                        LogCommit::EachOperation
                    },
                };
                Kind::Dipl(DiplTree::create(ground, &options)?)
            }
            Rival::Mu => Kind::Mu(MuTree::create(ground, &mu(MuLayout::Fixed))?),
            Rival::MuStar => Kind::Mu(MuTree::create(ground, &mu(MuLayout::Adaptive))?),
            Rival::Lsb => {
                let options = LsbTreeOptions { page_len: PAGE, keys_max, split: Split::Halve };
                Kind::Lsb(LsbTree::create(ground, &options)?)
            }
            Rival::Cb => Kind::Cb(CbFlashTree::create(ground, &cb(CbPersistence::RootGrowth))?),
            Rival::CbLog => Kind::Cb(CbFlashTree::create(ground, &cb(CbPersistence::LogPage))?),
        };
        Ok(RawTree { flash, tree })
    }
}

enum Kind {
    Wandering(WanderingTree),
    Dipl(DiplTree),
    Mu(MuTree),
    Lsb(LsbTree),
    Cb(CbFlashTree),
}

/// A tree and the flash that it stands on.
pub(crate) struct RawTree {
    flash: Arc<RawFlash>,
    tree: Kind,
}

impl RawTree {
    pub fn index(&self) -> &dyn Index {
        match &self.tree {
            Kind::Wandering(tree) => tree,
            Kind::Dipl(tree) => tree,
            Kind::Mu(tree) => tree,
            Kind::Lsb(tree) => tree,
            Kind::Cb(tree) => tree,
        }
    }

    pub fn index_mut(&mut self) -> &mut dyn Index {
        match &mut self.tree {
            Kind::Wandering(tree) => tree,
            Kind::Dipl(tree) => tree,
            Kind::Mu(tree) => tree,
            Kind::Lsb(tree) => tree,
            Kind::Cb(tree) => tree,
        }
    }

    /// Pages that the tree holds: with in-page logging, all of its blocks.
    fn pages(&self) -> Result<u64> {
        Ok(match &self.tree {
            Kind::Wandering(tree) => tree.details().live_pages,
            Kind::Dipl(tree) => {
                tree.block_details()?.blocks * u64::from(self.flash.geometry().pages_per_block)
            }
            Kind::Mu(tree) => tree.details().live_pages,
            Kind::Lsb(tree) => tree.details().flash.live_pages,
            Kind::Cb(tree) => tree.flash().live_pages,
        })
    }

    /// Counts that only some of the trees have.
    fn peculiar(&self) -> Result<Vec<(&'static str, u64)>> {
        Ok(match &self.tree {
            Kind::Wandering(_) | Kind::Mu(_) => Vec::new(),
            Kind::Dipl(tree) => {
                let found = tree.block_details()?;
                vec![
                    ("nodes", found.regular + found.ghosts),
                    ("blocks", found.blocks),
                    (LOG_PAGES, found.log_pages),
                ]
            }
            Kind::Lsb(tree) => {
                let found = tree.details();
                vec![("logs", found.logs), ("merged", found.merged), ("promoted", found.promoted)]
            }
            Kind::Cb(tree) => {
                let found = tree.details();
                vec![
                    ("commits", found.commits),
                    ("log_pages", found.log_pages),
                    ("switches", found.switches),
                    ("switches_written", found.switches_written),
                ]
            }
        })
    }

    /// Does `count` operations and writes down what they took of the flash, and what the tree is then.
    pub fn row(
        &mut self,
        series: &str,
        at: f64,
        run: u32,
        count: u64,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Row<Simulated>> {
        let (before, began, told) = (self.flash.counters(), self.flash.now(), self.index().stats());
        work(self)?;
        let (after, elapsed, now) = (self.flash.counters(), self.flash.now() - began, self.index().stats());
        let (reads, writes) = (after.reads - before.reads, after.programs - before.programs);
        let mut counts = vec![
            ("reads", reads),
            ("writes", writes),
            ("erases", after.erases - before.erases),
            ("pages", self.pages()?),
            ("height", u64::from(now.height)),
            ("splits", now.splits - told.splits),
        ];
        counts.extend(self.peculiar()?);
        Ok(Row {
            series: series.to_owned(),
            at,
            run,
            requests: count,
            bytes: (reads + writes) * u64::from(self.flash.geometry().page_bytes),
            elapsed_us: Lapse::from(elapsed),
            counts: counts.into_iter().map(|(name, count)| (name.to_owned(), count as f64)).collect(),
        })
    }

    /// Inserts keys, and brings what waits to the flash.
    pub fn grow(&mut self, series: &str, at: f64, run: u32, keys: &[u64]) -> Result<Row<Simulated>> {
        self.row(series, at, run, keys.len() as u64, |tree| {
            let index = tree.index_mut();
            (0..).zip(keys).try_for_each(|(value, key)| index.insert(*key, value))?;
            Ok(index.flush()?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_random_keys_are_followed_by_ascending_ones() {
        assert_eq!(keys(0, 0, 4), [0, 1, 2, 3]);
        let half = keys(50, 0, 10);
        assert!(half[..5].iter().all(|key| *key < ABOVE) && !half[..5].is_sorted());
        assert_eq!(half[5..], [ABOVE, ABOVE + 1, ABOVE + 2, ABOVE + 3, ABOVE + 4]);
        assert_eq!(keys(100, 0, 10)[..5], half[..5], "one file of random keys");
        assert_ne!(keys(100, 1, 10), keys(100, 0, 10));
    }

    #[test]
    fn every_rival_holds_what_it_was_given() {
        let rivals = [
            Rival::Wandering,
            Rival::Dipl,
            Rival::Dipl16,
            Rival::DiplFrames,
            Rival::DiplWhole,
            Rival::DiplRules,
            Rival::Mu,
            Rival::MuStar,
            Rival::Lsb,
            Rival::Cb,
            Rival::CbLog,
        ];
        for rival in rivals {
            let mut tree = rival.plant(0).unwrap();
            let row = tree.grow(rival.name(), 50.0, 0, &keys(50, 0, 600)).unwrap();
            let again = rival.plant(0).unwrap().grow(rival.name(), 50.0, 0, &keys(50, 0, 600)).unwrap();
            assert_eq!(row, again, "the same in every run");
            assert_eq!(tree.index().check().unwrap().records, 600, "{rival:?}");
            assert!(row.count("writes") >= 6.0 && row.count("pages") >= 6.0, "{rival:?}: {row:?}");
        }
    }
}
