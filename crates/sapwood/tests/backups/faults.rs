//! A fault and a power failure at every operation of a backup, on the side of the source and on that of the target, and of a restore.

use crate::ground::{Load, directory, hash, open, open_kept, options};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated};
use sapwood::backup::{self, Point, Restore};
use sapwood::{Database, Error};
use std::sync::Arc;

/// A database that has a backup, and what has come since; the target, and the hashes of what the first backup has, and the database.
struct Ground {
    source: Simulated,
    target: Simulated,
    first: (u64, usize),
    last: (u64, usize),
}

impl Ground {
    /// `steps`: of the load before the first backup; half as many come after it.
    fn new(steps: usize) -> Self {
        let (source, target) = (Simulated::new(5), Simulated::new(6));
        let db = open_kept(&source);
        let mut load = Load::new(&db, 5).expect("keyspaces");
        load.run(&db, steps).expect("writes");
        db.flush().expect("flushes");
        load.run(&db, 10).expect("writes");
        db.backup().archive_log().run(&directory(&target)).expect("a backup");
        let first = hash(&db);
        load.ingests = false;
        load.run(&db, steps / 2).expect("writes");
        let last = hash(&db);
        drop((load, db));
        Self { source, target, first, last }
    }
}

fn restored(target: &Simulated, number: u64) -> (u64, usize) {
    restored_by(Restore::from(&directory(target)).number(number))
}

/// The first backup, and what was committed up to an operation.
fn restored_to(target: &Simulated, seq: u64) -> (u64, usize) {
    restored_by(Restore::from(&directory(target)).number(1).to(Point::Sequence(seq)))
}

fn restored_by(restore: Restore<'_>) -> (u64, usize) {
    let copy = Simulated::new(77);
    restore.onto(Arc::new(copy.clone())).expect("restores");
    let db = open(&copy).expect("opens");
    db.check().expect("sound");
    hash(&db)
}

/// After a backup that has failed or not: the first is as it was, and another attempt has all of it.
fn settle(ground: &Ground, db: &Database, target: &Simulated, what: &str) {
    assert_eq!(restored(target, 1), ground.first, "{what}");
    let again = db.backup().archive_log().run(&directory(target));
    let again = again.unwrap_or_else(|error| panic!("{what}: again: {error}"));
    // Nothing is left of the one that failed.
    let names = sapwood::backup::Target::list(&directory(target)).expect("lists");
    let kept: u64 = backup::list(&directory(target)).expect("lists").iter().map(|info| info.number).sum();
    assert!(kept >= 1 && names.iter().all(|(name, _)| !name.ends_with(".tmp")), "{what}: {names:?}");
    // What it has is durable, also the blobs that it found there: a sync of the directory that failed may have lost their names.
    let target = &target.power_loss(again.number);
    assert_eq!(restored(target, again.number), hash(db), "{what}: power failed");
    assert!(again.archive.is_some_and(|archive| archive.gap.is_none()), "{what}: {again:?}");
    assert_eq!(restored_to(target, again.sequence), hash(db), "{what}");
}

/// Runs `work` with a fault at each operation of a volume in turn, until one run has none.
fn each_operation(mut work: impl FnMut(u64) -> bool) -> u64 {
    for nth in 1.. {
        if !work(nth) {
            return nth - 1;
        }
    }
    0
}

const FAULTS: [Fault; 4] = [Fault::Error, Fault::Short, Fault::NoSpace, Fault::PowerOff];

#[test]
fn a_fault_at_any_operation_of_the_source_harms_no_backup() {
    let ground = Ground::new(240);
    let mut points = 0;
    for fault in FAULTS {
        points += each_operation(|nth| {
            let (source, target) = (ground.source.crash(), ground.target.crash());
            let db = open(&source).expect("opens");
            let before = source.fired();
            source.fail_nth(Filter::any(), nth, fault, Repeat::Once);
            let what = format!("{fault:?} at operation {nth}");
            let taken = db.backup().archive_log().run(&directory(&target));
            let has_fired = source.fired() > before;
            source.clear_faults();
            if let Ok(info) = &taken {
                assert_eq!(restored(&target, info.number), ground.last, "{what}");
            } else {
                assert!(has_fired, "{what}: {taken:?}");
            }
            let source = if source.is_off() { source.power_loss(nth) } else { source.crash() };
            drop(db);
            settle(&ground, &open(&source).expect("opens"), &target, &what);
            has_fired
        });
    }
    assert!(points > 100, "{points} points");
}

#[test]
fn a_fault_at_any_operation_of_the_target_harms_no_backup() {
    let ground = Ground::new(60);
    let mut points = 0;
    for fault in FAULTS {
        points += each_operation(|nth| {
            let (source, mut target) = (ground.source.crash(), ground.target.crash());
            let db = open(&source).expect("opens");
            let before = target.fired();
            target.fail_nth(Filter::any(), nth, fault, Repeat::Once);
            let what = format!("{fault:?} at operation {nth}");
            let taken = db.backup().archive_log().run(&directory(&target));
            let has_fired = target.fired() > before;
            target.clear_faults();
            if fault == Fault::PowerOff {
                target = target.power_loss(nth);
            }
            match &taken {
                // It was durable when it returned.
                Ok(info) => assert_eq!(restored(&target, info.number), hash(&db), "{what}"),
                Err(error) => {
                    assert!(has_fired && matches!(error, Error::BackupTarget { .. }), "{what}: {error}");
                }
            }
            settle(&ground, &db, &target, &what);
            has_fired
        });
    }
    assert!(points > 100, "{points} points");
}

/// What a restore leaves behind when it is interrupted opens as no database, and is overwritten by the next.
#[test]
fn a_fault_at_any_operation_of_a_restore_leaves_no_database() {
    let ground = Ground::new(150);
    let db = open(&ground.source).expect("opens");
    let later = db.backup().archive_log().run(&directory(&ground.target)).expect("a second one");
    let (mut points, mut whole) = (0, 0);
    // The first backup, and a moment behind it, which is restored from that.
    for (fault, is_later) in FAULTS.into_iter().flat_map(|fault| [(fault, false), (fault, true)]) {
        let target = directory(&ground.target);
        let restore = || match is_later {
            true => Restore::from(&target).number(1).to(Point::Sequence(later.sequence)),
            false => Restore::from(&target).number(1),
        };
        let wanted = if is_later { ground.last } else { ground.first };
        points += each_operation(|nth| {
            let mut copy = Simulated::new(nth);
            copy.fail_nth(Filter::any(), nth, fault, Repeat::Once);
            let what = format!("{fault:?} at operation {nth}");
            let done = restore().onto(Arc::new(copy.clone()));
            let has_fired = copy.fired() > 0;
            assert!(done.is_ok() || has_fired, "{what}: {done:?}");
            copy.clear_faults();
            copy = if fault == Fault::PowerOff { copy.power_loss(nth) } else { copy.crash() };
            match options().create(false).open_on(Arc::new(copy.clone())) {
                Ok(db) => {
                    whole += 1;
                    assert_eq!(hash(&db), wanted, "{what}");
                    db.check().expect("sound");
                }
                Err(error) => {
                    assert!(done.is_err(), "{what}: it was whole, and is not: {error}");
                    assert!(
                        matches!(error, Error::Missing { .. } | Error::NotADatabase { .. }),
                        "{what}: {error}"
                    );
                    restore().onto(Arc::new(copy.clone())).expect("restores");
                    assert_eq!(hash(&open(&copy).expect("opens")), wanted, "{what}");
                }
            }
            has_fired
        });
    }
    assert!(points > 200 && whole >= 8, "{points} points, {whole} whole");
}

/// Nothing of a target that cannot be read is taken for damage, nor for a backup.
#[test]
fn a_fault_at_any_read_of_the_target_ends_a_restore() {
    let ground = Ground::new(150);
    for fault in [Fault::Error, Fault::Short, Fault::PowerOff] {
        let points = each_operation(|nth| {
            let target = ground.target.crash();
            target.fail_nth(OperationKind::Read, nth, fault, Repeat::Once);
            let copy = Simulated::new(nth);
            let done = Restore::from(&directory(&target)).onto(Arc::new(copy.clone()));
            let has_fired = target.fired() > 0;
            assert_eq!(done.is_err(), has_fired);
            if let Err(error) = done {
                assert!(matches!(error, Error::BackupTarget { .. }), "{error}");
                assert!(options().create(false).open_on(Arc::new(copy)).is_err());
            }
            has_fired
        });
        assert!(points >= 4, "{points} points");
    }
}
