//! Writing a large value: its chunks first, portion by portion, past the log; then, in a commit, the record that names them.
//!
//! ```text
//! reader ─portion─▶ chunks, durable ─ … ─▶ staged ─commit─▶ named
//!   begun: durable before the first portion, removed by the commit; what a crash leaves is removed when the keyspace is next opened
//! ```

use super::stored::{CHUNK_LEN, Head, LEN_MAX, LargeId, SHORT_MAX};
use super::{LargeValues, remove_chunks};
use crate::db::batch::{Batch, check_key};
use crate::db::handle::Handle;
use crate::db::keyspace::Keyspace;
use crate::durability::Durability;
use crate::error::{Error, Result};
use bytes::Bytes;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most chunks of a portion: at 8 MiB its two syncs take little beside its writing.
const PORTION_MAX: usize = 64;

/// A large value that was written, and that no key has yet. Made by [`LargeValues::stage`]; inserted by
/// [`Transaction::insert_staged`](crate::Transaction::insert_staged). Dropping all clones of one that was not inserted removes it.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let (portraits, ships) = (db.large_values("portraits")?, db.keyspace("ships")?);
/// let staged = portraits.stage("fram", &vec![7; 1 << 20][..])?; // no transaction is open meanwhile
/// db.transact(|tx| {
///     tx.insert(&ships, "fram", "1892")?;
///     tx.insert_staged(&staged) // both, or neither
/// })?;
/// assert_eq!(portraits.len_of("fram")?, Some(1 << 20));
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a staged value is removed when it is dropped, unless a transaction inserts it"]
pub struct StagedValue {
    pub(super) staging: Arc<Staging>,
}

impl StagedValue {
    /// The key that it is staged for.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// assert_eq!(db.large_values("portraits")?.stage("fram", &b"..."[..])?.key(), b"fram");
    /// # Ok(()) }
    /// ```
    pub fn key(&self) -> &[u8] {
        &self.staging.key
    }

    /// Its length in bytes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// assert_eq!(db.large_values("portraits")?.stage("fram", &b"..."[..])?.len(), 3);
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> u64 {
        self.staging.head.len()
    }

    /// Whether it has no bytes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// assert!(db.large_values("portraits")?.stage("fram", &b""[..])?.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for StagedValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StagedValue({} bytes)", self.len())
    }
}

/// See [`StagedValue`].
pub(crate) struct Staging {
    pub heads: Keyspace,
    pub chunks: Keyspace,
    pub key: Bytes,
    pub head: Head,
    /// Whether a commit has named it, or removed it.
    pub is_used_up: AtomicBool,
}

impl Staging {
    pub fn handle(&self) -> &Arc<Handle> {
        self.heads.handle()
    }

    /// Whether its chunks are removed by what is `written`.
    pub fn is_removed(&self, written: impl Fn(&Keyspace, &[u8]) -> Option<Option<Bytes>>) -> bool {
        self.head.id().is_some_and(|id| written(&self.chunks, &id.chunk(0)) == Some(None))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(id) = self.head.id().filter(|_| !self.is_used_up.load(Relaxed)) {
            abandon(&self.chunks, id);
        }
    }
}

/// Removes what was written of a value. Should it fail, that is done when the keyspace is next opened.
fn abandon(chunks: &Keyspace, id: LargeId) {
    let mut batch = Batch::new(Arc::clone(chunks.handle()), Durability::Buffered);
    remove_chunks(&mut batch, chunks, id);
    batch.remove(chunks, id.begun());
    if let Err(error) = batch.commit() {
        tracing::debug!(%error, "the chunks of a large value that was given up wait for the next opening");
    }
}

/// Reads until the buffer is full or the source ends. Returns the bytes read.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Chunks that are written so far, which are removed if the rest cannot be.
struct Unfinished<'a> {
    chunks: &'a Keyspace,
    id: Option<LargeId>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            abandon(self.chunks, id);
        }
    }
}

impl LargeValues {
    /// Writes a value, and returns it for a [transaction](crate::Transaction::insert_staged) that gives it to `key`. Nothing is held
    /// while the source is read, however slow that is. It takes a sixteenth of the memory budget, at least 1 MiB and 8 MiB at most.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let portraits = db.large_values("portraits")?;
    /// let staged = portraits.stage("fram", std::io::repeat(7).take(10_000_000))?;
    /// # use std::io::Read;
    /// assert!(portraits.len_of("fram")?.is_none()); // not yet
    /// db.transact(|tx| tx.insert_staged(&staged))?;
    /// assert_eq!(portraits.len_of("fram")?, Some(10_000_000));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Source`] if the source fails; [`Error::ValueTooLong`] above 1 TiB; and as [`Batch::commit`](crate::Batch::commit).
    pub fn stage(&self, key: impl AsRef<[u8]>, source: impl Read) -> Result<StagedValue> {
        let key = Bytes::copy_from_slice(key.as_ref());
        // Of two keyspaces it is this one that its users know.
        let head = self.write(&key, source).map_err(|error| self.heads.named(error))?;
        let (heads, chunks) = (self.heads.clone(), self.chunks.clone());
        let staging = Staging { heads, chunks, key, head, is_used_up: AtomicBool::new(false) };
        Ok(StagedValue { staging: Arc::new(staging) })
    }

    /// Writes a value's chunks, unless it is short. Returns what is to be stored for its key.
    fn write(&self, key: &[u8], mut source: impl Read) -> Result<Head> {
        check_key(key)?;
        let engine = &self.heads.handle().engine;
        engine.health.check_process()?;
        engine.health.check_writable()?;
        self.heads.check_there()?;
        let refused = |error: io::Error| Error::Source { cause: Arc::new(error) };
        // Like a batch it is in the caller's hands.
        let most = (engine.shares.batch / CHUNK_LEN).clamp(1, PORTION_MAX) * CHUNK_LEN;
        let mut buffer = vec![0; SHORT_MAX + 1];
        let mut filled = fill(&mut source, &mut buffer).map_err(refused)?;
        if filled <= SHORT_MAX {
            buffer.truncate(filled);
            return Ok(Head::Short(buffer.into()));
        }
        let id = self.heads.handle().large_ids.next();
        let mut unfinished = Unfinished { chunks: &self.chunks, id: None };
        let (mut len, mut number) = (0, 0);
        loop {
            // Of its whole length only when there is as much: most values are one portion.
            buffer.resize(most, 0);
            filled += fill(&mut source, &mut buffer[filled..]).map_err(refused)?;
            len += filled as u64;
            if len > LEN_MAX {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let max = LEN_MAX as usize;
                return Err(Error::ValueTooLong { len, max, most: max });
            }
            if filled == 0 {
                break;
            }
            if unfinished.id.is_none() {
                let mut batch = Batch::new(Arc::clone(self.heads.handle()), Durability::Immediate);
                batch.insert(&self.chunks, id.begun(), key).commit()?;
                unfinished.id = Some(id);
            }
            let is_last = filled < most;
            buffer.truncate(filled);
            let portion = Bytes::from(std::mem::take(&mut buffer));
            let chunks = (0..filled).step_by(CHUNK_LEN).map(|from| {
                let chunk = portion.slice(from..filled.min(from + CHUNK_LEN));
                let key = id.chunk(number);
                number += 1;
                (Bytes::copy_from_slice(&key), chunk)
            });
            engine.ingest_beside(self.chunks.id(), chunks.collect())?;
            if is_last {
                break;
            }
            buffer = portion.try_into_mut().map(Vec::from).unwrap_or_default();
            filled = 0;
        }
        unfinished.id = None;
        Ok(Head::Long { id, len })
    }
}
