//! Atomic batches: changes to any keyspaces of one database that take effect together or not at all.

use crate::commit::CommitPipeline;
use crate::db::handle::Handle;
use crate::db::keyspace::Keyspace;
use crate::db::pending::Pending;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::expiry::Stamp;
use crate::operation::{put_insert, put_remove};
use std::sync::Arc;

/// Collects changes for one atomic commit. Made by [`Database::batch`](crate::Database::batch). A batch has no
/// effect until [`Batch::commit`].
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let (ships, log) = (db.keyspace("ships")?, db.keyspace("log")?);
/// let mut batch = db.batch();
/// batch.insert(&ships, "fram", "1892").remove(&ships, "beagle");
/// batch.insert(&log, "1893-06-24", "fram leaves Christiania");
/// batch.durability(sapwood::Durability::Buffered).commit()?;
/// # Ok(()) }
/// ```
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch {
    pub(super) handle: Arc<Handle>,
    body: Vec<u8>,
    /// Bytes of changes that are not in `body`, since it is too large already.
    left_out: usize,
    count: usize,
    pub(super) durability: Durability,
    error: Option<Error>,
}

impl Batch {
    pub(crate) fn new(handle: Arc<Handle>, durability: Durability) -> Self {
        Self { handle, body: Vec::new(), left_out: 0, count: 0, durability, error: None }
    }

    /// Sets `key` (1 to 65,536 bytes) to `value`. Of several changes of a key in one batch, the last counts.
    ///
    /// Values have up to 16 MiB, but no more than a quarter of a segment (`Builder::segment_span`), and no more
    /// than a sixteenth of the memory budget, at least 1 MiB, less 64 KiB and 64 bytes.
    /// Errors in the key or value are returned by [`Batch::commit`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut batch = db.batch();
    /// batch.insert(&ships, "fram", "1892").insert(&ships, "fram", "1893"); // the last one counts
    /// batch.commit()?;
    /// assert!(ships.get("fram")?.is_some_and(|year| year == "1893"));
    /// # Ok(()) }
    /// ```
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> &mut Self {
        self.insert_stamped(keyspace, key.as_ref(), keyspace.default_stamp(), value.as_ref());
        self
    }

    /// Removes `key`. Has no effect if the key does not exist.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut batch = db.batch();
    /// batch.remove(&ships, "fram").remove(&ships, "titanic");
    /// batch.commit()?;
    /// assert!(!ships.contains("fram")?);
    /// # Ok(()) }
    /// ```
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> &mut Self {
        let key = key.as_ref();
        match self.check(keyspace, key) {
            Ok(()) => self.put(|body| put_remove(body, keyspace.id(), key)),
            Err(error) => self.fail(error),
        }
        self
    }

    /// Inserts a value as it is, or as the keyspace stores it.
    pub(super) fn insert_stamped(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        stamp: Option<Stamp>,
        value: &[u8],
    ) {
        match self.check(keyspace, key).and_then(|()| check_value(keyspace, value)) {
            Ok(()) => {
                let stored = keyspace.values().stored(stamp, value);
                self.put(|body| put_insert(body, keyspace.id(), key, &stored));
            }
            Err(error) => self.fail(error),
        }
    }

    /// Adds a change. A batch that is too large is refused by [`Batch::commit`], and does not grow until then.
    pub(super) fn put(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let before = self.body.len();
        change(&mut self.body);
        self.count += 1;
        if before > self.handle.engine.shares.batch_max(0) {
            self.left_out += self.body.len() - before;
            self.body.truncate(before);
        }
    }

    pub(super) fn check(&self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        self.check_keyspace(keyspace)?;
        check_key(key)
    }

    pub(super) fn check_keyspace(&self, keyspace: &Keyspace) -> Result<()> {
        if !Arc::ptr_eq(keyspace.handle(), &self.handle) {
            return Err(Error::Foreign { what: "keyspace" });
        }
        Ok(())
    }

    /// Notes an error for [`Batch::commit`], unless there is one.
    pub(super) fn fail(&mut self, error: Error) {
        self.error = self.error.take().or(Some(error));
    }

    /// Sets how durable the commit is when it returns. The default is the database's
    /// ([`Builder::durability`](crate::Builder::durability)).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut batch = db.batch();
    /// batch.insert(&ships, "fram", "1892");
    /// batch.durability(sapwood::Durability::Buffered).commit()?;
    /// # Ok(()) }
    /// ```
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.durability = durability;
        self
    }

    /// The number of changes in the batch.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut batch = db.batch();
    /// assert!(batch.is_empty());
    /// batch.insert(&ships, "fram", "1892").remove(&ships, "beagle");
    /// assert_eq!(batch.len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the batch has no changes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut batch = db.batch();
    /// assert!(batch.is_empty());
    /// batch.remove(&ships, "fram");
    /// assert!(!batch.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The size of the batch in the log, in bytes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut batch = db.batch();
    /// for number in 0..100_000u32 {
    ///     batch.insert(&ships, number.to_be_bytes(), "afloat");
    ///     if batch.byte_len() > 1 << 20 {
    ///         batch.commit()?; // and go on with it
    ///     }
    /// }
    /// batch.commit()?;
    /// # Ok(()) }
    /// ```
    pub fn byte_len(&self) -> usize {
        self.body.len() + self.left_out
    }

    /// Commits all changes atomically. Returns once they are as durable as requested. The batch is empty then, whatever the
    /// result, and can be used again, with the same durability.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut batch = db.batch();
    /// batch.insert(&ships, "fram", "1892").insert(&ships, "", "no name");
    /// assert!(matches!(batch.commit(), Err(sapwood::Error::KeyEmpty)));
    /// assert!(!ships.contains("fram")?); // none of it happened
    /// assert!(batch.is_empty());
    /// batch.insert(&ships, "fram", "1892").commit()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The first error in a key, value or keyspace of the batch; [`Error::BatchTooLarge`]; [`Error::DiskFull`]
    /// (the batch had no effect); [`Error::ReadOnly`]; [`Error::Poisoned`] and [`Error::Io`] (whether the batch
    /// took effect shows only when the database is reopened).
    pub fn commit(&mut self) -> Result<()> {
        match self.take()? {
            Some((body, count)) => self.handle.engine.commits.commit(body, count, self.durability),
            None => Ok(()),
        }
    }

    /// Commits as [`commit`](Self::commit), and returns as soon as the commit is visible. It becomes durable later, with others in
    /// one sync: see [`Pending`]. The batch's durability does not matter.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut batch = db.batch();
    /// batch.insert(&ships, "fram", "1892");
    /// let pending = batch.commit_visible()?;
    /// assert!(ships.contains("fram")?); // by every thread
    /// pending.wait()?; // and now it is durable; or on_durable(..), or .await
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Batch::commit`], but for those of the sync, which the [`Pending`] returns.
    pub fn commit_visible(&mut self) -> Result<Pending> {
        let seq = match self.take()? {
            Some((body, count)) => {
                let commit = |commits: &CommitPipeline| commits.commit(body, count, Durability::Buffered);
                self.handle.engine.commits.commit_visible(commit)?
            }
            None => 0,
        };
        Ok(Pending::new(Arc::clone(&self.handle), seq))
    }

    /// Empties the batch. Returns what is to be committed, if there is anything.
    pub(super) fn take(&mut self) -> Result<Option<(Vec<u8>, u32)>> {
        let len = self.byte_len();
        let (body, count) = (std::mem::take(&mut self.body), std::mem::take(&mut self.count));
        self.left_out = 0;
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if count == 0 {
            return Ok(None);
        }
        let max = self.handle.engine.shares.batch_max(count);
        // So many changes are longer than a batch may be. Nothing may rest on that: with a count that wraps, a batch without
        // effect would be told to be durable.
        let Some(count) = u32::try_from(count).ok().filter(|_| len <= max) else {
            return Err(Error::BatchTooLarge { len, max });
        };
        Ok(Some((body, count)))
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} changes, {} bytes, {:?})", self.count, self.byte_len(), self.durability)
    }
}

/// Returns an error if the value is too long for this keyspace.
pub(crate) fn check_value(keyspace: &Keyspace, value: &[u8]) -> Result<()> {
    let (shares, overhead) = (&keyspace.handle().engine.shares, keyspace.values().overhead());
    let max = shares.value - overhead;
    if value.len() > max {
        return Err(Error::ValueTooLong { len: value.len(), max, most: shares.stored_value - overhead });
    }
    Ok(())
}

/// Returns an error if no tree of this database takes the value, whatever budget it is committed with.
pub(crate) fn check_stored_value(keyspace: &Keyspace, value: &[u8]) -> Result<()> {
    let max = keyspace.handle().engine.shares.stored_value - keyspace.values().overhead();
    if value.len() > max {
        return Err(Error::ValueTooLong { len: value.len(), max, most: max });
    }
    Ok(())
}

/// Returns an error if the key's length is out of range.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::KeyEmpty);
    }
    if key.len() > crate::KEY_LEN_MAX {
        return Err(Error::KeyTooLong { len: key.len(), max: crate::KEY_LEN_MAX });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Database, Error, Keyspace};
    use psync::Simulated;
    use std::sync::Arc;

    fn open() -> (Database, Keyspace) {
        let db =
            Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::new(Simulated::new(1)));
        let db = db.unwrap();
        let keyspace = db.keyspace("main").unwrap();
        (db, keyspace)
    }

    /// The count wrapped: at 2^32 operations `commit` did nothing and said that all was durable.
    #[test]
    fn a_batch_of_more_operations_than_a_record_counts_is_refused() {
        let (db, keyspace) = open();
        for (more, len) in [(1, 1 << 32), (2, (1 << 32) + 1)] {
            let mut batch = db.batch();
            batch.count = u32::MAX as usize;
            (0..more).for_each(|number| _ = batch.insert(&keyspace, [number], [1]));
            assert!(batch.len() == len && !batch.is_empty());
            assert!(matches!(batch.commit(), Err(Error::BatchTooLarge { .. })));
        }
        assert!(keyspace.iter().next().is_none());
    }

    #[test]
    fn a_batch_is_empty_after_its_commit_and_of_use_again() {
        let (db, keyspace) = open();
        db.batch().insert(&keyspace, "one", "1").remove(&keyspace, "two").commit().unwrap();
        let mut batch = db.batch();
        batch.insert(&keyspace, "", "refused").insert(&keyspace, "x", "not there");
        assert!(matches!(batch.commit(), Err(Error::KeyEmpty)));
        assert!(batch.is_empty() && batch.byte_len() == 0);
        batch.commit().unwrap();
        batch.insert(&keyspace, "three", "3").commit().unwrap();
        assert_eq!(keyspace.iter().map(|record| record.unwrap().0).collect::<Vec<_>>(), ["one", "three"]);
    }

    #[test]
    fn a_batch_that_is_too_large_grows_no_further() {
        let (db, keyspace) = open();
        let mut batch = db.batch();
        for number in 0..300_000u32 {
            batch.insert(&keyspace, number.to_be_bytes(), [1; 20]);
        }
        assert!(batch.len() == 300_000 && batch.byte_len() > 300_000 * 24);
        assert!(batch.body.capacity() <= 4 << 20, "{} bytes", batch.body.capacity());
        let expected = batch.byte_len();
        assert!(matches!(batch.commit(), Err(Error::BatchTooLarge { len, .. }) if len == expected));
        keyspace.insert("key", "value").unwrap();
        assert_eq!(keyspace.iter().count(), 1);
    }
}
