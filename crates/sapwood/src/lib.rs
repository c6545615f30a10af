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

mod background;
mod bytecode;
mod cache;
mod commit;
mod database_id;
mod db;
mod error;
mod even_sample;
mod flow;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod iter;
mod log_area;
mod operation;
mod opq;
mod options;
mod source;
mod spawn;
mod stats;
mod storage;
mod tree;
mod value;
mod version;
mod wal;
mod watchdog;

pub use db::batch::{Batch, Durability};
pub use db::check::Checked;
pub use db::database::Database;
pub use db::key_bounds::KeyBounds;
pub use db::keyspace::Keyspace;
pub use db::snapshot::Snapshot;
pub use error::{Error, Refusal, Result};
pub use iter::Range;
pub use options::Builder;
pub use stats::{KeyspaceStats, MemoryStats, ReadStats, SpaceStats, Stats, WriteStats};
pub use value::{Key, Value};

/// The maximum length of a key in bytes. Keys have at least 1 byte.
pub const KEY_LEN_MAX: usize = 64 << 10;
