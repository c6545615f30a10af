//! The public database handle. [`handle`](crate::db::handle) opens and closes the database, the engine does all other work.

use crate::db::batch::Batch;
use crate::db::check::{self, Checked};
use crate::db::handle::Handle;
use crate::db::keyspace::Keyspace;
use crate::db::large_values;
use crate::db::large_values::create::{check_ordinary, is_hidden};
use crate::db::options::Builder;
use crate::db::segment_info::{SegmentInfo, segments};
use crate::db::snapshot::Snapshot;
use crate::db::stats_of_engine;
use crate::db::transaction::{Transaction, retry};
use crate::error::{Error, Result};
use crate::stats::Stats;
use psync::Volume;
use std::path::Path;
use std::sync::Arc;

/// An open database: a directory with any number of [keyspaces](Keyspace).
///
/// Cloning is cheap, and every thread may use a clone. The database closes when the last clone, keyspace, transaction,
/// batch, snapshot and iterator is dropped. After a `fork`, the database belongs to the parent process: in the
/// child, calls return [`Error::Forked`], and dropping its copy does nothing. (The child's copies of the
/// descriptors keep the lock if the parent ends without closing the database.)
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let writers: Vec<_> = (0..4u8)
///     .map(|number| {
///         let db = db.clone();
///         std::thread::spawn(move || db.keyspace("ships")?.insert([number], "afloat"))
///     })
///     .collect();
/// for writer in writers {
///     writer.join().expect("it does not panic")?;
/// }
/// assert_eq!(db.keyspaces(), ["ships"]);
/// assert_eq!(db.keyspace("ships")?.iter().count(), 4);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Database {
    pub(crate) handle: Arc<Handle>,
}

impl Database {
    /// Opens the database in the directory `path` with default options. Creates it if it does not exist.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use sapwood::Database;
    ///
    /// let db = Database::open(dir.path().join("ships.db"))?;
    /// db.keyspace("ships")?.insert("fram", "1892")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// Returns a builder, to open a database with options other than the defaults.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().memory(64 << 20).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn open_with(volume: Arc<dyn Volume>, options: &Builder) -> Result<Self> {
        Ok(Self { handle: Handle::open(volume, options)? })
    }

    /// Returns the keyspace `name`, and creates it if it does not exist. Names have 1 to 255 bytes and no
    /// control characters. To create many, use [`Database::create_keyspaces`], or several threads.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let ships = db.keyspace("ships")?;
    /// assert_eq!(ships.name(), "ships");
    /// assert!(matches!(db.keyspace(""), Err(sapwood::Error::BadName { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::BadName`](crate::Error::BadName); [`Error::NoKeyspace`](crate::Error::NoKeyspace) if the keyspace does
    /// not exist and the database is open read-only; [`Error::LargeValues`](crate::Error::LargeValues); I/O errors.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let mut found = self.create_keyspaces([name])?;
        found.pop().ok_or(Error::Closed)
    }

    /// Returns the keyspaces of these names, in this order, and creates those that do not exist, some thousand with
    /// one sync.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("tenants.db"))?;
    /// let tenants = db.create_keyspaces((0..5000).map(|number| format!("tenant {number}")))?;
    /// tenants[42].insert("name", "the answer")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::keyspace`]. After an error of the device some may have been created, and also if the disk is full and there were
    /// more than 4,096, or other threads were creating some at the same time; after others, none.
    pub fn create_keyspaces<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Vec<Keyspace>> {
        self.handle.engine.health.check_process()?;
        let names: Vec<Arc<str>> = names.into_iter().map(|name| name.as_ref().into()).collect();
        let find = || self.handle.creation.find_or_create(&self.handle.engine, &names);
        let (version, found) = self.handle.find_there(find)?;
        let keyspaces = found.into_iter().map(|(id, name)| {
            check_ordinary(&version, id)?;
            Ok(Keyspace::in_version(Arc::clone(&self.handle), &version, id, name))
        });
        keyspaces.collect()
    }

    /// Whether what it stores is [encrypted](crate::Builder::encryption_key): what is kept beside it should be then, too.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// assert!(!db.is_encrypted());
    /// # Ok(()) }
    /// ```
    pub fn is_encrypted(&self) -> bool {
        self.handle.engine.encryption.is_on()
    }

    /// The names of all keyspaces, sorted.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// db.create_keyspaces(["ships", "harbours"])?;
    /// assert_eq!(db.keyspaces(), ["harbours", "ships"]);
    /// # Ok(()) }
    /// ```
    pub fn keyspaces(&self) -> Vec<String> {
        let state = self.handle.engine.state.load_full();
        let names = state.version.trees.iter().map(|(_, tree)| &*tree.name);
        let mut names: Vec<_> = names.filter(|name| !is_hidden(name)).map(str::to_owned).collect();
        names.sort_unstable();
        names
    }

    /// Whether there is a keyspace of this name. [`Database::keyspace`] creates it if there is none.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// db.keyspace("ships")?;
    /// assert!(db.contains_keyspace("ships") && !db.contains_keyspace("harbours"));
    /// # Ok(()) }
    /// ```
    pub fn contains_keyspace(&self, name: &str) -> bool {
        self.handle.creation.has_shown(&self.handle.engine, name)
    }

    /// Creates an empty batch.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let (ships, log) = (db.keyspace("ships")?, db.keyspace("log")?);
    /// let mut batch = db.batch();
    /// batch.insert(&ships, "fram", "1892").insert(&log, "1", "fram was launched");
    /// batch.commit()?; // both or neither
    /// # Ok(()) }
    /// ```
    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(&self.handle), self.handle.durability)
    }

    /// Begins a transaction: reads and writes that take effect together, as if nothing had happened meanwhile, or not at all.
    /// See [`Transaction`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// if tx.get(&ships, "fram")?.is_none() {
    ///     tx.insert(&ships, "fram", "1892")?;
    /// }
    /// tx.commit()?; // Error::Conflict if another has inserted it meanwhile
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Forked`].
    pub fn transaction(&self) -> Result<Transaction> {
        Transaction::begin(&self.handle)
    }

    /// Runs a transaction and commits it; if it conflicts, again, until it is committed. Returns what `run` has
    /// returned in the run that was committed. If `run` returns an error, nothing is committed.
    ///
    /// After a few conflicts the thread takes a turn: commits of other threads wait until this one is done, so that it
    /// cannot conflict again. So `run` must not wait for another thread's commit. It may write
    /// without the transaction too, but what it changes so after the transaction has read it is a conflict that is returned, as is one with the last of 17 ingestions or drops, which wait for no
    /// turn.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("hits.db"))?;
    /// # let hits = db.keyspace("hits")?;
    /// std::thread::scope(|scope| {
    ///     for _ in 0..4 {
    ///         scope.spawn(|| {
    ///             db.transact(|tx| {
    ///                 let count = tx.get(&hits, "/")?.map_or(0, |count| count[0]);
    ///                 tx.insert(&hits, "/", [count + 1])?;
    ///                 Ok(())
    ///             })
    ///         });
    ///     }
    /// });
    /// assert_eq!(hits.get("/")?.as_deref(), Some(&[4][..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those that `run` returns, and as [`Transaction::commit`].
    pub fn transact<R>(&self, run: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        retry::transact(&self.handle, self.handle.durability, run)
    }

    /// Takes a snapshot: the database as it is now. Reading from it does not block writers, nor do they block
    /// it.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let snapshot = db.snapshot();
    /// ships.insert("fram", "1893")?;
    /// assert_eq!(snapshot.get(&ships, "fram")?.as_deref(), Some(&b"1892"[..]));
    /// # Ok(()) }
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.handle))
    }

    /// Applies all commits so far to the trees, and returns once the trees are durable.
    ///
    /// Commits do not need this to be durable ([`sync`](Self::sync) is enough). A flush makes the next open
    /// faster and frees the space of the log.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// db.flush()?;
    /// assert_eq!(db.stats().writes.changes_queued, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DiskFull`] (nothing is lost), [`Error::ReadOnly`], [`Error::Poisoned`], I/O errors.
    pub fn flush(&self) -> Result<()> {
        self.handle.engine.commits.flush_all()?;
        self.handle.engine.space.reserve.shrink();
        Ok(())
    }

    /// Flushes, then cleanses all log areas: moves every change that they hold into the leaves.
    ///
    /// Use it before a read-heavy phase, after removing much data, or before archiving the database. It
    /// rewrites the leaves of every block that has a log area, so it is too expensive for routine use. Other
    /// threads can read and write meanwhile. Records that had expired when it began are removed too, but for
    /// the first of many that expire one after the other (`docs/operations.md`).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// ships.remove("fram")?;
    /// db.compact()?;
    /// assert_eq!(db.stats().space.logged_changes, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::flush`]; [`Error::Closed`] if the database is closed meanwhile. If leaves, a dropped keyspace or expired records
    /// cannot be read, all else is done before that is returned.
    pub fn compact(&self) -> Result<()> {
        let engine = &self.handle.engine;
        engine.commits.flush_all()?;
        // What cannot be read there keeps nothing else from being done.
        let of_dropped = engine.background.ctx.take_all_apart()?;
        let of_expired = engine.space.with_reserve(|| engine.background.cleanser.cleanse_all())?;
        engine.space.with_reserve(|| engine.background.cleanser.collector.encrypt_anew())?;
        if engine.pool.has_threads() {
            engine.space.reserve.shrink();
        } else {
            // There is no thread to do it later.
            engine.background.idle_work.give_back_space();
        }
        of_dropped.or(of_expired).map_or(Ok(()), Err)
    }

    /// Makes all commits so far durable, including those with a weaker [`Durability`](crate::Durability).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut batch = db.batch();
    /// batch.insert(&ships, "fram", "1892");
    /// batch.durability(sapwood::Durability::None).commit()?;
    /// db.sync()?; // on the device now
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::flush`].
    pub fn sync(&self) -> Result<()> {
        self.handle.engine.commits.sync()
    }

    /// Counters, and memory and disk use.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let stats = db.stats();
    /// println!("{stats}"); // a table for people
    /// assert_eq!(stats.writes.changes_queued, 1);
    /// # Ok(()) }
    /// ```
    pub fn stats(&self) -> Stats {
        stats_of_engine::of(&self.handle.engine)
    }

    /// The segments of the data file, by number: where they lie, and how much of each is live.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// db.flush()?;
    /// let live: u64 = db.segments().iter().map(|segment| segment.live).sum();
    /// assert_eq!(live, db.stats().space.live);
    /// # Ok(()) }
    /// ```
    pub fn segments(&self) -> Vec<SegmentInfo> {
        segments(&self.handle.engine)
    }

    /// Reads the whole database from the device and verifies it. Other threads can read and write meanwhile. Log
    /// files that are no longer needed stay until it ends.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// match db.check() {
    ///     Ok(checked) => println!("{checked}"),
    ///     Err(sapwood::Error::Damaged { damage, .. }) => damage.iter().for_each(|place| eprintln!("{place}")),
    ///     Err(other) => return Err(other),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Damaged`], which lists the damage found and what could not be read beside it, up to some thousand places (what lies below an inner node
    /// of these is not found); I/O errors if there is no damage.
    pub fn check(&self) -> Result<Checked> {
        self.handle.engine.health.check_process()?;
        let checked = self.handle.engine.check(self.handle.follower.is_none());
        check::joined(&self.handle.engine, checked, || large_values::check::check(&self.handle))
    }

    /// Makes all commits durable, and closes the database for all clones: what they would write, and read from the
    /// device, is refused from then on. Dropping the last handle does the same, but cannot return an error.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let reader = db.clone();
    /// ships.insert("fram", "1892")?;
    /// db.close()?;
    /// assert!(matches!(reader.keyspace("new"), Err(sapwood::Error::Closed)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::sync`].
    pub fn close(self) -> Result<()> {
        self.handle.close()
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Database({})", self.handle.engine.health.path())
    }
}
