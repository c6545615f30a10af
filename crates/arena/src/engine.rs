//! What a store shows to the arena.
//!
//! Invariants that an adapter keeps:
//! 1. a [`Session::write`] happens wholly or not at all, and has the [`Level`] that the store was opened with when it returns;
//! 2. reads see every write that returned before they began, from whichever session;
//! 3. a scan gives records in the order of their keys, each once, all of one moment if the store can do that;
//! 4. a [`Session::modify`] has the effect that it would have if no other write came between its reads and its writes.

use crate::records::Kind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Something that a store refused or got wrong.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {reason}")]
pub struct Failed {
    /// What was being done.
    pub doing: String,
    /// What the store said.
    pub reason: String,
}

impl Failed {
    /// While `doing` this, the store said that.
    pub fn new(doing: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self { doing: doing.into(), reason: reason.to_string() }
    }
}

/// The answer of everything a store is asked.
pub type Result<T> = std::result::Result<T, Failed>;

/// How durable a write is when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// On the device: it survives a loss of power.
    Durable,
    /// With the operating system: it survives the death of the process. Where a store has no such level, its adapter says in
    /// docs/benchmarks.md what it does instead.
    Buffered,
}

/// Which of its ways to the disk a store takes, where it has several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Disk {
    /// The one with which it does best.
    #[default]
    Best,
    /// The next best, or the same if there is no other: docs/benchmarks.md says which.
    Second,
}

/// A way to compress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// LZ4.
    #[default]
    Lz4,
    /// Zstandard, level 3; stores that do not have it compress with LZ4.
    Zstd,
    /// The same with a trained dictionary; stores that train none go without.
    Dictionary,
}

/// How a store is opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The directory of the database; created, with the database, if it is not there.
    pub dir: PathBuf,
    /// The memory, page cache included, that the process can have, in bytes: the adapter shares it out.
    pub memory: u64,
    /// Bytes of keys and values that the database will hold, for stores that must know.
    pub bytes: u64,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: usize,
    /// How durable every write is to be.
    pub level: Level,
    /// What values are like: stores with compression turn it on if it will be of use.
    pub values: Kind,
    /// How it is compressed then.
    #[serde(default)]
    pub codec: Codec,
    /// Its way to the disk.
    #[serde(default)]
    pub disk: Disk,
    /// Whether there will be transactions: stores that have a kind of database of its own for them open that.
    #[serde(default)]
    pub transactions: bool,
}

/// A change to one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Insert or replace.
    Put(&'a [u8], &'a [u8]),
    /// Remove, if it is there.
    Remove(&'a [u8]),
}

/// An open store.
pub trait Engine: Sync {
    /// What one thread reads and writes through.
    ///
    /// # Errors
    /// What the store says.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Makes all that was written durable.
    ///
    /// # Errors
    /// What the store says.
    fn sync(&self) -> Result<()>;

    /// Closes the store in good order.
    ///
    /// # Errors
    /// What the store says.
    fn close(self: Box<Self>) -> Result<()>;

    /// Whether a database that was closed can be opened again. One that cannot is read by the process that loaded it.
    fn reopens(&self) -> bool {
        true
    }
}

/// A thread's way to a store.
pub trait Session {
    /// Shows the value of `key`, if there is one.
    ///
    /// # Errors
    /// What the store says.
    fn get(&mut self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<()>;

    /// Shows the values of `keys` with their places in `keys`, in any order.
    ///
    /// # Errors
    /// What the store says.
    fn multi_get(&mut self, keys: &[Vec<u8>], show: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        for (at, key) in keys.iter().enumerate() {
            self.get(key, &mut |value| show(at, value))?;
        }
        Ok(())
    }

    /// Shows the records from `from` on, in order, until `show` wants no more or there are no more. `expected` is about how
    /// many `show` will want; a store may ignore it.
    ///
    /// # Errors
    /// What the store says.
    fn scan(&mut self, from: &[u8], expected: u64, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// Makes the changes.
    ///
    /// # Errors
    /// What the store says.
    fn write(&mut self, changes: &[Change<'_>]) -> Result<()>;

    /// Replaces the values of `keys` by what `change` makes of them, as one transaction. It is given the place of a key in `keys`
    /// and its value, if there is one, and is called for all of them again when the transaction has to be repeated. Says how often
    /// that was.
    ///
    /// # Errors
    /// What `change` and the store say; then nothing is changed. A store without such transactions says that.
    fn modify(&mut self, keys: &[Vec<u8>], change: &mut Modify<'_>) -> Result<u64> {
        let _ = (keys, change);
        Err(Failed::new(
            "run a transaction",
            "this store has none in which several records are read and written",
        ))
    }
}

/// What becomes of a value: see [`Session::modify`].
pub type Modify<'a> = dyn FnMut(usize, Option<&[u8]>) -> Result<Vec<u8>> + 'a;
