//! A file of extents: neighbouring pages that are written and read in one request each, behind an anchor.
//!
//! Invariants:
//! 1. Pages 0 and 1 are the anchor's; every other page below `next` belongs to one extent, is free, or is retired.
//! 2. What is retired is not used again before the next anchor is durable: until then the old one may be needed.

use crate::page::NodeId;
use crate::store::anchor::{Anchor, Owner, PAGES};
use crate::{Counters, Error, Result};
use psync::{Access, AlignedBuffer, BufferPool, FileId, Read, Volume, Write};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// No count that only grows is ever so large: what says so is not to be believed.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;
/// Smallest page, in bytes.
const PAGE_LEN_MIN: usize = 512;

/// See the module.
pub(crate) struct ExtentFile {
    volume: Arc<dyn Volume>,
    file: FileId,
    name: String,
    owner: Owner,
    page_len: usize,
    buffers: BufferPool,
    anchor: Anchor,
    /// Pages below were used at some time.
    next: u64,
    /// Free extents: first page, pages. No two of them touch.
    free: BTreeMap<u64, u64>,
    retired: Vec<Range<u64>>,
    read: AtomicU64,
    written: AtomicU64,
}

const ACCESS: Access = Access { write: true, create: false, create_new: false, direct: true };

impl ExtentFile {
    /// Makes the file `name`; it is not there for good before the first [`Self::commit`].
    pub fn create(volume: Arc<dyn Volume>, name: &str, owner: Owner, page_len: usize) -> Result<Self> {
        Self::check_page_len(&*volume, page_len)?;
        let file = volume.open(name, Access { create: true, create_new: true, ..ACCESS })?;
        Ok(Self::new(volume, file, name, owner, page_len))
    }

    /// Opens the file, as its newest anchor describes it. All pages count as free: see [`Self::occupy`].
    pub fn open(volume: Arc<dyn Volume>, name: &str, owner: Owner, page_len: usize) -> Result<Self> {
        Self::check_page_len(&*volume, page_len)?;
        let file = volume.open(name, ACCESS)?;
        let mut this = Self::new(volume, file, name, owner, page_len);
        let pages_len = PAGES as usize * page_len;
        let len = this.volume.len(file)?;
        if len < page_len as u64 {
            return Err(Error::corrupt(name, 0, "length", format!("at least {page_len} bytes"), len));
        }
        // The second page may not have been written yet.
        let mut pages = this.buffers.take(pages_len);
        pages.fill(0);
        let there = pages_len.min(len as usize) / page_len * page_len;
        this.volume.read(&mut [Read { file, offset: 0, buffer: &mut pages[..there] }])?;
        this.anchor = Anchor::newest(&pages, owner, name)?;
        this.next = (len / page_len as u64).max(PAGES);
        this.give(PAGES..this.next);
        Ok(this)
    }

    fn check_page_len(volume: &dyn Volume, page_len: usize) -> Result<()> {
        let alignment = volume.limits().alignment;
        if !page_len.is_power_of_two()
            || !(PAGE_LEN_MIN..=1 << 20).contains(&page_len)
            || !page_len.is_multiple_of(alignment)
        {
            return Err(Error::Invalid(format!(
                "pages of {page_len} bytes: a power of two from {PAGE_LEN_MIN} to 1048576, and a multiple of {alignment} on this device"
            )));
        }
        Ok(())
    }

    fn new(volume: Arc<dyn Volume>, file: FileId, name: &str, owner: Owner, page_len: usize) -> Self {
        Self {
            volume,
            file,
            name: name.to_owned(),
            owner,
            page_len,
            buffers: BufferPool::new(4 << 20),
            anchor: Anchor { version: 0, words: Vec::new() },
            next: PAGES,
            free: BTreeMap::new(),
            retired: Vec::new(),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        }
    }

    pub fn anchor(&self) -> &Anchor {
        &self.anchor
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// First byte of a page.
    pub fn offset(&self, page: u64) -> u64 {
        page * self.page_len as u64
    }

    /// A buffer for `pages` pages, with arbitrary content.
    pub fn buffer(&self, pages: usize) -> AlignedBuffer {
        self.buffers.take(pages * self.page_len)
    }

    fn check(&self, pages: &Range<u64>) -> Result<()> {
        if pages.start < PAGES || pages.start > pages.end || pages.end > self.next {
            let expected = format!("pages of {PAGES} to {}", self.next);
            return Err(Error::corrupt(&self.name, 0, "extent", expected, format!("{pages:?}")));
        }
        Ok(())
    }

    /// Reads neighbouring pages with one request.
    pub fn read(&self, pages: Range<u64>) -> Result<AlignedBuffer> {
        self.check(&pages)?;
        let mut buffer = self.buffer((pages.end - pages.start) as usize);
        let offset = self.offset(pages.start);
        self.volume.read(&mut [Read { file: self.file, offset, buffer: &mut buffer }])?;
        self.read.fetch_add(pages.end - pages.start, Relaxed);
        Ok(buffer)
    }

    /// Reads single pages with one psync, and hands each over in the order asked.
    pub fn read_each(&self, pages: &[u64], take: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        pages.iter().try_for_each(|page| self.check(&(*page..page + 1)))?;
        let mut buffers: Vec<_> = pages.iter().map(|_| self.buffer(1)).collect();
        let mut set: Vec<_> = buffers
            .iter_mut()
            .zip(pages)
            .map(|(buffer, page)| Read { file: self.file, offset: self.offset(*page), buffer })
            .collect();
        self.volume.read(&mut set)?;
        self.read.fetch_add(pages.len() as u64, Relaxed);
        buffers.iter().enumerate().try_for_each(|(index, buffer)| take(index, buffer))
    }

    /// Writes neighbouring pages with one request.
    pub fn write(&self, first: u64, data: &[u8]) -> Result<()> {
        self.volume.write(&[Write { file: self.file, offset: self.offset(first), data }])?;
        self.written.fetch_add((data.len() / self.page_len) as u64, Relaxed);
        Ok(())
    }

    /// Writes single pages, which lie one after the other in `data`, with one psync.
    pub fn write_each(&self, pages: &[u64], data: &[u8]) -> Result<()> {
        let set: Vec<_> = pages
            .iter()
            .zip(data.chunks(self.page_len))
            .map(|(page, data)| Write { file: self.file, offset: self.offset(*page), data })
            .collect();
        self.volume.write(&set)?;
        self.written.fetch_add(pages.len() as u64, Relaxed);
        Ok(())
    }

    /// All pages that may have been written.
    pub fn all(&self) -> Range<u64> {
        PAGES..self.next
    }

    /// Makes what was written durable, without a new anchor.
    pub fn sync(&self) -> Result<()> {
        Ok(self.volume.sync(self.file)?)
    }

    /// An extent of `pages` pages: the first hole that is large enough, or new ones at the end.
    pub fn allocate(&mut self, pages: u64) -> Range<u64> {
        let hole = self.free.iter().find(|(_, len)| **len >= pages).map(|(first, len)| (*first, *len));
        match hole {
            Some((first, len)) => {
                self.free.remove(&first);
                if len > pages {
                    self.free.insert(first + pages, len - pages);
                }
                first..first + pages
            }
            None => {
                self.next += pages;
                self.next - pages..self.next
            }
        }
    }

    /// Makes an extent at the end of the file longer.
    pub fn extend(&mut self, extent: &mut Range<u64>, pages: u64) {
        debug_assert_eq!(extent.end, self.next, "only the last extent can grow");
        self.next += pages;
        extent.end = self.next;
    }

    /// An empty extent at the end, to be made longer.
    pub fn allocate_last(&self) -> Range<u64> {
        self.next..self.next
    }

    /// Gives an extent back that no anchor ever named: it can be used again at once.
    pub fn give(&mut self, extent: Range<u64>) {
        if extent.is_empty() {
            return;
        }
        let (mut first, mut end) = (extent.start, extent.end);
        if let Some((before, len)) = self.free.range(..first).next_back().map(|(at, len)| (*at, *len))
            && before + len == first
        {
            self.free.remove(&before);
            first = before;
        }
        if let Some(len) = self.free.remove(&end) {
            end += len;
        }
        self.free.insert(first, end - first);
    }

    /// Gives an extent back that the durable anchor names.
    pub fn retire(&mut self, extent: Range<u64>) {
        if !extent.is_empty() {
            self.retired.push(extent);
        }
    }

    /// After opening: the extent is in use. Refuses what lies outside the file or is in use already.
    pub fn occupy(&mut self, extent: Range<u64>) -> Result<()> {
        self.check(&extent)?;
        if extent.is_empty() {
            return Ok(());
        }
        let hole = self.free.range(..=extent.start).next_back().map(|(first, len)| *first..first + len);
        let Some(hole) = hole.filter(|hole| extent.end <= hole.end) else {
            let found = format!("pages {extent:?}, of which some are in use or not there");
            return Err(Error::corrupt(&self.name, 0, "extent", "pages of its own", found));
        };
        self.free.remove(&hole.start);
        self.give(hole.start..extent.start);
        self.give(extent.end..hole.end);
        Ok(())
    }

    /// Makes what was written durable, and then the words as the anchor. Retired pages are free after that.
    pub fn commit(&mut self, words: Vec<u64>) -> Result<()> {
        self.volume.sync(self.file)?;
        let anchor = Anchor { version: self.anchor.version + 1, words };
        let mut page = self.buffer(1);
        anchor.encode(self.owner, &mut page);
        self.write(anchor.page(), &page)?;
        self.volume.sync(self.file)?;
        if anchor.version == 1 {
            self.volume.sync_directory()?;
        }
        self.anchor = anchor;
        for extent in std::mem::take(&mut self.retired) {
            self.give(extent);
        }
        Ok(())
    }

    /// Pages that are in no extent, those included that wait for the next anchor: file and offset.
    pub fn unused(&self) -> Vec<(String, u64)> {
        let free = self.free.iter().map(|(first, len)| *first..first + len);
        let pages = free.chain(self.retired.iter().cloned()).flatten();
        pages.map(|page| (self.name.clone(), self.offset(page))).collect()
    }

    /// Pages that wait for the next anchor.
    pub fn retired(&self) -> u64 {
        self.retired.iter().map(|extent| extent.end - extent.start).sum()
    }

    /// Pages and space.
    pub fn counters(&self) -> Counters {
        Counters {
            pages_read: self.read.load(Relaxed),
            pages_written: self.written.load(Relaxed),
            space: self.next * self.page_len as u64,
            ..Counters::default()
        }
    }
}

impl Drop for ExtentFile {
    fn drop(&mut self) {
        // Whoever needs it durable has committed it.
        let _ = self.volume.close(self.file);
    }
}

/// A page's number as the id in its header.
pub(crate) fn id_of(page: u64) -> NodeId {
    NodeId(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::Simulated;

    fn file(volume: &Simulated) -> ExtentFile {
        ExtentFile::create(Arc::new(volume.clone()), "f", Owner::FdTree, 512).unwrap()
    }

    #[test]
    fn holes_join_and_are_used_again() {
        let mut file = file(&Simulated::new(1));
        let extents: Vec<_> = (0..4).map(|_| file.allocate(3)).collect();
        assert_eq!(extents, [2..5, 5..8, 8..11, 11..14]);
        file.give(2..5);
        file.give(8..11);
        file.give(5..8);
        assert_eq!(file.free, BTreeMap::from([(2, 9)]));
        assert_eq!(file.allocate(4), 2..6);
        assert_eq!(file.allocate(6), 14..20, "the hole is too small");
        assert_eq!(file.allocate(5), 6..11);
        assert!(file.free.is_empty());
    }

    #[test]
    fn retired_pages_wait_for_the_anchor() {
        let volume = Simulated::new(1);
        let mut file = file(&volume);
        let first = file.allocate(2);
        file.retire(first);
        assert_eq!(file.allocate(2), 4..6);
        file.commit(vec![7]).unwrap();
        assert_eq!(file.allocate(2), 2..4);
        let mut pages = file.buffer(2);
        pages.fill(0);
        file.write(4, &pages).unwrap();
        drop(file);
        let mut file = ExtentFile::open(Arc::new(volume), "f", Owner::FdTree, 512).unwrap();
        assert_eq!(file.anchor().words, [7]);
        file.occupy(3..5).unwrap();
        assert_eq!(file.free, BTreeMap::from([(2, 1), (5, 1)]));
        for extent in [0..1, 4..6, 3..4, 5..9] {
            assert!(file.occupy(extent).is_err());
        }
    }
}
