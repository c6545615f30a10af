//! Transactions: a snapshot, what was written since, and what was read. [`crate::commit`] validates what was read against the
//! [history](crate::conflict::history) of commits.
//!
//! Invariants:
//! 1. A transaction reads its snapshot, and over it what it has written itself.
//! 2. Whatever it read of the snapshot is in its read set before the caller has it.
//! 3. Nothing of it is seen before it is committed, nor if it is not.

#[cfg(feature = "async")]
mod asynchronous;
mod commit;
pub(crate) mod range;
pub(crate) mod retry;
mod savepoints;
#[cfg(test)]
mod tests;
pub(crate) mod writes;

use crate::conflict::read_set::ReadSet;
use crate::db::batch::{check_key, check_value};
use crate::db::handle::Handle;
use crate::db::key_bounds::KeyBounds;
use crate::db::keyspace::Keyspace;
use crate::db::large_values::in_transactions::Staged;
use crate::db::merging::{has_operands, needs_beneath};
use crate::db::range_removals::range_between;
use crate::db::snapshot::{Snapshot, bounds_of_prefix};
use crate::db::transaction::range::{TransactionRange, TransactionView};
use crate::db::transaction::writes::{Writes, WritesMax};
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::expiry::Stamp;
use crate::lock_order::{RankedMutex, rank};
use crate::operation::{KeyRange, SeqNo};
use crate::value::{Key, Value};
use bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;

/// The memory of a transaction's writes, with what savepoints keep, as a multiple of the size of a batch: small records take
/// more memory than they take bytes in the log.
const WRITES_MEMORY: usize = 2;

/// The part of the size of a batch (a fourth) that a transaction's read set may take before it is made coarser.
const READS_SHARE: usize = 4;

/// A read-write transaction over all keyspaces. Made by [`Database::transaction`](crate::Database::transaction).
///
/// It is *optimistic* and *serializable*. It locks nothing and waits for no other: it reads the database as of the moment at
/// which it began, and its own writes. [`commit`](Self::commit) returns [`Error::Conflict`] if any other
/// commit, be it a transaction, a batch or a single change, has since changed what it read: a key, a key that it found absent, or
/// anything in a range as far as it went through it. What it only wrote conflicts with nothing. So transactions that were
/// committed have the effect that they would have had one after the other.
///
/// A transaction without writes is a snapshot: its commit does nothing and does not fail.
///
/// Long transactions conflict easily, and hold what a [`Snapshot`] holds. [`Database::transact`](crate::Database::transact) repeats
/// a transaction until it is committed. Dropping a transaction forgets its writes.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use sapwood::Error;
///
/// let mut tx = db.transaction()?;
/// if tx.get(&ships, "fram")?.is_none() {
///     tx.insert(&ships, "fram", "1892")?;
/// }
/// ships.insert("fram", "another one")?; // meanwhile, by another thread
/// assert!(matches!(tx.commit(), Err(Error::Conflict { key, .. }) if key == "fram"));
/// # Ok(()) }
/// ```
#[must_use = "a transaction does nothing until it is committed"]
pub struct Transaction {
    snapshot: Snapshot,
    open: Open,
    writes: Writes,
    reads: Arc<RankedMutex<rank::ReadSet, ReadSet>>,
    durability: Durability,
    pub(super) staged: Staged,
    /// See [`Transaction::take_refused`].
    refused: Option<Error>,
}

/// What a transaction knows of many keys by itself.
struct Parts {
    /// The value of each, if it is known.
    values: Vec<Option<Option<Value>>>,
    /// The indexes of those that it has not written.
    others: Vec<usize>,
    /// Operands that it has written, maybe behind a value, and the indexes of their keys.
    operands: Vec<(usize, Bytes)>,
}

impl Parts {
    #[cfg(feature = "async")]
    fn is_whole(&self) -> bool {
        self.others.is_empty() && self.operands.is_empty()
    }

    /// Reads what is not known.
    fn complete<K: AsRef<[u8]>>(
        self,
        snapshot: &Snapshot,
        keyspace: &Keyspace,
        keys: &[K],
    ) -> Result<Vec<Option<Value>>> {
        let mut values = self.values;
        let found = snapshot.multi_get(keyspace, self.others.iter().map(|index| &keys[*index]))?;
        for (index, value) in self.others.into_iter().zip(found) {
            values[index] = Some(value);
        }
        for (index, operands) in self.operands {
            let key = keys[index].as_ref();
            let beneath = || snapshot.get_stored(keyspace, key);
            let laid = Transaction::laid_over(keyspace, &operands, beneath)?.map(Value::from);
            values[index] = Some(keyspace.values().read_found(key, laid)?);
        }
        Ok(values.into_iter().map(Option::flatten).collect())
    }
}

/// Keeps the history of commits since this number, until it is dropped.
struct Open {
    handle: Arc<Handle>,
    seq: SeqNo,
}

impl Drop for Open {
    fn drop(&mut self) {
        let engine = &self.handle.engine;
        // A thread that a forked child has not may have had the history locked.
        if !engine.health.is_forked() {
            engine.commits.history.end(self.seq);
        }
    }
}

impl Transaction {
    pub(crate) fn begin(handle: &Arc<Handle>) -> Result<Self> {
        let engine = &handle.engine;
        engine.health.check_process()?;
        if engine.health.is_closed() {
            return Err(Error::Closed);
        }
        let (state, seq) = engine.commits.begin_transaction()?;
        let open = Open { handle: Arc::clone(handle), seq };
        let batch = engine.shares.batch;
        let reads = ReadSet::new(batch / READS_SHARE);
        #[cfg(test)]
        let reads = reads.ignoring_ranges(
            engine.commits.history.ignores_ranges.load(std::sync::atomic::Ordering::Relaxed),
        );
        Ok(Self {
            snapshot: Snapshot::of(Arc::clone(handle), state, seq),
            open,
            writes: Writes::new(WritesMax { encoded: batch, memory: WRITES_MEMORY * batch }),
            reads: Arc::new(RankedMutex::new(reads)),
            durability: handle.durability,
            staged: Staged::default(),
            refused: None,
        })
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.open.handle
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the value of `key`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// assert!(tx.get(&ships, "fram")?.is_none());
    /// tx.insert(&ships, "fram", "1892")?;
    /// assert!(tx.get(&ships, "fram")?.is_some_and(|year| year == "1892"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let key = key.as_ref();
        keyspace.values().read_found(key, self.get_stored(keyspace, key)?)
    }

    /// The value as it is stored.
    pub(super) fn get_stored(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        self.snapshot.check(keyspace)?;
        check_key(key)?;
        let beneath = || {
            self.reads.lock().add_key(keyspace.id(), key);
            self.snapshot.get_stored(keyspace, key)
        };
        let Some(written) = self.writes.get(keyspace.id(), key) else { return beneath() };
        let laid =
            written.as_deref().map_or(Ok(None), |written| Self::laid_over(keyspace, written, beneath))?;
        Ok(laid.map(Value::from).or_else(|| written.clone().map(Value)))
    }

    /// Whether `key` has a value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut tx = db.transaction()?;
    /// tx.remove(&ships, "fram")?;
    /// assert!(!tx.contains(&ships, "fram")? && ships.contains("fram")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.get(keyspace, key).map(|value| value.is_some())
    }

    /// Returns the values of many keys, in the order of `keys`. Those that the transaction has not written are read together, as
    /// by [`Keyspace::multi_get`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "beagle", "1820")?;
    /// let found = tx.multi_get(&ships, ["beagle", "titanic", "fram"])?;
    /// assert!(found[0].is_some() && found[1].is_none() && found[2].is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        self.parts_of_multi_get(keyspace, &keys)?.complete(&self.snapshot, keyspace, &keys)
    }

    /// What the transaction itself knows of many keys. Those which it has to read count as read.
    fn parts_of_multi_get<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, keys: &[K]) -> Result<Parts> {
        self.snapshot.check(keyspace)?;
        keys.iter().try_for_each(|key| check_key(key.as_ref()))?;
        let (mut values, mut others, mut operands) = (vec![None; keys.len()], Vec::new(), Vec::new());
        let merges = keyspace.values().merging().is_some();
        for (index, key) in keys.iter().enumerate() {
            match self.writes.get(keyspace.id(), key.as_ref()) {
                Some(Some(written)) if merges && has_operands(written) => {
                    operands.push((index, written.clone()))
                }
                Some(_) => values[index] = Some(self.get(keyspace, key.as_ref())?),
                None => others.push(index),
            }
        }
        let mut reads = self.reads.lock();
        let operands_read = operands.iter().filter(|(_, written)| needs_beneath(written));
        let read = others.iter().chain(operands_read.map(|(index, _)| index));
        read.for_each(|index| reads.add_key(keyspace.id(), keys[*index].as_ref()));
        Ok(Parts { values, others, operands })
    }

    /// The records whose keys lie within `bounds`, in key order. Use `.rev()` for descending order.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("beagle", "1820")?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "fram", "1892")?;
    /// let (last, _) = tx.range(&ships, "a".."m").next_back().expect("there are two")?;
    /// assert!(last == "fram");
    /// # Ok(()) }
    /// ```
    pub fn range(&self, keyspace: &Keyspace, bounds: impl KeyBounds) -> TransactionRange {
        let own = |bound: Bound<&[u8]>| bound.map(Bytes::copy_from_slice);
        self.between(keyspace, (own(bounds.start()), own(bounds.end())))
    }

    /// The records whose keys start with `prefix`, in key order.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "fram", "1892")?;
    /// assert_eq!((tx.prefix(&ships, "fr").count(), tx.prefix(&ships, "be").count()), (1, 0));
    /// # Ok(()) }
    /// ```
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionRange {
        self.between(keyspace, bounds_of_prefix(prefix.as_ref()))
    }

    /// All records, in key order.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut tx = db.transaction()?;
    /// for item in tx.iter(&ships) {
    ///     let (name, _) = item?;
    ///     tx.remove(&ships, name)?; // the iterator has what was there when it was made
    /// }
    /// assert!(tx.first(&ships)?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn iter(&self, keyspace: &Keyspace) -> TransactionRange {
        self.between(keyspace, (Bound::Unbounded, Bound::Unbounded))
    }

    fn between(&self, keyspace: &Keyspace, bounds: (Bound<Bytes>, Bound<Bytes>)) -> TransactionRange {
        self.view(keyspace).between(keyspace, bounds)
    }

    /// The keyspace as the transaction sees it now.
    pub(super) fn view(&self, keyspace: &Keyspace) -> TransactionView {
        let (snapshot, written) = (self.snapshot.clone(), self.writes.of(keyspace.id()));
        TransactionView { snapshot, written, reads: Arc::clone(&self.reads) }
    }

    /// The record with the smallest key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("jobs.db"))?;
    /// # let jobs = db.keyspace("jobs")?;
    /// jobs.insert("1", "send the letter")?;
    /// let mut tx = db.transaction()?;
    /// if let Some((number, job)) = tx.first(&jobs)? {
    ///     tx.remove(&jobs, number)?;
    ///     assert!(job == "send the letter");
    /// }
    /// tx.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first(&self, keyspace: &Keyspace) -> Result<Option<(Key, Value)>> {
        self.iter(keyspace).next().transpose()
    }

    /// The record with the largest key.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("events.db"))?;
    /// # let events = db.keyspace("events")?;
    /// let mut tx = db.transaction()?;
    /// let last = tx.last(&events)?.map_or(0, |(number, _)| u32::from_be_bytes(number[..].try_into().expect("four bytes")));
    /// tx.insert(&events, (last + 1).to_be_bytes(), "something happened")?;
    /// tx.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last(&self, keyspace: &Keyspace) -> Result<Option<(Key, Value)>> {
        self.iter(keyspace).next_back().transpose()
    }

    /// Sets `key` to `value`. Limits of keys and values are those of [`Batch::insert`](crate::Batch::insert).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "fram", "1892")?;
    /// assert!(!ships.contains("fram")?);
    /// tx.commit()?;
    /// assert!(ships.contains("fram")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::BatchTooLarge`] if the transaction's writes would have more than a sixteenth of the memory budget (at least 1 MiB, at most 60), or take more
    /// than twice that in memory, where the first write in a keyspace takes 800 bytes. Then the transaction is as before the call: it can be committed, or go on with less.
    /// [`Error::KeyEmpty`]; [`Error::KeyTooLong`]; [`Error::ValueTooLong`]; [`Error::Foreign`]; [`Error::ReadOnly`];
    /// [`Error::Poisoned`].
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.insert_stamped(keyspace, key.as_ref(), keyspace.default_stamp(), value.as_ref())
    }

    /// Removes `key`. Has no effect if the key does not exist.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut tx = db.transaction()?;
    /// tx.remove(&ships, "fram")?;
    /// tx.commit()?;
    /// assert!(!ships.contains("fram")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`].
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(keyspace, key.as_ref(), None)
    }

    /// Removes all records whose keys lie within `bounds`, without reading them: that conflicts with nothing, and nothing that
    /// others insert there before the commit survives it. What this transaction inserts there later stays.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("beagle", "1820")?;
    /// let mut tx = db.transaction()?;
    /// tx.remove_range(&ships, "a".."m")?;
    /// tx.insert(&ships, "fram", "1892")?;
    /// assert_eq!(tx.iter(&ships).count(), 1);
    /// tx.commit()?;
    /// assert!(!ships.contains("beagle")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`].
    pub fn remove_range(&mut self, keyspace: &Keyspace, bounds: impl KeyBounds) -> Result<()> {
        self.remove_between(keyspace, bounds.start(), bounds.end())
    }

    /// Removes all records whose keys start with `prefix`, as [`Transaction::remove_range`]; with an empty prefix, all.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("users.db"))?;
    /// # let (users, sessions) = (db.keyspace("users")?, db.keyspace("sessions")?);
    /// let mut tx = db.transaction()?;
    /// tx.remove(&users, "nansen")?;
    /// tx.remove_prefix(&sessions, "nansen/")?;
    /// tx.commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`].
    pub fn remove_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<()> {
        let (low, high) = bounds_of_prefix(prefix.as_ref());
        self.remove_between(keyspace, low.as_ref().map(|key| &key[..]), high.as_ref().map(|key| &key[..]))
    }

    fn remove_between(&mut self, keyspace: &Keyspace, low: Bound<&[u8]>, high: Bound<&[u8]>) -> Result<()> {
        self.snapshot.check(keyspace)?;
        self.open.handle.engine.health.check_writable()?;
        let Some((from, to)) = range_between(low, high)? else { return Ok(()) };
        let removed =
            self.writes.remove_range(KeyRange { keyspace: keyspace.id(), from: &from, to: to.as_deref() });
        self.note_refused(removed)
    }

    /// Inserts a value as it is, or behind a stamp.
    pub(super) fn insert_stamped(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        stamp: Option<Stamp>,
        value: &[u8],
    ) -> Result<()> {
        self.note_refused(check_value(keyspace, value))?;
        self.write(keyspace, key, Some(&keyspace.values().stored(stamp, value)))
    }

    /// What is written for a key, or that it is removed.
    pub(super) fn written(&self, keyspace: &Keyspace, key: &[u8]) -> Option<Option<Bytes>> {
        self.writes.get(keyspace.id(), key).cloned()
    }

    /// Writes what is stored for operands, or for what they made.
    pub(super) fn write_merged(&mut self, keyspace: &Keyspace, key: &[u8], stored: &[u8]) -> Result<()> {
        self.write(keyspace, key, Some(stored))?;
        self.writes.has_operands(keyspace.id());
        Ok(())
    }

    fn write(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.snapshot.check(keyspace)?;
        check_key(key)?;
        self.open.handle.engine.health.check_writable()?;
        let written = self.writes.write(keyspace.id(), key, value);
        self.note_refused(written)
    }

    /// Keeps the error of a write that is refused for its size, and might not be with more memory.
    pub(super) fn note_refused<T>(&mut self, written: Result<T>) -> Result<T> {
        match &written {
            Err(Error::ValueTooLong { len, most, .. }) if len > most => {}
            Err(error @ (Error::BatchTooLarge { .. } | Error::ValueTooLong { .. })) => {
                self.refused.get_or_insert_with(|| error.clone());
            }
            _ => {}
        }
        written
    }

    /// Takes the error of the first write, since the last call, that was refused for a limit which follows from the memory budget:
    /// [`Error::BatchTooLarge`], or [`Error::ValueTooLong`] of a value that a database with more memory takes (one that is longer than its `most` is
    /// refused with any). It is there whatever the caller of that write made of the error, and whether or not
    /// that was rolled back. For whoever runs the same transaction on several databases, which may have other budgets: one that
    /// acts on such an error differs from one that has none.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let db = sapwood::Database::builder().memory(4 << 20).open(dir.path().join("ships.db"))?;
    /// let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// if tx.insert(&ships, "fram", vec![0; 2 << 20]).is_err() {
    ///     tx.insert(&ships, "fram", "too long")?;
    /// }
    /// assert!(matches!(tx.take_refused(), Some(sapwood::Error::ValueTooLong { .. })));
    /// assert!(tx.take_refused().is_none());
    /// # Ok(()) }
    /// ```
    pub fn take_refused(&mut self) -> Option<Error> {
        self.refused.take()
    }

    /// The number of keys written, and of disjoint ranges removed.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "fram", "1892")?;
    /// tx.insert(&ships, "fram", "1893")?;
    /// assert_eq!(tx.writes_len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn writes_len(&self) -> usize {
        self.writes.len()
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transaction({} writes, after operation {})", self.writes.len(), self.open.seq)
    }
}
