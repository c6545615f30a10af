//! **Sapwood**: an embedded, ordered key-value store designed for SSDs, whose many channels work in parallel.
//!
//! This page is a guide: [a first program](#a-first-program), [reading](#reading), [writing](#writing),
//! [transactions](#transactions), [durability](#durability), [snapshots](#snapshots), [compression](#compression), [encryption](#encryption), [tasks](#tasks), [limits](#limits), [tuning](#tuning), [errors](#errors),
//! [watching it](#watching-it), [how it works](#how-it-works).
//!
//! # A first program
//! ```
//! use sapwood::{Database, Durability};
//!
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let path = dir.path().join("ships.db");
//! let db = Database::open(path)?;
//! let ships = db.keyspace("ships")?;
//! ships.insert("beagle", "1820")?; // keys and values: anything AsRef<[u8]>
//! let year: Option<sapwood::Value> = ships.get("beagle")?;
//! assert_eq!(year.as_deref(), Some(&b"1820"[..]));
//!
//! let mut batch = db.batch();
//! batch.insert(&ships, "fram", "1892");
//! batch.insert(&ships, "cutty sark", "1869");
//! batch.durability(Durability::Immediate).commit()?;
//!
//! for item in ships.range("a".."d") {
//!     let (name, year) = item?;
//!     println!("{} {}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&year));
//! }
//! db.close()?; // dropping it does the same, but cannot return an error
//! # Ok(()) }
//! ```
//! A [`Database`] is a directory. A [`Keyspace`] is a named ordered map in it, with a tree of its own; keys are ordered
//! by their bytes. Both are cheap to clone and may be used by any number of threads. One process has a database open
//! for writing, or any number have it open [read-only](Builder::read_only); any number may [follow](Builder::follow) it meanwhile.
//!
//! # Reading
//! Ask for many keys at once wherever you can: [`Keyspace::multi_get`] (and [`multi_range`](Keyspace::multi_range)) costs one parallel read for each level of the
//! tree and as many nodes as a parallel read has ([`Builder::pio_max`]). [`Keyspace::range`] reads ahead in parallel. A [`Cursor`] moves in both directions, and
//! [`Keyspace::count`] counts the records of a range, [`Keyspace::range_estimate`] without reading them.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = sapwood::Database::open(dir.path().join("squares.db"))?;
//! let squares = db.keyspace("squares")?;
//! squares.ingest((0..1000u32).map(|n| (n.to_be_bytes(), (n * n).to_be_bytes())))?;
//!
//! let keys = [7u32, 5000, 12].map(u32::to_be_bytes);
//! let found = squares.multi_get(keys)?; // answered in the order asked
//! assert_eq!(found[0].as_deref(), Some(&49u32.to_be_bytes()[..]));
//! assert!(found[1].is_none());
//!
//! let (last, _) = squares.range(..).next_back().expect("it has records")?;
//! assert_eq!(&last[..], 999u32.to_be_bytes());
//!
//! let mut range = squares.range(100u32.to_be_bytes()..200u32.to_be_bytes());
//! let mut sum = 0;
//! while let Some(item) = range.next_ref() { // lends key and value: cheaper than iterating
//!     sum += item?.1.len();
//! }
//! assert_eq!(sum, 100 * 4);
//! # Ok(()) }
//! ```
//!
//! # Writing
//! A [`Batch`] changes any keyspaces of one database, and takes effect as a whole or not at all. Single
//! [`insert`](Keyspace::insert)s and [`remove`](Keyspace::remove)s are batches of one. A batch does not notice what other
//! threads changed since something was read; a [transaction](#transactions) does. Sorted records behind the last key are
//! loaded fastest with [`Keyspace::ingest`]. [`Keyspace::remove_range`], [`remove_prefix`](Keyspace::remove_prefix),
//! [`clear`](Keyspace::clear) and [`Database::drop_keyspace`] remove any number of records with one small record in the log.
//!
//! # Transactions
//! A [`Transaction`] reads and writes, and takes effect as if nothing had happened meanwhile, or not at all: if any other commit
//! has changed what it read, its commit returns [`Error::Conflict`]. [`Database::transact`] begins it again until it is
//! committed.
//!
//! ```
//! use sapwood::{Database, Error};
//!
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = Database::open(dir.path().join("ships.db"))?;
//! # let ks = db.keyspace("ships")?;
//! # let f = |n: Option<sapwood::Value>| n.map_or(0, |n| n[0]).to_string();
//! db.transact(|tx| { let n = tx.get(&ks, "n")?; tx.insert(&ks, "n", f(n))?; Ok(()) })?; // repeated on conflict
//!
//! let mut tx = db.transaction()?;
//! for item in tx.prefix(&ks, "x") { let (key, value) = item?; } // reads its own writes
//! let mark = tx.savepoint();
//! tx.remove(&ks, "y")?;
//! tx.roll_back_to(mark)?;
//! match tx.commit() {
//!     Err(Error::Conflict { keyspace, key, .. }) => println!("{key:?} in {keyspace} was changed"),
//!     other => other?,
//! }
//! # Ok(()) }
//! ```
//! For one key there is [`Keyspace::update`], [`compare_and_swap`](Keyspace::compare_and_swap),
//! [`insert_if_absent`](Keyspace::insert_if_absent), [`replace`](Keyspace::replace), [`take`](Keyspace::take),
//! [`pop_first`](Keyspace::pop_first) and [`pop_last`](Keyspace::pop_last); a transaction has the same.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
//! # let ks = db.keyspace("ships")?;
//! # let g = |old: Option<&[u8]>| old.map_or(1, |old| old.len()).to_string();
//! ks.compare_and_swap("k", Some("old"), Some("new"))?.unwrap_or_else(|found| println!("there is {found:?}"));
//! ks.insert_if_absent("k", "v")?; // what was there, then nothing changed
//! ks.update("k", |old: Option<&[u8]>| Some(g(old)))?; // the old value
//! let job = ks.pop_first()?; // each record to one caller
//! # Ok(()) }
//! ```
//! A transaction that only reads is a snapshot and does not conflict, and what it only writes conflicts with nothing. It locks nothing,
//! so transactions cannot deadlock.
//!
//! # Durability
//! | [`Durability`] | when `commit` returns | process crashes | power fails |
//! |---|---|---|---|
//! | [`Immediate`](Durability::Immediate) (default) | on the device | survives | survives |
//! | [`Buffered`](Durability::Buffered) | with the operating system | survives | may be lost |
//! | [`None`](Durability::None) | in memory | may be lost | may be lost |
//!
//! Commits are atomic at each level. What survives is a prefix of the log: a commit that survives implies those before
//! it in the log. Concurrent durable commits share one sync. [`Database::sync`] makes all earlier commits durable, so
//! many commits can share one sync:
//!
//! ```
//! use sapwood::Durability;
//!
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = sapwood::Database::open(dir.path().join("events.db"))?;
//! let events = db.keyspace("events")?;
//! for number in 0..1000u32 {
//!     let mut batch = db.batch();
//!     batch.insert(&events, number.to_be_bytes(), "something happened");
//!     batch.durability(Durability::Buffered).commit()?;
//! }
//! db.sync()?; // all of them are on the device now
//! # Ok(()) }
//! ```
//!
//! The default is set by [`Builder::durability`], for the single changes in a keyspace by [`KeyspaceOptions::durability`], and for those
//! of a handle by [`Keyspace::with_durability`].
//!
//! A durable commit is not seen before it is durable: no reader acts on what a power failure takes back. Commits of weaker
//! durability are seen first, and so are those of [`Batch::commit_visible`], which returns a [`Pending`] to
//! wait for the sync later, to be called back, or to `.await`. What depends on them is safe all the same: a durable commit
//! makes all that are before it in the log durable.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = sapwood::Database::open(dir.path().join("orders.db"))?;
//! # let orders = db.keyspace("orders")?;
//! let pending = db.batch().insert(&orders, "1", "a hundred planks").commit_visible()?;
//! assert!(orders.contains("1")?); // everyone sees it
//! // other work, other commits
//! pending.wait()?; // on the device now, by a sync shared with others
//! # Ok(()) }
//! ```
//!
//! # Snapshots
//! A [`Snapshot`] is the whole database as of one moment, whatever is written meanwhile. It holds memory and disk space
//! of what has been replaced since; drop it when it is no longer needed. An iterator sees the moment at which it began.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
//! let ships = db.keyspace("ships")?;
//! ships.insert("beagle", "1820")?;
//! let before = db.snapshot();
//! ships.remove("beagle")?;
//! assert!(ships.get("beagle")?.is_none());
//! assert!(before.get(&ships, "beagle")?.is_some());
//! # Ok(()) }
//! ```
//!
//! # Expiry
//! In a keyspace that was created for it records expire: by default so long after they are inserted, or each at a time of its own. From
//! its moment on a record is not there, for any kind of read, and its space comes back in the background.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
//! use sapwood::{Expiry, KeyspaceOptions};
//! use std::time::Duration;
//!
//! let half_an_hour = Duration::from_secs(30 * 60);
//! let sessions = db.keyspace_with("sessions", KeyspaceOptions::new().time_to_live(half_an_hour))?;
//! sessions.insert("f3a9", "amundsen")?;
//! sessions.insert_expiring("77c0", "nansen", Expiry::After(24 * 2 * half_an_hour))?;
//! sessions.set_expiry("f3a9", Expiry::After(half_an_hour))?; // once more, from now on
//! # Ok(()) }
//! ```
//! Whether records can expire is said when a keyspace is created, and costs 6 bytes a record. The clock is the system's, or one's own
//! ([`Builder::clock`]); it never goes back.
//!
//! # Compression
//! Leaves are stored compressed, by LZ4 unless a keyspace, or the database for all that are created without saying so, has another
//! [`Compression`]. What does not compress is stored as it is.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let path = dir.path().join("ships.db");
//! use sapwood::{Compression, Database, KeyspaceOptions};
//!
//! let db = Database::builder().compression(Compression::Zstd { level: 1 }).open(path)?;
//! let logbooks = KeyspaceOptions::new().compression(Compression::ZstdDictionary { level: 3 });
//! db.keyspace_with("logbooks", logbooks)?.insert("fram 1893-07-24", "Set sail from Vardø.")?;
//! # Ok(()) }
//! ```
//!
//! # Encryption
//! A database that is created with an [`EncryptionKey`] is encrypted, its log and its backups as well; what is changed or exchanged in its files is noticed.
//! [`Builder::encryption_key`] says what is not hidden.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let (path, file) = (dir.path().join("ships.db"), dir.path().join("ships.key"));
//! use sapwood::{Database, EncryptionKey};
//!
//! EncryptionKey::generate()?.save(&file)?; // keep a copy elsewhere: without it nothing can be read
//! let db = Database::builder().encryption_key(EncryptionKey::from_file(&file)?).open(path)?;
//! db.keyspace("ships")?.insert("fram", "1892")?;
//! # Ok(()) }
//! ```
//!
//! # Tasks
//! With the feature `async`, tasks of any runtime wait without holding a thread: `Keyspace::get_async`, `Keyspace::multi_get_async`,
//! `Range::into_stream`, `Batch::commit_async`, `Database::transact_async`, the same of snapshots and transactions, and [`Pending`] (without the feature too). The gets of
//! all tasks that wait at the same time are read together, as with [`Keyspace::multi_get`]: many tasks that get one key each keep the
//! device as busy.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
//! # let ships = db.keyspace("ships")?;
//! use futures_util::future::try_join_all;
//!
//! let visit = |name| {
//!     let ships = ships.clone();
//!     db.transact_async(async move |tx| { // repeated on conflict
//!         let visits = tx.get_async(&ships, name).await?.map_or(0, |visits| visits[0]);
//!         tx.insert(&ships, name, [visits + 1])
//!     })
//! };
//! futures_executor::block_on(try_join_all(["beagle", "fram", "cutty sark"].map(visit)))?;
//! assert_eq!(ships.count(..)?, 3);
//! # Ok(()) }
//! ```
//! Up to four more threads read, and one commits; they are started when they are first needed. With
//! [`background_threads(0)`](Builder::background_threads) there are none, and the poll does the work. A future may be dropped at any time: see
//! `Waiting`.
//!
//! # Limits
//! | what | limit |
//! |---|---|
//! | key | 1 to 65,536 bytes ([`KEY_LEN_MAX`]) |
//! | value | 16 MiB, a quarter of [`Builder::segment_span`], and a sixteenth of the memory budget (at least 1 MiB, less 64 KiB and 64 bytes); a few bytes less in keyspaces whose records expire or are merged. One that is [ingested](Keyspace::ingest): 16 MiB, and a quarter of the span, whatever the memory budget |
//! | large value ([`Database::large_values`]) | 1 TiB |
//! | batch | a sixth of the memory budget less 64 bytes for each change, or a sixteenth (at least 1 MiB) if that is more and these with the bytes are no more than half of the budget; at most 60 MiB. One that is larger than the sixteenth waits for a flush |
//! | writes of a transaction | a sixteenth of the memory budget (at least 1 MiB, at most 60), and an eighth of the memory budget (at least 2 MiB, at most 120) with some 128 bytes for each |
//! | name of a keyspace | 1 to 255 bytes, no control characters |
//! | metadata of a keyspace | 4096 bytes |
//! | an operand that is [merged](merge) | as a value |
//! | what operands make of a value, and those that wait for one | 16 MiB, and a quarter of [`Builder::segment_span`], whatever the memory budget |
//! | time at which a record expires | 1970 to 10889, in milliseconds; a record with a later one never expires |
//! | one call of [`Keyspace::ingest`] | 8 GiB of keys and values, and 2.7 million leaves: 5.5 GiB of values that fill just more than half a leaf, and less with a shorter [`Builder::leaf_len`] |
//! | memory budget | 4 MiB to 4 TiB |
//!
//! # Tuning
//! There is little to set, since what can be measured is not an option. In this order:
//!
//! 1. [`Builder::memory`]: cache, queues and all work share it. More means fewer reads, fewer bytes written for each
//!    update, and shorter scans after updates.
//! 2. The shape of the calls: batches in place of single changes, `multi_get` in place of `get`, the weakest
//!    [`Durability`] that is enough.
//! 3. [`Builder::busy_wait`]: off where processor time is dear; single reads take longer then.
//! 4. [`Database::compact`] before a phase that only reads, or after much was removed.
//! 5. [`Builder::background_threads`] 0 for tests that must run the same way every time.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! let db = sapwood::Database::builder()
//!     .memory(64 << 20)
//!     .busy_wait(false)
//!     .open(dir.path().join("ships.db"))?;
//! assert_eq!(db.stats().memory.budget, 64 << 20);
//! # Ok(()) }
//! ```
//!
//! # Errors
//! Each call that can fail returns a typed [`Error`] that says what failed, where, and what to do. They differ in what
//! comes next:
//!
//! | error | nothing happened? | what to do |
//! |---|---|---|
//! | [`KeyEmpty`](Error::KeyEmpty), [`KeyTooLong`](Error::KeyTooLong), [`ValueTooLong`](Error::ValueTooLong), [`BatchTooLarge`](Error::BatchTooLarge), [`NotSorted`](Error::NotSorted) | yes | correct the call |
//! | [`Conflict`](Error::Conflict) | yes | begin the transaction again, or use [`Database::transact`] |
//! | [`DiskFull`](Error::DiskFull), [`Exhausted`](Error::Exhausted) | yes | reads go on; repeat when there is space |
//! | [`Locked`](Error::Locked) | yes | [`Builder::wait_for_lock`], or try later |
//! | [`Poisoned`](Error::Poisoned), [`Io`](Error::Io) on a write | unknown | close and open again: opening recovers |
//! | [`Corrupt`](Error::Corrupt), [`Damaged`](Error::Damaged) | | [`Database::check`] lists the damage; [restore](backup::Restore) a backup, or [repair](repair::Repair) what can be read |
//! | [`Gone`](Error::Gone) | | the directory was removed or replaced: close, restore |
//!
//! ```
//! use sapwood::Error;
//!
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let path = dir.path().join("ships.db");
//! let db = sapwood::Database::open(&path)?;
//! match sapwood::Database::open(&path) {
//!     Err(Error::Locked { holder, .. }) => println!("in use by {holder}"),
//!     other => panic!("it is open already: {other:?}"),
//! }
//! let ships = db.keyspace("ships")?;
//! assert!(matches!(ships.insert("", "1820"), Err(Error::KeyEmpty)));
//! # Ok(()) }
//! ```
//!
//! # Watching it
//! [`Database::stats`] has counters and sizes, as a table and for programs. Events go to `tracing`; with the target
//! `sapwood::flush` at level DEBUG each flush is one event. [`Database::check`] reads and verifies everything.
//!
//! ```
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
//! db.keyspace("ships")?.insert("fram", "1892")?;
//! db.flush()?; // from the log to the trees; commits do not need it to be durable
//! println!("{}", db.stats());
//! assert_eq!(db.check()?.records, 1);
//! # Ok(()) }
//! ```
//!
//! With the feature `spans` there are spans too, of target `sapwood`: at level DEBUG `open`, `flush`, `cleanse`, `publish`, `checkpoint`
//! and `collect`; at level TRACE `commit` and, within it, `wait for the group` while another thread commits.
//!
//! # Features
//! | feature | what it adds | cost when it is off |
//! |---|---|---|
//! | `async` | [tasks](#tasks) | none; when on, up to five threads once tasks wait |
//! | `spans` | spans of `tracing` | none |
//! | `zstd` | [`Compression::Zstd`] and [`Compression::ZstdDictionary`]; needs a C compiler | such databases are refused |
//!
//! `zstd` is on unless `default-features = false` is said, the others are off unless they are asked for. The crate `sapwood-typed` adds types of keys and values.
//!
//! # How it works
//! A commit goes to a write-ahead log and to an operation queue (OPQ) in memory. A full queue is applied to
//! B+-trees as one sorted batch (bupdate). Nodes are only ever appended to the data, in large writes; a mapping
//! table holds the address of each node. A search for many keys descends level by level, with one parallel read
//! per level (MPSearch). Range scans read ahead in parallel. The repository's `docs/concepts.md` has pictures and a
//! glossary, `docs/operations.md` what to know when running a database.

#[cfg(feature = "async")]
mod answer;
mod background;
pub mod backup;
mod bounds;
mod bytecode;
mod cache;
mod clock;
mod commit;
mod compression;
mod conflict;
mod current_state;
mod database_id;
mod db;
mod durability;
mod encryption;
mod error;
mod estimator;
mod even_sample;
mod expiring_bytes;
mod expiry;
mod flow;
mod followers;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod iter;
mod latency;
mod lock_order;
mod log_area;
pub mod merge;
mod merging;
mod operation;
mod opq;
mod parts;
mod pool;
mod publish;
mod random;
mod reserve;
mod source;
mod space;
mod spans;
mod stats;
mod storage;
mod tree;
mod tree_writer;
mod value;
mod version;
mod wal;
mod watchdog;
mod whole_file;

/// The crate whose devices, volumes and errors appear in this one's interface.
pub use psync;

pub use compression::Compression;
#[cfg(feature = "async")]
pub use db::asynchronous::Waiting;
pub use db::batch::Batch;
pub use db::changes::{Change, Changes, ChangesPosition, Commit, CommittedOperation, FeedKeyspace};
pub use db::check::Checked;
pub use db::cursor::Cursor;
pub use db::database::Database;
pub use db::explain::{ExplainStep, ExplainedNode, Explanation, Finding};
pub use db::follow::Refreshed;
pub use db::key_bounds::KeyBounds;
pub use db::keyspace::Keyspace;
pub use db::keyspace_options::KeyspaceOptions;
pub use db::large_values::reader::LargeValueReader;
pub use db::large_values::staged::StagedValue;
pub use db::large_values::{LargeValueRange, LargeValues};
pub use db::len_estimate::RangeEstimate;
pub use db::options::Builder;
pub use db::pending::Pending;
pub use db::repair;
pub use db::segment_info::SegmentInfo;
pub use db::snapshot::Snapshot;
pub use db::transaction::Transaction;
pub use db::transaction::range::TransactionRange;
pub use db::transaction::writes::Savepoint;
pub use durability::Durability;
pub use encryption::EncryptionKey;
pub use error::{ConflictReason, Error, KeyProblem, Refusal, Result};
pub use expiry::Expiry;
pub use iter::Range;
#[cfg(feature = "async")]
pub use iter::stream::RangeStream;
pub use latency::Latency;
pub use stats::{KeyspaceStats, MemoryStats, ReadStats, SpaceStats, Stats, WriteStats};
pub use value::{Key, Value};

/// The maximum length of a key in bytes: a node must hold some of them. Keys have at least 1 byte.
pub const KEY_LEN_MAX: usize = 64 << 10;

/// Every type that users hold may be sent to other threads, and shared with them.
const _: () = {
    const fn is_shared<T: Send + Sync + std::fmt::Debug>() {}
    is_shared::<Database>();
    is_shared::<Keyspace>();
    is_shared::<Batch>();
    is_shared::<Snapshot>();
    is_shared::<Range>();
    is_shared::<Cursor>();
    is_shared::<RangeEstimate>();
    is_shared::<Transaction>();
    is_shared::<TransactionRange>();
    is_shared::<Savepoint>();
    is_shared::<Builder>();
    is_shared::<Pending>();
    is_shared::<Stats>();
    is_shared::<Latency>();
    is_shared::<Changes>();
    is_shared::<Change>();
    is_shared::<ChangesPosition>();
    is_shared::<Checked>();
    is_shared::<Explanation>();
    is_shared::<SegmentInfo>();
    is_shared::<Value>();
    is_shared::<Error>();
    #[cfg(feature = "async")]
    {
        is_shared::<Waiting<Vec<Option<Value>>>>();
        is_shared::<RangeStream>();
        is_shared::<RangeStream<TransactionRange>>();
    }
};
