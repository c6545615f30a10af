//! Typed records in transactions.

use crate::bounds::TypedBounds;
use crate::key::{AsKey, AsPrefix, TypedKey, encode_key};
use crate::keyspace::{TypedKeyspace, encode_prefix};
use crate::range::TypedRange;
use crate::record::{self, Found};
use crate::value::TypedValue;
use sapwood::{Expiry, Keyspace, Result, Transaction, TransactionRange};
use std::borrow::Borrow;

/// Typed records in a [`Transaction`].
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood_typed::{DatabaseExt, TransactionExt};
///
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// db.transact(|tx| tx.typed(&ships).insert((7, "fram"), 1892))?;
/// # Ok(()) }
/// ```
pub trait TransactionExt {
    /// The keyspace as the transaction sees and changes it.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// db.transact(|tx| {
    ///     let mut ships = tx.typed(&ships);
    ///     let masts = ships.get((7, "fram"))?.unwrap_or(0);
    ///     ships.insert((7, "fram"), masts + 1)
    /// })?;
    /// assert_eq!(ships.get((7, "fram"))?, Some(1));
    /// # Ok(()) }
    /// ```
    fn typed<'a, K: TypedKey, V: TypedValue>(
        &'a mut self,
        keyspace: &'a TypedKeyspace<K, V>,
    ) -> TypedTransaction<'a, K, V>;
}

impl TransactionExt for Transaction {
    fn typed<'a, K: TypedKey, V: TypedValue>(
        &'a mut self,
        keyspace: &'a TypedKeyspace<K, V>,
    ) -> TypedTransaction<'a, K, V> {
        TypedTransaction { tx: self, keyspace }
    }
}

/// One typed keyspace as a transaction sees and changes it. Made by [`TransactionExt::typed`]; the transaction is committed. Its calls are those
/// of a [`TypedKeyspace`], with the same errors, and what they read counts as read by the transaction.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// let mut tx = db.transaction()?;
/// tx.typed(&ships).insert((7, "fram"), 1892)?;
/// assert_eq!(tx.typed(&ships).get((7, "fram"))?, Some(1892));
/// tx.commit()?;
/// # Ok(()) }
/// ```
pub struct TypedTransaction<'a, K, V> {
    tx: &'a mut Transaction,
    keyspace: &'a TypedKeyspace<K, V>,
}

impl<'a, K: TypedKey, V: TypedValue> TypedTransaction<'a, K, V> {
    pub(crate) fn plain(&self) -> &'a Keyspace {
        self.keyspace.keyspace()
    }

    #[cfg(feature = "async")]
    pub(crate) fn tx(&self) -> &Transaction {
        self.tx
    }

    /// The value of `key`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert_eq!(tx.typed(&ships).get((7, "fram"))?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::get`].
    pub fn get(&self, key: impl AsKey<K>) -> Result<Option<V>> {
        let key = encode_key(key);
        record::found(self.plain(), &key, self.tx.get(self.plain(), &key)?)
    }

    /// Whether `key` has a value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert!(!tx.typed(&ships).contains((7, "fram"))?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::contains`].
    pub fn contains(&self, key: impl AsKey<K>) -> Result<bool> {
        self.tx.contains(self.plain(), encode_key(key))
    }

    /// The values of many keys, in their order.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.typed(&ships).insert((7, "fram"), 1892)?;
    /// assert_eq!(tx.typed(&ships).multi_get([(8, "fram"), (7, "fram")])?, [None, Some(1892)]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::get`].
    pub fn multi_get<A: AsKey<K>>(&self, keys: impl IntoIterator<Item = A>) -> Result<Vec<Option<V>>> {
        let keys: Vec<_> = keys.into_iter().map(encode_key).collect();
        record::found_all(self.plain(), &keys, self.tx.multi_get(self.plain(), &keys)?)
    }

    /// The records whose keys lie within `bounds`, with what the transaction has written when this is called.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.typed(&ships).insert((7, "fram"), 1892)?;
    /// assert_eq!(tx.typed(&ships).range((7, "a")..).count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn range(&self, bounds: impl TypedBounds<K>) -> TypedRange<K, V, TransactionRange> {
        TypedRange::new(self.plain(), self.tx.range(self.plain(), bounds.encode_bounds()))
    }

    /// The records whose keys begin so.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.typed(&ships).insert((7, "fram"), 1892)?;
    /// assert_eq!(tx.typed(&ships).prefix((7,)).count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn prefix(&self, prefix: impl AsPrefix<K::Parts>) -> TypedRange<K, V, TransactionRange> {
        TypedRange::new(self.plain(), self.tx.prefix(self.plain(), encode_prefix(prefix)))
    }

    /// All records.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert_eq!(tx.typed(&ships).iter().count(), 0);
    /// # Ok(()) }
    /// ```
    pub fn iter(&self) -> TypedRange<K, V, TransactionRange> {
        TypedRange::new(self.plain(), self.tx.iter(self.plain()))
    }

    /// The record with the smallest key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert_eq!(tx.typed(&ships).first()?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::get`].
    pub fn first(&self) -> Result<Found<K, V>> {
        record::found_record(self.plain(), self.tx.first(self.plain())?)
    }

    /// The record with the largest key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert_eq!(tx.typed(&ships).last()?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`TypedKeyspace::get`].
    pub fn last(&self) -> Result<Found<K, V>> {
        record::found_record(self.plain(), self.tx.last(self.plain())?)
    }

    /// Sets `key` to `value`, as [`Transaction::insert`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// db.transact(|tx| tx.typed(&ships).insert((7, "fram"), 1892))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`]; [`Error::Encode`](sapwood::Error::Encode).
    pub fn insert(&mut self, key: impl AsKey<K>, value: impl Borrow<V>) -> Result<()> {
        let value = record::bytes_of(self.plain(), value.borrow())?;
        self.tx.insert(self.plain(), encode_key(key), value)
    }

    /// Like [`insert`](Self::insert), for a record that expires as said, as [`Transaction::insert_expiring`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// use sapwood::{Error, Expiry};
    ///
    /// let inserted = db.transact(|tx| tx.typed(&ships).insert_expiring((7, "fram"), 1892, Expiry::Never));
    /// assert!(matches!(inserted, Err(Error::NoExpiry { .. }))); // this keyspace was not created for it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert); [`Error::NoExpiry`](sapwood::Error::NoExpiry).
    pub fn insert_expiring(
        &mut self,
        key: impl AsKey<K>,
        value: impl Borrow<V>,
        expiry: Expiry,
    ) -> Result<()> {
        let value = record::bytes_of(self.plain(), value.borrow())?;
        self.tx.insert_expiring(self.plain(), encode_key(key), value, expiry)
    }

    /// Removes `key`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// db.transact(|tx| tx.typed(&ships).remove((7, "fram")))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::remove`].
    pub fn remove(&mut self, key: impl AsKey<K>) -> Result<()> {
        self.tx.remove(self.plain(), encode_key(key))
    }

    /// Removes all records whose keys lie within `bounds`, without reading them.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// db.transact(|tx| tx.typed(&ships).remove_range(..(8, "")))?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::remove_range`].
    pub fn remove_range(&mut self, bounds: impl TypedBounds<K>) -> Result<()> {
        self.tx.remove_range(self.plain(), bounds.encode_bounds())
    }

    /// Removes all records whose keys begin so, without reading them.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// db.transact(|tx| tx.typed(&ships).remove_prefix((7,)))?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::remove_prefix`].
    pub fn remove_prefix(&mut self, prefix: impl AsPrefix<K::Parts>) -> Result<()> {
        self.tx.remove_prefix(self.plain(), encode_prefix(prefix))
    }

    /// Replaces the value of `key`, or its absence, if it is what is expected, as [`TypedKeyspace::compare_and_swap`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// db.transact(|tx| {
    ///     let mut ships = tx.typed(&ships);
    ///     assert_eq!(ships.compare_and_swap((7, "fram"), None::<u16>, Some(1892))?, Ok(()));
    ///     assert_eq!(ships.compare_and_swap((7, "fram"), Some(1893), None::<u16>)?, Err(Some(1892)));
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert`](Self::insert).
    pub fn compare_and_swap(
        &mut self,
        key: impl AsKey<K>,
        expected: Option<impl Borrow<V>>,
        new: Option<impl Borrow<V>>,
    ) -> Result<std::result::Result<(), Option<V>>> {
        let (keyspace, key) = (self.plain(), encode_key(key));
        let bytes = |value: Option<&V>| value.map(|value| record::bytes_of(keyspace, value)).transpose();
        let expected = bytes(expected.as_ref().map(Borrow::borrow))?;
        let new = bytes(new.as_ref().map(Borrow::borrow))?;
        match self.tx.compare_and_swap(keyspace, &key, expected, new)? {
            Ok(()) => Ok(Ok(())),
            Err(there) => Ok(Err(record::found(keyspace, &key, there)?)),
        }
    }

    /// Sets `key` to `value` if it has none. Returns what was there; then nothing has changed.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let there = db.transact(|tx| tx.typed(&ships).insert_if_absent((7, "fram"), 1892))?;
    /// assert_eq!(there, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert`](Self::insert).
    pub fn insert_if_absent(&mut self, key: impl AsKey<K>, value: impl Borrow<V>) -> Result<Option<V>> {
        let there = self.get(&key)?;
        if there.is_none() {
            self.insert(key, value)?;
        }
        Ok(there)
    }

    /// Sets `key` to what `change` makes of its value, or removes it if that is `None`. Returns the old value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let one_more = |masts: Option<&u16>| Some(masts.map_or(1, |masts| masts + 1));
    /// assert_eq!(db.transact(|tx| tx.typed(&ships).update((7, "fram"), one_more))?, None);
    /// assert_eq!(db.transact(|tx| tx.typed(&ships).update((7, "fram"), one_more))?, Some(1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert`](Self::insert).
    pub fn update(
        &mut self,
        key: impl AsKey<K>,
        change: impl FnOnce(Option<&V>) -> Option<V>,
    ) -> Result<Option<V>> {
        let old = self.get(&key)?;
        match change(old.as_ref()) {
            Some(value) => self.insert(key, value)?,
            None if old.is_some() => self.remove(key)?,
            None => {}
        }
        Ok(old)
    }

    /// Sets `key` to `value`, and returns the old value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(db.transact(|tx| tx.typed(&ships).replace((7, "fram"), 1892))?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert`](Self::insert).
    pub fn replace(&mut self, key: impl AsKey<K>, value: impl Borrow<V>) -> Result<Option<V>> {
        let old = self.get(&key)?;
        self.insert(key, value)?;
        Ok(old)
    }

    /// Removes `key`, and returns its value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// assert_eq!(db.transact(|tx| tx.typed(&ships).take((7, "fram")))?, Some(1892));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`remove`](Self::remove).
    pub fn take(&mut self, key: impl AsKey<K>) -> Result<Option<V>> {
        let old = self.get(&key)?;
        if old.is_some() {
            self.remove(key)?;
        }
        Ok(old)
    }

    /// Removes the record with the smallest key, and returns it.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// let first = db.transact(|tx| tx.typed(&ships).pop_first())?;
    /// assert_eq!(first, Some(((7, "fram".to_owned()), 1892)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn pop_first(&mut self) -> Result<Found<K, V>> {
        let record = self.first()?;
        if let Some((key, _)) = &record {
            self.remove(key)?;
        }
        Ok(record)
    }

    /// Removes the record with the largest key, and returns it.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(db.transact(|tx| tx.typed(&ships).pop_last())?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn pop_last(&mut self) -> Result<Found<K, V>> {
        let record = self.last()?;
        if let Some((key, _)) = &record {
            self.remove(key)?;
        }
        Ok(record)
    }

    /// When the record of `key` expires, as [`Transaction::expiry`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert_eq!(tx.typed(&ships).expiry((7, "fram"))?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::expiry`].
    pub fn expiry(&self, key: impl AsKey<K>) -> Result<Option<Expiry>> {
        self.tx.expiry(self.plain(), encode_key(key))
    }

    /// Lets the record of `key` expire at another time, as [`Transaction::set_expiry`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let set = db.transact(|tx| tx.typed(&ships).set_expiry((7, "fram"), sapwood::Expiry::Never));
    /// assert!(set.is_err()); // this keyspace was not created for it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::set_expiry`].
    pub fn set_expiry(&mut self, key: impl AsKey<K>, expiry: Expiry) -> Result<bool> {
        self.tx.set_expiry(self.plain(), encode_key(key), expiry)
    }
}

impl<K, V> std::fmt::Debug for TypedTransaction<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedTransaction({:?}, {:?})", self.tx, self.keyspace)
    }
}
