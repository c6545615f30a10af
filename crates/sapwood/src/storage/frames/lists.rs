//! Keeps track of which frames are idle and which have memory. Frames lie in slabs of the operating system's
//! memory; a slab is divided into frames of one class.
//!
//! ```text
//! slab of class n (1 MiB of the operating system's memory) = 256 / n frames of n pages; of one page: whole or two halves
//! frame: cold (no memory behind it) ─take─▶ in use ─give─▶ idle ─take_surplus─▶ going ─put_cold─▶ cold
//! ```
//!
//! Invariants:
//! 1. A frame is in use, in one of the two lists of its class, or in [`DetachedFrames`]; in exactly one of these. A
//!    half frame is in use, or idle beside one that is in use: two idle halves become a whole.
//! 2. Slabs live as long as their lists.
//! 3. Pages in use and idle are counted; those in [`DetachedFrames`] are neither.

use super::{HALF, PAGE, PAGES_MAX};
use memmap2::{MmapMut, MmapRaw};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

/// Pages of a slab (1 MiB): so that few calls map them, and a small cache has no more than it needs.
pub(super) const PAGES_A_SLAB: usize = 256;

#[derive(Default)]
pub(super) struct Lists {
    pub(super) slabs: Vec<Arc<MmapRaw>>,
    /// Frames of `n + 1` pages: idle, and cold (without memory).
    pub(super) classes: [Class; PAGES_MAX],
    /// Idle halves of pages that are in use, by address.
    pub(super) halves: BTreeMap<usize, FrameSlot>,
    pub(super) used_pages: usize,
    pub(super) idle_pages: usize,
    /// Pages that may have memory, in use or idle.
    pub(super) allowed: usize,
    /// Pages that may be idle in addition, however many are in use: readers hold nodes that are not
    /// counted.
    pub(super) spare: usize,
}

#[derive(Default)]
pub(super) struct Class {
    pub(super) idle: Vec<FrameSlot>,
    pub(super) cold: Vec<FrameSlot>,
}

/// Address and class of a frame.
#[derive(Clone, Copy)]
pub(super) struct FrameSlot {
    pages: usize,
    slab: usize,
    pub(super) start: NonNull<u8>,
}

impl FrameSlot {
    pub(super) fn address(self) -> usize {
        self.start.as_ptr() as usize
    }
}

// SAFETY: the pointer leads into a slab, which belongs to no thread; which thread may use it is decided by the lists
// (invariant 1).
unsafe impl Send for FrameSlot {}

impl Lists {
    /// Takes a frame; `None` if the system gives no memory.
    pub(super) fn take(&mut self, pages: usize) -> Option<FrameSlot> {
        let Self { slabs, classes, used_pages, idle_pages, .. } = self;
        let lists = &mut classes[pages - 1];
        if let Some(place) = lists.idle.pop() {
            *idle_pages -= pages;
            *used_pages += pages;
            return Some(place);
        }
        if lists.cold.is_empty() {
            let slab = MmapRaw::from(MmapMut::map_anon(PAGES_A_SLAB * PAGE).ok()?);
            let first = slab.as_mut_ptr();
            for index in (0..PAGES_A_SLAB / pages).rev() {
                // SAFETY: within the slab.
                let start = NonNull::new(unsafe { first.add(index * pages * PAGE) })?;
                lists.cold.push(FrameSlot { pages, slab: slabs.len(), start });
            }
            slabs.push(Arc::new(slab));
        }
        let place = lists.cold.pop()?;
        *used_pages += pages;
        Some(place)
    }

    /// Takes half a page: the idle half with the lowest address, so that halves gather in few pages, or else
    /// one half of an unused page.
    pub(super) fn take_half(&mut self) -> Option<FrameSlot> {
        if let Some((_, place)) = self.halves.pop_first() {
            return Some(place);
        }
        let place = self.take(1)?;
        // SAFETY: within the page.
        let start = unsafe { place.start.add(HALF) };
        let other = FrameSlot { start, ..place };
        self.halves.insert(other.address(), other);
        Some(place)
    }

    pub(super) fn give(&mut self, place: FrameSlot) {
        self.used_pages -= place.pages;
        self.idle_pages += place.pages;
        self.classes[place.pages - 1].idle.push(place);
    }

    /// If too much is idle, takes out frames of any class whose memory is to be given back. Those of many
    /// pages go first: they are needed least.
    pub(super) fn take_surplus(&mut self) -> Option<DetachedFrames> {
        let most = self.spare + self.allowed.saturating_sub(self.used_pages);
        if self.idle_pages <= most {
            return None;
        }
        // Takes some more, so that the next frame given back does not trigger this again.
        let pages = most - self.spare / 2;
        let mut places = Vec::new();
        for lists in self.classes.iter_mut().rev() {
            let Some(class) = lists.idle.first().map(|place| place.pages) else { continue };
            // The frames that have been idle longest.
            let count = (self.idle_pages.saturating_sub(pages)).div_ceil(class).min(lists.idle.len());
            self.idle_pages -= count * class;
            places.extend(lists.idle.drain(..count));
        }
        places.sort_unstable_by_key(|place| (place.slab, place.address()));
        let of_slab = |places: &[FrameSlot]| Arc::clone(&self.slabs[places[0].slab]);
        let slabs = places.chunk_by(|a, b| a.slab == b.slab).map(of_slab);
        Some(DetachedFrames { slabs: slabs.collect(), places })
    }

    /// Takes back frames whose memory was given back.
    pub(super) fn put_cold(&mut self, going: DetachedFrames) {
        for place in going.places {
            self.classes[place.pages - 1].cold.push(place);
        }
    }

    pub(super) fn give_half(&mut self, place: FrameSlot) {
        // Slabs begin on page boundaries.
        match self.halves.remove(&(place.address() ^ HALF)) {
            Some(other) if other.address() < place.address() => self.give(other),
            Some(_) => self.give(place),
            None => _ = self.halves.insert(place.address(), place),
        }
    }
}

/// Frames that are not in use and in no list.
pub(super) struct DetachedFrames {
    /// Sorted by slab and address.
    pub(super) places: Vec<FrameSlot>,
    /// The slabs of these, each once.
    slabs: Vec<Arc<MmapRaw>>,
}

impl DetachedFrames {
    /// Gives the frames' memory back to the operating system, with one call for neighbours.
    pub(super) fn cool(&self) {
        for (places, slab) in self.places.chunk_by(|a, b| a.slab == b.slab).zip(&self.slabs) {
            for neighbours in places.chunk_by(|a, b| a.address() + a.pages * PAGE == b.address()) {
                let pages: usize = neighbours.iter().map(|place| place.pages).sum();
                give_back(slab, neighbours[0].address() - slab.as_ptr() as usize, pages * PAGE);
            }
        }
    }
}

/// Gives the whole system pages within a range of a slab back to the operating system.
fn give_back(slab: &MmapRaw, offset: usize, len: usize) {
    #[cfg(all(unix, not(miri)))]
    if let Some(pages) = psync::page_size().and_then(|page| whole_pages(offset, len, page)) {
        // SAFETY: the frames are not in use, so their content is not needed, and no other frame lies in these
        // pages. If the system refuses, their memory stays.
        let _ = unsafe {
            slab.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, pages.start, pages.len())
        };
    }
    #[cfg(not(all(unix, not(miri))))]
    let _ = (slab, offset, len);
}

/// The system's pages that lie wholly within a range of a slab, if any does. If they are longer than ours, a
/// frame may be a part of one, and the other frames in that page would read as zeros.
#[cfg_attr(any(not(unix), miri), allow(dead_code))]
fn whole_pages(offset: usize, len: usize, page: usize) -> Option<std::ops::Range<usize>> {
    let (start, end) = (offset.next_multiple_of(page), (offset + len) / page * page);
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::whole_pages;

    #[test]
    fn only_whole_pages_of_the_system_go() {
        assert_eq!(whole_pages(8192, 12288, 4096), Some(8192..20480));
        assert_eq!(whole_pages(4096, 4096, 16384), None, "one frame of four in a page");
        assert_eq!(whole_pages(12288, 24576, 16384), Some(16384..32768));
        assert_eq!(whole_pages(16384, 16384, 65536), None);
    }
}
