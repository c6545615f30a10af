//! The memory of a list: taken from the operating system in chunks, given out from the front, given back as a whole. A large
//! part of the budget comes and goes this way, and an allocator would keep what others gave up.
//!
//! Invariants:
//! 1. What was given out is never given out again, and stays where it is as long as the memory lives.
//! 2. Of what a list has taken, at most a fifth or one small chunk waits to be used, and a thirty-second behind large entries.

use memmap2::MmapMut;
use std::alloc::{Layout, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a short list takes at a time.
pub(super) const CHUNK: usize = 256 << 10;
/// What a longer one takes: a huge page of x86-64. A walk comes to a new page at nearly every node, and a core knows the
/// addresses of some 3000 pages; beyond them each node costs a second access, to the page table, and on a virtual machine
/// more. (Linux aligns such a mapping since 6.7; before, or without huge pages, it is a chunk like any other.)
const HUGE: usize = 2 << 20;
/// From here on a list is a longer one: about what 3000 small pages hold.
const LONG: usize = 8 << 20;

/// See the module.
pub(super) struct Memory {
    chunks: Vec<MmapMut>,
    /// The free part of the last chunk.
    free: *mut u8,
    left: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: ptr::null_mut(), left: 0 }
    }
}

impl Memory {
    /// `len` bytes of fresh memory, aligned to 8. `total` counts what is taken from the system.
    #[inline]
    pub fn take(&mut self, len: usize, total: &AtomicUsize) -> NonNull<u8> {
        let len = len.next_multiple_of(8);
        if len > self.left {
            // A large entry has an allocation of its own, so that at most an eighth of a chunk is wasted.
            if len > CHUNK / 8 {
                return self.allocate(len, total);
            }
            let chunk = if total.load(Relaxed) < LONG { CHUNK } else { HUGE };
            self.free = self.allocate(chunk, total).as_ptr();
            self.left = chunk;
        }
        let start = self.free;
        // SAFETY: `len` is at most what is left of the chunk.
        self.free = unsafe { start.add(len) };
        self.left -= len;
        // SAFETY: a pointer into an allocation is not null.
        unsafe { NonNull::new_unchecked(start) }
    }

    /// Bytes taken that wait to be used.
    pub fn left(&self) -> usize {
        self.left
    }

    #[cold]
    fn allocate(&mut self, len: usize, total: &AtomicUsize) -> NonNull<u8> {
        let Ok(layout) = Layout::from_size_align(len, 8) else { unreachable!("lengths are limited") };
        let Ok(mut chunk) = MmapMut::map_anon(len) else { handle_alloc_error(layout) };
        let Some(start) = NonNull::new(chunk.as_mut_ptr()) else { handle_alloc_error(layout) };
        #[cfg(all(target_os = "linux", not(miri)))]
        if len == HUGE {
            // A wish only: without it everything works as well, if slower.
            let _ = chunk.advise(memmap2::Advice::HugePage);
        }
        self.chunks.push(chunk);
        total.fetch_add(len, Relaxed);
        start
    }
}
