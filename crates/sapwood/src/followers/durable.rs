//! `DURABLE`: how far the log and the manifest are durable, as their writer has said last.
//!
//! ```text
//! offset size
//!      0    8  magic "SapDURA\n"
//!      8    4  format version
//!     12   16  database id
//!     28   16  start of the machine: see `psync::Volume::boot_id`
//!     44    8  epoch: the manifest is durable up to the edit that made this version
//!     52    8  sequence number: the log is durable up to this operation
//!     60    4  CRC-32C of bytes 0..60
//! ```
//! The file has a page, so that it can be mapped: then each sync of the log is noted with a store to memory. Where files cannot be
//! mapped, it is written with each edit of the manifest, and when the database is closed.
//!
//! It is synced when it is created only: after a power loss it says less than is durable. But then the machine was started anew, and
//! all that can be read is durable.

use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::operation::SeqNo;
use psync::{Access, FileId, Read, Result, Volume, Window, Write};
use std::sync::Arc;

pub(crate) const FILE: &str = "DURABLE";
const MAGIC: &[u8; 8] = b"SapDURA\n";
/// The version of this format, since the file is no part of the database's.
const FORMAT: u32 = 1;
/// Bytes of what is said: see the drawing.
const LEN: usize = 64;
/// Bytes of the file: what can be mapped.
const PAGE: usize = 4096;
/// So often is a file read that its writer is writing at that moment.
const ATTEMPTS: usize = 1000;

/// What is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Durable {
    pub epoch: u64,
    pub seq: SeqNo,
}

impl Durable {
    /// All that can be read.
    pub const ALL: Self = Self { epoch: u64::MAX, seq: u64::MAX };

    fn encode(self, database: DatabaseId, boot: [u8; 16]) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[12..28].copy_from_slice(&database.0);
        out[28..44].copy_from_slice(&boot);
        out[44..52].copy_from_slice(&self.epoch.to_le_bytes());
        out[52..60].copy_from_slice(&self.seq.to_le_bytes());
        let crc = crc32c::crc32c(&out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes what `encode` wrote for this database: all, if the machine was started since. `None` if it is anything else.
    pub fn decode(bytes: &[u8], database: DatabaseId, boot: [u8; 16]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (magic, format, id) = (reader.array::<8>()?, reader.u32()?, reader.array::<16>()?);
        let (its_boot, epoch, seq) = (reader.array::<16>()?, reader.u64()?, reader.u64()?);
        let is_sound = magic == *MAGIC && format == FORMAT && id == database.0;
        let is_sound = is_sound && crc32c::crc32c(&bytes[..60]) == reader.u32()?;
        is_sound.then_some(if its_boot == boot { Self { epoch, seq } } else { Self::ALL })
    }

    /// What is durable, as the database's writer has said last. `None` if there is no such file, or not one of this database.
    pub fn read(volume: &dyn Volume, database: DatabaseId) -> Result<Option<Self>> {
        let file = match volume.open(FILE, Access::default()) {
            Err(psync::Error::NotFound { .. }) => return Ok(None),
            opened => opened?,
        };
        let found = Self::read_open(volume, file, database);
        volume.close(file)?;
        found
    }

    fn read_open(volume: &dyn Volume, file: FileId, database: DatabaseId) -> Result<Option<Self>> {
        if volume.len(file)? < LEN as u64 {
            return Ok(None);
        }
        let mut bytes = [0; LEN];
        for _ in 0..ATTEMPTS {
            volume.read(&mut [Read { file, offset: 0, buffer: &mut bytes }])?;
            let found = Self::decode(&bytes, database, volume.boot_id());
            if found.is_some() {
                return Ok(found);
            }
            std::thread::yield_now();
        }
        Ok(None)
    }
}

/// What is said in the file.
pub(super) struct Publication {
    volume: Arc<dyn Volume>,
    database: DatabaseId,
    boot: [u8; 16],
    durable: Durable,
    /// `None` as long as the file could not be written: then there is none, unless it could not be removed either.
    file: Option<OpenFile>,
}

/// The file, open to be written.
struct OpenFile {
    volume: Arc<dyn Volume>,
    file: FileId,
    window: Option<Box<dyn Window>>,
}

impl Publication {
    /// Begins. If the file cannot be written, it is removed, and begun with a later edit.
    ///
    /// # Errors
    /// The file could not be removed either: if the machine was started since it was written, it says that all is durable.
    pub fn begin(volume: &Arc<dyn Volume>, database: DatabaseId, durable: Durable) -> Result<Self> {
        let (volume, boot) = (Arc::clone(volume), volume.boot_id());
        let mut publication = Self { volume, database, boot, durable, file: None };
        publication.write_first()?;
        Ok(publication)
    }

    fn write_first(&mut self) -> Result<()> {
        match self.open() {
            Ok(file) => self.file = Some(file),
            Err(error) => self.withdraw(&error)?,
        }
        Ok(())
    }

    /// Removes what cannot be written: trees of a later epoch may have parts of commits behind the operation that it names.
    fn withdraw(&mut self, error: &psync::Error) -> Result<()> {
        tracing::warn!(%error, "followers see nothing of what is written until a later edit");
        self.file = None;
        match self.volume.remove(FILE) {
            Err(psync::Error::NotFound { .. }) => Ok(()),
            removed => removed,
        }
    }

    fn open(&self) -> Result<OpenFile> {
        let volume = &self.volume;
        let access = Access { write: true, create: true, ..Access::default() };
        let file = volume.open(FILE, access)?;
        // From here on it is closed, whatever fails.
        let mut open = OpenFile { volume: Arc::clone(volume), file, window: None };
        let is_new = volume.len(file)? == 0;
        let mut page = [0; PAGE];
        page[..LEN].copy_from_slice(&self.durable.encode(self.database, self.boot));
        volume.write(&[Write { file, offset: 0, data: &page }])?;
        if is_new {
            volume.sync(file)?;
        }
        open.window = volume.window(file, 0..PAGE as u64)?;
        Ok(open)
    }

    /// Notes what is durable besides; where the file is not mapped, only if `write`.
    pub fn reach(&mut self, durable: Durable, write: bool) {
        self.durable.epoch = self.durable.epoch.max(durable.epoch);
        self.durable.seq = self.durable.seq.max(durable.seq);
        let bytes = self.durable.encode(self.database, self.boot);
        let result = match &mut self.file {
            Some(OpenFile { file, window, .. }) => {
                let is_stored =
                    window.as_mut().is_some_and(|window| window.store(0, &bytes).unwrap_or(false));
                let written = match !is_stored && (write || window.is_some()) {
                    true => self.volume.write(&[Write { file: *file, offset: 0, data: &bytes }]),
                    false => Ok(()),
                };
                written.or_else(|error| self.withdraw(&error))
            }
            None if write => self.write_first(),
            None => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "what followers read of what is durable is older than what is written");
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.window = None;
        let _ = self.volume.close(self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: [u8; 16] = [3; 16];
    const DATABASE: DatabaseId = DatabaseId(*b"the right forest");

    #[test]
    fn golden_bytes_and_back() {
        let durable = Durable { epoch: 7, seq: 300 };
        let bytes = durable.encode(DATABASE, BOOT);
        assert_eq!(&bytes[..12], b"SapDURA\n\x01\0\0\0");
        assert_eq!(Durable::decode(&bytes, DATABASE, BOOT), Some(durable));
        assert_eq!(
            Durable::decode(&bytes, DATABASE, [4; 16]),
            Some(Durable::ALL),
            "the machine was started since"
        );
        assert_eq!(Durable::decode(&bytes, DatabaseId([1; 16]), BOOT), None, "another database's");
        for (byte, bit) in (0..LEN).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
            let mut other = bytes;
            other[byte] ^= 1 << bit;
            assert_eq!(Durable::decode(&other, DATABASE, BOOT), None, "byte {byte}, bit {bit}");
        }
        (0..LEN).for_each(|len| assert_eq!(Durable::decode(&bytes[..len], DATABASE, BOOT), None));
    }

    #[test]
    fn it_never_goes_back() {
        for volume in [psync::Simulated::new(1), psync::Simulated::new(1).with_windows()] {
            let shared: Arc<dyn Volume> = Arc::new(volume);
            let mut publication =
                Publication::begin(&shared, DATABASE, Durable { epoch: 3, seq: 40 }).unwrap();
            publication.reach(Durable { epoch: 5, seq: 0 }, true);
            publication.reach(Durable { epoch: 2, seq: 50 }, true);
            let found = Durable::read(&*shared, DATABASE).unwrap();
            assert_eq!(found, Some(Durable { epoch: 5, seq: 50 }));
        }
    }
}
