//! The Sequential Writer: nodes go to the end of the newest sub-file, a whole batch with one contiguous write. (AS B-tree,
//! JISE 2014, section 3.1.)
//!
//! A small file, `NAME`, says what the sub-files were made with, so that wrong options are refused before anything is
//! taken for damage:
//! ```text
//! offset size
//!      0    8  magic "SapwdSeq"
//!      8    4  page length in bytes
//!     12    4  CRC-32C of the 12 bytes before
//!     16       zeros, to the page's end
//! ```
//!
//! Invariants:
//! 1. Batches are numbered without a gap, in the order in which they were written.
//! 2. A batch lies in one file, unless it alone is longer than a file should be; then the file is as long as it is.

use crate::page::NodeId;
use crate::page::header::bytes_at;
use crate::page::node::Node;
use crate::store::Root;
use crate::store::batch::{self, Facts};
use crate::store::sub_files::{Address, SubFiles};
use crate::{Error, Result};
use psync::{Access, AlignedBuffer, Read, Volume, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const MAGIC: &[u8; 8] = b"SapwdSeq";

/// See the module.
pub(crate) struct SequentialStore {
    pub files: SubFiles,
    page_len: usize,
    /// Pages of a sub-file.
    pages_max: u32,
    singly: bool,
    /// The last batch that was written.
    pub batch: u64,
    /// The last batch that is durable.
    durable: u64,
    read: AtomicU64,
    written: u64,
}

impl SequentialStore {
    /// Makes the descriptor `name` and the first sub-file.
    pub fn create(volume: &Arc<dyn Volume>, name: &str, page_len: usize, pages_max: u32) -> Result<Self> {
        let alignment = volume.limits().alignment;
        if !page_len.is_power_of_two() || !(256..=1 << 20).contains(&page_len) {
            return Err(Error::Invalid(format!(
                "nodes of {page_len} bytes: a power of two from 256 to 2^20"
            )));
        }
        if !page_len.is_multiple_of(alignment) {
            return Err(Error::Invalid(format!(
                "nodes of {page_len} bytes: the device takes multiples of {alignment}"
            )));
        }
        let access = Access { write: true, create: true, create_new: true, direct: true };
        let file = volume.open(name, access)?;
        let mut page = AlignedBuffer::new(page_len);
        page[..8].copy_from_slice(MAGIC);
        page[8..12].copy_from_slice(&(page_len as u32).to_le_bytes());
        let crc = crc32c::crc32c(&page[..12]);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
        volume.write(&[Write { file, offset: 0, data: &page }])?;
        volume.sync(file)?;
        volume.close(file)?;
        let mut files = SubFiles::new(Arc::clone(volume), &prefix(name), page_len);
        files.start_next()?;
        Ok(Self::over(files, page_len, pages_max))
    }

    /// Opens the sub-files, once the descriptor has agreed. What is in them is not looked at.
    pub fn open(volume: &Arc<dyn Volume>, name: &str, page_len: usize, pages_max: u32) -> Result<Self> {
        let file = volume.open(name, Access { direct: true, ..Access::default() })?;
        let len = volume.len(file)?;
        if len != page_len as u64 {
            let _ = volume.close(file);
            return Err(Error::corrupt(
                name,
                0,
                "length of the file, which is that of a node",
                page_len,
                len,
            ));
        }
        let mut page = AlignedBuffer::new(page_len);
        let read = volume.read(&mut [Read { file, offset: 0, buffer: &mut page }]);
        volume.close(file)?;
        read?;
        if &page[..8] != MAGIC {
            let found = format!("{:02x?}", &page[..8]);
            return Err(Error::corrupt(name, 0, "magic", "\"SapwdSeq\"", found));
        }
        let (crc, found) = (u32::from_le_bytes(bytes_at(&page, 12)), crc32c::crc32c(&page[..12]));
        let made_with = u32::from_le_bytes(bytes_at(&page, 8));
        if crc != found || made_with as usize != page_len {
            let found = format!("{made_with}, checksum {found:08x}");
            return Err(Error::corrupt(
                name,
                0,
                "node length",
                format!("{page_len}, checksum {crc:08x}"),
                found,
            ));
        }
        let files = SubFiles::open(Arc::clone(volume), &prefix(name), page_len)?;
        Ok(Self::over(files, page_len, pages_max))
    }

    fn over(files: SubFiles, page_len: usize, pages_max: u32) -> Self {
        Self {
            files,
            page_len,
            pages_max,
            singly: false,
            batch: 0,
            durable: 0,
            read: AtomicU64::new(0),
            written: 0,
        }
    }

    /// Goes on after `batch`, which is durable like all before it.
    pub fn go_on_after(&mut self, batch: u64, pages_read: u64) {
        (self.batch, self.durable) = (batch, batch);
        self.read.fetch_add(pages_read, Relaxed);
    }

    /// Where the next batch will begin, if it has so many nodes: in a new file, if the newest has no room for it.
    pub fn place(&mut self, nodes: usize) -> Result<Address> {
        let (_, used) = self.files.newest().unwrap_or_default();
        if used > 0 && used as usize + nodes > self.pages_max as usize {
            self.files.start_next()?;
            self.durable = self.batch;
        }
        let (file, page) = self.files.newest().unwrap_or_default();
        Ok(Address { file, page })
    }

    /// Writes batches node by node from now on, as the loop of the paper's algorithm 2 does: a request each, one after the other.
    pub fn write_singly(&mut self) {
        self.singly = true;
    }

    /// Writes a batch, where [`Self::place`] said. `digest` is the table's afterwards.
    pub fn append(
        &mut self,
        nodes: &[(NodeId, Arc<Node>)],
        freed: &[NodeId],
        root: Option<Root>,
        digest: u64,
    ) -> Result<()> {
        let mut pages = self.files.buffer(nodes.len());
        let facts = Facts { batch: self.batch + 1, root, durable: self.durable, digest, freed };
        batch::encode(nodes, facts, self.page_len, &mut pages)?;
        if self.singly {
            pages.chunks(self.page_len).try_for_each(|page| self.files.append(page))?;
        } else {
            self.files.append(&pages)?;
        }
        self.batch += 1;
        self.written += nodes.len() as u64;
        Ok(())
    }

    /// Reads nodes with one psync.
    pub fn read(&self, wanted: &[(NodeId, Address)]) -> Result<Vec<Node>> {
        let places: Vec<_> = wanted.iter().map(|(_, place)| *place).collect();
        let pages = self.files.read(&places)?;
        self.read.fetch_add(pages.len() as u64, Relaxed);
        let decoded = wanted.iter().zip(&pages).map(|((id, place), page)| {
            batch::decode_node(page, &self.files.name(place.file), self.files.offset(place.page), *id)
        });
        decoded.collect()
    }

    /// Makes all batches durable.
    pub fn sync(&mut self) -> Result<()> {
        if self.durable < self.batch {
            self.files.sync()?;
            self.durable = self.batch;
        }
        Ok(())
    }

    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Pages read and written.
    pub fn moved(&self) -> (u64, u64) {
        (self.read.load(Relaxed), self.written)
    }
}

/// What the names of the sub-files begin with.
fn prefix(name: &str) -> String {
    format!("{name}-")
}
