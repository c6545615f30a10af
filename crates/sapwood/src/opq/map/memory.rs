//! The memory of a map. It is taken in chunks, from what earlier maps have left ([`FreeList`]) or from the
//! operating system, handed out from the front, and given back as a whole. A large part of the budget comes and
//! goes this way, and an allocator would keep freed memory. Allocated memory is identified by a *place*: four
//! bytes instead of an address.
//!
//! ```text
//! place = 17 bits: which granule of 256 KiB │ 15 bits: which eight bytes of it      (0: nowhere)
//! ```
//! A chunk is one granule, or eight. A long entry is a granule of its own, however long.
//!
//! Invariants:
//! 1. Allocated memory is never allocated again, and does not move as long as the `Memory` lives.
//! 2. Of the memory that a map has taken, at most a fifth or one small chunk is unused, plus a sixteenth behind
//!    large entries; of memory left by earlier maps, one huge chunk.
//! 3. A granule is in the table before any place in it is handed out.
//! 4. Until it is written, allocated memory contains whatever an earlier map has left there.

use super::free_list::FreeList;
use memmap2::MmapMut;
use std::alloc::{Layout, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, OnceLock};

/// Bytes of the chunks of a short map: so few that a queue of the least database has some.
pub(super) const CHUNK: usize = 256 << 10;
/// The size of the chunks of a longer map: a huge page of x86-64. A search touches a new page with nearly every
/// node, and a core caches the addresses of some 3000 pages; beyond that, each node costs a second access, to
/// the page table, and more on a virtual machine. (Linux aligns such a mapping since 6.7. Before, or without
/// huge pages, it is a chunk like any other.)
pub(super) const HUGE: usize = 2 << 20;
/// A map of at least this size is a longer one: about what 3000 small pages hold.
pub(super) const LONG: usize = 8 << 20;
/// Entries of more than this many bytes have an allocation of their own: they would leave a good part of a chunk
/// unused.
const ALONE: usize = CHUNK / 4;

/// Bytes of a page of the operating system (or a part of one).
const PAGE: usize = 4096;

/// The bits of a place that give the position in its granule, in units of eight bytes: entries are aligned so.
const UNIT_BITS: u32 = (CHUNK / 8).ilog2();
/// Granules of one part of the table: 8 KiB of pointers, so that a short map's table is short.
const PART: usize = 1024;
/// Number of parts of the table: so many that a place of 32 bits leads to any granule.
const PARTS: usize = 1 << (u32::BITS - UNIT_BITS) >> PART.ilog2();
/// The maximum number of granules: 131072. Nothing here warns a writer that they run out, so queues must stay
/// smaller: see `QUEUE_MAX` and `REPLAYED_MAX` in [`crate::options`]. At twice the first of these, a queue
/// whose entries share nothing has used a half of them.
const GRANULES: usize = PARTS * PART;

/// The position of an allocation; see the module documentation. Only its writer knows it, and code that it was
/// passed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemoryRef(pub u32);

impl MemoryRef {
    pub const NOWHERE: Self = Self(0);

    pub fn is_somewhere(self) -> bool {
        self != Self::NOWHERE
    }
}

/// The addresses of the granules, for all holders of places.
pub(super) struct Table {
    parts: [OnceLock<Box<[AtomicPtr<u8>]>>; PARTS],
}

impl Default for Table {
    fn default() -> Self {
        Self { parts: [const { OnceLock::new() }; PARTS] }
    }
}

impl Table {
    /// The address of an allocated place.
    #[inline]
    pub fn at(&self, MemoryRef(place): MemoryRef) -> NonNull<u8> {
        let granule = (place >> UNIT_BITS) as usize;
        let part = self.parts[granule / PART].get();
        let base = part.map_or(ptr::null_mut(), |part| part[granule % PART].load(Acquire));
        debug_assert!(!base.is_null(), "places are given out");
        let unit = (place & ((1 << UNIT_BITS) - 1)) as usize;
        // SAFETY: places are given out by `Memory::take` only, which puts the granule into the table before (invariant 3), and lie
        // inside of it.
        unsafe { NonNull::new_unchecked(base.add(8 * unit)) }
    }

    fn set(&self, granule: usize, base: *mut u8) {
        let part = self.parts[granule / PART]
            .get_or_init(|| std::iter::repeat_with(AtomicPtr::default).take(PART).collect());
        part[granule % PART].store(base, Release);
    }
}

/// See the module documentation.
pub(super) struct Memory {
    chunks: Vec<MmapMut>,
    /// Number of granules in the table. They are numbered from 1, because number 0 would make place 0, which
    /// means nowhere.
    granules: usize,
    /// The first granule of the last chunk, where the chunk's free part begins, and how long that is.
    granule: usize,
    at: usize,
    left: usize,
    spare: Arc<FreeList>,
}

/// The map is gone, so its table is not used any more.
impl Drop for Memory {
    fn drop(&mut self) {
        self.spare.keep(std::mem::take(&mut self.chunks));
    }
}

impl Memory {
    pub fn new(spare: Arc<FreeList>) -> Self {
        Self { chunks: Vec::new(), granules: 1, granule: 0, at: 0, left: 0, spare }
    }

    /// Allocates `len` bytes with arbitrary content, aligned to `align` (8 or more). `total` counts the bytes
    /// that the map has taken.
    #[inline]
    pub fn take(&mut self, len: usize, align: usize, table: &Table, total: &AtomicUsize) -> MemoryRef {
        debug_assert!(align.is_power_of_two() && (8..=4096).contains(&align));
        let len = len.next_multiple_of(8);
        let skipped = self.at.next_multiple_of(align) - self.at;
        if skipped + len > self.left {
            return self.take_more(len, table, total);
        }
        let at = self.at + skipped;
        self.at = at + len;
        self.left -= skipped + len;
        // The granules of a chunk have consecutive numbers, so places run through them without a gap.
        MemoryRef(((self.granule as u32) << UNIT_BITS) + (at / 8) as u32)
    }

    #[cold]
    fn take_more(&mut self, len: usize, table: &Table, total: &AtomicUsize) -> MemoryRef {
        // A large entry has an allocation of its own, so that at most a quarter of a chunk is wasted.
        if len > ALONE {
            let chunk = self.map(len);
            let granule = self.add(chunk, 1, table, total);
            return MemoryRef((granule as u32) << UNIT_BITS);
        }
        let is_long = total.load(Relaxed) >= LONG;
        let chunk = match self.spare.take(is_long) {
            Some(chunk) => chunk,
            None => self.map(if is_long { HUGE } else { CHUNK }),
        };
        let whole = chunk.len();
        let granule = self.add(chunk, whole / CHUNK, table, total);
        (self.granule, self.at, self.left) = (granule, len, whole - len);
        MemoryRef((granule as u32) << UNIT_BITS)
    }

    /// Bytes taken but not yet used.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Maps `len` bytes from the operating system: fresh pages.
    fn map(&self, len: usize) -> MmapMut {
        self.spare.make_way(len);
        let Ok(chunk) = MmapMut::map_anon(len) else { no_memory(len) };
        #[cfg(all(target_os = "linux", not(miri)))]
        if len == HUGE {
            // Only a hint: without huge pages everything works as well, but slower.
            let _ = chunk.advise(memmap2::Advice::HugePage);
        }
        chunk
    }

    /// Adds a chunk to the table, and returns the number of its first granule.
    fn add(&mut self, mut chunk: MmapMut, granules: usize, table: &Table, total: &AtomicUsize) -> usize {
        let (start, len) = (chunk.as_mut_ptr(), chunk.len());
        if self.granules + granules > GRANULES {
            no_memory(len)
        }
        self.chunks.push(chunk);
        let first = self.granules;
        for number in 0..granules {
            table.set(first + number, start.wrapping_add(number * CHUNK));
        }
        self.granules += granules;
        // The system hands out whole pages.
        total.fetch_add(len.next_multiple_of(PAGE), Relaxed);
        first
    }
}

fn no_memory(len: usize) -> ! {
    let Ok(layout) = Layout::from_size_align(len, 8) else { unreachable!("lengths are limited") };
    handle_alloc_error(layout)
}
