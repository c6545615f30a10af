//! The AS B-tree: after power loss it is as after some operation, no earlier than the last flush.

use crate::suite::{at_every_operation, at_random_points, bulk_loads_are_whole_or_refused, workload};
use psync::{Fault, Filter, Repeat, Simulated};
use std::sync::Arc;
use trees::{AsRecovery, AsTree, AsTreeOptions, Index};

fn tiny() -> AsTreeOptions {
    AsTreeOptions {
        node_len: 512,
        keys_max: Some(4),
        slots: 4,
        cached: 20,
        sub_file_len: 512 * 24,
        threshold: 0.3,
        checkpoint_every: 5,
        recovery: AsRecovery::Checkpoint,
        pio_max: 1,
    }
}

/// Batches of several sectors and of several files, with and without checkpoints.
fn options() -> [AsTreeOptions; 3] {
    [
        tiny(),
        AsTreeOptions {
            slots: 9,
            threshold: 0.5,
            checkpoint_every: 0,
            recovery: AsRecovery::ReadAll,
            ..tiny()
        },
        AsTreeOptions { node_len: 1024, slots: 1, checkpoint_every: 30, cached: 0, ..tiny() },
    ]
}

#[test]
fn power_fails_at_every_operation() {
    let steps = workload(1, 2000, 150);
    let images = at_every_operation::<AsTree>(&AsTreeOptions { cached: 500, ..tiny() }, 1, &steps, 1);
    println!("{images} images");
    assert!(images > 1000);
}

#[test]
fn power_fails_at_random() {
    let mut images = 0;
    for (index, options) in (0..).zip(options()) {
        images += at_random_points::<AsTree>(&options, 1000 * index..1000 * index + 170, 400, 100);
    }
    assert!(images >= 5000);
}

/// The paper's own recovery takes the last copy of every node: after power loss half of a split, and nodes that were
/// freed, are taken for the tree. That is why batches are marked.
#[test]
fn as_published_half_a_batch_is_taken_for_the_whole() {
    let published = AsTreeOptions { recovery: AsRecovery::AsPublished, checkpoint_every: 0, ..tiny() };
    let safe = AsTreeOptions { recovery: AsRecovery::ReadAll, ..published.clone() };
    let steps = workload(3, 400, 100);
    let mut broken = 0;
    for nth in 1..300 {
        let volume = Simulated::new(3).with_alignment(128);
        let mut tree = AsTree::create(Arc::new(volume.clone()), &published).expect("created");
        volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
        for step in &steps {
            if step.apply(&mut tree).is_err() {
                break;
            }
        }
        let image = volume.power_loss(nth);
        let found = AsTree::recover(Arc::new(image.power_loss(0)), &published)
            .and_then(|tree| tree.range(0..u64::MAX).and_then(|_| tree.check()));
        broken += u64::from(found.is_err());
        let tree = AsTree::recover(Arc::new(image), &safe).expect("recovered");
        tree.check().expect("whole");
    }
    println!("{broken} of 299 are broken");
    assert!(broken > 20, "{broken}");
}

#[test]
fn a_bulk_load_is_whole_or_refused() {
    for options in options() {
        let refused = bulk_loads_are_whole_or_refused::<AsTree>(&options, 1000);
        assert!(refused > 10, "{refused}");
    }
}
