//! The change feed: what was committed, in its order, once, for replicas, caches and indexes of others.
//!
//! ```text
//! log, durable part ─▶ wal/since ──record──┐
//!                                          ├──▶ Changes ─▶ Commit, or an event of a keyspace
//! manifest ─▶ version/change_log ──event───┘
//! ```
//! The log is what is told: nothing is written for the feed. Files of the log that flushes no longer need are kept for it, within
//! a bound ([`crate::wal::KeptGenerations`]). What the log does not have (keyspaces that come, go and get other names, and
//! ingested records) are events in the manifest, each behind the operations that were before it.
//!
//! Invariants:
//! 1. What was returned is durable: no crash takes it back, so a position is never ahead of its database.
//! 2. Nothing is left out silently: what is not kept any more, or of another history, is an error.
//! 3. The event of a keyspace's creation comes before its first change.
//! 4. No writer waits for a reader.

mod commit;
mod position;

pub use commit::{Commit, CommittedOperation, FeedKeyspace};
pub use position::ChangesPosition;

use crate::db::changes::commit::{Known, KnownKeyspaces};
use crate::db::database::Database;
use crate::db::handle::Handle;
use crate::db::large_values::create::is_hidden;
use crate::db::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::operation::{KeyspaceId, Operations};
use crate::version::Version;
use crate::version::change_log::{ChangeLog, EventKind, KeyspaceEvent};
use crate::wal::{DurableEnd, LogSince, Record, Since, oldest};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long (100 ms) a reader that waits sleeps at most before it looks for events of keyspaces and for the database's end, which do
/// not wake it: people do not notice more, and a shorter time would cost processor time.
const LOOKS: Duration = Duration::from_millis(100);

/// One thing that happened, in the order in which things happened. See [`Changes`].
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
/// use sapwood::Change;
///
/// db.keyspace("ships")?.insert("fram", "1892")?;
/// let mut changes = db.changes(&db.oldest_change()?)?;
/// assert!(matches!(changes.next(), Some(Ok(Change::KeyspaceCreated { name, .. })) if name == "ships"));
/// assert!(matches!(changes.next(), Some(Ok(Change::Commit(commit))) if commit.last_sequence() == 1));
/// assert!(changes.next().is_none()); // for now
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// Changes of records, committed together.
    Commit(Commit),
    /// A keyspace was created. Its changes come later.
    KeyspaceCreated {
        /// Its number.
        id: u32,
        /// Its name.
        name: String,
    },
    /// A keyspace has another name.
    KeyspaceRenamed {
        /// Its number.
        id: u32,
        /// The new name.
        name: String,
    },
    /// A keyspace was dropped with all its records. No change of it follows.
    KeyspaceDropped {
        /// Its number.
        id: u32,
        /// The name that it had.
        name: String,
    },
    /// Records were [ingested](crate::Keyspace::ingest) into a keyspace: they are in no log, and not told. Copy the keyspace anew with
    /// [`Database::snapshot_for_changes`], and leave out its changes up to the position of that.
    KeyspaceIngested {
        /// Its number.
        id: u32,
        /// Its name.
        name: String,
    },
}

/// The changes of a database from a [position](ChangesPosition) on. Made by [`Database::changes`].
///
/// An iterator that ends where nothing more is durable at the moment, and goes on when there is: [`wait`](Self::wait) for that. It
/// returns what no crash can take back, and nothing else: commits with weaker durability come when a sync covers them, by
/// [`Database::sync`], by a durable commit, or with their flush.
///
/// After an error it ends, and when it is asked once more, it tries again: a failed read can be repeated, what is gone stays gone.
///
/// To have each change once, store [`position`](Self::position) together with what was made of the changes, and begin there
/// again. A reader that is slow holds nothing up; when what it has not read yet [is given up](crate::Builder::keep_changes), it
/// is told by [`Error::ChangesGone`]. Memory: 1 MiB while it reads, and a commit.
///
/// Records that [expire](crate::Expiry) are not told when they do; each was told when.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::builder().keep_changes(64 << 20).open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use sapwood::{Change, CommittedOperation};
/// use std::collections::BTreeMap;
///
/// ships.insert("beagle", "1820")?;
/// // A copy of everything, and then what is changed, without a gap and without anything twice.
/// let (snapshot, mut position) = db.snapshot_for_changes()?;
/// let mut copy = BTreeMap::new();
/// for record in snapshot.iter(&ships) {
///     let (key, value) = record?;
///     copy.insert(key.to_vec(), value.to_vec());
/// }
/// ships.insert("fram", "1892")?;
/// ships.remove("beagle")?;
/// let mut changes = db.changes(&position)?;
/// for change in changes.by_ref() {
///     let Change::Commit(commit) = change? else { continue };
///     for operation in commit.operations() {
///         match operation {
///             CommittedOperation::Insert { key, value, .. } => _ = copy.insert(key.to_vec(), value.to_vec()),
///             CommittedOperation::Remove { key, .. } => _ = copy.remove(key),
///             other => panic!("none of it here: {other:?}"),
///         }
///     }
/// }
/// position = changes.position(); // to be stored with the copy
/// assert_eq!(position.sequence(), 3);
/// assert_eq!(copy, BTreeMap::from([(b"fram".to_vec(), b"1892".to_vec())]));
/// # Ok(()) }
/// ```
pub struct Changes {
    handle: Arc<Handle>,
    log: LogSince,
    position: ChangesPosition,
    /// A record that comes after an event.
    next: Option<Record>,
    /// Keyspaces that were told, or were changed by what was.
    known: KnownKeyspaces,
    /// Those of the last commit, for the next one if it changes no others.
    last: Arc<KnownKeyspaces>,
    /// The last answer was an error.
    has_failed: bool,
}

impl Database {
    /// The changes after a position: see [`Changes`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let (_, position) = db.snapshot_for_changes()?;
    /// ships.insert("fram", "1892")?;
    /// assert_eq!(db.changes(&position)?.count(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoChanges`] if the database keeps none; [`Error::OtherHistory`] if the position is not one of this database;
    /// [`Error::ReadOnly`]; [`Error::Closed`]; [`Error::Forked`]. That what follows is gone, or is damaged, the iterator
    /// tells.
    pub fn changes(&self, since: &ChangesPosition) -> Result<Changes> {
        let (_, end) = self.change_log()?;
        if since.database != end.database {
            let what = format!("it belongs to database {}, this is {}", since.database, end.database);
            return Err(Error::OtherHistory { what });
        }
        let engine = &self.handle.engine;
        let (volume, encryption) = (Arc::clone(&engine.volume), engine.encryption.clone());
        let log = LogSince::new(volume, encryption, since.seq.saturating_add(1));
        let (handle, position) = (Arc::clone(&self.handle), *since);
        let (known, last) = (KnownKeyspaces::new(), Arc::default());
        Ok(Changes { handle, log, position, next: None, known, last, has_failed: false })
    }

    /// The oldest position from which on everything is kept. It moves on while the database is written.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert_eq!(db.oldest_change()?.sequence(), 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::changes`], and I/O errors: it reads the header of each log file.
    pub fn oldest_change(&self) -> Result<ChangesPosition> {
        let (log, end) = self.change_log()?;
        let seq = oldest(&*self.handle.engine.volume, &end)?.max(log.keeping.from);
        // Events before that are told nevertheless, but for those that everything kept comes after.
        let is_before = |event: &&KeyspaceEvent| event.seq < seq;
        let before = log.events.iter().take_while(is_before).count() as u64;
        Ok(ChangesPosition { database: end.database, seq, event: log.keeping.first_event + before })
    }

    /// A snapshot, and the position at which it was taken: its records and the changes after that are everything, with nothing twice.
    /// It waits for one sync, so that all of it is durable, and for commits that are under way.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let (snapshot, position) = db.snapshot_for_changes()?;
    /// ships.insert("beagle", "1820")?;
    /// assert_eq!((snapshot.iter(&ships).count(), db.changes(&position)?.count()), (1, 1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::changes`]; [`Error::DiskFull`]; [`Error::Poisoned`]; [`Error::Io`].
    pub fn snapshot_for_changes(&self) -> Result<(Snapshot, ChangesPosition)> {
        self.change_log()?;
        let (state, seq, end) = self.handle.engine.commits.durable_view()?;
        let event = state.version.change_log.as_ref().map_or(0, |log| log.next_event());
        let position = ChangesPosition { database: end.database, seq, event };
        Ok((Snapshot::of(Arc::clone(&self.handle), state, seq), position))
    }

    /// What is kept of the changes, and how far the log is durable.
    fn change_log(&self) -> Result<(Arc<ChangeLog>, DurableEnd)> {
        let engine = &self.handle.engine;
        engine.health.check_process()?;
        if engine.health.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let end = engine.commits.durable_end()?;
        let log = engine.state.load().version.change_log.clone();
        let log = log.filter(|log| log.keeping.bytes > 0);
        Ok((log.ok_or_else(|| Error::NoChanges { path: engine.health.path().into() })?, end))
    }
}

impl Changes {
    /// Where it stands: after what it has returned.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let (_, position) = db.snapshot_for_changes()?;
    /// ships.insert("fram", "1892")?;
    /// let mut changes = db.changes(&position)?;
    /// assert_eq!(changes.position(), position);
    /// changes.next();
    /// assert_eq!(db.changes(&changes.position())?.count(), 0);
    /// # Ok(()) }
    /// ```
    pub fn position(&self) -> ChangesPosition {
        self.position
    }

    /// Waits until there is a change, at most for `time`. Returns whether there is one.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::builder().keep_changes(1 << 20).open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// # use std::time::Duration;
    /// let (_, position) = db.snapshot_for_changes()?;
    /// let mut changes = db.changes(&position)?;
    /// assert!(!changes.wait(Duration::ZERO)?);
    /// let writer = std::thread::spawn(move || ships.insert("fram", "1892"));
    /// assert!(changes.wait(Duration::from_secs(60))?);
    /// assert_eq!(changes.count(), 1);
    /// # writer.join().expect("it does not panic")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::changes`]; the error that is the next change; [`Error::Poisoned`] if nothing will ever come, since a write
    /// has failed.
    pub fn wait(&mut self, time: Duration) -> Result<bool> {
        let end = Instant::now().checked_add(time);
        loop {
            if self.look()? {
                return Ok(true);
            }
            let handle = Arc::clone(&self.handle);
            let engine = &handle.engine;
            engine.health.check_writable()?;
            let left = end.map_or(LOOKS, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(false);
            }
            let waits = &engine.commits.durable_waits;
            waits.watch(left.min(LOOKS), || Ok(!self.log.is_at(&engine.commits.durable_end()?)))?;
        }
    }

    /// Whether there is a change.
    fn look(&mut self) -> Result<bool> {
        self.read_ahead()?;
        let version = self.handle.engine.state.version();
        Ok(self.next.is_some() || self.event(&version)?.is_some())
    }

    /// Reads the next record, if there is one.
    fn read_ahead(&mut self) -> Result<()> {
        if self.next.is_some() {
            return Ok(());
        }
        let engine = &self.handle.engine;
        engine.health.check_process()?;
        let version = engine.state.version();
        let log = version.change_log.as_ref().filter(|log| log.keeping.bytes > 0);
        let from = log.map_or(0, |log| log.keeping.from);
        if self.position.seq < from {
            return Err(self.gone(from));
        }
        self.next = match self.log.next(|| engine.commits.durable_end())? {
            Since::Record(record) => Some(record),
            Since::End => None,
            Since::Gone { from } => return Err(self.gone(from)),
            Since::Beyond { last } => {
                let seq = self.position.seq;
                let what = format!(
                    "it is behind operation {seq}, and no commit of this database ends there: the last one ends with {last}"
                );
                return Err(Error::OtherHistory { what });
            }
        };
        Ok(())
    }

    /// The event that comes before the next record, if there is one.
    fn event<'v>(&self, version: &'v Version) -> Result<Option<&'v KeyspaceEvent>> {
        let Some(log) = &version.change_log else { return Ok(None) };
        let (number, next) = (self.position.event, log.next_event());
        if number > next {
            let what =
                format!("it is before event {number} of keyspaces, and {next} is this database's next one");
            return Err(Error::OtherHistory { what });
        }
        let event = log.event(number).ok_or_else(|| self.gone(log.keeping.from))?;
        // Without a record it comes as soon as everything before it was told.
        let before =
            self.next.as_ref().map_or(self.position.seq.saturating_add(1), |record| record.first_seq);
        Ok(event.filter(|event| event.seq < before))
    }

    fn gone(&self, from: u64) -> Error {
        Error::ChangesGone { since: self.position.seq, from }
    }

    fn read_next(&mut self) -> Result<Option<Change>> {
        self.read_ahead()?;
        // After the record was read: what it needs to be told before it was published before it was logged.
        let version = self.handle.engine.state.version();
        if let Some(event) = self.event(&version)? {
            let change = self.told(event);
            self.position.event += 1;
            return Ok(Some(change));
        }
        let Some(record) = self.next.clone() else { return Ok(None) };
        let keyspaces = self.learn(&record, &version);
        let end = record.first_seq + u64::from(record.count) - 1;
        let commit = Commit::of(record, keyspaces)?;
        (self.next, self.position.seq) = (None, end);
        Ok(Some(Change::Commit(commit)))
    }

    /// What users see of an event. Remembers what it says.
    fn told(&mut self, event: &KeyspaceEvent) -> Change {
        let (id, name) = (event.keyspace.0, event.name.to_string());
        let (expires, merges, large) = (event.expires, event.merges, event.large);
        self.last = Arc::default();
        if event.kind == EventKind::Dropped {
            self.known.remove(&event.keyspace);
        } else {
            let known = Known { name: Some(Arc::clone(&event.name)), expires, merges, large };
            self.known.insert(event.keyspace, known);
        }
        match event.kind {
            EventKind::Created => Change::KeyspaceCreated { id, name },
            EventKind::Renamed => Change::KeyspaceRenamed { id, name },
            EventKind::Dropped => Change::KeyspaceDropped { id, name },
            EventKind::Ingested => Change::KeyspaceIngested { id, name },
        }
    }

    /// The keyspaces that a record changes.
    fn learn(&mut self, record: &Record, version: &Version) -> Arc<KnownKeyspaces> {
        let operations = || Operations::new(&record.body).map_while(|operation| operation.ok());
        if operations().all(|operation| self.last.contains_key(&operation.keyspace())) {
            return Arc::clone(&self.last);
        }
        let mut own = KnownKeyspaces::new();
        for id in operations().map(|operation| operation.keyspace()) {
            if own.contains_key(&id) {
                continue;
            }
            let known = self.known.get(&id).cloned().unwrap_or_else(|| self.look_up(id, version));
            // What was dropped, as was told, is not kept in mind.
            if known.name.is_some() {
                self.known.insert(id, known.clone());
            }
            own.insert(id, known);
        }
        self.last = Arc::new(own);
        Arc::clone(&self.last)
    }

    fn look_up(&self, id: KeyspaceId, version: &Version) -> Known {
        if let Some(tree) = version.trees.get(&id) {
            let (expires, merges, large) =
                (tree.ttl.is_some(), tree.merging.is_some(), tree.chunks.is_some());
            let name = Some(Arc::clone(&tree.name)).filter(|name| !is_hidden(name));
            return Known { name, expires, merges, large };
        }
        // It was dropped: that is still to be told, or it was told before this reader began.
        let log = version.change_log.as_ref();
        let later = log.map_or(0, |log| self.position.event.saturating_sub(log.keeping.first_event));
        let mut events = log.iter().flat_map(|log| &log.events).skip(later as usize);
        let dropped = events.find(|event| event.keyspace == id && event.kind == EventKind::Dropped);
        let name = dropped.map(|event| Arc::clone(&event.name));
        let is = |flag: fn(&KeyspaceEvent) -> bool| dropped.is_some_and(flag);
        let (expires, merges) = (is(|event| event.expires), is(|event| event.merges));
        Known { name, expires, merges, large: is(|event| event.large) }
    }
}

impl Iterator for Changes {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Result<Change>> {
        if std::mem::take(&mut self.has_failed) {
            return None;
        }
        let next = self.read_next().transpose();
        self.has_failed = matches!(next, Some(Err(_)));
        next
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Changes(after {})", self.position)
    }
}
