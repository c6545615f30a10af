//! The trees on raw flash, which tears the page that it programs, and erases half of a block.

use super::{Tally, Trial, promising};
use crate::failure::{Failure, Result};
use flash::{Geometry, Order, Profile, RawFlash, Rules};
use std::sync::Arc;
use trees::crash_matrix::raw_flash::{Fresh, at_every};
use trees::crash_matrix::workload;
use trees::{
    CbFlashOptions, CbFlashTree, CbPersistence, DiplTree, InPageLoggingOptions, Index, IplTree, LogCommit,
    LogReads, LsbTree, LsbTreeOptions, MuLayout, MuTree, MuTreeOptions, Sequential, Split, WanderingOptions,
    WanderingTree,
};

pub(super) const TRIALS: [Trial; 10] = [
    promising("wandering", wandering),
    promising("µ", |stride| mu(MuLayout::Fixed, stride)),
    promising("µ*", |stride| mu(MuLayout::Adaptive, stride)),
    promising("LSB", lsb),
    promising("CB, log page", |stride| cascade(CbPersistence::LogPage, stride)),
    promising("CB, commits", |stride| cascade(CbPersistence::RootGrowth, stride)),
    promising("IPL, unit each", |stride| ipl(LogCommit::EachOperation, stride)),
    promising("IPL, rules", |stride| ipl(LogCommit::Rules, stride)),
    promising("d-IPL, unit each", |stride| dipl(LogCommit::EachOperation, stride)),
    promising("d-IPL, rules", |stride| dipl(LogCommit::Rules, stride)),
];

/// The same in the picture.
pub(super) const SHORT: [&str; TRIALS.len()] =
    ["wand.", "µ", "µ*", "LSB", "CB log", "CB comm", "IPL each", "IPL", "d-IPL each", "d-IPL"];

fn tally<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    stride: u64,
) -> Result<Tally> {
    let mut tally = Tally::default();
    let steps = workload(super::SEED, super::STEPS, super::KEYS);
    let recover = |flash| T::recover(flash, options);
    at_every::<T>((fresh, options), &recover, super::SEED, &steps, stride, &mut |found| tally.add(&found))
        .map_err(Failure::from)?;
    Ok(tally)
}

/// Blocks of 8 pages of 512 bytes in two units, so that erases come often.
fn geometry(blocks: u32) -> Geometry {
    Geometry {
        channels: 2,
        dies_per_channel: 1,
        planes: 1,
        blocks_per_plane: blocks / 2,
        pages_per_block: 8,
        page_bytes: 512,
        spare_bytes: 64,
    }
}

fn mlc(blocks: u32) -> impl Fn(u64) -> RawFlash {
    move |seed| made(Profile { geometry: geometry(blocks), ..Profile::mlc_2010() }, seed)
}

/// Pages that are programmed in two parts, as logs of blocks are.
fn slc(order: Order) -> impl Fn(u64) -> RawFlash {
    let rules = Rules { order, programs_max: 2, ..Rules::default() };
    move |seed| made(Profile { geometry: geometry(80), rules, ..Profile::slc_2007() }, seed)
}

fn made(profile: Profile, seed: u64) -> RawFlash {
    RawFlash::new(profile, seed).expect("a geometry and rules that are sound")
}

fn wandering(stride: u64) -> Result<Tally> {
    let options = WanderingOptions { page_len: 512, keys_max: Some(8), split: Split::Halve };
    tally::<WanderingTree>(&mlc(32), &options, stride)
}

fn mu(layout: MuLayout, stride: u64) -> Result<Tally> {
    let options = MuTreeOptions { page_len: 512, entries_max: None, layout, split: Split::Halve };
    tally::<MuTree>(&mlc(24), &options, stride)
}

fn lsb(stride: u64) -> Result<Tally> {
    let options = LsbTreeOptions { page_len: 512, keys_max: Some(5), split: Split::Halve };
    tally::<LsbTree>(&mlc(32), &options, stride)
}

fn cascade(persistence: CbPersistence, stride: u64) -> Result<Tally> {
    let options = CbFlashOptions {
        page_len: 512,
        keys_max: Some(4),
        sequential: Sequential::Last,
        persistence,
        log_max: (persistence == CbPersistence::LogPage).then_some(20),
    };
    tally::<CbFlashTree>(&mlc(48), &options, stride)
}

fn in_page_logging(commit: LogCommit) -> InPageLoggingOptions {
    InPageLoggingOptions {
        node_len: 512,
        fanout_max: 4,
        records_max: 5,
        frames: 6,
        units_per_page: 1,
        log_reads: LogReads::Relevant,
        commit,
    }
}

fn ipl(commit: LogCommit, stride: u64) -> Result<Tally> {
    tally::<IplTree>(&slc(Order::Ascending), &in_page_logging(commit), stride)
}

fn dipl(commit: LogCommit, stride: u64) -> Result<Tally> {
    tally::<DiplTree>(&slc(Order::Consecutive), &in_page_logging(commit), stride)
}
