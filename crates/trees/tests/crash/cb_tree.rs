//! The CB-tree out of place: with a log page no operation is lost, without one all since the last commit. In place it promises
//! nothing, and this shows why.

use crate::suite::{at_every_change, at_random_points, bulk_loads_are_whole_or_refused, workload};
use psync::{Fault, Filter, Repeat, Simulated};
use std::collections::BTreeMap;
use std::sync::Arc;
use trees::{CbPersistence, CbPlacement, CbTree, CbTreeOptions, Index, Sequential};

fn server() -> CbTreeOptions {
    CbTreeOptions {
        page_len: 1024,
        keys_max: Some(4),
        sequential: Sequential::Last,
        placement: CbPlacement::OutOfPlace,
        persistence: CbPersistence::RootGrowth,
        log_max: None,
        search_loads: false,
    }
}

fn embedded() -> CbTreeOptions {
    CbTreeOptions { persistence: CbPersistence::LogPage, log_max: Some(20), ..server() }
}

#[test]
fn power_fails_at_every_operation() {
    let steps = workload(1, 2000, 100);
    let images = at_every_change::<CbTree>(&server(), 1, &steps, 1);
    println!("{images} images of a server");
    assert!(images > 1000);
    let images = at_every_change::<CbTree>(&embedded(), 1, &steps, 1);
    println!("{images} images of an embedded system");
    assert!(images > 5000);
}

#[test]
fn power_fails_at_random() {
    let strict = CbTreeOptions { sequential: Sequential::Strict, page_len: 512, ..server() };
    let full_log = CbTreeOptions { log_max: None, ..embedded() };
    let mut images = 0;
    for (index, options) in (0..).zip([server(), embedded(), strict, full_log]) {
        images += at_random_points::<CbTree>(&options, 1000 * index..1000 * index + 130, 250, 80);
    }
    assert!(images >= 5000);
}

/// In place, as published: leaves that left memory are newer than their parents, and pages may be torn. The log page, which
/// has every operation since the last commit, does not help.
#[test]
fn as_published_power_loss_breaks_the_tree() {
    let steps = workload(5, 300, 100);
    for options in [server(), embedded()] {
        let options = CbTreeOptions { placement: CbPlacement::InPlace, ..options };
        let (mut broken, mut lost) = (0, 0);
        for nth in 1..300 {
            let volume = Simulated::new(3).with_alignment(128);
            let mut tree = CbTree::create(Arc::new(volume.clone()), &options).expect("created");
            volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
            let mut model = BTreeMap::new();
            let mut states = Vec::new();
            for step in &steps {
                states.push(model.clone());
                match step {
                    crate::suite::Step::Insert(key, value) => drop(model.insert(*key, *value)),
                    crate::suite::Step::Delete(key) => drop(model.remove(key)),
                    crate::suite::Step::Flush => {}
                }
                if step.apply(&mut tree).is_err() {
                    break;
                }
            }
            states.push(model);
            let found = CbTree::recover(Arc::new(volume.power_loss(nth)), &options)
                .and_then(|tree| tree.check().and_then(|_| tree.range(0..u64::MAX)));
            match found {
                Err(_) => broken += 1,
                Ok(found) => {
                    let found: BTreeMap<u64, u64> = found.into_iter().collect();
                    lost += u64::from(!states.contains(&found));
                }
            }
        }
        println!("{:?}: {broken} broken, {lost} with records lost or mixed", options.persistence);
        assert!(broken + lost > 20, "{:?}: {broken} {lost}", options.persistence);
    }
}

#[test]
fn a_bulk_load_is_whole_or_refused() {
    for options in [server(), embedded()] {
        let refused = bulk_loads_are_whole_or_refused::<CbTree>(&options, 1000);
        assert!(refused > 5, "{refused}");
    }
}
