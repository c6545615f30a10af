//! Reading a large value: as a stream, from any place in it.
//!
//! Invariant: all of a value is read as of one moment. What others write or remove meanwhile changes nothing.

use super::stored::{CHUNK_LEN, Head, LargeId, chunk_len, chunks};
use crate::db::large_values::LargeValues;
use crate::db::snapshot::Snapshot;
use crate::error::{DATA, Error, Result};
use crate::iter::Range;
use bytes::Bytes;
use std::io::{self, BufRead, Read, Seek, SeekFrom};

/// Reads a large value. Made by [`LargeValues::get_reader`](crate::LargeValues::get_reader). It sees the value as of the moment at which it was made, and
/// holds what a [`Snapshot`] holds. Chunks of 128 KiB are checked before a byte of them is given out.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use std::io::{Read, Seek, SeekFrom};
///
/// let logbooks = db.large_values("logbooks")?;
/// logbooks.insert("fram", "24 June 1893: left Christiania")?;
/// let mut reader = logbooks.get_reader("fram")?.expect("it is there");
/// assert_eq!(reader.len(), 30);
/// reader.seek(SeekFrom::Start(14)).expect("in range");
/// let mut rest = String::new();
/// reader.read_to_string(&mut rest).expect("reads");
/// assert_eq!(rest, "left Christiania");
/// # Ok(()) }
/// ```
pub struct LargeValueReader {
    snapshot: Snapshot,
    values: LargeValues,
    head: Head,
    position: u64,
    /// The chunk that was read last, and its number.
    chunk: Option<(u32, Bytes)>,
    /// The chunks behind it.
    next: Option<Range>,
}

impl LargeValueReader {
    pub(super) fn new(snapshot: Snapshot, values: &LargeValues, head: Head) -> Self {
        Self { snapshot, values: values.clone(), head, position: 0, chunk: None, next: None }
    }

    /// The length of the value in bytes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let logbooks = db.large_values("logbooks")?;
    /// logbooks.insert("fram", [7; 100_000])?;
    /// assert_eq!(logbooks.get_reader("fram")?.map(|reader| reader.len()), Some(100_000));
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> u64 {
        self.head.len()
    }

    /// Whether the value has no bytes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let logbooks = db.large_values("logbooks")?;
    /// logbooks.insert("fram", "")?;
    /// assert!(logbooks.get_reader("fram")?.is_some_and(|reader| reader.is_empty()));
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the chunk of this number.
    fn load(&mut self, id: LargeId, number: u32) -> Result<()> {
        let follows = self.chunk.as_ref().is_some_and(|(last, _)| *last + 1 == number);
        let last = chunks(self.len()).saturating_sub(1);
        // A range that has told of an error is over: what is read again begins another one.
        let next = self.next.take().filter(|_| follows);
        let mut range = next
            .unwrap_or_else(|| self.snapshot.range(&self.values.chunks, id.chunk(number)..=id.chunk(last)));
        let found = range.next().transpose().map_err(|error| self.values.heads.named(error))?;
        let found = found.filter(|(key, _)| key[..] == id.chunk(number));
        let expected = chunk_len(self.head.len(), number);
        let found_len = found.as_ref().map(|(_, chunk)| chunk.len());
        match found {
            Some((_, chunk)) if chunk.len() == expected => {
                (self.chunk, self.next) = (Some((number, chunk.into())), Some(range));
                Ok(())
            }
            _ => {
                let what = format!("chunk {number} of a large value");
                let found = found_len.map_or("none".to_owned(), |len| format!("{len} bytes"));
                Err(Error::corrupt(DATA, 0, what, format!("{expected} bytes"), found))
            }
        }
    }

    /// What is to be read next: none at the end.
    fn rest(&mut self) -> Result<&[u8]> {
        let position = self.position.min(self.len());
        // A value has no more chunks than a `u32` counts.
        let number = (position / CHUNK_LEN as u64) as u32;
        let is_loaded = self.chunk.as_ref().is_some_and(|(loaded, _)| *loaded == number);
        if let Head::Long { id, len } = self.head
            && position < len
            && !is_loaded
        {
            self.load(id, number)?;
        }
        Ok(match (&self.head, &self.chunk) {
            (Head::Short(value), _) => &value[position as usize..],
            (Head::Long { len, .. }, Some((_, chunk))) if position < *len => {
                &chunk[(position % CHUNK_LEN as u64) as usize..]
            }
            (Head::Long { .. }, _) => &[],
        })
    }
}

impl Read for LargeValueReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.rest()?;
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        self.position += len as u64;
        Ok(len)
    }
}

impl BufRead for LargeValueReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.rest()?)
    }

    fn consume(&mut self, len: usize) {
        self.position = self.position.saturating_add(len as u64);
    }
}

impl Seek for LargeValueReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "seek to before the value's beginning");
        self.position = to.ok_or_else(before)?;
        Ok(self.position)
    }
}

impl std::fmt::Debug for LargeValueReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LargeValueReader({} of {} bytes)", self.position, self.len())
    }
}
