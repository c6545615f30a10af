//! Keys and values returned by reads: bytes of their own, or bytes that share the memory of the node that holds
//! them.

use bytes::Bytes;
use std::ops::Deref;

/// A value. Derefs to `[u8]`. A clone increments a reference count and copies nothing.
///
/// A value that was got has memory of its own, if it is shorter than 4 KiB. A longer one, and what a range
/// returns, can keep the whole node alive that it came from (mostly about 4 KiB). To keep many records of a range
/// for a long time, copy them: `value.to_vec()`.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("fram", "1892")?;
/// let year = ships.get("fram")?.expect("it is there");
/// assert!(year == "1892" && year.len() == 4);
/// let owned: Vec<u8> = year.to_vec();
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Value(pub(crate) Bytes);

/// A key returned by a range. Behaves like a [`Value`].
pub type Key = Value;

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::borrow::Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        self.0 == other
    }
}

impl PartialEq<&[u8]> for Value {
    fn eq(&self, other: &&[u8]) -> bool {
        self.0 == *other
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value {
    fn eq(&self, other: &&[u8; N]) -> bool {
        self.0[..] == other[..]
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        value.0.into()
    }
}

impl From<Value> for Bytes {
    fn from(value: Value) -> Self {
        value.0
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.0, f)
    }
}
