//! A log file, seen through a window of a megabyte; and the search for records in what does not follow on.
//!
//! Invariants:
//! 1. Memory: one window, and one body.
//! 2. A failed read is an error, never the end of the log.

use super::file_name;
use super::record::{Flaw, HEAD_LEN, Head, Header, Lsn, Place, RECORD_MAGIC};
use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use bytes::Bytes;
use psync::{Access, AlignedBuffer, FileId, Read, Volume};

/// Bytes that are read at a time.
pub(super) const WINDOW_LEN: usize = 1 << 20;

/// Bytes at offsets: a file, or memory.
pub(super) trait Source {
    fn len(&self) -> u64;

    /// Fills `buffer` from `offset` on. The caller stays below the length.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

/// An open log file, closed when dropped.
pub(super) struct FileSource<'a> {
    volume: &'a dyn Volume,
    file: FileId,
    len: u64,
}

impl<'a> FileSource<'a> {
    pub fn open(volume: &'a dyn Volume, generation: u64) -> Result<Self> {
        let file = match volume.open(&file_name(generation), Access::default()) {
            Ok(file) => file,
            Err(psync::Error::NotFound { .. }) => return Err(missing_file(generation)),
            Err(other) => return Err(other.into()),
        };
        let mut source = Self { volume, file, len: 0 };
        source.len = volume.len(file)?;
        Ok(source)
    }
}

impl Source for FileSource<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        Ok(self.volume.read(&mut [Read { file: self.file, offset, buffer }])?)
    }
}

impl Drop for FileSource<'_> {
    fn drop(&mut self) {
        // Nothing was written through it, so nothing can be lost with it.
        let _ = self.volume.close(self.file);
    }
}

pub(super) fn missing_file(generation: u64) -> Error {
    Flaw::new("the log file is missing", "a log file", "none").at(file_name(generation), 0)
}

/// Something valid that testifies to durability.
pub(super) struct Witness {
    pub generation: u64,
    pub offset: u64,
    pub durable: Lsn,
}

/// A piece of a source in memory.
pub(super) struct Window<S> {
    pub source: S,
    bytes: AlignedBuffer,
    start: u64,
}

impl<S: Source> Window<S> {
    pub fn new(source: S) -> Self {
        let mut bytes = AlignedBuffer::new(source.len().min(WINDOW_LEN as u64) as usize);
        bytes.set_len(0);
        Self { source, bytes, start: 0 }
    }

    /// `len` bytes from `offset` on, or as many as there are; at most a window's.
    pub fn get(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        if self.held(offset, len).is_none() {
            let rest = self.source.len().saturating_sub(offset);
            self.bytes.set_len(rest.min(WINDOW_LEN as u64) as usize);
            self.start = offset;
            if let Err(error) = self.source.read_at(offset, &mut self.bytes) {
                self.bytes.set_len(0);
                return Err(error);
            }
        }
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let bytes = self.bytes.get(from..).unwrap_or_default();
        Ok(bytes.get(..len).unwrap_or(bytes))
    }

    fn held(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..)?.get(..len)
    }

    /// A copy of `len` bytes from `offset` on. The caller has seen that they are there.
    pub fn copy(&mut self, offset: u64, len: usize) -> Result<Bytes> {
        if len > WINDOW_LEN {
            let mut bytes = vec![0; len];
            self.source.read_at(offset, &mut bytes)?;
            return Ok(bytes.into());
        }
        Ok(Bytes::copy_from_slice(self.get(offset, len)?))
    }

    /// Where the zeros begin that the source ends in, but not before `from`.
    pub fn zeros_at_end(&mut self, from: u64) -> Result<u64> {
        let (mut at, mut end) = (from, from);
        while at < self.source.len() {
            let bytes = self.get(at, WINDOW_LEN)?;
            if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
                end = at + last as u64 + 1;
            }
            at += bytes.len() as u64;
        }
        Ok(end)
    }

    /// Whether something valid from `from` on testifies that more than what lies below `above` was durable.
    pub fn witness(&mut self, header: &Header, from: u64, above: Lsn) -> Result<Option<Witness>> {
        let generation = header.generation;
        let found = self.scan(header.database, generation, from, |head, offset| {
            head.durable > above && head.durable <= header.base.plus(offset)
        })?;
        Ok(found.map(|(offset, head)| Witness { generation, offset, durable: head.durable }))
    }

    /// The first valid head from `from` on, at whatever offset, that is wanted.
    pub fn scan(
        &mut self,
        database: DatabaseId,
        generation: u64,
        from: u64,
        wanted: impl Fn(&Head, u64) -> bool,
    ) -> Result<Option<(u64, Head)>> {
        let mut at = from;
        while at.saturating_add(HEAD_LEN as u64) <= self.source.len() {
            let bytes = self.get(at, WINDOW_LEN)?;
            let magics = bytes.windows(HEAD_LEN).enumerate().filter(|(_, b)| b.starts_with(&RECORD_MAGIC));
            for (index, bytes) in magics {
                let offset = at + index as u64;
                if let Ok(head) = Head::decode(bytes, &Place { database, generation, offset })
                    && wanted(&head, offset)
                {
                    return Ok(Some((offset, head)));
                }
            }
            // The last bytes may begin a head that the window cut.
            at += (bytes.len() - (HEAD_LEN - 1)) as u64;
            self.bytes.set_len(0);
        }
        Ok(None)
    }
}
