//! Lives of the log: several rounds of work, each ended by a power loss or a kill at some operation; what is found is a
//! prefix with all that was promised.

use super::{DATABASE, read};
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use crate::wal::mmap_appender::Sizes;
use crate::wal::record::HEADER_LEN;
use crate::wal::zeroing::Steps;
use crate::wal::{Record, WalWriter, file_name};
use bytes::Bytes;
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

fn shared(volume: &Simulated) -> Arc<dyn Volume> {
    Arc::new(volume.clone())
}

/// How often the rare things happened, so that the test can see that it reached them.
#[derive(Debug, Default)]
struct Seen {
    images: u64,
    truncated: u64,
    void: u64,
    resumed: u64,
    refused_writes: u64,
    refused_rotations: u64,
    removed: u64,
    failed: u64,
    unnoted: u64,
    doomed: u64,
    reserved: u64,
    zeros_behind: u64,
    zeros_only: u64,
    stores: u64,
    lost_stores: u64,
    unsynced_header: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    first_seq: SeqNo,
    count: u32,
    body: Bytes,
}

/// What was done, and what was promised.
#[derive(Clone)]
struct Model {
    log: Vec<Entry>,
    /// So many records must survive the death of the process,
    written: usize,
    /// and so many a power loss.
    synced: usize,
    /// Where the generations begin: number and index of the first record.
    begins: Vec<(u64, usize)>,
    low: u64,
    high: u64,
    serial: u64,
}

impl Model {
    fn next_seq(&self) -> SeqNo {
        self.log.last().map_or(1, |last| last.first_seq + SeqNo::from(last.count))
    }

    fn entry(&mut self, rng: &mut StdRng) -> Entry {
        // Each body is different, and many have the same length, so that stale ones would fit.
        self.serial += 1;
        let len = match rng.random_range(0..10) {
            0 => 8,
            1..6 => 100,
            6..9 => rng.random_range(8..600),
            _ => rng.random_range(600..6000),
        };
        let mut body = vec![self.serial as u8; len];
        body[..8].copy_from_slice(&self.serial.to_le_bytes());
        Entry { first_seq: self.next_seq(), count: rng.random_range(1..4), body: body.into() }
    }

    fn append(&mut self, wal: &mut WalWriter, rng: &mut StdRng) {
        let entry = self.entry(rng);
        wal.append(entry.first_seq, entry.count, &entry.body);
        self.log.push(entry);
    }

    /// A write succeeded.
    fn wrote(&mut self) {
        self.written = self.log.len();
    }

    /// A write was refused: takes back some of what was pending, or all.
    fn retract(&mut self, wal: &mut WalWriter, rng: &mut StdRng) {
        let n = rng.random_range(0..=self.log.len() - self.written);
        wal.retract(n);
        self.log.truncate(self.log.len() - n);
    }

    fn verify(&self, records: &[Record], at_least: usize, story: &str) -> usize {
        let start = self.begins.iter().find(|(generation, _)| *generation >= self.low);
        let start = start.map_or(self.log.len(), |(_, start)| *start);
        let end = start + records.len();
        assert!(end >= at_least, "{story}: {end} records are there, {at_least} were promised");
        assert!(end <= self.log.len(), "{story}: {end} records are there, only {} were made", self.log.len());
        for (found, expected) in records.iter().zip(&self.log[start..]) {
            let found = Entry { first_seq: found.first_seq, count: found.count, body: found.body.clone() };
            assert_eq!(found, *expected, "{story}");
        }
        end
    }
}

/// One round of work. Ends by itself, or with the first error that the log does not survive.
fn work(wal: &mut WalWriter, model: &mut Model, rng: &mut StdRng, seen: &mut Seen) -> Result<()> {
    for _ in 0..rng.random_range(1..50) {
        let result = match rng.random_range(0..20) {
            0..8 => {
                model.append(wal, rng);
                continue;
            }
            // As the engine does it for a commit that is to outlive the process only.
            8..12 => wal.store().map(|()| model.wrote()),
            12..16 => {
                // As the engine does it for a commit that is to be durable.
                let before = wal.bytes_written();
                let reserved = if rng.random_bool(0.7) { wal.reserve() } else { Ok(()) };
                seen.reserved += u64::from(wal.bytes_written() > before);
                assert!(!reserved.as_ref().is_err_and(Error::is_disk_full), "it is not needed");
                reserved.and_then(|()| wal.begin()).and_then(|()| {
                    // The manifest is the engine's; here it is always durable.
                    model.high = wal.generation();
                    wal.sync().map(|()| {
                        model.wrote();
                        model.synced = model.written;
                    })
                })
            }
            16..18 => {
                let result = wal.rotate();
                if result.is_ok() {
                    model.wrote();
                    model.begins.push((wal.generation(), model.log.len()));
                    // The one before was begun.
                    model.high = wal.generation() - 1;
                } else if wal.pending() == 0 {
                    model.wrote();
                    seen.refused_rotations += u64::from(result.as_ref().is_err_and(Error::is_disk_full));
                    if result.as_ref().is_err_and(Error::is_disk_full) {
                        continue;
                    }
                }
                result
            }
            18 => {
                // As the flush does it: sync the old generations from the side.
                for old in wal.unsynced() {
                    old.sync()?;
                    wal.mark_synced(old.generation());
                }
                if let Some(newest) = wal.unsynced_header(wal.generation()) {
                    newest.sync()?;
                    wal.mark_begun(newest.generation());
                    model.high = newest.generation();
                }
                continue;
            }
            _ => {
                model.low = rng.random_range(model.low..=model.high);
                seen.removed += u64::from(model.low > 1);
                let _ = wal.remove_below(model.low);
                continue;
            }
        };
        match result {
            Ok(()) => {}
            Err(full) if full.is_disk_full() => {
                seen.refused_writes += 1;
                model.retract(wal, rng);
            }
            Err(other) => {
                assert!(matches!(wal.write(), Err(Error::Poisoned { .. })), "it goes on after {other}");
                return Err(other);
            }
        }
    }
    Ok(())
}

fn order_faults(volume: &Simulated, rng: &mut StdRng) {
    let nth = rng.random_range(1..60);
    match rng.random_range(0..10) {
        0 | 1 => {}
        2..5 => volume.fail_nth(Filter::any(), nth, Fault::PowerOff, Repeat::Once),
        5 => volume.fail_nth(Filter::any(), nth, Fault::Error, Repeat::Once),
        6 => volume.fail_nth(Filter::kinds([OperationKind::Sync]), nth / 4 + 1, Fault::Error, Repeat::Once),
        7 => volume.fail_nth(Filter::any(), nth, Fault::NoSpace, Repeat::Once),
        _ => {
            for _ in 0..3 {
                let nth = rng.random_range(1..20);
                let writes = Filter::kinds([OperationKind::Write, OperationKind::Open]);
                volume.fail_nth(writes, nth, Fault::NoSpace, Repeat::Once);
            }
        }
    }
}

/// So small that reservations are made and used up all the time.
fn tiny_steps(rng: &mut StdRng) -> Steps {
    let first = rng.random_range(1..500);
    Steps { first, most: rng.random_range(first..20_000), unit: [1, 64, 512, 4096][rng.random_range(0..4)] }
}

/// So small that windows come and go all the time.
fn tiny_windows(rng: &mut StdRng) -> Sizes {
    let (small, first) = (rng.random_range(100..2000), rng.random_range(1..2000));
    Sizes {
        small,
        after: rng.random_range(1..4),
        first,
        most: first * rng.random_range(1..8),
        unit: [1, 64, 4096][rng.random_range(0..3)],
        dirty: rng.random_range(0..2000),
    }
}

fn life(seed: u64, seen: &mut Seen) {
    let mut rng = StdRng::seed_from_u64(seed);
    // Every second life has windows.
    let mut volume =
        if seed.is_multiple_of(2) { Simulated::new(seed) } else { Simulated::new(seed).with_windows() };
    let mut model = Model { log: vec![], written: 0, synced: 0, begins: vec![], low: 1, high: 0, serial: 0 };
    for round in 0..6u64 {
        let (records, tail) = read(&volume, model.low, model.high)
            .unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
        let end = model.verify(&records, model.synced, "once more");
        seen.truncated += u64::from(tail.truncated.is_some());
        seen.void += u64::from(tail.ends_in != tail.generation);
        seen.unnoted += u64::from(tail.generation > model.high);
        let file = volume.read_file(&file_name(tail.generation)).unwrap_or_default();
        let zeros =
            tail.ends_in == tail.generation && tail.truncated.is_none() && file.len() as u64 > tail.len;
        seen.zeros_behind += u64::from(zeros);
        seen.zeros_only += u64::from(zeros && tail.len == HEADER_LEN as u64);
        order_faults(&volume, &mut rng);
        let resumed = WalWriter::resume(shared(&volume), DATABASE, &tail);
        seen.resumed += u64::from(matches!(resumed, Ok(Some(_))));
        let begun = match resumed {
            Ok(None) => WalWriter::create(shared(&volume), DATABASE, &tail),
            other => other.map(|wal| wal.expect("not None")),
        };
        // From here on, what was not found is not to come back.
        model.log.truncate(end);
        model.written = end;
        model.begins.retain(|(generation, start)| *generation <= tail.ends_in && *start <= end);
        if let Ok(mut wal) = begun {
            wal.set_steps_for_test(tiny_steps(&mut rng));
            wal.set_windows_for_test(tiny_windows(&mut rng));
            model.synced = end;
            if model.begins.last().is_none_or(|(generation, _)| *generation != wal.generation()) {
                model.begins.push((wal.generation(), end));
            }
            model.high = wal.generation();
            seen.failed += u64::from(work(&mut wal, &mut model, &mut rng, seen).is_err());
            seen.stores += wal.stores();
            seen.lost_stores += u64::from(wal.stores() > 0 && volume.is_off());
        } else {
            // The log is still what it was, and even a new generation could be there: without records.
            model.written = model.synced;
            model.begins.push((tail.generation + 1, end));
        }
        volume.clear_faults();
        let mut next = None;
        for image in 0..3 {
            let image_seed = seed * 1000 + round * 10 + image;
            let dies = rng.random_bool(0.3);
            let (found, promised) = if dies {
                (volume.crash(), model.written)
            } else {
                (volume.power_loss(image_seed), model.synced)
            };
            let story = format!("seed {seed}, round {round}, image {image}, process only: {dies}");
            let (records, tail) =
                read(&found, model.low, model.high).unwrap_or_else(|error| panic!("{story}: {error}"));
            model.verify(&records, promised, &story);
            seen.unsynced_header += u64::from(tail.truncated.is_some_and(|truncated| truncated.offset == 0));
            seen.doomed += u64::from(dies);
            seen.images += 1;
            next = Some(found);
        }
        volume = next.expect("three");
    }
}

#[test]
fn what_is_found_is_a_prefix_with_all_that_was_promised() {
    let mut seen = Seen::default();
    if let Ok(seed) = std::env::var("WAL_SEED") {
        return life(seed.parse().expect("a number"), &mut seen);
    }
    let lives = std::env::var("WAL_LIVES").map_or(1500, |lives| lives.parse().expect("a number"));
    (0..lives).for_each(|seed| life(seed, &mut seen));
    println!("{seen:?}");
    let Seen { images, truncated, void, resumed, refused_writes, refused_rotations, .. } = seen;
    for rare in [truncated, void, resumed, refused_writes, refused_rotations] {
        assert!(rare > 0, "all of it should happen: {seen:?}");
    }
    for rare in [seen.removed, seen.failed, seen.unnoted, seen.doomed, seen.reserved] {
        assert!(rare > 0, "all of it should happen: {seen:?}");
    }
    for rare in [seen.zeros_behind, seen.zeros_only, seen.stores, seen.lost_stores, seen.unsynced_header] {
        assert!(rare > 0, "all of it should happen: {seen:?}");
    }
    assert!(images >= lives * 18);
}
