//! A keyspace: a named, ordered map from keys to values, with a tree of its own.

use crate::db::batch::{Batch, check_key, check_stored_value};
use crate::db::explain::Explanation;
use crate::db::handle::Handle;
use crate::db::key_bounds::KeyBounds;
use crate::db::len_estimate::{RangeEstimate, len_estimate, range_estimate};
use crate::db::range_removals::range_between;
use crate::db::snapshot::Snapshot;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::expiry::StoredValues;
use crate::iter::Range;
use crate::latency::Timed;
use crate::merging::{UNKNOWN, failed};
use crate::operation::{KeyRange, KeyspaceId};
use crate::value::{Key, Value};
use crate::version::Version;
use bytes::Bytes;
use std::sync::Arc;

/// A handle to one keyspace. It keeps the database open. Cloning is cheap, and every thread may use a clone.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let ships = db.keyspace("ships")?;
/// let of_thread = ships.clone();
/// std::thread::spawn(move || of_thread.insert("fram", "1892")).join().expect("it ends")?;
/// assert!(ships.contains("fram")?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Keyspace {
    handle: Arc<Handle>,
    id: KeyspaceId,
    name: Arc<str>,
    durability: Durability,
    values: StoredValues,
}

impl Keyspace {
    /// A handle of a keyspace that the version has. How its records are stored is known of that alone: a handle of a keyspace that was
    /// dropped meanwhile would take expiring records for plain ones, where a snapshot still has them.
    pub(super) fn in_version(handle: Arc<Handle>, version: &Version, id: KeyspaceId, name: Arc<str>) -> Self {
        let engine = &handle.engine;
        let tree = version.trees.get(&id);
        let durability = tree.and_then(|tree| tree.durability).unwrap_or(handle.durability);
        let may_expire = tree.is_some_and(|tree| tree.ttl.is_some());
        let values = StoredValues::new(may_expire, &engine.clock, version.merging(id));
        Self { handle, id, name, durability, values }
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn id(&self) -> KeyspaceId {
        self.id
    }

    /// The keyspace's name.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// assert_eq!(ships.name(), "ships");
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number, which no other keyspace of this database ever has: that of [`FeedKeyspace::id`](crate::FeedKeyspace::id).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let ships = db.keyspace("ships")?;
    /// db.rename_keyspace("ships", "boats")?;
    /// assert_eq!(db.keyspace("boats")?.number(), ships.number());
    /// # Ok(()) }
    /// ```
    pub fn number(&self) -> u32 {
        self.id.0
    }

    /// How its values are stored.
    pub(crate) fn values(&self) -> &StoredValues {
        &self.values
    }

    /// The error with the name that this handle has, if it is that the keyspace was dropped.
    pub(super) fn named(&self, error: Error) -> Error {
        match error {
            Error::KeyspaceDropped { .. } => Error::KeyspaceDropped { name: self.name.to_string() },
            other => other,
        }
    }

    /// Returns an error if the keyspace was dropped.
    pub(super) fn check_there(&self) -> Result<()> {
        self.check_in(&self.handle.engine.state.load().version)
    }

    /// The same, where the version is one that more is asked of.
    pub(super) fn check_in(&self, version: &Version) -> Result<()> {
        version.check_there(self.id).map_err(|error| self.named(error))
    }

    /// A handle to the same keyspace whose single changes ([`insert`](Self::insert), [`remove`](Self::remove),
    /// [`update`](Self::update) and others) are so durable when they return. Handles begin with the durability that is stored with
    /// the keyspace ([`KeyspaceOptions::durability`](crate::KeyspaceOptions::durability)), or else with the database's
    /// ([`Builder::durability`](crate::Builder::durability)). This one is stored nowhere, and batches and transactions have one of
    /// their own.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("sessions.db"))?;
    /// use sapwood::Durability;
    ///
    /// let sessions = db.keyspace("sessions")?.with_durability(Durability::Buffered);
    /// sessions.insert("4711", "last seen today")?; // does not wait for the device
    /// sessions.with_durability(Durability::Immediate).insert("4712", "paid")?; // this one does
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Self {
        Self { durability, ..self.clone() }
    }

    /// The durability of single changes by this handle.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// assert_eq!(db.keyspace("ships")?.durability(), sapwood::Durability::Immediate);
    /// # Ok(()) }
    /// ```
    pub fn durability(&self) -> Durability {
        self.durability
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.handle))
    }

    /// Sets `key` to `value`, durably unless [told otherwise](Self::with_durability). To write many records,
    /// use a [`Batch`]: it needs only one sync.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// ships.insert([0x66, 0xff], vec![0; 1000])?; // any bytes
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Batch::commit`].
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = Batch::new(Arc::clone(&self.handle), self.durability);
        batch.insert(self, key, value);
        batch.commit().map_err(|error| self.named(error))
    }

    /// Removes `key`, durably unless [told otherwise](Self::with_durability). Succeeds if the key does not exist.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// ships.remove("fram")?;
    /// assert!(ships.get("fram")?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Batch::commit`].
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let mut batch = Batch::new(Arc::clone(&self.handle), self.durability);
        batch.remove(self, key);
        batch.commit().map_err(|error| self.named(error))
    }

    /// Bulk-loads sorted records. Keys must ascend, and all of them must be greater than every key in the
    /// keyspace. Returns the number of records.
    ///
    /// The load is atomic: when this returns, all records are visible and durable; on an error, none are.
    /// Records are written once and bypass the log, so this is the fastest way to load sorted data.
    ///
    /// It first flushes earlier commits. Commits that run meanwhile count as later ones. A commit that fills
    /// the operation queue, so that a flush is due, waits until the load ends; so `records` must neither wait
    /// for such a commit nor flush, and must not commit beside [`Database::transact`](crate::Database::transact), whose turn it would wait for while that
    /// may have to flush. Takes 100 to 300 bytes of memory per 4 KiB leaf. The limit is 8 GiB of keys
    /// and values, and 2.7 million leaves, which is looked at when all are written.
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
    /// [`Error::NotSorted`](crate::Error::NotSorted), also if other threads go on removing the last records, and as [`Batch::commit`]; but values may
    /// be as long as with any memory budget ([limits](crate#limits)). After an error, nothing has been ingested.
    pub fn ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        self.try_ingest(records.into_iter().map(Ok))
    }

    /// Bulk-loads the records that an iterator of a keyspace returns, as [`ingest`](Self::ingest): also those which cannot be merged. An
    /// [`Error::MergeFailed`] is such a record: where values are merged, it becomes one here as well, until it is inserted anew or
    /// removed, and counts as a record. If it fails only because its database was opened [to be read only](crate::Builder::read_only) without its
    /// operator, the record is sound, and the error ends the call. So does any other error, which says nothing of this database.
    ///
    /// Times of expiry are not copied: records get this keyspace's. The longest values are 6 to 16 bytes shorter where values are merged or expire.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("pages.db"))?;
    /// use sapwood::{Error, KeyspaceOptions, merge};
    ///
    /// let counts = KeyspaceOptions::new().merge(merge::AddU64);
    /// let (hits, copy) = (db.keyspace_with("hits", counts.clone())?, db.keyspace_with("copy", counts)?);
    /// hits.merge("index.html", 1u64.to_be_bytes())?;
    /// hits.insert("about.html", "no number")?;
    /// hits.merge("about.html", 1u64.to_be_bytes())?;
    /// assert_eq!(copy.try_ingest(hits.iter())?, 2);
    /// assert_eq!(copy.get("index.html")?.as_deref(), Some(&1u64.to_be_bytes()[..]));
    /// assert!(matches!(copy.get("about.html"), Err(Error::MergeFailed { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`ingest`](Self::ingest), and those of the iterator. After an error, nothing has been ingested.
    pub fn try_ingest<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = Result<(K, V)>>,
    ) -> Result<u64> {
        let copy = Bytes::copy_from_slice;
        let merges = self.values.merging().is_some();
        // Each lives as long from when it is taken: there may be gigabytes of them, from a slow source.
        let record = |record: Result<(K, V)>| match record {
            Ok((key, value)) => {
                check_stored_value(self, value.as_ref())?;
                let value = self.values.stored(self.default_stamp(), value.as_ref());
                Ok((copy(key.as_ref()), copy(&value)))
            }
            Err(Error::MergeFailed { key, reason, .. }) if merges && reason != UNKNOWN => {
                Ok((copy(&key), failed(0, &reason).into()))
            }
            Err(error) => Err(error),
        };
        let records = records.into_iter().map(record);
        // Of the key alone: the record may be one that cannot be merged.
        let last = || {
            let last = self.iter().of_keys().next_back().transpose()?;
            Ok(last.map(|(key, _)| Bytes::copy_from_slice(&key)))
        };
        // An error within is the iterator's, which may be of another keyspace, or of another database.
        self.handle.engine.ingest(self.id, last, records).map_err(|error| self.named(error))?
    }

    /// Returns the value of `key`. Needs one read from the device at most if the inner nodes are cached; now and then
    /// another one, where a log piece was taken to have the key and has not.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert_eq!(ships.get("fram")?.as_deref(), Some(&b"1892"[..]));
    /// assert!(ships.get("titanic")?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the device returned other data than was written; I/O
    /// errors; [`Error::KeyEmpty`](crate::Error::KeyEmpty) and [`Error::KeyTooLong`](crate::Error::KeyTooLong).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let key = key.as_ref();
        self.values.read_found(key, self.get_stored(key)?)
    }

    /// The value as it is stored.
    #[inline]
    pub(super) fn get_stored(&self, key: &[u8]) -> Result<Option<Value>> {
        check_key(key)?;
        self.handle.engine.health.check_process()?;
        let engine = &self.handle.engine;
        let found = engine.pager.latencies.timed(Timed::Get, || engine.state.get(self.id, key));
        found.map_err(|error| self.named(error))
    }

    /// What a get of `key` looks at, and what it reads from the device for that: which queue, which block, log pieces and leaf has
    /// the key. For people and tests who ask why a get is slow; it takes about twice as long as a get.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// println!("{}", ships.explain("fram")?);
    /// //  1  active queue of 1 changes, in memory: a value of 4 bytes
    /// // found: a value of 4 bytes; read from the device: 0 requests, 0 bytes
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        self.handle.engine.health.check_process()?;
        self.check_there()?;
        Explanation::of(&self.handle.engine, self, key.as_ref()).map_err(|error| self.named(error))
    }

    /// Whether `key` has a value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert!(ships.contains("fram")? && !ships.contains("titanic")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(key).map(|value| value.is_some())
    }

    /// Returns the values of many keys, in the order of `keys`, all as of the same moment.
    ///
    /// The keys descend the tree together, and each level is read with parallel requests (MPSearch). On an SSD
    /// this is several times faster than one `get` per key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("beagle", "1820")?;
    /// ships.insert("fram", "1892")?;
    /// let found = ships.multi_get(["fram", "titanic", "beagle"])?;
    /// let found: Vec<_> = found.iter().map(|value| value.as_deref()).collect();
    /// assert_eq!(found, [Some(&b"1892"[..]), None, Some(&b"1820"[..])]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        self.snapshot().multi_get(self, keys)
    }

    /// The records whose keys lie within `bounds`, in key order, all as of the same moment. Use `.rev()` for
    /// descending order. Bounds between which no key lies, as `"b".."a"`, are those of no record.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// for name in ["beagle", "cutty sark", "fram"] {
    ///     ships.insert(name, "afloat")?;
    /// }
    /// let upward: Vec<_> = ships.range("c"..).collect::<sapwood::Result<_>>()?;
    /// assert!(upward[0].0 == "cutty sark" && upward[1].0 == "fram");
    /// let (last, _) = ships.range(.."f").rev().next().expect("there are some")?;
    /// assert!(last == "cutty sark");
    /// # Ok(()) }
    /// ```
    pub fn range(&self, bounds: impl KeyBounds) -> Range {
        self.snapshot().range(self, bounds)
    }

    /// The records whose keys start with `prefix`, in key order. An empty prefix is that of all records.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// for name in ["fram", "france", "gorch fock"] {
    ///     ships.insert(name, "afloat")?;
    /// }
    /// assert_eq!(ships.prefix("fra").count(), 2);
    /// # Ok(()) }
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.snapshot().prefix(self, prefix)
    }

    /// All records, in key order, as they are now. The iterator keeps the database open, and what it sees of the keyspace if that is
    /// dropped meanwhile; after [`Database::close`](crate::Database::close) it returns [`Error::Closed`] as soon as it has to read.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// for item in ships.iter() {
    ///     let (name, year) = item?; // an error of the device comes here
    ///     println!("{name:?} {year:?}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn iter(&self) -> Range {
        self.snapshot().iter(self)
    }

    /// The record with the smallest key, or `None` if the keyspace is empty.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// assert!(ships.first()?.is_none());
    /// ships.insert("fram", "1892")?;
    /// ships.insert("beagle", "1820")?;
    /// let (name, year) = ships.first()?.expect("there are some");
    /// assert!(name == "beagle" && year == "1820");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first(&self) -> Result<Option<(Key, Value)>> {
        self.iter().next().transpose()
    }

    /// The record with the largest key, or `None` if the keyspace is empty.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// ships.insert("beagle", "1820")?;
    /// let (name, _) = ships.last()?.expect("there are some");
    /// assert!(name == "fram");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last(&self) -> Result<Option<(Key, Value)>> {
        self.iter().next_back().transpose()
    }

    /// Whether the keyspace has no record.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn is_empty(&self) -> Result<bool> {
        // A record that cannot be merged is one.
        Ok(self.iter().of_keys().next().transpose()?.is_none())
    }

    /// The approximate number of records. Exact after [`Database::compact`](crate::Database::compact), and while no
    /// more than some hundred changes wait in memory and in log areas; but an estimate, by bytes, after a range was removed whose
    /// leaves had not to be read ([`Keyspace::remove_range`]), until no record is left.
    ///
    /// Otherwise a sample of the waiting changes is looked up, with a few hundred reads that go to the device together,
    /// to find how many of them insert or remove a record; so it takes as long as a
    /// [`Keyspace::multi_get`] of some hundred keys, and for each log area of the database a moment. The error is a few percent of the waiting
    /// changes. The log areas that are looked into are some of all keyspaces': beside keyspaces in which much more waits it is a few percent of
    /// what waits there too.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// ships.insert("fram", "1893")?;
    /// assert_eq!(ships.len_estimate(), 1);
    /// # Ok(()) }
    /// ```
    pub fn len_estimate(&self) -> u64 {
        let engine = &self.handle.engine;
        let state = engine.state.load();
        len_estimate(&engine.pager, &state, self.id).unwrap_or_else(|error| {
            let path = engine.health.path();
            tracing::warn!(%error, path, "records were counted without changes on their way to the leaves");
            state.version.trees.get(&self.id).map_or(0, |tree| tree.len)
        })
    }
}

impl Keyspace {
    /// The approximate number of records whose keys lie within `bounds`, and their bytes. Reads inner nodes, at most 66
    /// leaves, and a sample of the changes that wait in memory and in log areas as [`Keyspace::len_estimate`]; so it takes little longer
    /// for a billion records than for a thousand.
    ///
    /// The error is mostly below 5 percent of the range, and a few percent of the changes that wait in the database: all counts that wait in memory
    /// for a range of a few. [`Keyspace::count`] is exact.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("beagle", "1820")?;
    /// ships.insert("fram", "1892")?;
    /// assert_eq!(ships.range_estimate("c"..)?.records, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn range_estimate(&self, bounds: impl KeyBounds) -> Result<RangeEstimate> {
        let engine = &self.handle.engine;
        engine.health.check_process()?;
        let state = engine.state.load_full();
        self.check_in(&state.version)?;
        let Some((from, to)) = range_between(bounds.start(), bounds.end())? else {
            return Ok(RangeEstimate { records: 0, bytes: 0 });
        };
        let range = KeyRange { keyspace: self.id, from: &from, to: to.as_deref() };
        range_estimate(&engine.pager, &state, range)
    }
}

/// All records, as [`Keyspace::iter`].
impl IntoIterator for &Keyspace {
    type Item = Result<(Key, Value)>;
    type IntoIter = Range;

    fn into_iter(self) -> Range {
        self.iter()
    }
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyspace({:?})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, Result};
    use psync::Simulated;
    use std::sync::Arc;

    /// Users may keep values for as long as they like: neither the nodes of short ones nor the buffers
    /// that these nodes were read into are kept with them, however they were found.
    #[test]
    fn values_that_users_keep_hold_no_nodes_and_no_buffers() -> Result<()> {
        let db =
            Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::new(Simulated::new(1)))?;
        let keyspace = db.keyspace("main")?;
        let (count, key) = (200_000_u32, |number: u32| number.to_be_bytes());
        keyspace.ingest((0..count).map(|number| (key(number), [1; 100])))?;
        let mut batch = db.batch();
        (0..count).step_by(64).for_each(|number| _ = batch.insert(&keyspace, key(number), [2; 100]));
        batch.commit()?;
        db.flush()?;
        assert!(db.stats().space.log_pieces > 0, "some are to be in log pieces");

        let pager = &db.handle.engine.pager;
        let wanted: Vec<_> = (0..count).step_by(32).map(key).collect();
        let mut kept = wanted.iter().map(|key| keyspace.get(key)).collect::<Result<Vec<_>>>()?;
        for keys in wanted.chunks(64) {
            kept.extend(keyspace.multi_get(keys)?);
        }
        assert!(kept.iter().all(Option::is_some));
        let (used, _) = pager.reader.frames().pages();
        let (nodes, _) = pager.cache.bytes();
        assert!(used as u64 * 4096 <= nodes + (1 << 20), "{used} pages are in use, {nodes} bytes cached");
        let (idle, idle_max) = (pager.reader.buffers().idle_bytes() as u64, pager.reader.buffers_max());
        assert!(idle > idle_max / 2, "{idle} bytes of buffers came back, {idle_max} may be idle");
        Ok(())
    }
}
