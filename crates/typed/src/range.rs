//! Iteration over typed records.

use crate::key::TypedKey;
use crate::record;
use crate::value::TypedValue;
use sapwood::{Key, Keyspace, Range, Result, TransactionRange, Value};
use std::iter::FusedIterator;
use std::marker::PhantomData;

/// An iterator over records of types `K` and `V` in the order of keys, from both ends. Made by
/// [`TypedKeyspace::range`](crate::TypedKeyspace::range) and similar methods; `I` is the iterator over their bytes.
///
/// A record that cannot be decoded is one [`Error::Decode`](sapwood::Error::Decode), and the next call goes on with the next record. After
/// another error it is exhausted.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// for port in 0..10 {
///     ships.insert((port, "fram"), 1892)?;
/// }
/// let mut range = ships.range((2, "")..(8, ""));
/// let (first, last) = (range.next().expect("there are some")?, range.next_back().expect("there are some")?);
/// assert_eq!((first.0.0, last.0.0), (2, 7));
/// assert_eq!(range.count(), 4);
/// # Ok(()) }
/// ```
#[must_use = "iterators do nothing until they are used"]
pub struct TypedRange<K, V, I = Range> {
    keyspace: Keyspace,
    bytes: I,
    of: PhantomData<fn() -> (K, V)>,
}

impl<K, V, I> TypedRange<K, V, I> {
    pub(crate) fn new(keyspace: &Keyspace, bytes: I) -> Self {
        Self { keyspace: keyspace.clone(), bytes, of: PhantomData }
    }

    #[cfg(feature = "async")]
    pub(crate) fn into_parts(self) -> (Keyspace, I) {
        (self.keyspace, self.bytes)
    }
}

impl<K: TypedKey, V: TypedValue, I> TypedRange<K, V, I> {
    fn typed(&self, record: Result<(Key, Value)>) -> Result<(K, V)> {
        record::record_of(&self.keyspace, record?)
    }
}

impl<K: TypedKey, V> TypedRange<K, V> {
    /// Keys only, as [`Range::keys`]: values are neither decoded nor merged.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// let keys = ships.iter().keys().collect::<sapwood::Result<Vec<_>>>()?;
    /// assert_eq!(keys, [(7, "fram".to_owned())]);
    /// # Ok(()) }
    /// ```
    pub fn keys(self) -> impl DoubleEndedIterator<Item = Result<K>> {
        let keyspace = self.keyspace;
        self.bytes.keys().map(move |key| record::key_of(&keyspace, &key?))
    }
}

impl<K: TypedKey, V> TypedRange<K, V, TransactionRange> {
    /// Keys only: values are not decoded.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<u32, u16>("ships")?;
    /// ships.insert(7, 1892)?;
    /// let mut tx = db.transaction()?;
    /// let keys = tx.typed(&ships).iter().keys().collect::<sapwood::Result<Vec<_>>>()?;
    /// assert_eq!(keys, [7]);
    /// # Ok(()) }
    /// ```
    pub fn keys(self) -> impl DoubleEndedIterator<Item = Result<K>> {
        let keyspace = self.keyspace;
        self.bytes.map(move |record| record::key_of(&keyspace, &record?.0))
    }
}

impl<K: TypedKey, V: TypedValue, I: Iterator<Item = Result<(Key, Value)>>> Iterator for TypedRange<K, V, I> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.bytes.next()?;
        Some(self.typed(record))
    }
}

impl<K: TypedKey, V: TypedValue, I: DoubleEndedIterator<Item = Result<(Key, Value)>>> DoubleEndedIterator
    for TypedRange<K, V, I>
{
    fn next_back(&mut self) -> Option<Self::Item> {
        let record = self.bytes.next_back()?;
        Some(self.typed(record))
    }
}

impl<K: TypedKey, V: TypedValue, I: FusedIterator<Item = Result<(Key, Value)>>> FusedIterator
    for TypedRange<K, V, I>
{
}

/// A clone goes on where the iterator stands.
impl<K, V, I: Clone> Clone for TypedRange<K, V, I> {
    fn clone(&self) -> Self {
        Self { keyspace: self.keyspace.clone(), bytes: self.bytes.clone(), of: PhantomData }
    }
}

impl<K, V, I: std::fmt::Debug> std::fmt::Debug for TypedRange<K, V, I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedRange({:?}, {:?})", self.keyspace.name(), self.bytes)
    }
}
