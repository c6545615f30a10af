//! The PIO B-tree under the common suite.

use crate::suite::{bulk_loads, disk, operations, run, simulated, sum};
use trees::{Eviction, LogMode, PioOptions, PioTree};

fn options() -> [PioOptions; 5] {
    let tiny = PioOptions {
        page_len: 128,
        segments: 4,
        pio_max: 4,
        queue_pages: 5,
        frames: 6,
        speriod: 7,
        bcnt: 12,
        fanout_max: Some(4),
        log: LogMode::Off,
        eviction: Eviction::Lru,
        last_segment_map: true,
    };
    [
        tiny.clone(),
        PioOptions { segments: 1, bcnt: 1000, pio_max: 1, log: LogMode::Buffered, ..tiny.clone() },
        PioOptions {
            segments: 2,
            pio_max: 64,
            queue_pages: 40,
            fanout_max: None,
            eviction: Eviction::LowestLevel,
            ..tiny.clone()
        },
        PioOptions {
            segments: 8,
            last_segment_map: false,
            frames: 0,
            queue_pages: 1,
            bcnt: 3,
            log: LogMode::Each,
            ..tiny
        },
        PioOptions { queue_pages: 2, frames: 20, eviction: Eviction::LowestLevel, ..PioOptions::default() },
    ]
}

#[test]
fn does_what_a_btreemap_does() {
    let mut total = Default::default();
    for (seed, options) in (0..).zip(options()) {
        let count = operations() / 5;
        total =
            sum(total, run::<PioTree>(&simulated(), &options, seed, count, 400 << (4 * (seed % 3)), true));
    }
    println!("{total:?}");
    for rare in [total.splits, total.merges, total.redistributions, total.hits, total.flushes] {
        assert!(rare > 100, "{total:?}");
    }
    assert!(total.height >= 5, "{total:?}");
}

#[test]
fn does_so_on_a_disk() {
    for (seed, options) in (10..).zip(options()) {
        let (_dir, volume) = disk();
        let options = PioOptions { page_len: options.page_len.max(4096), ..options };
        run::<PioTree>(&volume, &options, seed, operations() / 400, 3000, true);
    }
}

#[test]
fn bulk_loads_are_whole() {
    options().iter().for_each(bulk_loads::<PioTree>);
}
