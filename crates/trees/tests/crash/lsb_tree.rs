//! The LSB-tree loses nothing that returned.

use crate::raw_suite::{at_every_change, at_random_points, bulk_loads_are_whole_or_nothing};
use crate::suite::workload;
use crate::tiny_flash::tiny_flash;
use trees::{LsbTree, LsbTreeOptions, Split};

fn tiny() -> LsbTreeOptions {
    LsbTreeOptions { page_len: 512, keys_max: Some(5), split: Split::Halve }
}

#[test]
fn power_fails_at_every_change() {
    let steps = workload(1, 2000, 100);
    let images = at_every_change::<LsbTree>(&|seed| tiny_flash(seed, 24), &tiny(), 1, &steps);
    println!("{images} images");
    assert!(images > 2500, "{images}");
}

#[test]
fn power_fails_at_random() {
    let large = LsbTreeOptions { keys_max: Some(9), split: Split::Even, ..tiny() };
    let mut images = 0;
    for (index, options) in (0..).zip([tiny(), large]) {
        let fresh = |seed| tiny_flash(seed, 20);
        images += at_random_points::<LsbTree>(&fresh, &options, 10 * index..10 * index + 5, (1000, 80), 500);
    }
    assert!(images >= 5000, "{images}");
}

#[test]
fn a_bulk_load_is_whole_or_nothing() {
    let nothing = bulk_loads_are_whole_or_nothing::<LsbTree>(&|seed| tiny_flash(seed, 80), &tiny(), 1000);
    assert!(nothing > 100, "{nothing}");
}
