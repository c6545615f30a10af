//! The ordered map inside the operation queue: it only grows, one thread at a time inserts, any number read without a
//! lock. Keys, values and links of an entry lie side by side in memory that is never moved and is given up as a whole, so that an
//! entry costs about 34 bytes more than its key and value, and a comparison one or two cache lines. (The general lock-free map
//! that stood here before took 150 bytes an entry; see docs/performance.md.)
//!
//! ```text
//! node (aligned to 8)
//! offset  size
//!  -8×h    8×h  next node on level h-1, …, 1, 0
//!     0      8  sequence number
//!     8      4  keyspace
//!    12      4  klen, and in the lowest 4 bits the height h, 1 to HEIGHT_MAX
//!    16      4  vlen, or NONE for a removal; and in the highest bit a mark: somebody has asked for it
//!    20      …  key  value
//! ```
//!
//! Insertion takes a whole batch (`parallel.rs`): a walk down the list is a chain of cache misses, but the chains of many
//! keys are independent of one another.
//!
//! Invariants:
//! 1. A node is never changed after it was linked in, its links and its mark aside, and lives as long as the list.
//! 2. Level 0 links all nodes in ascending order; each higher level a part of them.
//! 3. A node is linked with `Release` after all its bytes were written, and links are read with `Acquire`, so whoever
//!    sees a node sees all of it.

mod ahead;
mod memory;
mod parallel;
#[cfg(test)]
mod tests;

use crate::operation::{KeyspaceId, SeqNo};
use memory::{CHUNK, Memory};
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Levels: enough for 4^12 = 16 million entries at one link of four a level, and for more with longer walks.
const HEIGHT_MAX: usize = 12;
/// Bits of the height beside the length of the key.
const HEIGHT_BITS: u32 = 4;
/// The mark beside `vlen`.
const ASKED: u32 = 1 << 31;
/// `vlen` of a removal.
const NONE: u32 = ASKED - 1;
/// Levels below its own from which a walk has the next node brought into the cache.
const BELOW: usize = 2;
/// Entries that are sorted, searched for and linked together.
const ROUND: usize = 1024;

/// The fixed part of a node; links stand before it, key and value follow.
#[repr(C)]
struct Head {
    seq: SeqNo,
    keyspace: KeyspaceId,
    klen_height: u32,
    vlen: AtomicU32,
}

type Link = AtomicPtr<Head>;

/// Where the key begins: there is nothing but padding behind the head's last field.
const HEAD: usize = offset_of!(Head, vlen) + size_of::<AtomicU32>();
/// What a link takes, also where addresses are shorter, so that the head behind it is aligned.
const LINK: usize = 8;
const _: () = assert!(HEAD == 20 && size_of::<Link>() <= LINK && align_of::<Head>() <= LINK);
const _: () = assert!(HEIGHT_MAX < 1 << HEIGHT_BITS && crate::KEY_LEN_MAX < 1 << (32 - HEIGHT_BITS));

/// The order of the map: keyspace, key, newest first.
pub(crate) type Key<'a> = (KeyspaceId, &'a [u8], SeqNo);

#[inline]
fn compare(a: Key<'_>, b: Key<'_>) -> Ordering {
    a.0.cmp(&b.0).then_with(|| compare_bytes(a.1, b.1)).then_with(|| b.2.cmp(&a.2))
}

/// As `a.cmp(b)`, word by word in place of a call, which short keys pay for.
#[inline]
fn compare_bytes(mut a: &[u8], mut b: &[u8]) -> Ordering {
    while let (Some((x, a_rest)), Some((y, b_rest))) = (a.split_first_chunk(), b.split_first_chunk()) {
        if x != y {
            return u64::from_be_bytes(*x).cmp(&u64::from_be_bytes(*y));
        }
        (a, b) = (a_rest, b_rest);
    }
    if a.is_empty() || b.is_empty() { a.len().cmp(&b.len()) } else { a.cmp(b) }
}

/// An entry of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    node: NonNull<Head>,
    list: PhantomData<&'a SkipList>,
}

impl<'a> Entry<'a> {
    #[inline]
    fn head(self) -> &'a Head {
        // SAFETY: an entry is made of a node that was written, which lives as long as the list ('a) and whose head is never
        // changed but for the mark, which is part of an atomic (invariant 1).
        unsafe { self.node.as_ref() }
    }

    #[inline]
    fn bytes(self, offset: usize, len: usize) -> &'a [u8] {
        // SAFETY: the node was allocated with room for its links, key and value, and `offset` and `len` come from its head;
        // these bytes are never changed after the node was written (invariant 1), and live as long as the list.
        unsafe { std::slice::from_raw_parts(self.node.as_ptr().cast::<u8>().add(offset), len) }
    }

    fn key_len(self) -> usize {
        (self.head().klen_height >> HEIGHT_BITS) as usize
    }

    fn height(self) -> usize {
        (self.head().klen_height & ((1 << HEIGHT_BITS) - 1)) as usize
    }

    /// Where it stands.
    #[inline]
    pub fn key(self) -> Key<'a> {
        let head = self.head();
        (head.keyspace, self.bytes(HEAD, self.key_len()), head.seq)
    }

    /// Its value; `None` for a removal.
    pub fn value(self) -> Option<&'a [u8]> {
        let len = self.head().vlen.load(Relaxed) & !ASKED;
        (len != NONE).then(|| self.bytes(HEAD + self.key_len(), len as usize))
    }

    /// Notes that somebody has asked for it.
    pub fn ask(self) {
        // Mostly it is noted already, and the cache line stays with all who read it.
        if !self.is_asked() {
            self.head().vlen.fetch_or(ASKED, Relaxed);
        }
    }

    /// Whether somebody has asked for it.
    pub fn is_asked(self) -> bool {
        self.head().vlen.load(Relaxed) & ASKED != 0
    }

    #[inline]
    fn link(self, level: usize) -> &'a Link {
        debug_assert!(level < self.height(), "a node has as many links as its height");
        // SAFETY: a node has `height` links before its head, each written with the node; they are only accessed as atomics
        // from then on. Levels are walked down from where the node was linked in.
        unsafe { &*self.node.as_ptr().cast::<u8>().sub(LINK * (level + 1)).cast::<Link>() }
    }

    /// The next entry.
    pub fn next(self) -> Option<Self> {
        load(self.link(0))
    }
}

/// The node behind a link. The lifetime is that of the list the link belongs to.
#[inline]
fn load<'a>(link: &'a Link) -> Option<Entry<'a>> {
    NonNull::new(link.load(Acquire)).map(|node| Entry { node, list: PhantomData })
}

/// What a link holds that leads there.
#[inline]
fn address(entry: Option<Entry<'_>>) -> *mut Head {
    entry.map_or(ptr::null_mut(), |entry| entry.node.as_ptr())
}

/// See the module.
pub(crate) struct SkipList {
    first: [Link; HEIGHT_MAX],
    /// Levels in use.
    height: AtomicUsize,
    /// Bytes taken from the operating system.
    memory: AtomicUsize,
    /// Bytes of them that wait to be used, in whole small chunks.
    waiting: AtomicUsize,
    writer: Mutex<Writer>,
}

struct Writer {
    memory: Memory,
    random: u64,
    /// Entries that are linked in.
    count: usize,
    /// The last node of each level: where sorted input goes.
    last: [*mut Head; HEIGHT_MAX],
    /// Written, not yet linked in: at most [`ROUND`], 16 KiB.
    round: Vec<Fresh>,
}

/// A node that no link leads to yet. Its links hold what it is to stand behind, while that is sought.
struct Fresh {
    /// A part of its key: whatever has a lower one comes before it.
    rank: u64,
    node: NonNull<Head>,
}

// SAFETY: the raw pointers lead to memory that the list owns; it is changed under the writer's lock only, or through
// atomics, and given up with the list.
unsafe impl Send for SkipList {}
// SAFETY: as above; what readers reach without the lock is immutable or atomic (invariants 1 and 3).
unsafe impl Sync for SkipList {}

impl Default for SkipList {
    fn default() -> Self {
        Self {
            first: std::array::from_fn(|_| Link::new(ptr::null_mut())),
            height: AtomicUsize::new(1),
            memory: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            writer: Mutex::new(Writer {
                memory: Memory::default(),
                random: 0x9e37_79b9_7f4a_7c15,
                count: 0,
                last: [ptr::null_mut(); HEIGHT_MAX],
                round: Vec::new(),
            }),
        }
    }
}

impl SkipList {
    /// Bytes of memory that the list takes.
    pub fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// As [`SkipList::memory`], less what was taken in advance.
    pub fn fill(&self) -> usize {
        self.memory() - self.waiting.load(Relaxed)
    }

    /// The link on `level` of a node, or of the beginning.
    #[inline]
    fn link_of<'a>(&'a self, node: Option<Entry<'a>>, level: usize) -> &'a Link {
        node.map_or(&self.first[level], |node| node.link(level))
    }

    /// The last entry for which `is_before` holds, and the one that was found behind it; it must hold for a first part of
    /// the list only. What is inserted between the two meanwhile is not looked at, as if it came later.
    fn divide(&self, is_before: impl Fn(Key<'_>) -> bool) -> (Option<Entry<'_>>, Option<Entry<'_>>) {
        self.descend(is_before, |_, _| ())
    }

    /// As [`SkipList::divide`]; tells of each level, from the highest on, behind which entry the walk left it.
    #[inline]
    fn descend<'a>(
        &'a self,
        is_before: impl Fn(Key<'_>) -> bool,
        mut leaves: impl FnMut(usize, Option<Entry<'a>>),
    ) -> (Option<Entry<'a>>, Option<Entry<'a>>) {
        let (mut at, mut behind) = (None, None);
        for level in (0..self.height.load(Acquire)).rev() {
            loop {
                let next = load(self.link_of(at, level));
                if next == behind {
                    break;
                }
                // Whether the walk goes on or down is known when the next node has come. Where it goes down to comes meanwhile.
                for below in (0..level).rev().take(BELOW) {
                    if let Some(below_next) = load(self.link_of(at, below)) {
                        parallel::prefetch(below_next, below);
                    }
                }
                match next.filter(|next| is_before(next.key())) {
                    Some(next) => at = Some(next),
                    None => {
                        behind = next;
                        break;
                    }
                }
            }
            leaves(level, at);
        }
        (at, behind)
    }

    /// The first entry.
    pub fn front(&self) -> Option<Entry<'_>> {
        load(&self.first[0])
    }

    /// The last entry.
    pub fn back(&self) -> Option<Entry<'_>> {
        self.divide(|_| true).0
    }

    /// The first entry at or behind `key`.
    pub fn at_or_after(&self, key: Key<'_>) -> Option<Entry<'_>> {
        self.divide(|other| compare(other, key).is_lt()).1
    }

    /// The last entry before `key`.
    pub fn before(&self, key: Key<'_>) -> Option<Entry<'_>> {
        self.divide(|other| compare(other, key).is_lt()).0
    }

    /// Inserts entries, in any order; none with the same key may be there or among them. Threads take turns. Readers see
    /// them one after the other.
    pub fn insert_all<'a>(&self, entries: impl IntoIterator<Item = (Key<'a>, Option<&'a [u8]>)>) {
        let writer = &mut *self.writer.lock();
        let mut entries = entries.into_iter().fuse();
        loop {
            writer.round.clear();
            for (key, value) in entries.by_ref().take(ROUND) {
                let height = writer.height();
                let node = writer.node(key, value, height, &self.memory);
                writer.round.push(Fresh { rank: 0, node });
            }
            if writer.round.is_empty() {
                return;
            }
            self.waiting.store(writer.memory.left() / CHUNK * CHUNK, Relaxed);
            parallel::sort(&mut writer.round);
            self.seek(writer);
            self.link(writer);
        }
    }

    /// Links in what was sorted and sought. What was found for a node is the state of the list before the round: where a
    /// node of the round goes behind the same one as the one before it, it goes behind that.
    fn link(&self, writer: &mut Writer) {
        // On each level, the last node of the round, and what was found for it.
        let mut last: [Option<(*mut Head, Entry<'_>)>; HEIGHT_MAX] = [None; HEIGHT_MAX];
        for fresh in &writer.round {
            let new = fresh.entry(self);
            let height = new.height();
            let mut before: [Option<Entry<'_>>; HEIGHT_MAX] = [None; HEIGHT_MAX];
            for level in 0..height {
                let found = new.link(level).load(Relaxed);
                before[level] = match last[level] {
                    Some((same, node)) if same == found => Some(node),
                    _ => load(new.link(level)),
                };
                last[level] = Some((found, new));
                let behind = self.link_of(before[level], level).load(Relaxed);
                new.link(level).store(behind, Relaxed);
                if behind.is_null() {
                    writer.last[level] = new.node.as_ptr();
                }
            }
            // From below, so that whoever finds the node on a level finds it on all levels below.
            for (level, before) in before.iter().enumerate().take(height) {
                self.link_of(*before, level).store(new.node.as_ptr(), Release);
            }
            if height > self.height.load(Relaxed) {
                self.height.store(height, Release);
            }
        }
        writer.count += writer.round.len();
    }
}

impl Fresh {
    /// The node as an entry of the list that it was written for.
    fn entry<'a>(&self, _: &'a SkipList) -> Entry<'a> {
        Entry { node: self.node, list: PhantomData }
    }
}

impl Writer {
    /// A height: each is a quarter as likely as the one below.
    fn height(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (1 + self.random.trailing_zeros() as usize / 2).min(HEIGHT_MAX)
    }

    /// A node with links that lead nowhere.
    fn node(
        &mut self,
        (keyspace, key, seq): Key<'_>,
        value: Option<&[u8]>,
        height: usize,
        memory: &AtomicUsize,
    ) -> NonNull<Head> {
        let links = LINK * height;
        let vlen = value.map_or(0, <[u8]>::len);
        debug_assert!(
            key.len() <= crate::KEY_LEN_MAX && vlen < NONE as usize,
            "lengths are limited by the options"
        );
        let start =
            self.memory.take((links + HEAD + key.len() + vlen).max(links + size_of::<Head>()), memory);
        let head = Head {
            seq,
            keyspace,
            klen_height: (key.len() as u32) << HEIGHT_BITS | height as u32,
            vlen: AtomicU32::new(value.map_or(NONE, |value| value.len() as u32)),
        };
        // SAFETY: `take` gave us so many bytes, aligned to 8 and used by nobody else; all that is written lies within
        // them, and the sources are slices of the lengths that are copied. The head's padding is written before the key,
        // which takes its place.
        unsafe {
            for level in 0..height {
                start.add(LINK * level).cast::<Link>().write(Link::new(ptr::null_mut()));
            }
            let node = start.add(links);
            node.cast::<Head>().write(head);
            ptr::copy_nonoverlapping(key.as_ptr(), node.add(HEAD).as_ptr(), key.len());
            if let Some(value) = value {
                ptr::copy_nonoverlapping(value.as_ptr(), node.add(HEAD + key.len()).as_ptr(), vlen);
            }
            node.cast()
        }
    }
}

impl std::fmt::Debug for SkipList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SkipList({} bytes)", self.memory())
    }
}
