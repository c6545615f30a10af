//! A fault at every single I/O of a fixed scenario: the first, the second, ... until it passes. Each gives an error or
//! success; never a panic, a hang, or lost data.

use crate::scenario::{Workload, open};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated};

const SEED: u64 = 11;
/// Of a workload without syncs, whose log is stored to.
const UNSYNCED: u64 = 12;
const STEPS: usize = 60;

/// Runs the scenario, in two sessions, on a volume with a fault ordered.
fn run(volume: &Simulated, seed: u64, repeat: Repeat) -> (Workload, Option<sapwood::Error>) {
    let mut workload = Workload::new(seed);
    let mut error = None;
    for session in 0..2 {
        match open(volume) {
            Ok(db) => {
                if volume.fired() > 0 && session > 0 && repeat == Repeat::Once {
                    // The batch that failed may have happened: see what the reopening found.
                    let (number, _) = workload.verify(&db, workload.written, "after the reopening");
                    workload.resume(number);
                }
                for _ in 0..3 {
                    // After a full disk the work goes on; after anything else writes are refused until the reopening.
                    if let Err(failure) = workload.run(&db, STEPS / 3) {
                        let goes_on = failure.is_disk_full();
                        error = Some(failure);
                        if !goes_on {
                            break;
                        }
                    }
                }
                error = db.close().err().or(error);
            }
            Err(failure) => error = Some(failure),
        }
        if volume.fired() > 0 && repeat == Repeat::Sticky {
            break;
        }
    }
    (workload, error)
}

/// With windows and without.
fn fault_everywhere(fault: Fault, repeat: Repeat, filter: &Filter) -> u64 {
    let without = fault_at_each(|| Simulated::new(SEED), SEED, fault, repeat, filter);
    fault_at_each(|| Simulated::new(SEED).with_windows(), UNSYNCED, fault, repeat, filter).min(without)
}

fn fault_at_each(
    fresh: impl Fn() -> Simulated,
    seed: u64,
    fault: Fault,
    repeat: Repeat,
    filter: &Filter,
) -> u64 {
    let mut nth = 1;
    loop {
        let volume = fresh();
        volume.fail_nth(filter.clone(), nth, fault, repeat);
        let (workload, error) = run(&volume, seed, repeat);
        let story = format!("{fault:?} {repeat:?} at operation {nth}, error {error:?}");
        let passed = volume.fired() == 0;
        if passed {
            assert!(error.is_none(), "{story}: no fault, but an error");
        }
        volume.clear_faults();
        // The process restarts on what it left, and the power goes.
        let db =
            open(&volume.crash()).unwrap_or_else(|error| panic!("{story}: does not open again: {error}"));
        workload.verify(&db, workload.written, &story);
        drop(db);
        for image in 0..2 {
            let db =
                open(&volume.power_loss(image)).unwrap_or_else(|error| panic!("{story}: {image}: {error}"));
            workload.verify(&db, workload.durable, &story);
        }
        if passed {
            println!("{fault:?} {repeat:?}: {} operations, {} stores", nth - 1, volume.stores());
            return nth - 1;
        }
        nth += 1;
    }
}

#[test]
fn an_error_at_every_operation() {
    let operations = fault_everywhere(Fault::Error, Repeat::Once, &Filter::any());
    assert!(operations > 200, "the scenario does enough: {operations} operations");
}

#[test]
fn an_error_at_and_after_every_operation() {
    fault_everywhere(Fault::Error, Repeat::Sticky, &Filter::any());
}

#[test]
fn a_short_transfer_at_every_read_and_write() {
    fault_everywhere(Fault::Short, Repeat::Once, &Filter::kinds([OperationKind::Read, OperationKind::Write]));
}

#[test]
fn a_full_disk_at_every_write() {
    let writes = Filter::changes();
    fault_everywhere(Fault::NoSpace, Repeat::Once, &writes);
    fault_everywhere(Fault::NoSpace, Repeat::Sticky, &writes);
}
