//! Memory of nodes: frames of half a page and of one to sixteen pages, shared by all threads. A general
//! allocator keeps freed memory for the thread that freed it, or has it scattered between live nodes; so a
//! cache that many threads fill, one after the other, takes far more than its size. Any thread can reuse a
//! frame: the flush reads into frames that the cache evicted, and the cache gets them again. So idle frames
//! keep their memory as long as cache and flush may have it. Surplus memory goes back to the operating
//! system, many frames at a time, since each such call interrupts every thread of the process; the lists are
//! not locked meanwhile. This file is about a frame in use; [`lists`] tracks which frames are idle and which
//! have memory.
//!
//! Invariants:
//! 1. A frame is in use by one [`Bytes`] and its clones, and goes back to the lists when the last of them is
//!    dropped; or it is in the lists, or in the hands of the thread that gives its memory back.
//! 2. A frame in use is not written to.
//! 3. Slabs live as long as any of their frames is in use.
//! 4. Whenever the lock is free, pages in use and idle are together no more than the owner allows
//!    ([`Frames::allow`]) and the `spare` ones, whatever their classes; or so many are in use that no more
//!    than the spare ones are idle.

mod lists;

use crate::lock_order::{RankedMutex, rank};
use bytes::Bytes;
use lists::{FrameSlot, Lists};
use std::ptr;
use std::sync::Arc;

/// Unit of a frame's length, in bytes: a page of the operating system, so that idle ones can be given back.
const PAGE: usize = 4096;
/// For the nodes of blocks, which stay in the cache for long and would pin the memory around them in an
/// allocator's arena.
const HALF: usize = PAGE / 2;
/// Shorter nodes, and nodes longer than sixteen pages, are few: both are left to the allocator.
const SHORTEST: usize = PAGE / 4;
const PAGES_MAX: usize = 16;

/// Bytes of the frame for a node of `len` bytes; `None` if it gets no frame.
fn frame_for(len: usize) -> Option<usize> {
    let pages = len.next_multiple_of(PAGE);
    match len {
        SHORTEST..=HALF => Some(HALF),
        _ if len > HALF && pages <= PAGES_MAX * PAGE => Some(pages),
        _ => None,
    }
}

/// Bytes of memory that a node of `len` bytes takes.
pub(crate) fn memory_of(len: usize) -> usize {
    frame_for(len).unwrap_or(len)
}

/// See the module.
pub(crate) struct Frames {
    inner: RankedMutex<rank::Frames, Lists>,
}

/// A frame in use.
struct Frame {
    place: FrameSlot,
    /// Whether it is half a page.
    half: bool,
    len: usize,
    frames: Arc<Frames>,
}

// SAFETY: what is shared is read only (invariant 2), and the lists are behind a lock.
unsafe impl Sync for Frame {}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the frame is ours until we drop it (invariant 1), its slab lives as long (we hold
        // `frames`), `len` bytes were written before the frame was shared, and no thread writes to it since
        // (invariant 2).
        unsafe { std::slice::from_raw_parts(self.place.start.as_ptr(), self.len) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.frames
            .change(|inner| if self.half { inner.give_half(self.place) } else { inner.give(self.place) });
    }
}

impl Frames {
    /// Keeps `spare` bytes idle for the next takers, whatever is allowed.
    pub fn new(spare: usize) -> Arc<Self> {
        let inner = Lists { spare: (spare / PAGE).max(PAGES_MAX), ..Lists::default() };
        Arc::new(Self { inner: RankedMutex::new(inner) })
    }

    /// Allows so many bytes of memory, in use or idle. To be called after those that have to make room have
    /// done so: then surplus memory is given back at once.
    pub fn allow(&self, bytes: u64) {
        self.change(|inner| inner.allowed = bytes as usize / PAGE);
    }

    /// Changes the lists, and then gives surplus memory back.
    fn change<T>(&self, change: impl FnOnce(&mut Lists) -> T) -> T {
        let (changed, going) = {
            let mut inner = self.inner.lock();
            let changed = change(&mut inner);
            (changed, inner.take_surplus())
        };
        if let Some(going) = going {
            going.cool();
            self.inner.lock().put_cold(going);
        }
        changed
    }

    /// Copies a node's bytes into a frame.
    pub fn copy(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        let Some((place, half)) = self.take_for(bytes.len()) else { return Bytes::copy_from_slice(bytes) };
        // SAFETY: we were given a frame of at least as many bytes, which nothing else uses.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.start.as_ptr(), bytes.len()) };
        Bytes::from_owner(Frame { place, half, len: bytes.len(), frames: Arc::clone(self) })
    }

    /// Has a frame of `len` bytes filled, which hold anything before. Returns `None` if `fill` does.
    pub fn fill(self: &Arc<Self>, len: usize, fill: impl FnOnce(&mut [u8]) -> Option<()>) -> Option<Bytes> {
        let Some((place, half)) = self.take_for(len) else {
            let mut bytes = vec![0; len];
            return fill(&mut bytes).map(|()| bytes.into());
        };
        let frame = Frame { place, half, len, frames: Arc::clone(self) };
        // SAFETY: we were given a frame of at least as many bytes, which nothing else uses as long as `frame` is ours alone; the
        // memory is that of a mapping, so all of it was written, by the system or by whoever had the frame before.
        fill(unsafe { std::slice::from_raw_parts_mut(frame.place.start.as_ptr(), len) })?;
        Some(Bytes::from_owner(frame))
    }

    /// A frame for a node of `len` bytes, and whether it is half a page.
    fn take_for(&self, len: usize) -> Option<(FrameSlot, bool)> {
        let len = frame_for(len)?;
        let half = len == HALF;
        let place = self.change(|inner| if half { inner.take_half() } else { inner.take(len / PAGE) })?;
        Some((place, half))
    }

    /// Pages with memory behind them, in use and idle.
    #[cfg(test)]
    pub fn pages(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.used_pages, inner.idle_pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages with memory behind them.
    fn resident(frames: &Frames) -> usize {
        let (used, idle) = frames.pages();
        used + idle
    }

    #[test]
    fn copies_hold_what_they_were_made_of_while_others_come_and_go() {
        let frames = Frames::new(20 * PAGE);
        let count = if cfg!(miri) { 200 } else { 3000 };
        let lens =
            [SHORTEST - 1, SHORTEST, HALF, HALF + 1, PAGE, PAGE + 1, 7 * PAGE, 16 * PAGE, 16 * PAGE + 1];
        let mut held: Vec<(Bytes, u8, usize)> = Vec::new();
        for turn in 0..count {
            let fill = (turn % 251) as u8;
            let len = lens[turn % lens.len()];
            let copy = frames.copy(&vec![fill; len]);
            assert_eq!(copy.len(), len);
            held.push((copy.slice(len / 2..), fill, frame_for(len).unwrap_or(0)));
            if turn % 3 > 0 {
                held.swap_remove(turn * 7919 % held.len());
            }
            if turn % 100 == 0 {
                assert!(held.iter().all(|(bytes, fill, _)| is_all(bytes, *fill)));
            }
        }
        let in_use: usize = held.iter().map(|(.., bytes)| bytes).sum::<usize>().div_ceil(PAGE);
        let halves = held.iter().filter(|(.., bytes)| *bytes == HALF).count();
        let resident = resident(&frames);
        assert!(
            halves > 5 && in_use > 20 && (in_use..=in_use + halves / 2 + 20).contains(&resident),
            "{in_use} {resident}"
        );
        drop(held);
        assert!(frames.pages().1 <= 20, "idle ones are kept, and no more");
        assert!(frames.inner.lock().halves.is_empty(), "two idle halves are a whole");
    }

    /// Whether all bytes are this one: at once, since Miri looks at one byte after the other for minutes.
    fn is_all(bytes: &[u8], byte: u8) -> bool {
        bytes == vec![byte; bytes.len()]
    }

    fn take(frames: &Arc<Frames>, count: usize, pages: usize) -> Vec<Bytes> {
        (0..count).map(|_| frames.copy(&vec![7; pages * PAGE])).collect()
    }

    #[test]
    fn what_is_allowed_keeps_its_memory_whatever_used_it() {
        let frames = Frames::new(20 * PAGE);
        let used_before = take(&frames, 100, 1);
        frames.allow(80 * PAGE as u64);
        assert_eq!(frames.pages(), (100, 0), "what is in use stays");
        drop(used_before);
        assert_eq!(frames.pages(), (0, 100), "80, and the spare ones");
        let cached = take(&frames, 50, 1);
        let at_work = take(&frames, 50, 1);
        assert_eq!(frames.pages(), (100, 0), "the idle ones were taken");
        drop(at_work);
        assert_eq!(frames.pages(), (50, 50));
        frames.allow(60 * PAGE as u64);
        assert_eq!(
            frames.pages(),
            (50, 20),
            "some of the spare ones went too, so that the next do not go one by one"
        );
        drop(take(&frames, 25, 1));
        assert_eq!(frames.pages(), (50, 25), "their room is used");
        frames.allow(0);
        assert_eq!(frames.pages(), (50, 10));
        drop(cached);
        assert!(frames.pages().1 <= 20);
    }

    #[test]
    fn what_goes_belongs_to_no_thread_while_others_take_and_give() {
        let frames = Frames::new(20 * PAGE);
        frames.allow(80 * PAGE as u64);
        drop(take(&frames, 100, 1));
        let going = {
            let mut inner = frames.inner.lock();
            inner.allowed = 0;
            inner.take_surplus().unwrap()
        };
        assert_eq!((going.places.len(), frames.pages()), (90, (0, 10)), "what goes counts no more");
        // The lock is free, and the others take what does not go.
        let held = take(&frames, 300, 1);
        assert!(
            held.iter()
                .all(|copy| going.places.iter().all(|place| place.address() != copy.as_ptr() as usize))
        );
        going.cool();
        assert!(held.iter().all(|copy| is_all(copy, 7)));
        let slabs = |frames: &Frames| frames.inner.lock().slabs.len();
        frames.inner.lock().put_cold(going);
        let before = slabs(&frames);
        let again = take(&frames, 90, 1);
        assert_eq!((slabs(&frames), frames.pages()), (before, (390, 0)), "they are taken again");
        assert!(again.iter().chain(&held).all(|copy| is_all(copy, 7)));
    }

    /// While their memory goes frames are in no list, and others can see that: they have the lock.
    #[test]
    #[cfg(all(unix, not(miri)))]
    fn no_thread_waits_for_the_lists_while_memory_goes() {
        use super::lists::PAGES_A_SLAB;
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

        const COUNT: usize = 16 * PAGES_A_SLAB;
        let frames = Frames::new(0);
        let was_seen = (0..100).any(|_| {
            frames.allow(u64::MAX);
            drop(take(&frames, COUNT, 1));
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let is_going = || {
                        let inner = frames.inner.lock();
                        inner.classes[0].idle.len() + inner.classes[0].cold.len() < COUNT
                    };
                    while !is_over.load(Relaxed) {
                        if is_going() {
                            return true;
                        }
                    }
                    false
                });
                frames.allow(0);
                is_over.store(true, Relaxed);
                other.join().unwrap()
            })
        });
        assert!(was_seen, "the lists were locked until the memory was given back");
        assert_eq!(frames.inner.lock().slabs.len(), 16, "and all of them come back");
    }

    #[test]
    fn frames_of_one_length_make_room_for_those_of_another() {
        let frames = Frames::new(20 * PAGE);
        frames.allow(80 * PAGE as u64);
        drop(take(&frames, 25, 4));
        assert_eq!(frames.pages(), (0, 100));
        let mut held = Vec::new();
        for count in 1..=80 {
            held.extend(take(&frames, 1, 1));
            assert!(resident(&frames) <= 100, "with {count} in use: {:?}", frames.pages());
        }
        assert!(frames.pages().1 > 0, "{:?}", frames.pages());
    }

    #[test]
    fn two_halves_lie_in_one_page() {
        let frames = Frames::new(1 << 20);
        let mut held: Vec<_> = (0..100).map(|number| frames.copy(&[number; HALF])).collect();
        assert_eq!(resident(&frames), 50);
        // Every other one goes, and its place is taken before another page is.
        held.retain(|half| half[0] % 2 == 0);
        held.extend((100..150).map(|number| frames.copy(&[number; HALF - 7])));
        assert_eq!(resident(&frames), 50);
        assert!(held.iter().all(|half| is_all(half, half[0])));
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
        assert!(resident(&frames) <= 101, "{:?}", frames.pages());
    }
}
