//! Memory of nodes: frames of one to sixteen pages, which every thread takes from and gives back to. An allocator keeps what one
//! thread frees for that thread, or has it between nodes that live; so a cache that many threads fill, one after the other, takes
//! far more than its size. These frames are used again by whoever needs one next, and idle ones go back to the operating system.
//!
//! ```text
//! slab of class n (1 MiB of the operating system's memory) = 256 / n frames of n pages
//! frame: cold (no memory behind it) ─take─▶ in use ─last Bytes dropped─▶ idle ─too many are─▶ cold
//! ```
//!
//! Invariants:
//! 1. A frame is in use by one [`Bytes`] and its clones, or in one of the two lists of its class; never both.
//! 2. A frame in use is not written to.
//! 3. Slabs live as long as any of their frames is in use.

use bytes::Bytes;
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// What frames are made of.
const PAGE: usize = 4096;
/// Nodes of blocks, which are half a page long, would waste half of a frame, and longer ones than sixteen pages are few: both are left to the allocator.
const SHORTEST: usize = PAGE / 8 * 5;
const PAGES_MAX: usize = 16;
const PAGES_A_SLAB: usize = 256;

/// Pages of the frame for `len` bytes, if they get one.
fn class_of(len: usize) -> Option<usize> {
    (SHORTEST..=PAGES_MAX * PAGE).contains(&len).then(|| len.div_ceil(PAGE))
}

/// Bytes of memory that a node of `len` bytes takes.
pub(crate) fn memory_of(len: usize) -> usize {
    class_of(len).map_or(len, |pages| pages * PAGE)
}

/// See the module.
pub(crate) struct Frames {
    inner: Mutex<Inner>,
    /// Pages that may be idle.
    idle_max: usize,
}

#[derive(Default)]
struct Inner {
    slabs: Vec<MmapMut>,
    /// Frames of `n + 1` pages: idle, and without memory.
    classes: [Lists; PAGES_MAX],
    used_pages: usize,
    idle_pages: usize,
}

#[derive(Default)]
struct Lists {
    idle: Vec<Place>,
    cold: Vec<Place>,
}

/// Where a frame lies.
#[derive(Clone, Copy)]
struct Place {
    pages: usize,
    slab: usize,
    start: NonNull<u8>,
}

// SAFETY: the pointer leads into a slab, which belongs to no thread; who may use it is decided by the lists (invariant 1).
unsafe impl Send for Place {}

/// A frame in use.
struct Frame {
    place: Place,
    len: usize,
    frames: Arc<Frames>,
}

// SAFETY: what is shared is read only (invariant 2), and the lists are behind a lock.
unsafe impl Sync for Frame {}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the frame is ours until we drop it (invariant 1), its slab lives as long (we hold `frames`), `len` bytes were
        // written before the frame was shared, and nobody writes to it since (invariant 2).
        unsafe { std::slice::from_raw_parts(self.place.start.as_ptr(), self.len) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.frames.give(self.place);
    }
}

impl Frames {
    /// At most `idle` bytes are kept for the next who comes.
    pub fn new(idle: usize) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), idle_max: (idle / PAGE).max(PAGES_MAX) })
    }

    /// A copy of a node's bytes.
    pub fn copy(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        let Some(place) = class_of(bytes.len()).and_then(|pages| self.take(pages)) else {
            return Bytes::copy_from_slice(bytes);
        };
        // SAFETY: `take` gave us a frame of as many pages as `bytes` need, which nobody else uses.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.start.as_ptr(), bytes.len()) };
        Bytes::from_owner(Frame { place, len: bytes.len(), frames: Arc::clone(self) })
    }

    /// A frame of our own; `None` if the system gives no memory.
    fn take(&self, pages: usize) -> Option<Place> {
        let mut guard = self.inner.lock();
        let Inner { slabs, classes, used_pages, idle_pages } = &mut *guard;
        let lists = &mut classes[pages - 1];
        if let Some(place) = lists.idle.pop() {
            *idle_pages -= pages;
            *used_pages += pages;
            return Some(place);
        }
        if lists.cold.is_empty() {
            let mut slab = MmapMut::map_anon(PAGES_A_SLAB * PAGE).ok()?;
            let first = slab.as_mut_ptr();
            for index in (0..PAGES_A_SLAB / pages).rev() {
                // SAFETY: within the slab.
                let start = NonNull::new(unsafe { first.add(index * pages * PAGE) })?;
                lists.cold.push(Place { pages, slab: slabs.len(), start });
            }
            slabs.push(slab);
        }
        let place = lists.cold.pop()?;
        *used_pages += pages;
        Some(place)
    }

    fn give(&self, place: Place) {
        let mut inner = self.inner.lock();
        inner.used_pages -= place.pages;
        if inner.idle_pages + place.pages > self.idle_max {
            inner.cool(place);
            inner.classes[place.pages - 1].cold.push(place);
        } else {
            inner.idle_pages += place.pages;
            inner.classes[place.pages - 1].idle.push(place);
        }
    }

    /// Pages with memory behind them, in use or idle.
    #[cfg(test)]
    fn resident(&self) -> usize {
        let inner = self.inner.lock();
        inner.used_pages + inner.idle_pages
    }
}

impl Inner {
    /// Gives the memory behind an idle frame back to the operating system.
    fn cool(&self, place: Place) {
        #[cfg(all(unix, not(miri)))]
        if let Some(slab) = self.slabs.get(place.slab) {
            let offset = place.start.as_ptr() as usize - slab.as_ptr() as usize;
            // SAFETY: nobody uses the frame, so nobody misses its content. If the system refuses, its memory stays.
            let _ = unsafe {
                slab.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, place.pages * PAGE)
            };
        }
        #[cfg(not(all(unix, not(miri))))]
        let _ = place.slab;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_hold_what_they_were_made_of_while_others_come_and_go() {
        let frames = Frames::new(20 * PAGE);
        let count = if cfg!(miri) { 200 } else { 3000 };
        let lens = [SHORTEST - 1, SHORTEST, 2000, PAGE, PAGE + 1, 7 * PAGE, 16 * PAGE, 16 * PAGE + 1];
        let mut held: Vec<(Bytes, u8, usize)> = Vec::new();
        for turn in 0..count {
            let fill = (turn % 251) as u8;
            let len = lens[turn % lens.len()];
            let copy = frames.copy(&vec![fill; len]);
            assert_eq!(copy.len(), len);
            held.push((copy.slice(len / 2..), fill, class_of(len).unwrap_or(0)));
            if turn % 3 > 0 {
                held.swap_remove(turn * 7919 % held.len());
            }
            if turn % 100 == 0 {
                assert!(held.iter().all(|(bytes, fill, _)| bytes.iter().all(|byte| byte == fill)));
            }
        }
        let in_use: usize = held.iter().map(|(.., pages)| pages).sum();
        assert!(
            in_use > 20 && (in_use..=in_use + 20).contains(&frames.resident()),
            "{in_use} {}",
            frames.resident()
        );
        drop(held);
        assert!(frames.resident() <= 20, "idle ones are kept, and no more");
    }

    #[test]
    fn a_frame_that_another_thread_gives_back_is_used_again() {
        let frames = Frames::new(1 << 20);
        for _ in 0..10 {
            let copies: Vec<_> = (0..100).map(|_| frames.copy(&[7; PAGE])).collect();
            let last = copies[99].clone();
            std::thread::spawn(move || drop(copies)).join().unwrap();
            assert_eq!(last, [7; PAGE][..]);
        }
        assert!(frames.resident() <= 101, "{}", frames.resident());
    }
}
