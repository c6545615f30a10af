//! The wandering tree loses nothing that returned.

use crate::raw_suite::{at_every_change, at_random_points, bulk_loads_are_whole_or_nothing};
use crate::suite::workload;
use crate::tiny_flash::tiny_flash;
use trees::{Split, WanderingOptions, WanderingTree};

fn tiny() -> WanderingOptions {
    WanderingOptions { page_len: 512, keys_max: Some(8), split: Split::Halve }
}

#[test]
fn power_fails_at_every_change() {
    let steps = workload(1, 2000, 100);
    let images = at_every_change::<WanderingTree>(&|seed| tiny_flash(seed, 24), &tiny(), 1, &steps);
    println!("{images} images");
    assert!(images > 6000, "{images}");
}

#[test]
fn power_fails_at_random() {
    let tall = WanderingOptions { keys_max: Some(5), split: Split::Even, ..tiny() };
    let mut images = 0;
    for (index, options) in (0..).zip([tiny(), tall]) {
        let fresh = |seed| tiny_flash(seed, 24);
        images +=
            at_random_points::<WanderingTree>(&fresh, &options, 10 * index..10 * index + 5, (1000, 80), 500);
    }
    assert!(images >= 5000, "{images}");
}

#[test]
fn a_bulk_load_is_whole_or_nothing() {
    let nothing =
        bulk_loads_are_whole_or_nothing::<WanderingTree>(&|seed| tiny_flash(seed, 64), &tiny(), 1000);
    assert!(nothing > 100, "{nothing}");
}
