//! The ordered map inside the operation queue: it only grows, one thread at a time inserts, any number read without a
//! lock. Keys, values and links of an entry lie side by side in memory that is never moved and is given up as a whole, so that an
//! entry costs about 40 bytes more than its key and value, and a comparison one cache line. (The general lock-free map that stood
//! here before took 150 bytes an entry; see docs/performance.md.)
//!
//! ```text
//! node (aligned to 8)
//! offset size
//!      0    8  sequence number
//!      8    4  keyspace
//!     12    4  klen
//!     16    4  vlen, or NONE for a removal
//!     20    4  height h, 1 to HEIGHT_MAX
//!     24  8×h  next node on level 0, 1, …
//!      …       key  value
//! ```
//!
//! Invariants:
//! 1. A node is never changed after it was linked in, its links aside, and lives as long as the list.
//! 2. Level 0 links all nodes in ascending order; each higher level a part of them.
//! 3. A node is linked with `Release` after all its bytes were written, and links are read with `Acquire`, so whoever
//!    sees a node sees all of it.

use crate::operation::{KeyspaceId, SeqNo};
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::alloc::{Layout, handle_alloc_error};
use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Levels: enough for 4^12 = 16 million entries at one link of four a level, and for more with longer walks.
const HEIGHT_MAX: usize = 12;
/// What memory is taken in.
const CHUNK: usize = 256 << 10;
/// `vlen` of a removal.
const NONE: u32 = u32::MAX;

/// The fixed part of a node; links, key and value follow.
#[repr(C)]
struct Head {
    seq: SeqNo,
    keyspace: KeyspaceId,
    klen: u32,
    vlen: u32,
    height: u32,
}

type Link = AtomicPtr<Head>;

const HEAD: usize = size_of::<Head>();
const _: () = assert!(HEAD == 24 && size_of::<Link>() <= 8 && align_of::<Head>() <= 8);

/// The order of the map: keyspace, key, newest first.
pub(crate) type Key<'a> = (KeyspaceId, &'a [u8], SeqNo);

fn compare(a: Key<'_>, b: Key<'_>) -> Ordering {
    a.0.cmp(&b.0).then_with(|| a.1.cmp(b.1)).then_with(|| b.2.cmp(&a.2))
}

/// An entry of a list.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    node: NonNull<Head>,
    list: PhantomData<&'a SkipList>,
}

impl<'a> Entry<'a> {
    fn head(self) -> &'a Head {
        // SAFETY: an entry is made of a linked node only, which lives as long as the list ('a) and whose head is never
        // changed (invariant 1).
        unsafe { self.node.as_ref() }
    }

    fn bytes(self, offset: usize, len: usize) -> &'a [u8] {
        // SAFETY: the node was allocated with room for its links, key and value, and `offset` and `len` come from its head;
        // these bytes are never changed after the node was linked (invariant 1), and live as long as the list.
        unsafe { std::slice::from_raw_parts(self.node.as_ptr().cast::<u8>().add(offset), len) }
    }

    /// Where it stands.
    pub fn key(self) -> Key<'a> {
        let head = self.head();
        let key = self.bytes(HEAD + 8 * head.height as usize, head.klen as usize);
        (head.keyspace, key, head.seq)
    }

    /// Its value; `None` for a removal.
    pub fn value(self) -> Option<&'a [u8]> {
        let head = self.head();
        let offset = HEAD + 8 * head.height as usize + head.klen as usize;
        (head.vlen != NONE).then(|| self.bytes(offset, head.vlen as usize))
    }

    fn link(self, level: usize) -> &'a Link {
        debug_assert!(level < self.head().height as usize, "a node has as many links as its height");
        // SAFETY: a node has `height` links behind its head, each written before the node was linked; they are only
        // accessed as atomics from then on. Levels are walked down from where the node was linked in.
        unsafe { &*self.node.as_ptr().cast::<u8>().add(HEAD + 8 * level).cast::<Link>() }
    }

    /// The next entry.
    pub fn next(self) -> Option<Self> {
        load(self.link(0))
    }
}

/// The node behind a link. The lifetime is that of the list the link belongs to.
fn load<'a>(link: &'a Link) -> Option<Entry<'a>> {
    NonNull::new(link.load(Acquire)).map(|node| Entry { node, list: PhantomData })
}

/// See the module.
pub(crate) struct SkipList {
    first: [Link; HEIGHT_MAX],
    /// Levels in use.
    height: AtomicUsize,
    /// Bytes taken from the operating system.
    memory: AtomicUsize,
    writer: Mutex<Writer>,
}

struct Writer {
    /// Pages from the operating system, and given back to it: a large part of the budget comes and goes this way, and an
    /// allocator would keep what others gave up.
    chunks: Vec<MmapMut>,
    /// The free part of the last chunk.
    free: *mut u8,
    left: usize,
    random: u64,
    /// The last node of each level: where sorted input goes.
    last: [*mut Head; HEIGHT_MAX],
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
            writer: Mutex::new(Writer {
                chunks: Vec::new(),
                free: ptr::null_mut(),
                left: 0,
                random: 0x9e37_79b9_7f4a_7c15,
                last: [ptr::null_mut(); HEIGHT_MAX],
            }),
        }
    }
}

impl SkipList {
    /// Bytes of memory that the list takes.
    pub fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// The link on `level` of a node, or of the beginning.
    fn link_of<'a>(&'a self, node: Option<Entry<'a>>, level: usize) -> &'a Link {
        node.map_or(&self.first[level], |node| node.link(level))
    }

    /// The last entry for which `is_before` holds, and the one that was found behind it; it must hold for a first part of
    /// the list only. What is inserted between the two meanwhile is not looked at, as if it came later.
    fn divide(&self, is_before: impl Fn(Key<'_>) -> bool) -> (Option<Entry<'_>>, Option<Entry<'_>>) {
        let (mut at, mut behind) = (None, None);
        for level in (0..self.height.load(Acquire)).rev() {
            loop {
                behind = load(self.link_of(at, level));
                match behind.filter(|next| is_before(next.key())) {
                    Some(next) => at = Some(next),
                    None => break,
                }
            }
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

    /// Inserts an entry; none with the same key may be there. Threads take turns.
    pub fn insert(&self, key: Key<'_>, value: Option<&[u8]>) {
        let mut writer = self.writer.lock();
        let height = writer.height();
        let node = writer.node(key, value, height, &self.memory);
        // Where the node is to be linked: behind the last node, if it belongs at the end, or where a search ends.
        let mut before: [Option<Entry<'_>>; HEIGHT_MAX] = [None; HEIGHT_MAX];
        let entry = |node: *mut Head| NonNull::new(node).map(|node| Entry { node, list: PhantomData });
        let used = self.height.load(Relaxed).max(height);
        if entry(writer.last[0]).is_none_or(|last| compare(last.key(), key).is_lt()) {
            (0..used).for_each(|level| before[level] = entry(writer.last[level]));
        } else {
            let mut at = None;
            for level in (0..used).rev() {
                while let Some(next) =
                    load(self.link_of(at, level)).filter(|next| compare(next.key(), key).is_lt())
                {
                    at = Some(next);
                }
                before[level] = at;
            }
        }
        let new = Entry { node, list: PhantomData };
        for (level, before) in before.iter().enumerate().take(height) {
            let behind = self.link_of(*before, level).load(Relaxed);
            new.link(level).store(behind, Relaxed);
            if behind.is_null() {
                writer.last[level] = node.as_ptr();
            }
        }
        // From below, so that whoever finds the node on a level finds it on all levels below.
        for (level, before) in before.iter().enumerate().take(height) {
            self.link_of(*before, level).store(node.as_ptr(), Release);
        }
        if height > self.height.load(Relaxed) {
            self.height.store(height, Release);
        }
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
        let links = 8 * height;
        let vlen = value.map_or(0, <[u8]>::len);
        debug_assert!(
            key.len() < NONE as usize && vlen < NONE as usize,
            "lengths are limited by the options"
        );
        let start = self.take(HEAD + links + key.len() + vlen, memory);
        let head = Head {
            seq,
            keyspace,
            klen: key.len() as u32,
            vlen: value.map_or(NONE, |value| value.len() as u32),
            height: height as u32,
        };
        // SAFETY: `take` gave us so many bytes, aligned to 8 and used by nobody else; all that is written lies within
        // them, and the sources are slices of the lengths that are copied.
        unsafe {
            let node = start.as_ptr();
            node.cast::<Head>().write(head);
            for level in 0..height {
                node.add(HEAD + 8 * level).cast::<Link>().write(Link::new(ptr::null_mut()));
            }
            ptr::copy_nonoverlapping(key.as_ptr(), node.add(HEAD + links), key.len());
            if let Some(value) = value {
                ptr::copy_nonoverlapping(value.as_ptr(), node.add(HEAD + links + key.len()), vlen);
            }
        }
        start.cast()
    }

    /// `len` bytes of fresh memory, aligned to 8.
    fn take(&mut self, len: usize, memory: &AtomicUsize) -> NonNull<u8> {
        let len = len.next_multiple_of(8);
        // A large entry has an allocation of its own, so that at most an eighth of a chunk is wasted.
        if len > CHUNK / 8 {
            return self.allocate(len, memory);
        }
        if len > self.left {
            self.free = self.allocate(CHUNK, memory).as_ptr();
            self.left = CHUNK;
        }
        let start = self.free;
        // SAFETY: `len` is at most what is left of the chunk.
        self.free = unsafe { start.add(len) };
        self.left -= len;
        // SAFETY: a pointer into an allocation is not null.
        unsafe { NonNull::new_unchecked(start) }
    }

    fn allocate(&mut self, len: usize, memory: &AtomicUsize) -> NonNull<u8> {
        let Ok(layout) = Layout::from_size_align(len, 8) else { unreachable!("lengths are limited") };
        let Ok(mut chunk) = MmapMut::map_anon(len) else { handle_alloc_error(layout) };
        let Some(start) = NonNull::new(chunk.as_mut_ptr()) else { handle_alloc_error(layout) };
        self.chunks.push(chunk);
        memory.fetch_add(len, Relaxed);
        start
    }
}

impl std::fmt::Debug for SkipList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SkipList({} bytes)", self.memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    /// Fewer under Miri, which is slow.
    const COUNT: u64 = if cfg!(miri) { 300 } else { 20_000 };

    fn shuffled(n: u64) -> u64 {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
    }

    /// Keyspace, key, sequence number, value.
    type Plain = (u32, Vec<u8>, u64, Option<Vec<u8>>);

    fn entries(list: &SkipList) -> Vec<Plain> {
        let mut all = Vec::new();
        let mut next = list.front();
        while let Some(entry) = next {
            let (keyspace, key, seq) = entry.key();
            all.push((keyspace.0, key.to_vec(), seq, entry.value().map(<[u8]>::to_vec)));
            next = entry.next();
        }
        all
    }

    #[test]
    fn entries_come_in_order_whatever_the_order_of_insertion() {
        for sorted in [true, false] {
            let list = SkipList::default();
            let mut expected = Vec::new();
            for n in 0..COUNT {
                let number = if sorted { n } else { shuffled(n) >> 48 };
                let (keyspace, key) = ((number >> 60) as u32 + 1, number.to_be_bytes());
                let value = (n % 5 > 0).then(|| vec![n as u8; (n % 90) as usize]);
                list.insert((KeyspaceId(keyspace), &key, n), value.as_deref());
                expected.push((keyspace, key.to_vec(), n, value));
            }
            expected.sort_by(|a, b| compare((KeyspaceId(a.0), &a.1, a.2), (KeyspaceId(b.0), &b.1, b.2)));
            assert_eq!(entries(&list), expected);
            assert_eq!(list.back().map(|entry| entry.key().2), expected.last().map(|last| last.2));
            for probe in expected.iter().step_by(7) {
                let key = (KeyspaceId(probe.0), &probe.1[..], probe.2);
                assert!(list.at_or_after(key).is_some_and(|entry| compare(entry.key(), key).is_eq()));
                let before = expected
                    .iter()
                    .rfind(|other| compare((KeyspaceId(other.0), &other.1, other.2), key).is_lt());
                assert_eq!(list.before(key).map(|entry| entry.key().2), before.map(|before| before.2));
                if cfg!(not(miri)) && expected.len() > 10_000 {
                    break;
                }
            }
        }
    }

    #[test]
    fn memory_is_counted_and_large_entries_stand_alone() {
        let list = SkipList::default();
        list.insert((KeyspaceId(1), b"large", 1), Some(&vec![7; CHUNK]));
        let large = list.memory();
        assert!((CHUNK..CHUNK + 256).contains(&large), "{large}");
        for n in 0..1000u64 {
            list.insert((KeyspaceId(1), &n.to_be_bytes(), 2 + n), Some(&[1; 100]));
        }
        assert_eq!(list.memory(), large + CHUNK, "a thousand short ones share a chunk");
        assert_eq!(
            list.at_or_after((KeyspaceId(1), b"large", 1)).and_then(Entry::value).map(<[u8]>::len),
            Some(CHUNK)
        );
    }

    /// A new version of a key sorts right before the older one that a reader of an earlier time looks for.
    #[test]
    fn a_search_never_ends_before_what_it_looks_for() {
        let list = SkipList::default();
        list.insert((KeyspaceId(1), b"key", 0), Some(b"first"));
        let done = AtomicBool::new(false);
        let ready = Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    ready.wait();
                    while !done.load(Acquire) {
                        let found = list.at_or_after((KeyspaceId(1), b"key", 0));
                        assert_eq!(found.and_then(Entry::value), Some(&b"first"[..]));
                    }
                });
            }
            ready.wait();
            for seq in 1..COUNT * 20 {
                list.insert((KeyspaceId(1), b"key", seq), Some(b"later"));
            }
            done.store(true, Release);
        });
    }

    #[test]
    fn readers_see_whole_entries_in_order_while_a_writer_inserts() {
        let list = SkipList::default();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !done.load(Acquire) || seen < COUNT {
                        let mut count = 0;
                        let mut next = list.front();
                        let mut last: Option<Vec<u8>> = None;
                        while let Some(entry) = next {
                            let (_, key, seq) = entry.key();
                            assert!(last.as_deref().is_none_or(|last| last < key));
                            assert_eq!(entry.value(), Some(&seq.to_le_bytes()[..]));
                            last = Some(key.to_vec());
                            count += 1;
                            next = entry.next();
                        }
                        assert!(count >= seen, "entries do not go away");
                        seen = count;
                    }
                });
            }
            for n in 0..COUNT {
                list.insert((KeyspaceId(1), &shuffled(n).to_be_bytes(), n), Some(&n.to_le_bytes()));
            }
            done.store(true, Release);
        });
    }
}
