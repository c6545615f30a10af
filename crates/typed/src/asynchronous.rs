//! Gets of typed keys and streams of typed records, for tasks.

use crate::key::{AsKey, TypedKey, encode_key};
use crate::keyspace::TypedKeyspace;
use crate::range::TypedRange;
use crate::record;
use crate::transaction::TypedTransaction;
use crate::value::TypedValue;
use futures_core::Stream;
use sapwood::{Key, Keyspace, Range, RangeStream, Result, TransactionRange, Value};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

impl<K: TypedKey, V: TypedValue> TypedKeyspace<K, V> {
    /// As [`get`](Self::get), for a task: see [`Keyspace::get_async`](sapwood::Keyspace::get_async). Needs the feature `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// assert_eq!(futures_executor::block_on(ships.get_async((7, "fram")))?, Some(1892));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_async<A: AsKey<K>>(
        &self,
        key: A,
    ) -> impl Future<Output = Result<Option<V>>> + Send + 'static + use<K, V, A> {
        let (keyspace, key) = (self.keyspace().clone(), encode_key(key));
        async move { record::found(&keyspace, &key, keyspace.get_async(&key).await?) }
    }

    /// As [`multi_get`](Self::multi_get), for a task: see [`Keyspace::multi_get_async`](sapwood::Keyspace::multi_get_async). Needs the feature
    /// `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// let found = futures_executor::block_on(ships.multi_get_async([(7, "fram"), (8, "fram")]))?;
    /// assert_eq!(found, [Some(1892), None]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`multi_get`](Self::multi_get).
    pub fn multi_get_async<A: AsKey<K>, I: IntoIterator<Item = A>>(
        &self,
        keys: I,
    ) -> impl Future<Output = Result<Vec<Option<V>>>> + Send + 'static + use<K, V, A, I> {
        let keyspace = self.keyspace().clone();
        let keys: Vec<_> = keys.into_iter().map(encode_key).collect();
        async move { record::found_all(&keyspace, &keys, keyspace.multi_get_async(&keys).await?) }
    }
}

impl<K: TypedKey, V: TypedValue> TypedTransaction<'_, K, V> {
    /// As [`get`](Self::get), for a task: see [`Transaction::get_async`](sapwood::Transaction::get_async). Needs the feature `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let visit = db.transact_async({
    ///     let ships = ships.clone();
    ///     async move |tx| {
    ///         let masts = tx.typed(&ships).get_async((7, "fram")).await?.unwrap_or(0);
    ///         tx.typed(&ships).insert((7, "fram"), masts + 1)
    ///     }
    /// });
    /// futures_executor::block_on(visit)?;
    /// assert_eq!(ships.get((7, "fram"))?, Some(1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_async<A: AsKey<K>>(
        &self,
        key: A,
    ) -> impl Future<Output = Result<Option<V>>> + Send + 'static + use<K, V, A> {
        let (keyspace, key) = (self.plain().clone(), encode_key(key));
        let found = self.tx().get_async(&keyspace, &key);
        async move { record::found(&keyspace, &key, found.await?) }
    }

    /// As [`multi_get`](Self::multi_get), for a task: see [`Transaction::multi_get_async`](sapwood::Transaction::multi_get_async). Needs the
    /// feature `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.typed(&ships).insert((7, "fram"), 1892)?;
    /// let found = tx.typed(&ships).multi_get_async([(7, "fram"), (8, "fram")]);
    /// assert_eq!(futures_executor::block_on(found)?, [Some(1892), None]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`multi_get`](Self::multi_get).
    pub fn multi_get_async<A: AsKey<K>, I: IntoIterator<Item = A>>(
        &self,
        keys: I,
    ) -> impl Future<Output = Result<Vec<Option<V>>>> + Send + 'static + use<K, V, A, I> {
        let keyspace = self.plain().clone();
        let keys: Vec<_> = keys.into_iter().map(encode_key).collect();
        let found = self.tx().multi_get_async(&keyspace, &keys);
        async move { record::found_all(&keyspace, &keys, found.await?) }
    }
}

/// A stream of typed records in the order of keys. Made by [`TypedRange::into_stream`]. Needs the feature `async`. Errors are as those of the
/// range.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// use futures_util::TryStreamExt;
///
/// ships.insert((7, "fram"), 1892)?;
/// futures_executor::block_on(async {
///     let mut stream = ships.prefix((7,)).into_stream();
///     while let Some(((port, name), built)) = stream.try_next().await? {
///         assert_eq!((port, &name[..], built), (7, "fram", 1892));
///     }
///     sapwood::Result::Ok(())
/// })?;
/// # Ok(()) }
/// ```
#[must_use = "streams do nothing until they are polled"]
pub struct TypedStream<K, V, I = Range> {
    keyspace: Keyspace,
    bytes: RangeStream<I>,
    of: PhantomData<fn() -> (K, V)>,
}

impl<K, V> TypedRange<K, V> {
    /// The rest of the range as a stream, in ascending order: see [`Range::into_stream`]. Needs the feature `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// use futures_util::TryStreamExt;
    ///
    /// ships.insert((7, "fram"), 1892)?;
    /// let all: Vec<_> = futures_executor::block_on(ships.iter().into_stream().try_collect())?;
    /// assert_eq!(all, [((7, "fram".to_owned()), 1892)]);
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> TypedStream<K, V> {
        let (keyspace, bytes) = self.into_parts();
        TypedStream { keyspace, bytes: bytes.into_stream(), of: PhantomData }
    }
}

impl<K, V> TypedRange<K, V, TransactionRange> {
    /// The rest of the range as a stream, in ascending order: see [`TransactionRange::into_stream`]. Needs the feature `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood_typed::{BatchExt, DatabaseExt, SnapshotExt, TransactionExt};
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// use futures_util::TryStreamExt;
    ///
    /// let mut tx = db.transaction()?;
    /// tx.typed(&ships).insert((7, "fram"), 1892)?;
    /// let all: Vec<_> = futures_executor::block_on(tx.typed(&ships).iter().into_stream().try_collect())?;
    /// assert_eq!(all, [((7, "fram".to_owned()), 1892)]);
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> TypedStream<K, V, TransactionRange> {
        let (keyspace, bytes) = self.into_parts();
        TypedStream { keyspace, bytes: bytes.into_stream(), of: PhantomData }
    }
}

impl<K, V, I> Stream for TypedStream<K, V, I>
where
    K: TypedKey,
    V: TypedValue,
    I: Iterator<Item = Result<(Key, Value)>> + Send + 'static,
{
    type Item = Result<(K, V)>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = Pin::new(&mut self.bytes).poll_next(context);
        polled.map(|record| Some(record?.and_then(|record| record::record_of(&self.keyspace, record))))
    }
}

impl<K, V, I> std::fmt::Debug for TypedStream<K, V, I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedStream({:?})", self.keyspace.name())
    }
}
