//! The FD-tree loses power: its runs are replaced as a whole, and its head tree is logged or not.

use crate::suite::{at_every_operation, at_random_points, workload};
use trees::{FdTree, FdTreeOptions, HeadLog};

fn options() -> [FdTreeOptions; 3] {
    [HeadLog::Off, HeadLog::AtFlush, HeadLog::EachOperation].map(|log| FdTreeOptions {
        page_len: 512,
        head_pages: 3,
        ratio: 2,
        entries_max: Some(5),
        pio_max: 4,
        log,
    })
}

#[test]
fn at_every_operation_of_a_workload() {
    for (seed, options) in (0..).zip(options()) {
        let images = at_every_operation::<FdTree>(&options, seed, &workload(seed, 500, 150), 2);
        assert!(images > 500, "{images}");
    }
}

#[test]
fn at_random_points_of_many() {
    for (seed, options) in (0..).zip(options()) {
        let images = at_random_points::<FdTree>(&options, 100 * seed..100 * seed + 40, 600, 300);
        assert!(images >= 10 || std::env::var("CRASH_SEED").is_ok(), "{images}");
    }
}
