//! The ordered map inside the operation queue: it only grows, one thread at a time inserts, any number read without a
//! lock, and readers wait for nobody. Keys and values lie in memory that is never moved and is given up as a whole. Above them is a tree of small nodes
//! that hold four bytes of each key and four bytes that say where it is.
//!
//! ```text
//! inner node   12 · 40 · 7a        in order, never added to: a longer one takes its place
//!               │    │    │
//! leaf         4711 · 4208 · 4ffe    in the order of their coming
//!               │      │      │
//! entries      …                     as they came (`entry.rs`)
//! ```
//! An insertion waits for one cache line in the most cases, the head of a leaf: the upper levels are few and stay in the cache, and to a leaf an
//! entry is appended, at whatever place of it, without a look at what is there. Sorting is for those who want order, and for a leaf that is full and
//! becomes two. (The operation queue of the PIO B-tree is sorted late, too, as a whole. The skip list that stood here before waited for ten to fifteen
//! lines; see docs/notebook.md.)
//!
//! Invariants:
//! 1. Leaves have ranges that follow on: all entries from where one begins (`low`) to where the next one does, and nothing else.
//! 2. Whoever sees an entry sees all of it: it is written before its place is told.
//! 3. A change of the tree becomes visible with one store: all that leads to it is new (`grow.rs`).

mod ahead;
mod entry;
mod grow;
mod memory;
mod node;
mod search;
mod spare;
#[cfg(test)]
mod tests;

pub(crate) use entry::Entry;
use entry::Key;
use memory::{CHUNK, Memory, Place, Table};
use parking_lot::Mutex;
use search::{Goal, Page};
pub(crate) use spare::Spare;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
#[cfg(test)]
pub(crate) use tests::pages_of;

/// Entries that are sorted and inserted together.
const ROUND: usize = 1024;

/// Entries that a walk has on their way into the cache.
const AHEAD: usize = 6;

/// See the module.
pub(crate) struct Map {
    table: Table,
    /// Place of the root, and levels above the leaves.
    root: AtomicU64,
    /// Bytes of all that was taken.
    memory: AtomicUsize,
    /// Bytes of them that wait to be used, in whole small chunks.
    waiting: AtomicUsize,
    writer: Mutex<Writer>,
}

struct Writer {
    memory: Memory,
    /// Nodes that nobody can reach: leaves, inner nodes. A kind never becomes the other.
    idle: [Vec<Place>; 2],
    /// Entries that are in the tree.
    count: usize,
    /// Changes of the tree, beyond slots that were added.
    changes: u64,
    /// The last leaf and the last entry: where sorted input goes.
    last_leaf: Place,
    last: Place,
    /// Written, not yet in the tree: at most [`ROUND`], 16 KiB.
    round: Vec<Fresh>,
}

/// An entry that is in no leaf yet.
#[derive(Clone, Copy)]
struct Fresh {
    entry: Place,
}

/// One that shares memory with nobody.
#[cfg(test)]
impl Default for Map {
    fn default() -> Self {
        Self::new(&Arc::default())
    }
}

impl Map {
    /// An empty one, which takes what others have left there, and leaves there what it has when it is gone.
    pub fn new(spare: &Arc<Spare>) -> Self {
        Self {
            table: Table::default(),
            root: AtomicU64::new(0),
            memory: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            writer: Mutex::new(Writer {
                memory: Memory::new(Arc::clone(spare)),
                idle: [Vec::new(), Vec::new()],
                count: 0,
                changes: 0,
                last_leaf: Place::NOWHERE,
                last: Place::NOWHERE,
                round: Vec::new(),
            }),
        }
    }

    /// Bytes of memory that the map takes.
    pub fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// As [`Map::memory`], less what was taken in advance.
    pub fn fill(&self) -> usize {
        // Beside who inserts, the second may be that of a chunk more.
        self.memory().saturating_sub(self.waiting.load(Relaxed))
    }

    fn tell_waiting(&self, writer: &Writer) {
        self.waiting.store(writer.memory.left() / CHUNK * CHUNK, Relaxed);
    }

    /// The root, and the levels above the leaves.
    #[inline]
    fn root(&self) -> Option<(Place, usize)> {
        let root = self.root.load(Acquire);
        (root != 0).then_some((Place(root as u32), (root >> 32) as usize))
    }

    fn set_root(&self, root: Place, height: usize) {
        self.root.store((height as u64) << 32 | u64::from(root.0), Release);
    }

    #[inline]
    fn entry(&self, place: Place) -> Entry<'_> {
        Entry::at(&self.table, place)
    }

    pub fn is_empty(&self) -> bool {
        self.root().is_none()
    }

    /// The entries at and behind `key`, in order. What is inserted meanwhile may be left out.
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

    /// The entries before `key` (none: all), the last one first. What is inserted meanwhile may be left out.
    pub fn back_from(&self, key: Option<Key<'_>>) -> WalkBack<'_> {
        WalkBack { map: self, page: self.page_before(key) }
    }

    /// The leaf that has what is before `key`, and no more of it. But for the first one each has something: the entry that it begins with.
    fn page_before(&self, key: Option<Key<'_>>) -> Option<Page<'_>> {
        let mut page = self.page(key.map_or(Goal::Last, Goal::Before))?;
        if let Some(key) = key {
            page.end_before(self, key);
        }
        page.prefetch_back(self, AHEAD);
        Some(page)
    }

    /// The first entry at or behind `key`.
    pub fn at_or_after(&self, key: Key<'_>) -> Option<Entry<'_>> {
        let page = self.page(Goal::At(key))?;
        page.entry(self, page.before(self, key)).or(page.upper)
    }

    /// Inserts entries, in any order; none with the same key may be there or among them. Threads take turns. Readers see
    /// them one after the other.
    pub fn insert_all<'a>(&self, entries: impl IntoIterator<Item = (Key<'a>, Option<&'a [u8]>)>) {
        let writer = &mut *self.writer.lock();
        let mut entries = entries.into_iter().fuse();
        loop {
            writer.round.clear();
            for (key, value) in entries.by_ref().take(ROUND) {
                let entry = entry::write(&mut writer.memory, &self.table, &self.memory, key, value);
                writer.round.push(Fresh { entry });
            }
            if writer.round.is_empty() {
                return;
            }
            self.tell_waiting(writer);
            self.insert_round(writer);
            // Nodes take memory, too.
            self.tell_waiting(writer);
        }
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
            // The next leaf may have become two meanwhile; this is where it begins all the same.
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
        let page = self.page.as_mut()?;
        if let Some(entry) = page.next_back(self.map) {
            return Some(entry);
        }
        self.page = self.map.page_before(Some(page.first(self.map).key()));
        // Nothing before the first entry of a leaf: that was the first one.
        self.page.as_mut()?.next_back(self.map)
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Map({} bytes)", self.memory())
    }
}
