//! The IPL and the d-IPL B+-tree under the common suite, on flash that wants pages programmed in order, and their structure by
//! count.

use crate::suite::{bulk_loads_on, operations, run_watched};
use flash::{Geometry, Order, Profile, RawFlash, Rules};
use std::sync::Arc;
use trees::{DiplTree, InPageLoggingOptions, Index, IplTree, LogCommit, LogDetails, LogReads};

/// Flash of so many blocks, each of 8 pages of 512 bytes.
fn flash(order: Order, blocks: u32) -> Arc<RawFlash> {
    let geometry = Geometry {
        channels: 1,
        dies_per_channel: 2,
        planes: 1,
        blocks_per_plane: blocks / 2,
        pages_per_block: 8,
        page_bytes: 512,
        spare_bytes: 64,
    };
    let rules = Rules { order, programs_max: 4, ..Rules::default() };
    Arc::new(RawFlash::new(Profile { geometry, rules, ..Profile::slc_2007() }, 1).expect("flash"))
}

fn options() -> [InPageLoggingOptions; 5] {
    let tiny = InPageLoggingOptions {
        node_len: 512,
        fanout_max: 4,
        records_max: 5,
        frames: 3,
        units_per_page: 1,
        log_reads: LogReads::Relevant,
        commit: LogCommit::Rules,
    };
    [
        tiny.clone(),
        InPageLoggingOptions { frames: 1, units_per_page: 4, log_reads: LogReads::All, ..tiny.clone() },
        InPageLoggingOptions { fanout_max: 6, records_max: 9, frames: 40, ..tiny.clone() },
        InPageLoggingOptions { frames: 5, commit: LogCommit::EachOperation, ..tiny.clone() },
        InPageLoggingOptions { node_len: 1024, fanout_max: 99, records_max: 99, units_per_page: 2, ..tiny },
    ]
}

/// All in one, and how much of the flash was used.
#[derive(Debug, Default)]
struct Seen {
    log: LogDetails,
    splits: u64,
    merges: u64,
    height: u32,
}

fn model<T>(order: Order, details: fn(&T) -> LogDetails) -> Seen
where
    T: Index<Options = InPageLoggingOptions, Ground = Arc<RawFlash>>,
{
    let mut seen = Seen::default();
    for (seed, options) in (0..).zip(options()) {
        let count = operations() / 5;
        let flash = flash(order, 1600);
        let mut all = Vec::new();
        let total = run_watched::<T>(
            &flash,
            &options,
            seed,
            count,
            if seed == 4 { 4000 } else { 300 << (seed % 3) },
            true,
            &mut |tree| all.push(details(tree)),
        );
        for log in all {
            seen.log = sum(seen.log, log);
        }
        seen.splits += total.splits;
        seen.merges += total.merges;
        seen.height = seen.height.max(total.height);
    }
    println!("{seen:?}");
    seen
}

fn sum(one: LogDetails, two: LogDetails) -> LogDetails {
    LogDetails {
        units: one.units + two.units,
        split_units: one.split_units + two.split_units,
        full_sectors: one.full_sectors + two.full_sectors,
        evictions: one.evictions + two.evictions,
        groups: one.groups + two.groups,
        cleansings: one.cleansings + two.cleansings,
        block_splits: one.block_splits + two.block_splits,
        block_merges: one.block_merges + two.block_merges,
        ghosts: one.ghosts + two.ghosts,
        ghosts_of_ghosts: one.ghosts_of_ghosts + two.ghosts_of_ghosts,
        double_splits: one.double_splits + two.double_splits,
        roots_dropped: one.roots_dropped + two.roots_dropped,
        evaporated: one.evaporated + two.evaporated,
        moved_pages: one.moved_pages + two.moved_pages,
    }
}

/// On flash that refuses a program out of order: had d-IPL left out a page anywhere, it would not come to the end.
#[test]
fn dipl_does_what_a_btreemap_does_programming_every_page_in_order() {
    let Seen { log, splits, merges, height } = model(Order::Consecutive, DiplTree::details);
    for rare in [
        splits,
        merges,
        log.full_sectors,
        log.evictions,
        log.cleansings,
        log.block_splits,
        log.block_merges,
        log.ghosts,
        log.ghosts_of_ghosts,
        log.double_splits,
        log.roots_dropped,
    ] {
        assert!(rare > 20, "{log:?}");
    }
    assert!(height >= 5 && log.evaporated == 0, "{height} {log:?}");
}

#[test]
fn ipl_does_what_a_btreemap_does() {
    let Seen { log, splits, merges, height } = model(Order::Ascending, IplTree::details);
    for rare in [
        splits,
        merges,
        log.full_sectors,
        log.evictions,
        log.cleansings,
        log.double_splits,
        log.roots_dropped,
    ] {
        assert!(rare > 20, "{log:?}");
    }
    assert!(height >= 5 && log.evaporated > 1000, "{height} {log:?}");
}

#[test]
fn bulk_loads_are_whole() {
    for options in options() {
        bulk_loads_on::<DiplTree>(&|| flash(Order::Consecutive, 6000), &options);
        bulk_loads_on::<IplTree>(&|| flash(Order::Ascending, 6000), &options);
    }
}
