//! Keyspaces of large values, which are streamed in and out: never wholly in memory, and written once. Their chunks are records of
//! another keyspace, appended to its tree past the log and the queue; a small record names them, and is committed like any other.
//!
//! ```text
//! insert_from ─chunks─▶ keyspace of chunks (trees)        get_reader ─▶ record ─▶ its chunks, one after the other
//!      └──────record──▶ keyspace (log, queue, trees): also removes the chunks of the value that it replaces
//! ```
//! So large values live and die by what all records do: snapshots, commits, removals of ranges, and the collector.
//!
//! Invariant: a record and the chunks of the value that it names change in one transaction, which has read the record before.

pub(crate) mod check;
pub(crate) mod create;
pub(crate) mod in_transactions;
pub(crate) mod reader;
pub(crate) mod staged;
pub(crate) mod stored;
#[cfg(test)]
mod tests;

use crate::db::batch::Batch;
use crate::db::key_bounds::KeyBounds;
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::db::transaction::retry;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::iter::Range;
use crate::value::{Key, Value};
use reader::LargeValueReader;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use stored::{Head, LargeId};

/// A keyspace whose values are large, up to 1 TiB each: they are streamed in and out. Made by
/// [`Database::large_values`](crate::Database::large_values). Cloning is cheap, and every thread may use a clone.
///
/// A value is written once, in chunks of 128 KiB, and moved only by the collector. Values up to 64 KiB are records like any
/// others. All changes are transactions: each costs a read of the record that it replaces, and none is lost or done by halves.
/// A value beyond 64 KiB costs some syncs, and 2 MiB or more of them are needed to come near the device's rate.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let (photo, copy) = (dir.path().join("fram.tif"), dir.path().join("copy.tif"));
/// # std::fs::write(&photo, vec![7; 300_000])?;
/// let photos = db.large_values("photos")?;
/// photos.insert_from("fram", std::fs::File::open(&photo)?)?;
/// let mut reader = photos.get_reader("fram")?.ok_or("no such photo")?;
/// std::io::copy(&mut reader, &mut std::fs::File::create(&copy)?)?;
/// # assert_eq!(std::fs::read(&copy)?.len(), 300_000);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LargeValues {
    pub(crate) heads: Keyspace,
    pub(crate) chunks: Keyspace,
}

impl LargeValues {
    /// The keyspace's name.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// assert_eq!(db.large_values("photos")?.name(), "photos");
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &str {
        self.heads.name()
    }

    /// A handle whose changes are so durable when they return. What is written of a value in chunks is durable in any case: this
    /// is about its name.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let thumbnails = db.large_values("thumbnails")?.with_durability(sapwood::Durability::Buffered);
    /// thumbnails.insert("fram", [7; 2000])?; // does not wait for the device
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Self {
        Self { heads: self.heads.with_durability(durability), chunks: self.chunks.clone() }
    }

    /// Sets `key` (1 to 65,536 bytes) to what the source has, up to its end. Readers see the value that was there before until
    /// this returns, and the whole new one from then on. Returns its length in bytes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use std::io::Read;
    ///
    /// let photos = db.large_values("photos")?;
    /// assert_eq!(photos.insert_from("fram", std::io::repeat(7).take(5_000_000))?, 5_000_000);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`stage`](Self::stage) and [`Transaction::commit`](crate::Transaction::commit). After an error nothing has changed, but for [`Error::Io`]
    /// and [`Error::Poisoned`]: then opening tells.
    pub fn insert_from(&self, key: impl AsRef<[u8]>, source: impl Read) -> Result<u64> {
        let staged = self.stage(key, source)?;
        retry::transact(self.heads.handle(), self.heads.durability(), |tx| tx.insert_staged(&staged))?;
        Ok(staged.len())
    }

    /// Sets `key` to a value that is in memory: see [`insert_from`](Self::insert_from).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let photos = db.large_values("photos")?;
    /// photos.insert("fram", vec![7; 1_000_000])?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`insert_from`](Self::insert_from).
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.insert_from(key, value.as_ref()).map(drop)
    }

    /// Removes the value of `key`. Returns whether there was one.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let photos = db.large_values("photos")?;
    /// photos.insert("fram", vec![7; 1_000_000])?;
    /// assert!(photos.remove("fram")? && !photos.remove("fram")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::commit`](crate::Transaction::commit).
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let durability = self.heads.durability();
        retry::transact(self.heads.handle(), durability, |tx| tx.remove_large_value(self, &key))
    }

    /// A reader of the value of `key`, as it is now; `None` if there is none.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let photos = db.large_values("photos")?;
    /// photos.insert("fram", vec![7; 1_000_000])?;
    /// let mut reader = photos.get_reader("fram")?.expect("it is there");
    /// photos.remove("fram")?; // the reader still sees it
    /// assert_eq!(std::io::copy(&mut reader, &mut std::io::sink()).expect("reads"), 1_000_000);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`]. The reader's own are [`Error`]s within those of I/O.
    pub fn get_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<LargeValueReader>> {
        Snapshot::new(Arc::clone(self.heads.handle())).large_value_reader(self, key)
    }

    /// The bytes of the value of `key` from `range.start` up to `range.end`, or to the value's end. `None` if there is no value.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let logbooks = db.large_values("logbooks")?;
    /// logbooks.insert("fram", "24 June 1893: left Christiania")?;
    /// assert_eq!(logbooks.get_range("fram", 8..12)?.as_deref(), Some(&b"1893"[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`Error::ValueTooLong`] if the memory for so many bytes cannot be had.
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: std::ops::Range<u64>) -> Result<Option<Vec<u8>>> {
        let Some(mut reader) = self.get_reader(key)? else { return Ok(None) };
        let len = range.end.min(reader.len()).saturating_sub(range.start);
        let refused = |error: std::io::Error| match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => Error::Source { cause: Arc::new(error) },
        };
        reader.seek(SeekFrom::Start(range.start)).map_err(refused)?;
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        let mut value = Vec::new();
        value.try_reserve_exact(bytes).map_err(|_| Error::ValueTooLong {
            len: bytes,
            max: isize::MAX as usize,
            most: isize::MAX as usize,
        })?;
        reader.take(len).read_to_end(&mut value).map_err(refused)?;
        Ok(Some(value))
    }

    /// The whole value of `key`, in memory.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let photos = db.large_values("photos")?;
    /// photos.insert("fram", vec![7; 1_000_000])?;
    /// assert_eq!(photos.get("fram")?.map(|photo| photo.len()), Some(1_000_000));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get_range`](Self::get_range).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.get_range(key, 0..u64::MAX)
    }

    /// The length of the value of `key` in bytes; `None` if there is none. The value is not read, unless it is short.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let photos = db.large_values("photos")?;
    /// photos.insert("fram", vec![7; 1_000_000])?;
    /// assert_eq!((photos.len_of("fram")?, photos.len_of("beagle")?), (Some(1_000_000), None));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn len_of(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        let stored = self.heads.get(key)?;
        stored.map(|stored| Head::decode(&stored.0).map(|head| head.len())).transpose()
    }

    /// Keys within `bounds` and the lengths of their values in bytes, in key order. Values are not read, unless they are short.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let photos = db.large_values("photos")?;
    /// photos.insert("beagle", [7; 200_000])?;
    /// photos.insert("fram", [7; 300_000])?;
    /// let all: Vec<_> = photos.range(..).collect::<sapwood::Result<_>>()?;
    /// assert!(all[1].0 == "fram" && all[1].1 == 300_000);
    /// # Ok(()) }
    /// ```
    pub fn range(&self, bounds: impl KeyBounds) -> LargeValueRange {
        LargeValueRange { records: self.heads.range(bounds) }
    }

    /// Keys that start with `prefix`, as [`range`](Self::range).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let photos = db.large_values("photos")?;
    /// photos.insert("fram/1892", [7; 200_000])?;
    /// assert_eq!((photos.prefix("fram/").count(), photos.prefix("beagle/").count()), (1, 0));
    /// # Ok(()) }
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> LargeValueRange {
        LargeValueRange { records: self.heads.prefix(prefix) }
    }
}

impl std::fmt::Debug for LargeValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LargeValues({:?})", self.name())
    }
}

/// An iterator over the keys of large values, and their lengths. Made by [`LargeValues::range`].
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let photos = db.large_values("photos")?;
/// photos.insert("fram", [7; 300_000])?;
/// let bytes: u64 = photos.range(..).map(|item| item.map(|(_, len)| len)).sum::<sapwood::Result<_>>()?;
/// assert_eq!(bytes, 300_000);
/// # Ok(()) }
/// ```
pub struct LargeValueRange {
    records: Range,
}

fn measured(item: Result<(Key, Value)>) -> Result<(Key, u64)> {
    let (key, stored) = item?;
    Ok((key, Head::decode(&stored.0)?.len()))
}

impl Iterator for LargeValueRange {
    type Item = Result<(Key, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.records.next().map(measured)
    }
}

impl DoubleEndedIterator for LargeValueRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.records.next_back().map(measured)
    }
}

/// Removes the chunks of a value in this batch.
fn remove_chunks(batch: &mut Batch, chunks: &Keyspace, id: LargeId) {
    batch.remove_range(chunks, id.chunk(0)..=id.chunk(u32::MAX));
}
