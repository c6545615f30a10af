//! Reads and writes of one typed key that nothing comes between, and times at which records expire.

use crate::key::{AsKey, TypedKey, encode_key};
use crate::keyspace::TypedKeyspace;
use crate::record::{self, Found};
use crate::transaction::{TransactionExt, TypedTransaction};
use crate::value::TypedValue;
use sapwood::{Expiry, Result};
use std::borrow::Borrow;

impl<K: TypedKey, V: TypedValue> TypedKeyspace<K, V> {
    /// Repeats a transaction of this keyspace until it is committed, as durable as the handle is.
    fn transact<R>(&self, mut run: impl FnMut(&mut TypedTransaction<'_, K, V>) -> Result<R>) -> Result<R> {
        self.db.transact(|tx| {
            tx.durability(self.keyspace.durability());
            run(&mut tx.typed(self))
        })
    }

    /// Replaces the value of `key`, or its absence, if it is what is expected, as
    /// [`Keyspace::compare_and_swap`](sapwood::Keyspace::compare_and_swap). Bytes are compared: a type whose equal values may have
    /// different bytes, as a `HashMap`, is not for this.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(ships.compare_and_swap((7, "fram"), None::<u16>, Some(1892))?, Ok(()));
    /// assert_eq!(ships.compare_and_swap((7, "fram"), Some(1893), Some(1894))?, Err(Some(1892)));
    /// assert_eq!(ships.compare_and_swap((7, "fram"), Some(1892), None::<u16>)?, Ok(())); // removed
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert`](Self::insert).
    pub fn compare_and_swap(
        &self,
        key: impl AsKey<K>,
        expected: Option<impl Borrow<V>>,
        new: Option<impl Borrow<V>>,
    ) -> Result<std::result::Result<(), Option<V>>> {
        let (expected, new) =
            (expected.as_ref().map(Borrow::<V>::borrow), new.as_ref().map(Borrow::<V>::borrow));
        self.transact(|tx| tx.compare_and_swap(&key, expected, new))
    }

    /// Sets `key` to `value` if it has none. Returns what was there; then nothing has changed.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(ships.insert_if_absent((7, "fram"), 1892)?, None);
    /// assert_eq!(ships.insert_if_absent((7, "fram"), 1893)?, Some(1892));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert`](Self::insert).
    pub fn insert_if_absent(&self, key: impl AsKey<K>, value: impl Borrow<V>) -> Result<Option<V>> {
        let (key, value) = (encode_key(key), record::bytes_of(&self.keyspace, value.borrow())?);
        record::found(&self.keyspace, &key, self.keyspace.insert_if_absent(&key, value)?)
    }

    /// Sets `key` to what `change` makes of its value, or removes it if that is `None`. Returns the old value. If another thread writes the
    /// key meanwhile, `change` is called again, as by [`Keyspace::update`](sapwood::Keyspace::update).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(ships.update((7, "fram"), |masts| Some(masts.map_or(1, |masts| masts + 1)))?, None);
    /// assert_eq!(ships.update((7, "fram"), |masts| Some(masts.map_or(1, |masts| masts + 1)))?, Some(1));
    /// assert_eq!(ships.get((7, "fram"))?, Some(2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert`](Self::insert).
    pub fn update(
        &self,
        key: impl AsKey<K>,
        mut change: impl FnMut(Option<&V>) -> Option<V>,
    ) -> Result<Option<V>> {
        self.transact(|tx| tx.update(&key, &mut change))
    }

    /// Sets `key` to `value`, and returns the old value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(ships.replace((7, "fram"), 1892)?, None);
    /// assert_eq!(ships.replace((7, "fram"), 1893)?, Some(1892));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert`](Self::insert). After [`Error::Decode`](sapwood::Error::Decode) the key has the new value.
    pub fn replace(&self, key: impl AsKey<K>, value: impl Borrow<V>) -> Result<Option<V>> {
        let (key, value) = (encode_key(key), record::bytes_of(&self.keyspace, value.borrow())?);
        record::found(&self.keyspace, &key, self.keyspace.replace(&key, value)?)
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
    /// assert_eq!((ships.take((7, "fram"))?, ships.take((7, "fram"))?), (Some(1892), None));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`remove`](Self::remove). What cannot be decoded stays.
    pub fn take(&self, key: impl AsKey<K>) -> Result<Option<V>> {
        self.transact(|tx| tx.take(&key))
    }

    /// Removes the record with the smallest key, and returns it: each record to one caller.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// assert_eq!(ships.pop_first()?, Some(((7, "fram".to_owned()), 1892)));
    /// assert_eq!(ships.pop_first()?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn pop_first(&self) -> Result<Found<K, V>> {
        self.transact(|tx| tx.pop_first())
    }

    /// Removes the record with the largest key, and returns it.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// assert!(ships.pop_last()?.is_some() && ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn pop_last(&self) -> Result<Found<K, V>> {
        self.transact(|tx| tx.pop_last())
    }

    /// Like [`insert`](Self::insert), for a record that expires as said, as
    /// [`Keyspace::insert_expiring`](sapwood::Keyspace::insert_expiring).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::{Expiry, KeyspaceOptions};
    /// use sapwood_typed::{DatabaseExt, Schema};
    /// use std::time::Duration;
    ///
    /// let schema = Schema::<u16, String>::new().options(KeyspaceOptions::new().expiring());
    /// let berths = db.typed_with("berths", schema)?;
    /// berths.insert_expiring(7, "fram".to_owned(), Expiry::After(Duration::from_secs(60)))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert); [`Error::NoExpiry`](sapwood::Error::NoExpiry).
    pub fn insert_expiring(&self, key: impl AsKey<K>, value: impl Borrow<V>, expiry: Expiry) -> Result<()> {
        let value = record::bytes_of(&self.keyspace, value.borrow())?;
        self.keyspace.insert_expiring(encode_key(key), value, expiry)
    }

    /// When the record of `key` expires, as [`Keyspace::expiry`](sapwood::Keyspace::expiry).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// assert_eq!(ships.expiry((7, "fram"))?, Some(sapwood::Expiry::Never));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::expiry`](sapwood::Keyspace::expiry).
    pub fn expiry(&self, key: impl AsKey<K>) -> Result<Option<Expiry>> {
        self.keyspace.expiry(encode_key(key))
    }

    /// Lets the record of `key` expire at another time, as [`Keyspace::set_expiry`](sapwood::Keyspace::set_expiry). Returns whether there is
    /// such a record.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::{Expiry, KeyspaceOptions};
    /// use sapwood_typed::{DatabaseExt, Schema};
    ///
    /// let schema = Schema::<u16, String>::new().options(KeyspaceOptions::new().expiring());
    /// let berths = db.typed_with("berths", schema)?;
    /// assert!(!berths.set_expiry(7, Expiry::Never)?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::set_expiry`](sapwood::Keyspace::set_expiry).
    pub fn set_expiry(&self, key: impl AsKey<K>, expiry: Expiry) -> Result<bool> {
        self.keyspace.set_expiry(encode_key(key), expiry)
    }
}
