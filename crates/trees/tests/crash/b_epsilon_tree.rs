//! The Bε-tree loses power: nodes go to fresh pages, and one anchor replaces the root.

use crate::suite::{at_every_operation, at_random_points, bulk_loads_are_whole_or_refused, workload};
use trees::{BEpsilonTree, BEpsilonTreeOptions};

fn options(retired_max: u64) -> BEpsilonTreeOptions {
    BEpsilonTreeOptions {
        page_len: 512,
        fanout: Some(4),
        entries_max: Some(4),
        retired_max,
        frames: 3,
        pio_max: 4,
    }
}

#[test]
fn at_every_operation_of_a_workload() {
    for (seed, retired_max) in [(1, 3), (2, 1 << 20)] {
        let images =
            at_every_operation::<BEpsilonTree>(&options(retired_max), seed, &workload(seed, 300, 150), 1);
        assert!(images > 100, "{images}");
    }
}

#[test]
fn at_random_points_of_many() {
    let images = at_random_points::<BEpsilonTree>(&options(5), 100..130, 600, 300);
    assert!(images >= 10 || std::env::var("CRASH_SEED").is_ok(), "{images}");
}

#[test]
fn bulk_loads() {
    assert!(bulk_loads_are_whole_or_refused::<BEpsilonTree>(&options(5), 300) > 2);
}
