//! Typed records in batches.

use crate::bounds::TypedBounds;
use crate::key::{AsKey, AsPrefix, TypedKey, encode_key};
use crate::keyspace::{TypedKeyspace, encode_prefix};
use crate::record;
use crate::value::TypedValue;
use sapwood::{Batch, Expiry, Result};
use std::borrow::Borrow;

/// Typed records in a [`Batch`], which may be of several keyspaces.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood_typed::{BatchExt, DatabaseExt};
///
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// let mut batch = db.batch();
/// batch.typed(&ships).insert((7, "fram"), 1892)?.remove((8, "fram"));
/// batch.commit()?;
/// # Ok(()) }
/// ```
pub trait BatchExt {
    /// The part of the batch that changes this keyspace.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let harbours = db.typed::<String, f64>("harbours")?;
    /// let mut batch = db.batch();
    /// batch.typed(&ships).insert((7, "fram"), 1892)?;
    /// batch.typed(&harbours).insert("bergen", 60.4)?;
    /// batch.commit()?; // both or neither
    /// # Ok(()) }
    /// ```
    fn typed<'a, K: TypedKey, V: TypedValue>(
        &'a mut self,
        keyspace: &'a TypedKeyspace<K, V>,
    ) -> TypedBatch<'a, K, V>;
}

impl BatchExt for Batch {
    fn typed<'a, K: TypedKey, V: TypedValue>(
        &'a mut self,
        keyspace: &'a TypedKeyspace<K, V>,
    ) -> TypedBatch<'a, K, V> {
        TypedBatch { batch: self, keyspace }
    }
}

/// The part of a batch that changes one typed keyspace. Made by [`BatchExt::typed`]; the batch is committed.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// let mut batch = db.batch();
/// let mut changes = batch.typed(&ships);
/// for port in 0..3 {
///     changes.insert((port, "fram"), 1892)?;
/// }
/// batch.commit()?;
/// assert_eq!(ships.count(..)?, 3);
/// # Ok(()) }
/// ```
pub struct TypedBatch<'a, K, V> {
    batch: &'a mut Batch,
    keyspace: &'a TypedKeyspace<K, V>,
}

impl<K: TypedKey, V: TypedValue> TypedBatch<'_, K, V> {
    /// Sets `key` to `value`, as [`Batch::insert`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut batch = db.batch();
    /// batch.typed(&ships).insert((7, "fram"), 1892)?.insert((8, "beagle"), 1820)?;
    /// batch.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Encode`](sapwood::Error::Encode): then the batch is as before. Other errors are returned by
    /// [`Batch::commit`].
    pub fn insert(&mut self, key: impl AsKey<K>, value: impl Borrow<V>) -> Result<&mut Self> {
        let keyspace = self.keyspace.keyspace();
        let value = record::bytes_of(keyspace, value.borrow())?;
        self.batch.insert(keyspace, encode_key(key), value);
        Ok(self)
    }

    /// Like [`insert`](Self::insert), for a record that expires as said, as [`Batch::insert_expiring`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut batch = db.batch();
    /// batch.typed(&ships).insert_expiring((7, "fram"), 1892, sapwood::Expiry::Never)?;
    /// assert!(batch.commit().is_err()); // this keyspace was not created for it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_expiring(
        &mut self,
        key: impl AsKey<K>,
        value: impl Borrow<V>,
        expiry: Expiry,
    ) -> Result<&mut Self> {
        let keyspace = self.keyspace.keyspace();
        let value = record::bytes_of(keyspace, value.borrow())?;
        self.batch.insert_expiring(keyspace, encode_key(key), value, expiry);
        Ok(self)
    }

    /// Removes `key`, as [`Batch::remove`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// let mut batch = db.batch();
    /// batch.typed(&ships).remove((7, "fram"));
    /// batch.commit()?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    pub fn remove(&mut self, key: impl AsKey<K>) -> &mut Self {
        self.batch.remove(self.keyspace.keyspace(), encode_key(key));
        self
    }

    /// Removes all records whose keys lie within `bounds`, as [`Batch::remove_range`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// let mut batch = db.batch();
    /// batch.typed(&ships).remove_range((7, "a")..(7, "z")).insert((8, "fram"), 1892)?; // moved
    /// batch.commit()?;
    /// assert_eq!(ships.count(..)?, 1);
    /// # Ok(()) }
    /// ```
    pub fn remove_range(&mut self, bounds: impl TypedBounds<K>) -> &mut Self {
        self.batch.remove_range(self.keyspace.keyspace(), bounds.encode_bounds());
        self
    }

    /// Removes all records whose keys begin so, as [`Batch::remove_prefix`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// let mut batch = db.batch();
    /// batch.typed(&ships).remove_prefix((7,));
    /// batch.commit()?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    pub fn remove_prefix(&mut self, prefix: impl AsPrefix<K::Parts>) -> &mut Self {
        self.batch.remove_prefix(self.keyspace.keyspace(), encode_prefix(prefix));
        self
    }

    /// Removes all records, as [`Batch::clear`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// let mut batch = db.batch();
    /// batch.typed(&ships).clear().insert((1, "beagle"), 1820)?;
    /// batch.commit()?;
    /// assert_eq!(ships.count(..)?, 1);
    /// # Ok(()) }
    /// ```
    pub fn clear(&mut self) -> &mut Self {
        self.batch.clear(self.keyspace.keyspace());
        self
    }
}

impl<K, V> std::fmt::Debug for TypedBatch<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedBatch({:?}, {:?})", self.batch, self.keyspace)
    }
}
