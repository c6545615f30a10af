//! A keyspace: a named, ordered map from keys to values, with a tree of its own.

use crate::batch::{Batch, check_key};
use crate::database::Handle;
use crate::error::Result;
use crate::iter::Range;
use crate::operation::KeyspaceId;
use crate::snapshot::Snapshot;
use crate::value::{Key, Value};
use bytes::Bytes;
use std::ops::RangeBounds;
use std::sync::Arc;

/// A handle on one keyspace of a database; keeps the database open. Cheap to clone, and usable from any thread.
#[derive(Clone)]
pub struct Keyspace {
    handle: Arc<Handle>,
    id: KeyspaceId,
    name: Arc<str>,
}

impl Keyspace {
    pub(crate) fn new(handle: Arc<Handle>, id: KeyspaceId, name: Arc<str>) -> Self {
        Self { handle, id, name }
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn id(&self) -> KeyspaceId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.handle))
    }

    /// Sets `key` to `value`, durably ([`Durability::Immediate`](crate::Durability)). To write many, use a
    /// [`Batch`]: one sync for all of them.
    ///
    /// # Errors
    /// As [`Batch::commit`].
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = Batch::new(Arc::clone(&self.handle));
        batch.insert(self, key, value);
        batch.commit()
    }

    /// Removes `key` durably. Fine if it was not there.
    ///
    /// # Errors
    /// As [`Batch::commit`].
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = Batch::new(Arc::clone(&self.handle));
        batch.remove(self, key);
        batch.commit()
    }

    /// Adds records whose keys ascend and lie above all others of the keyspace, all of them at once: visible and durable when it
    /// returns, or not at all. They are written once and not to the log, so it is the fastest way to load what is sorted. Says how
    /// many they were.
    ///
    /// Flushes what was committed before. Commits that run at the same time count as later ones; those of so many changes that a
    /// flush is due wait for the end, so `records` must not wait for such a commit, nor flush. Memory: 100 to 300 bytes for each leaf of
    /// 4 KiB. At most 8 GiB of keys and values.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("squares.db"))?;
    /// let squares = db.keyspace("squares")?;
    /// let records = (0..100_000u32).map(|n| (n.to_be_bytes(), (u64::from(n) * u64::from(n)).to_le_bytes()));
    /// assert_eq!(squares.ingest(records)?, 100_000);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotSorted`](crate::Error::NotSorted), and as [`Batch::commit`]. Nothing was ingested then.
    pub fn ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let copy = Bytes::copy_from_slice;
        let records = records.into_iter().map(|(key, value)| (copy(key.as_ref()), copy(value.as_ref())));
        let last = || Ok(self.last()?.map(|(key, _)| Bytes::copy_from_slice(&key)));
        self.handle.engine.ingest(self.id, last, records)
    }

    /// The value of `key`. At most one read of the device when the inner nodes are in memory.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the device gave back something else than was written, I/O errors,
    /// and keys of impossible length.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let key = key.as_ref();
        check_key(key)?;
        self.handle.engine.get(self.id, key)
    }

    /// Whether `key` has a value.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(key).map(|value| value.is_some())
    }

    /// The values of many keys, in the order asked, all of one moment. The keys go down the tree together, and each
    /// level is read with parallel requests (MPSearch): on an SSD this is several times faster than one by one.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        self.snapshot().multi_get(self, keys)
    }

    /// The records with keys within `bounds`, in order, all of one moment; `.rev()` from the upper end.
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Range {
        self.snapshot().range(self, bounds)
    }

    /// The records whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.snapshot().prefix(self, prefix)
    }

    /// All records.
    pub fn iter(&self) -> Range {
        self.snapshot().iter(self)
    }

    /// The record with the smallest key.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first(&self) -> Result<Option<(Key, Value)>> {
        self.iter().next().transpose()
    }

    /// The record with the largest key.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last(&self) -> Result<Option<(Key, Value)>> {
        self.iter().next_back().transpose()
    }

    /// About how many records there are: exact after [`Database::compact`](crate::Database::compact), and off by no more than
    /// the number of changes that wait in operation queues and log areas.
    pub fn len_estimate(&self) -> u64 {
        self.handle.engine.len_estimate(self.id)
    }
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyspace({:?})", self.name)
    }
}
