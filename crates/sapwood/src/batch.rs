//! Atomic batches: changes to any keyspaces of one database that take effect together or not at all.

use crate::database::Handle;
use crate::error::{Error, Result};
use crate::keyspace::Keyspace;
use crate::operation::{put_insert, put_remove};
use std::sync::Arc;

/// How durable a commit is when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// In memory only. A crash of the process loses the commit, unless a commit with stronger durability, a
    /// [`sync`](crate::Database::sync), or 64 KiB of further commits followed it.
    None,
    /// Handed to the operating system. Survives a crash of the process, but not a power failure.
    Buffered,
    /// On the device. Survives a power failure. Concurrent commits share one sync (group commit).
    #[default]
    Immediate,
}

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
    handle: Arc<Handle>,
    body: Vec<u8>,
    count: u32,
    durability: Durability,
    error: Option<Error>,
}

impl Batch {
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        Self { handle, body: Vec::new(), count: 0, durability: Durability::default(), error: None }
    }

    /// Sets `key` (1 to 65,536 bytes) to `value`.
    ///
    /// Values have up to 16 MiB, but no more than a quarter of a segment (`Builder::segment_span`), and no more
    /// than a batch can hold: a sixteenth of the memory budget, at least 1 MiB, less 64 KiB and 64 bytes.
    /// Errors in the key or value are returned by [`Batch::commit`].
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> &mut Self {
        let (key, value) = (key.as_ref(), value.as_ref());
        let checked = self.check(keyspace, key).and_then(|()| self.check_value(value));
        match checked {
            Ok(()) => {
                put_insert(&mut self.body, keyspace.id(), key, value);
                self.count += 1;
            }
            Err(error) => self.error = self.error.take().or(Some(error)),
        }
        self
    }

    /// Removes `key`. Has no effect if the key does not exist.
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> &mut Self {
        let key = key.as_ref();
        match self.check(keyspace, key) {
            Ok(()) => {
                put_remove(&mut self.body, keyspace.id(), key);
                self.count += 1;
            }
            Err(error) => self.error = self.error.take().or(Some(error)),
        }
        self
    }

    fn check(&self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        if !Arc::ptr_eq(keyspace.handle(), &self.handle) {
            return Err(Error::Foreign { what: "keyspace" });
        }
        check_key(key)
    }

    fn check_value(&self, value: &[u8]) -> Result<()> {
        let max = self.handle.engine.shares.value;
        if value.len() > max {
            return Err(Error::ValueTooLong { len: value.len(), max });
        }
        Ok(())
    }

    /// Sets how durable the commit is when it returns. The default is [`Durability::Immediate`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The number of changes in the batch.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The size of the batch in the log, in bytes.
    pub fn byte_len(&self) -> usize {
        self.body.len()
    }

    /// Commits all changes atomically. Returns once they are as durable as requested.
    ///
    /// # Errors
    /// The first error in a key, value or keyspace of the batch; [`Error::BatchTooLarge`]; [`Error::DiskFull`]
    /// (the batch had no effect); [`Error::ReadOnly`]; [`Error::Poisoned`]; [`Error::Io`] (whether the batch
    /// took effect shows only when the database is reopened).
    pub fn commit(self) -> Result<()> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.count == 0 {
            return Ok(());
        }
        let max = self.handle.engine.shares.batch;
        if self.body.len() > max {
            return Err(Error::BatchTooLarge { len: self.body.len(), max });
        }
        self.handle.engine.commit(self.body, self.count, self.durability)
    }
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
