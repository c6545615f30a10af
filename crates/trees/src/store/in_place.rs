//! Pages in place: a node's id is the number of its page, and writing it overwrites it.
//!
//! Invariants:
//! 1. Pages 0 and 1 are the superblock's; every other page below `next` is a node or free.
//! 2. A set of reads or writes is one psync call: nothing else is in flight meanwhile.
//! 3. A page that was read carries its own id and a sound checksum.

use crate::page::NodeId;
use crate::page::header::Header;
use crate::page::node::Node;
use crate::store::Root;
use crate::store::superblock::{PAGES, Superblock};
use crate::{Counters, Error, Result};
use psync::{Access, AlignedBuffer, BufferPool, FileId, Read, Volume, Write};
use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What can stand on a page.
pub(crate) trait PageCodec: Sized {
    /// Fills a page.
    fn encode(&self, id: NodeId, sequence: u64, page: &mut [u8]);

    /// Takes it off a page that was read from `offset` of `file`.
    fn decode(page: &[u8], file: &str, offset: u64, id: NodeId) -> Result<(Self, Header)>;
}

impl PageCodec for Node {
    fn encode(&self, id: NodeId, sequence: u64, page: &mut [u8]) {
        Node::encode(self, id, sequence, page);
    }

    fn decode(page: &[u8], file: &str, offset: u64, id: NodeId) -> Result<(Self, Header)> {
        Node::decode(page, file, offset, id)
    }
}

/// A file of pages.
pub(crate) struct InPlaceStore<N = Node> {
    volume: Arc<dyn Volume>,
    file: FileId,
    name: String,
    page_len: usize,
    buffers: BufferPool,
    superblock: Superblock,
    /// Pages below were used at some time.
    next: AtomicU64,
    free: Vec<u64>,
    sequence: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    nodes: PhantomData<fn() -> N>,
}

const ACCESS: Access = Access { write: true, create: false, create_new: false, direct: true };

impl<N: PageCodec> InPlaceStore<N> {
    /// Makes the file `name`, with nothing in it.
    pub fn create(volume: Arc<dyn Volume>, name: &str, page_len: usize) -> Result<Self> {
        if !page_len.is_power_of_two() || !(128..=1 << 20).contains(&page_len) {
            return Err(Error::Invalid(format!("pages of {page_len} bytes: a power of two from 128 on")));
        }
        let alignment = volume.limits().alignment;
        if !page_len.is_multiple_of(alignment) {
            return Err(Error::Invalid(format!(
                "pages of {page_len} bytes: the device takes multiples of {alignment}"
            )));
        }
        let file = volume.open(name, Access { create: true, create_new: true, ..ACCESS })?;
        let superblock =
            Superblock { version: 0, root: Root { id: NodeId(0), level: 0 }, pages: PAGES, words: [0; 3] };
        Ok(Self::new(volume, file, name, page_len, superblock))
    }

    /// Opens the file, as its newest superblock describes it. Which pages are free is told by [`Self::keep_only`].
    pub fn open(volume: Arc<dyn Volume>, name: &str, page_len: usize) -> Result<Self> {
        let file = volume.open(name, ACCESS)?;
        let empty =
            Superblock { version: 0, root: Root { id: NodeId(0), level: 0 }, pages: PAGES, words: [0; 3] };
        let mut store = Self::new(volume, file, name, page_len, empty);
        let mut pages = store.buffers.take(PAGES as usize * page_len);
        store.volume.read(&mut [Read { file, offset: 0, buffer: &mut pages }])?;
        store.superblock = Superblock::newest(&pages, name)?;
        store.next = AtomicU64::new(store.superblock.pages);
        // No page has a higher one, since a page's sequence number is only a witness, not a promise.
        store.sequence = AtomicU64::new(store.superblock.version << 32);
        Ok(store)
    }

    fn new(
        volume: Arc<dyn Volume>,
        file: FileId,
        name: &str,
        page_len: usize,
        superblock: Superblock,
    ) -> Self {
        Self {
            volume,
            file,
            name: name.to_owned(),
            page_len,
            buffers: BufferPool::new(4 << 20),
            next: AtomicU64::new(superblock.pages),
            superblock,
            free: Vec::new(),
            sequence: AtomicU64::new(0),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            nodes: PhantomData,
        }
    }

    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Where the tree began when it was last made durable.
    pub fn durable_root(&self) -> Root {
        self.superblock.root
    }

    fn offset(&self, id: NodeId) -> Result<u64> {
        let next = self.next();
        if id.0 < PAGES || id.0 >= next {
            let expected = format!("{PAGES} to {}", next.saturating_sub(1));
            return Err(Error::corrupt(&self.name, 0, "number of a page", expected, id.0));
        }
        Ok(id.0 * self.page_len as u64)
    }

    /// Reads pages with one psync.
    pub fn read_pages(&self, ids: &[NodeId]) -> Result<Vec<N>> {
        let offsets = ids.iter().map(|id| self.offset(*id)).collect::<Result<Vec<_>>>()?;
        let mut buffers: Vec<AlignedBuffer> = ids.iter().map(|_| self.buffers.take(self.page_len)).collect();
        let mut set: Vec<_> = buffers
            .iter_mut()
            .zip(&offsets)
            .map(|(buffer, offset)| Read { file: self.file, offset: *offset, buffer })
            .collect();
        self.volume.read(&mut set)?;
        self.read.fetch_add(ids.len() as u64, Relaxed);
        let decoded = ids.iter().zip(&buffers).zip(offsets);
        decoded.map(|((id, page), offset)| Ok(N::decode(page, &self.name, offset, *id)?.0)).collect()
    }

    /// Writes pages with one psync.
    pub fn write_pages<'a>(&self, nodes: impl IntoIterator<Item = (NodeId, &'a N)>) -> Result<()>
    where
        N: 'a,
    {
        let mut pages = Vec::new();
        for (id, node) in nodes {
            let mut page = self.buffers.take(self.page_len);
            node.encode(id, self.sequence.fetch_add(1, Relaxed), &mut page);
            pages.push((self.offset(id)?, page));
        }
        let set: Vec<_> =
            pages.iter().map(|(offset, data)| Write { file: self.file, offset: *offset, data }).collect();
        self.volume.write(&set)?;
        self.written.fetch_add(set.len() as u64, Relaxed);
        Ok(())
    }

    pub fn allocate(&mut self) -> NodeId {
        NodeId(self.free.pop().unwrap_or_else(|| {
            let next = self.next.get_mut();
            *next += 1;
            *next - 1
        }))
    }

    pub fn free(&mut self, id: NodeId) {
        self.free.push(id.0);
    }

    /// After opening: all pages but these are free.
    pub fn keep_only(&mut self, used: &HashSet<NodeId>) {
        self.free = (PAGES..self.next()).rev().filter(|page| !used.contains(&NodeId(*page))).collect();
    }

    /// The system's own words, as they were last made durable.
    pub fn durable_words(&self) -> [u64; 3] {
        self.superblock.words
    }

    /// Pages that were used at some time.
    pub fn next(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Pages below `next` are in use from now on, by somebody who hands them out himself.
    pub fn reach(&self, next: u64) {
        self.next.fetch_max(next, Relaxed);
    }

    /// After opening, if a log knows better than the superblock.
    pub fn set_next(&mut self, next: u64) {
        self.next = AtomicU64::new(next.max(PAGES));
    }

    /// Makes what was written durable.
    pub fn sync_pages(&self) -> Result<()> {
        Ok(self.volume.sync(self.file)?)
    }

    /// Makes what was written durable, and then that the tree begins at `root`.
    pub fn sync(&mut self, root: Root) -> Result<()> {
        self.sync_with(root, self.superblock.words)
    }

    /// The same, with the system's own words.
    pub fn sync_with(&mut self, root: Root, words: [u64; 3]) -> Result<()> {
        self.sync_pages()?;
        let superblock = Superblock { version: self.superblock.version + 1, root, pages: self.next(), words };
        let mut page = self.buffers.take(self.page_len);
        superblock.encode(&mut page);
        let offset = superblock.page() * self.page_len as u64;
        self.volume.write(&[Write { file: self.file, offset, data: &page }])?;
        self.volume.sync(self.file)?;
        if superblock.version == 1 {
            self.volume.sync_directory()?;
        }
        self.superblock = superblock;
        Ok(())
    }

    /// Pages and space.
    pub fn counters(&self) -> Counters {
        Counters {
            pages_read: self.read.load(Relaxed),
            pages_written: self.written.load(Relaxed),
            space: self.next() * self.page_len as u64,
            ..Counters::default()
        }
    }
}

impl<N> Drop for InPlaceStore<N> {
    fn drop(&mut self) {
        // Whoever needs it durable has synced it.
        let _ = self.volume.close(self.file);
    }
}
