//! The LSM-tree loses power: its runs are replaced as a whole.

use crate::suite::{at_every_operation, at_random_points, bulk_loads_are_whole_or_refused, workload};
use trees::{LsmTree, LsmTreeOptions};

fn options() -> LsmTreeOptions {
    LsmTreeOptions {
        page_len: 512,
        memtable_pages: 2,
        ratio: 2,
        entries_max: Some(5),
        frames: 2,
        pio_max: 4,
        ..LsmTreeOptions::default()
    }
}

#[test]
fn at_every_operation_of_a_workload() {
    let images = at_every_operation::<LsmTree>(&options(), 1, &workload(1, 800, 150), 3);
    assert!(images > 300, "{images}");
}

#[test]
fn at_random_points_of_many() {
    let images = at_random_points::<LsmTree>(&options(), 100..130, 600, 300);
    assert!(images >= 10 || std::env::var("CRASH_SEED").is_ok(), "{images}");
}

#[test]
fn bulk_loads() {
    assert!(bulk_loads_are_whole_or_refused::<LsmTree>(&options(), 300) > 2);
}
