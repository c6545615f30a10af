//! The IPL and the d-IPL B+-tree: with a log unit for each operation none is lost; under the papers' rules what was done since
//! the last flush is there or not, key by key.

use crate::raw_suite::{at_every_change, at_random_points, bulk_loads_are_whole_or_nothing};
use crate::suite::workload;
use flash::{Geometry, Order, Profile, RawFlash, Rules};
use std::sync::Arc;
use trees::{DiplTree, InPageLoggingOptions, Index, IplTree, LogCommit, LogReads};

fn flash(order: Order, seed: u64) -> RawFlash {
    let geometry = Geometry {
        channels: 1,
        dies_per_channel: 2,
        planes: 1,
        blocks_per_plane: 40,
        pages_per_block: 8,
        page_bytes: 512,
        spare_bytes: 64,
    };
    let rules = Rules { order, programs_max: 2, ..Rules::default() };
    RawFlash::new(Profile { geometry, rules, ..Profile::slc_2007() }, seed).expect("flash")
}

fn in_order(seed: u64) -> RawFlash {
    flash(Order::Consecutive, seed)
}

fn upwards(seed: u64) -> RawFlash {
    flash(Order::Ascending, seed)
}

fn rules() -> InPageLoggingOptions {
    InPageLoggingOptions {
        node_len: 512,
        fanout_max: 4,
        records_max: 5,
        frames: 4,
        units_per_page: 1,
        log_reads: LogReads::Relevant,
        commit: LogCommit::Rules,
    }
}

fn each() -> InPageLoggingOptions {
    InPageLoggingOptions { commit: LogCommit::EachOperation, ..rules() }
}

fn in_parts() -> InPageLoggingOptions {
    InPageLoggingOptions { units_per_page: 2, frames: 2, ..rules() }
}

type Fresh = fn(u64) -> RawFlash;

fn every<T: Index<Options = InPageLoggingOptions, Ground = Arc<RawFlash>>>(fresh: Fresh) {
    let steps = workload(1, 2000, 100);
    let images = at_every_change::<T>(&fresh, &InPageLoggingOptions { frames: 6, ..rules() }, 1, &steps);
    println!("{images} images under the papers' rules");
    assert!(images > 5000, "{images}");
    let images = at_every_change::<T>(&fresh, &each(), 1, &steps[..500]);
    println!("{images} images with a unit for each operation");
    assert!(images > 1500, "{images}");
}

fn random<T: Index<Options = InPageLoggingOptions, Ground = Arc<RawFlash>>>(fresh: Fresh) {
    let mut images = 0;
    for (index, options) in (0..).zip([rules(), each(), in_parts()]) {
        let seeds = 1000 * index..1000 * index + 56;
        images += at_random_points::<T>(&fresh, &options, seeds, (250, 80), 30);
    }
    assert!(images >= 5000 || std::env::var("CRASH_SEED").is_ok());
}

#[test]
fn power_fails_at_every_change_of_a_dipl_tree() {
    every::<DiplTree>(in_order);
}

#[test]
fn power_fails_at_every_change_of_an_ipl_tree() {
    every::<IplTree>(upwards);
}

#[test]
fn power_fails_at_random_in_a_dipl_tree() {
    random::<DiplTree>(in_order);
}

#[test]
fn power_fails_at_random_in_an_ipl_tree() {
    random::<IplTree>(upwards);
}

#[test]
fn a_bulk_load_is_whole_or_refused() {
    let refused = bulk_loads_are_whole_or_nothing::<DiplTree>(&in_order, &rules(), 300);
    assert!(refused > 50, "{refused}");
    let refused = bulk_loads_are_whole_or_nothing::<IplTree>(&upwards, &rules(), 300);
    assert!(refused > 50, "{refused}");
}
