//! The B-link tree under the common suite.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use trees::{BlinkOptions, BlinkTree};

fn options() -> [BlinkOptions; 3] {
    let tiny = BlinkOptions { page_len: 256, frames: 3, keys_max: Some(4) };
    [
        tiny.clone(),
        BlinkOptions { frames: 40, keys_max: Some(9), ..tiny },
        BlinkOptions { frames: 20, ..Default::default() },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    for (seed, options) in (0..).zip(options()) {
        let count = operations() / 3 + 1;
        total =
            sum(total, run::<BlinkTree>(&simulated(), &options, seed, count, 400 << (4 * (seed % 3)), true));
    }
    println!("{total:?}");
    for rare in [total.splits, total.hits, total.pages_read] {
        assert!(rare > 100, "{total:?}");
    }
    assert!(total.height >= 5, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = BlinkOptions { page_len: options.page_len.max(4096), ..options };
        run::<BlinkTree>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<BlinkTree>);
}
