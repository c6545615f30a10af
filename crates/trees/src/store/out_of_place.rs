//! Pages out of place: a node's id stays, and every time it is written after a commit it gets another page; a table in memory
//! says which. What the last commit speaks of is never overwritten, so that power loss takes the tree back to it.
//!
//! Invariants:
//! 1. Pages 0 and 1 are the commit record's. Every other page below `next_page` is a node's, free, or kept: what the last
//!    commit speaks of and is not needed any more. Kept pages become free with the next commit.
//! 2. Sequence numbers grow with every page written. On the device, pages with numbers from `committed` on are not part of
//!    the tree yet; recovery erases them, lest a later commit takes them for its own.
//! 3. After recovery the table is, to the last entry, the one of the last commit: its digest says so.

use crate::page::NodeId;
use crate::page::header::bytes_at;
use crate::page::node::Node;
use crate::store::Root;
use crate::store::commit_record::{CommitRecord, PAGES};
use crate::store::mapping_table::mixed;
use crate::{Counters, Error, Result};
use psync::{Access, AlignedBuffer, BufferPool, FileId, Read, Volume, Write};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages that recovery reads at a time.
const WINDOW: u64 = 64;
const ACCESS: Access = Access { write: true, create: false, create_new: false, direct: true };

/// Where a node is, and when it was written.
#[derive(Clone, Copy, Debug)]
struct Place {
    page: u64,
    sequence: u64,
}

impl Place {
    fn digest(self, id: NodeId) -> u64 {
        mixed(mixed(id.0, self.page), self.sequence)
    }
}

/// See the module.
pub(crate) struct OutOfPlaceStore {
    volume: Arc<dyn Volume>,
    file: FileId,
    name: String,
    page_len: usize,
    buffers: BufferPool,
    table: BTreeMap<NodeId, Place>,
    next_page: u64,
    free_pages: Vec<u64>,
    kept: Vec<u64>,
    next_id: u64,
    free_ids: Vec<u64>,
    /// Of the next page to be written.
    sequence: u64,
    committed: u64,
    version: u64,
    root: Root,
    /// Of the table as it is.
    digest: u64,
    /// Of the table as of the last commit.
    committed_digest: u64,
    read: AtomicU64,
    written: u64,
}

impl OutOfPlaceStore {
    /// Makes the file `name`, with nothing in it.
    pub fn create(volume: Arc<dyn Volume>, name: &str, page_len: usize) -> Result<Self> {
        let alignment = volume.limits().alignment;
        if !page_len.is_power_of_two() || !(128..=1 << 20).contains(&page_len) {
            return Err(Error::Invalid(format!(
                "pages of {page_len} bytes: a power of two from 128 to 2^20"
            )));
        }
        if !page_len.is_multiple_of(alignment) {
            return Err(Error::Invalid(format!(
                "pages of {page_len} bytes: the device takes multiples of {alignment}"
            )));
        }
        let file = volume.open(name, Access { create: true, create_new: true, ..ACCESS })?;
        Ok(Self::new(volume, file, name, page_len))
    }

    fn new(volume: Arc<dyn Volume>, file: FileId, name: &str, page_len: usize) -> Self {
        Self {
            volume,
            file,
            name: name.to_owned(),
            page_len,
            buffers: BufferPool::new(4 << 20),
            table: BTreeMap::new(),
            next_page: PAGES,
            free_pages: Vec::new(),
            kept: Vec::new(),
            next_id: 1,
            free_ids: Vec::new(),
            sequence: 0,
            committed: 0,
            version: 0,
            root: Root { id: NodeId(0), level: 0 },
            digest: 0,
            committed_digest: 0,
            read: AtomicU64::new(0),
            written: 0,
        }
    }

    /// Opens the file as of its last commit.
    pub fn open(volume: Arc<dyn Volume>, name: &str, page_len: usize) -> Result<Self> {
        let file = volume.open(name, ACCESS)?;
        let mut store = Self::new(volume, file, name, page_len);
        let mut pages = store.buffers.take(PAGES as usize * page_len);
        store.volume.read(&mut [Read { file, offset: 0, buffer: &mut pages }])?;
        let record = CommitRecord::newest(&pages, name)?;
        let (len, expected) = (store.volume.len(file)?, record.pages.saturating_mul(page_len as u64));
        if len < expected || record.pages < PAGES {
            return Err(Error::corrupt(name, 0, "length of the file", expected, len));
        }
        if len > expected {
            store.volume.resize(file, expected)?;
        }
        store.next_page = record.pages;
        (store.sequence, store.committed) = (record.sequence, record.sequence);
        (store.version, store.root) = (record.version, record.root);
        store.committed_digest = record.digest;
        let children = store.scan()?;
        store.keep_reached(&children)?;
        Ok(store)
    }

    /// Finds the newest committed copy of every node, and erases what was written later. The children of inner nodes.
    fn scan(&mut self) -> Result<HashMap<NodeId, Vec<NodeId>>> {
        let mut children = HashMap::new();
        let mut later = Vec::new();
        let mut first = PAGES;
        while first < self.next_page {
            let count = WINDOW.min(self.next_page - first);
            let mut run = self.buffers.take(count as usize * self.page_len);
            let offset = first * self.page_len as u64;
            self.volume.read(&mut [Read { file: self.file, offset, buffer: &mut run }])?;
            self.read.fetch_add(count, Relaxed);
            for (page, bytes) in (first..).zip(run.chunks_exact(self.page_len)) {
                let id = NodeId(u64::from_le_bytes(bytes_at(bytes, 8)));
                // A page that is not whole is free: what is committed and missing is noticed by the digest.
                let Ok((node, header)) = Node::decode(bytes, &self.name, page * self.page_len as u64, id)
                else {
                    continue;
                };
                let sequence = header.sequence;
                if sequence >= self.committed {
                    later.push(page);
                } else if self.table.get(&id).is_none_or(|found| found.sequence < sequence) {
                    self.table.insert(id, Place { page, sequence });
                    children
                        .insert(id, if let Node::Inner(inner) = node { inner.children } else { Vec::new() });
                }
            }
            first += count;
        }
        let zeros = AlignedBuffer::new(self.page_len);
        let erase = |page: &u64| Write { file: self.file, offset: page * self.page_len as u64, data: &zeros };
        if !later.is_empty() {
            self.volume.write(&later.iter().map(erase).collect::<Vec<_>>())?;
        }
        self.volume.sync(self.file)?;
        Ok(children)
    }

    /// Nodes that the root does not lead to were freed before the commit.
    fn keep_reached(&mut self, children: &HashMap<NodeId, Vec<NodeId>>) -> Result<()> {
        let mut reached = HashSet::new();
        let mut next = vec![self.root.id];
        while let Some(id) = next.pop() {
            if reached.insert(id) {
                next.extend(children.get(&id).into_iter().flatten());
            }
        }
        self.table.retain(|id, _| reached.contains(id));
        let entries = self.table.iter().map(|(id, place)| place.digest(*id));
        self.digest = entries.fold(0, |digest, entry| digest ^ entry);
        if self.digest != self.committed_digest {
            let what = "digest of all nodes: some are missing or old";
            return Err(Error::corrupt(&self.name, 0, what, self.committed_digest, self.digest));
        }
        let taken: HashSet<u64> = self.table.values().map(|place| place.page).collect();
        self.free_pages = (PAGES..self.next_page).rev().filter(|page| !taken.contains(page)).collect();
        self.next_id = 1;
        self.free_ids.clear();
        for id in self.table.keys() {
            // As many as there are nodes will do, if an id is absurd.
            let room = (self.table.len() + 64).saturating_sub(self.free_ids.len());
            self.free_ids.extend((self.next_id..id.0).take(room));
            self.next_id = id.0.saturating_add(1);
        }
        self.free_ids.reverse();
        Ok(())
    }

    /// Where the tree began at the last commit.
    pub fn durable_root(&self) -> Root {
        self.root
    }

    /// Commits so far.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Reads nodes with one psync.
    pub fn read_pages(&self, ids: &[NodeId]) -> Result<Vec<Node>> {
        let place = |id: &NodeId| {
            let place = self.table.get(id).map(|place| place.page * self.page_len as u64);
            place.ok_or_else(|| Error::corrupt(&self.name, 0, "page of a node", id, "none"))
        };
        let offsets = ids.iter().map(place).collect::<Result<Vec<_>>>()?;
        let mut buffers: Vec<_> = ids.iter().map(|_| self.buffers.take(self.page_len)).collect();
        let mut set: Vec<_> = buffers
            .iter_mut()
            .zip(&offsets)
            .map(|(buffer, offset)| Read { file: self.file, offset: *offset, buffer })
            .collect();
        self.volume.read(&mut set)?;
        self.read.fetch_add(ids.len() as u64, Relaxed);
        let decoded = ids.iter().zip(&buffers).zip(offsets);
        decoded.map(|((id, page), offset)| Ok(Node::decode(page, &self.name, offset, *id)?.0)).collect()
    }

    /// Writes nodes with one psync, none twice.
    pub fn write_pages(&mut self, nodes: &[(NodeId, &Node)]) -> Result<()> {
        let mut pages = Vec::with_capacity(nodes.len());
        for (id, node) in nodes {
            let old = self.table.get(id).copied();
            let page = match old {
                Some(old) if old.sequence >= self.committed => old.page,
                _ => self.free_pages.pop().unwrap_or_else(|| {
                    self.next_page += 1;
                    self.next_page - 1
                }),
            };
            let mut data = self.buffers.take(self.page_len);
            node.encode(*id, self.sequence, &mut data);
            let place = Place { page, sequence: self.sequence };
            self.table.insert(*id, place);
            self.digest ^= place.digest(*id) ^ old.map_or(0, |old| old.digest(*id));
            self.sequence += 1;
            self.kept.extend(old.map(|old| old.page).filter(|old| *old != page));
            pages.push((page * self.page_len as u64, data));
        }
        let set: Vec<_> =
            pages.iter().map(|(offset, data)| Write { file: self.file, offset: *offset, data }).collect();
        self.volume.write(&set)?;
        self.written += set.len() as u64;
        Ok(())
    }

    pub fn allocate(&mut self) -> NodeId {
        NodeId(self.free_ids.pop().unwrap_or_else(|| {
            self.next_id += 1;
            self.next_id - 1
        }))
    }

    pub fn free(&mut self, id: NodeId) {
        if let Some(old) = self.table.remove(&id) {
            let pages = if old.sequence < self.committed { &mut self.kept } else { &mut self.free_pages };
            pages.push(old.page);
            self.digest ^= old.digest(id);
        }
        self.free_ids.push(id.0);
    }

    /// Makes everything that was written durable, and then a part of the tree.
    pub fn commit(&mut self, root: Root) -> Result<()> {
        self.volume.sync(self.file)?;
        let (pages, sequence, digest) = (self.next_page, self.sequence, self.digest);
        let record = CommitRecord { version: self.version + 1, root, pages, sequence, digest };
        let mut page = self.buffers.take(self.page_len);
        record.encode(&mut page);
        let offset = record.page() * self.page_len as u64;
        self.volume.write(&[Write { file: self.file, offset, data: &page }])?;
        self.volume.sync(self.file)?;
        if record.version == 1 {
            self.volume.sync_directory()?;
        }
        (self.version, self.root, self.committed_digest) = (record.version, root, digest);
        self.committed = self.sequence;
        self.free_pages.append(&mut self.kept);
        Ok(())
    }

    /// Verifies that every page is accounted for once.
    pub fn check(&self) -> Result<()> {
        let mut seen: HashSet<u64> = (0..PAGES).collect();
        let pages = self.table.values().map(|place| &place.page);
        for page in pages.chain(&self.free_pages).chain(&self.kept) {
            if !seen.insert(*page) {
                return Err(Error::broken(format!("page {page} is accounted for twice")));
            }
        }
        if seen.len() as u64 != self.next_page {
            return Err(Error::broken(format!(
                "{} of {} pages are accounted for",
                seen.len(),
                self.next_page
            )));
        }
        Ok(())
    }

    /// Nodes that have a page.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.table.keys().copied()
    }

    /// Pages that no node stands on, those included that are kept for a recovery: file and offset.
    pub fn unused(&self) -> Vec<(String, u64)> {
        let place = |page: &u64| (self.name.clone(), page * self.page_len as u64);
        self.free_pages.iter().chain(&self.kept).map(place).collect()
    }

    /// Pages, memory and space.
    pub fn counters(&self) -> Counters {
        let words = 3 * self.table.len() + self.free_pages.len() + self.kept.len() + self.free_ids.len();
        Counters {
            pages_read: self.read.load(Relaxed),
            pages_written: self.written,
            memory: 8 * words as u64,
            space: self.next_page * self.page_len as u64,
            ..Counters::default()
        }
    }
}

impl Drop for OutOfPlaceStore {
    fn drop(&mut self) {
        // Whoever needs it durable has committed it.
        let _ = self.volume.close(self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::node::{Inner, Leaf};
    use psync::Simulated;

    fn leaf(key: u64) -> Node {
        Node::Leaf(Leaf { entries: vec![(key, key)], next: None })
    }

    /// The root of a tree of these leaves.
    fn above(children: &[NodeId]) -> Node {
        let fences = (1..children.len() as u64).collect();
        Node::Inner(Inner { level: 1, fences, children: children.to_vec() })
    }

    #[test]
    fn power_loss_takes_all_back_to_the_commit() {
        for seed in 0..300 {
            let volume = Simulated::new(seed).with_alignment(128);
            let mut store = OutOfPlaceStore::create(Arc::new(volume.clone()), "f", 1024).unwrap();
            let root = Root { id: store.allocate(), level: 1 };
            let ids: Vec<_> = (0..5).map(|_| store.allocate()).collect();
            for id in &ids {
                store.write_pages(&[(*id, &leaf(id.0))]).unwrap();
            }
            store.write_pages(&[(root.id, &above(&ids))]).unwrap();
            store.commit(root).unwrap();
            let space = store.counters().space;
            for round in 1..4 {
                for id in &ids[..3] {
                    store.write_pages(&[(*id, &leaf(100 * round + id.0))]).unwrap();
                }
            }
            assert_eq!(store.counters().space, space + 3 * 1024, "written thrice, moved once");
            let kept = [&ids[..3], &ids[4..]].concat();
            store.free(ids[3]);
            store.write_pages(&[(root.id, &above(&kept))]).unwrap();
            let recovered = |volume: &Simulated| {
                let store = OutOfPlaceStore::open(Arc::new(volume.clone()), "f", 1024).unwrap();
                store.check().unwrap();
                store
            };
            let image = volume.power_loss(seed);
            let mut lost = recovered(&image);
            for id in &ids {
                assert_eq!(lost.read_pages(&[*id]).unwrap(), [leaf(id.0)], "seed {seed}");
            }
            // What was lost does not come back with the next commit.
            lost.write_pages(&[(ids[4], &leaf(7))]).unwrap();
            lost.commit(root).unwrap();
            drop(lost);
            let again = recovered(&image);
            assert_eq!(again.read_pages(&ids[3..]).unwrap(), [leaf(ids[3].0), leaf(7)]);
            assert_eq!(again.read_pages(&ids[..1]).unwrap(), [leaf(ids[0].0)]);
            store.commit(root).unwrap();
            store.check().unwrap();
            drop(store);
            let store = recovered(&volume.power_loss(seed));
            assert_eq!(store.read_pages(&ids[..1]).unwrap(), [leaf(300 + ids[0].0)]);
            assert!(store.read_pages(&ids[3..4]).is_err(), "it was freed");
        }
    }
}
