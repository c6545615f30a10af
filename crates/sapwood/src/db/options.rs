//! Options for opening a database. There are few; each has a unit, a range and an effect. What can be measured
//! is not an option.

mod check;
mod opening;

use crate::clock::ClockSource;
use crate::compression::Compression;
use crate::durability::Durability;
use crate::encryption::{EncryptionKey, TRAILER};
use crate::flow::shares::{QUEUE_MAX, Shares};
use crate::latency::Latencies;
use crate::merge::MergeOperator;
use crate::merging::MergeOperators;
pub(in crate::db) use check::{MEMORY_MIN, check_memory};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The codec of keyspaces for which nothing was said. Unit tests count the bytes and nodes of values that are alike, so theirs are
/// stored as they are.
const COMPRESSION: Compression = if cfg!(test) { Compression::None } else { Compression::Lz4 };

/// Opens databases. Made by [`Database::builder`](crate::Database::builder).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let db = sapwood::Database::builder().memory(64 << 20).open(dir.path().join("ships.db"))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    memory: u64,
    create: bool,
    read_only: bool,
    follow: bool,
    follower_lease: Duration,
    pio_max: usize,
    busy_wait: bool,
    io_timeout: Duration,
    background_threads: usize,
    leaf_len: usize,
    segment_span: u64,
    holder: Option<String>,
    require_lock: bool,
    wait_for_lock: Duration,
    durability: Durability,
    compression: Compression,
    clock: ClockSource,
    merge_operators: MergeOperators,
    latencies: bool,
    keep_changes: Option<u64>,
    encryption_key: Option<EncryptionKey>,
}

/// What a flush does at a time: it merges, reads ahead, builds the next version and writes (count).
const BACKGROUND_THREADS: usize = 4;
/// The most memory, its last record aside, for a log that is replayed into memory by a read-only open, which never
/// flushes: two full queues, since a crash leaves no more. Smaller in tests.
pub(crate) const REPLAYED_MAX: u64 = if cfg!(test) { 64 << 20 } else { 2 * QUEUE_MAX };
impl Default for Builder {
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            create: true,
            read_only: false,
            follow: false,
            follower_lease: Duration::from_secs(30),
            pio_max: 64,
            busy_wait: true,
            io_timeout: Duration::from_secs(60),
            background_threads: BACKGROUND_THREADS,
            leaf_len: 4 << 10,
            segment_span: 64 << 20,
            holder: None,
            require_lock: true,
            wait_for_lock: Duration::ZERO,
            durability: Durability::default(),
            compression: COMPRESSION,
            clock: ClockSource::default(),
            merge_operators: MergeOperators::default(),
            latencies: false,
            keep_changes: None,
            encryption_key: None,
        }
    }
}

impl Builder {
    /// The memory budget in bytes: 4 MiB to 4 TiB; the default is 256 MiB. It covers commits that are not yet
    /// flushed (up to a third, and about as much for their log in the page cache), the node cache, the mapping
    /// table and all buffers.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().memory(64 << 20).open(dir.path().join("ships.db"))?;
    /// assert_eq!(db.stats().memory.budget, 64 << 20);
    /// # Ok(()) }
    /// ```
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// The key of an encrypted database. A database that is created with a key is encrypted: all of its nodes, of its log and of its manifest, and
    /// [backups](crate::Database::backup) of it. It opens only with this key, or the one that it was [changed](crate::Database::change_encryption_key) to.
    /// What is changed, exchanged or put back from another time is noticed when it is read, unless the whole directory is of another
    /// time, or it is a log or a manifest that ends earlier, where a power loss could have cut it off. What stays visible: names, lengths and times of files, and of nodes and commits their numbers, lengths and counts.
    ///
    /// The cipher is XChaCha20-Poly1305. Without the key nothing can be read, not even a backup: keep a copy of it elsewhere.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let path = dir.path().join("ships.db");
    /// use sapwood::{Database, EncryptionKey};
    ///
    /// let key = EncryptionKey::generate()?;
    /// drop(Database::builder().encryption_key(key.clone()).open(&path)?);
    /// assert!(Database::open(&path).is_err(), "no key");
    /// assert!(Database::builder().encryption_key(EncryptionKey::generate()?).open(&path).is_err(), "another one");
    /// let db = Database::builder().encryption_key(key).open(&path)?;
    /// # Ok(()) }
    /// ```
    pub fn encryption_key(mut self, key: EncryptionKey) -> Self {
        self.encryption_key = Some(key);
        self
    }

    /// How durable commits are when they return that are not told another durability: single changes (unless the
    /// [keyspace's own](crate::KeyspaceOptions::durability) says otherwise), batches and transactions.
    /// The default is [`Durability::Immediate`]. What is not a commit (new keyspaces, ingestion) is always durable.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use sapwood::{Database, Durability};
    ///
    /// let db = Database::builder().durability(Durability::Buffered).open(dir.path().join("ships.db"))?;
    /// let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?; // does not wait for the device
    /// db.batch().insert(&ships, "beagle", "1820").durability(Durability::Immediate).commit()?; // does
    /// # Ok(()) }
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How keyspaces are compressed that are created without a compression of [their own](crate::KeyspaceOptions::compression). The default is
    /// [`Compression::Lz4`]. Keyspaces that exist stay as they are.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use sapwood::{Compression, Database};
    ///
    /// let db = Database::builder().compression(Compression::None).open(dir.path().join("ships.db"))?;
    /// assert_eq!(db.keyspace("portraits")?.options()?.is_compressed_by(), Compression::None);
    /// # Ok(()) }
    /// ```
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Tells a merge operator of the program's own, which keyspaces of the database may have been created with. Those in
    /// [`merge`](crate::merge) are known. Of several with the same name the last one counts.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # struct Longest;
    /// # impl sapwood::merge::MergeOperator for Longest {
    /// #     fn name(&self) -> &str { "longest" }
    /// #     fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
    /// #         Ok(self.combine(value.unwrap_or_default(), operand))
    /// #     }
    /// #     fn combine(&self, a: &[u8], b: &[u8]) -> Vec<u8> { if b.len() > a.len() { b.into() } else { a.into() } }
    /// # }
    /// use sapwood::{Database, Error, KeyspaceOptions};
    ///
    /// let path = dir.path().join("words.db");
    /// let db = Database::open(&path)?;
    /// let words = db.keyspace_with("words", KeyspaceOptions::new().merge(Longest))?;
    /// drop((words, db));
    /// assert!(matches!(Database::open(&path), Err(Error::UnknownMergeOperator { .. })));
    /// let db = Database::builder().merge_operator(Longest).open(&path)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn merge_operator(mut self, operator: impl MergeOperator) -> Self {
        self.merge_operators.add(Arc::new(operator));
        self
    }

    /// The clock by which records [expire](crate::KeyspaceOptions::expiring), asked whenever that matters, from any thread. The
    /// default is the system's. A clock that goes back revives nothing: the database goes on with the latest time that it
    /// saw, also one from before it was opened; after a crash with the latest that was stored, with each flush and, where changes are kept, each second.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use sapwood::{Database, KeyspaceOptions};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use std::time::{Duration, SystemTime};
    ///
    /// let seconds = Arc::new(AtomicU64::new(1_000_000));
    /// let clock = {
    ///     let seconds = Arc::clone(&seconds);
    ///     move || SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.load(Relaxed))
    /// };
    /// let db = Database::builder().clock(clock).open(dir.path().join("ships.db"))?;
    /// let minute = KeyspaceOptions::new().time_to_live(Duration::from_secs(60));
    /// let sightings = db.keyspace_with("sightings", minute)?;
    /// sightings.insert("fram", "off Lofoten")?;
    /// seconds.fetch_add(60, Relaxed);
    /// assert!(sightings.is_empty()?);
    /// # Ok(()) }
    /// ```
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = ClockSource(Arc::new(clock));
        self
    }

    /// Whether to create the database if it does not exist. The default is yes. If not, opening fails with
    /// [`Error::Missing`](crate::Error::Missing).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let opened = sapwood::Database::builder().create(false).open(dir.path().join("ships.db"));
    /// assert!(matches!(opened, Err(sapwood::Error::Missing { .. })));
    /// # Ok(()) }
    /// ```
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Opens the database read-only. Nothing in the directory is written, except for an empty file `LOCK` where
    /// there is none. Any number of processes can have it open this way at the same time. The log is replayed
    /// into memory.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let path = dir.path().join("ships.db");
    /// sapwood::Database::open(&path)?.keyspace("ships")?.insert("fram", "1892")?;
    /// let one = sapwood::Database::builder().read_only(true).open(&path)?;
    /// let two = sapwood::Database::builder().read_only(true).open(&path)?;
    /// assert!(two.keyspace("ships")?.contains("fram")?);
    /// assert!(matches!(one.keyspace("ships")?.remove("fram"), Err(sapwood::Error::ReadOnly)));
    /// # Ok(()) }
    /// ```
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Opens the database read-only beside the process that writes it, if there is one: a *follower*. It sees what is durable, as of
    /// [`Database::refresh`](crate::Database::refresh), which opening does for the first time; where files cannot be mapped into memory, what was durable at the writer's last flush. Any number of
    /// processes can follow a database. No writer waits for them, and none is kept from opening it.
    ///
    /// A follower that may write to the directory registers there. The writer then keeps what the follower's
    /// snapshots and iterators can read, for as long as the follower is heard of ([`Builder::follower_lease`]) and the disk is not full.
    /// Otherwise reads may return [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld). With [`background_threads(0)`](Self::background_threads) only
    /// [`Database::refresh`](crate::Database::refresh) is heard of.
    ///
    /// What is not in the trees yet is replayed into memory: up to a third of the writer's budget.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let path = dir.path().join("ships.db");
    /// let writer = sapwood::Database::open(&path)?;
    /// let ships = writer.keyspace("ships")?;
    /// let follower = sapwood::Database::builder().follow(true).open(&path)?; // mostly in another process
    /// ships.insert("fram", "1892")?;
    /// let seen = follower.keyspace("ships")?;
    /// assert!(!seen.contains("fram")?);
    /// follower.refresh()?;
    /// assert!(seen.contains("fram")?);
    /// # Ok(()) }
    /// ```
    pub fn follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }

    /// For how long the database, when it is written, keeps what a follower needs that is not heard of: at least 2 seconds; the
    /// default is 30. Followers with background threads are heard of each second, those without when they refresh.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # use std::time::Duration;
    /// let minute = Duration::from_secs(60);
    /// let db = sapwood::Database::builder().follower_lease(minute).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn follower_lease(mut self, lease: Duration) -> Self {
        self.follower_lease = lease;
        self
    }

    /// PioMax: the maximum number of requests sent to the device at once, 1 to 1024; the default is 64. 1
    /// disables parallel I/O, which is useful only for comparisons.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().pio_max(128).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn pio_max(mut self, requests: usize) -> Self {
        self.pio_max = requests;
        self
    }

    /// Whether a thread that waits for a few reads may poll for their completion instead of sleeping. The
    /// default is yes.
    ///
    /// A thread polls for at most 0.2 ms. At most half of the processors poll at once, and none while other
    /// threads seem to need them. When few threads read, reads take a third less time and half as much
    /// processor time again. Turn it off where processor time is expensive.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().busy_wait(false).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn busy_wait(mut self, busy_wait: bool) -> Self {
        self.busy_wait = busy_wait;
        self
    }

    /// After this time without progress, a set of reads or writes that the kernel does not complete is cancelled and
    /// carried out by ordinary system calls. At least 1 ms; the default is 60 seconds. Reported as `tracing` events
    /// (from 5 seconds on) and in [`Stats::device`](crate::Stats::device). Ordinary calls and syncs on a device that
    /// hangs take as long as they take.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().io_timeout(std::time::Duration::from_secs(10)).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn io_timeout(mut self, time: Duration) -> Self {
        self.io_timeout = time;
        self
    }

    /// The number of threads for background work, 0 to 64: 4 unless told. The database starts no others (with the feature `async` up to five more,
    /// when tasks first wait; and where there is neither io_uring nor libaio, up to 64 that wait for the device). With 1, flushes do all
    /// their work on a single thread. With 0, the commit that makes a flush due runs the flush itself, which makes tests
    /// deterministic, and idle time is not used.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().background_threads(0).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn background_threads(mut self, threads: usize) -> Self {
        self.background_threads = threads;
        self
    }

    /// The target size of a leaf in bytes, 256 to 1 MiB; the default is 4 KiB. Applies to leaves written from
    /// now on.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().leaf_len(16 << 10).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn leaf_len(mut self, bytes: usize) -> Self {
        self.leaf_len = bytes;
        self
    }

    /// The greatest size of a segment of the data file in bytes: a power of two from 1 MiB to 1 GiB; the default is 64
    /// MiB. Takes effect only when the database is created.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().segment_span(16 << 20).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn segment_span(mut self, bytes: u64) -> Self {
        self.segment_span = bytes;
        self
    }

    /// The text shown to another process that finds the database in use. The default is the process id and the
    /// program, for example "process 4711, /usr/bin/shipyard".
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let path = dir.path().join("ships.db");
    /// let db = sapwood::Database::builder().holder("the harbour master").open(&path)?;
    /// let Err(sapwood::Error::Locked { holder, .. }) = sapwood::Database::open(&path) else {
    ///     panic!("it is open");
    /// };
    /// assert!(holder.contains("the harbour master"));
    /// # Ok(()) }
    /// ```
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// How long to wait while another process, or another part of this one, has the database open. The default is
    /// not at all.
    ///
    /// The lock is tried again every few milliseconds at first, then every 50 ms, in no order of arrival.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use std::time::Duration;
    ///
    /// let path = dir.path().join("ships.db");
    /// let first = sapwood::Database::open(&path)?;
    /// let closer = std::thread::spawn(move || first.close());
    /// let second = sapwood::Database::builder().wait_for_lock(Duration::from_secs(30)).open(&path)?;
    /// closer.join().expect("it does not panic")?;
    /// # Ok(()) }
    /// ```
    pub fn wait_for_lock(mut self, time: Duration) -> Self {
        self.wait_for_lock = time;
        self
    }

    /// Whether a database in a file system without locks is refused ([`Error::NoLocks`](crate::Error::NoLocks)). The default is yes.
    ///
    /// If not, it is opened without a lock there, and the caller must see to it that no other process opens it:
    /// two that write destroy the database. Where there are locks, this changes nothing.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().require_lock(false).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    pub fn require_lock(mut self, require: bool) -> Self {
        self.require_lock = require;
        self
    }

    /// Whether it is recorded how long operations take, in [`Stats::latencies`](crate::Stats::latencies). The default is no: then it
    /// costs nothing. If so, histograms take 92 KiB besides the memory budget, and a get or a step of a scan takes some nanoseconds
    /// longer, since one in 13 is timed.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().latencies(true).open(dir.path().join("ships.db"))?;
    /// let latencies = db.stats().latencies.expect("they were asked for");
    /// assert_eq!(latencies[0].name(), "get");
    /// # Ok(()) }
    /// ```
    pub fn latencies(mut self, record: bool) -> Self {
        self.latencies = record;
        self
    }

    /// Keeps what was committed for [`Database::changes`](crate::Database::changes): up to so many bytes of log files after their changes are in the trees,
    /// at least 1 MiB, and at most 4,096 files; or none, with 0. The database remembers it: without this option it is as it was, and in a new one it is 0.
    ///
    /// The files stay where they are, so nothing is written twice; but they take their space on the disk, and a flush syncs the
    /// log of its queue, which buffered commits do without otherwise. If the disk is full, the oldest are given up.
    /// One log file is as long as a queue (a sixth of the memory budget at most), and they are given up one by one.
    /// With 0 all are, and later [positions](crate::ChangesPosition) begin anew. What happened to keyspaces is remembered beside it, the newest 8,192
    /// times.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().keep_changes(256 << 20).open(dir.path().join("ships.db"))?;
    /// db.keyspace("ships")?.insert("fram", "1892")?;
    /// assert_eq!(db.changes(&db.oldest_change()?)?.count(), 2); // the keyspace, and the record
    /// # Ok(()) }
    /// ```
    pub fn keep_changes(mut self, bytes: u64) -> Self {
        self.keep_changes = Some(bytes);
        self
    }

    pub(crate) fn may_create(&self) -> bool {
        self.create && !self.is_read_only()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.follow
    }

    pub(crate) fn is_follower(&self) -> bool {
        self.follow
    }

    pub(crate) fn key(&self) -> Option<&EncryptionKey> {
        self.encryption_key.as_ref()
    }

    pub(crate) fn lease(&self) -> Duration {
        self.follower_lease
    }

    pub(crate) fn requires_lock(&self) -> bool {
        self.require_lock
    }

    pub(crate) fn span(&self) -> u64 {
        self.segment_span
    }

    pub(crate) fn default_compression(&self) -> Compression {
        self.compression
    }

    pub(crate) fn kept_changes(&self) -> Option<u64> {
        self.keep_changes
    }

    pub(crate) fn default_durability(&self) -> Durability {
        self.durability
    }

    pub(crate) fn merge_operators(&self) -> &MergeOperators {
        &self.merge_operators
    }

    pub(crate) fn clock_source(&self) -> ClockSource {
        self.clock.clone()
    }

    pub(crate) fn latencies_asked(&self) -> Latencies {
        if self.latencies { Latencies::on() } else { Latencies::default() }
    }

    pub(crate) fn threads(&self) -> usize {
        self.background_threads
    }

    pub(crate) fn holder_text(&self) -> String {
        self.holder.clone().unwrap_or_else(|| {
            let program = std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default();
            format!("process {}, {program}", std::process::id())
        })
    }

    pub(crate) fn shares(&self, span: u64) -> Shares {
        // A leaf of a page stays in its page.
        let trailer = if self.encryption_key.is_some() { TRAILER } else { 0 };
        Shares::of(self.memory, span, self.leaf_len - trailer)
    }
}
