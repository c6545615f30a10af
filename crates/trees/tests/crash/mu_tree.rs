//! The µ-tree and the µ*-tree lose nothing that returned.

use crate::raw_suite::{at_every_change, at_random_points, bulk_loads_are_whole_or_nothing};
use crate::suite::workload;
use crate::tiny_flash::tiny_flash;
use trees::{MuLayout, MuTree, MuTreeOptions, Split};

fn options(layout: MuLayout) -> MuTreeOptions {
    MuTreeOptions { page_len: 512, entries_max: None, layout, split: Split::Halve }
}

const LAYOUTS: [MuLayout; 2] = [MuLayout::Fixed, MuLayout::Adaptive];

#[test]
fn power_fails_at_every_change() {
    let steps = workload(1, 2000, 100);
    for layout in LAYOUTS {
        let images = at_every_change::<MuTree>(&|seed| tiny_flash(seed, 16), &options(layout), 1, &steps);
        println!("{layout:?}: {images} images");
        assert!(images > 2000, "{images}");
    }
}

#[test]
fn power_fails_at_random() {
    for (index, layout) in (0..).zip(LAYOUTS) {
        let fresh = |seed| tiny_flash(seed, 16);
        let seeds = 10 * index..10 * index + 10;
        let images = at_random_points::<MuTree>(&fresh, &options(layout), seeds, (1000, 110), 500);
        assert!(images >= 5000, "{images}");
    }
}

#[test]
fn a_bulk_load_is_whole_or_nothing() {
    for layout in LAYOUTS {
        let nothing =
            bulk_loads_are_whole_or_nothing::<MuTree>(&|seed| tiny_flash(seed, 16), &options(layout), 200);
        assert!(nothing > 10, "{nothing}");
    }
}
