//! A write-ahead log: a file of records, one file a generation.
//!
//! ```text
//! NAME-G: record*
//! record
//! offset size
//!      0    4  length of the payload
//!      4    4  CRC-32C of generation, offset of the record, and all from 8 on
//!      8    1  kind
//!      9       payload
//! ```
//!
//! Invariants:
//! 1. What [`Wal::sync`] has covered is read back by [`read`], in order, whole.
//! 2. The first record that is not sound ends the log; a record of another generation or place is none.

use crate::Result;
use psync::{Access, FileId, Read, Volume, Write};
use std::sync::Arc;

const HEAD: usize = 9;
/// Longest payload.
const PAYLOAD_MAX: usize = 1 << 24;

/// A record as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub kind: u8,
    pub payload: Vec<u8>,
}

/// Name of a generation's file.
pub(crate) fn file_name(name: &str, generation: u64) -> String {
    format!("{name}-{generation}")
}

/// Writes one generation.
pub(crate) struct Wal {
    volume: Arc<dyn Volume>,
    file: FileId,
    generation: u64,
    /// Bytes in the file.
    len: u64,
    pending: Vec<u8>,
    synced: bool,
}

impl Wal {
    /// Begins a generation, in place of whatever has its name. The name is durable when this returns.
    pub fn create(volume: Arc<dyn Volume>, name: &str, generation: u64) -> Result<Self> {
        let access = Access { write: true, create: true, ..Access::default() };
        let file = volume.open(&file_name(name, generation), access)?;
        volume.resize(file, 0)?;
        volume.sync(file)?;
        volume.sync_directory()?;
        Ok(Self { volume, file, generation, len: 0, pending: Vec::new(), synced: true })
    }

    /// Bytes of the log, those that wait included.
    pub fn len(&self) -> u64 {
        self.len + self.pending.len() as u64
    }

    /// Adds a record to what is to be written.
    pub fn append(&mut self, kind: u8, payload: &[u8]) {
        let offset = self.len();
        let start = self.pending.len();
        self.pending.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.pending.extend_from_slice(&[0; 4]);
        self.pending.push(kind);
        self.pending.extend_from_slice(payload);
        let crc = checksum(self.generation, offset, &self.pending[start + 8..]);
        self.pending[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
        self.synced = false;
    }

    /// Gives what waits to the device.
    pub fn write(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.volume.write(&[Write { file: self.file, offset: self.len, data: &self.pending }])?;
            self.len += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }

    /// Makes everything durable.
    pub fn sync(&mut self) -> Result<()> {
        if !self.synced {
            self.write()?;
            self.volume.sync(self.file)?;
            self.synced = true;
        }
        Ok(())
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        // Whoever needs it durable has synced it.
        let _ = self.volume.close(self.file);
    }
}

fn checksum(generation: u64, offset: u64, rest: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&generation.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &offset.to_le_bytes()), rest)
}

/// All sound records of a generation, up to the first that is not.
pub(crate) fn read(volume: &dyn Volume, name: &str, generation: u64) -> Result<Vec<Record>> {
    let file = volume.open(&file_name(name, generation), Access::default())?;
    let bytes = volume.len(file).and_then(|len| {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        if !bytes.is_empty() {
            volume.read(&mut [Read { file, offset: 0, buffer: &mut bytes }])?;
        }
        Ok(bytes)
    });
    volume.close(file)?;
    Ok(decode(&bytes?, generation))
}

fn decode(bytes: &[u8], generation: u64) -> Vec<Record> {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some((head, rest)) = bytes[at..].split_first_chunk::<HEAD>() {
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let crc = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let sound = len <= PAYLOAD_MAX
            && len <= rest.len()
            && checksum(generation, at as u64, &bytes[at + 8..at + HEAD + len]) == crc;
        if !sound {
            break;
        }
        records.push(Record { kind: head[8], payload: rest[..len].to_vec() });
        at += HEAD + len;
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use psync::Simulated;

    #[test]
    fn what_was_synced_is_read_back_and_nothing_else() {
        let volume = Simulated::new(1);
        let mut wal = Wal::create(Arc::new(volume.clone()), "log", 3).unwrap();
        let payloads: Vec<Vec<u8>> = (0..20).map(|index| vec![index as u8; index * 7]).collect();
        for (index, payload) in payloads.iter().enumerate() {
            wal.append(index as u8, payload);
            if index == 9 {
                wal.sync().unwrap();
            }
        }
        wal.write().unwrap();
        let read_kinds = |volume: &Simulated| {
            read(volume, "log", 3).unwrap().into_iter().map(|record| record.kind).collect::<Vec<_>>()
        };
        assert_eq!(read_kinds(&volume), (0..20).collect::<Vec<u8>>());
        for seed in 0..200 {
            let kinds = read_kinds(&volume.power_loss(seed));
            assert!(kinds.len() >= 10 && kinds == (0..kinds.len() as u8).collect::<Vec<_>>());
        }
        let bytes = volume.read_file("log-3").unwrap();
        assert!(decode(&bytes, 4).is_empty(), "another generation");
        assert!(decode(&bytes[9..], 3).is_empty(), "another place");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_up_to_the_first_unsound_record(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes, 1);
        }
    }
}
