//! The ordered map inside the operation queue. It only grows; one thread at a time inserts; any number of
//! threads read without a lock and never wait. Keys and values lie in memory that is never moved and is freed
//! as a whole. Above them is a tree of small nodes, which hold four bytes of each key and a four-byte position
//! of its entry.
//!
//! ```text
//! inner node   12 · 40 · 7a        in order, never added to: a longer one takes its place
//!               │    │    │
//! leaf         4711 · 4208 · 4ffe    in the order of their coming
//!               │      │      │
//! entries      …                     as they came (`entry.rs`)
//! ```
//! An insertion usually waits for a single cache line, the head of a leaf: the upper levels are small and stay
//! in the cache, and the entry is appended to the leaf without looking at what is there. Entries are sorted
//! only for ordered reads, and when a full leaf is split. (The operation queue of the PIO B-tree is also sorted
//! late, but as a whole. The skip list that was here before waited for ten to fifteen lines; see
//! docs/adr/0015-opq-tree.md.)
//!
//! Invariants:
//! 1. Leaves have adjacent ranges: each holds exactly the entries from its own start (`low`) up to the start of
//!    the next. All versions of a key are in one leaf, unless they are too many for it.
//! 2. A reader that sees an entry sees all of it: the entry is written before its position is published.
//! 3. A change of the tree becomes visible with one store: everything that leads to it is new (`grow.rs`).

mod entry;
mod free_list;
mod grow;
mod memory;
mod node;
mod read_ahead;
mod search;
#[cfg(test)]
mod tests;
mod tombstones;

use crate::lock_order::{RankedGuard, RankedMutex, rank};
use crate::opq::samples::Samples;
pub(crate) use entry::Entry;
pub(super) use entry::Key;
pub(crate) use free_list::FreeList;
use memory::{CHUNK, Memory, MemoryRef, Table};
use search::{Goal, Page};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
#[cfg(test)]
pub(crate) use tests::pages_of;
pub(crate) use tombstones::Passed;

/// Entries that are inserted together, in the order in which they came (count): enough that sorted ones come to the
/// same leaf, in 4 KiB that fit a core's first cache.
const ROUND: usize = 1024;

/// Entries that a walk prefetches into the cache (count): so many that a line arrives before the walk needs it.
const AHEAD: usize = 6;

/// See the module documentation.
pub(crate) struct Map {
    table: Table,
    /// The position of the root, and the number of levels above the leaves.
    root: AtomicU64,
    /// The sequence number of the first entry.
    base: AtomicU64,
    /// Bytes of all memory taken.
    memory: AtomicUsize,
    /// Unused part of `memory`, in bytes, rounded down to whole small chunks.
    waiting: AtomicUsize,
    writer: RankedMutex<rank::Opq, Writer>,
}

struct Writer {
    memory: Memory,
    /// Unreachable nodes, for reuse: leaves and inner nodes. One kind is never reused as the other.
    idle: [Vec<MemoryRef>; 2],
    /// Number of entries in the tree.
    count: usize,
    /// Number of structural changes, not counting added slots.
    changes: u64,
    /// The last leaf and the last entry: where sorted input goes.
    last_leaf: MemoryRef,
    last: MemoryRef,
    /// Written but not yet in the tree: at most [`ROUND`], 4 KiB.
    round: Vec<NewEntry>,
    /// Here since an insertion has this lock.
    samples: Samples,
}

/// An entry that is not yet in a leaf.
#[derive(Clone, Copy)]
struct NewEntry {
    entry: MemoryRef,
}

/// A map that shares no spare memory.
#[cfg(test)]
impl Default for Map {
    fn default() -> Self {
        Self::new(&Arc::default())
    }
}

impl Map {
    /// An empty map. It takes memory from `spare`, and leaves its own memory there when it is dropped.
    pub fn new(spare: &Arc<FreeList>) -> Self {
        Self {
            table: Table::default(),
            root: AtomicU64::new(0),
            base: AtomicU64::new(0),
            memory: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            writer: RankedMutex::new(Writer {
                memory: Memory::new(Arc::clone(spare)),
                idle: [Vec::new(), Vec::new()],
                count: 0,
                changes: 0,
                last_leaf: MemoryRef::NOWHERE,
                last: MemoryRef::NOWHERE,
                round: Vec::new(),
                samples: Samples::default(),
            }),
        }
    }

    /// Bytes of memory that the map has taken.
    pub fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// Like [`Map::memory`], without the memory taken in advance.
    pub fn fill(&self) -> usize {
        // During an insertion, `waiting` may include a chunk that `memory` does not include yet.
        self.memory().saturating_sub(self.waiting.load(Relaxed))
    }

    fn tell_waiting(&self, writer: &Writer) {
        self.waiting.store(writer.memory.left() / CHUNK * CHUNK, Relaxed);
    }

    /// The root, and the number of levels above the leaves.
    #[inline]
    fn root(&self) -> Option<(MemoryRef, usize)> {
        let root = self.root.load(Acquire);
        (root != 0).then_some((MemoryRef(root as u32), (root >> 32) as usize))
    }

    fn set_root(&self, root: MemoryRef, height: usize) {
        self.root.store((height as u64) << 32 | u64::from(root.0), Release);
    }

    #[inline]
    fn entry(&self, place: MemoryRef) -> Entry<'_> {
        Entry::at(&self.table, place)
    }

    pub fn is_empty(&self) -> bool {
        self.root().is_none()
    }

    /// The entries at and after `key`, in order. Concurrent insertions may be missed.
    pub fn from(&self, key: Key<'_>) -> Walk<'_> {
        let mut page = self.page(Goal::At(key));
        if let Some(page) = &mut page {
            page.skip_to(self, key);
            page.prefetch(self, AHEAD);
        }
        Walk { map: self, page }
    }

    /// All entries in order.
    #[cfg(test)]
    pub fn all(&self) -> Walk<'_> {
        Walk { map: self, page: self.page(Goal::First) }
    }

    /// The entries before `key` (or all, if `None`), in descending order. Concurrent insertions may be missed.
    pub fn back_from(&self, key: Option<Key<'_>>) -> WalkBack<'_> {
        WalkBack { map: self, page: self.page_before(key) }
    }

    /// The last leaf whose range begins before `key`, cut off at `key`.
    fn page_before(&self, key: Option<Key<'_>>) -> Option<Page<'_>> {
        let mut page = self.page(key.map_or(Goal::Last, Goal::Before))?;
        if let Some(key) = key {
            page.end_before(self, key);
        }
        page.prefetch_back(self, AHEAD);
        Some(page)
    }

    /// The first entry at or after `key`.
    pub fn at_or_after(&self, key: Key<'_>) -> Option<Entry<'_>> {
        let page = self.page(Goal::At(key))?;
        page.entry(self, page.before(self, key))
            .or_else(|| self.page(Goal::At(page.upper?.key()))?.entry(self, 0))
    }

    /// Looks at the sample of what was inserted.
    pub(super) fn with_samples<T>(&self, look: impl FnOnce(&Samples) -> T) -> T {
        look(&self.writer.lock().samples)
    }

    /// Begins to insert entries, in any order. No key may exist already or occur twice. Threads insert one after the other.
    pub fn begin(&self) -> Insertion<'_> {
        let mut writer = self.writer.lock();
        writer.round.clear();
        Insertion { map: self, writer, is_first: self.is_empty() }
    }
}

/// Inserts entries into a map. Readers see them appear one after the other, and all of them once it has ended.
pub(crate) struct Insertion<'m> {
    map: &'m Map,
    writer: RankedGuard<'m, rank::Opq, Writer>,
    /// The map has no entry yet.
    is_first: bool,
}

impl Insertion<'_> {
    #[inline]
    pub fn push(&mut self, key: Key<'_>, value: Option<&[u8]>) {
        let (map, writer) = (self.map, &mut *self.writer);
        writer.samples.see(key, value.is_some());
        if std::mem::take(&mut self.is_first) {
            map.base.store(key.2, Relaxed);
        }
        let entry = entry::write(&mut writer.memory, &map.table, &map.memory, key, value);
        writer.round.push(NewEntry { entry });
        if writer.round.len() == ROUND {
            self.insert_round();
        }
    }

    /// Inserts what was not inserted yet.
    pub fn end(mut self) {
        if !self.writer.round.is_empty() {
            self.insert_round();
        }
    }

    fn insert_round(&mut self) {
        let (map, writer) = (self.map, &mut *self.writer);
        map.tell_waiting(writer);
        map.insert_round(writer);
        // Nodes take memory too.
        map.tell_waiting(writer);
        writer.round.clear();
    }
}

/// The entries of a map in order, from leaf to leaf.
pub(crate) struct Walk<'a> {
    map: &'a Map,
    page: Option<Page<'a>>,
}

impl<'a> Iterator for Walk<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let map = self.map;
        loop {
            let page = self.page.as_mut()?;
            page.prefetch_one(map, AHEAD);
            if let Some(entry) = page.next(map) {
                return Some(entry);
            }
            // The next leaf may have been split meanwhile; its first part still begins at this key.
            self.page = page.upper.and_then(|upper| map.page(Goal::At(upper.key())));
            self.page.iter().for_each(|page| page.prefetch(map, AHEAD));
        }
    }
}

/// The entries of a map downwards, from leaf to leaf.
pub(crate) struct WalkBack<'a> {
    map: &'a Map,
    page: Option<Page<'a>>,
}

impl<'a> Iterator for WalkBack<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            let page = self.page.as_mut()?;
            if let Some(entry) = page.next_back(self.map) {
                return Some(entry);
            }
            self.page = page.low.and_then(|low| self.map.page_before(Some(low.key())));
        }
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Map({} bytes)", self.memory())
    }
}
