//! Snapshots as files: records in key order, in chunks with checksums. [`bytes`] encrypts files of an encrypted database; offsets
//! and lengths here, and what is sent to other nodes, are of the content.
//!
//! ```text
//! file    header | chunk …                           all integers little-endian
//! header  "SapRaft2" | len u32 | crc32c u32 of len and content | content: openraft's meta, names of the keyspaces (postcard)
//! chunk   len u32 | crc32c u32 | content             the crc is of the number of the chunk (u64), len and content
//! content 0u8 | keyspace u16 | (key len u32 | value len u32 | key | value) …
//!         1u8 | records u64                          the last chunk: how many records all chunks have
//!         2u8 | len u32 | LZ4 block                  `len` bytes that begin with 0u8 or 3u8, compressed; not in files of "SapRaft1"
//!         3u8 | keyspace u16 | (key len u32 | reason len u32 | key | reason) …    records that cannot be merged; a program that does not
//!                                                    know this kind refuses the file
//! ```
//! Invariants:
//! 1. `<group>-<index>-<id>.snapshot` is whole: it is written as `.partial`, synced, then renamed.
//! 2. Whatever of a file is believed was compared with a checksum; a chunk that is missing, doubled or elsewhere is found by its number.
//! 3. Memory: one chunk (256 KiB, or one record if that is longer), and as much for its compressed form.
//! 4. A chunk is compressed where that saves an eighth.

mod bytes;
mod handle;

pub(crate) use bytes::SnapshotKey;
pub use handle::SnapshotFile;
pub(crate) use handle::{make_directory, unique};

use crate::error::{Error, Result};
use crate::record;
use bytes::Bytes;
use handle::{UNFINISHED, rename};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"SapRaft2";
/// Of files whose chunks are never compressed.
const MAGIC_1: &[u8; 8] = b"SapRaft1";
/// A chunk ends when it has so many bytes.
const CHUNK: usize = 256 << 10;
/// No chunk is longer: the longest key and value, and the frame around them.
const CHUNK_MAX: usize = 18 << 20;
const HEADER_MAX: usize = 16 << 20;

/// What a chunk has, by its first byte.
const RECORDS: u8 = 0;
const END: u8 = 1;
const COMPRESSED: u8 = 2;
const FAILED: u8 = 3;
/// Bytes before the LZ4 block of a compressed chunk: kind and length.
const COMPRESSED_HEAD: usize = 5;

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
    number: u64,
    /// What the chunk has, and of which keyspace.
    of: (u8, u16),
    chunk: Vec<u8>,
    /// The chunk's compressed form.
    compressed: Vec<u8>,
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
            number: 0,
            of: (RECORDS, 0),
            chunk: Vec::new(),
            compressed: Vec::new(),
            records: 0,
        };
        writer.write(MAGIC)?;
        let header = record::encode("the header of a snapshot", header)?;
        writer.put(&header)?;
        Ok(writer)
    }

    /// Where it is while it is written.
    fn path(&self) -> &Path {
        self.file.get_ref().path()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| Error::file("writing", self.path())(error))
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
        let (chunk, mut compressed) = (std::mem::take(&mut self.chunk), std::mem::take(&mut self.compressed));
        let len = compress(&chunk, &mut compressed);
        self.put(if len < chunk.len() - chunk.len() / 8 { &compressed[..len] } else { &chunk })?;
        (self.chunk, self.compressed) = (chunk, compressed);
        self.chunk.clear();
        Ok(())
    }

    /// Writes a record: its value, or why it cannot be merged.
    pub fn record(
        &mut self,
        keyspace: u16,
        key: &[u8],
        value: std::result::Result<&[u8], &str>,
    ) -> Result<()> {
        let (kind, value) = match value {
            Ok(value) => (RECORDS, value),
            Err(reason) => (FAILED, reason.as_bytes()),
        };
        let len = key.len() + value.len() + 8;
        if self.of != (kind, keyspace) || self.chunk.len() + len > CHUNK {
            self.end_chunk()?;
            self.of = (kind, keyspace);
        }
        if self.chunk.is_empty() {
            self.chunk.push(kind);
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

    /// Ends the file, durably. Nothing is written to it any more.
    pub fn end(&mut self) -> Result<()> {
        self.end_chunk()?;
        let mut end = vec![END];
        end.extend_from_slice(&self.records.to_le_bytes());
        self.put(&end)?;
        let synced = self.file.flush().and_then(|()| self.file.get_mut().sync());
        synced.map_err(|error| Error::file("syncing", self.path())(error))
    }

    /// Gives a file that was ended its name, durably.
    pub fn name(self, to: &Path) -> Result<()> {
        rename(self.path(), to)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It is not there any more if it has its name.
        _ = fs::remove_file(self.path());
    }
}

/// Makes `to` begin with the compressed form of a chunk. Returns its length.
fn compress(chunk: &[u8], to: &mut Vec<u8>) -> usize {
    to.resize(COMPRESSED_HEAD + lz4_flex::block::get_maximum_output_size(chunk.len()), 0);
    let len = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
    to[0] = COMPRESSED;
    to[1..COMPRESSED_HEAD].copy_from_slice(&len.to_le_bytes());
    match lz4_flex::block::compress_into(chunk, &mut to[COMPRESSED_HEAD..]) {
        Ok(len) => COMPRESSED_HEAD + len,
        // There is room for the worst; a chunk is stored as it is, if not.
        Err(_) => usize::MAX,
    }
}

/// For fuzzing: a file whose header and chunks are pieces of `bytes`, each behind its length, with all that could be right about them.
#[cfg(any(fuzzing, test))]
pub(crate) fn seal(bytes: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    let (mut rest, mut number) = (bytes, 0);
    while let [len, after @ ..] = rest {
        let (content, later) = after.split_at(after.len().min(usize::from(*len)));
        rest = later;
        let len = content.len() as u32;
        file.extend_from_slice(&len.to_le_bytes());
        file.extend_from_slice(&checksum(number, len, content).to_le_bytes());
        file.extend_from_slice(content);
        number += 1;
    }
    file
}

/// The number of its keyspace, key, and value, or why it cannot be merged.
pub(crate) type Record = (u16, Vec<u8>, std::result::Result<Vec<u8>, String>);

/// Reads a snapshot.
pub(crate) struct Reader {
    file: Bytes,
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
            offset: 0,
            number: 0,
            chunk: Vec::new(),
            at: 0,
            records: 0,
            ended: false,
        };
        let magic = reader.read(MAGIC.len(), "the magic")?;
        if magic != MAGIC && magic != MAGIC_1 {
            return Err(reader.damage(0, "the magic", format!("{MAGIC:?}"), format!("{magic:?}")));
        }
        reader.next_chunk("the header", HEADER_MAX)?;
        let header = record::decode(group, "the header of a snapshot", &reader.chunk)?;
        reader.chunk.clear();
        Ok((reader, header))
    }

    fn damage(&self, offset: u64, what: &'static str, expected: String, found: String) -> Error {
        damage(self.file.path(), offset, what, expected, found)
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
            _ => Error::file("reading", self.file.path())(error),
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

    /// Puts what a compressed chunk has in its place.
    fn decompress(&mut self, len: [u8; 4]) -> Result<()> {
        let len = u32::from_le_bytes(len) as usize;
        // Before room is made for it.
        if len > CHUNK_MAX {
            let (expected, found) = (format!("at most {CHUNK_MAX} bytes"), format!("{len}"));
            return Err(self.damage(self.offset, "a compressed chunk", expected, found));
        }
        let found = match lz4_flex::block::decompress(&self.chunk[COMPRESSED_HEAD..], len) {
            Ok(content) if content.len() == len && matches!(*content, [RECORDS | FAILED, _, _, ..]) => {
                (self.chunk, self.at) = (content, 3);
                return Ok(());
            }
            Ok(content) => format!("{} bytes of kind {:?}", content.len(), content.first()),
            Err(error) => error.to_string(),
        };
        Err(self.damage(self.offset, "a compressed chunk", format!("{len} bytes of records"), found))
    }

    /// The next record. `None` behind the last, once the file was seen to be whole.
    pub fn next(&mut self) -> Result<Option<Record>> {
        if self.ended {
            return Ok(None);
        }
        while self.at >= self.chunk.len() {
            self.next_chunk("a chunk", CHUNK_MAX)?;
            match *self.chunk.as_slice() {
                [RECORDS | FAILED, _, _, ..] => self.at = 3,
                [COMPRESSED, a, b, c, d, ..] => self.decompress([a, b, c, d])?,
                [END, a, b, c, d, e, f, g, h] => {
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
                    return Err(self.damage(self.offset, "a chunk", "kind 0, 1, 2 or 3".into(), found));
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
        if self.chunk[0] == RECORDS {
            return Ok(Some((keyspace, key, Ok(value))));
        }
        let reason = String::from_utf8(value).map_err(|error| {
            let expected = "text".to_owned();
            self.damage(self.offset, "why a record cannot be merged", expected, error.to_string())
        })?;
        Ok(Some((keyspace, key, Err(reason))))
    }
}

#[cfg(test)]
mod tests;
