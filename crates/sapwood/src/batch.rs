//! Atomic batches: changes to any keyspaces of a database that happen together or not at all.

use crate::database::Handle;
use crate::error::{Error, Result};
use crate::keyspace::Keyspace;
use crate::operation::{put_insert, put_remove};
use std::sync::Arc;

/// How durable a commit is when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// In memory only. Lost when the process dies, unless a stronger commit, a [`sync`](crate::Database::sync), or
    /// 64 KiB more of such commits came after it.
    None,
    /// With the operating system: survives the death of the process, not the loss of power.
    Buffered,
    /// On the device: survives the loss of power. Commits of several threads share one sync.
    #[default]
    Immediate,
}

/// Gathers changes. Made by [`Database::batch`](crate::Database::batch); does nothing until [`Batch::commit`].
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

    /// Sets `key` (1 to 65,536 bytes) to `value` (up to nearly a sixteenth of the memory budget, and at most 16 MiB). What
    /// is wrong with them, [`Batch::commit`] tells.
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

    /// Removes `key`, if it is there.
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

    /// How durable the commit is to be; [`Durability::Immediate`] unless told.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Changes in it.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that it will take in the log.
    pub fn byte_len(&self) -> usize {
        self.body.len()
    }

    /// Makes all changes happen, and returns when they are as durable as was asked.
    ///
    /// # Errors
    /// The first thing that was wrong with a key or value; [`Error::BatchTooLarge`]; [`Error::DiskFull`] (nothing
    /// happened); [`Error::ReadOnly`]; [`Error::Poisoned`]; [`Error::Io`] (whether the batch happened shows when the
    /// database is opened again).
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

/// Refuses keys that cannot be.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::KeyEmpty);
    }
    if key.len() > crate::KEY_LEN_MAX {
        return Err(Error::KeyTooLong { len: key.len(), max: crate::KEY_LEN_MAX });
    }
    Ok(())
}
