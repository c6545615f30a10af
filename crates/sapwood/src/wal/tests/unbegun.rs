//! A generation that is not begun: its header was written and not synced, and a power loss leaves anything of it.

use super::{DATABASE, begin, read};
use crate::error::Error;
use crate::wal::reader::Tail;
use crate::wal::record::HEADER_LEN;
use crate::wal::{LogFiles, Record, WalWriter, file_name};
use bytes::Bytes;
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::sync::Arc;

fn body(seq: u64) -> Bytes {
    vec![seq as u8; 300].into()
}

fn put(wal: &mut WalWriter, seqs: std::ops::Range<u64>) {
    for seq in seqs {
        wal.append(seq, 1, &body(seq));
        wal.store().unwrap();
    }
}

fn assert_prefix(records: &[Record], promised: usize, story: &str) {
    assert_follow(1, records, promised, story);
}

fn assert_follow(first: u64, records: &[Record], promised: usize, story: &str) {
    assert!(records.len() >= promised, "{story}: {} records", records.len());
    for (seq, record) in (first..).zip(records) {
        assert!(record.first_seq == seq && record.body == body(seq), "{story}");
    }
}

fn is_broken(volume: &Simulated, generation: u64) -> bool {
    let Ok(source) = LogFiles::new(volume, DATABASE).open(generation) else { return false };
    LogFiles::new(volume, DATABASE).header(&source, generation).unwrap().is_err()
}

/// Records 1 to 3, and 4 to 29 in a generation that is not begun; none was promised. With every other seed they are stored to a mapped part of the file.
fn unsynced_header(seed: u64) -> (Simulated, WalWriter) {
    let volume = Simulated::new(seed);
    let volume = if seed.is_multiple_of(2) { volume } else { volume.with_windows() };
    let mut wal = begin(&volume);
    put(&mut wal, 1..4);
    wal.rotate().unwrap();
    put(&mut wal, 4..30);
    (volume, wal)
}

/// Goes on with what was found, by three records that are durable.
fn go_on(found: &Simulated, tail: &Tail) -> WalWriter {
    let mut wal = match WalWriter::resume(Arc::new(found.clone()), DATABASE, tail).unwrap() {
        Some(wal) => wal,
        None => WalWriter::create(Arc::new(found.clone()), DATABASE, tail).unwrap(),
    };
    put(&mut wal, tail.next_seq..tail.next_seq + 3);
    wal.sync().unwrap();
    wal
}

/// Commits without a promise go on behind a header that is not durable; whatever is lost of it, the log ends before it, and goes on.
#[test]
fn a_header_that_was_lost_takes_only_what_was_not_promised() {
    let (mut headless, mut nameless, mut whole) = (0, 0, 0);
    for seed in 0..300 {
        let volume = Simulated::new(seed);
        let mut wal = begin(&volume);
        put(&mut wal, 1..6);
        wal.sync().unwrap();
        put(&mut wal, 6..9);
        let syncs = wal.syncs();
        wal.rotate().unwrap();
        assert_eq!(wal.syncs(), syncs, "no thread waits for the device");
        put(&mut wal, 9..20);
        assert_eq!(read(&volume.crash(), 1, 1).unwrap().0.len(), 19, "the process alone died");
        let found = volume.power_loss(seed);
        let story = format!("seed {seed}");
        let (records, tail) = read(&found, 1, 1).unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_prefix(&records, 5, &story);
        let names = found.list().unwrap().len();
        nameless += u64::from(names == 1);
        headless += u64::from(is_broken(&found, 2) && tail.truncated.is_some());
        whole += u64::from(records.len() > 8);
        // What was dropped does not come back, and what comes after it stays.
        let next = tail.next_seq;
        let wal = go_on(&found, &tail);
        let (records, tail) = read(&found.power_loss(seed), 1, wal.generation())
            .unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_prefix(&records, next as usize + 2, &story);
        assert_eq!(tail.next_seq, next + 3, "{story}");
    }
    assert!(headless > 20 && nameless > 20 && whole > 20, "{headless} {nameless} {whole}");
}

/// Behind a sound header all others are to be sound.
#[test]
fn there_is_never_more_than_one() {
    for seed in 0..200 {
        let volume = Simulated::new(seed);
        let mut wal = begin(&volume);
        for first in [1, 4, 7] {
            put(&mut wal, first..first + 3);
            wal.rotate().unwrap();
        }
        let (records, _) =
            read(&volume.power_loss(seed), 1, 1).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_prefix(&records, 0, "three of them");
    }
}

/// What a durable commit or a flush needs of it: see to it that the header is there, and its name.
#[test]
fn once_it_is_begun_it_is_there() {
    for seed in 0..100 {
        for from_the_side in [false, true] {
            let volume = Simulated::new(seed);
            let mut wal = begin(&volume);
            put(&mut wal, 1..4);
            wal.rotate().unwrap();
            put(&mut wal, 4..6);
            if from_the_side {
                let unsynced_header = wal.unsynced_header(2).unwrap();
                unsynced_header.sync().unwrap();
                wal.mark_begun(2);
            } else {
                wal.begin().unwrap();
            }
            assert!(wal.unsynced_header(2).is_none());
            // The manifest may say now that the log begins here.
            let (_, tail) = read(&volume.power_loss(seed), 2, 2).unwrap();
            assert_eq!(tail.generation, 2);
            wal.sync().unwrap();
            let (records, _) = read(&volume.power_loss(seed), 1, 2).unwrap();
            assert_prefix(&records, 5, "synced");
        }
    }
}

/// A flush has the header made durable while commits go on behind it, and takes the older log away. What a power loss leaves behind the header
/// is nothing, zeros, a torn part, or all: the log ends there, and goes on.
#[test]
fn a_flush_makes_no_more_than_the_header_durable() {
    let (mut bare, mut torn, mut whole) = (0, 0, 0);
    for seed in 0..400 {
        let (volume, mut wal) = unsynced_header(seed);
        wal.unsynced_header(2).unwrap().sync().unwrap();
        put(&mut wal, 30..40);
        wal.mark_begun(2);
        put(&mut wal, 40..50);
        // The manifest says that the log begins here.
        wal.remove_below(2).unwrap();
        let found = volume.power_loss(seed);
        let story = format!("seed {seed}");
        assert!(!is_broken(&found, 2), "{story}");
        let (records, tail) = read(&found, 2, 2).unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_follow(4, &records, 0, &story);
        assert_eq!((tail.generation, tail.next_seq), (2, 4 + records.len() as u64), "{story}");
        bare += u64::from(found.read_file(&file_name(2)).unwrap().len() == HEADER_LEN);
        torn += u64::from(tail.truncated.is_some());
        whole += u64::from(records.len() == 46);
        let next = tail.next_seq;
        let wal = go_on(&found, &tail);
        let (records, tail) = read(&found.power_loss(seed), 2, wal.generation())
            .unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_follow(4, &records, (next - 4) as usize + 3, &story);
        assert_eq!(tail.next_seq, next + 3, "{story}");
    }
    assert!(bare > 20 && torn > 50 && whole > 20, "{bare} {torn} {whole}");
}

/// It is a failed sync like others, for want of space too: a sync after it gets the same error.
#[test]
fn a_header_that_could_not_be_made_durable_is_told_to_all() {
    for fault in [Fault::Error, Fault::NoSpace] {
        for kind in [OperationKind::Sync, OperationKind::SyncDirectory] {
            let volume = Simulated::new(1);
            let mut wal = begin(&volume);
            put(&mut wal, 1..4);
            wal.rotate().unwrap();
            put(&mut wal, 4..6);
            let (old, unsynced_header) = (wal.unsynced(), wal.unsynced_header(2).unwrap());
            volume.fail_nth(Filter::kinds([kind]), 1, fault, Repeat::Once);
            let syncs = wal.syncs();
            for answer in
                [unsynced_header.sync(), unsynced_header.sync(), old[0].sync(), wal.begin(), wal.sync()]
            {
                assert!(matches!(answer, Err(Error::Poisoned { .. })), "{fault:?} {kind:?}: {answer:?}");
            }
            assert_eq!(volume.fired(), 1);
            assert!(wal.syncs() <= syncs + 1, "no device is asked after it");
        }
    }
}

/// Commits wait while one follows another: they wait for a header, and not for all records that were not promised.
#[test]
fn the_next_generation_makes_no_more_than_the_header_durable() {
    let mut lost = 0;
    for seed in 0..200 {
        let (volume, mut wal) = unsynced_header(seed);
        let unsynced = wal.unsynced_bytes();
        wal.rotate().unwrap();
        // It has a header less, and the next one's.
        assert_eq!(wal.unsynced_bytes(), unsynced);
        assert!(!wal.has_synced_below(3), "none of it was to be durable at once");
        put(&mut wal, 30..33);
        let found = volume.power_loss(seed);
        let story = format!("seed {seed}");
        assert!(!is_broken(&found, 2), "{story}");
        let (records, tail) = read(&found, 1, 1).unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_prefix(&records, 0, &story);
        lost += u64::from(records.len() < 29);
        let next = tail.next_seq;
        let wal = go_on(&found, &tail);
        let (records, _) = read(&found.power_loss(seed), 1, wal.generation())
            .unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_prefix(&records, next as usize + 2, &story);
    }
    assert!(lost > 100, "{lost}");
}
