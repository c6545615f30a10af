//! The trees on a volume in memory that tears, reorders and loses what is not synced.

use super::{Kept, Tally, Trial, promising};
use crate::failure::{Failure, Result};
use psync::Volume;
use std::sync::Arc;
use trees::crash_matrix::volume::{Cuts, at_every};
use trees::crash_matrix::{Recover, workload};
use trees::{
    AsRecovery, AsTree, AsTreeOptions, BEpsilonTree, BEpsilonTreeOptions, BTree, BTreeOptions, Bftl,
    BftlOptions, CbPersistence, CbPlacement, CbTree, CbTreeOptions, Eviction, FdTree, FdTreeOptions, HeadLog,
    Index, LaTree, LaTreeOptions, LogMode, LsmTree, LsmTreeOptions, PioOptions, PioTree, Sequential,
};

const fn published(name: &'static str, run: fn(u64) -> Result<Tally>) -> Trial {
    Trial { name, kept: Kept::AsPublished, run }
}

const fn between_flushes(name: &'static str, run: fn(u64) -> Result<Tally>) -> Trial {
    Trial { name, kept: Kept::Nothing, run }
}

pub(super) const TRIALS: [Trial; 16] = [
    promising("PIO, log each", |stride| pio(LogMode::Each, stride)),
    promising("PIO, log flush", |stride| pio(LogMode::Buffered, stride)),
    promising("AS, checkpoint", |stride| always_sequential(AsRecovery::Checkpoint, stride)),
    promising("AS, read all", |stride| always_sequential(AsRecovery::ReadAll, stride)),
    promising("CB, log page", |stride| cascade(CbPersistence::LogPage, CbPlacement::OutOfPlace, stride)),
    promising("CB, commits", |stride| cascade(CbPersistence::RootGrowth, CbPlacement::OutOfPlace, stride)),
    promising("FD, log each", |stride| fd(HeadLog::EachOperation, stride)),
    promising("FD, no log", |stride| fd(HeadLog::Off, stride)),
    promising("LSM-tree", lsm),
    promising("Bε-tree", b_epsilon),
    promising("BFTL", bftl),
    published("PIO, published redo", published_redo),
    published("AS, as published", |stride| always_sequential(AsRecovery::AsPublished, stride)),
    published("CB, in place", |stride| cascade(CbPersistence::LogPage, CbPlacement::InPlace, stride)),
    between_flushes("B+-tree", btree),
    between_flushes("LA-tree", la),
];

/// The same in the picture.
pub(super) const SHORT: [&str; TRIALS.len()] = [
    "PIO each",
    "PIO flush",
    "AS ckpt",
    "AS all",
    "CB log",
    "CB comm",
    "FD log",
    "FD",
    "LSM",
    "Bε",
    "BFTL",
    "PIO pub",
    "AS pub",
    "CB pub",
    "B+",
    "LA",
];

fn tally<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    stride: u64,
    recover: Recover<'_, T>,
) -> Result<Tally> {
    let mut tally = Tally::default();
    let steps = workload(super::SEED, super::STEPS, super::KEYS);
    // A read leaves nothing behind that the next change does not.
    let cuts = Cuts { stride, ..Cuts::changes(1) };
    at_every::<T>(options, recover, super::SEED, &steps, &cuts, &mut |found| tally.add(&found))
        .map_err(Failure::from)?;
    Ok(tally)
}

fn usual<T: Index<Ground = Arc<dyn Volume>>>(options: &T::Options, stride: u64) -> Result<Tally> {
    tally::<T>(options, stride, &|volume: Arc<dyn Volume>| T::recover(volume, options))
}

fn pio_options(log: LogMode) -> PioOptions {
    PioOptions {
        page_len: 128,
        segments: 4,
        pio_max: 4,
        queue_pages: 6,
        frames: 8,
        speriod: 10,
        bcnt: 25,
        fanout_max: Some(4),
        eviction: Eviction::Lru,
        last_segment_map: true,
        log,
    }
}

fn pio(log: LogMode, stride: u64) -> Result<Tally> {
    usual::<PioTree>(&pio_options(log), stride)
}

fn published_redo(stride: u64) -> Result<Tally> {
    let options = pio_options(LogMode::Each);
    tally::<PioTree>(&options, stride, &|volume| PioTree::recover_as_published(volume, &options))
}

fn always_sequential(recovery: AsRecovery, stride: u64) -> Result<Tally> {
    let options = AsTreeOptions {
        node_len: 512,
        keys_max: Some(4),
        slots: 4,
        cached: 500,
        sub_file_len: 512 * 24,
        threshold: 0.3,
        checkpoint_every: if recovery == AsRecovery::Checkpoint { 5 } else { 0 },
        recovery,
        pio_max: 1,
    };
    usual::<AsTree>(&options, stride)
}

fn cascade(persistence: CbPersistence, placement: CbPlacement, stride: u64) -> Result<Tally> {
    let options = CbTreeOptions {
        page_len: 1024,
        keys_max: Some(4),
        sequential: Sequential::Last,
        placement,
        persistence,
        log_max: (persistence == CbPersistence::LogPage).then_some(20),
        search_loads: false,
    };
    usual::<CbTree>(&options, stride)
}

fn fd(log: HeadLog, stride: u64) -> Result<Tally> {
    let options = FdTreeOptions {
        page_len: 512,
        head_pages: 3,
        ratio: 2,
        entries_max: Some(5),
        pio_max: 4,
        log,
        frames: 0,
    };
    usual::<FdTree>(&options, stride)
}

fn lsm(stride: u64) -> Result<Tally> {
    let options = LsmTreeOptions {
        page_len: 512,
        memtable_pages: 2,
        ratio: 2,
        entries_max: Some(5),
        frames: 2,
        pio_max: 4,
        ..LsmTreeOptions::default()
    };
    usual::<LsmTree>(&options, stride)
}

fn b_epsilon(stride: u64) -> Result<Tally> {
    let options = BEpsilonTreeOptions {
        page_len: 512,
        fanout: Some(4),
        entries_max: Some(4),
        retired_max: 5,
        frames: 3,
        pio_max: 4,
    };
    usual::<BEpsilonTree>(&options, stride)
}

fn bftl(stride: u64) -> Result<Tally> {
    let options = BftlOptions {
        sector_len: 512,
        units: 10,
        chain_max: 2,
        keys_max: Some(5),
        reclaim: true,
        ..BftlOptions::default()
    };
    usual::<Bftl>(&options, stride)
}

fn btree(stride: u64) -> Result<Tally> {
    let options = BTreeOptions { page_len: 256, frames: 8, keys_max: Some(4), ..BTreeOptions::default() };
    usual::<BTree>(&options, stride)
}

fn la(stride: u64) -> Result<Tally> {
    let options = LaTreeOptions {
        page_len: 512,
        buffer_pages: 2,
        staged: 30,
        frames: 8,
        keys_max: Some(4),
        ..LaTreeOptions::default()
    };
    usual::<LaTree>(&options, stride)
}
