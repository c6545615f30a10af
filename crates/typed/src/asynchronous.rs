//! Gets of typed keys for tasks.

use crate::key::{AsKey, TypedKey, encode_key};
use crate::keyspace::TypedKeyspace;
use crate::record;
use crate::value::TypedValue;
use sapwood::Result;
use std::future::Future;

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
