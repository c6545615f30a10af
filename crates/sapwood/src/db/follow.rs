//! A follower: a database that is open to read while another process writes it.
//!
//! ```text
//! refresh ─▶ registered? ─▶ DURABLE ─▶ CURRENT ─▶ edits of the manifest ─▶ records of the log ─▶ shown ─▶ says what it needs
//!               ▲                                                                                              │
//!               └────────── something was gone or changed meanwhile: once more, from the beginning ◀───────────┘
//! ```
//! Edits and records go on where the last refresh ended, unless there is another manifest. When a queue has come to the trees, the
//! rest of the log is replayed into a new queue. Nodes stay in the cache: no position is used twice. Of records there is no telling
//! which have changed, so they leave it with each new version.
//!
//! Invariants:
//! 1. What is shown is what a power loss would leave: never more than `DURABLE` says, or, if the machine was started since, what can be
//!    read.
//! 2. A view never goes back, and has whole commits only. All operations that are in the trees of its version are in it.
//! 3. The registration covers all versions that something in this process can still read, since it began. Reads of others that fail
//!    are told as such ([`Error::SnapshotTooOld`]), not as damage.

#[cfg(test)]
mod tests;

use crate::current_state::State;
use crate::database_id::DatabaseId;
use crate::db::database::Database;
use crate::db::engine::Engine;
use crate::db::merging::merge_limits;
use crate::db::open::{self, find_operators, has_current, missing};
use crate::db::options::{Builder, REPLAYED_MAX};
use crate::db::replay::check_record;
use crate::encryption::Encryption;
use crate::error::{DATA, Error, Result};
use crate::followers::durable::Durable;
use crate::followers::registration::Registration;
use crate::lock_order::{RankedMutex, rank};
use crate::merging::{MergeLimits, MergeOperators};
use crate::operation::{Operation, Operations, SeqNo};
use crate::opq::Opq;
use crate::storage::slots::Slots;
use crate::version::Version;
use crate::version::current::{self, Current};
use crate::version::manifest;
use crate::wal::{LogCursor, LogFiles, Record};
use psync::Volume;
use std::cell::RefCell;
use std::sync::{Arc, Condvar, Weak};
use std::time::Duration;

/// How often a refresh begins again before what it finds is taken for damage, and how long it waits then: a writer that flushes or
/// begins another manifest does so far less often.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);
/// How often a follower says that it is there: so often that the shortest lease has room for one that comes late.
const RENEWAL: Duration = Duration::from_secs(1);

/// How far a follower sees: see [`Database::refresh`](crate::Database::refresh).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let path = dir.path().join("ships.db");
/// let writer = sapwood::Database::open(&path)?;
/// let follower = sapwood::Database::builder().follow(true).open(&path)?;
/// writer.keyspace("ships")?.insert("fram", "1892")?;
/// let refreshed = follower.refresh()?;
/// assert_eq!((refreshed.sequence, refreshed.operations), (1, 1));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refreshed {
    /// The number of the last operation that is seen. Operations are changes of keys, counted since the database was created.
    pub sequence: u64,
    /// How many operations were not seen before.
    pub operations: u64,
}

/// See the module.
pub(crate) struct Follower {
    volume: Arc<dyn Volume>,
    database: DatabaseId,
    encryption: Encryption,
    path: String,
    operators: MergeOperators,
    merge_limits: MergeLimits,
    cursor: RankedMutex<rank::Refresh, Option<FollowCursor>>,
    needs: RankedMutex<rank::Registration, Needs>,
    is_over: RankedMutex<rank::Renewal, bool>,
    ends: Condvar,
}

/// Where the next refresh goes on.
struct FollowCursor {
    current: Current,
    /// In the manifest, in bytes.
    at: u64,
    slots: Arc<Slots>,
    log: LogCursor,
}

/// What the writer is to keep.
#[derive(Default)]
struct Needs {
    /// `None` if nothing could be written to the directory, or the database is closed.
    registration: Option<Registration>,
    /// The first version that the registration covers; `None` until it is read.
    since: Option<u64>,
    /// The versions that were shown, by epoch, as far as something can read them.
    versions: Vec<(u64, Weak<Version>)>,
}

impl Needs {
    /// The oldest epoch that is needed.
    fn oldest(&mut self) -> u64 {
        self.versions.retain(|(_, version)| version.strong_count() > 0);
        let since = self.since.unwrap_or(0);
        let epochs = self.versions.iter().map(|(epoch, _)| *epoch);
        epochs.filter(|epoch| *epoch >= since).min().unwrap_or(since)
    }

    /// Whether all that can be read is covered.
    fn is_kept(&self) -> bool {
        let since = self.since.unwrap_or(u64::MAX);
        let is_covered =
            |(epoch, version): &(u64, Weak<Version>)| *epoch >= since || version.strong_count() == 0;
        self.registration.as_ref().is_some_and(|it| !it.is_ended()) && self.versions.iter().all(is_covered)
    }
}

/// Opens a database to follow it.
pub(crate) fn open(volume: Arc<dyn Volume>, options: &Builder) -> Result<(Arc<Engine>, Arc<Follower>)> {
    let path = volume.describe();
    if !has_current(&volume.list()?) {
        return Err(missing(&*volume, &path)?);
    }
    let current = Current::read(&*volume)?;
    let database = current.database;
    let registration = Registration::begin(&volume, database);
    let registration = registration
        .inspect_err(
            |error| tracing::warn!(%error, path, "followed without registration: reads may come too late"),
        )
        .ok();
    let encryption = open::encryption_of(&*volume, &current, options.key(), &path)?;
    let mut follower = Follower {
        volume: Arc::clone(&volume),
        database,
        encryption: encryption.clone(),
        path: path.clone(),
        operators: options.merge_operators().clone(),
        merge_limits: MergeLimits::default(),
        cursor: RankedMutex::new(None),
        needs: RankedMutex::new(Needs { registration, ..Needs::default() }),
        is_over: RankedMutex::new(false),
        ends: Condvar::new(),
    };
    let (current, version) = follower.again(|follower| {
        let durable = follower.durable()?;
        let current = Current::read(&*volume)?;
        let data_len = follower.data_len()?;
        let of = (&current, &follower.encryption);
        let replayed = manifest::replay_until(&*volume, of, data_len, &Arc::default(), durable.epoch)?;
        Ok(Some((current, replayed.version)))
    })?;
    follower.merge_limits = merge_limits(&options.shares(current.span));
    let follower = Arc::new(follower);
    let engine = open::engine(&volume, (&current, &encryption), version, &Arc::default(), options, path)?;
    let reworder = Arc::clone(&follower);
    engine.pager.reader.reword_errors(move |error| reworder.reword(error));
    follower.refresh(&engine)?;
    Ok((engine, follower))
}

impl Follower {
    /// Repeats `attempt` while it finds that something was changed meanwhile (`None`), or fails because of that.
    fn again<T>(&self, attempt: impl Fn(&Self) -> Result<Option<T>>) -> Result<T> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            match attempt(self) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(
                    final_one @ (Error::BadOption { .. } | Error::NotFollowable { .. } | Error::Gone { .. }),
                ) => {
                    return Err(final_one);
                }
                Err(error) => last = Some(error),
            }
            std::thread::sleep(PAUSE);
        }
        Err(last.unwrap_or_else(|| Error::SnapshotTooOld { path: self.path.clone() }))
    }

    fn durable(&self) -> Result<Durable> {
        let durable = Durable::read(&*self.volume, self.database)?;
        durable.ok_or_else(|| Error::NotFollowable { path: self.path.clone() })
    }

    fn data_len(&self) -> Result<u64> {
        let data = self.volume.open(DATA, psync::Access::default())?;
        let len = self.volume.len(data);
        self.volume.close(data)?;
        Ok(len?)
    }

    /// Shows what is durable by now.
    pub fn refresh(&self, engine: &Engine) -> Result<Refreshed> {
        engine.health.check_process()?;
        let mut guard = self.cursor.lock();
        if *self.is_over.lock() {
            return Err(Error::Closed);
        }
        let before = engine.state.visible();
        let cursor = RefCell::new(&mut *guard);
        self.again(|follower| {
            let mut cursor = cursor.borrow_mut();
            // What failed is begun from the beginning.
            let next = follower.go_on(engine, cursor.take())?;
            let is_done = next.is_some();
            **cursor = next;
            Ok(is_done.then_some(()))
        })?;
        engine.memory.balance_memory();
        let sequence = engine.state.visible();
        Ok(Refreshed { sequence, operations: sequence - before })
    }

    /// Reads what is durable by now, and shows it. Returns where to go on; `None` if something was changed meanwhile.
    fn go_on(&self, engine: &Engine, cursor: Option<FollowCursor>) -> Result<Option<FollowCursor>> {
        self.register();
        let mut durable = self.durable()?;
        let now = engine.state.load_full();
        let log = cursor.as_ref().map(|cursor| cursor.log.clone());
        let (version, current, at, slots) = self.read_manifest(&now, cursor, durable)?;
        let is_all = durable == Durable::ALL;
        if version.epoch < now.version.epoch || (version.epoch < durable.epoch && !is_all) {
            return Ok(None);
        }
        if version.epoch > durable.epoch {
            // The writer has changed to another manifest meanwhile, which is read as a whole. Its trees have no more than what was
            // durable before that, of some commits a part: the rest is in the log.
            match self.durable()? {
                Durable::ALL => return Ok(None),
                later => durable.seq = durable.seq.max(later.seq),
            }
        }
        let is_of_now = |next: &Version| {
            next.flushed_seq == now.version.flushed_seq && next.begun_flushes == now.version.begun_flushes
        };
        let (queue, mut log, is_same) = match log {
            Some(log) if is_of_now(&version) => (Arc::clone(&now.active), log, true),
            _ => {
                let queue = Opq::new(&engine.memory.free_list, &version.begun_flushes);
                (Arc::new(queue), LogCursor::new(version.wal_low, version.flushed_seq), false)
            }
        };
        let mut insert = |record: &Record| {
            insert(&queue, &version, record)?;
            // Before it is visible.
            if is_same && !engine.state.empty_ranges.is_empty_still() {
                engine.state.empty_ranges.inserted(operations(record));
            }
            Ok(())
        };
        let until = durable.seq.max(version.flushed_seq);
        let files = LogFiles::new(&*self.volume, self.database);
        let has_all = log.read_until(files, &self.encryption, until, &mut insert)?;
        let until = log.passed();
        // What a writer does that has begun meanwhile is not durable at once.
        let is_known = if is_all { self.durable()? == durable } else { has_all };
        if !is_known || until < engine.state.visible() {
            return Ok(None);
        }
        let epoch = version.epoch;
        if is_same && epoch == now.version.epoch {
            engine.state.set_visible(until);
        } else {
            let version = Arc::new(version);
            self.needs.lock().versions.push((epoch, Arc::downgrade(&version)));
            show(engine, &now, (queue, version, until));
        }
        // What can be read of it still is held by others.
        drop(now);
        let is_registered = self.say(Some(epoch));
        Ok(is_registered.then_some(FollowCursor { current, at, slots, log }))
    }

    /// The version that is durable at least, and where its manifest goes on. Goes on at `cursor` if the manifest is the same.
    fn read_manifest(
        &self,
        now: &State,
        cursor: Option<FollowCursor>,
        durable: Durable,
    ) -> Result<(Version, Current, u64, Arc<Slots>)> {
        let volume = &*self.volume;
        let current = Current::read(volume)?;
        if current.database != self.database {
            let (expected, found) = (self.database, current.database);
            return Err(Error::corrupt(current::FILE, 12, "database id", expected, found));
        }
        let data_len = self.data_len()?;
        let cursor = cursor.filter(|cursor| cursor.current.manifest == current.manifest);
        let (mut version, at, slots) = match cursor {
            Some(FollowCursor { at, slots, .. }) => {
                let mut version = (*now.version).clone();
                let to = (&mut version, durable.epoch);
                let at = manifest::replay_on(volume, (&current, &self.encryption, at), data_len, &slots, to)?;
                (version, at, slots)
            }
            None => {
                let slots = Arc::default();
                let of = (&current, &self.encryption);
                let replayed = manifest::replay_until(volume, of, data_len, &slots, durable.epoch)?;
                (replayed.version, replayed.len, slots)
            }
        };
        version.check_compression()?;
        find_operators(&mut version, &self.operators, (self.merge_limits, true))?;
        Ok((version, current, at, slots))
    }

    /// Registers again if the writer has ended the registration, or nothing could be written before. If nothing can be written still, as when
    /// the disk is full, it goes on without.
    fn register(&self) {
        let mut needs = self.needs.lock();
        let is_registered = needs.registration.as_ref().map(|it| !it.is_ended());
        // After `close`, which comes behind `is_over`, nothing is to be left.
        if is_registered == Some(true) || *self.is_over.lock() {
            return;
        }
        let registration = Registration::begin(&self.volume, self.database);
        if let (Err(error), Some(_)) = (&registration, is_registered) {
            let path = &self.path;
            tracing::warn!(%error, path, "followed without registration: reads may come too late");
        }
        (needs.registration, needs.since) = (registration.ok(), None);
    }

    /// Says what is needed; `read`: the version that has just been read. Returns false if the writer has ended the registration.
    fn say(&self, read: Option<u64>) -> bool {
        let mut needs = self.needs.lock();
        needs.since = needs.since.or(read);
        let oldest = needs.oldest();
        let said = needs.registration.as_mut().map_or(Ok(true), |registration| registration.say(oldest));
        said.unwrap_or_else(|error| {
            // What it has said before protects more.
            tracing::debug!(%error, path = self.path, "the writer does not learn that the follower is there");
            true
        })
    }

    /// Says that it is there, again and again, until it is closed.
    pub fn renew(&self) {
        loop {
            let mut is_over = self.is_over.lock();
            if !*is_over {
                (is_over, _) = is_over.wait_for(&self.ends, RENEWAL);
            }
            if *is_over {
                return;
            }
            drop(is_over);
            self.say(None);
        }
    }

    /// Ends the renewals.
    pub fn stop(&self) {
        *self.is_over.lock() = true;
        self.ends.notify_all();
    }

    /// From now on nothing is needed.
    pub fn close(&self) {
        self.stop();
        *self.needs.lock() = Needs::default();
    }

    /// What an error of reading a node means.
    fn reword(&self, error: Error) -> Error {
        let is_other = matches!(&error, Error::Corrupt { file, .. } if file == DATA);
        if is_other && !self.needs.lock().is_kept() {
            tracing::debug!(%error, "the writer has used the place again");
            return Error::SnapshotTooOld { path: self.path.clone() };
        }
        error
    }
}

fn operations(record: &Record) -> impl Iterator<Item = Operation<'_>> {
    Operations::new(&record.body).map_while(|operation| operation.ok())
}

/// Inserts a record of the log.
fn insert(queue: &Opq, version: &Version, record: &Record) -> Result<()> {
    check_record(version, record)?;
    if queue.fill() as u64 >= REPLAYED_MAX {
        let range = format!(
            "the log holds more than {REPLAYED_MAX} bytes that are not in the trees; try again after a flush"
        );
        return Err(Error::BadOption { option: "follow", value: 1, range });
    }
    queue.insert_all(operations(record), record.first_seq, &|keyspace| version.merging(keyspace));
    Ok(())
}

/// Replaces what readers see, which is everything up to an operation. Records in the cache may have changed. A reader of the next state must
/// not see parts of commits that its trees have; and one of what is new in the queue must not lack what was ingested before.
fn show(engine: &Engine, now: &State, (active, version, until): (Arc<Opq>, Arc<Version>, SeqNo)) {
    let records = engine.pager.cache.records();
    records.serve(now.number + 1);
    records.remove_all(|_, _| true);
    let number = now.number + 2;
    // What the writer has seen expire is there no more, whatever this clock says.
    engine.clock.not_before(version.clock);
    engine.state.empty_ranges.forget_all_while(|| {
        engine.state.replace_up_to(until, |state| State {
            number,
            ingested: state.ingested + 1,
            active: Arc::clone(&active),
            frozen: None,
            version: Arc::clone(&version),
        });
        engine.state.load().ingested
    });
    records.serve(number);
}

impl Database {
    /// Shows a [follower](Builder::follow) what is durable by now. Snapshots, iterators and transactions that were begun before go on
    /// seeing what they saw. For other databases this does nothing: they always show what is newest.
    ///
    /// A refresh reads what is new in the manifest and in the log; after a flush, the log of what is not in the trees.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let path = dir.path().join("ships.db");
    /// let writer = sapwood::Database::open(&path)?;
    /// let follower = sapwood::Database::builder().follow(true).open(&path)?;
    /// writer.keyspace("ships")?.insert("fram", "1892")?;
    /// assert_eq!(follower.refresh()?.operations, 1);
    /// assert_eq!(follower.refresh()?.operations, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Corrupt`] if what is said to be durable is not there; [`Error::NotFollowable`] as long as the writer cannot say what is;
    /// [`Error::Closed`]; I/O errors. The view is the one before, or a
    /// newer one.
    pub fn refresh(&self) -> Result<Refreshed> {
        let engine = &self.handle.engine;
        match &self.handle.follower {
            Some(follower) => follower.refresh(engine),
            None => {
                engine.health.check_process()?;
                Ok(Refreshed { sequence: engine.state.visible(), operations: 0 })
            }
        }
    }
}
