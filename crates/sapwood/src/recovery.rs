//! Opening a database: find out what it is, read the manifest, replay the log. And closing it.
//!
//! ```text
//! directory ─▶ CURRENT ─▶ manifest ─▶ version ─┐
//!                                              ├─▶ log (from wal_low on) ─▶ OPQs (`replay`) ─▶ open
//! nothing ──▶ create: data, wal, manifest, and CURRENT last
//! ```
//!
//! Invariants:
//! 1. Nothing of the directory is changed before everything that is to be read was read and found sound.
//! 2. A directory that holds anything else than a database is refused and left alone.
//! 3. A crash at any point of opening or creating leaves something that opens.

use crate::beside::beside;
use crate::commit::Log;
use crate::database_id::DatabaseId;
use crate::engine::{Engine, Parts};
use crate::error::{Error, Result};
use crate::options::Builder;
use crate::publish::With;
use crate::replay::{Overflow, Replay, replay};
use crate::store::current::{self, Current};
use crate::store::edit::Edit;
use crate::store::manifest::{self, Manifest, Replayed};
use crate::store::pager::{self, Pager, Room};
use crate::store::segment::Slots;
use crate::store::version::Version;
use crate::store::write_behind::WriteBehind;
use crate::store::writer::Writer;
use crate::wal::{self, Tail, WalWriter};
use psync::{Access, Entry, FileId, Lock, LockKind, Read, Volume};
use std::sync::Arc;
use std::time::Duration;

/// Generations of the log beyond which opening flushes, so that many short sessions do not pile them up.
const GENERATIONS_MAX: u64 = 4;

/// Opens the database on `volume`, or creates it.
pub(crate) fn open(volume: Arc<dyn Volume>, options: &Builder) -> Result<(Engine, Lock)> {
    let path = volume.describe();
    if !options.may_create() && !has_current(&volume.list()?) {
        return Err(missing(&*volume, &path)?);
    }
    let kind = if options.is_read_only() { LockKind::Shared } else { LockKind::Exclusive };
    let lock = volume.lock(kind, &options.holder_text())?;
    let entries = volume.list()?;
    if !has_current(&entries) {
        if !options.may_create() {
            return Err(missing(&*volume, &path)?);
        }
        create(&volume, &entries, options, &path)?;
    }
    let current = Current::decode(&read_file(&*volume, current::FILE)?, &path)?;
    let slots: Arc<Slots> = Arc::default();
    let data_len = volume
        .list()?
        .iter()
        .find(|entry| entry.name == pager::FILE)
        .map(|entry| entry.len)
        .ok_or_else(|| Error::corrupt(pager::FILE, 0, "the data file is missing", "a file", "none"))?;
    let replayed = manifest::replay(&*volume, &current, data_len, &slots)?;
    let engine = start(&volume, current, replayed, slots, options, path)?;
    engine.balance_memory();
    Ok((engine, lock))
}

fn has_current(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.name == current::FILE)
}

/// Why there is nothing to open.
fn missing(volume: &dyn Volume, path: &str) -> Result<Error> {
    let entries = volume.list()?;
    Ok(match foreign(&entries) {
        Some(reason) => Error::NotADatabase { path: path.into(), reason },
        None => lost_current(&entries).unwrap_or_else(|| Error::Missing { path: path.into() }),
    })
}

/// Damage, if what is here without a `CURRENT` was a database once, and not only a creation that was cut short: what
/// that leaves is small.
fn lost_current(entries: &[Entry]) -> Option<Error> {
    let was_used = |entry: &&Entry| {
        entry.name != "LOCK" && (entry.len > LEFTOVER_MAX || (entry.name == pager::FILE && entry.len > 0))
    };
    let found = entries.iter().find(was_used)?;
    let what = format!("it is missing, but {:?} with {} bytes is here", found.name, found.len);
    Some(Error::corrupt(current::FILE, 0, what, "a file", "none"))
}

/// How one can tell that the directory holds something else.
fn foreign(entries: &[Entry]) -> Option<String> {
    let ours = |name: &str| {
        name == "LOCK"
            || name == pager::FILE
            || name == current::TEMPORARY
            || manifest::number_of(name).is_some()
            || wal::generation_of(name).is_some()
    };
    let others: Vec<_> = entries.iter().filter(|entry| !ours(&entry.name)).collect();
    let first = others.first()?;
    Some(format!(
        "it has no file {}, but {} other file(s), such as {:?}",
        current::FILE,
        others.len(),
        first.name
    ))
}

fn read_file(volume: &dyn Volume, name: &str) -> Result<Vec<u8>> {
    let file = volume.open(name, Access::default())?;
    // CURRENT is tiny; a large one is not ours, and its beginning says so.
    let result = volume.len(file).and_then(|len| {
        let mut bytes = vec![0; len.min(4096) as usize];
        if !bytes.is_empty() {
            volume.read(&mut [Read { file, offset: 0, buffer: &mut bytes }])?;
        }
        Ok(bytes)
    });
    volume.close(file)?;
    Ok(result?)
}

/// Makes a new database. `CURRENT` comes last, so that a crash before leaves only what the next try removes.
fn create(volume: &Arc<dyn Volume>, entries: &[Entry], options: &Builder, path: &str) -> Result<()> {
    if let Some(reason) = foreign(entries) {
        return Err(Error::NotADatabase { path: path.into(), reason });
    }
    if let Some(damage) = lost_current(entries) {
        return Err(damage);
    }
    for entry in entries.iter().filter(|entry| entry.name != "LOCK") {
        volume.remove(&entry.name)?;
    }
    let access = Access { write: true, create: true, ..Access::default() };
    let data = volume.open(pager::FILE, access)?;
    volume.sync(data)?;
    volume.close(data)?;
    let database = DatabaseId::random();
    let wal = WalWriter::create(Arc::clone(volume), database, &Tail::none())?;
    let version = Version { wal_high: wal.generation(), ..Version::empty(options.span()) };
    let current = Current { database, manifest: 1, span: options.span(), manifest_len: 0 };
    Manifest::create(Arc::clone(volume), current, &version)?;
    Ok(())
}

/// Bytes that a file of a creation that was cut short may have.
const LEFTOVER_MAX: u64 = 256;

/// Builds the engine on a version that was read, replays the log into it, and makes it ready to write.
fn start(
    volume: &Arc<dyn Volume>,
    current: Current,
    replayed: Replayed,
    slots: Arc<Slots>,
    options: &Builder,
    path: String,
) -> Result<Engine> {
    let read_only = options.is_read_only();
    let version = Arc::new(replayed.version.clone());
    let data = volume.open(pager::FILE, Access { write: !read_only, direct: true, ..Access::default() })?;
    check_data_len(&**volume, data, &version)?;
    let shares = options.shares(current.span);
    let room = Room {
        cache: shares.cache(&version, 0, 0),
        buffers: shares.read_buffers,
        frames: shares.spare_frames(),
    };
    let pager = Pager::new(Arc::clone(volume), data, current.span, volume.limits().pio_max, room);
    let mut engine = Engine::new(Parts {
        path,
        volume: Arc::clone(volume),
        data,
        shares,
        slots: Arc::clone(&slots),
        pager: Arc::new(pager),
        version: Arc::clone(&version),
        visible: version.flushed_seq,
        writer: None,
        manifest: None,
        read_only,
        in_background: options.has_background_thread(),
    });
    // First everything is read ...
    let (low, high) = (version.wal_low, version.wal_high);
    if read_only {
        replay(&engine, &**volume, current.database, [low, high], Overflow::Left)?;
        return Ok(engine);
    }
    // ... and only a log that does not fit into memory is flushed meanwhile.
    let open =
        version.segments.get(version.open_segment).map(|entry| (Arc::clone(&entry.segment), entry.used));
    let next_segment =
        version.segments.last().map_or(0, |last| last.segment.number).max(version.open_segment) + 1;
    let output = WriteBehind::new(Arc::clone(volume), data, options.has_background_thread());
    let alignment = volume.limits().alignment;
    let writer = Writer::new(output, alignment, slots, current.span, shares.writer, open, next_segment);
    engine.set_writer(writer);
    let Replay { tail, is_whole } =
        replay(&engine, &**volume, current.database, [low, high], Overflow::Left)?;
    let manifest = || {
        if !replayed.torn && replayed.len == current.manifest_len {
            return Manifest::resume(Arc::clone(volume), current, &replayed);
        }
        // It was not closed properly: the last edit may be cut off, and others may not be durable although one can read
        // them (see `wal/settle.rs`). A fresh file settles both.
        remove_if_there(&**volume, &manifest::file_name(current.manifest + 1))?;
        let next = Current { manifest: current.manifest + 1, manifest_len: 0, ..current };
        Manifest::create(Arc::clone(volume), next, &version)
    };
    let settled = || {
        let mut tail = tail.clone();
        wal::settle(&**volume, &mut tail)?;
        Ok(tail)
    };
    // Neither knows of the other, and both wait for the disk most of the time.
    let (settled, manifest) = if options.has_background_thread() {
        std::thread::scope(|scope| {
            let settled = beside(scope, "sapwood-settle", settled);
            let manifest = manifest();
            (settled(), manifest)
        })
    } else {
        (Ok(settled()?), manifest())
    };
    let tail = settled?;
    *engine.manifest.get_mut() = Some(manifest?);
    if !is_whole {
        // What is settled is begun, and a flush wants to know.
        let newest = Some(tail.ends_in).filter(|newest| *newest > high);
        if newest.is_some() {
            engine.publish(Edit { wal_high: newest, ..Edit::default() }, With::default())?;
        }
        let generations = [low, tail.ends_in.max(high)];
        replay(&engine, &**volume, current.database, generations, Overflow::Flushed)?;
    }
    // Only now: the log's next file says that all before it is durable, also what was needless only by an edit that nobody had synced.
    let wal = next_log(volume, current.database, &tail)?;
    begin_log(&engine, wal)?;
    remove_leftovers(&engine, volume, low);
    if tail.generation.saturating_sub(low) >= GENERATIONS_MAX {
        engine.flush_inline()?;
    }
    Ok(engine)
}

/// The data file must reach as far as the segments say.
fn check_data_len(volume: &dyn Volume, data: FileId, version: &Version) -> Result<()> {
    let needed = version
        .segments
        .iter()
        .filter(|entry| entry.used > 0)
        .map(|entry| u64::from(entry.segment.slot) * version.span + entry.used)
        .max()
        .unwrap_or(0);
    let len = volume.len(data)?;
    if len < needed {
        return Err(Error::corrupt(
            pager::FILE,
            len,
            "length of the data file",
            format!("at least {needed} bytes"),
            len,
        ));
    }
    Ok(())
}

fn remove_if_there(volume: &dyn Volume, name: &str) -> Result<()> {
    match volume.remove(name) {
        Ok(()) | Err(psync::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Begins a generation behind what was found in the log, and is durable.
fn next_log(volume: &Arc<dyn Volume>, database: DatabaseId, tail: &Tail) -> Result<WalWriter> {
    match WalWriter::resume(Arc::clone(volume), database, tail)? {
        Some(wal) => Ok(wal),
        // Generations that nothing continues are void from here on, and go with the next flush.
        None => WalWriter::create(Arc::clone(volume), database, tail),
    }
}

/// The log goes on from here.
fn begin_log(engine: &Engine, wal: WalWriter) -> Result<()> {
    let generation = wal.generation();
    *engine.log.lock() = Some(Log { wal, next_seq: engine.visible() + 1 });
    if engine.state.load().version.wal_high != generation {
        engine.publish(Edit { wal_high: Some(generation), ..Edit::default() }, With::default())?;
    }
    Ok(())
}

/// Removes files that no longer count. Their removal can wait for the next time, so errors are only told.
fn remove_leftovers(engine: &Engine, volume: &Arc<dyn Volume>, wal_low: u64) {
    let Ok(entries) = volume.list() else { return };
    let number = engine.manifest.lock().as_ref().map(|manifest| manifest.current().manifest);
    for entry in entries {
        let outdated = manifest::number_of(&entry.name).is_some_and(|found| Some(found) != number)
            || wal::generation_of(&entry.name).is_some_and(|generation| generation < wal_low)
            || entry.name == current::TEMPORARY;
        if outdated && let Err(error) = volume.remove(&entry.name) {
            tracing::warn!(%error, file = entry.name, "a file that is no longer needed was not removed");
        }
    }
}

impl Engine {
    /// Flushes everything in this thread.
    fn flush_inline(&self) -> Result<()> {
        // The queue that the replay froze, if it did.
        self.flush_now()?;
        let mut guard = self.log.lock();
        let log = guard.as_mut().ok_or(Error::Closed)?;
        if self.state.load().active.is_empty() {
            return Ok(());
        }
        self.freeze(log)?;
        drop(guard);
        self.flush_now()
    }

    /// Makes all commits durable, and marks the end of the log, so that from now on every missing byte of it is noticed.
    pub fn close(&self) -> Result<()> {
        let result = self.close_log();
        *self.log.lock() = None;
        self.close_writer();
        *self.manifest.lock() = None;
        self.poison(&Error::Closed);
        self.give_back_spare(Duration::ZERO);
        result
    }

    fn close_log(&self) -> Result<()> {
        if self.read_only || self.log.lock().is_none() {
            return Ok(());
        }
        self.sync()?;
        // The header of the next generation says how far this one reaches, and CURRENT how far the manifest does.
        // Without space for them both are as after a crash: whole, but without the mark.
        match self.seal() {
            Err(error) if !error.is_disk_full() => Err(error),
            _ => Ok(()),
        }
    }

    fn seal(&self) -> Result<()> {
        let mut guard = self.log.lock();
        if let Some(log) = guard.as_mut().filter(|log| !log.wal.is_empty()) {
            self.seal_log(log)?;
        }
        self.manifest.lock().as_mut().map_or(Ok(()), Manifest::seal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Database, Durability};
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated};

    #[test]
    fn a_log_that_is_too_long_to_be_replayed_for_reading_only_is_an_error() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let builder = Database::builder().memory(768 << 20).background_threads(0);
        let open = |read_only| builder.clone().read_only(read_only).open_on(Arc::clone(&volume));
        let value = vec![1; 15 << 20];
        let write = |numbers: std::ops::Range<u8>| {
            let keyspace = open(false).unwrap().keyspace("main").unwrap();
            numbers.for_each(|number| keyspace.insert([number], &value).unwrap());
        };
        write(0..5);
        assert!(open(true).is_ok());
        // The last one finds 75 MiB of others.
        write(5..6);
        assert!(matches!(open(true), Err(Error::BadOption { option: "read_only", .. })));
        let db = open(false).unwrap();
        db.flush().unwrap();
        drop(db);
        let keyspace = open(true).unwrap().keyspace("main").unwrap();
        assert_eq!(keyspace.get([5]).unwrap().unwrap().len(), value.len());
    }

    fn options(memory: u64, background: usize) -> Builder {
        Database::builder().memory(memory).segment_span(1 << 20).background_threads(background)
    }

    fn name(number: u32) -> [u8; 4] {
        number.to_be_bytes()
    }

    /// What a process leaves that was killed while its first queue could not be flushed; how many records there are, all of them in the log
    /// only; and the generation that follows the first queue's.
    fn killed_with_two_queues(memory: u64, durability: Durability) -> (Simulated, u32, u64) {
        let volume = Simulated::new(1);
        let db = options(memory, 0).open_on(Arc::new(volume.clone())).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        let to_data = Filter::kinds([OperationKind::Write]).file(pager::FILE);
        volume.fail_nth(to_data, 1, Fault::NoSpace, Repeat::Sticky);
        let put = |number: &u32| {
            let mut batch = db.batch();
            batch.insert(&keyspace, name(*number), [7; 500]);
            batch.durability(durability).commit()
        };
        let count = (0..).find(|number| put(number).is_err()).unwrap();
        let state = db.handle.engine.state.load_full();
        assert!(state.frozen.is_some() && state.version.flushed_seq == 0);
        volume.clear_faults();
        let generation = state.frozen.as_ref().unwrap().wal_low;
        (volume.crash(), count, generation)
    }

    /// How many records there are, from the first on; and there is none behind a gap.
    fn held(db: &Database, most: u32) -> u32 {
        let keyspace = db.keyspace("main").unwrap();
        let is_there = |number: &u32| keyspace.get(name(*number)).unwrap().is_some();
        let held = (0..most).find(|number| !is_there(number)).unwrap_or(most);
        assert!(!(held..most).any(|number| is_there(&number)), "a gap at {held} of {most}");
        held
    }

    #[test]
    fn nobody_waits_for_the_flush_of_a_queue_that_was_frozen_when_the_process_was_killed() {
        let (found, count, generation) = killed_with_two_queues(8 << 20, Durability::Buffered);
        let volume = found.crash();
        let db = options(8 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
        let state = db.handle.engine.state.load_full();
        let frozen = state.frozen.clone().expect("the first queue is as it was");
        assert_eq!((frozen.wal_low, state.version.flushed_seq), (generation, 0));
        assert!(!state.active.is_empty());
        assert_eq!((held(&db, count), db.stats().writes.data_bytes), (count, 0));
        // What was read is durable.
        for seed in 0..5 {
            let lost = options(8 << 20, 0).open_on(Arc::new(volume.power_loss(seed))).unwrap();
            assert_eq!(held(&lost, count), count);
        }
        // It is flushed as always, and its log goes; the other queue's does not.
        db.handle.engine.flush_now().unwrap();
        let state = db.handle.engine.state.load_full();
        assert!(state.frozen.is_none() && state.version.flushed_seq == frozen.last_seq);
        assert_eq!(state.version.wal_low, generation);
        let oldest = volume.list().unwrap().iter().filter_map(|entry| wal::generation_of(&entry.name)).min();
        assert_eq!(oldest, Some(generation));
        for seed in 0..5 {
            let lost = options(8 << 20, 1).open_on(Arc::new(volume.power_loss(seed))).unwrap();
            assert_eq!(held(&lost, count), count);
        }
        let db = options(8 << 20, 1).open_on(Arc::new(found.crash())).unwrap();
        db.flush().unwrap();
        assert_eq!((held(&db, count), db.stats().writes.changes_queued), (count, 0));
    }

    #[test]
    fn a_log_that_has_no_room_in_two_queues_is_flushed_when_all_of_it_is_found_sound() {
        let (found, count, _) = killed_with_two_queues(32 << 20, Durability::Buffered);
        for background in [0, 1] {
            let volume = found.crash();
            let db = options(4 << 20, background).open_on(Arc::new(volume.clone())).unwrap();
            assert_eq!(held(&db, count), count);
            assert!(db.stats().memory.queues <= 2 << 20, "{}", db.stats().memory.queues);
            for seed in 0..3 {
                let lost = options(4 << 20, 0).open_on(Arc::new(volume.power_loss(seed))).unwrap();
                assert_eq!(held(&lost, count), count);
            }
        }
    }

    #[test]
    fn nothing_is_changed_before_all_of_a_long_log_is_found_sound() {
        let (found, _, generation) = killed_with_two_queues(12 << 20, Durability::Immediate);
        let last = wal::file_name(generation);
        let middle = found.read_file(&last).unwrap().len() as u64 / 2;
        found.flip_bit(&last, middle, 3).unwrap();
        for background in [0, 1] {
            let volume = found.crash();
            volume.fail_nth(Filter::kinds([OperationKind::Write]), 1, Fault::Error, Repeat::Sticky);
            let opened = options(4 << 20, background).open_on(Arc::new(volume.clone()));
            assert!(opened.is_err_and(|error| error.is_damage()));
            assert_eq!(volume.fired(), 0, "something was written");
        }
    }

    /// With a thread in the background the log is settled while the manifest is written.
    #[test]
    fn whatever_fails_while_a_killed_database_is_opened_it_opens_again() {
        let (found, count, _) = killed_with_two_queues(4 << 20, Durability::Buffered);
        let (mut failures, mut nth) = (0, 0);
        loop {
            nth += 1;
            let mut fired = 0;
            for fault in [Fault::PowerOff, Fault::Error, Fault::NoSpace] {
                let volume = found.crash();
                volume.fail_nth(Filter::changes(), nth, fault, Repeat::Once);
                let opened = options(4 << 20, 1).open_on(Arc::new(volume.clone()));
                let is_open = opened.is_ok();
                failures += u32::from(!is_open);
                drop(opened);
                fired += volume.fired();
                volume.clear_faults();
                for seed in 0..3 {
                    let db = options(4 << 20, 1).open_on(Arc::new(volume.power_loss(seed)));
                    let held = held(&db.unwrap_or_else(|error| panic!("{fault:?} at {nth}: {error}")), count);
                    assert!(!is_open || held == count, "{held} of {count}: {fault:?} at {nth}");
                }
            }
            if fired == 0 || nth > 40 {
                break;
            }
        }
        assert!(failures > 10, "{failures}");
    }

    /// What a process leaves whose flush has written its edit and could not sync it; and how many records there are, all of them buffered. The edit can be
    /// read, unless a power loss comes first.
    fn killed_with_an_edit_that_is_not_durable(seed: u64) -> (Simulated, u32) {
        let volume = Simulated::new(seed);
        let db = options(4 << 20, 0).open_on(Arc::new(volume.clone())).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        let put = |number: u32| {
            let mut batch = db.batch();
            batch.insert(&keyspace, name(number), [7; 500]);
            batch.durability(Durability::Buffered).commit()
        };
        (0..60).for_each(|number| put(number).unwrap());
        let engine = &db.handle.engine;
        engine.freeze(engine.log.lock().as_mut().unwrap()).unwrap();
        volume.fail_nth(Filter::kinds([OperationKind::Sync]).file("manifest"), 1, Fault::Error, Repeat::Once);
        // It comes to the log behind the queue's, and then the flush has its turn.
        put(60).unwrap();
        assert!(volume.fired() == 1 && put(61).is_err());
        (volume.crash(), 61)
    }

    /// The log's next file said that the one was durable whose records only that edit had made needless.
    #[test]
    fn the_next_log_vouches_for_nothing_before_the_manifest_is_durable() {
        for seed in 0..4 {
            let (found, count) = killed_with_an_edit_that_is_not_durable(seed);
            // What fails is the manifest's way, so that the log's has come as far as it can.
            let plans =
                ["manifest", "CURRENT"].into_iter().flat_map(|file| (1..6).map(move |nth| (file, nth)));
            for (file, nth) in plans {
                let volume = found.crash();
                volume.fail_nth(Filter::changes().file(file), nth, Fault::Error, Repeat::Once);
                let is_open = options(4 << 20, 1).open_on(Arc::new(volume.clone())).is_ok();
                for loss in 0..6 {
                    let db = options(4 << 20, 0).open_on(Arc::new(volume.power_loss(loss)));
                    let held =
                        held(&db.unwrap_or_else(|error| panic!("{seed} {nth} {loss}: {error}")), count);
                    assert!(!is_open || held == count, "{held} of {count}: {seed} {nth} {loss}");
                }
                if is_open {
                    break;
                }
            }
        }
    }
}
