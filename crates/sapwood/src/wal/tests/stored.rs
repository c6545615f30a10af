//! Commits that are stored into a window of the log's file: the log is the same as if they had been written, through kills, power
//! losses, faults and full disks; and a window is never open where the file may become shorter.

use super::DATABASE;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::wal::log_files::list;
use crate::wal::mmap_appender::Sizes;
use crate::wal::zeroing::Steps;
use crate::wal::{Generations, LogFiles, Record, Tail, WalWriter, file_name};
use bytes::Bytes;
use psync::{Access, Device, Disk, DiskOptions, Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::sync::Arc;

const TINY: Sizes = Sizes { small: 500, after: 2, first: 300, most: 2000, unit: 64, dirty: 1000 };

fn begin(volume: &Simulated) -> Result<WalWriter> {
    let mut wal = WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none())?;
    wal.set_windows_for_test(TINY);
    Ok(wal)
}

fn read(volume: &dyn Volume, low: u64, high: u64) -> Result<(Vec<Record>, Tail)> {
    let mut records = Vec::new();
    let mut apply = |record: Record| {
        records.push(record);
        Ok(())
    };
    let tail =
        LogFiles::new(volume, DATABASE).replay(&Encryption::NONE, Generations { low, high }, &mut apply)?;
    Ok((records, tail))
}

fn body(seq: u64) -> Bytes {
    vec![(seq % 255) as u8 + 1; 30 + (seq as usize * 37) % 200].into()
}

fn commit(wal: &mut WalWriter, seq: u64) -> Result<()> {
    wal.append(seq, 1, &body(seq));
    wal.store()
}

fn is_prefix(records: &[Record], first: u64) {
    for (seq, record) in (first..).zip(records) {
        assert_eq!((record.first_seq, &record.body), (seq, &body(seq)));
    }
}

#[test]
fn small_commits_are_stored_and_seldom_written() {
    let volume = Simulated::new(1).with_windows();
    let mut wal = WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none()).unwrap();
    let before = volume.counters();
    for seq in 1..=20_000 {
        commit(&mut wal, seq).unwrap();
    }
    let writes = (volume.counters() - before).writes;
    assert!(writes < 30 && wal.stores() > 19_900, "{writes} writes, {} stores", wal.stores());
    let (found, tail) = read(&volume.crash(), 1, 1).unwrap();
    is_prefix(&found, 1);
    assert_eq!((found.len(), &tail.truncated), (20_000, &None));
    assert_eq!(wal.verify(1).unwrap(), 20_000);
    // Of what was stored the zeros were counted, whose place it took.
    assert_eq!(wal.bytes_written(), volume.read_file(&file_name(1)).unwrap().len() as u64);
    wal.sync_for_rest().unwrap();
    assert_eq!(volume.read_file(&file_name(1)).unwrap().len() as u64, tail.len, "cut back to its records");
}

/// Without windows nothing is written ahead, and nothing else than without stores.
#[test]
fn without_windows_all_is_written() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume).unwrap();
    for seq in 1..=50 {
        commit(&mut wal, seq).unwrap();
    }
    assert_eq!(wal.stores(), 0);
    let (found, tail) = read(&volume, 1, 1).unwrap();
    assert_eq!((found.len(), tail.truncated), (50, None));
    // It was tried once.
    wal.rotate().unwrap();
    assert_eq!(volume.read_file(&file_name(1)).unwrap().len() as u64, tail.len);
}

/// Long groups are written, and those that lead out of the window end a row of small ones.
#[test]
fn a_window_is_opened_only_where_it_pays() {
    let volume = Simulated::new(1).with_windows();
    let mut wal = begin(&volume).unwrap();
    let mut seq = 1;
    let mut group = |wal: &mut WalWriter, len: usize| {
        let before = wal.stores();
        wal.append(seq, 1, &vec![7; len]);
        wal.store().unwrap();
        seq += 1;
        wal.stores() > before
    };
    assert!(!group(&mut wal, 60), "one is no row");
    assert!(group(&mut wal, 60));
    assert!(!group(&mut wal, 470), "too long");
    for len in [5000, 60, 5000, 60, 5000] {
        assert!(!group(&mut wal, len), "{len}");
    }
    assert!(!group(&mut wal, 60) && group(&mut wal, 60) && group(&mut wal, 400));
    let (found, tail) = read(&volume, 1, 1).unwrap();
    assert_eq!((found.len(), tail.truncated), (11, None));
}

/// After a sync a store would make all pages that one write of zeros made dirty again: commits are written, until they are many.
#[test]
fn between_frequent_syncs_there_is_no_window() {
    let volume = Simulated::new(1).with_windows();
    let mut wal = WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none()).unwrap();
    let mut commits = 1..;
    let mut stored = |wal: &mut WalWriter, count: usize| {
        let before = wal.stores();
        commits.by_ref().take(count).for_each(|seq| commit(wal, seq).unwrap());
        wal.stores() - before
    };
    assert!(stored(&mut wal, 100) > 90);
    for _ in 0..10 {
        wal.sync().unwrap();
        assert_eq!(stored(&mut wal, 1), 0);
        wal.sync().unwrap();
        assert_eq!(stored(&mut wal, 100), 0);
    }
    assert!(stored(&mut wal, 3_000) > 500, "of 180 bytes each");
    wal.rotate().unwrap();
    assert!(stored(&mut wal, 100) > 90, "the pages of a new file are not clean");
}

/// A durable commit is written inside the window, and is as durable as ever; what was stored before it is, too.
#[test]
fn a_sync_covers_what_was_stored() {
    for seed in 0..100 {
        let volume = Simulated::new(seed).with_windows();
        let mut wal = begin(&volume).unwrap();
        for seq in 1..=30 {
            commit(&mut wal, seq).unwrap();
        }
        wal.append(31, 1, &body(31));
        wal.reserve().unwrap();
        wal.write().unwrap();
        wal.sync().unwrap();
        let stores = wal.stores();
        assert!(stores > 20);
        for seq in 32..=60 {
            commit(&mut wal, seq).unwrap();
        }
        assert!(wal.stores() > stores);
        let (found, _) = read(&volume.power_loss(seed), 1, 1).unwrap();
        is_prefix(&found, 1);
        assert!(found.len() >= 31, "seed {seed}: {}", found.len());
        let (found, _) = read(&volume.crash(), 1, 1).unwrap();
        assert_eq!(found.len(), 60);
    }
}

#[test]
fn after_a_failed_sync_nothing_is_stored() {
    let volume = Simulated::new(1).with_windows();
    let mut wal = begin(&volume).unwrap();
    for seq in 1..=30 {
        commit(&mut wal, seq).unwrap();
    }
    volume.fail_nth(Filter::kinds([OperationKind::Sync]), 1, Fault::Error, Repeat::Once);
    assert!(wal.sync().is_err());
    let before = volume.read_file(&file_name(1)).unwrap();
    assert!(matches!(commit(&mut wal, 31), Err(Error::Poisoned { .. })));
    assert_eq!(volume.read_file(&file_name(1)).unwrap(), before);
}

/// A store that is refused becomes a write, which is what finds a full disk; then what was refused does not come back.
#[test]
fn a_refused_store_becomes_a_write() {
    for full in [false, true] {
        let volume = Simulated::new(1).with_windows();
        let mut wal = begin(&volume).unwrap();
        for seq in 1..=30 {
            commit(&mut wal, seq).unwrap();
        }
        volume.fail_nth(Filter::kinds([OperationKind::Store]), 1, Fault::Error, Repeat::Once);
        if full {
            volume.fail_nth(Filter::kinds([OperationKind::Write]), 1, Fault::NoSpace, Repeat::Once);
        }
        let stores = wal.stores();
        let answer = commit(&mut wal, 31);
        assert_eq!(answer.is_err_and(|error| error.is_disk_full()), full);
        if full {
            wal.retract(1);
            commit(&mut wal, 31).unwrap();
        }
        for seq in 32..=40 {
            commit(&mut wal, seq).unwrap();
        }
        assert_eq!(wal.stores(), stores, "this file does without");
        let (found, tail) = read(&volume.power_loss(0), 1, 1).unwrap();
        is_prefix(&found, 1);
        assert!(found.len() <= 40 && tail.end.0 > 0);
        assert_eq!(read(&volume.crash(), 1, 1).unwrap().0.len(), 40);
        wal.rotate().unwrap();
        for seq in 41..=50 {
            commit(&mut wal, seq).unwrap();
        }
        assert!(wal.stores() > stores, "the next one not");
        wal.sync().unwrap();
        assert_eq!(read(&volume.power_loss(3), 1, 2).unwrap().0.len(), 50);
    }
}

/// What makes the file shorter closes the window first: the volume would refuse, and what was to go would stay.
#[test]
fn a_file_is_cut_also_where_it_has_a_window() {
    let len = |volume: &Simulated| volume.read_file(&file_name(1)).unwrap().len() as u64;
    for refuses_zeros in [false, true] {
        let volume = Simulated::new(1).with_windows();
        let mut wal = begin(&volume).unwrap();
        wal.set_steps_for_test(Steps { first: 300, most: 100_000, unit: 64 });
        for seq in 1..=30 {
            commit(&mut wal, seq).unwrap();
        }
        let stores = wal.stores();
        assert!(stores > 20);
        volume.fail_nth(Filter::kinds([OperationKind::Write]), 1, Fault::NoSpace, Repeat::Once);
        // A durable commit beyond the window, so that it asks for zeros of its own.
        wal.append(31, 1, &vec![7; if refuses_zeros { 5_000 } else { 100 }]);
        if refuses_zeros {
            wal.reserve().unwrap();
            assert_eq!(volume.fired(), 1);
        } else {
            assert!(wal.write().unwrap_err().is_disk_full());
            wal.retract(1);
        }
        assert_eq!(len(&volume), read(&volume, 1, 1).unwrap().1.len, "nothing behind the records");
        if refuses_zeros {
            wal.retract(1);
        }
        for seq in 31..=60 {
            commit(&mut wal, seq).unwrap();
        }
        assert_eq!(wal.stores() > stores, !refuses_zeros, "without space for zeros this file does without");
        let (found, tail) = read(&volume.crash(), 1, 1).unwrap();
        is_prefix(&found, 1);
        assert_eq!((found.len(), tail.truncated), (60, None));
    }
}

/// What room there is for records is theirs, and the last of it is told as a full disk.
#[test]
fn a_nearly_full_disk_takes_as_many_commits_with_windows_as_without() {
    let commits = |volume: Simulated| {
        let volume = volume.with_capacity(64 << 10);
        let mut wal = WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none()).unwrap();
        let mut seq = 1;
        loop {
            match commit(&mut wal, seq) {
                Ok(()) => seq += 1,
                Err(full) => {
                    assert!(full.is_disk_full());
                    wal.retract(1);
                    assert_eq!(read(&volume.crash(), 1, 1).unwrap().0.len() as u64, seq - 1);
                    return (seq, wal.stores() > 0);
                }
            }
        }
    };
    let (with, without) = (commits(Simulated::new(1).with_windows()), commits(Simulated::new(1)));
    assert_eq!((with.0, with.1, without.1), (without.0, true, false));
}

/// Commits, durable ones among them, through several generations; says how many were made, answered and are durable.
fn scenario(volume: &Simulated, made: &mut u64, answered: &mut u64, durable: &mut u64) -> Result<()> {
    let mut wal = begin(volume)?;
    for seq in 1..=60 {
        wal.append(seq, 1, &body(seq));
        *made = seq;
        if seq % 13 == 0 {
            wal.reserve()?;
            wal.sync()?;
            *durable = seq;
        } else {
            wal.store()?;
        }
        *answered = seq;
        if seq % 25 == 0 {
            wal.rotate()?;
        }
    }
    assert!(wal.stores() > 30);
    Ok(())
}

/// To replay one: `WAL_SEED=<seed> cargo test -p sapwood stored`.
#[test]
fn a_death_at_every_operation_loses_nothing_promised() {
    let seeds = match std::env::var("WAL_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..60,
    };
    let (mut images, mut torn, mut cut_short) = (0, 0, 0);
    for seed in seeds {
        for nth in 1.. {
            let volume = Simulated::new(seed).with_windows();
            volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
            let (mut made, mut answered, mut durable) = (0, 0, 0);
            let done = scenario(&volume, &mut made, &mut answered, &mut durable);
            if !volume.is_off() {
                assert!(done.is_ok() && nth > 80, "{nth}: {done:?}");
                break;
            }
            for (found, promised) in
                [(volume.crash(), answered), (volume.power_loss(seed * 1000 + nth), durable)]
            {
                let story = format!("WAL_SEED={seed}, operation {nth}, {promised} promised");
                let Some(newest) = list(&found).unwrap().last().copied() else {
                    continue;
                };
                let (records, tail) = read(&found, 1, newest.saturating_sub(1))
                    .unwrap_or_else(|error| panic!("{story}: {error}"));
                is_prefix(&records, 1);
                assert!((promised + 1..=made + 1).contains(&tail.next_seq), "{story}: {tail:?}");
                images += 1;
                torn += u64::from(tail.truncated.is_some());
                cut_short += u64::from(promised == answered && tail.truncated.is_some());
            }
        }
    }
    if std::env::var("WAL_SEED").is_err() {
        assert!(
            images > 5000 && torn > 100 && cut_short > 100,
            "{images}, {torn} torn, {cut_short} cut short"
        );
    }
}

/// Real files: what one process stored, and did not sync, the next one reads; and a file that is cut under the log is not stored to.
#[test]
fn on_a_real_disk_it_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Volume> = Arc::new(Disk::open(dir.path(), DiskOptions::default()).unwrap());
    let mut wal = WalWriter::create(Arc::clone(&disk), DATABASE, &Tail::none()).unwrap();
    for seq in 1..=5_000 {
        commit(&mut wal, seq).unwrap();
        if seq % 1_000 == 0 && seq <= 3_000 {
            wal.sync().unwrap();
        }
        if seq == 2_500 {
            wal.rotate().unwrap();
        }
    }
    if wal.stores() == 0 {
        eprintln!("SKIPPED: no windows in {}", dir.path().display());
    }
    let other = Disk::open(dir.path(), DiskOptions::default()).unwrap();
    let (found, tail) = read(&other, 1, 2).unwrap();
    is_prefix(&found, 1);
    assert_eq!((found.len(), tail.truncated), (5_000, None));
    assert_eq!(wal.verify(1).unwrap(), 5_000);
    let file = other.open(&file_name(2), Access::default()).unwrap();
    assert!(wal.stores() == 0 || other.len(file).unwrap() > tail.len);
    wal.sync_for_rest().unwrap();
    assert_eq!(other.len(file).unwrap(), tail.len);
}
