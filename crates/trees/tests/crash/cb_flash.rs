//! The CB-tree on raw flash: with a log page no operation is lost, without one all since the last commit.

use crate::raw_suite::{at_every_change, at_random_points, bulk_loads_are_whole_or_nothing};
use crate::suite::workload;
use crate::tiny_flash::tiny_flash;
use trees::{CbFlashOptions, CbFlashTree, CbPersistence, Sequential};

fn server() -> CbFlashOptions {
    CbFlashOptions {
        page_len: 512,
        keys_max: Some(4),
        sequential: Sequential::Last,
        persistence: CbPersistence::RootGrowth,
        log_max: None,
    }
}

fn embedded() -> CbFlashOptions {
    CbFlashOptions { persistence: CbPersistence::LogPage, log_max: Some(20), ..server() }
}

#[test]
fn power_fails_at_every_change() {
    let steps = workload(1, 2000, 100);
    for (options, least) in [(server(), 1500), (embedded(), 3500)] {
        let images = at_every_change::<CbFlashTree>(&|seed| tiny_flash(seed, 32), &options, 1, &steps);
        println!("{:?}: {images} images", options.persistence);
        assert!(images > least, "{images}");
    }
}

#[test]
fn power_fails_at_random() {
    let strict = CbFlashOptions { sequential: Sequential::Strict, keys_max: Some(6), ..server() };
    let full_log = CbFlashOptions { log_max: None, ..embedded() };
    for (index, pair) in (0..).zip([[server(), strict], [embedded(), full_log]]) {
        let mut images = 0;
        for (half, options) in (0..).zip(pair) {
            let fresh = |seed| tiny_flash(seed, 28);
            let first = 20 * index + 10 * half;
            images += at_random_points::<CbFlashTree>(&fresh, &options, first..first + 5, (1000, 80), 500);
        }
        assert!(images >= 5000, "{images}");
    }
}

#[test]
fn a_bulk_load_is_whole_or_nothing() {
    for options in [server(), embedded()] {
        let fresh = |seed| tiny_flash(seed, 200);
        let nothing = bulk_loads_are_whole_or_nothing::<CbFlashTree>(&fresh, &options, 1000);
        assert!(nothing > 100, "{nothing}");
    }
}
