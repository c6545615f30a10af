//! How the PIO B-tree's rivals are tuned for a load, each over the space that its authors name, by what its operations cost
//! on the measured device.
//!
//! - FD-tree (Li et al., VLDB 2010): k, how much larger each run is than the one above. A search reads a page of every run; an
//!   entry is merged into each run once, and every merge reads and writes all of the run, which is half full on average. A
//!   pool for pages of the runs saves searches a part of these reads.
//! - BFTL (Wu, Kuo and Chang, ACM TECS 2007): C, the longest list of sectors. A search reads half of a list on average; a list
//!   is compacted every C - 1 commits to its node.

use crate::failure::{Failure, Result};
use trees::{BftlOptions, DeviceTimes, FdTreeOptions, Load, level_table};

/// Bytes of memory that an entry of an FD-tree's head takes: key and change.
pub(crate) const HEAD_ENTRY: usize = 24;
/// Pages of an FD-tree, to the longest that the B+-tree may have: with 4 KiB, a run is at most 125 times as large as the one
/// above; with 8 KiB, 251.
const PAGES: [usize; 5] = [4096, 8192, 16384, 32768, 65536];
const RATIOS: [usize; 8] = [16, 24, 32, 48, 64, 96, 128, 250];
const CHAINS: std::ops::RangeInclusive<usize> = 2..=6;

/// Entries of an FD-tree's page: 16 bytes and a quarter each.
fn entries(page_len: usize) -> usize {
    (page_len - 32) * 4 / 65
}

/// What an FD-tree costs a load: a search and an insertion, in microseconds.
fn fd_cost(times: &DeviceTimes, load: &Load, options: &FdTreeOptions) -> (f64, f64) {
    let page = times.page(options.page_len);
    let per_page = entries(options.page_len) as f64;
    let head = options.head_pages as f64 * per_page;
    let ratio = options.ratio as f64;
    let (mut runs, mut insert, mut above) = (Vec::new(), 0.0, head);
    loop {
        let run = (above * ratio).min(load.records);
        let is_lowest = above * ratio >= load.records;
        // The lowest run is always full.
        let full = if is_lowest { run } else { run / 2.0 };
        insert += (full + above) / above * (page.psync_read + page.psync_write) / per_page;
        runs.push(full / per_page);
        if is_lowest {
            break;
        }
        above = run;
    }
    let held = level_table::held_by_lru(&runs, options.frames as f64);
    (held.iter().map(|held| (1.0 - held) * page.read).sum(), insert)
}

/// How an FD-tree's memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// All of it is head.
    Head,
    /// A part is head, the rest is an LRU pool for pages of the runs, as the cost model has it: what the released code is said to do, whose
    /// head is small.
    HeadAndPool,
}

/// Shares of the memory that the head gets beside a pool, from the largest on.
const HEAD_SHARES: [f64; 5] = [0.5, 0.25, 0.125, 0.0625, 0.03125];

/// The cheapest FD-tree for a load, with `head_entry` bytes an entry of the head.
pub(crate) fn fd_tree(
    times: &DeviceTimes,
    load: &Load,
    head_entry: usize,
    division: Division,
) -> Result<FdTreeOptions> {
    let mut best: Option<(f64, FdTreeOptions)> = None;
    let shares = if division == Division::Head { &[1.0][..] } else { &HEAD_SHARES };
    for page_len in PAGES {
        for share in shares {
            let head_pages = (share * load.memory / (entries(page_len) * head_entry) as f64) as usize;
            let frames = ((1.0 - share) * load.memory / page_len as f64) as usize;
            for ratio in RATIOS.into_iter().filter(|ratio| *ratio <= entries(page_len) / 2) {
                let options =
                    FdTreeOptions { page_len, head_pages, ratio, frames, ..FdTreeOptions::default() };
                if head_pages == 0 {
                    continue;
                }
                let (search, insert) = fd_cost(times, load, &options);
                let cost = load.updates * insert + (1.0 - load.updates) * search;
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, options));
                }
            }
        }
    }
    let none = || Failure::CannotRun("the memory is too small for the head of an FD-tree".into());
    best.map(|(_, options)| options).ok_or_else(none)
}

/// The cheapest BFTL for a load. Its table takes what it takes.
pub(crate) fn bftl(times: &DeviceTimes, load: &Load) -> BftlOptions {
    let default = BftlOptions::default();
    let page = times.page(default.sector_len);
    let cost = |chain: &usize| {
        let chain = *chain as f64;
        // Inner nodes change seldom: their lists are short. The leaf's is half as long as it may be.
        let search = (1.0 + chain) / 2.0 * page.read;
        let commit = page.write / default.units as f64 + (chain * page.read + page.write) / (chain - 1.0);
        search + load.updates * commit
    };
    let best = CHAINS.min_by(|one, two| cost(one).total_cmp(&cost(two))).unwrap_or(default.chain_max);
    BftlOptions { chain_max: best, ..default }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trees::PageTimes;

    fn times() -> DeviceTimes {
        let page = |bytes, read, psync| PageTimes {
            bytes,
            read,
            write: 2.0 * read,
            psync_read: psync,
            psync_write: psync,
        };
        DeviceTimes { sizes: vec![page(4096, 80.0, 6.0), page(8192, 82.0, 10.0)] }
    }

    #[test]
    fn searches_want_few_runs_and_short_lists_and_updates_do_not() {
        let load = |updates| Load { records: 2e6, memory: 24.0 * 4096.0, updates, ..Load::default() };
        let fd = |updates| fd_tree(&times(), &load(updates), 17, Division::Head).unwrap();
        let runs = |options: &FdTreeOptions| fd_cost(&times(), &load(0.5), options).0;
        assert!(runs(&fd(0.01)) <= runs(&fd(0.999)));
        assert!(fd(0.01).ratio > fd(0.999).ratio, "{:?} {:?}", fd(0.01), fd(0.999));
        let chain = |updates| bftl(&times(), &load(updates)).chain_max;
        assert!(chain(0.05) < chain(1.0), "{} {}", chain(0.05), chain(1.0));
        assert!(fd_tree(&times(), &Load { memory: 1.0, ..load(0.5) }, 17, Division::Head).is_err());
    }

    #[test]
    fn a_pool_is_worth_memory_where_there_are_more_searches() {
        let load = |updates| Load { records: 2e6, memory: 400.0 * 4096.0, updates, ..Load::default() };
        let fd = |updates| fd_tree(&times(), &load(updates), 17, Division::HeadAndPool).unwrap();
        let bytes = |options: &FdTreeOptions| options.head_pages * entries(options.page_len) * 17;
        for updates in [0.05, 0.5, 0.95] {
            let options = fd(updates);
            assert!(options.frames > 0 && bytes(&options) * 2 <= 400 * 4096, "{options:?}");
            assert!(bytes(&options) + options.frames * options.page_len <= 400 * 4096, "{options:?}");
        }
        assert!(bytes(&fd(0.05)) <= bytes(&fd(0.95)), "{:?} {:?}", fd(0.05), fd(0.95));
        let cost = |options: &FdTreeOptions| fd_cost(&times(), &load(0.05), options).0;
        let head = fd_tree(&times(), &load(0.05), 17, Division::Head).unwrap();
        assert!(cost(&fd(0.05)) < cost(&head), "the pool makes searches cheaper");
    }
}
