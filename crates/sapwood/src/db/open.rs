//! Opens a database: identifies it, reads the manifest, replays the log.
//!
//! ```text
//! directory ─▶ CURRENT ─▶ manifest ─▶ version ─┐
//!                                              ├─▶ log (from wal_low on) ─▶ OPQs (`replay`) ─▶ open
//! nothing ──▶ create: data, wal, manifest, and CURRENT last
//! ```
//!
//! Invariants:
//! 1. Nothing in the directory is changed before everything needed has been read and found sound.
//! 2. A directory that holds anything other than a database is refused and left alone.
//! 3. After a crash at any point of opening or creating, the database can be opened: to write, as soon as there is space
//!    for a copy of the manifest and a log file.

mod directory;
#[cfg(test)]
mod tests;

pub(super) use directory::{has_current, missing, unfinished};

use crate::backup::RESTORING;
use crate::cache::pager;
use crate::cache::pager::{Pager, PagerMemory};
use crate::clock::Clock;
use crate::database_id::DatabaseId;
use crate::db::engine::{Engine, EngineInit};
use crate::db::merging::merge_limits;
use crate::db::options::Builder;
use crate::db::replay::{Overflow, Replay, replay};
use crate::encryption::{self, Encryption, EncryptionKey};
use crate::error::{Error, KeyProblem, Result};
use crate::followers::durable::Durable;
use crate::merging::{MergeLimits, MergeOperators, Merging};
use crate::operation::SeqNo;
use crate::publish::PublishContext;
use crate::spans::span;
use crate::storage::data_file::DataFile;
use crate::storage::slots::{GRANULE, Slots, granules};
use crate::storage::unused::unused;
use crate::storage::write_behind::WriteBehind;
use crate::storage::writer::Writer;
use crate::version::change_log::Keeping;
use crate::version::current;
use crate::version::current::Current;
use crate::version::edit::Edit;
use crate::version::manifest;
use crate::version::manifest::{Manifest, Replayed};
use crate::version::{Tree, Version};
use crate::wal;
use crate::wal::{Tail, WalWriter};
use directory::{create, foreign};
use psync::{Access, Entry, FileId, Lock, LockKind, Volume};
use std::sync::Arc;

/// With more log generations than this, opening flushes, so that many short sessions do not accumulate them.
const GENERATIONS_MAX: u64 = 4;

/// Opens the database on `volume`, or creates it.
pub(crate) fn open(volume: Arc<dyn Volume>, options: &Builder) -> Result<(Arc<Engine>, Lock)> {
    let path = volume.describe();
    span!("open", path = %path);
    // Before there is a file `LOCK` in a directory that is none of ours.
    let entries = volume.list()?;
    if has_current(&entries) {
        Current::read(&*volume)?;
    } else if !options.may_create() || foreign(&entries).is_some() {
        return Err(missing(&*volume, &path)?);
    }
    let kind = if options.is_read_only() { LockKind::Shared } else { LockKind::Exclusive };
    let lock = lock(&*volume, kind, options).map_err(|error| match has_current(&entries) {
        true => error,
        false => error.of_none(),
    })?;
    let entries = volume.list()?;
    if !has_current(&entries) {
        if !options.may_create() {
            return Err(missing(&*volume, &path)?);
        }
        create(&volume, &entries, options, &path).map_err(Error::of_none)?;
    }
    let current = Current::read(&*volume)?;
    let slots: Arc<Slots> = Arc::default();
    let data_len = match volume.open(pager::FILE, Access::default()) {
        Err(psync::Error::NotFound { .. }) => {
            return Err(Error::corrupt(pager::FILE, 0, "the data file is missing", "a file", "none"));
        }
        opened => {
            let data = opened?;
            let len = volume.len(data);
            volume.close(data)?;
            len?
        }
    };
    let encryption = encryption_of(&*volume, &current, options.key(), &path)?;
    let replayed = manifest::replay(&*volume, (&current, &encryption), data_len, &slots)?;
    let engine = start(&volume, (current, encryption), replayed, slots, options, path)?;
    engine.memory.balance_memory();
    Ok((engine, lock))
}

/// How a database is encrypted.
pub(super) fn encryption_of(
    volume: &dyn Volume,
    current: &Current,
    key: Option<&EncryptionKey>,
    path: &str,
) -> Result<Encryption> {
    match Encryption::read(volume, current.database, key, path) {
        // Without its keys it looks as if it were not encrypted.
        Ok(found) if !found.is_on() => refuse_lost_keys(volume, current.manifest).map(|()| found),
        Err(needless @ Error::EncryptionKey { problem: KeyProblem::Needless, .. }) => {
            refuse_lost_keys(volume, current.manifest).and(Err(needless))
        }
        found => found,
    }
}

/// Returns damage if the manifest of this number is encrypted: there are no keys.
pub(super) fn refuse_lost_keys(volume: &dyn Volume, manifest: u64) -> Result<()> {
    if !manifest::is_encrypted(volume, manifest)? {
        return Ok(());
    }
    let what = "it is missing, and the database is encrypted: nothing can be read without it";
    Err(Error::corrupt(encryption::FILE, 0, what, "a file", "none"))
}

/// Takes the lock.
fn lock(volume: &dyn Volume, kind: LockKind, options: &Builder) -> Result<Lock> {
    match volume.lock(kind, &options.holder_text()) {
        Err(psync::Error::NoLocks { volume, source }) if !options.requires_lock() => {
            tracing::warn!(%source, path = volume, "opened without a lock: no other process may have it open");
            Ok(Lock::new(()))
        }
        taken => taken.map_err(|error| Error::of_opening(error, &volume.describe())),
    }
}

/// Finds the operators that keyspaces merge by. What only reads can do without: what has been
/// merged is there, and operands that wait are errors.
pub(super) fn find_operators(
    version: &mut Version,
    operators: &MergeOperators,
    (limits, read_only): (MergeLimits, bool),
) -> Result<()> {
    let merging: Vec<_> = version.trees.iter().filter(|(_, tree)| tree.merging.is_some()).collect();
    let merging: Vec<_> = merging.into_iter().map(|(id, tree)| (id, tree.clone())).collect();
    for (id, tree) in merging {
        let name = tree.merging.as_ref().map_or("", Merging::name);
        let operator = match operators.find(name) {
            Some(operator) => operator,
            None if read_only => continue,
            None => {
                let (keyspace, operator) = (tree.name.to_string(), name.into());
                return Err(Error::UnknownMergeOperator { keyspace, operator });
            }
        };
        version.trees.insert(id, Tree { merging: Some(Merging::new(operator, limits)), ..tree });
    }
    Ok(())
}

/// The engine of a version that has been read.
pub(super) fn engine(
    volume: &Arc<dyn Volume>,
    (current, encryption): (&Current, &Encryption),
    version: Version,
    slots: &Arc<Slots>,
    options: &Builder,
    path: String,
) -> Result<Arc<Engine>> {
    let shares = options.shares(current.span);
    let version = Arc::new(version);
    let data = volume
        .open(pager::FILE, Access { write: !options.is_read_only(), direct: true, ..Access::default() })?;
    // Before anything is written.
    volume.identify_by(data).inspect_err(|_| _ = volume.close(data))?;
    let room = PagerMemory {
        cache: shares.cache(&version, 0, 0),
        buffers: shares.read_buffers,
        frames: shares.spare_frames(),
    };
    let latencies = options.latencies_asked();
    let file = (Arc::clone(volume), data);
    let pager = Pager::new(file, current.span, volume.limits().pio_max, room, encryption.clone(), latencies);
    Ok(Arc::new(Engine::new(EngineInit {
        path,
        volume: Arc::clone(volume),
        data,
        shares,
        slots: Arc::clone(slots),
        pager: Arc::new(pager),
        version: Arc::clone(&version),
        visible: version.flushed_seq,
        read_only: options.is_read_only(),
        threads: options.threads(),
        lease: options.lease(),
        clock: Arc::new(Clock::new(options.clock_source(), version.clock)),
        encryption: encryption.clone(),
    })))
}

/// Builds the engine for a version that has been read, replays the log into it, and makes it ready to write.
fn start(
    volume: &Arc<dyn Volume>,
    (current, encryption): (Current, Encryption),
    replayed: Replayed,
    slots: Arc<Slots>,
    options: &Builder,
    path: String,
) -> Result<Arc<Engine>> {
    let read_only = options.is_read_only();
    let mut version = replayed.version.clone();
    let shares = options.shares(current.span);
    version.check_compression()?;
    find_operators(&mut version, options.merge_operators(), (merge_limits(&shares), read_only))?;
    let engine = engine(volume, (&current, &encryption), version, &slots, options, path)?;
    let (version, data) = (engine.state.version(), engine.data);
    check_data_len(&**volume, data, &version)?;
    if !read_only {
        engine.space.reserve.find();
    }
    let is_sealed = !replayed.torn && replayed.len == current.manifest_len;
    // First everything is read.
    let (low, high) = (version.wal_low, version.wal_high);
    if read_only {
        replay(&engine, &**volume, current.database, [low, high], Overflow::Left)?;
        return Ok(engine);
    }
    // Only a log that does not fit into memory is flushed later, by another replay.
    set_writer(&engine, &version, slots, current.span);
    let Replay { tail, is_whole } =
        replay(&engine, &**volume, current.database, [low, high], Overflow::Left)?;
    if is_sealed {
        find_kept(&engine, low);
    }
    let manifest = || {
        if is_sealed && current.format == current::FORMAT {
            return Manifest::resume(Arc::clone(volume), (current, &encryption), &replayed);
        }
        fresh_manifest(&engine, (current, &encryption), &version)
    };
    // They are independent, and both wait for the disk most of the time.
    let rewritten = {
        let (engine, volume, mut tail) = (Arc::clone(&engine), Arc::clone(volume), tail.clone());
        Arc::clone(&engine.pool).submit("a copy of the log", move || {
            with_space(&engine, || wal::rewrite_unsynced(&*volume, current.database, &mut tail))?;
            Ok(tail)
        })
    };
    let (rewritten, manifest) = if engine.pool.has_threads() {
        let manifest = manifest();
        (rewritten.wait(), manifest)
    } else {
        (Ok(rewritten.wait()?), manifest())
    };
    let tail = rewritten?;
    let manifest = manifest?;
    let data_len = volume.len(data)?;
    engine.space.slots.reach(granules(data_len));
    engine.space.reserve.note_version(version.live_bytes(), manifest.len());
    let durable = Durable { epoch: version.epoch, seq: tail.next_seq - 1 };
    engine.followers.begin(current.database, durable)?;
    // Followers that come from here on read nothing older.
    if !is_sealed && !volume.limits().direct {
        free_unused(&engine, &version, data_len)?;
    }
    engine.publisher.install_manifest(manifest);
    if is_sealed {
        // Before anything else is written: by an edit behind those that `CURRENT` counts the next opening knows that this session did not
        // end properly, whatever fails or is lost from now on.
        with_space(&engine, || engine.publisher.publish(Edit::default(), PublishContext::default()))?;
    } else {
        find_kept(&engine, low);
    }
    // They keep all space that the flushes from here on make free.
    drop((version, replayed));
    if !is_whole {
        // What was rewritten is begun, and the flush needs the manifest to say so.
        let newest = Some(tail.ends_in).filter(|newest| *newest > high);
        if newest.is_some() {
            with_space(&engine, || {
                engine
                    .publisher
                    .publish(Edit { wal_high: newest, ..Edit::default() }, PublishContext::default())
            })?;
        }
        let generations = [low, tail.ends_in.max(high)];
        replay(&engine, &**volume, current.database, generations, Overflow::Flushed)?;
    }
    // Only now: the log's next file declares everything before it durable, including what only an unsynced edit
    // had made unnecessary.
    let wal = with_space(&engine, || next_log(volume, (current.database, &encryption), &tail))?;
    engine.space.reserve.note_replayed(tail.bytes(), wal.generation());
    begin_log(&engine, wal)?;
    set_keeping(&engine, options.kept_changes(), tail.next_seq - 1)?;
    if engine.state.load().version.kept_log_max() > 0 {
        engine.commits.tell_times(&engine.clock);
    }
    remove_leftovers(&engine, volume, low);
    if tail.generation.saturating_sub(low) >= GENERATIONS_MAX {
        match engine.flush_inline() {
            // It can wait.
            Err(error) if error.is_refusal() => {
                tracing::warn!(%error, path = %engine.health.path(), "the log was not shortened");
            }
            flushed => flushed?,
        }
    }
    engine.space.restore_reserve();
    Ok(engine)
}

/// The writer of nodes goes on where the version ends.
fn set_writer(engine: &Engine, version: &Version, slots: Arc<Slots>, span: u64) {
    let volume = &engine.volume;
    let open =
        version.segments.get(version.open_segment).map(|entry| (Arc::clone(&entry.segment), entry.used));
    let output = WriteBehind::new(Arc::clone(volume), engine.data, Arc::clone(&engine.pool));
    let alignment = volume.limits().alignment;
    let newest = version.segments.last().map_or(0, |last| last.segment.number).max(version.open_segment);
    let file = Arc::new(DataFile::new(newest, &version.table, slots));
    engine.writer().set(Writer::new(output, alignment, file, span, engine.shares.writer, open));
}

/// The next manifest, of the same version. The database was not closed properly: the last edit may be cut off, and others may not be
/// durable although they can be read (see `wal/rewrite.rs`); or its format is older. A fresh file mends all of these.
fn fresh_manifest(
    engine: &Engine,
    (current, encryption): (Current, &Encryption),
    version: &Arc<Version>,
) -> Result<Manifest> {
    let volume = &engine.volume;
    remove_if_there(&**volume, &manifest::file_name(current.manifest + 1))?;
    let format = current::FORMAT;
    let next = Current { format, manifest: current.manifest + 1, manifest_len: 0, ..current };
    let manifest = with_space(engine, || Manifest::create(Arc::clone(volume), (next, encryption), version))?;
    // Each attempt that fails from here on has made one, and none removes leftovers.
    if let Ok(entries) = volume.list() {
        let is_other = |name: &str| manifest::number_of(name).is_some_and(|number| number != next.manifest);
        remove_outdated(&**volume, &entries, is_other);
    }
    Ok(manifest)
}

/// Gives back what no segment has: what is written where a sync has failed may be lost.
fn free_unused(engine: &Engine, version: &Version, data_len: u64) -> Result<()> {
    // What followers may read goes too, also if the file of one cannot be removed.
    engine.followers.end_all();
    let unused = unused(&version.segments, data_len);
    // On a full disk there may be no space to note a hole.
    with_space(engine, || {
        Ok(unused.iter().cloned().try_for_each(|range| engine.volume.release(engine.data, range))?)
    })
}

/// Runs work of opening that needs space. If the disk is full, gives back what attempts have left that came to no end, then what is
/// kept of the log, then the reserve, and tries again; after the first also if there was nothing: the manifest and the copy of the log are
/// written at the same time, and what was left may have been given back for the other.
fn with_space<T>(engine: &Engine, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut user = engine.space.reserve.user();
    let mut may_have_left = true;
    loop {
        match work() {
            Err(error) if error.is_disk_full() => {
                if std::mem::take(&mut may_have_left) {
                    if let Err(error) = give_back_left(engine) {
                        tracing::warn!(%error, path = %engine.health.path(), "what attempts have left was not given back");
                    }
                } else if !engine.space.kept_log.give_up_oldest(&*engine.volume) && !user.gets_space() {
                    return Err(error);
                }
            }
            done => return done,
        }
    }
}

/// Gives back what attempts have left that came to no end: manifests, and space at the end of the data file. Nothing that may still come to
/// count leads there: not the manifest with fewer of its edits either.
fn give_back_left(engine: &Engine) -> Result<()> {
    let volume = &*engine.volume;
    let current = Current::read(volume)?;
    // Of a session that failed or was killed it may have the name only until the power is lost.
    volume.sync_directory()?;
    let is_older = |name: &str| manifest::number_of(name).is_some_and(|number| number < current.manifest);
    remove_outdated(volume, &volume.list()?, is_older);
    let left = u64::from(engine.space.slots.next()) * GRANULE..volume.len(engine.data)?;
    if !left.is_empty() && engine.followers.revoke_all() {
        volume.release(engine.data, left)?;
    }
    Ok(())
}

/// Finds what is kept of the log for the change feed, whose space a full disk may have from now on. Not before all of the manifest that
/// was found is durable, or copied to one that is: the next opening may find less of it, and need more of the log.
fn find_kept(engine: &Engine, low: u64) {
    if engine.state.load().version.kept_log_max() == 0 {
        return;
    }
    if let Ok(files) = engine.volume.list() {
        engine.space.kept_log.keep(&*engine.volume, &files, |generation| generation < low, u64::MAX);
    }
}

/// Checks that the data file reaches as far as the segments say.
fn check_data_len(volume: &dyn Volume, data: FileId, version: &Version) -> Result<()> {
    let needed = version
        .segments
        .iter()
        .filter(|entry| entry.used > 0)
        .map(|entry| entry.segment.offset() + entry.used)
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

/// Starts a durable generation after what was found in the log.
fn next_log(
    volume: &Arc<dyn Volume>,
    (database, encryption): (DatabaseId, &Encryption),
    tail: &Tail,
) -> Result<WalWriter> {
    let wal = match WalWriter::resume(Arc::clone(volume), database, tail)? {
        Some(wal) => wal,
        // Generations that are not continued are void from here on, and are removed with the next flush.
        None => WalWriter::create(Arc::clone(volume), database, tail)?,
    };
    Ok(wal.encrypted(encryption))
}

/// Installs the log writer, and notes its generation in the manifest.
fn begin_log(engine: &Engine, wal: WalWriter) -> Result<()> {
    let generation = wal.generation();
    engine.commits.install_log(wal);
    if engine.state.load().version.wal_high != generation {
        with_space(engine, || {
            engine
                .publisher
                .publish(Edit { wal_high: Some(generation), ..Edit::default() }, PublishContext::default())
        })?;
    }
    Ok(())
}

/// Notes in the manifest how the log is kept for the change feed, if that is to be otherwise. All operations up to `last` are in the
/// trees or in the log that opening has found; what follows is told from here on.
fn set_keeping(engine: &Engine, asked: Option<u64>, last: SeqNo) -> Result<()> {
    let before = engine.state.load().version.change_log.clone();
    let Some(bytes) = asked.filter(|bytes| *bytes != before.as_ref().map_or(0, |log| log.keeping.bytes))
    else {
        return Ok(());
    };
    let keeping = match before {
        Some(log) if log.keeping.bytes > 0 => Keeping { bytes, ..log.keeping },
        _ => Keeping { bytes, from: last, first_event: 0 },
    };
    with_space(engine, || {
        let edit = Edit { keeping: Some(keeping), ..Edit::default() };
        engine.publisher.publish(edit, PublishContext::default())
    })
}

/// Removes files that are no longer needed. This can wait for the next open, so errors are only logged.
fn remove_leftovers(engine: &Engine, volume: &Arc<dyn Volume>, wal_low: u64) {
    let Ok(entries) = volume.list() else { return };
    // None, if changes are not kept, or not any more.
    let kept_max = engine.state.load().version.kept_log_max();
    engine.space.kept_log.keep(&**volume, &entries, |generation| generation < wal_low, kept_max);
    // No next manifest begins meanwhile: it might get the number of a file that is about to be removed.
    engine.publisher.with_manifest(|manifest| {
        let is_needed = |number| manifest.is_none_or(|manifest| manifest.needs(number));
        remove_outdated(&**volume, &entries, |name| {
            manifest::number_of(name).is_some_and(|number| !is_needed(number))
                || wal::is_copy(name)
                || name == current::TEMPORARY
                || name == encryption::TEMPORARY
                // Of a restore that was killed at its end.
                || name == RESTORING
        });
    });
}

/// Removes files. One that is not gone then is a leftover for the next opening.
fn remove_outdated(volume: &dyn Volume, entries: &[Entry], is_outdated: impl Fn(&str) -> bool) {
    for Entry { name, .. } in entries.iter().filter(|entry| is_outdated(&entry.name)) {
        match volume.remove(name) {
            Ok(()) | Err(psync::Error::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, file = name, "a file that is no longer needed was not removed")
            }
        }
    }
}

impl Engine {
    /// Flushes everything in this thread.
    pub fn flush_inline(&self) -> Result<()> {
        // The queue that the replay froze, if it froze one.
        self.flush.flush_now()?;
        let mut guard = self.commits.log_at_rest();
        let log = guard.as_mut().ok_or(Error::Closed)?;
        if self.state.load().active.is_empty() {
            return Ok(());
        }
        self.commits.freeze(log)?;
        drop(guard);
        self.flush.flush_now()
    }
}
