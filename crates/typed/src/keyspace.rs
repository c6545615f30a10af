//! A keyspace with types, and the plain calls of a keyspace with them.

mod conditions;

use crate::bounds::TypedBounds;
use crate::key::{AsKey, AsPrefix, TypedKey, encode_key};
use crate::range::TypedRange;
use crate::record::{self, Found};
use crate::schema::Stored;
use crate::value::TypedValue;
use sapwood::{Database, Durability, Error, Keyspace, Result};
use std::borrow::Borrow;
use std::marker::PhantomData;

/// A keyspace whose keys are `K`, ordered as these are, and whose values are `V`. Opened by
/// [`DatabaseExt::typed`](crate::DatabaseExt::typed). Its calls are those of a [`Keyspace`], with types. Cloning is cheap, and
/// every thread may use a clone.
///
/// Keys are taken as anything that stands for one ([`AsKey`]), values by value or by reference. An error of a call is one of the plain call,
/// or [`Error::Decode`] if a record that it returns is not of these types.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// ships.insert((7, "fram"), 1892)?;
/// assert_eq!(ships.get((7, "fram"))?, Some(1892));
/// # Ok(()) }
/// ```
pub struct TypedKeyspace<K, V> {
    db: Database,
    keyspace: Keyspace,
    of: PhantomData<fn() -> (K, V)>,
}

impl<K: TypedKey, V: TypedValue> TypedKeyspace<K, V> {
    pub(crate) fn new(db: Database, keyspace: Keyspace) -> Self {
        Self { db, keyspace, of: PhantomData }
    }

    /// The keyspace without its types, for bytes and for calls that are not here. What is written to it must be of these types:
    /// [`encode_key`], [`TypedValue::encode_value`]. [`Keyspace::set_metadata`] would remove the schema:
    /// see [`set_metadata`](Self::set_metadata).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// let (key, _) = ships.keyspace().first()?.expect("there is one");
    /// assert_eq!(key, b"\0\0\0\x07fram\0");
    /// # Ok(()) }
    /// ```
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// The keyspace's name.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// # let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(ships.name(), "ships");
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        self.keyspace.name()
    }

    /// The version of its schema; 0 if it has none, since it was empty in a database that was opened read-only.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// # let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(ships.version()?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::metadata`].
    pub fn version(&self) -> Result<u32> {
        Ok(self.stored()?.0.map_or(0, |schema| schema.version))
    }

    /// The schema that is stored, and what the user has set.
    fn stored(&self) -> Result<(Option<Stored>, Vec<u8>)> {
        let metadata = self.keyspace.metadata()?;
        let (schema, rest) = Stored::decode(&metadata).map_err(|found| Error::Schema {
            keyspace: self.name().into(),
            found,
            expected: "a schema".into(),
        })?;
        Ok((schema, rest.to_vec()))
    }

    /// What [`set_metadata`](Self::set_metadata) has set, without the schema; empty if nothing was.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// # let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert!(ships.metadata()?.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::metadata`].
    pub fn metadata(&self) -> Result<Vec<u8>> {
        self.stored().map(|(_, rest)| rest)
    }

    /// Keeps some bytes with the keyspace, durably, beside its schema: 4096 bytes, less 17 and the descriptions of its types (2048 at most).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// # let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.set_metadata("from the register of 1931")?;
    /// assert_eq!(ships.metadata()?, b"from the register of 1931");
    /// assert_eq!(ships.version()?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::set_metadata`].
    pub fn set_metadata(&self, metadata: impl AsRef<[u8]>) -> Result<()> {
        let metadata = metadata.as_ref();
        match self.stored()?.0 {
            Some(schema) => self.keyspace.set_metadata(schema.encode(metadata)?),
            None => self.keyspace.set_metadata(metadata),
        }
    }

    /// A handle whose single changes are so durable when they return, as [`Keyspace::with_durability`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// # let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let relaxed = ships.with_durability(sapwood::Durability::Buffered);
    /// relaxed.insert((7, "fram"), 1892)?; // does not wait for the device
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Self {
        Self::new(self.db.clone(), self.keyspace.with_durability(durability))
    }

    /// Sets `key` to `value`, as [`Keyspace::insert`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// ships.insert(&(8, String::from("beagle")), &1820)?; // borrowed
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::insert`]; [`Error::Encode`].
    pub fn insert(&self, key: impl AsKey<K>, value: impl Borrow<V>) -> Result<()> {
        self.keyspace.insert(encode_key(key), record::bytes_of(&self.keyspace, value.borrow())?)
    }

    /// Removes `key`, as [`Keyspace::remove`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// ships.remove((7, "fram"))?;
    /// assert!(!ships.contains((7, "fram"))?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::remove`].
    pub fn remove(&self, key: impl AsKey<K>) -> Result<()> {
        self.keyspace.remove(encode_key(key))
    }

    /// Bulk-loads records whose keys ascend, all behind those that are there, as [`Keyspace::ingest`]. Returns their number.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(ships.ingest((0..1000).map(|port| ((port, "fram"), 1892)))?, 1000);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::ingest`]; [`Error::Encode`]. After an error, nothing has been ingested.
    pub fn ingest<A: AsKey<K>, B: Borrow<V>>(
        &self,
        records: impl IntoIterator<Item = (A, B)>,
    ) -> Result<u64> {
        let mut refused = None;
        let ingested = self.keyspace.ingest(records.into_iter().map(|(key, value)| {
            match record::bytes_of(&self.keyspace, value.borrow()) {
                Ok(value) => (encode_key(key), value),
                Err(error) => {
                    refused = refused.take().or(Some(error));
                    // A key that is refused, and all others with it.
                    (Vec::new(), Vec::new())
                }
            }
        }));
        refused.map_or(ingested, Err)
    }

    /// The value of `key`, as [`Keyspace::get`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(ships.get((7, "fram"))?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`Error::Decode`].
    pub fn get(&self, key: impl AsKey<K>) -> Result<Option<V>> {
        let key = encode_key(key);
        record::found(&self.keyspace, &key, self.keyspace.get(&key)?)
    }

    /// Whether `key` has a value, of whatever type.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert!(!ships.contains((7, "fram"))?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::contains`].
    pub fn contains(&self, key: impl AsKey<K>) -> Result<bool> {
        self.keyspace.contains(encode_key(key))
    }

    /// The values of many keys, in their order, read together as by [`Keyspace::multi_get`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// assert_eq!(ships.multi_get([(8, "fram"), (7, "fram")])?, [None, Some(1892)]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn multi_get<A: AsKey<K>>(&self, keys: impl IntoIterator<Item = A>) -> Result<Vec<Option<V>>> {
        let keys: Vec<_> = keys.into_iter().map(encode_key).collect();
        record::found_all(&self.keyspace, &keys, self.keyspace.multi_get(&keys)?)
    }

    /// The records whose keys lie within `bounds`, in the order of keys, as [`Keyspace::range`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// ships.insert((8, "beagle"), 1820)?;
    /// assert_eq!(ships.range((7, "g")..).next().transpose()?, Some(((8, "beagle".into()), 1820)));
    /// # Ok(()) }
    /// ```
    pub fn range(&self, bounds: impl TypedBounds<K>) -> TypedRange<K, V> {
        TypedRange::new(&self.keyspace, self.keyspace.range(bounds.encode_bounds()))
    }

    /// The records whose keys begin so, in the order of keys: with the first parts of a tuple, with the start of a string ([`AsPrefix`]).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// ships.insert((8, "fram"), 1910)?;
    /// assert_eq!(ships.prefix((7,)).count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn prefix(&self, prefix: impl AsPrefix<K::Parts>) -> TypedRange<K, V> {
        TypedRange::new(&self.keyspace, self.keyspace.prefix(encode_prefix(prefix)))
    }

    /// The records of many ranges as of one moment, whose first reads go to the device together, as [`Keyspace::multi_range`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// ships.insert((9, "maud"), 1917)?;
    /// let counts = ships.multi_range([(7, "a")..(7, "z"), (9, "a")..(9, "z")]).into_iter().map(Iterator::count);
    /// assert_eq!(counts.collect::<Vec<_>>(), [1, 1]);
    /// # Ok(()) }
    /// ```
    pub fn multi_range<B: TypedBounds<K>>(
        &self,
        ranges: impl IntoIterator<Item = B>,
    ) -> Vec<TypedRange<K, V>> {
        let ranges = self.keyspace.multi_range(ranges.into_iter().map(|range| range.encode_bounds()));
        ranges.into_iter().map(|range| TypedRange::new(&self.keyspace, range)).collect()
    }

    /// The records whose keys begin with one of many prefixes, one iterator for each, as [`Keyspace::multi_prefix`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// ships.insert((9, "maud"), 1917)?;
    /// let of_ports = ships.multi_prefix([(7,), (8,), (9,)]);
    /// assert_eq!(of_ports.into_iter().map(Iterator::count).collect::<Vec<_>>(), [1, 0, 1]);
    /// # Ok(()) }
    /// ```
    pub fn multi_prefix<P: AsPrefix<K::Parts>>(
        &self,
        prefixes: impl IntoIterator<Item = P>,
    ) -> Vec<TypedRange<K, V>> {
        let ranges = self.keyspace.multi_prefix(prefixes.into_iter().map(encode_prefix));
        ranges.into_iter().map(|range| TypedRange::new(&self.keyspace, range)).collect()
    }

    /// All records, in the order of keys, as [`Keyspace::iter`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// for item in ships.iter().rev() {
    ///     let ((port, name), built) = item?;
    ///     println!("{name} of {built}, at {port}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn iter(&self) -> TypedRange<K, V> {
        TypedRange::new(&self.keyspace, self.keyspace.iter())
    }

    /// The record with the smallest key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert_eq!(ships.first()?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn first(&self) -> Result<Found<K, V>> {
        record::found_record(&self.keyspace, self.keyspace.first()?)
    }

    /// The record with the largest key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// assert_eq!(ships.last()?, Some(((7, "fram".to_owned()), 1892)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn last(&self) -> Result<Found<K, V>> {
        record::found_record(&self.keyspace, self.keyspace.last()?)
    }

    /// Whether there is no record.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::is_empty`].
    pub fn is_empty(&self) -> Result<bool> {
        self.keyspace.is_empty()
    }

    /// The number of records whose keys lie within `bounds`, as [`Keyspace::count`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// assert_eq!((ships.count(..)?, ships.count((8, "")..)?), (1, 0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::count`].
    pub fn count(&self, bounds: impl TypedBounds<K>) -> Result<u64> {
        self.keyspace.count(bounds.encode_bounds())
    }

    /// Removes all records whose keys lie within `bounds`, as [`Keyspace::remove_range`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// ships.remove_range(..(8, ""))?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::remove_range`].
    pub fn remove_range(&self, bounds: impl TypedBounds<K>) -> Result<()> {
        self.keyspace.remove_range(bounds.encode_bounds())
    }

    /// Removes all records whose keys begin so, as [`Keyspace::remove_prefix`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// ships.remove_prefix((7,))?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::remove_prefix`].
    pub fn remove_prefix(&self, prefix: impl AsPrefix<K::Parts>) -> Result<()> {
        self.keyspace.remove_prefix(encode_prefix(prefix))
    }

    /// Removes all records. The schema stays.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// ships.clear()?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::clear`].
    pub fn clear(&self) -> Result<()> {
        self.keyspace.clear()
    }
}

/// The bytes that keys begin with.
pub(crate) fn encode_prefix<K>(prefix: impl AsPrefix<K>) -> Vec<u8> {
    let mut bytes = Vec::new();
    prefix.encode_prefix(&mut bytes);
    bytes
}

/// All records, as [`TypedKeyspace::iter`].
impl<K: TypedKey, V: TypedValue> IntoIterator for &TypedKeyspace<K, V> {
    type Item = Result<(K, V)>;
    type IntoIter = TypedRange<K, V>;

    fn into_iter(self) -> TypedRange<K, V> {
        self.iter()
    }
}

impl<K, V> Clone for TypedKeyspace<K, V> {
    fn clone(&self) -> Self {
        Self { db: self.db.clone(), keyspace: self.keyspace.clone(), of: PhantomData }
    }
}

impl<K, V> std::fmt::Debug for TypedKeyspace<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedKeyspace({:?})", self.keyspace.name())
    }
}
