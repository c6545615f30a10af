//! Typed records as of one moment.

use crate::bounds::TypedBounds;
use crate::key::{AsKey, AsPrefix, TypedKey, encode_key};
use crate::keyspace::{TypedKeyspace, encode_prefix};
use crate::range::TypedRange;
use crate::record::{self, Found};
use crate::value::TypedValue;
use sapwood::{Result, Snapshot};

/// Typed records in a [`Snapshot`].
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood_typed::{DatabaseExt, SnapshotExt};
///
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// assert!(db.snapshot().typed(&ships).get((7, "fram"))?.is_none());
/// # Ok(()) }
/// ```
pub trait SnapshotExt {
    /// The keyspace as of the moment of the snapshot.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// let before = db.snapshot();
    /// ships.remove((7, "fram"))?;
    /// assert_eq!(before.typed(&ships).get((7, "fram"))?, Some(1892));
    /// # Ok(()) }
    /// ```
    fn typed<'a, K: TypedKey, V: TypedValue>(
        &'a self,
        keyspace: &'a TypedKeyspace<K, V>,
    ) -> TypedSnapshot<'a, K, V>;
}

impl SnapshotExt for Snapshot {
    fn typed<'a, K: TypedKey, V: TypedValue>(
        &'a self,
        keyspace: &'a TypedKeyspace<K, V>,
    ) -> TypedSnapshot<'a, K, V> {
        TypedSnapshot { snapshot: self, keyspace }
    }
}

/// One typed keyspace as of the moment of a snapshot. Made by [`SnapshotExt::typed`]; its calls are those of a
/// [`TypedKeyspace`], with the same errors.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// let snapshot = db.snapshot();
/// let then = snapshot.typed(&ships);
/// ships.insert((7, "fram"), 1892)?;
/// assert_eq!((then.count(..)?, ships.count(..)?), (0, 1));
/// # Ok(()) }
/// ```
pub struct TypedSnapshot<'a, K, V> {
    snapshot: &'a Snapshot,
    keyspace: &'a TypedKeyspace<K, V>,
}

impl<K: TypedKey, V: TypedValue> TypedSnapshot<'_, K, V> {
    /// The value of `key`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(db.snapshot().typed(&ships).get((7, "fram"))?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::get`].
    pub fn get(&self, key: impl AsKey<K>) -> Result<Option<V>> {
        let (keyspace, key) = (self.keyspace.keyspace(), encode_key(key));
        record::found(keyspace, &key, self.snapshot.get(keyspace, &key)?)
    }

    /// Whether `key` has a value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert!(!db.snapshot().typed(&ships).contains((7, "fram"))?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::contains`].
    pub fn contains(&self, key: impl AsKey<K>) -> Result<bool> {
        self.snapshot.contains(self.keyspace.keyspace(), encode_key(key))
    }

    /// The values of many keys, in their order.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// assert_eq!(db.snapshot().typed(&ships).multi_get([(7, "fram")])?, [Some(1892)]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::get`].
    pub fn multi_get<A: AsKey<K>>(&self, keys: impl IntoIterator<Item = A>) -> Result<Vec<Option<V>>> {
        let keyspace = self.keyspace.keyspace();
        let keys: Vec<_> = keys.into_iter().map(encode_key).collect();
        record::found_all(keyspace, &keys, self.snapshot.multi_get(keyspace, &keys)?)
    }

    /// The records whose keys lie within `bounds`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert!(db.snapshot().typed(&ships).range((7, "")..).next().is_none());
    /// # Ok(()) }
    /// ```
    pub fn range(&self, bounds: impl TypedBounds<K>) -> TypedRange<K, V> {
        let keyspace = self.keyspace.keyspace();
        TypedRange::new(keyspace, self.snapshot.range(keyspace, bounds.encode_bounds()))
    }

    /// The records whose keys begin so.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert!(db.snapshot().typed(&ships).prefix((7,)).next().is_none());
    /// # Ok(()) }
    /// ```
    pub fn prefix(&self, prefix: impl AsPrefix<K::Parts>) -> TypedRange<K, V> {
        let keyspace = self.keyspace.keyspace();
        TypedRange::new(keyspace, self.snapshot.prefix(keyspace, encode_prefix(prefix)))
    }

    /// All records.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert!(db.snapshot().typed(&ships).iter().next().is_none());
    /// # Ok(()) }
    /// ```
    pub fn iter(&self) -> TypedRange<K, V> {
        let keyspace = self.keyspace.keyspace();
        TypedRange::new(keyspace, self.snapshot.iter(keyspace))
    }

    /// The record with the smallest key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(db.snapshot().typed(&ships).first()?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::get`].
    pub fn first(&self) -> Result<Found<K, V>> {
        record::found_record(self.keyspace.keyspace(), self.snapshot.first(self.keyspace.keyspace())?)
    }

    /// The record with the largest key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(db.snapshot().typed(&ships).last()?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::get`].
    pub fn last(&self) -> Result<Found<K, V>> {
        record::found_record(self.keyspace.keyspace(), self.snapshot.last(self.keyspace.keyspace())?)
    }

    /// The number of records whose keys lie within `bounds`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(db.snapshot().typed(&ships).count(..)?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::count`].
    pub fn count(&self, bounds: impl TypedBounds<K>) -> Result<u64> {
        self.snapshot.count(self.keyspace.keyspace(), bounds.encode_bounds())
    }
}

impl<K, V> std::fmt::Debug for TypedSnapshot<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedSnapshot({:?}, {:?})", self.snapshot, self.keyspace)
    }
}
