//! The PIO B-tree loses power.

use crate::suite::{at_every_operation, at_random_points, workload};
use trees::{LogMode, PioOptions, PioTree};

fn options(log: LogMode) -> PioOptions {
    PioOptions {
        page_len: 128,
        segments: 4,
        pio_max: 4,
        queue_pages: 6,
        frames: 8,
        speriod: 10,
        bcnt: 25,
        fanout_max: Some(4),
        log,
        ..PioOptions::default()
    }
}

#[test]
fn at_every_operation_of_a_workload() {
    for (seed, log) in [(1, LogMode::Each), (2, LogMode::Buffered)] {
        let count = at_every_operation::<PioTree>(&options(log), seed, &workload(seed, 2000, 300), 1);
        println!("{log:?}: {count} images");
    }
}

#[test]
fn at_thousands_of_random_points() {
    let mut count = 0;
    for log in [LogMode::Each, LogMode::Buffered] {
        count += at_random_points::<PioTree>(&options(log), 0..250, 300, 200);
    }
    println!("{count} images");
    assert!(count >= 5000);
}
