//! The zeros that are written ahead of the log: never taken for records, nor for damage, nor for something that was lost;
//! and records that became zeros are not taken for room.

use super::DATABASE;
use super::edit_file;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::wal::log_files::list;
use crate::wal::record::{HEAD_LEN, HEADER_LEN};
use crate::wal::zeroing::Steps;
use crate::wal::{Generations, LogFiles, Record, Tail, WalWriter, file_name};
use bytes::Bytes;
use psync::{Device, Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::sync::Arc;

const TINY: Steps = Steps { first: 300, most: 4000, unit: 64 };

fn begin(volume: &Simulated) -> Result<WalWriter> {
    let mut wal = WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none())?;
    wal.set_steps_for_test(TINY);
    Ok(wal)
}

fn read(volume: &Simulated, high: u64) -> Result<(Vec<Bytes>, Tail)> {
    let mut bodies = Vec::new();
    let mut apply = |record: Record| {
        bodies.push(record.body);
        Ok(())
    };
    let tail = LogFiles::new(volume, DATABASE).replay(
        &Encryption::NONE,
        Generations { low: 1, high },
        &mut apply,
    )?;
    Ok((bodies, tail))
}

/// Never zeros, so that none of it is taken for room by mistake; different for each record.
fn body(seq: u64, len: usize) -> Bytes {
    vec![(seq % 255) as u8 + 1; len].into()
}

/// A durable commit.
fn commit(wal: &mut WalWriter, seq: u64, len: usize) -> Result<()> {
    wal.append(seq, 1, &body(seq, len));
    wal.reserve()?;
    wal.sync()
}

fn file_len(volume: &Simulated, generation: u64) -> u64 {
    volume.read_file(&file_name(generation)).map_or(0, |bytes| bytes.len() as u64)
}

#[test]
fn durable_commits_seldom_make_the_file_longer() {
    let volume = Simulated::new(1);
    let mut wal = WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none()).unwrap();
    let mut lens = vec![];
    for seq in 1..=6000 {
        let before = volume.counters();
        commit(&mut wal, seq, 100).unwrap();
        let after = volume.counters();
        assert!(after.syncs == before.syncs + 1 && after.writes <= before.writes + 2);
        lens.push(file_len(&volume, 1));
    }
    lens.dedup();
    assert!(lens.len() <= 9, "{lens:?}");
    assert!(lens.iter().all(|len| len.is_multiple_of(4096)), "{lens:?}");
    let (found, tail) = read(&volume, 1).unwrap();
    assert_eq!((found.len(), tail.truncated), (6000, None));
    assert_eq!(tail.len, (HEADER_LEN + 6000 * (HEAD_LEN + 100)) as u64);
    assert_eq!(wal.verify(1).unwrap(), 6000);
    // A record that needs no sync uses it up, and makes no more of it.
    let until = file_len(&volume, 1);
    for seq in 6001..=20_000 {
        wal.append(seq, 1, &body(seq, 100));
        wal.write().unwrap();
    }
    let end = (HEADER_LEN + 20_000 * (HEAD_LEN + 100)) as u64;
    assert!(until < end);
    assert_eq!(file_len(&volume, 1), end);
    // Large commits would be written twice for nothing.
    wal.append(20_001, 1, &body(1, 1 << 20));
    wal.reserve().unwrap();
    assert_eq!(file_len(&volume, 1), end);
}

/// A closed generation that was cut back without a sync was gone after a power loss on ext4 without a journal: `e2fsck`
/// took its blocks, since the length and the blocks on the disk did not fit together.
#[test]
fn a_closed_generation_is_cut_back_only_with_a_sync() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume).unwrap();
    commit(&mut wal, 1, 50).unwrap();
    let end = (HEADER_LEN + HEAD_LEN + 50) as u64;
    let reserved = file_len(&volume, 1);
    assert!(reserved > end);
    wal.rotate().unwrap();
    assert_eq!((file_len(&volume, 1), file_len(&volume, 2)), (reserved, HEADER_LEN as u64));
    assert!(wal.is_empty());
    commit(&mut wal, 2, 50).unwrap();
    assert!(!wal.is_empty());
    assert!(file_len(&volume, 2) > end);
    for seed in 0..50 {
        assert_eq!(read(&volume.power_loss(seed), 2).unwrap().0.len(), 2, "seed {seed}");
    }
    // At a close the one that goes on is.
    wal.sync_for_rest().unwrap();
    wal.rotate().unwrap();
    wal.begin().unwrap();
    for seed in 0..50 {
        let found = volume.power_loss(seed);
        assert_eq!(file_len(&found, 2), end, "seed {seed}");
        assert_eq!(read(&found, 3).unwrap().0.len(), 2, "seed {seed}");
    }
}

/// Only zeros behind the last record, and no promise of more: a clean end. Anything else: a torn one, and the zeros
/// behind that are not counted as lost.
#[test]
fn zeros_are_not_told_as_lost() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume).unwrap();
    commit(&mut wal, 1, 50).unwrap();
    commit(&mut wal, 2, 50).unwrap();
    let (_, tail) = read(&volume, 1).unwrap();
    assert_eq!(tail.truncated, None);
    let end = tail.len as usize;
    assert!(file_len(&volume, 1) as usize > end);
    let sound = volume.read_file(&file_name(1)).unwrap();
    for more in [0, 1, 39, 40, 41, 5000, 3 << 20] {
        edit_file(&volume, &file_name(1), |bytes| bytes.resize(end + more, 0));
        assert_eq!(read(&volume, 1).unwrap().1, tail, "{more} zeros");
    }
    for at in [0, 3, 39, 40, 200, 2 << 20] {
        edit_file(&volume, &file_name(1), |bytes| {
            bytes.resize(end, 0);
            bytes.resize(end + at, 0);
            bytes.push(1);
            bytes.resize(end + (3 << 20), 0);
        });
        let (found, torn) = read(&volume, 1).unwrap();
        assert_eq!((found.len(), torn.len), (2, tail.len));
        let truncated = torn.truncated.unwrap();
        assert_eq!((truncated.offset, truncated.dropped), (tail.len, at as u64 + 1), "{at}");
    }
    edit_file(&volume, &file_name(1), |bytes| *bytes = sound);
    // The last record was promised by the writer alone, which knows more.
    let last = end - HEAD_LEN - 50;
    edit_file(&volume, &file_name(1), |bytes| bytes[last..end].fill(0));
    let (found, tail) = read(&volume, 1).unwrap();
    assert_eq!((found.len(), tail.truncated), (1, None));
    assert!(wal.verify(1).unwrap_err().is_damage());
}

/// Every stretch of a promised record that becomes zeros, and everything from there to the end that does, is named if
/// anything is left that testifies to it; in an older generation always.
#[test]
fn promised_records_that_became_zeros_are_damage() {
    for rotated in [false, true] {
        let volume = Simulated::new(1);
        let mut wal = begin(&volume).unwrap();
        for seq in 1..=6 {
            commit(&mut wal, seq, 50).unwrap();
        }
        if rotated {
            wal.rotate().unwrap();
        }
        let high = wal.generation();
        let sound = volume.read_file(&file_name(1)).unwrap();
        let record = HEAD_LEN + 50;
        let end = HEADER_LEN + 6 * record;
        for at in (HEADER_LEN..end).step_by(7) {
            for to in (at + 1..end).step_by(13).chain([end, sound.len()]) {
                edit_file(&volume, &file_name(1), |bytes| {
                    bytes.clone_from(&sound);
                    bytes[at..to.max(at)].fill(0);
                });
                if volume.read_file(&file_name(1)).unwrap() == sound {
                    continue;
                }
                let first = (at - HEADER_LEN) / record;
                // A head that is whole behind it promises what was before it.
                let witness = to <= end - record;
                let story = format!("zeros {at}..{to}, rotated: {rotated}");
                match read(&volume, high) {
                    Err(Error::Corrupt { file, offset, .. }) => {
                        assert!(witness && first < 5 || rotated, "{story}");
                        let begin = HEADER_LEN + first * record;
                        assert_eq!((file, offset), (file_name(1), begin as u64), "{story}");
                    }
                    Ok((found, _)) => {
                        assert!(!rotated && (!witness || first == 5), "{story}");
                        assert_eq!(found.len(), first, "{story}");
                    }
                    other => panic!("{story}: {other:?}"),
                }
                assert!(wal.verify(1).unwrap_err().is_damage(), "{story}");
            }
        }
    }
}

/// A crash after zeros were written, and before the first record was: the generation goes on, from its header.
#[test]
fn an_empty_generation_with_room_goes_on() {
    for seed in 0..100 {
        let volume = Simulated::new(seed);
        let mut wal = begin(&volume).unwrap();
        wal.append(1, 1, &body(1, 50));
        wal.reserve().unwrap();
        assert!(file_len(&volume, 1) > HEADER_LEN as u64);
        drop(wal);
        let volume = if seed == 0 { volume.crash() } else { volume.power_loss(seed) };
        let (found, tail) = read(&volume, 1).unwrap();
        assert_eq!((found.len(), &tail.truncated, tail.len), (0, &None, HEADER_LEN as u64));
        let mut wal = WalWriter::resume(Arc::new(volume.clone()), DATABASE, &tail).unwrap().expect("goes on");
        assert_eq!(file_len(&volume, 1), HEADER_LEN as u64);
        assert!(wal.is_empty());
        commit(&mut wal, 1, 60).unwrap();
        let (found, tail) = read(&volume.power_loss(seed), 1).unwrap();
        assert_eq!((found, tail.truncated), (vec![body(1, 60)], None), "seed {seed}");
        assert_eq!(list(&volume).unwrap(), [1]);
    }
}

/// What could be on the medium under zeros that one reads, because a sync failed once, does not come back.
#[test]
fn what_lies_behind_the_header_is_gone_before_it_goes_on() {
    let volume = Simulated::new(1);
    drop(begin(&volume).unwrap());
    let with_rest = |fill| edit_file(&volume, &file_name(1), |bytes| bytes.resize(9000, fill));
    with_rest(0);
    let (_, tail) = read(&volume, 1).unwrap();
    volume.fail_nth(Filter::kinds([OperationKind::Sync]), 1, Fault::Error, Repeat::Once);
    let failed = WalWriter::resume(Arc::new(volume.clone()), DATABASE, &tail);
    assert!(matches!(failed, Err(Error::Poisoned { .. })), "it has to be durable");
    assert_eq!(names(&volume), [file_name(1)], "the copy is gone");
    let wal = WalWriter::resume(Arc::new(volume.clone()), DATABASE, &tail).unwrap().expect("goes on");
    assert_eq!(wal.syncs(), 2);
    drop(wal);
    // As recovery does it, which has rewritten everything before.
    with_rest(0);
    let (_, mut tail) = read(&volume, 1).unwrap();
    assert_eq!(crate::wal::rewrite_unsynced(&volume, DATABASE, &mut tail).unwrap(), 2);
    let wal = WalWriter::resume(Arc::new(volume.clone()), DATABASE, &tail).unwrap().expect("goes on");
    assert_eq!(wal.syncs(), 0);
    for seed in 0..20 {
        assert_eq!(file_len(&volume.power_loss(seed), 1), HEADER_LEN as u64, "seed {seed}");
    }
    drop(wal);
    // Anything else than zeros: then it does not.
    with_rest(7);
    let (_, tail) = read(&volume, 1).unwrap();
    assert!(WalWriter::resume(Arc::new(volume.clone()), DATABASE, &tail).unwrap().is_none());
}

fn names(volume: &Simulated) -> Vec<String> {
    volume.list().unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn without_space_for_it_commits_go_on() {
    for cut_fails in [false, true] {
        let volume = Simulated::new(1);
        let mut wal = begin(&volume).unwrap();
        let of_one = |kind| Filter::kinds([kind]).file(file_name(1));
        volume.fail_nth(of_one(OperationKind::Write), 1, Fault::NoSpace, Repeat::Once);
        if cut_fails {
            volume.fail_nth(of_one(OperationKind::Resize), 1, Fault::NoSpace, Repeat::Once);
        }
        let before = volume.fired();
        for seq in 1..=20 {
            commit(&mut wal, seq, 50).unwrap();
        }
        assert!(volume.fired() > before);
        let end = (HEADER_LEN + 20 * (HEAD_LEN + 50)) as u64;
        assert!(cut_fails || file_len(&volume, 1) == end, "asked once a file");
        let (found, tail) = read(&volume, 1).unwrap();
        assert_eq!((found.len(), tail.truncated), (20, None));
        // The next file tries again.
        wal.rotate().unwrap();
        commit(&mut wal, 21, 50).unwrap();
        assert!(file_len(&volume, 2) > (HEADER_LEN + HEAD_LEN + 50) as u64);
    }
}

/// Cutting off what was refused takes the room behind it along, and the next commit makes some again.
#[test]
fn a_refused_commit_costs_only_the_room() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume).unwrap();
    commit(&mut wal, 1, 50).unwrap();
    let before = file_len(&volume, 1);
    wal.append(2, 1, &body(2, 50));
    volume.fail_nth(Filter::kinds([OperationKind::Write]), 1, Fault::NoSpace, Repeat::Once);
    assert!(wal.sync().unwrap_err().is_disk_full());
    assert_eq!(file_len(&volume, 1), (HEADER_LEN + HEAD_LEN + 50) as u64);
    wal.retract(1);
    commit(&mut wal, 2, 60).unwrap();
    assert!(file_len(&volume, 1) >= before);
    assert_eq!(read(&volume.power_loss(1), 1).unwrap().0, [body(1, 50), body(2, 60)]);
}

/// What room there is for records is theirs.
#[test]
fn a_nearly_full_disk_takes_as_many_commits_with_reservations_as_without() {
    let commits = |reserves: bool| {
        let volume = Simulated::new(1).with_capacity(64 << 10);
        let mut wal = WalWriter::create(Arc::new(volume.clone()), DATABASE, &Tail::none()).unwrap();
        let mut seq = 1;
        loop {
            wal.append(seq, 1, &body(seq, 700));
            if reserves {
                wal.reserve().unwrap();
            }
            match wal.sync() {
                Ok(()) => seq += 1,
                Err(full) => {
                    assert!(full.is_disk_full());
                    wal.retract(1);
                    assert_eq!(read(&volume.power_loss(seq), 1).unwrap().0.len() as u64, seq - 1);
                    return seq;
                }
            }
        }
    };
    assert_eq!(commits(true), commits(false));
}

#[test]
fn another_failure_of_it_stops_the_writer() {
    let volume = Simulated::new(1);
    let mut wal = begin(&volume).unwrap();
    wal.append(1, 1, &body(1, 50));
    volume.fail_nth(Filter::kinds([OperationKind::Write]), 1, Fault::Error, Repeat::Once);
    assert!(matches!(wal.reserve(), Err(Error::Io(_))));
    assert!(matches!(wal.sync(), Err(Error::Poisoned { .. })));

    let volume = Simulated::new(1);
    let mut wal = begin(&volume).unwrap();
    commit(&mut wal, 1, 50).unwrap();
    volume.fail_nth(Filter::kinds([OperationKind::Resize]), 1, Fault::Error, Repeat::Once);
    assert!(matches!(wal.sync_for_rest(), Err(Error::Io(_))));
    assert!(matches!(wal.sync(), Err(Error::Poisoned { .. })));
}

/// Durable commits and others, through several generations; says how many were made and how many of them are durable.
fn scenario(volume: &Simulated, made: &mut u64, durable: &mut u64) -> Result<u64> {
    let mut wal = begin(volume)?;
    for seq in 1..=40 {
        wal.append(seq, 1, &body(seq, 30 + (seq as usize * 37) % 200));
        *made = seq;
        if seq % 4 == 0 {
            wal.write()?;
        } else {
            wal.reserve()?;
            wal.sync()?;
            *durable = seq;
        }
        if seq % 11 == 0 {
            wal.rotate()?;
        }
        if seq == 37 {
            wal.remove_below(2)?;
        }
    }
    Ok(wal.generation())
}

/// To replay one: `WAL_SEED=<seed> cargo test -p sapwood reserved`.
#[test]
fn a_power_loss_at_every_operation_loses_nothing_durable() {
    let seeds = match std::env::var("WAL_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..60,
    };
    let (mut images, mut zeros, mut torn) = (0, 0, 0);
    for seed in seeds {
        for nth in 1.. {
            let volume = Simulated::new(seed);
            volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
            let (mut made, mut durable) = (0, 0);
            let done = scenario(&volume, &mut made, &mut durable);
            if let Ok(generation) = done {
                assert_eq!((made, generation), (40, 4));
                assert!(nth > 80, "{nth}");
                break;
            }
            let found = volume.power_loss(seed * 1000 + nth);
            let story = format!("WAL_SEED={seed}, operation {nth}");
            // The manifest knows of a generation before it is written to, and of removals.
            let on_disk = list(&found).unwrap();
            let Some(&newest) = on_disk.last() else { continue };
            let low = if made >= 37 { 2 } else { 1 };
            let mut records = Vec::new();
            let tail = LogFiles::new(&found, DATABASE)
                .replay(
                    &Encryption::NONE,
                    Generations { low, high: newest.saturating_sub(1).max(low - 1) },
                    &mut |record| {
                        records.push(record);
                        Ok(())
                    },
                )
                .unwrap_or_else(|error| panic!("{story}: {error}"));
            let first = if low == 2 { 12 } else { 1 };
            for (seq, record) in (first..).zip(&records) {
                assert_eq!(record.first_seq, seq, "{story}");
                assert_eq!(record.body, body(seq, 30 + (seq as usize * 37) % 200), "{story}");
            }
            assert!((durable + 1..=made + 1).contains(&tail.next_seq), "{story}: {tail:?}");
            let longer = tail.ends_in > 0 && file_len(&found, tail.ends_in) > tail.len;
            zeros += u64::from(longer && tail.truncated.is_none());
            torn += u64::from(tail.truncated.is_some());
            images += 1;
        }
    }
    if std::env::var("WAL_SEED").is_err() {
        assert!(
            images > 4000 && zeros > 500 && torn > 100,
            "{images} images, {zeros} with zeros, {torn} torn"
        );
    }
}
