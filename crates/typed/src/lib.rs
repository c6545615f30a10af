//! Keyspaces of [Sapwood](sapwood) with types: keys of any type, ordered as its values are, values by serde or of a fixed layout, and a schema
//! that is stored with the keyspace, so that opening it with another type is an error and not garbage.
//!
//! ```
//! use sapwood::Database;
//! use sapwood_typed::{DatabaseExt, TransactionExt};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Debug, PartialEq)]
//! struct Ship {
//!     built: u16,
//!     masts: u8,
//! }
//!
//! # fn main() -> sapwood::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let path = dir.path().join("ships.db");
//! let db = Database::open(path)?;
//! let ships = db.typed::<(u32, String), Ship>("ships")?; // by port and name
//! ships.insert((7, "fram"), Ship { built: 1892, masts: 3 })?;
//! assert_eq!(ships.get((7, "fram"))?, Some(Ship { built: 1892, masts: 3 }));
//!
//! for item in ships.prefix((7,)) { // also range((7, "a")..(8, "")), iter(), rev()
//!     let ((port, name), ship) = item?;
//!     println!("{name} of {}, at {port}", ship.built);
//! }
//! db.transact(|tx| {
//!     let mut ships = tx.typed(&ships);
//!     let Some(ship) = ships.take((7, "fram"))? else { return Ok(()) };
//!     ships.insert((8, "fram"), ship) // moved, or not: nothing between
//! })?;
//! # Ok(()) }
//! ```
//!
//! # What is what
//! | | |
//! |---|---|
//! | [`DatabaseExt::typed`] | a [`TypedKeyspace`], with the calls of a [`Keyspace`](sapwood::Keyspace) |
//! | `batch.typed(&ships)`, `tx.typed(&ships)`, `snapshot.typed(&ships)` | the same of batches, transactions and snapshots: [`BatchExt`], [`TransactionExt`], [`SnapshotExt`] |
//! | [`TypedKey`] | what can be a key, and how floats are ordered; `#[derive(TypedKey)]` |
//! | [`AsKey`], [`AsPrefix`], [`TypedBounds`] | what calls take: `("a", 1)` for a `(String, u32)`, first parts, ranges |
//! | [`TypedValue`] | types of serde that need no form which names the types of values (see [`TypedValue`]); [`Fixed`] without decoding; [`Raw`] bytes |
//! | [`Schema`] | version, name and options of a keyspace, and how to migrate from an older one |
//!
//! # Errors
//! They are [`sapwood::Error`]s: [`Schema`](sapwood::Error::Schema) if a keyspace is opened with other types than it was written with,
//! [`Decode`](sapwood::Error::Decode) if a record is not what it should be, [`Encode`](sapwood::Error::Encode) if serde refuses a value, and
//! those of the plain calls.
//!
//! # Features
//! | feature | what it adds |
//! |---|---|
//! | `derive` (default) | `#[derive(TypedKey)]` |
//! | `zstd` (default) | keyspaces that are compressed by Zstandard |
//! | `uuid` | `uuid::Uuid` as key |
//! | `jiff` | `jiff::Timestamp` and `jiff::civil::Date` as keys |
//! | `async` | `get_async`, `multi_get_async`, [`TypedRange`]s as streams |
//!
//! # What is stored
//! The repository's `docs/format.md` has the bytes of keys, values and schemas; they do not change. The schema lies before the keyspace's
//! metadata. A keyspace can be read without types at any time
//! ([`TypedKeyspace::keyspace`]). Operands, which are bytes of another form than values, are merged in this way too:
//! `ships.keyspace().merge(encode_key(key), operand)`.

// So that what is derived here finds what it names.
extern crate self as sapwood_typed;

#[cfg(feature = "async")]
mod asynchronous;
mod batch;
mod bounds;
mod database;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod key;
mod keyspace;
mod migration;
mod opening;
mod range;
mod record;
mod schema;
mod snapshot;
mod transaction;
mod value;

#[cfg(feature = "async")]
pub use asynchronous::TypedStream;
pub use batch::{BatchExt, TypedBatch};
pub use bounds::TypedBounds;
pub use database::DatabaseExt;
pub use key::{AsKey, AsPrefix, KeyError, KeyReader, StartsWith, TypedKey, Verbatim, decode_key, encode_key};
pub use keyspace::TypedKeyspace;
pub use range::TypedRange;
#[cfg(feature = "derive")]
pub use sapwood_typed_derive::TypedKey;
pub use schema::Schema;
pub use snapshot::{SnapshotExt, TypedSnapshot};
pub use transaction::{TransactionExt, TypedTransaction};
pub use value::{Fixed, Raw, TypedValue};

/// Every type that users hold may be sent to other threads, and shared with them, whatever its keys and values are.
const _: () = {
    const fn is_shared<T: Send + Sync + std::fmt::Debug>() {}
    type NotSend = *const u8;
    is_shared::<TypedKeyspace<NotSend, NotSend>>();
    is_shared::<TypedRange<NotSend, NotSend>>();
    is_shared::<TypedBatch<'_, NotSend, NotSend>>();
    is_shared::<TypedSnapshot<'_, NotSend, NotSend>>();
    is_shared::<TypedTransaction<'_, NotSend, NotSend>>();
    is_shared::<Fixed<u8>>();
    is_shared::<Raw>();
    #[cfg(feature = "async")]
    is_shared::<TypedStream<NotSend, NotSend>>();
};
