//! BFTL loses power: what its anchor needs is there, and nothing of what came later.

use crate::suite::{at_every_operation, at_random_points, workload};
use trees::{Bftl, BftlOptions};

fn options() -> [BftlOptions; 3] {
    let tiny = BftlOptions {
        sector_len: 512,
        units: 10,
        chain_max: 2,
        keys_max: Some(5),
        reclaim: true,
        ..BftlOptions::default()
    };
    [
        tiny.clone(),
        BftlOptions { reclaim: false, ..tiny.clone() },
        BftlOptions { chain_max: 4, units: 40, ..tiny },
    ]
}

#[test]
fn at_every_operation_of_a_workload() {
    for (seed, options) in (0..).zip(options()) {
        let images = at_every_operation::<Bftl>(&options, seed, &workload(seed, 80, 60), 2);
        assert!(images > 500, "{images}");
    }
}

#[test]
fn at_random_points_of_many() {
    for (seed, options) in (0..).zip(options()) {
        let images = at_random_points::<Bftl>(&options, 100 * seed..100 * seed + 10, 600, 300);
        assert!(images >= 10 || std::env::var("CRASH_SEED").is_ok(), "{images}");
    }
}
