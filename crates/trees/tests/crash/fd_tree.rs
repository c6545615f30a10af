//! The FD-tree loses power: its runs are replaced as a whole, and its head tree is logged or not.

use crate::suite::{at_every_operation, at_random_points, workload};
use psync::Simulated;
use std::sync::Arc;
use trees::{FdTree, FdTreeOptions, HeadLog, Index};

fn options() -> [FdTreeOptions; 3] {
    [HeadLog::Off, HeadLog::AtFlush, HeadLog::EachOperation].map(|log| FdTreeOptions {
        page_len: 512,
        head_pages: 3,
        ratio: 2,
        entries_max: Some(5),
        frames: 0,
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

/// A batch of three log blocks is torn: the first is missing. After the recovery another batch is torn, of which only the
/// first block arrives, so that it stands before what is left of the older one. That must not be taken for its
/// continuation.
#[test]
fn what_is_left_of_a_torn_batch_is_not_part_of_a_later_one() {
    let options = FdTreeOptions { head_pages: 64, log: HeadLog::AtFlush, ..options()[1].clone() };
    let volume = Simulated::new(1).with_alignment(512);
    let batch = |tree: &mut FdTree, value: u64| {
        (0..60).for_each(|key| tree.insert(key, value).expect("inserted"));
        tree.flush().expect("flushed");
    };
    let mut tree = FdTree::create(Arc::new(volume.clone()), &options).unwrap();
    batch(&mut tree, 1);
    drop(tree);
    let mut old = volume.read_file("fdtree-log").unwrap();
    old[..512].fill(0);
    volume.write_file("fdtree-log", &old).unwrap();
    let mut tree = FdTree::recover(Arc::new(volume.clone()), &options).unwrap();
    assert_eq!(tree.range(0..100).unwrap(), []);
    batch(&mut tree, 2);
    drop(tree);
    let mut torn = volume.read_file("fdtree-log").unwrap();
    torn[512..1536].copy_from_slice(&old[512..1536]);
    volume.write_file("fdtree-log", &torn).unwrap();
    let tree = FdTree::recover(Arc::new(volume), &options).unwrap();
    let expected: Vec<_> = (0..28).map(|key| (key, 2)).collect();
    assert_eq!(tree.range(0..100).unwrap(), expected, "the block that arrived");
}
