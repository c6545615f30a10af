//! Where the nodes of a Bε-tree are: pages that are written once, and a pool of some of them in memory.
//!
//! Invariants:
//! 1. A page that was written since the last anchor and is not needed any more can be used at once; one that the anchor leads to
//!    waits for the next.
//! 2. The root as the anchor has it is on a page of its own, which nothing in memory leads to.

use crate::buffer::frames::{Eviction, Frames};
use crate::page::buffered_node::BufferedNode;
use crate::store::anchor::Owner;
use crate::store::extents::{ExtentFile, id_of};
use crate::{Counters, Error, Result};
use parking_lot::Mutex;
use psync::Volume;
use std::collections::HashSet;
use std::sync::Arc;

const FILE: &str = "bepsilontree";
/// More levels than any tree has whose pages have a number of 64 bits.
const LEVELS_MAX: u64 = 64;

struct Pool {
    frames: Frames<u64, Arc<BufferedNode>>,
    hits: u64,
}

/// See the module.
pub(super) struct NodeFile {
    file: ExtentFile,
    pool: Mutex<Pool>,
    /// Pages that no anchor leads to.
    fresh: HashSet<u64>,
    root: Option<u64>,
    sequence: u64,
}

impl NodeFile {
    fn over(file: ExtentFile, frames: usize, root: Option<u64>) -> Self {
        let sequence = file.anchor().version;
        let pool = Mutex::new(Pool { frames: Frames::new(Eviction::LowestLevel, frames), hits: 0 });
        Self { file, pool, fresh: HashSet::new(), root, sequence }
    }

    pub fn create(volume: Arc<dyn Volume>, page_len: usize, frames: usize) -> Result<Self> {
        Ok(Self::over(ExtentFile::create(volume, FILE, Owner::BEpsilon, page_len)?, frames, None))
    }

    /// Opens it: the root, and its level. The pages below it count as free: see [`Self::occupy`].
    pub fn open(
        volume: Arc<dyn Volume>,
        page_len: usize,
        frames: usize,
    ) -> Result<(Self, Arc<BufferedNode>, u8)> {
        let mut file = ExtentFile::open(volume, FILE, Owner::BEpsilon, page_len)?;
        let words = file.anchor().words.clone();
        let [page, level] = words[..] else {
            return Err(Error::corrupt(FILE, 0, "words of the anchor", "two", words.len()));
        };
        let level = u8::try_from(level).ok().filter(|level| u64::from(*level) < LEVELS_MAX);
        let level =
            level.ok_or_else(|| Error::corrupt(FILE, 0, "level of the root", "below 64", words[1]))?;
        file.occupy(page..page.saturating_add(1))?;
        let nodes = Self::over(file, frames, Some(page));
        let root = Arc::new(nodes.decode(page, level, &nodes.file.read(page..page + 1)?)?);
        Ok((nodes, root, level))
    }

    /// After opening: a page is in use.
    pub fn occupy(&mut self, page: u64) -> Result<()> {
        self.file.occupy(page..page.saturating_add(1))
    }

    fn decode(&self, page: u64, level: u8, bytes: &[u8]) -> Result<BufferedNode> {
        BufferedNode::decode(bytes, FILE, self.file.offset(page), id_of(page), level)
    }

    /// Nodes of a level, in the order asked; what is not in the pool with one parallel read.
    pub fn read_many(&self, pages: &[u64], level: u8) -> Result<Vec<Arc<BufferedNode>>> {
        let mut pool = self.pool.lock();
        let mut found: Vec<_> = pages.iter().map(|page| pool.frames.get(page).cloned()).collect();
        pool.hits += found.iter().flatten().count() as u64;
        drop(pool);
        let missing: Vec<usize> = (0..pages.len()).filter(|index| found[*index].is_none()).collect();
        if !missing.is_empty() {
            let read: Vec<u64> = missing.iter().map(|index| pages[*index]).collect();
            self.file.read_each(&read, &mut |at, bytes| {
                found[missing[at]] = Some(Arc::new(self.decode(read[at], level, bytes)?));
                Ok(())
            })?;
            for index in missing {
                found[index].iter().for_each(|node| self.hold(pages[index], level, node));
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    pub fn read(&self, page: u64, level: u8) -> Result<Arc<BufferedNode>> {
        let mut read = self.read_many(&[page], level)?;
        read.pop().ok_or_else(|| Error::broken("a node that was read is not there"))
    }

    fn hold(&self, page: u64, level: u8, node: &Arc<BufferedNode>) {
        let mut pool = self.pool.lock();
        if pool.frames.admits(level, 1) {
            pool.frames.put(page, level, 1, Arc::clone(node));
        }
        while let Some((lowest, _)) = pool.frames.excess() {
            pool.frames.pop(&lowest);
        }
    }

    /// Writes nodes of a level to pages of their own with one psync; the pages.
    pub fn write_new<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a BufferedNode>,
        level: u8,
    ) -> Result<Vec<u64>> {
        let nodes: Vec<_> = nodes.collect();
        let pages: Vec<u64> = nodes.iter().map(|_| self.file.allocate(1).start).collect();
        let mut bytes = self.file.buffer(nodes.len());
        for ((node, page), bytes) in nodes.iter().zip(&pages).zip(bytes.chunks_mut(self.file.page_len())) {
            self.sequence += 1;
            node.encode(level, id_of(*page), self.sequence, bytes);
        }
        self.file.write_each(&pages, &bytes)?;
        self.fresh.extend(&pages);
        for (node, page) in nodes.into_iter().zip(&pages) {
            self.hold(*page, level, &Arc::new(node.clone()));
        }
        Ok(pages)
    }

    /// A page is not needed any more.
    pub fn free(&mut self, page: u64) {
        self.pool.get_mut().frames.pop(&page);
        if self.fresh.remove(&page) {
            self.file.give(page..page + 1);
        } else {
            self.file.retire(page..page + 1);
        }
    }

    /// Makes a tree durable.
    pub fn commit(&mut self, root: &BufferedNode, level: u8) -> Result<()> {
        if let Some(old) = self.root.take() {
            self.file.retire(old..old + 1);
        }
        let pages = self.write_new(std::iter::once(root), level)?;
        self.root = pages.first().copied();
        pages.iter().for_each(|page| {
            self.pool.get_mut().frames.pop(page);
        });
        self.file.commit(vec![pages.first().copied().unwrap_or_default(), u64::from(level)])?;
        self.fresh.clear();
        Ok(())
    }

    /// Pages that wait for the next anchor.
    pub fn retired(&self) -> u64 {
        self.file.retired()
    }

    /// Pages that may have been written, and of them those that the tree in memory does not need: free, retired, or the root as the
    /// anchor has it.
    pub fn all(&self) -> (u64, u64) {
        let all = self.file.all();
        (all.end - all.start, self.file.unused().len() as u64 + u64::from(self.root.is_some()))
    }

    pub fn unused(&self) -> Vec<(String, u64)> {
        self.file.unused()
    }

    pub fn counters(&self) -> Counters {
        let pool = self.pool.lock();
        let memory = ((pool.frames.len() + 1) * self.file.page_len()) as u64;
        Counters { hits: pool.hits, memory, ..self.file.counters() }
    }
}
