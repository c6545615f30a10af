//! **Sapwood**: an embedded, ordered, transactional key-value store designed for SSDs, whose many channels work
//! in parallel.
//!
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
//! // Many keys at once: read in parallel, answered in the order asked.
//! let some: Vec<Option<sapwood::Value>> = ships.multi_get(["fram", "titanic"])?;
//! assert!(some[0].is_some() && some[1].is_none());
//!
//! for item in ships.range("a".."d") {
//!     let (name, year) = item?;
//!     println!("{} {}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&year));
//! }
//! db.flush()?;
//! println!("{}", db.stats());
//! db.check()?;
//! # Ok(()) }
//! ```
//!
//! # How it works
//! A commit goes to a write-ahead log and to an operation queue (OPQ) in memory. A full queue is applied to
//! B+-trees as one sorted batch (bupdate). Nodes are only ever appended to the data, in large writes; a mapping
//! table holds the address of each node. A search for many keys descends level by level, with one parallel read
//! per level (MPSearch). Range scans read ahead in parallel.

mod address_space;
mod advisor;
#[cfg(test)]
mod ahead_tests;
mod backpressure;
mod batch;
mod beside;
mod budget;
mod bytecode;
mod check;
mod cleansing;
mod collecting;
mod commit;
mod commit_queue;
mod creation;
mod database;
mod database_id;
mod engine;
mod entries;
mod error;
mod even_sample;
mod flush;
mod foreseen;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod idle;
mod ingest;
mod iter;
mod key_bounds;
mod keyspace;
mod len_estimate;
mod naps;
mod node;
mod operation;
mod opq_share;
mod options;
mod publish;
mod queue;
mod recovery;
mod removed;
mod replay;
mod rest;
mod snapshot;
mod source;
mod space;
mod stage_buffers;
mod stats;
mod store;
mod tree;
mod value;
mod version_thread;
mod wal;
mod watchdog;

pub use batch::{Batch, Durability};
pub use check::Checked;
pub use database::Database;
pub use error::{Error, Refusal, Result};
pub use iter::Range;
pub use key_bounds::KeyBounds;
pub use keyspace::Keyspace;
pub use options::Builder;
pub use snapshot::Snapshot;
pub use stats::{KeyspaceStats, MemoryStats, ReadStats, SpaceStats, Stats, WriteStats};
pub use value::{Key, Value};

/// The maximum length of a key in bytes. Keys have at least 1 byte.
pub const KEY_LEN_MAX: usize = 64 << 10;
