//! Faults at every I/O of the log.

use super::edit_file;
use super::{DATABASE, begin};
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::wal::log_files::list;
use crate::wal::record::*;
use crate::wal::{Generations, LogFiles, Record, Tail, WalWriter, file_name, rewrite_unsynced};
use bytes::Bytes;
use psync::{Device, Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::sync::Arc;

fn read(volume: &Simulated, high: u64) -> (Vec<Bytes>, Tail) {
    let mut bodies = Vec::new();
    let mut apply = |record: Record| {
        bodies.push(record.body);
        Ok(())
    };
    let tail = LogFiles::new(volume, DATABASE)
        .replay(&Encryption::NONE, Generations { low: 1, high }, &mut apply)
        .unwrap();
    (bodies, tail)
}

fn body(letter: char, len: usize) -> Bytes {
    vec![letter as u8; len].into()
}

fn names(volume: &Simulated) -> Vec<String> {
    volume.list().unwrap().into_iter().map(|entry| entry.name).collect()
}

fn writes() -> Filter {
    Filter::kinds([OperationKind::Write])
}

/// The disk is full in the middle of writing records A and B, both are refused, and A' of A's length is written
/// instead. What is left of B lies exactly where the next record would begin, whole, with the sequence number
/// that comes next. Only its older epoch tells that it is not part of the log.
#[test]
fn a_refused_record_does_not_follow_on_its_successor() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume);
    wal.append(1, 1, &body('A', 60));
    wal.append(2, 1, &body('B', 60));
    wal.write().unwrap();
    let refused = volume.read_file(&file_name(1)).unwrap();
    drop(wal);

    let volume = Simulated::new(1);
    let mut wal = begin(&volume);
    wal.append(1, 1, &body('A', 60));
    wal.append(2, 1, &body('B', 60));
    volume.fail_nth(writes(), 1, Fault::NoSpace, Repeat::Once);
    assert!(wal.write().unwrap_err().is_disk_full());
    wal.retract(2);
    assert_eq!(wal.pending(), 0);
    wal.append(1, 1, &body('a', 60));
    wal.sync().unwrap();
    // As if cutting off had been lost.
    let written = volume.read_file(&file_name(1)).unwrap().len();
    edit_file(&volume, &file_name(1), |bytes| bytes.extend_from_slice(&refused[written..]));
    let (found, tail) = read(&volume, 1);
    assert_eq!(found, [body('a', 60)]);
    assert!(tail.truncated.unwrap().why.contains("epoch"));
}

/// A commit that was answered "disk full: nothing happened" was back after a power loss, when the cutting off of
/// what had reached the page cache was not durable.
#[test]
fn what_was_refused_does_not_come_back_after_a_power_loss() {
    for seed in 0..400 {
        let volume = Simulated::new(seed);
        let mut wal = begin(&volume);
        wal.append(1, 1, &body('A', 100));
        wal.sync().unwrap();
        wal.append(2, 1, &body('B', 20));
        volume.fail_nth(writes(), 1, Fault::NoSpace, Repeat::Once);
        assert!(wal.write().unwrap_err().is_disk_full());
        wal.retract(1);
        assert_eq!(read(&volume.power_loss(seed), 1).0, [body('A', 100)], "seed {seed}");
        assert_eq!(read(&volume.crash(), 1).0, [body('A', 100)], "seed {seed}");
    }
}

/// A full disk refuses to cut the file, too. Only what may have written something is undecided.
#[test]
fn what_wrote_nothing_is_refused_though_nothing_can_be_cut_off() {
    let (mut refused, mut poisoned) = (0, 0);
    for seed in 0..400 {
        let volume = Simulated::new(seed);
        let mut wal = begin(&volume);
        wal.append(1, 1, &body('A', 100));
        if seed % 2 == 0 {
            wal.reserve().unwrap();
        }
        wal.sync().unwrap();
        for kind in [OperationKind::Write, OperationKind::Resize] {
            volume.fail_nth(Filter::kinds([kind]), 1, Fault::NoSpace, Repeat::Sticky);
        }
        wal.append(2, 1, &body('B', 3000));
        let error = wal.write().unwrap_err();
        if !error.is_disk_full() {
            assert!(matches!(error, Error::Poisoned { .. }), "{error}");
            poisoned += 1;
            continue;
        }
        refused += 1;
        wal.retract(1);
        volume.clear_faults();
        for image in [volume.crash(), volume.power_loss(seed)] {
            assert_eq!(read(&image, 1).0, [body('A', 100)], "seed {seed}");
        }
        wal.append(2, 1, &body('C', 3000));
        wal.sync().unwrap();
        assert_eq!(read(&volume.power_loss(seed), 1).0, [body('A', 100), body('C', 3000)], "seed {seed}");
    }
    assert!(refused > 100 && poisoned > 50, "{refused} were refused, {poisoned} undecided");
}

/// The disk is full when the next generation is begun, and its header is there nevertheless. If the file came
/// back after a power loss, its header would say that the generation before ends where it ended then, and all
/// that was committed since would be lost without a word.
#[test]
fn a_refused_rotation_cuts_nothing_off() {
    for seed in 0..3000 {
        let volume = Simulated::new(seed);
        let mut wal = begin(&volume);
        wal.append(1, 1, &body('A', 50));
        wal.sync().unwrap();
        let new = Filter::kinds([OperationKind::Write]).file(file_name(2));
        volume.fail_nth(new, 1, Fault::NoSpace, Repeat::Once);
        assert!(wal.rotate().unwrap_err().is_disk_full());
        assert_eq!(wal.generation(), 1);
        wal.append(2, 1, &body('B', 50));
        wal.sync().unwrap();
        let (found, _) = read(&volume.power_loss(seed), 1);
        assert_eq!(found, [body('A', 50), body('B', 50)], "seed {seed}");
    }
}

/// A sync that fails for want of space has lost pages like any other: it must not look like a refusal after
/// which one goes on.
#[test]
fn a_sync_without_space_is_a_failed_sync() {
    for kind in [OperationKind::Sync, OperationKind::SyncDirectory] {
        for rotates in [false, true] {
            let volume = Simulated::new(1);
            let mut wal = begin(&volume);
            wal.append(1, 1, &body('A', 50));
            volume.fail_nth(Filter::kinds([kind]), 1, Fault::NoSpace, Repeat::Once);
            let result = if rotates { wal.rotate().and_then(|()| wal.begin()) } else { wal.sync() };
            if kind == OperationKind::SyncDirectory && !rotates {
                result.unwrap();
                continue;
            }
            assert!(matches!(result, Err(Error::Poisoned { .. })), "{kind:?} {rotates}");
            assert!(matches!(wal.sync(), Err(Error::Poisoned { .. })), "{kind:?} {rotates}");
            assert!(matches!(wal.rotate(), Err(Error::Poisoned { .. })), "{kind:?} {rotates}");
        }
    }
}

/// After a failed sync the page cache still shows what never reached the disk, marked clean. A restarted process
/// reads it and syncs, which does nothing. It writes the same again in place and syncs, which on ext4 with its default
/// options does nothing either; then the next file's header claims it to be durable, and the log does not open. The
/// records are in a file that goes on, in one that is older, and behind a header that was lost as well.
#[test]
fn what_a_failed_sync_has_lost_is_durable_after_the_next_opening() {
    for rotates in [false, true] {
        for seed in 0..200 {
            let volume = Simulated::new(seed);
            let mut wal = begin(&volume);
            wal.append(1, 1, &body('A', 700));
            wal.sync().unwrap();
            wal.append(2, 1, &body('B', 700));
            if rotates {
                wal.rotate().unwrap();
                wal.append(3, 1, &body('C', 9000));
            }
            volume.fail_nth(Filter::kinds([OperationKind::Sync]), 1, Fault::Error, Repeat::Once);
            assert!(wal.sync().is_err());
            let volume = volume.crash();
            let (found, tail) = read(&volume, 1);
            assert_eq!(found.len(), if rotates { 3 } else { 2 });
            let mut wal = WalWriter::create(Arc::new(volume.clone()), DATABASE, &tail).unwrap();
            wal.append(tail.next_seq, 1, &body('D', 700));
            wal.sync().unwrap();
            let (again, _) = read(&volume.power_loss(seed), wal.generation());
            assert_eq!(again[..found.len()], found, "seed {seed}");
            assert_eq!(again[found.len()..], [body('D', 700)], "seed {seed}");
        }
    }
}

/// The header of a new file was lost by a failed sync. The next process goes on in the file that it sees.
#[test]
fn a_header_that_a_failed_sync_has_lost_is_durable_before_the_file_goes_on() {
    for (seed, kind) in (0..200).zip([OperationKind::Sync, OperationKind::SyncDirectory].iter().cycle()) {
        let volume = Simulated::new(seed);
        let shared: Arc<Simulated> = Arc::new(volume.clone());
        volume.fail_nth(Filter::kinds([*kind]), 1, Fault::Error, Repeat::Once);
        assert!(WalWriter::create(shared, DATABASE, &Tail::none()).is_err());
        let volume = volume.crash();
        let (found, tail) = read(&volume, 0);
        assert_eq!((found.len(), tail.generation), (0, 1));
        let mut wal = WalWriter::resume(Arc::new(volume.clone()), DATABASE, &tail).unwrap().expect("goes on");
        wal.append(1, 1, &body('A', 700));
        wal.sync().unwrap();
        assert_eq!(read(&volume.power_loss(seed), 1).0, [body('A', 700)], "seed {seed}");
    }
}

/// The page cache was all that had a page, and the kernel drops it between replay and copy.
#[test]
fn a_copy_of_what_is_not_there_any_more_replaces_nothing() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume);
    wal.append(1, 1, &body('A', 9000));
    wal.write().unwrap();
    let volume = volume.crash();
    let (_, mut tail) = read(&volume, 1);
    edit_file(&volume, &file_name(1), |bytes| bytes[4096..8192].fill(0));
    let before = volume.read_file(&file_name(1)).unwrap();
    let damage = rewrite_unsynced(&volume, DATABASE, &mut tail).unwrap_err();
    assert!(damage.is_damage(), "{damage}");
    assert_eq!(names(&volume), [file_name(1)]);
    assert_eq!(volume.read_file(&file_name(1)).unwrap(), before);
}

/// Verifying reads what the device has, not what the page cache shows.
#[test]
fn verifying_finds_what_a_failed_sync_has_lost() {
    let mut found = 0;
    for seed in 0..50 {
        let volume = Simulated::new(seed);
        let mut wal = begin(&volume);
        wal.append(1, 1, &body('A', 9000));
        volume.fail_nth(Filter::kinds([OperationKind::Sync]), 1, Fault::Error, Repeat::Once);
        assert!(wal.sync().is_err());
        let lost = volume.power_loss(seed).read_file(&file_name(1)).unwrap()
            != volume.read_file(&file_name(1)).unwrap();
        match wal.verify(1) {
            Ok(records) => assert!(!lost && records == 1, "seed {seed}"),
            Err(error) => assert!(lost && error.is_damage(), "seed {seed}: {error}"),
        }
        found += u64::from(lost);
    }
    assert!(found > 30, "{found}");
}

/// Works as the engine does; what is refused is tried once more. Returns the bodies that were acknowledged.
fn scenario(volume: &Simulated, acknowledged: &mut Vec<Bytes>) -> Result<WalWriter> {
    let mut wal = match WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none()) {
        Err(full) if full.is_disk_full() => {
            WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none())?
        }
        other => other?,
    };
    let mut seq = 1;
    for step in 0..24u8 {
        for attempt in 0..2 {
            let body = body((b'a' + step + attempt * 32) as char, 300 + usize::from(step) * 7);
            wal.append(seq, 1, &body);
            let result = if step % 3 == 0 { wal.write() } else { wal.sync() };
            match result {
                Ok(()) => {
                    acknowledged.push(body);
                    seq += 1;
                    break;
                }
                Err(full) if full.is_disk_full() && attempt == 0 => wal.retract(1),
                Err(other) => return Err(other),
            }
        }
        if step % 5 == 4 {
            match wal.rotate() {
                Err(full) if full.is_disk_full() => wal.rotate()?,
                other => other?,
            }
        }
    }
    wal.sync()?;
    Ok(wal)
}

#[test]
fn a_full_disk_at_every_write_loses_nothing() {
    let kinds = Filter::kinds([OperationKind::Write, OperationKind::Open, OperationKind::Resize]);
    let mut nth = 1;
    loop {
        let volume = Simulated::new(nth);
        volume.fail_nth(kinds.clone(), nth, Fault::NoSpace, Repeat::Once);
        let mut acknowledged = Vec::new();
        let wal = scenario(&volume, &mut acknowledged).unwrap();
        for image in [volume.crash(), volume.power_loss(nth), volume.power_loss(nth + 1)] {
            assert_eq!(read(&image, wal.generation()).0, acknowledged, "write {nth}");
        }
        if volume.fired() == 0 {
            break;
        }
        nth += 1;
    }
    assert!(nth > 25, "{nth}");
}

#[test]
fn a_disk_that_stays_full_refuses_until_there_is_space() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume);
    wal.append(1, 1, &body('A', 3000));
    wal.sync().unwrap();
    volume.set_capacity(volume.used());
    for _ in 0..3 {
        wal.append(2, 1, &body('B', 5000));
        assert!(wal.sync().unwrap_err().is_disk_full());
        wal.retract(1);
        assert!(wal.rotate().unwrap_err().is_disk_full());
    }
    assert_eq!(names(&volume), [file_name(1)]);
    volume.set_capacity(u64::MAX);
    wal.append(2, 1, &body('C', 5000));
    wal.rotate().unwrap();
    wal.sync().unwrap();
    assert_eq!(read(&volume.power_loss(1), 2).0, [body('A', 3000), body('C', 5000)]);
}

#[test]
fn an_error_at_every_operation_loses_nothing_acknowledged_and_stops_the_writer() {
    for fault in [Fault::Error, Fault::Short] {
        let mut nth = 1;
        loop {
            let volume = Simulated::new(nth);
            volume.fail_nth(Filter::any(), nth, fault, Repeat::Once);
            let mut acknowledged = Vec::new();
            let result = scenario(&volume, &mut acknowledged);
            let story = format!("{fault:?} at operation {nth}");
            if volume.fired() == 0 {
                assert!(result.is_ok(), "{story}");
                assert!(nth > 50, "{story}");
                break;
            }
            assert!(matches!(result, Err(Error::Io(_) | Error::Poisoned { .. })), "{story}");
            volume.clear_faults();
            let high = list(&volume).unwrap().last().map_or(0, |last| last - 1);
            // Written, not only synced, since the process alone died; what failed may be there or not.
            let mut tail = Tail::none();
            let mut found = Vec::new();
            if high > 0 || !acknowledged.is_empty() {
                (found, tail) = read(&volume.crash(), high.max(1));
            }
            assert!(found.starts_with(&acknowledged), "{story}");
            assert!(found.len() <= acknowledged.len() + 1, "{story}");
            assert_eq!(tail.next_seq, found.len() as u64 + 1, "{story}");
            nth += 1;
        }
    }
}

#[test]
fn syncs_and_writes_are_no_more_than_needed() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume);
    let begun = (wal.syncs(), volume.counters().writes);
    wal.write().unwrap();
    wal.sync().unwrap();
    assert_eq!((wal.syncs(), volume.counters().writes), begun);
    for seq in 1..=100 {
        wal.append(seq, 1, &body('A', 100));
    }
    assert_eq!(wal.pending(), 100 * (100 + HEAD_LEN));
    assert_eq!(volume.counters().writes, begun.1);
    wal.sync().unwrap();
    wal.sync().unwrap();
    assert_eq!((wal.syncs(), volume.counters().writes), (begun.0 + 1, begun.1 + 1));
    assert_eq!(wal.bytes_written(), (HEADER_LEN + 100 * (100 + HEAD_LEN)) as u64);
    assert_eq!(volume.counters().syncs, wal.syncs());
}

#[test]
fn an_old_generation_is_synced_first_unless_it_was_removed() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume);
    wal.append(1, 1, &body('A', 10));
    wal.rotate().unwrap();
    wal.begin().unwrap();
    wal.append(2, 1, &body('B', 10));
    wal.rotate().unwrap();
    wal.begin().unwrap();
    wal.append(3, 1, &body('C', 10));
    assert_eq!(wal.unsynced().len(), 2);
    wal.remove_below(2).unwrap();
    assert_eq!(names(&volume), [file_name(2), file_name(3)]);
    let before = wal.syncs();
    wal.sync().unwrap();
    assert_eq!(wal.syncs(), before + 2);
    assert!(wal.unsynced().is_empty());
    wal.remove_below(99).unwrap();
    assert_eq!(names(&volume), [file_name(3)], "the current one stays");
    assert!(!wal.is_empty());
}

/// A device tells of what it lost once. The second to sync, the commit or the flush, gets the error as well.
#[test]
fn a_failed_sync_of_an_old_generation_is_reported_to_both_that_sync() {
    for flush_first in [true, false] {
        let volume = Simulated::new(1);
        let mut wal = begin(&volume);
        wal.append(1, 1, &body('A', 10));
        wal.rotate().unwrap();
        wal.append(2, 1, &body('B', 10));
        let old = wal.unsynced();
        volume.fail_nth(
            Filter::kinds([OperationKind::Sync]).file(file_name(1)),
            1,
            Fault::Error,
            Repeat::Once,
        );
        let answers =
            [flush_first, !flush_first].map(|by_flush| if by_flush { old[0].sync() } else { wal.sync() });
        assert!(answers.iter().all(Result::is_err), "flush first: {flush_first}, {answers:?}");
    }
}

#[test]
#[should_panic(expected = "sequence numbers follow on")]
fn a_gap_in_the_sequence_numbers_is_refused() {
    let mut wal = begin(&Simulated::new(1));
    wal.append(1, 2, &body('A', 10));
    wal.append(4, 1, &body('B', 10));
}
