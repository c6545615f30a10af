//! A page of operations, in memory and on the device: what was done since the last commit. (CB-tree, Applied Sciences 2020,
//! section 3.5, for embedded systems.)
//!
//! The page is written anew with every operation. The paper has one page on the device; a torn write of it would take the
//! operations before with it, so two take turns here.
//! ```text
//! offset size
//!      0    8  magic "SapwdLog"
//!      8    4  CRC-32C of all that follows, to the page's end
//!     12    4  n: records
//!     16    8  version of the commit that they follow
//!     24    8  serial number: grows with every write
//!     32  17 n operation (1 sets, 2 deletes), key, value; then zeros
//! ```
//! Little-endian.
//!
//! Invariant: the write with serial number `s` goes to page `s % 2`, so the newest sound page holds all operations but
//! perhaps the one whose write failed.

use crate::page::header::bytes_at;
use crate::page::{Key, Value};
use crate::{Error, Result};
use psync::{Access, AlignedBuffer, FileId, Read, Volume, Write};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"SapwdLog";
const HEAD: usize = 32;
const RECORD: usize = 17;
const ACCESS: Access = Access { write: true, create: false, create_new: false, direct: true };

/// One operation: the value that a key gets, or `None` if it is deleted.
pub(crate) type Operation = (Key, Option<Value>);

/// See the module.
pub(crate) struct LogPage {
    volume: Arc<dyn Volume>,
    file: FileId,
    page: AlignedBuffer,
    records: usize,
    records_max: usize,
    version: u64,
    serial: u64,
    written: u64,
}

impl LogPage {
    /// Makes the file `name`, with no records. `limit`: most records, if less than a page holds.
    pub fn create(
        volume: Arc<dyn Volume>,
        name: &str,
        page_len: usize,
        limit: Option<usize>,
    ) -> Result<Self> {
        let file = volume.open(name, Access { create: true, create_new: true, ..ACCESS })?;
        let mut log = Self::new(volume, file, page_len, limit);
        log.write()?;
        log.write()?;
        log.volume.sync_directory()?;
        Ok(log)
    }

    fn new(volume: Arc<dyn Volume>, file: FileId, page_len: usize, limit: Option<usize>) -> Self {
        let room = room(page_len);
        let records_max = limit.unwrap_or(room).clamp(1, room);
        let page = AlignedBuffer::new(page_len);
        Self { volume, file, page, records: 0, records_max, version: 0, serial: 0, written: 0 }
    }

    /// Opens the file: the operations that follow the commit `version`.
    pub fn open(
        volume: Arc<dyn Volume>,
        name: &str,
        page_len: usize,
        limit: Option<usize>,
        version: u64,
    ) -> Result<(Self, Vec<Operation>)> {
        let file = volume.open(name, ACCESS)?;
        let mut log = Self::new(volume, file, page_len, limit);
        let mut pages = AlignedBuffer::new(2 * page_len);
        log.volume.read(&mut [Read { file, offset: 0, buffer: &mut pages }])?;
        let (first, second) = pages.split_at(page_len);
        let newest = match (decode(first, name, 0), decode(second, name, page_len)) {
            (Ok(first), Ok(second)) => {
                if first.serial > second.serial {
                    first
                } else {
                    second
                }
            }
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => one,
            (Err(error), Err(_)) => return Err(error),
        };
        // The other page may be torn, with any serial number.
        log.serial = newest.serial;
        log.start(version);
        Ok((log, if newest.version == version { newest.operations } else { Vec::new() }))
    }

    /// Whether there is no room for another operation before [`Self::start`].
    pub fn is_full(&self) -> bool {
        self.records >= self.records_max
    }

    /// Begins anew after the commit `version`. What is on the device belongs to the one before, and counts no more.
    pub fn start(&mut self, version: u64) {
        self.page.fill(0);
        (self.records, self.version) = (0, version);
    }

    /// Adds an operation, durably.
    pub fn append(&mut self, (key, value): Operation) -> Result<()> {
        put(&mut self.page, self.records, (key, value));
        self.records += 1;
        self.write()
    }

    fn write(&mut self) -> Result<()> {
        self.serial += 1;
        seal(&mut self.page, self.records, self.version, self.serial);
        let offset = self.serial % 2 * self.page.len() as u64;
        self.volume.write(&[Write { file: self.file, offset, data: &self.page }])?;
        self.volume.sync(self.file)?;
        self.written += 1;
        Ok(())
    }

    /// Pages written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes in memory, and the same twice on the device.
    pub fn len(&self) -> u64 {
        self.page.len() as u64
    }
}

impl Drop for LogPage {
    fn drop(&mut self) {
        let _ = self.volume.close(self.file);
    }
}

/// Operations that a page has room for.
pub(crate) fn room(page_len: usize) -> usize {
    page_len.saturating_sub(HEAD) / RECORD
}

/// Puts an operation behind `records` others.
pub(crate) fn put(page: &mut [u8], records: usize, (key, value): Operation) {
    let at = HEAD + RECORD * records;
    page[at] = if value.is_some() { 1 } else { 2 };
    page[at + 1..at + 9].copy_from_slice(&key.to_le_bytes());
    page[at + 9..at + 17].copy_from_slice(&value.unwrap_or_default().to_le_bytes());
}

/// Completes a page of so many operations.
pub(crate) fn seal(page: &mut [u8], records: usize, version: u64, serial: u64) {
    page[..8].copy_from_slice(MAGIC);
    page[12..16].copy_from_slice(&(records as u32).to_le_bytes());
    page[16..24].copy_from_slice(&version.to_le_bytes());
    page[24..32].copy_from_slice(&serial.to_le_bytes());
    let crc = crc32c::crc32c(&page[12..]);
    page[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// What a page of operations says.
pub(crate) struct Decoded {
    pub version: u64,
    pub serial: u64,
    pub operations: Vec<Operation>,
}

/// Takes the operations off a page that was read from `offset` of the file `name`.
pub(crate) fn decode(page: &[u8], name: &str, offset: usize) -> Result<Decoded> {
    let wrong =
        |what, expected: String, found: String| Error::corrupt(name, offset as u64, what, expected, found);
    if &page[..8] != MAGIC {
        return Err(wrong("magic of a log page", "\"SapwdLog\"".into(), format!("{:02x?}", &page[..8])));
    }
    let (crc, found) = (u32::from_le_bytes(bytes_at(page, 8)), crc32c::crc32c(&page[12..]));
    if crc != found {
        return Err(wrong("checksum of a log page", format!("{crc:08x}"), format!("{found:08x}")));
    }
    let count = u32::from_le_bytes(bytes_at(page, 12)) as usize;
    let room = room(page.len());
    if count > room {
        return Err(wrong("records of a log page", format!("at most {room}"), count.to_string()));
    }
    let word = |at| u64::from_le_bytes(bytes_at(page, at));
    let record = |index| {
        let at = HEAD + RECORD * index;
        match page[at] {
            1 => Ok((word(at + 1), Some(word(at + 9)))),
            2 => Ok((word(at + 1), None)),
            other => Err(wrong("operation in a log page", "1 or 2".into(), other.to_string())),
        }
    };
    let operations = (0..count).map(record).collect::<Result<_>>()?;
    Ok(Decoded { version: word(16), serial: word(24), operations })
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::Simulated;

    #[test]
    fn operations_survive_a_torn_write_of_the_next_one() {
        for seed in 0..200 {
            let volume = Simulated::new(seed).with_alignment(128);
            let mut log = LogPage::create(Arc::new(volume.clone()), "log", 4096, None).unwrap();
            log.start(3);
            let operations: Vec<_> = (0..100).map(|key| (key, (key % 3 != 0).then_some(key + 1))).collect();
            operations.iter().for_each(|operation| log.append(*operation).unwrap());
            use psync::{Fault, OperationKind, Repeat};
            volume.fail_nth(OperationKind::Write, 1, Fault::PowerOff, Repeat::Once);
            log.append((500, None)).unwrap_err();
            let image = volume.power_loss(seed);
            let open =
                |version| LogPage::open(Arc::new(image.clone()), "log", 4096, None, version).unwrap().1;
            let found = open(3);
            assert_eq!(found[..100], operations);
            assert!(found.len() == 100 || found[100..] == [(500, None)], "seed {seed}");
            assert_eq!(open(4), [], "of another commit");
        }
    }

    #[test]
    fn it_is_full_when_a_page_is() {
        let volume = Simulated::new(1).with_alignment(128);
        let mut log = LogPage::create(Arc::new(volume.clone()), "log", 4096, None).unwrap();
        let mut count = 0;
        while !log.is_full() {
            log.append((count, None)).unwrap();
            count += 1;
        }
        assert_eq!((count, log.written()), (239, 2 + 239));
        drop(log);
        let page = volume.read_file("log").unwrap();
        for damage in [3, 9, 13, 40] {
            let mut page = page[..4096].to_vec();
            page[damage] ^= 1;
            assert!(matches!(decode(&page, "log", 0), Err(Error::Corrupt { .. })));
        }
    }
}
