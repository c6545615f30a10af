//! Snapshots as files: records in key order, in chunks with checksums. [`bytes`] encrypts files of an encrypted database; offsets
//! and lengths here, and what is sent to other nodes, are of the content.
//!
//! ```text
//! file    header | chunk …                           all integers little-endian
//! header  "SapRaft1" | len u32 | crc32c u32 of len and content | content: openraft's meta, names of the keyspaces (postcard)
//! chunk   len u32 | crc32c u32 | content             the crc is of the number of the chunk (u64), len and content
//! content 0u8 | keyspace u16 | (key len u32 | value len u32 | key | value) …
//!         1u8 | records u64                          the last chunk: how many records all chunks have
//! ```
//! Invariants:
//! 1. `<group>-<index>-<id>.snapshot` is whole: it is written as `.partial`, synced, then renamed.
//! 2. Whatever of a file is believed was compared with a checksum; a chunk that is missing, doubled or elsewhere is found by its number.
//! 3. Memory: one chunk (256 KiB, or one record if that is longer).

mod bytes;
mod handle;

pub(crate) use bytes::SnapshotKey;
pub use handle::SnapshotFile;
pub(crate) use handle::unique;

use crate::error::{Error, Result};
use crate::record;
use bytes::Bytes;
use handle::{UNFINISHED, rename};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"SapRaft1";
/// A chunk ends when it has so many bytes.
const CHUNK: usize = 256 << 10;
/// No chunk is longer: the longest key and value, and the frame around them.
const CHUNK_MAX: usize = 18 << 20;
const HEADER_MAX: usize = 16 << 20;

fn damage(path: &Path, offset: u64, what: &'static str, expected: String, found: String) -> Error {
    Error::Snapshot { path: path.to_owned(), offset, what, expected, found }
}

fn checksum(number: u64, len: u32, content: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), &len.to_le_bytes());
    crc32c::crc32c_append(crc, content)
}

/// Writes a snapshot.
pub(crate) struct Writer {
    file: BufWriter<Bytes>,
    /// While it is written.
    path: PathBuf,
    number: u64,
    keyspace: u16,
    chunk: Vec<u8>,
    records: u64,
}

impl Writer {
    /// Begins the file that will have the name `to`.
    pub fn begin<T: Serialize>(to: &Path, key: Option<&SnapshotKey>, header: &T) -> Result<Self> {
        let path = to.with_extension(UNFINISHED);
        let mut how = File::options();
        how.create(true).truncate(true).read(true).write(true);
        let file = Bytes::create(&path, &how, key)?;
        let mut writer = Self {
            file: BufWriter::with_capacity(64 << 10, file),
            path,
            number: 0,
            keyspace: 0,
            chunk: Vec::new(),
            records: 0,
        };
        writer.write(MAGIC)?;
        let header = record::encode("the header of a snapshot", header)?;
        writer.put(&header)?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::file("writing", &self.path))
    }

    /// Writes a header or a chunk.
    fn put(&mut self, content: &[u8]) -> Result<()> {
        // A record's limits are far below.
        let len = u32::try_from(content.len()).unwrap_or(u32::MAX);
        self.write(&len.to_le_bytes())?;
        self.write(&checksum(self.number, len, content).to_le_bytes())?;
        self.write(content)?;
        self.number += 1;
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.chunk);
        self.put(&chunk)?;
        self.chunk = chunk;
        self.chunk.clear();
        Ok(())
    }

    pub fn record(&mut self, keyspace: u16, key: &[u8], value: &[u8]) -> Result<()> {
        let len = key.len() + value.len() + 8;
        if self.keyspace != keyspace || self.chunk.len() + len > CHUNK {
            self.end_chunk()?;
            self.keyspace = keyspace;
        }
        if self.chunk.is_empty() {
            self.chunk.push(0);
            self.chunk.extend_from_slice(&keyspace.to_le_bytes());
        }
        for part in [key, value] {
            let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
            self.chunk.extend_from_slice(&len.to_le_bytes());
        }
        self.chunk.extend_from_slice(key);
        self.chunk.extend_from_slice(value);
        self.records += 1;
        Ok(())
    }

    /// Ends the file, and gives it its name, durably.
    pub fn finish(mut self, to: &Path) -> Result<()> {
        self.end_chunk()?;
        let mut end = vec![1];
        end.extend_from_slice(&self.records.to_le_bytes());
        self.put(&end)?;
        let synced = self.file.flush().and_then(|()| self.file.get_mut().sync());
        synced.map_err(Error::file("syncing", &self.path))?;
        rename(&self.path, to)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It is not there any more if it was finished.
        _ = fs::remove_file(&self.path);
    }
}

/// The number of its keyspace, key and value.
pub(crate) type Record = (u16, Vec<u8>, Vec<u8>);

/// Reads a snapshot.
pub(crate) struct Reader {
    file: Bytes,
    path: PathBuf,
    offset: u64,
    number: u64,
    chunk: Vec<u8>,
    /// Where in the chunk the next record is.
    at: usize,
    records: u64,
    /// Whether the last chunk was read.
    ended: bool,
}

impl Reader {
    /// Opens a file and reads its header.
    pub fn open<T: DeserializeOwned>(
        path: &Path,
        key: Option<&SnapshotKey>,
        group: u64,
    ) -> Result<(Self, T)> {
        let mut reader = Self {
            file: Bytes::open(path, key)?,
            path: path.to_owned(),
            offset: 0,
            number: 0,
            chunk: Vec::new(),
            at: 0,
            records: 0,
            ended: false,
        };
        let magic = reader.read(MAGIC.len(), "the magic")?;
        if magic != MAGIC {
            return Err(reader.damage(0, "the magic", format!("{MAGIC:?}"), format!("{magic:?}")));
        }
        reader.next_chunk("the header", HEADER_MAX)?;
        let header = record::decode(group, "the header of a snapshot", &reader.chunk)?;
        reader.chunk.clear();
        Ok((reader, header))
    }

    fn damage(&self, offset: u64, what: &'static str, expected: String, found: String) -> Error {
        damage(&self.path, offset, what, expected, found)
    }

    fn read(&mut self, len: usize, what: &'static str) -> Result<Vec<u8>> {
        let left = self.file.len() - self.offset;
        if len as u64 > left {
            return Err(self.damage(
                self.offset,
                what,
                format!("{len} bytes"),
                format!("{left} bytes to the end"),
            ));
        }
        let mut bytes = vec![0; len];
        self.file.read_exact(&mut bytes).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => {
                self.damage(self.offset, what, "what was written there".to_owned(), error.to_string())
            }
            _ => Error::file("reading", &self.path)(error),
        })?;
        self.offset += len as u64;
        Ok(bytes)
    }

    fn next_chunk(&mut self, what: &'static str, max: usize) -> Result<()> {
        let at = self.offset;
        let frame = self.read(8, what)?;
        let number = |at: usize| frame[at..].first_chunk().copied().map_or(0, u32::from_le_bytes);
        let (len, expected) = (number(0), number(4));
        if len as usize > max {
            return Err(self.damage(at, what, format!("at most {max} bytes"), format!("{len}")));
        }
        self.chunk = self.read(len as usize, what)?;
        let found = checksum(self.number, len, &self.chunk);
        if found != expected {
            return Err(self.damage(at, what, format!("checksum {expected:08x}"), format!("{found:08x}")));
        }
        self.number += 1;
        self.at = 0;
        Ok(())
    }

    /// The next record. `None` behind the last, once the file was seen to be whole.
    pub fn next(&mut self) -> Result<Option<Record>> {
        if self.ended {
            return Ok(None);
        }
        while self.at >= self.chunk.len() {
            self.next_chunk("a chunk", CHUNK_MAX)?;
            match *self.chunk.as_slice() {
                [0, _, _, ..] => self.at = 3,
                [1, a, b, c, d, e, f, g, h] => {
                    let records = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                    if records != self.records || self.offset != self.file.len() {
                        let (found, left) = (self.records, self.file.len() - self.offset);
                        let expected = format!("{records} records, then the end");
                        let found = format!("{found} records, then {left} bytes");
                        return Err(self.damage(self.offset, "the last chunk", expected, found));
                    }
                    self.ended = true;
                    return Ok(None);
                }
                _ => {
                    let kind = self.chunk.first().copied();
                    let found = format!("{kind:?} and {} bytes", self.chunk.len());
                    return Err(self.damage(self.offset, "a chunk", "kind 0 or 1".into(), found));
                }
            }
        }
        let keyspace = u16::from_le_bytes([self.chunk[1], self.chunk[2]]);
        let record = self.chunk[self.at..].split_first_chunk::<8>().and_then(|(lens, rest)| {
            let [a, b, c, d, e, f, g, h] = *lens;
            let (key, value) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
            let (key, rest) = rest.split_at_checked(key as usize)?;
            Some((key.to_vec(), rest.get(..value as usize)?.to_vec()))
        });
        let Some((key, value)) = record else {
            let found = format!("{} bytes", self.chunk.len() - self.at);
            return Err(self.damage(self.offset, "a record of a chunk", "a whole one".into(), found));
        };
        self.at += 8 + key.len() + value.len();
        self.records += 1;
        Ok(Some((keyspace, key, value)))
    }
}

#[cfg(test)]
mod tests;
